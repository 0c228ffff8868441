"""Products of 8-bit integers by the matrix unit of x86 CPUs (AMX).

Its eight tile registers have 16 rows of 16 words. One instruction adds the product of a tile of the left operand (16 rows, 16 words of k) and a
tile of the right one (16 words of k, 16 columns) to a tile of int32 sums: as many multiplications as 64 vpdpbusd. Words are those of arithmetic.py,
and the right operand is packed in panels as for vector registers. All kinds of products have an instruction, so none needs an offset.

A `RegisterTile` of 16 or 32 rows is computed here; those of vector registers have fewer. The unit is configured once by each function that uses it.
"""

from __future__ import annotations

from llvmlite import ir

from ..ir_builder import I8, I32, I64, VOID, Code, Value, constant, vector
from ..target import CpuTarget
from .arithmetic import is_integer
from .packing import before, read_masked
from .register_tile import RegisterTile

SIDE = 16  # rows of a tile register, words of a row
SHAPES = (RegisterTile(32, 2), RegisterTile(16, 2))
_LINE = 4 * SIDE  # bytes of a row
_LEFT, _RIGHT = 4, 6  # tile registers of the operands; the sums begin at 0
_INSTRUCTIONS = {"s8": "x86.tdpbssd", "u8": "x86.tdpbuud", "us8": "x86.tdpbusd"}  # signedness: left, right


def multiplies(kind: str, words: int, target: CpuTarget) -> bool:
    """Whether the CPU has a matrix unit for this kind of product, and k is long enough for it."""
    return is_integer(kind) and words >= SIDE and target.matrix == "amx-int8"


def is_matrix_tile(tile: RegisterTile) -> bool:
    """Whether a tile is computed by the matrix unit."""
    return tile in SHAPES


def configure(code: Code) -> None:
    """Set the shape of all tile registers, which this thread keeps until `release`."""
    place = code.stack_array(I8, _LINE)
    code.write(constant(vector(I64, 8), 0), place, 0)
    code.write(ir.Constant(I8, 1), place, 0)  # palette
    for register in range(8):
        code.write(ir.Constant(I8, _LINE), place, 16 + 2 * register)  # bytes of a row, in 16 bits
        code.write(ir.Constant(I8, SIDE), place, 48 + register)  # rows
    code.intrinsic("x86.ldtilecfg", place, types=[], result=VOID)


def release(code: Code) -> None:
    """Return the registers to their initial state: threads with tiles in use are slower to switch."""
    code.intrinsic("x86.tilerelease", types=[], result=VOID)


def write_tile(code: Code, kind: str, tile: RegisterTile) -> None:
    """The body of a function (a, a_row, a_k, b, b_k, c, c_row, k, add): a tile of c, stored or added to c.

    a_k is not used: the words of a row of the left operand are contiguous.
    """
    a, a_row, _, b, b_k, c, c_row, k, add = code.arguments
    unit = _Unit(code, kind, tile)
    with code.if_else(code.icmp_signed("==", add, code.i64(0))) as (then, otherwise):
        with then:
            unit.clear()
        with otherwise:
            unit.sums("x86.tileloadd64", c, c_row)
    for r in range(tile.rows, 2 * tile.rows):  # the rows that the next tile, below this one, stores
        for v in range(tile.vectors):
            code.prefetch(c, code.plus(code.times(c_row, r), v * SIDE), I32, write=True)
    whole = code.and_(k, code.i64(-SIDE))
    with code.loop(0, whole, SIDE) as at:
        unit.multiply(code.at(a, at, I32), a_row, code.at(b, code.mul(at, b_k), I32), b_k)
    with code.if_then(code.icmp_signed("<", whole, k)):
        unit.multiply_rest(
            code.at(a, whole, I32), a_row, code.at(b, code.mul(whole, b_k), I32), b_k, code.sub(k, whole)
        )
    unit.sums("x86.tilestored64", c, c_row)


class _Unit:
    """Emits instructions on the registers of one tile. Strides are in words."""

    def __init__(self, code: Code, kind: str, tile: RegisterTile) -> None:
        self.code, self.instruction, self.columns = code, _INSTRUCTIONS[kind], tile.vectors
        self.rows = tile.rows // SIDE

    def clear(self) -> None:
        for register in range(self.rows * self.columns):
            self._emit("x86.tilezero", register)

    def sums(self, instruction: str, c: Value, row: Value) -> None:
        """Load or store the sums."""
        for r in range(self.rows):
            for v in range(self.columns):
                place = self._at(c, row, r, v)
                self._emit(instruction, r * self.columns + v, place, self._bytes(row))

    def multiply(self, a: Value, a_row: Value, b: Value, b_k: Value) -> None:
        """Add the products of 16 words of k."""
        for r in range(self.rows):
            self._emit("x86.tileloadd64", _LEFT + r, self._at(a, a_row, r, 0), self._bytes(a_row))
        for v in range(self.columns):
            self._emit("x86.tileloadd64", _RIGHT + v, self._at(b, b_k, 0, v), self._bytes(b_k))
            for r in range(self.rows):
                self._emit(self.instruction, r * self.columns + v, _LEFT + r, _RIGHT + v)

    def multiply_rest(self, a: Value, a_row: Value, b: Value, b_k: Value, length: Value) -> None:
        """The same for fewer words. Both operands are copied, because tiles are loaded whole; rows of a are filled with zeros."""
        code, line = self.code, vector(I32, SIDE)
        left = code.stack_array(I32, self.rows * SIDE * SIDE)
        right = code.stack_array(I32, self.columns * SIDE * SIDE)
        mask = before(code, length, SIDE)
        with code.loop(0, self.rows * SIDE) as r:
            code.write(read_masked(code, code.at(a, code.mul(r, a_row), I32), mask, line), left, code.times(r, SIDE))
        width = self.columns * SIDE
        with code.loop(0, length) as k:
            for v in range(self.columns):
                values = code.read(b, code.plus(code.mul(k, b_k), v * SIDE), line)
                code.write(values, right, code.plus(code.times(k, width), v * SIDE))
        self.multiply(left, code.i64(SIDE), right, code.i64(width))

    def _at(self, pointer: Value, row: Value, r: int, v: int) -> Value:
        """Where a register's part of a tile begins."""
        return self.code.at(pointer, self.code.plus(self.code.times(row, r * SIDE), v * SIDE), I32)

    def _bytes(self, row: Value) -> Value:
        return self.code.times(row, 4)

    def _emit(self, name: str, *operands: Value | int) -> None:
        """An instruction on tile registers, which are given by number."""
        values = [ir.Constant(I8, o) if isinstance(o, int) else o for o in operands]
        self.code.intrinsic(name, *values, types=[], result=VOID)
