"""ONNX graphs as weft reads them: protobuf messages become `Graph`s of `Node`s, with handlers found and functions expanded.

Op types without a handler may be functions: those of the model itself, and those whose bodies the `onnx` package knows. A body that
depends on the types of its inputs is made when the node is first computed. Whatever is not supported is collected, not raised at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError
from ..records import dataclass
from .files import to_array
from .package import onnx_package
from .registry import Handler, find

OLDEST_OPSET = 7
NODE_LIMIT = 1_000_000  # functions that call functions could expand without end


@dataclass(eq=False)
class OnnxNode:
    """One node: its handler computes it, or its `body`, if it is a call of a function."""

    op: str
    domain: str
    version: int
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    handler: Handler | None = None
    body: OnnxGraph | None = None
    expand: Any = None  # a function of the types of the inputs, for bodies that depend on them
    unused: tuple[str, ...] = ()  # values that no later node reads

    def __str__(self) -> str:
        return f"{self.op} {self.name!r}" if self.name else self.op


@dataclass(eq=False)
class OnnxGraph:
    """A graph or the body of a function."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: dict[str, np.ndarray]
    nodes: list[OnnxNode]


class Builder:
    """Builds graphs of one model."""

    def __init__(self, model: Any, folder: Path | None) -> None:
        self.folder = folder
        self.opsets = opset_versions(model.opset_import)
        self.functions = {(f.domain, f.name): f for f in model.functions}
        self.unsupported: dict[str, list[str]] = {}
        self.count = 0
        self._calling: list[tuple[str, str]] = []

    def graph(self, proto: Any, opsets: Mapping[str, int], arguments: Mapping[str, Any] | None = None) -> OnnxGraph:
        """A graph, or a subgraph in the body of a function that is called with these attributes."""
        if proto.sparse_initializer:
            self._refuse("sparse initializers", proto.name)
        constants = {t.name: to_array(t, self.folder) for t in proto.initializer}
        nodes = [self.node(n, opsets, arguments) for n in proto.node]
        inputs = tuple(i.name for i in proto.input)
        return finish(OnnxGraph(proto.name, inputs, tuple(o.name for o in proto.output), constants, nodes))

    def function(self, proto: Any, arguments: Mapping[str, Any]) -> OnnxGraph:
        """The body of a function for a call with these attributes."""
        opsets = {**self.opsets, **opset_versions(proto.opset_import)}
        values = {**self._defaults(proto), **arguments}
        nodes = [self.node(n, opsets, values) for n in proto.node]
        return finish(OnnxGraph(proto.name, tuple(proto.input), tuple(proto.output), {}, nodes))

    def _defaults(self, proto: Any) -> dict[str, Any]:
        return {a.name: self._value(a, {}, {}) for a in proto.attribute_proto}

    def node(self, proto: Any, opsets: Mapping[str, int], arguments: Mapping[str, Any] | None) -> OnnxNode:
        self.count += 1
        if self.count > NODE_LIMIT:
            raise UserError(
                "onnx", f"a model of at most {NODE_LIMIT:,} nodes is required, after expanding its functions."
            )
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        node = OnnxNode(
            proto.op_type, domain, opsets.get(domain, 0), proto.name, tuple(proto.input), tuple(proto.output),
            self._attributes(proto, opsets, arguments),
        )  # fmt: skip
        if not node.domain and 0 < node.version < OLDEST_OPSET and not means_the_same(node.op, node.version):
            self._refuse(f"{node.op} of opset {node.version}", node.name)
        else:
            self._resolve(node, proto)
        return node

    def _attributes(self, proto: Any, opsets: Mapping[str, int], arguments: Mapping[str, Any] | None) -> dict[str, Any]:
        found = {}
        for attribute in proto.attribute:
            if attribute.ref_attr_name:
                if arguments is not None and attribute.ref_attr_name in arguments:
                    found[attribute.name] = arguments[attribute.ref_attr_name]
            else:
                found[attribute.name] = self._value(attribute, opsets, arguments)
        return found

    def _value(self, attribute: Any, opsets: Mapping[str, int], arguments: Mapping[str, Any] | None) -> Any:
        kinds = onnx_package().AttributeProto
        kind = attribute.type
        if kind == kinds.FLOAT:
            return attribute.f
        if kind == kinds.INT:
            return attribute.i
        if kind == kinds.STRING:
            return attribute.s.decode("utf-8", "replace")
        if kind == kinds.TENSOR:
            return to_array(attribute.t, self.folder)
        if kind == kinds.GRAPH:
            return self.graph(attribute.g, opsets, arguments)
        if kind in (kinds.FLOATS, kinds.INTS):
            return tuple(attribute.floats if kind == kinds.FLOATS else attribute.ints)
        if kind == kinds.STRINGS:
            return tuple(text.decode("utf-8", "replace") for text in attribute.strings)
        if kind == kinds.TENSORS:
            return tuple(to_array(t, self.folder) for t in attribute.tensors)
        if kind == kinds.TYPE_PROTO:
            return attribute.tp
        raise UserError("onnx", f"attribute {attribute.name!r} has the type {kind}, which is not supported.")

    # --- handlers and functions ----------------------------------------------------------------------------------------

    def _resolve(self, node: OnnxNode, proto: Any) -> None:
        key = (node.domain, node.op)
        own = self.functions.get(key)
        if own is not None:
            node.body = self._called(key, own, node.attributes)
            return
        handler = find(node.domain, node.op, node.version)
        if handler is not None:
            self._check(node, handler)
            node.handler = handler
        elif not self._resolve_schema(node, proto):
            self._refuse(f"{node.domain}.{node.op}" if node.domain else node.op, node.name or ", ".join(node.outputs))

    def _called(self, key: tuple[str, str], function: Any, attributes: Mapping[str, Any]) -> OnnxGraph:
        if key in self._calling:
            raise UserError("onnx", f"functions that do not call themselves are required, but {key[1]!r} does.")
        self._calling.append(key)
        try:
            return self.function(function, attributes)
        finally:
            self._calling.pop()

    def _check(self, node: OnnxNode, handler: Handler) -> None:
        extra = sorted(set(node.attributes) - handler.attributes)
        if extra:
            self._refuse(f"{node.op} with the attributes {', '.join(extra)}", node.name)
        least, most = handler.inputs
        given = len(node.inputs)
        if not least <= given <= most or "" in node.inputs[:least]:
            raise UserError(
                "onnx", f"node {node} needs {least} inputs or more, at most {most}, got {given}: {node.inputs}."
            )

    def _resolve_schema(self, node: OnnxNode, proto: Any) -> bool:
        """Whether the onnx package defines the op as a function of other ops."""
        defs = onnx_package("defs")
        if not defs.has(node.op, node.version, node.domain):
            return False
        schema = defs.get_schema(node.op, node.version, node.domain)
        given = {name: self._default(a) for name, a in schema.attributes.items() if a.default_value.name}
        attributes = {**given, **node.attributes}
        if schema.has_function:
            node.body = self._called((node.domain, node.op), schema.function_body, attributes)
            return True
        if not schema.has_context_dependent_function:
            return False
        node.expand = Expansion(self, schema, proto, node, attributes)
        return True

    def _default(self, attribute: Any) -> Any:
        return self._value(attribute.default_value, {}, None)

    def _refuse(self, what: str, name: str) -> None:
        self.unsupported.setdefault(what, []).append(name)


