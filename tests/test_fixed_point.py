"""Fixed point: radix points by statistics; the network in integers against NumPy and against its emulation in float, to the bit."""

import numpy as np
import pytest

import weft
from weft import nn, train
from weft.compress import fixed_point, formats, prune, quantization_report, to_integers, weights_of
from weft.compress.fixed_point import radix_point
from weft.compress.grids import fixed_point_grid
from weft.compress.integers import IntegerProduct
from weft.compress.ranges import Values

RNG = np.random.default_rng(0)


def network(activation: str | None = "relu") -> nn.Sequential:
    weft.random.seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 5, 3, padding=1, activation=activation), nn.MaxPool2d(2), nn.Conv2d(5, 4, 2, stride=2, activation="relu6"),
        nn.Flatten(), nn.Dropout(0.3), nn.Linear(16, 3),
    )  # fmt: skip
    for layer in model.modules():
        if isinstance(getattr(layer, "bias", None), weft.Tensor):
            layer.bias.assign(weft.asarray(RNG.normal(size=layer.bias.shape).astype(np.float32) * 0.2))
    return model.eval()


def residual() -> nn.Sequential:
    weft.random.seed(0)
    body = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1))
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Residual(body, activation="relu"),
        nn.Residual(nn.Conv2d(4, 6, 1), nn.Conv2d(4, 6, 1)), nn.DepthwiseConv2d(6, 3, padding=1), nn.AvgPool2d(2), nn.Tanh(),
        nn.GlobalAvgPool(), nn.Linear(6, 3),
    ).eval()  # fmt: skip


def images(count: int = 24) -> np.ndarray:
    return RNG.normal(size=(count, 2, 8, 8)).astype(np.float32)


# --- radix points -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("values", "bits", "text"), [
    ([-0.9, 0.5], 8, "Q0.7"), ([-1.0, 0.5], 8, "Q1.6"), ([0.0, 3.9], 8, "UQ2.6"), ([0.0, 0.01], 8, "UQ-6.14"), ([-300.0, 5.0], 4, "Q9.-6"),
])  # fmt: skip
def test_the_radix_point_is_the_finest_that_holds_all_values(values: list[float], bits: int, text: str) -> None:
    grid = radix_point(Values.exact(np.array(values), None), bits, "minmax")
    assert str(grid) == text
    assert grid.low * float(grid.scale) <= min(values)
    assert max(values) <= grid.high * float(grid.scale) < 2 * max(map(abs, values)) + float(grid.scale)


def test_an_outlier_saturates_if_that_costs_less() -> None:
    values = Values.exact(np.append(RNG.normal(size=5000), 9.0), None)
    assert radix_point(values, 6, "mse").fraction > radix_point(values, 6, "minmax").fraction


# --- integers -----------------------------------------------------------------------------------------------------------------


def shifted(total: np.ndarray, shift: int, grid) -> np.ndarray:
    """floor(total / 2^shift + 1/2), saturated, in Python's integers."""
    found = [(2 * v + 2**shift) // 2 ** (shift + 1) if shift >= 0 else v * 2**-shift for v in total.ravel().tolist()]
    return np.clip(found, grid.low, grid.high).reshape(total.shape)


def plain_conv(x: np.ndarray, w: np.ndarray, stride: int, padding: int) -> np.ndarray:
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], (2, 3))[:, :, ::stride, ::stride]
    return np.einsum("nchwij,ocij->nohw", windows, w)


