"""Random programs with their gradients on the device agree with the definition: floats against float64, integers exactly."""

from typing import Any

import numpy as np
import pytest
from gpu_tools import run_graph, run_graphs

import weft
from test_compiler_random import INTEGERS as KINDS
from test_compiler_random import SHAPES, assert_agrees, both_references, grow_integers, in_other_floats
from weft.graph import Graph
from weft.runtime.reference import interpret
from weft.testing import counted

BUNDLE = 4  # programs that are compiled as one


@pytest.mark.parametrize("number", range(12))
def test_random_programs_and_their_gradients(number: int) -> None:
    """Short programs and long ones; the number of steps depends on the seed."""
    cases = [both_references(1000 * number + i, 1 + (5 * number + 3 * i) % 14, True) for i in range(BUNDLE)]
    found = run_graphs([graph for graph, *_ in cases], [arrays for _, arrays, *_ in cases])
    for got, (_, _, narrow, wide) in zip(found, cases, strict=True):
        assert_agrees(got, narrow, wide)


@in_other_floats
def test_random_programs_in_other_floats(dtype: str, rounding: float) -> None:
    for seed in (1, 2, 3):
        graph, arrays, narrow, wide = both_references(seed, 6, True, dtype)
        assert_agrees(run_graph(graph, arrays), narrow, wide, rounding)


@pytest.mark.parametrize("number", range(6))
def test_random_integer_programs_are_exact(number: int) -> None:
    graphs: list[Graph] = []
    given: list[list[np.ndarray]] = []
    for seed in range(100 * number, 100 * number + BUNDLE):
        rng = np.random.default_rng(seed)
        shapes = [SHAPES[i] for i in rng.integers(0, len(SHAPES), 2)]
        kinds = rng.choice(KINDS, 2)
        arrays = [
            rng.integers(-100 if d[0] == "i" else 0, 100, s).astype(d) for s, d in zip(shapes, kinds, strict=True)
        ]
        graphs.append(_integers(seed, arrays))
        given.append(arrays)
    for graph, arrays, found in zip(graphs, given, run_graphs(graphs, given), strict=True):
        with np.errstate(all="ignore"):
            expected = interpret(graph)(*arrays)
        for got, value in zip(found, expected, strict=True):
            np.testing.assert_array_equal(got, value)
            counted()


def _integers(seed: int, arrays: list[np.ndarray]) -> Graph:
    def run(a: Any, b: Any) -> Any:
        return grow_integers(seed, 2 + seed % 10, a, b)

    return weft.make_graph(run, *map(weft.asarray, arrays))


def test_large_tensors() -> None:
    """Large enough for many blocks, and of no round size."""
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(257, 1031)).astype("float32"), rng.normal(size=(1031, 67)).astype("float32")

    def run(x: Any, w: Any) -> Any:
        y = weft.relu(x @ w)
        return [
            x.mean(), x.sum(axis=0), x.sum(axis=1), x.max(axis=0), (x * x).mean(), weft.softmax(x), weft.layer_norm(x),
            y, y.mean(), weft.cumulative_sum(x, axis=0), weft.softmax(y, axis=0), x.mT + 1.0, x.argmax(), x.reshape(1031, 257).sum(axis=1),
            weft.grad(lambda w: (weft.tanh(x @ w) ** 2).mean())(w), weft.sort(x, axis=1), weft.argsort(x, axis=0),
        ]  # fmt: skip

    graph = weft.make_graph(run, weft.asarray(x), weft.asarray(w))
    double = weft.make_graph(run, weft.asarray(x.astype("f8")), weft.asarray(w.astype("f8")))
    narrow, wide = interpret(graph)(x, w), interpret(double)(x.astype("f8"), w.astype("f8"))
    assert_agrees(run_graph(graph, [x, w]), narrow, wide)


def test_streams_of_random_numbers_have_the_same_bits_as_elsewhere() -> None:
    def drawn() -> dict[str, bytes]:
        stream = weft.random.Generator(11)
        found = {
            "bits": stream.bits((1000,)), "uniform": stream.uniform((37, 3)), "normal": stream.normal((1001,)),
            "integers": stream.integers(-5, 1000, (77,)), "bernoulli": stream.bernoulli(0.3, (513,)),
            "permutation": stream.permutation(100), "half": stream.normal((65,), dtype="bfloat16"), "offset": stream.offset,
        }  # fmt: skip
        return {name: t.numpy().tobytes() for name, t in found.items()}

    here = drawn()
    with weft.knobs.set(device="reference"):
        there = drawn()
    for name, bits in here.items():
        assert bits == there[name], name
        counted()
