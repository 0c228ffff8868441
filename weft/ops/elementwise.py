"""The elementwise primitives, each with its definition and derivative on adjacent lines.

In a vjp, `g` is the cotangent of the result, `y` the result, followed by the inputs. It returns a tuple with a cotangent,
a function that computes one on demand, or None, for each input. An op without vjp has derivative zero (almost everywhere).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..dtypes import DType, DTypeLike, as_dtype, bool_, converted, float32, float64, promote, scalar_dtype
from ..errors import RunError, UserError
from ..graph.node import Node, Op, Type
from ..tensor import LIMITS, ArrayLike, Tensor, as_tensor, emit, function, number
from .declare import Sample, Wrong, binary, broadcast_shape, expand_to, together, unary

Unary = Callable[[Any], Tensor]
Binary = Callable[[Any, Any], Tensor]

# --- sign and rounding ---------------------------------------------------------------------------------------------------

negative = unary(
    "negative", np.negative, lambda g, y, x: (-g,), "-x.", name="neg", accepts="numeric", integers="compute"
)
abs = unary(
    "abs", np.abs, lambda g, y, x: (g * sign(x),), "The absolute value; its derivative at 0 is 0.",
    accepts="numeric", integers="compute",
)  # fmt: skip
sign: Unary = unary("sign", np.sign, None, "-1, 0 or 1.", accepts="numeric", integers="compute")
floor = unary("floor", np.floor, None, "The greatest integer not above x.", integers="keep")
ceil = unary("ceil", np.ceil, None, "The least integer not below x.", integers="keep")
trunc = unary("trunc", np.trunc, None, "The integer part of x.", integers="keep")
round = unary("round", np.round, None, "The nearest integer; halves go to the even one.", integers="keep")

# --- exponentials and logarithms -----------------------------------------------------------------------------------------

exp = unary("exp", np.exp, lambda g, y, x: (g * y,), "e to the power x.", cost=10)
expm1 = unary("expm1", np.expm1, lambda g, y, x: (g * exp(x),), "exp(x) - 1, exact for small x.", cost=10)
log = unary("log", np.log, lambda g, y, x: (g / x,), "The natural logarithm.", domain=(0.1, 4.0), cost=10)
log1p = unary(
    "log1p", np.log1p, lambda g, y, x: (g / (x + 1.0),), "log(1 + x), exact for small x.", domain=(-0.5, 2.0), cost=10
)
log2 = unary(
    "log2", np.log2, lambda g, y, x: (g / (x * math.log(2)),), "The logarithm to base 2.", domain=(0.1, 4.0), cost=10
)
log10 = unary(
    "log10",
    np.log10,
    lambda g, y, x: (g / (x * math.log(10)),),
    "The logarithm to base 10.",
    domain=(0.1, 4.0),
    cost=10,
)
sqrt = unary("sqrt", np.sqrt, lambda g, y, x: (g / (y * 2.0),), "The square root.", domain=(0.1, 4.0), cost=3)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    small = np.exp(-np.abs(x))  # never overflows
    return np.asarray(np.where(x >= 0, 1 / (1 + small), small / (1 + small)))


sigmoid = unary("sigmoid", _sigmoid, lambda g, y, x: (g * (y * (1.0 - y)),), "1 / (1 + exp(-x)).", cost=10)
erf = unary(
    "erf", lambda x: np.asarray(np.frompyfunc(math.erf, 1, 1)(x)).astype(np.float64),
    lambda g, y, x: (g * (exp(-(x * x)) * (2 / math.sqrt(math.pi))),), "The error function.", cost=10,
)  # fmt: skip

# --- trigonometry --------------------------------------------------------------------------------------------------------

sin = unary("sin", np.sin, lambda g, y, x: (g * cos(x),), "The sine.", cost=10)
cos: Unary = unary("cos", np.cos, lambda g, y, x: (-g * sin(x),), "The cosine.", cost=10)
tan = unary("tan", np.tan, lambda g, y, x: (g * (y * y + 1.0),), "The tangent.", domain=(-1.2, 1.2), cost=10)
asin = unary(
    "asin", np.arcsin, lambda g, y, x: (g / sqrt(1.0 - x * x),), "The inverse sine.", domain=(-0.9, 0.9), cost=10
)
acos = unary(
    "acos", np.arccos, lambda g, y, x: (-g / sqrt(1.0 - x * x),), "The inverse cosine.", domain=(-0.9, 0.9), cost=10
)
atan = unary("atan", np.arctan, lambda g, y, x: (g / (x * x + 1.0),), "The inverse tangent.", cost=10)
sinh = unary("sinh", np.sinh, lambda g, y, x: (g * cosh(x),), "The hyperbolic sine.", cost=10)
cosh: Unary = unary("cosh", np.cosh, lambda g, y, x: (g * sinh(x),), "The hyperbolic cosine.", cost=10)
tanh = unary("tanh", np.tanh, lambda g, y, x: (g * (1.0 - y * y),), "The hyperbolic tangent.", cost=10)
asinh = unary("asinh", np.arcsinh, lambda g, y, x: (g / sqrt(x * x + 1.0),), "The inverse hyperbolic sine.", cost=10)
acosh = unary(
    "acosh", np.arccosh, lambda g, y, x: (g / (sqrt(x - 1.0) * sqrt(x + 1.0)),), "The inverse hyperbolic cosine.",
    domain=(1.2, 4.0), cost=10,
)  # fmt: skip
atanh = unary(
    "atanh",
    np.arctanh,
    lambda g, y, x: (g / (1.0 - x * x),),
    "The inverse hyperbolic tangent.",
    domain=(-0.9, 0.9),
    cost=10,
)

# --- arithmetic ----------------------------------------------------------------------------------------------------------

add = binary("add", np.add, lambda g, y, a, b: (g, g), "a + b.", commutes=True)
subtract = binary("subtract", np.subtract, lambda g, y, a, b: (g, -g), "a - b.", name="sub")
multiply = binary(
    "multiply", np.multiply, lambda g, y, a, b: (lambda: g * b, lambda: g * a), "a * b.", name="mul", commutes=True
)
divide = binary(
    "divide", np.divide, lambda g, y, a, b: (lambda: g / b, lambda: -(g * y) / b), "a / b; integers become floats first.",
    name="div", accepts="float", domain=(0.5, 2.0), cost=3,
)  # fmt: skip


def _integer_checked(ufunc: Callable[..., Any], name: str) -> Callable[..., Any]:
    def call(a: np.ndarray, b: np.ndarray) -> Any:
        if b.dtype.kind in "iu" and not np.all(b):
            raise RunError(name, "an integer was divided by zero. Guard the divisor with weft.where().")
        return ufunc(a, b)

    return call


def _floor_divide(a: np.ndarray, b: np.ndarray) -> Any:
    """NumPy's floor_divide, except that infinities give the quotient, as in the array API: inf // 2 is inf, 5 // -inf is -0."""
    whole = np.floor_divide(a, b)
    return np.where(np.isinf(a) | np.isinf(b), np.divide(a, b), whole) if whole.dtype.kind == "f" else whole


