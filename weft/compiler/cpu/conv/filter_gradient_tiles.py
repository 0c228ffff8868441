"""Register tiles of filter gradients: rows (taps and input channels) x vectors of output channels, see filter_gradient.py."""

from __future__ import annotations

from math import prod

from ....records import dataclass
from ...ir.conv_shape import ConvShape
from ..gemm.register_tile import pieces
from ..target import CpuTarget

# By architecture and vector registers: (rows, vectors) of tiles that read packed x, and what part of the time they do useful work.
_TILES = {
    ("aarch64", 32): {(6, 4): 1.0, (8, 3): 0.98, (8, 2): 0.96, (12, 1): 0.8},
    ("riscv64", 8): {(5, 1): 1.0},
    ("x86_64", 16): {(6, 2): 1.0, (10, 1): 0.8},
    ("x86_64", 32): {(6, 4): 1.0, (9, 3): 1.0, (12, 2): 0.94, (14, 1): 0.76},
}
_MOST_VECTORS = 4
_MOST_RUNS = 6  # in a block of rows: each has a pointer
# Limits for reading x in place: vectors of output channels, and pixels that stay in the L1 cache.
_IN_PLACE = {("aarch64", 32): (16, 256), ("x86_64", 32): (8, 96)}
_PACK_TOGETHER, _PACK_ONE = 2.0, 1.3  # cycles to pack the rows of a block side by side, and one of several that are not


@dataclass(frozen=True)
class FilterTile:
    rows: int
    vectors: int
    runs: int = 0  # of rows that follow each other in x, which is read in place. 0: x is packed

    @property
    def name(self) -> str:
        return f"{self.rows}x{self.vectors}" + (f".{self.runs}" if self.runs else "")


def packed_tile(shape: ConvShape, target: CpuTarget) -> FilterTile:
    """The tile for packed x that wastes the least at the edges."""
    outputs, lanes = shape.filters // shape.groups, target.lanes(32)
    tiles = _TILES.get((target.arch, target.registers), _TILES["x86_64", 16])

    def cost(tile: tuple[int, int]) -> float:
        width = tile[1] * lanes
        return -(-outputs // width) * width / tiles[tile]

    return FilterTile(*min(tiles, key=cost))


def in_place_tile(shape: ConvShape, target: CpuTarget) -> FilterTile:
    """The fastest tile whose rows are a part of a run, or whole runs, of x."""
    length, runs = _runs(shape)
    heights = [(rows, 1) for rows in range(1, length + 1) if length % rows == 0]
    heights += [(length * some, some) for some in range(2, _MOST_RUNS + 1) if runs % some == 0]
    most = min(_MOST_VECTORS, -(-shape.filters // shape.groups // target.lanes(32)))
    tiles = [FilterTile(rows, v, some) for rows, some in heights for v in range(1, most + 1)]
    fitting = [tile for tile in tiles if _registers(tile, target) < target.registers]
    return min(fitting, key=lambda tile: _cycles(shape, target, tile))


def pays_in_place(shape: ConvShape, target: CpuTarget) -> bool:
    """Whether reading x in place is faster than packing it.

    Not with many output channels, because x is packed once for many products, nor with pixels so far apart that they do not fit in L1.
    """
    vectors, pixels = _IN_PLACE.get((target.arch, target.registers), (0, 0))
    apart = 4 * shape.channels * shape.stride[-1]
    if shape.filters // shape.groups > vectors * target.lanes(32) or apart * pixels > target.l1:
        return False
    packed, in_place = packed_tile(shape, target), in_place_tile(shape, target)
    return _cycles(shape, target, in_place) < _cycles(shape, target, packed)


def _runs(shape: ConvShape) -> tuple[int, int]:
    """The runs of rows that are contiguous in memory: their length and number."""
    inputs, width = shape.channels // shape.groups, shape.lifted.kernel[-1]
    length = inputs * (width if shape.groups == 1 and (width == 1 or shape.lifted.dilation[-1] == 1) else 1)
    return length, prod(shape.kernel) * inputs // length


def _reads(tile: FilterTile, target: CpuTarget) -> int:
    """Loads of x for one pixel: NEON loads vectors and uses their lanes, x86 broadcasts each element."""
    if target.arch != "aarch64":
        return tile.rows
    runs = tile.runs or 1
    return runs * len(pieces(tile.rows // runs, target.lanes(32)))


def _registers(tile: FilterTile, target: CpuTarget) -> int:
    """The registers for the accumulators, a row of g, and the values of x."""
    return tile.rows * tile.vectors + tile.vectors + (_reads(tile, target) if target.arch == "aarch64" else 1)


def _cycles(shape: ConvShape, target: CpuTarget, tile: FilterTile) -> float:
    """The estimated cycles of a pixel."""
    length, count = _runs(shape)
    reads = _reads(tile, target) + tile.vectors
    # Two sums and two reads in a cycle, a sum ready for the next after four; then the loop, and reads that collide.
    product = max(4.0, tile.rows * tile.vectors / 2, reads / 2) + 1.5 + reads / 16
    packing = 0.0 if tile.runs else _PACK_TOGETHER if length >= 2 * tile.rows else _PACK_ONE * tile.rows
    panels = -(-shape.filters // shape.groups // (target.lanes(32) * tile.vectors))
    return -(-length * count // tile.rows) * (panels * product + packing)
