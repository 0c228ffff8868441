"""Matrix products as plans of native functions.

    plan(m, n, k, (k, 1), (n, 1), ldc=n, threads=2)     # C = A @ B, all row-major

gives a `Plan` on the pointers "a", "b", "c", "work", "epilogue" and "context". Its phases: pack the right operand, if that
pays; multiply; add partial results, if a long k was split. A matrix times a vector goes to matvec.py. The right operand can be
packed once for many products:

    width = panel_width(m, n, k, (k, 1))
    pack_plan(n, k, (n, 1), width)                      # from "b" to "packed", packed_size(n, k, width) elements
    plan(m, n, k, (k, 1), (n, 1), ldc=n, b_packed=width)    # its "b" is what was packed

The bits of the result depend on the shape alone: every element is one chain of fused multiply-adds along k (or along fixed pieces
of it), whatever the tile, the blocks and the number of threads.
"""

from __future__ import annotations

from math import ceil

from ...ir.plan import Plan, PlanPhase
from ...thresholds import thresholds
from ..target import CpuTarget, current_target
from . import matvec
from .packing import BYTES, panels_together
from .phases import Values, addup_phase, aligned, named, pack_phase, phase
from .product import PANEL_GAP, PRODUCT
from .tiling import (
    Problem,
    Strides,
    Tiling,
    best_width,
    choose,
    in_pieces,
    in_short_blocks,
    pieces_of,
    transpose_problem,
)


def plan(
    m: int,
    n: int,
    k: int,
    a: Strides,
    b: Strides,
    *,
    ldc: int,
    batch: int = 1,
    a_batch: int = 0,
    b_batch: int = 0,
    c_batch: int = 0,
    dtype: str = "f32",
    a_type: str = "",
    b_type: str = "",
    threads: int = 1,
    target: CpuTarget | None = None,
    accumulate: bool = False,
    b_packed: int = 0,
    streamed: bool = False,
) -> Plan:
    """C = A @ B, or C += A @ B, for a batch of m x k and k x n matrices; batch strides of 0 repeat an operand.

    At most `threads` threads may run it, because each has its own part of the workspace. `streamed`: only the epilogue reads the
    result, so the plan may keep it in scratch memory, block by block; `Plan.hidden` tells.
    """
    p = Problem(m, n, k, a, b, (ldc, 1), batch, a_batch, b_batch, c_batch, dtype, a_type or dtype, b_type or dtype, threads, accumulate, b_packed)  # fmt: skip
    if m == 0 or n == 0 or batch == 0:
        return Plan("nothing", (), 0, 0)
    target = target or current_target()
    if k > 0 and not b_packed and (m == 1 or n == 1):
        vector = matvec.plan(p)
        if vector is not None:
            return vector
    ways = [p] if b_packed or dtype == "us8" else [p, transpose_problem(p)]
    choices = [(choose(in_pieces(way, pieces_of(way)), target), way) for way in ways]
    choice, way = min(choices, key=lambda pair: pair[0].cost)
    return plan_as(way, choice, target, streamed)


def plan_as(p: Problem, choice: Tiling, target: CpuTarget, streamed: bool = False) -> Plan:
    """The plan of a problem with a given tiling."""
    # A streamed block must be final when its epilogue runs, so k must not be split.
    if streamed and choice.k_block >= p.k and pieces_of(p) == 1 and not p.accumulate:
        return _Phases(p, in_short_blocks(p, choice), target, True).plan()
    return _Phases(p, choice, target).plan()


def panel_width(
    m: int,
    n: int,
    k: int,
    a: Strides,
    *,
    dtype: str = "f32",
    a_type: str = "",
    threads: int = 1,
    target: CpuTarget | None = None,
) -> int:
    """How wide the panels should be when B is packed beforehand for products with such A."""
    p = Problem(m, n, k, a, (n, 1), (n, 1), 1, 0, 0, 0, dtype, a_type or dtype, dtype, threads, False)
    return best_width(p, target or current_target())


def packed_size(n: int, k: int, width: int) -> int:
    """Elements of a packed matrix."""
    return ceil(n / width) * width * k


def pack_plan(
    n: int, k: int, b: Strides, width: int, *, batch: int = 1, b_batch: int = 0, dtype: str = "f32", b_type: str = ""
) -> Plan:
    """Packs the k x n matrices "b", one after the other, into "packed"."""
    values = named(
        source="b", target="packed", lines=n, k=k, across=b[1], along=b[0], batch=batch, source_batch=b_batch
    )
    return Plan(f"pack panels of {width}", (pack_phase(dtype, b_type or dtype, width, values),), 0, 0)


