"""Every elementwise function over a grid of special values: kernels give the bits of the definition; see tests/special_values.py."""

import numpy as np
import pytest

import weft
from special_values import all_of, compare, grid, labels
from weft.dtypes import DTYPES, FLOATS, DType, bfloat16, float16

LEAST = np.finfo(np.float32).tiny  # of the normal float32 numbers


# NVIDIA's device functions take the least float32 numbers for 0, hypot is infinite near the largest float64, and converting a 16-bit nan
# loses its sign. Elsewhere all agree.
UNSURE = {"floor_divide", "remainder", "fmod", "nextafter", "atan2", "pow", "hypot", "copysign"}


def unsure_places(label: str, dtype: DType, expected: np.ndarray) -> np.ndarray:
    """Where a GPU may differ in such a function of the grid's values."""
    x, y, result = (np.abs(a.astype(np.float64)) for a in (*grid(dtype)[:2], expected))
    if label == "hypot":
        return np.maximum(x, y) > 1e308
    if label == "copysign":
        return np.isnan(y) & dtype.is_half
    least = [(v > 0) & (v <= LEAST) for v in (x, y, result)]
    return np.logical_or.reduce(least) & (dtype.bits <= 32)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_agrees_with_the_definition(dtype: DType) -> None:
    f, arrays = all_of(dtype), grid(dtype)
    with weft.knobs.set(device="reference"):
        expected = [r.numpy() for r in f(*map(weft.asarray, arrays))]
    actual = [r.numpy() for r in weft.jit(f)(*map(weft.asarray, arrays))]
    for number, (label, e) in enumerate(zip(labels(dtype), expected, strict=True)):
        if label in UNSURE and dtype.is_float:
            actual[number] = np.where(unsure_places(label, dtype, e), e, actual[number]).astype(e.dtype)
    compare("on the device", actual, expected, dtype)


@pytest.mark.parametrize("target", [float16, bfloat16], ids=lambda d: d.name)
def test_float64_is_rounded_once(target: DType) -> None:
    eps = weft.finfo(target).eps
    x = np.array([1 + eps / 2 + 2.0**-40, 1 + eps / 2 - 2.0**-40, 1 + eps / 2, 1 + 1.5 * eps, -1 - eps / 2 - 2.0**-40])
    rounded = weft.jit(lambda x: x.astype(target))(weft.asarray(x)).astype("float64")
    assert rounded.tolist() == [1 + eps, 1.0, 1.0, 1 + 2 * eps, -1 - eps]


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_the_greater_of_two_zeros_is_the_positive_one(dtype: DType) -> None:
    x = weft.asarray(np.array([[0.0, -0.0], [-0.0, 0.0], [-0.0, -0.0]]).astype(dtype.numpy))
    both = weft.jit(
        lambda x: (
            weft.maximum(x[:, 0], x[:, 1]),
            weft.max(x, axis=1),
            weft.minimum(x[:, 0], x[:, 1]),
            weft.min(x, axis=1),
        )
    )(x)
    for values, expected in zip(both, [[False, False, True]] * 2 + [[True] * 3] * 2, strict=True):
        assert np.signbit(values.numpy().astype(np.float64)).tolist() == expected
