"""The k greatest elements and their places: both results of one kernel, equal to a stable sort."""

import numpy as np
import pytest

import weft
from sampling import sampled
from weft.dtypes import DTYPES, as_dtype
from weft.ops.sorting import MOST_SELECTED
from weft.testing import counted

SHAPES = [((40,), 0, 1), ((5, 40), 1, 7), ((40, 3), 0, 9), ((3, 17), 1, 17), ((2, 90, 4), 1, 3), ((3, 300), 1, 64)]


def numbers(shape, dtype, seed=0):
    """Numbers of a dtype, many of them equal, with nan and both zeros."""
    found = np.round(np.random.default_rng(seed).normal(size=shape) * 4)
    if dtype.is_float:
        found.flat[3], found.flat[7], found.flat[8] = np.nan, -0.0, 0.0
    return (np.abs(found) if dtype.kind in ("uint", "bool") else found).astype(dtype.numpy)


def defined(x, k, axis):
    with weft.knobs.set(device="reference", compile_after=1 << 30):
        return [y.numpy() for y in weft.top_k(weft.asarray(x), k, axis=axis)]


def assert_same(found, wanted):
    for y, expected in zip(found, wanted, strict=True):
        assert y.numpy().dtype == expected.dtype
        np.testing.assert_array_equal(y.numpy().astype(np.float64), expected.astype(np.float64))
        counted()


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(dtype):
    for shape, axis, k in sampled(f"top_k {dtype}", (SHAPES[1], SHAPES[4]), share=1.0):
        x = numbers(shape, as_dtype(dtype))
        assert_same(weft.jit(lambda x, k=k, axis=axis: weft.top_k(x, k, axis=axis))(x), defined(x, k, axis))


@pytest.mark.parametrize("arranged", [np.sort, lambda x, axis: -np.sort(-x, axis), lambda x, axis: np.zeros_like(x)])
def test_every_order(arranged):
    for shape, axis, k in SHAPES:
        x = arranged(np.random.default_rng(1).normal(size=shape).astype(np.float32), axis)
        with weft.knobs.set(threads=1 + axis):
            assert_same(weft.jit(lambda x, k=k, axis=axis: weft.top_k(x, k, axis=axis))(x), defined(x, k, axis))


def test_results_that_nobody_reads_are_not_written():
    x = numbers((3, 50), as_dtype("float32"))
    for number, name in enumerate(("values", "places")):
        f = weft.jit(lambda x, number=number: weft.top_k(x, 4)[number])
        assert_same([f(x)], defined(x, 4, 1)[number : number + 1])
        [call] = f._for((x,), {}).executable.program.calls
        assert call.phase.symbol == f"top_k.float32.{name}.4"


@pytest.mark.parametrize("k", [0, 1, MOST_SELECTED, MOST_SELECTED + 1, 100])
def test_few_are_selected_and_many_are_sorted(k):
    x = numbers((2, 100), as_dtype("float32"))
    order = np.argsort(-np.where(np.isnan(x), np.inf, x), axis=1, kind="stable")[:, :k]
    for f in (lambda x: weft.top_k(x, k), weft.jit(lambda x: weft.top_k(x, k))):
        assert_same(f(weft.asarray(x)), (np.take_along_axis(x, order, 1), order))


def test_derivatives_and_many_examples():
    x = np.random.default_rng(2).permutation(60).reshape(3, 20).astype(np.float32)
    expected = np.where(x >= np.sort(x, 1)[:, -3:][:, :1], 2 * x, 0)
    for transform in (lambda f: f, weft.jit):
        f = transform(weft.grad(lambda x: (weft.top_k(x, 3).values ** 2.0).sum()))
        np.testing.assert_array_equal(f(weft.asarray(x)).numpy(), expected)
        mapped = transform(weft.vmap(lambda row: weft.top_k(row, 3)))
        assert_same(mapped(weft.asarray(x)), defined(x, 3, 1))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "uint8"])
def test_on_a_gpu(monkeypatch, tmp_path, dtype):
    pytest.importorskip("triton")
    pytest.importorskip("fake_gpu").install(monkeypatch)
    with weft.knobs.set(device="cuda", cache=str(tmp_path)):
        for shape, axis, k in sampled(f"top_k on a GPU {dtype}", (SHAPES[1], SHAPES[4], SHAPES[5]), share=1.0):
            x = numbers(shape, as_dtype(dtype))
            assert_same(weft.jit(lambda x, k=k, axis=axis: weft.top_k(x, k, axis=axis))(x), defined(x, k, axis))
        x = numbers(SHAPES[5][0], as_dtype(dtype))
        assert_same([weft.jit(lambda x: weft.top_k(x, 64).indices)(x)], defined(x, 64, 1)[1:])
