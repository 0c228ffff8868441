"""What the array API tests share: the dtypes, sample arrays, and how a tensor is compared with what NumPy says."""

from typing import Any

import numpy as np

import weft

SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = SIGNED + UNSIGNED
HALVES = ("float16", "bfloat16")
STANDARD_FLOATS = ("float32", "float64")
FLOATS = HALVES + STANDARD_FLOATS
NUMERIC = INTEGERS + FLOATS
BITS = ("bool", *INTEGERS)
DTYPES = ("bool", *NUMERIC)
STANDARD_DTYPES = ("bool", *INTEGERS, *STANDARD_FLOATS)

# Zero-dimensional, empty, plain.
SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (3,), (2, 3))


def dtype_of(name: str) -> weft.DType:
    return getattr(weft, name)


def numpy_dtype(name: str) -> np.dtype:
    return dtype_of(name).numpy


def draw(dtype: str, shape: tuple[int, ...], low: float = -9, high: float = 9, seed: int = 0) -> np.ndarray:
    """A random array; integers stay inside their range, and floats are rounded to their dtype."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return np.asarray(rng.random(shape) < 0.5)
    if dtype in FLOATS:
        return np.asarray(rng.uniform(low, high, shape)).astype(numpy_dtype(dtype))
    limits = np.iinfo(dtype)
    values = rng.integers(max(int(low), limits.min), min(int(high), limits.max), shape, endpoint=True)
    return np.asarray(values).astype(dtype)


def draw_whole(dtype: str, shape: tuple[int, ...], low: float = -9, high: float = 9, seed: int = 0) -> np.ndarray:
    """Whole numbers, whose sums are exact in any order and some of which are equal; no -0.0."""
    x = draw(dtype, shape, low, high, seed)
    return np.asarray(np.round(x) + x.dtype.type(0)) if dtype in FLOATS else x


def ulp(values: np.ndarray, dtype: str) -> np.ndarray:
    """The distance to the next number of the dtype. NumPy's spacing() does not know bfloat16."""
    info = weft.finfo(dtype_of(dtype))
    exponent = np.frexp(values)[1] - 1
    return np.maximum(np.ldexp(info.eps, exponent), info.smallest_normal * info.eps)


def check(tensor: Any, expected: Any, dtype: str, ulps: float = 0, zero_signs: bool = True) -> None:
    """Compare type, shape and values. Floats are expected as float64 and may be off by some ulps of their dtype."""
    assert isinstance(tensor, weft.Tensor)
    expected = np.asarray(expected)
    assert (tensor.dtype, tensor.shape) == (dtype_of(dtype), expected.shape)
    actual = tensor.numpy()
    assert (actual.dtype, actual.shape) == (numpy_dtype(dtype), expected.shape)
    if dtype in FLOATS:
        with np.errstate(all="ignore"):
            rounded = expected.astype(numpy_dtype(dtype)).astype(np.float64)
        check_floats(actual.astype(np.float64), rounded, dtype, ulps, zero_signs)
    else:
        np.testing.assert_array_equal(actual, expected)


def check_floats(actual: np.ndarray, expected: np.ndarray, dtype: str, ulps: float, zero_signs: bool) -> None:
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(np.where(np.isfinite(actual), 0.0, actual), np.where(finite, 0.0, expected))
    actual, expected = actual[finite], expected[finite]
    wrong = np.abs(actual - expected) > ulps * ulp(expected, dtype)
    assert not wrong.any(), f"{actual[wrong]} instead of {expected[wrong]}"
    if zero_signs:
        zero = (expected == 0) & (actual == 0)
        np.testing.assert_array_equal(np.signbit(actual[zero]), np.signbit(expected[zero]))


def check_same(actual: Any, expected: Any, ulps: float = 0) -> None:
    """Compare what weft returned with what another namespace did: an array, or a tuple or list of arrays."""
    if isinstance(expected, tuple | list):
        assert isinstance(actual, tuple | list)
        assert len(actual) == len(expected)
        for a, e in zip(actual, expected, strict=True):
            check_same(a, e, ulps)
        return
    expected = np.asarray(expected)
    check(actual, expected, expected.dtype.name, ulps)
