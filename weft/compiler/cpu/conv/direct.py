"""Direct convolutions: register tiles of pixels x output channels read the source in place, without im2col.

A unit of work is a chunk of tiles of pixels times some blocks of output channels. For each unit a thread prepares the records of its
tiles (pointers to each pixel's segments, see sweep.py), then multiplies tile by tile with each block of the packed filter. Where
a block is too large for the L2 cache, all tiles are multiplied with a piece of its rows before the next, and the sums wait in the
result. Every element of the result is one chain of fused multiply-adds over taps and input channels, so its bits do not depend on
the partition.

The same function computes implicit GEMM: with mode COPIED it first copies the patches of a tile next to each other, which pays for
few channels; with mode PREPARED the records of all tiles were precomputed in the workspace.

Products of integers that need an offset (see arithmetic.py) have the same one for all pixels, because every pixel has all taps: those in the padding are read from a
row with the border. It is summed once for each block of a unit, and the sums of its tiles begin with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

from llvmlite import ir

from ....records import dataclass
from ..gemm import matrix_unit
from ..gemm.arithmetic import Arithmetic, arithmetic
from ..gemm.packing import ELEMENTS
from ..gemm.register_tile import RegisterTile, flattened, in_rows, multiply, rows, zeros
from ..ir_builder import F32, I1, I8, I64, PTR, Code, Int, Value, vector
from ..library import library
from ..target import LINE, CpuTarget, current_target
from .function_builder import Signature, all_of, call_epilogue, copy, numbers, split
from .shape import SWEEP_WORDS
from .sweep import HEAD, PixelCursor, SweepPhase, gather, phases, prepare, read_address

IN_PLACE, COPIED, PREPARED = 0, 1, 2

DIRECT = Signature(
    ("x", "packed", "y", "work", "epilogue", "context"),
    (
        "tid", "threads", "mode",
        "x_offset",  # where the source begins, in bytes
        "column_begin", "column_end",  # output channels of each group
        "panels",  # where their panels begin in `packed`, in floats
        "scratch", "scratch_size",  # where in `work` the threads' records are, in bytes
        "patches",  # where in a thread's scratch its copies are, in bytes
        "record",  # i64s of a record
        "chunk", "blocks",  # tiles and blocks of a unit
        "piece",  # rows of the filter that all tiles of a unit are multiplied with at a time
        "channels_first",  # 1: threads divide the blocks of output channels; 0: the chunks of pixels
        "streamed", "sums",  # 1: only the epilogue reads the results, which are in a thread's scratch memory at this offset
        *SWEEP_WORDS,
    ),
)  # fmt: skip

TABLE = Signature(("x", "packed", "work"), ("tid", "threads", "scratch", "record", *SWEEP_WORDS))
PATCHES = Signature(
    ("x", "packed", "work"), ("tid", "threads", "scratch", "scratch_size", "patches", "record", *SWEEP_WORDS)
)


@library("conv_direct")
def _make(symbol: str) -> ir.Module:
    """conv_direct.TYPE.ROWSxVECTORS"""
    _, kind, shape = symbol.split(".")
    pixels, vectors = map(int, shape.split("x"))
    code, a = DIRECT.begin(symbol)
    _Direct(code, a, current_target(), RegisterTile(pixels, vectors), kind).write()
    code.done()
    return code.module


@library("conv_table")
def _make_table(symbol: str) -> ir.Module:
    """conv_table.ROWS: the records of all tiles of a sweep without groups."""
    height = int(symbol.split(".")[1])
    code, a = TABLE.begin(symbol)
    done = numbers(code, 1)  # tiles of the preceding phases
    code.write(code.i64(0), done, 0)
    table = code.at(a.work, a.scratch, I8)
    with phases(code, a) as phase:
        tiles, before = code.ceil_div(phase.pixels, height), code.read(done, 0, I64)
        first, last = code.share(tiles, a.tid, a.threads)
        walk = PixelCursor(code, a, phase, code.i64(0))
        with code.if_then(code.icmp_signed("<", first, last)):
            walk.seek(code.times(first, height))
        with code.loop(first, last) as tile:
            record = code.at(table, code.mul(code.plus(before, tile), a.record), I64)
            prepare(code, walk, height, record, a.x, a.packed, keep_all=ir.Constant(I1, 0))
        code.write(code.plus(before, tiles), done, 0)
    code.done()
    return code.module


@library("conv_patches")
def _make_patches(symbol: str) -> ir.Module:
    """conv_patches.PIXELS: the patches of all pixels of a sweep with one phase and without groups (im2col)."""
    height = int(symbol.split(".")[1])
    code, a = PATCHES.begin(symbol)
    record = code.at(a.work, code.plus(a.scratch, code.mul(a.tid, a.scratch_size)), I8)
    patches = code.at(a.work, a.patches, I8)
    with phases(code, a) as phase:
        first, last = code.share(code.ceil_div(phase.pixels, height), a.tid, a.threads)
        walk = PixelCursor(code, a, phase, code.i64(0))
        with code.if_then(code.icmp_signed("<", first, last)):
            walk.seek(code.times(first, height))
        size = code.times(code.mul(phase.taps, a.inputs), height)
        with code.loop(first, last) as tile:
            gather(code, walk, height, record, code.at(patches, code.mul(tile, size), F32), a.x, a.packed)
    code.done()
    return code.module


@dataclass(frozen=True)
class _FilterPiece:
    """Some rows of a block of the packed filter."""

    panel: Value  # where the block begins
    first: Value  # the rows
    last: Value
    column: Value  # the first output channel of the block, within its group


@dataclass(frozen=True)
class _TilePlace:
    """Where the results of a tile are."""

    record: Value
    corner: Value  # the block's first channel of pixel 0
    pitch: Value  # floats from pixel to pixel
    columns: Value  # output channels that there are, at most as many as a block has


class _Direct:
    """Emits the function for one shape of tile. What it moves are words of 32 bits: float32, int32, or four 8-bit integers."""

    def __init__(self, code: Code, a: SimpleNamespace, target: CpuTarget, tile: RegisterTile, kind: str) -> None:
        self.code, self.a, self.target, self.tile = code, a, target, tile
        self.lanes, self.element, self.kind = target.lanes(32), ELEMENTS[kind], kind
        how = arithmetic(code, kind, target, self.lanes)
        self.matrix_tile = self._matrix_tile() if matrix_unit.is_matrix_tile(tile) else None
        self.how = Arithmetic(how.add_product, loaded=how.loaded)
        self.add_offset = None if self.matrix_tile else how.add_offset
        self.width = tile.columns(self.lanes)
        self.offsets = numbers(code, self.width, F32)

    def write(self) -> None:
        code, a = self.code, self.a
        self.scratch = code.at(a.work, code.plus(a.scratch, code.mul(a.tid, a.scratch_size)), I8)
        self.x = code.at(a.x, a.x_offset, I8)
        self.aside = numbers(code, self.tile.rows * self.width, F32)
        self.done = numbers(code, 1)  # tiles of the preceding phases
        code.write(code.i64(0), self.done, 0)
        self.all_blocks = code.ceil_div(code.sub(a.column_end, a.column_begin), self.width)
        if self.matrix_tile:
            matrix_unit.configure(code)
        with phases(code, a) as phase:
            tiles = code.ceil_div(phase.pixels, self.tile.rows)
            for_all = code.icmp_signed("==", a.mode, code.i64(PREPARED))
            before = code.select(for_all, code.read(self.done, 0, I64), code.i64(0))
            with self._units(tiles) as (group, chunk, block):
                self._unit(phase, tiles, before, group, chunk, block)
            code.write(code.plus(before, tiles), self.done, 0)
        if self.matrix_tile:
            matrix_unit.release(code)

    def _matrix_tile(self) -> ir.Function:
        """The function that computes a tile by the matrix unit."""
        code = Code.begin(self.code.module, "matrix_tile", [PTR, I64, I64, PTR, I64, PTR, I64, I64, I64], private=True)
        code.function.attributes.add("noinline")
        matrix_unit.write_tile(code, self.kind, self.tile)
        return code.done()

    @contextmanager
    def _units(self, tiles: Value) -> Iterator[tuple[Value, Value, Value]]:
        """A thread's units: their group, first tile, first block."""
        code, a = self.code, self.a
        chunks = code.sdiv(code.plus(tiles, a.chunk, -1), a.chunk)
        strips = code.sdiv(code.plus(self.all_blocks, a.blocks, -1), a.blocks)
        first, last = code.share(code.mul(code.mul(a.groups, chunks), strips), a.tid, a.threads)
        with code.loop(first, last) as unit:
            by_channel = code.icmp_signed("==", a.channels_first, code.i64(1))
            group, major, minor = split(
                code, unit, code.select(by_channel, strips, chunks), code.select(by_channel, chunks, strips)
            )
            chunk, strip = code.select(by_channel, minor, major), code.select(by_channel, major, minor)
            yield group, code.mul(chunk, a.chunk), code.mul(strip, a.blocks)

    def _unit(self, phase: SweepPhase, tiles: Value, before: Value, group: Value, tile: Value, block: Value) -> None:
        code, a = self.code, self.a
        last_tile = code.minimum(code.plus(tile, a.chunk), tiles)
        last_block = code.minimum(code.plus(block, a.blocks), self.all_blocks)
        prepared = code.icmp_signed("==", a.mode, code.i64(PREPARED))
        # Where the record of the unit's first tile is.
        table = code.select(
            prepared,
            code.at(code.at(a.work, a.scratch, I8), code.mul(code.plus(before, tile), a.record), I64),
            self.scratch,
        )
        with code.if_then(code.not_(prepared)):
            self._prepare(phase, group, tile, last_tile)
        self.y = self._results(tile)
        panel_size = code.times(code.mul(code.mul(code.mul(a.z_kernel, a.y_kernel), a.x_kernel), a.inputs), self.width)
        start = code.times(code.mul(phase.before, a.inputs), self.width)
        rows_of_panel = code.maximum(1, code.mul(phase.taps, a.inputs))  # without taps, zeros are stored
        with code.loop(block, last_block) as b:
            panel = code.plus(a.panels, start, code.mul(code.plus(code.mul(group, self.all_blocks), b), panel_size))
            filters, column = code.at(a.packed, panel, F32), code.plus(a.column_begin, code.times(b, self.width))
            if self.add_offset is not None:
                self._sum_offsets(filters, code.mul(phase.taps, a.inputs))
            with code.loop(0, rows_of_panel, a.piece) as row, code.loop(tile, last_tile) as t:
                record = code.at(table, code.mul(code.sub(t, tile), a.record), I64)
                valid = code.minimum(self.tile.rows, code.sub(phase.pixels, code.times(t, self.tile.rows)))
                piece = _FilterPiece(filters, row, code.plus(row, a.piece), column)
                self._tile(record, piece, group, code.sub(t, tile), valid)
        self._finished(phase, table, group, tile, last_tile, block, last_block)

    def _results(self, tile: Value) -> Value:
        """Where the results would begin for those of the unit with this first tile to be at their place: in the result, or in scratch memory that the epilogue reads."""
        code, a = self.code, self.a
        streamed = code.icmp_signed("!=", a.streamed, code.i64(0))
        before = code.mul(code.times(tile, self.tile.rows), code.mul(a.groups, a.outputs))
        own = code.gep(code.at(self.scratch, a.sums, I8), [code.sub(code.i64(0), before)], source_etype=F32)
        with code.if_then(streamed):
            code.write(own, a.context, 0)
        return code.select(streamed, own, a.y)

    def _prepare(self, phase: SweepPhase, group: Value, tile: Value, last_tile: Value) -> None:
        code, a = self.code, self.a
        walk = PixelCursor(code, a, phase, group)
        walk.seek(code.times(tile, self.tile.rows))
        with code.loop(tile, last_tile) as t:
            index = code.sub(t, tile)
            record = code.at(self.scratch, code.mul(index, a.record), I64)
            patch = code.mul(index, code.times(code.mul(phase.taps, a.inputs), self.tile.rows))
            patches = code.at(code.at(self.scratch, a.patches, I8), patch, F32)
            with code.if_else(code.icmp_signed("==", a.mode, code.i64(COPIED))) as (then, otherwise):
                with then:
                    gather(code, walk, self.tile.rows, record, patches, self.x, a.packed)
                with otherwise:
                    keep_all = ir.Constant(I1, self.kind != "f32")  # a border of integers need not be 0
                    prepare(code, walk, self.tile.rows, record, self.x, a.packed, keep_all)

    def _sum_offsets(self, panel: Value, length: Value) -> None:
        """Write the initial values of the sums of each output channel."""
        code, add, kind = self.code, self.add_offset, vector(self.element, self.lanes)
        assert add is not None

        def advance(k: Value, sums: list[Value]) -> list[Value]:
            places = [code.plus(code.times(k, self.width), v * self.lanes) for v in range(self.tile.vectors)]
            return [add(code.read(panel, place, kind), total) for place, total in zip(places, sums, strict=True)]

        none = zeros(self.tile, self.element, self.lanes)[0]
        for v, total in enumerate(code.loop_carrying(0, length, none, advance)):
            code.write(code.sub(none[0], total), self.offsets, v * self.lanes)

    def _begin(self) -> list[Value]:
        """The sums of a tile before the first product."""
        if self.add_offset is None:
            return flattened(zeros(self.tile, self.element, self.lanes))
        kind = vector(self.element, self.lanes)
        row = [self.code.read(self.offsets, v * self.lanes, kind) for v in range(self.tile.vectors)]
        return row * self.tile.rows

    def _tile(self, record: Value, piece: _FilterPiece, group: Value, index: Value, valid: Value) -> None:
        """One tile of the result: a sum over the parts of its segments that meet this piece of the filter."""
        code, a, tile, kind = self.code, self.a, self.tile, vector(self.element, self.lanes)
        segments, length = code.read(record, 0, I64), code.read(record, 1, I64)
        some = code.minimum(self.width, code.sub(a.column_end, piece.column))
        place = _TilePlace(
            record,
            code.at(self.y, code.plus(code.mul(group, a.outputs), piece.column), F32),
            code.mul(a.groups, a.outputs),
            some,
        )
        if self.matrix_tile:
            self._multiply_patches(piece, place, valid)
            return
        ahead = self._ahead(piece, index)

        def segment(s: Value, values: list[Value]) -> list[Value]:
            here = code.at(record, code.plus(code.times(s, tile.rows + 1), HEAD + tile.rows), I64)
            row = code.read(here, 0, I64)
            begin = code.minimum(code.maximum(0, code.sub(piece.first, row)), length)
            end = code.maximum(begin, code.minimum(code.sub(piece.last, row), length))
            filters = code.at(piece.panel, code.times(code.plus(row, begin), self.width), F32)
            pointers = [code.at(read_address(code, here, 1 + i), begin, F32) for i in range(tile.rows)]

            def right(k: Value, step: int) -> list[Value]:
                place = code.times(code.plus(k, step), self.width)
                if ahead is not None:
                    code.prefetch(ahead, code.times(code.plus(row, begin, k, step), LINE // 4), F32, near=False)
                return [code.read(filters, code.plus(place, v * self.lanes), kind) for v in range(tile.vectors)]

            left = rows(code, self.target, self.element, pointers, how=self.how)
            return flattened(multiply(code, tile, code.sub(end, begin), left, right, in_rows(tile, values), self.how))

        first = self._begun(piece, place)
        self._store(code.loop_carrying(0, segments, first, segment), place, valid)

    def _multiply_patches(self, piece: _FilterPiece, place: _TilePlace, valid: Value) -> None:
        """The same by the matrix unit, from patches, which are at equal distances. Tiles at an edge are computed on the stack."""
        code, height = self.code, self.tile.rows
        length = code.read(place.record, 1, I64)
        patches = read_address(code, place.record, HEAD + height + 1)
        left = code.at(patches, piece.first, F32)
        right = code.at(piece.panel, code.times(piece.first, self.width), F32)
        k = code.sub(code.minimum(piece.last, length), piece.first)
        add = code.zext(code.icmp_signed("!=", piece.first, code.i64(0)), I64)
        first, last = (code.read(place.record, HEAD + i, I64) for i in (0, height - 1))
        whole = all_of(
            code,
            code.icmp_signed("==", valid, code.i64(height)),
            code.icmp_signed("==", place.columns, code.i64(self.width)),
            code.icmp_signed("==", code.sub(last, first), code.i64(height - 1)),
        )
        operands = [left, length, code.i64(1), right, code.i64(self.width)]
        with code.if_else(whole) as (then, otherwise):
            with then:
                code.call(self.matrix_tile, [*operands, self._row(place, 0), place.pitch, k, add])
            with otherwise:
                with code.if_then(code.icmp_signed("!=", add, code.i64(0))):
                    self._copy_rows(place, valid, into_result=False)
                code.call(self.matrix_tile, [*operands, self.aside, code.i64(self.width), k, add])
                self._copy_rows(place, valid, into_result=True)

    def _copy_rows(self, place: _TilePlace, valid: Value, *, into_result: bool) -> None:
        """Copy the valid part of a tile between the stack and the result."""
        code = self.code
        with code.loop(0, valid) as i:
            ends = [code.at(self.aside, code.times(i, self.width), F32), self._row(place, i)]
            source, target = ends if into_result else reversed(ends)
            copy(code, source, target, place.columns)

    def _ahead(self, piece: _FilterPiece, index: Value) -> Value | None:
        """The prefetches during the computation of a tile: a share of the rows that follow this piece, one cache line for each of its rows.

        The filters of the last layers are larger than the caches, and are read once for few pixels.
        """
        code, tile = self.code, self.tile
        if self.target.arch != "x86_64" or tile.vectors * self.lanes * 4 < 2 * LINE:
            return None
        lines = self.width * 4 // LINE  # of a row
        share = code.mul(code.urem(index, code.i64(lines)), self.a.piece)
        # The row with number `first` prefetches the first line of the share.
        start = code.plus(code.times(piece.last, self.width), code.times(code.sub(share, piece.first), LINE // 4))
        return code.gep(piece.panel, [start], source_etype=F32)

    def _begun(self, piece: _FilterPiece, place: _TilePlace) -> list[Value]:
        """The sums over the previous pieces: zeros, or stored values."""
        code, tile, kind = self.code, self.tile, vector(self.element, self.lanes)
        none, before = self._begin(), code.block
        load, after = (code.append_basic_block(f"piece.{name}") for name in ("load", "after"))
        code.cbranch(code.icmp_signed("==", piece.first, code.i64(0)), after, load)
        code.position_at_end(load)
        self._copy_rows(place, code.i64(tile.rows), into_result=False)
        kept = [code.read(self.aside, i * self.lanes, kind) for i in range(len(none))]
        loaded = code.block
        code.branch(after)
        code.position_at_end(after)
        values = []
        for zero, value in zip(none, kept, strict=True):
            phi = code.phi(kind)
            phi.add_incoming(zero, before)
            phi.add_incoming(value, loaded)
            values.append(phi)
        return values

    def _row(self, place: _TilePlace, i: Int) -> Value:
        """Where a pixel of a tile is in the result. Pixels beyond the last are the last."""
        code = self.code
        return code.at(place.corner, code.mul(code.read(place.record, code.plus(i, HEAD), I64), place.pitch), F32)

    def _masks(self, columns: Value) -> list[Value]:
        """The lanes of each vector of a row that are output channels."""
        code, kind = self.code, vector(I64, self.lanes)
        numbers = ir.Constant(kind, [ir.Constant(I64, k) for k in range(self.lanes)])
        ends = [code.splat(code.plus(columns, -v * self.lanes), self.lanes) for v in range(self.tile.vectors)]
        return [code.icmp_signed("<", numbers, end) for end in ends]

    def _store(self, values: list[Value], place: _TilePlace, valid: Value) -> None:
        code, tile = self.code, self.tile
        whole = code.icmp_signed("==", place.columns, code.i64(self.width))
        every = code.icmp_signed("==", valid, code.i64(tile.rows))
        with code.if_else(every) as (then, otherwise):
            with then, code.if_else(whole) as (wide, narrow):
                with wide:
                    self._store_rows(values, place, [])
                with narrow:
                    self._store_rows(values, place, self._masks(place.columns))
            with otherwise:
                for i, value in enumerate(values):
                    code.write(value, self.aside, i * self.lanes)
                self._copy_rows(place, valid, into_result=True)

    def _store_rows(self, values: list[Value], place: _TilePlace, masks: list[Value]) -> None:
        """Store all rows of a tile, or the first columns of them: under masks."""
        code, tile = self.code, self.tile
        for i in range(tile.rows):
            row = self._row(place, i)
            for v in range(tile.vectors):
                value = values[i * tile.vectors + v]
                if masks:
                    code.write_masked(value, row, v * self.lanes, masks[v])
                else:
                    code.write(value, row, v * self.lanes)

    def _finished(
        self,
        phase: SweepPhase,
        table: Value,
        group: Value,
        tile: Value,
        last_tile: Value,
        block: Value,
        last_block: Value,
    ) -> None:
        """Call the epilogue of a unit: once where its pixels are contiguous, else pixel by pixel."""
        code, a, height = self.code, self.a, self.tile.rows
        edges = [
            code.minimum(code.plus(a.column_begin, code.times(b, self.width)), a.column_end)
            for b in (block, last_block)
        ]
        columns = tuple(code.plus(code.mul(group, a.outputs), edge) for edge in edges)
        pixels = code.times(tile, height), code.minimum(code.times(last_tile, height), phase.pixels)
        one = code.icmp_signed("==", code.mul(code.mul(a.z_phases, a.y_phases), a.x_phases), code.i64(1))
        with code.if_else(one) as (then, otherwise):
            with then:
                call_epilogue(code, a, pixels, (columns[0], columns[1]))
            with otherwise, code.loop(0, code.sub(pixels[1], pixels[0])) as p:
                index, i = split(code, p, height)
                out = code.read(table, code.plus(code.mul(index, a.record), i, HEAD), I64)
                call_epilogue(code, a, (out, code.plus(out, 1)), (columns[0], columns[1]))