class Expansion:
    """Makes the body of a function op whose body depends on the types of its inputs."""

    def __init__(
        self, builder: Builder, schema: Any, proto: Any, node: OnnxNode, attributes: Mapping[str, Any]
    ) -> None:
        self.builder, self.schema, self.node, self.attributes = builder, schema, node, attributes
        self.proto = _with_values(proto, attributes)
        self.made: dict[tuple[bytes, ...], OnnxGraph] = {}

    def __call__(self, types: Iterable[Any]) -> OnnxGraph:
        written = [t.SerializeToString() for t in types]
        key = tuple(written)
        if key not in self.made:
            self.made[key] = self._make(written)
        return self.made[key]

    def _make(self, types: list[bytes]) -> OnnxGraph:
        versions = [v for v in self.schema.context_dependent_function_opset_versions if v <= self.node.version]
        version = max(versions, default=self.node.version)
        text = self.schema.get_context_dependent_function_with_opset_version(
            version, self.proto.SerializeToString(), types
        )
        function = onnx_package().FunctionProto()
        function.ParseFromString(text)
        if not function.node:
            raise UserError("onnx", f"node {self.node} has no definition for these inputs.")
        before = dict(self.builder.unsupported)
        body = self.builder.function(function, self.attributes)
        missing = [what for what in self.builder.unsupported if what not in before]
        if missing:
            raise UserError("onnx", f"node {self.node} needs ops that are not supported: {', '.join(missing)}.")
        return body


