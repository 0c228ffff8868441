"""Published weights: the tables against the names in the libraries themselves, and what loading says of weights that do not fit."""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import weft
from weft import nn, zoo
from weft.errors import UserError
from weft.nn.module import without_values
from weft.ops.creation import zeros
from weft.testing import counted
from weft.zoo.published import NAMINGS
from weft.zoo.published.naming import Naming, sources

# Network, library, number of tensors, and CRC-32 of their sorted names (without the counters of batch norm, auxiliary heads, and prefixes of the
# library), as they are in torchvision 0.28, timm 1.0.30, transformers 5.22, Keras 3.15 and the published file of EfficientNet-Lite0. Outputs of random weights agree within 1e-5,
# except for the vision transformer of Hugging Face, whose norms have an epsilon of 1e-12: within 4e-5.
PUBLISHED = [
    ("alexnet", "torchvision", 16, 0x0B582D78),
    ("vgg11", "torchvision", 22, 0x9138A96F),
    ("vgg13", "torchvision", 26, 0x46938EA9),
    ("vgg16", "torchvision", 32, 0x8B41DBEC),
    ("vgg19", "torchvision", 38, 0x3335E8DD),
    ("vgg11_bn", "torchvision", 54, 0xE509AD6C),
    ("vgg13_bn", "torchvision", 66, 0x5FB5FC14),
    ("vgg16_bn", "torchvision", 84, 0x34E381F1),
    ("vgg19_bn", "torchvision", 102, 0x62E5AF3D),
    ("resnet18", "torchvision", 102, 0xF353B88F),
    ("resnet34", "torchvision", 182, 0x9273C00E),
    ("resnet50", "torchvision", 267, 0xDE0F6A0F),
    ("resnet101", "torchvision", 522, 0x8DFADA0F),
    ("resnet152", "torchvision", 777, 0xFE1D6EF8),
    ("densenet121", "torchvision", 606, 0x73017E9A),
    ("densenet169", "torchvision", 846, 0xA1C7AAEF),
    ("mobilenet_v2", "torchvision", 262, 0x4266534D),
    ("efficientnet_b0", "torchvision", 311, 0xDCB4EE26),
    ("efficientnet_b1", "torchvision", 439, 0xFC123C89),
    ("convnext_tiny", "torchvision", 182, 0x977B4DB9),
    ("googlenet", "torchvision", 287, 0x694F8F8F),
    ("inception_v3", "torchvision", 472, 0xF86DAA14),
    ("vit_base", "torchvision", 152, 0x8280DCA9),
    ("vgg16", "timm", 32, 0xB5255676),
    ("vgg11_bn", "timm", 54, 0xD1FD7975),
    ("inception_resnet_v2", "timm", 1102, 0x5D5B204E),
    ("mobilenet_v1", "timm", 137, 0x25E86B22),
    ("mobilenet_v2", "timm", 262, 0x1021C38F),
    ("efficientnet_b0", "timm", 311, 0x2A56EC84),
    ("efficientnet_b1", "timm", 439, 0xACF2BD57),
    ("convnext_tiny", "timm", 182, 0xEBCE0357),
    ("vit_tiny", "timm", 152, 0xD6C90A56),
    ("vit_small", "timm", 152, 0xD6C90A56),
    ("vit_base", "timm", 152, 0xD6C90A56),
    ("gpt2", "hugging face", 148, 0x6804C9F4),
    ("vit_base", "hugging face", 200, 0x950ADD23),
    ("resnet18", "hugging face", 102, 0xA6C626CE),
    ("resnet50", "hugging face", 267, 0x53704924),
    ("convnext_tiny", "hugging face", 182, 0x812A0D3A),
    ("vgg16", "keras", 32, 0x2CBCDE49),
    ("densenet121", "keras", 606, 0x84EE5A25),
    ("efficientnet_lite0", "efficientnet-pytorch", 247, 0x7D108242),
]  # fmt: skip


@contextmanager
def without_random_numbers() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.init, "values", lambda start, shape: zeros(shape))
        yield


def _naming(network: str, library: str) -> Naming:
    return next(each for each in NAMINGS[network] if each.library == library)


