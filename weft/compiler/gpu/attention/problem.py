"""What the kernels of attention on GPUs know of a node, and the tiles that they work in. Operands are 16-bit floats, sums float32."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from ....dtypes import DType
from ....graph.node import Node
from ....records import dataclass
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
    def width(self) -> int:
        """Of tiles that hold features or values: one for both. With two widths, Triton 3.6 was seen to give wrong numbers on an H200."""
        return _side(max(self.features, self.values))

    @property
    def joins_words(self) -> bool:
        """Whether four neighbouring keys share a block of the random generator, whose words are joined to a tile."""
        return bool(self.anchor.param("dropout")) and self.sizes[3] % 4 == 0

    @property
    def least_keys(self) -> int:
        """The least side of a tile that products of weights sum over. Triton gives each of the four lanes of a row of operands 32 bits of the narrowest
        numbers that the weights are made of, a mask's bytes, and twice as many where words were joined. Lanes that do not fit in the tile count again.
        """
        bits = 8 * min(self.dtype.itemsize, 1 if "mask" in self.extra else self.dtype.itemsize)
        return max(LEAST, 4 * 32 // (bits // 2 if self.joins_words else bits))

    def tile(self, part: str) -> AttentionTile:
        """The tile of a kernel, by the size of a head: what is kept on the chip must fit there."""
        chosen = _TILES[part][sum(self.width > most for most in (64, 128))]
        if {"mask", "bias"} & set(self.extra):  # whose tiles are loaded ahead as well
            chosen = replace(chosen, stages=min(2, chosen.stages))
        _, _, queries, keys = self.sizes
        of_queries, of_keys = (LEAST, self.least_keys)[:: -1 if part == "keys" else 1]  # products sum over the others
        tile = replace(
            chosen,
            queries=min(chosen.queries, max(of_queries, _side(queries))),
            keys=min(chosen.keys, max(of_keys, _side(keys))),
        )
        rows = tile.keys if part == "keys" else tile.queries
        across = min(self.width, tile.queries if part == "keys" else tile.keys)
        return replace(
            tile, warps=max(1, min(tile.warps, rows // 16 * (across // 8)))
        )  # each has a part of every product


def _side(size: int) -> int:
    return max(LEAST, next_power_of_two(size))


# By part and by the size of a head: up to 64 features, 128, 256.
_TILES = {
    "forward": (AttentionTile(128, 64, 4, 3), AttentionTile(128, 64, 8, 2), AttentionTile(64, 32, 4, 2)),
    "keys": (AttentionTile(64, 128, 8, 2), AttentionTile(64, 64, 8, 2), AttentionTile(32, 32, 4, 1)),
    "queries": (AttentionTile(128, 64, 8, 2), AttentionTile(64, 64, 8, 2), AttentionTile(64, 32, 4, 1)),
}
