"""`Tensor`, the user's interface: a reference to a node of the graph.

Tensors are lazy: an operation adds a node and returns at once; the value is computed when it is read. Nodes are
immutable. A tensor changes by referring to another node: `x += 1` makes `x` refer to the node of `x + 1`, and once a
value is computed the tensor refers to that value, so that the graph behind it can be freed. The graph is kept only
where it may still be differentiated: below `weft.parameter(...)` and inside `weft.grad(...)`.

The functions are defined in weft/ops, a layer above this file. They register themselves in a table (`@function`), in
which operators and methods look them up.
"""

from __future__ import annotations

import functools
import math
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, Protocol, TypeVar, Union, cast

import numpy as np

from .dtypes import FLOATS, INTEGERS, DType, DTypeLike, as_dtype, bool_, converted, finfo, float64, iinfo, scalar_dtype
from .errors import RunError, Source, UserError, WeftError
from .graph import Graph, close
from .graph.node import (
    CLOCK,
    VARIABLE,
    Node,
    Op,
    Shape,
    Type,
    VariableCell,
    constant,
    data,
    fresh_data,
    item,
    make,
    unfinished,
    variable,
)
from .knobs import knobs
from .lazy import Registry
from .runtime import STATE_LOCK, Buffer, Device, dlpack, evaluate, fetch, transfer
from .runtime import device as find_device

FUNCTIONS: Registry[Callable[..., Any]] = Registry()
Axis = int | Sequence[int] | None
ArrayLike = Union["Tensor", bool, int, float, np.ndarray, np.generic, Sequence[Any]]
F = TypeVar("F", bound=Callable[..., Any])


def function(f: F) -> F:
    """Register a function in the table of all functions on tensors.

    Errors that Python or NumPy raises inside for invalid arguments (such as a string instead of a number) are converted to
    a UserError with the function's name and the caller's line.
    """

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return f(*args, **kwargs)
        except WeftError:
            raise
        except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
            raise UserError(f.__name__, f"these arguments cannot be used: {error}.") from error

    FUNCTIONS[f.__name__] = call
    return cast(F, call)


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
    if CLOCK.nodes - node.born > knobs.pending_nodes or CLOCK.bytes - node.born_bytes > knobs.pending_bytes:
        if TRACING.watch is None:
            _catch_up()
    return tensor


def fresh_tensor(home: Device, content: Any, type: Type, nbytes: int, source: Source | None) -> Tensor:
    """A tensor with a newly computed value."""
    tensor = Tensor.__new__(Tensor)
    tensor._node = node = fresh_data(Buffer(home, type.shape, type.dtype, content), type, nbytes, source)
    tensor.grad, tensor.born, node.holders = None, node.born, 1
    return tensor


class Watch(Protocol):
    """A tracer that records which outer tensors a traced function reads and changes."""

    start: int  # tensors created later belong to the function
    body: int  # the CLOCK when tracing of a body began, in which no earlier .grad can be written; -1: not a body

    def saw(self, tensor: Tensor, node: Node) -> Node:
        """The tensor is read; returns the node that represents its value."""

    def changed(self, tensor: Tensor) -> None:
        """The tensor is about to refer to a value that is known only when the function runs."""

    def looked(self, tensor: Tensor) -> None:
        """Python reads the tensor's value, so the traced program may depend on it."""

    def depends(self, holder: Holder) -> None:
        """The traced program depends on the settings of this object, such as a module's mode."""


class Changes:
    """A counter of changes of any holder's settings: while it is unchanged, no settings need to be compared."""

    count = 0


class Holder:
    """An object with settings that traced functions depend on."""

    def __setattr__(self, name: str, value: Any) -> None:
        Changes.count += 1  # compiled functions check again whether they are still valid
        super().__setattr__(name, value)

    def settings(self) -> dict[str, Any]:
        """The current settings by name."""
        raise NotImplementedError

    def holders(self) -> Sequence[Holder]:
        """This object and its parts that have settings of their own."""
        return [self]


class TracingContext(threading.local):
    """The function that this thread is tracing, if it is."""

    watch: Watch | None = None
    offsets: dict[Any, Tensor] | None = None  # the positions of random streams inside the function
    since: float = math.inf  # the CLOCK when tracing began
    inner: float = -1  # the CLOCK when tracing of an inner body (of a loop, a branch) began


TRACING = TracingContext()
# Values computed from parameters in a compiled function, or before a function that uses them was compiled: derivatives do not cross
# the boundary of a compiled function. Each maps to the parameters that it may depend on.
WITHOUT_HISTORY: weakref.WeakKeyDictionary[Node, Sequence[weakref.ref[Tensor]]] = weakref.WeakKeyDictionary()


