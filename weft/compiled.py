"""A function compiled for arguments of one structure, and how it is run.

Small programs live of how little is done here: what stays the same from call to call is looked up once, and loops over nothing are
left out.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat
from typing import Any

import numpy as np

from .arguments import Aliases, Arguments
from .compiler.ir.storage import nbytes
from .dtypes import uint64
from .errors import Source
from .graph import Graph
from .graph.node import Type, data
from .random import Generator
from .runtime import STATE_LOCK, Buffer, Device
from .state import Settings, State
from .tensor import WITHOUT_HISTORY, Tensor, as_tensor, fresh_tensor, wrap
from .tree import unflatten

NO_NUMBERS: Sequence[Any] = ()


class Aliased(Exception):
    """Arguments of a call are one tensor, or one that the function finds outside too, and it is changed: that is another program."""

    def __init__(self, aliases: Aliases) -> None:
        super().__init__()
        self.aliases = aliases


@dataclass(eq=False)
class Compiled:
    """A function compiled for arguments of one structure."""

    graph: Graph
    home: Device  # that it was compiled for
    executable: Any  # a runtime.device.Executable, or what it would need
    given: Arguments  # what the function was given when it was traced
    states: list[State]
    streams: list[Generator]
    arguments: int
    results: list[Type] = field(default_factory=list)
    first_result: int = 0  # among the graph's outputs; state comes before
    grads: list[tuple[Tensor, int | None]] = field(default_factory=list)  # whose .grad is replaced, by which result
    had_grads: list[tuple[Tensor, bool]] = field(default_factory=list)  # which tensors had one when it was traced
    tracked: list[bool] = field(default_factory=list)  # which results were computed from parameters
    source: Source | None = None  # the line that results are put down to
    settings: Settings | None = None  # that it was traced under
    seen: list[tuple[Tensor, Buffer, int]] = field(
        default_factory=list
    )  # values that Python looked at, with their versions

    def fits(self) -> bool:
        """Whether every .grad is there, or missing, as it was, and all settings and values that Python looked at are what they were."""
        if self.settings and not self.settings.hold():
            return False
        for tensor, value, version in self.seen:
            if tensor._node.value is not value or value.version != version:
                return False
        return not self.had_grads or all((tensor.grad is not None) == had for tensor, had in self.had_grads)

    @cached_property
    def passed(self) -> Callable[[Sequence[Any]], tuple[Sequence[Any], Sequence[Any]]] | None:
        """Turns arguments into the program's inputs, and numbers; None where they are the inputs."""
        return self.given.passed()

    def aliases(self, values: Sequence[Any]) -> Aliases | None:
        """Which of these arguments are one tensor that the function changes; None if none are."""
        written = {state.find(): state.written for state in self.states}
        changes, seen = bool(self.given.changed), dict[Tensor, int]()
        found: list[int | Tensor | None] = [None] * len(values)
        for i in self.given.arrays:
            value = values[i]
            if type(value) is Tensor:
                if value in written and (changes or written[value]):
                    found[i] = value
                elif changes and seen.setdefault(value, i) != i:
                    found[i] = seen[value]
        if not any(alias is not None for alias in found):
            return None
        return tuple(new if old is None else old for new, old in zip(found, self.given.aliases, strict=True))

    def _refuse_aliases(self, values: Sequence[Any]) -> None:
        aliases = self.aliases(values)
        if aliases is not None:
            raise Aliased(aliases)

    @cached_property
    def run(self) -> Callable[[Sequence[Any]], Any]:
        """Run it on the values of arguments: compute the contents of results, replace state, hand out tensors."""
        home, streams, states = self.home, self.streams, self.states
        acquire, release = STATE_LOCK.acquire, STATE_LOCK.release  # sooner done than a `with` block
        written = [state for state in states if state.written]
        argument, call, hand_out = self.executable.argument, self.executable.call, self._deliverer()
        passed, changed, refuse_aliases = self.passed, self.given.changed, self._refuse_aliases

        stale = False  # captured tensors have changed since what is prepared of them was made

        def run(arguments: Sequence[Any]) -> Any:
            nonlocal stale
            acquire()
            try:
                values, numbers = arguments, NO_NUMBERS
                if passed is not None:
                    values, numbers = passed(arguments)
                if changed:
                    refuse_aliases(arguments)
                held, addresses = [], []  # memory must not go while it is read
                for position, value in enumerate((*(s.offset for s in streams), *values) if streams else values):
                    known = value._node.value if type(value) is Tensor else None
                    memory, address = argument(position, given(value) if known is None else known)
                    held.append(memory)
                    addresses.append(address)
                for state in states:
                    if not state.is_known():
                        if state.written:
                            refuse_aliases(arguments)
                        state.refresh(home)
                        stale |= not state.written
                    addresses.append(state.address)
                contents = call(addresses, stale)
                stale = False
                for state in written:
                    state.was_replaced()
                if streams:
                    for stream, position in zip(streams, contents, strict=False):
                        stream.offset = wrap(data(Buffer(home, (), uint64, position)))
                    contents = contents[len(streams) :]
                return hand_out(contents, arguments, numbers)
            finally:
                release()

        return run

    def _deliverer(self) -> Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], Any]:
        """A function that makes tensors of contents, in the structure that the function gave them."""
        types, grads, structure = self.results, self.grads, self.given.structure
        changed, found, is_plain = self.given.changed, self.given.results, self.given.is_plain
        sizes = [nbytes(node) for node in self.graph.outputs[self.first_result :]]
        homes, sources = repeat(self.home), repeat(self.source)
        hidden = len(types) - len(self.tracked)  # results that are for .grad alone
        tracked = [number for number, is_tracked in enumerate(self.tracked) if is_tracked]
        parameters = [weakref.ref(s.tensor) for s in self.states if s.tensor is not None and s.tensor._owns_parameter]
        whole = structure.kind in (list, tuple) and all(child.kind is None for child in structure.children)

        def hand_out(contents: Sequence[Any], arguments: Sequence[Any], numbers: Sequence[Any]) -> Any:
            results = list(map(fresh_tensor, homes, contents, types, sizes, sources))
            for tensor, number in grads:
                tensor.grad = None if number is None else results[number]
            if hidden:
                results = results[hidden:]
            for number in tracked:
                WITHOUT_HISTORY[results[number]._node] = parameters
            if changed:
                for position in reversed(changed):
                    arguments[position]._name(results.pop()._node)
            if not is_plain:
                results = [find(results, arguments, numbers) for find in found]
            if structure.kind is None:
                return results[0]
            if whole:
                return results if structure.kind is list else tuple(results)
            return unflatten(structure, results)

        return hand_out


def given(value: Any) -> Buffer | np.ndarray:
    """The value of an argument, wherever it is."""
    if type(value) is np.ndarray:
        return value
    tensor = value if type(value) is Tensor else as_tensor(value)
    known = tensor._node.value
    if known is None:
        known = tensor.realize()._node.value
    assert isinstance(known, Buffer)
    return known
