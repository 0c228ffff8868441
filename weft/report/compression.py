"""The page of a compression: size, error, latency and energy of each point, and what each layer takes before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..io.files import replace_file
from . import svg
from .charts import LINE, MARGIN, WIDTH, curves
from .page import document
from .svg import escape

_BAR = 16.0  # height of a bar


def compression_page(folder: Path, state: Mapping[str, Any]) -> Path:
    """Write compression.html into the folder of a compressed run; `state` is what compression.json holds."""
    path = folder / "compression.html"
    replace_file(path, [page_of(folder.name, state).encode("utf-8", "replace")], "report")
    return path


def page_of(name: str, state: Mapping[str, Any]) -> str:
    """The HTML of the page."""
    points, original = state["points"], state["original"]
    kept = next((point for point in points if point["number"] == state.get("chosen")), None)
    head = f"{kept['ratio']:.1f}x smaller, error {_percent(kept['error'])} (original {_percent(original['error'])})" if kept else "not finished"  # fmt: skip
    parts = [
        f'<header><p class="run">{escape(name)}</p><h1>Compression of {escape(Path(state["source"]).name)}</h1><p class="lead">{escape(head)}</p></header>',
        f'<section><h2>Points</h2><div class="card wide">{pareto(points, original)}</div>{_point_table(points, original, state.get("chosen"))}</section>',
    ]
    if kept is not None:
        parts.append(f'<section><h2>Layers</h2><div class="card wide">{layer_picture(kept["layers"])}</div>{_layer_table(kept["layers"])}</section>')  # fmt: skip
    parts.append("<footer>Sizes are bytes of files with everything in them: program, tables, codebooks, biases. All numbers are in compression.json.</footer>")  # fmt: skip
    return document(f"{name} compressed", "\n".join(parts))


def pareto(points: Sequence[Mapping[str, Any]], original: Mapping[str, Any]) -> str:
    """Error over the ratio of sizes: the points, and the front of those that no other one beats in both."""
    places = [(point["ratio"], 100 * point["error"]) for point in (original, *points)]
    front = [a for a in places if not any(b != a and b[0] >= a[0] and b[1] <= a[1] for b in places)]
    return curves({"all points": places, "Pareto front": front}, "Error by size", x="times smaller", unit="%")


def layer_picture(layers: Sequence[Mapping[str, Any]]) -> str:
    """For each layer its share of all bytes before and after, the weights it keeps, and the bits of each."""
    total = {"before": sum(layer["before"] for layer in layers), "after": sum(layer["after"] for layer in layers)}
    left, right = MARGIN + 170.0, WIDTH - MARGIN - 150.0
    parts, y = [svg.text(MARGIN, MARGIN + 13, "Share of bytes before and after", "title")], MARGIN + 2.0 * LINE
    for layer in layers:
        parts.append(svg.text(left - 8, y + 20, svg.fit(layer["name"], 150, middle=True), anchor="end", note=layer["name"]))  # fmt: skip
        for number, when in enumerate(("before", "after")):
            share = layer[when] / max(total[when], 1)
            top = y + number * (_BAR + 2)
            note = f"{when}: {layer[when]:,.0f} bytes, {100 * share:.1f} %"
            parts.append(svg.rect(left, top, max(1.0, share * (right - left)), _BAR, f"f{number}", note=note, corner=2))
            parts.append(svg.text(left + share * (right - left) + 6, top + 12, f"{100 * share:.1f} %", "soft"))
        bits = layer["coded_weight_bits"] + layer["coded_index_bits"]
        parts.append(svg.text(WIDTH - MARGIN, y + 12, f"{100 * layer['density']:.1f} % kept", anchor="end"))
        parts.append(svg.text(WIDTH - MARGIN, y + 30, f"{bits:.1f} bits each", "soft", anchor="end"))
        y += 2 * _BAR + 16
    return svg.document(WIDTH, y + MARGIN, "Share of bytes before and after", parts)


def _point_table(points: Sequence[Mapping[str, Any]], original: Mapping[str, Any], chosen: int | None) -> str:
    titles = [
        "point",
        "density",
        "bits",
        "bytes",
        "times smaller",
        "error",
        "latency",
        "times as fast",
        "energy, modelled",
    ]
    rows = [_point_cells("original", original), *(_point_cells(str(p["number"]), p) for p in points)]
    marked = [i for i, point in enumerate(points, 1) if point["number"] == chosen]
    return _table(titles, rows, marked)


def _point_cells(name: str, point: Mapping[str, Any]) -> list[str]:
    latency = point.get("latency_ms")
    return [
        name, f"{100 * point['density']:.1f} %", "32" if name == "original" else str(point["bits"] or 32), f"{point['bytes']:,}",
        f"{point['ratio']:.1f}", _percent(point["error"]), "" if latency is None else f"{latency:.3f} ms",
        f"{point['speed']:.1f}" if point.get("speed") else "", f"{1e6 * point['joules']:,.3g} µJ" if point.get("joules") else "",
    ]  # fmt: skip


def _layer_table(layers: Sequence[Mapping[str, Any]]) -> str:
    titles = [
        "layer",
        "weights",
        "kept",
        "weight bits",
        "coded",
        "index bits",
        "coded",
        "bytes before",
        "after",
        "of file",
    ]
    rows = [
        [
            layer["name"], f"{layer['weights']:,}", f"{100 * layer['density']:.1f} %", f"{layer['weight_bits']:.1f}",
            f"{layer['coded_weight_bits']:.1f}", f"{layer['index_bits']:.1f}", f"{layer['coded_index_bits']:.1f}", f"{layer['before']:,}",
            f"{layer['after']:,.0f}", f"{100 * layer['share']:.1f} %",
        ]
        for layer in layers
    ]  # fmt: skip
    return _table(titles, rows)


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]], marked: Sequence[int] = ()) -> str:
    """A table whose first column is text; rows in `marked` are bold."""

    def cells(row: Sequence[str], tag: str, strong: bool = False) -> str:
        texts = [f"<b>{escape(cell)}</b>" if strong else escape(cell) for cell in row]
        return "".join(f"<{tag}{'' if i == 0 else ' class=number'}>{text}</{tag}>" for i, text in enumerate(texts))

    body = "".join(f"<tr>{cells(row, 'td', i in marked)}</tr>" for i, row in enumerate(rows))
    return f"<table class='narrow'><tr>{cells(titles, 'th')}</tr>{body}</table>"


def _percent(error: float) -> str:
    return f"{100 * error:.2f} %"
