"""Product quantization: weights of vectors from codebooks, trained, packed and reported."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft import compress, nn, optim
from weft.compress.product_quantization import ProductCodebook, vector_kmeans
from weft.errors import UserError

RNG = np.random.default_rng(0)


def network() -> nn.Sequential:
    weft.seed(0)
    return nn.Sequential(nn.Conv2d(3, 32, 3, activation="relu"), nn.Flatten(), nn.Linear(32 * 9, 60)).eval()


X = RNG.normal(size=(4, 3, 5, 5)).astype(np.float32)


def test_kmeans_finds_clusters_and_is_exact_for_few_vectors() -> None:
    centres = RNG.normal(size=(5, 3)) * 10
    vectors = (centres[np.arange(200) % 5] + RNG.normal(size=(200, 3)) * 0.01).astype(np.float32)
    centroids, members = vector_kmeans(vectors, 8)
    assert np.abs(centroids[members] - vectors).max() < 0.1
    centroids, members = vector_kmeans(vectors[:6], 8)
    np.testing.assert_array_equal(centroids[members], vectors[:6])


@pytest.mark.parametrize("codebooks", ["place", "layer"])
def test_weights_are_vectors_of_codebooks_and_more_bits_are_more_exact(codebooks: Any) -> None:
    errors = []
    for bits in (2, 4):
        model = network()
        errors.append(compress.product_quantize(model, bits, size=4, codebooks=codebooks))
        weight = model.layers[2].weight.numpy()
        vectors = weight.reshape(60, -1, 4)
        distinct = vectors.reshape(-1, 4) if codebooks == "layer" else vectors[:, 7]
        assert len(np.unique(distinct, axis=0)) <= 2**bits
    assert list(errors[0]) == ["layers.0.weight", "layers.2.weight"]
    assert all(errors[1][path] < errors[0][path] < 1 for path in errors[0])
    made = compress.parametrization_of(model.layers[0], "weight")
    assert isinstance(made, ProductCodebook)
    assert made.centroids.shape[2] == 3, "27 inputs are cut into vectors of 3: 4 does not divide them"


def test_a_centroid_is_trained_by_the_sum_of_the_gradients_of_its_vectors() -> None:
    model = network()
    compress.product_quantize(model, 3, codebooks="layer")
    made = compress.parametrization_of(model.layers[2], "weight")
    assert isinstance(made, ProductCodebook)
    x = weft.asarray(X)
    weight = weft.parameter(model.layers[2].weight.detach())
    hidden = model.layers[1](model.layers[0](x))
    (gradient,) = weft.gradients(((hidden @ weight.T) ** 2).sum(), [weight])
    (found,) = weft.gradients(((model(x) - model.layers[2].bias) ** 2).sum(), [made.centroids])
    expected = np.zeros(made.centroids.shape[1:])
    np.add.at(expected, made.indices.numpy().ravel(), gradient.numpy().reshape(-1, 4))
    np.testing.assert_allclose(found.numpy()[0], expected, rtol=1e-4, atol=1e-3)
    optimizer, before = optim.adam(model, 1e-4), made().numpy()

    @weft.jit
    def step() -> Any:
        loss = (model(x) ** 2).mean()
        optimizer.minimize(loss)
        return loss

    losses = [float(step().item()) for _ in range(5)]
    assert losses[-1] < losses[0]
    assert not np.array_equal(made().numpy(), before)


def test_files_hold_indices_and_codebooks_and_the_report_counts_them(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10)).eval()
    compress.product_quantize(model, {"layers.0": 4}, size=4, codebooks="layer")
    x = RNG.normal(size=(3, 64)).astype(np.float32)
    size = compress.pack(model, tmp_path / "small.weft", weft.zeros((1, 64)))
    loaded = weft.load(tmp_path / "small.weft").eval()
    np.testing.assert_array_equal(loaded(x).numpy(), model(x).numpy())
    assert (512, 64) not in [tensor.shape for tensor in loaded.named_tensors().values()]
    assert size < 64 * 512 * 4 / 16 + 512 * 10 * 4 + 512 * 4 + 6000
    row = compress.report(model).layers[0]
    assert (row.weights, row.before) == (64 * 512, 64 * 512 * 4)
    assert row.after < 64 * 512 * 4 / 25, "4 bits for four weights, and 16 centroids"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bits": 0}, "1 to 12 bits are required, got 0"),
        ({"size": 0}, "vectors of 1 or more weights are required, got 0"),
        ({"codebooks": "all"}, "codebooks must be 'place' or 'layer', got 'all'"),
    ],
)
def test_bad_settings_are_rejected(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        compress.product_quantize(network(), **given)


def test_pruned_weights_are_refused() -> None:
    model = network()
    compress.prune(model, 0.5)
    with pytest.raises(UserError, match=r"a plain weight is required, got layers.0.weight, which is a Mask"):
        compress.product_quantize(model)
