"""`OnnxModule`: an ONNX model as a module of weft, and `load`, which reads it from a file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..dtypes import as_dtype
from ..errors import UserError, WeftError
from ..nn.module import Module
from ..ops.convert import asarray, parameter
from ..saved.manifest import CONSTANTS
from ..tensor import Tensor
from .files import parse_model, read_model
from .graph import Builder, OnnxGraph, OnnxNode, check_order, opset_versions, reads
from .interpreter import run_nodes
from .ops import op_types as op_types  # fills the table of handlers
from .package import onnx_package
from .values import Value, has_weft_dtype, numpy_dtype, to_tensors


class OnnxPort(NamedTuple):
    """An input or an output of a model. Free dimensions have names, or None if the file gives none."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None

    def __str__(self) -> str:
        sizes = "?" if self.shape is None else ", ".join("?" if n is None else str(n) for n in self.shape)
        return f"{self.name}: {self.dtype}[{sizes}]"


def load(path: str | os.PathLike[str]) -> OnnxModule:
    """Read an ONNX file as a module, whose parameters are the file's weights under their names.

    Opsets from 7 to the newest that the package `onnx` knows can be read. Op types that are not supported are all listed in one error.

        model = weft.onnx.load("resnet50.onnx")
        model.inputs                     # names, dtypes and shapes, free dimensions by name
        predict = weft.jit(model)        # any batch size: a new size is traced again
    """
    model = read_model(path)
    try:
        return OnnxModule(model, Path(path).parent)
    except UserError as error:
        raise UserError(error.where, f"{path}: {error.message}") from None


def loads(content: bytes) -> OnnxModule:
    """Read an ONNX model from bytes; it must not have external data."""
    return OnnxModule(parse_model(content), None)


