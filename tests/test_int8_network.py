"""Networks that compute in int8: what they give is what the fake-quantized network gives, and all products are of integers."""

import copy
import functools
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import weft
from weft import compress, nn
from weft.compiler.cpu.conv import depthwise_dot
from weft.compiler.cpu.target import host
from weft.compiler.thresholds import thresholds
from weft.compress.equalize import equalize_activations
from weft.compress.taps import tap
from weft.zoo.resnet import Shortcut

RNG = np.random.default_rng(22)


def plain() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU6(), nn.MaxPool2d(3, stride=2, padding=1),
        nn.Conv2d(8, 6, 2, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(54, 5),
    )  # fmt: skip


def residual() -> nn.Module:
    """An inverted residual block as in MobileNetV2, and blocks with a projection and a padded shortcut as in ResNets."""
    inverted = [nn.Conv2d(4, 16, 1), nn.ReLU6(), nn.DepthwiseConv2d(16, 3, padding=1), nn.ReLU6(), nn.Conv2d(16, 4, 1)]
    return nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.Residual(nn.Sequential(*inverted)),
        nn.Residual(nn.Conv2d(4, 8, 3, stride=2, padding=1), nn.Conv2d(4, 8, 1, stride=2), activation="relu"),
        nn.Residual(nn.Conv2d(8, 12, 3, stride=2, padding=1), Shortcut(4, 2), activation="relu"),
        nn.GlobalAvgPool(), nn.Linear(12, 5),
    )  # fmt: skip


class Branches(nn.Module):
    """A forward of its own: a concatenation as in SqueezeNet, a sum that others read too, an activation that has no form in integers."""

    def __init__(self) -> None:
        self.first, self.left, self.right = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1), nn.Conv2d(8, 4, 3, padding=1)
        self.second, self.third = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 5, 1)

    def forward(self, x):
        y = weft.relu(self.first(x))
        y = weft.concat([weft.relu(self.left(y)), weft.clip(self.right(y), -1.0, 1.0)], axis=1)
        y = y + self.second(y)
        return self.third(weft.tanh(y)) + weft.mean(y, axis=1, keepdims=True)


NETWORKS = {"plain": plain, "residual": residual, "branches": Branches}


@functools.cache
def quantized(make: Callable[[], nn.Module]) -> tuple[nn.Module, np.ndarray]:
    return fresh(make)


def fresh(make: Callable[[], nn.Module], **settings) -> tuple[nn.Module, np.ndarray]:
    weft.seed(3)
    model, x = make().eval(), RNG.normal(size=(4, 3, 8, 8)).astype(np.float32)
    compress.int8(model, x, method="minmax", weight_method="minmax", **settings)
    return model, x


def kinds(function, *arguments) -> Counter[str]:
    """The ops of a program, without the products that sum weights (unsigned_operands.py)."""
    nodes = function.passes(*arguments)["refine"].nodes
    return Counter(node.op.name for node in nodes if not (node.inputs and node.inputs[0].op.name == "const"))


@pytest.mark.parametrize("name", NETWORKS)
def test_the_results_are_those_of_fake_quantization(name: str) -> None:
    model, x = quantized(NETWORKS[name])
    fake = model(x).numpy()
    network = compress.to_int8(model)
    function = weft.jit(lambda x: network(x))
    found = function(x).numpy()
    step = np.abs(fake).max() / 127  # of a grid that holds the results
    assert np.abs(found - fake).max() <= step
    assert (
        np.abs(found - fake).mean() < step / 20
    )  # sums in int32 are exact, those in float32 nearly so: few values are rounded differently
    used = kinds(function, x)
    assert network.float_layers == []
    assert used["conv_last"] == used["contract"] == 0
    assert used["conv_int8_last"] + used["contract_int8"] == len(compress.quantization(model))
    assert network(x[:1]).shape == fake[:1].shape  # other batches, without jit


@pytest.mark.parametrize("groups", [1, 16])
def test_a_layer_differs_by_one_step_at_most(groups: int) -> None:
    weft.seed(1)
    model = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1, activation="relu"), nn.Conv2d(32, 32, 3, groups=2 * groups))
    x = RNG.normal(size=(2, 16, 9, 9)).astype(np.float32)
    compress.int8(model.eval(), x)
    grid = compress.Grid(8, False, np.float32(0.02), np.int32(100))
    tap(model, after=compress.FakeQuantize(grid))
    network = compress.to_int8(model)
    function = weft.jit(lambda x: network(x))
    expected, found = (grid.quantize(f(x).numpy()).astype(int) for f in (model, function))
    assert np.abs(found - expected).max() <= 1
    assert (found == expected).mean() > 0.999


