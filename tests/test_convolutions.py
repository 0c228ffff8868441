"""Random convolutions over all their parameters, compiled: the result and both gradients agree with the definition in float64.

Many small ones share a program, so that one compilation checks them all; what surrounds a convolution in a network (bias,
activation, residual, pooling, a change of layout) has tests of its own.
"""

import random
from typing import Any

import numpy as np
import pytest

import weft
from weft.runtime.reference import interpret
from weft.testing import counted

# Relative to the largest value. Winograd costs float32 a digit; the sums are long compared with their results.
TOLERANCE = {"float64": 1e-11, "float32": 4e-5, "float16": 1e-2, "bfloat16": 6e-2}
Case = tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]


def random_case(pick: random.Random, rank: int) -> Case:
    """The shape of an input and of a filter, and how to convolve them."""
    groups = pick.choice([1, 1, 1, 2, 3])
    inner, outer = pick.choice([1, 2, 3, 4, 8]), pick.choice([1, 2, 3, 5, 8])
    if pick.random() < 0.25:  # depthwise, perhaps with several filters a channel
        groups, inner, outer = pick.choice([2, 3, 8, 16]), 1, pick.choice([1, 1, 2])
    kernel = tuple(pick.choice([1, 2, 3, 3, 3, 4, 5]) for _ in range(rank))
    dilation = tuple(pick.choice([1, 1, 1, 2, 3]) for _ in range(rank))
    stride = tuple(pick.choice([1, 1, 2, 3]) for _ in range(rank))
    padding = tuple((pick.randint(0, k), pick.randint(0, k)) for k in kernel)
    least = [(k - 1) * d + 1 - sum(p) for k, d, p in zip(kernel, dilation, padding, strict=True)]
    size = tuple(max(1, n) + pick.randint(0, 9 if rank < 3 else 4) for n in least)
    how = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return (pick.randint(1, 3), groups * inner, *size), (groups * outer, inner, *kernel), how


def plain_cases() -> list[Case]:
    """The layers of known networks, small: they have kernels of their own."""
    return [
        ((2, 16, 12, 12), (16, 16, 3, 3), {"padding": 1}),
        ((1, 32, 10, 14), (24, 32, 3, 3), {"padding": 1, "stride": 2}),
        ((1, 24, 9, 9), (48, 24, 1, 1), {}),
        ((2, 24, 9, 9), (16, 24, 1, 1), {"stride": 2}),
        ((1, 3, 35, 35), (16, 3, 11, 11), {"stride": 4, "padding": 2}),
        ((3, 1, 28, 28), (6, 1, 5, 5), {"padding": 2}),
        ((2, 6, 14, 14), (16, 6, 5, 5), {}),
        ((2, 32, 9, 9), (32, 1, 3, 3), {"padding": 1, "groups": 32}),
        ((2, 32, 9, 9), (32, 1, 5, 5), {"padding": 2, "groups": 32, "stride": 2}),
        ((1, 8, 5, 6, 7), (8, 8, 3, 3, 3), {"padding": 1}),
        ((4, 12, 50), (8, 12, 9), {"padding": "same"}),
        ((1, 64, 3, 3), (8, 64, 3, 3), {}),
    ]


def results(case: Case, x: Any, w: Any, weight: Any) -> list[Any]:
    """The convolution and the gradients of a weighted sum of it."""
    how = case[2]
    y = weft.conv(x, w, **how)
    return [y, *weft.grad(lambda x, w: (weft.conv(x, w, **how) * weight).sum(), argnums=(0, 1))(x, w)]


def arrays_for(case: Case, rng: np.random.Generator, dtype: str) -> list[np.ndarray]:
    """Inputs that the dtype can hold: integers from 0 to 4, or normal numbers."""
    kind = weft.asarray(0).astype(dtype).dtype
    shapes = [case[0], case[1], result_shape(case)]
    numbers = (rng.normal(size=s) if kind.is_float else rng.integers(0, 5, s) for s in shapes)
    return [n.astype(kind.numpy) for n in numbers]


def result_shape(case: Case) -> tuple[int, ...]:
    return (
        weft.make_graph(lambda x, w: weft.conv(x, w, **case[2]), weft.zeros(case[0]), weft.zeros(case[1]))
        .outputs[0]
        .shape
    )


def expected_of(case: Case, arrays: list[np.ndarray]) -> tuple[Any, ...]:
    wide = [a.astype("float64") for a in arrays]
    return interpret(weft.make_graph(lambda *a: results(case, *a), *map(weft.asarray, wide)))(*wide)


def check(cases: list[Case], dtype: str, seed: int = 0) -> None:
    """All cases in one program."""
    rng = np.random.default_rng(seed)
    arrays = [arrays_for(c, rng, dtype) for c in cases]

    @weft.jit
    def run(groups: Any) -> Any:
        return [results(c, *group) for c, group in zip(cases, groups, strict=True)]

    for case, inputs, got in zip(cases, arrays, run(arrays), strict=True):
        for name, actual, expected in zip(("y", "dx", "dw"), got, expected_of(case, inputs), strict=True):
            assert actual.shape == expected.shape
            scale = max(1.0, float(np.abs(expected).max(initial=0)))
            worst = float(np.abs(actual.numpy().astype("float64") - expected).max(initial=0))
            assert worst <= TOLERANCE[dtype] * scale, f"{name} of {case}: {worst} away at scale {scale}"
            counted()