def _with_values(proto: Any, attributes: Mapping[str, Any]) -> Any:
    """A node in the body of a function, with the values of the attributes that it takes from the call."""
    if not any(a.ref_attr_name for a in proto.attribute):
        return proto
    resolved = onnx_package().NodeProto()
    resolved.CopyFrom(proto)
    del resolved.attribute[:]
    for attribute in proto.attribute:
        if not attribute.ref_attr_name:
            resolved.attribute.append(attribute)
        elif attribute.name in attributes:
            value = attributes[attribute.name]
            resolved.attribute.append(onnx_package("helper").make_attribute(attribute.name, value))
    return resolved


def means_the_same(op: str, version: int) -> bool:
    """Whether an op of an older opset is that of the oldest supported one."""
    defs = onnx_package("defs")
    found = [defs.get_schema(op, v, "").since_version for v in (version, OLDEST_OPSET) if defs.has(op, v, "")]
    return len(found) == 2 and found[0] == found[1]


def opset_versions(imports: Iterable[Any]) -> dict[str, int]:
    return {"" if o.domain == "ai.onnx" else o.domain: o.version for o in imports}


def finish(graph: OnnxGraph) -> OnnxGraph:
    """Note at each node which values no later node reads, so that they can be freed."""
    kept = set(graph.outputs)
    for node in reversed(graph.nodes):
        read = {*reads(node), *node.outputs} - {""}
        node.unused = tuple(sorted(read - kept))
        kept |= read
    return graph


def reads(node: OnnxNode) -> set[str]:
    """The values a node reads, also in its subgraphs."""
    found = set(node.inputs)
    for graph in node.attributes.values():
        if isinstance(graph, OnnxGraph):
            found |= {name for inner in graph.nodes for name in reads(inner)} | set(graph.outputs)
    return found


def check_order(graph: OnnxGraph, outside: Iterable[str] = ()) -> None:
    """Raise an error if a node reads a value that no input, constant or earlier node makes, or makes one again."""
    own = {*graph.inputs, *graph.constants}
    made = {"", *outside, *own}
    for node in graph.nodes:
        missing = [name for name in node.inputs if name not in made]
        if missing:
            raise UserError("onnx", f"node {node} reads {missing[0]!r}, which no earlier node makes.")
        for inner in node.attributes.values():
            if isinstance(inner, OnnxGraph):
                check_order(inner, made)
        if node.body is not None:
            check_order(node.body)
        again = own.intersection(node.outputs) - {""}
        if again:
            raise UserError("onnx", f"node {node} makes {again.pop()!r}, which is there already.")
        own |= set(node.outputs)
        made |= own
    missing = [name for name in graph.outputs if not name or name not in made]
    if missing:
        raise UserError("onnx", f"graph {graph.name!r} returns {missing[0]!r}, which no node makes.")
