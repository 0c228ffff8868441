"""Networks against what is published about them: parameters to the last one, multiply-adds, and that each of them learns."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft import knobs, nn, zoo
from weft.errors import UserError
from weft.ops.creation import zeros
from weft.testing import close, counted, generator
from weft.zoo.building_blocks import SqueezeExcite, round_channels
from weft.zoo.googlenet import MODULES
from weft.zoo.resnet import Shortcut


@contextmanager
def without_random_numbers() -> Iterator[None]:
    """Inside, all parameters begin at zero: large networks are made at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.init, "values", lambda start, shape: zeros(shape))
        yield


# --- counts ---------------------------------------------------------------------------------------------------------------
# Rows: network, settings, input, trained parameters (running statistics are not counted), millions of multiply-adds of
# convolutions and matrix products for one example (biases, norms and activations are not counted). Sources:
# T: torchvision's own list (its "GFLOPS" are multiply-adds); C: the networks that come with Caffe; P: the papers;
# K: Keras; H: Hugging Face; M: timm; I: the list of osmr/imgclsmob (which counts a little more as work);
# hand: computed from the sizes of the layers.

Row = tuple[str, dict[str, Any], tuple[int, ...], int, float | None]
PUBLISHED: list[Row] = [
    ("lenet_300_100", {}, (1, 1, 28, 28), 266_610, 0.2662),  # P: "267K" (Han et al. 2015); hand
    ("lenet5", {}, (1, 1, 28, 28), 431_080, 2.293),  # C, P: "431K" (Han et al. 2015); hand
    ("lenet5_classic", {}, (1, 1, 28, 28), 61_706, 0.4165),  # hand: 117,600 + 240,000 + 48,000 + 10,080 + 840
    ("whitened_cnn", {}, (1, 3, 32, 32), 1_971_352, 118.1),  # hand
    ("small_cnn", {}, (1, 1, 28, 28), 1_199_882, 11.99),  # K: its first example; hand
    ("alexnet", {}, (1, 3, 224, 224), 61_100_840, 714.2),  # T
    ("vgg11", {}, (1, 3, 224, 224), 132_863_336, 7_609),  # T
    ("vgg13", {}, (1, 3, 224, 224), 133_047_848, 11_308),  # T
    ("vgg16", {}, (1, 3, 224, 224), 138_357_544, 15_470),  # T
    ("vgg19", {}, (1, 3, 224, 224), 143_667_240, 19_632),  # T
    ("vgg11_bn", {}, (1, 3, 224, 224), 132_868_840, 7_609),  # T
    ("vgg13_bn", {}, (1, 3, 224, 224), 133_053_736, 11_308),  # T
    ("vgg16_bn", {}, (1, 3, 224, 224), 138_365_992, 15_470),  # T
    ("vgg19_bn", {}, (1, 3, 224, 224), 143_678_248, 19_632),  # T
    ("googlenet", {}, (1, 3, 224, 224), 6_624_904, 1_498),  # T
    ("googlenet", {"aux": True}, (1, 3, 224, 224), 13_004_888, 1_498),  # T
    ("googlenet", {"norm": False}, (1, 3, 224, 224), 6_998_552, 1_584),  # C; P: "1.5 billion"; others 1.58 to 1.59 G
    ("googlenet", {"norm": False, "aux": True}, (1, 3, 224, 224), 13_378_280, 1_584),  # C
    ("inception_v3", {}, (1, 3, 299, 299), 23_834_568, 5_713),  # T less its side head
    ("inception_v3", {"aux": True}, (1, 3, 299, 299), 27_161_264, 5_713),  # T
    ("inception_resnet_v2", {}, (1, 3, 299, 299), 55_843_464, 13_189),  # I
    ("resnet18", {}, (1, 3, 224, 224), 11_689_512, 1_814),  # T
    ("resnet34", {}, (1, 3, 224, 224), 21_797_672, 3_664),  # T
    ("resnet50", {}, (1, 3, 224, 224), 25_557_032, 4_089),  # T
    ("resnet101", {}, (1, 3, 224, 224), 44_549_160, 7_801),  # T
    ("resnet152", {}, (1, 3, 224, 224), 60_192_808, 11_514),  # T
    ("resnet18_cifar", {}, (1, 3, 32, 32), 11_173_962, 556),  # the usual CIFAR repositories; hand
    ("resnet20", {}, (1, 3, 32, 32), 269_722, 40.551),  # P: "0.27M" to "1.7M"; hand, see below
    ("resnet32", {}, (1, 3, 32, 32), 464_154, 68.863),
    ("resnet44", {}, (1, 3, 32, 32), 658_586, 97.175),
    ("resnet56", {}, (1, 3, 32, 32), 853_018, 125.487),
    ("resnet110", {}, (1, 3, 32, 32), 1_727_962, 252.887),
    ("densenet121", {}, (1, 3, 224, 224), 7_978_856, 2_834),  # T
    ("densenet169", {}, (1, 3, 224, 224), 14_149_480, 3_360),  # T
    ("squeezenet1_0", {}, (1, 3, 224, 224), 1_248_424, 819),  # T: 0.82 G; P: "50x fewer" than AlexNet's
    ("squeezenet1_1", {}, (1, 3, 224, 224), 1_235_496, 349),  # T: 0.35 G
    ("mobilenet_v1", {}, (1, 3, 224, 224), 4_231_976, 569),  # K: trained ones; P: 569 M
    ("mobilenet_v2", {}, (1, 3, 224, 224), 3_504_872, 300.8),  # T
    ("efficientnet_b0", {}, (1, 3, 224, 224), 5_288_548, 386),  # T
    ("efficientnet_b1", {}, (1, 3, 240, 240), 7_794_184, 687),  # T
    ("efficientnet_lite0", {}, (1, 3, 224, 224), 4_652_008, 385),  # its weights; B0 without gates
    ("convnext_tiny", {}, (1, 3, 224, 224), 28_589_128, 4_456),  # T
    ("unet", {"padding": 0}, (1, 1, 572, 572), 31_030_658, None),  # P, as counted by its Keras versions
    ("gpt2", {}, (1, 16), 124_439_808, None),  # H
    ("vit_tiny", {}, (1, 3, 224, 224), 5_717_416, 1_253.7),  # M; hand: 28.9 + 12 * (87.1 + 14.9) + 0.2
    ("vit_small", {}, (1, 3, 224, 224), 22_050_664, 4_600),  # M; P: "4.6 G"
    ("vit_base", {}, (1, 3, 224, 224), 86_567_656, 17_564),  # T
]


