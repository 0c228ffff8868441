"""Primitives that move elements, reduce them, or select them by index, in ONNX."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...graph.node import Node
from .translator import Match, Translator, Unsupported, Value, matches, translates
from .writer import END, Dim, Dims

_REDUCTIONS = {"sum": "ReduceSum", "prod": "ReduceProd", "max": "ReduceMax", "min": "ReduceMin"}


@translates("expand")
def expand(t: Translator, node: Node) -> Value:
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
def reshape(t: Translator, node: Node) -> Value:
    return _reshape(t, node, node.inputs[0])


def _reshape(t: Translator, node: Node, x: Node) -> Value:
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
def permute(t: Translator, node: Node) -> Value:
    value = t.value(node.inputs[0])
    if value.shape == ():
        return value
    return t.write(node, "Transpose", t.full(node.inputs[0]), perm=list(node.param("axes")))


@translates("pad")
def pad(t: Translator, node: Node) -> Value:
    (x,), (widths, value) = node.inputs, node.get_params("widths", "value")
    if any(gap for _, _, gap in widths):
        raise Unsupported("between elements")
    if any(v.param("widths") != widths for v in t.versions[node]):
        raise Unsupported("by sizes that are free")
    pads = t.model.constant([*(w[0] for w in widths), *(w[1] for w in widths)])
    filler = t.const(float(value) if isinstance(value, str) else value, node.dtype.numpy)
    return t.write(node, "Pad", t.full(x), pads, filler)


@translates("slice")
def slice_(t: Translator, node: Node) -> Value:
    (x,) = node.inputs
    sizes = t.dims(x)
    facts = zip(t.sizes(node, "starts"), t.sizes(node, "stops"), node.param("steps"), sizes, strict=True)
    used = [(axis, *f) for axis, f in enumerate(facts) if f[:3] != (0, sizes[axis], 1)]
    if not used:
        return t.value(x)
    axes, starts, stops, steps, whole = zip(*used, strict=True)
    ends = [END if stop == size else stop for stop, size in zip(stops, whole, strict=True)]
    vector = t.model.vector
    return t.write(node, "Slice", t.full(x), vector(starts), vector(ends), vector(axes), vector(steps))


@translates("flip")
def flip(t: Translator, node: Node) -> Value:
    axes, constant = list(node.param("axes")), t.model.constant
    last, steps = [-1] * len(axes), [-1] * len(axes)
    first = constant([-END] * len(axes))
    return t.write(node, "Slice", t.full(node.inputs[0]), constant(last), first, constant(axes), constant(steps))


@translates("concat")
def concat(t: Translator, node: Node) -> Value:
    return t.write(node, "Concat", *(t.full(i) for i in node.inputs), axis=node.param("axis"))


@translates(*_REDUCTIONS)
def reduction(t: Translator, node: Node) -> Value:
    (x,), axes = node.inputs, node.param("axes")
    if not axes:
        return t.value(x)
    return t.write(node, _REDUCTIONS[node.op.name], t.full(x), t.model.constant(list(axes)), keepdims=0)


@translates("argmax", "argmin")
def position(t: Translator, node: Node) -> Value:
    op = "ArgMax" if node.op.name == "argmax" else "ArgMin"
    return t.write(node, op, t.full(node.inputs[0]), axis=node.param("axis"), keepdims=0)


@translates("cumsum")
def cumsum(t: Translator, node: Node) -> Value:
    return t.write(node, "CumSum", t.full(node.inputs[0]), t.const(node.param("axis"), np.int64))


@translates("argsort", "top_k")
def ordered(t: Translator, node: Node) -> Value | list[Value]:
    """Of equal elements both weft and ONNX take the first one first."""
    (x,), axis = node.inputs, node.param("axis")
    sorts = node.op.name == "argsort"
    count = t.model.vector([t.dims(x)[axis] if sorts else node.param("k")])
    largest = int(node.param("descending")) if sorts else 1
    values, places = t.out.add("TopK", t.full(x), count, outputs=2, axis=axis, largest=largest)
    if sorts:
        return Value(places, t.dims(node))
    return [Value(values, t.output_dims(node, 0)), Value(places, t.output_dims(node, 1))]


@translates("gather")
def gather(t: Translator, node: Node) -> Value:
    """The axes of the indices come first."""
    x, *indices = node.inputs
    axes, rank = node.param("axes"), len(x.shape)
    if len(axes) == 1 and (axes[0] == 0 or not indices[0].shape):
        return t.write(node, "Gather", t.full(x), _index(t, indices[0]), axis=axes[0])
    front = t.out.add("Transpose", t.full(x), perm=[*axes, *(i for i in range(rank) if i not in axes)])
    if len(axes) == 1:
        return t.write(node, "Gather", front, _index(t, indices[0]), axis=0)
    return t.write(node, "GatherND", front, _stacked(t, indices))


@translates("scatter")
def scatter(t: Translator, node: Node) -> Value:
    x, values, *indices = node.inputs
    axes = node.param("axes")
    order = [*axes, *(i for i in range(len(x.shape)) if i not in axes)]
    how = "add" if node.param("how") == "add" else "none"
    front = t.out.add("Transpose", t.full(x), perm=order)
    written = t.out.add("ScatterND", front, _stacked(t, indices), t.full(values), reduction=how)
    return t.write(node, "Transpose", written, perm=[order.index(i) for i in range(len(order))])


def _stacked(t: Translator, indices: Sequence[Node]) -> str:
    """Indices of several axes, side by side in a last axis."""
    last = t.model.constant([-1])
    return str(t.out.add("Concat", *(t.out.add("Unsqueeze", _index(t, i, wide=True), last) for i in indices), axis=-1))


def _index(t: Translator, node: Node, wide: bool = False) -> str:
    """Indices must be int32 or int64."""
    name = t.full(node)
    if node.dtype.name == "int64" or (node.dtype.name == "int32" and not wide):
        return name
    return str(t.out.add("Cast", name, to=7))


@translates("item")
def item(t: Translator, node: Node) -> Value:
    found: Value = t.values[node.inputs[0]][node.param("index")]
    return found
