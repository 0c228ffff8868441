"""Scatters of derivatives as comparisons, which fuse: those of max pooling, and of selecting one element in each row."""

from __future__ import annotations

from math import prod

import numpy as np

from ...graph.node import CONST, OPS, Node, constant, make
from ...graph.rewrite import rule
from ..ir.window_ops import IN_RANGE, SPREAD, TAP
from .graph_builders import const_value


@rule("reshape")
def pooling_gradient(node: Node) -> Node | None:
    """The derivative of max pooling, written as a scatter: each element sums over the windows that it is the maximum of instead."""
    scatter = node.inputs[0]
    if scatter.op.name != "scatter":
        return None
    into, values, *places = scatter.inputs
    if scatter.get_params("axes", "how") != ((0,), "add") or into.op is not CONST or const_value(into) != 0:
        return None
    found = _unguarded(_flat(places[0]))
    g = _unguarded(_flat(values), found)
    if found.op.name != "window_argmax" or found.inputs[0].shape != node.shape:
        return None
    g = g if g.shape == found.shape else make(OPS["reshape"], (g,), (found.shape,))
    tap = make(TAP, found.inputs, found.params, node.source)
    return make(SPREAD, (tap, g), (*found.params, node.shape), node.source)


def _unguarded(node: Node, found: Node | None = None) -> Node:
    """The value guarded by `where(found < 0, 0, ...)`: a window that contains only padding has no maximum."""
    if node.op.name != "where":
        return node
    test, zero, inner = node.inputs
    asked = test.inputs[0] if test.op.name == "lt" else None
    is_guard = (
        asked is (inner if found is None else found) and test.inputs[1].op is CONST and const_value(test.inputs[1]) == 0
    )
    return inner if is_guard and zero.op is CONST and const_value(zero) == 0 else node


def _flat(node: Node) -> Node:
    return node.inputs[0] if node.op.name == "reshape" else node


@rule("add")
def scatter_into_sum(node: Node) -> Node | None:
    """x + (zeros with rows added at indices) is x with rows added at indices: no zeros are stored, and few elements of x change."""
    for x, scatter in (node.inputs, node.inputs[::-1]):
        if scatter.op.name == "scatter" and scatter.param("how") == "add" and x.op is not CONST:
            into = scatter.inputs[0]
            if into.op is CONST and const_value(into) == 0 and node.dtype.is_float:
                return make(scatter.op, (x, *scatter.inputs[1:]), scatter.params, scatter.source)
    return None


@rule("scatter")
def one_hot(node: Node) -> Node | None:
    """A scatter that writes one value in each row along one axis, into a constant: a comparison with the position."""
    into, values, *places = node.inputs
    if into.op is not CONST:
        return None
    axes, how = node.get_params("axes", "how")
    if (
        axes != tuple(range(len(node.shape)))
        or len(places[0].shape) != len(axes)
        or (how == "add" and const_value(into) != 0)
    ):
        return None
    free = [a for a, p in zip(axes, places, strict=True) if not _counts_along(p, a)]
    if len(free) != 1 or places[0].shape[free[0]] != 1:
        return None
    axis = free[0]
    if any(n != m for a, (n, m) in enumerate(zip(places[0].shape, node.shape, strict=True)) if a != axis):
        return None
    index = places[axis]
    size = node.shape[axis]
    if size > np.iinfo(np.int32).max:
        return None
    wrapped = make(IN_RANGE, (index,), (size, axis), node.source)
    along = make(OPS["iota"], (), (size, wrapped.dtype))
    grid = make(OPS["reshape"], (along,), (tuple(size if a == axis else 1 for a in axes),))
    here = _elementwise("eq", _expanded(grid, node.shape), _expanded(wrapped, node.shape))
    return _elementwise("where", here, _expanded(values, node.shape), into)


def _counts_along(place: Node, axis: int) -> bool:
    """Whether an index tensor is the position of each element along an axis."""
    while place.op.name in ("expand", "reshape"):
        shape = place.inputs[0].shape
        if place.op.name == "reshape":
            if prod(shape) != max(place.shape, default=1) or place.shape[axis] != prod(shape):
                return False
        elif len(shape) != len(place.shape):
            return False
        place = place.inputs[0]
    return place.op.name == "iota"


# --- once the layout is known -------------------------------------------------------------------------------------------------


@rule(SPREAD.name)
def separate_windows(node: Node) -> Node | None:
    """Windows that do not overlap: each element belongs to one window, and compares that window's tap with its own."""
    tap, g = node.inputs
    size, stride, padding, dilation, shape = node.get_params("size", "stride", "padding", "dilation", "shape")
    if size != stride or any(map(any, padding)) or any(d != 1 for d in dilation):
        return None
    if shape != tuple(n * k for n, k in zip(g.shape, size, strict=True)):
        return None
    apart = tuple(m for n, k in zip(g.shape, size, strict=True) for m in ((n, k) if k > 1 else (n,)))
    outer = tuple(m for n, k in zip(g.shape, size, strict=True) for m in ((n, 1) if k > 1 else (n,)))
    is_tap = [kind for k in size for kind in ((False, True) if k > 1 else (False,))]
    places = [p for p, m in enumerate(apart) if outer[p] == 1 and m > 1 and is_tap[p]]
    number: Node = constant(0, tap.dtype, apart)
    step = prod(size)
    for place in places:
        step //= apart[place]
        along = make(OPS["iota"], (), (apart[place], tap.dtype))
        grid = make(OPS["reshape"], (along,), (tuple(apart[place] if p == place else 1 for p in range(len(apart))),))
        scaled = _elementwise("mul", _expanded(grid, apart), constant(step, tap.dtype, apart))
        number = _elementwise("add", number, scaled)
    won = _elementwise("eq", _expanded(_reshaped(tap, outer), apart), number)
    chosen = _elementwise("where", won, _expanded(_reshaped(g, outer), apart), constant(0, g.dtype, apart))
    return _reshaped(chosen, shape)


def _elementwise(name: str, *inputs: Node) -> Node:
    return make(OPS[name], inputs)


def _expanded(node: Node, shape: tuple[int, ...]) -> Node:
    return node if node.shape == shape else make(OPS["expand"], (node,), (shape,))


def _reshaped(node: Node, shape: tuple[int, ...]) -> Node:
    return node if node.shape == shape else make(OPS["reshape"], (node,), (shape,))
