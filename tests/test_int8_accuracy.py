"""What makes int8 networks exact: equalised residual streams, layers that stay in float, and learned rounding."""

import copy
from typing import Any

import numpy as np
import pytest

import weft
from weft import compress, nn
from weft.compress import error_feedback
from weft.compress.mixed_precision import LayerNoise, float_layers, noise_by_layer
from weft.compress.observers import run_with
from weft.compress.residual_streams import equalize_streams, streams
from weft.errors import UserError

X = np.random.default_rng(0).normal(size=(24, 3, 8, 8)).astype(np.float32)


def inverted(channels: int) -> nn.Module:
    """An inverted residual block, as in MobileNetV2."""
    return nn.Residual(
        nn.Sequential(
            nn.Conv2d(channels, 12, 1, activation="relu6"), nn.Conv2d(12, 12, 3, padding=1, groups=12, activation="relu6"), nn.Conv2d(12, channels, 1)
        )
    )  # fmt: skip


def network() -> nn.Sequential:
    """Two residual blocks on one stream, with channels of very different sizes."""
    weft.seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), inverted(6), inverted(6), nn.Conv2d(6, 16, 1, activation="relu"), nn.GlobalAvgPool(), nn.Linear(16, 5)
    ).eval()  # fmt: skip
    model(X)
    sizes = np.geomspace(0.05, 5.0, 6).astype(np.float32)
    for layer in (model.layers[0], model.layers[1].body.layers[2], model.layers[2].body.layers[2]):
        layer.weight.assign(weft.asarray(layer.weight.numpy() * sizes[:, None, None, None]))
    return model


def error(model: nn.Module, exact: np.ndarray) -> float:
    return float(((model(X).numpy() - exact) ** 2).sum() / ((exact - exact.mean(-1, keepdims=True)) ** 2).sum())


def test_a_residual_stream_is_equalised_and_the_network_stays_the_same() -> None:
    model = network()
    (stream,) = streams(model, X)
    assert [len(stream.writers), len(stream.readers)] == [3, 3]
    before = model(X).numpy()
    spread = np.ptp(np.log(np.abs(model.layers[0](X).numpy()).max((0, 2, 3))))
    assert equalize_streams(model, [X]) == 1
    np.testing.assert_allclose(model(X).numpy(), before, rtol=1e-4, atol=1e-5)
    assert np.ptp(np.log(np.abs(model.layers[0](X).numpy()).max((0, 2, 3)))) < 0.7 * spread


class Doubled(nn.Module):
    """A stream that an activation reads, too."""

    def __init__(self) -> None:
        self.first, self.second, self.last = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Any) -> Any:
        y = self.first(x)
        return self.last(y + self.second(y)) + weft.tanh(y).sum()


def test_streams_that_other_ops_read_are_left_alone() -> None:
    assert streams(Doubled(), np.ones((2, 4), np.float32)) == []


def test_layers_with_the_most_noise_stay_in_float() -> None:
    model = network()
    exact = model(X).numpy()
    plain = copy.deepcopy(model)
    compress.quantize(plain, X, bits=5)
    rows = noise_by_layer(plain, X)
    assert [row.noise for row in rows] == sorted((row.noise for row in rows), reverse=True)
    assert {row.path for row in rows if not row.cost} == {"layers.1", "layers.2"}, "shortcuts only add"
    depthwise = next(row for row in rows if row.path == "layers.1.body.layers.1")
    assert (depthwise.macs, depthwise.elements) == (12 * 8 * 8 * 9, 12 * 8 * 8 + 12 * 9)
    chosen = float_layers(rows, 0.3)
    mixed = copy.deepcopy(model)
    compress.quantize(mixed, X, bits=5, float_share=0.3)
    skipped = [path for path in chosen if path not in ("layers.1", "layers.2")]
    assert skipped
    assert not set(skipped) & set(compress.quantization(mixed))
    assert error(mixed, exact) < 0.7 * error(plain, exact)
    fast = compress.to_int8(mixed)
    assert sorted(fast.float_layers) == sorted(skipped)
    np.testing.assert_allclose(fast(X).numpy(), mixed(X).numpy(), atol=0.05 * np.abs(exact).max())
    with pytest.raises(UserError, match="a float_share of 0 to 1 is required, got 2"):
        compress.int8(network(), X, float_share=2.0)


