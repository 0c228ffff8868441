"""Scans as one kernel, where no row depends on other rows: recurrent layers, whose rows are the examples of a batch.

A step of such a scan is a few small kernels, which take less time than their launches. Here a program does all steps for a few rows, and
everything that a step computes stays in registers: a value is a tile of rows and columns, or several tiles side by side where other
kernels read parts of it, such as the gates of an LSTM. Matrices that rows are multiplied by are the same in all steps and are read once,
so they must be small; scans with large ones stay apart, as kernels that share them among all multiprocessors.

Rows are the first axis of every value that a step computes, and kernels read what was computed in the same step by row and by runs of columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod

from ...dtypes import DType, float32
from ...graph.node import Node
from ...records import dataclass
from ..ir.index import IndexExpr, Loop
from ..ir.kernel import Kernel, View, is_widening
from ..ir.nest import ReadyNest, ReadyPhase, row_nest
from ..ir.program import FRAME_RESERVED, Call, KernelProgram
from ..ir.segments import phase_edges, phase_parts
from ..ir.storage import ARENA
from .anchors import anchor_of, is_contraction
from .kernel_utils import next_power_of_two
from .kernels import LoopTile, write_kernel

ROWS = (2, 4, 8)  # of a program
CONCURRENT = 128  # programs that run at the same time on a large GPU
LEAST = 16  # columns that tensor cores multiply
FEWEST_STEPS = 4
MOST_ROWS = 4096  # of scans with products: more rows are multiplied faster by kernels of their own
COLUMNS = 1024  # of a value
TILES = 64  # that a step computes
LARGE = 1 << 31  # elements of all steps together, whose positions do not fit into 32 bits
SHARED_REST = 48 << 10  # bytes of shared memory that are left beside matrices: tiles change hands there


@dataclass(frozen=True)
class Piece:
    """Neighbouring columns of a value, and the power of two that is computed for them."""

    begin: int
    end: int

    @property
    def count(self) -> int:
        return self.end - self.begin

    @property
    def width(self) -> int:
        return padded(self.count)


def padded(count: int) -> int:
    """The columns of a tile: a power of two, and enough for tensor cores. A single column is one."""
    return 1 if count == 1 else max(LEAST, next_power_of_two(count))


@dataclass(frozen=True)
class RowProduct:
    """A product of rows and a matrix: where the rows are read, and the type in which they are multiplied."""

    kernel: Kernel
    left: View
    dtype: DType

    @property
    def terms(self) -> int:
        return int(anchor_of(self.kernel).inputs[0].shape[2])

    @property
    def anchor(self) -> Node:
        return anchor_of(self.kernel)


@dataclass(frozen=True, eq=False)
class RowStep:
    """A kernel of a step: a product or none, and the phases that follow, each with the columns of the first value that it computes."""

    call: Call
    product: RowProduct | None
    phases: tuple[tuple[int, ReadyPhase], ...]


@dataclass(frozen=True, eq=False)
class RowScan:
    """A scan that runs as one kernel: the steps of its body, and the calls that run once, before."""

    rows: int
    row: Loop
    body: KernelProgram
    steps: tuple[RowStep, ...]
    before: tuple[Call, ...]
    pieces: Mapping[Node, tuple[Piece, ...]]  # of every value that a step computes or begins with

    def left_pieces(self, product: RowProduct) -> list[Piece]:
        """The rows of a product, as terms of its sums."""
        base, begin, terms = product.left.base, product.left.offset, product.terms
        if base not in self.pieces:
            return [Piece(0, terms)]
        inside = [p for p in self.pieces[base] if begin <= p.begin and p.end <= begin + terms]
        return [Piece(p.begin - begin, p.end - begin) for p in inside]

    @property
    def matrix_bytes(self) -> int:
        """The memory of all matrices, padded as tiles are."""
        products = [step.product for step in self.steps if step.product is not None]
        return sum(
            2 * terms.width * columns.width
            for product in products
            for terms in self.left_pieces(product)
            for columns in self.pieces[product.anchor]
        )

    @property
    def tile_rows(self) -> int:
        """The rows of a program: as few as keep the GPU busy.

        A step takes as long for few rows as for eight, as tensor cores multiply tiles of 16. But Triton keeps what it loads and stores in the
        layout of the tensor cores if a tile has fewer elements than the program has threads; otherwise each goes through shared memory.
        """
        return next((rows for rows in ROWS if self.rows <= rows * CONCURRENT), ROWS[-1])

    @property
    def programs(self) -> int:
        return -(-self.rows // self.tile_rows)

    @property
    def warps(self) -> int:
        widest = max(piece.width for pieces in self.pieces.values() for piece in pieces)
        return min(16, max(4, widest // 8))


def row_scan(kernel: Kernel, bodies: Sequence[KernelProgram], shared_bytes: int) -> RowScan | None:
    """How a scan runs as one kernel, on a GPU with so much shared memory. None if its rows depend on each other, or if it is no scan."""
    node, body = anchor_of(kernel), bodies[-1]
    if node.op.name != "scan" or node.param("length") < FEWEST_STEPS or body.bodies or body.updates:
        return None
    counts = {rows_of(value) for value in body.graph.inputs[: node.param("carried")]}
    longest = max(prod(value.shape) for value in (*body.graph.inputs, *body.graph.outputs))
    if len(counts) != 1 or min(counts) < 2 or node.param("length") * longest >= LARGE:
        return None
    found = _Rows(counts.pop(), body, node.param("carried"), node.param("sequences")).scan()
    if found is None or found.matrix_bytes > shared_bytes - SHARED_REST:
        return None
    return found if found.matrix_bytes == 0 or found.rows <= MOST_ROWS else None


def copied_result(body: KernelProgram, call: Call) -> Node:
    """The result that a copy at the end of a body hands on."""
    return body.graph.outputs[call.writes[0].base - FRAME_RESERVED - len(body.graph.inputs)]


def rows_of(node: Node) -> int:
    """The length of the first axis that is longer than 1."""
    return next((size for size in node.shape if size != 1), 1)


@dataclass(eq=False)
class _RowPhase:
    """A phase of one loop or none: where it begins in the loop of its kernel, and where it will be cut."""

    begin: int
    phase: ReadyPhase
    edges: set[int]

    @property
    def size(self) -> int:
        return self.phase.loops[0].size if self.phase.loops else 1

    def pieces(self) -> Iterator[tuple[int, ReadyPhase]]:
        if not self.phase.loops or self.phase.reductions:
            yield self.begin, self.phase
            return
        for begin, phase in phase_parts(self.phase, self.edges):
            yield self.begin + begin, phase


class _Rows:
    """Whether a row of what kernels compute depends on the same row of what was computed before, alone; and where values are cut."""

    def __init__(self, count: int, body: KernelProgram, carried: int, sequences: int) -> None:
        self.count, self.body, self.row = count, body, Loop(count)
        self.carried, self.sequences = body.graph.inputs[:carried], body.graph.inputs[carried : carried + sequences]
        self.calls = list(_once_each([call for call in body.calls if not call.once]))
        self.computed = {
            *self.carried,
            *(node for call in self.calls for node in call.kernel.outputs if call.kind != "copy"),
        }
        self.products: dict[Call, RowProduct] = {}
        self.parts: dict[Call, list[_RowPhase]] = {}
        self.edges: dict[Node, set[int]] = {}

    def scan(self) -> RowScan | None:
        if not all(map(self._holds, self.calls)):
            return None
        self._leave_out()
        values = [*self.computed, *(product.anchor for product in self.products.values())]
        if any(prod(n.shape) % self.count or self._columns(n) > COLUMNS for n in values) or not self._cut(values):
            return None
        pieces = {n: tuple(Piece(*ends) for ends in pairwise(sorted(self.edges[n]))) for n in values}
        steps = tuple(RowStep(call, self.products.get(call), self._phases(call)) for call in self.calls)
        before = tuple(call for call in self.body.calls if call.once)
        scan = RowScan(self.count, self.row, self.body, steps, before, pieces)
        return scan if sum(map(len, pieces.values())) <= TILES and self._multiplies_tiles(scan) else None

    def _columns(self, node: Node) -> int:
        return prod(node.shape) // self.count

    # --- kernels ------------------------------------------------------------------------------------------------------------

    def _holds(self, call: Call) -> bool:
        """Whether a kernel keeps rows apart."""
        if call.kind == "copy":
            node = copied_result(self.body, call)
            return prod(node.shape) % self.count == 0 and (node not in self.computed or rows_of(node) == self.count)
        if call.kind == "plan" and not (is_contraction(call.kernel) and self._is_product(call)):
            return False
        return call.kind in ("loops", "plan") and self._in_phases(call)

    def _is_product(self, call: Call) -> bool:
        """Whether it multiplies rows of 16-bit floats by a matrix that is the same in all steps."""
        kernel, anchor = call.kernel, anchor_of(call.kernel)
        left, dtype = self._stored(kernel.views[0])
        right = kernel.views[1].base
        self.products[call] = RowProduct(kernel, left, dtype)
        varies = right in self.computed or right in self.sequences
        if anchor.op.name != "contract" or anchor.shape[:2] != (1, self.count) or varies:
            return False
        if left.base in self.computed:
            length, terms = self._columns(left.base), anchor.inputs[0].shape[2]
            if left.strides[1:] != (length, 1) or not 0 <= left.offset <= length - terms:
                return False
        return dtype.is_half and dtype is right.dtype

    def _stored(self, view: View) -> tuple[View, DType]:
        """Where the same numbers are that a view converts between 16 bits and float32, and the type that they fit into."""
        base = view.base
        if is_widening(base) and base.inputs[0] in self.computed:
            base = base.inputs[0]
        dtype = base.dtype
        rounds = base.op.name == "cast" and dtype.is_half and base.inputs[0].dtype is float32
        if rounds and base.inputs[0] in self.computed:
            base = base.inputs[0]
        return replace(view, base=base), dtype

    def _in_phases(self, call: Call) -> bool:
        """Whether the loops of a kernel are phases, each of one loop or none, for every row."""
        kernel = call.kernel
        if kernel.nest is None:
            self.parts[call] = []
            return True
        for row in [l for l in kernel.nest.outer if l.size == self.count]:
            nest = row_nest(kernel, row)
            if nest is None or any(len(phase.loops) > 1 for phase in nest.phases):
                continue
            phases = [phase.replaced({row: IndexExpr(0, ((self.row, 1),))}, phase.loops) for phase in nest.phases]
            self.parts[call] = [_RowPhase(*part, set()) for phase in phases for part in _without_choices(0, phase)]
            if all(self._is_of_rows(part.phase) for part in self.parts[call]):
                return not write_kernel(
                    "kernel", ReadyNest((row,), nest.phases, None), LoopTile(ROWS[-1], LEAST, 4)
                ).errors
        return False

    def _is_of_rows(self, phase: ReadyPhase) -> bool:
        read = [
            self.column(s.node, s.indices[0], phase)
            for s in phase.steps
            if s.kind == "load" and s.node in self.computed
        ]
        written = [self.column(w.node, w.position, phase) for w in phase.stores]
        return None not in read and all(place is not None and place[1] == bool(phase.loops) for place in written)

    def column(self, node: Node, position: IndexExpr, phase: ReadyPhase) -> tuple[int, bool] | None:
        """The column that a phase reads or writes first, and whether it moves along with its loop. None if it is not in the phase's row."""
        parts, length = dict(position.parts), self._columns(node)
        along = bool(phase.loops) and parts.pop(phase.loops[0], 0)
        if rows_of(node) != self.count or parts != {self.row: length} or along not in (0, 1):
            return None
        return position.offset, bool(along)

    # --- what is needed -----------------------------------------------------------------------------------------------------

    def _leave_out(self) -> None:
        """Leave out copies in other types that no product reads any more."""
        kept: list[Call] = []
        read: set[Node] = set()
        for call in reversed(self.calls):
            stored = call.kernel.outputs
            if call.kind == "copy" or any(n in read or self.body.memory.slots[n].base != ARENA for n in stored):
                kept.append(call)
                read |= self._read(call)
            else:
                self.computed -= set(stored)
        self.calls = kept[::-1]
        self.products = {call: product for call, product in self.products.items() if call in kept}

    def _read(self, call: Call) -> set[Node]:
        if call.kind == "copy":
            return {copied_result(self.body, call)}
        found = {step.node for part in self.parts[call] for step in part.phase.steps if step.kind == "load"}
        return found | ({self.products[call].left.base} if call in self.products else set())

    # --- pieces -------------------------------------------------------------------------------------------------------------

    def _cut(self, values: Sequence[Node]) -> bool:
        """Cut values and phases where one passes from a piece to the next, until every phase reads and writes whole pieces."""
        self.edges = {node: {0, self._columns(node)} for node in values}
        parts = [(call, part) for call in self.calls if call.kind != "copy" for part in self.parts[call]]
        before = -1
        while before != (now := sum(map(len, (*self.edges.values(), *(part.edges for _, part in parts))))):
            before = now
            for call, part in parts:
                for node, begin, along in list(self._places(call, part)):
                    self._share(part, node, begin, along)
            for given, result in zip(self.carried, self.body.graph.outputs, strict=False):
                if result in self.edges:
                    self.edges[given] |= self.edges[result]
                    self.edges[result] |= self.edges[given]
            for product in self.products.values():
                if product.left.base in self.edges:
                    self.edges[product.left.base] |= {product.left.offset, product.left.offset + product.terms}
        return not any(part.phase.reductions and part.edges for _, part in parts)

    def _places(self, call: Call, part: _RowPhase) -> Iterator[tuple[Node, int, bool]]:
        """The values that a phase reads and writes, the first column, and whether it moves along."""
        used = [(s.node, s.indices[0]) for s in part.phase.steps if s.kind == "load" and s.node in self.edges]
        for node, position in (*used, *((w.node, w.position) for w in part.phase.stores)):
            found = self.column(node, position, part.phase)
            assert found is not None
            yield node, *found
        if call in self.products and part.phase.loops:
            yield self.products[call].anchor, part.begin, True

    def _share(self, part: _RowPhase, node: Node, begin: int, along: bool) -> None:
        """Edges of a phase are those of a value, and the other way around."""
        if not along:
            self.edges[node] |= {begin, begin + 1}
            return
        self.edges[node] |= {begin, begin + part.size, *(begin + edge for edge in part.edges)}
        part.edges |= {edge - begin for edge in self.edges[node] if 0 < edge - begin < part.size}

    def _phases(self, call: Call) -> tuple[tuple[int, ReadyPhase], ...]:
        return tuple(piece for part in self.parts.get(call, ()) for piece in part.pieces())

    def _multiplies_tiles(self, scan: RowScan) -> bool:
        """Whether what is multiplied is as wide as tensor cores require."""
        products = self.products.values()
        return not any(p.count == 1 for one in products for p in (*scan.left_pieces(one), *scan.pieces[one.anchor]))


def _without_choices(begin: int, phase: ReadyPhase) -> Iterator[tuple[int, ReadyPhase]]:
    """A phase of one loop, cut where choices change; reductions are not cut."""
    edges = phase_edges(phase) if phase.loops and not phase.reductions else []
    if not edges:
        yield begin, phase
        return
    for inner, part in phase_parts(phase, edges):
        yield from _without_choices(begin + inner, part)


def _once_each(calls: Sequence[Call]) -> Iterator[Call]:
    """Calls without further phases of the same kernel: a product is one step."""
    kernels: set[Kernel] = set()
    for call in calls:
        if call.kind == "copy" or call.kernel not in kernels:
            yield call
        kernels.add(call.kernel)
