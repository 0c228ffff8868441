"""MixUp and CutMix against plain NumPy with the same random numbers."""

import math

import numpy as np
import pytest

import weft
from augment_tools import LABELS, drawn, made, run
from weft import data, random
from weft.data.mixup import beta_quantiles, sample_beta
from weft.testing import close, counted


@pytest.fixture(autouse=True)
def _plain():
    """Without compiling: most of these programs run once. Tests of compiled ones say so."""
    with weft.knobs.set(device="reference"):
        yield


QUANTILES = [
    (1.0, lambda u: u, 1e-6, 1e-6),
    (0.5, lambda u: np.sin(np.pi * u / 2) ** 2, 2e-6, 2e-6),
    (2.0, lambda u: 0.5 - np.sin(np.arcsin(1 - 2 * u) / 3), 1e-5, 4e-3),  # the root of 3 x**2 - 2 x**3 = u
]


@pytest.mark.parametrize(("alpha", "inverse", "inside", "everywhere"), QUANTILES)
def test_beta(alpha, inverse, inside, everywhere):
    [u] = drawn(5, lambda: random.uniform((3000,)))
    weft.seed(5)
    got = sample_beta(beta_quantiles(alpha), alpha, weft.zeros(3000)).numpy()
    expected, middle = inverse(u.astype(np.float64)), np.abs(u - 0.5) < 0.49
    np.testing.assert_allclose(got, expected, atol=everywhere)
    np.testing.assert_allclose(got[middle], expected[middle], atol=inside)
    counted(2)


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.8, 4.0, 50.0])
def test_beta_has_its_variance(alpha):
    weft.seed(6)
    got = sample_beta(beta_quantiles(alpha), alpha, weft.zeros(20000)).numpy().astype(np.float64)
    variance = 1 / (4 * (2 * alpha + 1))
    assert abs(got.mean() - 0.5) < 5 * math.sqrt(variance / 20000)
    assert abs(got.var() / variance - 1) < 0.06
    assert got.min() >= 0.0
    assert got.max() <= 1.0
    counted(4)


def test_mixup():
    x, hot = made(), np.eye(3, dtype=np.float32)[LABELS]
    weft.seed(3)
    k, shift = sample_beta(beta_quantiles(0.4), 0.4, weft.zeros(5)).numpy(), random.integers(1, 5).item()
    other = (np.arange(5) + shift) % 5
    lam = k.reshape(5, 1, 1, 1)
    for labels in (LABELS, hot):
        mixed, soft = run(data.MixUp(0.4, classes=3), x, labels)
        close(mixed, lam * x + (1 - lam) * x[other], weft.float32)
        close(soft, k[:, None] * hot + (1 - k[:, None]) * hot[other], weft.float32)
        np.testing.assert_allclose(soft.sum(1), 1.0, rtol=1e-6)
        counted()


def test_cutmix():
    x, hot = made(5, 2, 8, 6), np.eye(3, dtype=np.float32)[LABELS]
    seen = []
    for seed in range(6):
        weft.seed(seed)
        k, shift = sample_beta(beta_quantiles(1.0), 1.0, weft.zeros(5)).numpy(), random.integers(1, 5).item()
        rows, columns = (np.floor(random.uniform((5,)).numpy() * n) for n in (8, 6))
        expected, stayed = x.copy(), np.empty(5)
        for i in range(5):
            h, w = int(8 * math.sqrt(1 - k[i])), int(6 * math.sqrt(1 - k[i]))
            top, bottom = (int(np.clip(math.floor(rows[i] + s * h / 2), 0, 8)) for s in (-1, 1))
            left, right = (int(np.clip(math.floor(columns[i] + s * w / 2), 0, 6)) for s in (-1, 1))
            expected[i, :, top:bottom, left:right] = x[(i + shift) % 5, :, top:bottom, left:right]
            stayed[i] = 1 - (bottom - top) * (right - left) / 48
        mixed, soft = run(data.CutMix(1.0, classes=3), x, LABELS, seed=seed)
        assert np.array_equal(mixed, expected)
        s = stayed[:, None]
        close(soft, s * hot + (1 - s) * hot[(np.arange(5) + shift) % 5], weft.float32)
        np.testing.assert_allclose(soft.sum(1), 1.0, rtol=1e-6)
        seen += stayed.tolist()
        counted(2)
    assert min(seen) < 0.8 < 0.95 < max(seen)


def test_mixing_one_picture_or_none():
    x, hot = made(1), np.eye(3, dtype=np.float32)[[1]]
    mixed, soft = run(data.MixUp(1.0), x, hot)
    close(mixed, x, weft.float32)
    close(soft, hot, weft.float32)
    kept, soft = run(data.CutMix(1.0, classes=3).eval(), made(), LABELS)
    assert np.array_equal(kept, made())
    assert np.array_equal(soft, np.eye(3)[LABELS])
    counted(2)


def test_mixing_in_a_compiled_step():
    module, x = data.Augment(data.RandomFlip(), data.MixUp(0.5, classes=3)), made()
    expected = run(module, x, LABELS)
    with weft.knobs.set(device="cpu"):
        got = run(weft.jit(lambda x, y: module(x, y)), x, LABELS)
    for a, b in zip(got, expected, strict=True):
        close(a, b, weft.float32)
