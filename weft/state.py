"""The state of a compiled function: tensors from outside that it reads or changes, found by tracing and kept track of between calls."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .graph import Graph
from .graph.graph import substitute
from .graph.node import CLOCK, DATA, OPS, VARIABLE, Node, Type, data, make, placeholder, toposort
from .random import Generator
from .runtime import Buffer, Device
from .tensor import WATCHED, WITHOUT_HISTORY, Changes, Holder, Tensor

# --- while a function is traced ---------------------------------------------------------------------------------------------------


class Watcher:
    """Notes what a traced function does with tensors from outside."""

    def __init__(self) -> None:
        self.start, self.body = CLOCK.nodes, -1
        CLOCK.nodes += 1  # tensors made from now on are younger
        self.nodes: dict[Tensor, Node] = {}  # what each tensor named when it was first read
        self.by_node: dict[Node, Tensor] = {}
        self.histories: dict[Tensor, Node] = {}  # what those named that were computed from parameters
        self.grads: dict[Tensor, Tensor | None] = {}
        self.owners: dict[Tensor, Tensor] = {}  # of tensors that are somebody's .grad
        self.written: dict[Tensor, None] = {}
        self.holders: dict[Holder, None] = {}
        self.looks: dict[Tensor, None] = {}  # tensors whose values Python has looked at

    def looked(self, tensor: Tensor) -> None:
        self.looks[tensor] = None

    def values_seen(self) -> list[tuple[Tensor, Buffer, int]]:
        """Those tensors with their values, once all is again what it was."""
        return [(tensor, value := _value(tensor), value.version) for tensor in self.looks]

    def depends(self, holder: Holder) -> None:
        self.holders[holder] = None

    def saw(self, tensor: Tensor, node: Node) -> Node:
        if tensor in self.nodes or node.abstract:
            return self.nodes.get(tensor, node) if tensor._node is self.nodes.get(tensor) else node
        WATCHED.watch, outside = None, WATCHED.watch
        try:
            tensor.realize()
            history = tensor._node
            node = _leaf_of(tensor, taken=self.by_node)
        finally:
            WATCHED.watch = outside
        if history.tracked and node is not history:  # in here it has none; outside it keeps it
            self.histories[tensor] = history
            WITHOUT_HISTORY[node] = [n.params[0].owner for n in toposort([history]) if n.op is VARIABLE]
        self.nodes[tensor], self.by_node[node] = node, tensor
        self.grads[tensor] = tensor.grad
        if tensor.grad is not None:
            self.owners[tensor.grad] = tensor
        return node

    def changed(self, tensor: Tensor) -> None:
        self.saw(tensor, tensor._node)
        self.written[tensor] = None

    def undo(self) -> None:
        """Let all tensors be again what they were: tracing computes nothing."""
        for tensor, node in self.nodes.items():
            tensor._name(self.histories.get(tensor, node))
            tensor.grad = self.grads[tensor]


def _leaf_of(tensor: Tensor, taken: dict[Node, Tensor]) -> Node:
    """A leaf that stands for this tensor, whose value is known, and no other."""
    node = tensor._node
    if node.op is VARIABLE and node not in taken:
        return node
    if node.op is not DATA or node in taken:
        value = node.value
        assert value is not None
        tensor._name(data(Buffer(value.device, value.shape, value.dtype, value.content)))
    return tensor._node


class Settings:
    """What objects such as modules were set to when a function was traced: plain values, and which parts they had."""

    def __init__(self, holders: Iterable[Holder]) -> None:
        self.then = [(h, h.settings()) for h in holders]
        # Lists and dicts can change without anybody being told: they are looked at every time.
        mutable = [v for _, found in self.then for v in found.values() if isinstance(v, list | dict)]
        self.inside = [(v, list(_content_of(v))) for v in mutable]
        self.changes = Changes.count

    def hold(self) -> bool:
        """Whether all of it is as it was."""
        for container, then in self.inside:
            if len(container) != len(then) or not all(map(operator.is_, _content_of(container), then)):
                return False
        if self.changes != Changes.count:
            if not all(_same(holder.settings(), then) for holder, then in self.then):
                return False
            self.changes = Changes.count
        return True


def _content_of(container: Any) -> Iterable[Any]:
    return container.values() if isinstance(container, dict) else container


def _same(now: dict[str, Any], then: dict[str, Any]) -> bool:
    plain = (bool, int, float, str, tuple)
    return now.keys() == then.keys() and all(
        v is then[n] or (isinstance(v, plain) and type(v) is type(then[n]) and v == then[n]) for n, v in now.items()
    )


# --- between calls ----------------------------------------------------------------------------------------------------------------


@dataclass
class State:
    """A tensor from outside that the program reads, and perhaps replaces."""

    find: Callable[[], Tensor]  # the tensor: always the same one, or the present .grad of another, or a stream's key
    position: int  # among the program's inputs
    written: bool
    order: tuple[int, ...] | None = None  # of its axes in memory, if not the usual one
    node: Node | None = None  # what the tensor named when its memory was last looked at
    memory: Any = None
    address: int = 0
    references: int = 0  # to the memory, if nobody else has it
    version: int = -1  # of the value that was last read
    tensor: Tensor | None = None  # if it is always the same one

    def is_known(self) -> bool:
        """Whether the address is right: the value is what it was or, if it is written to, nobody else names it or looks at its memory."""
        node = (self.find() if self.tensor is None else self.tensor)._node
        if node is not self.node:
            return False
        if self.written:
            return node.users == 0 and node.holders == 1 and sys.getrefcount(self.memory) == self.references
        value = node.value
        return isinstance(value, Buffer) and value.version == self.version

    def refresh(self, home: Device) -> None:
        """Look at the value's memory anew. Memory that is written to belongs to the state alone: else it is copied."""
        tensor = self.find()
        node = tensor._node
        if self.written:
            memory, content = home.copied(_value(tensor), self.order)
            value = Buffer(home, node.shape, node.dtype, content)
            if tensor._owns_parameter:
                tensor.become_parameter(data(value))
            else:
                tensor._name(data(value))
            del content, value
        else:
            memory = memory_of(self, home)
        self.node, self.memory, self.address = tensor._node, memory, home.address(memory)
        self.version = _value(tensor).version
        del memory  # names in here must not be counted
        self.references = sys.getrefcount(self.memory)

    def was_replaced(self) -> None:
        """The program has written another value to its memory."""
        value = None if self.node is None else self.node.value
        assert isinstance(value, Buffer)
        value.version += 1


