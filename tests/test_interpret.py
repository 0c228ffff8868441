"""Explanations of networks against computations of their own: NumPy in float64, differences, formulas."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft import interpret, nn
from weft.errors import UserError
from weft.interpret.pictures import atlas, resized
from weft.interpret.projection import affinities
from weft.interpret.statistics import effective_rank, near_copies
from weft.interpret.windows import covering_mean, starts
from weft.nn.module import Module

RANDOM = np.random.default_rng(0)
SHAPE = (1, 9, 11)  # odd and not square


def network(head: Module | None = None) -> nn.Sequential:
    """Convolution, batch norm, ReLU, pooling, convolution, ReLU, linear; its running statistics are not trivial."""
    weft.random.seed(1)
    made = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 5, 2), nn.ReLU(), nn.Flatten(),
        head or nn.Linear(None, 3),
    )  # fmt: skip
    made(np.random.default_rng(2).normal(0.3, 1.0, (16, *SHAPE)).astype(np.float32))  # batch norm learns its statistics
    return made.eval()


def images(count: int) -> np.ndarray:
    return RANDOM.normal(0.3, 1.0, (count, *SHAPE)).astype(np.float32)


@pytest.fixture(scope="module")
def model() -> nn.Sequential:
    return network()


@pytest.fixture(scope="module")
def explainer(model: nn.Sequential) -> interpret.Explainer:
    return interpret.Explainer(model)


def upto(model: nn.Sequential, layer: int, x: np.ndarray) -> np.ndarray:
    """The output of a layer, by calling one after the other."""
    y = weft.asarray(x)
    for one in model.layers[: layer + 1]:
        y = one(y)
    return np.asarray(y.numpy())


# --- activations ----------------------------------------------------------------------------------------------------------------


def test_activations_are_the_outputs_of_all_layers(model: nn.Sequential, explainer: interpret.Explainer) -> None:
    x = images(3)
    found = explainer.activations(x)
    for i in range(len(model.layers)):
        np.testing.assert_allclose(found[f"layers.{i}"].numpy(), upto(model, i, x), rtol=1e-5, atol=1e-6)
    assert next(iter(found)) == ""  # the network itself
    np.testing.assert_array_equal(found[""].numpy(), found["layers.7"].numpy())


def test_batch_norm_is_in_evaluation_mode_and_the_network_stays_as_it_was() -> None:
    trained = network().train()
    trained.layers[5].eval()
    before = {name: t.numpy().copy() for name, t in trained.named_state().items()}
    some, others = images(3), images(3)
    others[0] = some[0]
    first, again = (interpret.activations(trained, x)["layers.1"].numpy()[0] for x in (some, others))
    np.testing.assert_allclose(first, again, rtol=1e-5, atol=1e-6)
    assert trained.training
    assert not trained.layers[5].training
    for name, t in trained.named_state().items():
        np.testing.assert_array_equal(t.numpy(), before[name])


def test_a_layer_that_is_called_again_has_a_number() -> None:
    class Twice(Module):
        def __init__(self) -> None:
            self.layer = nn.Linear(3, 3)

        def forward(self, x: weft.Tensor) -> weft.Tensor:
            return self.layer(self.layer(x))

    found = interpret.activations(Twice(), np.ones((1, 3), np.float32))
    assert list(found) == ["", "layer", "layer#2"]
    np.testing.assert_array_equal(found[""].numpy(), found["layer#2"].numpy())


def test_new_weights_are_used_by_what_was_compiled(model: nn.Sequential) -> None:
    explainer, x = interpret.Explainer(model), images(3)
    before = explainer.activations(x)["layers.7"].numpy()
    bias = model.layers[7].bias
    try:
        bias.assign(bias + 1.0)
        np.testing.assert_allclose(explainer.activations(x)["layers.7"].numpy(), before + 1.0, rtol=1e-5, atol=1e-6)
    finally:
        bias.assign(bias - 1.0)


def test_statistics_of_weights(model: nn.Sequential) -> None:
    found = interpret.weight_statistics(model)
    weight = model.layers[0].weight.numpy().astype(np.float64)
    one = found["layers.0.weight"]
    assert one.shape == (4, 1, 3, 3)
    np.testing.assert_allclose(
        [one.mean, one.std, one.min, one.max, one.norm],
        [weight.mean(), weight.std(), weight.min(), weight.max(), np.sqrt((weight**2).sum())],
    )
    assert one.counts.sum() == weight.size
    assert {"layers.1.var", "layers.7.bias"} <= set(found)


def test_statistics_of_activations_and_dead_channels() -> None:
    made = network()
    made.layers[4].weight.assign(made.layers[4].weight.numpy() * np.float32([1, 1, 0, 1, 1]).reshape(-1, 1, 1, 1))
    made.layers[4].bias.assign(np.array([0.1, 0.1, -1.0, 0.1, 0.1], np.float32))
    data = images(24)
    found = interpret.activation_statistics(made, data, examples=24, batch=8)["layers.5"]
    exact = upto(made, 5, data).astype(np.float64)
    assert found.shape == exact.shape[1:]
    assert 2 in found.dead
    assert found.dead == tuple(np.flatnonzero(exact.max(axis=(0, 2, 3)) == 0))
    assert len(found.dead) < 5
    np.testing.assert_allclose(
        [found.mean, found.std, found.min, found.max, found.zeros],
        [exact.mean(), exact.std(), exact.min(), exact.max(), (exact == 0).mean()],
        rtol=1e-4,
    )
    np.testing.assert_allclose(found.norm**2, (exact**2).sum(axis=(1, 2, 3)).mean(), rtol=1e-4)
    np.testing.assert_array_equal(found.counts, np.histogram(exact, found.edges)[0])


def test_effective_rank_and_near_copies() -> None:
    weight = RANDOM.normal(size=(6, 4, 3, 3))
    assert near_copies(weight) == 0
    weight[4], weight[5] = 2.0 * weight[0], 1.001 * weight[0] + 1e-3
    assert near_copies(weight) == 3
    assert effective_rank(np.ones((5, 7))) == pytest.approx(1.0)
    assert 3.0 < effective_rank(weight) < 6.0


# --- why ------------------------------------------------------------------------------------------------------------------------


def test_grad_cam_follows_its_formula(model: nn.Sequential, explainer: interpret.Explainer) -> None:
    """Behind the last ReLU there is only the linear layer, so the gradient is its weight."""
    x = images(3)
    assert explainer.maps_layer(x) == "layers.5"
    maps = upto(model, 5, x).astype(np.float64)
    weight = model.layers[7].weight.numpy().astype(np.float64).reshape(3, *maps.shape[1:])
    for target in (None, 2, [0, 1, 2]):
        classes = explainer.scores(x).argmax(1) if target is None else np.broadcast_to(np.array(target), 3)
        slope = weight[classes]
        expected = np.maximum((slope.mean((2, 3), keepdims=True) * maps).sum(1), 0)
        np.testing.assert_allclose(explainer.grad_cam(x, target), expected, rtol=1e-4, atol=1e-6)
        alpha = slope**2 / (2 * slope**2 + maps.sum((2, 3), keepdims=True) * slope**3)
        weights = (alpha * np.maximum(slope, 0)).sum((2, 3), keepdims=True)
        expected = np.maximum((weights * maps).sum(1), 0)
        np.testing.assert_allclose(explainer.grad_cam(x, target, plus_plus=True), expected, rtol=1e-3, atol=1e-5)


def test_grad_cam_at_an_earlier_layer_by_differences() -> None:
    """The slope of a channel's mean, measured by adding a small constant to the channel."""
    made, x = network().astype("float64"), images(1).astype(np.float64)
    maps = upto(made, 2, x)

    def score(values: np.ndarray) -> float:
        y = weft.asarray(values)
        for layer in made.layers[3:]:
            y = layer(y)
        return float(y.numpy()[0, 1])

    expected = np.zeros(maps.shape[2:])
    for channel in range(maps.shape[1]):
        moved = np.zeros_like(maps)
        moved[:, channel] = 1e-6
        slope = (score(maps + moved) - score(maps - moved)) / 2e-6 / expected.size
        expected += slope * maps[0, channel]
    found = interpret.grad_cam(made, x, target=1, layer="layers.2")[0]
    np.testing.assert_allclose(found, np.maximum(expected, 0), rtol=1e-4, atol=1e-6)


