"""Checks every loss against its formula, written here in plain float64 NumPy: values, derivatives, extremes, errors.

What weft is asked for and what it is compared with share no code. The loss of sequences meets the sum over all paths.
"""

import doctest
import inspect
import itertools
import math
import sys

import numpy as np
import pytest
from scipy import special

import weft
from weft import nn
from weft.testing import check_grads, counted, generator

TOLERANCE = {"float64": 1e-11, "float32": 1e-5, "float16": 1e-2, "bfloat16": 6e-2}


@pytest.fixture(autouse=True)
def on_the_reference_device():
    with weft.knobs.set(device="reference"):
        yield


def near(actual, expected, tolerance=1e-11):
    counted()
    actual = np.asarray(actual.numpy(), np.float64)
    assert actual.shape == np.shape(expected)
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


# --- the formulas ------------------------------------------------------------------------------------------------------------


def bce(p, t):
    return -(t * np.log(p) + (1 - t) * np.log(1 - p))


def bce_with_logits(x, t, weight=1.0, pos_weight=1.0):
    p = special.expit(x)
    return -weight * (pos_weight * t * np.log(p) + (1 - t) * np.log(1 - p))


def binary_focal(x, t, gamma, alpha):
    p = np.where(t > 0.5, special.expit(x), 1 - special.expit(x))
    return -np.where(t > 0.5, alpha, 1 - alpha) * (1 - p) ** gamma * np.log(p)


def class_focal(x, t, gamma, alpha):
    p = special.softmax(x, axis=-1)[np.arange(len(t)), t]
    return -np.asarray(alpha)[t] * (1 - p) ** gamma * np.log(p)


def class_hinge(x, t, margin):
    return [max(0.0, max(margin + x[i, j] - x[i, t[i]] for j in range(x.shape[1]) if j != t[i])) for i in range(len(t))]


def huber(a, b, delta):
    d = np.abs(a - b)
    return np.where(d <= delta, d * d / 2, delta * (d - delta / 2))


def length(x, order=2):
    return (np.abs(x) ** order).sum(-1) ** (1 / order)


def nt_xent(a, b, temperature):
    z = np.concatenate([a, b])
    losses = []
    for i in range(len(z)):
        alike = [np.exp(z[i] @ z[j] / length(z[i]) / length(z[j]) / temperature) for j in range(len(z))]
        losses.append(-np.log(alike[(i + len(a)) % len(z)] / (sum(alike) - alike[i])))
    return losses


def tversky(p, t, alpha, beta, smooth):
    losses = np.zeros(p.shape[:2])
    for i, j in np.ndindex(*losses.shape):
        a, b = p[i, j], t[i, j]
        both = (a * b).sum()
        whole = both + alpha * (a * (1 - b)).sum() + beta * ((1 - a) * b).sum()
        losses[i, j] = 1 - (both + smooth) / (whole + smooth)
    return losses


def dice(p, t, smooth):
    return 1 - (2 * (p * t).sum(1) + smooth) / (p.sum(1) + t.sum(1) + smooth)


def box_losses(a, b, general):
    losses = []
    for (l, u, r, d), (x, y, z, w) in zip(a, b, strict=True):
        both = max(0.0, min(r, z) - max(l, x)) * max(0.0, min(d, w) - max(u, y))
        either = (r - l) * (d - u) + (z - x) * (w - y) - both
        around = (max(r, z) - min(l, x)) * (max(d, w) - min(u, y))
        losses.append(1 - both / either + ((around - either) / around if general else 0.0))
    return losses


def probabilities(rng, *shape):
    return rng.uniform(0.1, 0.9, shape)


def bits(rng, *shape):
    return (rng.random(shape) < 0.5).astype(float)


def signs(rng, *shape):
    return 2 * bits(rng, *shape) - 1


def boxes(rng, count):
    low = rng.uniform(0, 2, (count, 2))
    return np.concatenate([low, low + rng.uniform(1, 2, (count, 2))], 1)


