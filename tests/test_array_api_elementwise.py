"""Checks every elementwise function of the array API over every dtype it is legal for, against NumPy."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import weft
from array_api_tools import BITS, DTYPES, FLOATS, INTEGERS, NUMERIC, SHAPES, SIGNED, check, draw, dtype_of


class Row(NamedTuple):
    """What a function is compared with, the dtypes it takes, where its arguments lie, and how far off it may be."""

    numpy: Callable[..., Any]
    dtypes: tuple[str, ...]
    low: float = -9
    high: float = 9
    ulps: float = 0
    result: str = ""  # another dtype than that of the arguments


UNARY = {
    "abs": Row(np.abs, NUMERIC),
    "acos": Row(np.arccos, FLOATS, -1, 1, 4),
    "acosh": Row(np.arccosh, FLOATS, 1, 9, 4),
    "asin": Row(np.arcsin, FLOATS, -1, 1, 4),
    "asinh": Row(np.arcsinh, FLOATS, ulps=4),
    "atan": Row(np.arctan, FLOATS, ulps=4),
    "atanh": Row(np.arctanh, FLOATS, -1, 1, 4),
    "bitwise_invert": Row(np.bitwise_invert, BITS, -128, 127),
    "ceil": Row(np.ceil, NUMERIC),
    "conj": Row(np.positive, NUMERIC),
    "cos": Row(np.cos, FLOATS, ulps=4),
    "cosh": Row(np.cosh, FLOATS, ulps=4),
    "exp": Row(np.exp, FLOATS, ulps=4),
    "expm1": Row(np.expm1, FLOATS, -2, 2, 4),
    "floor": Row(np.floor, NUMERIC),
    "isfinite": Row(np.isfinite, NUMERIC, result="bool"),
    "isinf": Row(np.isinf, NUMERIC, result="bool"),
    "isnan": Row(np.isnan, NUMERIC, result="bool"),
    "log": Row(np.log, FLOATS, 0.1, 9, 4),
    "log1p": Row(np.log1p, FLOATS, -0.9, 2, 4),
    "log2": Row(np.log2, FLOATS, 0.1, 9, 4),
    "log10": Row(np.log10, FLOATS, 0.1, 9, 4),
    "logical_not": Row(np.logical_not, ("bool",)),
    "negative": Row(np.negative, NUMERIC),
    "positive": Row(np.positive, NUMERIC),
    "real": Row(np.positive, NUMERIC),
    "reciprocal": Row(np.reciprocal, FLOATS),
    "round": Row(np.round, NUMERIC),
    "sign": Row(np.sign, NUMERIC),
    "signbit": Row(np.signbit, FLOATS, result="bool"),
    "sin": Row(np.sin, FLOATS, ulps=4),
    "sinh": Row(np.sinh, FLOATS, ulps=4),
    "sqrt": Row(np.sqrt, FLOATS, 0, 9),
    "square": Row(np.square, NUMERIC, -100, 100),
    "tan": Row(np.tan, FLOATS, -1.5, 1.5, 4),
    "tanh": Row(np.tanh, FLOATS, ulps=4),
    "trunc": Row(np.trunc, NUMERIC),
}
BINARY = {
    "add": Row(np.add, NUMERIC, -100, 100),
    "atan2": Row(np.arctan2, FLOATS, ulps=4),
    "bitwise_and": Row(np.bitwise_and, BITS, -128, 127),
    "bitwise_left_shift": Row(np.left_shift, INTEGERS, 0, 7),
    "bitwise_or": Row(np.bitwise_or, BITS, -128, 127),
    "bitwise_right_shift": Row(np.right_shift, INTEGERS, 0, 7),
    "bitwise_xor": Row(np.bitwise_xor, BITS, -128, 127),
    "copysign": Row(np.copysign, FLOATS),
    "divide": Row(np.divide, FLOATS),
    "equal": Row(np.equal, DTYPES, -2, 2, result="bool"),
    "floor_divide": Row(np.floor_divide, NUMERIC, 1, 100),
    "greater": Row(np.greater, NUMERIC, -2, 2, result="bool"),
    "greater_equal": Row(np.greater_equal, NUMERIC, -2, 2, result="bool"),
    "hypot": Row(np.hypot, FLOATS, ulps=4),
    "less": Row(np.less, NUMERIC, -2, 2, result="bool"),
    "less_equal": Row(np.less_equal, NUMERIC, -2, 2, result="bool"),
    "logaddexp": Row(np.logaddexp, FLOATS, ulps=4),
    "logical_and": Row(np.logical_and, ("bool",)),
    "logical_or": Row(np.logical_or, ("bool",)),
    "logical_xor": Row(np.logical_xor, ("bool",)),
    "maximum": Row(np.maximum, NUMERIC),
    "minimum": Row(np.minimum, NUMERIC),
    "multiply": Row(np.multiply, NUMERIC, -20, 20),
    "not_equal": Row(np.not_equal, DTYPES, -2, 2, result="bool"),
    "pow": Row(np.power, NUMERIC, 0, 5, 4),
    # After the exact remainder one addition is rounded, in 16-bit floats a second time.
    "remainder": Row(np.remainder, NUMERIC, 1, 100, 1),
    "subtract": Row(np.subtract, NUMERIC, -100, 100),
}
PAIRS_OF_SHAPES = [
    *((s, s) for s in SHAPES),
    ((), (2, 3)),
    ((2, 3), (3,)),
    ((2, 1), (1, 3)),
    ((0, 3), (1, 3)),
    ((1,), (0,)),
    ((2, 1, 3), (4, 1)),
]


def each_dtype(table: dict[str, Row]) -> list[tuple[str, str]]:
    return [(name, dtype) for name, row in table.items() for dtype in row.dtypes]


def reference(f: Callable[..., Any], dtype: str, *arrays: np.ndarray) -> Any:
    """NumPy's answer; for floats in float64, so that it is better than what it judges."""
    with np.errstate(all="ignore"):
        return f(*(a.astype(np.float64) for a in arrays)) if dtype in FLOATS else f(*arrays)


