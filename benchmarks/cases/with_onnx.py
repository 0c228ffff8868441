"""Inference as ONNX Runtime does it: the words of the networks write a model, which it then optimizes and runs."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from .measure import Ready
from .networks import Supply, Task
from .peers import need

OPSET = 17


class OnnxOps:
    """Words that write nodes; values are names."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []

    def _node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(need("onnx").helper.make_node(kind, inputs, [name], **attributes))
        return name

    def conv(self, x: str, w: str, b: str = "", stride: int = 1, padding: int = 0) -> str:
        return self._node("Conv", x, w, *([b] if b else []), strides=[stride] * 2, pads=[padding] * 4)

    def linear(self, x: str, w: str, b: str) -> str:
        return self._node("Gemm", x, w, b, transB=1)

    def relu(self, x: str) -> str:
        return self._node("Relu", x)

    def add(self, x: str, y: str) -> str:
        return self._node("Add", x, y)

    def max_pool(self, x: str, size: int, stride: int, padding: int = 0) -> str:
        return self._node("MaxPool", x, kernel_shape=[size] * 2, strides=[stride] * 2, pads=[padding] * 4)

    def mean_pool(self, x: str) -> str:
        return self.flatten(self._node("GlobalAveragePool", x))

    def flatten(self, x: str) -> str:
        return self._node("Flatten", x)


def model(task: Task) -> bytes:
    """The task's network as an ONNX model; the parameters are part of it."""
    onnx = need("onnx")
    helper, ops = onnx.helper, OnnxOps()
    weights = {f"p{i}": p for i, p in enumerate(task.fresh.parameters)}
    result = task.network(ops, Supply(list(weights)), "x")
    graph = helper.make_graph(
        ops.nodes,
        "network",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, task.shape)],
        [helper.make_tensor_value_info(result, onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    return bytes(made.SerializeToString())


def inference(task: Task) -> Ready:
    runtime = need("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = int(os.environ["OMP_NUM_THREADS"])
    options.inter_op_num_threads = 1
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = runtime.InferenceSession(model(task), options, providers=["CPUExecutionProvider"])
    x = np.ascontiguousarray(task.batch()[0])
    return Ready(lambda: session.run(None, {"x": x}), lambda: session.run(None, {"x": x}))
