"""Augmentations of one image against plain NumPy with the same random numbers."""

import colorsys
import math

import numpy as np
import pytest

import weft
from augment_tools import LUMA, drawn, made, run, warped
from weft import data, random
from weft.data.warp import AffineMap, WarpView, view
from weft.testing import close, counted


@pytest.fixture(autouse=True)
def _plain():
    """Without compiling: most of these programs run once. Tests of compiled ones say so."""
    with weft.knobs.set(device="reference"):
        yield


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