floor_divide = binary(
    "floor_divide", _integer_checked(_floor_divide, "floor_divide"), None,
    "a / b, rounded down; with infinities a / b itself.", domain=(0.5, 4.0), cost=10, can_fail=True,
)  # fmt: skip
remainder = binary(
    "remainder", _integer_checked(np.remainder, "remainder"),
    lambda g, y, a, b: (g, -g * floor_divide(a, b)), "a - b * floor(a / b): it has the sign of b.", domain=(0.5, 4.0), cost=10, can_fail=True,
)  # fmt: skip


def _pow(a: np.ndarray, b: np.ndarray) -> Any:
    if b.dtype.kind == "i" and np.any(b < 0):
        raise RunError("pow", "an integer cannot be raised to a negative power. Convert the base with astype().")
    result = np.power(a, b)
    # NumPy computes the power 1/2 as a square root, which differs at -0.0 and -inf.
    return np.where((b == 0.5) & ((a == 0) | (a == -np.inf)), np.abs(a), result) if a.dtype.kind == "f" else result


def _pow_vjp(g: Tensor, y: Tensor, a: Tensor, b: Tensor) -> tuple[Callable[[], Tensor], ...]:
    # 0 ** b has derivative 0 in b, and a ** 0 in a, also where the formulas give 0 * inf.
    return (
        lambda: g * where(b == 0.0, 0.0, b * _power(a, where(b == 0.0, 1.0, b - 1.0))),
        lambda: g * (y * log(where(a == 0.0, 1.0, a))),
    )


_power = binary("pow", _pow, _pow_vjp, "a to the power b.", domain=(0.5, 2.0), cost=10, can_fail=True)


