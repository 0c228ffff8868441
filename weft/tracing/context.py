"""Observers of a function while it is traced, and how tensors are made outside of the trace.

The context itself is `tensor.TRACING`: one object for each thread, with what is observed, since when, and the positions of random streams.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import UserError
from ..graph.node import CLOCK, DATA, VARIABLE, Node, data, refuse_donated, toposort
from ..runtime import Buffer
from ..tensor import TRACING, Holder, Tensor


class StateRecorder:
    """Records what a traced function does with tensors from outside."""

    def __init__(self) -> None:
        self.start, self.body = CLOCK.nodes, -1
        CLOCK.nodes += 1  # tensors made from now on are younger
        self.nodes: dict[Tensor, Node] = {}  # what each tensor named when it was first read
        self.by_node: dict[Node, Tensor] = {}
        self.histories: dict[Tensor, Node] = {}  # what those named that were computed from parameters
        self.grads: dict[Tensor, Tensor | None] = {}
        self.owners: dict[Tensor, Tensor] = {}  # the owners of tensors that are a .grad
        self.written: dict[Tensor, None] = {}
        self.holders: dict[Holder, int] = {}  # each with its number
        self.looks: dict[Tensor, None] = {}  # tensors whose values Python has read

    def looked(self, tensor: Tensor) -> None:
        """Of a tensor that the function has computed, the values that it was computed from were read."""
        if tensor.born <= self.start:
            self.looks[tensor] = None
        else:
            leaves = (self.by_node.get(node) for node in toposort([tensor._node]))
            self.looks |= dict.fromkeys(leaf for leaf in leaves if leaf is not None)

    def values_seen(self) -> list[tuple[Tensor, Buffer, int]]:
        """Those tensors with their values, once all is again what it was."""
        return [(tensor, value := value_of(tensor), value.version) for tensor in self.looks]

    def depends(self, holder: Holder) -> int:
        return self.holders.setdefault(holder, len(self.holders) + 1)

    def saw(self, tensor: Tensor, node: Node) -> Node:
        if node.abstract:
            refuse_donated(node)
        if tensor in self.nodes or node.abstract:
            return self.nodes.get(tensor, node) if tensor._node is self.nodes.get(tensor) else node
        TRACING.watch, before = None, TRACING.watch
        try:
            tensor.realize()
            history = tensor._node
            node = _leaf_of(tensor, taken=self.by_node)
        finally:
            TRACING.watch = before
        if history.tracked and node is not history:  # in here it has none; outside it keeps it
            self.histories[tensor] = history
            node.detached_from = [n.param("cell").owner for n in toposort([history]) if n.op is VARIABLE]
        self.nodes[tensor], self.by_node[node] = node, tensor
        self.grads[tensor] = tensor.grad
        if tensor.grad is not None:
            self.owners[tensor.grad] = tensor
        return node

    def changed(self, tensor: Tensor) -> None:
        self.saw(tensor, tensor._node)
        self.written[tensor] = None

    def __enter__(self) -> StateRecorder:
        TRACING.watch = self
        return self

    def __exit__(self, *_: object) -> None:
        """Let all tensors be again what they were: tracing computes nothing."""
        TRACING.watch = None
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


def value_of(tensor: Tensor) -> Buffer:
    """The value of a tensor, computed if need be."""
    value = tensor.realize()._node.value
    assert isinstance(value, Buffer)
    return value


class LocalChanges:
    """Lets a function change tensors from outside while it is traced, and takes it back: they are results like others.

    An outer observer still sees which tensors are read.
    """

    def __init__(self) -> None:
        self.outer = TRACING.watch
        self.start = self.body = CLOCK.nodes
        CLOCK.nodes += 1  # tensors made from now on are younger
        self.before: dict[Tensor, Node] = {}

    def saw(self, tensor: Tensor, node: Node) -> Node:
        if tensor in self.before:
            return node
        TRACING.watch = self.outer
        try:
            return tensor.node
        finally:
            TRACING.watch = self

    def changed(self, tensor: Tensor) -> None:
        if tensor._owns_parameter:
            raise UserError(
                "checkpoint", "a parameter cannot be changed in here. Return its new value, and assign it outside."
            )
        self.before.setdefault(tensor, self.saw(tensor, tensor._node))

    def looked(self, tensor: Tensor) -> None:
        if self.outer is not None:
            self.outer.looked(tensor)

    def depends(self, holder: Holder) -> int:
        return 0 if self.outer is None else self.outer.depends(holder)

    def __enter__(self) -> LocalChanges:
        TRACING.watch = self
        return self

    def __exit__(self, *_: object) -> None:
        TRACING.watch = self.outer
        for tensor, node in self.before.items():
            tensor._name(node)


class _FreeSizes(threading.local):
    active = False


_free_sizes = _FreeSizes()


@contextmanager
def free_sizes() -> Iterator[None]:
    """Inside, functions are traced for every size at once: tables that depend on a size are computed by the graph, not with NumPy."""
    before, _free_sizes.active = _free_sizes.active, True
    try:
        yield
    finally:
        _free_sizes.active = before


def sizes_are_free() -> bool:
    """Whether a table that depends on a size must be computed by the graph."""
    return _free_sizes.active


@contextmanager
def outside() -> Iterator[None]:
    """Inside, tensors are made as if no function were being traced: for state that a function makes at its first call."""
    before = TRACING.watch, TRACING.since, TRACING.inner, TRACING.offsets
    TRACING.watch, TRACING.since, TRACING.inner, TRACING.offsets = None, math.inf, -1, None
    try:
        yield
    finally:
        TRACING.watch, TRACING.since, TRACING.inner, TRACING.offsets = before
