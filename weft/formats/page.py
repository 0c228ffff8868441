"""A page about number formats in a network: accuracy, tensors and their magnitudes. One HTML file without scripts."""

from __future__ import annotations

import math

from ..report.charts import bars
from ..report.page import document
from ..report.svg import escape
from .number_format import number_format
from .pictures import magnitudes
from .survey import FormatSurvey, noise_text
from .table import LEGEND, TITLES, row_cells, table
from .tensor_fit import FormatNoise, TensorFit

STYLE = """<style>.wide{overflow-x:auto}.wide table{min-width:720px;font-size:13px}td.n{text-align:right;white-space:nowrap;
font-variant-numeric:tabular-nums}.wide th{width:auto;color:var(--soft)}.wide tr:first-child th{text-align:right;white-space:nowrap}
.wide tr:first-child th:first-child,.wide td:first-child{text-align:left;white-space:nowrap}.wide td,.wide th{padding:5px 8px}
.cards{margin-bottom:16px}</style>"""
GOOD, BAD = 50.0, 10.0  # decibels that are coloured as nothing lost, and as everything


def survey_page(title: str, found: FormatSurvey, subtitle: str = "") -> str:
    """The HTML of the page."""
    names = [one.format for one in found.accuracies]
    parts = [
        STYLE,
        f"<header><h1>{escape(title)} in {len(names)} number formats</h1><p>{escape(subtitle)}</p></header>",
    ]
    parts += [f'<p class="note">{escape(note)}</p>' for note in found.notes]
    parts.append(f"<section><h2>Accuracy</h2>{_accuracy(found)}</section>")
    parts.append(f"<section><h2>Magnitudes and ranges</h2>{_magnitudes(found, names)}</section>")
    parts.append(f"<section><h2>Tensors</h2>{_tensors(found, names)}</section>")
    parts.append(f"<section><h2>Formats</h2>{_formats(names)}</section>")
    return document(title, "\n".join(parts))


def _accuracy(found: FormatSurvey) -> str:
    head = ("format", "accuracy, weights rounded", "accuracy, all rounded", "same prediction", "SNR of results, dB")
    rows = [
        (
            one.format, _share(one.accuracy_weights), _share(one.accuracy), _share(one.agreement),
            "exact" if one.snr == math.inf else "lost" if not math.isfinite(one.snr) else f"{one.snr:.1f}",
        )
        for one in found.accuracies
    ]  # fmt: skip
    first = ("float32", _share(found.float_accuracy), _share(found.float_accuracy), "100.00 %", "exact")
    chart = ""
    if found.float_accuracy is not None:
        values = {"float32": 100 * found.float_accuracy}
        values |= {one.format: 100 * one.accuracy for one in found.accuracies if one.accuracy is not None}
        chart = f'<div class="card">{bars(values, "Accuracy with weights and activations rounded", unit="%", largest=100.0)}</div>'
    return f'<div class="cards">{chart}</div>{_table(head, [first, *rows])}'


def _magnitudes(found: FormatSurvey, names: list[str]) -> str:
    shown = [name for name in names if not number_format(name).is_integer]
    text = "Counts of values by their power of two, below the ranges of the formats: solid for normal numbers, pale for subnormal ones."
    pictures = []
    for kind in ("weight", "activation"):
        rows = {one.path: one.exponents for one in found.tensors if one.kind == kind}
        if rows:
            pictures.append(f'<div class="card">{magnitudes(rows, shown, f"{kind.capitalize()}s")}</div>')
    return f'<p>{text}</p><div class="cards">{"".join(pictures)}</div>'


def _tensors(found: FormatSurvey, names: list[str]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in ("tensor", "shape", "range", *names))
    rows = "".join(_row(one, names) for one in found.tensors)
    text = (
        "Ratio of signal to rounding noise in decibels; 6 dB are one bit. ! marks overflow of more than 0.1 % of the values, 0 values that "
        "become 0. Point at a cell for the shares."
    )
    return f'<p>{text}</p><div class="wide"><table><tr>{head}</tr>{rows}</table></div>'


def _row(one: TensorFit, names: list[str]) -> str:
    cells = "".join(_cell(one.formats.get(name)) for name in names)
    shape, span = " × ".join(map(str, one.shape)), f"{one.low:.3g} to {one.high:.3g}"
    return f'<tr><td>{escape(one.path)}</td><td class="n">{shape}</td><td class="n">{span}</td>{cells}</tr>'


def _cell(noise: FormatNoise | None) -> str:
    if noise is None:
        return '<td class="n">-</td>'
    ratio = min(max(noise.snr, BAD), GOOD) if not math.isnan(noise.snr) else BAD
    lost = 0.55 * (GOOD - ratio) / (GOOD - BAD)
    note = f"{100 * noise.overflow:.3g} % overflow, {100 * noise.underflow:.3g} % become 0"
    note += f", scale {noise.scale:.3g}" if noise.scale != 1.0 else ""
    style = f"background:color-mix(in srgb, var(--warn) {100 * lost:.0f}%, transparent)"
    return f'<td class="n" style="{style}" title="{note}">{noise_text(noise)}</td>'


def _formats(names: list[str]) -> str:
    rows = [row_cells(row) for row in table("float32", *names)]
    return _table(TITLES, rows) + f"<p>{escape(LEGEND)}</p>"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    titles = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = "".join(
        "<tr>"
        + "".join(f"<td{'' if i == 0 else ' class=n'}>{escape(cell)}</td>" for i, cell in enumerate(row))
        + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><tr>{titles}</tr>{lines}</table></div>'


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f} %"
