"""Small words for passes that write graphs: movements that change nothing are left out, and two of a kind become one."""

from __future__ import annotations

from typing import Any

from ...dtypes import DType
from ...graph.node import OPS, Node, make


def move(name: str, x: Node, *params: Any) -> Node:
    """A permute, reshape, expand or the like."""
    if name == "permute" and params[0] == tuple(range(len(params[0]))):
        return x
    if name == "permute" and x.op.name == "permute":
        return move("permute", x.inputs[0], tuple(x.params[0][a] for a in params[0]))
    if name in ("reshape", "expand") and x.shape == params[0]:
        return x
    if name == "reshape" and x.op.name == "reshape":
        return move("reshape", x.inputs[0], *params)
    return make(OPS[name], (x,), params)


def cast(x: Node, dtype: DType) -> Node:
    return x if x.dtype is dtype else make(OPS["cast"], (x,), (dtype,))
