"""Augmentations against plain NumPy with the same random numbers, and what holds for all of them."""

import colorsys
import math

import numpy as np
import pytest

import weft
from weft import data, random
from weft.data.mixup import beta_quantiles, sample_beta
from weft.data.policies import OPERATIONS, _Sampled
from weft.data.warp import AffineMap, WarpView, view
from weft.testing import check_grads, close, counted


@pytest.fixture(autouse=True)
def _plain():
    """Without compiling: most of these programs run once. Tests of compiled ones say so."""
    with weft.knobs.set(device="reference"):
        yield


def made(n=5, c=3, h=6, w=7, seed=0):
    return np.random.default_rng(seed).random((n, c, h, w)).astype(np.float32)


def bilinear(picture, row, column, mode="constant", fill=0.0):
    """One image (channels, height, width) at places (row, column) of the same shape; the definition, pixel by pixel."""
    _, h, w = picture.shape
    result = np.empty((len(picture), *row.shape))
    for place in np.ndindex(row.shape):
        r, c = float(row[place]), float(column[place])
        outside = not (-0.501 < r < h - 0.499 and -0.501 < c < w - 0.499)
        if mode == "constant" and outside:
            result[(slice(None), *place)] = fill
            continue
        r, c = (folded(v, n, mode) for v, n in ((r, h), (c, w)))
        top, left = min(int(r), h - 1), min(int(c), w - 1)
        bottom, right = min(top + 1, h - 1), min(left + 1, w - 1)
        a, b = r - top, c - left
        above = picture[:, top, left] * (1 - b) + picture[:, top, right] * b
        below = picture[:, bottom, left] * (1 - b) + picture[:, bottom, right] * b
        result[(slice(None), *place)] = above * (1 - a) + below * a
    return result


def folded(v, n, mode):
    while mode == "reflect" and not 0 <= v <= n - 1:
        v = -v if v < 0 else 2 * (n - 1) - v
    return min(max(v, 0.0), n - 1.0)


def warped(x, matrices, size, mode="constant", fill=0.0):
    """Images seen through 2 x 3 matrices from centred places of the result to centred places of the image."""
    h, w = size
    u, v = np.meshgrid(np.arange(h) - (h - 1) / 2, np.arange(w) - (w - 1) / 2, indexing="ij")
    results = []
    for picture, m in zip(x.astype(np.float64), matrices, strict=True):
        row = m[0][0] * u + m[0][1] * v + m[0][2] + (x.shape[2] - 1) / 2
        column = m[1][0] * u + m[1][1] * v + m[1][2] + (x.shape[3] - 1) / 2
        results.append(bilinear(picture, row, column, mode, fill))
    return np.stack(results)


def drawn(seed, *draws):
    """The random numbers that a module draws after this seed."""
    weft.seed(seed)
    return [d().numpy() for d in draws]


def run(module, x, *more, seed=3):
    weft.seed(seed)
    result = module(weft.asarray(x), *map(weft.asarray, more))
    return [r.numpy() for r in result] if isinstance(result, tuple) else result.numpy()


# --- warps ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
@pytest.mark.parametrize("size", [(6, 7), (5, 4), (9, 8)])
def test_a_view_is_its_definition(mode, size):
    x, rng = made(3, 2), np.random.default_rng(1)
    matrices = rng.normal(size=(3, 2, 3)) * [0.8, 0.8, 2.0]
    m = [weft.asarray(matrices[:, i, j].astype(np.float32)) for i in range(2) for j in range(3)]
    got = WarpView(weft.asarray(x), size, AffineMap(*m), whole=False, border=mode, fill=0.25).sample()
    expected = warped(x, matrices.astype(np.float32), size, mode, 0.25)
    close(got.numpy(), expected, weft.float32, slack=4.0)


