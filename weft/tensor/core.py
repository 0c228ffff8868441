"""`Tensor`, the user's interface: a reference to a node of the graph.

Tensors are lazy: an operation adds a node and returns at once; the value is computed when it is read. Nodes are
immutable. A tensor changes by referring to another node: `x += 1` makes `x` refer to the node of `x + 1`, and once a
value is computed the tensor refers to that value, so that the graph behind it can be freed. The graph is kept only
where it may still be differentiated: below `weft.parameter(...)` and inside `weft.grad(...)`.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Union

import numpy as np

from ..dtypes import DType, DTypeLike, as_dtype, float64, scalar_dtype
from ..errors import Source, UserError
from ..graph import Graph, close
from ..graph.node import CLOCK, Node, Op, Shape, Type, VariableCell, constant, data, fresh_data, item, make, variable
from ..runtime import STATE_LOCK, Buffer, Device, evaluate, transfer
from ..runtime import device as find_device
from .indexing import TensorIndexing
from .interop import TensorInterop
from .methods import TensorMethods
from .numbers import checked_number, holds_floats
from .pending import evaluate_overdue, is_overdue
from .registry import FUNCTIONS
from .tracing_context import TRACING

ArrayLike = Union["Tensor", bool, int, float, np.ndarray, np.generic, Sequence[Any]]


def _call(name: str, *args: Any, **kwargs: Any) -> Tensor:
    result: Tensor = FUNCTIONS[name](*args, **kwargs)
    return result


def emit(op: Op, inputs: tuple[Tensor, ...], params: tuple[Any, ...] = ()) -> Tensor:
    """The tensor for an op applied to tensors."""
    return wrap(make(op, tuple([x.node for x in inputs]), params))


def emit_all(op: Op, inputs: tuple[Tensor, ...], params: tuple[Any, ...] = ()) -> tuple[Tensor, ...]:
    """The tensors for an op with several results applied to tensors."""
    node = make(op, tuple([x.node for x in inputs]), params)
    return tuple([wrap(item(node, i)) for i in range(len(node.outputs))])


def wrap(node: Node) -> Tensor:
    """A tensor that refers to a node. Nodes that have been pending for too long are evaluated, so that graphs stay bounded."""
    tensor = Tensor.__new__(Tensor)
    tensor.grad = None
    tensor.born = CLOCK.nodes
    node.holders += 1
    tensor._node = node
    if is_overdue(node) and TRACING.watch is None:
        evaluate_overdue()
    return tensor


def fresh_tensor(home: Device, content: Any, type: Type, nbytes: int, source: Source | None) -> Tensor:
    """A tensor with a newly computed value."""
    tensor = Tensor.__new__(Tensor)
    tensor._node = node = fresh_data(Buffer(home, type.shape, type.dtype, content), type, nbytes, source)
    tensor.grad, tensor.born, node.holders = None, node.born, 1
    return tensor


def _in_place(operation: Callable[[Any, Any], Any]) -> Callable[[Tensor, Any], Tensor]:
    """The in-place operator of a binary one: assigns the result."""

    def assign_result(self: Tensor, other: Any) -> Tensor:
        return self.assign(operation(self, other))

    return assign_result


class Tensor(TensorInterop, TensorIndexing, TensorMethods):
    """A lazy array: its value is computed when it is read. Created by `weft.asarray` and returned by every function.

    >>> import weft
    >>> x = weft.asarray([1.0, 2.0, 3.0])
    >>> (x * x).sum().item()
    14.0
    """

    __slots__ = ()
    __array_priority__ = 1000

    def __init__(self, value: Any, *, dtype: DTypeLike | None = None, requires_grad: bool = False) -> None:
        self.grad = None
        self.born = CLOCK.nodes
        self._node = _call("asarray", value, dtype=dtype)._node
        self._node.holders += 1
        if requires_grad:
            self.requires_grad = True

    def __del__(self) -> None:
        try:
            self._node.holders -= 1
        except AttributeError:
            pass  # the constructor failed before it had a node

    def graph(self) -> Graph:
        """The graph of the pending operations of this tensor (and of the history kept for derivatives), to print or draw.

        >>> import weft
        >>> print((weft.parameter(3.0) * 2.0).graph().text())
        from weft.primitives import *
        <BLANKLINE>
        def graph():
            v0 = variable(cell=extern[0])  # float32[]
            v1 = const(value=2.0, dtype=float32, shape=())  # float32[]
            v2 = mul(v0, v1)  # float32[]
            return (v2,)
        <BLANKLINE>
        """
        return close((), (self.node,))

    # --- copies and devices ---------------------------------------------------------------------------------------

    def to_device(self, target: str | Device, /, *, stream: Any = None) -> Tensor:
        """The same value on another device."""
        return wrap(transfer(self.node, find_device(target)))

    def __copy__(self) -> Tensor:
        return _call("parameter", self) if self._owns_parameter else wrap(self.node)

    def __reduce__(self) -> Any:
        raise UserError("pickle", "tensors are not pickled. Save their values: numpy.save(file, tensor.numpy()).")

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self.__copy__()

    # --- derivatives ------------------------------------------------------------------------------------------------

    @property
    def requires_grad(self) -> bool:
        """Whether the tensor is tracked for derivatives. Set it to True to make a parameter, to False to detach."""
        return self._node.tracked

    @requires_grad.setter
    def requires_grad(self, wanted: bool) -> None:
        if not wanted:
            self._name(self.detach()._node)
        elif not self.requires_grad:
            self.become_parameter(self.node)

    def become_parameter(self, node: Node) -> None:
        """Refer to a new leaf variable with this content."""
        if not self.dtype.is_float:
            raise UserError("parameter", f"a floating dtype is required, got {self.dtype.name}. Use astype() first.")
        if node.value is not None and node.device is None:
            evaluate([node])  # the value of a constant may be on another device
        self._name(wrap(variable(VariableCell(node, weakref.ref(self))))._node)

    def beside(self, dtype: DType | None) -> Tensor:
        """This tensor as an operand next to a tensor of this dtype: a new reference. Scalars (weft/tracing/scalars.py) take the dtype."""
        return wrap(self.node)

    def with_own_dtype(self) -> Tensor:
        """As `asarray` sees it. What stands for a scalar of NumPy takes that scalar's dtype."""
        return self

    def detach(self) -> Tensor:
        """The same value without its graph: a constant for derivatives."""
        node = self._node
        if TRACING.watch is not None:  # the value is known only when the compiled function runs
            return _call("stop_gradient", self)
        if node.value is not None and (node.device is not None or node.value.device is find_device()):
            return wrap(data(node.value))
        return _call("stop_gradient", self) if node.tracked or node.abstract else wrap(node)

    def backward(self, gradient: Any = None) -> None:
        """Add the derivative of this value to `.grad` of every parameter it was computed from."""
        FUNCTIONS["backward"](self, gradient)

    # --- in-place updates: the tensor refers to another node, no node changes -------------------------------------------

    def assign(self, value: Any) -> Tensor:
        """Replace the value by another of the same shape and dtype. A parameter remains one, as a new leaf."""
        value = as_tensor(value, self.dtype)
        if value.shape != self.shape or value.dtype is not self.dtype:
            raise UserError(
                "assign",
                f"{self._node.type} cannot take a value of type {value._node.type}: an in-place change keeps shape and dtype.",
            )
        watch = TRACING.watch
        if self.born <= TRACING.inner and (watch is not None or value._node.abstract):
            raise UserError(
                "assign",
                "a tensor from outside cannot be changed inside a function that is being traced. Return the new value.",
            )
        if watch is not None and self.born <= watch.start:
            watch.changed(self)
        with STATE_LOCK:  # not while a program reads the old value and writes the new one
            if self._owns_parameter:
                self.become_parameter(value.detach().node)
            else:
                self._name(value.node)
        return self

    def __setitem__(self, key: Any, value: Any) -> None:
        self.assign(_call("index_update", self, key, value, "set"))

    __iadd__ = _in_place(operator.add)
    __isub__ = _in_place(operator.sub)
    __imul__ = _in_place(operator.mul)
    __itruediv__ = _in_place(operator.truediv)
    __ifloordiv__ = _in_place(operator.floordiv)
    __imod__ = _in_place(operator.mod)
    __ipow__ = _in_place(operator.pow)
    __imatmul__ = _in_place(operator.matmul)
    __iand__ = _in_place(operator.and_)
    __ior__ = _in_place(operator.or_)
    __ixor__ = _in_place(operator.xor)
    __ilshift__ = _in_place(operator.lshift)
    __irshift__ = _in_place(operator.rshift)

    def astype(self, dtype: DTypeLike) -> Tensor:
        """The values converted to another dtype."""
        return _call("astype", self, dtype)


# --- operands as tensors -------------------------------------------------------------------------------------------------


def as_tensor(value: Any, beside: DType | None = None, shape: Shape = ()) -> Tensor:
    """Convert an operand to a tensor; a number becomes a constant, of the dtype it takes next to dtype `beside`.

    A tensor is returned as a new reference: a function that returns its argument unchanged must not return the caller's
    own object, which may be updated in place later.
    """
    if isinstance(value, Tensor):
        return wrap(value.node) if type(value) is Tensor else value.beside(beside)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, _NUMBERS):
        return number(value, as_dtype(type(value)) if beside is None else scalar_dtype(value, beside), shape)
    if beside is float64 and isinstance(value, list | tuple):
        value = np.asarray(value) if holds_floats(value) else value  # float32 would lose precision
    return _call("asarray", value)


_NUMBERS = (float, int, bool)


def number(value: bool | int | float, dtype: DType, shape: Shape = ()) -> Tensor:
    """A constant tensor of a shape, filled with a number."""
    return wrap(constant(checked_number(value, dtype), dtype, shape))