def test_frozen_networks_are_explained_too(model: nn.Sequential) -> None:
    frozen = network()
    frozen.load({name: t.numpy() for name, t in model.named_tensors().items()})
    frozen.freeze()
    x = images(3)
    np.testing.assert_allclose(interpret.grad_cam(frozen, x), interpret.grad_cam(model, x), rtol=1e-5, atol=1e-7)


def test_saliency_by_differences() -> None:
    made, x = network().astype("float64"), images(1).astype(np.float64)
    score = lambda values: float(made(values).numpy()[0, 2])  # noqa: E731
    expected = np.zeros(SHAPE)
    for place in np.ndindex(SHAPE):
        moved = np.zeros_like(x)
        moved[0][place] = 1e-6
        expected[place] = abs(score(x + moved) - score(x - moved)) / 2e-6
    np.testing.assert_allclose(interpret.saliency(made, x, 2)[0], expected[0], rtol=1e-3, atol=1e-5)


def test_integrated_gradients_add_up_to_the_difference_of_scores(
    model: nn.Sequential, explainer: interpret.Explainer
) -> None:
    x = images(2)
    found = explainer.integrated_gradients(x, target=[0, 2], steps=512)
    difference = explainer.scores(x) - explainer.scores(np.zeros_like(x))
    assert found.shape == x.shape
    np.testing.assert_allclose(found.sum((1, 2, 3)), difference[[0, 1], [0, 2]], rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize(("window", "stride"), [(3, 2), ((4, 2), None)])
def test_occlusion_hides_windows(
    window: int | tuple[int, int], stride: int | None, model: nn.Sequential, explainer: interpret.Explainer
) -> None:
    x = images(1)
    height, width = (window, window) if isinstance(window, int) else window
    down, right = (stride, stride) if stride else (height // 2, width // 2)
    share = lambda values: weft.softmax(model(values)).numpy()[0]  # noqa: E731
    target = int(share(x).argmax())
    total, count = np.zeros(SHAPE[1:]), np.zeros(SHAPE[1:])
    for top in sorted({*range(0, 9 - height + 1, down), 9 - height}):
        for left in sorted({*range(0, 11 - width + 1, right), 11 - width}):
            hidden = x.copy()
            hidden[:, :, top : top + height, left : left + width] = x.mean()
            total[top : top + height, left : left + width] += share(x)[target] - share(hidden)[target]
            count[top : top + height, left : left + width] += 1
    np.testing.assert_allclose(explainer.occlusion(x, window, stride)[0], total / count, rtol=1e-3, atol=1e-5)


def test_occlusion_of_a_regression_and_with_a_value_to_fill_in() -> None:
    made, x = network(nn.Linear(None, 1)), images(1)
    hidden = x.copy()
    hidden[:, :, :, :] = 0.5
    found = interpret.occlusion(made, x, (9, 11), fill=0.5)
    np.testing.assert_allclose(found, np.full((1, 9, 11), (made(x) - made(hidden)).item()), rtol=1e-4)


def test_bytes_are_prepared(model: nn.Sequential, explainer: interpret.Explainer) -> None:
    """With preprocessing, stored bytes are explained; windows are hidden in them."""

    class Prepare(Module):
        def forward(self, x: weft.Tensor) -> weft.Tensor:
            return x.astype("float32") / 255.0 - 0.5

    x = RANDOM.integers(0, 256, (3, *SHAPE)).astype(np.uint8)
    with_bytes = interpret.Explainer(model, Prepare())
    ready = x.astype(np.float32) / 255.0 - 0.5
    np.testing.assert_allclose(with_bytes.grad_cam(x), explainer.grad_cam(ready), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        with_bytes.integrated_gradients(x), explainer.integrated_gradients(ready), rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(
        with_bytes.occlusion(x, 3, 2, fill=51), explainer.occlusion(ready, 3, 2, fill=-0.3), rtol=1e-3, atol=1e-6
    )


def test_bfloat16() -> None:
    made = network()
    exact, x = interpret.grad_cam(made, images(1) * 0 + 0.7), images(1) * 0 + 0.7
    narrow = network().astype(weft.bfloat16)
    found = interpret.grad_cam(narrow, weft.asarray(x).astype(weft.bfloat16))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, exact, rtol=0.1, atol=0.03 * exact.max())
    stats = interpret.activation_statistics(narrow, x)
    assert stats["layers.5"].max == pytest.approx(float(upto(made, 5, x).max()), rel=0.05)
    assert interpret.weight_statistics(narrow)["layers.0.weight"].norm > 0


def test_errors_say_what_is_required(model: nn.Sequential, explainer: interpret.Explainer) -> None:
    x = images(1)
    with pytest.raises(UserError, match="a batch of images .* is required, got an array of shape"):
        explainer.grad_cam(x[0])
    with pytest.raises(UserError, match="the path of a layer is required, got 'layers.77'"):
        explainer.grad_cam(x, layer="layers.77")
    with pytest.raises(UserError, match=r"\(batch, channels, height, width\) is required, got 'layers.7'"):
        explainer.grad_cam(x, layer="layers.7")
    with pytest.raises(UserError, match="a class index, or one for each of 1 examples"):
        explainer.grad_cam(x, target=[0, 1])
    with pytest.raises(UserError, match=r"a window of at most \(9, 11\) is required"):
        explainer.occlusion(x, 10)
    with pytest.raises(UserError, match="a network with convolutions"):
        interpret.grad_cam(nn.Sequential(nn.Flatten(), nn.Linear(None, 2)), x)
    with pytest.raises(UserError, match="a row of scores for each example"):
        interpret.embedding(nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5)), np.zeros((2, 7), np.int64))
    with pytest.raises(UserError, match="a module is required, got function"):
        interpret.Explainer(lambda x: x)  # type: ignore[arg-type]


