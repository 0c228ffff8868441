"""Quantization: grids, ranges, fake quantization, folding and equalisation against NumPy; quantization-aware training resumes exactly."""

from typing import Any

import numpy as np
import pytest

import weft
from weft import nn, train, zoo
from weft.compress import (
    ClippedReLU,
    FakeQuantize,
    Grid,
    equalize,
    fold,
    int8,
    prune,
    quantization,
    quantize,
    weight_only,
    weights_of,
)  # fmt: skip
from weft.compress.grids import affine, symmetric
from weft.compress.ranges import SHRINKS, Values, best_grid

RNG = np.random.default_rng(0)


def convnet(norm: bool = True) -> nn.Sequential:
    weft.random.seed(0)
    rng = np.random.default_rng(1)
    norms = [nn.BatchNorm2d(6)] if norm else []
    model = nn.Sequential(
        nn.Conv2d(2, 6, 3, bias=False), *norms, nn.ReLU(), nn.DepthwiseConv2d(6, 3, activation="relu6"), nn.Conv2d(6, 4, 1),
        nn.Dropout(0.5), nn.Flatten(), nn.Linear(16, 3),
    ).eval()  # fmt: skip
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            for name in ("mean", "shift"):
                getattr(layer, name).assign(weft.asarray(rng.normal(size=6).astype(np.float32)))
            for name in ("var", "scale"):
                getattr(layer, name).assign(weft.asarray(rng.uniform(0.5, 2, 6).astype(np.float32)))
    return model


def images(count: int = 32) -> np.ndarray:
    return RNG.normal(size=(count, 2, 6, 6)).astype(np.float32)


# --- grids and ranges ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [2, 4, 8, 16])
@pytest.mark.parametrize("kind", [symmetric, affine])
@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.usefixtures("interpreted")
def test_fake_quantization_is_that_of_numpy(bits: int, kind, axis: int | None) -> None:
    x = (RNG.normal(size=(5, 7, 3)) + 0.5).astype(np.float32)
    others = tuple(i for i in range(3) if i != axis)
    grid = kind(bits, 0.7 * x.min(axis=others if axis is not None else None), 0.7 * x.max(axis=others if axis is not None else None), axis)  # fmt: skip
    shape = [-1 if i == axis else 1 for i in range(3)]
    scale = grid.scale if axis is None else grid.scale.reshape(shape)
    zero = grid.zero if axis is None else grid.zero.reshape(shape)
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if grid.signed else (0, 2**bits - 1)
    steps = np.clip(np.rint(x / scale) + zero, low, high)
    expected = (steps - zero).astype(np.float32) * scale
    np.testing.assert_array_equal(FakeQuantize(grid)(x).numpy(), expected)
    np.testing.assert_array_equal(grid.dequantize(grid.quantize(x)), expected)
    assert grid.quantize(np.zeros_like(x)).min() == grid.zero.min(), "zero is on every grid"


def test_grids_by_channel_of_the_inputs_of_linear_layers() -> None:
    x = (RNG.normal(size=(40, 6)) * [1, 2, 4, 8, 16, 32]).astype(np.float32)
    model = nn.Sequential(nn.Linear(6, 3))
    full = model.layers[0].weight.numpy()
    found = int8(model, x, activations="symmetric", activation_scope="channel", method="minmax")["layers.0"]
    np.testing.assert_allclose(found.input.scale, np.abs(x).max(0) / 127, rtol=1e-6)
    rounded = [np.rint(x / found.input.scale) * found.input.scale, found.weight.dequantize(found.integers)]
    np.testing.assert_allclose(
        model(x).numpy(), rounded[0] @ rounded[1].T + model.layers[0].bias.numpy(), rtol=1e-4, atol=1e-4
    )
    assert np.abs(rounded[1] - full).max() < 0.01


def test_fake_quantization_is_compiled_with_the_same_bits() -> None:
    x = RNG.normal(size=(4, 500)).astype(np.float32)
    for grid in (symmetric(5, x.min(1), x.max(1), 0), affine(8, x.min() / 2, x.max() / 3)):
        compiled = weft.jit(FakeQuantize(grid))(x).numpy()
        np.testing.assert_array_equal(compiled, grid.dequantize(grid.quantize(x)))


