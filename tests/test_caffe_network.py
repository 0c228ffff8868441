"""Networks of Caffe from their description and weights: they compute what the zoo's do, and what is not understood is named."""

from pathlib import Path

import numpy as np
import pytest

import weft
from caffe_writer import blob, caffemodel_of
from weft import io, nn, zoo
from weft.cli import main
from weft.errors import RunError, UserError
from weft.io import load_caffe_network
from weft.io.prototxt import parse_prototxt
from weft.zoo.published import NAMINGS
from weft.zoo.published.naming import sources

# As DIGITS writes it for deployment.
LENET = """
name: "LeNet"  # a comment
input: "data"
input_shape { dim: 1 dim: 1 dim: 28 dim: 28 }
layer { name: "train-data" type: "Data" top: "data" include { phase: TRAIN } }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  param { lr_mult: 1.0 } convolution_param { num_output: 20 kernel_size: 5 stride: 1 weight_filler { type: "xavier" } } }
layer { name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1" pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
layer { name: "conv2" type: "Convolution" bottom: "pool1" top: "conv2" convolution_param { num_output: 50 kernel_h: 5 kernel_w: 5 } }
layer { name: "pool2" type: "Pooling" bottom: "conv2" top: "pool2" pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
layer { name: "ip1" type: "InnerProduct" bottom: "pool2" top: "ip1" inner_product_param { num_output: 500 } }
layer { name: "relu1" type: "ReLU" bottom: "ip1" top: "ip1" }
layer { name: "ip2" type: "InnerProduct" bottom: "ip1" top: "ip2" inner_product_param { num_output: 10 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" include { phase: TRAIN } }
layer { name: "softmax" type: "Softmax" bottom: "ip2" top: "softmax" }
"""


def _lenet() -> nn.Module:
    weft.seed(1)
    return zoo.lenet5().eval()


def _write_lenet(folder: Path) -> tuple[Path, Path]:
    own, layers = _lenet().named_tensors(), dict[str, list[np.ndarray]]()
    for name, source in sources(_lenet(), NAMINGS["lenet5"][0]).items():
        layers.setdefault(source.name.rpartition(".")[0], []).append(own[name].numpy())
    (folder / "deploy.prototxt").write_text(LENET)
    (folder / "lenet.caffemodel").write_bytes(caffemodel_of(layers))
    return folder / "deploy.prototxt", folder / "lenet.caffemodel"


def _images(*shape: int) -> weft.Tensor:
    return weft.asarray(np.random.default_rng(0).random(shape, np.float32))


def test_lenet_is_that_of_the_zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = load_caffe_network(*_write_lenet(tmp_path))
    images = _images(3, 1, 28, 28)
    wanted = weft.softmax(_lenet()(images), 1).numpy()
    assert network.input_shape == (1, 28, 28)
    assert np.allclose(network(images).numpy(), wanted, rtol=1e-5, atol=1e-7)
    monkeypatch.chdir(tmp_path)
    assert main(["convert", "lenet.caffemodel", "net.weft", "prototxt=deploy.prototxt"]) == 0
    assert np.allclose(weft.load("net.weft").eval()(images).numpy(), wanted, rtol=1e-5, atol=1e-7)
    assert main(["convert", "lenet.caffemodel", "net.npz", "prototxt=deploy.prototxt"]) == 2


BRANCHES = """
layers { name: "c/1" type: CONVOLUTION bottom: "data" top: "a" convolution_param { num_output: 4 kernel_size: 3 pad: 1 group: 2 } }
layers { name: "n" type: LRN bottom: "a" top: "n" lrn_param { local_size: 3 alpha: 0.5 beta: 0.75 } }
layers { name: "p" type: POOLING bottom: "data" top: "p" pooling_param { pool: AVE kernel_size: 3 stride: 1 pad: 1 } }
layers { name: "j" type: CONCAT bottom: "n" bottom: "p" top: "j" }
layers { name: "r" type: RELU bottom: "j" top: "j" relu_param { negative_slope: 0.1 } }
layers { name: "g" type: POOLING bottom: "j" top: "g" pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
"""


