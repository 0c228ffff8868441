"""Compression: parametrized layers train, stay pruned, save and load; gradients of shared weights are the sums of their members."""

import numpy as np
import pytest

import weft
from weft import nn, optim
from weft.compress import (
    Codebook,
    Mask,
    bake,
    densities,
    gradual,
    is_parametrized,
    kmeans,
    parametrizations,
    parametrize,
    prune,
    share,
    weights_of,
)  # fmt: skip
from weft.compress.prune import lamp_scores

RNG = np.random.default_rng(0)


def network() -> nn.Module:
    weft.random.seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def masked(model: nn.Module, density: float = 0.4) -> dict[str, np.ndarray]:
    kept = {}
    for path, layer in model.named_modules().items():
        if isinstance(layer, nn.Linear):
            keep = RNG.random(layer.weight.shape) < density
            parametrize(layer, "weight", Mask(layer.weight, keep))
            kept[path] = keep
    return kept


@pytest.mark.sweep(share=0.8)
@pytest.mark.parametrize("name", sorted(optim.OPTIMIZERS))
def test_pruned_weights_stay_zero_through_every_optimizer(name: str) -> None:
    model = network()
    kept = masked(model)
    optimizer = optim.find(name)(model, rate=0.05)
    x, y = RNG.normal(size=(16, 6)).astype(np.float32), RNG.integers(0, 3, 16)

    @weft.jit
    def step(x: weft.Tensor, y: weft.Tensor) -> weft.Tensor:
        loss = weft.cross_entropy(model(x), y)
        optimizer.minimize(loss)
        return loss

    for _ in range(3):
        step(x, y)
    for path, layer in model.named_modules().items():
        if path in kept:
            weight = layer.weight.numpy()
            assert not weight[~kept[path]].any()
            assert weight[kept[path]].any()


def test_a_layer_keeps_its_type_its_result_and_its_names() -> None:
    model = network()
    x = RNG.normal(size=(4, 6)).astype(np.float32)
    kept, plain = masked(model, 0.5), network()
    for path, layer in plain.named_modules().items():
        if path in kept:
            layer.weight.assign(weft.asarray(layer.weight.numpy() * kept[path]))
    np.testing.assert_array_equal(model(x).numpy(), plain(x).numpy())
    first = model.named_modules()["layers.0"]
    assert isinstance(first, nn.Linear)
    assert type(first).__name__ == "Linear"
    assert is_parametrized(first, "weight")
    assert "layers.0.weight_parametrization.original" in model.named_parameters()
    assert "layers.0.weight_parametrization.mask" in model.named_state()
    assert [(path, name) for path, _, name, _ in parametrizations(model)] == [
        ("layers.0", "weight"),
        ("layers.2", "weight"),
    ]
    before = model(x).numpy()
    for path in kept:
        bake(model.named_modules()[path], "weight")
    assert type(first) is nn.Linear
    assert set(model.named_parameters()) == set(plain.named_parameters())
    np.testing.assert_array_equal(model(x).numpy(), before)


def test_the_gradient_of_a_centroid_is_the_sum_over_its_weights() -> None:
    layer = nn.Linear(5, 4, bias=False)
    x = RNG.normal(size=(7, 5)).astype(np.float32)
    indices, centroids = RNG.integers(0, 4, (4, 5)), np.array([0.5, -1.0, 2.0], np.float32)
    layer.weight.assign(weft.asarray(np.concatenate([[0], centroids])[indices].astype(np.float32)))

    def loss() -> weft.Tensor:
        return (layer(x) ** 2).sum()

    (dense,) = weft.gradients(loss(), [layer.weight])
    book = Codebook(centroids, indices)
    parametrize(layer, "weight", book)
    (shared,) = weft.gradients(loss(), [book.centroids])
    sums = [dense.numpy()[indices == i + 1].sum() for i in range(3)]
    np.testing.assert_allclose(shared.numpy(), sums, rtol=1e-5)
    compiled = weft.jit(lambda: weft.gradients(loss(), [book.centroids])[0])
    np.testing.assert_allclose(compiled().numpy(), sums, rtol=1e-5)


def test_a_pruned_network_is_saved_and_loaded_as_a_program(tmp_path) -> None:
    model = network().eval()
    masked(model)
    x = RNG.normal(size=(2, 6)).astype(np.float32)
    weft.save(tmp_path / "net.weft", model, x)
    np.testing.assert_array_equal(weft.load(tmp_path / "net.weft").eval()(x).numpy(), model(x).numpy())
    other = network()
    masked(other)
    other.load({name: tensor.numpy() for name, tensor in model.named_tensors().items()})
    np.testing.assert_array_equal(other(x).numpy(), model(x).numpy())


def test_what_cannot_be_parametrized_is_refused() -> None:
    layer = nn.Linear(3, 2)
    with pytest.raises(weft.UserError, match="a tensor of Linear is required, got activation"):
        parametrize(layer, "activation", Mask(layer.weight, np.ones((2, 3))))
    with pytest.raises(weft.UserError, match=r"shape \(2, 3\) is required for weight, got \(3,\)"):
        parametrize(layer, "weight", Mask(np.ones(3, np.float32), np.ones(3)))
    parametrize(layer, "weight", Mask(layer.weight, np.ones((2, 3))))
    with pytest.raises(weft.UserError, match="bake it first"):
        parametrize(layer, "weight", Mask(layer.weight, np.ones((2, 3))))
    with pytest.raises(weft.UserError, match="parametrized parameter is required, got bias"):
        bake(layer, "bias")
    with pytest.raises(weft.UserError, match="indices from 0 to 2"):
        Codebook([1.0, 2.0], [3])