@function
def pow(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """x1 to the power x2. A square is computed as a product.

    >>> pow(as_tensor(3.0), 2)
    Tensor(9., dtype=float32)
    """
    if isinstance(x2, int | float) and not isinstance(x2, bool) and x2 == 2 and isinstance(x1, Tensor):
        return x1 * x1 if isinstance(x2, int) or x1.dtype.is_float else _power(x1, x2)
    return _power(x1, x2)


def _winner_vjp(wins: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    def vjp(g: Tensor, y: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        # Equal operands get half the cotangent each, so that the derivative does not depend on their order.
        # The operands are compared with each other, not with the result, which mixed precision may have rounded.
        share = where(a == b, 0.5, where(wins(a, b), number(1.0, g.dtype), 0.0))
        return g * share, g * (1.0 - share)

    return vjp


def _maximum(a: np.ndarray, b: np.ndarray) -> Any:
    """NumPy's maximum with a defined sign of zero: 0.0 is greater than -0.0, as in IEEE 754-2019; NumPy's depends on the machine."""
    larger = np.maximum(a, b)
    return np.where((a == 0) & (b == 0), a + b, larger) if larger.dtype.kind == "f" else larger


def _minimum(a: np.ndarray, b: np.ndarray) -> Any:
    smaller = np.minimum(a, b)
    return np.where((a == 0) & (b == 0), -(-a - b), smaller) if smaller.dtype.kind == "f" else smaller


maximum = binary(
    "maximum", _maximum, _winner_vjp(lambda a, b: a > b),
    "The larger of two; nan if either is nan, and 0.0 is larger than -0.0.", commutes=True,
)  # fmt: skip
minimum = binary(
    "minimum", _minimum, _winner_vjp(lambda a, b: a < b),
    "The smaller of two; nan if either is nan, and -0.0 is smaller than 0.0.", commutes=True,
)  # fmt: skip


def _atan2_vjp(g: Tensor, y: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    square = a * a + b * b
    safe = where(square == 0.0, 1.0, square)  # the derivative at the origin is taken as 0
    return g * b / safe, -g * a / safe


atan2 = binary(
    "atan2", np.arctan2, _atan2_vjp, "The angle of the point (b, a).", accepts="float", domain=(0.5, 2.0), cost=10
)


def _hypot_vjp(g: Tensor, y: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    safe = where(y == 0.0, 1.0, y)  # the derivative at the origin is taken as 0
    return g * (a / safe), g * (b / safe)


hypot = binary(
    "hypot",
    np.hypot,
    _hypot_vjp,
    "sqrt(a*a + b*b) without overflow.",
    accepts="float",
    domain=(0.5, 2.0),
    commutes=True,
    cost=10,
)


def _next_after(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(a == b, b, np.nextafter(a, b))  # of float16 zeros NumPy gives the first, of others the second


copysign: Binary = binary(
    "copysign", np.copysign, lambda g, y, a, b: (g * copysign(1.0, a) * copysign(1.0, b), None),
    "The size of a with the sign of b.", accepts="float",
)  # fmt: skip
nextafter = binary("nextafter", _next_after, None, "The next number after a towards b.", accepts="float", widen=False)
logaddexp = binary(
    "logaddexp", np.logaddexp, lambda g, y, a, b: (g * sigmoid(a - b), g * sigmoid(b - a)),
    "log(exp(a) + exp(b)) without overflow.", accepts="float", commutes=True, cost=10,
)  # fmt: skip

# --- bits and truth ------------------------------------------------------------------------------------------------------


def _shift(ufunc: Callable[..., Any], name: str) -> Callable[..., Any]:
    def call(a: np.ndarray, b: np.ndarray) -> Any:
        if b.dtype.kind == "i" and np.any(b < 0):
            raise RunError(name, "a shift by a negative number has no meaning.")
        return ufunc(a, b)

    return call


bitwise_and = binary(
    "bitwise_and", np.bitwise_and, None, "Bits set in both.", name="and_", accepts="bits", commutes=True
)
bitwise_or = binary("bitwise_or", np.bitwise_or, None, "Bits set in either.", name="or_", accepts="bits", commutes=True)
bitwise_xor = binary(
    "bitwise_xor", np.bitwise_xor, None, "Bits set in one only.", name="xor", accepts="bits", commutes=True
)
bitwise_left_shift = binary(
    "bitwise_left_shift",
    _shift(np.left_shift, "bitwise_left_shift"),
    None,
    "a * 2**b.",
    name="shl",
    accepts="integer",
    can_fail=True,
)
bitwise_right_shift = binary(
    "bitwise_right_shift", _shift(np.right_shift, "bitwise_right_shift"), None, "a // 2**b.", name="shr",
    accepts="integer", can_fail=True,
)  # fmt: skip
bitwise_invert = unary(
    "bitwise_invert", np.bitwise_not, None, "All bits flipped.", name="not_", accepts="bits", integers="compute"
)
_equal = binary(
    "equal",
    np.equal,
    None,
    "Where a is b.",
    name="eq",
    accepts="any",
    result=bool_,
    commutes=True,
    precision="exact",
    label="",
)
_less = binary("less", np.less, None, "Where a is below b.", name="lt", accepts="any", result=bool_, label="")
_less_equal = binary(
    "less_equal", np.less_equal, None, "Where a is not above b.", name="le", accepts="any", result=bool_, label=""
)


def _beyond(x: Any, value: Any) -> int:
    """Whether a Python int is above (1) or below (-1) the range of a tensor's dtype; else 0."""
    if not isinstance(x, Tensor) or not isinstance(value, int | np.integer) or isinstance(value, bool):
        return 0
    low, high = LIMITS[scalar_dtype(int(value), x.dtype)]
    return 1 if value > high else -1 if value < low else 0


def _less_than_beyond(x1: Any, x2: Any) -> Tensor | None:
    """x1 < x2 by value, if one of them is a Python int out of the range of the other's dtype; else None."""
    if side := _beyond(x1, x2):
        low, high = LIMITS[scalar_dtype(int(x2), x1.dtype)]
        return _less_equal(x1, high) if side > 0 else _less(x1, low)
    if side := _beyond(x2, x1):
        low, high = LIMITS[scalar_dtype(int(x1), x2.dtype)]
        return _less(high, x2) if side > 0 else _less_equal(low, x2)
    return None


@function
def equal(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """Where x1 equals x2. A Python int out of the range of the other's dtype equals nothing.

    >>> equal(as_tensor(3).astype("uint8"), 300).item()
    False
    """
    if _beyond(x1, x2) or _beyond(x2, x1):
        return number(False, bool_, as_tensor(x1 if isinstance(x1, Tensor) else x2).shape)
    return _equal(x1, x2)


@function
def less(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """Where x1 < x2. Python ints out of the range of the other's dtype are compared by value."""
    result = _less_than_beyond(x1, x2)
    return _less(x1, x2) if result is None else result


@function
def less_equal(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """Where x1 <= x2. Python ints out of the range of the other's dtype are compared by value."""
    result = _less_than_beyond(x1, x2)
    return _less_equal(x1, x2) if result is None else result


@function
def not_equal(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """Where x1 != x2."""
    return bitwise_invert(equal(x1, x2))


@function
def greater(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """Where x1 > x2."""
    result = _less_than_beyond(x2, x1)
    if result is not None:
        return result
    a, b = together("greater", x1, x2)
    return _less(b, a)


@function
def greater_equal(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """Where x1 >= x2."""
    result = _less_than_beyond(x2, x1)
    if result is not None:
        return result
    a, b = together("greater_equal", x1, x2)
    return _less_equal(b, a)


# --- choosing and converting ---------------------------------------------------------------------------------------------


def _where_infer(condition: Node, a: Node, b: Node) -> Type:
    if condition.dtype is not bool_:
        raise UserError("where", f"the condition must be bool, got {condition.dtype.name}. Write it as a comparison.")
    if not condition.shape == a.shape == b.shape or a.dtype is not b.dtype:
        raise UserError("where", f"inputs of one type are required, got {condition.type}, {a.type} and {b.type}.")
    return a.type


def _where_vjp(g: Tensor, y: Tensor, condition: Tensor, a: Tensor, b: Tensor) -> tuple[None, Tensor, Tensor]:
    return None, where(condition, g, 0.0), where(condition, 0.0, g)


def _where_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((), (0,), (3, 4)):
        yield Sample([rng.random(shape) < 0.5, rng.normal(size=shape), rng.normal(size=shape)])


WHERE = Op(
    "where", "elementwise", _where_infer, np.where, _where_vjp, (), 3, samples=_where_samples,
    errors=(Wrong(lambda: where(as_tensor(1.0), 1.0, 2.0), "[where] the condition must be bool, got float32"),),
)  # fmt: skip


@function
def where(condition: ArrayLike, x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """x1 where the condition is true, else x2.

    The branch that is not selected does not affect derivatives, even if it is infinite or nan, as long as it is computed
    elementwise.

    >>> where(as_tensor(True), 1.0, float("nan"))
    Tensor(1., dtype=float32)
    """
    condition = as_tensor(condition)
    if type(x1) is not Tensor and type(x2) is Tensor:
        a, b = as_tensor(x1, x2.dtype), x2
    else:
        a = as_tensor(x1)
        b = as_tensor(x2, a.dtype)
    dtype = promote(a.dtype, b.dtype)
    shape = broadcast_shape("where", condition.shape, a.shape, b.shape)
    a, b = (expand_to(astype(x, dtype), shape) for x in (a, b))
    return emit(WHERE, (expand_to(condition, shape), a, b))


def _cast(x: np.ndarray, dtype: DType) -> np.ndarray:
    if not dtype.is_integer or x.dtype.kind in "biu":
        return converted(x, dtype)
    # On every machine, floats out of range are clamped and nan becomes 0.
    info = np.iinfo(dtype.numpy)
    x = np.trunc(np.asarray(x, np.float64))
    inside = np.where((x >= info.min) & (x < float(info.max)), x, 0).astype(dtype.numpy)
    return np.where(x >= float(info.max), info.max, np.where(x < info.min, info.min, inside))


_CAST = Op(
    "cast", "elementwise", lambda x, dtype: Type(x.shape, dtype), _cast,
    lambda g, y, x, dtype: (astype(g, x.dtype) if x.dtype.is_float and dtype.is_float else None,), ("dtype",), 1,
    samples=lambda rng: (Sample([rng.normal(size=s) * 9], (d,)) for s in ((), (0,), (3, 2)) for d in (float64, float32, bool_)),
    errors=(Wrong(lambda: astype(as_tensor(1.0), "complex64"), "[astype] there is no dtype 'complex64'"),), label="",
)  # fmt: skip


@function
def astype(x: ArrayLike, dtype: DTypeLike, /, *, copy: bool = True, device: Any = None) -> Tensor:
    """Convert to another dtype. Floats are truncated towards zero and clamped to the range of an integer dtype.

    Floats are rounded once, to nearest even; integers are converted to 16-bit floats via float32.

    >>> astype(as_tensor(300.7), "uint8")
    Tensor(255, dtype=uint8)
    """
    target = as_dtype(dtype, "astype")
    if not copy and device is None and isinstance(x, Tensor) and x.dtype is target:
        return x
    x = as_tensor(x)
    if device is not None:
        x = x.to_device(device)
    if target is x.dtype:
        return x
    if target is bool_ and x.dtype.is_float:
        return x != 0.0
    return emit(_CAST, (x,), (target,))


def _bitcast_infer(x: Node, dtype: DType) -> Type:
    if x.dtype.itemsize != dtype.itemsize:
        raise UserError("view", f"a dtype of {x.dtype.itemsize} bytes is required, got {dtype.name}.")
    return Type(x.shape, dtype)


_BITCAST = Op(
    "bitcast", "elementwise", _bitcast_infer, lambda x, dtype: np.ascontiguousarray(x).view(dtype.numpy).reshape(x.shape),
    None, ("dtype",), 1,
    samples=lambda rng: (Sample([rng.integers(0, 9, s)], (as_dtype("float64"),)) for s in ((), (0,), (3, 2))),
    errors=(Wrong(lambda: view(as_tensor(1.0), "int8"), "[view] a dtype of 4 bytes is required, got int8"),),
)  # fmt: skip


@function
def view(x: ArrayLike, dtype: DTypeLike, /) -> Tensor:
    """Reinterpret the bits as another dtype of the same size.

    >>> view(as_tensor(1.0), "int32").item() == 0x3F800000
    True
    """
    return emit(_BITCAST, (as_tensor(x),), (as_dtype(dtype, "view"),))


_STOP = Op(
    "stop_gradient", "elementwise", lambda x: x.type, lambda x: x, None, (), 1,
    samples=lambda rng: (Sample([rng.normal(size=s)]) for s in ((), (0,), (3, 2))), derivative_marker=True,
)  # fmt: skip


@function
def stop_gradient(x: ArrayLike, /) -> Tensor:
    """The same value; a constant for derivatives."""
    return emit(_STOP, (as_tensor(x),))
