"""Helpers that declare ops: each builds an `Op` and its public function from one declaration."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar

import numpy as np

from ..dtypes import DEFAULT_FLOAT, DType, bfloat16, bool_, float16, float32, float64, promote
from ..errors import UserError, UserIndexError
from ..graph.node import CONST, OPS, Node, Op, PrecisionClass, Shape, Type, make
from ..tensor import FUNCTIONS, ArrayLike, Tensor, as_tensor, emit, wrap

C = TypeVar("C", bound=Callable[..., Any])
P = ParamSpec("P")
T = TypeVar("T")
Accepts = Literal["float", "numeric", "integer", "bits", "any"]

_KINDS: dict[str, tuple[tuple[str, ...], str]] = {
    "float": (("float",), "a floating dtype"),
    "numeric": (("float", "int", "uint"), "a numeric dtype"),
    "integer": (("int", "uint"), "an integer dtype"),
    "bits": (("int", "uint", "bool"), "an integer or bool dtype"),
    "any": (("float", "int", "uint", "bool"), "any dtype"),
}
FLOATS = (float64, float32, float16, bfloat16)  # the widest first
_SHAPES: tuple[Shape, ...] = ((), (0,), (5,), (2, 3, 4))


class Sample(NamedTuple):
    """Inputs and parameters to test an op with. Float inputs are tested in the float dtypes that the op takes, the widest first."""

    inputs: Sequence[Any]
    params: tuple[Any, ...] = ()
    dtypes: tuple[DType, ...] = FLOATS  # derivatives are compared with finite differences in float64 alone


class Wrong(NamedTuple):
    """A call that must fail, and a part of its error message."""

    call: Callable[[], Any]
    text: str


def accept(name: str, dtype: DType, accepts: Accepts) -> None:
    """Raise an error unless the dtype is of an accepted kind."""
    kinds, words = _KINDS[accepts]
    if dtype.kind not in kinds:
        raise UserError(name, f"{words} is required, got {dtype.name}. Convert it with astype().")


def elementwise(
    name: str,
    arity: int,
    reference: Callable[..., Any],
    vjp: Callable[..., Any] | None,
    *,
    accepts: Accepts = "float",
    result: DType | None = None,
    domain: tuple[float, float] = (-2.0, 2.0),
    widen: bool = True,
    commutes: bool = False,
    cost: int = 1,
    precision: PrecisionClass = "float32",
    can_fail: bool = False,
    label: str | None = None,
    decompose: Callable[..., Tensor] | None = None,
    doc: str = "",
) -> Op:
    """Declare an elementwise op. Its inputs have one shape and one dtype."""

    kinds = _KINDS[accepts][0]

    def infer(first: Node, *others: Node) -> Type:
        if first.dtype.kind not in kinds:
            accept(name, first.dtype, accepts)
        for other in others:
            if other.shape != first.shape or other.dtype is not first.dtype:
                raise UserError(name, f"inputs of one type are required, got {first.type} and {other.type}.")
        return first.type if result is None else Type(first.shape, result)

    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        for shape in _SHAPES:
            yield Sample([_draw(rng, shape, accepts, domain) for _ in range(arity)])

    wrong = bool_ if accepts in ("float", "numeric", "integer") else None
    errors = (Wrong(lambda: _apply_to_dtype(op, wrong), f"[{name}] {_KINDS[accepts][1]} is required"),) if wrong else ()
    op = Op(
        name, "elementwise", infer, reference, vjp, arity=arity, widen=widen, samples=samples, errors=errors,
        commutes=commutes, doc=doc, cost=cost, precision=precision, can_fail=can_fail, label=label, decompose=on_nodes(decompose),
    )  # fmt: skip
    return op


def on_nodes(rule: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """A function of tensors as one of nodes: `Op.decompose` is called below the layer of tensors."""
    if rule is None:
        return None

    def call(inputs: Sequence[Node], *params: Any) -> Node | tuple[Node, ...]:
        made = rule(*map(wrap, inputs), *params)
        return made.node if isinstance(made, Tensor) else tuple(t.node for t in made)

    return call


def _draw(rng: np.random.Generator, shape: Shape, accepts: Accepts, domain: tuple[float, float]) -> np.ndarray:
    if accepts in ("integer", "bits"):
        return rng.integers(max(0, int(domain[0])), int(domain[1]) + 1, shape)
    return np.asarray(rng.uniform(*domain, shape))


def _apply_to_dtype(op: Op, dtype: DType) -> Tensor:
    x = wrap(make(OPS["const"], (), (True, dtype, (2,))))
    return emit(op, (x,) * (op.arity or 0))


def unary(
    public: str,
    reference: Callable[..., Any],
    vjp: Callable[..., Any] | None,
    doc: str,
    *,
    name: str = "",
    accepts: Accepts = "float",
    integers: Literal["convert", "keep", "compute"] = "convert",
    domain: tuple[float, float] = (-2.0, 2.0),
    cost: int = 1,
    precision: PrecisionClass = "float32",
    can_fail: bool = False,
    label: str | None = None,
    decompose: Callable[[Tensor], Tensor] | None = None,
) -> Callable[[Any], Tensor]:
    """Declare a function of one input. `integers`: converted to floats, returned unchanged, or computed as they are."""
    op = elementwise(
        name or public, 1, reference, vjp, accepts=accepts, domain=domain, cost=cost, precision=precision,
        can_fail=can_fail, label=label, decompose=decompose, doc=doc,
    )  # fmt: skip

    def call(x: ArrayLike, /) -> Tensor:
        x = as_tensor(x)
        if not x.dtype.is_float and integers != "compute":
            if integers == "keep" and x.dtype.is_integer:
                return x
            x = as_float(x, public)
        return emit(op, (x,))

    return publish(call, public, doc)


def publish(call: C, public: str, doc: str) -> C:
    """Set the name and docstring of a generated function, and register it."""
    call.__name__ = call.__qualname__ = public
    call.__doc__ = doc
    FUNCTIONS[public] = call
    return call


def binary(
    public: str,
    reference: Callable[..., Any],
    vjp: Callable[..., Any] | None,
    doc: str,
    *,
    name: str = "",
    accepts: Accepts = "numeric",
    result: DType | None = None,
    domain: tuple[float, float] = (-2.0, 2.0),
    widen: bool = True,
    commutes: bool = False,
    cost: int = 1,
    precision: PrecisionClass = "float32",
    can_fail: bool = False,
    label: str | None = None,
    decompose: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Callable[[Any, Any], Tensor]:
    """Declare a function of two inputs, which are first promoted to one dtype and broadcast to one shape."""
    op = elementwise(
        name or public, 2, reference, vjp, accepts=accepts, result=result, domain=domain, widen=widen,
        commutes=commutes, cost=cost, precision=precision, can_fail=can_fail, label=label, decompose=decompose, doc=doc,
    )  # fmt: skip

    def call(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
        a, b = together(public, x1, x2)
        if accepts == "float" and not a.dtype.is_float:
            a, b = as_float(a, public), as_float(b, public)
        return emit(op, (a, b))

    return publish(call, public, doc)


def as_float(x: Tensor, name: str) -> Tensor:
    """Convert integers to the default float; bools are rejected, because they are rarely intended."""
    if x.dtype.is_float:
        return x
    accept(name, x.dtype, "numeric")
    return FUNCTIONS["astype"](x, DEFAULT_FLOAT)  # type: ignore[no-any-return]


def in_float32(f: Callable[P, T]) -> Callable[P, T]:
    """Decorator for functions that sum or exponentiate: 16-bit floats are computed in float32 and rounded at the end.

    The dtype of the first argument decides; of a result with several tensors, only the first is rounded.
    """
    signature = inspect.signature(f)
    leader = next(iter(signature.parameters))

    @functools.wraps(f)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        bound = signature.bind(*args, **kwargs)
        first = bound.arguments[leader] = as_tensor(bound.arguments[leader])
        if not first.dtype.is_half:
            return f(*bound.args, **bound.kwargs)
        for name, value in bound.arguments.items():
            bound.arguments[name] = _widened(value)
        result: Any = f(*bound.args, **bound.kwargs)
        narrow = FUNCTIONS["astype"]
        if isinstance(result, Tensor):
            return narrow(result, first.dtype)  # type: ignore[no-any-return]
        return result._replace(value=narrow(result.value, first.dtype))  # type: ignore[no-any-return]

    return call


def _widened(x: Any) -> Any:
    return FUNCTIONS["astype"](x, float32) if isinstance(x, Tensor) and x.dtype.is_half else x


def together(name: str, x1: ArrayLike, x2: ArrayLike) -> tuple[Tensor, Tensor]:
    """Two operands as tensors of one dtype and one shape."""
    if type(x1) is Tensor:  # and not a scalar tensor (tracing/scalars.py)
        a, b = x1, x2 if type(x2) is Tensor else as_tensor(x2, x1.dtype, x1.shape)
    elif type(x2) is Tensor:
        a, b = as_tensor(x1, x2.dtype, x2.shape), x2
    else:
        a, b = as_tensor(x1), as_tensor(x2)
    if a.dtype is not b.dtype:
        dtype = promote(a.dtype, b.dtype)
        a, b = FUNCTIONS["astype"](a, dtype), FUNCTIONS["astype"](b, dtype)
    if a.shape != b.shape:
        shape = broadcast_shape(name, a.shape, b.shape)
        a, b = expand_to(a, shape), expand_to(b, shape)
    return a, b


def expand_to(x: Tensor, shape: Shape) -> Tensor:
    """Broadcast a tensor to a compatible shape; a constant is created in that shape instead."""
    if x.shape == shape:
        return x
    return filled_like(x, shape) if x.node.op is CONST else emit(OPS["expand"], (x,), (shape,))


def filled_like(x: Tensor, shape: Shape) -> Tensor:
    """A constant in another shape."""
    return wrap(make(CONST, (), x.node.replace_params(shape=shape)))


def broadcast_shape(name: str, *shapes: Shape) -> Shape:
    """The broadcast shape of several shapes: sizes must be equal or 1, aligned at the last dimension."""
    ndim = max((len(s) for s in shapes), default=0)
    result = []
    for axis in range(-ndim, 0):
        sizes = {s[axis] for s in shapes if len(s) >= -axis} - {1}
        if len(sizes) > 1:
            given = " and ".join(map(str, shapes))
            raise UserError(name, f"the shapes {given} do not fit together: sizes must be equal or 1, from the right.")
        result.append(sizes.pop() if sizes else 1)
    return tuple(result)


def _index(value: Any) -> int | None:
    """An integer of any type as a Python int; None for other objects."""
    if isinstance(value, bool | np.bool_ | type):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _listed(value: Any) -> list[Any]:
    """Several values as a list, a single value (or a string) as a list of one."""
    several = (
        isinstance(value, Iterable) and not isinstance(value, str | bytes | dict) and getattr(value, "ndim", 1) > 0
    )
    return list(value) if several else [value]


def as_ints(values: Iterable[Any]) -> tuple[int, ...]:
    """Integers of any type as Python ints; -1 for other objects (sizes and counts are never negative)."""
    found = [_index(v) for v in values]
    return tuple(-1 if v is None else v for v in found)


def whole(name: str, what: str, value: Any, least: int = 0) -> int:
    """Check a count of `least` or more and return it as an int."""
    [number] = as_ints([value])
    if number < least:
        raise UserError(name, f"the {what} must be an int of {least} or more, got {value!r}.")
    return number


def normal_axis(name: str, axis: int, ndim: int) -> int:
    """An axis counted from the front."""
    index = _index(axis)
    if index is None:
        raise UserError(name, f"an axis must be an int, got {axis!r}.")
    if not -ndim <= index < ndim:
        raise UserIndexError(name, f"axis {index} does not exist in a tensor of {ndim} dimensions.")
    return index % ndim


def normal_axes(name: str, axis: int | Iterable[int] | None, ndim: int) -> tuple[int, ...]:
    """Axes counted from the front, sorted; None means all. For a tensor without dimensions, axis 0 and -1 are accepted."""
    if axis is None:
        return tuple(range(ndim))
    given = _listed(axis)
    if ndim == 0 and len(given) == 1:
        normal_axis(name, given[0], 1)
        return ()
    axes = sorted(normal_axis(name, a, ndim) for a in given)
    if len(set(axes)) != len(axes):
        raise UserError(name, f"each axis can be named once, got {tuple(given)}.")
    return tuple(axes)


def as_vector(f: C) -> C:
    """Decorator for functions along one axis: a tensor without dimensions is treated as a vector of one element."""

    @functools.wraps(f)
    def call(x: ArrayLike, /, *args: Any, **kwargs: Any) -> Any:
        x = as_tensor(x)
        if x.ndim:
            return f(x, *args, **kwargs)
        one = f(FUNCTIONS["reshape"](x, (1,)), *args, **kwargs)
        parts = [FUNCTIONS["reshape"](part, ()) for part in (one if isinstance(one, tuple) else [one])]
        return type(one)(*parts) if isinstance(one, tuple) else parts[0]

    return call  # type: ignore[return-value]


def normal_shape(name: str, shape: int | Iterable[int]) -> Shape:
    """A shape as a tuple of ints, all of them 0 or more."""
    given = _listed(shape)
    sizes = as_ints(given)
    if any(n < 0 for n in sizes):
        raise UserError(name, f"a shape is made of ints that are 0 or more, got {tuple(given)}.")
    return sizes
