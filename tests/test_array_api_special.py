"""Checks the special cases of the array API: nan, the infinities, zeros of both signs, halves, the ends of the range.

Every function runs over a grid of special values, and what the standard says in words stands below as tables.
"""

import math

import numpy as np
import pytest

import weft
from array_api_tools import FLOATS, check, dtype_of, numpy_dtype
from test_array_api_elementwise import BINARY, UNARY, reference

INF, NAN = math.inf, math.nan


def special_values(dtype: str) -> np.ndarray:
    info = weft.finfo(dtype_of(dtype))
    least = info.smallest_normal * info.eps
    sizes = [
        0.0,
        least,
        info.smallest_normal,
        0.25,
        0.5,
        1.0,
        1.5,
        2.0,
        2.5,
        3.0,
        3.5,
        10.0,
        1 / info.eps,
        info.max,
        INF,
    ]
    return np.asarray([*sizes, *(-s for s in sizes), NAN]).astype(numpy_dtype(dtype))


def quotient(a, b):
    """floor(a / b) by the words of the standard."""
    return np.where(np.isinf(a) | np.isinf(b), np.divide(a, b), np.floor_divide(a, b))


FLOAT_UNARY = [(n, d) for n, row in UNARY.items() for d in row.dtypes if d in FLOATS]
FLOAT_BINARY = [(n, d) for n, row in BINARY.items() for d in row.dtypes if d in FLOATS]
# The standard leaves open which zero they return.
EITHER_ZERO = {"maximum", "minimum", "sign"}
# Quotients that no float64 holds exactly: here the definition is that of the dtype itself.
IN_OWN_DTYPE = {"floor_divide", "remainder"}
# With infinities the standard wants the quotient itself, where NumPy follows Python.
BINARY = {**BINARY, "floor_divide": BINARY["floor_divide"]._replace(numpy=quotient)}
# Where exp(a) + exp(b) is nearly 1, the terms of its logarithm cancel.
LOOSE = {"logaddexp": 300}


@pytest.mark.parametrize(("name", "dtype"), FLOAT_UNARY)
def test_unary(name, dtype):
    row, x = UNARY[name], special_values(dtype)
    result = getattr(weft, name)(weft.asarray(x))
    check(result, reference(row.numpy, dtype, x), row.result or dtype, row.ulps, name not in EITHER_ZERO)


@pytest.mark.parametrize(("name", "dtype"), FLOAT_BINARY)
def test_binary(name, dtype):
    row, x = BINARY[name], special_values(dtype)
    own = name in IN_OWN_DTYPE and dtype in ("float32", "float64")
    with np.errstate(all="ignore"):
        expected = row.numpy(x[:, None], x) if own else reference(row.numpy, dtype, x[:, None], x)
    result = getattr(weft, name)(weft.asarray(x[:, None]), weft.asarray(x))
    check(result, expected, row.result or dtype, LOOSE.get(name, row.ulps), name not in EITHER_ZERO)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["pow", "remainder", "floor_divide", "atan2", "maximum", "copysign", "less", "equal"])
def test_special_scalars(name, dtype):
    # A scalar becomes a constant of the graph: nan, the infinities and -0.0 must survive that.
    row, x = BINARY[name], special_values(dtype)
    for scalar in (NAN, INF, -INF, 0.0, -0.0, 2.0, 0.5, -1.0):
        # A whole array of it: for one scalar exponent NumPy takes sqrt(), which is wrong at -inf and -0.0.
        y = np.full(x.shape, scalar).astype(x.dtype)
        own = name in IN_OWN_DTYPE and dtype in ("float32", "float64")
        for left in (True, False):
            a, b = (y, x) if left else (x, y)
            with np.errstate(all="ignore"):
                expected = row.numpy(a, b) if own else reference(row.numpy, dtype, a, b)
            tensor = weft.asarray(x)
            result = getattr(weft, name)(*((scalar, tensor) if left else (tensor, scalar)))
            check(result, expected, row.result or dtype, row.ulps, name not in EITHER_ZERO)


@pytest.mark.parametrize("dtype", FLOATS)
def test_nextafter(dtype):
    x = special_values(dtype)
    with np.errstate(all="ignore"):
        expected = np.where(
            x[:, None] == x, x, np.nextafter(x[:, None], x)
        )  # NumPy's of float16 zeros is not the standard's
    check(weft.nextafter(weft.asarray(x[:, None]), weft.asarray(x)), expected, dtype)


# --- in the words of the standard ----------------------------------------------------------------------------------------

