"""Patterns of layers: products with their bias, normalizations, pooling and means."""

from __future__ import annotations

import math

import numpy as np

from ...graph.node import Node
from .match import core, is_scalar, pairs, scalar, scaled, unbroadcast, vector_along
from .products import conv, conv_data, windows
from .translator import Match, OnnxValue, Translator, matches


@matches("add")
def conv_with_bias(t: Translator, node: Node) -> Match | None:
    for product, added in pairs(node, "add"):
        bias = vector_along(added, 1) if product.op.name in ("conv", "conv_data") else None
        if bias is not None and t.users[product] == 1:
            return _biased_conv(t, product, bias)
    return None


def _biased_conv(t: Translator, product: Node, bias: Node) -> Match:
    def write() -> OnnxValue:
        return (conv if product.op.name == "conv" else conv_data)(t, product, t.full(bias))

    return Match([*product.inputs, bias], write)


def _gemm_operands(node: Node) -> tuple[Node, Node, int, int] | None:
    """The matrices of a product, and which of them are transposed; a transposed operand is read as it was before."""
    if node.op.name != "contract" or not node.dtype.is_float or any(len(i.shape) != 2 for i in node.inputs):
        return None
    (x, y), (a, b, out) = node.inputs, node.get_params("a", "b", "out")
    if len(out) != 2 or out[0] not in a or out[0] in b:
        return None
    flips = []
    for operand, transposed in ((x, a[0] != out[0]), (y, b[1] != out[1])):
        if operand.op.name == "permute" and operand.param("axes") == (1, 0):
            operand, transposed = operand.inputs[0], not transposed
        flips.append((operand, int(transposed)))
    (left, flip_left), (right, flip_right) = flips
    return left, right, flip_left, flip_right


@matches("add")
def gemm_with_bias(t: Translator, node: Node) -> Match | None:
    for product, added in pairs(node, "add"):
        found = _gemm_operands(product)
        bias = vector_along(added, 1) if found else None
        if found and bias is not None and t.users[product] == 1:
            return _gemm(t, node, *found, bias)
    return None


@matches("contract")
def gemm(t: Translator, node: Node) -> Match | None:
    found = _gemm_operands(node)
    return _gemm(t, node, *found) if found and (found[2] or found[3]) else None


def _gemm(t: Translator, node: Node, x: Node, y: Node, flip_x: int, flip_y: int, *bias: Node) -> Match:
    def write() -> OnnxValue:
        return t.write(node, "Gemm", *(t.full(n) for n in (x, y, *bias)), transA=flip_x, transB=flip_y)

    return Match([x, y, *bias], write)


# --- normalizations ------------------------------------------------------------------------------------------------------


def _reciprocal_root(t: Translator, node: Node) -> tuple[Node, float] | None:
    """(v, eps) of 1 / sqrt(v + eps)."""
    node = core(node)
    if node.op.name != "div" or not is_scalar(t, node.inputs[0], 1.0):
        return None
    root = core(node.inputs[1])
    found = scaled(t, root.inputs[0], "add") if root.op.name == "sqrt" else None
    return None if found is None else (core(found[1]), found[0])


@matches("add")
def batch_norm(t: Translator, node: Node) -> Match | None:
    """(x - mean) (scale / sqrt(var + eps)) + shift, where all but x are vectors of channels."""
    if len(node.shape) < 2:
        return None
    for normal, added in pairs(node, "add"):
        for centred, factor in pairs(normal, "mul"):
            shift, factors = vector_along(added, 1), vector_along(factor, 1)
            if shift is None or factors is None or centred.op.name != "sub":
                continue
            x, mean = centred.inputs[0], vector_along(centred.inputs[1], 1)
            for root, scale in pairs(factors, "mul"):
                found = _reciprocal_root(t, root)
                if found is not None and mean is not None and found[0].shape == scale.shape == mean.shape:
                    return _batch_norm(t, node, (x, scale, shift, mean, found[0]), found[1])
    return None


def _batch_norm(t: Translator, node: Node, operands: tuple[Node, ...], eps: float) -> Match:
    def write() -> OnnxValue:
        return t.write(node, "BatchNormalization", *(t.full(n) for n in operands), epsilon=eps)

    return Match(operands, write)


