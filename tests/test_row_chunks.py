"""Wide products by chunks of rows: the same numbers, and no value as large as the logits."""

from math import prod

import numpy as np
import pytest

import weft
from weft import nn, optim
from weft.compiler.passes.row_chunks import row_chunks
from weft.compiler.thresholds import thresholds
from weft.runtime.reference import interpret

WIDTH, VOCABULARY = 5, 83


def trained(shape, loss=weft.cross_entropy, precision=None, steps=3, extra=None):
    """Losses and parameters after some steps of a tiny language model; and the largest value of the scan, or of the graph."""
    weft.seed(0)
    hidden, head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=extra == "bias")
    optimizer = optim.adam(nn.Sequential(hidden, head), rate=1e-2)

    @weft.jit(precision=precision)
    def step(x, y):
        logits = head(weft.tanh(hidden(x)))
        if extra == "flat":
            logits, y = logits.reshape(-1, VOCABULARY), y.reshape(-1)
        value = loss(logits, y)
        optimizer.minimize(value)
        return (value, logits.argmax(-1) if extra == "predictions" else value)

    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(*shape, WIDTH)).astype(np.float32), rng.integers(0, VOCABULARY, shape)
    found = [[v.numpy() for v in step(x, y)] for _ in range(steps)]
    after = step.passes(x, y)["row chunks"]
    return found, [p.numpy() for p in (*hidden.parameters(), *head.parameters())], after


def scans(graph):
    return [n for n in graph.nodes if n.op.name == "scan"]


@pytest.mark.sweep("extra", share=1.0)
@pytest.mark.parametrize("extra", [None, "bias", "flat", "predictions"])
@pytest.mark.parametrize("shape", [(6, 4), (32,), (7, 3)], ids=str)
def test_a_training_step(shape, extra):
    expected = trained(shape, extra=extra)
    with thresholds.set(row_chunk_bytes=prod(shape) * VOCABULARY * 4 // 3):
        found = trained(shape, extra=extra)
    assert not scans(expected[2])
    [scan] = scans(found[2])
    assert scan.param("length") in (3, 4, 7)
    whole = prod(shape) * VOCABULARY
    assert all(prod(n.shape) < whole for n in found[2].nodes)
    assert all(prod(n.shape) <= -(-whole // 3) for n in scan.param("body").nodes)
    for a, b in zip(found[0], expected[0], strict=True):
        for one, other in zip(a, b, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)
    for a, b in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_mixed_precision(precision):
    expected = trained((6, 4), precision=precision)
    with thresholds.set(row_chunk_bytes=3000):
        found = trained((6, 4), precision=precision)
    assert scans(found[2])
    np.testing.assert_allclose([v for v, _ in found[0]], [v for v, _ in expected[0]], rtol=5e-3)


def chunked(f, *arrays):
    graph = weft.make_graph(f, *arrays)
    with thresholds.set(row_chunk_bytes=100):
        return row_chunks(graph)


X, W = np.random.default_rng(0).normal(size=(6, 3)), np.random.default_rng(1).normal(size=(3, 40))


def test_every_loss_by_rows():
    """Against float64 without chunks: squares, maxima, selected columns, a second wide operand."""
    teacher = np.random.default_rng(2).normal(size=(6, 40))
    cases = {
        "log-sum-exp": lambda x, w: weft.logsumexp(x @ w, axis=-1).sum(),
        "squares": lambda x, w: ((x @ w) ** 2).mean(),
        "largest": lambda x, w: (x @ w).max(axis=1).sum(),
        "teacher": lambda x, w: -(weft.softmax(weft.asarray(teacher)) * weft.log_softmax(x @ w)).sum(),
        "columns": lambda x, w: weft.tanh(x @ w)[:, 3:6].sum(),
        "a transposed operand": lambda x, w: (weft.tanh(x @ w) * weft.asarray(teacher.T.copy()).T).sum(),
        "an operand in another order": lambda x, w: (weft.tanh(x @ w) * weft.asarray(teacher)[::-1]).sum(),
    }
    for name, f in cases.items():
        x, w = weft.asarray(X), weft.asarray(W)
        expected = weft.value_and_grad(f, (0, 1))(x, w)
        with thresholds.set(row_chunk_bytes=700):
            step = weft.jit(weft.value_and_grad(f, (0, 1)))
            found = step(x, w)
            made = scans(step.passes(x, w)["row chunks"])
        assert len(made) == 1, name
        for a, b in zip((found[0], *found[1]), (expected[0], *expected[1]), strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-12, err_msg=name)


def test_what_needs_all_rows_is_left_alone():
    cases = {
        "logits are a result": lambda x, w: ((x @ w), (x @ w).sum()),
        "normalised over rows": lambda x, w: weft.softmax(x @ w, axis=0).max(axis=1),
        "rows in another order": lambda x, w: weft.exp(x @ w)[::-1].max(axis=1),
        "a sum of all rows is read": lambda x, w: ((x @ w) / weft.exp(x @ w).sum()).max(axis=1),
    }
    for name, f in cases.items():
        assert not scans(chunked(f, X.astype(np.float32), W.astype(np.float32))), name
    assert scans(chunked(lambda x, w: weft.exp(x @ w).max(axis=1), X.astype(np.float32), W.astype(np.float32)))


@pytest.mark.parametrize("rows", [2, 3, 6])
def test_the_first_rows_selected_by_number(rows):
    """A chunk has the numbers of its own rows: row 1 of 2 is not in the second of two chunks of 6 rows."""
    columns = np.array([39, 0, 17, 5, 8, 2])[:rows]
    f = lambda x, w, c: weft.log_softmax(x @ w)[weft.arange(rows), c]  # noqa: E731
    for chunk in (1000, 700, 350):
        with thresholds.set(row_chunk_bytes=chunk):
            after = weft.jit(f).passes(X, W, columns)["row chunks"]
        assert bool(scans(after)) is (rows == 6)
        logits = X @ W
        expected = (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))[np.arange(rows), columns]
        np.testing.assert_allclose(interpret(after)(X, W, columns)[0], expected, rtol=1e-12)


def test_narrow_products_and_single_rows_are_left_alone():
    x, w = X.astype(np.float32), W.astype(np.float32)
    assert not scans(chunked(lambda x, w: weft.exp(x @ w).max(axis=1), x, w[:, :20]))
    assert not scans(chunked(lambda x, w: weft.exp(x @ w).max(axis=1), x[:1], w))