@pytest.mark.parametrize(("name", "dtype"), each_dtype(UNARY))
def test_unary(name, dtype):
    row = UNARY[name]
    for shape in SHAPES:
        x = draw(dtype, shape, row.low, row.high)
        result = getattr(weft, name)(weft.asarray(x))
        check(result, reference(row.numpy, dtype, x), row.result or dtype, row.ulps)


@pytest.mark.parametrize(("name", "dtype"), each_dtype(BINARY))
def test_binary(name, dtype):
    row = BINARY[name]
    for a, b in PAIRS_OF_SHAPES:
        x, y = draw(dtype, a, row.low, row.high), draw(dtype, b, row.low, row.high, seed=1)
        result = getattr(weft, name)(weft.asarray(x), weft.asarray(y))
        check(result, reference(row.numpy, dtype, x, y), row.result or dtype, row.ulps)


@pytest.mark.parametrize(("name", "dtype"), each_dtype(BINARY))
def test_binary_with_a_python_scalar(name, dtype):
    row, function = BINARY[name], getattr(weft, name)
    x = draw(dtype, (4,), row.low, row.high)
    scalars = [True, False] if dtype == "bool" else [2, 1] if dtype in INTEGERS else [2, 1.5]
    for scalar in scalars:
        y = np.asarray(scalar).astype(x.dtype)
        check(function(weft.asarray(x), scalar), reference(row.numpy, dtype, x, y), row.result or dtype, row.ulps)
        check(function(scalar, weft.asarray(x)), reference(row.numpy, dtype, y, x), row.result or dtype, row.ulps)