class _Phases:
    """The phases of a product, and the layout of its workspace: panels of B, scratch memory of threads, partial results."""

    def __init__(self, p: Problem, choice: Tiling, target: CpuTarget, streamed: bool = False) -> None:
        self.p, self.choice, self.pieces = p, choice, pieces_of(p)
        self.piece = in_pieces(p, self.pieces)
        self.a, self.b = ("b", "a") if p.transposed else ("a", "b")
        self.width, self.height = self.choice.kernel.width(target), self.choice.kernel.tile.rows
        self.first = self.choice.pack_b == "first"
        self.packed = self.first or p.b_packed > 0
        self.panels = packed_size(p.n, p.k, self.width)  # of one matrix
        rows = ceil(ceil(p.m / self.height) / self.choice.row_blocks) * self.height
        self.scratch = aligned(self.panels * (p.batch if p.b_batch else 1)) if self.first else 0
        self.strip = self._strip(rows, target)
        self.scratch_a = aligned(rows * self.choice.k_block) if self.choice.pack_a else 0
        self.scratch_b = (
            aligned(self.strip * (self.width * self.choice.k_block + PANEL_GAP)) if self.choice.pack_b == "task" else 0
        )
        self.streamed = streamed
        self.scratch_c = self._visible(rows) if streamed else 0
        self.own = self.scratch_a + self.scratch_b + self.scratch_c  # of each thread
        self.parts = self.scratch + self.own * p.threads

    def _strip(self, rows: int, target: CpuTarget) -> int:
        """The panels of a strip, after which the epilogue is called: as many as a task packs at a time, or else as its results fit in the L2 cache.

        The epilogue of a wide strip reads and writes long parts of rows, which hardware prefetches.
        """
        panels, together = ceil(self.p.n / self.width), panels_together(self.width)
        fit = min(thresholds.product_strip, target.l2 // 4) // (rows * self.width * BYTES[self.p.kind])
        return min(panels, together if self.choice.pack_b == "task" else max(together, fit))

    def _visible(self, rows: int) -> int:
        """The extent of a strip of a task in c, in elements."""
        p = self.p
        return aligned((rows - 1) * p.c[0] + (self.strip * self.width - 1) * p.c[1] + 1)

    def plan(self) -> Plan:
        p, phases = self.p, [self.product()]
        if self.first:
            batch = p.batch if p.b_batch else 1
            values = named(lines=p.n, k=p.k, across=p.b[1], along=p.b[0], batch=batch, source_batch=p.b_batch)
            values |= named(source=self.b, target="work")
            phases.insert(0, pack_phase(p.kind, p.b_type, self.width, values))
        size = self.parts
        if self.pieces > 1:
            m, n, ldc = (p.n, p.m, p.c[1]) if p.transposed else (p.m, p.n, p.c[0])
            phases.append(addup_phase(p.kind, m, n, ldc, self.pieces, self.parts, p.accumulate))
            size += self.pieces * p.m * p.n
        flops = 2 * p.batch * p.m * p.n * p.k
        return Plan(self.name(), tuple(phases), size * BYTES[p.kind], flops, hidden=self.streamed)

    def product(self) -> PlanPhase:
        p, piece, choice = self.p, self.piece, self.choice
        values = self.right() | self.result()
        values |= named(
            a=self.a, batch=piece.batch, m=p.m, n=p.n, k=piece.k, last_k=p.k - (self.pieces - 1) * piece.k,
            a_row=p.a[0], a_k=p.a[1], a_batch=piece.a_batch, pack_a=int(choice.pack_a),
            row_blocks=choice.row_blocks, column_blocks=choice.column_blocks, k_block=choice.k_block,
            scratch=self.scratch, scratch_size=self.own, scratch_b=self.scratch_a, strip=self.strip,
            streamed=int(self.streamed), scratch_c=self.scratch_a + self.scratch_b,
        )  # fmt: skip
        reads = {self.a, "context", str(values["b"])} | ({"c"} if p.accumulate else set())
        writes = {str(values["c"])} | ({"work"} if self.own else set())
        return phase(choice.kernel.symbol, PRODUCT, values, reads, writes)

    def right(self) -> Values:
        """How B is read."""
        p, width, task = self.p, self.width, self.choice.pack_b == "task"
        along = width if self.packed else p.b[0]
        batch = self.panels if self.packed and p.b_batch else p.b_batch
        return named(
            b="work" if self.first else self.b, b_k=along, b_column=p.b[1], pack_b=int(task),
            b_panel=width * (p.k if self.packed else p.b[1]), b_bytes=BYTES[p.kind if self.packed else p.b_type],
            b_batch=batch if self.pieces == 1 else self.piece.k * along, shift_b=int(not self.packed and not task),
        )  # fmt: skip

    def result(self) -> Values:
        """Where the products go."""
        p = self.p
        transposed = named(transposed=int(p.transposed))
        if self.pieces > 1:
            row, column = (1, p.m) if p.transposed else (p.n, 1)
            home = named(c="work", c_row=row, c_column=column, c_batch=p.m * p.n, c_offset=self.parts)
            return transposed | home | named(accumulate=0, finishes=0)
        home = named(c="work" if self.streamed else "c", c_row=p.c[0], c_column=p.c[1], c_batch=p.c_batch, c_offset=0)
        return transposed | home | named(accumulate=int(p.accumulate), finishes=1)

    def name(self) -> str:
        choice = self.choice
        words = [f"gemm {self.height}x{self.width} {choice.kernel.reading}"]
        words += (
            ["transposed"] * self.p.transposed
            + ["a packed"] * choice.pack_a
            + [f"b packed {choice.pack_b}"] * bool(choice.pack_b)
        )
        return ", ".join(
            words + [f"{self.pieces} pieces of k"] * (self.pieces > 1) + ["streamed to the epilogue"] * self.streamed
        )