def test_pooling_and_concatenation_are_of_8_bits() -> None:
    for make, op in ((plain, "window_max"), (Branches, "concat")):
        model, x = quantized(make)
        network = compress.to_int8(model)
        nodes = weft.jit(lambda x, network=network: network(x)).passes(x)["refine"].nodes
        assert {"int8", "uint8"} & {node.dtype.name for node in nodes if node.op.name == op}


def test_skipped_layers_stay_in_float() -> None:
    model, x = fresh(plain, skip=["layers.4"])
    network = compress.to_int8(model)
    assert network.float_layers == ["layers.4"]
    function = weft.jit(lambda x: network(x))
    np.testing.assert_allclose(function(x).numpy(), model(x).numpy(), rtol=1e-4, atol=1e-3)
    assert kinds(function, x)["conv_last"] == 1


def test_networks_without_an_integer_form_are_refused() -> None:
    with pytest.raises(weft.UserError, match=r"\[qdq\] a quantized network is required. Call int8 first."):
        compress.to_int8(plain())
    for settings in ({"weights": "affine"}, {"activation_scope": "channel"}, {"bits": 9}):
        with pytest.raises(weft.UserError, match="a layer with weights of up to 8 bits on a symmetric grid"):
            compress.to_int8(fresh(plain, **settings)[0])


def test_a_saved_network(tmp_path: Path) -> None:
    weft.seed(0)
    model, x = (
        nn.Sequential(nn.Linear(200, 100), nn.ReLU(), nn.Linear(100, 5)),
        RNG.normal(size=(9, 200)).astype(np.float32),
    )
    spec = weft.TensorSpec(("n", 200))
    weft.save(tmp_path / "float.weft", model, spec)
    compress.int8(model.eval(), x)
    network = compress.to_int8(model)
    weft.save(tmp_path / "int8.weft", network, spec)
    for count in (9, 1):
        found = weft.load(tmp_path / "int8.weft")(x[:count]).numpy()
        np.testing.assert_array_equal(found, network(x[:count]).numpy())
    assert (tmp_path / "int8.weft").stat().st_size < 0.35 * (tmp_path / "float.weft").stat().st_size


def exported(path: Path, make: Callable[[], nn.Module]) -> tuple[np.ndarray, np.ndarray]:
    model, x = quantized(make)
    weft.onnx.save(path, compress.qdq(model), weft.asarray(x))
    return x, model(x).numpy()


def test_onnx_has_pairs(tmp_path: Path) -> None:
    x, expected = exported(tmp_path / "q.onnx", plain)
    proto = onnx.load(tmp_path / "q.onnx")
    types = Counter(node.op_type for node in proto.graph.node)
    assert (types["QuantizeLinear"], types["DequantizeLinear"], types["Conv"]) == (3, 6, 2)
    [found] = ReferenceEvaluator(proto).run(None, {proto.graph.input[0].name: x})
    np.testing.assert_allclose(found, expected, atol=np.abs(expected).max() / 127)