# --- what the tables leave out -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
def test_nextafter(dtype):
    # Its own test: neither a wider float nor a tolerance makes sense here.
    x, y = draw(dtype, (2, 3)), draw(dtype, (3,), seed=1)
    x[0, 0] = y[0]
    check(weft.nextafter(weft.asarray(x), weft.asarray(y)), np.nextafter(x, y), dtype)
    info = weft.finfo(dtype_of(dtype))
    assert weft.nextafter(weft.ones((), dtype=dtype_of(dtype)), weft.inf).item() == 1 + info.eps
    assert weft.nextafter(weft.zeros((), dtype=dtype_of(dtype)), 1.0).item() == info.smallest_normal * info.eps


CLIP_BOUNDS = [(None, None), (-2, None), (None, 3), (-2, 3), (3, 3)]


@pytest.mark.parametrize("dtype", NUMERIC)
def test_clip(dtype):
    x = draw(dtype, (4, 5))
    for low, high in CLIP_BOUNDS:
        low = 0 if low is not None and dtype.startswith("u") else low
        expected = x if low is high is None else np.clip(x, low, high)
        check(weft.clip(weft.asarray(x), low, high), expected, dtype)
        check(weft.clip(weft.asarray(x), min=low, max=high), expected, dtype)
    low, high = np.sort(np.stack([draw(dtype, (4, 1), seed=1), draw(dtype, (4, 1), seed=2)]), axis=0)
    check(weft.clip(weft.asarray(x), weft.asarray(low), weft.asarray(high)), np.clip(x, low, high), dtype)
    check(weft.clip(weft.asarray(x[0]), weft.asarray(low), None), np.clip(x[0], low, None), dtype)


