"""Matrix-vector products: memory bound, so the matrix is read once, in place, and converted on the fly.

    dots    k is contiguous in a row: several rows at a time, several accumulators a row, added in a fixed order
    spread  rows are contiguous for a k: several ks at a time are added to a block of results that stays in the cache

Threads divide the results. Few results with a long k are split along k first, as a batch with partial results; so is a large matrix
read by `spread`, because a thread then reads one long range of memory. A matrix larger than the caches is read in fewer streams at a
time, with prefetching. Of 8-bit integers only `dots` exists: k counts words of four, see arithmetic.py.
"""

from __future__ import annotations

from itertools import product
from math import ceil

from llvmlite import ir

from ....records import dataclass
from ...ir.plan import Plan, PlanPhase
from ...thresholds import thresholds
from ..ir_builder import I64, PTR, Code, Value, constant, new_module, vector
from ..library import library
from ..target import LINE, current_target
from .arithmetic import Arithmetic, arithmetic, has_offset, is_integer
from .packing import BYTES, ELEMENTS, read_as
from .phases import Values, addup_phase, aligned, named, pack_phase, phase
from .product import call_epilogue
from .tiling import Problem

# The arguments of both, by name, in order. `line` is the stride between rows for dots, between ks for spread.
MATVEC = (
    "a", "x", "y", "work", "epilogue", "context",
    "tid", "threads", "batch", "m", "k",
    "last_k",  # k of the last matrix of the batch, which may be shorter
    "line", "a_batch", "x_batch", "y_step", "y_batch", "y_offset",
    "block",  # rows of a task
    "accumulate",
    "finishes",  # 1: these are the final results: call the epilogue
    "across",  # 1: the results are a row of c, not a column
)  # fmt: skip
_ROWS, _FAR_ROWS = 4, 1  # rows that dots reads at a time, of a matrix in the caches and of a larger one
_LINES, _FAR_LINES = 8, 2  # ks that spread reads at a time
_AHEAD = 512  # prefetch distance of dots in bytes; spread prefetches its next ks
_STRETCHES = 16  # pieces of a long matrix that is read by spread


@library("matvec")
def make(symbol: str) -> ir.Module:
    """matvec.HOW.TYPE.TYPE_OF_A, or with .far at the end: y = A x, or y += A x, by all threads together."""
    _, how, kind, source, *far = symbol.split(".")
    module = new_module(symbol)
    code = Code.begin(module, symbol, [PTR] * 6 + [I64] * (len(MATVEC) - 6))
    of = dict(zip(MATVEC, code.arguments, strict=True))
    blocks = code.sdiv(code.plus(of["m"], of["block"], -1), of["block"])
    first, last = code.share(code.mul(blocks, of["batch"]), of["tid"], of["threads"])
    with code.loop(first, last, name="task") as task:
        z, top = code.sdiv(task, blocks), code.mul(code.srem(task, blocks), of["block"])
        bottom = code.minimum(code.plus(top, of["block"]), of["m"])
        here = _Matrix(code, of, kind, source, z, bool(far))
        here.dots(top, bottom) if how == "dots" else here.spread(top, bottom)
        some = code.icmp_unsigned("!=", of["epilogue"], ir.Constant(PTR, None))
        with code.if_then(code.and_(some, code.icmp_signed("!=", of["finishes"], code.i64(0)))):
            zero, one = code.i64(0), code.i64(1)
            lies = code.icmp_signed("!=", of["across"], zero)
            box = [code.select(lies, a, b) for a, b in ((zero, top), (one, bottom), (top, zero), (bottom, one))]
            call_epilogue(code, of["epilogue"], of["context"], z, *box)
    code.done()
    return module


