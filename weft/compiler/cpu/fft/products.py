"""Products of complex matrices, one for each point of a spectrum.

A register tile holds real and imaginary accumulators of `rows` x `vectors`; for each k it reads the vectors of the right operand once
and multiplies them with the two numbers of each row of the left one: four fused multiply-adds for each accumulated pair. Every
result is one chain of them in the order of k, so its bits depend neither on the tile nor on the partition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from ....records import dataclass
from ..conv.function_builder import Signature, split
from ..ir_builder import I8, Int, Value, constant, vector
from ..library import library
from ..target import CpuTarget, current_target
from .spectra import BITS, ELEMENTS

_STEPS = 2  # ks of an unrolled iteration
_TILES = {32: (6, 2), 16: (6, 1), 8: (2, 1)}  # by vector registers: rows and vectors

PRODUCT = Signature(
    ("work", "packed"),
    (
        "tid", "threads", "source", "result",  # bytes in the workspace
        "groups", "points", "rows", "inputs", "blocks",
        "source_row", "source_apart", "source_group",  # elements: of a row, from point to point, from group to group
        "filter_apart", "filter_group",
        "result_row", "result_apart", "result_group",
    ),
)  # fmt: skip
SUMS = Signature(
    ("work",),
    (
        "tid", "threads", "x", "g", "sums",  # bytes in the workspace
        "groups", "points", "rows", "inputs", "blocks",
        "x_row", "x_apart", "x_group", "g_row", "g_apart", "g_group", "sums_apart", "sums_group",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class ComplexTile:
    """The shape of a register tile: the number of rows, and of complex vectors in a row."""

    rows: int
    vectors: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.vectors}"


def best_tile(target: CpuTarget, rows: int, columns: int, kind: str) -> ComplexTile:
    """The tile with the least padding for these numbers of rows and columns."""
    most, vectors = _TILES[target.registers]
    if columns <= target.lanes(BITS[kind]):
        vectors = 1
    return ComplexTile(-(-rows // -(-rows // most)), vectors)


@library("fft_product")
def _make_product(symbol: str) -> ir.Module:
    """fft_product.TYPE.ROWSxVECTORS: the spectra of windows (rows) times the transformed filter."""
    writer = _SpectraProduct(symbol, PRODUCT)
    code, a = writer.code, writer.a
    first, last = code.share(code.mul(code.mul(a.groups, a.points), a.blocks), a.tid, a.threads)
    panel = code.times(a.inputs, 2 * writer.width)
    with code.loop(first, last) as unit:
        group, point, block = split(code, unit, a.points, a.blocks)
        source, home = (
            writer.matrix(code.at(a.work, start, I8), group, point, by_group, by_point)
            for start, by_group, by_point in (
                (a.source, a.source_group, a.source_apart),
                (a.result, a.result_group, a.result_apart),
            )
        )
        filters = writer.matrix(a.packed, group, point, a.filter_group, a.filter_apart)
        filters = code.at(filters, code.mul(block, panel), writer.element)
        column = code.times(block, 2 * writer.width)
        with code.loop(0, a.rows, writer.tile.rows) as row:
            left = code.at(source, code.mul(row, a.source_row), writer.element)
            sums = writer.multiply(
                a.inputs,
                left=writer.rows_below(left, a.source_row),
                right=lambda k: (filters, code.times(k, 2 * writer.width)),
                initial=writer.zeros(),
            )
            place = code.plus(code.mul(row, a.result_row), column)
            writer.store(sums, code.at(home, place, writer.element), a.result_row)
    code.done()
    return code.module


@library("fft_sums")
def _make_sums(symbol: str) -> ir.Module:
    """fft_sums.TYPE.ROWSxVECTORS.MODE: the spectra of x (columns are the rows of the result) times the conjugate ones of g, added
    over the windows; with the mode "more" to what is there."""
    symbol_of_tile, _, mode = symbol.rpartition(".")
    writer = _SpectraProduct(symbol, SUMS, symbol_of_tile, conjugate=True)
    code, a = writer.code, writer.a
    first, last = code.share(code.mul(code.mul(a.groups, a.points), a.blocks), a.tid, a.threads)
    with code.loop(first, last) as unit:
        group, point, block = split(code, unit, a.points, a.blocks)
        x, g, sums_at = (
            writer.matrix(code.at(a.work, start, I8), group, point, by_group, by_point)
            for start, by_group, by_point in (
                (a.x, a.x_group, a.x_apart), (a.g, a.g_group, a.g_apart), (a.sums, a.sums_group, a.sums_apart),
            )
        )  # fmt: skip
        column = code.times(block, 2 * writer.width)
        g = code.at(g, column, writer.element)
        with code.loop(0, a.inputs, writer.tile.rows) as row:
            places = [writer.channel(code.plus(row, r)) for r in range(writer.tile.rows)]
            home = code.at(sums_at, code.plus(code.mul(row, a.g_row), column), writer.element)
            sums = writer.multiply(
                a.rows,
                left=writer.columns_at(x, a.x_row, places),
                right=writer.lines(g, a.g_row),
                initial=writer.load(home, a.g_row) if mode == "more" else writer.zeros(),
            )
            writer.store(sums, home, a.g_row)
    code.done()
    return code.module


Place = tuple[Value, Int]  # a pointer and the index of the real parts; the imaginary parts are one vector further


class _SpectraProduct:
    """Emits products of one register tile."""

    def __init__(self, symbol: str, signature: Signature, tile: str = "", conjugate: bool = False) -> None:
        _, kind, shape = (tile or symbol).split(".")
        self.code, self.a = signature.begin(symbol)
        self.tile = ComplexTile(*map(int, shape.split("x")))
        self.element, self.lanes = ELEMENTS[kind], current_target().lanes(BITS[kind])
        self.kind, self.width, self.conjugate = (
            vector(self.element, self.lanes),
            self.tile.vectors * self.lanes,
            conjugate,
        )

    def matrix(self, start: Value, group: Value, point: Value, by_group: Value, by_point: Value) -> Value:
        code = self.code
        return code.at(start, code.plus(code.mul(group, by_group), code.mul(point, by_point)), self.element)

    def zeros(self) -> list[Value]:
        return [constant(self.kind, 0.0)] * (2 * self.tile.rows * self.tile.vectors)

    def channel(self, k: Value) -> Value:
        """The offset of a channel's real part in a row of complex vectors."""
        return self.code.plus(k, self.code.and_(k, self.code.i64(-self.lanes)))

    def places(self, row: Value) -> list[Value]:
        """The places of the accumulators, real and imaginary in turns, in a matrix whose rows have `row` elements."""
        vectors = range(2 * self.tile.vectors)
        return [self.code.plus(self.code.times(row, r), v * self.lanes) for r in range(self.tile.rows) for v in vectors]

    def load(self, home: Value, row: Value) -> list[Value]:
        return [self.code.read(home, place, self.kind) for place in self.places(row)]

    def store(self, sums: list[Value], home: Value, row: Value) -> None:
        for value, place in zip(sums, self.places(row), strict=True):
            self.code.write(value, home, place)

    def rows_below(self, pointer: Value, row: Value) -> Callable[[Value, int], Place]:
        """Element k of row r, counted from a pointer to the first row."""
        return lambda k, r: (pointer, self.code.plus(self.channel(k), self.code.times(row, r)))

    def columns_at(self, pointer: Value, row: Value, places: Sequence[Value]) -> Callable[[Value, int], Place]:
        """The r-th of some places in row k."""
        return lambda k, r: (pointer, self.code.plus(self.code.mul(k, row), places[r]))

    def lines(self, pointer: Value, row: Value) -> Callable[[Value], Place]:
        """The beginning of row k."""
        return lambda k: (pointer, self.code.mul(k, row))

    def multiply(
        self, length: Value, left: Callable[[Value, int], Place], right: Callable[[Value], Place], initial: list[Value]
    ) -> list[Value]:
        """The accumulators after k = 0 ... length - 1."""
        code = self.code

        def body(steps: int) -> Callable[[Value, list[Value]], list[Value]]:
            def advance(k: Value, sums: list[Value]) -> list[Value]:
                for step in range(steps):
                    sums = self._step(code.plus(k, step), left, right, sums)
                return sums

            return advance

        whole = code.and_(length, code.i64(-_STEPS))
        sums = code.loop_carrying(0, whole, initial, body(_STEPS), step=_STEPS)
        return code.loop_carrying(whole, length, sums, body(1))

    def _step(
        self, k: Value, left: Callable[[Value, int], Place], right: Callable[[Value], Place], sums: list[Value]
    ) -> list[Value]:
        code, tile, sums = self.code, self.tile, list(sums)
        pointer, at = right(k)
        parts = [code.read(pointer, code.plus(at, v * self.lanes), self.kind) for v in range(2 * tile.vectors)]
        vectors = list(zip(parts[0::2], parts[1::2], strict=True))
        for r in range(tile.rows):
            pointer, at = left(k, r)
            real = self._splat(pointer, at)
            for v, (c, d) in enumerate(vectors):
                i = 2 * (r * tile.vectors + v)
                sums[i] = code.fma(real, c, sums[i])
                sums[i + 1] = code.fma(code.fneg(real) if self.conjugate else real, d, sums[i + 1])
            imaginary = self._splat(pointer, code.plus(at, self.lanes))
            for v, (c, d) in enumerate(vectors):
                i = 2 * (r * tile.vectors + v)
                sums[i] = code.fma(imaginary if self.conjugate else code.fneg(imaginary), d, sums[i])
                sums[i + 1] = code.fma(imaginary, c, sums[i + 1])
        return sums

    def _splat(self, pointer: Value, at: Int) -> Value:
        return self.code.splat(self.code.read(pointer, at, self.element), self.lanes)