class OnnxModule(Module):
    """An ONNX model. It computes what the ONNX operator specification says, whether `training` is set or not.

    Weights (float initializers) are parameters under their ONNX names; characters other than letters, digits, `_` and `.` become `_`,
    and `onnx_names` maps them back. Running statistics are state. All other initializers are constants.

    Several results are returned as a tuple. Arguments are given in order or by the names of the inputs.
    """

    def __init__(self, model: Any, folder: Path | None = None) -> None:
        try:
            self._read(model, folder)
        except WeftError:
            raise
        except (TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError, RecursionError) as error:
            # Protobuf keeps texts that are no UTF-8, and numbers out of any range: where they surface is not foreseeable.
            raise UserError("onnx", f"the model is damaged: {error}") from error

    def _read(self, model: Any, folder: Path | None) -> None:
        self._graph = _read_graph(model, folder)
        self.inputs = tuple(
            _port(i) for i in model.graph.input if i.name not in self._graph.constants or i.name in _required(model)
        )
        self.outputs = tuple(_port(o) for o in model.graph.output)
        self.metadata = {entry.key: entry.value for entry in model.metadata_props}
        self.onnx_names: dict[str, str] = {}
        self._tensors: dict[str, str] = {}  # attribute by ONNX name
        self._folded: dict[str, Value] = {}
        self._take_weights()
        self._constant_nodes, self._nodes = _split_constant(self._graph)

    @property
    def argument_names(self) -> list[str]:
        """The names of the inputs."""
        return [port.name for port in self.inputs]

    @property
    def facts(self) -> dict[str, Any]:
        """What `weft.onnx.save` and `weft export` wrote beside the model (labels, preprocessing, metrics, licence, origin); empty for models of
        other programs, whose metadata is only text."""
        if not self.metadata.get("producer", "").startswith("weft "):
            return {}
        return {key: _parsed(text) for key, text in self.metadata.items() if key != "producer"}

    @property
    def labels(self) -> list[str] | None:
        """The names of the classes, if weft wrote the model."""
        return self.facts.get("labels")

    def _take_weights(self) -> None:
        """Make parameters and state of the initializers that are weights."""
        taken = set(dir(type(self))) | set(vars(self)) | {"training"}
        for onnx_name, trained in weights(self._graph).items():
            name = _attribute_name(onnx_name, taken)
            taken.add(name)
            value = asarray(self._graph.constants.pop(onnx_name))
            setattr(self, name, parameter(value) if trained else value.realize())
            self.onnx_names[name] = onnx_name
            self._tensors[onnx_name] = name

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model."""
        scope = self.known_values()
        scope |= {name: getattr(self, attribute) for name, attribute in self._tensors.items()}
        scope |= self._arguments(args, kwargs)
        run_nodes(self._nodes, scope)
        results = [to_tensors(scope[name]) for name in self._graph.outputs]
        return results[0] if len(results) == 1 else tuple(results)

    def _known_results(self) -> dict[str, Value]:
        """What follows from constants alone is computed once, at the first call."""
        if self._constant_nodes and not self._folded:
            scope: dict[str, Value] = dict(self._graph.constants)
            before = set(scope)
            run_nodes(self._constant_nodes, scope)
            self._folded = {n: v for n, v in scope.items() if n not in before}
        return self._folded

    def _arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Value]:
        names = [port.name for port in self.inputs]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        missing, extra = [n for n in names if n not in given], [n for n in given if n not in names]
        missing = [n for n in missing if n not in self._graph.constants]
        if missing or extra or len(args) > len(names) or len(given) < len(args) + len(kwargs):
            raise UserError(
                "onnx", f"the inputs {', '.join(map(str, self.inputs))} are required, got {len(args)} in order and "
                f"{sorted(kwargs) or 'none'} by name.",
            )  # fmt: skip
        sizes: dict[str, int] = {}
        return {port.name: _argument(port, given[port.name], sizes) for port in self.inputs if port.name in given}

    def nodes(self) -> list[OnnxNode]:
        """The nodes of the graph in order, without those that follow from constants."""
        return list(self._nodes)

    def known_values(self) -> dict[str, Value]:
        """The values of constants and of what follows from constants alone, by their ONNX names."""
        return {**self._graph.constants, **self._known_results()}

    def final_op(self, output: str) -> str | None:
        """The type of the op that computes an output, behind ops that only copy or reshape it."""
        makers = {name: node for node in self._graph.nodes for name in node.outputs}
        node = makers.get(output)
        while node is not None and node.op in ("Identity", "Cast", "Reshape", "Flatten", "Squeeze"):
            node = makers.get(node.inputs[0])
        return None if node is None else node.op

    def details(self) -> str:
        """The inputs and outputs, for `repr`."""
        return f"{', '.join(map(str, self.inputs))} -> {', '.join(map(str, self.outputs))}"


def _read_graph(model: Any, folder: Path | None) -> OnnxGraph:
    opsets = opset_versions(model.opset_import)
    newest = onnx_package("defs").onnx_opset_version()
    version = opsets.get("", newest)
    if not 1 <= version <= newest:
        raise UserError(
            "onnx", f"an opset up to {newest} is required, got {version}. A newer package onnx may know it."
        )
    builder = Builder(model, folder)
    graph = builder.graph(model.graph, opsets)
    if builder.unsupported:
        listed = "; ".join(f"{what} (nodes {_some(names)})" for what, names in sorted(builder.unsupported.items()))
        raise UserError("onnx", f"the model uses what weft does not support: {listed}.")
    check_order(graph)
    _merge_constant_nodes(graph)
    return graph


def _some(names: list[str], limit: int = 20) -> str:
    shown = ", ".join(repr(n) for n in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def _merge_constant_nodes(graph: OnnxGraph) -> None:
    """Tensors of Constant nodes are initializers: older exporters write weights so."""
    rest = []
    for node in graph.nodes:
        value = node.attributes.get("value")
        if node.op == "Constant" and not node.domain and isinstance(value, np.ndarray):
            graph.constants[node.outputs[0]] = value
        else:
            rest.append(node)
    graph.nodes = rest


# --- weights ---------------------------------------------------------------------------------------------------------------

# Inputs that are never trained: running statistics, scales of quantization, bounds.
_STATE = {"BatchNormalization": (3, 4)}
_NOT_TRAINED = {"Clip", "Pad", "Resize", "Upsample", "OneHot", "Where", "Range", "Dropout", "NonMaxSuppression"}
_QUANTIZED = re.compile("Quantize|Dequantize|QLinear|Integer")
_SINGLE = {"Conv", "ConvTranspose", "Gemm", "MatMul", "PRelu", "BatchNormalization", "LayerNormalization"}


def _parsed(text: str) -> Any:
    """A fact as it was before it was written: lists and dicts are JSON."""
    if not text.startswith(("[", "{")):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def weights(graph: OnnxGraph) -> dict[str, bool]:
    """The initializers that are tensors of the module, and whether they are trained.

    One element alone is a weight only as an input of a layer: elsewhere it is a constant of a formula, such as an epsilon.
    """
    found: dict[str, bool] = {}
    outputs = set(graph.outputs)
    for node in graph.nodes:
        for position, name in enumerate(node.inputs):
            value = graph.constants.get(name)
            if value is None or name in outputs or CONSTANTS in name or not _is_float(value):
                continue
            if position in _STATE.get(node.op, ()):
                found.setdefault(name, False)
            elif _trains(node, position, value):
                found[name] = True
    shared = {name for node in graph.nodes for i, name in enumerate(node.inputs) if not _may_be_tensor(node, i)}
    return {name: trained for name, trained in found.items() if name not in shared}


def _is_float(value: np.ndarray) -> bool:
    return has_weft_dtype(value) and as_dtype(value.dtype).is_float


def _trains(node: OnnxNode, position: int, value: np.ndarray) -> bool:
    if not _may_be_tensor(node, position) or node.op in _NOT_TRAINED or _QUANTIZED.search(node.op):
        return False
    return value.ndim > 0 and (value.size > 1 or node.op in _SINGLE)


def _may_be_tensor(node: OnnxNode, position: int) -> bool:
    return node.handler is None or not node.handler.is_host(position)


def _attribute_name(name: str, taken: set[str]) -> str:
    plain = re.sub(r"[^\w.]", "_", name, flags=re.ASCII).strip("_.") or "weight"
    plain = plain if not plain[0].isdigit() else f"w{plain}"
    found, number = plain, 2
    while found in taken:
        found, number = f"{plain}_{number}", number + 1
    return found


def _split_constant(graph: OnnxGraph) -> tuple[list[OnnxNode], list[OnnxNode]]:
    """The nodes that depend on constants alone, and all others."""
    constant, rest = [], []
    made = {"", *graph.constants}
    fixed = made - set(graph.inputs)
    for node in graph.nodes:
        plain = node.handler is not None and node.handler.foldable and not _has_graph(node)
        if plain and all(name in fixed for name in node.inputs):
            constant.append(node)
            fixed |= set(node.outputs)
        else:
            rest.append(node)
    read = {name for node in rest for name in reads(node)} | set(graph.outputs)
    for node in constant:  # kept: they are read at every call
        node.unused = tuple(n for n in node.unused if n not in read and n not in graph.constants)
    for node in rest:
        node.unused = tuple(n for n in node.unused if n not in fixed)
    return constant, rest


def _has_graph(node: OnnxNode) -> bool:
    return any(isinstance(a, OnnxGraph) for a in node.attributes.values())


# --- inputs and outputs ------------------------------------------------------------------------------------------------------


def _required(model: Any) -> set[str]:
    """Inputs without a default: until IR version 4 every initializer is listed as an input, too."""
    return {i.name for i in model.graph.input} - {t.name for t in model.graph.initializer}


def _port(info: Any) -> OnnxPort:
    kind = info.type.WhichOneof("value")
    if kind != "tensor_type":
        return OnnxPort(info.name, (kind or "unknown").removesuffix("_type"), None)
    tensor_type = info.type.tensor_type
    shape = None
    if tensor_type.HasField("shape"):
        shape = tuple(map(_size, tensor_type.shape.dim))
    code = tensor_type.elem_type
    return OnnxPort(info.name, "unknown" if not code else "string" if code == 8 else numpy_dtype(code).name, shape)


def _size(dimension: Any) -> int | str | None:
    """A size, the name of a free one, or None; some exporters write -1 or "?" for all free ones."""
    if dimension.HasField("dim_value"):
        return int(dimension.dim_value) if dimension.dim_value >= 0 else None
    return None if dimension.dim_param in ("", "?") else str(dimension.dim_param)


def _argument(port: OnnxPort, value: Any, sizes: dict[str, int]) -> Value:
    if value is None or (isinstance(value, list) and port.dtype in ("sequence", "optional")):
        return None if value is None else [_argument(OnnxPort(port.name, "unknown", None), v, sizes) for v in value]
    if isinstance(value, np.ndarray) and not has_weft_dtype(value):
        return value  # strings and small floats stay on the host
    value = value if isinstance(value, Tensor) else asarray(value)
    if port.dtype in ("unknown", "optional", "sequence", "string"):
        return value
    if value.dtype.name != port.dtype:
        raise UserError("onnx", f"input {port} is required, got {value.dtype.name} of shape {value.shape}.")
    if port.shape is not None and not _fits(port.shape, value.shape, sizes):
        raise UserError("onnx", f"input {port} is required, got shape {value.shape}.")
    return value


def _fits(wanted: tuple[int | str | None, ...], given: tuple[int, ...], sizes: dict[str, int]) -> bool:
    """Whether a shape fits: equal names stand for equal sizes."""
    if len(wanted) != len(given):
        return False
    return all(
        w is None or (sizes.setdefault(w, g) == g if isinstance(w, str) else w == g)
        for w, g in zip(wanted, given, strict=True)
    )