def test_onnx_runtime_computes_the_same(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    for make in (plain, residual):
        x, expected = exported(tmp_path / "q.onnx", make)
        session = onnxruntime.InferenceSession(str(tmp_path / "q.onnx"))
        [found] = session.run(None, {session.get_inputs()[0].name: x})
        np.testing.assert_allclose(found, expected, atol=np.abs(expected).max() / 60)


# --- what helps depthwise networks -------------------------------------------------------------------------------------------


def test_equalised_activations_keep_what_a_network_computes() -> None:
    weft.seed(5)
    x, sizes = RNG.normal(size=(4, 3, 8, 8)).astype(np.float32), np.geomspace(0.02, 2.0, 16).astype(np.float32)
    model = nn.Sequential(nn.Conv2d(3, 16, 1), nn.ReLU6(), nn.DepthwiseConv2d(16, 3)).eval()
    for layer, factor in ((model.layers[0], sizes), (model.layers[2], 1 / sizes)):  # channels that differ much in size
        layer.weight.assign(layer.weight * factor.reshape(16, 1, 1, 1))
    expected, errors = model(x).numpy(), {}
    for equalized in (False, True):
        one = copy.deepcopy(model)
        if equalized:
            equalize_activations(one, [x])
            np.testing.assert_allclose(one(x).numpy(), expected, rtol=1e-4, atol=1e-5)
        compress.quantize(one, x, bits=12, activation_bits=8, equalize="activations" if equalized else False)
        errors[equalized] = np.square(one(x).numpy() - expected).mean()
    assert errors[True] < errors[False] / 10


@pytest.mark.parametrize("layer", ["linear", "convolution", "groups"])
def test_rounding_with_error_feedback(layer: str) -> None:
    weft.seed(2)
    model, shape = {
        "linear": (nn.Linear(24, 8), (60, 24)),
        "convolution": (nn.Conv2d(4, 6, 3, padding=1, stride=2), (5, 4, 7, 7)),
        "groups": (nn.Conv2d(8, 8, 3, groups=8, dilation=2), (5, 8, 9, 9)),
    }[layer]
    x = (RNG.normal(size=shape) + 2.0).astype(np.float32)
    expected, errors = model(x).numpy(), {}
    for rounding in ("nearest", "feedback"):
        one = copy.deepcopy(model)
        compress.quantize(one, x, bits=4, activation_bits=16, weight_method="minmax", weight_rounding=rounding)
        errors[rounding] = np.square(one(x).numpy() - expected).mean()
    assert errors["feedback"] < errors["nearest"] / 2


def test_unknown_settings_are_refused() -> None:
    for settings, text in (
        ({"equalize": "all"}, "equalize must be False, True, 'weights' or 'activations', got 'all'"),
        ({"weight_rounding": "up"}, "weight_rounding must be 'nearest', 'feedback' or 'learned', got 'up'"),
    ):
        with pytest.raises(weft.UserError, match=text):
            compress.quantize(nn.Linear(3, 2), RNG.normal(size=(4, 3)).astype(np.float32), **settings)


# --- kernels ----------------------------------------------------------------------------------------------------------------


def bordered(x, w, border: int, **how):
    y = weft.pad(x, ((0, 0), (0, 0), (1, 2), (2, 1)), value=border)
    return weft.conv(y, w, dtype="int32", **how)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("shape", "filters", "how"),
    [
        ((2, 8, 7, 9), (12, 8, 3, 3), {}),
        ((1, 3, 9, 9), (5, 3, 3, 3), {"stride": 2}),
        ((2, 16, 5, 9), (16, 1, 3, 3), {"groups": 16}),  # rows of even length: neighbours share words
        ((1, 35, 6, 8), (35, 1, 3, 3), {"groups": 35}),  # rows of odd length, a block of channels that overlaps
        ((1, 20, 9, 9), (20, 1, 5, 3), {"groups": 20, "stride": (2, 1), "dilation": (1, 2)}),
        ((1, 6, 6, 6), (6, 1, 3, 3), {"groups": 6}),  # too few channels
    ],
)
def test_borders_of_any_number(shape, filters, how, threads: int) -> None:
    x, w = (RNG.integers(-128, 128, s).astype(np.int8) for s in (shape, filters))
    border = -128 if threads == 1 else 77
    whole = np.pad(x.astype(np.int32), ((0, 0), (0, 0), (1, 2), (2, 1)), constant_values=border)
    expected = weft.conv(whole, w.astype(np.int32), **how).numpy()
    with weft.knobs.set(threads=threads):
        function = weft.jit(lambda x, w: bordered(x, w, border, **how))
        assert kinds(function, x, w)["conv_int8_last"] == 1
        np.testing.assert_array_equal(function(x, w).numpy(), expected)
        held = weft.asarray(w)
        rounded = weft.jit(
            lambda x: weft.requantize(bordered(x, held, border, **how), 1e-3)
        )  # streamed to the epilogue
        np.testing.assert_array_equal(
            rounded(x).numpy(), np.clip(np.rint(expected.astype(np.float32) * np.float32(1e-3)), -128, 127)
        )


@pytest.mark.skipif(host().dot not in ("dotprod", "avx512vnni"), reason="a CPU with dot products is required")
def test_depthwise_convolutions_of_int8_are_dot_products() -> None:
    x, w = RNG.integers(-128, 128, (1, 32, 6, 6)).astype(np.int8), weft.asarray(np.ones((32, 1, 3, 3), np.int8))
    made: list[str] = []
    plan = depthwise_dot.sweep_plan
    with pytest.MonkeyPatch.context() as patch, weft.knobs.set(cache="off"):
        patch.setattr(depthwise_dot, "sweep_plan", lambda *a: made.append("dot") or plan(*a))
        weft.jit(lambda x: weft.conv(x, w, padding=1, groups=32, dtype="int32"))(x)
    assert made


