"""Compares a network on several machines: the one it was measured on, and described ones that it is projected to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..records import dataclass
from ..report.axes import short
from .machines import HERE, DescribedMachine, machine
from .profile import ProgramProfile
from .profile_text import duration, table
from .projection import project
from .throughput_table import ThroughputRow


@dataclass(frozen=True)
class MachineRow:
    """A network on a machine, for one batch."""

    machine: str
    title: str
    how: str  # "measured", "modelled" or "projected"
    format: str
    batch: int
    seconds: float  # per batch
    bound: str = ""  # the largest part of the time: compute, memory or launch
    watts: float | None = None
    power: str = ""  # "measured", or "limit": the power limit of the machine
    price: float | None = None
    dollars_per_hour: float | None = None

    @property
    def per_second(self) -> float:
        return self.batch / self.seconds

    @property
    def per_second_per_watt(self) -> float | None:
        return self.per_second / self.watts if self.watts else None

    @property
    def per_second_per_dollar(self) -> float | None:
        return self.per_second / self.price if self.price else None

    def to_dict(self) -> dict[str, Any]:
        derived = ("per_second", "per_second_per_watt", "per_second_per_dollar")
        return asdict(self) | {name: getattr(self, name) for name in derived}


def check_machines(wanted: Iterable[tuple[str, str | None]], file: str | Path | None = None) -> None:
    """Reject unknown machines and unsupported formats, before anything is measured."""
    for name, format in wanted:
        if name != HERE:
            machine(name, file).peak_for(format or "float32")
        elif format is not None:
            raise UserError(
                "machine", f"{HERE} is measured in the format of the network, got {HERE}:{format}. Use precision=."
            )


def side_by_side(
    found: ProgramProfile, batch: int, wanted: Sequence[tuple[str, str | None]], *, measured: ThroughputRow | None = None,
    here: DescribedMachine | None = None, file: str | Path | None = None,
) -> list[MachineRow]:  # fmt: skip
    """A row for each machine, by name and format (None: that of the profile). `here` is where the profile was measured.

    `measured` is the throughput of the same step: its energy gives the measured power.

    >>> import weft
    >>> from weft.insight import profile
    >>> found = profile(weft.nn.Linear(64, 64), weft.ones((32, 64)))
    >>> [(row.machine, row.how) for row in side_by_side(found, 32, [("here", None), ("titan-x", None)])]
    [('here', 'measured'), ('titan-x', 'projected')]
    """
    return [
        _here(found, batch, measured, here) if name == HERE else _there(found, batch, machine(name, file), format)
        for name, format in wanted
    ]


def machine_text(rows: Sequence[MachineRow]) -> str:
    """The rows as a table; each says whether it is measured or projected."""
    lines = [["machine", "", "format", "time", "examples/s", "bound by", "W", "examples/s/W", "$", "examples/s/$"]]
    for row in rows:
        watts = "-" if row.watts is None else f"{short(row.watts)} {row.power}"
        lines.append(
            [row.machine, row.how, row.format, duration(row.seconds), short(row.per_second), row.bound, watts]
            + [_number(row.per_second_per_watt), _money(row), _number(row.per_second_per_dollar)]
        )
    names = [f"{row.machine}: {row.title}" for row in rows]
    rule = "projected: each kernel as far from that machine's data-sheet peaks as from the measured roof here; W is the power limit, which most programs stay below"
    return "\n".join(
        [table(lines, left=3, ragged=(5,)), *names, *([rule] if any(r.how == "projected" for r in rows) else [])]
    )


def _here(
    found: ProgramProfile, batch: int, measured: ThroughputRow | None, here: DescribedMachine | None
) -> MachineRow:
    bounds = [(kernel.seconds, found.bound(kernel).limit) for kernel in found.kernels]
    watts, power = None, ""
    if measured is not None and measured.energy == "measured" and measured.joules:
        watts, power = measured.joules * measured.per_second, "measured"
    elif here is not None and here.power is not None:
        watts, power = here.power.value, "limit"
    return MachineRow(
        HERE,
        f"this machine, {found.where}" if here is None else here.title,
        "modelled" if found.explanation.is_modelled else "measured",
        _format(found),
        batch,
        found.seconds,
        _most(bounds),
        watts,
        power,
        *_cost(here),
    )


def _there(found: ProgramProfile, batch: int, there: DescribedMachine, format: str | None) -> MachineRow:
    made = project(found, there, format)
    bounds = [(kernel.seconds, bound) for kernel, bound in zip(made.kernels, made.bounds, strict=True)]
    watts = None if there.power is None else there.power.value
    return MachineRow(
        there.name, there.title, "projected", format or _format(found), batch, made.seconds, _most(bounds), watts,
        "" if watts is None else "limit", *_cost(there),
    )  # fmt: skip


def _cost(of: DescribedMachine | None) -> tuple[float | None, float | None]:
    figures = (None, None) if of is None else (of.price, of.dollars_per_hour)
    price, rent = (None if one is None else one.value for one in figures)
    return price, rent


def _format(found: ProgramProfile) -> str:
    """The format of most of the operations."""
    work: dict[str, float] = {}
    for kernel in found.kernels:
        work[kernel.format] = work.get(kernel.format, 0.0) + kernel.flops
    return max(work, key=lambda name: work[name], default="float32")


def _most(bounds: Sequence[tuple[float, str]]) -> str:
    times: dict[str, float] = {}
    for seconds, bound in bounds:
        times[bound] = times.get(bound, 0.0) + seconds
    return max(times, key=lambda name: times[name], default="")


def _number(value: float | None) -> str:
    return "-" if value is None else short(value)


def _money(row: MachineRow) -> str:
    if row.price is not None:
        return f"{row.price:,.0f}"
    return "-" if row.dollars_per_hour is None else f"{row.dollars_per_hour:.2f}/h"
