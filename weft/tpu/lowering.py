"""Lowers stages to instructions: products are tiled for the array and the accumulators, values are allocated in the unified buffer.

for each block of rows that fits into half of the accumulators      (the other half is drained meanwhile: double buffering)
    for each block of outputs that fits the columns of the array
        for each block of inputs that fits the rows of the array
            read_weights, matrix_multiply
        activate
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, pairwise

from ..records import dataclass
from .buffer import BufferPlan, planned_moves
from .instructions import (
    Activate,
    HostWork,
    Instruction,
    MatrixMultiply,
    ReadHostMemory,
    ReadWeights,
    Synchronize,
    TpuProgram,
    Vector,
    WriteHostMemory,
)
from .machine import TpuMachine
from .stages import HostStage, MatrixStage, Stage, TpuValue, VectorStage

Span = tuple[int, int]


def lowered(stages: Sequence[Stage], machine: TpuMachine, host: Sequence[str] = ()) -> TpuProgram:
    """Lower stages to a program for a machine."""
    plan = planned_moves(stages, machine)
    lowering = _Lowering(machine, count(), count())
    instructions: list[Instruction] = []
    for number, stage in enumerate(stages):
        instructions += _moves(plan, number)
        instructions += lowering.stage(number, stage, (*stage.reads, *plan.evicted[number]))
    return TpuProgram(machine, tuple(stages), tuple(instructions), tuple(plan.held_bytes), plan.spilled, tuple(host))


def _moves(plan: BufferPlan, number: int) -> Iterator[Instruction]:
    for value in plan.evicted[number]:
        yield WriteHostMemory(number, value, "spilled: the unified buffer is full")
    for value in plan.restored[number]:
        yield ReadHostMemory(number, value, "spilled before")


@dataclass
class _Lowering:
    machine: TpuMachine
    tiles: Iterator[int]
    groups: Iterator[int]

    def stage(self, number: int, stage: Stage, waits: tuple[TpuValue, ...]) -> Iterator[Instruction]:
        """The instructions of a stage. `waits`: the values that it reads, and those evicted to make space for it."""
        if isinstance(stage, MatrixStage):
            if waits:
                yield Synchronize(number, waits)
            for tiles in _weight_tiles(stage, self.machine):
                yield from self._outputs(number, stage, tiles, waits)
        elif isinstance(stage, VectorStage):
            if stage.elements:
                yield Vector(number, stage.function, stage.elements, waits, stage.writes)
        elif isinstance(stage, HostStage):
            for value in stage.reads:
                yield WriteHostMemory(number, value)
            yield HostWork(number, stage.reads, stage.writes, stage.what)
            for value in stage.writes:
                yield ReadHostMemory(number, value)

    def _outputs(
        self, number: int, stage: MatrixStage, tiles: Sequence[_WeightTile], waits: tuple[TpuValue, ...]
    ) -> Iterator[Instruction]:
        """The instructions of one block of outputs: its tiles for all rows, and the activations."""
        kept: int | None = None  # a single tile stays in the array for all rows
        for rows in balanced(stage.rows, self.machine.accumulator_rows // 2):
            group = next(self.groups)
            for position, tile in enumerate(tiles):
                if kept is None or len(tiles) > 1:
                    kept = next(self.tiles)
                    yield ReadWeights(number, kept, tile.inner, tile.columns)
                length = rows[1] - rows[0]
                yield MatrixMultiply(
                    number, stage.kind, kept, rows, length * tile.used, length * stage.cycles_per_row, position > 0,
                    waits, group,
                )  # fmt: skip
            yield Activate(number, stage.function, group, rows, tiles[0].columns, stage.reads, stage.writes)


@dataclass(frozen=True)
class _WeightTile:
    inner: Span
    columns: Span
    used: int  # cells that hold a weight


def _weight_tiles(stage: MatrixStage, machine: TpuMachine) -> Iterator[list[_WeightTile]]:
    """The tiles of each block of outputs. Small groups share a tile: their blocks lie on its diagonal."""
    together = min(machine.rows // stage.inner, machine.columns // stage.columns, stage.groups)
    if together > 1:
        for first, end in parts(stage.groups, together):
            inner, columns = (first * stage.inner, end * stage.inner), (first * stage.columns, end * stage.columns)
            yield [_WeightTile(inner, columns, (end - first) * stage.inner * stage.columns)]
        return
    for group in range(stage.groups):
        for first, end in parts(stage.columns, machine.columns):
            columns = group * stage.columns + first, group * stage.columns + end
            yield [
                _WeightTile((group * stage.inner + a, group * stage.inner + b), columns, (b - a) * (end - first))
                for a, b in parts(stage.inner, machine.rows)
            ]


def parts(total: int, most: int) -> list[Span]:
    """Parts of `most` each; the last one is smaller.

    >>> parts(600, 256)
    [(0, 256), (256, 512), (512, 600)]
    """
    return [(first, min(first + most, total)) for first in range(0, total, most)]


def balanced(total: int, most: int) -> list[Span]:
    """As few parts as possible, of about equal size: every part has to load its weight tiles.

    >>> balanced(2888, 2048)
    [(0, 1444), (1444, 2888)]
    """
    pieces = -(-total // most)
    edges = [total * i // pieces for i in range(pieces + 1)]
    return list(pairwise(edges))
