"""Convolutions, matrix products and windows in ONNX."""

from __future__ import annotations

import math
from typing import Any

from ...graph.node import Node
from ...ops.sparse import dense_weight
from ...records import dataclass
from .translator import RULES, OnnxValue, Translator, UnsupportedOp, translates
from .writer import Dims

# --- convolutions --------------------------------------------------------------------------------------------------------


def conv_attributes(node: Node, kernel: tuple[int, ...]) -> dict[str, Any]:
    stride, padding, dilation, groups = node.get_params("stride", "padding", "dilation", "groups")
    return {
        "kernel_shape": list(kernel), "strides": list(stride), "dilations": list(dilation), "group": groups,
        "pads": [*(p[0] for p in padding), *(p[1] for p in padding)],
    }  # fmt: skip


def conv(t: Translator, node: Node, *bias: str) -> OnnxValue:
    x, w = node.inputs
    _check_float(node)
    if any(v.params != node.params for v in t.versions[node]):
        raise UnsupportedOp("with a padding that depends on free sizes")
    return t.write(node, "Conv", t.full(x), t.full(w), *bias, **conv_attributes(node, w.shape[2:]))


def conv_data(t: Translator, node: Node, *bias: str) -> OnnxValue:
    """The transposed convolution; what its stride leaves open of the size is `output_padding`."""
    g, w = node.inputs
    _check_float(node)
    rest = _output_padding(node)
    if any(_output_padding(v) != rest or v.param("padding") != node.param("padding") for v in t.versions[node]):
        raise UnsupportedOp("with a padding that depends on free sizes")
    attributes = conv_attributes(node, w.shape[2:])
    if any(rest):
        attributes["output_padding"] = rest
    return t.write(node, "ConvTranspose", t.full(g), t.full(w), *bias, **attributes)


def _output_padding(node: Node) -> list[int]:
    (g, w), (stride, padding, dilation, size) = node.inputs, node.get_params("stride", "padding", "dilation", "size")
    facts = zip(size, g.shape[2:], w.shape[2:], stride, padding, dilation, strict=True)
    return [n - ((m - 1) * s + (k - 1) * d + 1 - sum(p)) for n, m, k, s, p, d in facts]


def _check_float(node: Node) -> None:
    if not node.dtype.is_float:
        raise UnsupportedOp(f"of {node.dtype.name}")


RULES.update({"conv": conv, "conv_data": conv_data})

# --- matrix products -----------------------------------------------------------------------------------------------------


@translates("contract")
def contract(t: Translator, node: Node) -> OnnxValue:
    """MatMul where the axes are those of a (batched) matrix product, perhaps transposed; otherwise Einsum."""
    (x, y), (a, b, out) = node.inputs, node.get_params("a", "b", "out")
    product = matrix_product(node)
    if product is None or not node.dtype.is_float:
        return t.write(node, "Einsum", t.full(x), t.full(y), equation=f"{a},{b}->{out}")
    return product.write(t, "MatMul", t.full(x), t.full(y))


@dataclass(frozen=True)
class MatrixAxes:
    """The axes of a contraction that is a (batched) matrix product, by their letters."""

    node: Node
    batch: str
    rows: str
    inner: str
    columns: str

    def write(self, t: Translator, op: str, x: str, y: str) -> OnnxValue:
        """The product as an op with the axes of MatMul, with transpositions around it where they are needed."""
        a, b, out = self.node.get_params("a", "b", "out")
        left = _ordered(t, x, a, self.batch + self.rows + self.inner)
        right = _ordered(t, y, b, self.batch + self.inner + self.columns)
        product = t.out.add(op, left, right)
        return OnnxValue(_ordered(t, product, self.batch + self.rows + self.columns, out), t.dims(self.node))


def matrix_product(node: Node) -> MatrixAxes | None:
    """The axes of a contraction, if it is a matrix product."""
    a, b, out = node.get_params("a", "b", "out")
    batch = "".join(c for c in out if c in a and c in b)
    inner = "".join(c for c in a if c in b and c not in out)
    rows, columns = "".join(c for c in a if c not in b), "".join(c for c in b if c not in a)
    is_product = len(inner) == len(columns) == 1 and (len(rows) == 1 or (rows and not batch))
    return MatrixAxes(node, batch, rows, inner, columns) if is_product else None


