"""Checks the array API's statistical, searching, sorting, set and utility functions against array_api_strict."""

import math
from typing import Any

import array_api_strict as strict
import numpy as np
import pytest

import weft
from array_api_tools import (
    DTYPES,
    FLOATS,
    HALVES,
    INTEGERS,
    NUMERIC,
    SIGNED,
    STANDARD_DTYPES,
    STANDARD_FLOATS,
    UNSIGNED,
    check,
    check_same,
    draw,
    draw_whole,
    dtype_of,
)
from sampling import sampled

STANDARD_NUMERIC = INTEGERS + STANDARD_FLOATS
# Shapes and the axes to fold in them; empty ones too.
FOLDS: list[tuple[tuple[int, ...], list[Any]]] = [
    ((), [None, ()]),
    ((4,), [None, 0, -1, (0,), ()]),
    ((2, 3, 4), [None, 0, 1, -1, (0, 2), (-1, 0), (0, 1, 2), ()]),
    ((0, 3), [1, -1]),
]
FOLDS_OF_NOTHING: list[tuple[tuple[int, ...], list[Any]]] = [((0,), [None, 0]), ((2, 0, 3), [None, 1, (0, 1)])]
LEGAL = {
    "sum": STANDARD_NUMERIC,
    "prod": STANDARD_NUMERIC,
    "max": STANDARD_NUMERIC,
    "min": STANDARD_NUMERIC,
    "mean": STANDARD_FLOATS,
    "var": STANDARD_FLOATS,
    "std": STANDARD_FLOATS,
    "any": STANDARD_DTYPES,
    "all": STANDARD_DTYPES,
    "count_nonzero": STANDARD_DTYPES,
}


def both(name: str, x: np.ndarray, ulps: float = 0, **kwargs: Any) -> None:
    """The same call in weft and array_api_strict; dtypes are given by name."""
    for_weft = {k: dtype_of(v) if k == "dtype" else v for k, v in kwargs.items()}
    for_strict = {k: getattr(strict, v) if k == "dtype" else v for k, v in kwargs.items()}
    expected = getattr(strict, name)(strict.asarray(x), **for_strict)
    check_same(getattr(weft, name)(weft.asarray(x), **for_weft), expected, ulps)


@pytest.mark.sweep("name", share=0.5)
@pytest.mark.parametrize(("name", "dtype"), [(n, d) for n, dtypes in LEGAL.items() for d in dtypes])
def test_fold(name, dtype):
    of_nothing = [] if name in ("max", "min", "mean", "var", "std") else FOLDS_OF_NOTHING
    for shape, axes in FOLDS + of_nothing:
        x = draw_whole(dtype, shape, -3, 3)
        for axis in axes:
            for keepdims in (False, True):
                both(name, x, 4, axis=axis, keepdims=keepdims)


@pytest.mark.sweep("name", share=0.5)
@pytest.mark.parametrize("target", STANDARD_NUMERIC)
@pytest.mark.parametrize("name", ["sum", "prod"])
def test_fold_into_another_dtype(name, target):
    for source in STANDARD_NUMERIC if target in STANDARD_FLOATS else INTEGERS:
        both(name, draw_whole(source, (2, 3), 0, 3), 4, axis=1, dtype=target)


def test_sums_do_not_overflow_small_integers():
    for dtype in SIGNED:
        check(weft.sum(weft.full(9, 100, dtype=dtype_of(dtype))), 900, "int64")
    for dtype in UNSIGNED:
        check(weft.prod(weft.full(3, 100, dtype=dtype_of(dtype))), 10**6, "uint64")
        check(weft.cumulative_sum(weft.full(3, 100, dtype=dtype_of(dtype))), [100, 200, 300], "uint64")
    check(weft.sum(weft.asarray([True, True, False])), 2, "int64")


@pytest.mark.parametrize("dtype", HALVES)
def test_statistics_of_16_bit_floats(dtype):
    for shape, axes in FOLDS:
        x = draw(dtype, shape, 0.5, 2)
        wide = x.astype(np.float64)
        for axis in axes:
            for name in ("sum", "prod", "max", "min", "mean", "var", "std"):
                result = getattr(weft, name)(weft.asarray(x), axis=axis)
                check(result, getattr(np, name)(wide, axis=axis), dtype, 4)


def test_means_and_spreads_do_not_overflow_on_the_way():
    # float16 ends at 65504: the results lie well inside, the sums on the way to them outside.
    check(weft.mean(weft.full(100, 1000.0, dtype=weft.float16)), 1000.0, "float16", 1)
    y = weft.asarray([100.0, -100.0] * 8, dtype=weft.float16)
    check(weft.var(y), 10000.0, "float16", 1)
    check(weft.std(y), 100.0, "float16", 1)


