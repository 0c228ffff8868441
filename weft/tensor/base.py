"""`TensorBase`: a reference to a node of the graph, with the facts that are known without computing anything."""

from __future__ import annotations

import math
from typing import Any, Self

from ..dtypes import DType
from ..errors import UserError
from ..graph.node import VARIABLE, Node, Shape, data, refuse_donated
from ..runtime import STATE_LOCK, Device
from ..runtime import device as find_device
from .registry import FUNCTIONS
from .tracing_context import TRACING


class TensorBase:
    """The state of a tensor. The classes that add operators, methods and interchange derive from it; `Tensor` combines them."""

    __slots__ = ("__weakref__", "_node", "born", "grad")

    _node: Node
    born: int  # the CLOCK at creation: tells whether it existed before a function was traced
    grad: Self | None

    def _apply(self, name: str, *args: Any, **kwargs: Any) -> Self:
        """Call a function of the table with this tensor as its first argument."""
        result: Self = FUNCTIONS[name](self, *args, **kwargs)
        return result

    @property
    def node(self) -> Node:
        """The node it refers to. A computed value whose history is not needed becomes a leaf here."""
        node = self._node
        watch = TRACING.watch
        # While a function is traced, its operations stay operations, even if an equal node has a value already. Nodes without
        # a device (made of constants) keep their node, unless their value is on the current device.
        if watch is not None:
            return node if self.born > watch.start else watch.saw(self, node)
        if node.value is None:
            return self._settled_node() if node.abstract else node
        if node.inputs and not node.tracked and not node.outputs:
            if self.born <= TRACING.since and (node.device is not None or node.value.device is find_device()):
                return self._settled_leaf(node, data(node.value))
        return node

    def _settled_leaf(self, computed: Node, leaf: Node) -> Node:
        """A leaf with the value of a computed node. The tensor names it from now on, unless another thread gave it a new value meanwhile."""
        with STATE_LOCK:
            if self._node is computed:
                self._name(leaf)
        return leaf

    def _settled_node(self) -> Node:
        """The node it refers to, after waiting for a thread that traces a function which changes it."""
        node = self._node
        if node.abstract:
            refuse_donated(node)
        if node.abstract and TRACING.watch is None and TRACING.since == math.inf:
            with STATE_LOCK:
                return self._node
        return node

    def _name(self, node: Node) -> None:
        node.holders += 1
        self._node.holders -= 1
        self._node = node

    @property
    def shape(self) -> Shape:
        return self._node.shape

    @property
    def dtype(self) -> DType:
        return self._node.dtype

    @property
    def ndim(self) -> int:
        return len(self._node.shape)

    @property
    def size(self) -> int:
        size = 1
        for n in self._node.shape:
            size *= n
        return size

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def device(self) -> Device:
        return self._node.device or find_device()

    def __len__(self) -> int:
        if not self.shape:
            raise UserError("len", "a tensor without dimensions has no length. Use item() to read its value.")
        return self.shape[0]

    @property
    def _owns_parameter(self) -> bool:
        return self._node.op is VARIABLE and self._node.param("cell").owner() is self
