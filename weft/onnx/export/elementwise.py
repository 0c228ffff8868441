"""Elementwise primitives in ONNX."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...dtypes import int8, int16, uint8, uint16
from ...graph.node import Node
from ..package import onnx_package
from .translator import OnnxValue, Translator, UnsupportedOp, broadcast, translates

_SAME = {
    "neg": "Neg", "abs": "Abs", "sign": "Sign", "floor": "Floor", "ceil": "Ceil", "round": "Round", "exp": "Exp", "log": "Log",
    "sqrt": "Sqrt", "sigmoid": "Sigmoid", "erf": "Erf", "sin": "Sin", "cos": "Cos", "tan": "Tan", "asin": "Asin", "acos": "Acos",
    "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh", "tanh": "Tanh", "asinh": "Asinh", "acosh": "Acosh", "atanh": "Atanh",
    "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "pow": "Pow", "maximum": "Max", "minimum": "Min", "eq": "Equal",
    "lt": "Less", "le": "LessOrEqual", "where": "Where",
}  # fmt: skip
_NARROW = (int8, uint8, int16, uint16)  # whose ends are exact in float32
_LOGICAL = {"and_": "And", "or_": "Or", "xor": "Xor", "not_": "Not"}
_ON_INTEGERS = {"floor", "ceil", "round"}  # which change nothing there
_NOT_ON_BOOLS = {"lt", "le", "maximum", "minimum", "add", "mul"}


def dtype_number(dtype: np.dtype[Any]) -> int:
    """The number of a dtype in ONNX."""
    return int(onnx_package("helper").np_dtype_to_tensor_dtype(dtype))


def elementwise(t: Translator, op: str, *nodes: Node, **attributes: Any) -> OnnxValue:
    """An op on lazily broadcast operands."""
    values = [t.value(n) for n in nodes]
    return OnnxValue(t.out.add(op, *(v.name for v in values), **attributes), broadcast(*(v.shape for v in values)))


@translates(*_SAME)
def same_op(t: Translator, node: Node) -> OnnxValue:
    dtype = node.inputs[-1].dtype
    if node.op.name in _ON_INTEGERS and not dtype.is_float:
        return t.value(node.inputs[0])
    if node.op.name in _NOT_ON_BOOLS and dtype.name == "bool":
        raise UnsupportedOp("of bools")
    return elementwise(t, _SAME[node.op.name], *node.inputs)


@translates(*_LOGICAL)
def logical(t: Translator, node: Node) -> OnnxValue:
    name = _LOGICAL[node.op.name]
    return elementwise(t, name if node.dtype.name == "bool" else f"Bitwise{name}", *node.inputs)


@translates("stop_gradient", "tag")
def alias(t: Translator, node: Node) -> OnnxValue:
    return t.value(node.inputs[0])


@translates("cast")
def cast(t: Translator, node: Node) -> OnnxValue:
    """A Cast. From floats it saturates in weft, while ONNX leaves numbers beyond the range undefined: they are clipped first."""
    (x,), to = node.inputs, dtype_number(node.dtype.numpy)
    if not (x.dtype.is_float and node.dtype in _NARROW):
        return elementwise(t, "Cast", x, to=to)
    value, add, wide = t.value(x), t.out.add, np.dtype(np.float32 if x.dtype.itemsize < 4 else x.dtype.numpy)
    name = value.name if x.dtype.itemsize >= 4 else add("Cast", value.name, to=dtype_number(wide))
    ends = np.iinfo(node.dtype.numpy)
    return OnnxValue(
        add("Cast", add("Clip", name, t.const(ends.min, wide), t.const(ends.max, wide)), to=to), value.shape
    )


@translates("expm1", "log1p", "log2", "log10", "trunc")
def composed(t: Translator, node: Node) -> OnnxValue:
    """Functions that ONNX has no op for, made of others."""
    (x,), dtype = node.inputs, node.dtype.numpy
    value, add = t.value(x), t.out.add
    if node.op.name == "expm1":  # tanh(x/2) (exp(x) + 1), which is exact near 0, where exp(x) - 1 is not
        half = add("Tanh", add("Mul", value.name, t.const(0.5, dtype)))
        small = add("Mul", half, add("Add", add("Exp", value.name), t.const(1, dtype)))
        plain = add("Sub", add("Exp", value.name), t.const(1, dtype))
        near = add("Less", add("Abs", value.name), t.const(1, dtype))
        return OnnxValue(add("Where", near, small, plain), value.shape)
    if node.op.name == "log1p":
        return OnnxValue(add("Log", add("Add", value.name, t.const(1, dtype))), value.shape)
    if node.op.name == "trunc":
        if not node.dtype.is_float:
            return value
        return OnnxValue(add("Mul", add("Sign", value.name), add("Floor", add("Abs", value.name))), value.shape)
    base = 2 if node.op.name == "log2" else 10
    return OnnxValue(add("Mul", add("Log", value.name), t.const(1 / math.log(base), dtype)), value.shape)


@translates("floor_divide", "remainder")
def division(t: Translator, node: Node) -> OnnxValue:
    """ONNX's Div truncates integers; Mod follows the sign of the divisor, but takes no floats in this form."""
    x, y = (t.value(i).name for i in node.inputs)
    shape, add = broadcast(*(t.value(i).shape for i in node.inputs)), t.out.add
    if node.dtype.is_float:
        whole = add("Floor", add("Div", x, y))
        return OnnxValue(whole if node.op.name == "floor_divide" else add("Sub", x, add("Mul", whole, y)), shape)
    rest = add("Mod", x, y)
    return OnnxValue(rest if node.op.name == "remainder" else add("Div", add("Sub", x, rest), y), shape)


