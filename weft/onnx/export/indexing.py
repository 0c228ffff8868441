"""Primitives that order elements, or read and write them by index, in ONNX."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...graph.node import Node
from .translator import Match, OnnxValue, Translator, UnsupportedOp, matches, translates


@translates("argsort", "top_k")
def ordered(t: Translator, node: Node) -> OnnxValue | list[OnnxValue]:
    """Of equal elements both weft and ONNX take the first one first."""
    (x,), axis = node.inputs, node.param("axis")
    sorts = node.op.name == "argsort"
    count = t.model.vector([t.dims(x)[axis] if sorts else t.size(node, "k")])
    largest = int(node.param("descending")) if sorts else 1
    values, places = t.out.add("TopK", t.full(x), count, outputs=2, axis=axis, largest=largest)
    if sorts:
        return OnnxValue(places, t.dims(node))
    return [OnnxValue(values, t.output_dims(node, 0)), OnnxValue(places, t.output_dims(node, 1))]


@translates("gather")
def gather(t: Translator, node: Node) -> OnnxValue:
    """The axes of the indices come first."""
    x, *indices = node.inputs
    axes, rank = node.param("axes"), len(x.shape)
    if len(axes) == 1 and (axes[0] == 0 or not indices[0].shape):
        return t.write(node, "Gather", t.full(x), _index(t, indices[0]), axis=axes[0])
    front = t.out.add("Transpose", t.full(x), perm=[*axes, *(i for i in range(rank) if i not in axes)])
    if len(axes) == 1:
        return t.write(node, "Gather", front, _index(t, indices[0]), axis=0)
    return t.write(node, "GatherND", front, _stacked(t, indices))


@matches("permute")
def take(t: Translator, node: Node) -> Match | None:
    """A gather whose new axes were moved to the place of the old one is Gather along that axis."""
    found = node.inputs[0]
    if found.op.name != "gather" or len(found.param("axes")) != 1 or not found.inputs[1].shape:
        return None
    (x, index), (axis,) = found.inputs, found.param("axes")
    new, rank = len(index.shape), len(found.shape)
    if node.param("axes") != (*range(new, new + axis), *range(new), *range(new + axis, rank)):
        return None
    return Match([x, index], lambda: t.write(node, "Gather", t.full(x), _index(t, index), axis=axis))


@translates("scatter")
def scatter(t: Translator, node: Node) -> OnnxValue:
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


@translates("update_slice")
def update_slice(t: Translator, node: Node) -> OnnxValue:
    """Along each axis, a mask says what is replaced, and the new value is spread to the size of the axis."""
    x, value, *indices = node.inputs
    axes, starts, steps = node.get_params("axes", "starts", "steps")
    if any(v.params != node.params for v in t.versions[node]):
        raise UnsupportedOp("at a place that depends on free sizes")
    new, masks = t.full(value), []
    inserted = t.model.constant(sorted(axes))
    new = t.out.add("Unsqueeze", new, inserted) if axes else new
    counts = iter(t.dims(value))
    for axis, size in enumerate(t.dims(x)):
        if axis in axes:
            masks.append(_is_index(t, x, axis, indices[axes.index(axis)]))
            continue
        count = next(counts)
        if (count, starts[axis], steps[axis]) == (size, 0, 1):
            continue
        if not isinstance(size, int) or not isinstance(count, int):
            raise UnsupportedOp("of a part of a free axis")
        source = (np.arange(size) - starts[axis]) / steps[axis]
        inside = (source == np.floor(source)) & (source >= 0) & (source < count)
        new = t.out.add("Gather", new, t.model.constant(np.where(inside, source, 0)), axis=axis)
        masks.append(t.model.constant(_along(inside, axis, len(x.shape)), np.bool_))
    for i in range(1, len(masks)):
        masks[i] = t.out.add("And", masks[i - 1], masks[i])
    return t.write(node, "Where", masks[-1], new, t.full(x)) if masks else OnnxValue(new, t.dims(node))


def _is_index(t: Translator, x: Node, axis: int, index: Node) -> str:
    """Which positions along an axis are the index, which counts from the end if it is negative."""
    size = t.dims(x)[axis]
    if not isinstance(size, int):
        raise UnsupportedOp("at an index of a free axis")
    places = t.model.constant(_along(np.arange(size), axis, len(x.shape)))
    name = _index(t, index, wide=True)
    return str(t.out.add("Equal", places, t.out.add("Mod", name, t.const(size, np.int64))))


def _along(vector: np.ndarray, axis: int, rank: int) -> np.ndarray:
    return vector.reshape([-1 if i == axis else 1 for i in range(rank)])