PI = math.pi
UNARY_WORDS = {
    "abs": [(-0.0, 0.0), (-INF, INF), (NAN, NAN)],
    "acos": [(1.5, NAN), (1.0, 0.0), (-1.5, NAN)],
    "acosh": [(0.5, NAN), (1.0, 0.0), (INF, INF)],
    "asin": [(-0.0, -0.0), (1.5, NAN)],
    "atanh": [(1.0, INF), (-1.0, -INF), (1.5, NAN), (-0.0, -0.0)],
    "atan": [(-0.0, -0.0), (INF, PI / 2), (-INF, -PI / 2)],
    "ceil": [(-0.5, -0.0), (-0.0, -0.0), (0.5, 1.0), (-INF, -INF)],
    "cos": [(INF, NAN), (-0.0, 1.0)],
    "exp": [(-INF, 0.0), (INF, INF), (-0.0, 1.0)],
    "expm1": [(-INF, -1.0), (-0.0, -0.0), (INF, INF)],
    "floor": [(-0.5, -1.0), (-0.0, -0.0), (0.5, 0.0)],
    "log": [(-1.0, NAN), (0.0, -INF), (-0.0, -INF), (1.0, 0.0), (INF, INF)],
    "log1p": [(-1.5, NAN), (-1.0, -INF), (-0.0, -0.0), (INF, INF)],
    "reciprocal": [(0.0, INF), (-0.0, -INF), (INF, 0.0), (-INF, -0.0)],
    "round": [(0.5, 0.0), (1.5, 2.0), (2.5, 2.0), (-0.5, -0.0), (-1.5, -2.0), (-2.5, -2.0), (-0.0, -0.0)],
    "sign": [(NAN, NAN), (INF, 1.0), (-INF, -1.0), (-0.5, -1.0)],
    "sin": [(-0.0, -0.0), (INF, NAN)],
    "sqrt": [(-1.0, NAN), (-0.0, -0.0), (INF, INF)],
    "tanh": [(INF, 1.0), (-INF, -1.0), (-0.0, -0.0)],
    "trunc": [(-0.5, -0.0), (0.5, 0.0), (-1.5, -1.0), (INF, INF)],
}
BINARY_WORDS = {
    "add": [(INF, -INF, NAN), (-0.0, -0.0, -0.0), (-0.0, 0.0, 0.0)],
    "atan2": [
        (0.0, -0.0, PI), (-0.0, -0.0, -PI), (-0.0, 0.0, -0.0), (0.0, -1.0, PI), (INF, INF, PI / 4), (INF, -INF, 3 * PI / 4),
        (-INF, 1.0, -PI / 2), (1.0, -INF, PI), (-1.0, -INF, -PI), (-1.0, INF, -0.0), (1.0, 0.0, PI / 2), (NAN, 1.0, NAN),
    ],
    "copysign": [(1.0, -0.0, -1.0), (-1.0, 0.0, 1.0), (INF, -1.0, -INF), (NAN, -1.0, NAN)],
    "divide": [(0.0, 0.0, NAN), (1.0, -0.0, -INF), (INF, INF, NAN), (-1.0, INF, -0.0)],
    "floor_divide": [
        (1.0, INF, 0.0), (-1.0, INF, -0.0), (1.0, -INF, -0.0), (-1.0, -INF, 0.0), (INF, 2.0, INF), (-INF, 2.0, -INF), (INF, -2.0, -INF),
        (INF, INF, NAN), (1.0, 0.0, INF), (0.0, 0.0, NAN), (INF, -0.0, -INF),
    ],
    "hypot": [(INF, NAN, INF), (NAN, -INF, INF), (NAN, 1.0, NAN), (-0.0, -0.0, 0.0)],
    "logaddexp": [(-INF, -INF, -INF), (INF, -INF, INF), (-INF, 2.5, 2.5), (NAN, INF, NAN)],
    "maximum": [(NAN, INF, NAN), (-INF, NAN, NAN), (-INF, INF, INF)],
    "minimum": [(NAN, -INF, NAN), (1.0, NAN, NAN), (-INF, INF, -INF)],
    "multiply": [(INF, 0.0, NAN), (-1.0, 0.0, -0.0)],
    "pow": [
        (NAN, 0.0, 1.0), (NAN, -0.0, 1.0), (2.0, NAN, NAN), (1.0, NAN, 1.0), (2.0, INF, INF), (-2.0, INF, INF), (2.0, -INF, 0.0),
        (1.0, INF, 1.0), (-1.0, -INF, 1.0), (0.5, INF, 0.0), (0.5, -INF, INF), (INF, 2.0, INF), (INF, -2.0, 0.0), (-INF, 3.0, -INF),
        (-INF, 2.0, INF), (-INF, -3.0, -0.0), (-INF, -2.0, 0.0), (0.0, 3.0, 0.0), (0.0, -3.0, INF), (-0.0, 3.0, -0.0),
        (-0.0, 2.0, 0.0), (-0.0, -3.0, -INF), (-0.0, -2.0, INF), (-8.0, 0.5, NAN),
    ],
    "remainder": [(1.0, 0.0, NAN), (INF, 1.0, NAN), (-1.0, INF, INF), (1.0, -INF, -INF), (1.0, INF, 1.0), (-0.0, 3.0, 0.0)],
}  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", UNARY_WORDS)
def test_unary_words(name, dtype):
    x, expected = np.asarray(UNARY_WORDS[name]).T
    check(getattr(weft, name)(weft.asarray(x, dtype=dtype_of(dtype))), expected, dtype, 1)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", BINARY_WORDS)
