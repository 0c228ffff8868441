"""Recurrent layers: a scan whose body is the step of `nn.RNN`, `nn.LSTM` or `nn.GRU` becomes the op of that name.

Equal bodies of scans are equal graphs, so a step is recognized by comparing it with that of a layer of the same sizes. Weights are
stored in ONNX's order of gates. Other scans, such as those with lengths of sequences, stay `Scan`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ...graph import Graph
from ...graph.node import Node
from ...nn.cells import GRU_KIND, LSTM_KIND, RNN_KIND, CellType
from ...nn.module import without_values
from ...nn.recurrent import RecurrentDirection
from ...ops.creation import zeros
from .control_flow import reads_history
from .match import is_scalar, pairs, vector_along
from .translator import Match, OnnxValue, Translator, matches


class _Op(NamedTuple):
    """A cell, its activation, and ONNX's order of its gates."""

    kind: CellType
    activation: str
    gates: tuple[int, ...]
    attributes: dict[str, object]


_OPS = (
    _Op(RNN_KIND, "tanh", (0,), {}),
    _Op(RNN_KIND, "relu", (0,), {"activations": ["Relu"]}),
    _Op(LSTM_KIND, "tanh", (0, 3, 1, 2), {}),
    _Op(GRU_KIND, "tanh", (1, 0, 2), {"linear_before_reset": 1}),
)


class _RecurrentLayer(NamedTuple):
    """The operands of a recurrent layer; biases are vectors that are added."""

    op: _Op
    x: Node
    weight_in: Node
    weight_hidden: Node
    biases_in: Sequence[Node]
    biases_hidden: Sequence[Node]


@matches("scan")
def recurrent_layer(t: Translator, node: Node) -> Match | None:
    carried, sequences = node.get_params("carried", "sequences")
    outputs = len(node.param("body").outputs)
    if sequences != 1 or not 1 <= carried <= 2 or node.inputs[0].dtype.name != "float32":
        return None
    found = _step(node, node.inputs[carried + 1 :])
    layer = None if found is None else _projected(node.inputs[carried], *found)
    if layer is None or reads_history(t, node, outputs) or not _are_stored(t, layer):
        return None
    begins = [n for n in node.inputs[:carried] if not is_scalar(t, n, 0.0)]
    states = list(node.inputs[:carried]) if begins else []
    return Match([layer.x, *states], lambda: _write(t, node, layer, states))


def _step(node: Node, constants: Sequence[Node]) -> tuple[_Op, Node, Sequence[Node]] | None:
    """The op of a scan's body, its hidden weights, and the bias that only its hidden product has."""
    batch, hidden = node.inputs[0].shape if len(node.inputs[0].shape) == 2 else (0, 0)
    if not constants or len(constants) > 2 or constants[0].shape[-1:] != (hidden,):
        return None
    body = node.param("body")
    for op in _OPS:
        # The biases of a cell that joins them are not part of its step.
        has_bias = len(constants) == 2 or op.kind.joins_biases
        rows = op.kind.gates * hidden
        if constants[0].shape[0] == rows and body == _reference(op.kind, op.activation, batch, hidden, has_bias):
            return op, constants[0], constants[1:]
    return None


@lru_cache(64)
def _reference(kind: CellType, activation: str, batch: int, hidden: int, bias: bool) -> Graph:
    """The body of the scan of a layer."""
    with without_values():
        layer = RecurrentDirection(kind, 1, hidden, bias, activation, reverse=False)
        outputs, _ = layer(zeros((1, batch, 1)), None, None)
    body: Graph = outputs.node.inputs[0].param("body")
    return body


def _projected(product: Node, op: _Op, weight_hidden: Node, biases_hidden: Sequence[Node]) -> _RecurrentLayer | None:
    """The layer, if the sequence of the scan is x W_in^T + b_in."""
    for total, added in pairs(product, "add"):
        bias = vector_along(added, 2) if total.op.name == "contract" else None
        if bias is not None:
            biases = list(bias.inputs) if bias.op.name == "add" else [bias]
            return _projected_by(total, op, weight_hidden, biases, biases_hidden)
    return _projected_by(product, op, weight_hidden, [], biases_hidden)


def _projected_by(
    product: Node, op: _Op, weight_hidden: Node, biases_in: Sequence[Node], biases_hidden: Sequence[Node]
) -> _RecurrentLayer | None:
    if product.op.name != "contract" or [len(i.shape) for i in product.inputs] != [3, 2]:
        return None
    (x, transposed), (a, b, out) = product.inputs, product.get_params("a", "b", "out")
    is_linear = b[0] == a[-1] and out == a[:-1] + b[1]
    if not is_linear or transposed.op.name != "permute" or bool(biases_hidden) > bool(biases_in):
        return None
    return _RecurrentLayer(op, x, transposed.inputs[0], weight_hidden, biases_in, biases_hidden)


def _are_stored(t: Translator, layer: _RecurrentLayer) -> bool:
    """Whether all weights are initializers: their gates are put into ONNX's order while the model is written."""
    weights = (layer.weight_in, layer.weight_hidden, *layer.biases_in, *layer.biases_hidden)
    return all(n in t.values and t.value(n).name in t.model.initializers for n in weights)


def _write(t: Translator, node: Node, layer: _RecurrentLayer, states: Sequence[Node]) -> list[OnnxValue]:
    op, carried = layer.op, node.param("carried")
    weights = [_reordered(t, op, weight) for weight in (layer.weight_in, layer.weight_hidden)]
    bias = _bias(t, layer) if layer.biases_in else ""
    begins = [t.out.add("Unsqueeze", t.full(n), t.model.constant([0])) for n in states]
    inputs = [t.full(layer.x), *weights, bias, "", *begins]
    while not inputs[-1]:
        inputs.pop()
    direction = {"direction": "reverse"} if node.param("reverse") else {}
    attributes = {"hidden_size": layer.weight_hidden.shape[1], **op.attributes, **direction}
    names = t.out.add(op.kind.name, *inputs, outputs=1 + carried, **attributes)
    axes = [t.model.constant([axis]) for axis in (0, 1)]
    last = [t.out.add("Squeeze", name, axes[0]) for name in names[1:]]
    found = [*last, t.out.add("Squeeze", names[0], axes[1])]
    return [OnnxValue(name, t.output_dims(node, i)) for i, name in enumerate(found)]


def _reordered(t: Translator, op: _Op, node: Node) -> str:
    """A weight with ONNX's order of gates, as an initializer with an axis of directions."""
    name = t.value(node).name
    return t.model.store(f"{name}.onnx", _gates(op, t.model.initializers[name])[None])


def _bias(t: Translator, layer: _RecurrentLayer) -> str:
    """The biases of the input and of the hidden product, one after the other; those that are only added may be joined."""
    stored = t.model.initializers
    total = [stored[t.value(n).name] for n in layer.biases_in]
    hidden = [stored[t.value(n).name] for n in layer.biases_hidden] or total[1:]
    first = total[0] if hidden else sum(total[1:], total[0])
    parts = [_gates(layer.op, p) for p in (first, hidden[0] if hidden else np.zeros_like(first))]
    return t.model.store(f"{t.value(layer.biases_in[0]).name}.onnx", np.concatenate(parts)[None])


def _gates(op: _Op, value: np.ndarray) -> np.ndarray:
    gates = value.reshape(op.kind.gates, -1, *value.shape[1:])
    return np.ascontiguousarray(gates[list(op.gates)].reshape(value.shape))
