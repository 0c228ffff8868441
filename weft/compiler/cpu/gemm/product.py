"""Emits the matrix product: threads divide the blocks of the result, which are made of register tiles.

The library has one function for each shape of tile, access pattern of the left operand, and type; shapes and strides are arguments,
which tiling.py chooses. A task is a block of tiles of one matrix of the batch. For each block of k a task packs its rows of the left
operand, if they are to be packed, and then iterates over the panels of the right operand, each of which stays in the L1 cache while
the tiles of the left operand stream through. After the last block of k, the epilogue is called for a strip of the block that is still
in the cache.

Products of integers that need an offset (see arithmetic.py) have the same one for all rows: it is summed once for each panel of a task.

Edges: a packed operand is padded; one that is read in place is read from a little earlier, so that a whole tile fits. In both cases
the tile is computed on the stack and its valid part is copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from llvmlite import ir

from ....records import dataclass
from ..calling_convention import EPILOGUE
from ..ir_builder import I8, I64, PTR, Code, Int, Value, constant, new_module, vector
from ..library import library
from ..target import LINE, CpuTarget, current_target
from . import matrix_unit
from .arithmetic import Arithmetic, arithmetic, has_offset
from .packing import BYTES, ELEMENTS, before, pack_panel, pack_panels, read_masked, transpose, write_masked
from .register_tile import Chunks, LeftOperand, RegisterTile, columns, load, multiply, opaque, rows, store, zeros

# The arguments of a product, by name, in order. Strides, offsets and sizes are in elements of the type they belong to.
PRODUCT_POINTERS = ("a", "b", "c", "work", "epilogue", "context")
PRODUCT = PRODUCT_POINTERS + (
    "tid", "threads", "batch", "m", "n", "k",
    "last_k",  # k of the last matrix of the batch, which may be shorter
    "a_row", "a_k", "a_batch",  # strides
    "b_k", "b_column", "b_panel", "b_batch",  # strides
    "b_bytes",  # of an element
    "c_row", "c_column", "c_batch", "c_offset",
    "transposed",  # 1: c is the transposed result: its columns are contiguous, and the epilogue is called with rows and columns exchanged
    "row_blocks", "column_blocks",  # the number of tasks of a matrix
    "k_block",  # the block size of k
    "strip",  # panels after which the epilogue is called
    "pack_a", "pack_b",  # 1: each thread packs the part of the operand that it uses next
    "shift_b",  # 1: the right operand is read in place
    "scratch", "scratch_size", "scratch_b",  # the threads' scratch memory in work: offset, size of one, offset of b in it
    "accumulate",  # 1: accumulate into c
    "finishes",  # 1: these are the final results: call the epilogue
    "streamed", "scratch_c",  # 1: only the epilogue reads the results, which are in the thread's scratch memory at this offset
)  # fmt: skip


AHEAD = 16  # prefetch distance in ks, on x86
LONG = 8  # from this number of lanes on, the last panel uses as few vectors as possible
PANEL_GAP = 16  # elements between packed panels of a strip: avoids conflict misses


@dataclass(frozen=True)
class ProductKernel:
    """The parameters that the code of a product is specialized for."""

    kind: str  # type of the product and of c
    a_type: str
    b_type: str
    tile: RegisterTile
    reading: str  # "columns" or "rows": see register_tile.py

    @property
    def symbol(self) -> str:
        return f"product.{self.kind}.{self.a_type}.{self.b_type}.{self.tile.rows}x{self.tile.vectors}.{self.reading}"

    @classmethod
    def named(cls, symbol: str) -> ProductKernel:
        _, kind, a_type, b_type, shape, reading = symbol.split(".")
        height, vectors = shape.split("x")
        return cls(kind, a_type, b_type, RegisterTile(int(height), int(vectors)), reading)

    def lanes(self, target: CpuTarget) -> int:
        return target.lanes(8 * BYTES[self.kind])

    def width(self, target: CpuTarget) -> int:
        """The columns of a tile."""
        return self.tile.columns(self.lanes(target))


@library("product")
def make(symbol: str) -> ir.Module:
    """product.TYPE.TYPE_OF_A.TYPE_OF_B.ROWSxVECTORS.READING: all tasks of a product that belong to a thread."""
    return write(ProductKernel.named(symbol), current_target())


def write(kernel: ProductKernel, target: CpuTarget) -> ir.Module:
    return _ProductEmitter(kernel, target).module()


class _ProductEmitter:
    """Emits the module of one kernel."""

    def __init__(self, kernel: ProductKernel, target: CpuTarget) -> None:
        self.kernel, self.target = kernel, target
        self.height, self.width = kernel.tile.rows, kernel.width(target)
        self.element, self.lanes = ELEMENTS[kernel.kind], kernel.lanes(target)
        self.narrows = self.lanes >= LONG
        self.tall = (
            target.arch != "aarch64" and target.registers == 32
        )  # more rows than x86 has registers for addresses
        # With a pointer for each row, the addresses to prefetch would spill accumulators where registers are few.
        self.prefetches = self.tall or (target.arch != "aarch64" and kernel.reading == "columns")
        self.by_matrix_unit = matrix_unit.is_matrix_tile(kernel.tile)
        self.has_offset = has_offset(kernel.kind, target) and not self.by_matrix_unit
        self.tile_types = [PTR, I64, I64, PTR, I64, PTR, I64, I64, I64, *([PTR] if self.has_offset else [])]
        self.out = new_module(kernel.symbol)

    def module(self) -> ir.Module:
        if self.kernel.reading != "rows":
            self.pack_a = pack_panel(self.out, self.kernel.a_type, self.kernel.kind, self.height)
        self.pack_b = pack_panels(self.out, self.kernel.b_type, self.kernel.kind, self.width)
        full = self.kernel.tile.vectors
        self.inner = {vectors: self._inner(vectors) for vectors in range(1 if self.narrows else full, full + 1)}
        self.edge = self._edge()
        self.sum_offsets = self._sum_offsets() if self.has_offset else None
        self._outer()
        return self.out

    def _private(self, name: str, types: list[ir.Type]) -> Code:
        code = Code.begin(self.out, name, types, private=True)
        code.function.attributes.add("noinline")
        return code

    # --- one tile ---------------------------------------------------------------------------------------------------

    def _inner(self, vectors: int) -> ir.Function:
        """(a, a_row, a_k, b, b_k, c, c_row, k, add): a tile of c, stored or added to c; with offsets, which are subtracted, also their address."""
        code = self._private(f"tile{vectors}", self.tile_types)
        if self.by_matrix_unit:
            matrix_unit.write_tile(code, self.kernel.kind, RegisterTile(self.height, vectors))
            return code.done()
        a, a_row, a_k, b, b_k, c, c_row, k, add, *offsets = code.arguments
        tile, lanes = RegisterTile(self.height, vectors), self.lanes
        kind = vector(self.element, lanes)

        def right(at: Value, step: int) -> list[Value]:
            start = code.times(code.plus(at, step), b_k)
            if self.prefetches:
                self._prefetch(code, b, code.plus(start, code.times(b_k, AHEAD)), tile)
            return [code.read(b, code.plus(start, v * lanes), kind) for v in range(vectors)]

        old = code.append_basic_block("old")
        begin = code.append_basic_block("begin")
        entry = code.block
        code.cbranch(code.icmp_signed("!=", add, code.i64(0)), old, begin)
        code.position_at_end(old)
        loaded = load(code, tile, self.element, lanes, c, c_row)
        code.branch(begin)
        code.position_at_end(begin)
        initial = zeros(tile, self.element, lanes)
        for r, row in enumerate(loaded):
            for v, value in enumerate(row):
                phi = code.phi(kind)
                phi.add_incoming(initial[r][v], entry)
                phi.add_incoming(value, old)
                initial[r][v] = phi
        if not self.tall:  # else in chunks, below
            for r in range(tile.rows):
                self._prefetch_next(code, c, c_row, r, tile)
        for pointer in offsets:
            extra = [code.read(pointer, v * lanes, kind) for v in range(vectors)]
            initial = [[code.sub(value, more) for value, more in zip(row, extra, strict=True)] for row in initial]
        how = replace(arithmetic(code, self.kernel.kind, self.target, lanes), add_offset=None)
        left = self._left(code, tile, a, a_row, a_k, how)
        chunks = self._chunks(code, tile, a, a_row, c, c_row) if self.tall else None
        sums = multiply(code, tile, k, left, right, initial, how, chunks)
        store(code, tile, sums, lanes, c, c_row)
        return code.done()

    def _chunks(self, code: Code, tile: RegisterTile, a: Value, a_row: Value, c: Value, c_row: Value) -> Chunks:
        """During chunk r of its loop, a tile prefetches row r of the next one, below it: of c, which is loaded or stored, and of a."""
        size = BYTES[self.kernel.kind]

        def begin(r: Value) -> None:
            self._prefetch_next(code, c, c_row, r, tile, near=False)

        def advance(r: Value, k: Value, steps: int) -> None:
            if self.kernel.reading == "rows":  # a chunk is a fraction of k, a row all of it
                next_row = code.plus(code.mul(a_row, code.plus(r, tile.rows)), code.times(k, tile.rows))
                for line in range(0, steps * tile.rows, LINE // size):
                    code.prefetch(a, code.plus(next_row, line), self.element, near=False)

        return Chunks(tile.rows, begin, advance)

    def _sum_offsets(self) -> ir.Function:
        """(b, b_k, k, valid, offsets): the offsets of a panel, of which so many columns can be read."""
        code = self._private("offsets", [PTR, I64, I64, I64, PTR])
        b, b_k, k, valid, offsets = code.arguments
        kind, add = (
            vector(self.element, self.lanes),
            arithmetic(code, self.kernel.kind, self.target, self.lanes).add_offset,
        )
        assert add is not None
        columns = []
        for column in range(0, self.width, self.lanes):
            inside = code.icmp_signed("<", code.i64(column), valid)
            columns.append(code.select(inside, code.i64(column), code.i64(0)))

        def advance(at: Value, sums: list[Value]) -> list[Value]:
            steps = len(sums) // len(columns)
            places = [
                code.plus(code.mul(code.plus(at, step), b_k), column) for step in range(steps) for column in columns
            ]
            return [add(code.read(b, place, kind), total) for place, total in zip(places, sums, strict=True)]

        count, even = len(columns), code.and_(k, code.i64(-2))
        sums = code.loop_carrying(0, even, [constant(kind, 0)] * (2 * count), advance, 2)
        sums = [code.add(x, y) for x, y in zip(sums[:count], sums[count:], strict=True)]
        for v, total in enumerate(code.loop_carrying(even, k, sums, advance)):
            code.write(total, offsets, v * self.lanes)
        return code.done()

    def _prefetch(self, code: Code, pointer: Value, start: Int, tile: RegisterTile, near: bool = True) -> None:
        """Prefetch a row of a tile, one cache line at a time."""
        for column in range(0, tile.columns(self.lanes), LINE // BYTES[self.kernel.kind]):
            code.prefetch(pointer, code.plus(start, column), self.element, near)

    def _prefetch_next(
        self, code: Code, c: Value, c_row: Value, row: Int, tile: RegisterTile, near: bool = True
    ) -> None:
        """Prefetch a row of the next tile of c, below this one."""
        self._prefetch(code, c, code.mul(c_row, code.i64(code.plus(row, tile.rows))), tile, near)

    def _left(self, code: Code, tile: RegisterTile, a: Value, a_row: Value, a_k: Value, how: Arithmetic) -> LeftOperand:
        steps = 4 if tile == self.kernel.tile else 1  # the others are for edges, where code size matters more
        if self.kernel.reading == "rows":
            lines = [code.at(a, code.times(a_row, r), self.element) for r in range(tile.rows)]
            if self.tall:
                lines, steps = [opaque(code, line) for line in lines], min(2, steps)
            return rows(code, self.target, self.element, lines, steps, how)
        return columns(code, self.target, tile, self.element, a, a_k, steps, how)

    def _edge(self) -> ir.Function:
        """The same where only rows [top, bottom) and columns [left, right) of the tile belong to c, which may have any strides.

        The tile has as many vectors as those columns need."""
        code = self._private("edge", self.tile_types + [I64] * 5)
        with self._unless_whole(code) if self.narrows else nullcontext():
            self._make_aside(code)
        return code.done()

    def _make_aside(self, code: Code) -> None:
        """Compute the tile of an edge on the stack, and copy its valid part to c."""
        a, a_row, a_k, b, b_k, c, c_row, k, add, *rest = code.arguments
        offsets, c_column, box = rest[:-5], rest[-5], rest[-4:]
        here = code.stack_array(self.element, self.height * self.width)
        here.type = PTR  # llvmlite gives allocas typed pointers, which its stores then check
        place = _MatrixPlace(c, c_row, c_column, c_column)
        tile = _MatrixPlace(here, code.i64(self.width), code.i64(1), code.i64(self.width))
        with code.if_then(code.icmp_signed("!=", add, code.i64(0))):
            self._copy(code, place, tile, c_column, *box)
        arguments = [a, a_row, a_k, b, b_k, here, code.i64(self.width), k, add, *offsets]
        self._narrowest(code, arguments, box[3])
        self._copy(code, tile, place, c_column, *box)

    def _narrowest(self, code: Code, arguments: list[Value], right: Value) -> None:
        """The tile with as few vectors as the columns before `right` need."""
        needed = code.ceil_div(right, self.lanes)
        for vectors, inner in self.inner.items():
            with code.if_then(code.icmp_signed("==", needed, code.i64(vectors))) if self.narrows else nullcontext():
                code.call(inner, arguments)

    @contextmanager
    def _unless_whole(self, code: Code) -> Iterator[None]:
        """Compute the tile in place if all of its rows and whole vectors of its columns are valid."""
        *arguments, c_column, top, bottom, left, right = code.arguments
        wrong = code.or_(code.or_(top, left), code.and_(right, code.i64(self.lanes - 1)))
        wrong = code.or_(wrong, code.or_(code.xor(bottom, code.i64(self.height)), code.xor(c_column, code.i64(1))))
        with code.if_else(code.icmp_signed("==", wrong, code.i64(0))) as (then, otherwise):
            with then:
                self._narrowest(code, arguments, right)
            with otherwise:
                yield

    def _copy(self, code: Code, source: _MatrixPlace, target: _MatrixPlace, c_column: Value, *box: Value) -> None:
        """Copy a part of a tile: vectors along its rows where those of c are contiguous, else elements along its columns."""
        top, bottom, left, right = box
        with code.if_else(code.icmp_signed("==", c_column, code.i64(1))) as (then, otherwise):
            with then, code.loop(top, bottom) as r:
                wide = code.sub(right, code.srem(code.sub(right, left), code.i64(self.lanes)))
                with code.loop(left, wide, self.lanes) as c:
                    self._move(code, source, target, r, c, self.lanes)
                if self.narrows:
                    self._move_rest(code, source, target, r, wide, right)
                else:
                    with code.loop(wide, right) as c:
                        self._move(code, source, target, r, c, 1)
            with otherwise:
                self._copy_turned(code, source, target, *box)

    def _copy_turned(self, code: Code, source: _MatrixPlace, target: _MatrixPlace, *box: Value) -> None:
        """The same if the columns of c are contiguous: squares are transposed in registers, except for the last few rows."""
        top, bottom, left, right = box
        size = 16 // BYTES[self.kernel.kind]
        rows = self.height - self.height % size
        whole = code.icmp_signed("==", code.sub(bottom, top), code.i64(self.height))
        transposed = code.select(whole, code.sub(right, code.srem(code.sub(right, left), code.i64(size))), left)
        with code.loop(left, transposed, size) as c:
            for r in range(0, rows, size):
                self._turn(code, source, target, r, c, size)
            for r in range(rows, self.height):
                for i in range(size):
                    self._move(code, source, target, code.i64(r), code.plus(c, i), 1)
        with code.loop(transposed, right) as c, code.loop(top, bottom) as r:
            self._move(code, source, target, r, c, 1)

    def _turn(self, code: Code, source: _MatrixPlace, target: _MatrixPlace, r: int, c: Value, size: int) -> None:
        """Transpose a square from contiguous rows to contiguous columns."""
        some = vector(self.element, size)
        steps = [(code.times(place.row, r), code.mul(place.column, c), place) for place in (source, target)]
        lines = [
            [code.plus(row, column, code.times(place.along, i)) for i in range(size)] for row, column, place in steps
        ]
        values = transpose(code, [code.read(source.pointer, line, some) for line in lines[0]])
        for value, line in zip(values, lines[1], strict=True):
            code.write(value, target.pointer, line)

    def _move(self, code: Code, source: _MatrixPlace, target: _MatrixPlace, r: Value, c: Value, lanes: int) -> None:
        start, home = (code.plus(code.mul(r, at.row), code.mul(c, at.column)) for at in (source, target))
        code.write(code.read(source.pointer, start, vector(self.element, lanes)), target.pointer, home)

    def _move_rest(
        self, code: Code, source: _MatrixPlace, target: _MatrixPlace, r: Value, c: Value, right: Value
    ) -> None:
        """Copy the remainder of a row, less than a vector."""
        kind = vector(self.element, self.lanes)
        some = before(code, code.sub(right, c), self.lanes)
        start, home = (code.at(at.pointer, code.plus(code.mul(r, at.row), c), self.element) for at in (source, target))
        with code.if_then(code.icmp_signed("<", c, right)):
            write_masked(code, read_masked(code, start, some, kind), home, some)

    # --- all tiles --------------------------------------------------------------------------------------------------

    def _outer(self) -> None:
        types = [PTR] * len(PRODUCT_POINTERS) + [I64] * (len(PRODUCT) - len(PRODUCT_POINTERS))
        code = Code.begin(self.out, self.kernel.symbol, types)
        of: dict[str, Any] = dict(zip(PRODUCT, code.arguments, strict=True))
        of["c"] = code.at(of["c"], of["c_offset"], self.element)
        mine = code.plus(of["scratch"], code.mul(of["scratch_size"], of["tid"]))
        of["packed_a"] = code.at(of["work"], mine, self.element)
        of["packed_b"] = code.at(of["packed_a"], of["scratch_b"], self.element)
        of["own_c"] = code.at(of["packed_a"], of["scratch_c"], self.element)
        if self.has_offset:
            of["offsets"] = code.stack_array(self.element, self.width)
            of["offsets"].type = PTR  # as in _make_aside
        of["is_streamed"] = code.icmp_signed("!=", of["streamed"], code.i64(0))
        if self.by_matrix_unit:
            matrix_unit.configure(code)
        blocks = code.mul(of["row_blocks"], of["column_blocks"])
        first, last = code.share(code.mul(blocks, of["batch"]), of["tid"], of["threads"])
        with code.loop(first, last, name="task") as task:
            z, rest = code.sdiv(task, blocks), code.srem(task, blocks)
            self._task(code, of, z, code.sdiv(rest, of["column_blocks"]), code.srem(rest, of["column_blocks"]))
        if self.by_matrix_unit:
            matrix_unit.release(code)
        code.done()

    def _task(self, code: Code, of: dict[str, Any], z: Value, row_block: Value, column_block: Value) -> None:
        """One block of c, for all of k."""
        i0, i1 = code.share(code.ceil_div(of["m"], self.height), row_block, of["row_blocks"])
        j0, j1 = code.share(code.ceil_div(of["n"], self.width), column_block, of["column_blocks"])
        a = code.at(of["a"], code.mul(z, of["a_batch"]), ELEMENTS[self.kernel.a_type])
        whole = code.mul(z, of["c_batch"])
        ends = code.icmp_signed("==", code.plus(z, 1), of["batch"])
        k = code.select(ends, of["last_k"], of["k"])
        with code.loop(0, code.maximum(k, 1), of["k_block"], name="k0") as k0:  # once even for k = 0, to store zeros
            length = code.minimum(of["k_block"], code.sub(k, k0))
            a_at = code.at(a, code.mul(k0, of["a_k"]), ELEMENTS[self.kernel.a_type])
            b_at = code.plus(code.mul(z, of["b_batch"]), code.mul(k0, of["b_k"]))
            add = code.select(code.icmp_signed(">", k0, code.i64(0)), code.i64(1), of["accumulate"])
            packs = code.icmp_signed("!=", of["pack_a"], code.i64(0))
            if self.kernel.reading != "rows":  # those are never packed
                with code.if_then(packs):
                    self._pack_rows(code, of, a_at, i0, i1, length)
            left = _LeftBlock(
                code.select(packs, of["packed_a"], a_at),
                code.select(packs, code.times(length, self.height), code.times(of["a_row"], self.height)),
                code.select(packs, code.i64(1), of["a_row"]),
                code.select(packs, code.i64(self.height), of["a_k"]),
                code.select(packs, i0, code.i64(0)),
                packs,
            )
            final = code.icmp_signed(">=", code.plus(k0, of["k_block"]), k)
            with code.loop(j0, j1, of["strip"], name="strip") as strip:
                end = code.minimum(code.plus(strip, of["strip"]), j1)
                pack = self._pack_strip(code, of, b_at, strip, end, length)
                first = code.plus(whole, self._corner(code, of, i0, strip))
                own = code.at(
                    of["own_c"], code.sub(code.i64(0), first), self.element
                )  # the address that c would have if this block were part of it
                every = code.select(of["is_streamed"], own, of["c"])
                c = code.at(every, whole, self.element)
                with code.loop(strip, end, name="j") as j:
                    right = self._right(code, of, b_at, j, pack, strip, length)
                    if self.sum_offsets is not None:
                        valid = code.sub(code.i64(self.width), code.sub(right.beyond, right.back))
                        code.call(self.sum_offsets, [right.pointer, right.k, length, valid, of["offsets"]])
                    with code.loop(i0, i1, name="i") as i:
                        self._place(code, of, left, right, c, length, add, i, j)
                self._finish(code, of, final, every, z, (i0, i1), (strip, end))

    def _corner(self, code: Code, of: dict[str, Any], i: Value, j: Value) -> Value:
        """Where tile (i, j) begins in c."""
        row, column = code.times(i, self.height), code.times(j, self.width)
        return code.plus(code.mul(row, of["c_row"]), code.mul(column, of["c_column"]))

    def _pack_rows(self, code: Code, of: dict[str, Any], a: Value, i0: Value, i1: Value, length: Value) -> None:
        with code.loop(i0, i1) as i:
            row = code.times(i, self.height)
            source = code.at(a, code.mul(row, of["a_row"]), ELEMENTS[self.kernel.a_type])
            home = code.at(of["packed_a"], code.mul(code.sub(i, i0), code.times(length, self.height)), self.element)
            valid = code.minimum(code.sub(of["m"], row), self.height)
            code.call(self.pack_a, [source, home, valid, length, of["a_row"], of["a_k"]])

    def _pack_strip(
        self, code: Code, of: dict[str, Any], start: Value, strip: Value, end: Value, length: Value
    ) -> Value:
        """Pack a strip of panels of the right operand, if it is to be packed; whether it was."""
        wanted = code.icmp_signed("!=", of["pack_b"], code.i64(0))
        with code.if_then(wanted):
            column = code.times(strip, self.width)
            lines = code.minimum(code.times(code.sub(end, strip), self.width), code.sub(of["n"], column))
            place = code.plus(start, code.mul(strip, of["b_panel"]))
            source = code.at(of["b"], code.mul(place, of["b_bytes"]), I8)
            apart = code.plus(code.times(length, self.width), PANEL_GAP)
            code.call(self.pack_b, [source, of["packed_b"], lines, length, of["b_column"], of["b_k"], apart])
        return wanted

    def _right(
        self, code: Code, of: dict[str, Any], start: Value, j: Value, packed: Value, strip: Value, length: Value
    ) -> _RightPanel:
        """Panel j, in the packed strip or in place."""
        column = code.times(j, self.width)
        beyond = code.maximum(code.sub(code.plus(column, self.width), of["n"]), 0)
        back = code.mul(of["shift_b"], code.srem(beyond, code.i64(self.lanes)) if self.narrows else beyond)
        place = code.sub(code.plus(start, code.mul(j, of["b_panel"])), back)
        lies = code.at(of["b"], code.mul(place, of["b_bytes"]), I8)
        here = code.at(
            of["packed_b"],
            code.mul(code.sub(j, strip), code.plus(code.times(length, self.width), PANEL_GAP)),
            self.element,
        )
        along = code.select(packed, code.i64(self.width), of["b_k"])
        return _RightPanel(code.select(packed, here, lies), along, beyond, back)

    def _place(
        self,
        code: Code,
        of: dict[str, Any],
        a: _LeftBlock,
        b: _RightPanel,
        c: Value,
        k: Value,
        add: Value,
        i: Value,
        j: Value,
    ) -> None:
        """Tile (i, j), whole or at an edge."""
        row, column = code.times(i, self.height), code.times(j, self.width)
        beyond_row = code.maximum(code.sub(code.plus(row, self.height), of["m"]), 0)
        up = code.select(a.packed, code.i64(0), beyond_row)
        a_at = code.mul(code.sub(i, a.first), a.panel)
        a_at = code.at(a.pointer, code.sub(a_at, code.mul(up, a.row)), self.element)
        c_at = code.plus(code.mul(code.sub(row, up), of["c_row"]), code.mul(code.sub(column, b.back), of["c_column"]))
        c_at = code.at(c, c_at, self.element)
        common = [a_at, a.row, a.k, b.pointer, b.k, c_at, of["c_row"], k, add]
        common += [of["offsets"]] if self.has_offset else []
        whole = code.icmp_signed("==", code.or_(code.or_(beyond_row, b.beyond), of["transposed"]), code.i64(0))
        with code.if_else(whole, likely=True) as (then, otherwise):
            with then:
                code.call(self.inner[self.kernel.tile.vectors], common)
            with otherwise:
                bottom = code.sub(code.i64(self.height), code.sub(beyond_row, up))
                right = code.sub(code.i64(self.width), code.sub(b.beyond, b.back))
                code.call(self.edge, [*common, of["c_column"], up, bottom, b.back, right])

    def _finish(
        self,
        code: Code,
        of: dict[str, Any],
        final: Value,
        c: Value,
        z: Value,
        rows: tuple[Value, Value],
        strip: tuple[Value, Value],
    ) -> None:
        """Call the epilogue, if there is one, for a strip of panels of this task's rows. Its context has the address of c."""
        some = code.icmp_unsigned("!=", of["epilogue"], ir.Constant(PTR, None))
        wanted = code.and_(some, code.icmp_signed("!=", of["finishes"], code.i64(0)))
        with code.if_then(code.and_(final, wanted)):
            with code.if_then(of["is_streamed"]):
                code.write(c, of["context"], 0)
            top, bottom = (code.minimum(code.times(i, self.height), of["m"]) for i in rows)
            left, right = (code.minimum(code.times(j, self.width), of["n"]) for j in strip)
            transposed = code.icmp_signed("!=", of["transposed"], code.i64(0))
            pairs = ((left, top), (right, bottom), (top, left), (bottom, right))
            call_epilogue(code, of["epilogue"], of["context"], z, *(code.select(transposed, a, b) for a, b in pairs))


@dataclass(frozen=True)
class _MatrixPlace:
    """A matrix in memory."""

    pointer: Value
    row: Value
    column: Value
    along: Value  # from line to line, if it is transposed: those of the tile are rows, those of c columns


@dataclass(frozen=True)
class _LeftBlock:
    """A task's rows of the left operand."""

    pointer: Value
    panel: Value  # from tile to tile
    row: Value
    k: Value
    first: Value  # the tile at the pointer
    packed: Value


@dataclass(frozen=True)
class _RightPanel:
    """A panel of the right operand: its address, its columns beyond the matrix, and the columns by which it was shifted back."""

    pointer: Value
    k: Value
    beyond: Value
    back: Value


def call_epilogue(code: Code, epilogue: Value, context: Value, *box: Value) -> None:
    """box: batch, row begin and end, column begin and end."""
    address = code.ptrtoint(epilogue, I64)  # cast to a typed pointer: llvmlite calls no others
    code.call(code.inttoptr(address, EPILOGUE.as_pointer()), [context, *box])
