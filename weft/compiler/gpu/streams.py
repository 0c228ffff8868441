"""Two streams of commands: the commands that run concurrently with the others, and where the others wait for them.

A stream runs its commands in order. A command of the first stream waits for one of the second if it accesses memory that the other writes,
or writes memory that the other reads; the end of a list waits for everything. The second stream waits for all commands enqueued on the
first one before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, zip_longest

from ..ir.program import Call
from ..ir.storage import Ranges, Slot
from .commands import Beside, Collective, Command, CommandList, ControlFlow, Join, K, Launch, LibraryCall


def in_streams(commands: Sequence[Command[K]]) -> CommandList[K]:
    """Commands in their order: adjacent concurrent commands are one `Beside`, and a `Join` is where one is waited for."""
    found: list[Command[K]] = []
    flying: list[_Flight] = []  # in the order in which they end
    begun = 0

    def join(number: int) -> None:
        """Wait for all of them up to the one at this place."""
        ended = flying[: number + 1]
        del flying[: number + 1]
        found.append(Join(ended[-1].number, tuple(call for flight in ended for call in flight.calls)))

    for is_beside, group in groupby(commands, lambda c: any(call.beside for call in c.calls)):
        if is_beside:
            together = tuple(group)
            begun += 1
            flying.append(_Flight(begun, tuple(call for command in together for call in command.calls)))
            found.append(Beside(CommandList(together), flying[-1].calls))
            continue
        for command in group:
            alone = _has_collectives(command)  # collectives of two streams would have no common order
            met = [i for i, flight in enumerate(flying) if alone or flight.meets(command)]
            if met:
                join(met[-1])
            found.append(command)
    if flying:
        join(len(flying) - 1)
    return CommandList(tuple(_without_detours(found)))


class _Flight:
    """Calls that run in the second stream: their number among such groups, and their memory."""

    def __init__(self, number: int, calls: tuple[Call, ...]) -> None:
        self.number, self.calls = number, calls
        self._read, self._written = Ranges(), Ranges()
        for call in calls:
            for slot in call.reads:
                self._read.add(slot)
            for slot in call.writes:
                self._written.add(slot)

    def meets(self, command: Command[K]) -> bool:
        """Whether a command of the first stream accesses memory that they write, or writes memory that they read."""
        touched = [*_slots(command), *(slot for call in command.calls for slot in (*call.reads, *call.writes))]
        changed = [slot for call in command.calls for slot in call.writes]
        return any(map(self._written.overlap, touched)) or any(map(self._read.overlap, changed))


def _has_collectives(command: Command[K]) -> bool:
    """Whether it is control flow whose bodies have collectives."""
    return isinstance(command, ControlFlow) and any(isinstance(c, Collective) for b in command.bodies for c in b.flat)


def _slots(command: Command[K]) -> Sequence[Slot]:
    return command.slots if isinstance(command, Launch | LibraryCall | Collective) else ()


def _without_detours(commands: Sequence[Command[K]]) -> Iterator[Command[K]]:
    """The same, except that a `Beside` which is waited for immediately, when nothing else runs concurrently, remains in the first stream."""
    begun, ended = 0, 0
    number: dict[int, int] = {0: 0}  # of each `Beside` among those that remain
    skipped = False
    for command, following in zip_longest(commands, commands[1:]):
        if skipped:
            skipped = False
        elif isinstance(command, Beside) and isinstance(following, Join) and begun == ended:
            number[len(number)] = begun
            yield from command.commands
            skipped = True
        elif isinstance(command, Beside):
            begun += 1
            number[len(number)] = begun
            yield command
        elif isinstance(command, Join):
            ended = number[command.ended]
            yield Join(ended, command.calls)
        else:
            yield command
