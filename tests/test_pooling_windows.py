"""Pooling with windows of every size and its gradients, on both sides of the size up to which windows are written out."""

import numpy as np
import pytest

import weft
from weft.compiler.thresholds import thresholds
from weft.testing import counted

# Shape, window, options: 25 taps and 26, one to three dimensions, overlapping or not, with padding, stride and dilation.
CASES = [
    ((2, 3, 10, 10), 5, {"stride": 1}),
    ((2, 3, 14, 14), 6, {"stride": 2, "padding": 3}),
    ((2, 3, 14, 14), 7, {}),
    ((2, 40, 13, 11), (6, 5), {"stride": 1}),
    ((2, 3, 15, 15), 7, {"stride": 3, "padding": 2}),
    ((1, 2, 6, 7, 8), 3, {"padding": 1, "stride": 1}),
    ((1, 2, 6, 6, 6), 3, {}),
    ((2, 3, 90), 25, {"stride": 3}),
    ((2, 3, 90), 26, {"stride": 3}),
    ((2, 1, 90), 31, {"stride": 7, "padding": 15}),
    ((2, 33, 60), 26, {"stride": 1, "dilation": 2}),
    ((2, 5, 9, 9), 9, {}),
    ((1, 16, 40, 40), (1, 30), {"stride": 5}),
]


def values(shape, seed=0):
    """With many ties: of equal elements the first one wins."""
    return np.round(np.random.default_rng(seed).normal(size=shape) * 4) / 4


def pooled(x, r, pool, size, how):
    return (pool(x, size, **how) * r).sum()


def check(case, dtype, pool=weft.max_pool):
    shape, size, how = case
    x = values(shape)
    with weft.knobs.set(device="reference"):
        exact = weft.asarray(x)
        y = pool(exact, size, **how)
        r = np.random.default_rng(1).normal(size=y.shape)
        want = weft.grad(pooled)(exact, weft.asarray(r), pool, size, how).numpy()
    f = weft.jit(weft.grad(lambda x, r: pooled(x, r, pool, size, how)))
    g = weft.jit(lambda x: pool(x, size, **how))
    given, weights = weft.asarray(x).astype(dtype), weft.asarray(r).astype(dtype)
    tolerance = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-2, "bfloat16": 1e-1}[dtype]
    for _ in range(2):
        counted()
        np.testing.assert_allclose(g(given).astype("float64").numpy(), y.numpy(), rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(f(given, weights).astype("float64").numpy(), want, rtol=tolerance, atol=tolerance)


@pytest.mark.sweep("case", share=0.0)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_max_pooling(case, dtype):
    check(case, dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("case", CASES[2:11:3], ids=str)
def test_max_pooling_of_16_bits(case, dtype):
    check(case, dtype)


@pytest.mark.parametrize("case", CASES[1::3], ids=str)
def test_mean_pooling(case):
    if "dilation" not in case[2]:
        check(case, "float32", weft.avg_pool)


@pytest.mark.parametrize("case", [*CASES[:2], CASES[5]], ids=str)
def test_without_a_compiler(case):
    """The same code, run often enough to be compiled without `jit`."""
    shape, size, how = case
    x = weft.asarray(values(shape).astype(np.float32))
    gradient = weft.grad(lambda x: (weft.max_pool(x, size, **how) ** 2).sum())
    first = gradient(x).numpy()
    for _ in range(4):
        np.testing.assert_allclose(gradient(x).numpy(), first, rtol=1e-6)


def test_nan_wins_and_gets_the_gradient():
    x = values((1, 1, 12, 12)).astype(np.float32)
    x[0, 0, 3, 4] = np.nan
    for size in (2, 6):
        got = weft.jit(weft.grad(lambda x, size=size: weft.max_pool(x, size).sum()))(weft.asarray(x)).numpy()
        assert got[0, 0, 3, 4] == 1
        assert got.sum() == (12 // size) ** 2


@pytest.mark.parametrize(
    "case",
    [((2, 3, 8, 8), 3, {"stride": 1, "padding": 1}), ((2, 3, 8, 8), 2, {}), ((1, 2, 20), 4, {"stride": 3})],
    ids=str,
)
def test_small_windows_as_loops(case):
    """A window of any size can be a loop."""
    with weft.knobs.set(cache="off"), thresholds.set(unrolled_taps=0):
        check(case, "float32")
        check(case, "float32", weft.avg_pool)
