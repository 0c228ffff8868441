"""The whitened network: its first layer against NumPy, its views, and the recipe on made images in the format of CIFAR-10."""

import functools
import json

import numpy as np
import pytest

import weft
from weft import zoo
from weft.jobs.recipes import with_recipe
from weft.jobs.training import train
from weft.zoo.whitened import EPS, WhiteningConv2d

RANDOM = np.random.default_rng(2)


def test_patches_are_whitened():
    smooth = RANDOM.normal(size=(40, 3, 9, 9)) + 3 * RANDOM.normal(size=(40, 1, 9, 9))  # channels are correlated
    layer = WhiteningConv2d(3, 2).fit(smooth.astype(np.float32))
    patches = (
        np.lib.stride_tricks.sliding_window_view(smooth, (2, 2), axis=(2, 3))
        .transpose(0, 2, 3, 1, 4, 5)
        .reshape(-1, 12)
    )
    outputs = patches @ layer.weight.numpy().astype(np.float64).reshape(24, 12).T
    variances = np.sort(np.linalg.eigvalsh(patches.T @ patches / len(patches)))[::-1]
    covariance = outputs.T @ outputs / len(outputs)
    np.testing.assert_allclose(covariance[:12, :12], np.diag(variances / (variances + EPS)), atol=1e-3)
    np.testing.assert_allclose(outputs[:, 12:], -outputs[:, :12], atol=1e-5)


def test_views_are_averaged_in_evaluation_only():
    weft.seed(0)
    one, two, six = (zoo.whitened_cnn(4, 1, widths=(4, 4, 4), views=n) for n in (1, 2, 6))
    x = RANDOM.normal(size=(2, 1, 20, 20)).astype(np.float32)
    for model in (two, six):
        model.load(one.named_tensors())
    for model in (one, two, six):
        model.eval()

    def mirrored(images):
        return (one(images).numpy() + one(images[..., ::-1].copy()).numpy()) / 2

    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), mode="reflect")
    shifted = mirrored(padded[:, :, :20, :20]) + mirrored(padded[:, :, 2:, 2:])
    np.testing.assert_allclose(two(x).numpy(), mirrored(x), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(six(x).numpy(), mirrored(x) / 2 + shifted / 4, rtol=1e-4, atol=1e-5)
    six.train()
    one.train()
    np.testing.assert_array_equal(six(x).numpy(), one(x).numpy())
    with pytest.raises(weft.errors.UserError, match="1, 2 or 6"):
        zoo.whitened_cnn(views=3)


def test_the_filters_are_not_trained_and_half_of_the_first_layer_starts_as_the_identity():
    model = zoo.whitened_cnn(widths=(24, 32, 32))
    assert "whitening.weight" not in model.named_parameters()
    first = model.blocks[0][0].weight.numpy()
    np.testing.assert_array_equal(first, zoo.whitened.nn.init.values("identity", first.shape))
    assert all(norm.scale is None for block in model.blocks for norm in (block[2], block[5]))


def _made_cifar(folder):
    """Two colours to tell apart, as CIFAR-10 stores images."""
    for name, count in (*((f"data_batch_{i}", 16) for i in range(1, 6)), ("test_batch", 20)):
        labels = RANDOM.integers(0, 2, count)
        images = RANDOM.integers(0, 120, (count, 3, 1024)) + 120 * (labels[:, None, None] == np.arange(3)[:, None])
        np.concatenate([labels[:, None], images.reshape(count, -1)], axis=1).astype(np.uint8).tofile(
            folder / f"{name}.bin"
        )
    return folder


def test_the_recipe_on_made_images(tmp_path, monkeypatch):
    make = zoo.whitened.whitened_cnn

    @functools.wraps(make)  # with its signature
    def narrow(classes, channels, views):
        return make(classes, channels, widths=(4, 4, 4), views=views)

    monkeypatch.setattr(zoo.whitened, "whitened_cnn", narrow)
    folder = _made_cifar(tmp_path)
    given = {
        "recipe": "speedrun",
        "data": str(folder),
        "batch": 16,
        "epochs": 4,
        "warmup": 1,
        "rate": 0.3,
        "precision": None,
    }
    run = train(with_recipe("train", given | {"runs": str(tmp_path / "runs")}))
    summary = json.loads((run / "summary.json").read_text())
    assert summary["epochs"] == 4
    assert summary["test"]["accuracy"] > 0.8
    filters = weft.io.load(run / "weights" / "best.safetensors")["whitening.weight"].numpy()
    np.testing.assert_array_equal(filters[12:], -filters[:12])  # they were fitted
