"""Weights that layers share are pruned, shared, trained, quantized and packed as the one weight that they are."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft import compress, nn, optim
from weft.compress.layers import layer_value
from weft.compress.pack import baked
from weft.errors import UserError

X = np.random.default_rng(0).normal(size=(16, 12)).astype(np.float32)


class Tied(nn.Module):
    """An autoencoder whose decoder is the encoder's weight."""

    def __init__(self) -> None:
        self.encoder, self.decoder = nn.Linear(12, 12), nn.Linear(12, 12)
        self.decoder.weight = self.encoder.weight

    def forward(self, x: Any) -> Any:
        return self.decoder(weft.relu(self.encoder(x)))


def tied() -> Tied:
    weft.random.seed(0)
    return Tied()


def steps(model: nn.Module, count: int = 3) -> None:
    optimizer = optim.find("sgd")(model, rate=0.1)

    @weft.jit
    def step(x: Any) -> Any:
        loss = ((model(x) - x) ** 2).mean()
        optimizer.minimize(loss)
        return loss

    for _ in range(count):
        step(weft.asarray(X))


def is_tied(model: Any) -> bool:
    return bool(np.array_equal(model.encoder.weight.numpy(), model.decoder.weight.numpy()))


def test_a_tied_weight_is_pruned_once_and_trained_as_one() -> None:
    model = tied()
    assert compress.prune(model, 0.25) == {"encoder.weight": 0.25}
    keep = model.encoder.weight.numpy() != 0
    before = model.encoder.weight.numpy().copy()
    model.train()
    steps(model)
    assert is_tied(model)
    assert np.array_equal(model.decoder.weight.numpy() != 0, keep)
    assert not np.array_equal(before, model.decoder.weight.numpy())
    assert compress.prune(model, 0.1)["encoder.weight"] == pytest.approx(0.1, abs=0.01)
    assert is_tied(model)


@pytest.mark.parametrize("schedule", ["prune_gradually", "dynamic_surgery"])
def test_scheduled_masks_of_a_tied_weight(schedule: str) -> None:
    model = tied()
    getattr(compress, schedule)(model, 0.25, steps=4)
    model.train()
    steps(model)
    compress.fix_masks(model)
    assert compress.densities(model) == {"encoder.weight": 0.25}
    assert is_tied(model)


def test_a_shared_and_a_quantized_weight_stay_tied() -> None:
    model = tied()
    compress.prune(model, 0.5)
    assert list(compress.share(model, 3)) == ["encoder.weight"]
    assert is_tied(model)
    assert len(np.unique(model.decoder.weight.numpy())) <= 8
    assert compress.densities(model) == {"encoder.weight": 0.5}


def test_what_is_packed_holds_it_once(tmp_path: Path) -> None:
    model = tied().eval()
    compress.prune(model, 0.5)
    compress.share(model, 3)
    plain = baked(model)
    assert isinstance(plain, Tied)
    assert plain.encoder.weight is plain.decoder.weight
    compress.pack(model, tmp_path / "tied.weft", weft.asarray(X))
    np.testing.assert_array_equal(weft.load(tmp_path / "tied.weft").eval()(X).numpy(), model(weft.asarray(X)).numpy())
    assert sum(name.endswith("weight") for name in weft.load(tmp_path / "tied.weft").named_tensors()) == 1


def test_weights_that_are_not_finite_are_refused() -> None:
    model = tied()
    model.encoder.weight.assign(np.where(np.eye(12), np.nan, 1.0).astype(np.float32))
    changes: tuple[Callable[[], Any], ...] = (
        lambda: compress.prune(model, 0.5),
        lambda: compress.prune_n_of_m(model),
        lambda: compress.prune_blocks(model, 0.5),
        lambda: compress.prune_channels(model, X, 0.5),
        lambda: compress.prune_gradually(model, 0.5, steps=1),
        lambda: compress.share(model, 4),
        lambda: compress.weight_only(model),
        lambda: compress.float8(model),
    )
    for change in changes:
        with pytest.raises(UserError, match="finite weights are required, encoder.weight has values that are nan"):
            change()
    assert type(model.encoder.weight) is weft.Tensor, "nothing was changed"
    alone = nn.Sequential(nn.Linear(12, 12))
    alone[0].weight.assign(model.encoder.weight)
    with pytest.raises(UserError, match="finite weights are required, layers.0.weight has values that are nan"):
        compress.low_rank(alone, rank=2)