@pytest.mark.parametrize("dtype", NUMERIC)
def test_signs_in_division(dtype):
    # The quotient goes down and the remainder has the sign of the divisor, for all four pairs of signs.
    values = [7, 6, 1, 0] if dtype.startswith("u") else [7, -7, 6, -6, 1, -1, 0]
    x = np.asarray(values).astype(weft.zeros(0, dtype=dtype_of(dtype)).numpy().dtype)
    y = x[x != 0]
    a, b = weft.asarray(x[:, None]), weft.asarray(y)
    whole = np.asarray(values)
    divisors = whole[whole != 0]
    # A zero quotient may have either sign here: that is for the tests of special values.
    check(weft.floor_divide(a, b), whole[:, None] // divisors, dtype, zero_signs=False)
    check(weft.remainder(a, b), whole[:, None] % divisors, dtype, zero_signs=False)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_are_never_computed_as_floats(dtype):
    limits = np.iinfo(dtype)
    top, bottom = int(limits.max), int(limits.min)
    x = weft.asarray(np.asarray([top, top - 1, bottom, bottom + 1], dtype))
    for f in (weft.floor, weft.ceil, weft.trunc, weft.round, weft.positive):
        check(f(x), [top, top - 1, bottom, bottom + 1], dtype)
    check(weft.equal(x, top), [True, False, False, False], "bool")
    check(weft.less(x, top), [False, True, True, True], "bool")
    check(weft.greater(x, bottom), [True, True, False, True], "bool")
    check(weft.maximum(x, top - 1), [top, top - 1, top - 1, top - 1], dtype)
    check(weft.floor_divide(x, 2), [top // 2, (top - 1) // 2, bottom // 2, (bottom + 1) // 2], dtype)
    check(weft.remainder(x, 10), [v % 10 for v in (top, top - 1, bottom, bottom + 1)], dtype)
    check(weft.bitwise_right_shift(x, 1), [v >> 1 for v in (top, top - 1, bottom, bottom + 1)], dtype)
    check(weft.isfinite(x) & ~weft.isnan(x) & ~weft.isinf(x), [True] * 4, "bool")


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_wrap_around(dtype):
    limits = np.iinfo(dtype)
    x = np.asarray([limits.max, limits.min], dtype)
    for f, g in ((weft.add, np.add), (weft.multiply, np.multiply), (weft.subtract, np.subtract)):
        check(f(weft.asarray(x), weft.asarray(x[::-1].copy())), reference(g, dtype, x, x[::-1]), dtype)
    check(weft.negative(weft.asarray(x)), reference(np.negative, dtype, x), dtype)
    check(weft.abs(weft.asarray(x)), reference(np.abs, dtype, x), dtype)
    check(weft.square(weft.asarray(x)), reference(np.square, dtype, x), dtype)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", ["floor_divide", "remainder"])
def test_integer_division_by_zero_fails_when_computed(name, dtype):
    x = weft.asarray([1, 2], dtype=dtype_of(dtype))
    result = getattr(weft, name)(x, weft.asarray([1, 0], dtype=dtype_of(dtype)))
    with pytest.raises(weft.RunError, match="divided by zero"):
        result.numpy()


@pytest.mark.parametrize("dtype", SIGNED)
def test_what_has_no_meaning_for_negative_integers_fails_when_computed(dtype):
    x, minus = weft.asarray([1, 2], dtype=dtype_of(dtype)), weft.asarray([1, -1], dtype=dtype_of(dtype))
    for result in (x**minus, weft.bitwise_left_shift(x, minus), x >> minus):
        with pytest.raises(weft.RunError):
            result.numpy()


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_become_the_default_float(dtype):
    x = np.asarray([1, 2, 3], dtype)
    for f, g in ((weft.sqrt, np.sqrt), (weft.exp, np.exp), (weft.atan, np.arctan), (weft.reciprocal, lambda v: 1 / v)):
        check(f(weft.asarray(x)), g(x.astype(np.float64)), "float32", 4)
    for f, g in ((weft.divide, np.divide), (weft.atan2, np.arctan2), (weft.hypot, np.hypot)):
        check(f(weft.asarray(x), weft.asarray(x[::-1].copy())), g(x.astype(float), x[::-1].astype(float)), "float32", 4)


@pytest.mark.parametrize("name", ["abs", "sqrt", "sin", "floor", "negative", "sign", "square", "positive"])
def test_no_arithmetic_on_one_bool(name):
    with pytest.raises(weft.UserError, match="required, got bool"):
        getattr(weft, name)(weft.asarray([True, False]))


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide", "pow", "remainder", "hypot", "maximum"])
def test_no_arithmetic_on_two_bools(name):
    x = weft.asarray([True, False])
    with pytest.raises(weft.UserError, match="required, got bool"):
        getattr(weft, name)(x, x)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift"])
def test_no_bits_in_floats(name, dtype):
    x = weft.ones(2, dtype=dtype_of(dtype))
    with pytest.raises(weft.UserError, match="required, got"):
        getattr(weft, name)(x, x)


@pytest.mark.parametrize("target", DTYPES)
def test_astype(target):
    for source in DTYPES:
        for shape in SHAPES:
            x = draw(source, shape, 0, 100)
            expected = x.astype(np.float64) if source not in BITS else x
            expected = expected != 0 if target == "bool" else np.trunc(expected) if target in INTEGERS else expected
            check(weft.astype(weft.asarray(x), dtype_of(target)), expected, target)
            check(weft.asarray(x).astype(dtype_of(target)), expected, target)


def test_astype_of_floats_stops_at_the_ends_of_the_range():
    x = weft.asarray([3e9, -3e9, 200.9, -200.9, -0.9, weft.inf, -weft.inf, weft.nan], dtype=weft.float64)
    check(x.astype("int8"), [127, -128, 127, -128, 0, 127, -128, 0], "int8")
    check(x.astype("uint8"), [255, 0, 200, 0, 0, 255, 0, 0], "uint8")
    check(x.astype("bool"), [True] * 8, "bool")
    top, bottom = 2**63 - 1, -(2**63)
    check(x.astype("int64"), [3 * 10**9, -3 * 10**9, 200, -200, 0, top, bottom, 0], "int64")


def test_astype_between_integers_wraps():
    x = np.asarray([300, -1, 127, 128])
    for target in INTEGERS:
        check(weft.astype(weft.asarray(x), dtype_of(target)), x.astype(target), target)
