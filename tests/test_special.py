"""argsort, scatter, cumsum and cumprod as plans of native functions, against the definitions of the ops.

Inputs end where a page begins that may not be read, results and workspace have margins that must stay as they are, and the
bits must not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite")

import weft
from guarded import Guarded
from weft.compiler.cpu.library import run
from weft.compiler.cpu.special import plans as special
from weft.compiler.ir.kernel import Kernel
from weft.dtypes import DTYPES, INTEGERS, DType, as_dtype, bfloat16, float16, float32, float64, int64, uint8, uint64
from weft.graph import OPS, Node, Type, make, placeholder
from weft.runtime.reference import compute

MARGIN, POISON = 256, 0xA5  # bytes
SITES = {"site0": 7, "site1": 9}
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)


class Fenced:
    """Bytes between two poisoned margins, aligned to a line of the cache."""

    def __init__(self, size: int) -> None:
        whole = np.full(size + 2 * MARGIN + 64, POISON, np.uint8)
        self.all = whole[-whole.ctypes.data % 64 :][: size + 2 * MARGIN]
        self.inside = self.all[MARGIN : MARGIN + size]
        self.address = self.inside.ctypes.data

    def check(self) -> None:
        assert (self.all[:MARGIN] == POISON).all(), "something was written before the memory"
        assert (self.all[MARGIN + self.inside.size :] == POISON).all(), "something was written behind the memory"


def new_node(op: str, arrays: Sequence[np.ndarray], *params: Any) -> Node:
    types = [Type(a.shape, as_dtype(a.dtype)) for a in arrays]
    return make(OPS[op], tuple(placeholder(object(), t) for t in types), params)


def kernel_of(node: Node) -> Kernel:
    """A kernel around an anchor, as far as plans look at it."""
    return Kernel(anchor=node, nest=None, outputs=[node])


def native(node: Node, arrays: Sequence[np.ndarray], threads: int, running: int = 0) -> tuple[np.ndarray, list[int]]:
    """The result of a plan for so many threads, and the status it left."""
    plan = special.plan(kernel_of(node), threads)
    guarded = [Guarded(a) for a in arrays]
    result, work = Fenced(node.type.dtype.itemsize * int(np.prod(node.shape))), Fenced(plan.workspace)
    status = np.zeros(2, np.int64)
    pointers = {f"x{i}": g.address for i, g in enumerate(guarded)}
    pointers |= {"y": result.address, "work": work.address, "status": status.ctypes.data, **SITES}
    run(plan, pointers, running or threads)
    result.check()
    work.check()
    return result.inside.view(node.dtype.numpy).reshape(node.shape), status.tolist()


def both(
    op: str, arrays: Sequence[np.ndarray], *params: Any, threads: Sequence[int] = (1, 2, 4)
) -> tuple[np.ndarray, np.ndarray]:
    """The native result, the same for all numbers of threads, and the reference's."""
    node = new_node(op, arrays, *params)
    first, status = native(node, arrays, threads[0])
    assert status == [0, 0]
    for count in threads[1:]:
        again, _ = native(node, arrays, count)
        np.testing.assert_array_equal(bits(again), bits(first), f"{count} threads")
    with np.errstate(all="ignore"):
        return first, compute(node, list(arrays))


def bits(x: np.ndarray) -> np.ndarray:
    """The bytes of an array. All nans are one: which of two an addition passes on is up to the CPU and the compiler."""
    return np.where(x != x, np.array(np.nan).astype(x.dtype), x).view(np.uint8) if as_dtype(x.dtype).is_float else x


def random(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType, spread: float = 6.0) -> np.ndarray:
    """Values with ties; floats with nan, infinities and zeros of both signs."""
    x = np.rint(rng.normal(size=shape) * spread)
    if dtype.kind == "uint" or dtype is weft.bool:
        x = abs(x)
    if not dtype.is_float:
        return x.astype(dtype.numpy)
    strange = rng.choice([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-3], size=shape)
    return np.where(rng.uniform(size=shape) < 0.3, strange, x / 2).astype(dtype.numpy)


# --- argsort ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "descending"), [(d, False) for d in DTYPES] + [(d, True) for d in DTYPES[::3]], ids=str
)
def test_argsort_of_all_shapes(dtype: DType, descending: bool) -> None:
    rng = np.random.default_rng(0)
    shapes = [
        (0,),
        (1,),
        (5,),
        (96,),
        (97,),
        (700,),
        (3, 0, 2),
        (0, 4),
        (9, 17),
        (3, 150),
        (150, 3),
        (2, 99, 3),
        (2, 3, 4),
    ]
    for shape in shapes:
        for axis in range(len(shape)):
            x = random(rng, shape, dtype, spread=6 if rng.uniform() < 0.5 else 100)
            ours, expected = both("argsort", [x], axis, descending, threads=(1, 3))
            np.testing.assert_array_equal(ours, expected, f"{shape} along {axis}")


