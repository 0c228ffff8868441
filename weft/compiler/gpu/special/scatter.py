"""scatter: a copy of a tensor with rows written or added at indices; the same bits in every run.

The element of the tensor belongs to a row (its place along the axes that have an index) and to a column (along the others). Every program
makes elements of the result that lie side by side, and looks up what was meant for their rows:

    set   the last index that names a row wins: the greatest number, an atomic maximum, whose result does not depend on the order
    add   the numbers of the indices are sorted by row, so that what is added to a row is a range of the sorted list. Elements add up
          theirs in a fixed order, eight at a time. Where many indices name one row, its range is long: whole blocks of the list that
          belong to one row are added up before, by programs of their own. Where there are more rows than indices, as in an embedding,
          programs belong to indices, and rows that none names are only copied, or in place left alone. Where there are few rows and
          many indices, as for an alphabet, nothing is sorted: every program adds up what a chunk of the indices names, a sum for each
          row, and elements add up the chunks.

Float atomics are not used: they add in whatever order programs come. Sums of 16-bit floats are made in float32 and rounded once.
"""

from __future__ import annotations

from functools import cached_property
from math import prod

from ....dtypes import DType, bool_, float32, int32, int64
from ....errors import UserError
from ....graph.node import CONST, Node, Shape
from ....records import dataclass
from ...ir.index import Loop
from ...ir.kernel import Kernel
from ...ir.plan import PlanPhase
from ...thresholds import thresholds
from .. import scalars as scalar
from ..kernel_utils import Lines, ceil_div, element, next_power_of_two, scratch_tensor
from ..source import KernelSource, KernelWriter, decomposed
from .sort import MERGED, PLACE, SORTED, merges, run_room, write_merge, write_runs

FLAT = 1024  # elements of a program that only moves them
LANES, STRIP = 128, 8  # elements that are added up side by side, and how many numbers of each at a time
ROW_LANES = 256  # elements of one row that are added up side by side
BLOCK = 128  # of the sorted list: what belongs to one row altogether is added up before
TILE = 1024  # numbers of a block that are read at a time
CLEARED = 4096  # places of a table that a program clears
CHUNK = 64  # indices whose sums, one for each of few rows, a program adds up
GROUP = 16  # indices of a chunk whose values are read at a time
COMBINED = 64  # chunks that an element reads at a time
MOST = 1 << 30  # rows or indices, so that a row and a number share a record, and a table is counted in 32 bits