class _Matrix:
    """Emits the code for some rows of one matrix of the batch."""

    def __init__(self, code: Code, of: dict[str, Value], kind: str, source: str, z: Value, far: bool) -> None:
        self.code, self.of, self.kind, self.source, self.far = code, of, kind, source, far
        self.line = max(1, LINE // BYTES[source])  # elements of a cache line
        self.element, self.lanes = ELEMENTS[kind], current_target().lanes(8 * BYTES[kind])
        self.a = code.at(of["a"], code.mul(z, of["a_batch"]), ELEMENTS[source])
        self.x = code.at(of["x"], code.mul(z, of["x_batch"]), self.element)
        self.y = code.at(of["y"], code.plus(of["y_offset"], code.mul(z, of["y_batch"])), self.element)
        self.k = code.select(code.icmp_signed("==", code.plus(z, 1), of["batch"]), of["last_k"], of["k"])
        self.adds = code.icmp_signed("!=", of["accumulate"], code.i64(0))
        self.products = _products(code, kind, self.lanes)

    # --- dots -------------------------------------------------------------------------------------------------------

    def dots(self, top: Value, bottom: Value) -> None:
        code, rows = self.code, _FAR_ROWS if self.far else _ROWS
        whole = code.sub(bottom, code.srem(code.sub(bottom, top), code.i64(rows)))
        with code.loop(top, whole, rows, name="row") as row:
            self._dots(row, rows)
        with code.loop(whole, bottom, name="row") as row:
            self._dots(row, 1)

    def _dots(self, row: Value, count: int) -> None:
        """Dot products, with the same order of additions for any number of rows at a time."""
        code, lanes = self.code, self.lanes
        some = vector(self.element, lanes)
        sums = 4 if current_target().registers >= 32 else 2
        extra = int(self.products.add_offset is not None)  # sums that all rows have too much
        lines = [
            code.at(self.a, code.mul(code.plus(row, r), self.of["line"]), ELEMENTS[self.source]) for r in range(count)
        ]
        wide = code.sub(self.k, code.srem(self.k, code.i64(lanes * sums)))
        whole = code.sub(self.k, code.srem(self.k, code.i64(lanes)))
        totals = [constant(some, 0.0)] * ((count + extra) * sums)
        totals = code.loop_carrying(0, wide, totals, lambda k, t: self._advance(lines, k, t, sums), lanes * sums)
        pairs = [totals[r * sums : (r + 1) * sums] for r in range(count + extra)]
        one = [self._halve(pair) for pair in pairs]
        one = code.loop_carrying(wide, whole, one, lambda k, t: self._advance(lines, k, t, 1), lanes)
        if extra:
            *one, offset = one
            one = [code.sub(total, offset) for total in one]
        last = [code.reduce_lanes(t, self._add) for t in one]
        last = code.loop_carrying(whole, self.k, last, lambda k, t: self._tail(lines, k, t))
        for r, total in enumerate(last):
            self._put(code.mul(code.plus(row, r), self.of["y_step"]), total)

    def _advance(self, lines: list[Value], k: Value, totals: list[Value], sums: int) -> list[Value]:
        code, lanes = self.code, self.lanes
        if self.far and sums > 1:
            for line, at in product(lines, range(0, sums * lanes, self.line)):
                code.prefetch(line, code.plus(k, at + _AHEAD // BYTES[self.source]), ELEMENTS[self.source])
        for v in range(sums):
            x = code.read(self.x, code.plus(k, v * lanes), vector(self.element, lanes))
            for r, line in enumerate(lines):
                a = read_as(code, line, code.plus(k, v * lanes), self.source, self.kind, lanes)
                totals[r * sums + v] = self.products.add_product(*self._sides(a, x), totals[r * sums + v])
            if self.products.add_offset is not None:
                at = len(lines) * sums + v
                totals[at] = self.products.add_offset(x, totals[at])
        return totals

    def _tail(self, lines: list[Value], k: Value, totals: list[Value]) -> list[Value]:
        x = self.code.read(self.x, k, self.element)
        read = [read_as(self.code, line, k, self.source, self.kind, 1) for line in lines]
        add_product = _products(self.code, self.kind, 1).add_product
        return [add_product(*self._sides(a, x), total) for a, total in zip(read, totals, strict=True)]

    def _sides(self, a: Value, x: Value) -> tuple[Value, Value]:
        """The operands of a product. With the matrix on the left, the correction to subtract depends on the vector only."""
        return (x, a) if self.kind == "us8" else (a, x)

    def _halve(self, parts: list[Value]) -> Value:
        """A pairwise sum."""
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [self._add(a, b) for a, b in zip(parts[:half], parts[half:], strict=True)]
        return parts[0]

    def _add(self, a: Value, b: Value) -> Value:
        return self.code.add(a, b) if is_integer(self.kind) else self.code.fadd(a, b)

    def _put(self, place: Value, total: Value) -> None:
        code = self.code
        with code.if_else(self.adds) as (then, otherwise):
            with then:
                code.write(self._add(code.read(self.y, place, self.element), total), self.y, place)
            with otherwise:
                code.write(total, self.y, place)

    # --- spread -----------------------------------------------------------------------------------------------------

    def spread(self, top: Value, bottom: Value) -> None:
        code = self.code
        with code.if_then(code.not_(self.adds)), code.loop(top, bottom) as row:
            code.write(constant(self.element, 0.0), self.y, row)
        count = _FAR_LINES if self.far else _LINES
        whole = code.sub(self.k, code.srem(self.k, code.i64(count)))
        with code.loop(0, whole, count, name="k") as k:
            self._spread(k, count, top, bottom)
        with code.loop(whole, self.k, name="k") as k:
            self._spread(k, 1, top, bottom)

    def _spread(self, k: Value, count: int, top: Value, bottom: Value) -> None:
        code, of, lanes = self.code, self.of, self.lanes
        lines = [code.at(self.a, code.mul(code.plus(k, s), of["line"]), ELEMENTS[self.source]) for s in range(count)]
        factors = [code.read(self.x, code.plus(k, s), self.element) for s in range(count)]
        size = code.sub(bottom, top)
        some = max(1, self.line // lanes)  # vectors of a cache line
        wide, whole = (code.sub(bottom, code.srem(size, code.i64(n))) for n in (some * lanes, lanes))
        for first, last, width, times in ((top, wide, lanes, some), (wide, whole, lanes, 1), (whole, bottom, 1, 1)):
            splats = [code.splat(factor, width) for factor in factors]
            with code.loop(first, last, width * times, name="row") as row:
                if self.far and width == lanes:
                    following = code.plus(row, code.times(of["line"], count))
                    for line, at in product(lines, range(0, width * times, self.line)):
                        code.prefetch(line, code.plus(following, at), ELEMENTS[self.source])
                for v in range(times):
                    at = code.plus(row, v * width)
                    total = code.read(self.y, at, vector(self.element, width))
                    for line, splat in zip(lines, splats, strict=True):
                        total = code.fma(read_as(code, line, at, self.source, self.kind, width), splat, total)
                    code.write(total, self.y, at)


def _products(code: Code, kind: str, lanes: int) -> Arithmetic:
    return arithmetic(code, kind, current_target(), lanes)


# --- plans --------------------------------------------------------------------------------------------------------------


def plan(p: Problem) -> Plan | None:
    """The plan of a product with one row or one column of results, if the matrix has contiguous lines."""
    across = p.m == 1  # the results are a row of C: the matrix is B, transposed
    side = _Side("b", p.b_type, (p.b[1], p.b[0]), p.b_batch) if across else _Side("a", p.a_type, p.a, p.a_batch)
    x = _Side("a", p.a_type, p.a, p.a_batch) if across else _Side("b", p.b_type, (p.b[1], p.b[0]), p.b_batch)
    outputs, step = (p.n, 1) if across else (p.m, p.c[0])
    if 1 not in side.strides or (side.strides[1] != 1 and step != 1):
        return None
    if is_integer(p.kind) and (side.strides[1] != 1 or not _integers_fit(p.kind, across)):
        return None
    phases: list[PlanPhase] = []
    used = 0
    if x.strides[1] != 1 or x.kind != p.kind:  # the vector is copied and converted first
        phases, used, x = _plain(p, x)
    values = named(
        a=side.name, x=x.name, batch=p.batch, m=outputs, k=p.k, last_k=p.k, a_batch=side.batch, x_batch=x.batch,
        y="c", y_step=step, y_batch=p.c_batch, y_offset=0, accumulate=int(p.accumulate), finishes=1, across=int(across),
    )  # fmt: skip
    length = ceil(p.k / pieces_of(outputs, p.k, spread=side.strides[1] != 1) / 16) * 16
    pieces = ceil(p.k / length) if p.batch == 1 else 1
    if pieces > 1:
        values |= named(batch=pieces, k=length, last_k=p.k - (pieces - 1) * length, a_batch=length * side.strides[1])
        values |= named(x_batch=length, y="work", y_step=1, y_batch=outputs, y_offset=used, accumulate=0, finishes=0)
    phases.append(_phase(p, side, values))
    if pieces > 1:
        phases.append(addup_phase(p.kind, p.m, p.n, p.c[0], pieces, used, p.accumulate))
        used += pieces * outputs
    how = "rows" if side.strides[1] == 1 else "columns"
    return Plan(f"matrix by vector along {how}", tuple(phases), used * BYTES[p.kind], 2 * p.batch * p.m * p.n * p.k)


def _integers_fit(kind: str, across: bool) -> bool:
    """Whether products of integers need nothing that differs from row to row; of uint8 x int8 the vector must be the left operand."""
    return kind != "us8" or (across and not has_offset(kind, current_target()))


@dataclass(frozen=True)
class _Side:
    """An operand, as a matrix whose rows run along k."""

    name: str
    kind: str
    strides: tuple[int, int]
    batch: int


def _plain(p: Problem, x: _Side) -> tuple[list[PlanPhase], int, _Side]:
    """A phase that copies the vectors to the workspace, contiguous and converted; the elements it writes; the operand that it makes."""
    count = p.batch if x.batch else 1
    values = named(
        source=x.name, target="work", lines=1, k=p.k, across=1, along=x.strides[1], batch=count, source_batch=x.batch
    )
    made = _Side("work", p.kind, (p.k, 1), p.k if x.batch else 0)
    return [pack_phase(p.kind, x.kind, 1, values)], aligned(count * p.k), made


def _phase(p: Problem, side: _Side, values: Values) -> PlanPhase:
    how, line = ("dots", side.strides[0]) if side.strides[1] == 1 else ("spread", side.strides[1])
    unit = _ROWS if how == "dots" else 64
    shares = max(1, p.threads // int(values["batch"]))
    block = min(thresholds.matvec_block, ceil(ceil(int(values["m"]) / shares) / unit) * unit)
    matrices = p.batch if side.batch else 1
    far = ".far" if matrices * max(p.m, p.n) * p.k * BYTES[side.kind] > thresholds.matvec_far else ""
    reads = {str(values["a"]), str(values["x"]), "context"} | ({"c"} if p.accumulate else set())
    values = values | named(line=line, block=block)
    return phase(f"matvec.{how}.{p.kind}.{side.kind}{far}", MATVEC, values, reads, {str(values["y"])})


def pieces_of(outputs: int, k: int, spread: bool = False) -> int:
    """The number of pieces that k is split into, by the shape alone: where there is little other parallelism, or for long sequential reads."""
    if spread and outputs * k >= thresholds.matvec_long and 64 <= outputs <= 2 * thresholds.matvec_block:
        return _STRETCHES
    return 1 if outputs >= 64 else max(1, min(64, k // (thresholds.matvec_piece * (4 if outputs < 8 else 1))))