def test_names_are_those_of_the_libraries() -> None:
    for network, library, count, checksum in PUBLISHED:
        with without_values():
            wanted = sources(zoo.find(network)(), _naming(network, library))
        names = sorted({source.name for source in wanted.values()})
        assert (network, library, len(names), zlib.crc32("\n".join(names).encode())) == (
            network,
            library,
            count,
            checksum,
        )
        counted()


def test_every_other_table_names_every_tensor() -> None:
    """Those of networks that are not in the list above."""
    listed = {row[:2] for row in PUBLISHED}
    for network, namings in NAMINGS.items():
        for naming in (each for each in namings if (network, each.library) not in listed):
            options: dict[str, Any] = {"norm": False} if (network, naming.library) == ("googlenet", "caffe") else {}
            options |= {"vocabulary": 10} if network == "gpt" else {}
            with without_values():
                model = zoo.find(network)(**options)
                wanted = sources(model, naming)
                assert list(wanted) == list(model.named_tensors())
            parts = [(source.name, source.part) for source in wanted.values()]
            assert len(set(parts)) == len(parts)
            counted()


def _published(model: nn.Module, naming: Naming) -> dict[str, np.ndarray]:
    """Random values under the names of a library, from which a network can be set."""
    rng, found = np.random.default_rng(0), {}
    own = model.named_tensors()
    for name, source in sources(model, naming).items():
        shape = own[name].shape
        if source.parts > 1:
            shape = (source.parts * shape[0], *shape[1:])
        shape = shape[::-1] if source.transposed else shape
        if source.name not in found:
            found[source.name] = rng.random(shape, dtype=np.float32)
    return found


def test_mobilenet_is_set_whole() -> None:
    model = zoo.mobilenet_v2(classes=7, width=0.25)
    values = _published(model, _naming("mobilenet_v2", "torchvision"))
    loaded = zoo.load_published(model, "mobilenet_v2", values | {"features.0.1.num_batches_tracked": np.array(5)})
    own = model.named_tensors()
    assert (loaded.library, loaded.new_head, len(loaded.names)) == ("torchvision", [], len(own))
    assert loaded.statistics == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert np.array_equal(own["layers.0.layers.1.mean"].numpy(), values["features.0.1.running_mean"])
    assert np.array_equal(own["layers.21.bias"].numpy(), values["classifier.1.bias"])


@pytest.mark.parametrize("wrapper", ["module.", "_orig_mod.module.", "model."])
def test_wrappers_of_names_are_removed(wrapper: str) -> None:
    model = zoo.resnet20()
    values = _published(model, _naming("resnet20", "cifar repositories"))
    assert zoo.load_published(model, "resnet20", {wrapper + n: v for n, v in values.items()}).new_head == []


def test_all_that_does_not_fit_is_listed_and_nothing_changes() -> None:
    model = zoo.lenet5()
    values = _published(model, NAMINGS["lenet5"][0])
    del values["conv2.bias"]
    values |= {"ip1.weight": np.zeros((3, 800), np.float32), "ip3.weight": np.zeros(2)}
    before = model.layers[0].weight.numpy().copy()
    message = r"weights of caffe do not fit lenet5. missing: conv2.bias. not in this network: ip3.weight. other shapes: ip1.weight is \(3, 800\), and \(500, 800\)"
    with pytest.raises(UserError, match=message):
        zoo.load_published(model, "lenet5", values)
    assert np.array_equal(model.layers[0].weight.numpy(), before)


def test_other_classes_leave_the_head_new_only_if_asked() -> None:
    trained, model = zoo.lenet5(classes=10), zoo.lenet5(classes=4)
    values = _published(trained, NAMINGS["lenet5"][0])
    with pytest.raises(UserError, match=r"other shapes: ip2.weight is \(10, 500\), and \(4, 500\) is needed, ip2.bias"):
        zoo.load_published(model, "lenet5", values)
    before = model.layers[-1].weight.numpy().copy()
    loaded = zoo.load_published(model, "lenet5", values, new_head=True)
    assert loaded.new_head == ["layers.6.weight", "layers.6.bias"]
    assert np.array_equal(model.layers[-1].weight.numpy(), before)
    assert np.array_equal(model.layers[0].weight.numpy(), values["conv1.weight"])
    assert zoo.load_published(zoo.lenet5(), "lenet5", values, new_head=True).new_head == []


