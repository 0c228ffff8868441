"""sparse_matmul: a few examples times a sparse weight, row after row of the weight.

A product with one example is bound by bytes and instructions for each kept weight: two bytes of column, and the value or a byte of code. Columns
are counted from the start of a block of columns, so that two bytes suffice and the block's inputs stay in the L1 cache. Inputs are copied first, each
block padded with zeros to a power of two, and only so many bits of a column are used: whatever a damaged weight holds, nothing beyond the copy is read.

Several examples are the lanes of vectors: the copy has those of one input side by side. Each weight is added to one of CHAINS sums, by its place in the
row, whatever the number of examples and threads: bits do not depend on them.
"""

from __future__ import annotations

from llvmlite import ir

from ....dtypes import DType, as_dtype
from ....graph.node import Node
from ...ir.plan import Plan, PlanPhase
from ...thresholds import thresholds
from ..ir_builder import F32, I8, I16, I32, I64, PTR, Code, Value, constant, new_module, vector
from ..library import library
from ..scalars import from_storage, register_type, storage_type, to_storage
from ..target import current_target
from .scatter import in_vectors

CHAINS = 4  # sums of a row
MOST_LANES = 8  # examples of a chunk: more would not leave the inputs of a block in the caches
TABLE = 32  # values of a codebook that NEON looks up in registers
CODES = 256
COPY = ("x0", "work", "tid", "threads", "batch", "inputs", "blocks", "block")
ROWS = ("work", "x1", "x2", "x3", "y", "tid", "threads", "batch", "outputs", "blocks", "count")
CODED = ("x4", "size")


@library("sparse")
def make(symbol: str) -> ir.Module:
    """sparse.copy.DTYPE.LANES.BITS, sparse.rows.DTYPE.LANES.BITS.FORM: columns of so many bits; the form is `values`, `codes` or `few` (codes up to TABLE)"""
    _, part, dtype, lanes, *rest = symbol.split(".")
    module = new_module(symbol)
    if part == "copy":
        _copy(module, symbol, as_dtype(dtype), int(lanes), int(rest[0]))
    else:
        _SparseRows(module, symbol, as_dtype(dtype), int(lanes), int(rest[0]), rest[1]).write()
    return module


def _copy(module: ir.Module, symbol: str, dtype: DType, lanes: int, bits: int) -> None:
    """Chunks of examples as (chunk, block, column, lane), zero where there is no example or no input."""
    code = Code.begin(module, symbol, [PTR] * 2 + [I64] * (len(COPY) - 2))
    of = dict(zip(COPY, code.arguments, strict=True))
    first, last = code.share(1 << bits, of["tid"], of["threads"])  # every thread has some columns of each block
    chunks = code.ceil_div(of["batch"], lanes)
    with (
        code.loop(0, chunks, name="chunk") as chunk,
        code.loop(0, lanes, name="lane") as lane,
        code.loop(0, of["blocks"], name="block") as block,
    ):
        example, left = code.plus(code.times(chunk, lanes), lane), code.mul(block, of["block"])
        inputs = code.minimum(of["block"], code.sub(of["inputs"], left))
        there = code.select(code.icmp_signed("<", example, of["batch"]), inputs, code.i64(0))
        end = code.maximum(first, code.minimum(last, there))
        source = code.plus(code.mul(example, of["inputs"]), left)
        start = code.times(code.plus(code.mul(chunk, of["blocks"]), block), lanes << bits)
        target = code.plus(start, lane)
        wide = current_target().lanes(32) if lanes == 1 else 1
        for begin, stop, width in in_vectors(code, first, end, wide):
            with code.loop(begin, stop, width, name="input") as i:
                stored = code.read(of["x0"], code.plus(source, i), vector(storage_type(dtype), width))
                code.write(from_storage(code, stored, dtype), of["work"], code.plus(target, code.times(i, lanes)))
        for begin, stop, width in in_vectors(code, end, last, wide):
            with code.loop(begin, stop, width, name="rest") as i:
                zero = constant(vector(register_type(dtype), width), 0.0)
                code.write(zero, of["work"], code.plus(target, code.times(i, lanes)))
    code.done()


