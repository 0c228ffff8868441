"""What the kernels of attention on GPUs know of a node, and the tiles that they work in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from ....dtypes import DType, float32, float64
from ....graph.node import Node
from ...ir.kernel import Kernel, View
from ...ir.program import result_nodes
from ..anchors import anchor_of
from ..kernel_utils import next_power_of_two

LEAST = 16  # sides of a tile that the matrix units take


@dataclass(frozen=True)
class AttentionTile:
    """How many queries and keys a program has at a time, and the warps and stages of its pipeline."""

    queries: int
    keys: int
    warps: int
    stages: int


@dataclass(frozen=True)
class AttentionProblem:
    """A node of attention or of its gradients as its kernels see it."""

    kernel: Kernel

    @property
    def anchor(self) -> Node:
        return anchor_of(self.kernel)

    @cached_property
    def sizes(self) -> tuple[int, int, int, int]:
        """batch, heads, queries, keys"""
        (batch, queries, heads, _), keys = self.anchor.inputs[0].shape, self.anchor.inputs[1].shape[1]
        return batch, heads, queries, keys

    @property
    def key_heads(self) -> int:
        return self.anchor.inputs[1].shape[2]

    @property
    def groups(self) -> int:
        return self.anchor.inputs[0].shape[2] // self.key_heads

    @property
    def features(self) -> int:
        return self.anchor.inputs[0].shape[3]

    @property
    def values(self) -> int:
        return self.anchor.inputs[2].shape[3]

    @property
    def dtype(self) -> DType:
        return self.anchor.inputs[0].dtype

    @property
    def wide(self) -> DType:
        """The type of sums."""
        return float64 if self.dtype is float64 else float32

    @cached_property
    def extra(self) -> dict[str, View]:
        """The further inputs by name."""
        given = self.anchor.param("given")
        return dict(zip(given, self.kernel.views[len(self.kernel.views) - len(given) :], strict=True))

    @property
    def results(self) -> dict[str, Node]:
        return result_nodes(self.kernel)

    @property
    def is_banded(self) -> bool:
        return bool(self.anchor.param("left") >= 0 or self.anchor.param("right") >= 0)

    @property
    def padded(self) -> tuple[int, int]:
        """The sides of tiles that hold features and values. In float32 they are the same: with two sides, Triton's products in three
        parts were seen to give wrong numbers (features of 12 and values of 20, Triton 3.6 on an H200)."""
        sides = _side(self.features), _side(self.values)
        return (max(sides), max(sides)) if self.dtype is float32 else sides

    def tile(self, part: str) -> AttentionTile:
        """The tile of a kernel, by the size of a head and of its numbers: what is kept on the chip must fit there."""
        weight = max(self.padded) * self.dtype.itemsize // 2  # features of 16 bits
        level = sum(weight > most for most in (64, 128, 256, 512)) + (self.dtype is float32)
        chosen = _TILES[part][min(4, level)]
        if {"mask", "bias"} & set(self.extra):  # whose tiles are loaded ahead as well
            chosen = replace(chosen, stages=min(2, chosen.stages))
        _, _, queries, keys = self.sizes
        return replace(chosen, queries=min(chosen.queries, _side(queries)), keys=min(chosen.keys, _side(keys)))


def _side(size: int) -> int:
    return max(LEAST, next_power_of_two(size))


# By part and by the size of a head: up to 64 features of 16 bits, 128, 256, 512 (float32), more (float64).
_TILES = {
    "forward": (
        AttentionTile(128, 64, 4, 3), AttentionTile(128, 64, 8, 2), AttentionTile(64, 32, 4, 2), AttentionTile(32, 32, 4, 1),
        AttentionTile(16, 16, 4, 1),
    ),
    "keys": (
        AttentionTile(64, 128, 8, 2), AttentionTile(64, 64, 8, 2), AttentionTile(32, 32, 4, 1), AttentionTile(16, 32, 4, 1),
        AttentionTile(16, 16, 4, 1),
    ),
    "queries": (
        AttentionTile(128, 64, 8, 2), AttentionTile(64, 64, 8, 2), AttentionTile(64, 32, 4, 1), AttentionTile(32, 16, 4, 1),
        AttentionTile(16, 16, 4, 1),
    ),
}  # fmt: skip
