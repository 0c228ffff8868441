"""What is written of an ONNX model: nodes, initializers, and sizes that depend on free dimensions.

A size is an int, or the sizes at all points that the function was traced at. Equal tuples are equal sizes; an expression of the free
dimensions is searched only where the model has to compute the size.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import UserError
from ...saved.dimensions import Sizes, expression
from ..package import onnx_package

Dim = int | tuple[int, ...]
Dims = tuple[Dim, ...]
END = np.iinfo(np.int64).max  # as the end of a slice: everything


def merge_sizes(values: Sequence[int]) -> Dim:
    """One number at several points as a size."""
    return values[0] if all(v == values[0] for v in values) else tuple(values)


class ModelWriter:
    """The initializers of a model and the nodes that compute sizes, which all of its graphs share."""

    def __init__(self, points: Sequence[Sizes], opset: int) -> None:
        self.points, self.opset = points, opset
        self.initializers: dict[str, np.ndarray] = {}
        self.prologue: list[Any] = []  # nodes that compute sizes
        self.unsupported: dict[str, int] = {}
        self._names: dict[str, int] = {}
        self._constants: dict[tuple[Any, ...], str] = {}
        self._sources: dict[str, tuple[str, int]] = {}  # an input and an axis that have the size of a free dimension

    def name(self, wanted: str) -> str:
        """A name that is not taken."""
        number = self._names.get(wanted, -1) + 1
        self._names[wanted] = number
        return self.name(f"{wanted}_{number}") if number else wanted

    def node(self, op: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> Any:
        return onnx_package("helper").make_node(op, list(inputs), list(outputs), name=outputs[0], **attributes)

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        """An initializer with this value; equal ones are stored once."""
        array = np.asarray(value, dtype)
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.name("constant")
            self.initializers[self._constants[key]] = array
        return self._constants[key]

    def store(self, wanted: str, value: np.ndarray) -> str:
        """An initializer under a name of its own."""
        name = self.name(wanted)
        self.initializers[name] = value
        return name

    def text(self, size: Dim) -> str | None:
        """A size as an expression of the free dimensions, if there is one."""
        return str(size) if isinstance(size, int) else expression([str(n) for n in size], self.points)

    def add_dimension(self, dimension: str, source: str, axis: int) -> None:
        """Tell where the size of a free dimension can be read: at an axis of an input."""
        self._sources.setdefault(dimension, (source, axis))

    def vector(self, sizes: Sequence[Dim]) -> str:
        """Sizes as an int64 vector: an initializer, or computed when the model runs."""
        if all(isinstance(n, int) for n in sizes):
            return self.constant(np.array(sizes, np.int64).reshape(-1))
        parts = [self.constant([n]) if isinstance(n, int) else self.number(n, "int64") for n in sizes]
        return parts[0] if len(parts) == 1 else self._prologue("Concat", parts, "shape", axis=0)

    def number(self, values: Sequence[Any], dtype: str) -> str:
        """A number that depends on free dimensions, as a vector of one element."""
        found = expression([repr(v) for v in values], self.points)
        if found is None:
            raise UserError(
                "onnx.save",
                f"sizes that are expressions of the free dimensions are required, got {tuple(values)}. Export with dynamic=False.",
            )
        return self._evaluate(ast.parse(found, mode="eval").body, "int64" if dtype == "int64" else "float64", dtype)

    def _evaluate(self, tree: ast.expr, inner: str, dtype: str) -> str:
        """The nodes that compute an expression of dimensions, operands first."""
        result = self._operand(tree, inner)
        code = onnx_package("helper").np_dtype_to_tensor_dtype(np.dtype(dtype))
        return result if inner == dtype else self._prologue("Cast", [result], "size", to=code)

    def _operand(self, tree: ast.expr, dtype: str) -> str:
        # An expression of sizes is a few operations deep: dimensions.py writes it.
        match tree:
            case ast.Constant(value=value):
                return self.constant([value], dtype)
            case ast.Name(id=name):
                return self._dimension(name, dtype)
            case ast.UnaryOp(operand=operand):
                return self._prologue("Neg", [self._operand(operand, dtype)], "size")
            case ast.BinOp(left=left, op=op, right=right):
                return self._binary(op, self._operand(left, dtype), self._operand(right, dtype))
        raise UserError("onnx.save", f"{ast.unparse(tree)!r} is not an expression of sizes.")

    def _dimension(self, name: str, dtype: str) -> str:
        source, axis = self._sources[name]
        size = self._prologue("Shape", [source], name, start=axis, end=axis + 1)
        if dtype == "int64":
            return size
        code = onnx_package("helper").np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self._prologue("Cast", [size], "size", to=code)

    def _binary(self, op: ast.operator, x: str, y: str) -> str:
        if isinstance(op, ast.FloorDiv):  # ONNX truncates
            rest = self._prologue("Mod", [x, y], "size")
            return self._prologue("Div", [self._prologue("Sub", [x, rest], "size"), y], "size")
        names = {ast.Add: "Add", ast.Sub: "Sub", ast.Mult: "Mul", ast.Div: "Div"}
        return self._prologue(names[type(op)], [x, y], "size")

    def _prologue(self, op: str, inputs: Sequence[str], wanted: str, **attributes: Any) -> str:
        key = (op, *inputs, *sorted(attributes.items()))
        if key not in self._constants:
            self._constants[key] = self.name(wanted)
            self.prologue.append(self.node(op, inputs, [self._constants[key]], **attributes))
        return self._constants[key]


class GraphWriter:
    """The nodes of one graph of a model: the main one, or a body."""

    def __init__(self, model: ModelWriter) -> None:
        self.model = model
        self.nodes: list[Any] = []
        self._renamed: dict[str, str] = {}

    def add(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node; its result, or the list of its results."""
        names = [self.model.name(op.lower()) for _ in range(outputs)]
        self.nodes.append(self.model.node(op, inputs, names, **attributes))
        return names[0] if outputs == 1 else names

    def rename(self, old: str, new: str) -> None:
        """Give a value another name: by its node if that is in this graph, otherwise by a copy."""
        made = next((n for n in reversed(self.nodes) if old in n.output), None)
        if made is None or old in self._renamed:
            self.nodes.append(self.model.node("Identity", [self._renamed.get(old, old)], [new]))
            return
        self._renamed[old] = new
        made.output[list(made.output).index(old)] = new
        for node in self.nodes:
            _replace_input(node, old, new)


def _replace_input(node: Any, old: str, new: str) -> None:
    """Rename what a node reads, also in its bodies."""
    waiting = [node]
    while waiting:
        each = waiting.pop()
        for i, name in enumerate(each.input):
            if name == old:
                each.input[i] = new
        for attribute in each.attribute:
            waiting += attribute.g.node
