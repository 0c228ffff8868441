"""A plot of the energy of a network in several forms: a bar for each form, stacked by cause."""

from __future__ import annotations

from ..report import svg
from ..report.axes import ChartAxis, make_axis
from .energy_comparison import GROUPS, EnergyComparison, EnergyForm
from .profile_text import amount

WIDTH, BAR, GAP = 720, 26, 14
TOP, BOTTOM, RIGHT = 84, 44, 150
NAMES = 150  # maximum width of the names of forms


def energy_svg(found: EnergyComparison) -> str:
    """A bar for each form, split into arithmetic, registers, the last-level cache and DRAM. A star marks forms without a separate program."""
    title = f"Modelled energy of a call{f': {found.title}' if found.title else ''}"
    names = [_name(form) for form in found.forms]
    left = 24 + min(NAMES, max(map(svg.text_width, names)))
    height = TOP + len(found.forms) * (BAR + GAP) + BOTTOM
    axis = make_axis([0.0, max(form.joules for form in found.forms)])
    parts = [svg.text(16, 26, svg.fit(title, WIDTH - 32), note=title), *_legend(), *_grid(axis, left, height)]
    for number, (form, name) in enumerate(zip(found.forms, names, strict=True)):
        y = TOP + number * (BAR + GAP)
        parts += [svg.text(left - 8, y + 17, svg.fit(name, NAMES), anchor="end", note=name)]
        parts += _bar(found, form, axis, left, y)
    if not all(form.own_program for form in found.forms):
        parts.append(svg.text(16, height - 8, "* the float32 program with values of this format", "soft", size=11))
    return svg.document(WIDTH, height, title, parts)


def _name(form: EnergyForm) -> str:
    return form.name if form.own_program else f"{form.name}*"


def _x(axis: ChartAxis, left: float, value: float) -> float:
    return left + axis.position(value) * (WIDTH - left - RIGHT)


def _grid(axis: ChartAxis, left: float, height: float) -> list[str]:
    bottom = height - BOTTOM
    parts = []
    for tick in axis.ticks:
        x = _x(axis, left, tick)
        parts.append(svg.line(x, TOP - 8, x, bottom, "grid" if tick else "axis"))
        label = f"{amount(tick)}J".replace(".00 ", " ").replace(".0 ", " ") if tick else "0"
        parts.append(svg.text(x, bottom + 16, label, "soft", anchor="middle"))
    return parts


def _legend() -> list[str]:
    parts, x = [], 16.0
    for number, name in enumerate(GROUPS.values()):
        parts += [svg.rect(x, 42, 12, 12, f"f{number}", corner=2), svg.text(x + 18, 52, name)]
        x += svg.text_width(name) + 40
    return parts


def _bar(found: EnergyComparison, form: EnergyForm, axis: ChartAxis, left: float, y: float) -> list[str]:
    parts, done = [], 0.0
    for number, (group, joules) in enumerate(form.by_group.items()):
        start, end = _x(axis, left, done), _x(axis, left, done + joules)
        done += joules
        if joules:
            note = f"{form.name}, {GROUPS[group]}: {amount(joules)}J ({joules / form.joules:.0%})"
            parts.append(svg.rect(start, y, end - start, BAR, f"f{number}", note=note))
    share = "" if form is found.forms[0] else f", {form.joules / (found.forms[0].joules or 1.0):.0%}"
    return [*parts, svg.text(_x(axis, left, done) + 8, y + 17, f"{amount(form.joules)}J{share}")]