def test_layers_stay_in_float_by_what_remains_of_the_noise() -> None:
    rows = [
        LayerNoise("early", 8.0, 10),
        LayerNoise("a", 1.0, 30),
        LayerNoise("b", 0.02, 60),
        LayerNoise("block", 0.01, 0),
    ]
    assert float_layers(rows, 0.0) == [], "a thousandth of the noise is not worth a conversion"
    assert float_layers(rows, 0.1) == ["early", "block"]
    assert float_layers(rows, 0.5) == ["early", "block", "a"]
    assert float_layers(rows, 1.0) == ["early", "block", "a", "b"], "little of all noise, but all that is left"


def test_layers_stay_in_float_by_their_noise_after_error_feedback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Feedback makes up for errors of layers with correlated inputs, so others make the most noise."""
    calibrations: list[None] = []
    monkeypatch.setattr(error_feedback, "run_with", lambda *given: calibrations.append(run_with(*given)))
    settings: dict[str, Any] = {"bits": 4, "activation_bits": 8, "correct_bias": True, "weight_rounding": "feedback"}
    trial, mixed = network(), network()
    layers = set(compress.quantize(trial, X, **settings))
    chosen = set(float_layers(noise_by_layer(trial, X), 0.3))
    assert layers & chosen
    calibrations.clear()
    assert layers - set(compress.quantize(mixed, X, float_share=0.3, **settings)) == layers & chosen
    assert len(calibrations) == 1, "what layers read in float is the same for the trial and the network"


@pytest.mark.parametrize("pruned", [False, True], ids=["plain", "pruned"])
def test_learned_rounding_is_nearer_to_the_network_in_float(pruned: bool) -> None:
    model = network()
    if pruned:
        compress.prune(model, 0.6)
    exact = model(X).numpy()
    nearest, learned = copy.deepcopy(model), copy.deepcopy(model)
    compress.quantize(nearest, X, bits=4, activation_bits=8)
    grids = compress.quantize(learned, X, bits=4, activation_bits=8, weight_rounding="learned", rounding_steps=60)
    assert error(learned, exact) < 0.6 * error(nearest, exact)
    assert list(learned.named_parameters()) == list(nearest.named_parameters()), "nothing of the training stays behind"
    assert grids.keys() == compress.quantization(nearest).keys()
    if pruned:
        assert compress.densities(learned) == compress.densities(nearest)


@pytest.mark.parametrize(("limit", "ratio"), [(error_feedback.FACTORIZATION_COST, 0.5), (0.0, 0.7)])
def test_error_feedback_of_pruned_weights(limit: float, ratio: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pruned weights stay zero, so others must not count on them: with one factorization for each mask, or one for all."""
    monkeypatch.setattr(error_feedback, "FACTORIZATION_COST", limit)
    weft.random.seed(1)
    rng, errors = np.random.default_rng(5), {}
    x = (rng.normal(size=(512, 16)) @ rng.normal(size=(16, 64)) + 0.1 * rng.normal(size=(512, 64))).astype(np.float32)
    model = nn.Sequential(nn.Linear(64, 32))
    compress.prune(model, 0.5)
    zeros, expected = model[0].weight.numpy() == 0, model(x).numpy()
    for rounding in ("nearest", "feedback"):
        one = copy.deepcopy(model)
        compress.quantize(one, x, bits=4, activation_bits=16, weight_rounding=rounding)  # type: ignore[arg-type]
        assert (one[0].weight.numpy()[zeros] == 0).all()
        errors[rounding] = np.square(one(x).numpy() - expected).mean()
    assert errors["feedback"] < ratio * errors["nearest"]
