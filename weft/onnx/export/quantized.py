"""Patterns of quantization: QuantizeLinear, DequantizeLinear, MatMulInteger, ConvInteger (see weft/ops/quantize.py)."""

from __future__ import annotations

from ...dtypes import DType, float32, int8, int16, int32, uint8, uint16
from ...graph.node import Node
from ...records import dataclass
from .match import core, pairs, scalar, vector_along
from .products import conv_attributes, matrix_product
from .translator import Match, OnnxValue, Translator, matches

_DTYPES_OF_OPSETS = {int8: 13, uint8: 13, int16: 21, uint16: 21}  # the first that quantizes to this dtype


@dataclass(frozen=True)
class _Parameter:
    """A scale or a zero point: a number, or a vector along an axis."""

    value: float | Node
    axis: int | None = None

    def name(self, t: Translator, dtype: DType) -> str:
        return t.full(self.value) if isinstance(self.value, Node) else t.const(self.value, dtype.numpy)


def _parameter(t: Translator, node: Node, of: DType | None = None) -> _Parameter | None:
    """A broadcast node as a parameter. `of`: the integer dtype that it must be a cast of, unless it is a number."""
    number = scalar(t, node)
    if number is not None:
        return _Parameter(number)
    for axis in range(len(node.shape)):
        found = vector_along(node, axis)
        if found is not None and of is None:
            return _Parameter(found, axis)
        if found is not None and found.op.name == "cast" and found.inputs[0].dtype is of:
            return _Parameter(found.inputs[0], axis)
    found = core(node)
    return _Parameter(found) if found.shape == () and of is None else None


def _axes_agree(*parameters: _Parameter) -> bool:
    """ONNX has scale and zero point of one shape."""
    return len({p.axis for p in parameters}) == 1


@matches("cast")
def quantize_linear(t: Translator, node: Node) -> Match | None:
    """cast(round(x / scale)) or cast(round(x / scale) + zero point), which saturates; a rounded x that is not divided has steps of 1."""
    x = node.inputs[0]
    if t.model.opset < _DTYPES_OF_OPSETS.get(node.dtype, 1 << 30) or not x.dtype.is_float:
        return None
    for rounded, added in ((x, None), *pairs(x, "add")):
        if rounded.op.name != "round":
            continue
        if rounded.inputs[0].op.name != "div":
            if added is None and x.dtype is float32:
                return _linear(
                    t, node, "QuantizeLinear", rounded.inputs[0], _Parameter(1.0), _Parameter(0.0), node.dtype, x.dtype
                )
            continue
        ratio = rounded.inputs[0]
        scale = _parameter(t, ratio.inputs[1])
        zero = _Parameter(0.0, scale.axis if scale else None) if added is None else _parameter(t, added, node.dtype)
        if scale is not None and zero is not None and (added is None or _axes_agree(scale, zero)):
            return _linear(t, node, "QuantizeLinear", ratio.inputs[0], scale, zero, node.dtype, x.dtype)
    return None


@matches("mul")
def dequantize_linear(t: Translator, node: Node) -> Match | None:
    """cast(q) * scale or (cast(q) - zero point) * scale."""
    for wide, factor in pairs(node, "mul"):
        below, zero_node = wide.inputs if wide.op.name == "sub" else (wide, None)
        if below.op.name != "cast" or t.model.opset < _DTYPES_OF_OPSETS.get(below.inputs[0].dtype, 1 << 30):
            continue
        q = below.inputs[0]
        scale = _parameter(t, factor)
        zero = (
            _Parameter(0.0, scale.axis if scale else None) if zero_node is None else _parameter(t, zero_node, q.dtype)
        )
        if scale is not None and zero is not None and (zero_node is None or _axes_agree(scale, zero)):
            return _linear(t, node, "DequantizeLinear", q, scale, zero, q.dtype, node.dtype)
    return None


def _linear(
    t: Translator, node: Node, op: str, x: Node, scale: _Parameter, zero: _Parameter, dtype: DType, wide: DType
) -> Match:
    def write() -> OnnxValue:
        name = zero.name(t, dtype)
        if isinstance(scale.value, Node) and not isinstance(zero.value, Node) and scale.axis is not None:
            size = t.dims(scale.value)
            name = t.out.add("Expand", name, t.model.vector(size))
        axis = {} if scale.axis is None else {"axis": scale.axis}
        return t.write(node, op, t.full(x), scale.name(t, wide), name, **axis)

    return Match([x, *(p.value for p in (scale, zero) if isinstance(p.value, Node))], write)


# --- products -----------------------------------------------------------------------------------------------------------------


def _of_8_bits(node: Node) -> list[Node] | None:
    """The 8-bit integers whose product a node sums in int32."""
    found = [i.inputs[0] for i in node.inputs if i.op.name == "cast" and i.inputs[0].dtype in (int8, uint8)]
    return found if node.dtype is int32 and len(found) == 2 else None


@matches("contract")
def matmul_integer(t: Translator, node: Node) -> Match | None:
    operands = _of_8_bits(node)
    if operands is None or matrix_product(node) is None:
        return None

    def write() -> OnnxValue:
        product = matrix_product(node)
        assert product is not None
        return product.write(t, "MatMulInteger", *(t.full(i) for i in operands))

    return Match(operands, write)


@matches("conv")
def conv_integer(t: Translator, node: Node) -> Match | None:
    operands = _of_8_bits(node)
    if operands is None or any(v.params != node.params for v in t.versions[node]):
        return None
    x, w = operands
    return Match(
        operands, lambda: t.write(node, "ConvInteger", t.full(x), t.full(w), **conv_attributes(node, w.shape[2:]))
    )
