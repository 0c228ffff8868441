"""Primitives that move elements or reduce them, in ONNX."""

from __future__ import annotations

import numpy as np

from ...graph.node import Node
from .translator import Match, OnnxValue, Translator, UnsupportedOp, matches, translates
from .writer import END, Dim, Dims

_REDUCTIONS = {"sum": "ReduceSum", "prod": "ReduceProd", "max": "ReduceMax", "min": "ReduceMin"}


@translates("expand")
def expand(t: Translator, node: Node) -> OnnxValue:
    """Nothing is written: consumers broadcast, or ask for the whole value."""
    return t.value(node.inputs[0])


@matches("reshape")
def reshape_twice(t: Translator, node: Node) -> Match | None:
    """Of several reshapes only the last one counts."""
    x = node
    while x.op.name == "reshape":
        x = x.inputs[0]
    return Match([x], lambda: _reshape(t, node, x)) if x is not node.inputs[0] else None


@translates("reshape")
def reshape(t: Translator, node: Node) -> OnnxValue:
    return _reshape(t, node, node.inputs[0])


def _reshape(t: Translator, node: Node, x: Node) -> OnnxValue:
    before, after = t.dims(x), t.dims(node)
    if before == after or t.value(x).shape == ():
        return t.value(x)
    added, removed = inserted_ones(before, after), inserted_ones(after, before)
    if added is not None:
        return t.write(node, "Unsqueeze", t.full(x), t.model.constant(added))
    if removed is not None:
        return t.write(node, "Squeeze", t.full(x), t.model.constant(removed))
    if len(after) == 2 and before[0] == after[0] and isinstance(after[1], int):
        return t.write(node, "Flatten", t.full(x), axis=1)
    return t.write(node, "Reshape", t.full(x), t.model.vector(_target(before, after)))


def inserted_ones(short: Dims, long: Dims) -> list[int] | None:
    """The axes of `long` that have size 1 and are not in `short`; None if it differs in more."""
    found, rest = [], list(short)
    for axis, size in enumerate(long):
        if rest and rest[0] == size:
            rest.pop(0)
        elif size == 1:
            found.append(axis)
        else:
            return None
    return found if not rest and found else None


def _target(before: Dims, after: Dims) -> Dims:
    """The shape for Reshape: 0 copies a size, -1 is what remains; other sizes that are not known are computed."""
    if 0 in after:
        return after
    copied: list[Dim] = [
        0 if not isinstance(n, int) and i < len(before) and before[i] == n else n for i, n in enumerate(after)
    ]
    free = [i for i, n in enumerate(copied) if not isinstance(n, int)]
    if len(free) == 1:
        copied[free[0]] = -1
    return tuple(copied)


@translates("permute")
def permute(t: Translator, node: Node) -> OnnxValue:
    value = t.value(node.inputs[0])
    if value.shape == ():
        return value
    return t.write(node, "Transpose", t.full(node.inputs[0]), perm=list(node.param("axes")))


@translates("pad")
def pad(t: Translator, node: Node) -> OnnxValue:
    (x,), (widths, value) = node.inputs, node.get_params("widths", "value")
    if any(gap for _, _, gap in widths):
        raise UnsupportedOp("between elements")
    if any(v.param("widths") != widths for v in t.versions[node]):
        raise UnsupportedOp("by sizes that are free")
    pads = t.model.constant([*(w[0] for w in widths), *(w[1] for w in widths)])
    filler = t.const(float(value) if isinstance(value, str) else value, node.dtype.numpy)
    return t.write(node, "Pad", t.full(x), pads, filler)


@translates("slice")
def slice_(t: Translator, node: Node) -> OnnxValue:
    (x,) = node.inputs
    sizes = t.dims(x)
    facts = zip(t.sizes(node, "starts"), t.sizes(node, "stops"), t.sizes(node, "steps"), sizes, strict=True)
    used = [(axis, *f) for axis, f in enumerate(facts) if f[:3] != (0, sizes[axis], 1)]
    if not used:
        return t.value(x)
    axes, starts, stops, steps, whole = zip(*used, strict=True)
    ends = [END if stop == size else stop for stop, size in zip(stops, whole, strict=True)]
    vector = t.model.vector
    return t.write(node, "Slice", t.full(x), vector(starts), vector(ends), vector(axes), vector(steps))


@translates("flip")
def flip(t: Translator, node: Node) -> OnnxValue:
    axes, constant = list(node.param("axes")), t.model.constant
    last, steps = [-1] * len(axes), [-1] * len(axes)
    first = constant([-END] * len(axes))
    return t.write(node, "Slice", t.full(node.inputs[0]), constant(last), first, constant(axes), constant(steps))


@translates("concat")
def concat(t: Translator, node: Node) -> OnnxValue:
    return t.write(node, "Concat", *(t.full(i) for i in node.inputs), axis=node.param("axis"))


@translates(*_REDUCTIONS)
def reduction(t: Translator, node: Node) -> OnnxValue:
    (x,), axes = node.inputs, node.param("axes")
    if not axes:
        return t.value(x)
    return t.write(node, _REDUCTIONS[node.op.name], t.full(x), t.model.constant(list(axes)), keepdims=0)


@translates("argmax", "argmin")
def position(t: Translator, node: Node) -> OnnxValue:
    op = "ArgMax" if node.op.name == "argmax" else "ArgMin"
    return t.write(node, op, t.full(node.inputs[0]), axis=node.param("axis"), keepdims=0)


@translates("cumsum")
def cumsum(t: Translator, node: Node) -> OnnxValue:
    return t.write(node, "CumSum", t.full(node.inputs[0]), t.const(node.param("axis"), np.int64))


@translates("item")
def item(t: Translator, node: Node) -> OnnxValue:
    found: OnnxValue = t.values[node.inputs[0]][node.param("index")]
    return found