def test_the_sensitivity_of_a_tied_weight_is_that_of_pruning_it_in_all_layers() -> None:
    model = tied()
    weight = model.encoder.weight.numpy()
    pruned = np.where(np.abs(weight) >= np.sort(np.abs(weight).ravel())[-36], weight, 0)
    table = compress.sensitivity(model, [(X, X)], (0.25,), loss="mse")
    result = np.maximum(X @ pruned.T + model.encoder.bias.numpy(), 0) @ pruned.T + model.decoder.bias.numpy()
    assert table.rows["encoder.weight"][0.25]["loss"] == pytest.approx(((result - X) ** 2).mean(), rel=1e-5)
    assert model.decoder.weight is model.encoder.weight


class TiedWithNorm(nn.Module):
    """A weight before a batch norm, and once more after it."""

    def __init__(self, shared: str) -> None:
        self.first, self.second = nn.Linear(12, 12), nn.Linear(12, 12)
        self.norm, self.relu = nn.BatchNorm(12), nn.ReLU()
        setattr(self.second, shared, getattr(self.first, shared))

    def forward(self, x: Any) -> Any:
        return self.second(self.relu(self.norm(self.first(x))))


@pytest.mark.parametrize("shared", ["weight", "bias"])
@pytest.mark.parametrize("change", [compress.fold, compress.equalize], ids=["fold", "equalize"])
def test_a_shared_parameter_is_not_scaled_for_one_of_its_layers(change: Callable[..., Any], shared: str) -> None:
    weft.random.seed(0)
    model = TiedWithNorm(shared)
    model.first.bias.assign(weft.asarray(X[0]))
    model.norm.scale.assign(weft.asarray(np.linspace(0.2, 3.0, 12).astype(np.float32)))
    if change is compress.equalize:
        model.norm = nn.Identity()
    before = model.eval()(weft.asarray(X)).numpy().copy()
    change(model, X)
    np.testing.assert_allclose(model(weft.asarray(X)).numpy(), before, rtol=1e-4, atol=1e-5)


class Language(nn.Module):
    """An embedding whose weight is that of the output layer, too."""

    def __init__(self) -> None:
        self.embedding, self.output = nn.Embedding(20, 12), nn.Linear(12, 20, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, x: Any) -> Any:
        return self.output(weft.relu(self.embedding(x)))


def test_quantization_aware_training_keeps_an_embedding_and_its_output_layer_tied() -> None:
    weft.random.seed(0)
    model, tokens = Language(), np.arange(40).reshape(4, 10) % 20
    compress.int8(model, tokens)
    assert np.array_equal(model.embedding.weight.numpy(), model.output.weight.numpy()), "both read the rounded weight"
    before = model.output.weight.numpy().copy()
    optimizer = optim.find("sgd")(model, rate=1.0)

    @weft.jit
    def step(x: Any) -> None:
        optimizer.minimize(nn.losses.cross_entropy(model(x), x))

    for _ in range(3):
        step(weft.asarray(tokens))
    assert not np.array_equal(before, model.output.weight.numpy())
    assert np.array_equal(model.embedding.weight.numpy(), model.output.weight.numpy())
    assert len(model.named_parameters()) == 1
    fast = compress.to_int8(model.eval())
    agreed = fast(weft.asarray(tokens)).numpy().argmax(-1) == model(weft.asarray(tokens)).numpy().argmax(-1)
    assert agreed.all()


@pytest.mark.parametrize("method", [compress.int8, compress.fixed_point])
def test_quantized_layers_with_one_weight_stay_tied(method: Callable[..., Any]) -> None:
    model = tied()
    method(model, X)
    model.train()
    steps(model)
    assert is_tied(model)


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_of_few_bits_stay_tied(bits: int) -> None:
    model, language = tied(), Language()
    assert list(compress.weight_only(model, bits)) == ["encoder"]
    assert list(compress.weight_only(language, bits)) == ["output"]
    assert is_tied(model)
    assert np.array_equal(language.embedding.weight.numpy(), language.output.weight.numpy())
    assert layer_value(model.encoder, "weight") is layer_value(model.decoder, "weight")


def test_a_weight_that_layers_share_is_not_factorized() -> None:
    """The other layer would keep the whole weight, and the network would be larger than before."""
    model = tied()
    with pytest.raises(
        UserError, match=r"\[low_rank\] a network with .*, whose weights no other layer shares, is required"
    ):
        compress.low_rank(model, rank=2)
    wide = nn.Sequential(model, nn.Linear(12, 12))
    assert list(compress.low_rank(wide, rank=2)) == ["layers.1"]
    assert is_tied(model)
