"""What a backward scan would compute again is kept by the forward one."""

from typing import Any

import numpy as np
import pytest

import weft
from weft.compiler.passes.scan_residuals import scan_residuals
from weft.graph import Graph
from weft.knobs import knobs
from weft.runtime.reference import interpret


def scans(graph: Graph) -> list[Any]:
    return [n for n in graph.nodes if n.op.name == "scan"]


def products(scan: Any) -> int:
    return sum(n.op.name in ("contract", "conv") for n in scan.params[0].nodes)


def gradient(step: Any, *, reverse: bool = False) -> Any:
    def run(x: Any, w: Any) -> Any:
        def loss(w: Any) -> Any:
            h, ys = weft.scan(lambda h, v: step(h, v, w), weft.zeros((4, 3)), x, reverse=reverse)
            return (h * h).sum() + sum((y * y).sum() for y in weft.tree.flatten(ys)[0])

        return weft.grad(loss)(w)

    return run


STEPS = {
    "tanh": lambda h, v, w: (weft.tanh(h @ w + v), None),
    "with outputs": lambda h, v, w: (weft.tanh(h @ w + v), weft.sin(h @ w)),
    "two products": lambda h, v, w: (weft.tanh((h @ w).relu() @ w.T + v), h),
    "a product of the sequence": lambda h, v, w: (weft.sigmoid(v @ w) * h + v, None),
}
RNG = np.random.default_rng(3)
X, W = RNG.normal(size=(6, 4, 3)).astype("float32"), RNG.normal(size=(3, 3)).astype("float32")


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("reverse", [False, True])
def test_no_product_is_computed_again(name: str, reverse: bool) -> None:
    before = weft.make_graph(gradient(STEPS[name], reverse=reverse), X, W)
    after = scan_residuals(before)
    first, later = scans(after)
    again = [n for n in later.params[0].nodes if n.op.name == "contract" and n in first.params[0].nodes]
    assert not again
    assert products(later) < products(scans(before)[1])
    assert products(first) == products(scans(before)[0])
    np.testing.assert_allclose(interpret(after)(X, W)[0], interpret(before)(X, W)[0], rtol=1e-6, atol=1e-6)
    compiled = weft.jit(gradient(STEPS[name], reverse=reverse))(X, W)
    np.testing.assert_allclose(compiled.numpy(), interpret(before)(X, W)[0], rtol=1e-4, atol=1e-4)


def gated(h: Any, v: Any, w: Any) -> Any:
    """Two gates from one product, each through functions that cost more than what is kept."""
    z = h @ weft.concat([w, -w], axis=1) + weft.concat([v, v], axis=1)
    return weft.sigmoid(z[:, :3]) * weft.tanh(z[:, 3:]), None


def test_what_is_made_of_a_product_is_kept_instead() -> None:
    """The gates, which are as large as the product together: the way back has neither it nor their functions."""
    before = weft.make_graph(gradient(gated), X, W)
    after = scan_residuals(before)
    first, later = scans(after)
    names = [n.op.name for n in later.params[0].nodes]
    assert "sigmoid" not in names
    assert "tanh" not in names
    assert len(first.params[0].outputs) == len(scans(before)[0].params[0].outputs) + 2
    np.testing.assert_allclose(interpret(after)(X, W)[0], interpret(before)(X, W)[0], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(
        weft.jit(gradient(gated))(X, W).numpy(), interpret(before)(X, W)[0], rtol=1e-4, atol=1e-4
    )


def test_a_product_that_is_read_otherwise_too_is_kept_itself() -> None:
    """The way back needs its value: the cosine of it is not made of its sine."""
    before = weft.make_graph(gradient(lambda h, v, w: (weft.sin(h @ w), None)), X, W)
    first, later = scans(scan_residuals(before))
    assert products(later) < products(scans(before)[1])
    kept = first.params[0].outputs[-1]
    assert kept.op.name == "contract"
    assert "cos" in [n.op.name for n in later.params[0].nodes]


def test_second_derivatives() -> None:
    def f(w: Any) -> Any:
        return (gradient(STEPS["tanh"])(weft.asarray(X), w) ** 2).sum()

    twice = weft.grad(f)
    with knobs.set(device="reference"):
        expected = twice(weft.asarray(W)).numpy()
    np.testing.assert_allclose(weft.jit(twice)(weft.asarray(W)).numpy(), expected, rtol=1e-3, atol=1e-3)


def test_a_checkpoint_is_computed_again() -> None:
    step = weft.checkpoint(lambda h, v, w: weft.tanh(h @ w + v))
    graph = weft.make_graph(gradient(lambda h, v, w: (step(h, v, w), None)), X, W)
    assert scan_residuals(graph) == graph


def test_scans_that_have_nothing_in_common_stay() -> None:
    def f(x: Any, w: Any) -> Any:
        h, ys = weft.scan(lambda h, v: (weft.tanh(h @ w + v), h), weft.zeros((4, 3)), x)
        return weft.scan(lambda h, v: (weft.tanh(h @ w + v), None), h, ys)[0]

    graph = weft.make_graph(f, X, W)
    assert scan_residuals(graph) == graph