def distributions(rng, *shape):
    return special.softmax(rng.normal(size=shape), axis=-1)


def row(name, floats, fixed, formula, **settings):
    """A loss, its inputs that are differentiated, those that are not, and the losses it must give."""
    return pytest.param(name, floats, fixed, formula, settings, id=f"{name}-{'-'.join(settings)}".strip("-"))


N = 6
ROWS = [
    row("mse", lambda r: (r.normal(size=(2, 3)), r.normal(size=(2, 3))), (), lambda a, b: (a - b) ** 2),
    row("mae", lambda r: (r.normal(size=(2, 3)), r.normal(size=(2, 3))), (), lambda a, b: np.abs(a - b)),
    row("bce", lambda r: (probabilities(r, N), probabilities(r, N)), (), bce),
    row(
        "bce", lambda r: (probabilities(r, 2, 3),), (lambda r: bits(r, 2, 3),),
        lambda p, t: bce(p, t) * np.array([1.0, 2.0, 0.5]), weight=[1.0, 2.0, 0.5],
    ),
    row("bce_with_logits", lambda r: (r.normal(size=N), probabilities(r, N)), (), bce_with_logits),
    row(
        "bce_with_logits", lambda r: (r.normal(size=(2, 3)),), (lambda r: bits(r, 2, 3),),
        lambda x, t: bce_with_logits(x, t, 0.5, np.array([1.0, 2.0, 3.0])), weight=0.5, pos_weight=[1.0, 2.0, 3.0],
    ),
    row(
        "multilabel_soft_margin", lambda r: (r.normal(size=(2, 3)),), (lambda r: bits(r, 2, 3),),
        lambda x, t: bce_with_logits(x, t).mean(-1),
    ),
    row(
        "focal", lambda r: (r.normal(size=N),), (lambda r: bits(r, N),),
        lambda x, t: binary_focal(x, t, 1.5, 0.25), gamma=1.5, alpha=0.25,
    ),
    row("focal", lambda r: (r.normal(size=N),), (lambda r: bits(r, N),), lambda x, t: bce_with_logits(x, t), gamma=0.0),
    row(
        "focal", lambda r: (r.normal(size=(N, 3)),), (lambda r: r.integers(0, 3, N),),
        lambda x, t: class_focal(x, t, 2.0, [1.0, 2.0, 3.0]), alpha=[1.0, 2.0, 3.0],
    ),
    row(
        "nll", lambda r: (r.normal(size=(N, 3)),), (lambda r: r.integers(0, 3, N),),
        lambda x, t: -x[np.arange(N), t],
    ),
    row(
        "nll", lambda r: (r.normal(size=(2, 3, 4)),), (lambda r: r.integers(0, 3, (2, 4)),),
        lambda x, t: -np.take_along_axis(x, t[:, None], 1)[:, 0], axis=1,
    ),
    row(
        "kl_divergence", lambda r: (np.log(distributions(r, 2, 3)), distributions(r, 2, 3)), (),
        lambda q, t: (t * (np.log(t) - q)).sum(-1),
    ),
    row(
        "kl_divergence", lambda r: (np.log(distributions(r, 2, 3)), np.log(distributions(r, 2, 3))), (),
        lambda q, t: (np.exp(t) * (t - q)).sum(0), log_target=True, axis=0,
    ),
    row(
        "hinge", lambda r: (r.normal(size=N),), (lambda r: signs(r, N),),
        lambda x, t: np.maximum(0, 1 - t * x),
    ),
    row(
        "hinge", lambda r: (r.normal(size=(N, 3)),), (lambda r: r.integers(0, 3, N),),
        lambda x, t: class_hinge(x, t, 0.5), margin=0.5,
    ),
    row(
        "squared_hinge", lambda r: (r.normal(size=N),), (lambda r: bits(r, N),),
        lambda x, t: np.maximum(0, 1 - (2 * t - 1) * x) ** 2,
    ),
    row("huber", lambda r: (2 * r.normal(size=N), r.normal(size=N)), (), lambda a, b: huber(a, b, 0.7), delta=0.7),
    row("smooth_l1", lambda r: (r.normal(size=N), r.normal(size=N)), (), lambda a, b: huber(a, b, 0.5) / 0.5, beta=0.5),
    row("log_cosh", lambda r: (r.normal(size=N), r.normal(size=N)), (), lambda a, b: np.log(np.cosh(a - b))),
    row(
        "mape", lambda r: (r.normal(size=N), r.uniform(1, 2, N)), (), lambda a, b: 100 * np.abs((a - b) / b),
    ),
    row(
        "msle", lambda r: (r.uniform(1, 2, N), r.uniform(1, 2, N)), (),
        lambda a, b: (np.log(1 + a) - np.log(1 + b)) ** 2,
    ),
    row("poisson", lambda r: (r.normal(size=N), r.uniform(1, 2, N)), (), lambda x, t: np.exp(x) - t * x),
    row(
        "poisson", lambda r: (r.uniform(1, 2, N), r.uniform(1, 2, N)), (),
        lambda x, t: x - t * np.log(x + 1e-8), log_input=False,
    ),
    row(
        "gaussian_nll", lambda r: (r.normal(size=N), r.normal(size=N), r.uniform(1, 2, N)), (),
        lambda x, t, v: (np.log(2 * np.pi * v) + (x - t) ** 2 / v) / 2, full=True,
    ),
    row(
        "cosine_distance", lambda r: (r.normal(size=(2, 3)), r.normal(size=(2, 3))), (),
        lambda a, b: 1 - (a * b).sum(-1) / length(a) / length(b),
    ),
    row(
        "triplet_margin", lambda r: tuple(r.normal(size=(2, 3)) for _ in range(3)), (),
        lambda a, p, n: np.maximum(0, length(a - p) - length(a - n) + 1),
    ),
    row(
        "triplet_margin", lambda r: tuple(r.normal(size=(2, 3)) for _ in range(3)), (),
        lambda a, p, n: np.maximum(0, length(a - p, 3) - length(a - n, 3) + 2), order=3.0, margin=2.0,
    ),
    row(
        "margin_ranking", lambda r: (r.normal(size=N), r.normal(size=N)), (lambda r: signs(r, N),),
        lambda a, b, t: np.maximum(0, 0.3 - t * (a - b)), margin=0.3,
    ),
    row(
        "contrastive", lambda r: (r.normal(size=(3, 2)), r.normal(size=(3, 2))), (),
        lambda a, b: nt_xent(a, b, 0.4), temperature=0.4,
    ),
    row(
        "pair_contrastive", lambda r: (r.normal(size=(N, 2)), r.normal(size=(N, 2))), (lambda r: bits(r, N),),
        lambda a, b, t: t * length(a - b) ** 2 + (1 - t) * np.maximum(0, 2 - length(a - b)) ** 2, margin=2.0,
    ),
    row("dice", lambda r: (probabilities(r, 2, 5), probabilities(r, 2, 5)), (), lambda p, t: dice(p, t, 1.0)),
    row(
        "tversky", lambda r: (probabilities(r, 2, 3, 2, 2), probabilities(r, 2, 3, 2, 2)), (),
        lambda p, t: tversky(p, t, 0.3, 0.7, 0.1), alpha=0.3, beta=0.7, smooth=0.1,
    ),
    row(
        "dice", lambda r: (probabilities(r, 2, 3, 4), probabilities(r, 2, 3, 4)), (),
        lambda p, t: tversky(p, t, 0.5, 0.5, 1.0), smooth=2.0,
    ),
    row("iou", lambda r: (boxes(r, N), boxes(r, N)), (), lambda a, b: box_losses(a, b, False)),
    row("giou", lambda r: (boxes(r, N), boxes(r, N)), (), lambda a, b: box_losses(a, b, True)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "floats", "fixed", "formula", "settings"), ROWS)
