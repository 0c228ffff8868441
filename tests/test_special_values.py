"""Every elementwise function over a grid of special values: the definition, compiled code and GPU kernels give the same bits.

Zeros and nans of both signs, the infinities, subnormal numbers, the ends of the range; of integers the ends and their neighbours. What is
rounded (the mathematical functions) may be some ulps off, but not at an infinity or a nan, and not in the sign of a zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from special_values import all_of, compare, grid
from weft.dtypes import DTYPES, FLOATS, INTEGERS, DType, bfloat16, finfo, float16
from weft.testing import counted

pytest.importorskip("triton")
from triton_runner import run_graph


@pytest.mark.sweep(share=3.0)
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
    """The definition against Python's integers, modulo the width."""
    a, _, b, _ = grid(dtype)
    truncated = [abs(int(x)) // abs(int(y)) * (1 if (x < 0) == (y < 0) else -1) for x, y in zip(a, b, strict=True)]
    pairs = list(zip(a.tolist(), b.tolist(), strict=True))
    for f, expected in (
        (weft.floor_divide, [x // y for x, y in pairs]),
        (weft.remainder, [x % y for x, y in pairs]),
        (weft.fmod, [x - y * q for (x, y), q in zip(pairs, truncated, strict=True)]),
    ):
        wrapped = np.array([e % 2**dtype.bits for e in expected], f"u{dtype.itemsize}").view(dtype.numpy)
        with weft.knobs.set(device="reference"):
            np.testing.assert_array_equal(f(weft.asarray(a), weft.asarray(b)).numpy(), wrapped)
        counted()