# --- embeddings -----------------------------------------------------------------------------------------------------------------


def test_embedding_is_the_input_of_the_last_layer(model: nn.Sequential) -> None:
    x = images(10)
    found = interpret.embedding(model, x, batch=3)
    np.testing.assert_allclose(found.vectors, upto(model, 6, x), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.scores, model(x).numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.probabilities, weft.softmax(model(x)).numpy(), rtol=1e-5)
    few = interpret.embedding(model, weft.data.Arrays(x, np.zeros(10, np.int64)), examples=4, batch=3)
    np.testing.assert_array_equal(few.indices, [0, 3, 6, 9])
    np.testing.assert_allclose(few.vectors, found.vectors[[0, 3, 6, 9]], rtol=1e-5, atol=1e-6)


def test_a_convolution_as_the_last_layer_is_averaged() -> None:
    made = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 1), nn.GlobalAvgPool())
    x = images(3)
    expected = upto(made, 1, x).mean((2, 3))
    np.testing.assert_allclose(interpret.embedding(made, x).vectors, expected, rtol=1e-5, atol=1e-6)


def test_nearest() -> None:
    vectors = RANDOM.normal(size=(50, 6))
    order, similarity = interpret.nearest(vectors, 3.0 * vectors[[7, 20]], 5)
    assert order.shape == (2, 5)
    assert order[:, 0].tolist() == [7, 20]
    np.testing.assert_allclose(similarity[:, 0], 1.0, rtol=1e-5)
    cosine = vectors @ vectors[7] / np.linalg.norm(vectors, axis=1) / np.linalg.norm(vectors[7])
    np.testing.assert_array_equal(order[0], np.argsort(-cosine)[:5])