def memory_of(state: State, home: Device) -> Any:
    """The value of a state as the program wants to see it."""
    return home.memory(_value(state.find()), state.order)


def _value(tensor: Tensor) -> Buffer:
    value = tensor.realize()._node.value
    assert isinstance(value, Buffer)
    return value


def states_of(tensors: Sequence[Tensor], first: int, watcher: Watcher, streams: Sequence[Generator]) -> list[State]:
    """The states of tensors that are the program's inputs from the position `first` on."""
    keys = {stream.key: stream for stream in streams}
    moving = {*keys, *watcher.owners}
    return [
        State(_finder(t, watcher, keys), first + i, t in watcher.written, tensor=None if t in moving else t)
        for i, t in enumerate(tensors)
    ]


def _finder(tensor: Tensor, watcher: Watcher, keys: dict[Tensor, Generator]) -> Callable[[], Tensor]:
    """How to find a tensor again: a .grad and the key of a stream may be other objects by then."""
    if tensor in keys:
        stream = keys[tensor]
        return lambda: stream.key
    if tensor in watcher.owners:
        owner = watcher.owners[tensor]
        return lambda: tensor if owner.grad is None else owner.grad
    return lambda: tensor


def in_memory_order(graph: Graph, states: Sequence[State], updates: Mapping[int, int], home: Device) -> Graph:
    """The graph with filters of convolutions, and all that is updated with them, laid out as convolutions like it.

    So neither the filter nor the update of its values is transposed at every step. The tensors that name them see the usual order.
    """
    filters = {n.inputs[1].shape for n in graph.nodes if n.op.name in ("conv", "conv_data")}
    filters |= {n.shape for n in graph.nodes if n.op.name == "conv_filter"}
    inputs, seen = list(graph.inputs), {}
    for state in states:
        node = graph.inputs[state.position]
        if node.shape not in filters or not (state.written or home.orders_constants):
            continue
        state.order = home.filter_order(len(node.shape))
        back = tuple(state.order.index(a) for a in range(len(node.shape)))
        moved = placeholder(state.position, Type(tuple(node.shape[a] for a in state.order), node.dtype))
        inputs[state.position], seen[node] = moved, make(OPS["permute"], (moved,), (back,))
    if not seen:
        return graph
    orders = {s.position: s.order for s in states if s.order is not None}
    outputs = list(substitute(graph.outputs, seen))
    for number, position in updates.items():
        if position in orders:
            outputs[number] = make(OPS["permute"], (outputs[number],), (orders[position],))
    return Graph(tuple(inputs), tuple(outputs))
