"""A function compiled for arguments of one structure, and how it is run.

The overhead of this file decides how fast small programs are: what stays the same from call to call is looked up once, and empty loops are
left out.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..compiler.ir.frame import nbytes
from ..dtypes import uint64
from ..graph import Graph
from ..graph.node import Type, data
from ..records import dataclass
from ..runtime import STATE_LOCK, Buffer, Device
from ..runtime.device import Executable
from ..runtime.facts import Facts
from ..tensor import Tensor, as_tensor, fresh_tensor, wrap
from ..tree import unflatten
from .arguments import Aliases
from .donation import Donor
from .state import KnownStates, StateTensor, memory_of
from .traced import TracedFunction

if TYPE_CHECKING:
    from ..compiler.ir.program import KernelProgram

NO_NUMBERS: Sequence[Any] = ()


class Aliased(Exception):
    """Two arguments are one tensor, or an argument is also captured, and the function changes it: this requires another program."""

    def __init__(self, aliases: Aliases) -> None:
        super().__init__()
        self.aliases = aliases


class CallMemory(NamedTuple):
    """The bytes that a call needs."""

    work: int  # that live during the call only, workspaces of libraries among them, and what is prepared of constants
    state: int  # tensors from outside: parameters, moments, counts
    arguments: int
    results: int
    recomputed: int = 0  # bytes of the forward pass that are computed again instead of being kept; no part of the total

    @property
    def total(self) -> int:
        return self.work + self.state + self.arguments + self.results


def memory_needed(function: TracedFunction, facts: Facts) -> CallMemory:
    """What a call needs whose program has these facts."""
    graph, first = function.graph, len(function.streams)
    given = sum(map(nbytes, graph.inputs[first : first + function.given]))
    state = sum(map(nbytes, graph.inputs)) - given
    results = sum(map(nbytes, graph.outputs[function.first_result :])) - sum(
        nbytes(graph.outputs[d.output]) for d in function.donations
    )
    return CallMemory(facts.arena + facts.workspace + facts.kept, state, given, results, facts.recomputed)


def planned_program(function: TracedFunction) -> KernelProgram:
    """The kernels and the memory plan that a function would have; no code is generated."""
    return function.device.planned_program(function.graph, function.all_updates, function.options, function.constants)


def planned(function: TracedFunction) -> Facts:
    """The memory that the program of a function would need, from its plan; no code is generated."""
    return function.device.planned(function.graph, function.all_updates, function.options, function.constants)


def compiled(function: TracedFunction) -> Compiled:
    """The function compiled for its device."""
    home = function.device
    executable = home.executable(function.graph, function.all_updates, function.options, function.constants)
    executable.label = function.name
    return Compiled(function, home, executable)


@dataclass(eq=False)
class Compiled:
    """A function compiled for arguments of one structure."""

    traced: TracedFunction
    home: Device  # that it was compiled for
    executable: Executable

    @property
    def graph(self) -> Graph:
        return self.traced.graph

    @property
    def states(self) -> list[StateTensor]:
        return self.traced.states

    @cached_property
    def fits(self) -> Callable[[], bool]:
        """Whether it is still the right program."""
        return self.traced.guards.hold

    @cached_property
    def passed(self) -> Callable[[Sequence[Any]], tuple[Sequence[Any], Sequence[Any]]] | None:
        """Turns arguments into the program's inputs, and numbers; None where they are the inputs."""
        return self.traced.arguments.passed()

    def inputs(self, arguments: Sequence[Any]) -> tuple[list[Any], list[int]]:
        """The memory of all inputs, which the caller must hold, and its addresses: for profiles and reports. No state changes."""
        values = arguments if self.passed is None else self.passed(arguments)[0]
        given = (*(s.offset for s in self.traced.streams), *values)
        passed = [self.executable.argument(i, value_of_argument(v)) for i, v in enumerate(given)]
        state = [memory_of(s, self.home) for s in self.states]
        return [passed, state], [*(address for _, address in passed), *map(self.home.address, state)]

    def _refuse_aliases(self, values: Sequence[Any]) -> None:
        aliases = self.traced.aliases(values)
        if aliases is not None:
            raise Aliased(aliases)

    @cached_property
    def run(self) -> Callable[[Sequence[Any]], Any]:
        """Run it on the values of arguments: compute the contents of results, replace state, hand out tensors."""
        home, streams, states = self.home, self.traced.streams, self.states
        acquire, release = STATE_LOCK.acquire, STATE_LOCK.release  # faster than a `with` block
        written, at_last = [state for state in states if state.written], KnownStates(states)
        argument, call, hand_out = self.executable.argument, self.executable.call, self._deliverer()
        passed, changed, refuse_aliases = self.passed, self.traced.arguments.changed, self._refuse_aliases

        donor = self._donor()

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
                taken = None if donor is None else donor.take(arguments)
                for position, value in enumerate((*(s.offset for s in streams), *values) if streams else values):
                    if taken is not None and position in taken:
                        addresses.append(home.address(taken[position][0]))
                        continue
                    known: Any = value._node.value if type(value) is Tensor else None
                    memory, address = argument(position, value_of_argument(value) if known is None else known)
                    held.append(memory)
                    addresses.append(address)
                if not at_last.holds():
                    for state in states:
                        if not state.is_known():
                            if state.written:
                                refuse_aliases(arguments)
                            state.refresh(home)
                            stale |= not state.written
                    at_last.update()
                addresses += at_last.addresses
                if donor is not None:
                    donor.invalidate(arguments)
                contents = call(addresses, stale)
                stale = False
                for state in written:
                    state.was_replaced()
                if streams:
                    for stream, position in zip(streams, contents, strict=False):
                        if position is None:  # the device computes nothing: streams stay where they are
                            break
                        stream.offset = wrap(data(Buffer(home, (), uint64, position)))
                    contents = contents[len(streams) :]
                if donor is not None and taken is not None:
                    donor.put_in(contents, taken)
                return hand_out(contents, arguments, numbers)
            finally:
                release()

        return run

    def _donor(self) -> Donor | None:
        traced = self.traced
        if not traced.donations:
            return None
        return Donor(self.home, traced.donations, traced.first_result, traced.name)

    def _deliverer(self) -> Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], Any]:
        """A function that turns computed contents into tensors, in the structure of the result."""
        traced, given = self.traced, self.traced.arguments
        types, grads, structure = traced.results, traced.grads, given.structure
        changed, finders, is_plain = given.changed, [result.finder() for result in given.results], given.is_plain
        sizes = [nbytes(node) for node in self.graph.outputs[traced.first_result :]]
        homes, sources = repeat(self.home), repeat(traced.source)
        hidden = len(types) - len(traced.tracked)  # results that are for .grad alone
        tracked = [number for number, is_tracked in enumerate(traced.tracked) if is_tracked]
        parameters = [weakref.ref(s.tensor) for s in self.states if s.tensor is not None and s.tensor._owns_parameter]
        whole = structure.kind in (list, tuple) and all(child.kind is None for child in structure.children)

        def hand_out(contents: Sequence[Any], arguments: Sequence[Any], numbers: Sequence[Any]) -> Any:
            results = list(map(fresh_tensor, homes, contents, types, sizes, sources))
            for tensor, number in grads:
                tensor.grad = None if number is None else results[number]
            if hidden:
                results = results[hidden:]
            for number in tracked:
                results[number]._node.detached_from = parameters
            if changed:
                for position in reversed(changed):
                    arguments[position]._name(results.pop()._node)
            if not is_plain:
                results = [find(results, arguments, numbers) for find in finders]
            if structure.kind is None:
                return results[0]
            if whole:
                return results if structure.kind is list else tuple(results)
            return unflatten(structure, results)

        if len(types) == 1 and is_plain and structure.kind is None and not (grads or hidden or changed):
            return self._single_deliverer(types[0], sizes[0], parameters if tracked else None)
        return hand_out

    def _single_deliverer(
        self, type: Type, size: int, parameters: Sequence[Any] | None
    ) -> Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], Any]:
        """The same for one tensor, which is all that the function returns."""
        home, source = self.home, self.traced.source

        def hand_out(contents: Sequence[Any], arguments: Sequence[Any], numbers: Sequence[Any]) -> Any:
            result = fresh_tensor(home, contents[0], type, size, source)
            if parameters is not None:
                result._node.detached_from = parameters
            return result

        return hand_out


def value_of_argument(value: Any) -> Buffer | np.ndarray:
    """The value of an argument, wherever it is."""
    if type(value) is np.ndarray:
        return value
    tensor = value if type(value) is Tensor else as_tensor(value)
    known = tensor._node.value
    if known is None:
        known = tensor.realize()._node.value
    assert isinstance(known, Buffer)
    return known
