"""The multiply-add of a register tile: of floats, or dot products of 8-bit integers.

Products of 8-bit integers have the structure of float32 products: four neighbours along k are one word of 32 bits, which is loaded,
packed and broadcast like a float32, and a multiply-add adds the dot product of two words to an int32. So everything around the inner
loop is the same for both, and k counts words. Kinds of integer products are named after the operands, left then right:

    s8  int8 x int8      u8  uint8 x uint8      us8  uint8 x int8, whose transposed product is no kind of its own

CPUs have instructions for some of them: sdot and udot (Arm) for s8 and u8, vpdpbusd (VNNI, x86) for us8. With a b = (a ^ 128) b +- 128 b
Arm computes us8 by sdot and x86 computes s8 by vpdpbusd; the sum of 128 b is one more row of the tile, subtracted at the end.
Everything else is two products of 16-bit integers for each word: pmaddwd on x86. All are exact, and wrap around as int32 does.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from ....records import dataclass
from ..ir_builder import I8, I16, I32, Code, Value, constant, lanes_of, vector
from ..target import CpuTarget

INTEGERS = ("s8", "u8", "us8")
WORD = 4  # elements of a word
_OFFSET = 0x80808080  # 128 in each byte
_VNNI = {"avx512vnni": "x86.avx512.vpdpbusd", "avxvnni": "x86.avx512.vpdpbusd"}
_DOTS = {"s8": "sdot", "us8": "sdot", "u8": "udot"}


@dataclass(frozen=True)
class Arithmetic:
    """How a tile adds products."""

    add_product: Callable[
        [Value, Value, Value], Value
    ]  # (left operand in all lanes, vector of the right one, sum) -> sum
    # (vector of the right operand, sum) -> sum, which is in the end subtracted from every row
    add_offset: Callable[[Value, Value], Value] | None = None
    loaded: Callable[[Value], Value] = lambda value: value  # applied to the left operand where it is loaded


def floats(code: Code) -> Arithmetic:
    return Arithmetic(code.fma)


def is_integer(kind: str) -> bool:
    return kind in INTEGERS


def kind_of(left_unsigned: bool, right_unsigned: bool) -> str:
    """The kind of a product of 8-bit integers."""
    return {(False, False): "s8", (True, True): "u8", (True, False): "us8"}[left_unsigned, right_unsigned]


def is_fast(kind: str, target: CpuTarget) -> bool:
    """Whether the CPU has an instruction for dot products of this kind."""
    return kind in (_DOTS if target.dot == "dotprod" else ("s8", "us8") if target.dot in _VNNI else ())


def prefers_unsigned(target: CpuTarget) -> bool:
    """Whether us8 takes fewer instructions than s8."""
    return target.dot in _VNNI


def arithmetic(code: Code, kind: str, target: CpuTarget, lanes: int) -> Arithmetic:
    """The arithmetic of a kind of product in vectors of this many lanes."""
    if not is_integer(kind):
        return floats(code)
    if not is_fast(kind, target) or lanes * 32 != target.vector_bits:
        return Arithmetic(lambda a, b, total: _by_pairs(code, kind, a, b, total))
    dot = _dot(code, target, lanes, _DOTS[kind])
    if not has_offset(kind, target):
        return Arithmetic(dot)
    offset = constant(vector(I32, lanes), _OFFSET)
    if target.dot == "dotprod":
        return Arithmetic(dot, lambda b, total: dot(offset, b, total), lambda a: code.xor(a, constant(a.type, _OFFSET)))
    # x86 broadcasts a word inside of the xor, as long as LLVM does not see that it could be done before.
    hidden = code.call(ir.InlineAsm(ir.FunctionType(offset.type, [offset.type]), "", "=x,0"), [offset])
    return Arithmetic(lambda a, b, total: dot(code.xor(a, hidden), b, total), lambda b, total: dot(offset, b, total))


def needs_registers(kind: str, target: CpuTarget) -> bool:
    """Whether a tile needs registers beside those of its sums and of one row of the right operand."""
    return is_integer(kind) and (has_offset(kind, target) or not is_fast(kind, target))


def has_offset(kind: str, target: CpuTarget) -> bool:
    """Whether a kind is computed by the instruction of another: then a tile needs registers for one more row."""
    return is_fast(kind, target) and kind == ("us8" if target.dot == "dotprod" else "s8")


def _dot(code: Code, target: CpuTarget, lanes: int, name: str) -> Callable[[Value, Value, Value], Value]:
    words, numbers = vector(I32, lanes), vector(I8, WORD * lanes)

    def on_arm(a: Value, b: Value, total: Value) -> Value:
        a, b = code.bitcast(a, numbers), code.bitcast(b, numbers)
        return code.intrinsic(f"aarch64.neon.{name}", total, b, a, types=[words, numbers])

    def on_x86(a: Value, b: Value, total: Value) -> Value:
        full = f"{_VNNI[target.dot]}.{target.vector_bits}"
        return code.intrinsic(full, total, code.bitcast(a, numbers), code.bitcast(b, numbers), types=[])

    return on_arm if target.dot == "dotprod" else on_x86


def _by_pairs(code: Code, kind: str, a: Value, b: Value, total: Value) -> Value:
    """Without an instruction for it: bytes 0 and 2 of the words, and bytes 1 and 3, as 16-bit integers whose products are added in pairs."""
    signs = {"s8": (True, True), "u8": (False, False), "us8": (False, True)}[kind]
    (a_even, a_odd), (b_even, b_odd) = (_halves(code, x, signed) for x, signed in zip((a, b), signs, strict=True))
    return code.add(code.add(total, _pairs(code, a_even, b_even)), _pairs(code, a_odd, b_odd))


def _halves(code: Code, words: Value, signed: bool) -> tuple[Value, Value]:
    """The even and the odd bytes of words as 16-bit integers."""
    pairs = code.bitcast(words, vector(I16, 2 * lanes_of(words.type)))
    eight = constant(pairs.type, 8)
    down = code.ashr if signed else code.lshr
    return down(code.shl(pairs, eight), eight), down(pairs, eight)


def _pairs(code: Code, a: Value, b: Value) -> Value:
    """The sums of neighbouring products: LLVM makes one pmaddwd of it on x86."""
    lanes, wide = lanes_of(a.type) // 2, vector(I32, lanes_of(a.type))
    product = code.mul(code.sext(a, wide), code.sext(b, wide))
    sides = []
    for side in (0, 1):
        mask = ir.Constant(ir.VectorType(I32, lanes), [ir.Constant(I32, 2 * lane + side) for lane in range(lanes)])
        sides.append(code.shuffle_vector(product, ir.Constant(product.type, ir.Undefined), mask))
    first, second = sides
    if lanes == 1:
        first, second = code.lane(first, 0), code.lane(second, 0)
    return code.add(first, second)