@pytest.mark.parametrize("name", ["var", "std"])
@pytest.mark.parametrize("dtype", STANDARD_FLOATS)
def test_correction(name, dtype):
    for correction in (0, 1, 2, 0.5, -1, 0.0):
        both(name, draw(dtype, (3, 4)), 8, axis=1, correction=correction)
        both(name, draw(dtype, (3, 4)), 8, correction=correction, keepdims=True)


@pytest.mark.parametrize("name", ["var", "std"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_spread_without_degrees_of_freedom_is_nan(name, dtype):
    x = weft.asarray([1.0, 2.0, 4.0], dtype=dtype_of(dtype))
    for correction in (3, 3.5, 4):
        check(getattr(weft, name)(x, correction=correction), math.nan, dtype)
    check(getattr(weft, name)(weft.zeros((2, 0), dtype=x.dtype), axis=1), [math.nan] * 2, dtype)


@pytest.mark.parametrize("dtype", ["bool", *INTEGERS])
def test_statistics_of_integers_are_default_floats(dtype):
    x = draw(dtype, (3, 4), 0, 9)
    for name in ("mean", "var", "std"):
        result = getattr(weft, name)(weft.asarray(x), axis=0)
        check(result, getattr(np, name)(x.astype(np.float64), axis=0), "float32", 4)


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
def test_no_extreme_of_nothing(name):
    for shape, axis in (((0,), None), ((2, 0), 1)):
        with pytest.raises(weft.UserError, match="no elements"):
            getattr(weft, name)(weft.zeros(shape), axis=axis)


@pytest.mark.parametrize("name", ["cumulative_sum", "cumulative_prod"])
@pytest.mark.parametrize("dtype", STANDARD_NUMERIC)
def test_cumulative(name, dtype):
    for shape, axes in (
        ((5,), (None, 0, -1)),
        ((2, 3), (0, 1, -1)),
        ((0,), (None,)),
        ((2, 0), (0, 1)),
        ((1,), (None,)),
    ):
        x = draw_whole(dtype, shape, -3, 3)
        for axis in axes:
            for initial in (False, True):
                both(name, x, axis=axis, include_initial=initial)
                both(name, np.abs(x), axis=axis, include_initial=initial, dtype="float64")
    with pytest.raises(weft.UserError, match="axis is required"):
        getattr(weft, name)(weft.ones((2, 2)))


@pytest.mark.parametrize("dtype", HALVES)
def test_cumulative_of_16_bit_floats(dtype):
    x = draw_whole(dtype, (2, 4), 1, 3)
    for initial in (False, True):
        for name, start in (("cumulative_sum", 0), ("cumulative_prod", 1)):
            steps = getattr(np, name)(x.astype(np.float64), axis=1)
            expected = np.concatenate([np.full((2, 1), start), steps], axis=1) if initial else steps
            check(getattr(weft, name)(weft.asarray(x), axis=1, include_initial=initial), expected, dtype)


# --- searching -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", NUMERIC)
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_place_of_the_extreme(name, dtype):
    for shape in ((), (7,), (3, 4), (2, 3, 4)):
        x = draw_whole(dtype, shape, 0, 3)  # few values, so that the first of equals matters
        for axis in (None, *range(-len(shape), len(shape))):
            for keepdims in (False, True):
                result = getattr(weft, name)(weft.asarray(x), axis=axis, keepdims=keepdims)
                check(result, getattr(np, name)(x.astype(np.float64), axis=axis, keepdims=keepdims), "int64")


@pytest.mark.parametrize("dtype", DTYPES)
def test_nonzero(dtype):
    for shape in ((6,), (3, 4), (2, 0), (0,)):
        x = draw_whole(dtype, shape, 0, 2)
        check_same(weft.nonzero(weft.asarray(x)), np.nonzero(x))
    with pytest.raises(weft.UserError):
        weft.nonzero(weft.ones(()))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", NUMERIC)
def test_searchsorted(dtype, side):
    for size in (0, 1, 2, 5, 8, 9):
        table = draw_whole(dtype, (size,), 0, 9)
        order = np.argsort(table, kind="stable")
        for shape in ((), (0,), (12,), (2, 5)):
            values = draw_whole(dtype, shape, 0, 9, seed=1)
            expected = np.searchsorted(table[order], values, side=side)
            result = weft.searchsorted(weft.asarray(table[order]), weft.asarray(values), side=side)
            check(result, expected, "int64")
            result = weft.searchsorted(weft.asarray(table), weft.asarray(values), side=side, sorter=weft.asarray(order))
            check(result, expected, "int64")


@pytest.mark.parametrize("dtype", FLOATS)
def test_searchsorted_agrees_with_sort_about_nan(dtype):
    table = weft.sort(weft.asarray([2.0, math.nan, 1.0], dtype=dtype_of(dtype)))
    values = weft.asarray([math.nan, 0.0, 1.0, 3.0, math.inf], dtype=dtype_of(dtype))
    for side, expected in (("left", [2, 0, 0, 2, 2]), ("right", [3, 0, 1, 2, 2])):
        check(weft.searchsorted(table, values, side=side), expected, "int64")


# --- sorting and sets ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("descending", [False, True])
def test_sort_and_argsort(dtype, descending):
    shapes = ((7,), (3, 5), (2, 3, 4), (0,), (2, 0), (1,))
    cases = [(shape, axis) for shape in shapes for axis in range(-len(shape), len(shape))]
    for shape, axis in sampled(f"sort {dtype} {descending}", cases, share=0.4):
        x = draw_whole(dtype, shape, 0, 3)  # with equal elements, whose order must stay
        key = -x.astype(np.float64) if descending else x.astype(np.float64)
        order = np.argsort(key, axis=axis, kind="stable")
        for stable in (True, False):
            options = {"axis": axis, "descending": descending, "stable": stable}
            check(weft.sort(weft.asarray(x), **options), np.take_along_axis(x, order, axis), dtype)
            if stable:
                check(weft.argsort(weft.asarray(x), **options), order, "int64")
        if shape[-1]:
            check(weft.sort(weft.asarray(x)), np.sort(x, axis=-1), dtype)


@pytest.mark.parametrize("descending", [False, True])
def test_nan_counts_as_the_greatest(descending):
    # As the documentation of argsort says; the standard leaves it open.
    x = weft.asarray([math.nan, 1.0, math.inf, -math.inf, math.nan, 0.0])
    order = [-math.inf, 0.0, 1.0, math.inf, math.nan, math.nan]
    check(weft.sort(x, descending=descending), order[::-1] if descending else order, "float32")


@pytest.mark.parametrize("dtype", DTYPES)
def test_unique(dtype):
    for shape in ((), (0,), (1,), (9,), (3, 4)):
        x = draw_whole(dtype, shape, 0, 3)
        values, first, inverse, counts = np.unique(x, return_index=True, return_inverse=True, return_counts=True)
        inverse = inverse.reshape(shape)
        everything = weft.unique_all(weft.asarray(x))
        assert everything._fields == ("values", "indices", "inverse_indices", "counts")
        for result in (everything.values, weft.unique_values(weft.asarray(x))):
            check(result, values, dtype)
        check(everything.indices, first, "int64")
        check_pair(weft.unique_counts(weft.asarray(x)), "counts", values, counts, dtype)
        check_pair(weft.unique_inverse(weft.asarray(x)), "inverse_indices", values, inverse, dtype)
        check(everything.counts, counts, "int64")
        check(everything.inverse_indices, inverse, "int64")


def check_pair(pair: Any, name: str, values: np.ndarray, places: np.ndarray, dtype: str) -> None:
    assert pair._fields == ("values", name)
    check(pair.values, values, dtype)
    check(getattr(pair, name), places, "int64")


@pytest.mark.parametrize("dtype", FLOATS)
def test_unique_counts_every_nan_and_one_zero(dtype):
    x = weft.asarray([3.0, math.nan, 0.0, 1.0, -0.0, math.nan, 3.0], dtype=dtype_of(dtype))
    values, counts = weft.unique_counts(x)
    check(values, [0.0, 1.0, 3.0, math.nan, math.nan], dtype, zero_signs=False)
    check(counts, [2, 1, 2, 1, 1], "int64")


# --- differences ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", NUMERIC)
def test_diff(dtype):
    x = draw_whole(dtype, (3, 5))
    one = draw_whole(dtype, (3, 2), seed=1)
    for n in (0, 1, 2, 4):
        for axis in (0, 1, -1, -2):
            if n < x.shape[axis]:
                check(weft.diff(weft.asarray(x), n=n, axis=axis), np.diff(x, n=n, axis=axis), dtype)
        for ends in (
            {"prepend": one},
            {"append": one},
            {"prepend": one, "append": one},
        ):  # taken 0 times, they do not appear
            tensors = {k: weft.asarray(v) for k, v in ends.items()}
            check(weft.diff(weft.asarray(x), n=n, **tensors), np.diff(x, n=n, **ends), dtype)
    three = np.asarray(3).astype(x.dtype)
    check(
        weft.diff(weft.asarray(x), axis=0, prepend=3, append=weft.asarray(three)),
        np.diff(x, axis=0, prepend=three, append=three),
        dtype,
    )
    check(weft.diff(weft.asarray(x[:0]), axis=0), x[:0], dtype)


def test_diff_cannot_be_taken_a_negative_number_of_times():
    with pytest.raises(weft.UserError):
        weft.diff(weft.ones(3), n=-1)
