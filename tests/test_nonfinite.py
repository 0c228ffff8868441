"""Compiled code does not hide values that are not finite: what is nan or infinite without a compiler is so with one."""

import numpy as np
import pytest

import weft
from weft.testing import counted

X = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
IMAGE = np.random.default_rng(1).normal(size=(3, 2, 5, 5)).astype(np.float32)
W = np.random.default_rng(2).normal(size=(4, 2, 3, 3)).astype(np.float32)


def gradient(f):
    return weft.grad(lambda x: f(x).sum())


FUNCTIONS = {
    "zero times x": lambda x: 0.0 * x,
    "x times zero": lambda x: x * weft.zeros(x.shape),
    "x less x": lambda x: x - x,
    "x over x": lambda x: x / x,
    "x plus its negative": lambda x: x + -x,
    "zero over x": lambda x: 0.0 / x,
    "power zero": lambda x: x**0.0,
    "sum of differences from the mean": lambda x: (x - x.mean()).sum(),
    "the same by rows": lambda x: (x - x.mean(axis=1, keepdims=True)).sum(axis=1),
    "the same, scaled": lambda x: (3.0 * (x - x.mean(axis=0)) * x[0].mean()).sum(axis=0),
    "sum of multiples": lambda x: (x * 0.0).sum(axis=1),
    "product with zeros": lambda x: x @ weft.zeros((6, 3)),
    "mean": lambda x: x.mean(axis=0),
    "variance": lambda x: x.var(axis=1),
    "deviation": lambda x: x.std(axis=0),
    "softmax": lambda x: weft.softmax(x),
    "log softmax": lambda x: weft.log_softmax(x),
    "logsumexp": lambda x: weft.logsumexp(x, axis=1),
    "layer norm": lambda x: weft.layer_norm(x),
    "rms norm": lambda x: weft.rms_norm(x),
    "batch norm": lambda x: weft.batch_norm(x).value,
    "relu": lambda x: weft.relu(x),
    "gelu": lambda x: weft.gelu(x),
    "sigmoid": lambda x: weft.sigmoid(x),
    "tanh": lambda x: weft.tanh(x),
    "clip": lambda x: weft.clip(x, -1.0, 1.0),
    "max": lambda x: x.max(axis=1),
    "min": lambda x: x.min(axis=0),
    "maximum": lambda x: weft.maximum(x, 0.5),
    "minimum": lambda x: weft.minimum(x, x[::-1]),
    "where": lambda x: weft.where(x > 0.0, x, 0.0),
    "norm": lambda x: weft.norm(x, axis=1),
    "cumulative sum": lambda x: weft.cumulative_sum(x, axis=1),
    "prod": lambda x: weft.prod(x, axis=1),
    "sort": lambda x: weft.sort(x, axis=1),
    "sum to one and back": lambda x: x / x.sum(axis=1, keepdims=True) * x.sum(axis=1, keepdims=True),
}
# Two places: with both infinite, of the same sign or of two, differences are nan.
BAD = {
    "nan": [np.nan], "inf": [np.inf], "-inf": [-np.inf], "inf and inf": [np.inf, np.inf], "inf and -inf": [np.inf, -np.inf],
    "huge": [3e38, 3e38], "huge and -huge": [3e38, -3e38],
}  # fmt: skip


def with_bad(values, bad):
    values = values.copy()
    flat = values.reshape(-1)
    flat[[1, 4][: len(bad)]] = bad
    return values


def check(f, x):
    """Each result is finite, infinite with a sign, or nan where it is so without a compiler; what is finite is the same."""
    with weft.knobs.set(device="reference"):
        want = f(weft.asarray(x)).numpy()
    got = weft.jit(f)(weft.asarray(x)).numpy()
    counted()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))
    some = np.isfinite(want)
    np.testing.assert_allclose(got[some], want[some], rtol=1e-4, atol=1e-5)


# Where sums overflow, whether the mean of the huge is found huge or infinite depends on how wide it is added up.
OVERFLOWS = {"huge", "huge and -huge"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(name):
    for which, bad in BAD.items():
        if which not in OVERFLOWS:
            check(FUNCTIONS[name], with_bad(X, bad))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients(name):
    for which, bad in BAD.items():
        if which not in OVERFLOWS:
            check(gradient(FUNCTIONS[name]), with_bad(X, bad))


@pytest.mark.parametrize("which", BAD)
def test_differences_of_huge_values(which):
    for f in (
        lambda x: x - x,
        lambda x: x * 2.0 - x * 2.0,
        lambda x: (x * 0.5).max() - (x * 0.5).min(),
        lambda x: x / x,
    ):
        check(f, with_bad(X, BAD[which]))


@pytest.mark.parametrize("which", ["nan", "inf"])
@pytest.mark.parametrize("padding", [0, 1])
def test_convolutions(which, padding):
    def folded(x):
        scale, shift = weft.asarray([1.0, 0.0, 2.0, -1.0]), weft.asarray([0.0, 1.0, 0.0, 2.0])
        return weft.conv(x, weft.asarray(W), padding=padding) * scale[:, None, None] + shift[:, None, None]

    check(folded, with_bad(IMAGE, BAD[which]))
    check(gradient(lambda x: weft.relu(folded(x)) ** 2), with_bad(IMAGE, BAD[which]))


def test_a_loss_that_is_not_finite_is_not_hidden_by_training():
    """One bad value in a batch makes the loss and every gradient that depends on it nan."""
    w, x = weft.parameter(weft.asarray(X.T.copy())), weft.asarray(with_bad(X, [np.nan]))

    def loss(x):
        h = weft.batch_norm(x @ w).value
        return ((h - h.mean(axis=0)) ** 2).mean() + (h - h.mean()).sum()

    value, grads = weft.jit(lambda x: (lambda l: (l, weft.gradients(l, [w])))(loss(x)))(x)
    assert np.isnan(value.numpy())
    assert np.isnan(grads[0].numpy()).any()
