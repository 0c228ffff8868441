"""Tensors beside Python's and NumPy's numbers and arrays: comparisons by value, operators from the other side, NumPy's functions."""

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft.dtypes import FLOATS, INTEGERS, DType, bool_, finfo, iinfo
from weft.testing import counted

COMPARISONS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]
INTS = [300, -1, -129, 2**40, -(2**40), 2**63, 2**64, -(2**63) - 1, 2**70, -(2**200), 2**2000]


def some(dtype: DType) -> np.ndarray:
    if dtype is bool_:
        return np.array([False, True])
    if dtype.is_integer:
        return np.array([iinfo(dtype).min, 0, 1, iinfo(dtype).max], dtype.numpy)
    return np.array([-math.inf, finfo(dtype).min, 0.0, finfo(dtype).max, math.inf, math.nan]).astype(dtype.numpy)


def by_value(compare: Callable[[Any, Any], bool], array: np.ndarray, value: int, from_left: bool) -> list[bool]:
    """Python compares ints and floats exactly."""
    items = [float(v) if v.dtype.kind not in "biu" else int(v) for v in array]
    return [compare(value, v) if from_left else compare(v, value) for v in items]


@pytest.mark.parametrize("dtype", [bool_, *INTEGERS, *FLOATS], ids=lambda d: d.name)
def test_ints_that_the_dtype_does_not_hold_are_compared_by_value(dtype: DType) -> None:
    array = some(dtype)
    low, high = (
        (-math.inf, math.inf) if dtype.is_float else (0, 1) if dtype is bool_ else (iinfo(dtype).min, iinfo(dtype).max)
    )
    values = (
        [v for v in INTS if abs(v) > finfo(dtype).max] if dtype.is_float else [v for v in INTS if not low <= v <= high]
    )
    assert values

    def all_of(x: Any) -> list[Any]:
        return [compare(*pair) for v in values for compare in COMPARISONS for pair in ((x, v), (v, x))]

    expected = [by_value(c, array, v, left) for v in values for c in COMPARISONS for left in (False, True)]
    for results in (all_of(weft.asarray(array)), weft.jit(all_of)(weft.asarray(array))):
        assert [r.tolist() for r in results] == expected
        counted(len(expected))
    assert all(r.dtype is bool_ and r.shape == array.shape for r in all_of(weft.asarray(array)))


def test_membership_and_arithmetic() -> None:
    x = weft.asarray([1, 255], dtype="uint8")
    assert 300 not in x
    assert np.int64(255) in x
    with pytest.raises(weft.UserError, match="300 does not fit into uint8"):  # what is computed has to have a dtype
        x + 300
    counted(3)


# --- Python's functions ---------------------------------------------------------------------------------------------------


def test_round_and_divmod() -> None:
    x = np.array([2.5, -3.5, 0.125, 1234.5])
    t = weft.asarray(x)
    for f in (round, lambda v: round(v, 2), lambda v: round(v, -2)):
        for actual in (f(t), weft.jit(f)(t)):
            assert actual.dtype is weft.float64
            np.testing.assert_array_equal(actual.numpy(), [f(v) for v in x.tolist()])
            counted()
    whole = weft.asarray([7, -7], dtype="int8")
    assert round(whole).tolist() == [7, -7]
    assert [r.tolist() for r in divmod(whole, 2)] == [[3, -4], [1, 1]]
    assert [r.tolist() for r in divmod(9, whole)] == [[1, -2], [2, -5]]
    assert [r.tolist() for r in weft.jit(lambda v: divmod(v, 2))(whole)] == [[3, -4], [1, 1]]
    counted(4)


# --- NumPy's --------------------------------------------------------------------------------------------------------------

UNARY = [
    "sin",
    "arctan",
    "arcsinh",
    "exp",
    "log1p",
    "sqrt",
    "absolute",
    "fabs",
    "negative",
    "positive",
    "rint",
    "floor",
    "isnan",
    "signbit",
    "square",
    "reciprocal",
    "sign",
    "conjugate",
]
BINARY = [
    "add",
    "subtract",
    "multiply",
    "true_divide",
    "floor_divide",
    "mod",
    "power",
    "maximum",
    "arctan2",
    "hypot",
    "copysign",
    "less",
    "not_equal",
    "logical_and",
    "fmod",
]


@pytest.mark.sweep(share=1.0)
@pytest.mark.parametrize("name", [*UNARY, *BINARY])
def test_universal_functions_give_tensors(name: str) -> None:
    """Of a tensor, and of a tensor and an array or a number of NumPy's on either side; eager and compiled."""
    ufunc, x, y = getattr(np, name), np.array([0.5, 1.0, 2.0]), np.array([1.5, 0.25, 2.0])
    t = weft.asarray(x)
    cases = (
        [((t,), (x,))]
        if name in UNARY
        else [((t, y), (x, y)), ((y, t), (y, x)), ((t, np.float32(2)), (x, 2.0)), ((np.float64(2), t), (2.0, x))]
    )
    for given, plain in cases:
        expected = ufunc(*plain)
        compiled = weft.jit(lambda t, given=given: ufunc(*[t if isinstance(g, weft.Tensor) else g for g in given]))
        for actual in (ufunc(*given), compiled(t)):
            assert isinstance(actual, weft.Tensor)
            assert actual.dtype is weft.asarray(expected).dtype
            np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-14)
            counted()


def test_operators_from_the_other_side() -> None:
    t = weft.asarray([1.0, 2.0])
    assert (np.float32(2) * t).dtype is weft.float32
    assert (np.arange(2.0) - t).tolist() == [-1.0, -1.0]
    assert (np.ones((2, 2)) @ t).tolist() == [3.0, 3.0]
    assert (np.float64(1.5) < t).tolist() == [False, True]
    assert [r.tolist() for r in np.divmod(t, 2)] == [[0.0, 1.0], [1.0, 0.0]]
    array = np.ones(2)
    array += t  # NumPy's own array stays one
    assert isinstance(array, np.ndarray)
    assert array.tolist() == [2.0, 3.0]
    assert weft.grad(lambda x: np.sin(x).sum())(weft.asarray([0.0])).tolist() == [1.0]
    counted(7)


def test_other_functions_of_numpy_give_arrays() -> None:
    x = np.array([[1.0, 2.0], [3.0, 4.0]])
    t = weft.asarray(x)
    for f in (
        np.sum, np.mean, np.max, np.argmax, np.linalg.norm, np.cumsum, np.squeeze, np.median, np.add.reduce, lambda v: np.stack([v, v]),
        lambda v: np.concatenate([v, x]), lambda v: np.where(v > 2.0, v, 0.0), lambda v: np.sum(v, axis=0), lambda v: np.add(v, 1.0, out=np.zeros((2, 2))),
    ):  # fmt: skip
        actual = f(t)
        assert isinstance(actual, np.ndarray | np.generic)
        np.testing.assert_array_equal(actual, f(x))
        counted()


def test_what_weft_does_not_have_is_said() -> None:
    t = weft.asarray([1.0, 2.0])
    with pytest.raises(
        weft.UserError,
        match=r"\[numpy\] weft has no function like np.cbrt. Pass the value: np.cbrt\(tensor.numpy\(\)\)",
    ):
        np.cbrt(t)
    with pytest.raises(weft.UserError, match=r"np.sin of tensors takes no settings, got dtype"):
        np.sin(t, dtype=np.float32)
    with pytest.raises(weft.UserError, match="being traced"):
        weft.jit(lambda x: weft.asarray(np.sum(x)))(t)
    counted(3)