def test_branches_groups_and_norms_of_old_files(tmp_path: Path) -> None:
    """By NumPy, with the poolings' ceiling mode: 5 pixels in windows of 2 are 3."""
    rng = np.random.default_rng(0)
    weight, bias = rng.normal(size=(4, 1, 3, 3)).astype(np.float32), rng.normal(size=4).astype(np.float32)
    (tmp_path / "n.prototxt").write_text(BRANCHES)
    (tmp_path / "n.caffemodel").write_bytes(caffemodel_of({"c/1": [weight, bias]}))
    network = load_caffe_network(tmp_path / "n.prototxt", tmp_path / "n.caffemodel")
    x = rng.normal(size=(1, 2, 5, 5)).astype(np.float32)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[0]  # channel, row, column, 3, 3
    a = np.stack([(windows[o // 2] * weight[o, 0]).sum((-1, -2)) + bias[o] for o in range(4)])
    square = np.pad(a**2, ((1, 1), (0, 0), (0, 0)))
    n = a / (1 + 0.5 / 3 * (square[:-2] + square[1:-1] + square[2:])) ** 0.75
    j = np.concatenate([n, windows.mean((-1, -2))])
    j = np.where(j > 0, j, 0.1 * j)
    g = np.pad(j, ((0, 0), (0, 1), (0, 1)), constant_values=-np.inf).reshape(6, 3, 2, 3, 2).max((2, 4))
    assert np.allclose(network(weft.asarray(x)).numpy()[0], g, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "by", "message"),
    [
        ('"ReLU"', '"Crop"', "layers of the types crop, which are not supported. Known: batchnorm"),
        ('bottom: "pool2"', 'bottom: "elsewhere"', "must have one input, the images; got data, elsewhere"),
        ('name: "conv2"', 'name: "conv3"', "the layer 'conv3' requires conv3.weight in the .caffemodel"),
        (
            "kernel_h: 5",
            "kernel_h: 3",
            r"'conv2' cannot be built: filters of \(3, 5\) are described, and the .caffemodel has \(5, 5\)",
        ),
        ('type: "Softmax"', "", "a layer without a name or a type"),
        (
            "kernel_h: 5",
            "kernel_h: 1e999",
            "'conv2' cannot be built: a whole number is required as kernel_size, got inf",
        ),
        ("kernel_h: 5", "kernel_h: 5.5", "a whole number is required as kernel_size, got 5.5"),
        ('name: "conv2"', 'name: "conv3"', "lenet.caffemodel: the layer 'conv3'"),
    ],
)
def test_descriptions_that_do_not_fit(change: str, by: str, message: str, tmp_path: Path) -> None:
    prototxt, weights = _write_lenet(tmp_path)
    assert change in LENET
    prototxt.write_text(LENET.replace(change, by))
    with pytest.raises(UserError, match=message):
        load_caffe_network(prototxt, weights)


def test_layers_may_have_the_same_name(tmp_path: Path) -> None:
    text = 'input: "data" input_dim: 1 input_dim: 1 input_dim: 1 input_dim: 3\n' + "".join(
        f'layer {{ name: "{name}" type: "Power" bottom: "data" top: "data" power_param {{ shift: {shift} }} }}\n'
        for name, shift in (("a/b", 1), ("a_b", 10), ("a/b", 100), ("a_b_2", 1000))
    )
    (tmp_path / "n.prototxt").write_text(text)
    (tmp_path / "n.caffemodel").write_bytes(caffemodel_of({"other": [np.ones(1)]}))
    network = load_caffe_network(tmp_path / "n.prototxt", tmp_path / "n.caffemodel")
    assert network(weft.zeros((1, 1, 1, 3))).tolist() == [[[[1111.0] * 3]]]


NORMED = """
input: "data" input_dim: 1 input_dim: 3 input_dim: 4 input_dim: 4
layer { name: "s" type: "Power" bottom: "data" top: "s" power_param { power: 2 scale: 0.5 shift: 1 } }
layer { name: "bn" type: "BatchNorm" bottom: "s" top: "bn" batch_norm_param { use_global_stats: true } }
layer { name: "sc" type: "Scale" bottom: "bn" top: "bn" scale_param { bias_term: true } }
"""


def test_batch_norms_scales_and_a_mean_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By NumPy. Statistics are sums over a number of batches, and the mean image is larger than images."""
    rng = np.random.default_rng(0)
    mean, variance, count = rng.normal(size=3), rng.random(3) + 1, np.array([40.0])
    scale, bias = rng.normal(size=3), rng.normal(size=3)
    layers = {"bn": [mean * 40, variance * 40, count], "sc": [scale, bias]}
    monkeypatch.chdir(tmp_path)
    Path("n.prototxt").write_text(NORMED)
    Path("n.caffemodel").write_bytes(caffemodel_of(layers))
    image = rng.normal(size=(1, 3, 7, 6)).astype(np.float32)
    Path("mean.binaryproto").write_bytes(blob(image, old=True))
    assert np.array_equal(io.load_caffe_mean("mean.binaryproto"), image[0])
    x = rng.normal(size=(2, 3, 4, 4)).astype(np.float32)
    inside = (0.5 * (x.astype(np.float64) - image[:, :, 1:5, 1:5]) + 1) ** 2
    by_channel = [v.reshape(3, 1, 1) for v in (mean, variance, scale, bias)]
    wanted = (inside - by_channel[0]) / np.sqrt(by_channel[1] + 1e-5) * by_channel[2] + by_channel[3]
    found = load_caffe_network("n.prototxt", "n.caffemodel", "mean.binaryproto")(weft.asarray(x)).numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    assert main(["convert", "n.caffemodel", "n.weft", "prototxt=n.prototxt", "mean=mean.binaryproto"]) == 0
    assert np.array_equal(weft.load("n.weft").eval()(x).numpy(), found)
    Path("small.binaryproto").write_bytes(blob(image[:, :, :3], old=True))
    with pytest.raises(UserError, match=r"small.binaryproto: a mean image of \(3, 4, 4\) or larger is required"):
        load_caffe_network("n.prototxt", "n.caffemodel", "small.binaryproto")
    with pytest.raises(RunError, match=r"n.prototxt is damaged, or no .binaryproto"):
        io.load_caffe_mean("n.prototxt")
    assert main(["convert", "n.caffemodel", "n.npz", "mean=mean.binaryproto"]) == 2


def test_the_text_format() -> None:
    found = parse_prototxt("a: -1.5e3 b: [1, 2] c < d: 'x' > e: true; f { g {} } # end")
    assert found == {"a": [-1500.0], "b": [1, 2], "c": [{"d": ["x"]}], "e": [True], "f": [{"g": [{}]}]}
    for text, message in (
        ("a {", "line 1: a brace is not closed"),
        ("a: 1 }", "a brace is closed that was not opened"),
        ("\n\na: }", "line 3: a value is required, got '}'"),
        ("a: [1", "a value is required"),
        ("1: 2", "a name is required, got '1'"),
        ("a: \u00e9", "a name, a number or a text is required"),
        ("# " * 1000 + "\n\u00e9", "line 1: a name, a number"),
        ("a {" * 100_000, "nested more than 32 deep"),
        ("a: " + "9" * 5000, "a value is required"),
    ):
        with pytest.raises(ValueError, match=message):
            parse_prototxt(text)


def test_files_that_are_no_descriptions(tmp_path: Path) -> None:
    _, weights = _write_lenet(tmp_path)
    (tmp_path / "x.prototxt").write_bytes(b"\xff\xfe")
    with pytest.raises(RunError, match=r"x\.prototxt is damaged, or no description"):
        load_caffe_network(tmp_path / "x.prototxt", weights)
    with pytest.raises(RunError, match=r"none\.prototxt cannot be read"):
        load_caffe_network(tmp_path / "none.prototxt", weights)
    (tmp_path / "x.prototxt").write_text('name: "empty"')
    with pytest.raises(UserError, match="has no layers"):
        io.load_caffe_network(tmp_path / "x.prototxt", weights)
