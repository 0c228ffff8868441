"""Cumulative sums and products along an axis.

A program scans some lines in strips: `tl.cumsum` within a strip, and the total so far is carried to the next. Few long lines are split
into parts: first the sum of every part, then every part from the sum of those before it. A tile has a line per row if the elements of a
line are contiguous, otherwise a line per column: loads are coalesced either way.

Products of floats are made one element after the other: within a tree a product may be too large for a number where the whole is zero.
As on other devices floats are totalled in float64 and rounded once an element. Cuts follow from the shape alone.
"""

from __future__ import annotations

from math import prod

from ....dtypes import DType, bool_, float64, int32, int64
from ....graph.node import Node
from ....records import dataclass
from ...ir.kernel import Kernel
from ...ir.plan import PlanPhase
from .. import scalars as scalar
from ..anchors import anchor_of
from ..kernel_utils import BUSY, Lines, ceil_div, element, lines_of, next_power_of_two, scratch_tensor
from ..source import KernelSource, KernelWriter

TILE = 2048  # elements that are totalled at a time
SIDE = 32  # lines that lie side by side and are read together: enough to use all of what memory brings
ALONE = 64  # lines of a program that multiplies one element after the other
AHEAD = 8  # elements that it reads before it multiplies


def phases(kernel: Kernel) -> tuple[PlanPhase, ...]:
    anchor = anchor_of(kernel)
    if not prod(anchor.shape):
        return ()
    given, result, work = frozenset(("x0",)), frozenset(("y",)), frozenset(("work",))
    if _is_one_by_one(anchor):
        return (PlanPhase("cumulate.each", (), given, result),)
    if _cut(anchor).parts == 1:
        return (PlanPhase("cumulate.whole", (), given, result),)
    return PlanPhase("cumulate.sums", (), given, work), PlanPhase("cumulate.parts", (), given | work, result)


def scratch_tensors(kernel: Kernel) -> tuple[Node, ...]:
    anchor = anchor_of(kernel)
    if not prod(anchor.shape) or _is_one_by_one(anchor) or _cut(anchor).parts == 1:
        return ()
    return (_sums(anchor),)


def write(kernel: Kernel, phase: PlanPhase) -> KernelSource:
    if phase.symbol == "cumulate.each":
        return _Each("kernel", kernel).source()
    writer = _Strips("kernel", kernel)
    return writer.sums() if phase.symbol == "cumulate.sums" else writer.totals()


def wide(dtype: DType) -> DType:
    """The type of a total. Integers wrap, so that signed ones will do for all; a bool is counted, or multiplied."""
    if dtype.is_float:
        return float64
    return int64 if dtype.bits == 64 else int32


def _is_one_by_one(anchor: Node) -> bool:
    return not _is_sum(anchor) and anchor.dtype.is_float


def _is_sum(anchor: Node) -> bool:
    return anchor.op.name == "cumsum"


@dataclass(frozen=True)
class _LinePartition:
    """How lines are shared out: a tile of lines and strips, and how many parts of how many elements a line has."""

    lines: int
    strip: int
    parts: int
    part: int