def test_values_and_derivatives(name, floats, fixed, formula, settings):
    rng = generator(f"loss {name} {sorted(settings)}")
    inputs, targets = floats(rng), tuple(f(rng) for f in fixed)
    expected = np.asarray(formula(*inputs, *targets))
    f = nn.loss(name)
    near(f(*inputs, *targets, reduction="none", **settings), expected)
    near(f(*inputs, *targets, reduction="sum", **settings), expected.sum())
    near(f(*inputs, *targets, **settings), expected.mean())
    check_grads(lambda *xs: f(*xs, *targets, reduction="none", **settings), inputs, rng=rng)
    for dtype in ("float32", "float16", "bfloat16"):
        narrow = [weft.asarray(x).astype(dtype) for x in inputs]
        result = f(*narrow, *(t.astype("float32") if t.dtype.kind == "f" else t for t in targets), **settings)
        assert result.dtype.name == dtype
        near(result, expected.mean(), TOLERANCE[dtype] * max(1.0, abs(expected).max()))


def test_the_rows_cover_the_table():
    elsewhere = {"cross_entropy", "ctc"}  # checked with the functions on tensors, and below
    assert {r.values[0] for r in ROWS} | elsewhere == set(nn.LOSSES)
    assert all(getattr(nn, name) is f for name, f in nn.LOSSES.items())