def test_maps_follow_each_other():
    rng = np.random.default_rng(2)
    first, second = (np.vstack([rng.normal(size=(2, 3)), [0, 0, 1]]) for _ in range(2))
    joined = AffineMap(*second[:2].ravel().tolist()).after(AffineMap(*first[:2].ravel().tolist()))
    expected = (first @ second)[:2].ravel()
    np.testing.assert_allclose([joined.a, joined.b, joined.c, joined.d, joined.e, joined.f], expected)
    assert AffineMap().after(AffineMap()) == AffineMap()
    counted(2)


def test_hand_written_views():
    x = np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4)
    v = view(weft.asarray(x))
    assert v.sample() is v.images
    for step, whole in ((AffineMap(a=-1.0), True), (AffineMap(a=-1.0), False)):
        assert np.array_equal(v.compose(step, whole=whole).sample().numpy(), x[:, :, ::-1])
    quarter = v.compose(AffineMap(a=0.0, b=1.0, d=-1.0, e=0.0), whole=True, size=(4, 3)).sample().numpy()
    assert np.array_equal(quarter, np.rot90(x, axes=(2, 3)))
    half = v.compose(AffineMap(f=0.5), whole=False).sample().numpy()
    assert np.array_equal(half[0, 0], x[0, 0] + [0.5, 0.5, 0.5, 0.0])  # the last one lies at the very edge
    right = v.with_border("constant", 9.0).compose(AffineMap(f=1.0), whole=True).sample().numpy()
    assert np.array_equal(right[0, 0, 0], [1, 2, 3, 9])
    mirrored = v.with_border("reflect").compose(AffineMap(f=-3.0), whole=True).sample().numpy()
    assert np.array_equal(mirrored[0, 0, 0], [3, 2, 1, 0])
    counted(7)


# --- flips, crops, affine maps -------------------------------------------------------------------------------------------


def test_flip():
    x = made()
    v, h = drawn(3, lambda: random.bernoulli(0.5, (5,)), lambda: random.bernoulli(0.5, (5,)))
    got = run(data.RandomFlip(horizontal=True, vertical=True), x)
    for i in range(5):
        expected = x[i, :, :: -1 if v[i] else 1, :: -1 if h[i] else 1]
        assert np.array_equal(got[i], expected)
    assert np.array_equal(run(data.RandomFlip(p=1.0), x), x[..., ::-1])
    assert np.array_equal(run(data.RandomFlip(p=0.0, vertical=True), x), x)
    assert np.array_equal(
        run(data.RandomFlip(p=1.0), (x * 255).astype(np.uint8)), (x * 255).astype(np.uint8)[..., ::-1]
    )
    counted(8)


def test_flip_is_as_frequent_as_asked_for():
    x = np.broadcast_to(np.array([0.0, 1.0], np.float32), (4000, 1, 1, 2))
    flipped = run(data.RandomFlip(p=0.3), x)[:, 0, 0, 0]
    assert abs(flipped.mean() - 0.3) < 5 * math.sqrt(0.3 * 0.7 / 4000)
    counted()


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
@pytest.mark.parametrize(("size", "padding"), [((6, 7), 2), ((4, 5), 0), ((5, 8), (1, 3))])
def test_crop(mode, size, padding):
    x = (made() * 255).astype(np.uint8)
    pads = (padding, padding) if isinstance(padding, int) else padding
    room = [n + 2 * p - s for n, p, s in zip((6, 7), pads, size, strict=True)]
    tops, lefts = drawn(3, *(lambda r=r: random.integers(0, r + 1, (5,)) for r in room))
    wide = np.pad(x, ((0, 0), (0, 0), *((p, p) for p in pads)), mode)
    expected = [wide[i, :, t : t + size[0], l : l + size[1]] for i, (t, l) in enumerate(zip(tops, lefts, strict=True))]
    for pixels in (x, x.astype(np.float32)):
        got = run(data.RandomCrop(size, padding, mode), pixels)
        assert got.dtype == pixels.dtype
        assert np.array_equal(got, np.stack(expected).astype(pixels.dtype))
        counted()