def test_pca_keeps_distances_and_variance() -> None:
    x = RANDOM.normal(size=(40, 3)) @ RANDOM.normal(size=(3, 8))
    found = interpret.pca(x, 3)
    np.testing.assert_allclose(distances(found), distances(x), atol=1e-8)
    assert (np.diff(found.var(0)) < 0).all()
    np.testing.assert_array_equal(interpret.pca(-x[::-1], 3).shape, (40, 3))
    np.testing.assert_allclose(interpret.pca(np.ones((5, 1)), 2), 0)


def test_affinities_have_the_perplexity() -> None:
    x = RANDOM.normal(size=(60, 5))
    p = affinities(x, 6.0)
    np.testing.assert_allclose([p.sum(), np.abs(p - p.T).max(), np.diag(p).max()], [1.0, 0.0, 0.0], atol=1e-9)
    squares = distances(x) ** 2
    share = p[0] * 120  # p_j|0 + p_0|j: at least the neighbours of point 0
    assert (np.argsort(squares[0])[1:4][:, None] == np.flatnonzero(share > 0)).any(axis=1).all()


def test_tsne_separates_clusters_and_repeats() -> None:
    centres = 8.0 * RANDOM.normal(size=(3, 10))
    labels = np.repeat(np.arange(3), 40)
    x = centres[labels] + RANDOM.normal(size=(120, 10))
    found = interpret.tsne(x, perplexity=10, steps=350)
    near = np.argsort(distances(found) + 1e9 * np.eye(120), axis=1)[:, :5]
    assert (labels[near] == labels[:, None]).mean() > 0.9
    assert trustworthiness(x, found, 5) > 0.9
    np.testing.assert_array_equal(found, interpret.tsne(x, perplexity=10, steps=350))
    seen: list[int] = []
    interpret.tsne(np.zeros((40, 2)), perplexity=5, steps=30, progress=lambda step, steps: seen.append(step))
    assert seen == [0, 25]


def test_errors_of_maps() -> None:
    with pytest.raises(UserError, match=r"a perplexity from 1 to a third of the number of points \(20\)"):
        interpret.tsne(RANDOM.normal(size=(20, 3)))
    with pytest.raises(UserError, match="at most 5,000 points are required, got 5,001"):
        interpret.tsne(np.zeros((5001, 1)))
    with pytest.raises(UserError, match="finite numbers are required"):
        interpret.pca([[1.0], [np.nan]])
    with pytest.raises(UserError, match="as rows of a matrix"):
        interpret.pca([1.0, 2.0])


