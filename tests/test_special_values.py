"""Every elementwise function over a grid of special values: the definition, compiled code and GPU kernels give the same bits.

Zeros and nans of both signs, the infinities, subnormal numbers, the ends of the range; of integers the ends and their neighbours. What is
rounded (the mathematical functions) may be some ulps off, but not at an infinity or a nan, and not in the sign of a zero.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import weft
from weft.dtypes import DTYPES, FLOATS, INTEGERS, DType, bfloat16, bool_, finfo, float16, iinfo
from weft.testing import counted

os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")
from triton_runner import run_graph

ROUNDED = [
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "cos",
    "cosh",
    "exp",
    "expm1",
    "log",
    "log1p",
    "log2",
    "log10",
    "sigmoid",
    "erf",
    "sin",
    "sinh",
    "tan",
    "tanh",
    "atan2",
    "hypot",
    "logaddexp",
    "pow",
    "exp2",
]
UNARY = [
    "abs",
    "ceil",
    "floor",
    "trunc",
    "round",
    "negative",
    "positive",
    "sign",
    "signbit",
    "sqrt",
    "square",
    "reciprocal",
    "isnan",
    "isinf",
    "isfinite",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "cos",
    "cosh",
    "exp",
    "expm1",
    "log",
    "log1p",
    "log2",
    "log10",
    "sigmoid",
    "erf",
    "sin",
    "sinh",
    "tan",
    "tanh",
]
BINARY = [
    "add",
    "subtract",
    "multiply",
    "divide",
    "floor_divide",
    "remainder",
    "fmod",
    "maximum",
    "minimum",
    "copysign",
    "nextafter",
    "atan2",
    "hypot",
    "logaddexp",
    "pow",
    "equal",
    "not_equal",
    "less",
    "less_equal",
    "greater",
    "greater_equal",
]
OF_INTEGERS = [
    "abs",
    "negative",
    "sign",
    "square",
    "add",
    "subtract",
    "multiply",
    "floor_divide",
    "remainder",
    "fmod",
    "maximum",
    "minimum",
    "pow",
    "equal",
    "not_equal",
    "less",
    "less_equal",
    "greater",
    "greater_equal",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_right_shift",
]
OF_BOOLS = [
    "equal",
    "not_equal",
    "less",
    "less_equal",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "bitwise_invert",
    "logical_and",
    "logical_not",
]
DIVIDES, COUNTS = ("floor_divide", "remainder", "fmod"), ("pow", "bitwise_left_shift", "bitwise_right_shift")
ULPS = 4


def special_values(dtype: DType) -> np.ndarray:
    if dtype is bool_:
        return np.array([False, True])
    if dtype.is_integer:
        low, high = iinfo(dtype).min, iinfo(dtype).max
        small = [-5, -2, -1] if low else [7]
        return np.array([low, low + 1, *small, 0, 1, 2, 3, 5, high - 1, high], dtype.numpy)
    info = finfo(dtype)
    sizes = [
        0.0,
        info.smallest_normal * info.eps,
        info.smallest_normal,
        0.5,
        1.0,
        1.5,
        2.5,
        5.0,
        info.max,
        math.inf,
        math.nan,
    ]
    return np.array([*sizes, *(-s for s in sizes)]).astype(dtype.numpy)


def names(dtype: DType) -> list[str]:
    return UNARY + BINARY if dtype.is_float else OF_BOOLS if dtype is bool_ else OF_INTEGERS


def all_of(dtype: DType) -> Callable[..., tuple[Any, ...]]:
    """A function of two tensors, a divisor and a count, that applies every function and every conversion."""

    def apply(x: Any, y: Any, divisor: Any, count: Any) -> tuple[Any, ...]:
        results = []
        for name in names(dtype):
            second = divisor if name in DIVIDES else count if name in COUNTS else y
            unary = name in UNARY or name in ("bitwise_invert", "logical_not")
            results.append(getattr(weft, name)(*(x,) if unary else (x, second)))
        return (*results, *(x.astype(other) for other in DTYPES if other is not dtype))

    return apply


def labels(dtype: DType) -> list[str]:
    return [*names(dtype), *(f"to {other.name}" for other in DTYPES if other is not dtype)]


def grid(dtype: DType) -> list[np.ndarray]:
    """Every pair of special values; for integers a divisor that is not 0 and a count that is not negative."""
    x = special_values(dtype)
    a, b = (np.ascontiguousarray(v).ravel() for v in np.broadcast_arrays(x[:, None], x))
    if not dtype.is_integer:
        return [a, b, b, b]
    return [a, b, np.where(b == 0, 1, b).astype(b.dtype), np.where(b < 0, 9, b).astype(b.dtype)]


def distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """How many ulps two arrays are apart; infinitely many between numbers, infinities, nans, and zeros of either sign."""
    if a.dtype.kind in "biu":
        return np.where(a == b, 0.0, math.inf)
    wide = [v.astype(np.float64) for v in (a, b)]
    same = (np.isnan(wide[0]) == np.isnan(wide[1])) & (np.isinf(wide[0]) == np.isinf(wide[1]))
    same &= (wide[0] != wide[1]) | (np.signbit(wide[0]) == np.signbit(wide[1]))
    apart = abs(_ordered(a) - _ordered(b))
    return np.where(same, np.where(np.isnan(wide[0]), 0, apart), math.inf)


def _ordered(x: np.ndarray) -> np.ndarray:
    """The floats numbered in their order."""
    size = x.dtype.itemsize
    bits = x.view(f"i{size}").astype(np.float64 if size < 8 else np.longdouble)
    return np.where(bits < 0, -(bits + 2.0 ** (8 * size - 1)), bits)


def compare(way: str, actual: Sequence[np.ndarray], expected: Sequence[np.ndarray], dtype: DType) -> None:
    x, y = grid(dtype)[:2]
    for label, a, e in zip(labels(dtype), actual, expected, strict=True):
        off = distance(np.ascontiguousarray(a), np.ascontiguousarray(e))
        most = ULPS if label in ROUNDED and dtype.is_float else 0
        wrong = [(x[i], y[i], a[i], "instead of", e[i]) for i in np.flatnonzero(off > most)[:4]]
        assert not wrong, f"{label} of {dtype.name}, {way}: {wrong}"
        counted()


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_all_ways_agree(dtype: DType) -> None:
    f, arrays = all_of(dtype), grid(dtype)
    with weft.knobs.set(device="reference"):
        expected = [r.numpy() for r in f(*map(weft.asarray, arrays))]
    compare("compiled", [r.numpy() for r in weft.jit(f)(*map(weft.asarray, arrays))], expected, dtype)
    compare("on a GPU", run_graph(weft.make_graph(f, *arrays), arrays), expected, dtype)


def in_every_way(f: Callable[..., Any], *arrays: np.ndarray) -> list[np.ndarray]:
    """By definition, compiled, and as a GPU kernel."""
    with weft.knobs.set(device="reference"):
        defined = f(*map(weft.asarray, arrays)).numpy()
    return [
        defined,
        weft.jit(f)(*map(weft.asarray, arrays)).numpy(),
        run_graph(weft.make_graph(f, *arrays), list(arrays))[0],
    ]


# --- rounding -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [float16, bfloat16], ids=lambda d: d.name)
def test_float64_is_rounded_once(target: DType) -> None:
    """Just beside the middle of two neighbours the way over float32 would round twice."""
    info = finfo(target)
    start = np.array(
        [1.0, 1.5, 37.0, info.max / 2, info.max, info.smallest_normal, 5 * info.smallest_normal * info.eps, 0.0]
    )
    step = np.maximum(np.ldexp(info.eps, np.frexp(start)[1] - 1), info.smallest_normal * info.eps)
    middles = start + step / 2
    nudges = np.array([0.0, 2.0**-40, -(2.0**-40)])
    x = (middles[:, None] * (1.0 + nudges)).ravel()
    x = np.concatenate([x, -x, np.array([math.inf, -math.inf, math.nan, 1e300, 1e-300])])
    expected = rounded_exactly(x, target)
    for actual in in_every_way(lambda x: x.astype(target), x):
        np.testing.assert_array_equal(actual.astype(np.float64), expected)
        counted()
    np.testing.assert_array_equal(weft.asarray(x, dtype=target).numpy().astype(np.float64), expected)
    constants = [(weft.zeros((), dtype=target) + float(v)).item() for v in x[np.isfinite(x) & (abs(x) < info.max)]]
    np.testing.assert_array_equal(constants, expected[np.isfinite(x) & (abs(x) < info.max)])


def rounded_exactly(x: np.ndarray, target: DType) -> np.ndarray:
    """To the nearest number of the dtype, halves to even, in exact arithmetic: scaled so that an ulp is 1."""
    info = finfo(target)
    with np.errstate(all="ignore"):
        unit = np.maximum(np.ldexp(info.eps, np.frexp(x)[1] - 1), info.smallest_normal * info.eps)
        near = np.where(np.isfinite(x), np.round(x / unit) * unit, x)  # a power of two: both are exact
        return np.where(np.abs(near) > info.max, np.copysign(math.inf, x), near)


# --- zeros --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_the_greater_of_two_zeros_is_the_positive_one(dtype: DType) -> None:
    """IEEE 754-2019, and the same for reductions and windows, whatever the order."""
    x = np.array([[0.0, -0.0], [-0.0, 0.0], [-0.0, -0.0], [0.0, 0.0], [-1.0, -0.0], [1.0, -0.0]]).astype(dtype.numpy)
    greatest, least = [False, False, True, False, True, False], [True, True, True, False, True, True]
    for f, expected in (
        (lambda x: weft.maximum(x[:, 0], x[:, 1]), greatest),
        (lambda x: weft.minimum(x[:, 0], x[:, 1]), least),
        (lambda x: weft.max(x, axis=1), greatest),
        (lambda x: weft.min(x, axis=1), least),
        (lambda x: weft.max_pool(x[:, None, :], 2)[:, 0, 0], greatest),
    ):
        for actual in in_every_way(f, x):
            assert np.signbit(actual.astype(np.float64)).tolist() == expected
            counted()


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_the_sign_of_a_constant_nan(dtype: DType) -> None:
    x = np.zeros(3, dtype.numpy)
    for value, expected in ((-math.nan, True), (math.nan, False)):
        for actual in in_every_way(lambda x, v=value: weft.signbit(weft.full(3, v, dtype=dtype)) | (x > 0.0), x):
            assert actual.tolist() == [expected] * 3
            counted()
    assert weft.signbit(-math.nan).item()
    assert not weft.signbit(math.nan).item()


# --- division -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_floor_divide_with_infinities(dtype: DType) -> None:
    """The array API's special cases: the quotient itself."""
    inf = math.inf
    rows = [
        (inf, 2.0, inf),
        (-inf, 2.0, -inf),
        (inf, -2.0, -inf),
        (5.0, inf, 0.0),
        (5.0, -inf, -0.0),
        (-5.0, inf, -0.0),
        (-5.0, -inf, 0.0),
    ]
    rows += [
        (inf, inf, math.nan),
        (-inf, inf, math.nan),
        (inf, 0.0, inf),
        (inf, -0.0, -inf),
        (0.0, -inf, -0.0),
        (0.0, 0.0, math.nan),
    ]
    a, b, expected = (np.array(column) for column in zip(*rows, strict=True))
    for actual in in_every_way(weft.floor_divide, a.astype(dtype.numpy), b.astype(dtype.numpy)):
        np.testing.assert_array_equal(actual.astype(np.float64), expected)
        np.testing.assert_array_equal(np.signbit(actual.astype(np.float64)[:7]), np.signbit(expected[:7]))
        counted()


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: d.name)
def test_integer_division_at_the_ends_of_the_range(dtype: DType) -> None:
    """Against Python's integers, modulo the width."""
    a, _, b, _ = grid(dtype)
    truncated = [abs(int(x)) // abs(int(y)) * (1 if (x < 0) == (y < 0) else -1) for x, y in zip(a, b, strict=True)]
    pairs = list(zip(a.tolist(), b.tolist(), strict=True))
    for f, expected in (
        (weft.floor_divide, [x // y for x, y in pairs]),
        (weft.remainder, [x % y for x, y in pairs]),
        (weft.fmod, [x - y * q for (x, y), q in zip(pairs, truncated, strict=True)]),
    ):
        wrapped = np.array([e % 2**dtype.bits for e in expected], f"u{dtype.itemsize}").view(dtype.numpy)
        for actual in in_every_way(f, a, b):
            np.testing.assert_array_equal(actual, wrapped)
            counted()
