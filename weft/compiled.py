"""A function compiled for arguments of one structure, and how it is run.

Small programs live of how little is done here: what stays the same from call to call is looked up once, and loops over nothing are
left out.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat
from typing import Any

import numpy as np

from .compiler.memory import nbytes
from .dtypes import uint64
from .errors import Source
from .graph import Graph
from .graph.node import Type, data
from .random import Generator
from .runtime import Buffer, Device
from .state import Settings, State
from .tensor import WITHOUT_HISTORY, Tensor, as_tensor, fresh_tensor, wrap
from .tree import Structure, unflatten


@dataclass(eq=False)
class Compiled:
    """A function compiled for arguments of one structure."""

    graph: Graph
    home: Device  # that it was compiled for
    executable: Any  # a runtime.device.Executable, or what it would need
    structure: Structure  # of the result
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
    lock: Any = field(default_factory=threading.Lock)

    def fits(self) -> bool:
        """Whether every .grad is there, or missing, as it was, and all settings are what they were."""
        if self.settings and not self.settings.hold():
            return False
        return not self.had_grads or all((tensor.grad is not None) == had for tensor, had in self.had_grads)

    @cached_property
    def run(self) -> Callable[[Sequence[Any]], Any]:
        """Run it on the values of arguments: compute the contents of results, replace state, hand out tensors."""
        home, streams, states, lock = self.home, self.streams, self.states, self.lock
        written = [state for state in states if state.written]
        argument, call, hand_out = self.executable.argument, self.executable.call, self._deliverer()

        def run(values: Sequence[Any]) -> Any:
            with lock:
                held, addresses = [], []  # memory must not go while it is read
                for position, value in enumerate((*(s.offset for s in streams), *values) if streams else values):
                    known = value._node.value if type(value) is Tensor else None
                    memory, address = argument(position, given(value) if known is None else known)
                    held.append(memory)
                    addresses.append(address)
                again = False
                for state in states:
                    if not state.is_known():
                        state.refresh(home)
                        again |= not state.written
                    addresses.append(state.address)
                contents = call(addresses, again)
                for state in written:
                    state.was_replaced()
            if streams:
                for stream, position in zip(streams, contents, strict=False):
                    stream.offset = wrap(data(Buffer(home, (), uint64, position)))
                contents = contents[len(streams) :]
            return hand_out(contents)

        return run

    def _deliverer(self) -> Callable[[Sequence[Any]], Any]:
        """A function that makes tensors of contents, in the structure that the function gave them."""
        types, grads, structure = self.results, self.grads, self.structure
        sizes = [nbytes(node) for node in self.graph.outputs[self.first_result :]]
        homes, sources = repeat(self.home), repeat(self.source)
        hidden = len(types) - len(self.tracked)  # results that are for .grad alone
        tracked = [number for number, is_tracked in enumerate(self.tracked) if is_tracked]
        parameters = [weakref.ref(s.tensor) for s in self.states if s.tensor is not None and s.tensor._owns_parameter]
        whole = structure.kind in (list, tuple) and all(child.kind is None for child in structure.children)

        def hand_out(contents: Sequence[Any]) -> Any:
            results = list(map(fresh_tensor, homes, contents, types, sizes, sources))
            for tensor, number in grads:
                tensor.grad = None if number is None else results[number]
            if hidden:
                results = results[hidden:]
            for number in tracked:
                WITHOUT_HISTORY[results[number]._node] = parameters
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