def test_crop_reaches_all_places_and_keeps_the_middle():
    x = np.broadcast_to(np.arange(5, dtype=np.float32), (400, 1, 5, 5))
    lefts = run(data.RandomCrop(3), x)[:, 0, 0, 0]
    assert set(lefts.tolist()) == {0.0, 1.0, 2.0}
    assert np.array_equal(data.RandomCrop(3, padding=4).eval()(x[:2]).numpy(), x[:2, :, 1:4, 1:4])
    assert data.RandomCrop(4).eval()(x[:1]).tolist() == x[:1, :, :4, :4].tolist()
    counted(3)


def test_resized_crop():
    x, size, scale, ratio = made(4), (5, 3), (0.2, 0.9), (0.5, 2.0)
    area, across, top, left = drawn(
        3,
        lambda: random.uniform((4,), *scale),
        lambda: random.uniform((4,), math.log(ratio[0]), math.log(ratio[1])),
        lambda: random.uniform((4,)),
        lambda: random.uniform((4,)),
    )
    heights = np.minimum(np.sqrt(area * 42 / np.exp(across)), 6)
    widths = np.minimum(np.sqrt(area * 42 * np.exp(across)), 7)
    matrices = [
        [[h / 5, 0, t * (6 - h) + h / 2 - 3], [0, w / 3, l * (7 - w) + w / 2 - 3.5]]
        for h, w, t, l in zip(heights, widths, top, left, strict=True)
    ]
    got = run(data.RandomResizedCrop(size, scale, ratio), x)
    close(got, warped(x, matrices, size, "edge"), weft.float32, slack=4.0)
    assert np.array_equal(run(data.RandomResizedCrop(6, (1.0, 1.0), (1.0, 1.0)), x[..., :6]), x[..., :6])
    twice = data.RandomResizedCrop((3, 4)).eval()(made(1, 1, 6, 8)).numpy()
    close(twice, made(1, 1, 6, 8).reshape(1, 1, 3, 2, 4, 2).mean((3, 5)), weft.float32)
    counted()


def test_rotation():
    x = made(3, 2, 6, 6)
    assert np.array_equal(run(data.RandomRotation(0.0), x), x)
    for quarters in (1, 2, 3):
        turned = run(data.RandomRotation((90.0 * quarters,) * 2), x)
        close(turned, np.rot90(x, quarters, axes=(2, 3)), weft.float32, slack=4.0)
    [angles] = drawn(3, lambda: random.uniform((3,), -math.radians(30), math.radians(30)))
    matrices = [[[math.cos(a), math.sin(a), 0], [-math.sin(a), math.cos(a), 0]] for a in angles]
    close(run(data.RandomRotation(30, fill=0.5), x), warped(x, matrices, (6, 6), fill=0.5), weft.float32, slack=4.0)
    counted()


@pytest.mark.parametrize("mode", ["constant", "reflect"])
def test_affine(mode):
    """The matrix of the paper: shear, then turn and enlarge, then move; the image is read at its inverse."""
    x = made(4)
    spans = [(-0.3, 0.4), (-0.2, 0.2), (-0.6, 0.6), (-1.4, 1.4), (0.7, 1.5)]
    lean, turn = (tuple(math.degrees(v) for v in s) for s in (spans[1], spans[0]))
    angle, slope, down, right, scale = drawn(3, *(lambda s=s: random.uniform((4,), *s) for s in spans))
    matrices = []
    for a, s, d, r, k in zip(angle, slope, down, right, scale, strict=True):
        shear = np.array([[1, 0, 0], [math.tan(s), 1, 0], [0, 0, 1]])
        rotate = np.array([[math.cos(a) * k, -math.sin(a) * k, 0], [math.sin(a) * k, math.cos(a) * k, 0], [0, 0, 1]])
        move = np.array([[1, 0, d], [0, 1, r], [0, 0, 1]])
        matrices.append(np.linalg.inv(move @ rotate @ shear)[:2])
    module = data.RandomAffine(turn, (0.1, 0.2), (0.7, 1.5), lean, mode)
    close(run(module, x), warped(x, matrices, (6, 7), mode), weft.float32, slack=6.0)