def test_compiled_is_plain():
    """One program holds all losses and the derivatives of their sum."""
    rng = generator("compiled losses")
    calls = [(r.values[0], r.values[1](rng), [f(rng) for f in r.values[2]], r.values[4]) for r in ROWS]
    points = [[weft.asarray(x.astype(np.float32)) for x in inputs] for _, inputs, _, _ in calls]

    def everything(points):
        def total(first):
            inputs = [[head, *rest[1:]] for head, rest in zip(first, points, strict=True)]
            losses = [
                nn.loss(name)(*xs, *(t.astype("float32") if t.dtype.kind == "f" else t for t in targets), **settings)
                for xs, (name, _, targets, settings) in zip(inputs, calls, strict=True)
            ]
            return weft.stack(losses)

        heads = [xs[0] for xs in points]
        losses, back = weft.vjp(total, heads)
        return losses, back(weft.ones(len(calls)))[0]

    plain, slopes = everything(points)
    with weft.knobs.set(device="cpu"):
        on_cpu = [[weft.asarray(x.numpy()) for x in xs] for xs in points]
        compiled, compiled_slopes = weft.jit(everything)(on_cpu)
        near(compiled, plain.numpy().astype(float), 2e-5)
        for a, b in zip(compiled_slopes, slopes, strict=True):
            near(a, b.numpy().astype(float), 1e-4 * max(1.0, float(np.abs(b.numpy()).max())))


def test_class_weights_and_ignored_targets():
    log_p, target = np.log(distributions(generator("nll"), 4, 3)), np.array([2, -1, 0, 2])
    weight, keep = np.array([1.0, 5.0, 3.0]), target >= 0
    losses = np.where(keep, -log_p[np.arange(4), target] * weight[target], 0.0)
    settings = {"weight": weight, "ignore_index": -1}
    near(nn.nll(log_p, target, reduction="none", **settings), losses)
    near(nn.nll(log_p, target, **settings), losses.sum() / weight[target[keep]].sum())
    near(nn.nll(log_p, target, **settings), nn.cross_entropy(weft.asarray(log_p), target, **settings).item())
    assert math.isnan(nn.nll(log_p[:2], [-1, -1], ignore_index=-1).item())
    assert nn.nll(log_p[:2], [-1, -1], ignore_index=-1, reduction="sum").item() == 0.0
    with pytest.raises(weft.RunError, match="index -1 is out of range"):
        nn.nll(log_p, target).numpy()