def test_queries_keys_and_values_are_parts_of_one_transposed_tensor() -> None:
    model = zoo.gpt(11, context=6, features=8, heads=2, layers=2)
    values = _published(model, NAMINGS["gpt2"][0])
    extra = {"lm_head.weight": values["wte.weight"], "h.0.attn.bias": np.ones((1, 1, 6, 6))}
    named = {f"transformer.{n}": v for n, v in values.items()} | extra
    zoo.load_published(model, "gpt2", named)
    key = model.named_tensors()["blocks.1.attention.key.weight"].numpy()
    assert np.array_equal(key, values["h.1.attn.c_attn.weight"][:, 8:16].T)
    assert model(weft.zeros((1, 3), dtype="int64")).shape == (1, 3, 11)
    with pytest.raises(UserError, match="not in this network: lm_head.weight"):
        zoo.load_published(model, "gpt2", named | {"lm_head.weight": values["wte.weight"] + 1})


def _as_keras(name: str, value: np.ndarray) -> np.ndarray:
    """Channels last, as Keras stores it; the first linear layer of VGG follows an image of 7 x 7 that was flattened."""
    if value.ndim == 4:
        return value.transpose(2, 3, 1, 0)
    if name == "fc1.kernel":
        return value.reshape(len(value), -1, 7, 7).transpose(2, 3, 1, 0).reshape(-1, len(value))
    return value.T


def test_weights_of_keras_are_turned_round() -> None:
    """Channels last, colours in the other order, and another epsilon in the batch norms."""
    with without_random_numbers():
        model = zoo.vgg((1, 1, 1, 1, 1), classes=3, width=2, hidden=5)
    naming = _naming("vgg16", "keras")
    own, rng = model.named_tensors(), np.random.default_rng(0)
    wanted = {name: rng.random(t.shape, np.float32) for name, t in own.items()}
    values = {source.name: _as_keras(source.name, wanted[n]) for n, source in sources(model, naming).items()}
    values["block1_conv1.kernel"] = values["block1_conv1.kernel"][:, :, ::-1]  # blue, green, red
    loaded = zoo.load_published(model, "vgg16", values)
    assert (loaded.library, loaded.new_head) == ("keras", [])
    assert all(np.array_equal(t.numpy(), wanted[name]) for name, t in model.named_tensors().items())
    assert loaded.statistics is not None
    assert np.allclose(np.array(loaded.statistics[0]) * 255, (123.68, 116.779, 103.939))


def test_another_epsilon_is_added_to_the_variances() -> None:
    with without_random_numbers():
        model = zoo.densenet((1, 1), classes=3, growth=2, width=4)
    wanted = sources(model, _naming("densenet121", "keras"))
    added = {source.name: source.added for source in wanted.values() if source.added}
    assert set(added) == {source.name for source in wanted.values() if source.name.endswith("moving_variance")}
    assert set(added.values()) == {1.001e-5 - 1e-5}
    values = {source.name: _as_keras("", model.named_tensors()[n].numpy()) for n, source in wanted.items()}
    zoo.load_published(model, "densenet121", values)
    assert np.allclose(model.layers[1].var.numpy() - values["conv1_bn.moving_variance"], 1e-8, rtol=0.2, atol=1e-7)


def test_linear_layers_that_are_stored_as_convolutions() -> None:
    with without_random_numbers():
        model = zoo.vgg((1, 1, 1, 1, 1), classes=3, width=2, hidden=5)
    values = _published(model, _naming("vgg11", "timm"))
    values["pre_logits.fc1.weight"] = values["pre_logits.fc1.weight"].reshape(5, 16, 7, 7)
    zoo.load_published(model, "vgg11", values)
    assert np.array_equal(model.layers[17].weight.numpy(), values["pre_logits.fc1.weight"].reshape(5, -1))


def test_weights_of_another_network() -> None:
    with pytest.raises(
        UserError, match="under the names of caffe are required, got stem.weight. Is it the right network"
    ):
        zoo.load_published(zoo.lenet5(), "lenet5", {"stem.weight": np.zeros(3)})
    with pytest.raises(UserError, match="no names of published weights are known for 'unet'"):
        zoo.load_published(zoo.lenet5(), "unet", {})
