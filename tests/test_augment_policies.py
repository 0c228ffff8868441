"""Policies of augmentation, and what holds for all augmentations: modes, seeds, dtypes, gradients, compiled steps, error texts."""

import math

import numpy as np
import pytest

import weft
from augment_tools import LABELS, LUMA, made, run, warped
from weft import data, random
from weft.data.policies import OPERATIONS, _Sampled
from weft.data.warp import view
from weft.testing import check_grads, close, counted


@pytest.fixture(autouse=True)
def _plain():
    """Without compiling: most of these programs run once. Tests of compiled ones say so."""
    with weft.knobs.set(device="reference"):
        yield


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
