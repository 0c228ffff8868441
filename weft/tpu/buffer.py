"""The unified buffer: which values it holds at each stage, and which are spilled to the host because it is full."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import UserError
from ..records import dataclass
from .machine import TpuMachine, size_text
from .stages import Stage, TpuValue

NEVER = 1 << 60


@dataclass(frozen=True)
class BufferPlan:
    """Transfers before each stage, and the number of bytes held in it."""

    evicted: list[list[TpuValue]]
    restored: list[list[TpuValue]]
    held_bytes: list[int]

    @property
    def spilled(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(value.name for values in self.evicted for value in values))


def planned_moves(stages: Sequence[Stage], machine: TpuMachine) -> BufferPlan:
    """Plan the buffer. The value with the farthest next use is evicted first (Belady's rule); a stage that does not fit alone is an error."""
    uses = _uses(stages)
    held: set[TpuValue] = set()
    saved: set[TpuValue] = set()  # with a copy on the host
    evicted: list[list[TpuValue]] = []
    restored: list[list[TpuValue]] = []
    held_bytes: list[int] = []
    for number, stage in enumerate(stages):
        needed = {*stage.reads, *stage.writes}
        _check_that_it_fits(stage, needed, machine)
        gone = _evicted(held, needed, number, uses, machine)
        held -= {*gone}
        restored.append([value for value in dict.fromkeys(stage.reads) if value not in held])
        held |= needed
        held_bytes.append(sum(value.nbytes for value in held))
        evicted.append([value for value in gone if value not in saved])
        saved |= {*gone}
        held = {value for value in held if _next_use(uses[value], number) < NEVER}
    return BufferPlan(evicted, restored, held_bytes)


def _uses(stages: Sequence[Stage]) -> dict[TpuValue, list[int]]:
    found: dict[TpuValue, list[int]] = {}
    for number, stage in enumerate(stages):
        for value in (*stage.reads, *stage.writes):
            found.setdefault(value, []).append(number)
    return found


def _next_use(uses: Sequence[int], number: int) -> int:
    return next((use for use in uses if use > number), NEVER)


def _evicted(
    held: set[TpuValue],
    needed: set[TpuValue],
    number: int,
    uses: dict[TpuValue, list[int]],
    machine: TpuMachine,
) -> list[TpuValue]:
    gone = []
    excess = sum(value.nbytes for value in held | needed) - machine.unified_buffer_bytes
    for value in sorted(held - needed, key=lambda value: -_next_use(uses[value], number)):
        if excess <= 0:
            break
        excess -= value.nbytes
        gone.append(value)
    return gone


def _check_that_it_fits(stage: Stage, needed: set[TpuValue], machine: TpuMachine) -> None:
    total = sum(value.nbytes for value in needed)
    if total > machine.unified_buffer_bytes:
        raise UserError(
            "tpu",
            f"{stage.name} reads and writes {size_text(total)} at a time, and the unified buffer has {size_text(machine.unified_buffer_bytes)}. "
            "Use smaller batches, or a machine with a larger unified buffer.",
        )
