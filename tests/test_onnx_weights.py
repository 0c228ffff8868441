"""Training from the weights of ONNX models: by weft's names, by those of a library, and layer by layer where names are lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import weft
from weft import nn, zoo
from weft.cli import main
from weft.errors import UserError
from weft.io import load_weights
from weft.jobs.weights import load_initial_weights
from weft.zoo.published import NAMINGS
from weft.zoo.published.naming import sources


def network(classes: int = 4, width: int = 4) -> nn.Module:
    """A thin ResNet with a projection, whose batch norms do something."""
    weft.seed(3)
    net, rng = zoo.resnet((1, 1), classes, width=width).eval(), np.random.default_rng(classes)
    for name, tensor in net.named_tensors().items():
        if tensor.ndim == 1:
            start = 1.0 if name.endswith(("scale", "var")) else 0.0
            tensor.assign(start + 0.1 * rng.random(tensor.shape).astype(np.float32))
    return net


@pytest.fixture
def file(tmp_path: Path) -> Path:
    weft.onnx.save(tmp_path / "net.onnx", network(), weft.zeros((1, 3, 32, 32)))
    return tmp_path / "net.onnx"


def renamed(path: Path, name: Callable[[str], str]) -> None:
    proto = onnx.load(path)
    names = {tensor.name: name(tensor.name) for tensor in proto.graph.initializer}
    for tensor in proto.graph.initializer:
        tensor.name = names[tensor.name]
    for node in proto.graph.node:
        node.input[:] = [names.get(i, i) for i in node.input]
    onnx.save(proto, path)


def folded(path: Path) -> None:
    """Fold batch norms into convolutions, as PyTorch's exporter does; names are lost."""
    proto = onnx.load(path)
    values = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    nodes: list[Any] = []
    for node in proto.graph.node:
        if node.op_type == "BatchNormalization":
            conv = nodes[-1]
            scale, shift, mean, var = (values[i] for i in node.input[1:])
            factor = scale / np.sqrt(var + node.attribute[0].f)
            values[conv.input[1]] = values[conv.input[1]] * factor.reshape(-1, 1, 1, 1)
            values[f"{conv.name}.b"] = shift - mean * factor
            conv.input.append(f"{conv.name}.b")
            conv.output[0] = node.output[0]
        else:
            nodes.append(node)
    used = {i for node in nodes for i in node.input}
    tensors = [numpy_helper.from_array(v, n) for n, v in values.items() if n in used]
    graph = helper.make_graph(nodes, "g", proto.graph.input, proto.graph.output, tensors)
    onnx.save(helper.make_model(graph, opset_imports=proto.opset_import, ir_version=proto.ir_version), path)
    counter = iter(range(1000))
    renamed(path, lambda name: f"onnx::Conv_{next(counter)}")


@pytest.mark.sweep(share=1.0)
@pytest.mark.parametrize("how", ["own names", "torchvision", "in order", "folded"])
def test_a_network_begins_with_the_weights_of_a_model(file: Path, how: str) -> None:
    if how == "torchvision":
        names = {own: source.name for own, source in sources(network(), NAMINGS["resnet18"][0]).items()}
        renamed(file, lambda name: names.get(name, name))
    elif how == "in order":
        counter = iter(range(1000))
        renamed(file, lambda name: f"p{next(counter)}")
    elif how == "folded":
        folded(file)
    fresh = zoo.resnet((1, 1), 4, width=4).eval()
    begun = load_initial_weights(fresh, "resnet18", str(file))
    assert sorted(begun.names) == sorted(fresh.named_tensors())
    x = weft.asarray(np.random.default_rng(1).normal(size=(2, 3, 32, 32)).astype(np.float32))
    np.testing.assert_allclose(fresh(x).numpy(), network()(x).numpy(), rtol=1e-4, atol=1e-6)
    assert begun.new_head == []


def test_a_head_for_other_classes_stays_new(file: Path) -> None:
    folded(file)
    fresh = zoo.resnet((1, 1), 7, width=4)
    before = fresh.named_tensors()["layers.4.weight"].numpy()
    begun = load_initial_weights(fresh, "resnet18", str(file))
    assert begun.new_head == ["layers.4.weight", "layers.4.bias"]
    assert np.array_equal(fresh.named_tensors()["layers.4.weight"].numpy(), before)


def test_layers_that_do_not_fit_are_listed(file: Path) -> None:
    folded(file)
    with pytest.raises(UserError, match=r"has a weight of \(4, 3, 7, 7\), and .* needs \(8, 3, 7, 7\)"):
        load_initial_weights(zoo.resnet((1, 1), 4, width=8), "resnet18", str(file))
    with pytest.raises(UserError, match=r"its 7 layers do not fit the 17 of the network: .*nothing is left for"):
        load_initial_weights(zoo.resnet((1, 2), 4, width=4), "resnet18", str(file))
    with pytest.raises(UserError, match="more layers from"):
        load_initial_weights(zoo.resnet((1,), 4, width=4), "resnet18", str(file))
    with pytest.raises(UserError, match="names that are kept are required"):
        load_initial_weights(zoo.vit(4, size=8, patch=4, features=8, heads=2, layers=1), "vit_tiny", str(file))


def test_training_from_a_model_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    net = zoo.lenet5().eval()
    weft.onnx.save("a.onnx", net, weft.zeros((1, 1, 28, 28)))
    renamed(tmp_path / "a.onnx", lambda name: f"{name}.renamed")
    words = ["model=lenet5", "weights=a.onnx", "rate=1e-12", "epochs=1", "batch=64", "overfit=1", "name=a"]
    assert main(["train", "digits", *words]) == 0
    trained = load_weights("runs/classify/a/weights/best.safetensors")
    for name, value in net.named_tensors().items():
        np.testing.assert_allclose(trained[name], value.numpy(), atol=1e-8)
