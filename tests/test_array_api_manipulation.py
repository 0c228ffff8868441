"""Checks the functions of the array API that move elements: each case runs in weft and in array_api_strict.

array_api_strict computes with NumPy and refuses calls that the standard does not allow, so it judges the cases too.
"""

from collections.abc import Callable
from typing import Any

import array_api_strict as strict
import numpy as np
import pytest

import weft
from array_api_tools import HALVES, STANDARD_DTYPES, check, check_same, draw

Call = Callable[..., Any]
# The shapes of the arguments and what is done with them.
CASES: dict[str, list[tuple[list[tuple[int, ...]], Call]]] = {
    "broadcast_to": [
        ([()], lambda xp, x: xp.broadcast_to(x, (2, 3))),
        ([(3,)], lambda xp, x: xp.broadcast_to(x, (2, 3))),
        ([(2, 1)], lambda xp, x: xp.broadcast_to(x, shape=(4, 2, 3))),
        ([(2, 1)], lambda xp, x: xp.broadcast_to(x, (2, 0))),
        ([(1,)], lambda xp, x: xp.broadcast_to(x, (0,))),
        ([(2, 3)], lambda xp, x: xp.broadcast_to(x, (2, 3))),
        ([()], lambda xp, x: xp.broadcast_to(x, ())),
    ],
    "broadcast_arrays": [
        ([(2, 1), (3,), ()], lambda xp, *xs: list(xp.broadcast_arrays(*xs))),
        ([(0, 1), (1, 3)], lambda xp, *xs: list(xp.broadcast_arrays(*xs))),
        ([(2,)], lambda xp, *xs: list(xp.broadcast_arrays(*xs))),
    ],
    "concat": [
        ([(2, 3), (4, 3)], lambda xp, *xs: xp.concat(xs)),
        ([(2, 3), (2, 1), (2, 0)], lambda xp, *xs: xp.concat(list(xs), axis=1)),
        ([(2, 3), (2, 1)], lambda xp, *xs: xp.concat(xs, axis=-1)),
        ([(2, 3), (), (0, 4), (2,)], lambda xp, *xs: xp.concat(xs, axis=None)),
        ([(3,)], lambda xp, *xs: xp.concat(xs)),
        ([(0,), (0,)], lambda xp, *xs: xp.concat(xs)),
    ],
    "expand_dims": [
        ([(2, 3)], lambda xp, x: [xp.expand_dims(x, axis=a) for a in (0, 1, 2, -1, -2, -3)]),
        ([()], lambda xp, x: [xp.expand_dims(x, axis=a) for a in (0, -1)]),
        ([(0,)], lambda xp, x: xp.expand_dims(x, axis=1)),
    ],
    "flip": [
        ([(2, 3, 4)], lambda xp, x: [xp.flip(x, axis=a) for a in (None, 0, -1, (0, 2), (-1, 0, 1))]),
        ([()], lambda xp, x: xp.flip(x)),
        ([(0, 3)], lambda xp, x: [xp.flip(x), xp.flip(x, axis=1)]),
    ],
    "matrix_transpose": [
        ([(2, 3)], lambda xp, x: [xp.matrix_transpose(x), x.T, x.mT]),
        ([(4, 2, 3)], lambda xp, x: [xp.matrix_transpose(x), x.mT]),
        ([(0, 3)], lambda xp, x: xp.matrix_transpose(x)),
    ],
    "moveaxis": [
        ([(2, 3, 4)], lambda xp, x: [xp.moveaxis(x, a, b) for a in range(-3, 3) for b in range(-3, 3)]),
        ([(2, 3, 4)], lambda xp, x: [xp.moveaxis(x, (0, 1), (-1, -2)), xp.moveaxis(x, (2, 0), (0, 1))]),
        ([(2, 0)], lambda xp, x: xp.moveaxis(x, 0, 1)),
    ],
    "permute_dims": [
        ([(2, 3, 4)], lambda xp, x: [xp.permute_dims(x, p) for p in ((0, 1, 2), (2, 0, 1), (1, 0, 2), (2, 1, 0))]),
        ([(2, 3)], lambda xp, x: xp.permute_dims(x, axes=(1, 0))),
        ([()], lambda xp, x: xp.permute_dims(x, ())),
        ([(0, 3)], lambda xp, x: xp.permute_dims(x, (1, 0))),
    ],
    "repeat": [
        ([(2, 3)], lambda xp, x: [xp.repeat(x, n, axis=a) for n in (0, 1, 3) for a in (None, 0, 1, -1)]),
        ([(2, 3)], lambda xp, x: xp.repeat(x, xp.asarray([2, 0, 1]), axis=1)),
        ([(2, 3)], lambda xp, x: xp.repeat(x, xp.asarray([2]), axis=-1)),
        ([(2, 2)], lambda xp, x: xp.repeat(x, xp.asarray([1, 0, 2, 3]))),
        ([(1, 2)], lambda xp, x: xp.repeat(x, xp.asarray([3]), axis=0)),
        ([()], lambda xp, x: xp.repeat(x, 3)),
        ([(0,)], lambda xp, x: xp.repeat(x, 3)),
    ],
    "reshape": [
        ([(2, 6)], lambda xp, x: [xp.reshape(x, s) for s in ((12,), (3, 4), (-1,), (4, -1), (1, 12, 1), (2, 6))]),
        ([(2, 6)], lambda xp, x: xp.reshape(x, shape=(3, 4), copy=True)),
        ([()], lambda xp, x: [xp.reshape(x, s) for s in ((), (1,), (-1,), (1, 1))]),
        ([(1,)], lambda xp, x: xp.reshape(x, ())),
        ([(0, 3)], lambda xp, x: [xp.reshape(x, s) for s in ((0,), (3, 0), (-1,), (-1, 3), (2, 0, 5))]),
    ],
    "roll": [
        ([(5,)], lambda xp, x: [xp.roll(x, s) for s in (0, 1, -1, 5, 7, -12)]),
        ([(2, 3)], lambda xp, x: [xp.roll(x, s, axis=a) for s in (1, -2, 4) for a in (None, 0, 1, -1, (0, 1))]),
        ([(2, 3)], lambda xp, x: [xp.roll(x, (1, 2), axis=(0, 1)), xp.roll(x, shift=(1, -1), axis=(-1, -2))]),
        ([(3,)], lambda xp, x: xp.roll(x, (1, 1), axis=(0, 0))),
        ([()], lambda xp, x: xp.roll(x, 2)),
        ([(0, 3)], lambda xp, x: [xp.roll(x, 2), xp.roll(x, 1, axis=0), xp.roll(x, 1, axis=1)]),
    ],
    "squeeze": [
        ([(1, 2, 1)], lambda xp, x: [xp.squeeze(x, axis=a) for a in (0, 2, -1, -3, (0, 2), (-1, 0), ())]),
        ([(1,)], lambda xp, x: xp.squeeze(x, 0)),
        ([(1, 0)], lambda xp, x: xp.squeeze(x, axis=0)),
    ],
    "stack": [
        ([(2, 3), (2, 3)], lambda xp, *xs: [xp.stack(xs, axis=a) for a in (0, 1, 2, -1, -2, -3)]),
        ([(), (), ()], lambda xp, *xs: xp.stack(list(xs))),
        ([(0,), (0,)], lambda xp, *xs: xp.stack(xs, axis=1)),
        ([(2,)], lambda xp, *xs: xp.stack(xs)),
    ],
    "tile": [
        ([(2, 3)], lambda xp, x: [xp.tile(x, r) for r in ((2,), (2, 1), (1, 2), (3, 2, 2), (0, 2), (), (1, 1, 1))]),
        ([()], lambda xp, x: [xp.tile(x, r) for r in ((), (3,), (2, 2))]),
        ([(0, 2)], lambda xp, x: xp.tile(x, (2, 2))),
    ],
    "unstack": [
        ([(2, 3)], lambda xp, x: [xp.unstack(x), xp.unstack(x, axis=1), xp.unstack(x, axis=-1)]),
        ([(0, 3)], lambda xp, x: [xp.unstack(x), xp.unstack(x, axis=1)]),
        ([(2,)], lambda xp, x: xp.unstack(x)),
    ],
    "take": [
        ([(4,)], lambda xp, x: xp.take(x, xp.asarray([3, 0, 0, -1]))),
        ([(2, 4)], lambda xp, x: [xp.take(x, xp.asarray([1, 0, -2]), axis=a) for a in (0, 1, -1)]),
        ([(4,)], lambda xp, x: [xp.take(x, xp.asarray([1, 3], dtype=d)) for d in (xp.int8, xp.uint8, xp.uint64)]),
        ([(4,)], lambda xp, x: xp.take(x, xp.zeros(0, dtype=xp.int64))),
        ([(0, 3)], lambda xp, x: xp.take(x, xp.asarray([2, 0]), axis=1)),
    ],
    "take_along_axis": [
        ([(2, 3)], lambda xp, x: xp.take_along_axis(x, xp.asarray([[2, 0], [-1, 1]]))),
        ([(2, 3)], lambda xp, x: xp.take_along_axis(x, xp.asarray([[1, 0, 1]]), axis=0)),
        ([(2, 3)], lambda xp, x: xp.take_along_axis(x, xp.asarray([[2], [0]]), axis=-1)),
        ([(1, 3)], lambda xp, x: xp.take_along_axis(x, xp.asarray([[2, 2], [0, 1]]), axis=1)),
        ([(3,)], lambda xp, x: xp.take_along_axis(x, xp.asarray([0, 2, 2, -3]))),
        ([(0, 3)], lambda xp, x: xp.take_along_axis(x, xp.zeros((0, 2), dtype=xp.int64), axis=1)),
        ([(2, 3)], lambda xp, x: xp.take_along_axis(x, xp.zeros((2, 0), dtype=xp.int64), axis=1)),
    ],
    "where": [
        ([(2, 3), (2, 3)], lambda xp, x, y: xp.where(xp.asarray([[True], [False]]), x, y)),
        ([(2, 1), (3,)], lambda xp, x, y: xp.where(xp.asarray(True), x, y)),
        ([(), ()], lambda xp, x, y: xp.where(xp.asarray([True, False]), x, y)),
        ([(0,), ()], lambda xp, x, y: xp.where(xp.asarray(False), x, y)),
    ],
}  # fmt: skip


