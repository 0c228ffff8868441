"""argsort: the places of the elements of lines in sorted order, equal ones in their order; top_k: the first of them, with the elements.

Elements become signed integers of the same order (nan the greatest, -0.0 as 0.0), and records of such a key above the element's place:
no two are equal, so any way to sort keeps equal elements in order, and the result is one and only. The place of a record is the number of
records before it. Within a run they are counted by comparing all pairs: for a GPU that is little work, and it is compiled in a second, where a
sorting network takes ten. Longer lines are sorted run by run, then a few neighbouring runs at a time are merged: a binary search counts the
records before one in each of the other runs, for all at once and without waiting for each other.

A record has room for 32 bits of a key. Keys of 64 bits are sorted by their lower half, then in that order by their upper half.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod

from ....dtypes import DType, bool_, int32, int64
from ....graph.node import Node
from ....records import dataclass
from ...ir.kernel import Kernel
from ...ir.plan import PlanPhase
from ...ir.program import result_nodes
from .. import scalars as scalar
from ..anchors import anchor_of
from ..kernel_utils import Lines, ceil_div, element, lines_of, next_power_of_two, scratch_tensor
from ..source import KernelSource, KernelWriter

RUN = 256  # records of which all pairs are compared
SORTED, COMPARED = 256, 16  # records that a program sorts, and with how many they are compared at a time
FAN = 4  # runs that are merged at a time
MERGED = 512  # elements that a program merges
PLACE = 0x7FFFFFFF  # the place in a record
MANTISSA = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}


def phases(kernel: Kernel) -> tuple[PlanPhase, ...]:
    anchor = anchor_of(kernel)
    if not prod(anchor.inputs[0].shape):
        return ()
    steps = [step for half in range(_halves(anchor)) for step in _steps(anchor, half)]
    results = frozenset(result_nodes(kernel))
    return tuple(_phase(step, results if step is steps[-1] else frozenset(("work",))) for step in steps)


def scratch_tensors(kernel: Kernel) -> tuple[Node, ...]:
    anchor = anchor_of(kernel)
    of = _lines(anchor)
    records = min(2, len(merges(of.length)))  # from one to the other
    order = [_order(anchor)] if _halves(anchor) > 1 else []
    return (*(run_room(anchor, of.count * of.length, i) for i in range(records)), *order)


def write(kernel: Kernel, phase: PlanPhase) -> KernelSource:
    half, run = (int(a) for a in phase.arguments)
    writer = _Sort("kernel", kernel, half)
    return writer.merge(run) if phase.symbol == "argsort.merge" else writer.runs()


def _halves(anchor: Node) -> int:
    return 2 if anchor.inputs[0].dtype.bits == 64 else 1


@dataclass(frozen=True)
class _SortStep:
    """Sorting runs by one half of the keys, or merging runs of a length."""

    symbol: str
    half: int
    run: int


def _steps(anchor: Node, half: int) -> Iterator[_SortStep]:
    length = _lines(anchor).length
    yield _SortStep("argsort.runs", half, run_length(length))
    for run in merges(length):
        yield _SortStep("argsort.merge", half, run)


def _phase(step: _SortStep, writes: frozenset[str]) -> PlanPhase:
    reads = {"x0", "work"} if step.symbol == "argsort.runs" or "y0" in writes else {"work"}
    return PlanPhase(step.symbol, (step.half, step.run), frozenset(reads), writes)


def run_length(length: int) -> int:
    """Of runs in a line: a power of two."""
    return min(next_power_of_two(length), RUN)


def merges(length: int) -> list[int]:
    """The length of the runs before each time that they are merged."""
    found, run = [], run_length(length)
    while run < length:
        found.append(run)
        run *= FAN
    return found


def run_room(anchor: Node, count: int, number: int) -> Node:
    """Where records are sorted: two such tensors take turns."""
    return scratch_tensor(f"records {number}", anchor, (count,), int64)


def _order(anchor: Node) -> Node:
    """The places in the order of the lower halves."""
    return scratch_tensor("order", anchor, anchor.inputs[0].shape, int32)


class _Sort(KernelWriter):
    """Writes the phases of a sort by one half of the keys."""

    def __init__(self, name: str, kernel: Kernel, half: int) -> None:
        super().__init__(name)
        self.anchor, [self.view], self.half, self.results = anchor_of(kernel), kernel.views, half, kernel.results
        self.of, self.dtype = _lines(self.anchor), self.anchor.inputs[0].dtype
        self.is_last_half = half == _halves(self.anchor) - 1
        self.merges = merges(self.of.length)

    def runs(self) -> KernelSource:
        """All runs, sorted."""
        self.line(f"# argsort of {self.dtype.name}: {self.of.count} lines of {self.of.length}")
        write_runs(self, self.of, self._record, lambda place: self._leave(place, 0))
        return self.finished(ceil_div(self.of.count * self.of.length, SORTED), 4)

    def merge(self, run: int) -> KernelSource:
        """Runs of a length, merged."""
        number = self.merges.index(run)
        write_merge(self, self.of, run, self._records(number), lambda place: self._leave(place, number + 1))
        return self.finished(ceil_div(self.of.count * self.of.length, MERGED), 4)

    def _record(self, place: str, mask: str) -> str:
        """The key above the place, which before the second half is that in the order of the first."""
        at = place
        if self.half:
            where = f"{self.pointer(_order(self.anchor))} + {self._flat(place)}"
            at = self.let("at", f"tl.load({where}, mask={mask}, other=0)")
        key = write_key(
            self,
            self._element(at, mask),
            self.dtype,
            self.anchor.op.name == "top_k" or bool(self.anchor.param("descending")),
        )
        if self.dtype.bits == 64:  # the lower half counts from 0, which a signed number begins below
            key = f"({key} >> 32)" if self.half else f"(({key} & 0xFFFFFFFF) - 0x80000000)"
        return f"({key}.to(tl.int64) << 32) | {place}"

    def _leave(self, place: str, merged: int) -> None:
        """Store records for the next merge or, after the last one, the places that they stand for."""
        number = f"(record & {PLACE})"
        if merged < len(self.merges):
            self._store(self._records(merged), self._flat(place), "record")
        elif not self.is_last_half:
            self._store(_order(self.anchor), self._flat(place), number)
        else:
            if self.half:
                number = f"tl.load({self.pointer(_order(self.anchor))} + {self._flat(number)}, mask=inside, other=0)"
            self._leave_results(place, self.let("number", number))

    def _leave_results(self, place: str, number: str) -> None:
        """The place of every element, or the first elements and their places, as far as they are read."""
        if not self.anchor.outputs:
            self._store(self.anchor, self.of.place("line", place), scalar.to_storage(number, int64))
            return
        k = self.anchor.param("k")
        mask, where = f"inside & ({place} < {k})", replace(self.of, length=k).place("line", place)
        values = {0: lambda: self._element(number, mask), 1: lambda: scalar.to_storage(number, int64)}
        for result, node in self.results.items():
            self._store(node, where, values[result](), mask)

    def _element(self, place: str, mask: str) -> str:
        """The element at a place of its line."""
        where = element(self, self.view, self.anchor.inputs[0].shape, self.of.place("line", place))
        return self.let("x", f"tl.load({where}, mask={mask}, other=0)")

    def _store(self, target: Node, where: str, value: str, mask: str = "inside") -> None:
        self.written.append(target)
        self.line(f"tl.store({self.pointer(target)} + {where}, {value}, mask={mask})")

    def _records(self, merged: int) -> Node:
        """The records after so many merges."""
        return run_room(self.anchor, self.of.count * self.of.length, merged % 2)

    def _flat(self, place: str) -> str:
        return f"line * {self.of.length} + {place}"


def write_runs(
    writer: KernelWriter, of: Lines, record: Callable[[str, str], str], leave: Callable[[str], None]
) -> None:
    """Write how runs of lines are sorted: `record` makes those at some places, `leave` stores one at its place in the line."""
    run, line = run_length(of.length), writer.line
    step = min(COMPARED, run)
    line(f"# sort runs of {run}")
    line(f"item = tl.program_id(0) * {SORTED} + tl.arange(0, {SORTED})[:, None]")
    line(f"inside = item < {of.count * of.length}")
    line(f"line = item // {of.length}")
    line(f"place = item % {of.length}")
    line(f"record = {record('place', 'inside')}")
    line(f"target = place // {run} * {run}")
    line(f"for start in range(0, {run}, {step}):")
    writer.depth += 1
    line(f"other = place // {run} * {run} + start + tl.arange(0, {step})[None, :]")
    line(f"there = inside & (other < {of.length})")
    line(f"before = there & (({record('other', 'there')}) < record)")
    line("target += tl.sum(before.to(tl.int32), 1, keep_dims=True)")
    writer.depth -= 1
    leave("target")


def write_merge(writer: KernelWriter, of: Lines, run: int, source: Node, leave: Callable[[str], None]) -> None:
    """Write how the records of `source`, lines without gaps of sorted runs, are merged: `leave` stores one at its place in the line."""
    line, pointer = writer.line, writer.pointer(source)
    line(f"# merge runs of {run}")
    line(f"item = tl.program_id(0) * {MERGED} + tl.arange(0, {MERGED})")
    line(f"inside = item < {of.count * of.length}")
    line(f"line = item // {of.length}")
    line(f"place = item % {of.length}")
    line(f"record = tl.load({pointer} + item, mask=inside, other=0)")
    line(f"first = place // {run * FAN} * {run * FAN}")  # of the runs that become one
    others = range(1, FAN)
    for i in others:
        line(f"begin{i} = first + (place // {run} + {i}) % {FAN} * {run}")
        line(f"low{i} = 0 * place")
        line(f"high{i} = tl.maximum(tl.minimum({of.length} - begin{i}, {run}), 0)")
    line(f"for step in range({run.bit_length()}):")
    writer.depth += 1
    for i in others:
        line(f"open{i} = inside & (low{i} < high{i})")
        line(f"middle{i} = (low{i} + high{i}) // 2")
        line(f"found{i} = tl.load({pointer} + line * {of.length} + begin{i} + middle{i}, mask=open{i}, other=0)")
    for i in others:
        line(f"low{i} = tl.where(open{i} & (found{i} < record), middle{i} + 1, low{i})")
        line(f"high{i} = tl.where(open{i} & (found{i} > record), middle{i}, high{i})")
    writer.depth -= 1
    line(f"target = first + place % {run} + {' + '.join(f'low{i}' for i in others)}")
    leave("target")


# --- keys -------------------------------------------------------------------------------------------------------------------------


def write_key(writer: KernelWriter, x: str, dtype: DType, descending: bool) -> str:
    """An element in memory as a signed integer that sorts alike: of 64 bits if it has as many, otherwise of 32."""
    wide = "tl.int64" if dtype.bits == 64 else "tl.int32"
    if dtype is bool_:
        key = f"({x} != 0).to({wide})"
    elif dtype.is_float:
        key = _float_key(writer, x, dtype, wide)
    elif dtype.kind == "uint" and dtype.bits >= 32:
        key = f"({x}.to({wide}, bitcast=True) ^ {-(1 << dtype.bits - 1)})"
    elif dtype.kind == "uint":
        key = f"({x}.to({wide}) - {1 << dtype.bits - 1})"
    else:
        key = f"{x}.to({wide})"
    key = writer.let("key", key)
    return f"(~{key})" if descending else key


def _float_key(writer: KernelWriter, x: str, dtype: DType, wide: str) -> str:
    """Floats sort as integers of sign and magnitude."""
    most = (1 << dtype.bits - 1) - 1
    infinity = most >> MANTISSA[dtype.name] << MANTISSA[dtype.name]
    bits = writer.let("bits", f"{x}.to(tl.int{dtype.bits}, bitcast=True).to({wide})")
    size = writer.let("size", f"{bits} & {most}")
    key = f"tl.where({bits} < 0, {bits} ^ {most}, {bits})"
    return f"tl.where({size} > {infinity}, {most}, tl.where({size} == 0, 0, {key})).to({wide})"


def _lines(anchor: Node) -> Lines:
    return lines_of(anchor.inputs[0].shape, anchor.param("axis"))
