"""A network and the same network exported and imported compile to the same program: kernels, operations, bytes and memory."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import weft
from weft import nn

TWINS: dict[str, Any] = {
    "convolutions": lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(8, 8, 3, groups=8), nn.SiLU(),
        nn.GlobalAvgPool(), nn.Linear(8, 3),
    ),
    "dense": lambda: nn.Sequential(nn.Linear(16, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", TWINS)
def test_an_imported_network_compiles_to_the_program_of_its_twin(name: str, tmp_path: Path) -> None:
    net = TWINS[name]().eval()
    x = np.random.default_rng(0).normal(size=(2, 3, 16, 16)).astype(np.float32)
    weft.onnx.save(tmp_path / "net.onnx", net, weft.asarray(x[:1]))
    twins = [weft.jit(net), weft.jit(weft.load(tmp_path / "net.onnx").eval())]
    assert np.array_equal(*(twin(x).numpy() for twin in twins))
    own, imported = (twin.explain(x) for twin in twins)
    assert _calls(imported) == _calls(own)
    assert (imported.memory.arena, imported.memory.inputs) == (own.memory.arena, own.memory.inputs)


def _calls(explanation: Any) -> Counter[tuple[Any, ...]]:
    return Counter((row.name, row.flops, row.nbytes) for row in explanation.rows)


def test_numbers_are_constants_of_the_program_and_squares_are_products() -> None:
    nodes = [helper.make_node("Pow", ["x", "two"], ["s"]), helper.make_node("Mul", ["s", "half"], ["y"])]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xy"]
    numbers = [numpy_helper.from_array(np.array(v, np.float32), n) for n, v in (("two", 2), ("half", 0.5))]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], numbers)
    model = weft.onnx.loads(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())
    closed = weft.jit(model).artifact(np.ones(4, np.float32)).graph
    assert len(closed.inputs) == 1
    assert {node.op.name for node in closed.nodes} == {"placeholder", "mul", "const"}
