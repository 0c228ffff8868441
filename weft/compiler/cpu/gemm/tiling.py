"""The tiling of matrix products: the register tile, what is packed, and the blocks that are tasks, chosen by a cost model.

The cost model counts cycles of one thread: multiply-adds of whole tiles (edges included), starting a tile, and packing. Its constants
are measured. No choice made here changes the bits of the result, except the pieces of k, which depend on the shape alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from math import ceil, gcd

from ....records import dataclass
from ...thresholds import thresholds
from ..target import CpuTarget
from . import matrix_unit
from .arithmetic import has_offset, needs_registers
from .packing import BYTES
from .product import LONG, ProductKernel
from .register_tile import RegisterTile

Strides = tuple[int, int]  # from row to row, from column to column, in elements

# Useful tiles (rows, vectors) and the fraction of the peak fma rate that their inner loop reaches, by access pattern.
_NEON = {
    "columns": {(8, 3): 0.955, (8, 2): 0.94, (4, 4): 0.91, (4, 5): 0.94},
    "rows": {(4, 3): 0.95, (4, 4): 0.95, (5, 4): 0.92, (8, 2): 0.88, (8, 1): 0.75},
}
_X86_16 = {
    "columns": {(6, 2): 0.95, (4, 3): 0.94, (10, 1): 0.8},
    "rows": {(6, 2): 0.95, (4, 3): 0.94, (4, 2): 0.85},
}
_X86_32 = {
    "columns": {(14, 2): 0.90, (12, 2): 0.88, (9, 3): 0.94, (8, 3): 0.95, (6, 4): 0.95, (14, 1): 0.72},
    "rows": {(6, 4): 0.96, (9, 3): 0.96, (8, 3): 0.94, (12, 2): 0.89, (8, 2): 0.88, (4, 4): 0.91, (12, 1): 0.75},
}
# Products of integers that need registers for more than the sums, on x86: see arithmetic.py.
_X86_16_INTEGERS = {"columns": {(4, 2): 0.8, (3, 2): 0.75}, "rows": {(4, 2): 0.8, (3, 2): 0.75}}
_X86_32_INTEGERS = {
    "columns": {(7, 3): 0.9, (5, 4): 0.9, (12, 2): 0.88, (4, 4): 0.86},
    "rows": {(7, 3): 0.9, (5, 4): 0.9, (4, 4): 0.86},
}
_X86_32_OFFSET = {  # a row needs an instruction of its own
    "columns": {(6, 4): 0.8, (8, 3): 0.75, (7, 3): 0.74, (12, 2): 0.67, (4, 4): 0.77},
    "rows": {(6, 4): 0.8, (8, 3): 0.75, (7, 3): 0.74, (4, 4): 0.77},
}
_MATRIX_UNIT = {(32, 2): 2.8, (16, 2): 1.9}  # the same, relative to vpdpbusd
_SCALARS = {
    "columns": {(6, 1): 0.95, (4, 1): 0.9},
    "rows": {(6, 1): 0.95, (4, 1): 0.9},
}  # vectors that are scalar registers

_FMAS = 2.0  # vector multiply-adds a cycle
_START = 40.0  # cycles to start a tile
_EDGE = 60.0  # more, for one at an edge
_SCATTER = 3.0  # cycles to store an element of a tile that is transposed
_PHASE = 3000.0  # cycles of a phase: the barrier and load imbalance
_CROWD = 400.0  # more, for each thread beyond a few
_PACK = {"copy": 0.6, "turn": 0.9, "collect": 4.0}  # cycles to pack an element that is used at once
_FAR = 0.6  # more, if it is used in another phase
_NEAR = 0.15  # cycles to read an element of B in place for the first time, on x86
_PAGE = 4096  # bytes; also those of a way of the L1 cache
_TLB_ROWS = 32  # rows of C, each in a page of its own, that a task stores to without TLB misses
_EVICTED = 0.15  # slowdown if the rows of a tile evict each other from the L1 cache
_SHARED, _FEW_THREADS = 0.08, 4  # cycles to read a byte that more threads than these share


@dataclass(frozen=True)
class Problem:
    """A batch of products C = A @ B, or C += A @ B. Strides of 0 along the batch repeat a matrix."""

    m: int
    n: int
    k: int
    a: Strides
    b: Strides
    c: Strides
    batch: int
    a_batch: int
    b_batch: int
    c_batch: int
    kind: str  # type of C, and of the arithmetic
    a_type: str
    b_type: str
    threads: int
    accumulate: bool
    b_packed: int = 0  # the width of its panels if B is packed already
    transposed: bool = False  # this is the transposed problem: "a" and "b" are exchanged


@dataclass(frozen=True)
class Tiling:
    """The tiling of a problem, and its estimated cost."""

    kernel: ProductKernel
    pack_a: bool  # by each task
    pack_b: str  # "": read in place, or packed already; "first": by a phase of its own; "task": by each task
    row_blocks: int
    column_blocks: int
    k_block: int
    cost: float  # cycles


def transpose_problem(p: Problem) -> Problem:
    """The transposed problem: with few rows and a large matrix with contiguous columns, the large one need not be transposed."""
    return replace(
        p, m=p.n, n=p.m, a=p.b[::-1], b=p.a[::-1], c=p.c[::-1], a_batch=p.b_batch, b_batch=p.a_batch,
        a_type=p.b_type, b_type=p.a_type, transposed=not p.transposed,
    )  # fmt: skip


def choose(problem: Problem, target: CpuTarget) -> Tiling:
    """The tiling with the lowest cost."""
    return _chosen(problem, target, thresholds.product_short)


@lru_cache(4096)
def _chosen(problem: Problem, target: CpuTarget, short: int) -> Tiling:
    """The same. `short`: the threshold that it depends on, as a cache key."""
    return min(candidates(problem, target), key=lambda choice: choice.cost)


def best_width(problem: Problem, target: CpuTarget) -> int:
    """The width of panels that suits the problem best if B is packed beforehand, out of those that suit any A."""
    families = [family for reading, family in tiles(target, problem.kind).items() if reading != "rows"]
    shapes = {vectors for family in families for _, vectors in family}
    widths = [vectors * target.lanes(8 * BYTES[problem.kind]) for vectors in sorted(shapes)]
    return min(widths, key=lambda width: choose(replace(problem, b_packed=width), target).cost)


def tiles(target: CpuTarget, kind: str = "f32") -> dict[str, dict[tuple[int, int], float]]:
    """The useful tiles of vector registers (rows, vectors) by access pattern, and their rates."""
    if needs_registers(kind, target) and target.registers in (16, 32) and target.arch != "aarch64":
        if target.registers == 16:
            return _X86_16_INTEGERS
        return _X86_32_OFFSET if has_offset(kind, target) else _X86_32_INTEGERS
    return _NEON if target.arch == "aarch64" else {8: _SCALARS, 16: _X86_16, 32: _X86_32}[target.registers]


def candidates(p: Problem, target: CpuTarget) -> Iterator[Tiling]:
    """All possible tilings, each with its best blocks."""
    families = tiles(target, p.kind)
    if matrix_unit.multiplies(p.kind, p.k, target):
        families = families | {"rows": families["rows"] | _MATRIX_UNIT}
    for reading, family in families.items():
        for (height, vectors), rate in family.items():
            kernel = ProductKernel(p.kind, p.a_type, p.b_type, RegisterTile(height, vectors), reading)
            if p.b_packed and kernel.width(target) != p.b_packed:
                continue
            for pack_a in (False, True):
                for pack_b in ("", "first", "task"):
                    if _possible(p, kernel, pack_a, pack_b, target):
                        yield _Estimate(p, kernel, pack_a, pack_b, rate, target).best()


def _possible(p: Problem, kernel: ProductKernel, pack_a: bool, pack_b: str, target: CpuTarget) -> bool:
    """Whether the operands can be read this way. Reading in place requires the same type, a whole tile, and contiguous elements."""
    if pack_a:
        left = kernel.reading != "rows"
    else:
        lies = p.a_type == p.kind and p.m >= kernel.tile.rows
        if kernel.reading == "rows":
            left = lies and p.a[1] == 1
        else:
            left = lies and p.a[0] == 1 and (_is_x86(target) or _stays(p, p.a[1], target))
    if pack_b:
        right = not p.b_packed
    else:
        lies = p.b[1] == 1 and p.b_type == p.kind and p.n >= kernel.width(target)
        right = p.b_packed > 0 or (lies and (_is_x86(target) or _stays(p, p.b[0], target)))
    return left and right


def _is_x86(target: CpuTarget) -> bool:
    return target.arch != "aarch64"


def _stays(p: Problem, stride: int, target: CpuTarget) -> bool:
    """Whether the lines read at every k stay in the L1 cache. If not, reading in place is slow."""
    return p.k * stride * BYTES[p.kind] <= target.l1


@dataclass(frozen=True)
class _Estimate:
    """The cost of a tiling as a function of its blocks."""

    p: Problem
    kernel: ProductKernel
    pack_a: bool
    pack_b: str
    rate: float
    target: CpuTarget

    def best(self) -> Tiling:
        p, height, width = self.p, self.kernel.tile.rows, self.kernel.width(self.target)
        tall, wide = ceil(p.m / height), ceil(p.n / width)
        k_block = self.k_block(width)
        fewest = ceil(tall * height * k_block * BYTES[p.kind] / self.room_for_rows)
        if p.k <= thresholds.product_short and p.c[0] * BYTES[p.kind] >= _PAGE:
            # Tiles are stored faster than they could be with a TLB miss for each row.
            fewest = max(fewest, min(tall, ceil(tall * height / _TLB_ROWS)))
        cost, rows, columns = min(
            (self.cost(ceil(tall / rows), ceil(wide / columns), rows * columns, k_block), rows, columns)
            for rows, columns in _blocks(tall, wide, fewest, p.batch, p.threads)
        )
        if self.pack_b == "first":
            elements = wide * width * p.k * (p.batch if p.b_batch else 1)
            cost += (
                _PHASE
                + _CROWD * max(0, p.threads - _FEW_THREADS)
                + ceil(elements / p.threads) * (_pack_cost(p.b[1], p.b[0]) + _FAR)
            )
        return Tiling(self.kernel, self.pack_a, self.pack_b, rows, columns, k_block, cost)

    @property
    def room_for_rows(self) -> int:
        """The bytes of a task's rows of A, which stay in the L2 cache while panels of B stream through."""
        again = self.pack_b == "task" and self.target.vector_bits == 512  # each of its blocks packs B
        return self.target.l2 // 4 * (3 if again else 1)

    def k_block(self, width: int) -> int:
        """The block size of k: a panel fills half of the L1 cache.

        With the widest vectors, fewer passes over c are worth more, and the panel can be read from L2.
        """
        room = self.target.l1 // 2 if self.target.vector_bits < 512 else self.target.l2 // 8
        most = min(512, max(192, room // (width * BYTES[self.p.kind])))
        pieces = max(1, ceil(self.p.k / most))
        return max(4, ceil(self.p.k / pieces / 4) * 4)

    def cost(self, tall: int, wide: int, blocks: int, k_block: int) -> float:
        """Cycles of all tasks of one thread; a task is tall x wide tiles."""
        p, tile, width = self.p, self.kernel.tile, self.kernel.width(self.target)
        one = tile.rows * tile.vectors * p.k / (_FMAS * self.rate) * self.delay(tall, k_block) + _START * ceil(
            p.k / k_block
        )
        total = tall * (wide - self.spared(wide)) * one
        if p.transposed:
            total += tall * wide * tile.rows * width * _SCATTER * ceil(p.k / k_block)
        if p.threads > _FEW_THREADS:
            total += self.traffic(tall * tile.rows, wide * width, ceil(p.k / k_block)) * _SHARED
        total += _EDGE * (wide * (p.m % tile.rows > 0) + tall * (p.n % width > 0))
        if self.pack_a:
            total += tall * tile.rows * p.k * _pack_cost(p.a[0], p.a[1])
        if self.pack_b == "task":
            total += wide * width * p.k * _pack_cost(p.b[1], p.b[0])
        elif not self.pack_b and not p.b_packed and _is_x86(self.target):
            total += wide * width * p.k * _NEAR
        return ceil(p.batch * blocks / p.threads) * total

    def traffic(self, rows: int, columns: int, visits: int) -> int:
        """The memory traffic of a task in bytes: its operands, and c for every pass if it does not fit in the cache."""
        size = BYTES[self.p.kind]
        result = rows * columns * size
        return (rows + columns) * self.p.k * size + result * (2 * visits if result > self.target.l2 // 4 else 1)

    def spared(self, wide: int) -> float:
        """The part of a panel that is not computed, because the last one uses as few long vectors as possible."""
        lanes = self.kernel.lanes(self.target)
        if lanes < LONG or wide * self.kernel.width(self.target) < self.p.n:
            return 0.0
        return -self.p.n % self.kernel.width(self.target) // lanes / self.kernel.tile.vectors

    def delay(self, tall: int, k_block: int) -> float:
        """The slowdown of the inner loop on x86 for operands that are read in place."""
        if not _is_x86(self.target):
            return 1.0
        p, delay = self.p, 1.0
        if not self.pack_b and not p.b_packed:
            panel = k_block * self.kernel.width(self.target) * BYTES[p.kind]
            delay += self.apart(p.b[0], 0.16 * min(1.0, panel / self.target.l1), 1.0)
        if self.kernel.reading == "rows":
            # Rows at the same offset of a page map to few sets of the L2 cache.
            crowded = self.apart(p.a[0], 0.0, 0.1)
            delay += crowded if tall * self.kernel.tile.rows * p.a[0] * BYTES[p.kind] > self.target.l2 else 0.0
            # Those of one tile even share a set of the L1 cache, which may have fewer ways than the tile has rows.
            sharing = self.kernel.tile.rows * gcd(p.a[0] * BYTES[p.kind], _PAGE)
            delay += _EVICTED if sharing > self.target.l1 else 0.0
        elif not self.pack_a:
            delay += self.scattered(p.a[1], k_block)
        return delay

    def scattered(self, stride: int, k_block: int) -> float:
        """The slowdown of reading columns of A in place: those of one tile lie in a line or two for each k, and large strides
        put them in as many pages, multiples of the page size in few sets of the L1 cache. Few ks stay in both.
        """
        size = stride * BYTES[self.p.kind]
        slowdown = max(0.5 * min(1.0, size / 2048), 1.7 * gcd(size, _PAGE) / _PAGE)
        return slowdown * min(1.0, k_block / 256)

    def apart(self, stride: int, usual: float, worst: float) -> float:
        """The slowdown of a stride: multiples of the page size cause conflict misses, large strides TLB misses."""
        size = stride * BYTES[self.p.kind]
        crowded = max(usual, worst * gcd(size, _PAGE) / _PAGE)
        return max(crowded, (usual + worst) / 2) if size > _PAGE else crowded


_FEW_ROWS = 64  # of a task whose results stay in the L1 and L2 caches


def in_short_blocks(p: Problem, choice: Tiling) -> Tiling:
    """The same tiling with tasks of few rows, whose results fit in little scratch memory."""
    tall = ceil(p.m / choice.kernel.tile.rows)
    wanted = ceil(tall * choice.kernel.tile.rows / _FEW_ROWS)
    return replace(choice, row_blocks=min(tall, max(choice.row_blocks, ceil(wanted / p.threads) * p.threads)))


def _blocks(tall: int, wide: int, fewest: int, batch: int, threads: int) -> Iterator[tuple[int, int]]:
    """Partitions of the tiles into blocks of rows and columns, a few for each thread."""
    columns = 1
    while columns <= min(wide, 2 * threads):
        for rounds in (1, 2, 3, 4):
            yield min(tall, max(fewest, rounds * threads // (batch * columns), 1)), columns
        columns *= 2


def _pack_cost(across: int, along: int) -> float:
    return _PACK["copy" if across == 1 else "turn" if along == 1 else "collect"]


# --- pieces of k --------------------------------------------------------------------------------------------------------

_SMALL = 1 << 14  # results, up to which k is split
_PARTS = 1 << 18  # elements of all partial results


def pieces_of(p: Problem) -> int:
    """The number of pieces that k is split into, by the shape alone: where there is little other parallelism."""
    if p.batch > 1 or p.m * p.n > _SMALL:
        return 1
    pieces = max(1, min(p.k // thresholds.product_piece, _PARTS // (p.m * p.n)))
    return ceil(p.k / _length(p, pieces)) if pieces > 1 else 1


def _length(p: Problem, pieces: int) -> int:
    return ceil(p.k / pieces / 4) * 4


def in_pieces(p: Problem, pieces: int) -> Problem:
    """The pieces as a batch of products with partial results; the last may be shorter."""
    if pieces == 1:
        return p
    k = _length(p, pieces)
    return replace(p, k=k, batch=pieces, a_batch=k * p.a[1], b_batch=k * p.b[0], accumulate=False)
