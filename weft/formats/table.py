"""`weft.formats.table()`: range, precision, energy, area and hardware of number formats."""

from __future__ import annotations

from collections.abc import Iterator

from ..insight.energy_model import OperationEnergy, energy_table
from ..records import dataclass
from .hardware import hardware
from .number_format import FIXED, NAMES, NumberFormat, number_formats


@dataclass(frozen=True)
class FormatRow:
    """A number format. Energies are joules at 45 nm; those that were not published are marked as modelled."""

    name: str
    bits: int
    lowest: float
    largest: float
    smallest_normal: float
    step: float  # the smallest number above 0
    relative_error: float | None  # of rounding in the normal range; None: the error is absolute, step / 2
    decimal_digits: float
    add: OperationEnergy
    multiply: OperationEnergy
    hardware: dict[str, str]  # by device of this machine

    def to_json(self) -> dict[str, object]:
        """The row as plain values."""
        energies = {
            kind: {"joules": one.joules, "modelled": one.modelled, "area_um2": one.area, "source": one.source}
            for kind, one in (("add", self.add), ("multiply", self.multiply))
        }
        plain = {key: value for key, value in vars(self).items() if key not in energies}
        return {**plain, **energies}


class FormatTable(tuple[FormatRow, ...]):
    """Rows of formats; printed, they are a table.

    >>> rows = table("float16", "q3.12")
    >>> [row.name for row in rows], rows[0].largest
    (['float16', 'q3.12'], 65504.0)
    """

    __slots__ = ()

    def __str__(self) -> str:
        cells = [TITLES, *map(row_cells, self)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(TITLES))]
        return "\n".join([*map("  ".join, _aligned(cells, widths)), LEGEND])

    def to_json(self) -> list[dict[str, object]]:
        return [row.to_json() for row in self]


TITLES = (
    "format", "bits", "largest", "normal from", "smallest step", "relative error", "digits", "add pJ", "multiply pJ", "area add/multiply", "here",
)  # fmt: skip
LEGEND = (
    "Energy at 45 nm and area in square micrometres: Horowitz 2014, Dally 2015; ~ is modelled (weft/insight/energy.yaml has the rules). "
    "Relative error: the largest of rounding to nearest; +- is absolute."
)


def table(*formats: str | NumberFormat) -> FormatTable:
    """The properties of number formats; without names, of those that networks use.

    >>> row = table("bfloat16")[0]
    >>> row.bits, row.relative_error, row.add.modelled
    (16, 0.00390625, True)
    """
    energies = energy_table()
    return FormatTable(
        FormatRow(
            one.name,
            one.bits,
            one.lowest,
            one.largest,
            one.smallest_normal,
            one.step,
            one.unit_roundoff,
            one.decimal_digits,
            energies.operation("add", one.name),
            energies.operation("multiply", one.name),
            hardware(one),
        )
        for one in number_formats(formats or (*NAMES, *FIXED))
    )


def row_cells(row: FormatRow) -> tuple[str, ...]:
    """The row as texts, in the order of TITLES."""
    error = f"+-{row.step / 2:.3g}" if row.relative_error is None else f"{row.relative_error:.3g}"
    areas = [f"{one.area:,.0f}" if one.area is not None else "-" for one in (row.add, row.multiply)]
    return (
        row.name,
        str(row.bits),
        f"{row.largest:.6g}",
        f"{row.smallest_normal:.3g}",
        f"{row.step:.3g}",
        error,
        f"{row.decimal_digits:.1f}",
        _energy(row.add),
        _energy(row.multiply),
        "-" if areas == ["-", "-"] else " / ".join(areas),
        ", ".join(f"{device}: {what}" for device, what in row.hardware.items()) or "-",
    )


def _energy(one: OperationEnergy) -> str:
    return f"{'~' if one.modelled else ''}{1e12 * one.joules:.2g}"


def _aligned(cells: list[tuple[str, ...]], widths: list[int]) -> Iterator[list[str]]:
    last = len(widths) - 1
    for row in cells:
        yield [
            text.ljust(w) if i in (0, last) else text.rjust(w)
            for i, (text, w) in enumerate(zip(row, widths, strict=True))
        ]