# --- pruning ------------------------------------------------------------------------------------------------------------------


def test_the_smallest_weights_of_every_layer_are_pruned() -> None:
    model = network()
    before = {path: one.value for path, one in weights_of(model).items()}
    assert prune(model, {"layers.0": 0.25, "layers.2.weight": 0.5}) == {"layers.0.weight": 0.25, "layers.2.weight": 0.5}
    for path, one in weights_of(model).items():
        kept = one.value != 0
        assert np.abs(before[path][kept]).min() >= np.abs(before[path][~kept]).max()
        np.testing.assert_array_equal(one.value[kept], before[path][kept])
    assert prune(model, 0.3)["layers.0.weight"] == 0.25, "nothing comes back"
    assert densities(model)["layers.2.weight"] == pytest.approx(7 / 24)


def test_pruning_the_whole_network_compares_all_weights() -> None:
    model = network()
    values = np.concatenate([one.value.ravel() for one in weights_of(model).values()])
    prune(model, 0.4, scope="global")
    pruned = np.concatenate([one.value.ravel() for one in weights_of(model).values()])
    kept = pruned != 0
    assert kept.sum() == round(0.4 * values.size)
    assert np.abs(values[kept]).min() >= np.abs(values[~kept]).max()


def test_gradual_pruning_ends_at_the_density() -> None:
    steps = gradual(1.0, 0.05, 6)
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] == pytest.approx(0.05)
    model = network()
    for density in steps:
        found = prune(model, density)
    assert all(value == pytest.approx(0.05, abs=0.03) for value in found.values())


def test_bad_densities_are_refused() -> None:
    for given, message in ((0.0, "above 0"), (1.5, "up to 1"), ({"layer.0": 0.5}, "no weight of this network")):
        with pytest.raises(weft.UserError, match=message):
            prune(network(), given)
    with pytest.raises(weft.UserError, match="'layer' or 'global'"):
        prune(network(), 0.5, scope="all")
    with pytest.raises(weft.UserError, match="would have none"):
        model = network()
        model.named_modules()["layers.2"].weight.assign(weft.zeros((3, 8)))
        prune(model, 0.1, scope="global")
    with pytest.raises(weft.UserError, match="a network with weights"):
        prune(nn.Sequential(nn.ReLU()), 0.5)


# --- sharing ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["linear", "density", "random"])
def test_kmeans_reaches_a_fixed_point(start: str) -> None:
    values = RNG.normal(size=3000).astype(np.float32)
    centroids, members = kmeans(values, 15, start)
    assert centroids.dtype == np.float32
    assert (np.diff(centroids) > 0).all()
    nearest = np.abs(values[:, None].astype(float) - centroids[None]).argmin(axis=1)
    assert (nearest == members).mean() > 0.999, "every number belongs to the nearest centroid"
    for i, centroid in enumerate(centroids):
        assert values[members == i].mean(dtype=float) == pytest.approx(centroid, rel=1e-4, abs=1e-6)


def test_few_different_numbers_get_few_centroids() -> None:
    centroids, members = kmeans(np.array([2.0, 5.0, 2.0]), 7)
    assert centroids.tolist() == [2.0, 5.0]
    assert members.tolist() == [0, 1, 0]
    with pytest.raises(weft.UserError, match="finite numbers"):
        kmeans(np.array([np.nan]), 2)


def test_shared_weights_have_few_values_and_pruned_ones_stay_zero() -> None:
    model = network()
    prune(model, 0.5)
    masks = {path: one.value != 0 for path, one in weights_of(model).items()}
    before = {path: one.value for path, one in weights_of(model).items()}
    assert share(model, {"layers.0": 3, "layers.2": 2}) == {"layers.0.weight": 7, "layers.2.weight": 3}
    for path, one in weights_of(model).items():
        assert ((one.value != 0) == masks[path]).all()
        assert len(np.unique(one.value[masks[path]])) <= 7
        assert np.abs(one.value - before[path]).max() < np.ptp(before[path]) / 2
    with pytest.raises(weft.UserError, match="Prune before it"):
        prune(model, 0.1)
    with pytest.raises(weft.UserError, match="1 to 8 bits"):
        share(network(), 9)


def test_lamp_scores_follow_their_definition_and_leave_small_layers_dense():
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((5, 7))
    weight[0, 0] = 0.0
    squares = weight.ravel() ** 2
    expected = [s / squares[squares >= s].sum() for s in squares]
    np.testing.assert_allclose(lamp_scores(weight).ravel(), expected, rtol=1e-12)
    assert not lamp_scores(np.zeros((2, 3))).any()

    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    model.layers[0].weight.assign(model.layers[0].weight * 100.0)  # magnitudes alone would empty the other layer
    found = prune(model, 0.05, scope="global", score="lamp")
    assert sum(d * n for d, n in zip(found.values(), (64 * 64, 64 * 4), strict=True)) == pytest.approx(
        0.05 * (64 * 68), abs=1
    )
    assert found["layers.2.weight"] > found["layers.0.weight"]
    again = prune(model, 0.02, scope="global", score="lamp")
    assert all(again[path] <= found[path] for path in found)


def test_unknown_scores_are_refused():
    with pytest.raises(weft.UserError, match="score must be 'magnitude' or 'lamp', got 'size'"):
        prune(nn.Linear(4, 4), 0.5, score="size")
