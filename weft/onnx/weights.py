"""The weights of an ONNX model for a network of the zoo: by name, or, where the exporter has replaced the names, layer by layer.

Exporters fold batch norms into convolutions and rename what they changed. Then layers are assigned in the order of the graph; every
shape must fit. A batch norm that was folded gets the bias of its convolution and statistics that change nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

import numpy as np

from ..errors import UserError
from ..nn.module import Module
from ..records import dataclass
from .graph import OnnxNode
from .module import OnnxModule, load

PREFIX = "network."  # of names in models that `weft export` wrote: the network with its preprocessing
NORMS = ("scale", "shift", "mean", "var")
SHOWN = 8  # problems in a message


def load_onnx_weights(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The weights and running statistics of a model by their names in the file."""
    model = load(path)
    found = {onnx_name: getattr(model, name).numpy() for name, onnx_name in model.onnx_names.items()}
    if all(name.startswith(PREFIX) for name in found):
        return {name.removeprefix(PREFIX): value for name, value in found.items()}
    return found


@dataclass
class _Layer:
    """The tensors of one layer by role, and the name of its node or module."""

    name: str
    tensors: dict[str, Any]
    eps: float = 0.0

    @property
    def is_norm(self) -> bool:
        return "var" in self.tensors


def assign_in_order(model: Module, path: str | os.PathLike[str]) -> tuple[dict[str, np.ndarray], list[str]]:
    """Values for all tensors of a network, layer by layer, and the tensors of its head if that has another number of classes.

    An error lists the layers that are missing, extra, or of other shapes.
    """
    wanted, given = list(_layers_of_module(model)), list(_layers_of_graph(load(path)))
    found: dict[str, np.ndarray] = {}
    problems: list[str] = []
    rest, before = iter(given), None
    layer = next(rest, None)
    for own in wanted:
        if own.is_norm and before is not None and "bias" in before.tensors and (layer is None or not layer.is_norm):
            found |= _folded_norm(own, before.tensors.pop("bias"))
            before = None
            continue
        if before is not None and before.tensors:
            problems.append(f"{before.name} has {', '.join(before.tensors)}, which the network has not")
        if layer is None:
            problems.append(f"nothing is left for {own.name}")
            continue
        problems += _take(own, layer, found, is_head=own is wanted[-1])
        before, layer = layer, next(rest, None)
    if layer is not None:
        problems.append(f"{1 + sum(1 for _ in rest)} more layers from {layer.name} on")
    head = [f"{wanted[-1].name}.{role}" for role in wanted[-1].tensors] if wanted else []
    kept = [name for name in head if name in found and found[name].shape != model.named_tensors()[name].shape]
    if problems:
        more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise UserError(
            "weights",
            f"{path} has other names than the network, and in order its {len(given)} layers do not fit the {len(wanted)} of the network: "
            f"{'; '.join(problems[:SHOWN])}{more}.",
        )
    return {name: value for name, value in found.items() if not kept or name not in head}, head if kept else []


def _take(own: _Layer, layer: _Layer, found: dict[str, np.ndarray], is_head: bool) -> list[str]:
    """Assign the tensors of a layer of the file; what does not fit. A head may be for another number of classes."""
    problems = []
    for role, tensor in own.tensors.items():
        value = layer.tensors.pop(role, None)
        if value is None:
            problems.append(f"{layer.name} has no {role} for {own.name}")
            continue
        if role == "var" and layer.eps != own.eps:
            value = value + np.float32(layer.eps - own.eps)
        if value.size == np.prod(tensor.shape) and value.ndim != len(tensor.shape):
            value = value.reshape(tensor.shape)  # a 1 x 1 convolution over one pixel is a linear layer
        if value.shape[1:] != tensor.shape[1:] or (value.shape != tensor.shape and not is_head):
            problems.append(f"{layer.name} has a {role} of {value.shape}, and {own.name} needs {tensor.shape}")
        found[f"{own.name}.{role}"] = value
    return problems


def _folded_norm(own: _Layer, bias: np.ndarray) -> dict[str, np.ndarray]:
    """A batch norm that only adds a bias."""
    one = np.ones_like(bias)
    values = {"scale": one * np.float32(np.sqrt(1 + own.eps)), "shift": bias, "mean": 0 * one, "var": one}
    return {f"{own.name}.{role}": values[role] for role in own.tensors}


def _layers_of_module(model: Module) -> Iterator[_Layer]:
    modules = model.named_modules()
    for owner, names in groupby(model.named_tensors().items(), lambda item: item[0].rpartition(".")[0]):
        tensors = {name.rpartition(".")[2]: tensor for name, tensor in names}
        if not {*tensors} <= {"weight", "bias", *NORMS}:
            raise UserError(
                "weights",
                f"names that are kept are required for {owner or type(model).__name__}, whose tensors are {', '.join(tensors)}: only convolutions, "
                "linear layers and norms are assigned in order.",
            )
        yield _Layer(owner, tensors, float(getattr(modules[owner], "eps", 0.0)))


def _layers_of_graph(model: OnnxModule) -> Iterator[_Layer]:
    """The layers of the graph in order; a bias may be added by a node of its own."""
    values = _constants(model)
    last: tuple[str, _Layer] | None = None  # the layer whose result comes next
    for node in model.nodes():
        arrays = [values.get(name) for name in node.inputs]
        layer = _layer(node, arrays)
        if layer is not None:
            if last is not None:
                yield last[1]
            last = (node.outputs[0], layer)
        elif node.op == "Add" and last is not None and last[0] in node.inputs:
            bias = next((a for a in arrays if a is not None), None)
            weight = last[1].tensors.get("weight")
            if bias is not None and weight is not None and bias.size == weight.shape[0]:
                last[1].tensors.setdefault("bias", bias.reshape(-1))
    if last is not None:
        yield last[1]


def _constants(model: OnnxModule) -> Mapping[str, np.ndarray]:
    weights = {onnx_name: getattr(model, name).numpy() for name, onnx_name in model.onnx_names.items()}
    return {n: v for n, v in model.known_values().items() if isinstance(v, np.ndarray)} | weights


def _layer(node: OnnxNode, arrays: list[np.ndarray | None]) -> _Layer | None:
    name = node.name or node.outputs[0]
    if node.op in ("BatchNormalization", "LayerNormalization"):
        tensors = {role: a for role, a in zip(NORMS, arrays[1:], strict=False) if a is not None}
        return _Layer(name, tensors, float(node.attributes.get("epsilon", 1e-5)))
    if node.op not in ("Conv", "ConvTranspose", "Gemm", "MatMul") or len(arrays) < 2 or arrays[1] is None:
        return None
    weight, bias = arrays[1], arrays[2] if len(arrays) > 2 else None
    if node.op == "MatMul" or (node.op == "Gemm" and not node.attributes.get("transB", 0)):
        weight = weight.T
    return _Layer(name, {"weight": weight} | ({} if bias is None else {"bias": bias.reshape(-1)}))