@pytest.mark.parametrize("channels", [16, 32, 33, 64, 65, 144])
def test_depthwise_convolutions_of_any_number_of_channels(channels: int) -> None:
    for kernel, how in (
        ((3, 3), {"padding": 1}),
        ((3, 3), {"stride": 2}),
        ((5, 3), {"padding": (2, 1), "dilation": (1, 2)}),
    ):
        x = RNG.integers(-128, 128, (2, channels, 9, 12)).astype(np.int8)
        w = RNG.integers(-128, 128, (channels, 1, *kernel)).astype(np.int8)
        expected = weft.conv(x.astype(np.float64), w.astype(np.float64), groups=channels, **how).numpy()
        held = weft.asarray(w)
        function = weft.jit(lambda x, held=held, how=how: weft.conv(x, held, groups=channels, dtype="int32", **how))
        np.testing.assert_array_equal(function(x).numpy(), expected)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_rounding_to_8_bits(dtype: str) -> None:
    ties = np.arange(-140, 270, 0.5)
    x = np.concatenate(
        [ties, np.nextafter(ties, np.inf), [np.nan, np.inf, -np.inf, 1e30, -1e30, 4194304.5, -8388609.0]]
    )
    x = x.astype(np.float32)
    function = weft.jit(lambda x: weft.round(x).astype(dtype))
    assert kinds(function, x)["round_8_bits"] == 1
    np.testing.assert_array_equal(function(x).numpy(), weft.round(weft.asarray(x)).astype(dtype).numpy())
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    np.testing.assert_array_equal(function(x).numpy(), np.clip(np.nan_to_num(np.rint(x)), low, high).astype(dtype))


@pytest.mark.parametrize(("channels", "size", "threads"), [(8, 40, 1), (64, 6, 2), (40, 5, 5)])
def test_sums_of_convolutions_are_streamed(channels: int, size: int, threads: int) -> None:
    """The int32 sums are never in memory as a whole, however threads divide them and in how many pieces the filter is read."""
    x = RNG.integers(-128, 128, (2, channels, size, size)).astype(np.int8)
    w = RNG.integers(-128, 128, (72, channels, 3, 3)).astype(np.int8)
    expected = weft.conv(x.astype(np.float64), w.astype(np.float64), padding=1).numpy()
    held = weft.asarray(w)
    with weft.knobs.set(threads=threads), thresholds.set(filter_piece=4096):
        function = weft.jit(lambda x: weft.requantize(weft.conv(x, held, padding=1, dtype="int32"), 1e-3))
        for _ in range(2):
            np.testing.assert_array_equal(
                function(x).numpy(), np.clip(np.rint(expected.astype(np.float32) * np.float32(1e-3)), -128, 127)
            )
        _, program = function.plan(x)
    assert [plan.hidden for plan in program.plans.values()] == [True]


def test_limits_that_cross_are_applied_from_the_inside_out() -> None:
    """max(min(x, -0.1), 0.2) is 0.2 everywhere, min(max(x, 0.2), -0.1) is -0.1; limits may be tensors."""

    class Crossed(nn.Module):
        def __init__(self) -> None:
            self.a, self.b, self.last = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1), nn.Conv2d(16, 4, 1)
            self.most = np.float32([-0.2, 0.1, -0.3, 0.4]).reshape(4, 1, 1)

        def forward(self, x: weft.Tensor) -> weft.Tensor:
            y = self.a(x)
            first, second = weft.maximum(weft.minimum(y, -0.1), 0.2), weft.minimum(weft.maximum(y, 0.2), -0.1)
            third = weft.minimum(weft.maximum(y, 0.2), weft.asarray(self.most))
            return self.last(weft.concat([first, second, third, self.b(x)], axis=1))

    weft.seed(0)
    model, x = Crossed().eval(), RNG.normal(size=(8, 3, 4, 4)).astype(np.float32)
    compress.int8(model, x)
    expected = model(x).numpy()
    np.testing.assert_allclose(compress.to_int8(model)(x).numpy(), expected, atol=1e-5 * np.abs(expected).max())