@dataclass(frozen=True)
class _ScatterProblem:
    """The operands and sizes of a scatter."""

    kernel: Kernel

    @property
    def anchor(self) -> Node:
        assert self.kernel.anchor is not None
        return self.kernel.anchor

    @property
    def axes(self) -> tuple[int, ...]:
        return tuple(self.anchor.param("axes"))

    @property
    def adds(self) -> bool:
        return bool(self.anchor.param("how") == "add")

    @property
    def count(self) -> int:
        """Of indices."""
        return prod(self.anchor.inputs[2].shape)

    @property
    def is_sparse(self) -> bool:
        """Whether indices name some of many rows, each without gaps in memory."""
        return self.adds and self.rows > self.count and self.axes == tuple(range(len(self.axes)))

    @property
    def is_few(self) -> bool:
        """Whether many indices name few rows, and the sums of all chunks take little memory."""
        few = self.rows <= thresholds.gpu_scatter_rows and self.count >= thresholds.gpu_scatter_indices
        return self.adds and few and prod(self._chunk_sums) * self.wide.itemsize <= thresholds.gpu_scatter_bytes

    @property
    def _chunk_sums(self) -> Shape:
        return ceil_div(self.count, CHUNK), self.rows, self.columns

    @cached_property
    def rows(self) -> int:
        return prod(self.anchor.shape[a] for a in self.axes)

    @cached_property
    def columns(self) -> int:
        return prod(n for a, n in enumerate(self.anchor.shape) if a not in self.axes)

    @property
    def wide(self) -> DType:
        """The type of a sum. Integers wrap, so that signed ones will do for all; bools are counted."""
        dtype = self.anchor.dtype
        if dtype.is_float:
            return float32 if dtype.is_half else dtype
        return int64 if dtype.bits == 64 else int32

    # --- tensors in scratch ------------------------------------------------------------------------------------------------------

    @property
    def table(self) -> Node:
        """For every row where its range of the list begins, then where each ends; or the number of the index that wins."""
        return scratch_tensor("table", self.anchor, (2 if self.adds else 1, self.rows), int32)

    @property
    def sums(self) -> Node:
        """Of blocks of the list, or of every row in every chunk of the indices."""
        shape = self._chunk_sums if self.is_few else (self.count // BLOCK, self.columns)
        return scratch_tensor("sums", self.anchor, shape, self.wide)

    def records(self, merged: int) -> Node:
        """The list after so many merges: the row above the number of the index."""
        return run_room(self.anchor, self.count, merged % 2)

    @property
    def sorted(self) -> Node:
        return self.records(len(merges(self.count)))


def phases(kernel: Kernel) -> tuple[PlanPhase, ...]:
    of = _ScatterProblem(kernel)
    if max(of.rows, of.count) >= MOST:
        raise UserError(
            "scatter", f"fewer than {MOST} rows and indices are required on a GPU, got {of.rows} and {of.count}."
        )
    indices = frozenset(f"x{i}" for i in range(2, len(of.anchor.inputs)))
    work, result = frozenset(("work",)), frozenset(("y",))
    if not prod(of.anchor.shape):
        return (PlanPhase("scatter.check", (), indices, frozenset()),) if of.count else ()
    if not of.count:
        return (PlanPhase("scatter.copy", (), frozenset(("x0",)), result),)
    last = PlanPhase("scatter.add" if of.adds else "scatter.set", (), frozenset(("x0", "x1", "work")), result)
    if not of.adds:
        return (
            PlanPhase("scatter.clear", (), frozenset(), work),
            PlanPhase("scatter.mark", (), indices | work, work),
            last,
        )
    if of.is_few:
        return (
            PlanPhase("scatter.chunks", (), indices | {"x1"}, work),
            PlanPhase("scatter.combine", (), work | {"x0"}, result),
        )
    merging = (PlanPhase("scatter.merge", (run,), work, work) for run in merges(of.count))
    summing = [PlanPhase("scatter.blocks", (), work | {"x1"}, work)] if of.count >= BLOCK else []
    copying: tuple[PlanPhase, ...] = ()
    if of.is_sparse:
        written = of.count * of.columns * of.anchor.dtype.itemsize
        copying = (PlanPhase("scatter.copy", (), frozenset(("x0",)), result, copies=True),)
        last = PlanPhase("scatter.rows", (), frozenset(("x0", "x1", "work")), result, written)
    return (
        *copying,
        PlanPhase("scatter.sort", (), indices, work),
        *merging,
        PlanPhase("scatter.ranges", (), work, work),
        *summing,
        last,
    )


def scratch_tensors(kernel: Kernel) -> tuple[Node, ...]:
    of = _ScatterProblem(kernel)
    if not of.count or not prod(of.anchor.shape):
        return ()
    if not of.adds:
        return (of.table,)
    if of.is_few:
        return (of.sums,)
    lists = [of.records(i) for i in range(min(2, 1 + len(merges(of.count))))]
    return (of.table, *lists, *([of.sums] if of.count >= BLOCK else []))


def write(kernel: Kernel, phase: PlanPhase) -> KernelSource:
    writer, part = _ScatterWriter("kernel", _ScatterProblem(kernel)), phase.symbol.removeprefix("scatter.")
    if part == "merge":
        return writer.merge(*(int(a) for a in phase.arguments))
    ways = {
        "check": writer.check, "copy": writer.copy, "clear": writer.clear, "mark": writer.mark, "set": writer.set,
        "sort": writer.sort, "ranges": writer.ranges, "blocks": writer.blocks, "add": writer.add,
        "rows": writer.add_rows, "chunks": writer.chunks, "combine": writer.combine,
    }  # fmt: skip
    return ways[part]()


class _ScatterWriter(KernelWriter):
    """Writes one phase."""

    def __init__(self, name: str, of: _ScatterProblem) -> None:
        super().__init__(name)
        self.of, self.views, self.list = of, of.kernel.views, Lines(1, of.count, 1)
        axes = " and ".join(map(str, of.axes))
        self.line(f"# scatter: {of.count} rows of {of.columns} into {of.rows}, along axis {axes}")

    # --- rows that indices name ---------------------------------------------------------------------------------------------------

    def check(self) -> KernelSource:
        """Nothing but whether the indices are right."""
        self._items()
        self._row("item", "inside")
        return self.finished(ceil_div(self.of.count, FLAT), 4)

    def _items(self) -> None:
        self.line(f"item = tl.program_id(0) * {FLAT} + tl.arange(0, {FLAT})")
        self.line(f"inside = item < {self.of.count}")

    def _row(self, number: str, mask: str) -> str:
        """The row that an index names. A wrong index is reported, and stands for 0."""
        anchor, row = self.of.anchor, ""
        for i, axis in enumerate(self.of.axes):
            index, size = anchor.inputs[2 + i], anchor.shape[axis]
            where = element(self, self.views[2 + i], index.shape, number)
            value = self.let("value", f"tl.load({where}, mask={mask}, other=0).to(tl.int64)")
            wraps = index.dtype.kind == "int"
            place = self.let("at", f"tl.where({value} < 0, {value} + {size}, {value})" if wraps else value)
            wrong = self.let("wrong", f"{mask} & (({place} < 0) | ({place} >= {size}))")
            self._report(wrong, value, f"index {{value}} is out of range for axis {axis} of size {size}.")
            safe = f"tl.where({wrong}, 0, {place})"
            row = self.let("row", f"{row} * {size} + {safe}" if row else safe)
        return row

    def _report(self, wrong: str, value: str, message: str) -> None:
        """A kernel that reads the indices again, to compare, says it once."""
        known = len(self.errors)
        site = self.site("scatter", message, self.of.anchor.source)
        if site <= known:
            return
        here = f"tl.zeros_like({wrong}.to(tl.int32))"
        self.line(f"tl.store(status + {here}, first_error + {site}, mask={wrong})")
        self.line(f"tl.store(status + 1 + {here}, {value}, mask={wrong})")

    # --- elements of the result ---------------------------------------------------------------------------------------------------

    def copy(self) -> KernelSource:
        """No index, nothing to write."""
        self._elements(FLAT, "")
        self._store(self._old())
        return self.finished(self._programs(FLAT), 4)

    def _elements(self, count: int, shape: str) -> None:
        """The elements that this program makes: their row and column."""
        anchor = self.of.anchor
        self.line(f"element = tl.program_id(0) * {count} + tl.arange(0, {count}){shape}")
        self.line(f"inside = element < {prod(anchor.shape)}")
        loops = tuple(Loop(n) for n in anchor.shape)
        at = decomposed(loops, "element")
        rest = [a for a in range(len(loops)) if a not in self.of.axes]
        for name, axes in (("row", self.of.axes), ("column", rest)):
            number = ""
            for a in axes:
                number = f"({number}) * {loops[a].size} + {at[loops[a]]}" if number else at[loops[a]]
            self.line(f"{name} = {number or '0 * element'}")

    def _programs(self, elements: int) -> int:
        return ceil_div(prod(self.of.anchor.shape), elements)

    def _old(self, mask: str = "inside") -> str:
        """The old element. Gradients are accumulated into zeros, which need not be loaded."""
        x = self.of.anchor.inputs[0]
        if x.op is CONST and x.param("value") == 0:
            return self.let("old", f"tl.zeros((1,), {scalar.storage(x.dtype)})")
        where = element(self, self.views[0], self.of.anchor.shape, "element")
        return self.let("old", f"tl.load({where}, mask={mask}, other=0)")

    def _value(self, number: str, column: str, mask: str) -> str:
        """The element of a row to be written."""
        where = element(self, self.views[1], self.of.anchor.inputs[1].shape, f"{number} * {self.of.columns} + {column}")
        return self.let("new", f"tl.load({where}, mask={mask}, other=0)")

    def _store(self, value: str) -> None:
        self._write(self.of.anchor, "element", value, "inside")

    def _write(self, node: Node, place: str, value: str, mask: str) -> None:
        self.written.append(node)
        self.line(f"tl.store({self.pointer(node)} + {place}, {value}, mask={mask})")

    # --- set ----------------------------------------------------------------------------------------------------------------------

    def clear(self) -> KernelSource:
        self._clear(-1)
        return self.finished(ceil_div(prod(self.of.table.shape), CLEARED), 4)

    def _clear(self, value: int) -> None:
        """This program's share of the table."""
        self.line(f"entry = tl.program_id(0) * {CLEARED} + tl.arange(0, {CLEARED})")
        cleared = f"tl.full(({CLEARED},), {value}, tl.int32)"
        self._write(self.of.table, "entry", cleared, f"entry < {prod(self.of.table.shape)}")

    def mark(self) -> KernelSource:
        """The greatest number that names a row is the last one."""
        self._items()
        row = self._row("item", "inside")
        self.written.append(self.of.table)
        self.line(f'tl.atomic_max({self.pointer(self.of.table)} + {row}, item, mask=inside, sem="relaxed")')
        return self.finished(ceil_div(self.of.count, FLAT), 4)

    def set(self) -> KernelSource:
        self._elements(FLAT, "")
        self.line(f"winner = tl.load({self.pointer(self.of.table)} + row, mask=inside, other=-1)")
        old, new = self._old("inside & (winner < 0)"), self._value("winner", "column", "inside & (winner >= 0)")
        self._store(f"tl.where(winner < 0, {old}, {new})")
        return self.finished(self._programs(FLAT), 4)

    # --- add: the sorted list -------------------------------------------------------------------------------------------------------

    def sort(self) -> KernelSource:
        """Sort runs of the list, and clear the table."""
        sorting = ceil_div(self.of.count, SORTED)
        self.line(f"if tl.program_id(0) < {sorting}:")
        self.depth += 1
        target = self.of.records(0)
        write_runs(self, self.list, self._record, lambda place: self._write(target, place, "record", "inside"))
        self.depth -= 1
        self._clear(0)
        return self.finished(max(sorting, ceil_div(prod(self.of.table.shape), CLEARED)), 4)

    def _record(self, place: str, mask: str) -> str:
        return f"({self._row(place, mask)} << 32) | {place}"

    def merge(self, run: int) -> KernelSource:
        number = merges(self.of.count).index(run)
        target = self.of.records(number + 1)
        source = self.of.records(number)
        write_merge(self, self.list, run, source, lambda place: self._write(target, place, "record", "inside"))
        return self.finished(ceil_div(self.of.count, MERGED), 4)

    def ranges(self) -> KernelSource:
        """Where the range of a row begins and ends: where the list comes to another row. Rows without an index have none."""
        self._items()
        listed, count = self.pointer(self.of.sorted), self.of.count
        self.line(f"row = tl.load({listed} + item, mask=inside, other=0) >> 32")
        self.line(f"before = tl.load({listed} + item - 1, mask=inside & (item > 0), other=-1) >> 32")
        self.line(f"after = tl.load({listed} + item + 1, mask=item + 1 < {count}, other=-1) >> 32")
        self._write(self.of.table, "row", "item", "inside & (row != before)")
        self._write(self.of.table, f"{self.of.rows} + row", "item + 1", "inside & (row != after)")
        return self.finished(ceil_div(count, FLAT), 4)

    # --- add: sums ------------------------------------------------------------------------------------------------------------------

    def blocks(self) -> KernelSource:
        """The sums of the blocks of the list that belong to one row; the others are not needed."""
        of, listed = self.of, self.pointer(self.of.sorted)
        width = min(next_power_of_two(of.columns), LANES)
        tiles, height = ceil_div(of.columns, width), min(BLOCK, TILE // width)
        self.line(f"block = tl.program_id(0) // {tiles}")
        self.line(f"column = tl.program_id(0) % {tiles} * {width} + tl.arange(0, {width})[None, :]")
        self.line(f"first = tl.load({listed} + block * {BLOCK}) >> 32")
        self.line(f"last = tl.load({listed} + block * {BLOCK} + {BLOCK - 1}) >> 32")
        self.line("if first == last:")
        self.depth += 1
        self.line(f"total = tl.zeros(({height}, {width}), {self._register})")
        self.line(f"begin = block * {BLOCK} + tl.arange(0, {height})[:, None]")
        self._sum("begin", f"(block + 1) * {BLOCK}", str(BLOCK), height, f"(column < {of.columns})")
        place = f"block * {of.columns} + column"
        self._write(of.sums, place, "tl.sum(total, 0, keep_dims=True)", f"column < {of.columns}")
        self.depth -= 1
        return self.finished(of.count // BLOCK * tiles, 4)

    def add(self) -> KernelSource:
        """Programs belong to elements of the result."""
        of, table = self.of, self.pointer(self.of.table)
        self._elements(LANES, "[None, :]")
        self.line(f"begin = tl.load({table} + row, mask=inside, other=0)")
        self.line(f"end = tl.load({table} + {of.rows} + row, mask=inside, other=0)")
        old, total = self._added(LANES, "tl.max({})")
        self._store(f"tl.where(end > begin, {total}, {old})")
        return self.finished(self._programs(LANES), 4)

    def add_rows(self) -> KernelSource:
        """Programs belong to indices of the sorted list; the first that names a row adds all that is meant for it."""
        of, listed = self.of, self.pointer(self.of.sorted)
        width = min(next_power_of_two(of.columns), ROW_LANES)
        tiles = ceil_div(of.columns, width)
        self.line(f"begin = tl.program_id(0) // {tiles}")
        self.line(f"row = tl.load({listed} + begin) >> 32")
        self.line(f"before = tl.load({listed} + begin - 1, mask=begin > 0, other=-1) >> 32")
        self.line("if row != before:")
        self.depth += 1
        self.line(f"column = tl.program_id(0) % {tiles} * {width} + tl.arange(0, {width})[None, :]")
        self.line(f"inside = column < {of.columns}")
        self.line(f"element = row * {of.columns} + column")
        self.line(f"end = tl.load({self.pointer(of.table)} + {of.rows} + row)")
        self._store(self._added(width, "{}")[1])
        self.depth -= 1
        return self.finished(of.count * tiles, 4)

    def _added(self, width: int, longest: str) -> tuple[str, str]:
        """The old elements, and with what the list says from `begin` to `end`; `longest` is the greatest of lengths."""
        of = self.of
        self.line(f"total = tl.zeros(({STRIP}, {width}), {self._register})")
        if of.count >= BLOCK:
            self.line(f"first = tl.minimum((begin + {BLOCK - 1}) // {BLOCK} * {BLOCK}, end)")
            self.line(f"last = tl.maximum(end // {BLOCK} * {BLOCK}, first)")
            self._range("begin", "first", longest)
            self._range(f"(begin + {BLOCK - 1}) // {BLOCK}", f"end // {BLOCK}", longest, blocks=True)
            self._range("last", "end", longest)
        else:
            self._range("begin", "end", longest)
        old = self._old()
        return old, self._with_old(old)

    def _with_old(self, old: str) -> str:
        """The old elements and the columns of the tile of sums, added up."""
        total = f"{self._widened(old)} + tl.sum(total, 0, keep_dims=True)"
        total = f"({total}) != 0" if self.of.anchor.dtype is bool_ else total
        return scalar.to_storage(f"({total})", self.of.anchor.dtype)

    def _range(self, begin: str, end: str, longest: str, blocks: bool = False) -> None:
        """Add what a range of the list names, or a range of blocks."""
        first = self.let("from", begin)
        length = self.let("length", longest.format(f"{end} - {first}"))
        places = self.let("places", f"{first} + tl.arange(0, {STRIP})[:, None]")
        self._sum(places, end, length, STRIP, "inside", blocks)

    def _sum(self, begin: str, end: str, length: str, step: int, mask: str, blocks: bool = False) -> None:
        """Add to a tile of sums, as many numbers of each as it is high at a time."""
        self.line(f"for start in range(0, {length}, {step}):")
        self.depth += 1
        self.line(f"place = {begin} + start")
        self.line(f"live = (place < {end}) & {mask}")
        if blocks:
            where = f"{self.pointer(self.of.sums)} + place * {self.of.columns} + column"
            self.line(f"total += tl.load({where}, mask=live, other=0)")
        else:
            number = self.let(
                "number", f"(tl.load({self.pointer(self.of.sorted)} + place, mask=live, other=0) & {PLACE})"
            )
            self.line(f"total += {self._widened(self._value(number, 'column', 'live'))}")
        self.depth -= 1

    # --- add: few rows --------------------------------------------------------------------------------------------------------------

    def chunks(self) -> KernelSource:
        """Programs belong to chunks of the indices. A warp is enough: it waits for memory, and for what it has added just before."""
        of = self.of
        width = min(next_power_of_two(of.columns), LANES)
        tiles = ceil_div(of.columns, width)
        self.line(f"chunk = tl.program_id(0) // {tiles}")
        self.line(f"items = chunk * {CHUNK} + tl.arange(0, {CHUNK})")
        self._row("items", f"(items < {of.count})")  # reports wrong indices; from here on they are in the cache
        self.line(f"column = tl.program_id(0) % {tiles} * {width} + tl.arange(0, {width})")
        self.line(f"inside = column < {of.columns}")
        self.line(f"sums = {self.pointer(of.sums)} + chunk * {of.rows * of.columns} + column")
        self.line(f"for row in range(0, {of.rows}):")
        self.line(f"    tl.store(sums + row * {of.columns}, tl.zeros(({width},), {self._register}), mask=inside)")
        self.line("tl.debug_barrier()")
        self.line(f"for start in range(0, {CHUNK}, {GROUP}):")
        self.depth += 1
        found = [self._found(f"chunk * {CHUNK} + start + {i} + tl.arange(0, 1)") for i in range(GROUP)]
        for row, value, live in found:
            place = self.let("place", f"sums + {row} * {of.columns}")
            self.line(f"tl.store({place}, tl.load({place}, mask={live}, other=0) + {value}, mask={live})")
            self.line("tl.debug_barrier()")  # the next index may name the same row
        self.depth -= 1
        self.written.append(of.sums)
        return self.finished(ceil_div(of.count, CHUNK) * tiles, 1, stages=1)

    def _found(self, number: str) -> tuple[str, str, str]:
        """What an index says: the row, what is added to it, and where there is something to add."""
        item = self.let("item", number)
        known = self.let("known", f"{item} < {self.of.count}")
        row, live = self._row(item, known), self.let("live", f"inside & {known}")
        return row, self.let("value", self._widened(self._value(item, "column", live))), live

    def combine(self) -> KernelSource:
        """Programs belong to elements of the result."""
        of = self.of
        self._elements(LANES, "[None, :]")
        self.line(f"total = tl.zeros(({COMBINED}, {LANES}), {self._register})")
        chunks = of.sums.shape[0]
        self.line(f"for start in range(0, {chunks}, {COMBINED}):")
        self.line(f"    chunk = start + tl.arange(0, {COMBINED})[:, None]")
        place = f"(chunk * {of.rows} + row) * {of.columns} + column"
        read = f"tl.load({self.pointer(of.sums)} + {place}, mask=inside & (chunk < {chunks}), other=0)"
        self.line(f"    total += {read}")
        self._store(self._with_old(self._old()))
        return self.finished(self._programs(LANES), 4)

    @property
    def _register(self) -> str:
        return scalar.register(self.of.wide)

    def _widened(self, value: str) -> str:
        return f"{scalar.from_storage(value, self.of.anchor.dtype)}.to({self._register})"