def test_binary_words(name, dtype):
    x, y, expected = np.asarray(BINARY_WORDS[name]).T
    to = dtype_of(dtype)
    check(getattr(weft, name)(weft.asarray(x, dtype=to), weft.asarray(y, dtype=to)), expected, dtype, 1)


@pytest.mark.parametrize("dtype", FLOATS)
def test_clip(dtype):
    # nan as element or as bound gives nan.
    x = weft.asarray([NAN, -INF, -1.0, 0.5, 3.0, INF], dtype=dtype_of(dtype))
    check(weft.clip(x, -1.0, 2.0), [NAN, -1.0, -1.0, 0.5, 2.0, 2.0], dtype)
    check(weft.clip(x, -INF, INF), [NAN, -INF, -1.0, 0.5, 3.0, INF], dtype)
    for low, high in ((NAN, 2.0), (-1.0, NAN), (NAN, NAN), (NAN, None), (None, NAN)):
        check(weft.clip(x, low, high), [NAN] * 6, dtype)
        bounds = [b if b is None else weft.full(6, b, dtype=x.dtype) for b in (low, high)]
        check(weft.clip(x, *bounds), [NAN] * 6, dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_signbit_and_copysign_see_the_sign_of_nan(dtype):
    x = weft.asarray(np.copysign([NAN, NAN, 0.0, 0.0], [1, -1, 1, -1]), dtype=dtype_of(dtype))
    check(weft.signbit(x), [False, True, False, True], "bool")
    check(weft.copysign(2.0, x), [2.0, -2.0, 2.0, -2.0], dtype)
    check(weft.signbit(weft.copysign(weft.full(4, NAN, dtype=x.dtype), x)), [False, True, False, True], "bool")


@pytest.mark.parametrize("dtype", FLOATS)
def test_real_numbers_have_no_imaginary_part(dtype):
    x = special_values(dtype)
    check(weft.imag(weft.asarray(x)), np.zeros(x.shape), dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_truth_of_special_values(dtype):
    # Everything but the zeros is true, also nan.
    x = special_values(dtype)
    expected = x.astype(np.float64) != 0
    check(weft.astype(weft.asarray(x), weft.bool), expected, "bool")
    check(weft.logical_not(weft.asarray(x)), ~expected, "bool")
    check(weft.count_nonzero(weft.asarray(x)), expected.sum(), "int64")
    check(weft.any(weft.asarray([0.0, NAN], dtype=dtype_of(dtype))), True, "bool")
    check(weft.all(weft.asarray([1.0, NAN, -INF], dtype=dtype_of(dtype))), True, "bool")


@pytest.mark.parametrize("dtype", FLOATS)
def test_special_values_are_kept_by_creation_and_movement(dtype):
    x = special_values(dtype)
    t = weft.asarray(x)
    check(t, x, dtype)
    for same in (
        t[::-1][::-1],
        weft.concat([t[:3], t[3:]]),
        weft.where(t == t, t, NAN),
        weft.roll(weft.roll(t, 2), -2),
    ):
        check(same, x, dtype)
    for value in (NAN, INF, -INF, 0.0, -0.0):
        check(weft.full((2, 2), value, dtype=dtype_of(dtype)), np.full((2, 2), value), dtype)
        check(weft.asarray(value, dtype=dtype_of(dtype)), value, dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_special_values_in_statistics(dtype):
    to = dtype_of(dtype)
    x = weft.asarray([[1.0, NAN], [2.0, 3.0], [INF, -INF], [-0.0, -0.0]], dtype=to)
    check(weft.max(x, axis=1), [NAN, 3.0, INF, 0.0], dtype, zero_signs=False)
    check(weft.min(x, axis=1), [NAN, 2.0, -INF, 0.0], dtype, zero_signs=False)
    check(weft.sum(x, axis=1), [NAN, 5.0, NAN, 0.0], dtype, zero_signs=False)
    check(weft.prod(x, axis=1), [NAN, 6.0, -INF, 0.0], dtype)
    check(weft.mean(x, axis=1), [NAN, 2.5, NAN, 0.0], dtype, zero_signs=False)
    check(weft.var(x, axis=1), [NAN, 0.25, NAN, 0.0], dtype)
    check(weft.std(x, axis=1), [NAN, 0.5, NAN, 0.0], dtype)
    check(weft.cumulative_sum(x[0]), [1.0, NAN], dtype)
    check(weft.mean(weft.zeros((2, 0), dtype=to), axis=1), [NAN, NAN], dtype)
