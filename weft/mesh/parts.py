"""Sharded parameters: every process along an axis of a mesh holds a part of a tensor."""

from __future__ import annotations

from typing import Any
from weakref import finalize

from ..records import dataclass


@dataclass(frozen=True)
class Part:
    """How a tensor was split. Parts have equal size: the last ones are padded with zeros if the whole does not divide evenly."""

    axis: str  # of the mesh
    ranks: int  # along it
    dim: int  # of the tensor
    size: int  # of the whole along this dimension

    @property
    def length(self) -> int:
        """The size of a part."""
        return part_length(self.size, self.ranks)


def part_length(size: int, ranks: int) -> int:
    """The size of each of `ranks` equal parts, the last ones padded."""
    return -(-size // ranks)


_parts: dict[
    int, Part
] = {}  # by the ids of tensors: == of tensors is elementwise, so they cannot be keys of weak dictionaries


def note_part(tensor: Any, part: Part) -> None:
    """Record that a tensor is this process's part of a larger one."""
    _parts[id(tensor)] = part
    finalize(tensor, _parts.pop, id(tensor), None)


def part_of(tensor: Any) -> Part | None:
    """How the tensor was split from a larger one; None if it is whole."""
    return _parts.get(id(tensor))
