"""The frame of a native program: an array of pointers that it is called with, and the sizes of what they point to."""

from __future__ import annotations

from math import prod

from ...graph.node import Node

FRAME_RESERVED = 3  # entries before those of inputs and outputs: the arena, the status, persistent memory
ALIGN = 64  # bytes


def nbytes(node: Node) -> int:
    """The size of a value in memory."""
    return prod(node.shape) * node.dtype.itemsize