def _ordered(t: Translator, name: str, have: str, want: str) -> str:
    return name if have == want else str(t.out.add("Transpose", name, perm=[have.index(c) for c in want]))


# --- windows -------------------------------------------------------------------------------------------------------------


@translates("window_max")
def window_max(t: Translator, node: Node) -> OnnxValue:
    if not node.dtype.is_float and any(sum(p) for p in node.param("padding")):
        raise UnsupportedOp("of integers with padding")
    return windows(t, node, "MaxPool")


@translates("window_sum")
def window_sum(t: Translator, node: Node) -> OnnxValue:
    """The mean, in which padding counts, times the number of elements."""
    _check_float(node)
    mean = windows(t, node, "AveragePool", count_include_pad=1)
    count = t.const(math.prod(node.param("size")), node.dtype.numpy)
    return OnnxValue(t.out.add("Mul", mean.name, count), mean.shape)


def windows(t: Translator, node: Node, op: str, **more: Any) -> OnnxValue:
    """A pooling op. Other axes than the last ones are moved there, and back again."""
    size, stride, padding, dilation = node.get_params("size", "stride", "padding", "dilation")
    facts = list(zip(size, stride, padding, dilation, strict=True))
    moved = [i for i, (k, s, p, _) in enumerate(facts) if (k, s, tuple(p)) != (1, 1, (0, 0))]
    if not moved:
        return t.value(node.inputs[0])
    if any(v.params != node.params for v in t.versions[node]):
        raise UnsupportedOp("of windows whose sizes are free")
    if op == "AveragePool" and t.model.opset < 19 and any(dilation[i] > 1 for i in moved):
        raise UnsupportedOp("with a dilation before opset 19")
    if 3 <= len(size) <= 5 and moved[0] >= 2:
        return t.write(node, op, t.full(node.inputs[0]), **_pool_attributes(facts[2:]), **more)
    if len(moved) > 3:
        raise UnsupportedOp("over more than 3 axes")
    return _moved_windows(t, node, op, facts, moved, more)


def _pool_attributes(facts: list[Any]) -> dict[str, Any]:
    size, stride, padding, dilation = zip(*facts, strict=True)
    found = {
        "kernel_shape": list(size), "strides": list(stride), "pads": [*(p[0] for p in padding), *(p[1] for p in padding)],
    }  # fmt: skip
    return found | ({"dilations": list(dilation)} if any(d > 1 for d in dilation) else {})


def _moved_windows(
    t: Translator, node: Node, op: str, facts: list[Any], moved: list[int], more: dict[str, Any]
) -> OnnxValue:
    """The other axes become one, before an axis of channels of size 1."""
    others = [i for i in range(len(facts)) if i not in moved]
    before, after = t.dims(node.inputs[0]), t.dims(node)
    order = [*others, *moved]
    x = t.out.add("Transpose", t.full(node.inputs[0]), perm=order)
    flat: Dims = (-1, 1, *(before[i] for i in moved))
    pooled = t.out.add(
        op, t.out.add("Reshape", x, t.model.vector(flat)), **_pool_attributes([facts[i] for i in moved]), **more
    )
    wide = t.out.add("Reshape", pooled, t.model.vector([after[i] for i in order]))
    return t.write(node, "Transpose", wide, perm=[order.index(i) for i in range(len(order))])


@translates("sparse_matmul")
def sparse_matmul(t: Translator, node: Node) -> OnnxValue:
    """A product with the dense weight."""
    x, *parts = node.inputs
    names = [t.value(part).name for part in parts]
    if not all(name in t.model.initializers for name in names):
        raise UnsupportedOp("of a weight that is computed")
    values, columns, starts, *codes = (t.model.initializers[name] for name in names)
    weight = dense_weight(values, columns, starts, codes[0] if codes else None, node.param("block"), x.shape[1])
    stored = t.model.store(f"{names[1].removesuffix('.columns')}.weight", weight.astype(x.dtype.numpy))
    return t.write(node, "Gemm", t.full(x), stored, transB=1)