def test_gradients_pass_straight_through_inside_the_grid() -> None:
    quantizer = FakeQuantize(Grid(4, True, np.float32(0.5), np.int32(0)))
    x = weft.parameter(np.array([0.2, -3.9, 3.4, 9.0, -9.0], np.float32))
    (g,) = weft.gradients((quantizer(x) * weft.asarray([1.0, 2.0, 3.0, 4.0, 5.0])).sum(), [x])
    assert g.tolist() == [1.0, 2.0, 3.0, 0.0, 0.0]


def test_ranges_are_the_best_of_those_tried() -> None:
    values = np.concatenate([RNG.normal(size=4000), [40.0]])
    rows = Values.exact(values, None)

    def error(grid: Grid) -> float:
        return float(((grid.dequantize(grid.quantize(values)) - values) ** 2).mean())

    tried = [error(symmetric(4, values.min() * part, values.max() * part)) for part in SHRINKS]
    assert error(best_grid("t", rows, 4, "symmetric", "mse", None)) == pytest.approx(min(tried))
    whole, clipped = (best_grid("t", rows, 8, "affine", m, None, 99.9) for m in ("minmax", "percentile"))
    assert float(whole.scale) == pytest.approx((40.0 - values.min()) / 255)
    assert float(clipped.scale) * 255 == pytest.approx(
        np.ptp(np.quantile(values, [0.001, 0.999], method="higher")), rel=0.15
    )
    assert float(best_grid("t", rows, 8, "symmetric", "entropy", None).scale) * 127 < 20.0, "the outlier is clipped"
    with pytest.raises(weft.UserError, match="minmax, percentile, mse or entropy, got 'best'"):
        best_grid("t", rows, 8, "affine", "best", None)


@pytest.mark.parametrize("method", ["minmax", "percentile", "mse", "entropy"])
@pytest.mark.usefixtures("interpreted")
def test_statistics_of_activations_are_those_of_numpy(method: str) -> None:
    model, x = convnet(norm=False), images(64)
    inside = model[:2](x).numpy()
    grids = quantize(model, [x[:32], x[32:]], method=method, percent=99.0)
    first, second = grids["layers.0"].input, grids["layers.2"].input
    assert second.zero == 0, "after ReLU there is nothing below 0"
    low, high = float((first.low - first.zero) * first.scale), float((first.high - first.zero) * first.scale)
    if method == "minmax":
        assert (low, high) == pytest.approx((x.min(), x.max()), abs=float(first.scale))
        assert float(second.scale) == pytest.approx(inside.max() / 255)
    elif method == "percentile":
        assert (low, high) == pytest.approx(tuple(np.quantile(x, [0.01, 0.99])), abs=0.03)
    else:
        assert high - low <= np.ptp(x) * 1.01
        exact = best_grid("t", Values.exact(x, None), 8, "affine", method, None)
        assert float(first.scale) == pytest.approx(float(exact.scale), rel=0.1)


# --- rewrites -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [convnet, lambda: zoo.resnet20(10, 2).eval(), lambda: functional()], ids=["plain", "residual", "functional"])  # fmt: skip
@pytest.mark.usefixtures("interpreted")
def test_folding_keeps_what_a_network_computes(make) -> None:
    model, x = make(), images(4)
    before, names = model(x).numpy(), set(model.named_modules())
    folded = fold(model, x)
    assert folded
    assert not any(isinstance(m, nn.BatchNorm) for m in model.modules())
    assert set(model.named_modules()) == names, "paths stay"
    np.testing.assert_allclose(model(x).numpy(), before, rtol=1e-4, atol=1e-5)


def functional() -> nn.Module:
    weft.random.seed(1)
    x = nn.Input()
    a = nn.ReLU()(nn.BatchNorm2d(5)(nn.Conv2d(2, 5, 3, padding=1)(x)))
    b = nn.BatchNorm2d(5)(nn.Conv2d(5, 5, 1)(a))
    return nn.Model(x, nn.Linear(5, 2)(nn.GlobalAvgPool()(nn.Add()(a, b)))).eval()


@pytest.mark.usefixtures("interpreted")
def test_a_batch_norm_whose_input_is_read_elsewhere_is_not_folded() -> None:
    x = nn.Input()
    a = nn.Conv2d(2, 5, 3)(x)
    model = nn.Model(x, nn.Add()(nn.BatchNorm2d(5)(a), a)).eval()
    assert fold(model, images(2)) == []


