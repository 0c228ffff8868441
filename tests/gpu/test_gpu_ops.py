"""Every op on the device: all samples in all dtypes, and derivatives, agree with the definition."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from gpu_tools import run_graph

import weft
from test_ops import DECLARED
from weft.ops.declare import Sample
from weft.runtime.reference import interpret
from weft.tensor import emit, emit_all
from weft.testing import close, generator
from weft.testing.checks import _as_dtype, _define_all, _float_dtypes, _is_float


@pytest.mark.parametrize("op", DECLARED, ids=lambda op: op.name)
def test_every_sample_and_dtype(op: Any) -> None:
    """All samples of an op in one program: one compilation, many checks."""
    cases = [
        ([_as_dtype(i, dtype) for i in sample.inputs], sample.params)
        for sample in op.samples(generator(op.name))
        for dtype in _float_dtypes(sample)
    ]

    @weft.jit
    def run(groups: Any) -> Any:
        pairs = zip(groups, cases, strict=True)
        return [results_of(op, tuple(map(weft.asarray, g)), params) for g, (_, params) in pairs]

    for results, (inputs, params) in zip(run([inputs for inputs, _ in cases]), cases, strict=True):
        with weft.knobs.set(device="cpu"):
            expected = _define_all(op, inputs, params)
        for found, wanted in zip(results, expected, strict=True):
            actual = found.numpy()
            assert actual.dtype == found.dtype.numpy
            close(actual, wanted, found.dtype)


def results_of(op: Any, inputs: tuple[Any, ...], params: tuple[Any, ...]) -> tuple[Any, ...]:
    """The results of an op: of most ops one."""
    return emit_all(op, inputs, params) or (emit(op, inputs, params),)


def check_derivatives(op: Any, samples: Sequence[Sample]) -> None:
    """Backward through all samples, in float64, with cotangents that are all different, as one program."""
    arrays = [_as_dtype(i, weft.float64) for s in samples for i in s.inputs]

    def pulled_back(*inputs: Any) -> Any:
        rest, results = iter(inputs), []
        for sample in samples:
            given = [next(rest) for _ in sample.inputs]
            y, back = weft.vjp(lambda *xs, p=sample.params: results_of(op, xs, p)[0], *given)
            if y.dtype.is_float:
                results += [g for g in back(weft.sin(y) + 1.5) if g is not None]
        return results

    graph = weft.make_graph(pulled_back, *(weft.asarray(a) for a in arrays))
    with np.errstate(all="ignore"):
        expected = interpret(graph)(*arrays)
    for actual, wanted, node in zip(run_graph(graph, arrays), expected, graph.outputs, strict=True):
        # Casts go through float32, whose functions are not the same to the last bit everywhere.
        close(actual, wanted, weft.float32 if op.name == "cast" else node.dtype, slack=10.0)


def _sampled(op: Any, empty: bool) -> list[Sample]:
    """The samples that have floats, with or without elements."""
    found = [s for s in op.samples(generator(op.name)) if any(_is_float(i) for i in s.inputs)]
    return [s for s in found if empty == any(np.asarray(i).size == 0 for i in s.inputs)]


DERIVED = [op for op in DECLARED if op.vjp]


@pytest.mark.parametrize("op", DERIVED, ids=lambda op: op.name)
def test_derivatives(op: Any) -> None:
    check_derivatives(op, _sampled(op, empty=False))


def test_derivatives_of_nothing() -> None:
    """Tensors without elements have derivatives too; all ops that take them."""
    ops = [op for op in DERIVED if _sampled(op, empty=True)]
    assert len(ops) > 10
    for op in ops:
        check_derivatives(op, _sampled(op, empty=True))


def test_without_jit() -> None:
    """Values are computed when somebody looks, compiled or not."""
    x = weft.asarray(np.linspace(-2, 2, 35, dtype=np.float32).reshape(5, 7))
    for _ in range(5):  # what comes again is compiled
        y = weft.softmax(x @ x.mT, axis=1).sum(axis=0) + weft.sort(x[:, 0])
        with weft.knobs.set(device="reference"):
            wide = weft.asarray(x.numpy().astype(np.float64))
            expected = weft.softmax(wide @ wide.mT, axis=1).sum(axis=0) + weft.sort(wide[:, 0])
        close(y.numpy(), expected.numpy(), weft.float32)


def test_control_flow() -> None:
    def f(x: Any, n: Any) -> Any:
        total, rows = weft.scan(lambda s, r: (s + r, s * r), weft.zeros(5), x)
        grown = weft.while_loop(lambda v: v.sum() < 50.0, lambda v: v * 1.5 + 1.0, weft.abs(x[0]))
        chosen = weft.cond(n > 2, lambda: weft.sin(x), lambda: x * 2.0)
        return total, rows, grown, chosen

    run = weft.jit(f)
    x = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    for n in (1, 3, 2, 7):
        graph = weft.make_graph(f, weft.asarray(x), weft.asarray(n))
        for actual, expected in zip(run(x, n), interpret(graph)(x, np.asarray(n)), strict=True):
            close(actual.numpy(), expected, weft.float32)
