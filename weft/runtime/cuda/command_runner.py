"""Runs commands on a GPU: each is enqueued in order on the main stream, or on the second one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ...compiler.gpu.commands import (
    Beside,
    Collective,
    Command,
    CompiledCommands,
    ControlFlow,
    Copy,
    Join,
    Launch,
    LibraryCall,
)
from ...compiler.ir.program import FRAME_RESERVED
from ...compiler.ir.storage import Slot
from .driver import Gpu
from .libraries import Libraries
from .nccl import Communicators

WARP = 32  # threads
STATUS = 16  # bytes per launch for its errors: the number of the error, and the wrong value
Frame = Sequence[int]  # addresses: arena, status, persistent memory, inputs, outputs, the libraries' workspace


class CommandRunner:
    """The kernels of a program, loaded on a GPU."""

    def __init__(
        self, gpu: Gpu, made: CompiledCommands, libraries: Libraries | None, communicators: Communicators
    ) -> None:
        self.gpu, self.communicators = gpu, communicators
        self._is_beside = False
        specs = {command.spec for command in made.commands.flat if isinstance(command, LibraryCall)}
        self._ready = {spec: libraries.ready(spec) for spec in specs} if libraries is not None else {}
        self.workspace = max((call.workspace for call in self._ready.values()), default=0)  # bytes that they share
        self._kernels = [(gpu.load(k.code, k.symbol, k.shared), WARP * k.warps, k.shared) for k in made.kernels]

    def run(
        self,
        commands: Iterable[Command[int]],
        frame: Frame,
        wanted: Callable[[Command[int]], bool] | None = None,
        in_order: bool = False,
    ) -> None:
        """Enqueue all commands, or the given ones. `in_order`: all on one stream, so that each can be timed."""
        ends: list[Any] = []  # of work beside the stream
        for command in commands:
            if wanted is not None and not wanted(command):
                continue
            if isinstance(command, Beside):
                ends.append(self._beside(command, frame, in_order))
            elif isinstance(command, Join):
                if not in_order:
                    self.gpu.after(ends[command.ended - 1])
            else:
                self._runners[type(command)](self, command, frame)

    def _beside(self, command: Beside[int], frame: Frame, in_order: bool) -> Any:
        if in_order:
            return self.run(command.commands, frame)
        self.gpu.branch()
        self._is_beside = True
        try:
            self.run(command.commands, frame)
        finally:
            self._is_beside = False
        return self.gpu.mark_beside()

    def _launch(self, command: Launch[int], frame: Frame) -> None:
        if not command.programs:
            return  # there is no element
        function, threads, shared = self._kernels[command.kernel]
        places = [frame[slot.base] + slot.offset for slot in command.slots]
        status = frame[1] + STATUS * command.status
        self.gpu.launch(function, command.programs, threads, shared, [*places, status], self._is_beside)

    def _library(self, command: LibraryCall, frame: Frame) -> None:
        places = [frame[slot.base] + slot.offset for slot in command.slots]
        self._ready[command.spec].run(places, frame[-1], self.gpu.stream)

    def _collective(self, command: Collective, frame: Frame) -> None:
        self.communicators.run(command.spec, [_place(slot, frame) for slot in command.slots], self._is_beside)

    def _copy(self, command: Copy, frame: Frame) -> None:
        if command.source.nbytes:
            self.gpu.copy(_place(command.target, frame), _place(command.source, frame), command.source.nbytes)

    def _control(self, command: ControlFlow[int], frame: Frame) -> None:
        _ControlRun(self, command, frame).run()

    _runners: dict[type, Any] = {  # noqa: RUF012
        Launch: _launch, Copy: _copy, ControlFlow: _control, LibraryCall: _library, Collective: _collective,
    }  # fmt: skip


def _place(slot: Slot, frame: Frame) -> int:
    return frame[slot.base] + slot.offset


class _ControlRun:
    """The execution of control flow. Carried values alternate between two buffers, unless steps update them in place."""

    def __init__(self, runner: CommandRunner, flow: ControlFlow[int], frame: Frame) -> None:
        self.runner, self.flow, self.frame = runner, flow, frame
        self.inputs = [_place(slot, frame) for slot in flow.inputs]
        self.outputs = [None if slot is None else _place(slot, frame) for slot in flow.outputs]

    def run(self) -> None:
        {"call": self._call, "cond": self._cond, "while_loop": self._while, "scan": self._scan}[self.flow.kind]()

    def _buffer(self, name: str) -> int:
        return _place(self.flow.buffers[name], self.frame)

    def _body(self, number: int, inputs: Sequence[int], outputs: Sequence[int], first: bool = True) -> None:
        reserved = [self._buffer(f"arena{number}"), self.frame[1], self._buffer(f"kept{number}")]
        assert len(reserved) == FRAME_RESERVED
        body = self.flow.bodies[number]
        self.runner.run(body, [*reserved, *inputs, *outputs, self.frame[-1]], None if first else is_not_once)

    def _results(self) -> list[int]:
        return [self._buffer(f"unread{i}") if o is None else o for i, o in enumerate(self.outputs)]

    def _call(self) -> None:
        self._body(0, self.inputs, self._results())

    def _holds(self, address: int) -> bool:
        """Read a condition: the host waits for it."""
        answer = np.empty(1, np.uint8)
        self.runner.gpu.download(answer, address)
        return bool(answer[0])

    def _cond(self) -> None:
        self._body(0 if self._holds(self.inputs[0]) else 1, self.inputs[1:], self._results())

    def _while(self) -> None:
        carried = self.flow.carried
        now, constants, step = self._beginnings(), self.inputs[carried:], 0
        while True:
            self._body(0, [*now, *constants], [self._buffer("test")], not step)
            if not self._holds(self._buffer("test")):
                break
            targets = self._alternate(step)
            self._body(1, [*now, *constants], targets, not step)
            now, step = targets, step + 1
        self._hand_out(now)

    def _alternate(self, step: int) -> list[int]:
        side, in_place = "odd" if step % 2 else "even", self.flow.in_place
        return [self._only_place(i) if i in in_place else self._buffer(f"{side}{i}") for i in range(self.flow.carried)]

    def _only_place(self, i: int) -> int:
        """The address of a carried value in all steps, if they update it in place."""
        output = self.outputs[i]
        return self._buffer(f"even{i}") if output is None else output

    def _beginnings(self) -> list[int]:
        """The addresses of carried values before the first step: those that are updated in place are copied first."""
        now = self.inputs[: self.flow.carried]
        for i in self.flow.in_place:
            self._copy(self._only_place(i), now[i], self.flow.sizes[i])
            now[i] = self._only_place(i)
        return now

    def _copy(self, target: int, source: int, size: int) -> None:
        if size and target != source:
            self.runner.gpu.copy(target, source, size)

    def _hand_out(self, values: Sequence[int]) -> None:
        """Carried values become the results."""
        for target, value, size in zip(self.outputs, values, self.flow.sizes, strict=False):
            if target is not None:
                self._copy(target, value, size)

    def _scan(self) -> None:
        flow = self.flow
        now = self._beginnings()
        if not flow.length:
            self._hand_out(now)
            return
        before = self.outputs[len(flow.results) :] if flow.history else [None] * flow.carried
        begin = flow.length - 1 if flow.reverse else 0
        for i, (target, value) in enumerate(zip(before, now, strict=True)):
            if target is not None and flow.sizes[i]:
                self.runner.gpu.copy(target + begin * flow.sizes[i], value, flow.sizes[i])
        for step in range(flow.length):
            targets = self._targets(step, before)
            t = flow.length - 1 - step if flow.reverse else step
            self._body(0, [*now, *self._elements(t)], [*targets, *self._stacked(t)], not step)
            now = targets

    def _targets(self, step: int, before: Sequence[int | None]) -> list[int]:
        """The addresses to which a step writes carried values: the results at the last step, else the history or the other buffer."""
        flow, rooms = self.flow, self._alternate(step)
        following = flow.length - 2 - step if flow.reverse else step + 1
        targets = []
        for i, room in enumerate(rooms):
            last, history = self.outputs[i], before[i]
            if step == flow.length - 1:
                targets.append(room if last is None else last)
            else:
                targets.append(room if history is None else history + following * flow.sizes[i])
        return targets

    def _elements(self, t: int) -> list[int]:
        """The elements of the sequences at a step, and the constants."""
        first, last = self.flow.carried, self.flow.carried + self.flow.sequences
        moving = [self.inputs[i] + t * self.flow.sizes[i] for i in range(first, last)]
        return [*moving, *self.inputs[last:]]

    def _stacked(self, t: int) -> list[int]:
        """Where a step's other results go."""
        places = []
        for i in range(self.flow.carried, len(self.flow.results)):
            stack = self.outputs[i]
            places.append(self._buffer(f"unread{i}") if stack is None else stack + t * self.flow.results[i])
        return places


def is_not_once(command: Command[int]) -> bool:
    return not is_once(command)


def is_once(command: Command[int]) -> bool:
    """Whether its result stays the same until constants change."""
    return isinstance(command, Launch | LibraryCall) and command.once
