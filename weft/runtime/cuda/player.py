"""Plays a recipe on a GPU: each action is put into the stream, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...compiler.gpu.recipe import Action, Consult, Flow, Move, Prepared, Recipe, Start
from ...compiler.gpu.vendor.specs import from_json
from ...compiler.ir.program import FRAME_RESERVED
from ...compiler.ir.storage import Slot
from .driver import Gpu
from .libraries import Libraries

WARP = 32  # threads
STATUS = 16  # bytes a launch has for its errors: which one, and the wrong value
Frame = Sequence[int]  # addresses: arena, status, what is kept, inputs, outputs, the libraries' workspace


class Player:
    """The kernels of a program, loaded on a GPU."""

    def __init__(self, gpu: Gpu, made: Prepared, libraries: Libraries | None) -> None:
        self.gpu = gpu
        specs = {action.spec for action in made.recipe.every if isinstance(action, Consult)}
        self._asked = {spec: libraries.ready(from_json(spec)) for spec in specs} if libraries is not None else {}
        self.workspace = max((asked.workspace for asked in self._asked.values()), default=0)  # bytes that they share
        self._kernels = [(gpu.load(k.code, k.symbol, k.shared), WARP * k.warps, k.shared) for k in made.kernels]

    def play(self, recipe: Recipe, frame: Frame, wanted: Callable[[Action], bool] | None = None) -> None:
        """Put all actions into the stream, or the wanted ones."""
        for action in recipe.actions:
            if wanted is None or wanted(action):
                self._actions[type(action)](self, action, frame)

    def _start(self, action: Start, frame: Frame) -> None:
        if not action.programs:
            return  # there is no element
        function, threads, shared = self._kernels[action.kernel]
        places = [frame[slot.base] + slot.offset for slot in action.slots]
        self.gpu.launch(function, action.programs, threads, shared, [*places, frame[1] + STATUS * action.status])

    def _consult(self, action: Consult, frame: Frame) -> None:
        places = [frame[slot.base] + slot.offset for slot in action.slots]
        self._asked[action.spec].run(places, frame[-1], self.gpu.stream)

    def _move(self, action: Move, frame: Frame) -> None:
        if action.source.nbytes:
            self.gpu.copy(_place(action.target, frame), _place(action.source, frame), action.source.nbytes)

    def _flow(self, action: Flow, frame: Frame) -> None:
        _Flowing(self, action, frame).run()

    _actions: dict[type, Any] = {Start: _start, Move: _move, Flow: _flow, Consult: _consult}  # noqa: RUF012


def _place(slot: Slot, frame: Frame) -> int:
    return frame[slot.base] + slot.offset


class _Flowing:
    """Control flow while it runs. Carried values go to and fro between two rooms."""

    def __init__(self, player: Player, flow: Flow, frame: Frame) -> None:
        self.player, self.flow, self.frame = player, flow, frame
        self.inputs = [_place(slot, frame) for slot in flow.inputs]
        self.outputs = [None if slot is None else _place(slot, frame) for slot in flow.outputs]

    def run(self) -> None:
        {"call": self._call, "cond": self._cond, "while_loop": self._while, "scan": self._scan}[self.flow.kind]()

    def _room(self, name: str) -> int:
        return _place(self.flow.rooms[name], self.frame)

    def _body(self, number: int, inputs: Sequence[int], outputs: Sequence[int], first: bool = True) -> None:
        reserved = [self._room(f"arena{number}"), self.frame[1], self._room(f"kept{number}")]
        assert len(reserved) == FRAME_RESERVED
        body = self.flow.bodies[number]
        self.player.play(body, [*reserved, *inputs, *outputs, self.frame[-1]], None if first else is_not_once)

    def _results(self) -> list[int]:
        return [self._room(f"unread{i}") if o is None else o for i, o in enumerate(self.outputs)]

    def _call(self) -> None:
        self._body(0, self.inputs, self._results())

    def _holds(self, address: int) -> bool:
        """Look at a condition: the host waits for it."""
        answer = np.empty(1, np.uint8)
        self.player.gpu.download(answer, address)
        return bool(answer[0])

    def _cond(self) -> None:
        self._body(0 if self._holds(self.inputs[0]) else 1, self.inputs[1:], self._results())

    def _while(self) -> None:
        carried = self.flow.carried
        now, constants, step = self.inputs[:carried], self.inputs[carried:], 0
        while True:
            self._body(0, [*now, *constants], [self._room("test")], not step)
            if not self._holds(self._room("test")):
                break
            targets = self._alternate(step)
            self._body(1, [*now, *constants], targets, not step)
            now, step = targets, step + 1
        self._hand_out(now)

    def _alternate(self, step: int) -> list[int]:
        return [self._room(f"{'odd' if step % 2 else 'even'}{i}") for i in range(self.flow.carried)]

    def _hand_out(self, values: Sequence[int]) -> None:
        """Carried values become the results."""
        for target, value, size in zip(self.outputs, values, self.flow.sizes, strict=False):
            if target is not None and size:
                self.player.gpu.copy(target, value, size)

    def _scan(self) -> None:
        flow = self.flow
        now = self.inputs[: flow.carried]
        if not flow.length:
            self._hand_out(now)
            return
        before = self.outputs[len(flow.results) :] if flow.history else [None] * flow.carried
        begin = flow.length - 1 if flow.reverse else 0
        for i, (target, value) in enumerate(zip(before, now, strict=True)):
            if target is not None and flow.sizes[i]:
                self.player.gpu.copy(target + begin * flow.sizes[i], value, flow.sizes[i])
        for step in range(flow.length):
            targets = self._targets(step, before)
            t = flow.length - 1 - step if flow.reverse else step
            self._body(0, [*now, *self._elements(t)], [*targets, *self._stacked(t)], not step)
            now = targets

    def _targets(self, step: int, before: Sequence[int | None]) -> list[int]:
        """Where a step's carried values go: at the end to the results, in between to the history or to and fro."""
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
            places.append(self._room(f"unread{i}") if stack is None else stack + t * self.flow.results[i])
        return places


def is_not_once(action: Action) -> bool:
    return not is_once(action)


def is_once(action: Action) -> bool:
    """Whether it gives the same until constants change."""
    return isinstance(action, Start | Consult) and action.once