def example(shape: tuple[int, ...]) -> Any:
    """Images, or tokens where there are two dimensions."""
    return np.zeros(shape, np.int64) if len(shape) == 2 else shape


@pytest.mark.sweep(share=2.0)  # test_catalogue.py counts those of every network
@pytest.mark.parametrize(("name", "settings", "shape", "parameters", "millions"), PUBLISHED)
def test_counts(
    name: str, settings: dict[str, Any], shape: tuple[int, ...], parameters: int, millions: float | None
) -> None:
    with without_random_numbers():
        summary = nn.summary(zoo.find(name)(**settings), example(shape))
    counted(2)
    assert summary.parameters == summary.trained == parameters
    if millions is not None:
        assert summary.macs / 1e6 == pytest.approx(millions, rel=0.01)


@pytest.mark.parametrize(("name", "blocks"), [("resnet20", 3), ("resnet56", 9)])
def test_macs_of_the_thin_resnets_by_hand(name: str, blocks: int) -> None:
    """Stem; all convolutions of a stage cost the same, but the first of the second and third half as much; linear."""
    full, stem = 16 * 16 * 9 * 32 * 32, 3 * 16 * 9 * 32 * 32
    expected = stem + full * 2 * blocks + 2 * (full // 2 + full * (2 * blocks - 1)) + 64 * 10
    with without_random_numbers():
        assert nn.summary(zoo.find(name)(), (1, 3, 32, 32)).macs == expected
    counted()


def test_state_is_counted_as_others_count_it() -> None:
    """Keras says 55,873,736 for Inception-ResNet v2: no scales, but running means and variances."""
    with without_random_numbers():
        summary = nn.summary(zoo.inception_resnet_v2(), (1, 3, 299, 299))
    scales = summary.state // 2
    assert summary.parameters - scales + summary.state == 55_873_736
    counted()


def test_the_documentation_says_what_is_counted() -> None:
    text = (Path(__file__).resolve().parent.parent / "docs" / "zoo.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip(" `") for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| `")
    ]
    said = {cells[0]: cells[2] for cells in rows}
    for name, settings, _, parameters, _ in PUBLISHED:
        if not settings or name == "unet":
            assert said[name] == f"{parameters:,}", name
            counted()


# --- learning -------------------------------------------------------------------------------------------------------------
# Every family, small: compiling takes a quarter of a second for each convolution and its gradients. Rates of dropout are 0:
# then the compiled step can be compared with the definition.

Small = tuple[Callable[[], nn.Module], tuple[int, ...]]
SMALL: dict[str, Small] = {
    "linear_regression": (lambda: zoo.linear_regression(3, 2), (4, 3)),
    "logistic_regression": (lambda: zoo.logistic_regression(3), (4, 3)),
    "perceptron": (lambda: zoo.perceptron(3), (4, 3)),
    "mlp": (lambda: zoo.mlp(3, 5, 4, 2, activation="tanh"), (4, 3)),
    "lenet_300_100": (lambda: zoo.lenet_300_100(4, size=6), (2, 1, 6, 6)),
    "lenet5": (lambda: zoo.lenet5(4, size=16), (2, 1, 16, 16)),
    "lenet5_classic": (lambda: zoo.lenet5_classic(4, 2, size=16), (2, 2, 16, 16)),
    "small_cnn": (lambda: zoo.small_cnn(4, size=13, dropout=0.0, width=4, hidden=8), (2, 1, 13, 13)),
    "alexnet": (lambda: zoo.alexnet(4, 2, dropout=0.0, width=4, hidden=16), (2, 2, 64, 64)),
    "vgg": (lambda: zoo.vgg((1, 2, 1), 4, dropout=0.0, width=4, hidden=16), (2, 3, 16, 16)),
    "vgg_bn": (lambda: zoo.vgg((1, 1), 4, norm=True, dropout=0.0, width=4, hidden=16), (2, 3, 16, 16)),
    "googlenet": (lambda: zoo.googlenet(4, dropout=0.0, width=1 / 16, rows={"4a": MODULES["4a"]}), (4, 3, 64, 64)),
    "inception_v3": (lambda: zoo.inception_v3(4, dropout=0.0, width=1 / 16, counts=(1, 0, 0)), (4, 3, 107, 107)),
    "inception_resnet_v2": (
        lambda: zoo.inception_resnet_v2(4, dropout=0.0, blocks=(0, 0, 1), width=1 / 16),
        (4, 3, 107, 107),
    ),
    "resnet": (lambda: zoo.resnet((1, 1, 1), 4, width=4), (2, 3, 32, 32)),
    "bottleneck": (lambda: zoo.resnet((1, 2), 4, bottleneck=True, width=4, stem="cifar"), (2, 3, 8, 8)),
    "resnet_cifar": (lambda: zoo.resnet_cifar(8, 4, width=4), (2, 3, 8, 8)),
    "densenet": (lambda: zoo.densenet((2, 2), 4, growth=4, width=8), (2, 3, 16, 16)),
    "squeezenet": (lambda: zoo.squeezenet((((4, 8),),), (8, 3), 4, dropout=0.0), (2, 3, 16, 16)),
    "mobilenet_v1": (lambda: zoo.mobilenet_v1(4, width=0.25, dropout=0.0, rows=((64, 1), (128, 2))), (2, 3, 16, 16)),
    "mobilenet_v2": (
        lambda: zoo.mobilenet_v2(4, width=0.25, dropout=0.0, rows=((1, 16, 1, 1), (6, 24, 2, 2)), last=16),
        (2, 3, 16, 16),
    ),
    "efficientnet": (
        lambda: zoo.efficientnet(4, width=0.25, dropout=0.0, drop_path=0.0, rows=((1, 3, 1, 16, 1), (6, 5, 2, 24, 2))),
        (2, 3, 16, 16),
    ),
    "convnext": (lambda: zoo.convnext((1, 1), 4, width=8, drop_path=0.0), (2, 3, 16, 16)),
    "unet": (lambda: zoo.unet(3, width=4, depth=2, norm=True), (2, 1, 8, 8)),
    "char_lstm": (lambda: zoo.char_lstm(5, 8, layers=1), (2, 6)),
    "gpt": (lambda: zoo.gpt(5, context=6, features=8, heads=2, layers=1), (2, 6)),
    "vit": (lambda: zoo.vit(4, size=8, patch=4, features=8, heads=2, layers=1), (2, 3, 8, 8)),
}


def inputs_for(shape: tuple[int, ...]) -> Any:
    """Images or vectors; tokens where there are six of them."""
    rng = generator("zoo")
    values = rng.integers(0, 5, shape) if shape == (2, 6) else rng.normal(size=shape).astype(np.float32)
    return weft.asarray(values)


def loss_of(model: nn.Module, x: Any) -> Any:
    """The distance to some fixed numbers, which any network can come nearer to."""
    result = model(x)
    logits = result[0] if isinstance(result, tuple) else result
    target = generator("target").normal(size=logits.shape).astype(np.float32)
    return weft.mse_loss(logits, weft.asarray(target))


def made(name: str) -> tuple[nn.Module, Any]:
    weft.seed(3)
    make, shape = SMALL[name]
    model, rng = make(), generator("start")
    for p in model.parameters():
        if p.ndim == 1:  # away from the start, where scales can be without any effect: batch norm behind batch norm
            p.assign(p + weft.asarray(0.1 * rng.normal(size=p.shape).astype(np.float32)))
    return model, inputs_for(shape)


@pytest.mark.sweep(share=0.3)
@pytest.mark.parametrize("name", SMALL)
def test_learns(name: str) -> None:
    """A compiled step: its loss is what the definition gives, all parameters move, and the loss falls."""
    with knobs.set(device="reference"):
        expected = loss_of(*made(name)).item()
    model, x = made(name)
    parameters = model.named_parameters()
    before = {path: p.numpy().copy() for path, p in parameters.items()}

    @weft.jit
    def step(x: Any) -> Any:
        loss = loss_of(model, x)
        found = weft.gradients(loss, list(parameters.values()))
        for p, g in zip(parameters.values(), found, strict=True):
            p.assign(p - 0.0001 * weft.sign(g))
        return loss

    losses = [step(x).item() for _ in range(3)]  # an odd number: steps of one size cannot lead back
    assert losses[0] == pytest.approx(expected, rel=1e-4)
    assert losses[-1] < losses[0], losses
    still = [path for path, p in parameters.items() if np.array_equal(p.numpy(), before[path])]
    assert not still, f"these do not move: {still}"
    counted(3)


def test_every_network_is_tested() -> None:
    """By its counts at full size, or by learning."""
    assert set(zoo.names()) <= {row[0] for row in PUBLISHED} | set(SMALL)
    counted()


# --- shapes and modes -----------------------------------------------------------------------------------------------------


def outputs(model: nn.Module, *shape: int) -> list[tuple[int, ...]]:
    """The shapes of what a network gives, in its present mode; nobody asks for the values."""
    result = model(weft.zeros(shape))
    return [r.shape for r in result] if isinstance(result, tuple) else [result.shape]


def test_side_heads_speak_in_training_only() -> None:
    with without_random_numbers():
        for model, size, heads in (
            (zoo.googlenet(7, aux=True, width=0.125, hidden=8), 64, 2),
            (zoo.googlenet(7, norm=False, aux=True, width=0.125, hidden=8), 64, 2),
            (zoo.inception_v3(7, aux=True, width=0.125), 299, 1),
        ):
            assert outputs(model, 2, 3, size, size) == [(2, 7)] * (1 + heads)
            assert outputs(model.eval(), 2, 3, size, size) == [(2, 7)]
            counted(2)


@pytest.mark.parametrize(("padding", "size", "expected"), [(0, 572, 388), (1, 64, 64)])
def test_unet_gives_an_image(padding: int, size: int, expected: int) -> None:
    with without_random_numbers():
        assert outputs(zoo.unet(5, 3, width=2, padding=padding), 1, 3, size, size) == [(1, 5, expected, expected)]
    counted()


def test_classes_and_channels() -> None:
    """Every classifier takes both; none of them is bound to one size of images, but for vectors and ViT."""
    with without_random_numbers():
        for name in ("alexnet", "vgg11", "googlenet", "resnet18", "mobilenet_v2", "efficientnet_b0", "convnext_tiny"):
            network = zoo.find(name)(classes=6, channels=1)
            assert outputs(network, 2, 1, 96, 128) == [(2, 6)], name
            counted()


def test_makers_take_classes_and_channels() -> None:
    """What a page or a command line relies on: all networks of images have these two settings."""
    others = {"linear_regression", "logistic_regression", "perceptron", "mlp", "char_lstm", "gpt", "gpt2"}
    for name in set(zoo.names()) - others:
        known = inspect.signature(zoo.find(name)).parameters
        assert list(known)[:2] == ["classes", "channels"], name
        assert known["channels"].default == (
            1 if name in {"lenet_300_100", "lenet5", "lenet5_classic", "small_cnn", "unet"} else 3
        )
        counted()


def test_shortcut_without_parameters_by_hand() -> None:
    """Option A: every second pixel, and zeros around the channels."""
    x = np.arange(2 * 4 * 4, dtype=np.float32).reshape(1, 2, 4, 4)
    y = Shortcut(2, 2)(weft.asarray(x)).numpy()
    assert y.shape == (1, 4, 2, 2)
    assert np.array_equal(y[:, 1:3], x[:, :, ::2, ::2])
    assert not y[:, 0].any()
    assert not y[:, 3].any()
    counted(3)


def test_squeeze_excite_is_its_formula() -> None:
    weft.seed(0)
    gate, x = SqueezeExcite(3, 2), generator("gate").normal(size=(2, 3, 4, 5))
    gate.astype("float64")
    w1, w2 = (p.numpy()[:, :, 0, 0] for p in (gate.reduce.weight, gate.expand.weight))
    hidden = x.mean(axis=(2, 3)) @ w1.T
    scores = (hidden / (1 + np.exp(-hidden))) @ w2.T
    expected = x / (1 + np.exp(-scores))[:, :, None, None]
    close(gate(weft.asarray(x)).numpy(), expected, weft.float64)


@pytest.mark.parametrize(("wanted", "found"), [(32, 32), (8.0, 8), (3.5, 8), (11, 16), (12, 16), (18, 24), (42, 40)])
def test_channels_are_multiples_of_eight(wanted: float, found: int) -> None:
    """Never a tenth less than wanted: 11 becomes 16, since 8 is less than 9.9."""
    assert round_channels(wanted) == found
    counted()


def test_a_perceptron_learns_by_its_rule() -> None:
    """A step on relu(-t y) moves weights by t x where the sign is wrong, and nowhere else."""
    weft.seed(1)
    model = zoo.perceptron(2)
    x, t = np.array([[1.0, -2.0], [0.5, 3.0]], np.float32), np.array([[1.0], [-1.0]], np.float32)
    wrong = model(weft.asarray(x)).numpy() * t < 0
    loss = weft.relu(-weft.asarray(t) * model(weft.asarray(x))).sum()
    (gradient,) = weft.gradients(loss, [model.weight])
    assert wrong.any()
    np.testing.assert_allclose(-gradient.numpy()[0], (wrong * t * x).sum(axis=0))
    counted()


def test_gpt_looks_back_only_and_ties_its_head() -> None:
    """A later token changes nothing before it; the table of tokens is the only matrix as large as the vocabulary."""
    with knobs.set(device="reference"):
        model, x = made("gpt")
        changed = x.numpy().copy()
        changed[:, 4:] = (changed[:, 4:] + 1) % 5
        one, other = model(x).numpy(), model(weft.asarray(changed)).numpy()
    np.testing.assert_array_equal(one[:, :4], other[:, :4])
    assert not np.array_equal(one[:, 4:], other[:, 4:])
    assert [path for path, p in model.named_parameters().items() if 5 in p.shape] == ["tokens.weight"]
    counted(3)


def test_char_lstm_goes_on_from_its_state() -> None:
    with knobs.set(device="reference"):
        model, x = made("char_lstm")
        whole, _ = model(x)
        _, state = model(x[:, :3])
        rest, _ = model(x[:, 3:], state)
        np.testing.assert_allclose(rest.numpy(), whole.numpy()[:, 3:], rtol=1e-5, atol=1e-6)
    counted()


WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: zoo.find("resnet19"), "[zoo.find] there is no network 'resnet19'. Known: linear_regression, "),
    (lambda: zoo.mlp(3), "[mlp] two sizes or more are required (inputs, hidden..., outputs), got (3,)."),
    (lambda: zoo.mlp(3, 4, 2, activation="rleu"), "[activation] there is no activation 'rleu'. Known: relu"),
    (lambda: zoo.resnet((1,), stem="big"), "[resnet] there is no stem 'big'. Known: imagenet, cifar."),
    (lambda: zoo.resnet_cifar(21), "[resnet_cifar] a depth of 6 n + 2 (8, 14, 20, ...) is required, got 21."),
    (lambda: zoo.resnet_cifar(2), "[resnet_cifar] a depth of 6 n + 2 (8, 14, 20, ...) is required, got 2."),
    (lambda: zoo.resnet20(classes=0), "[Linear] "),
    (lambda: zoo.alexnet(4, width=4, hidden=8, dropout=1.0), "[Dropout] a rate in [0, 1) is required, got 1.0."),
    (
        lambda: zoo.vit(4, size=30, patch=16),
        "[vit] a size that patches divide is required, got size 30 and patches of 16.",
    ),
    (
        lambda: zoo.inception_resnet_v2(blocks=(1, 1, 0)),
        "[inception_resnet_v2] at least one block of the last kind is required, got blocks=(1, 1, 0).",
    ),
    (lambda: zoo.unet(depth=0), "[unet] a depth of 1 or more is required, got 0."),
    (
        lambda: zoo.gpt(5, context=4, features=4, heads=1, layers=1)(weft.zeros((1, 5), dtype="int64")),
        "[GPT] tokens (batch, time up to 4) are required, got shape (1, 5).",
    ),
]


@pytest.mark.parametrize(("call", "text"), WRONG)
def test_errors(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(UserError) as caught:
        call()
    assert text in str(caught.value)
    counted()