@pytest.mark.parametrize("dtype", [uint8, float16, float32, int64, float64], ids=lambda d: d.name)
def test_argsort_of_long_rows_by_several_threads(dtype: DType) -> None:
    rng = np.random.default_rng(1)
    for shape, axis in [((20_001,), 0), ((3, 17_000), 1), ((16_384, 3), 0)]:
        x = random(rng, shape, dtype, spread=100)
        for descending in (False, True) if axis else (False,):
            ours, expected = both("argsort", [x], axis, descending)
            np.testing.assert_array_equal(ours, expected)
    assert len(special.plan(kernel_of(new_node("argsort", [x], 0, False)), 2).phases) > 1


def test_argsort_of_every_bit() -> None:
    rng = np.random.default_rng(2)
    for dtype in (float32, float64, bfloat16, int64, uint64):
        x = rng.integers(0, 256, 3000 * dtype.itemsize, dtype=np.uint8).view(dtype.numpy)
        ours, expected = both("argsort", [x], 0, False)
        np.testing.assert_array_equal(ours, expected)


def test_fewer_threads_than_planned_may_come() -> None:
    x = np.random.default_rng(3).normal(size=(5, 200)).astype(np.float32)
    node = new_node("argsort", [x], 1, False)
    ours, _ = native(node, [x], 4, running=3)
    np.testing.assert_array_equal(ours, compute(node, [x]))


# --- cumsum, cumprod ------------------------------------------------------------------------------------------------------


def check_close(ours: np.ndarray, expected: np.ndarray, x: np.ndarray, axis: int) -> None:
    """Equal, or for floats within a rounding of the result and what many additions in float64 can lose."""
    if as_dtype(x.dtype).is_float:
        epsilon = weft.finfo(as_dtype(x.dtype)).eps
        with np.errstate(all="ignore"):
            sizes = np.cumsum(abs(x.astype(np.float64)), axis)
            a, b = ours.astype(np.float64), expected.astype(np.float64)
            close = abs(a - b) <= epsilon * abs(b) + 1e-13 * np.where(np.isfinite(sizes), sizes, 0)
        good = (a == b) | (np.isnan(a) & np.isnan(b)) | close
        assert good.all()
    else:
        np.testing.assert_array_equal(ours, expected)


@pytest.mark.sweep("op", share=1.0)
@pytest.mark.parametrize(
    ("op", "dtype"), [("cumsum", d) for d in DTYPES] + [("cumprod", d) for d in DTYPES[::2]], ids=str
)
def test_running_totals_of_all_shapes(op: str, dtype: DType) -> None:
    rng = np.random.default_rng(4)
    shapes = [(0,), (1,), (9,), (3, 0, 2), (0, 2), (6, 5), (7, 33), (33, 7), (3, 5, 40), (2, 3, 1)]
    for shape in shapes:
        for axis in range(len(shape)):
            x = random(rng, shape, dtype, 2)
            if dtype.is_float and rng.uniform() < 0.7:  # without nan, which soon is everywhere
                x = rng.uniform(-1.5, 1.5, shape).astype(dtype.numpy)
            ours, expected = both(op, [x], axis, threads=(1, 3))
            check_close(ours, expected, x, axis)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int32", "uint8", "bool"])
def test_running_totals_of_long_lines(dtype: str) -> None:
    rng = np.random.default_rng(5)
    for shape, axis in [((40_007,), 0), ((3, 20_000), 1), ((3000, 9), 0), ((2, 700, 70), 1), ((20, 1100), 0)]:
        x = (
            (rng.normal(size=shape) * 3).astype(as_dtype(dtype).numpy)
            if dtype[0] in "fbi"
            else rng.integers(0, 9, shape).astype(dtype)
        )
        ours, expected = both("cumsum", [x], axis)
        check_close(ours, expected, x, axis)
    x = rng.uniform(0.9, 1.1, 20_000).astype(as_dtype(dtype).numpy)
    ours, expected = both("cumprod", [x], 0)
    check_close(ours, expected, x, 0)


def test_a_sum_of_negative_zeros_stays_negative() -> None:
    for shape in ((3,), (3, 2), (40_000,)):
        ours, _ = both("cumsum", [np.full(shape, -0.0, np.float32)], 0)
        assert np.signbit(ours).all()


def test_a_product_that_vanished_stays_zero() -> None:
    """A later part alone would be infinite."""
    x = np.concatenate([np.full(20_000, 1e-3), np.full(20_000, 1e3)]).astype(np.float32)
    ours, expected = both("cumprod", [x], 0)
    np.testing.assert_array_equal(ours, expected)


# --- scatter ------------------------------------------------------------------------------------------------------------------


