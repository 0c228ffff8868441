"""The energy of a computation, modelled from a table of energies of operations and of moving bytes (`energy.yaml`).

    E = sum over operations of count x E(kind, format)  +  sum over levels of memory of bytes x E(level)

This is the energy of arithmetic and data movement alone. Instructions, clocks, leakage, fans and power supplies come on top: on a
processor with caches and out-of-order execution they dominate, so ratios of two estimates are more meaningful than absolute values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path

from ..errors import UserError
from ..hints import nearest
from ..records import dataclass
from .table_reader import TableEntry, table_file

TABLE = Path(__file__).with_name("energy.yaml")
LEVELS = ("register", "l1", "l2", "l3", "dram")
KINDS = ("add", "multiply", "mac")
# Bits of the significand including its leading 1, for formats whose energy is not in the table.
SIGNIFICANDS = {
    "float64": 53,
    "float32": 24,
    "tf32": 11,
    "float16": 11,
    "bfloat16": 8,
    "float8_e4m3": 4,
    "float8_e5m2": 3,
}
ALIASES = {"float8": "float8_e4m3"}
PICO = 1e-12


@dataclass(frozen=True)
class OperationEnergy:
    """The energy of one operation in joules, with its source; `modelled` unless it was published."""

    joules: float
    source: str
    modelled: bool
    area: float | None = None  # square micrometres at the reference node


@dataclass(frozen=True)
class Counts:
    """The work of a program: operations by kind and format, bytes read and written by memory level.

    A `mac` is a multiply and an add.

        >>> Counts(operations={("mac", "float32"): 1000}, nbytes={"dram": 4000}).nbytes["dram"]
        4000
    """

    operations: Mapping[tuple[str, str], float] = field(default_factory=dict)
    nbytes: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class EnergyEstimate:
    """Modelled energy in joules, split by cause: `mac float32`, `dram`, ...

    >>> estimate = energy(Counts({("add", "float32"): 1e12}))
    >>> round(estimate.joules, 3), estimate.modelled
    (0.9, True)
    """

    by_cause: Mapping[str, float]
    node_nm: float
    modelled: bool = True

    @property
    def joules(self) -> float:
        return math.fsum(self.by_cause.values())

    @property
    def arithmetic(self) -> float:
        """Joules of operations."""
        return math.fsum(joules for cause, joules in self.by_cause.items() if cause not in LEVELS)

    @property
    def movement(self) -> float:
        """Joules of moving data."""
        return math.fsum(joules for cause, joules in self.by_cause.items() if cause in LEVELS)

    def __str__(self) -> str:
        parts = sorted(self.by_cause.items(), key=lambda item: -item[1])
        total = self.joules or 1.0
        shares = ", ".join(f"{cause} {joules / total:.0%}" for cause, joules in parts if joules)
        return f"{self.joules:.3g} J (modelled, {self.node_nm:g} nm): {shares or 'nothing'}"


def energy(counts: Counts, node_nm: float = 45, file: str | Path | None = None) -> EnergyEstimate:
    """The modelled energy of a computation on a process node of `node_nm` nanometres.

    >>> print(energy(Counts({("mac", "float32"): 1e9}, {"dram": 4e9}), node_nm=45))
    0.645 J (modelled, 45 nm): dram 99%, mac float32 1%
    """
    table = energy_table(file)
    causes: dict[str, float] = {}
    for (kind, format), count in counts.operations.items():
        cause = f"{kind} {format}"
        causes[cause] = causes.get(cause, 0.0) + count * table.operation(kind, format, node_nm).joules
    for level, nbytes in counts.nbytes.items():
        causes[level] = nbytes * table.joules_per_byte(level, node_nm)
    return EnergyEstimate(causes, node_nm)


@dataclass(frozen=True)
class _TableRow:
    pj: float
    second: float | None  # at the second node
    source: str
    modelled: bool
    note: str
    area: float | None = None
    bits: float = 8


@dataclass(frozen=True)
class EnergyTable:
    """The energies of a table.

    >>> table = energy_table()
    >>> round(table.operation("multiply", "float32").joules * 1e12, 2)
    3.7
    >>> table.operation("multiply", "float64").modelled
    True
    """

    operations: Mapping[tuple[str, str], _TableRow]
    memory: Mapping[str, _TableRow]
    rules: Mapping[str, str]
    reference_nm: float
    second_nm: float
    exponent: float
    limits: tuple[float, float]

    def operation(self, kind: str, format: str, node_nm: float | None = None) -> OperationEnergy:
        """The energy of an operation; one that is not in the table is modelled."""
        format = ALIASES.get(format, format)
        if kind not in KINDS:
            raise UserError("energy", f"a kind of operation is one of {', '.join(KINDS)}, got {kind!r}.")
        if kind == "mac":
            parts = [self.operation(part, format, node_nm) for part in ("multiply", "add")]
            areas = [part.area for part in parts if part.area is not None]
            return OperationEnergy(
                sum(part.joules for part in parts),
                parts[0].source,
                any(part.modelled for part in parts),
                sum(areas) if len(areas) == 2 else None,
            )
        entry = self.operations.get((kind, format)) or self._modelled(kind, format)
        scale, scaled = self._scale(entry, node_nm)
        source = f"{entry.source} ({entry.note})" if entry.note else entry.source
        return OperationEnergy(PICO * entry.pj * scale, source, entry.modelled or scaled, entry.area)

    def joules_per_byte(self, level: str, node_nm: float | None = None) -> float:
        """The energy of moving a byte from or to a memory level.

        >>> round(energy_table().joules_per_byte("dram") * 4e12)
        640
        """
        if level not in self.memory:
            raise UserError(
                "energy",
                f"a level of memory is one of {', '.join(self.memory)}, got {level!r}. {nearest(level, list(self.memory))}",
            )
        entry = self.memory[level]
        return PICO * entry.pj / (entry.bits / 8) * self._scale(entry, node_nm)[0]

    def _scale(self, entry: _TableRow, node_nm: float | None) -> tuple[float, bool]:
        """The scale factor from the reference node, and whether it is modelled: figures of the two nodes were published."""
        node = self.reference_nm if node_nm is None else node_nm
        if not self.limits[0] <= node <= self.limits[1]:
            raise UserError(
                "energy", f"a process of {self.limits[0]:g} to {self.limits[1]:g} nm is required, got {node:g}."
            )
        if node == self.reference_nm:
            return 1.0, False
        exponent = self.exponent
        if entry.second is not None:
            exponent = math.log(entry.pj / entry.second) / math.log(self.reference_nm / self.second_nm)
        return (node / self.reference_nm) ** exponent, entry.second is None or node != self.second_nm

    def _modelled(self, kind: str, format: str) -> _TableRow:
        """The energy in a format that is not in the table: a power law through the two that are; see `rules`."""
        if format in SIGNIFICANDS:
            width, low, high, rule = SIGNIFICANDS[format], ("float16", 11), ("float32", 24), f"float_{kind}"
        elif (bits := integer_bits(format)) is not None and (kind, f"int{bits}") in self.operations:
            same = self.operations[(kind, f"int{bits}")]  # as integers: the program handles the radix point
            return replace(same, modelled=True, note=f"as int{bits}")
        elif bits is not None:
            width, low, high, rule = bits, ("int8", 8), ("int32", 32), f"int_{kind}"
        else:
            known = sorted({*SIGNIFICANDS, *(name for _, name in self.operations)})
            raise UserError("energy", f"there is no format {format!r}. {nearest(format, known)} Fixed point: q3.12.")
        first, last = self.operations[(kind, low[0])], self.operations[(kind, high[0])]
        power = math.log(last.pj / first.pj) / math.log(high[1] / low[1])
        return _TableRow(first.pj * (width / low[1]) ** power, None, first.source, True, self.rules[rule])


def integer_bits(format: str) -> int | None:
    """The bits of an integer or fixed-point format: int4 has 4, q3.12 has 16 with its sign.

    >>> integer_bits("q3.12"), integer_bits("uint8"), integer_bits("float16")
    (16, 8, None)
    """
    if match := re.fullmatch(r"u?int(\d{1,3})", format):
        return max(1, int(match[1]))
    if match := re.fullmatch(r"(u?)q(-?\d{1,3})\.(-?\d{1,3})", format):
        return max(1, (not match[1]) + int(match[2]) + int(match[3]))
    return None


def energy_table(file: str | Path | None = None) -> EnergyTable:
    """The energies of weft's table, or of a file in the same format.

    >>> energy_table().operation("add", "int8").source.split(",")[0]
    'Horowitz'
    """
    return _read(TABLE if file is None else Path(file).expanduser())


@table_file
def _read(top: TableEntry) -> EnergyTable:
    top.only(("sources", "scaling", "operations", "rules", "memory"))
    scaling = top.entry("scaling")
    scaling.only(("reference_nm", "second_nm", "exponent", "smallest_nm", "largest_nm"))
    return EnergyTable(
        _operations(top.entry("operations")),
        _memory(top.entry("memory")),
        _rules(top),
        scaling.number("reference_nm"),
        scaling.number("second_nm"),
        scaling.figure("exponent").value,
        (scaling.number("smallest_nm"), scaling.number("largest_nm")),
    )


def _operations(table: TableEntry) -> dict[tuple[str, str], _TableRow]:
    found: dict[tuple[str, str], _TableRow] = {}
    for format, kinds in table.entries():
        kinds.only(("add", "multiply"))
        for kind, entry in kinds.entries():
            entry.only(("pj", "pj_7nm", "area", "source", "modelled", "note"))
            found[(kind, format)] = _entry(entry)
    for needed in ("int8", "int32", "float16", "float32"):  # the others are modelled from these
        for kind in ("add", "multiply"):
            if (kind, needed) not in found:
                table.fail(needed, f"requires the energy of {kind}.")
    return found


def _memory(table: TableEntry) -> dict[str, _TableRow]:
    table.only(LEVELS)
    found: dict[str, _TableRow] = {}
    for level, entry in table.entries():
        entry.only(("pj", "bits", "bytes", "pj_7nm", "source", "modelled", "note"))
        found[level] = _entry(entry)
    return found


def _entry(entry: TableEntry) -> _TableRow:
    pj = entry.number("pj")
    second = entry.number("pj_7nm") if "pj_7nm" in entry.names() else None
    if pj == 0 or second == 0:
        entry.fail("pj", "requires a number above 0, got 0.")
    area = entry.number("area") if "area" in entry.names() else None
    return _TableRow(
        pj, second, entry.source(), entry.flag("modelled"), entry.text("note", ""), area, entry.number("bits", 8)
    )


def _rules(top: TableEntry) -> dict[str, str]:
    rules = top.entry("rules")
    names = ("int_add", "int_multiply", "float_add", "float_multiply")
    rules.only(names)
    return {name: rules.text(name) for name in names}