def test_hand_computed_cases():
    near(nn.kl_divergence(np.log([[0.5, 0.5]]), np.array([[1.0, 0.0]])), math.log(2))
    near(nn.iou(np.array([0.0, 0, 1, 1]), np.array([5.0, 5, 6, 6])), 1.0)
    near(nn.giou(np.array([0.0, 0, 1, 1]), np.array([1.0, 0, 3, 1])), 1.0)  # side by side: nothing lies between
    near(nn.giou(np.array([0.0, 0, 1, 1]), np.array([1.0, 1, 2, 2])), 1.5)
    near(nn.giou(np.array([1.0, 1, 1, 1]), np.array([1.0, 1, 1, 1])), 1.0)  # of no area
    near(nn.dice(np.zeros((1, 4)), np.zeros((1, 4))), 0.0)
    assert math.isnan(nn.dice(np.zeros((1, 4)), np.zeros((1, 4)), smooth=0.0).item())
    near(nn.contrastive(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])), 0.0)  # nobody else to be taken for
    near(nn.hinge(np.array([[0.5]]), [0]), 0.0)  # no other class
    near(nn.msle(np.array([-3.0]), np.array([0.0])), 0.0)
    near(nn.mape(np.array([1e-7]), np.array([0.0])), 100.0)
    near(nn.bce(np.array([0.0, 1.0]), np.array([1.0, 0.0])), 100.0)


EXTREMES = [
    ("bce", ([0.0, 1.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0]), {}),
    ("bce_with_logits", ([1e30, -1e30, 1e30, -1e30], [1.0, 0.0, 0.0, 1.0]), {}),
    ("multilabel_soft_margin", ([[1e30, -1e30]], [[0.0, 0.0]]), {}),
    ("focal", ([1e30, -1e30, 200.0, -200.0], [1.0, 0.0, 0.0, 0.0]), {"gamma": 0.5}),
    ("focal", ([[1e30, 0.0], [0.0, 1e30]], [0, 0]), {"gamma": 0.5}),
    ("hinge", ([1e30, -1e30], [0, 0]), {}),
    ("hinge", ([[1e30, -1e30]], [1]), {}),
    ("kl_divergence", ([[-1e4, 0.0]], [[0.0, 1.0]]), {}),
    ("huber", ([1e30, -1e30, 0.0], [0.0, 0.0, 0.0]), {}),
    ("smooth_l1", ([1e30, 0.0], [0.0, 0.0]), {}),
    ("log_cosh", ([1e30, -1e30, 0.0], [0.0, 0.0, 0.0]), {}),
    ("mape", ([1e30, 0.0], [1e30, 0.0]), {}),
    ("msle", ([1e30, 0.0, -1.0], [0.0, 1e30, 0.0]), {}),
    ("poisson", ([-1e30, 0.0], [0.0, 1e30]), {}),
    ("gaussian_nll", ([1e15, 0.0], [0.0, 0.0], [0.0, 0.0]), {}),
    ("cosine_distance", ([[1e30, 1e30], [1e-30, 0.0], [0.0, 0.0]], [[1e30, 0.0], [1e-30, 0.0], [1.0, 0.0]]), {}),
    ("triplet_margin", ([[1e30, 0.0], [0.0, 0.0]], [[0.0, 1e30], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]), {}),
    ("margin_ranking", ([1e30], [-1e30], [-1.0]), {}),
    ("contrastive", ([[1e30, 0.0], [0.0, 0.0]], [[1e-30, 0.0], [0.0, 1e30]]), {}),
    ("pair_contrastive", ([[0.0, 0.0]], [[0.0, 0.0]], [0.0]), {}),
    ("iou", ([[2.0, 2.0, 1.0, 1.0]], [[0.0, 0.0, 0.0, 0.0]]), {}),
    ("giou", ([[2.0, 2.0, 1.0, 1.0]], [[0.0, 0.0, 0.0, 0.0]]), {}),
]


