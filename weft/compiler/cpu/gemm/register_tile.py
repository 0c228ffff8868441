"""Register tiles: the inner loop that matrix products and convolutions share.

A tile holds `rows` x `vectors` vector registers of results. For each k it reads one vector row of the right operand and
one number for each row of the left one, and adds their products to all of them. The caller provides the loads of the operands:

    def right(k, step):  # the vectors of the right operand at k + step
        return [code.read(b, code.plus(code.times(k, stride), step * stride, v * lanes), vec) for v in range(tile.vectors)]

    left = columns(code, target, tile, element, a, stride)     # or rows(...)
    sums = multiply(code, tile, length, left, right, zeros(tile, element, lanes))
    store(code, tile, sums, c, row_stride)

Every result is one chain of fused multiply-adds in the order of k, so its bits depend neither on the shape of the tile
nor on how the loop over k is split, as long as the accumulators are stored in the same type in between. Both take an `Arithmetic`
(arithmetic.py) for products of integers.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from ....records import dataclass
from ..ir_builder import I32, PTR, Code, Int, Value, constant, vector
from ..target import CpuTarget
from .arithmetic import Arithmetic, floats


@dataclass(frozen=True)
class RegisterTile:
    """The shape of a register tile: the number of rows, and of vectors in a row."""

    rows: int
    vectors: int

    def columns(self, lanes: int) -> int:
        return self.vectors * lanes


Sums = list[list[Value]]  # by row, by vector
Right = Callable[[Value, int], list[Value]]  # (k, step) -> the vectors at k + step
Splats = Callable[[int, int], Value]  # (step, row) -> a number of the left operand in all lanes
Body = Callable[[Value, list[Value]], list[Value]]  # of a loop over k: (k, values) -> the next values


@dataclass(frozen=True)
class LeftOperand:
    """How the left operand is read: `steps` values of k at once, by a function that gives the splats of all of them.

    A splat is requested just before its first use. NEON has loaded whole vectors by then and uses a lane. x86 broadcasts it from memory
    at that point and finishes a row before it begins the next: the splats of all rows would not fit in its registers.
    """

    steps: int
    by_rows: bool
    read: Callable[[Value, int], Splats]  # (k, steps) -> their splats


@dataclass(frozen=True)
class Chunks:
    """Cuts the loop over k into equal chunks, during which the tile prefetches what the next one reads: a few lines at a time,
    since a burst of them would hold every line fill buffer while this tile waits for its own operands.
    """

    count: int
    begin: Callable[[Value], None]  # (chunk): called at the start of each
    advance: Callable[[Value, Value, int], None]  # (chunk, k from its start, steps): called before these steps


def multiply(
    code: Code,
    tile: RegisterTile,
    length: Value,
    left: LeftOperand,
    right: Right,
    initial: Sums,
    how: Arithmetic | None = None,
    chunks: Chunks | None = None,
) -> Sums:
    """The sums after k = 0 .. length - 1, first several ks at a time, then one by one."""
    how, first = how or floats(code), flattened(initial)
    if how.add_offset is not None:
        first += [constant(value.type, 0) for value in initial[0]]

    def body(steps: int) -> Body:
        def advance(k: Value, values: list[Value]) -> list[Value]:
            splat = left.read(k, steps)
            for step in range(steps):
                vectors, numbers = right(k, step), dict[int, Value]()
                for r, v in _order(tile, left):
                    at = r * tile.vectors + v
                    numbers[r] = numbers[r] if r in numbers else splat(step, r)
                    values[at] = how.add_product(numbers[r], vectors[v], values[at])
                if how.add_offset is not None:
                    offsets = values[tile.rows * tile.vectors :]
                    values[tile.rows * tile.vectors :] = map(how.add_offset, vectors, offsets)
            return values

        return advance

    whole = code.sub(length, code.urem(length, code.i64(left.steps)))
    if chunks is None:
        flat = code.loop_carrying(0, whole, first, body(left.steps), step=left.steps)
    else:
        flat = _in_chunks(code, chunks, whole, first, body(left.steps), left.steps)
    if left.steps > 1:
        flat = code.loop_carrying(whole, length, flat, body(1))
    sums = in_rows(tile, flat)
    if how.add_offset is None:
        return sums
    extra = flat[tile.rows * tile.vectors :]
    return [[code.sub(value, more) for value, more in zip(row, extra, strict=True)] for row in sums]


def _in_chunks(code: Code, chunks: Chunks, length: Value, values: list[Value], body: Body, steps: int) -> list[Value]:
    """The loop over k from 0 to length, a multiple of the steps, in chunks."""
    size = code.times(code.ceil_div(length, chunks.count * steps), steps)

    def chunk(index: Value, values: list[Value]) -> list[Value]:
        begin = code.mul(index, size)

        def advance(k: Value, values: list[Value]) -> list[Value]:
            chunks.advance(index, code.sub(k, begin), steps)
            return body(k, values)

        chunks.begin(index)
        return code.loop_carrying(begin, code.minimum(code.plus(begin, size), length), values, advance, steps)

    return code.loop_carrying(0, chunks.count, values, chunk)


def flattened(sums: Sums) -> list[Value]:
    """The accumulators as one list, row by row: the loop-carried values."""
    return [value for row in sums for value in row]


def in_rows(tile: RegisterTile, flat: list[Value]) -> Sums:
    return [flat[r * tile.vectors : (r + 1) * tile.vectors] for r in range(tile.rows)]


def _order(tile: RegisterTile, left: LeftOperand) -> list[tuple[int, int]]:
    """The (row, vector) of a tile in the order in which a k adds to them."""
    if left.by_rows:
        return [(r, v) for r in range(tile.rows) for v in range(tile.vectors)]
    return [(r, v) for v in range(tile.vectors) for r in range(tile.rows)]


# --- the left operand ---------------------------------------------------------------------------------------------------


def columns(
    code: Code,
    target: CpuTarget,
    tile: RegisterTile,
    element: ir.Type,
    pointer: Value,
    stride: Int,
    steps: int = 4,
    how: Arithmetic | None = None,
) -> LeftOperand:
    """The rows of one k are contiguous, with `stride` elements from k to k: packed panels, or a transposed matrix."""
    how, lanes = how or floats(code), _lanes(target, element)
    if target.arch != "aarch64":
        return _scalars(code, element, lanes, pointer, stride, how, steps)
    return _by_lanes(code, element, lanes, [pointer], tile.rows, stride, how, steps)


def _by_lanes(
    code: Code, element: ir.Type, lanes: int, runs: list[Value], length: int, stride: Int, how: Arithmetic, steps: int
) -> LeftOperand:
    """Loads runs of neighbours as whole vectors, whose lanes are used one by one (NEON)."""

    def read(k: Value, count: int) -> Splats:
        places: list[list[tuple[Value, int]]] = []  # by step, by row: a vector and the lane of it
        for step in range(count):
            start = code.times(code.plus(k, step), stride)
            places.append([])
            for run in runs:
                for first, size in pieces(length, lanes):
                    some = how.loaded(code.read(run, code.plus(start, first), vector(element, size)))
                    places[step] += [(some, lane) for lane in range(size)]
        return lambda step, row: splat_lane(code, *places[step][row], lanes)

    return LeftOperand(steps, False, read)


def _scalars(
    code: Code, element: ir.Type, lanes: int, pointer: Value, stride: Int, how: Arithmetic, steps: int
) -> LeftOperand:
    """The same with broadcast loads, one element at a time (x86)."""

    def read(k: Value, count: int) -> Splats:
        starts = [code.times(code.plus(k, step), stride) for step in range(count)]

        def splat(step: int, row: int) -> Value:
            return code.splat(how.loaded(code.read(pointer, code.plus(starts[step], row), element)), lanes)

        return splat

    return LeftOperand(steps, True, read)


def rows(
    code: Code,
    target: CpuTarget,
    element: ir.Type,
    pointers: list[Value],
    steps: int = 4,
    how: Arithmetic | None = None,
) -> LeftOperand:
    """Each row has a pointer to its contiguous ks. NEON loads a whole vector of them at once."""
    loaded, lanes = (how or floats(code)).loaded, _lanes(target, element)

    def read(k: Value, count: int) -> Splats:
        if count == 1 or target.arch != "aarch64":
            return lambda step, row: code.splat(loaded(code.read(pointers[row], code.plus(k, step), element)), lanes)
        wide = [loaded(code.read(p, k, vector(element, lanes))) for p in pointers]
        return lambda step, row: splat_lane(code, wide[row], step, lanes)

    return LeftOperand(lanes, False, read) if target.arch == "aarch64" else LeftOperand(steps, True, read)


def neighbours(
    code: Code, target: CpuTarget, element: ir.Type, runs: list[Value], length: int, stride: Int
) -> LeftOperand:
    """The rows of one k in runs of so many neighbours, each with a pointer, `stride` elements from k to k."""
    lanes = _lanes(target, element)
    if target.arch == "aarch64":
        return _by_lanes(code, element, lanes, runs, length, stride, floats(code), steps=2)

    def read(k: Value, count: int) -> Splats:
        at = code.times(k, stride)
        return lambda step, row: code.splat(code.read(runs[row // length], code.plus(at, row % length), element), lanes)

    return LeftOperand(1, True, read)


def opaque(code: Code, pointer: Value) -> Value:
    """The same pointer, opaque to LLVM's optimizer.

    If LLVM sees that rows have a common stride, it recomputes their addresses at each k at the top of the loop, loads all splats there,
    and spills the accumulators.
    """
    return code.call(ir.InlineAsm(ir.FunctionType(PTR, [PTR]), "", "=r,0"), [pointer])


def pieces(count: int, lanes: int) -> list[tuple[int, int]]:
    """(first, size) of vectors of `lanes` elements, then of half as many, and so on, that together cover `count` elements."""
    found, at, size = [], 0, lanes
    while at < count:
        if at + size <= count:
            found.append((at, size))
            at += size
        else:
            size //= 2
    return found


def splat_lane(code: Code, value: Value, lane: int, lanes: int) -> Value:
    """Broadcast one lane of a vector, which NEON's fused multiply-add does at no cost."""
    if not isinstance(value.type, ir.VectorType):
        return code.splat(value, lanes)
    mask = ir.Constant(ir.VectorType(I32, lanes), [ir.Constant(I32, lane)] * lanes)
    return code.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), mask)


# --- the results --------------------------------------------------------------------------------------------------------


def zeros(tile: RegisterTile, element: ir.Type, lanes: int) -> Sums:
    return [[constant(vector(element, lanes), 0.0)] * tile.vectors for _ in range(tile.rows)]


def load(code: Code, tile: RegisterTile, element: ir.Type, lanes: int, pointer: Value, stride: Int) -> Sums:
    """A tile of a row-major matrix."""
    kind = vector(element, lanes)
    return [
        [code.read(pointer, code.plus(code.times(stride, r), v * lanes), kind) for v in range(tile.vectors)]
        for r in range(tile.rows)
    ]


def store(code: Code, tile: RegisterTile, sums: Sums, lanes: int, pointer: Value, stride: Int) -> None:
    for r, row in enumerate(sums):
        for v, value in enumerate(row):
            code.write(value, pointer, code.plus(code.times(stride, r), v * lanes))


def _lanes(target: CpuTarget, element: ir.Type) -> int:
    return target.lanes(64 if isinstance(element, ir.DoubleType) else 32)
