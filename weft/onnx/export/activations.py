"""Patterns of activation functions: Relu, Clip, LeakyRelu, PRelu, Elu, Gelu, Softplus, Softmax, LogSoftmax."""

from __future__ import annotations

import math

from ...graph.node import Node
from .elementwise import elementwise
from .match import is_scalar, pairs, scalar, scaled, unbroadcast
from .translator import Match, OnnxValue, Translator, matches


def _one(t: Translator, op: str, x: Node, **attributes: float | str) -> Match:
    return Match([x], lambda: elementwise(t, op, x, **attributes))


@matches("where")
def rectified(t: Translator, node: Node) -> Match | None:
    """where(x <= 0, 0, x) is Relu, which takes no unsigned integers."""
    test, replaced, x = node.inputs
    if node.dtype.name.startswith("uint"):
        return None
    if (
        test.op.name == "le"
        and test.inputs[0] is x
        and is_scalar(t, test.inputs[1], 0.0)
        and is_scalar(t, replaced, 0.0)
    ):
        return _one(t, "Relu", x)
    return None


def _bounds(t: Translator, node: Node) -> tuple[Node, float | None, float | None] | None:
    """(x, lowest, highest) of one bound of clip."""
    if node.op.name != "where":
        return None
    test, bound, x = node.inputs
    value = scalar(t, bound)
    if test.op.name != "lt" or value is None or math.isnan(value):
        return None
    small, large = test.inputs
    if small is x and scalar(t, large) == value:
        return x, value, None
    return (x, None, value) if large is x and scalar(t, small) == value else None


def clipped(t: Translator, node: Node) -> tuple[Node, float, float] | None:
    """(x, lowest, highest) of clip with both bounds."""
    upper = _bounds(t, node)
    lower = _bounds(t, upper[0]) if upper else None
    if upper is None or lower is None or upper[2] is None or lower[1] is None:
        return None
    return lower[0], lower[1], upper[2]


@matches("where")
def clip(t: Translator, node: Node) -> Match | None:
    found = clipped(t, node) or _relu6(t, node)
    if found is None or not node.dtype.is_float:
        return None
    x, low, high = found
    return _clip(t, x, low, high)


def _clip(t: Translator, x: Node, low: float, high: float) -> Match:
    def write() -> OnnxValue:
        bounds = (t.const(bound, x.dtype.numpy) for bound in (low, high))
        return OnnxValue(t.out.add("Clip", t.value(x).name, *bounds), t.value(x).shape)

    return Match([x], write)


def _relu6(t: Translator, node: Node) -> tuple[Node, float, float] | None:
    """where((x <= 0) | (x >= 6), where(x <= 0, 0, 6), x)"""
    test, ends, x = node.inputs
    if test.op.name != "or_" or ends.op.name != "where":
        return None
    low, high = scalar(t, ends.inputs[1]), scalar(t, ends.inputs[2])
    below, above = test.inputs
    if below.op.name != "le" or above.op.name != "le" or ends.inputs[0] is not below or low is None or high is None:
        return None
    is_same = below.inputs[0] is x and is_scalar(t, below.inputs[1], low)
    return (x, low, high) if is_same and above.inputs[1] is x and is_scalar(t, above.inputs[0], high) else None


@matches("where")
def leaky(t: Translator, node: Node) -> Match | None:
    """where(0 < x, x, slope x), with one slope or several, and where(0 < x, x, alpha (exp(x) - 1))"""
    test, x, other = node.inputs
    if (
        not node.dtype.is_float
        or test.op.name != "lt"
        or not is_scalar(t, test.inputs[0], 0.0)
        or test.inputs[1] is not x
    ):
        return None
    found = scaled(t, other, "mul")
    if found is None:
        slope = next((b for a, b in pairs(other, "mul") if a is x), None)
        return None if slope is None else Match([x, slope], lambda: elementwise(t, "PRelu", x, slope))
    factor, rest = found
    if rest is x:
        return _one(t, "LeakyRelu", x, alpha=factor)
    if rest.op.name == "expm1" and rest.inputs[0].op.name == "where":
        inner = rest.inputs[0]
        if inner.inputs[0] is test and is_scalar(t, inner.inputs[1], 0.0) and inner.inputs[2] is x:
            return _one(t, "Elu", x, alpha=factor)
    return None