@pytest.mark.parametrize(("name", "inputs", "settings"), EXTREMES)
def test_extremes_stay_finite(name, inputs, settings):
    first, *others = map(np.asarray, inputs)
    others = [weft.asarray(x, dtype="float32") if x.dtype.kind == "f" else weft.asarray(x) for x in others]
    value, slope = weft.value_and_grad(lambda x: nn.loss(name)(x, *others, **settings))(
        weft.asarray(first, dtype="float32")
    )
    counted(2)
    assert value.dtype is weft.float32
    assert np.isfinite(value.numpy())
    assert np.isfinite(slope.numpy()).all()


def test_lengths_of_large_and_small_vectors():
    """Their squares are not numbers of float32."""
    a, b = np.float32([[1e30, 1e30], [3e-30, 0.0]]), np.float32([[1e30, 0.0], [1e-30, 1e-30]])
    near(nn.cosine_distance(a, b, reduction="none"), [1 - math.sqrt(0.5)] * 2, 1e-6)
    far = nn.triplet_margin(a, np.zeros_like(a), a, margin=0.0, reduction="none")
    np.testing.assert_allclose(far.numpy(), [math.sqrt(2) * 1e30, 3e-30], rtol=1e-6)
    alike = nn.contrastive(a, a * np.float32(2), temperature=1.0)
    near(alike, np.mean(nt_xent(np.array([[1.0, 1], [1, 0]]), np.array([[1.0, 1], [1, 0]]), 1.0)), 1e-6)


@pytest.mark.parametrize("name", ["mse", "bce", "bce_with_logits", "huber", "log_cosh", "hinge", "poisson"])
def test_an_empty_batch(name):
    empty = np.zeros((0, 3))
    assert nn.loss(name)(empty, empty, reduction="sum").item() == 0.0
    assert nn.loss(name)(empty, empty, reduction="none").shape == (0, 3)
    assert math.isnan(nn.loss(name)(empty, empty).item())


# --- sequences without alignment ---------------------------------------------------------------------------------------------


def spelled(path, blank):
    """What a path stands for: repetitions merged, blanks dropped."""
    return tuple(k for k, _ in itertools.groupby(path) if k != blank)


def ctc_by_paths(log_p, labels, time, blank):
    """-log of the summed probability of all paths that spell the labels."""
    total = 0.0
    for path in itertools.product(range(log_p.shape[1]), repeat=time):
        if spelled(path, blank) == tuple(labels):
            total += math.exp(sum(log_p[t, k] for t, k in enumerate(path)))
    return -math.log(total) if total else math.inf


CTC_CASES = [
    # time, classes, blank, targets (padded with anything), times, lengths
    (4, 3, 0, [[1, 2], [1, 1], [2, 7]], [4, 4, 3], [2, 2, 1]),
    (5, 3, 2, [[0, 0, 1], [1, -5, 9]], [5, 4], [3, 0]),
    (1, 2, 0, [[1]], [1], [1]),
    (3, 2, 1, [[0, 0], [0, 0]], [3, 2], [2, 1]),
]


@pytest.mark.parametrize(("time", "classes", "blank", "labels", "times", "lengths"), CTC_CASES)
def test_ctc_is_the_sum_over_all_paths(time, classes, blank, labels, times, lengths):
    rng = generator(f"ctc {time} {classes} {blank}")
    x = rng.normal(size=(time, len(labels), classes))
    log_p = special.log_softmax(x, axis=-1)
    expected = [ctc_by_paths(log_p[:, i], labels[i][:n], times[i], blank) for i, n in enumerate(lengths)]
    rest = (np.array(labels), np.array(times), np.array(lengths))
    near(nn.ctc(log_p, *rest, blank=blank, reduction="none"), expected)
    near(nn.ctc(log_p, *rest, blank=blank, reduction="sum"), sum(expected))
    near(nn.ctc(log_p, *rest, blank=blank), np.mean(np.array(expected) / np.maximum(lengths, 1)))
    near(nn.ctc(weft.asarray(log_p, dtype="float32"), *rest, blank=blank, reduction="none"), expected, 1e-5)

    def from_logits(x):
        return nn.ctc(weft.log_softmax(x), *rest, blank=blank, reduction="none")

    check_grads(from_logits, [x], rng=rng)