def test_affine_that_does_nothing_is_exact():
    x = made()
    assert np.array_equal(run(data.RandomAffine(), x), x)
    assert np.array_equal(run(data.RandomAffine(degrees=(0.0, 0.0), scale=(1.0, 1.0)), x), x)
    counted(2)


# --- colours -------------------------------------------------------------------------------------------------------------

LUMA = np.array([0.299, 0.587, 0.114]).reshape(3, 1, 1)


def jittered(x, b, c, s, t):
    results = []
    for i, p in enumerate(x.astype(np.float64)):
        p = np.clip(p * b[i], 0, 1)
        m = (p * LUMA).sum(0).mean()
        p = np.clip(m + (p - m) * c[i], 0, 1)
        g = (p * LUMA).sum(0)
        p = np.clip(g + (p - g) * s[i], 0, 1)
        flat = [colorsys.rgb_to_hsv(*rgb) for rgb in p.reshape(3, -1).T]
        turned = [colorsys.hsv_to_rgb((h + t[i]) % 1.0, sat, val) for h, sat, val in flat]
        results.append(np.array(turned).T.reshape(p.shape))
    return np.stack(results)


def test_color_jitter():
    x = made(4)
    spans = [(0.6, 1.4), (0.5, 1.5), (0.2, 1.3), (-0.2, 0.2)]
    numbers = drawn(3, *(lambda s=s: random.uniform((4,), *s) for s in spans))
    got = run(data.ColorJitter(0.4, 0.5, (0.2, 1.3), 0.2), x)
    close(got, jittered(x, *numbers), weft.float32, slack=20.0)
    assert np.array_equal(run(data.ColorJitter(), x), x)
    grey = run(data.ColorJitter(saturation=0.5, hue=0.3), x[:, :1])
    assert np.array_equal(grey, x[:, :1])
    assert run(data.ColorJitter(brightness=(3.0, 3.0), limits=None), x).max() > 2.0
    thirds = run(data.ColorJitter(hue=(1 / 3, 1 / 3)), x)
    close(thirds, x[:, [2, 0, 1]], weft.float32)  # a third of the circle: red becomes green
    counted(3)


def test_grayscale():
    x = made(6)
    [chosen] = drawn(3, lambda: random.bernoulli(0.5, (6, 1, 1, 1)))
    expected = np.where(chosen, (x * LUMA).sum(1, keepdims=True), x)
    assert 0 < chosen.sum() < 6
    close(run(data.RandomGrayscale(0.5), x), expected, weft.float32)
    assert np.array_equal(run(data.RandomGrayscale(0.0), x), x)
    counted(2)


def test_erasing():
    x = made(40, 2, 8, 9)
    got = run(data.RandomErasing(0.5, (0.1, 0.3), (0.5, 2.0), value=-1.0), x)
    draws = [
        lambda: random.uniform((40,), 0.1, 0.3),
        lambda: random.uniform((40,), math.log(0.5), math.log(2.0)),
        lambda: random.uniform((40,)),
        lambda: random.uniform((40,)),
        lambda: random.bernoulli(0.5, (40,)),
    ]
    area, across, top, left, chosen = drawn(3, *draws)
    expected = x.copy()
    for i in np.flatnonzero(chosen):
        h, w = (
            min(math.sqrt(area[i] * 72 / math.exp(across[i])), 8),
            min(math.sqrt(area[i] * 72 * math.exp(across[i])), 9),
        )
        t, l = top[i] * (8 - h), left[i] * (9 - w)
        for r, c in np.ndindex(8, 9):
            if t <= r + 0.5 < t + h and l <= c + 0.5 < l + w:
                expected[i, :, r, c] = -1.0
    assert np.array_equal(got, expected)
    assert np.array_equal(run(data.RandomErasing(0.0), x), x)
    counted(2)