@translates("hypot", "logaddexp")
def of_two(t: Translator, node: Node) -> OnnxValue:
    x, y = (t.value(i).name for i in node.inputs)
    shape, add = broadcast(*(t.value(i).shape for i in node.inputs)), t.out.add
    if node.op.name == "hypot":
        return OnnxValue(add("Sqrt", add("Add", add("Mul", x, x), add("Mul", y, y))), shape)
    gap = add("Neg", add("Abs", add("Sub", x, y)))  # max(x, y) + log(1 + exp(-|x - y|))
    rest = add("Log", add("Add", add("Exp", gap), t.const(1, node.dtype.numpy)))
    return OnnxValue(add("Add", add("Max", x, y), rest), shape)


@translates("shl", "shr")
def shift(t: Translator, node: Node) -> OnnxValue:
    if not node.dtype.name.startswith("uint"):
        raise UnsupportedOp(f"of {node.dtype.name}")
    return elementwise(t, "BitShift", *node.inputs, direction="LEFT" if node.op.name == "shl" else "RIGHT")


@translates("const")
def const(t: Translator, node: Node) -> OnnxValue:
    """A number, however large its shape: it broadcasts."""
    dtype = node.dtype.numpy
    values = [v.param("value") for v in t.versions[node]]
    if any(v != values[0] for v in values):
        return OnnxValue(t.model.number(values, dtype.name), (1,) if node.shape else ())
    value = float(values[0]) if isinstance(values[0], str) else values[0]
    return OnnxValue(t.const(value, dtype), ())


@translates("iota")
def iota(t: Translator, node: Node) -> OnnxValue:
    size, dtype = t.size(node, "n"), node.dtype.numpy
    if isinstance(size, int):
        return OnnxValue(t.model.constant(np.arange(size), dtype), (size,))
    end = t.out.add("Squeeze", t.model.vector([size]))
    numbers = t.out.add("Range", t.const(0, np.int64), end, t.const(1, np.int64))
    if node.dtype.name != "int64":
        numbers = t.out.add("Cast", numbers, to=dtype_number(dtype))
    return OnnxValue(numbers, (size,))
