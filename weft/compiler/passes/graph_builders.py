"""Helpers of passes that create nodes: movement that changes nothing is omitted, and two permutes or reshapes are merged."""

from __future__ import annotations

from typing import Any

from ...dtypes import DType
from ...graph.node import OPS, Node, make


def move(name: str, x: Node, *params: Any) -> Node:
    """A permute, reshape, expand or another movement op."""
    if name == "permute":
        [axes] = params
        if axes == tuple(range(len(axes))):
            return x
        if x.op.name == "permute":
            below = x.param("axes")
            return move("permute", x.inputs[0], tuple(below[a] for a in axes))
    if name in ("reshape", "expand") and x.shape == params[0]:
        return x
    if name == "reshape" and x.op.name == "reshape":
        return move("reshape", x.inputs[0], *params)
    return make(OPS[name], (x,), params)


def cast(x: Node, dtype: DType) -> Node:
    """The same value in another dtype."""
    return x if x.dtype is dtype else make(OPS["cast"], (x,), (dtype,))


def const_value(node: Node) -> bool | int | float:
    """The number that a constant is filled with."""
    value: bool | int | float | str = node.param("value")
    return float(value) if isinstance(value, str) else value
