"""Running graphs: nodes whose inputs are known are computed on the host, all others by functions of tensors."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import MutableMapping, Sequence
from typing import Any

from ..errors import Scope as LayerScope
from ..errors import UserError, WeftError, in_scope
from ..tracing.context import outside
from .graph import OnnxGraph, OnnxNode
from .package import onnx_package
from .registry import Handler
from .values import Value, dtype_code, is_known, known, tensor, to_host

Scope = MutableMapping[str, Value]


def run_graph(graph: OnnxGraph, inputs: Sequence[Value], around: Scope | None = None) -> list[Value]:
    """The outputs of a graph. A subgraph sees the values `around` it."""
    own: dict[str, Value] = dict(graph.constants)
    if len(inputs) > len(graph.inputs):
        raise UserError("onnx", f"graph {graph.name!r} takes {len(graph.inputs)} inputs, got {len(inputs)}.")
    own |= dict.fromkeys(graph.inputs[len(inputs) :]) | dict(zip(graph.inputs, inputs, strict=False))
    scope: Scope = own if around is None else ChainMap(own, around)
    run_nodes(graph.nodes, scope)
    return [scope.get(name) for name in graph.outputs]  # a function may leave out results that nobody wants


def run_nodes(nodes: Sequence[OnnxNode], scope: Scope) -> None:
    """Compute nodes in order and put their results into the scope."""
    own = scope.maps[0] if isinstance(scope, ChainMap) else scope
    for node in nodes:
        values = [scope[name] if name else None for name in node.inputs]
        with in_scope(LayerScope(node.name or next(filter(None, node.outputs), ""), node.op)):
            results = compute(node, values, scope)
        if any(node.outputs[len(results) :]):
            raise UserError("onnx", f"node {node} has {len(results)} results, but names {len(node.outputs)}.")
        own.update(zip(node.outputs, results, strict=False))
        for name in node.unused:
            own.pop(name, None)


def compute(node: OnnxNode, values: Sequence[Value], scope: Scope) -> list[Value]:
    """The results of one node."""
    if node.handler is None:
        return run_graph(node.body or node.expand(map(value_type, values)), values)
    try:
        return _handled(node, node.handler, values, NodeCall(node, scope))
    except WeftError as error:
        if "Node " in error.message:
            raise
        raise type(error)(error.where, f"{error.message} Node {node}.", error.source) from error
    except (TypeError, ValueError, IndexError, KeyError, AttributeError, ArithmeticError, AssertionError) as error:
        raise UserError("onnx", f"node {node} cannot be computed: {error}") from error


def _handled(node: OnnxNode, handler: Handler, values: Sequence[Value], call: NodeCall) -> list[Value]:
    extra = {"call": call} if handler.wants_call else {}
    if handler.raw:
        return _several(handler.function(*values, **node.attributes, **extra))
    if handler.foldable and all(map(is_known, values)):
        with outside():
            return [
                to_host(v) for v in _several(handler.function(*_given(handler, values), **node.attributes, **extra))
            ]
    return _several(handler.function(*_given(handler, values), **node.attributes, **extra))


def _given(handler: Handler, values: Sequence[Value]) -> list[Value]:
    """Inputs as the handler wants them."""
    found: list[Value] = []
    for i, value in enumerate(values):
        if value is None or isinstance(value, list):
            found.append(value)
        else:
            found.append(known(value, f"input {i}") if handler.is_host(i) else tensor(value))
    return found


def _several(result: Any) -> list[Value]:
    return list(result) if isinstance(result, tuple) else [result]


class NodeCall:
    """What a handler may ask about its node; see `registry.Call`."""

    def __init__(self, node: OnnxNode, scope: Scope) -> None:
        self._node, self._scope = node, scope

    @property
    def outputs(self) -> int:
        return max((i + 1 for i, name in enumerate(self._node.outputs) if name), default=0)

    @property
    def version(self) -> int:
        return self._node.version

    def run(self, graph: OnnxGraph, inputs: Sequence[Value]) -> list[Value]:
        return run_graph(graph, inputs, self._scope)


def value_type(value: Value) -> Any:
    """The TypeProto of a value."""
    onnx = onnx_package()
    if value is None:
        return onnx.TypeProto()
    if isinstance(value, list):
        kind = onnx.TypeProto()
        kind.sequence_type.elem_type.CopyFrom(value_type(value[0]) if value else onnx.TypeProto())
        return kind
    return onnx_package("helper").make_tensor_type_proto(dtype_code(value), value.shape)
