"""The timing model: when every instruction runs, in cycles, and what stalls the matrix unit.

Five units work in parallel, each on its instructions in order: host transfers, weight reads, weight shifts into the array, the matrix unit and the
activation unit. An instruction starts when its unit is free and its requirements are met:

    read_weights      a free slot in the FIFO, released when a tile leaves it
    shift             the tile has arrived, and the array has switched to the previously shifted tile (weights are double-buffered)
    matrix_multiply   its tile is in the array, its activations are written, and there is space in the accumulators
    activate          the last sums have left the array

Every cycle is attributed to one cause: `compute` while rows enter the array, otherwise the stall of the matrix unit.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import field

from ..records import dataclass
from .instructions import (
    Activate,
    HostTransfer,
    HostWork,
    Instruction,
    MatrixMultiply,
    ReadWeights,
    TpuProgram,
    Vector,
)
from .machine import TpuMachine
from .stages import TpuValue

COMPUTE, WEIGHT_WAIT, WEIGHT_SHIFT = "compute", "waiting for weights", "weight shift"
HAZARD, HOST, ACTIVATION = "waiting for activations", "host transfer", "activation"
CAUSES = (COMPUTE, WEIGHT_WAIT, WEIGHT_SHIFT, HAZARD, ACTIVATION, HOST)


@dataclass(frozen=True)
class TimedInstruction:
    """An instruction, with its start and end cycle."""

    instruction: Instruction
    start: int
    end: int


@dataclass(frozen=True)
class Timing:
    """Cycles by cause, in total and by stage, and when each instruction runs."""

    cycles: Counter[str]
    by_stage: list[Counter[str]]
    instructions: list[TimedInstruction]
    macs: int
    weight_tiles: int

    @property
    def total(self) -> int:
        return sum(self.cycles.values())


def timed(program: TpuProgram) -> Timing:
    """Compute the timing of a program on its machine."""
    clock = _CycleClock(program.machine, [Counter() for _ in program.stages])
    return clock.run(program.instructions)


@dataclass(frozen=True)
class _Ready:
    """When a value can be read, and the cause of its readers' stalls until then."""

    cycle: int = 0
    cause: str = HAZARD


@dataclass
class _Tile:
    shift_start: int
    shift_end: int


