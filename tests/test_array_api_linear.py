"""Checks the linear algebra in the main namespace of the array API: matmul, tensordot, vecdot."""

from typing import Any

import numpy as np
import pytest

import weft
from array_api_tools import NUMERIC, check, draw_whole, dtype_of
from sampling import sampled

Shape = tuple[int, ...]


def operands(dtype: str, a: Shape, b: Shape) -> tuple[np.ndarray, np.ndarray]:
    """Small whole numbers: every sum of products is exact, so no order of summation can be wrong."""
    return draw_whole(dtype, a, -3, 3), draw_whole(dtype, b, -3, 3, seed=1)


def compare(name: str, dtype: str, a: Shape, b: Shape, **options: Any) -> None:
    x, y = operands(dtype, a, b)
    wide = np.float64 if dtype not in ("int64", "uint64") else x.dtype
    expected = getattr(np, name)(x.astype(wide), y.astype(wide), **options)
    if not dtype.startswith("u"):
        check(getattr(weft, name)(weft.asarray(x), weft.asarray(y), **options), expected, dtype, zero_signs=False)
    else:
        check(getattr(weft, name)(weft.asarray(x), weft.asarray(y), **options), expected.astype(dtype), dtype)


MATRICES: list[tuple[Shape, Shape]] = [
    ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)), ((1, 1), (1, 1)), ((5, 2, 3), (3, 4)),
    ((2, 3), (5, 3, 4)), ((5, 2, 3), (5, 3, 4)), ((5, 1, 2, 3), (4, 3, 2)), ((1, 2, 3), (5, 3, 4)), ((3,), (5, 3, 4)),
    ((5, 2, 3), (3,)), ((2, 0), (0, 3)), ((0, 2), (2, 3)), ((2, 3), (3, 0)), ((0,), (0,)), ((0, 2, 3), (3, 4)),
    ((1, 2, 3), (0, 3, 4)), ((0, 1, 2, 3), (1, 3, 2)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", NUMERIC)
def test_matmul(dtype):
    for a, b in sampled(f"matmul {dtype}", MATRICES, share=0.25):
        compare("matmul", dtype, a, b)
        x, y = operands(dtype, a, b)
        check(weft.asarray(x) @ weft.asarray(y), weft.matmul(weft.asarray(x), weft.asarray(y)).numpy(), dtype)


TENSORS: list[tuple[Shape, Shape, Any]] = [
    ((2, 3), (2, 3), 2), ((2, 3), (3, 4), 1), ((2, 3), (4, 5), 0), ((2, 3, 4), (3, 4, 5), 2), ((), (), 0), ((3,), (), 0),
    ((2, 3, 4), (4, 3, 2), ((1, 2), (1, 0))), ((2, 3, 4), (4, 3), ((-1,), (0,))), ((2, 3), (3, 2), ((0, 1), (-1, -2))),
    ((2, 0), (0, 3), 1), ((0, 2), (2, 3), 1), ((2, 3), (4,), ((), ())),
]  # fmt: skip


@pytest.mark.parametrize("dtype", NUMERIC)
def test_tensordot(dtype):
    for a, b, axes in TENSORS:
        compare("tensordot", dtype, a, b, axes=axes)
    compare("tensordot", dtype, (4, 2, 3), (2, 3, 4))


VECTORS: list[tuple[Shape, Shape, int]] = [
    ((3,), (3,), -1), ((2, 3), (2, 3), -1), ((2, 3), (3,), -1), ((2, 3), (2, 3), -2), ((2, 1, 3), (4, 3), -1),
    ((3, 2, 4), (3, 1, 4), -3), ((3, 4), (2, 3, 1), -2), ((0,), (0,), -1), ((2, 0), (2, 0), -1), ((0, 3), (1, 3), -1),
]  # fmt: skip


@pytest.mark.parametrize("dtype", NUMERIC)
def test_vecdot(dtype):
    for a, b, axis in VECTORS:
        x, y = operands(dtype, a, b)
        moved = np.broadcast_arrays(np.moveaxis(x, axis, -1), np.moveaxis(y, axis, -1))
        expected = np.sum(moved[0] * moved[1], axis=-1, dtype=x.dtype)
        check(weft.vecdot(weft.asarray(x), weft.asarray(y), axis=axis), expected, dtype, zero_signs=False)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_products_of_many_terms_are_not_rounded_on_the_way(dtype):
    # 4096 terms of 1: a sum kept in 8 or 11 bits would stop growing long before.
    x = weft.ones((2, 4096), dtype=dtype_of(dtype))
    check(x @ x.T, np.full((2, 2), 4096.0), dtype)
    check(weft.vecdot(x, x), [4096.0, 4096.0], dtype)
    check(weft.sum(x, axis=1), [4096.0, 4096.0], dtype)


def test_products_promote():
    a, b = weft.ones((2, 3), dtype=weft.int8), weft.ones((3, 2), dtype=weft.uint16)
    check(a @ b, np.full((2, 2), 3), "int32")
    check(weft.tensordot(a, b, axes=1), np.full((2, 2), 3), "int32")
    check(weft.vecdot(a, b.T), [3, 3], "int32")
    check(weft.matmul(a, b.astype(weft.float64)), np.full((2, 2), 3), "float64")


def test_integer_products_wrap_around():
    x = weft.full((2, 2), 100, dtype=weft.int8)
    check(x @ x, np.full((2, 2), (20000 + 128) % 256 - 128), "int8")


X = weft.ones((2, 3))
WRONG = [
    "weft.matmul(X, X)",
    "weft.matmul(X, weft.ones(()))",
    "weft.matmul(weft.ones((2, 2, 3)), weft.ones((3, 3, 4)))",
    "X @ weft.ones(2)",
    "weft.tensordot(X, X, axes=1)",
    "weft.tensordot(X, X, axes=3)",
    "weft.tensordot(X, X, axes=((0, 1), (0,)))",
    "weft.tensordot(X, X, axes=((0,), (2,)))",
    "weft.vecdot(X, weft.ones((2, 4)))",
    "weft.vecdot(X, weft.ones((3, 3)))",
    "weft.vecdot(X, weft.ones(3), axis=-2)",
    "weft.vecdot(X, weft.ones(()))",
]


@pytest.mark.parametrize("call", WRONG)
def test_wrong_calls_are_refused(call):
    with pytest.raises(weft.UserError):
        eval(call, {"weft": weft, "X": X})