@pytest.mark.sweep("rank", share=0.3)
@pytest.mark.parametrize(("rank", "seed"), [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (2, 3), (3, 0), (3, 1)])
def test_random_convolutions(rank: int, seed: int) -> None:
    pick = random.Random(f"{rank} {seed}")
    check([random_case(pick, rank) for _ in range(6)], "float32", seed)


@pytest.mark.sweep(share=2.0)  # each part holds layers of every network
@pytest.mark.parametrize("part", range(3))
def test_layers_of_known_networks(part: int) -> None:
    check(plain_cases()[part::3], "float32")


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_other_floats(dtype: str) -> None:
    pick = random.Random(dtype)
    check([*(random_case(pick, rank) for rank in (1, 2, 2, 3)), plain_cases()[0], plain_cases()[7]], dtype)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "int16"])
def test_integers_are_exact(dtype: str) -> None:
    pick = random.Random(dtype)
    cases = [random_case(pick, rank) for rank in (1, 2, 3)]
    rng = np.random.default_rng(0)
    arrays = [arrays_for(c, rng, dtype)[:2] for c in cases]
    run = weft.jit(lambda groups: [weft.conv(x, w, **c[2]) for c, (x, w) in zip(cases, groups, strict=True)])
    for case, (x, w), got in zip(cases, arrays, run(arrays), strict=True):
        with weft.knobs.set(device="reference"):
            expected = weft.conv(weft.asarray(x), weft.asarray(w), **case[2]).numpy()
        np.testing.assert_array_equal(got.numpy(), expected)
        counted()


def test_transposed_convolutions() -> None:
    rng = np.random.default_rng(0)
    cases: list[Case] = [
        ((2, 4, 5, 6), (4, 3, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
        ((1, 6, 4), (6, 2, 3), {"stride": 3, "groups": 2}),
        ((1, 2, 3, 4, 3), (2, 3, 2, 3, 2), {"dilation": 2}),
    ]
    arrays = [[rng.normal(size=s).astype("float32") for s in c[:2]] for c in cases]

    def one(case: Case, x: Any, w: Any) -> list[Any]:
        f = lambda x, w: (weft.sin(weft.conv_transpose(x, w, **case[2]))).sum()  # noqa: E731
        return [weft.conv_transpose(x, w, **case[2]), *weft.grad(f, argnums=(0, 1))(x, w)]

    got = weft.jit(lambda groups: [one(c, *g) for c, g in zip(cases, groups, strict=True)])(arrays)
    for case, inputs, actual in zip(cases, arrays, got, strict=True):
        wide = [a.astype("float64") for a in inputs]
        graph = weft.make_graph(lambda x, w, case=case: one(case, x, w), *map(weft.asarray, wide))
        for a, b in zip(actual, interpret(graph)(*wide), strict=True):
            np.testing.assert_allclose(a.numpy(), b, rtol=1e-4, atol=1e-4)
            counted()


def block(x: Any, w: Any, v: Any, b: Any, scale: Any) -> Any:
    """What surrounds convolutions: bias, activation, residual, pooling, normalisation, another layout, a dense layer."""
    h = weft.relu(weft.conv(x, w, b, padding=1))
    y = weft.batch_norm(weft.conv(h, v, padding=1), scale, b).value
    y = weft.max_pool(weft.relu(y + h), 2)
    z = weft.conv(weft.flip(y, axis=2), v[:, :, 1:, 1:], stride=2)
    merged = weft.concat([y.mean(axis=(2, 3)), z.reshape((z.shape[0], -1)), y.max(axis=(2, 3))], axis=1)
    return (
        weft.tanh(merged.sum(axis=1)).sum()
        + (y.permute(0, 2, 3, 1) * scale).mean()
        + weft.avg_pool(h, 3, stride=2).std()
    )


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_block_of_a_network(threads: int) -> None:
    rng = np.random.default_rng(0)
    shapes = ((3, 5, 11, 9), (8, 5, 3, 3), (8, 8, 3, 3), (8,), (8,))
    arrays = [rng.normal(size=s).astype("float32") * 0.5 for s in shapes]
    with weft.knobs.set(threads=threads):
        got = weft.jit(weft.value_and_grad(block, argnums=range(5)))(*arrays)
    value, grads = got
    wide = [a.astype("float64") for a in arrays]
    graph = weft.make_graph(lambda *a: weft.value_and_grad(block, argnums=range(5))(*a), *map(weft.asarray, wide))
    for a, b in zip((value, *grads), interpret(graph)(*wide), strict=True):
        np.testing.assert_allclose(a.numpy(), b, rtol=2e-4, atol=2e-4 * max(1.0, np.abs(b).max()))
        counted()


def test_inputs_of_size_zero() -> None:
    run = weft.jit(lambda x, w: (weft.conv(x, w), *weft.grad(lambda x, w: weft.conv(x, w).sum(), argnums=(0, 1))(x, w)))
    y, dx, dw = run(np.zeros((0, 3, 5), "float32"), np.ones((2, 3, 2), "float32"))
    assert (y.shape, dx.shape, dw.tolist()) == ((0, 2, 4), (0, 3, 5), np.zeros((2, 3, 2)).tolist())