def test_ctc_without_lengths_counts_everything():
    log_p = np.log(distributions(generator("ctc all"), 4, 2, 3))
    target = np.array([[1, 2], [2, 2]])
    near(nn.ctc(log_p, target), nn.ctc(log_p, target, [4, 4], [2, 2]).item())


def test_ctc_of_what_cannot_be():
    """A target too long for its time, and a class of probability 0."""
    log_p = np.log(distributions(generator("ctc inf"), 2, 2, 3))
    target, times, lengths = np.array([[1, 1], [1, 2]]), np.array([2, 2]), np.array([2, 2])
    expected = ctc_by_paths(log_p[:, 1], [1, 2], 2, 0)
    near(nn.ctc(log_p, target, times, lengths, reduction="none"), [math.inf, expected])
    near(nn.ctc(log_p, target, times, lengths, reduction="none", zero_infinity=True), [0.0, expected])
    for settings in ({}, {"zero_infinity": True}):
        slope = weft.grad(lambda x, s=settings: nn.ctc(x, target, times, lengths, reduction="sum", **s))(
            weft.asarray(log_p)
        ).numpy()
        assert np.isfinite(slope).all()
        assert not slope[:, 0].any()
        assert slope[:, 1].any()
    zero = np.log([[[0.5, 0.5]], [[0.5, 0.5]]])
    zero[0, 0, 0] = -math.inf
    near(nn.ctc(zero, np.array([[1]])), -math.log(0.5))
    assert np.isfinite(weft.grad(lambda x: nn.ctc(x, np.array([[1]])))(weft.asarray(zero)).numpy()).all()


def test_ctc_compiled_and_long():
    """300 steps of nearly impossible classes, in float32, forwards and backwards in one program."""
    rng = generator("ctc long")
    x = (30 * rng.normal(size=(300, 2, 4))).astype(np.float32)
    target, lengths = rng.integers(1, 4, (2, 5)), np.array([5, 3])
    times = np.array([300, 200])

    def f(x):
        return weft.value_and_grad(lambda y: nn.ctc(weft.log_softmax(y), target, times, lengths))(x)

    value, slope = f(weft.asarray(x))
    exact = f(weft.asarray(x.astype(np.float64)))
    near(value, exact[0].item(), 1e-5)
    near(slope, exact[1].numpy(), 1e-4)
    with weft.knobs.set(device="cpu"):
        compiled, compiled_slope = weft.jit(f)(weft.asarray(x))
        near(compiled, exact[0].item(), 1e-5)
        near(compiled_slope, exact[1].numpy(), 1e-4)
    assert not compiled_slope.numpy()[200:, 1].any()


# --- errors --------------------------------------------------------------------------------------------------------------------