@matches("mul")
def gelu(t: Translator, node: Node) -> Match | None:
    """0.5 x (1 + erf(x / sqrt(2))), or with the approximation by tanh."""
    if t.model.opset < 20:
        return None
    for halved, rest in pairs(node, "mul"):
        half, one = scaled(t, halved, "mul"), scaled(t, rest, "add")
        if half is None or one is None or half[0] != 0.5 or one[0] != 1.0:
            continue
        x, inner = half[1], one[1]
        if inner.op.name == "erf":
            root = scaled(t, inner.inputs[0], "mul")
            if root is not None and root[1] is x and math.isclose(root[0], math.sqrt(0.5)):
                return _one(t, "Gelu", x)
        if inner.op.name == "tanh" and _is_cubic(t, inner.inputs[0], x):
            return _one(t, "Gelu", x, approximate="tanh")
    return None


def _is_cubic(t: Translator, node: Node, x: Node) -> bool:
    """sqrt(2 / pi) (n + 0.044715 n^3), where n is x, or x clipped to a range outside of which tanh is 1."""
    outer = scaled(t, node, "mul")
    if outer is None or not math.isclose(outer[0], math.sqrt(2 / math.pi)):
        return False
    for near, cubic in pairs(outer[1], "add"):
        limits = clipped(t, near)
        is_x = near is x or (limits is not None and limits[0] is x and limits[1] <= -10.0 and limits[2] >= 10.0)
        inner = scaled(t, cubic, "mul")
        if is_x and inner is not None and math.isclose(inner[0], 0.044715):
            cube = inner[1]
            if any(
                square.op.name == "mul" and square.inputs == (near, near) and last is near
                for square, last in pairs(cube, "mul")
            ):
                return True
    return False


@matches("logaddexp")
def softplus(t: Translator, node: Node) -> Match | None:
    x, zero = node.inputs
    return _one(t, "Softplus", x) if is_scalar(t, zero, 0.0) else None


# --- softmax -------------------------------------------------------------------------------------------------------------


def _reduced(node: Node, op: str) -> tuple[Node, int] | None:
    """(x, axis) of a reduction over one axis that keeps it, broadcast again."""
    node = unbroadcast(node)
    if node.op.name != "reshape":
        return None
    inner = node.inputs[0]
    if inner.op.name != op or len(inner.param("axes")) != 1:
        return None
    (axis,), x = inner.param("axes"), inner.inputs[0]
    kept = tuple(1 if i == axis else n for i, n in enumerate(x.shape))
    return (x, axis) if node.shape == kept else None


def _centred(node: Node, axis: int) -> Node | None:
    """x of x - max(x)"""
    if node.op.name != "sub":
        return None
    x, largest = node.inputs
    return x if _reduced(largest, "max") == (x, axis) else None


def _softmax(t: Translator, node: Node, op: str, x: Node, axis: int) -> Match:
    return Match([x], lambda: t.write(node, op, t.full(x), axis=axis))


@matches("div")
def softmax(t: Translator, node: Node) -> Match | None:
    raised, total = node.inputs
    found = _reduced(total, "sum")
    if found is None or found[0] is not raised or raised.op.name != "exp":
        return None
    x = _centred(raised.inputs[0], found[1])
    return None if x is None else _softmax(t, node, "Softmax", x, found[1])


@matches("sub")
def log_softmax(t: Translator, node: Node) -> Match | None:
    centred, logarithm = node.inputs
    logarithm = unbroadcast(logarithm)
    found = _reduced(logarithm.inputs[0], "sum") if logarithm.op.name == "log" else None
    if found is None or found[0].op.name != "exp" or found[0].inputs[0] is not centred:
        return None
    x = _centred(centred, found[1])
    return None if x is None else _softmax(t, node, "LogSoftmax", x, found[1])