@dataclass
class _CycleClock:
    machine: TpuMachine
    by_stage: list[Counter[str]]
    record: list[TimedInstruction] = field(default_factory=list)
    # when each unit is free
    host_free: int = 0
    memory_free: int = 0
    shift_free: int = 0
    matrix_free: int = 0
    activation_free: int = 0
    takeover: int = 0  # when the array switched to the last tile: the next one can be shifted in
    in_fifo: deque[int] = field(default_factory=deque)  # when each of the last tiles left it
    tiles: dict[int, _Tile] = field(default_factory=dict)
    ready: dict[TpuValue, _Ready] = field(default_factory=dict)
    sums: dict[int, int] = field(default_factory=dict)  # when the sums of a group are complete
    occupied: deque[tuple[int, int]] = field(default_factory=deque)  # accumulators of each group: rows, free from
    current_tile: int = -1
    last_product: int = 0  # its stage
    macs: int = 0

    def run(self, instructions: Iterable[Instruction]) -> Timing:
        for instruction in instructions:
            start, end = self._step(instruction)
            self.record.append(TimedInstruction(instruction, start, end))
        self._finish()
        total: Counter[str] = Counter(dict.fromkeys(CAUSES, 0))
        for stage in self.by_stage:
            total.update(stage)
        return Timing(total, self.by_stage, self.record, self.macs, len(self.tiles))

    def _step(self, instruction: Instruction) -> tuple[int, int]:
        if isinstance(instruction, MatrixMultiply):
            return self._multiply(instruction)
        if isinstance(instruction, ReadWeights):
            return self._read_weights(instruction)
        if isinstance(instruction, Activate):
            return self._activate(instruction)
        if isinstance(instruction, Vector):
            return self._vector(instruction)
        if isinstance(instruction, HostTransfer):
            return self._transfer(instruction)
        if isinstance(instruction, HostWork):  # its time is not counted: it waits for the values it reads
            now = self._when(instruction.reads).cycle
            self.ready |= dict.fromkeys(instruction.writes, _Ready(now, HOST))
            return now, now
        return self.matrix_free, self.matrix_free  # a synchronization takes no time itself

    def _when(self, values: Iterable[TpuValue]) -> _Ready:
        """The value that becomes ready last."""
        return max((self.ready[value] for value in values), key=lambda found: found.cycle, default=_Ready())

    # --- units ------------------------------------------------------------------------------------------------------------------

    def _transfer(self, instruction: HostTransfer) -> tuple[int, int]:
        value = instruction.value
        start = max(self.host_free, self.ready[value].cycle)
        self.host_free = end = start + self.machine.host_cycles(value.nbytes)
        self.ready[value] = _Ready(end, HOST)
        return start, end

    def _read_weights(self, instruction: ReadWeights) -> tuple[int, int]:
        start = self.memory_free
        if len(self.in_fifo) == self.machine.weight_fifo_tiles:
            start = max(start, self.in_fifo.popleft())
        self.memory_free = arrived = start + self.machine.weight_tile_cycles
        shift_start = max(arrived, self.shift_free, self.takeover)
        self.shift_free = shift_end = shift_start + self.machine.rows
        self.in_fifo.append(shift_end)
        self.tiles[instruction.tile] = _Tile(shift_start, shift_end)
        return start, arrived

    def _multiply(self, instruction: MatrixMultiply) -> tuple[int, int]:
        tile, needed = self.tiles[instruction.tile], self._when(instruction.reads)
        room = self._room(instruction)
        start = max(self.matrix_free, tile.shift_end, needed.cycle, room)
        self._put_down(instruction.stage, start, tile, needed, room)
        if instruction.tile != self.current_tile:
            self.current_tile, self.takeover = instruction.tile, start
        self.matrix_free = end = start + instruction.cycles
        self.by_stage[instruction.stage][COMPUTE] += instruction.cycles
        self.sums[instruction.group] = end + self.machine.fill_cycles
        self.macs += instruction.macs
        self.last_product = instruction.stage
        return start, end

    def _room(self, instruction: MatrixMultiply) -> int:
        """When the accumulators have space for the rows of a new group."""
        if instruction.accumulate:
            return 0
        rows, free_from = instruction.rows[1] - instruction.rows[0], 0
        while sum(held for held, _ in self.occupied) + rows > self.machine.accumulator_rows:
            free_from = max(free_from, self.occupied.popleft()[1])
        self.occupied.append((rows, 0))
        return free_from

    def _activate(self, instruction: Activate) -> tuple[int, int]:
        other = self._when(instruction.reads)
        start = max(self.activation_free, self.sums[instruction.group], other.cycle)
        rows = instruction.rows[1] - instruction.rows[0]
        self.activation_free = end = start + rows
        held, _ = self.occupied.pop()  # the newest group: every group is drained before the next one begins
        self.occupied.append((held, end))
        self.ready |= dict.fromkeys(instruction.writes, _Ready(end, HAZARD))
        return start, end

    def _vector(self, instruction: Vector) -> tuple[int, int]:
        start = max(self.activation_free, self._when(instruction.reads).cycle)
        self.activation_free = end = start + -(-instruction.elements // self.machine.columns)
        self.ready |= dict.fromkeys(instruction.writes, _Ready(end, ACTIVATION))
        return start, end

    # --- causes -----------------------------------------------------------------------------------------------------------------

    def _put_down(self, stage: int, start: int, tile: _Tile, needed: _Ready, room: int) -> None:
        """Attribute the matrix unit's stall before this product: first to its tile, then to its activations."""
        now = self.matrix_free
        last = needed.cause if needed.cycle >= room else ACTIVATION
        for cause, until in ((WEIGHT_WAIT, tile.shift_start), (WEIGHT_SHIFT, tile.shift_end), (last, start)):
            end = min(max(now, until), start)
            self.by_stage[stage][cause] += end - now
            now = end

    def _finish(self) -> None:
        """Attribute the cycles after the last product: its activations, then the transfers of results."""
        ends = ((ACTIVATION, self.activation_free, self.last_product), (HOST, self.host_free, -1))
        for cause, free, stage in ends:
            if free > self.matrix_free:
                self.by_stage[stage][cause] += free - self.matrix_free
                self.matrix_free = free