def _cut(anchor: Node) -> _LinePartition:
    of = _lines(anchor)
    if of.inner == 1:
        strip = min(next_power_of_two(of.length), TILE)
        lines = min(next_power_of_two(of.count), TILE // strip)
    else:
        lines = min(next_power_of_two(of.count), SIDE)
        strip = min(next_power_of_two(of.length), TILE // lines)
    wanted = BUSY // ceil_div(of.count, lines) if _is_sum(anchor) else 1
    strips = ceil_div(ceil_div(of.length, strip), max(1, wanted))
    part = max(2, strips) * strip  # with one strip a part, two readings would win nothing
    return _LinePartition(lines, strip, ceil_div(of.length, part), part)


def _sums(anchor: Node) -> Node:
    """The sum of every part of every line."""
    return scratch_tensor("sums", anchor, (_cut(anchor).parts, _lines(anchor).count), wide(anchor.dtype))


class _CumulativeWriter(KernelWriter):
    """What both kinds of scan share."""

    def __init__(self, name: str, kernel: Kernel) -> None:
        super().__init__(name)
        self.anchor, [self.view] = anchor_of(kernel), kernel.views
        self.of, self.wide = _lines(self.anchor), scalar.register(wide(self.anchor.dtype))
        self.inside = "inside"

    def read(self, place: str) -> str:
        where = element(self, self.view, self.anchor.shape, self.of.place("line", place))
        raw = scalar.from_storage(f"tl.load({where}, mask=inside, other=0)", self.anchor.dtype)
        return self.let("x", f"{raw}.to({self.wide})")

    def store(self, total: str, place: str) -> None:
        self.written.append(self.anchor)
        dtype = self.anchor.dtype
        value = f"({total} != 0)" if dtype is bool_ else total
        if dtype.is_half:
            value = f"{value}.to(tl.float32)"
        where = f"{self.pointer(self.anchor)} + {self.of.place('line', place)}"
        self.line(f"tl.store({where}, {scalar.to_storage(value, dtype)}, mask=inside)")


class _Strips(_CumulativeWriter):
    """Lines strip by strip."""

    def __init__(self, name: str, kernel: Kernel) -> None:
        super().__init__(name, kernel)
        self.cut = _cut(self.anchor)
        self.axis = 1 if self.of.inner == 1 else 0  # of a tile: the one along the lines
        along, across = "[None, :]", "[:, None]"
        self.along, self.across = (along, across) if self.axis else (across, along)

    def sums(self) -> KernelSource:
        """The sum of each part."""
        programs, size = self._begin(), (self.cut.lines, self.cut.strip)
        self.line(f"total = tl.zeros({size if self.axis else size[::-1]}, {self.wide})")
        self._strip()
        self.line(f"total += {self.read('place')}")
        self.depth -= 1
        sums = _sums(self.anchor)
        self.written.append(sums)
        where = f"{self.pointer(sums)} + part * {self.of.count} + line"
        self.line(f"tl.store({where}, tl.sum(total, {self.axis}, keep_dims=True), mask=line < {self.of.count})")
        return self.finished(programs, 4)

    def totals(self) -> KernelSource:
        programs = self._begin()
        if self.cut.parts > 1:
            self.line(f"before = tl.arange(0, {next_power_of_two(self.cut.parts)}){self.along}")
            where = f"{self.pointer(_sums(self.anchor))} + before * {self.of.count} + line"
            mask = f"(before < part) & (line < {self.of.count})"
            self.line(f"total = tl.sum(tl.load({where}, mask={mask}, other=0), {self.axis}, keep_dims=True)")
        else:
            ones = (self.cut.lines, 1) if self.axis else (1, self.cut.lines)
            # The sum of nothing is -0.0, which changes nothing, not even the sign of a -0.0.
            nothing = f"tl.zeros({ones}, {self.wide}) * -1" if self._adds else f"tl.full({ones}, 1, {self.wide})"
            self.line(f"total = {nothing}")
        self._strip()
        function, sign = ("tl.cumsum", "+") if self._adds else ("tl.cumprod", "*")
        self.line(f"totals = total {sign} {function}({self.read('place')}, {self.axis})")
        self.store("totals", "place")
        last = f"place == tl.minimum(start + {self.cut.strip}, end) - 1"
        self.line(f"total = tl.sum(tl.where({last}, totals, 0), {self.axis}, keep_dims=True)")
        self.depth -= 1
        return self.finished(programs, 4)

    @property
    def _adds(self) -> bool:
        return _is_sum(self.anchor)

    def _begin(self) -> int:
        """Which lines this program follows, and which part of them; how many programs there are."""
        cut, of = self.cut, self.of
        self.line(f"# {self.anchor.op.name}: {of.count} lines of {of.length}")
        self.line(f"part = tl.program_id(0) % {cut.parts}")
        self.line(f"line = tl.program_id(0) // {cut.parts} * {cut.lines} + tl.arange(0, {cut.lines}){self.across}")
        self.line(f"end = tl.minimum((part + 1) * {cut.part}, {of.length})")
        return cut.parts * ceil_div(of.count, cut.lines)

    def _strip(self) -> None:
        self.line(f"for start in range(part * {self.cut.part}, end, {self.cut.strip}):")
        self.depth += 1
        self.line(f"place = start + tl.arange(0, {self.cut.strip}){self.along}")
        self.line(f"inside = (line < {self.of.count}) & (place < end)")


class _Each(_CumulativeWriter):
    """Products, one element of a line after the other. Some are read ahead, for memory answers late."""

    def source(self) -> KernelSource:
        lines = min(ALONE, next_power_of_two(self.of.count))
        self.line(f"# {self.anchor.op.name}: {self.of.count} lines of {self.of.length}")
        self.line(f"line = tl.program_id(0) * {lines} + tl.arange(0, {lines})")
        self.line(f"total = tl.full(({lines},), 1, {self.wide})")
        self.line(f"for start in range(0, {self.of.length}, {AHEAD}):")
        self.depth += 1
        read = []
        for ahead in range(AHEAD):
            self._at(ahead)
            read.append(self.read(f"(start + {ahead})"))
        for ahead, x in enumerate(read):
            self._at(ahead)
            self.line(f"total = total * {x}")
            self.store("total", f"(start + {ahead})")
        self.depth -= 1
        return self.finished(ceil_div(self.of.count, lines), 2)

    def _at(self, ahead: int) -> None:
        self.line(f"inside = (line < {self.of.count}) & (start + {ahead} < {self.of.length})")


def _lines(anchor: Node) -> Lines:
    return lines_of(anchor.shape, anchor.param("axis"))
