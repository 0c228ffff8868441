"""A self-contained HTML report of profiles: roofline, layers coloured by time or energy, memory, kernels that lose time. No scripts.

weft.insight.save_report("profile.html", {"before": weft.profile(net, x), "after": weft.profile(small, x)})
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..io.files import replace_file
from ..report.page import document
from ..report.svg import escape
from .memory_areas import NAMES, memory_areas
from .profile import ProgramProfile
from .profile_record import CALL, LayerRecord, ProfileRecord, as_record
from .profile_text import amount, cut, duration
from .roofline_plot import roofline_svg

LAYERS = 200  # rows of a table


def save_report(path: str | os.PathLike[str], profiles: Mapping[str, ProgramProfile | ProfileRecord]) -> None:
    """Write the report of profiles by name: two devices, or a network before and after compression."""
    replace_file(Path(path), [report_page(profiles).encode()], "profile")


def report_page(profiles: Mapping[str, ProgramProfile | ProfileRecord]) -> str:
    """The HTML of the page."""
    records = {name: as_record(found, name) for name, found in profiles.items()}
    parts = [
        _header(records),
        _tiles(records),
        _section("Roofline", f'<div class="card wide">{roofline_svg(records)}</div>'),
    ]
    for name, found in records.items():
        beside = f": {escape(name)}" if len(records) > 1 else ""
        parts += [
            _section(f"Layers{beside}", _layers(found)),
            _section(f"Memory through one call{beside}", _memory(found)),
            _section(f"What would help{beside}", _worst(found)),
        ]
    if len(records) == 2:
        parts.insert(3, _section("Layers side by side", _compared(*records.items())))
    parts.append(_section("What is measured, and what is modelled", _notes(records.values())))
    return document(f"Profile of {', '.join(records)}", f"<style>{_STYLE}</style>" + "\n".join(parts))


_STYLE = (
    ":root{--heat:#2b4acb;--second:#1f7aa8;--third:#9a62e3}@media (prefers-color-scheme:dark){:root{--heat:#6b88e6;--second:#1fa6d4;--third:#8963ee}}"
    ".layers th,.layers td{padding:4px 10px;width:auto;white-space:nowrap}.layers tbody th{color:var(--ink);font-weight:600}.layers small{color:var(--soft);font-weight:400}"
    ".layers .cost{position:relative}.layers .cost::before{content:'';position:absolute;inset:2px;border-radius:4px;background:var(--heat);opacity:var(--v)}"
    ".layers .cost>span{position:relative}.scroll{overflow-x:auto}.scroll table{min-width:100%}.scroll+p{margin-top:8px}"
    ".tag{border:1px solid var(--grid);border-radius:4px;padding:1px 6px;font-size:12px}.memory path{stroke:none}.memory{font:12px system-ui,sans-serif}.memory text{fill:var(--soft)}"
    ".layers .advice{white-space:normal;min-width:300px}.tiles.five{grid-template-columns:repeat(5,minmax(0,1fr))}@media (max-width:640px){.tiles.five{grid-template-columns:1fr 1fr}}"
    ".memory line{stroke:var(--grid)}.key{display:inline-block;width:10px;height:10px;border-radius:3px;margin:0 6px 0 14px}.key:first-child{margin-left:0}"
)  # fmt: skip


def _section(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>{content}</section>" if content else ""


def _header(records: Mapping[str, ProfileRecord]) -> str:
    made = "; ".join(
        f"{found.where}, {_called(found)}, {time.strftime('%Y-%m-%d %H:%M', time.localtime(found.made))}"
        for found in records.values()
    )
    return f'<header><p class="run">Profile</p><h1>{escape(" and ".join(records))}</h1><p class="lead">{escape(made)}</p></header>'


def _called(found: ProfileRecord) -> str:
    """The name of what was called; the profile of a plain function has no batch."""
    if found.what == CALL:
        return "a call"
    return f"batch {found.batch}, {'a training step' if found.what == 'train' else 'inference'}"


def _tiles(records: Mapping[str, ProfileRecord]) -> str:
    """Five figures of each profile."""
    rows = []
    for name, found in records.items():
        title = f"<h3>{escape(name)}</h3>" if len(records) > 1 else ""
        cells = "".join(f"<div><b>{escape(v)}</b><span>{escape(what)}</span></div>" for v, what in _figures(found))
        rows.append(f'{title}<div class="tiles five">{cells}</div>')
    return "".join(rows)


def _figures(found: ProfileRecord) -> list[tuple[str, str]]:
    what = {"train": "samples", CALL: "calls"}.get(found.what, "inferences")
    return [
        (f"{found.per_second:,.0f}" if found.per_second >= 100 else f"{found.per_second:.3g}", f"{what}/s"),
        (duration(found.latency), "latency p50"),
        (duration(found.times.p99) if found.times is not None else "not timed", "latency p99"),
        (amount(found.per_joule).rstrip(), f"{what}/J, {'measured' if found.energy_measured else 'modelled'}"),
        (f"{found.near_roof:.0%}", "of the time above 70 % of the roof"),
    ]


def _layers(found: ProfileRecord) -> str:
    """The layers in order; a stronger colour is a larger share of time, or of energy."""
    head = "".join(
        f"<th{' class=number' if i else ''}>{title}</th>"
        for i, title in enumerate(("Layer", "Time", "Energy", "FLOP", "Bytes", "FLOP/byte", "Of roof", "Bound by", "In memory"))
    )  # fmt: skip
    slowest, hottest = (max((getattr(one, n) for one in found.layers), default=0.0) for n in ("seconds", "joules"))
    least = min(sorted((one.seconds for one in found.layers), reverse=True)[:LAYERS], default=0.0)
    shown = [one for one in found.layers if one.seconds >= least]
    rows = "".join(_row(one, slowest, hottest) for one in shown)
    hidden = len(found.layers) - len(shown)
    more = f"<p>{hidden} layers with less time are not shown.</p>" if hidden else ""
    return f'<div class="scroll"><table class="layers narrow"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{more}'


def _row(one: LayerRecord, slowest: float, hottest: float) -> str:
    cells = (
        _cost(duration(one.seconds), one.seconds, slowest), _cost(f"{amount(one.joules)}J", one.joules, hottest),
        *(f'<td class="number">{text}</td>' for text in (amount(one.flops), amount(one.nbytes), f"{one.intensity:.1f}", f"{one.roof:.0%}")),
        f'<td class="number"><span class="tag">{escape(one.bound)}</span></td><td class="number">{amount(one.live)}B</td>',
    )  # fmt: skip
    return f"<tr><th>{escape(one.label)} <small>{escape(one.kind)}</small></th>{''.join(cells)}</tr>"


def _cost(text: str, value: float, most: float) -> str:
    strength = 0.55 * value / most if most else 0.0
    return f'<td class="number cost" style="--v:{strength:.3f}"><span>{text}</span></td>'


def _memory(found: ProfileRecord) -> str:
    memory = found.memory
    if not memory.steps:
        return ""
    areas = memory_areas(memory, found.latency)
    width, height, left, top = 760.0, 240.0, 60.0, 22.0
    wide, high = width - left - 16, height - top - 28
    parts = []
    for place, label in areas.y_ticks:
        y = top + high * (1 - place)
        parts += [
            f'<line x1="{left}" x2="{width - 16}" y1="{y:.1f}" y2="{y:.1f}"/>',
            f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>',
        ]
    for place, label in areas.x_ticks:
        parts.append(f'<text x="{left + wide * place:.1f}" y="{height - 8}" text-anchor="middle">{label}</text>')
    colours = ("var(--heat)", "var(--second)", "var(--third)")
    drawn = "".join(f'<path d="{d}" style="fill:{c};opacity:.85"/>' for d, c in zip(areas.paths, colours, strict=True))
    parts.append(
        f'<svg x="{left}" y="{top}" width="{wide}" height="{high}" viewBox="0 0 1000 1000" preserveAspectRatio="none">{drawn}</svg>'
    )
    for place, label in areas.notes:
        parts.append(f'<text x="{left + wide * place:.1f}" y="14" text-anchor="middle">{escape(label)}</text>')
    keys = "".join(f'<i class="key" style="background:{c}"></i>{name}' for name, c in zip(NAMES, colours, strict=True))
    label = f"Memory through one call, {amount(memory.peak)}B at the peak"
    picture = (
        f'<svg class="memory" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
    )
    return f'<p><b>{amount(memory.peak)}B</b> at the peak, of which {amount(memory.weights)}B are weights. {keys}</p><div class="card wide">{picture}</div>'


def _worst(found: ProfileRecord) -> str:
    rows = "".join(
        f"<tr><th>{escape(one.name)} <small>{escape(one.layer)}</small></th><td class='number'>{duration(one.lost)}</td><td class='number'>{one.roof:.0%}</td>"
        f"<td><span class='tag'>{escape(one.bound)}</span></td><td class='advice'>{escape(one.advice)} <small>{escape(cut(one.source))}</small></td></tr>"
        for one in found.worst
    )
    head = "<tr><th>Kernel</th><th class='number'>Lost</th><th class='number'>Of roof</th><th>Bound by</th><th>What would help</th></tr>"
    return f'<div class="scroll"><table class="layers narrow"><thead>{head}</thead><tbody>{rows}</tbody></table></div>' if rows else ""  # fmt: skip


def _compared(first: tuple[str, ProfileRecord], second: tuple[str, ProfileRecord]) -> str:
    """The time of each layer that both profiles have."""
    (name, of_first), (other, of_second) = first, second
    rows = []
    for one in of_first.layers:
        same = of_second.layer(one.label)
        if same is not None and same.seconds:
            change = one.seconds / same.seconds
            said = f"{change:.2f} times as fast" if change >= 1 else f"{1 / change:.2f} times as slow"
            rows.append(
                f"<tr><th>{escape(one.label)} <small>{escape(one.kind)}</small></th><td class='number'>{duration(one.seconds)}</td><td class='number'>{duration(same.seconds)}</td><td class='number'>{said}</td></tr>"
            )
    head = f"<tr><th>Layer</th><th class='number'>{escape(name)}</th><th class='number'>{escape(other)}</th><th class='number'></th></tr>"
    return f'<div class="scroll"><table class="layers narrow"><thead>{head}</thead><tbody>{"".join(rows)}</tbody></table></div>' if rows else ""  # fmt: skip


def _notes(records: Iterable[ProfileRecord]) -> str:
    lines = []
    for found in records:
        clock = "" if found.overhead is None else f" A run with this clock takes {max(0.0, found.overhead):.1%} longer."
        calls = (
            f"Latencies are those of {found.times.calls} whole calls after {found.times.warmup} to warm up, spread {found.times.spread:.1%}."
            if found.times is not None
            else "Whole calls were not timed: latency is the program's own time."
        )
        energy = (
            "Energy of a call is measured by a counter of the hardware, idle power included; that of layers is modelled."
            if found.energy_measured
            else f"Energy is modelled: arithmetic and data movement in a {found.node_nm:g} nm process."
        )
        lines.append(
            f"{found.subject} on {found.where}: {calls} Times of layers are measured inside the real program.{clock} "
            f"The roof is measured: {found.roof_text}. FLOP and bytes are counted from the compiled program. {energy} Memory is that of the program's plan."
        )
    return "".join(f'<p class="note">{escape(line)}</p>' for line in lines)
