"""Totals that a scan carries become one sum after it."""

import numpy as np

import weft
from weft.compiler.passes.scan_sums import scan_sums
from weft.compiler.passes.simplify import simplify
from weft.runtime.reference import interpret


def recurrent(x, w):
    def loss(w):
        h, _ = weft.scan(lambda h, v: (weft.tanh(h @ w + v), None), weft.zeros((4, 3)), x)
        return (h * h).sum()

    return weft.grad(loss)(w)


def scans(graph):
    return [n for n in graph.nodes if n.op.name == "scan"]


def test_the_gradient_of_weights_is_one_product() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(6, 4, 3)).astype("float32"), rng.normal(size=(3, 3)).astype("float32")
    graph = simplify(weft.make_graph(recurrent, x, w))
    after = scan_sums(graph)
    carried = [s.params[1] for s in scans(graph)], [s.params[1] for s in scans(after)]
    assert sum(carried[1]) == sum(carried[0]) - 1
    assert any(n.op.name == "contract" for n in after.nodes)
    np.testing.assert_allclose(interpret(after)(x, w)[0], interpret(graph)(x, w)[0], rtol=1e-5, atol=1e-5)


def test_backwards_and_sums() -> None:
    def f(x):
        return weft.scan(
            lambda s, v: ((s[0] + v.sum(axis=0), v.mean()), v * s[1]),
            (weft.zeros(3), weft.asarray(0.0)),
            x,
            reverse=True,
        )

    x = np.random.default_rng(1).normal(size=(5, 4, 3)).astype("float32")
    graph = simplify(weft.make_graph(f, x))
    after = scan_sums(graph)
    assert [s.params[1] for s in scans(after)] == [1]
    for a, b in zip(interpret(after)(x), interpret(graph)(x), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_a_total_that_is_looked_at_on_the_way_stays() -> None:
    x = np.ones((5, 3), "float32")
    used = weft.make_graph(lambda x: weft.scan(lambda s, v: (s + weft.sum(v), s * 2.0), weft.asarray(0.0), x), x)
    grows = weft.make_graph(lambda x: weft.scan(lambda s, v: (s * 0.9 + weft.sum(v), None), weft.asarray(0.0), x)[0], x)
    for graph in (used, grows):
        assert scan_sums(simplify(graph)) == simplify(graph)