class _LastCatchUp:
    nodes = bytes = 0


def _catch_up() -> None:
    """Evaluate all nodes that tensors refer to and that have been pending for too long.

    This scans all live nodes, so it happens at most once per half of the limit.
    """
    nodes, held = CLOCK.nodes - _LastCatchUp.nodes, CLOCK.bytes - _LastCatchUp.bytes
    if nodes > knobs.pending_nodes // 2 or held > knobs.pending_bytes // 2:
        _LastCatchUp.nodes, _LastCatchUp.bytes = CLOCK.nodes, CLOCK.bytes
        waiting = unfinished(CLOCK.nodes - knobs.pending_nodes // 2, CLOCK.bytes - knobs.pending_bytes // 2)
        try:
            evaluate(waiting)
        except RunError:
            _evaluate_those_that_can(waiting)


def _evaluate_those_that_can(nodes: list[Node]) -> None:
    """Evaluate nodes one by one; an error is raised only when its own tensor is read."""
    for node in nodes:
        try:
            evaluate([node])
        except RunError:
            continue


class Tensor:
    """A lazy array: its value is computed when it is read. Created by `weft.asarray` and returned by every function.

    >>> import weft
    >>> x = weft.asarray([1.0, 2.0, 3.0])
    >>> (x * x).sum().item()
    14.0
    """

    __slots__ = ("__weakref__", "_node", "born", "grad")
    __array_priority__ = 1000

    _node: Node
    born: int  # the CLOCK at creation: tells whether it existed before a function was traced
    grad: Tensor | None

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

    # --- properties -------------------------------------------------------------------------------------------------

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
                self._name(node := data(node.value))
        return node

    def _settled_node(self) -> Node:
        """The node it refers to, after waiting for a thread that traces a function which changes it."""
        node = self._node
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

    # --- reading the value ------------------------------------------------------------------------------------------

    def realize(self) -> Tensor:
        """Compute the value now and return the tensor itself."""
        evaluate([self._settled_node()])  # does nothing if the value is known on the device
        self._name(self.node)  # frees the graph behind the value
        return self

    def numpy(self) -> np.ndarray:
        """The value as a read-only NumPy array that shares memory where possible."""
        watch = TRACING.watch
        if watch is not None and self.born <= watch.start:
            watch.looked(self)
        view = fetch(self.realize()._node).view()
        view.flags.writeable = False
        return view

    def item(self) -> bool | int | float:
        """The value of a tensor with one element, as a Python number."""
        if self.size != 1:
            raise UserError("item", f"a tensor with one element is required, got shape {self.shape}. Use numpy().")
        value: bool | int | float = self.numpy().reshape(()).item()
        return value

    def tolist(self) -> Any:
        """The value as nested lists of Python numbers."""
        return self.numpy().tolist()

    def __repr__(self) -> str:
        if self._node.abstract:
            return f"Tensor(<{self._node.type}, being traced>)"
        text = np.array2string(self.numpy(), separator=", ", prefix="Tensor(")
        mark = ", requires_grad=True" if self._owns_parameter else ""
        size = f", shape={self.shape}" if not self.size else ""
        return f"Tensor({text}{size}, dtype={self.dtype.name}{mark})"

    def __bool__(self) -> bool:
        return bool(self._scalar("bool"))

    def __int__(self) -> int:
        return int(self._scalar("int"))

    def __float__(self) -> float:
        return float(self._scalar("float"))

    def __complex__(self) -> complex:
        return complex(self._scalar("complex"))

    def __index__(self) -> int:
        if not self.dtype.is_integer:
            raise TypeError(f"only integer tensors can be used as an index, got {self.dtype.name}")
        return int(self._scalar("index"))

    def _scalar(self, what: str) -> bool | int | float:
        if self.shape != ():
            raise UserError(
                what, f"a tensor without dimensions is required, got shape {self.shape}. Use item(), any() or all()."
            )
        return self.item()

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else repr(self)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def __contains__(self, value: Any) -> bool:
        return bool((self == value).any())

    # --- exchange ---------------------------------------------------------------------------------------------------

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError(f"a copy is needed to turn {self.dtype.name} into {dtype}")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **settings: Any) -> Any:
        return FUNCTIONS["array_ufunc"](ufunc, method, inputs, settings)

    def __array_function__(self, function: Any, types: Any, args: Any, settings: Any) -> Any:
        return FUNCTIONS["array_function"](function, args, settings)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Any, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A copy of the value, or with copy=False the tensor's own memory, marked as read-only.

        The default is a copy, because consumers may ignore the read-only flag, as PyTorch does, or use a version of the protocol
        without it, and the value of a tensor must never change. To share memory with NumPy use `numpy()`.
        """
        own = None if copy is False else True
        try:
            return dlpack.export(self.numpy(), stream=stream, max_version=max_version, dl_device=dl_device, copy=own)
        except BufferError as error:
            raise BufferError(f"[dlpack] a tensor of dtype {self.dtype.name} cannot be shared: {error}.") from None

    def __dlpack_device__(self) -> tuple[Any, int]:
        return self.numpy().__dlpack_device__()

    def __buffer__(self, flags: int, /) -> memoryview:
        return self.numpy().data

    def __array_namespace__(self, *, api_version: str | None = None) -> ModuleType:
        namespace: ModuleType = FUNCTIONS["array_namespace"](api_version)
        return namespace

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

    @property
    def _owns_parameter(self) -> bool:
        return self._node.op is VARIABLE and self._node.params[0].owner() is self

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

    @property
    def at(self) -> At:
        """`x.at[key].set(v)`: a copy of `x` with some elements changed.

        The methods are `get`, `set`, `add`, `subtract`, `multiply`, `min` and `max`. With a mask as key and a value whose
        shape does not depend on the number of selected elements, they also work inside compiled functions.

        >>> import weft
        >>> weft.zeros(4).at[1:3].add(5.0)
        Tensor([0., 5., 5., 0.], dtype=float32)
        """
        return At(self)

    def __iadd__(self, other: Any) -> Tensor:
        return self.assign(self + other)

    def __isub__(self, other: Any) -> Tensor:
        return self.assign(self - other)

    def __imul__(self, other: Any) -> Tensor:
        return self.assign(self * other)

    def __itruediv__(self, other: Any) -> Tensor:
        return self.assign(self / other)

    def __ifloordiv__(self, other: Any) -> Tensor:
        return self.assign(self // other)

    def __imod__(self, other: Any) -> Tensor:
        return self.assign(self % other)

    def __ipow__(self, other: Any) -> Tensor:
        return self.assign(self**other)

    def __imatmul__(self, other: Any) -> Tensor:
        return self.assign(self @ other)

    def __iand__(self, other: Any) -> Tensor:
        return self.assign(self & other)

    def __ior__(self, other: Any) -> Tensor:
        return self.assign(self | other)

    def __ixor__(self, other: Any) -> Tensor:
        return self.assign(self ^ other)

    def __ilshift__(self, other: Any) -> Tensor:
        return self.assign(self << other)

    def __irshift__(self, other: Any) -> Tensor:
        return self.assign(self >> other)

    # --- operators ---------------------------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Tensor:
        return _operator("add", self, other)

    def __radd__(self, other: Any) -> Tensor:
        return _operator("add", other, self)

    def __sub__(self, other: Any) -> Tensor:
        return _operator("subtract", self, other)

    def __rsub__(self, other: Any) -> Tensor:
        return _operator("subtract", other, self)

    def __mul__(self, other: Any) -> Tensor:
        return _operator("multiply", self, other)

    def __rmul__(self, other: Any) -> Tensor:
        return _operator("multiply", other, self)

    def __truediv__(self, other: Any) -> Tensor:
        return _operator("divide", self, other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return _operator("divide", other, self)

    def __floordiv__(self, other: Any) -> Tensor:
        return _operator("floor_divide", self, other)

    def __rfloordiv__(self, other: Any) -> Tensor:
        return _operator("floor_divide", other, self)

    def __mod__(self, other: Any) -> Tensor:
        return _operator("remainder", self, other)

    def __rmod__(self, other: Any) -> Tensor:
        return _operator("remainder", other, self)

    def __divmod__(self, other: Any) -> tuple[Tensor, Tensor]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Tensor, Tensor]:
        return other // self, other % self

    def __round__(self, digits: int | None = None) -> Tensor:
        """Round to `digits` decimals, halves to even; the dtype is preserved."""
        if not digits or not self.dtype.is_float:
            return _call("round", self)
        scale = 10.0 ** abs(digits)
        return _call("round", self * scale) / scale if digits > 0 else _call("round", self / scale) * scale

    def __pow__(self, other: Any) -> Tensor:
        return _operator("pow", self, other)

    def __rpow__(self, other: Any) -> Tensor:
        return _operator("pow", other, self)

    def __matmul__(self, other: Any) -> Tensor:
        return _operator("matmul", self, other)

    def __rmatmul__(self, other: Any) -> Tensor:
        return _operator("matmul", other, self)

    def __and__(self, other: Any) -> Tensor:
        return _operator("bitwise_and", self, other)

    def __rand__(self, other: Any) -> Tensor:
        return _operator("bitwise_and", other, self)

    def __or__(self, other: Any) -> Tensor:
        return _operator("bitwise_or", self, other)

    def __ror__(self, other: Any) -> Tensor:
        return _operator("bitwise_or", other, self)

    def __xor__(self, other: Any) -> Tensor:
        return _operator("bitwise_xor", self, other)

    def __rxor__(self, other: Any) -> Tensor:
        return _operator("bitwise_xor", other, self)

    def __lshift__(self, other: Any) -> Tensor:
        return _operator("bitwise_left_shift", self, other)

    def __rlshift__(self, other: Any) -> Tensor:
        return _operator("bitwise_left_shift", other, self)

    def __rshift__(self, other: Any) -> Tensor:
        return _operator("bitwise_right_shift", self, other)

    def __rrshift__(self, other: Any) -> Tensor:
        return _operator("bitwise_right_shift", other, self)

    def __lt__(self, other: Any) -> Tensor:
        return _operator("less", self, other)

    def __le__(self, other: Any) -> Tensor:
        return _operator("less_equal", self, other)

    def __gt__(self, other: Any) -> Tensor:
        return _operator("greater", self, other)

    def __ge__(self, other: Any) -> Tensor:
        return _operator("greater_equal", self, other)

    def __eq__(self, other: object) -> Tensor:  # type: ignore[override]
        return _operator("equal", self, other)

    def __ne__(self, other: object) -> Tensor:  # type: ignore[override]
        return _operator("not_equal", self, other)

    __hash__ = object.__hash__

    def __neg__(self) -> Tensor:
        return _call("negative", self)

    def __pos__(self) -> Tensor:
        return _call("positive", self)

    def __abs__(self) -> Tensor:
        return _call("abs", self)

    def __invert__(self) -> Tensor:
        return _call("bitwise_invert", self)

    def __getitem__(self, key: Any) -> Tensor:
        return _call("index", self, key)

    # --- functions as methods ----------------------------------------------------------------------------------------

    @property
    def T(self) -> Tensor:
        """The matrix transposed."""
        if self.ndim != 2:
            raise UserError("T", f"a matrix is required, got shape {self.shape}. Use mT or permute_dims().")
        return self.mT

    @property
    def mT(self) -> Tensor:
        """The matrices in the last two dimensions, transposed."""
        return _call("matrix_transpose", self)

    def astype(self, dtype: DTypeLike) -> Tensor:
        """The values converted to another dtype."""
        return _call("astype", self, dtype)

    def reshape(self, *shape: Any) -> Tensor:
        """The same elements in another shape; one size may be -1."""
        wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], Sequence) else shape
        return _call("reshape", self, wanted)

    def permute(self, *axes: Any) -> Tensor:
        """The dimensions in another order."""
        wanted = axes[0] if len(axes) == 1 and isinstance(axes[0], Sequence) else axes
        return _call("permute_dims", self, wanted)

    def sum(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The sum over axes."""
        return _call("sum", self, axis=axis, keepdims=keepdims)

    def prod(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The product over axes."""
        return _call("prod", self, axis=axis, keepdims=keepdims)

    def max(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The maximum over axes."""
        return _call("max", self, axis=axis, keepdims=keepdims)

    def min(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The minimum over axes."""
        return _call("min", self, axis=axis, keepdims=keepdims)

    def mean(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The mean over axes."""
        return _call("mean", self, axis=axis, keepdims=keepdims)

    def any(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Whether any element is true."""
        return _call("any", self, axis=axis, keepdims=keepdims)

    def all(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Whether all elements are true."""
        return _call("all", self, axis=axis, keepdims=keepdims)

    def var(self, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
        """The variance over axes."""
        return _call("var", self, axis=axis, correction=correction, keepdims=keepdims)

    def std(self, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
        """The standard deviation over axes."""
        return _call("std", self, axis=axis, correction=correction, keepdims=keepdims)

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """The index of the maximum, the first of equals."""
        return _call("argmax", self, axis=axis, keepdims=keepdims)

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """The index of the minimum, the first of equals."""
        return _call("argmin", self, axis=axis, keepdims=keepdims)

    def exp(self) -> Tensor:
        """The exponential of each element."""
        return _call("exp", self)

    def log(self) -> Tensor:
        """The natural logarithm of each element."""
        return _call("log", self)

    def sqrt(self) -> Tensor:
        """The square root of each element."""
        return _call("sqrt", self)

    def tanh(self) -> Tensor:
        """The hyperbolic tangent of each element."""
        return _call("tanh", self)

    def sigmoid(self) -> Tensor:
        """1 / (1 + exp(-x)) of each element."""
        return _call("sigmoid", self)

    def relu(self) -> Tensor:
        """The positive part of each element."""
        return _call("relu", self)

    def softmax(self, axis: int = -1) -> Tensor:
        """exp(x) scaled so that it sums to 1 along the axis."""
        return _call("softmax", self, axis=axis)

    def flatten(self, start: int = 0) -> Tensor:
        """The dimensions from `start` on as one."""
        return _call("flatten", self, start)

    def squeeze(self, axis: Axis = None) -> Tensor:
        """The tensor without dimensions of size 1."""
        wanted = [i for i, n in enumerate(self.shape) if n == 1] if axis is None else axis
        return _call("squeeze", self, wanted)


class At:
    """A selection of elements, for reads and functional updates."""

    __slots__ = ("_keys", "_tensor")

    def __init__(self, tensor: Tensor, *key: Any) -> None:
        self._tensor, self._keys = tensor, key

    def __getitem__(self, key: Any) -> At:
        return At(self._tensor, key)

    @property
    def _key(self) -> Any:
        if not self._keys:
            raise UserError("at", "write x.at[key].set(value): the key is missing.")
        return self._keys[0]

    def _update(self, value: Any, how: str) -> Tensor:
        return _call("index_update", self._tensor, self._key, value, how)

    def get(self) -> Tensor:
        return self._tensor[self._key]

    def set(self, value: Any) -> Tensor:
        return self._update(value, "set")

    def add(self, value: Any) -> Tensor:
        return self._update(value, "add")

    def subtract(self, value: Any) -> Tensor:
        return self._update(-as_tensor(value, self._tensor.dtype), "add")

    def multiply(self, value: Any) -> Tensor:
        return self._update(value, "multiply")

    def min(self, value: Any) -> Tensor:
        return self._update(value, "min")

    def max(self, value: Any) -> Tensor:
        return self._update(value, "max")


def _operator(name: str, a: Any, b: Any) -> Tensor:
    """A binary operator; returns NotImplemented for operands that are not tensors, numbers or arrays."""
    if not (isinstance(a, OPERANDS) and isinstance(b, OPERANDS)):
        return NotImplemented  # type: ignore[no-any-return]
    return FUNCTIONS[name](a, b)  # type: ignore[no-any-return]


OPERANDS = (Tensor, float, int, bool, np.ndarray, np.generic, list, tuple)


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
        value = np.asarray(value) if _holds_floats(value) else value  # float32 would lose precision
    return _call("asarray", value)


def _holds_floats(value: Any) -> bool:
    """Whether the first leaf of a nested list is a Python float."""
    while isinstance(value, list | tuple) and value:
        value = value[0]
    return isinstance(value, float)


_NUMBERS = (float, int, bool)


def number(value: bool | int | float, dtype: DType, shape: Shape = ()) -> Tensor:
    """A constant tensor of a shape, filled with a number."""
    return wrap(constant(checked_number(value, dtype), dtype, shape))


def checked_number(value: bool | int | float, dtype: DType) -> bool | int | float:
    """Check that a number fits into a dtype."""
    if (dtype.is_integer or isinstance(value, int)) and not _fits(value, dtype):
        raise UserError("constant", f"{value} does not fit into {dtype.name}. Convert the tensor with astype() first.")
    return int(value) if dtype.is_integer else value


def _fits(value: float, dtype: DType) -> bool:
    """Whether a number is in the range of a dtype; one beyond the largest float that rounds to it is."""
    low, high = LIMITS[dtype]
    if low <= value <= high or not dtype.is_float:
        return low <= value <= high
    return abs(value) < 1 << 1024 and bool(np.isfinite(converted(np.asarray(float(value)), dtype)))


LIMITS: dict[DType, tuple[float, float]] = {d: (iinfo(d).min, iinfo(d).max) for d in INTEGERS}
LIMITS |= {d: (finfo(d).min, finfo(d).max) for d in FLOATS} | {bool_: (-math.inf, math.inf)}
