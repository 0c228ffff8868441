"""Described machines as text: all of them in a table, or every figure of one with its source, and whether it was checked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .machines import DescribedMachine
from .profile_text import amount, table
from .table_reader import Figure

NOT_CHECKED = "quoted, not compared again"
UNITS = {
    "memory_bandwidth": "B/s",
    "on_chip_bytes": "B",
    "memory_bytes": "B",
    "power": "W",
    "idle_power": "W",
    "price": "$",
    "dollars_per_hour": "$/h",
    "launch_overhead": "s",
    "fill_time": "s",
    "process_nm": "nm",
}


def machines_text(found: Iterable[DescribedMachine]) -> str:
    """A line for each machine; a dash is a missing figure."""
    rows = [["machine", "", "year", "float32/s", "float16/s", "int8/s", "bytes/s", "W", "$", "$/h"]]
    for one in found:
        peaks = [one.peak.get(format) for format in ("float32", "float16", "int8")]
        year = "-" if one.year is None else f"{one.year.value:.0f}"
        figures = [*peaks, one.memory_bandwidth, one.power, one.price, one.dollars_per_hour]
        rows.append([one.name, one.title, year, *("-" if f is None else amount(f.value).strip() for f in figures)])
    return table(rows, left=2)


def machine_figures(one: DescribedMachine) -> Iterator[tuple[str, Figure]]:
    """All figures of a machine by name, its peak rates first.

    >>> from weft.insight import machine
    >>> [name for name, figure in machine_figures(machine("tpu-v1"))][:2]
    ['peak int8', 'memory_bandwidth']
    """
    yield from ((f"peak {format}", figure) for format, figure in one.peak.items())
    yield from ((name, value) for name, value in vars(one).items() if isinstance(value, Figure))


def machine_sources_text(one: DescribedMachine) -> str:
    """Every figure with its source, and whether it was checked or derived from others."""
    lines = [f"{one.name}: {one.title}"]
    for name, figure in machine_figures(one):
        unit = UNITS.get(name, "op/s" if name.startswith("peak") else "")
        value = f"{figure.value:.0f}" if not unit or unit == "nm" else amount(figure.value).strip()
        how = f"modelled: {figure.note}" if figure.modelled else figure.note
        head = f"  {name}: {value}{f' {unit}' if unit else ''}" + (f" ({how})" if how else "")
        dated = f", {figure.date}" if figure.date else ""
        lines += [head, f"    {figure.source}{dated}", f"    {f'checked: {figure.checked}' if figure.checked else NOT_CHECKED}"]  # fmt: skip
    return "\n".join(lines)