@pytest.mark.usefixtures("interpreted")
def test_equalisation_keeps_what_a_network_computes() -> None:
    model, x = convnet(), images(8)
    first = model[0].weight
    first.assign(first * weft.asarray(np.array([1e-3, 1, 50, 1, 0.1, 7], np.float32).reshape(6, 1, 1, 1)))
    before = model(x).numpy()
    fold(model, x, activations=False)
    spread = equalize(model, x)
    assert max(spread.values()) > 1e3
    ranges = np.abs(first.numpy()).reshape(6, -1).max(1)
    assert ranges.max() / ranges.min() < 100
    assert any(isinstance(getattr(m, "activation", None), ClippedReLU) for m in model.modules())
    np.testing.assert_allclose(model(x).numpy(), before, rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("interpreted")
def test_equalisation_and_bias_correction_help_a_depthwise_network() -> None:
    x = images(64)
    errors = {}
    for name, settings in {
        "plain": {},
        "bias": {"correct_bias": True},
        "both": {"correct_bias": True, "equalize": True},
    }.items():
        model = convnet()
        wide = np.array([1e-2, 1, 50, 1, 0.1, 7], np.float32).reshape(6, 1, 1, 1)
        model[0].weight.assign(model[0].weight * weft.asarray(wide))
        model[3].weight.assign(model[3].weight / weft.asarray(wide))
        before = model(x).numpy()
        quantize(model, x, bits=6, weight_scope="tensor", activation_bits=8, **settings)
        found = model(x).numpy()
        errors[name] = (np.abs((found - before).mean(0)).max(), ((found - before) ** 2).mean())
    assert errors["bias"][0] < 0.7 * errors["plain"][0], "the mean of the results is kept"
    assert errors["both"][1] < 0.5 * errors["plain"][1]


# --- whole networks -----------------------------------------------------------------------------------------------------------


def test_int8_gives_grids_and_the_network_computes_with_them() -> None:
    model, x = convnet(), images()
    before = model(x).numpy()
    grids = int8(model, x)
    assert list(grids) == ["layers.0", "layers.3", "layers.4", "layers.7"]
    np.testing.assert_allclose(model(x).numpy(), before, atol=0.1 * np.abs(before).max())
    last = grids["layers.7"]
    assert last.integers.dtype == np.int8
    inside = model[:7](x).numpy()
    q = last.input.quantize(inside).astype(np.int64) - int(last.input.zero)
    exact = (q @ last.integers.T.astype(np.int64)) * (last.input.scale * last.weight.scale) + model[7].bias.numpy()
    np.testing.assert_allclose(model(x).numpy(), exact, rtol=1e-5, atol=1e-5)
    with pytest.raises(weft.UserError, match=r"not quantized yet is required, but layers.0 is"):
        int8(model, x)


@pytest.mark.usefixtures("interpreted")
def test_more_bits_are_closer_and_pruned_weights_stay_zero() -> None:
    x, errors = images(), []
    for bits in (3, 6, 12):
        model = convnet()
        prune(model, 0.5)
        pruned = {path: one.value == 0 for path, one in weights_of(model).items()}
        before = model(x).numpy()
        quantize(model, x, bits=bits)
        for path, one in weights_of(model).items():
            assert not one.value[pruned[path]].any()
        errors.append(np.abs(model(x).numpy() - before).max())
    assert errors[0] > 4 * errors[1] > 16 * errors[2]


@pytest.mark.parametrize(
    ("calibration", "message"),
    [
        ([], "calibration data with examples is required, got none"),
        (np.zeros((0, 2, 6, 6), np.float32), "calibration data with examples is required"),
        (np.full((4, 2, 6, 6), 0.5, np.float32), "the input of layers.0 has no other value than 0.5"),
        (np.full((4, 2, 6, 6), np.nan, np.float32), "the input of layers.0 has 288 values that are nan or infinite"),
        (7, "an array or batches of arrays, got int"),
    ],
)
@pytest.mark.usefixtures("interpreted")
def test_calibration_data_that_says_nothing_is_refused(calibration, message: str) -> None:
    with pytest.raises(weft.UserError, match=message):
        int8(convnet(), calibration)


@pytest.mark.usefixtures("interpreted")
def test_bad_settings_are_refused() -> None:
    for settings, message in (
        ({"bits": 1}, "2 to 16 bits are required, got 1"),
        ({"skip": ["layers.1x"]}, "no such layer"),
        ({"weight_scope": "row"}, "weight_scope must be 'channel' or 'tensor', got 'row'"),
        ({"activations": "log"}, "must be 'symmetric' or 'affine', got 'log'"),
        ({"method": "percentile", "percent": 3.0}, "above 50 and up to 100"),
    ):
        with pytest.raises(weft.UserError, match=message):
            quantize(convnet(), images(), **settings)
    with pytest.raises(weft.UserError, match="a network with convolutions or linear layers"):
        int8(nn.Sequential(nn.ReLU()), images())


@pytest.mark.usefixtures("quick_calibration")
def test_quantization_aware_training_resumes_exactly(tmp_path) -> None:
    x, y = images(64), RNG.integers(0, 3, 64)

    def quantized() -> nn.Module:
        model = convnet()
        quantize(model, x, bits=4)
        return model

    def fit(model: nn.Module, folder: str, **settings) -> nn.Module:
        train.fit(model, (x, y), batch=16, rate=1e-2, seed=3, folder=tmp_path / folder, **settings)
        return model

    whole = fit(quantized(), "whole", epochs=2)
    fit(quantized(), "parts", epochs=1)
    resumed = fit(quantized(), "parts", epochs=2, resume=True)
    for name, tensor in whole.named_tensors().items():
        np.testing.assert_array_equal(tensor.numpy(), resumed.named_tensors()[name].numpy())
    moved = [
        np.abs(a.numpy() - b.numpy()).max() for a, b in zip(whole.parameters(), quantized().parameters(), strict=True)
    ]
    assert min(moved) > 0, "all parameters are trained"
    for path, one in quantization(whole).items():
        assert len(np.unique(one.integers)) <= 16, path


# --- weights only -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bits", "group"), [(8, None), (4, 16), (4, 2)])
def test_weights_of_few_bits_are_those_of_numpy(bits: int, group: int | None) -> None:
    layer = nn.Linear(32, 6)
    weight = layer.weight.numpy().copy()
    nbytes = weight_only(layer, bits, group=group)[""]
    size, top = group or 32, 2 ** (bits - 1) - 1
    assert nbytes == 32 * 6 * bits // 8 + 4 * 32 * 6 // size
    rows, found = weight.reshape(-1, size), layer.weight.numpy().reshape(-1, size)
    scales = (np.abs(rows).max(1) / top * SHRINKS[:, None]).astype(np.float32)[..., None]
    tried = np.clip(np.rint(rows / scales), -top - 1, top) * scales
    best = ((tried - rows) ** 2).sum(2).argmin(0)
    np.testing.assert_allclose(found, tried[best, np.arange(len(rows))], rtol=1e-6)
    x = RNG.normal(size=(3, 32)).astype(np.float32)
    expected = x @ found.reshape(6, 32).T + layer.bias.numpy()
    np.testing.assert_allclose(weft.jit(lambda x: layer(x))(x).numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("interpreted")
def test_a_transformer_with_small_weights_is_saved(tmp_path) -> None:
    weft.random.seed(0)
    model = nn.Sequential(nn.Embedding(20, 32), nn.TransformerEncoderLayer(32, 4), nn.Linear(32, 20)).eval()
    x = RNG.integers(0, 20, (2, 6))
    before = model(x).numpy()
    names = weight_only(model, 4, group=8, skip=["layers.2"])
    assert "layers.2" not in names
    assert names
    found = model(x).numpy()
    assert 0 < np.abs(found - before).max() < 0.4 * np.ptp(before)
    weft.save(tmp_path / "small.weft", model, x)
    np.testing.assert_array_equal(weft.load(tmp_path / "small.weft")(x).numpy(), found)
    with pytest.raises(weft.UserError, match="a group that divides the 32 inputs"):
        weight_only(nn.Linear(32, 4), 4, group=5)
    with pytest.raises(weft.UserError, match="4 or 8 bits are required, got 3"):
        weight_only(nn.Linear(32, 4), 3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("settings", [
    {"equalize": True, "correct_bias": True}, {"weight_rounding": "feedback"}, {"weight_rounding": "learned", "rounding_steps": 2},
], ids=["equalize", "feedback", "learned"])  # fmt: skip
def test_networks_of_other_float_dtypes_keep_them(dtype: str, settings: dict[str, Any]) -> None:
    model, x = convnet().astype(dtype), weft.asarray(images(), dtype=dtype)
    before = model(x).numpy().astype(float)
    quantize(model, x, **settings)
    assert {tensor.dtype.name for tensor in model.named_parameters().values()} == {dtype}
    assert np.abs(model(x).numpy().astype(float) - before).max() < 0.1 * np.abs(before).max()