def run(xp: Any, case: tuple[list[tuple[int, ...]], Call], dtype: str) -> Any:
    shapes, call = case
    return call(xp, *(xp.asarray(draw(dtype, s, seed=i)) for i, s in enumerate(shapes)))


@pytest.mark.parametrize("dtype", STANDARD_DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_movement(name, dtype):
    for case in CASES[name]:
        check_same(run(weft, case, dtype), run(strict, case, dtype))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", CASES)
def test_movement_of_16_bit_floats(name, dtype):
    # array_api_strict has no such floats, but any of them can travel as a float64.
    for shapes, call in CASES[name]:
        arrays = [draw(dtype, s, seed=i) for i, s in enumerate(shapes)]
        moved = call(weft, *(weft.asarray(a) for a in arrays))
        expected = call(weft, *(weft.asarray(a.astype(np.float64)) for a in arrays))
        check_each(moved, expected, dtype)


def check_each(actual: Any, expected: Any, dtype: str) -> None:
    if isinstance(expected, tuple | list):
        for a, e in zip(actual, expected, strict=True):
            check_each(a, e, dtype)
    else:
        check(actual, expected.numpy(), dtype)


def test_concat_and_stack_promote():
    a, b = weft.asarray([1, 2], dtype=weft.int8), weft.asarray([3, 4], dtype=weft.uint16)
    check(weft.concat([a, b]), [1, 2, 3, 4], "int32")
    check(weft.stack([a, b]), [[1, 2], [3, 4]], "int32")
    check(weft.stack([a, weft.ones(2, dtype=weft.float64)]), [[1, 2], [1, 1]], "float64")


def test_results_are_of_the_standard_kinds():
    x = weft.ones((2, 3))
    assert type(weft.broadcast_arrays(x, x)) in (list, tuple)
    assert type(weft.meshgrid(x[0], x[0])) in (list, tuple)
    assert type(weft.unstack(x)) is tuple
    assert type(weft.nonzero(x)) is tuple


X = weft.ones((2, 3))
# As text, so that a failing test says which call it was.
WRONG = [
    "weft.broadcast_to(X, (3, 2))",
    "weft.broadcast_to(X, (3,))",
    "weft.broadcast_to(weft.ones(2), (1,))",
    "weft.broadcast_arrays(X, weft.ones(2))",
    "weft.concat([X, weft.ones(3)])",
    "weft.concat([X, X], axis=2)",
    "weft.concat([weft.ones(()), weft.ones(())])",
    "weft.concat([])",
    "weft.stack([X, weft.ones((3, 2))])",
    "weft.stack([X, X], axis=3)",
    "weft.stack([])",
    "weft.expand_dims(X, axis=3)",
    "weft.expand_dims(X, axis=-4)",
    "weft.flip(X, axis=2)",
    "weft.matrix_transpose(X[0])",
    "weft.moveaxis(X, 0, 2)",
    "weft.moveaxis(X, (0, 0), (0, 1))",
    "weft.permute_dims(X, (0,))",
    "weft.permute_dims(X, (0, 0))",
    "weft.repeat(X, -1)",
    "weft.repeat(X, weft.asarray([1, 2]), axis=1)",
    "weft.reshape(X, (4,))",
    "weft.reshape(X, (-1, -1))",
    "weft.reshape(X, (-2, 3))",
    "weft.reshape(weft.ones((0,)), (0, -1))",
    "weft.roll(X, (1, 2), axis=(0,))",
    "weft.roll(X, 1, axis=2)",
    "weft.squeeze(X, 0)",
    "weft.squeeze(weft.ones((1,)), 1)",
    "weft.tile(X, (-1,))",
    "weft.unstack(weft.ones(()))",
    "weft.take(X, weft.asarray([0]))",
    "weft.take(X, weft.asarray([0.0]), axis=0)",
    "weft.take_along_axis(X, weft.asarray([0]))",
    "weft.where(X, X, X)",
    "weft.where(X > 0, X, weft.ones(2))",
]


@pytest.mark.parametrize("call", WRONG)
def test_wrong_calls_are_refused(call):
    with pytest.raises(weft.UserError):
        eval(call, {"weft": weft, "X": X})


@pytest.mark.parametrize("index", [3, -4])
def test_an_index_out_of_range_fails_when_computed(index):
    for result in (weft.take(X, weft.asarray([index]), axis=1), weft.take_along_axis(X, weft.asarray([[index]] * 2))):
        with pytest.raises(weft.RunError, match="out of range"):
            result.numpy()


def test_repeat_of_nothing_by_nothing():
    for axis in (None, 0):
        check(weft.repeat(weft.ones((0,)), weft.zeros(0, dtype=weft.int64), axis=axis), np.zeros(0), "float32")


def test_the_table_names_functions():
    # Guards the table: a wrong name would hide that a function is not tested.
    assert {n for n in CASES if not hasattr(strict, n)} == set()