def scatter_case(
    rng: np.random.Generator, shape: tuple[int, ...], index: tuple[int, ...], axes: tuple[int, ...], dtype: DType,
    index_dtype: DType = int64,
) -> list[np.ndarray]:  # fmt: skip
    rest = tuple(n for i, n in enumerate(shape) if i not in axes)
    low = [-shape[a] if index_dtype.kind == "int" else 0 for a in axes]
    indices = [rng.integers(b, shape[a], index).astype(index_dtype.numpy) for a, b in zip(axes, low, strict=True)]
    return [random(rng, shape, dtype), random(rng, index + rest, dtype), *indices]


SELECTIONS: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = [
    ((4,), (), (0,)), ((4,), (50,), (0,)), ((4, 3), (5,), (0,)), ((2, 3, 2), (2, 2), (1,)), ((3, 2), (0,), (1,)),
    ((3, 4, 2), (6,), (2, 0)), ((7, 37), (30,), (0,)), ((37, 7), (30,), (1,)), ((3, 0), (4,), (0,)), ((0, 3), (0,), (0,)),
    ((5, 1, 6), (20,), (0,)), ((3, 300), (9,), (0,)), ((2, 5, 3, 4), (11,), (1,)), ((2, 5, 3, 4), (11,), (3, 1)),
    ((5, 6), (40,), (1, 0)), ((11, 3), (1300,), (0,)),
]  # fmt: skip


@pytest.mark.sweep("dtype", share=0.3)
@every_dtype
@pytest.mark.parametrize("how", ["set", "add"])
def test_scatter_of_all_shapes(how: str, dtype: DType) -> None:
    rng = np.random.default_rng(6)
    few = dtype not in (float32, bfloat16)
    for shape, index, axes in SELECTIONS[::4] if few else SELECTIONS:
        arrays = scatter_case(rng, shape, index, axes, dtype)
        ours, expected = both("scatter", arrays, axes, how)
        np.testing.assert_array_equal(ours.astype(np.float64), expected.astype(np.float64), f"{shape} {index} {axes}")


@pytest.mark.parametrize("index_dtype", INTEGERS, ids=lambda d: d.name)
def test_scatter_by_indices_of_every_dtype(index_dtype: DType) -> None:
    rng = np.random.default_rng(7)
    arrays = scatter_case(rng, (9, 100), (20,), (0,), float32, index_dtype)
    ours, expected = both("scatter", arrays, (0,), "add")
    np.testing.assert_array_equal(ours, expected)


def test_scatter_adds_halves_in_float32() -> None:
    """Added one by one in 16 bits they would be lost."""
    x, values = np.full(1, 2048, np.float16), np.full(100, 1, np.float16)
    ours, expected = both("scatter", [x, values, np.zeros(100, np.int64)], (0,), "add")
    assert ours[0] == expected[0] == 2148


def test_scatter_reports_indices_out_of_range() -> None:
    x, values = np.zeros((3, 5), np.float32), np.ones(2, np.float32)
    good = np.array([0, 1])
    for wrong, axis, value in [([0, 3], 0, 3), ([-4, 1], 0, -4), ([1, 5], 1, 5), ([-6, 0], 1, -6)]:
        indices = [np.array(wrong), good] if axis == 0 else [good, np.array(wrong)]
        node = new_node("scatter", [x, values, *indices], (0, 1), "add")
        for threads in (1, 2):
            _, status = native(node, [x, values, *indices], threads)
            assert status == [SITES[f"site{axis}"], value]


def test_scatter_into_nothing_reports_and_writes_nothing() -> None:
    for shape in ((0, 3), (0,)):
        arrays = [np.zeros(shape, np.float32), np.zeros((1, *shape[1:]), np.float32), np.array([0])]
        _, status = native(new_node("scatter", arrays, (0,), "set"), arrays, 2)
        assert status == [SITES["site0"], 0]
    arrays = [np.zeros((3, 0), np.float32), np.zeros((1, 0), np.float32), np.array([2**63], np.uint64)]
    _, status = native(new_node("scatter", arrays, (0,), "set"), arrays, 2)
    assert status[0] == SITES["site0"]


def test_scatter_in_place() -> None:
    rng = np.random.default_rng(8)
    arrays = scatter_case(rng, (9, 40), (20,), (0,), float32)
    node = new_node("scatter", arrays, (0,), "add")
    plan = special.plan(kernel_of(node), 2)
    with np.errstate(all="ignore"):
        expected = compute(node, arrays)
    work, status = np.zeros(plan.workspace, np.uint8), np.zeros(2, np.int64)
    pointers = {f"x{i}": a.ctypes.data for i, a in enumerate(arrays)} | {"y": arrays[0].ctypes.data}
    run(plan, pointers | {"work": work.ctypes.data, "status": status.ctypes.data, **SITES}, 2)
    np.testing.assert_array_equal(arrays[0], expected)