@pytest.mark.parametrize("bits", [4, 12])
@pytest.mark.usefixtures("interpreted")
def test_the_integer_network_is_that_of_numpy(bits: int) -> None:
    model, x = network(), images()
    grids = fixed_point(model, x, bits)

    def parameter(path: str) -> np.ndarray:
        layer, name = path.rsplit(".", 1)
        value = getattr(model.named_modules()[layer], name).numpy().astype(float)
        return np.rint(value / float(grids[path].scale)).astype(np.int64)

    def layer(path: str, total: np.ndarray, before, cap: float | None) -> np.ndarray:
        products = before.fraction + grids[f"{path}.weight"].fraction
        fine = max(products, grids[f"{path}.bias"].fraction)
        bias = parameter(f"{path}.bias") << (fine - grids[f"{path}.bias"].fraction)
        total = (total << (fine - products)) + bias.reshape((-1, *[1] * (total.ndim - 2)))
        if cap is not None:
            total = np.clip(total, 0, None if cap == np.inf else int(cap * 2**fine))
        return shifted(total, fine - grids[f"{path}.result"].fraction, grids[f"{path}.result"])

    start = grids["input"]
    q = np.clip(np.floor(x.astype(float) * 2**start.fraction + 0.5), start.low, start.high).astype(np.int64)
    h = layer("layers.0", plain_conv(q, parameter("layers.0.weight"), 1, 1), start, np.inf)
    h = h.reshape(*h.shape[:2], 4, 2, 4, 2).max((3, 5))
    h = layer("layers.2", plain_conv(h, parameter("layers.2.weight"), 2, 0), grids["layers.0.result"], 6.0)
    h = h.reshape(len(h), -1) @ parameter("layers.5.weight").T
    h = layer("layers.5", h, grids["layers.2.result"], None)
    integers = to_integers(model)
    np.testing.assert_array_equal(integers.integers(x).numpy(), h)
    np.testing.assert_array_equal(integers(x).numpy(), h * float(grids["layers.5.result"].scale))
    assert integers.integers(x).dtype.name == ("int8" if bits <= 8 else "int16")
    assert {p.weight.dtype.name for p in integers.modules() if isinstance(p, IntegerProduct)} == {
        "int8" if bits <= 8 else "int16"
    }


@pytest.mark.parametrize(("make", "bits"), [(network, 8), (lambda: network("tanh"), 5), (residual, 8)], ids=["plain", "table", "residual"])  # fmt: skip
@pytest.mark.usefixtures("quick_calibration")
def test_emulation_and_integers_agree_to_the_bit(make, bits: int) -> None:
    model, x = make(), images()
    before = model(x).numpy()
    fixed_point(model, x, bits)
    integers = to_integers(model)
    assert all(p.emulation_is_exact for p in integers.modules() if isinstance(p, IntegerProduct))
    fresh = images(100)
    emulated, exact = weft.jit(lambda x: model(x))(fresh).numpy(), weft.jit(lambda x: integers(x))(fresh).numpy()
    np.testing.assert_array_equal(emulated, exact)
    assert len(np.unique(emulated)) > 4
    assert bits < 8 or np.abs(model(x).numpy() - before).max() < 0.1 * np.ptp(before)


@pytest.mark.usefixtures("interpreted")
def test_accumulators_are_as_wide_as_the_largest_sum_needs() -> None:
    for bits, dtype in ((8, "int32"), (16, "int64")):
        model, x = network(), images()
        fixed_point(model, x, bits)
        integers = to_integers(model)
        assert {p.accumulator for p in integers.modules() if isinstance(p, IntegerProduct)} == {dtype}
        np.testing.assert_allclose(integers(x).numpy(), model(x).numpy(), atol=2 * float(integers.format.scale))


@pytest.mark.usefixtures("quick_calibration")
def test_fine_tuned_in_fixed_point_and_saved_as_integers(tmp_path) -> None:
    x = images(96)
    y = (x.mean((1, 2, 3)) > 0).astype(np.int64)
    model = network()
    prune(model, 0.7)
    fixed_point(model, x, 6)
    before = {path: one.value for path, one in weights_of(model).items()}
    result = train.fit(model, (x, y), batch=32, epochs=4, rate=1e-2)
    assert result.history[-1]["train_loss"] < result.history[0]["train_loss"]
    model.eval()
    for path, one in weights_of(model).items():
        assert (one.value != before[path]).any()
        steps = one.value / float(formats(model)[path].scale)
        np.testing.assert_array_equal(steps, np.rint(steps))
        assert (one.value == 0).mean() >= 0.29, "pruned weights stay zero"
    integers = to_integers(model)
    np.testing.assert_array_equal(integers(x).numpy(), model(x).numpy())
    weft.save(tmp_path / "net.weft", integers, x)
    np.testing.assert_array_equal(weft.load(tmp_path / "net.weft")(x).numpy(), model(x).numpy())