def mean_of(t: Translator, node: Node) -> tuple[Node, tuple[int, ...], bool] | None:
    """(x, axes, keepdims) of a mean: a sum divided by the number of its elements."""
    if node.op.name != "div":
        return None
    total, count = node.inputs
    keeps = total.op.name == "reshape"
    summed = total.inputs[0] if keeps else total
    if summed.op.name != "sum" or not summed.dtype.is_float:
        return None
    (x,), axes = summed.inputs, summed.param("axes")
    if keeps and total.shape != tuple(1 if i in axes else n for i, n in enumerate(x.shape)):
        return None
    number = core(count)
    if number.op.name != "const" or not axes:
        return None
    counts = zip(t.versions[number], t.versions[x], strict=True)
    if any(c.param("value") != math.prod(v.shape[a] for a in axes) for c, v in counts):
        return None
    return x, axes, keeps


@matches("div")
def mean(t: Translator, node: Node) -> Match | None:
    found = mean_of(t, node)
    if found is None:
        return None
    x, axes, keeps = found
    return Match(
        [x],
        lambda: t.write(node, "ReduceMean", t.full(x), t.model.constant(list(axes)), keepdims=int(keeps)),
    )


def _standardized(t: Translator, node: Node) -> tuple[Node, tuple[int, ...], float] | None:
    """(x, axes, eps) of (x - mean) / sqrt(var + eps), over the last axes."""
    for centred, factor in pairs(node, "mul"):
        found = _reciprocal_root(t, unbroadcast(factor))
        if found is None or centred.op.name != "sub":
            continue
        variance, eps = found
        (x, middle), spread = centred.inputs, mean_of(t, variance)
        centre = mean_of(t, unbroadcast(middle))
        if spread is None or centre is None or centre[0] is not x or spread[1:] != centre[1:] or not centre[2]:
            continue
        axes, squared = centre[1], spread[0]
        is_last = axes == tuple(range(len(x.shape) - len(axes), len(x.shape)))
        if is_last and squared.op.name == "mul" and squared.inputs == (centred, centred):
            return x, axes, eps
    return None


@matches("add")
def layer_norm(t: Translator, node: Node) -> Match | None:
    for product, added in pairs(node, "add"):
        for normal, factor in pairs(product, "mul"):
            found = _standardized(t, normal)
            if found is None or len(found[1]) != 1:
                continue
            scale, shift = vector_along(factor, len(node.shape) - 1), vector_along(added, len(node.shape) - 1)
            if scale is not None and shift is not None:
                return _layer_norm(t, node, (found[0], scale, shift), found[2])
    return None


def _layer_norm(t: Translator, node: Node, operands: tuple[Node, ...], eps: float) -> Match:
    def write() -> OnnxValue:
        return t.write(node, "LayerNormalization", *(t.full(n) for n in operands), axis=-1, epsilon=eps)

    return Match(operands, write)


@matches("div")
def local_response_norm(t: Translator, node: Node) -> Match | None:
    """x / (k + a sum of squares over neighbouring channels) ** beta."""
    x, power = node.inputs
    if power.op.name != "pow" or len(node.shape) < 3:
        return None
    beta, outer = scalar(t, power.inputs[1]), scaled(t, power.inputs[0], "add")
    inner = scaled(t, outer[1], "mul") if outer else None
    if beta is None or outer is None or inner is None or inner[1].op.name != "window_sum":
        return None
    squares = inner[1]
    size, stride, padding = squares.get_params("size", "stride", "padding")
    n = size[1]
    if any(v.params != squares.params for v in t.versions[squares]):
        return None
    is_centred = n % 2 == 1 and tuple(padding[1]) == (n // 2, n // 2) and set(stride) == {1}
    if not is_centred or any(k != 1 for i, k in enumerate(size) if i != 1) or squares.inputs[0].inputs != (x, x):
        return None
    attributes = {"size": n, "alpha": inner[0] * n, "beta": beta, "bias": outer[0]}
    return (
        Match([x], lambda: t.write(node, "LRN", t.full(x), **attributes))
        if squares.inputs[0].op.name == "mul"
        else None
    )


@matches("div")
def average_pool(t: Translator, node: Node) -> Match | None:
    total, count = node.inputs
    if total.op.name != "window_sum" or not is_scalar(t, count, float(np.prod(total.param("size")))):
        return None
    return Match(total.inputs, lambda: windows(t, total, "AveragePool", count_include_pad=1))
