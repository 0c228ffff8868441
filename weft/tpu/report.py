"""The report of a simulation: cycles by cause, utilisation, operations per second, time, and the same by stage."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from ..records import dataclass
from .instructions import TpuProgram
from .machine import size_text
from .stages import MatrixStage, Stage
from .timing import CAUSES, COMPUTE, Timing, timed

MS = 1e3


@dataclass(frozen=True, eq=False)
class TpuReport:
    """The simulation of one batch, from the first transfer of inputs to the last of results. `print` it.

    Times are modelled, not measured, and do not include computation on the host.
    """

    program: TpuProgram

    @cached_property
    def timing(self) -> Timing:
        return timed(self.program)

    @property
    def cycles(self) -> dict[str, int]:
        """Cycles by cause; they add up to all cycles."""
        return {cause: self.timing.cycles[cause] for cause in CAUSES}

    @property
    def total_cycles(self) -> int:
        return self.timing.total

    @property
    def seconds(self) -> float:
        return self.program.machine.seconds(self.total_cycles)

    @property
    def macs(self) -> int:
        return self.timing.macs

    @property
    def tops(self) -> float:
        """Operations per second in 10^12: a multiplication and an addition for each used weight."""
        return 2 * self.macs / self.seconds / 1e12 if self.total_cycles else 0.0

    @property
    def utilisation(self) -> float:
        """Useful multiply-accumulates as a fraction of the peak of all cells."""
        return self.macs / (self.program.machine.cells * self.total_cycles) if self.total_cycles else 0.0

    @property
    def array_active(self) -> float:
        """The fraction of cycles in which rows enter the array."""
        return self.cycles[COMPUTE] / self.total_cycles if self.total_cycles else 0.0

    @property
    def weight_bytes(self) -> int:
        """Bytes read from the weight memory, including the unused cells of tiles."""
        return self.timing.weight_tiles * self.program.machine.tile_bytes

    @property
    def host_parts(self) -> tuple[str, ...]:
        """The parts that run on the host because the machine does not support them."""
        return self.program.host

    def stage_seconds(self, number: int) -> float:
        return self.program.machine.seconds(sum(self.timing.by_stage[number].values()))

    def text(self, *, stages: bool = True) -> str:
        """The table; with or without a line for each stage."""
        return "\n".join(
            [*self._head(), "", *self._causes(), *(["", *self._stages()] if stages else []), *self._notes()]
        )

    def __str__(self) -> str:
        return self.text()

    def _head(self) -> list[str]:
        return [
            f"simulated: {self.program.machine}",
            f"{MS * self.seconds:.3f} ms, {self.tops:.3g} TOPS of {self.program.machine.peak_tops:.3g} ({self.utilisation:.1%} of all cells useful), "
            f"{self.weight_bytes / 1e6:.2f} MB of weights read, unified buffer up to {size_text(self.program.buffer_bytes)}",
        ]

    def _causes(self) -> list[str]:
        rows = [(cause, f"{n:,}", f"{n / max(1, self.total_cycles):.1%}") for cause, n in self.cycles.items()]
        return aligned([("cycles by cause", "cycles", "share"), *rows, ("all", f"{self.total_cycles:,}", "100.0%")])

    def _stages(self) -> list[str]:
        rows: list[tuple[str, ...]] = [("stage", "product", "ms", "share", "mostly")]
        for number, stage in enumerate(self.program.stages):
            found = self.timing.by_stage[number]
            cycles = sum(found.values())
            if cycles:
                mostly = max(found, key=lambda cause: found[cause])
                share = f"{cycles / max(1, self.total_cycles):.1%}"
                rows.append((stage.name, product_size(stage), f"{MS * self.stage_seconds(number):.4f}", share, mostly))
        return aligned(rows)

    def _notes(self) -> list[str]:
        lines = [f"on the host: {part}" for part in self.host_parts]
        lines += [f"spilled to the host for a while: {name}" for name in self.program.spilled]
        return ["", *lines] if lines else []


def product_size(stage: Stage) -> str:
    """Rows, inputs and outputs of a product."""
    if not isinstance(stage, MatrixStage):
        return ""
    groups = f", {stage.groups} groups" if stage.groups > 1 else ""
    return f"{stage.rows} x {stage.inner} x {stage.columns}{groups}"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table: the first column left-aligned, numbers right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    is_number = [all(row[i][:1].isdigit() or not row[i] for row in rows[1:]) for i in range(len(widths))]
    lines = [
        "  ".join(
            cell.rjust(w) if number else cell.ljust(w) for cell, w, number in zip(row, widths, is_number, strict=True)
        ).rstrip()
        for row in rows
    ]
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]
