"""The sizes of attention's blocks: register tiles for each of its products, blocks of queries and keys."""

from __future__ import annotations

from ....records import dataclass
from ...thresholds import thresholds
from ..gemm.packing import BYTES
from ..gemm.register_tile import RegisterTile
from ..gemm.tiling import tiles
from ..target import current_target

ROOM = 16  # rows that blocks have beyond their own: those of the last register tile


@dataclass(frozen=True)
class Blocks:
    """The blocks of a problem. They depend on the sizes of heads and on the CPU alone, so bits do not depend on threads."""

    kind: str  # f32 or f64
    width: int  # features of a query and of a key
    values: int  # features of a value

    @property
    def lanes(self) -> int:
        return current_target().lanes(8 * BYTES[self.kind])

    @property
    def scores(self) -> RegisterTile:
        """Of a product whose columns are keys."""
        return self._pick("rows", 1 << 20)

    @property
    def outputs(self) -> RegisterTile:
        """Of the weights times the values."""
        return self._pick("rows", self.values)

    @property
    def of_queries(self) -> RegisterTile:
        """Of the gradient of the scores times the keys."""
        return self._pick("rows", self.width)

    @property
    def of_keys(self) -> RegisterTile:
        """Of the transposed gradient of the scores times the queries."""
        return self._pick("columns", self.width)

    @property
    def of_values(self) -> RegisterTile:
        """Of the transposed weights times the gradient of the output."""
        return self._pick("columns", self.values)

    def panel(self, tile: RegisterTile) -> int:
        return tile.columns(self.lanes)

    def padded(self, columns: int, tile: RegisterTile) -> int:
        """A number of columns in whole panels."""
        return -(-columns // self.panel(tile)) * self.panel(tile)

    @property
    def queries(self) -> int:
        """Of a block, in whole tiles: gradients of neighbouring blocks lie next to each other."""
        rows = self.of_queries.rows
        return max(1, thresholds.attention_queries // rows) * rows

    @property
    def keys(self) -> int:
        """Of a block, in whole panels."""
        return max(1, thresholds.attention_keys // self.panel(self.scores)) * self.panel(self.scores)

    @property
    def vector(self) -> int:
        """Lanes of the vectors in which rows of scores are computed: two registers where a panel has an even number."""
        return self.lanes * (2 if self.scores.vectors % 2 == 0 else 1)

    def _pick(self, reading: str, columns: int) -> RegisterTile:
        """The fastest tile, whose panels have few columns more than there are."""

        def cost(shape: tuple[int, int]) -> tuple[float, int]:
            tile = RegisterTile(*shape)
            return self.padded(columns, tile) / family[shape], -tile.rows * tile.vectors

        family = tiles(current_target(), self.kind)[reading]
        return RegisterTile(*min(family, key=cost))