def test_blur():
    x = made(3)
    [sigma] = drawn(3, lambda: random.uniform((3,), 0.5, 2.0))
    wide = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (2, 2), (2, 2)), "reflect")
    expected = np.zeros(x.shape)
    for i, s in enumerate(sigma):
        k = np.exp(-(np.arange(-2, 3) ** 2) / (2 * s * s))
        k = np.outer(k, k) / k.sum() ** 2
        for r, c in np.ndindex(5, 5):
            expected[i] += k[r, c] * wide[i, :, r : r + 6, c : c + 7]
    close(run(data.GaussianBlur(5, (0.5, 2.0)), x), expected, weft.float32)
    flat = np.full((2, 1, 4, 4), 0.3, np.float32)
    close(run(data.GaussianBlur(3), flat), flat, weft.float32)
    assert np.array_equal(run(data.GaussianBlur(3, p=0.0), x), x)
    counted()


def test_noise():
    noise = run(data.GaussianNoise(0.1), np.zeros((8, 1, 20, 20), np.float32))
    assert abs(noise.std() - 0.1) < 0.01
    assert abs(noise.mean()) < 0.01
    counted(2)


def test_to_float_and_normalize():
    pixels = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16)
    for module in (data.ToFloat(), data.ToFloat().eval()):
        close(module(pixels).numpy(), pixels / 255.0, weft.float32)
    assert data.ToFloat()(pixels).numpy().max() == 1.0
    x = made()
    mean, std = [0.1, 0.2, 0.3], [0.5, 0.4, 0.25]
    expected = (x - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
    for module in (data.Normalize(mean, std), data.Normalize(mean, std).eval()):
        close(module(x).numpy(), expected, weft.float32)
    close(data.Normalize(0.5, 0.25)(x).numpy(), (x - 0.5) / 0.25, weft.float32)
    counted()


# --- mixing --------------------------------------------------------------------------------------------------------------

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


LABELS = np.array([0, 2, 1, 1, 0])


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


# --- policies ------------------------------------------------------------------------------------------------------------


def smoothed(x):
    result = x.copy()
    for r, c in np.ndindex(x.shape[2] - 2, x.shape[3] - 2):
        part = x[:, :, r : r + 3, c : c + 3]
        result[:, :, r + 1, c + 1] = (part.sum((2, 3)) + 4 * part[:, :, 1, 1]) / 13
    return result


def enhanced(base, factor):
    return lambda x: np.clip(base(x) + (x - base(x)) * factor, 0, 1)


def stretched(x):
    low, high = x.min((2, 3), keepdims=True), x.max((2, 3), keepdims=True)
    return (x - low) / (high - low)


def moved(matrix):
    return lambda x: warped(x, [matrix] * len(x), x.shape[2:])


TURN = math.radians(15)
# What each operation does at half of the strength of RandAugment, with the sign +, on images of 6 x 8.
EXPECTED = {
    "identity": lambda x: x,
    "shear_x": moved([[1, 0, 0], [-0.15, 1, 0]]),
    "shear_y": moved([[1, -0.15, 0], [0, 1, 0]]),
    "translate_x": moved([[1, 0, 0], [0, 1, -0.225 * 8]]),
    "translate_y": moved([[1, 0, -0.225 * 6], [0, 1, 0]]),
    "rotate": moved([[math.cos(TURN), math.sin(TURN), 0], [-math.sin(TURN), math.cos(TURN), 0]]),
    "brightness": lambda x: np.clip(x * 1.45, 0, 1),
    "colour": enhanced(lambda x: (x * LUMA).sum(1, keepdims=True), 1.45),
    "contrast": enhanced(lambda x: (x * LUMA).sum(1).mean((1, 2)).reshape(-1, 1, 1, 1), 1.45),
    "sharpness": enhanced(smoothed, 1.45),
    "posterize": lambda x: np.round(x * 255).astype(np.uint8) // 4 * 4 / 255.0,
    "solarize": lambda x: np.where(np.round(x * 255) >= 128, 1 - x, x),
    "autocontrast": stretched,
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations(name):
    x = np.round(made(2, 3, 6, 8) * 255) / 255
    chosen, ones = weft.asarray(np.full(2, OPERATIONS.index(name))), weft.ones(2)
    one, ranges = _Sampled(chosen, ones, ones * 0.5), data.RandAugment().ranges((6, 8))
    begin = view(weft.asarray(x.astype(np.float32))).with_border("constant")
    got = one.recolour(one.warp(begin, ranges).sample(), ranges).numpy()
    close(got, EXPECTED[name](x.astype(np.float64)), weft.float32, slack=6.0)


def test_solarize_goes_from_nothing_to_all():
    x = np.array([0.0, 0.5, 1.0], np.float32).reshape(1, 1, 1, 3)
    chosen, ones = weft.asarray(np.array([OPERATIONS.index("solarize")])), weft.ones(1)
    for strength, expected in ((0.0, x), (1.0, 1 - x)):
        one = _Sampled(chosen, ones, ones * strength)
        assert np.array_equal(one.recolour(weft.asarray(x), data.RandAugment().ranges((1, 3))).numpy(), expected)
        counted()


def test_policies_draw_for_each_picture():
    x = np.broadcast_to(made(1, 3, 8, 8), (60, 3, 8, 8))
    for module in (data.RandAugment(2, 9.0), data.TrivialAugment()):
        got = run(module, x)
        assert len({p.tobytes() for p in got}) > 15
        assert got.min() >= 0.0
        assert got.max() <= 1.0
        counted(3)
    weft.seed(3)
    assert sorted(set(data.RandAugment()._sample(300).chosen.tolist())) == list(range(len(OPERATIONS)))
    still = run(data.RandAugment(2, 0.0), made())  # autocontrast has no strength
    assert sum(np.array_equal(a, b) for a, b in zip(still, made(), strict=True)) >= 3


# --- what holds for all --------------------------------------------------------------------------------------------------

ALL = {
    "flip": lambda: data.RandomFlip(vertical=True),
    "crop": lambda: data.RandomCrop((6, 7), 2, "reflect"),
    "resized crop": lambda: data.RandomResizedCrop((6, 7)),
    "rotation": lambda: data.RandomRotation(40),
    "affine": lambda: data.RandomAffine(20, 0.1, (0.8, 1.2), 10, "edge"),
    "jitter": lambda: data.ColorJitter(0.3, 0.3, 0.3, 0.1, limits=None),
    "grayscale": lambda: data.RandomGrayscale(0.5),
    "erasing": lambda: data.RandomErasing(0.9),
    "blur": lambda: data.GaussianBlur(3),
    "noise": lambda: data.GaussianNoise(0.1),
    "rand": lambda: data.RandAugment(),
    "trivial": lambda: data.TrivialAugment(),
    "light": lambda: data.augmentation("light", (6, 7)),
    "standard": lambda: data.augmentation("standard", (6, 7)),
    "strong": lambda: data.augmentation("strong", (6, 7)),
}


@pytest.mark.parametrize("name", ALL)
def test_modes_seeds_and_dtypes(name):
    module, x = ALL[name](), made(8)
    first, again, other = run(module, x), run(module, x), run(module, x, seed=4)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    weft.seed(3)
    module(weft.asarray(x)).numpy()
    state = [int(s) for s in random.default_generator.state]
    later = module(weft.asarray(x)).numpy()
    assert not np.array_equal(first, later)
    random.default_generator.state = state  # as after a restart
    assert np.array_equal(module(weft.asarray(x)).numpy(), later)
    same = run(module, np.broadcast_to(x[:1], x.shape))
    assert len({p.tobytes() for p in same}) > 1
    for dtype in (weft.float16, weft.bfloat16, weft.float64):
        weft.seed(3)
        result = module(weft.asarray(x).astype(dtype))
        assert result.dtype is dtype
        assert np.isfinite(result.astype(weft.float32).numpy()).all()
    assert np.array_equal(module.eval()(weft.asarray(x)).numpy(), x)
    counted(9)


@pytest.mark.parametrize("name", [n for n in ALL if n not in ("rand", "trivial", "strong", "standard", "light")])
def test_gradients(name):
    module = ALL[name]()

    def f(x):
        weft.seed(3)
        return module(x)

    check_grads(f, [made(2, 3, 6, 7)], rng=np.random.default_rng(0), order=1)


@pytest.mark.parametrize("name", ["standard", "strong", "resized crop"])
def test_compiled_as_plain(name):
    module, x = ALL[name](), made(4)
    expected = run(module, x)
    with weft.knobs.set(device="cpu"):
        step = weft.jit(lambda x: module(x))
        close(run(step, x), expected, weft.float32, slack=10.0)
        assert not np.array_equal(step(weft.asarray(x)).numpy(), expected)  # the stream went on
        module.eval()
        assert np.array_equal(step(weft.asarray(x)).numpy(), x)
    counted(2)


def test_a_compiled_step_follows_settings_of_parts():
    x = made(2, 1, 4, 4)
    flip = data.RandomFlip(p=1.0)
    augment = data.Augment(flip, data.RandomCrop(4))
    with weft.knobs.set(device="cpu"):
        step = weft.jit(lambda x: augment(x))
        assert np.array_equal(step(weft.asarray(x)).numpy(), x[..., ::-1])
        flip.p = 0.0
        assert np.array_equal(step(weft.asarray(x)).numpy(), x)
    counted(2)


def test_mixing_in_a_compiled_step():
    module, x = data.Augment(data.RandomFlip(), data.MixUp(0.5, classes=3)), made()
    expected = run(module, x, LABELS)
    with weft.knobs.set(device="cpu"):
        got = run(weft.jit(lambda x, y: module(x, y)), x, LABELS)
    for a, b in zip(got, expected, strict=True):
        close(a, b, weft.float32)


READS = [
    ([data.RandomFlip(), data.RandomCrop(6, 1)], 1),
    ([data.RandomFlip(), data.RandomRotation(9), data.RandomAffine(3), data.RandomResizedCrop(5)], 4),
    ([data.RandomFlip(), data.RandomCrop(6, 1), data.RandAugment(3)], 4),
    ([data.RandomFlip(), data.ColorJitter(0.1), data.RandomFlip()], 2),
    ([data.RandomCrop(6, 1, "reflect"), data.RandomRotation(9)], 5),
    ([data.RandomFlip().eval(), data.RandomRotation(9).eval()], 0),
]


@pytest.mark.parametrize(("parts", "reads"), READS)
def test_pictures_are_read_once(parts, reads):
    augment = data.Augment(*parts)
    weft.seed(0)
    text = weft.make_graph(lambda x: augment(x), weft.asarray(made(2, 3, 6, 6))).text()
    assert text.count("= gather(") == reads
    counted()


def test_joined_warps_show_what_a_crop_cut_off():
    x = np.ones((1, 1, 9, 9), np.float32)
    parts = data.RandomCrop(5).eval(), data.RandomRotation((45.0, 45.0))
    assert run(data.Augment(*parts), x).min() == 1.0  # the corners of the 5 x 5 part turned lie within the 9 x 9 image
    apart = parts[1](parts[0](weft.asarray(x))).numpy()
    assert apart.min() == 0.0
    counted(2)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: data.RandomFlip(p=1.5), "[RandomFlip] a probability in [0, 1] is required, got 1.5"),
        (lambda: data.RandomCrop(0), "[RandomCrop] the size must be an int of 1 or more, or 2 of them, got 0"),
        (lambda: data.RandomCrop(4, -1), "[RandomCrop] the padding must be an int of 0 or more"),
        (lambda: data.RandomCrop(4, 1, "wrap"), "[RandomCrop] the border must be constant, edge, reflect, got 'wrap'"),
        (lambda: data.RandomCrop(9, 1)(made()), "[RandomCrop] an image of (6, 7) with a padding of (1, 1) is smaller than (9, 9)"),
        (lambda: data.RandomResizedCrop(4, (0.5, 1.5)), "[RandomResizedCrop] the scale must be low <= high between 1e-06 and 1, got (0.5, 1.5)"),
        (lambda: data.RandomResizedCrop(4, (0.5, 1.0), (2.0, 1.0)), "[RandomResizedCrop] the ratio must be low <= high"),
        (lambda: data.RandomRotation((5, -5)), "[RandomRotation] the degrees must be low <= high, got (5, -5)"),
        (lambda: data.RandomAffine(shear=90), "[RandomAffine] the shear must be low <= high between -89 and 89, got 90"),
        (lambda: data.RandomAffine(translate=2.0), "[RandomAffine] translate must be a fraction in [0, 1], or a pair of them, got 2.0"),
        (lambda: data.RandomAffine(scale=(0.0, 1.0)), "[RandomAffine] the scale must be low <= high between 0.001"),
        (lambda: data.RandomRotation(9)(np.zeros((1, 1, 4, 4), np.uint8)), "[RandomRotation] pixels of a float dtype are required, got uint8. Put ToFloat() before it"),
        (lambda: data.RandomFlip()(made()[0]), "[RandomFlip] images (batch, channels, height, width) are required, got shape (3, 6, 7)"),
        (lambda: data.Augment(data.RandomFlip())(made()[0]), "[RandomFlip] images (batch, channels, height, width) are required"),
        (lambda: data.ColorJitter(hue=0.6), "[ColorJitter] the hue must be low <= high between -0.5 and 0.5, got 0.6"),
        (lambda: data.ColorJitter(brightness=-0.1), "[ColorJitter] the brightness must be low <= high"),
        (lambda: data.ColorJitter(0.1)(made(2, 2)), "[ColorJitter] images with 1 or 3 channels are required, got shape (2, 2, 6, 7)"),
        (lambda: data.RandAugment()(made(2, 2)), "[RandAugment] images with 1 or 3 channels are required"),
        (lambda: data.RandAugment(0), "[RandAugment] the number of operations must be an int of 1 or more, got 0"),
        (lambda: data.RandAugment(1, 31), "[RandAugment] a strength from 0 to 30 is required, got 31"),
        (lambda: data.RandomErasing(scale=(0.5, 2.0)), "[RandomErasing] the scale must be low <= high between 0 and 1"),
        (lambda: data.GaussianBlur(4), "[GaussianBlur] an odd size is required, got 4"),
        (lambda: data.GaussianBlur(3, (0.0, 1.0)), "[GaussianBlur] the sigma must be low <= high between 0.001 and inf"),
        (lambda: data.Normalize([0.1, 0.2], 0.3), "[Normalize] mean and std must have the same length"),
        (lambda: data.Normalize(0.1, 0.0), "[Normalize] std must be above 0, got 0.0"),
        (lambda: data.Normalize([0.1, 0.2], [1.0, 1.0])(made()), "[Normalize] images with 2 channels are required, got shape (5, 3, 6, 7)"),
        (lambda: data.ToFloat()(np.zeros((1, 1, 2, 2), np.int32)), "[ToFloat] uint8 or floats are required, got int32"),
        (lambda: data.MixUp(0.0), "[MixUp] the alpha must be above 0, got 0.0"),
        (lambda: data.MixUp(1.0)(made(), LABELS), "[MixUp] class indices require the number of classes: MixUp(alpha, classes=10)"),
        (lambda: data.CutMix(1.0)(made(), made()), "[CutMix] labels (batch,) of ints or (batch, classes) of floats are required"),
        (lambda: data.CutMix(1.0, 3)(made(4), LABELS), "[CutMix] a label for each image is required, got 4 images and 5 labels"),
        (lambda: data.Augment(data.MixUp())(made()), "[Augment] MixUp requires labels. Call augment(x, y)"),
        (lambda: data.augmentation("wild", 8), "[augmentation] the name must be light, shift, standard, strong, got 'wild'"),
    ],
)  # fmt: skip
def test_error_texts(call, text):
    with pytest.raises(weft.UserError) as caught:
        call()
    assert text in str(caught.value)
    counted()