Z = np.zeros
WRONG = [
    (lambda: nn.loss("mean"), "[loss] there is no loss 'mean'. Known: cross_entropy, nll, bce"),
    (lambda: nn.loss(3), "[loss] the name of a loss or a function is required, got 3."),
    (
        lambda: nn.huber(Z((3, 1)), Z(3)),
        "[huber] prediction and target of one shape are required, got (3, 1) and (3,).",
    ),
    (lambda: nn.huber(Z(3), Z(3), delta=0), "[huber] delta must be above 0, got 0."),
    (lambda: nn.smooth_l1(Z(3), Z(3), beta=-1), "[smooth_l1] beta must be above 0, got -1."),
    (lambda: nn.bce(Z(3), Z(3), reduction="avg"), "[bce] the reduction must be 'mean', 'sum' or 'none', got 'avg'."),
    (lambda: nn.bce(Z(3), Z(3), weight=Z((2, 3))), "[bce] weights that fit the shape (3,) are required, got (2, 3)."),
    (lambda: nn.focal(Z(3), Z(3), gamma=-1.0), "[focal] gamma must be 0 or more, got -1.0."),
    (
        lambda: nn.focal(Z((3, 2)), Z(3)),
        "[focal] integer classes of shape (3,) are required for scores of shape (3, 2)",
    ),
    (lambda: nn.focal(Z((3, 2)), [0, 1, 0], alpha=[1.0]), "[focal] 2 class weights are required, got shape (1,)."),
    (lambda: nn.nll(Z((3, 2)), [0, 1]), "[nll] integer classes of shape (3,) are required for scores of shape (3, 2)"),
    (lambda: nn.nll(Z((1, 2)), [0], axis=2), "[nll] axis 2 does not exist in a tensor of 2 dimensions."),
    (lambda: nn.hinge(Z(3), Z(3), margin=-1), "[hinge] margin must be 0 or more, got -1."),
    (
        lambda: nn.multilabel_soft_margin(1.0, 1.0),
        "[multilabel_soft_margin] logits of shape (..., classes) are required",
    ),
    (lambda: nn.gaussian_nll(Z(3), Z(3), Z(2)), "[gaussian_nll] one variance or the shape (3,) is required, got (2,)."),
    (
        lambda: nn.dice(Z(3), Z(3)),
        "[dice] (batch, places) or (batch, channels, spatial...) is required, got shape (3,).",
    ),
    (lambda: nn.tversky(Z((3, 1)), Z((3, 1)), alpha=-1), "[tversky] alpha must be 0 or more, got -1."),
    (lambda: nn.iou(Z((2, 3)), Z((2, 3))), "[iou] boxes (..., 4) are required, got shape (2, 3)."),
    (
        lambda: nn.contrastive(Z(3), Z(3)),
        "[contrastive] two tensors (examples, features) are required, got shape (3,).",
    ),
    (
        lambda: nn.contrastive(Z((3, 1)), Z((3, 1)), temperature=0),
        "[contrastive] the temperature must be above 0, got 0.",
    ),
    (
        lambda: nn.ctc(Z((3, 2)), [[1]]),
        "[ctc] log-probabilities (time, batch, classes) are required, got shape (3, 2).",
    ),
    (lambda: nn.ctc(Z((3, 2, 4)), [[1]]), "[ctc] integer targets of shape (2, labels) are required, got int64[1, 1]."),
    (lambda: nn.ctc(Z((3, 1, 4)), [[1]], blank=4), "[ctc] the blank must be one of the 4 classes, got 4."),
    (lambda: nn.ctc(Z((3, 1, 4)), [[1]], [3, 3]), "[ctc] input_lengths must be 1 integers, got int64[2]."),
    (lambda: nn.ctc(Z((3, 1, 4)), [[1]], [3], [1.0]), "[ctc] target_lengths must be 1 integers, got float32[1]."),
]


@pytest.mark.parametrize(("call", "text"), WRONG)
def test_errors_say_what_is_required(call, text):
    counted()
    with pytest.raises(weft.UserError) as caught:
        call()
    assert text in str(caught.value)


def test_a_function_is_its_own_loss():
    assert nn.loss(math.sqrt) is math.sqrt


@pytest.mark.parametrize("name", [n for n, f in nn.LOSSES.items() if ">>>" in f.__doc__])
def test_examples(name):
    """The losses are wrapped, and doctest passes over what is."""
    f = inspect.unwrap(nn.LOSSES[name])
    names = dict(vars(sys.modules[f.__module__]))
    example = doctest.DocTestParser().get_doctest(f.__doc__, names, name, inspect.getfile(f), 0)
    said = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=said.append)
    assert not said, "".join(said)
