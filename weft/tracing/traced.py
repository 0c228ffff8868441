"""A function traced for arguments of one structure: a closed graph, and what its inputs and outputs stand for.

(positions of random streams, arguments, state) -> (positions, new state, new .grads, results)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from ..errors import Source, user_source
from ..graph import Graph
from ..graph.graph import close
from ..graph.node import DATA, VARIABLE, Node, Type, toposort
from ..options import CompileOptions
from ..random import Generator
from ..records import dataclass
from ..runtime import STATE_LOCK, Device
from ..runtime import device as find_device
from ..tensor import Holder, Tensor, wrap
from ..tree import Structure, flatten, unflatten
from .arguments import Aliases, Arguments, refuse_other_content
from .cache_key import argument_names, is_value
from .context import StateRecorder
from .donation import Donation, donations_of
from .guards import Guards, ModuleSettings
from .state import StateTensor, in_memory_order, states_of
from .trace import Trace, trace


@dataclass(eq=False)
class TracedFunction:
    """See the head of this file."""

    graph: Graph
    options: CompileOptions
    updates: dict[int, int]  # outputs that replace state, and the inputs where it is read
    donations: list[Donation]  # arguments that results replace
    call: CallStructure
    arguments: Arguments
    given: int  # inputs that are arguments, after the positions of streams
    states: list[StateTensor]
    streams: list[Generator]
    first_result: int  # among the graph's outputs; positions and state come before
    grads: list[tuple[Tensor, int | None]]  # whose .grad is replaced, by which result
    tracked: list[bool]  # which results were computed from parameters
    guards: Guards
    source: Source | None  # the line that results are put down to
    name: str  # of the function, for messages

    @property
    def device(self) -> Device:
        return find_device(self.options.device)

    @property
    def constants(self) -> frozenset[int]:
        """Inputs that rarely change: what a program prepares of them is kept."""
        return frozenset(s.position for s in self.states if not s.written)

    @property
    def all_updates(self) -> dict[int, int]:
        """Outputs that replace inputs."""
        return {**self.updates, **{d.output: d.position for d in self.donations}}

    @property
    def results(self) -> list[Type]:
        return [o.type for o in self.graph.outputs[self.first_result :]]

    def aliases(self, values: Sequence[Any]) -> Aliases | None:
        """Which of these arguments are one tensor that the function changes; None if none are."""
        written = {state.find(): state.written for state in self.states}
        given = self.arguments
        changes, seen = bool(given.changed), dict[Tensor, int]()
        found: list[int | Tensor | None] = [None] * len(values)
        for i in given.arrays:
            value = values[i]
            if type(value) is Tensor:
                if value in written and (changes or written[value]):
                    found[i] = value
                elif changes and seen.setdefault(value, i) != i:
                    found[i] = seen[value]
        if not any(alias is not None for alias in found):
            return None
        return tuple(new if old is None else old for new, old in zip(found, given.aliases, strict=True))


class CallStructure:
    """How a call passes its arguments: their structure, which leaves are values, and the static ones."""

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], static: Collection[str | int]
    ) -> None:
        self.name = getattr(function, "__name__", "the function")
        leaves, self.structure = flatten((args, kwargs))
        self.names = argument_names(self.structure)
        self.is_value = [n not in static and is_value(v) for n, v in zip(self.names, leaves, strict=True)]
        self.static = [leaf for leaf, is_value in zip(leaves, self.is_value, strict=True) if not is_value]

    def values(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        return [leaf for leaf, is_value in zip(flatten((args, kwargs))[0], self.is_value, strict=True) if is_value]

    def call(self, function: Callable[..., Any], values: Sequence[Any]) -> Any:
        """Call the function with other values."""
        rest, static = iter(values), iter(self.static)
        leaves = [next(rest if is_value else static) for is_value in self.is_value]
        args, kwargs = inner = unflatten(self.structure, leaves)
        result = function(*args, **kwargs)
        refuse_other_content(inner, self.structure, leaves)
        return result


def traced(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    static: Collection[str | int],
    options: CompileOptions,
    follows: Iterable[Holder] = (),
    aliases: Aliases | None = None,
    *,
    donate: Collection[str | int] = (),
    for_device: bool = True,
) -> TracedFunction:
    """Call the function once with placeholders for its arguments, and close the recorded nodes to a graph.

    `follows`: objects whose settings decide what the function does, beside those that it calls. `donate`: arguments whose memory results
    may take. `for_device`: state is laid out as the
    device prefers; otherwise the graph is the same for every device.
    """
    call = CallStructure(function, args, kwargs, static)
    arguments = Arguments(call.values(args, kwargs), aliases)
    types, recorder = arguments.types(), StateRecorder()
    for holder in follows:
        recorder.depends(holder)

    def call_with(*tensors: Tensor) -> Any:
        return arguments.call(tensors, lambda values: call.call(function, values), recorder)

    with STATE_LOCK, recorder:  # other threads must not see what tensors name meanwhile
        found = trace(call_with, types, Structure(tuple, (), (Structure(None),) * len(types)), watched=True)
        values = [_content(t) for t in recorder.written]
        grads = [(t, t.grad) for t, before in recorder.grads.items() if t.grad is not before]
        new_grads = [grad.node for _, grad in grads if grad is not None]
    numbers = iter(range(len(new_grads)))
    replaced = [(t, None if grad is None else next(numbers)) for t, grad in grads]
    return _closed(options, call, found, arguments, recorder, [*values, *new_grads], replaced, donate, for_device)


def _closed(
    options: CompileOptions,
    call: CallStructure,
    found: Trace,
    arguments: Arguments,
    recorder: StateRecorder,
    changed: Sequence[Node],
    grads: list[tuple[Tensor, int | None]],
    donate: Collection[str | int],
    for_device: bool,
) -> TracedFunction:
    streams = list(found.streams)
    positions, left = [found.streams[s][0] for s in streams], [found.streams[s][1] for s in streams]
    outputs = [*left, *changed, *found.outputs]
    arguments.prune(set(toposort(outputs)))
    given = [*found.inputs, *arguments.number_recorder.inputs.values()]
    inputs = [*positions, *given, *recorder.nodes.values()]
    graph = close(inputs, outputs)
    made = [n for n in graph.nodes if n.op in (DATA, VARIABLE)]
    if made:  # values made while tracing, such as tables from NumPy arrays
        graph = close([*inputs, *made], outputs)
    tensors = [*recorder.nodes, *(wrap(n) for n in made)]
    states = states_of(tensors, len(positions) + len(given), recorder, streams, constants=len(made))
    position = {t: s.position for t, s in zip(tensors, states, strict=True)}
    updates = {len(left) + i: position[t] for i, t in enumerate(recorder.written)}
    guards = Guards(
        ModuleSettings(recorder.holders) if recorder.holders else None,
        recorder.values_seen(),
        [(t, had is not None) for t, had in recorder.grads.items() if t._owns_parameter],
    )
    first_result = len(left) + len(recorder.written)
    names = [name for name, is_value in zip(call.names, call.is_value, strict=True) if is_value]
    first_computed = len(left) + len(changed)
    donations = donations_of(graph, arguments, names, donate, len(positions), first_computed)
    if for_device:
        graph = in_memory_order(graph, states, updates, find_device(options.device))
    return TracedFunction(
        graph, options, updates, donations, call, arguments,
        len(given), states, streams, first_result, grads, [o.tracked for o in found.outputs],
        guards, user_source(), call.name,
    )  # fmt: skip


def _content(tensor: Tensor) -> Node:
    """The value that a tensor was given."""
    node = tensor._node
    pending: Node | None = node.param("cell").pending if node.op is VARIABLE else None
    return node if pending is None else pending