class _SparseRows:
    """Writes the product: the rows of each thread in tiles, the blocks of columns of each tile, the weights of each row of a block."""

    def __init__(self, module: ir.Module, symbol: str, dtype: DType, lanes: int, bits: int, form: str) -> None:
        self.dtype, self.lanes, self.bits, self.form = dtype, lanes, bits, form
        names = ROWS + (CODED if form != "values" else ())
        kinds = [PTR if name[0] in "xyw" else I64 for name in names]
        code = self.code = Code.begin(module, symbol, kinds)
        self.of = dict(zip(names, code.arguments, strict=True))
        self.number = register_type(dtype)
        self.sums = vector(self.number, lanes)
        self.tile = max(1, thresholds.sparse_tile // lanes)
        self.step = 16  # weights of an iteration

    def write(self) -> None:
        code, of = self.code, self.of
        if self.form != "values":
            self._make_table()
        totals = code.stack_array(self.sums, self.tile)
        first, last = code.share(of["outputs"], of["tid"], of["threads"])
        with code.loop(0, code.ceil_div(of["batch"], self.lanes), name="chunk") as chunk:
            inputs = code.at(
                of["work"], code.times(code.mul(chunk, of["blocks"]), self.lanes << self.bits), self.number
            )
            with code.loop(first, last, self.tile, name="tile") as tile:
                end = code.minimum(last, code.plus(tile, self.tile))
                with code.loop(tile, end) as row:
                    self._put(constant(self.sums, 0.0), totals, code.sub(row, tile))
                with code.loop(0, of["blocks"], name="block") as block:
                    x = code.at(inputs, code.times(block, self.lanes << self.bits), self.number)
                    starts = code.at(of["x3"], code.mul(block, code.plus(of["outputs"], 1)), I32)
                    with code.loop(tile, end, name="row") as row:
                        place = code.sub(row, tile)
                        total = code.fadd(self._get(totals, place), self._row(x, starts, row))
                        self._put(total, totals, place)
                with code.loop(tile, end, name="out") as row:
                    self._store(self._get(totals, code.sub(row, tile)), chunk, row)
        code.done()

    # --- a row ------------------------------------------------------------------------------------------------------

    def _row(self, x: Value, starts: Value, row: Value) -> Value:
        """The sum of the products of a row in one block. Its weights are those from start to start, as far as there are any."""
        code = self.code
        begin, end = (self._start(starts, code.plus(row, i)) for i in range(2))
        end = code.maximum(begin, end)
        whole = code.sub(end, code.and_(code.sub(end, begin), code.i64(self.step - 1)))
        zeros = [constant(self.sums, 0.0)] * CHAINS
        sums = code.loop_carrying(begin, whole, zeros, lambda e, sums: self._several(x, e, sums), self.step)
        sums = code.loop_carrying(whole, end, sums, lambda e, sums: self._one(x, e, sums))
        return code.fadd(code.fadd(sums[0], sums[1]), code.fadd(sums[2], sums[3]))

    def _start(self, starts: Value, row: Value) -> Value:
        code = self.code
        return code.minimum(code.maximum(0, code.sext(code.read(starts, row, I32), I64)), self.of["count"])

    def _several(self, x: Value, entry: Value, sums: list[Value]) -> list[Value]:
        """The next `step` weights, four to a 64-bit word of columns."""
        code, sums = self.code, list(sums)
        values = self._values(entry)
        for word in range(self.step // 4):
            columns = code.load(code.at(self.of["x2"], code.plus(entry, 4 * word), I16), typ=I64, align=2)
            for i in range(4):
                column = code.and_(code.lshr(columns, constant(I64, 16 * i)), constant(I64, (1 << self.bits) - 1))
                value = code.lane(values[word], i)
                chain = (4 * word + i) % CHAINS
                sums[chain] = self._product(self._input(x, column), value, sums[chain])
        return sums

    def _one(self, x: Value, entry: Value, sums: list[Value]) -> list[Value]:
        """A weight of the rest of a row."""
        code = self.code
        column = code.and_(code.zext(code.read(self.of["x2"], entry, I16), I64), constant(I64, (1 << self.bits) - 1))
        value = self._value(entry)
        return [self._product(self._input(x, column), value, sums[0]), *sums[1:]]

    def _input(self, x: Value, column: Value) -> Value:
        return self.code.read(x, self.code.times(column, self.lanes), self.sums)

    def _product(self, x: Value, value: Value, total: Value) -> Value:
        return self.code.fma(x, self.code.splat(value, self.lanes), total)

    # --- values -----------------------------------------------------------------------------------------------------

    def _values(self, entry: Value) -> list[Value]:
        """The values of the next weights, in vectors of four."""
        if self.form == "few" and self._in_registers:
            return self._looked_up_in_registers(entry)
        parts = range(0, self.step, 4)
        if self.form == "values":
            four = vector(storage_type(self.dtype), 4)
            return [
                from_storage(self.code, self.code.read(self.of["x1"], self.code.plus(entry, i), four), self.dtype)
                for i in parts
            ]
        return [self._looked_up(code, part) for code in self._codes(entry) for part in range(2)]

    def _codes(self, entry: Value) -> list[Value]:
        """The next codes, eight to a word."""
        code = self.code
        return [
            code.load(code.at(self.of["x4"], code.plus(entry, i), I8), typ=I64, align=1) for i in range(0, self.step, 8)
        ]

    def _looked_up(self, codes: Value, part: int) -> Value:
        code = self.code
        places = [code.and_(code.lshr(codes, constant(I64, 32 * part + 8 * i)), constant(I64, 255)) for i in range(4)]
        return code.gather_lanes([code.read(self.table, place, self.number) for place in places])

    def _value(self, entry: Value) -> Value:
        code = self.code
        if self.form == "values":
            return from_storage(code, code.read(self.of["x1"], entry, storage_type(self.dtype)), self.dtype)
        return code.read(self.table, code.zext(code.read(self.of["x4"], entry, I8), I64), self.number)

    @property
    def _in_registers(self) -> bool:
        return current_target().arch == "aarch64" and self.number == F32

    def _make_table(self) -> None:
        """The codebook on the stack, zero for codes beyond it; for NEON its four bytes in tables of their own."""
        code, of = self.code, self.of
        self.table = code.stack_array(self.number, CODES)
        size = code.minimum(of["size"], CODES)
        with code.loop(0, size) as i:
            code.write(from_storage(code, code.read(of["x1"], i, storage_type(self.dtype)), self.dtype), self.table, i)
        with code.loop(size, CODES) as i:
            code.write(constant(self.number, 0.0), self.table, i)
        if self.form == "few" and self._in_registers:
            bytes = code.stack_array(I8, 4 * TABLE)
            with code.loop(0, 4 * TABLE) as i:
                plane, number = code.sdiv(i, code.i64(TABLE)), code.srem(i, code.i64(TABLE))
                code.write(code.read(self.table, code.plus(code.times(number, 4), plane), I8), bytes, i)
            self.planes = [
                [code.read(bytes, 16 * half + TABLE * b, vector(I8, 16)) for half in range(2)] for b in range(4)
            ]

    def _looked_up_in_registers(self, entry: Value) -> list[Value]:
        """16 codes: each byte of their values by one table lookup, and the bytes of each value put together."""
        code = self.code
        codes = code.read(self.of["x4"], entry, vector(I8, 16))
        bytes = [code.intrinsic("aarch64.neon.tbl2", low, high, codes) for low, high in self.planes]
        halves = [self._zipped(bytes[b], bytes[b + 1], part) for part in range(2) for b in (0, 2)]
        halves = [code.bitcast(h, vector(I16, 8)) for h in halves]
        words = [self._zipped(halves[2 * half], halves[2 * half + 1], part) for half in range(2) for part in range(2)]
        return [code.bitcast(w, vector(F32, 4)) for w in words]

    def _zipped(self, a: Value, b: Value, part: int) -> Value:
        """The elements of the lower or upper halves of two vectors in turn."""
        n = a.type.count
        order = [i + n * odd for i in range(part * n // 2, (part + 1) * n // 2) for odd in range(2)]
        return self.code.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, n), [ir.Constant(I32, i) for i in order]))

    # --- results ----------------------------------------------------------------------------------------------------

    def _get(self, totals: Value, place: Value) -> Value:
        return self.code.read(totals, self.code.times(place, self.lanes), self.sums)

    def _put(self, value: Value, totals: Value, place: Value) -> None:
        self.code.write(value, totals, self.code.times(place, self.lanes))

    def _store(self, total: Value, chunk: Value, row: Value) -> None:
        code, of = self.code, self.of
        for lane in range(self.lanes):
            example = code.plus(code.times(chunk, self.lanes), lane)
            value = to_storage(code, code.lane(total, lane), self.dtype)
            with code.if_then(code.icmp_signed("<", example, of["batch"])):
                code.write(value, of["y"], code.plus(code.mul(example, of["outputs"]), row))


def plan(node: Node, threads: int) -> Plan:
    """The plan of a product by at most `threads` threads."""
    x, values, columns, starts, *codes = node.inputs
    (batch, inputs), (_, outputs), block = x.shape, node.shape, node.param("block")
    if not batch * outputs:
        return Plan("nothing", (), 0, 0)
    lanes = min(MOST_LANES, 1 << (batch - 1).bit_length())
    blocks, bits = starts.shape[0], block.bit_length()
    form = "values" if not codes else "few" if values.shape[0] <= TABLE else "codes"
    name, reads = x.dtype.name, {"work", *(f"x{i}" for i in range(1, len(node.inputs)))}
    copied = ("x0", "work", "tid", "threads", batch, inputs, blocks, block)
    rows = ("work", "x1", "x2", "x3", "y", "tid", "threads", batch, outputs, blocks, columns.shape[0])
    coded = ("x4", values.shape[0]) if codes else ()
    copy = PlanPhase(f"sparse.copy.{name}.{lanes}.{bits}", copied, frozenset({"x0"}), frozenset({"work"}))
    multiply = PlanPhase(f"sparse.rows.{name}.{lanes}.{bits}.{form}", rows + coded, frozenset(reads), frozenset({"y"}))
    itemsize = 8 if x.dtype.bits == 64 else 4
    workspace = itemsize * -(-batch // lanes) * lanes * blocks << bits
    return Plan(f"sparse product ({form})", (copy, multiply), workspace, 2 * batch * columns.shape[0])