def distances(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.linalg.norm(x[:, None] - x[None], axis=2))


def trustworthiness(x: np.ndarray, y: np.ndarray, k: int) -> float:
    """The share of neighbours in the map that are neighbours in the data, by rank (Venna and Kaski 2001)."""
    n = len(x)
    ranks = np.argsort(np.argsort(distances(x) + np.diag([-1.0] * n), axis=1), axis=1)
    near = np.argsort(distances(y) + np.diag([-1.0] * n), axis=1)[:, 1 : k + 1]
    excess = np.maximum(np.take_along_axis(ranks, near, axis=1) - k, 0).sum()
    return float(1.0 - 2.0 / (n * k * (2 * n - 3 * k - 1)) * excess)


# --- pictures -------------------------------------------------------------------------------------------------------------------


def test_visualized_features_excite_their_channels(model: nn.Sequential) -> None:
    found = interpret.visualize(model, SHAPE, "layers.4", [0, 3], steps=100)
    assert found.shape == (2, *SHAPE)
    reached, usual = (upto(model, 4, x).mean((2, 3)) for x in (found, images(64)))
    assert reached[0, 0] > usual[:, 0].max()
    assert reached[1, 3] > usual[:, 3].max()


def test_windows_cover_every_pixel() -> None:
    for size, window, stride in [(9, 3, 2), (11, 4, 5), (5, 5, 1), (7, 1, 1)]:
        found = starts(size, window, stride)
        assert found[0] == 0
        assert found[-1] + window == size
    flat = covering_mean(np.full((3, 2), 4.0), np.array([0, 1, 2]), np.array([0, 1]), (2, 2), (4, 3))
    np.testing.assert_array_equal(flat, np.full((4, 3), 4.0))


def test_overlay_shows_the_map() -> None:
    image = np.zeros((3, 8, 6), np.uint8)
    heat = np.zeros((2, 2))
    heat[0, 1] = 3.0
    found = interpret.overlay(image, heat, size=(16, 12), smooth=False)
    assert found.shape == (16, 12, 3)
    assert found.dtype == np.uint8
    assert found[0, -1, 0] > 150
    assert found[-1, 0].sum() == 0
    np.testing.assert_array_equal(interpret.overlay(image, np.zeros((2, 2))), np.zeros((8, 6, 3)))


def test_tiles_of_activations_and_filters() -> None:
    maps = np.zeros((3, 4, 5))
    maps[0], maps[1] = 7.0, 0.07
    maps[0, 0, 0] = 0.0
    tiles = interpret.activation_tiles(maps)
    assert tiles.shape == (3, 4, 5)
    assert tiles[0].max() == 1.0
    assert 0.05 < tiles[1].max() < 0.2  # a faint channel stays faint
    assert tiles[2].max() == 0.0
    assert interpret.activation_tiles(np.array([-1.0, 0.0, 3.0])).ravel().tolist() == [0.0, 0.25, 1.0]
    colours = interpret.filter_tiles(RANDOM.normal(size=(8, 3, 5, 5)))
    assert colours.shape == (8, 5, 5, 3)
    assert 0.0 <= colours.min() <= colours.max() <= 1.0
    weight = RANDOM.normal(size=(8, 7, 3, 2))
    tiles = interpret.filter_tiles(weight)
    assert tiles.shape == (8, 9, 6)  # 7 kernels in three columns
    np.testing.assert_allclose(tiles[2, 3:6, 0:2], weight[2, 3] / np.abs(weight[2]).max())
    assert interpret.filter_tiles(RANDOM.normal(size=(300, 5000))).shape == (256, 64, 64)
    with pytest.raises(UserError, match="the weight of a convolution or a linear layer"):
        interpret.filter_tiles(np.zeros(3))


def test_atlas_and_resizing() -> None:
    made = atlas(np.arange(1, 4).reshape(3, 1, 1) * np.ones((3, 2, 2)), 2, gap=1)
    assert made.shape == (5, 5)
    assert made[::3, ::3].tolist() == [[1, 2], [3, 0]]
    assert made[2].sum() == 0
    values = RANDOM.normal(size=(4, 6))
    np.testing.assert_allclose(resized(values, (4, 6)), values)
    np.testing.assert_allclose(resized(values, (2, 3)), values.reshape(2, 2, 3, 2).mean((1, 3)))
    np.testing.assert_allclose(resized(values, (12, 18), smooth=False), values.repeat(3, 0).repeat(3, 1))
