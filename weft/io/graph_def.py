"""The graph of a network as TensorFlow's `GraphDef`, which TensorBoard's graphs page shows.

A node is an op with the names of its inputs. Slashes in names are scopes: here the layers that made the nodes, as they are called in
the network, so that a page begins with one box for each layer and opens down to primitive ops.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..graph.graph import Graph
from ..graph.node import ITEM, PLACEHOLDER, Node, Type, toposort
from ..nn.module import Module
from ..nn.summary import ModuleCall, traced_calls
from .protobuf import bytes_field, int_field, utf8

PRODUCER = 22  # the version of the format that readers are told
LONGEST_TEXT = 200  # characters of an attribute
# DataType of TensorFlow's types.proto
DTYPES = {
    "float32": 1, "float64": 2, "int32": 3, "uint8": 4, "int16": 5, "int8": 6, "int64": 9, "bool": 10, "bfloat16": 14,
    "uint16": 17, "float16": 19, "uint32": 22, "uint64": 23,
}  # fmt: skip


def graph_def(model: Module, *examples: Any) -> bytes:
    """The encoded `GraphDef` of a network in evaluation mode; examples as `weft.nn.summary` takes them."""
    traced, calls = traced_calls(model, *examples)
    nodes = toposort([*traced.inputs, *traced.outputs])
    made = _Names(model, calls, nodes)
    names = made.of(traced.inputs)
    encoded = [_node(names[n], _op(n), [names[i] for i in n.inputs], n.type, _attributes(n)) for n in nodes]
    encoded += [_node(made.unique("output"), "Output", [names[o]], o.type, {}) for o in traced.outputs]
    return b"".join(bytes_field(1, node) for node in encoded) + bytes_field(4, int_field(1, PRODUCER))


class _Names:
    """A unique name for each node, below the scope of the layer that made it."""

    def __init__(self, model: Module, calls: Sequence[ModuleCall], nodes: Sequence[Node]) -> None:
        self.nodes, self.calls = nodes, calls
        self.kinds = {path: type(part).__name__ for path, part in model.named_modules().items()}
        self.paths = {part: path for path, part in model.named_modules().items()}
        self.tensors = {tensor._node: path for path, tensor in model.named_tensors().items()}
        self.taken = {scope.rstrip("/") for scope in map(self._scope, self.kinds)}  # a node must not hide a scope
        self.users: dict[Node, Node] = {}  # the first one of each node
        for node in nodes:
            for i in node.inputs:
                self.users.setdefault(i, node)

    def of(self, inputs: Iterable[Node]) -> dict[Node, str]:
        names = {node: self.unique("input") for node in inputs}
        for node in self.nodes:
            if node in names:
                continue
            if node in self.tensors:
                path, _, last = self.tensors[node].rpartition(".")
                names[node] = self.unique(f"{self._scope(path)}{last}")
            else:
                names[node] = self.unique(f"{self._scope(self._layer(node))}{node.op.name}")
        return names

    def _layer(self, node: Node) -> str:
        """The path of the innermost layer that made a node. One that was there before, such as a constant, belongs to its first user."""
        while True:
            made = [call for call in self.calls if call.begin < node.serial <= call.end]
            if made:
                return self.paths.get(made[-1].module, "")
            if node not in self.users:
                return ""
            node = self.users[node]

    def _scope(self, path: str) -> str:
        """The scope of a layer, which begins its nodes' names. Numbered layers, which say little, are called by their classes too."""
        scope, above = "", ""
        for step in path.split(".") if path else ():
            below = f"{above}.{step}" if above else step
            if below in self.kinds:
                scope += f"{self.kinds[below]}[{step}]/" if step.isdecimal() else f"{step}/"
            elif self.kinds.get(above) != "Sequential":  # a list of layers; that of a Sequential is all it has
                scope += f"{step}/"
            above = below
        return scope

    def unique(self, name: str) -> str:
        found, number = name, 1
        while found in self.taken:
            found, number = f"{name}_{number}", number + 1
        self.taken.add(found)
        return found


def _op(node: Node) -> str:
    return (
        "Placeholder"
        if node.op is PLACEHOLDER
        else {"variable": "Parameter", "data": "Const", "const": "Const"}.get(node.op.name, node.op.name)
    )


def _attributes(node: Node) -> dict[str, str]:
    """The parameters of an op as short texts; values and bodies are not among them."""
    if node.op.name in ("placeholder", "variable", "data"):
        return {}
    found = {name: node.param(name) for name in node.op.params}
    texts = {n: f"graph of {len(v.nodes)} nodes" if isinstance(v, Graph) else str(v) for n, v in found.items()}
    if node.op is ITEM:
        texts["of"] = node.inputs[0].op.name
    return {name: text[:LONGEST_TEXT] for name, text in texts.items()}


# --- encoding -------------------------------------------------------------------------------------------------------------------------


def _node(name: str, op: str, inputs: Sequence[str], type: Type, texts: Mapping[str, str]) -> bytes:
    dims = b"".join(bytes_field(2, int_field(1, size)) for size in type.shape)
    shapes = bytes_field(1, bytes_field(7, dims))  # a list of one shape
    attributes = {"T": int_field(6, DTYPES[type.dtype.name]), "_output_shapes": shapes}
    attributes |= {key: bytes_field(2, utf8(text)) for key, text in texts.items()}
    return b"".join(
        [
            bytes_field(1, utf8(name)),
            bytes_field(2, utf8(op)),
            *(bytes_field(3, utf8(i)) for i in inputs),
            *(bytes_field(5, bytes_field(1, utf8(key)) + bytes_field(2, value)) for key, value in attributes.items()),
        ]
    )
