"""Sums and norms of channels that lie last: right for few, many and odd counts of them, read in order, the same bits for any threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from weft import knobs, nn
from weft.compiler.cpu.backend import apply_passes
from weft.compiler.ir.nest import ready_nest
from weft.compiler.planning.fuse import fuse

CHANNELS = (1, 3, 7, 16, 24, 31, 33, 48, 130, 300)


def _reductions(x: Any) -> list[Any]:
    whole = (0, 1)
    return [
        x.sum(axis=whole), x.max(axis=whole), x.argmax(axis=0), x.var(axis=whole), x.sum(axis=1) * (x * x).sum(axis=1)
    ]  # fmt: skip


@pytest.mark.parametrize("channels", CHANNELS)
def test_columns_are_reduced(channels: int) -> None:
    x = np.random.default_rng(channels).standard_normal((5, 37, channels))
    for dtype, allowed in (("float32", 1e-5), ("float64", 1e-13)):
        given = x.astype(dtype)
        for got, expected in zip(
            weft.jit(_reductions)(weft.asarray(given)), _reductions(given.astype(np.float64)), strict=True
        ):
            np.testing.assert_allclose(got.numpy(), expected, rtol=allowed, atol=10 * allowed)


def _loss(norm: nn.Module, x: Any, w: Any) -> Any:
    return (weft.relu(norm(weft.conv(x, w, padding=1))) ** 2).mean()


def _norm(channels: int) -> nn.BatchNorm2d:
    weft.seed(0)
    norm = nn.BatchNorm2d(channels)
    assert norm.scale is not None
    norm.scale.assign(weft.random.normal((channels,)))
    return norm


@pytest.mark.parametrize("channels", [5, 24, 48])
def test_batch_norm_and_its_gradients_have_the_same_bits_for_any_threads(channels: int) -> None:
    rng = np.random.default_rng(0)
    x = weft.asarray(rng.standard_normal((3, 2, 33, 31), np.float32))
    w = weft.asarray(rng.standard_normal((channels, 2, 3, 3), np.float32))
    found = []
    for threads in (1, 2, 3):
        norm = _norm(channels)
        with knobs.set(threads=threads):
            step = weft.jit(lambda x, w, norm=norm: weft.value_and_grad(lambda w: _loss(norm, x, w))(w))
            loss, gradient = step(x, w)
        found.append((loss.numpy().tobytes(), gradient.numpy().tobytes(), norm.var.numpy().tobytes()))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("channels", [3, 24, 48, 130])
def test_batch_norm_agrees_with_float64(channels: int) -> None:
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((4, 3, 17, 19)), 3.0 + rng.standard_normal((channels, 3, 3, 3))
    results = {}
    for dtype in ("float32", "float64"):
        norm = _norm(channels)
        if dtype == "float64":
            norm = _norm(channels).astype("float64")
        step = weft.jit(lambda x, w, norm=norm: weft.value_and_grad(lambda w: _loss(norm, x, w))(w))
        results[dtype] = [r.numpy() for r in step(weft.asarray(x.astype(dtype)), weft.asarray(w.astype(dtype)))]
    for a, b in zip(*results.values(), strict=True):
        assert np.linalg.norm(a - b) < 1e-4 * np.linalg.norm(b)


@pytest.mark.parametrize("channels", [16, 24])
def test_batch_norm_reads_and_writes_memory_in_order(channels: int) -> None:
    """No kernel of a training step walks through an image channel by channel."""
    norm = nn.BatchNorm2d(channels, track=False)
    x, w = weft.zeros((20, 3, 32, 32)), weft.parameter(weft.zeros((channels, 3, 3, 3)))

    def step(x: Any) -> Any:
        loss = _loss(norm, x, w)
        [gradient] = weft.gradients(loss, [w])
        return loss, gradient

    graph = weft.make_graph(step, x)
    kernels = [k for k in fuse(apply_passes(graph)).kernels if k.nest is not None and k.anchor is None]
    assert kernels
    for kernel in kernels:
        nest = ready_nest(kernel, 32)
        for phase in nest.phases:
            along = nest.vector if nest.vector is not None else phase.vector
            images = [s for s in phase.steps if s.kind == "load" and s.node.shape == (20, 32, 32, channels)]
            assert along is not None or not images
            assert all(s.indices[0].coefficient(along) in (0, 1) for s in images)


def _moments(x: Any) -> tuple[Any, Any]:
    axes = (0, 1, 2)
    return x.mean(axis=axes), x.var(axis=axes)


def _kernels_that_read(shape: tuple[int, ...]) -> int:
    graph = weft.make_graph(_moments, weft.zeros(shape))
    [x] = graph.inputs
    return sum(x in k.reads for k in fuse(apply_passes(graph)).kernels)


@pytest.mark.parametrize("shape", [(20, 32, 32, 24), (3, 64, 64, 7), (2, 300, 200, 8)], ids=str)
def test_mean_and_variance_read_memory_once(shape: tuple[int, ...]) -> None:
    assert _kernels_that_read(shape) == 1
    rng = np.random.default_rng(0)
    # Far from 0, and parts far from each other: the variance is that between the parts.
    for x in (
        1e3 + rng.standard_normal(shape),
        rng.standard_normal(shape) + 50.0 * rng.standard_normal((*shape[:2], 1, 1)),
    ):
        given = x.astype(np.float32)
        mean, var = (m.numpy() for m in weft.jit(_moments)(weft.asarray(given)))
        np.testing.assert_allclose(mean, given.mean(axis=(0, 1, 2), dtype=np.float64), rtol=1e-6, atol=1e-5)
        np.testing.assert_allclose(var, given.astype(np.float64).var(axis=(0, 1, 2)), rtol=3e-6)


def test_infinities_in_statistics_are_seen() -> None:
    x = np.ones((20, 32, 32, 8), np.float32)
    x[3, 4, 5, 2], x[7, 0, 0, 6] = np.inf, np.nan
    mean, var = (m.numpy() for m in weft.jit(_moments)(weft.asarray(x)))
    assert np.isinf(mean[2])
    assert np.isnan([var[2], mean[6], var[6]]).all()
    np.testing.assert_array_equal(np.delete(var, [2, 6]), np.zeros(6))