# --- reports and errors -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("interpreted")
def test_the_report_counts_overflows_and_measures_noise() -> None:
    model, x = network(), images()
    before = model(x).numpy()
    grids = fixed_point(model, x, 8, method="minmax")
    truth = before.argmax(1)
    seen = quantization_report(model, [(x[:12], truth[:12]), (x[12:], truth[12:])])
    by_path = {one.path: one for one in seen.tensors}
    assert list(by_path) == list(grids)
    assert not any(one.overflows for one in seen.tensors)
    first = by_path["input"]
    assert (first.low, first.high, first.count) == (x.min(), x.max(), x.size)
    rounded = np.floor(x * 2.0**first.grid.fraction + 0.5) / 2.0**first.grid.fraction
    assert first.ratio == pytest.approx(
        10 * np.log10((x.astype(float) ** 2).sum() / ((x - rounded) ** 2).sum()), abs=0.01
    )
    assert seen.float_accuracy == 1.0
    assert seen.accuracy == seen.agreement == (model(x).numpy().argmax(1) == truth).mean()
    noise = ((model(x).numpy() - before) ** 2).sum()
    assert seen.ratio == pytest.approx(10 * np.log10((before**2).sum() / noise), abs=0.01)
    assert by_path["layers.0.bias"].count == 5
    assert set(weights_of(model)) == {"layers.0.weight", "layers.2.weight", "layers.5.weight"}, (
        "rounded biases are no weights"
    )
    assert "Q" in str(seen)
    assert "points)" in str(seen)
    louder = {one.path: one for one in quantization_report(model, 4 * x).tensors}["input"]
    top = louder.grid.high * float(louder.grid.scale), louder.grid.low * float(louder.grid.scale)
    assert louder.overflows == ((4 * x > top[0]) | (4 * x < top[1])).sum() > 0
    assert by_path["layers.0.weight"].count == model[0].weight.size


@pytest.mark.usefixtures("interpreted")
def test_what_cannot_be_done_is_refused() -> None:
    x = images()
    for bits, message in ((3, "4 to 16 bits are required, got 3"), ({"layers.9": 8}, "bits are given for 'layers.9'")):
        with pytest.raises(weft.UserError, match=message):
            fixed_point(network(), x, bits)
    with pytest.raises(weft.UserError, match="method must be 'mse' or 'minmax'"):
        fixed_point(network(), x, method="entropy")
    with pytest.raises(weft.UserError, match="calibration data with variation is required: the input of the network"):
        fixed_point(network(), np.ones((2, 2, 8, 8), np.float32))
    with pytest.raises(weft.UserError, match="inputs of floats are required, got "):
        fixed_point(nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 2)), np.arange(5))
    with pytest.raises(weft.UserError, match="a network made by fixed_point is required"):
        to_integers(network())
    with pytest.raises(weft.UserError, match="a quantized network is required"):
        quantization_report(network(), x)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.GELU(), nn.GlobalAvgPool())
    fixed_point(model, x)
    with pytest.raises(weft.UserError, match=r"layers.1 is a GELU, which has no form in integers"):
        to_integers(model)
    with pytest.raises(weft.UserError, match="not quantized yet"):
        fixed_point(model, x)
    assert str(fixed_point_grid(16, True, 12)) == "Q3.12"


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.usefixtures("quick_calibration")
def test_a_six_beyond_the_accumulator_limits_nothing(inside: bool) -> None:
    """With small weights, 6 in steps of the sums exceeds int32."""
    weft.random.seed(0)
    activation = [] if inside else [nn.ReLU6()]
    model = nn.Sequential(nn.Linear(40, 8, activation="relu6" if inside else None), *activation, nn.Linear(8, 3)).eval()
    model[0].weight.assign(model[0].weight * 1e-5)
    x = RNG.normal(size=(64, 40)).astype(np.float32)
    fixed_point(model, x)
    integers = to_integers(model)
    assert {p.accumulator for p in integers.modules() if isinstance(p, IntegerProduct)} == {"int32"}
    np.testing.assert_array_equal(integers(x).numpy(), model(x).numpy())


@pytest.mark.usefixtures("quick_calibration")
def test_sums_that_no_integer_holds_are_an_error() -> None:
    weft.random.seed(0)
    model = nn.Sequential(nn.Linear(40, 8)).eval()
    x = (1e15 * RNG.normal(size=(64, 40))).astype(np.float32)
    fixed_point(model, x)
    with pytest.raises(weft.UserError, match=r"\[to_integers\] sums below 2\^63 are required, got up to 2\^[67]"):
        to_integers(model)
