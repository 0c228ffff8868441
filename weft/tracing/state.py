"""The state of a compiled function: tensors from outside that it reads or changes, kept track of between its calls."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..compiler.ir.conv_shape import described
from ..graph import Graph
from ..graph.graph import substitute
from ..graph.node import OPS, Node, Type, data, make, placeholder
from ..random import Generator
from ..records import dataclass
from ..runtime import Buffer, Device
from ..tensor import Tensor
from .context import StateRecorder, value_of


def _nothing() -> None:
    return None


@dataclass
class StateTensor:
    """A tensor from outside that the program reads, and perhaps replaces."""

    find: Callable[[], Tensor]  # the tensor: always the same one, or the present .grad of another, or a stream's key
    position: int  # among the program's inputs
    written: bool
    order: tuple[int, ...] | None = None  # of its axes in memory, if not the usual one
    node: Callable[[], Node | None] = (
        _nothing  # what the tensor named when its memory was last looked at: a weak reference
    )
    memory: Any = None  # None: that of the tensor's value, which is only read. A reference to it would make others copy it before they write
    address: int = 0
    references: int = 0  # to the memory, if nothing else refers to it
    version: int = -1  # of the value that was last read
    tensor: Tensor | None = None  # if it is always the same one
    is_constant: bool = False  # made while the function was traced: a part of the program, not of the world outside

    def is_known(self) -> bool:
        """Whether the address is right: the value is what it was or, if it is written to, nothing else refers to it or to its memory."""
        node = (self.find() if self.tensor is None else self.tensor)._node
        if node is not self.node():
            return False
        if self.written:
            return node.users == 0 and node.holders == 1 and sys.getrefcount(self.memory) == self.references
        value = node.value
        return isinstance(value, Buffer) and value.version == self.version

    def refresh(self, home: Device) -> None:
        """Read the memory of the value again. Memory that is written to must belong to the state alone; otherwise it is copied."""
        tensor = self.find()
        node = tensor._node
        if self.written:
            memory, content = self._copied(value_of(tensor), home)
            value = Buffer(home, node.shape, node.dtype, content)
            if tensor._owns_parameter:
                tensor.become_parameter(data(value))
            else:
                tensor._name(data(value))
            del content, value
        else:
            memory = memory_of(self, home)
        self.node, self.address = weakref.ref(tensor._node), home.address(memory)
        self.version = value_of(tensor).version
        self.memory = memory if self.written or not _is_content(memory, value_of(tensor)) else None
        del memory  # names in here must not be counted
        self.references = sys.getrefcount(self.memory)

    def _copied(self, value: Buffer, home: Device) -> tuple[Any, Any]:
        """The value in memory of the state's own: where it was before, if nothing else refers to that, so that recorded programs stay valid."""
        if self.memory is not None and sys.getrefcount(self.memory) < self.references:
            content = home.copied_to(value, self.order, self.memory)
            if content is not None:
                return self.memory, content
        return home.copied(value, self.order)

    def was_replaced(self) -> None:
        """The program has written another value to its memory."""
        node = self.node()
        value = None if node is None else node.value
        assert isinstance(value, Buffer)
        value.version += 1


class KnownStates:
    """The states of a program as its last run found them. A network has hundreds that only change in training: they are looked at in one loop, without calls."""

    def __init__(self, states: Sequence[StateTensor]) -> None:
        self._states = states
        self._read = [s for s in states if not s.written and s.tensor is not None]
        self._others = [s for s in states if s.written or s.tensor is None]
        self._facts: list[tuple[Tensor, Callable[[], Node | None], int]] | None = None
        self.addresses: list[int] = []

    def holds(self) -> bool:
        """Whether `StateTensor.is_known` holds for all of them. If not, `update` must follow before it does again."""
        facts, self._facts = self._facts, None
        if facts is None:
            return False
        for tensor, seen, version in facts:
            node = tensor._node
            if node is not seen():
                return False
            value: Any = node.value
            if value.__class__ is not Buffer or value.version != version:
                return False
        for state in self._others:
            if not state.is_known():
                return False
        self._facts = facts
        return True

    def update(self) -> None:
        """All of them are known now."""
        self._facts = [(s.tensor, s.node, s.version) for s in self._read if s.tensor is not None]
        self.addresses = [s.address for s in self._states]


def _is_content(memory: Any, value: Buffer) -> bool:
    """Whether memory is that of a value itself, not a copy in another order or on another device."""
    return memory is value.content or memory is getattr(value.content, "memory", None)


def memory_of(state: StateTensor, home: Device) -> Any:
    """The value of a state as the program wants to see it."""
    return home.memory(value_of(state.find()), state.order)


def states_of(
    tensors: Sequence[Tensor], first: int, recorder: StateRecorder, streams: Sequence[Generator], constants: int
) -> list[StateTensor]:
    """The states of tensors that are the program's inputs from the position `first` on; the last ones are constants."""
    keys = {stream.key: stream for stream in streams}
    moving = {*keys, *recorder.owners}
    return [
        StateTensor(
            _finder(t, recorder, keys),
            first + i,
            t in recorder.written,
            tensor=None if t in moving else t,
            is_constant=i >= len(tensors) - constants,
        )
        for i, t in enumerate(tensors)
    ]


def _finder(tensor: Tensor, recorder: StateRecorder, keys: dict[Tensor, Generator]) -> Callable[[], Tensor]:
    """How to find a tensor again: a .grad and the key of a stream may be other objects by then."""
    if tensor in keys:
        stream = keys[tensor]
        return lambda: stream.key
    if tensor in recorder.owners:
        owner = recorder.owners[tensor]
        return lambda: tensor if owner.grad is None else owner.grad
    return lambda: tensor


def in_memory_order(graph: Graph, states: Sequence[StateTensor], updates: Mapping[int, int], home: Device) -> Graph:
    """The graph with filters of convolutions, and all that is updated with them, laid out as convolutions like it.

    So neither the filter nor the update of its values is transposed at every step. The tensors that name them see the usual order.
    """
    directions = [(n, described(n)[0]) for n in graph.nodes if n.op.kernel == "convolution"]
    filters = {(n if direction == "filter_gradient" else n.inputs[1]).shape for n, direction in directions}
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
