"""Conversions between float32 and the 16-bit floats, which are words of 16 bits in memory and in vectors of storage.

float16 is converted by an instruction where the CPU has one. Elsewhere LLVM would call a function of the compiler's library for each
element, so the conversion is written as integer arithmetic, which becomes vector code. Both have the same bits: round to nearest
even, subnormal numbers included, and every nan is quiet and keeps its upper bits.
"""

from __future__ import annotations

from .ir_builder import F16, F32, I16, I32, Code, Value, constant, like
from .target import current_target

_REBIAS = (127 - 15) << 23  # the difference of the exponents' biases, in the place of a float32's exponent
_SMALLEST_NORMAL = 0x38800000  # 2^-14 as a float32: below, a float16 is subnormal
_BEYOND = 0x47800000  # 2^16 as a float32: from here on, a float16 is infinite
_MAGIC = 0x3F000000  # 0.5: its last bit is 2^-24, which is the last bit of a subnormal float16


def from_float16(code: Code, stored: Value) -> Value:
    """float16 as float32, which is exact."""
    if current_target().half:
        return code.fpext(code.bitcast(stored, like(stored.type, F16)), like(stored.type, F32))
    bits = code.zext(stored, like(stored.type, I32))
    type, single = bits.type, like(stored.type, F32)
    size = code.and_(bits, constant(type, 0x7FFF))
    sign = code.shl(code.and_(bits, constant(type, 0x8000)), constant(type, 16))
    normal = code.add(code.shl(size, constant(type, 13)), constant(type, _REBIAS))
    special = code.add(normal, constant(type, _REBIAS))
    special = code.select(_is_greater(code, size, 0x7C00), code.or_(special, constant(type, 0x400000)), special)
    tiny = code.fsub(code.bitcast(code.add(size, constant(type, _MAGIC)), single), constant(single, 0.5))
    magnitude = code.select(_is_less(code, size, 0x400), code.bitcast(tiny, type), normal)
    magnitude = code.select(_is_less(code, size, 0x7C00), magnitude, special)
    return code.bitcast(code.or_(magnitude, sign), single)


def to_float16(code: Code, value: Value) -> Value:
    """float32 rounded to float16."""
    if current_target().half:
        return code.bitcast(code.fptrunc(value, like(value.type, F16)), like(value.type, I16))
    type, single = like(value.type, I32), value.type
    bits = code.bitcast(value, type)
    size = code.and_(bits, constant(type, 0x7FFFFFFF))
    sign = code.and_(code.lshr(bits, constant(type, 16)), constant(type, 0x8000))
    odd = code.and_(code.lshr(size, constant(type, 13)), constant(type, 1))
    normal = code.lshr(code.add(code.add(size, odd), constant(type, 0xFFF - _REBIAS)), constant(type, 13))
    tiny = code.fadd(code.bitcast(size, single), constant(single, 0.5))
    tiny = code.sub(code.bitcast(tiny, type), constant(type, _MAGIC))
    nan = code.and_(code.lshr(size, constant(type, 13)), constant(type, 0x3FF))
    special = code.select(
        _is_greater(code, size, 0x7F800000), code.or_(nan, constant(type, 0x7E00)), constant(type, 0x7C00)
    )
    magnitude = code.select(_is_less(code, size, _SMALLEST_NORMAL), tiny, normal)
    magnitude = code.select(_is_less(code, size, _BEYOND), magnitude, special)
    return code.trunc(code.or_(magnitude, sign), like(value.type, I16))


def from_bfloat16(code: Code, stored: Value) -> Value:
    """bfloat16 as float32, of which it is the upper half."""
    wide = code.zext(stored, like(stored.type, I32))
    return code.bitcast(code.shl(wide, constant(wide.type, 16)), like(stored.type, F32))


def to_bfloat16(code: Code, value: Value) -> Value:
    """The upper half of a float32, rounded to nearest even; nan remains nan."""
    bits = code.bitcast(value, like(value.type, I32))
    odd = code.and_(code.lshr(bits, constant(bits.type, 16)), constant(bits.type, 1))
    rounded = code.lshr(code.add(bits, code.add(odd, constant(bits.type, 0x7FFF))), constant(bits.type, 16))
    quiet = code.or_(code.lshr(bits, constant(bits.type, 16)), constant(bits.type, 0x40))
    chosen = code.select(code.fcmp_unordered("uno", value, value), quiet, rounded)
    return code.trunc(chosen, like(value.type, I16))


def _is_less(code: Code, bits: Value, limit: int) -> Value:
    return code.icmp_signed("<", bits, constant(bits.type, limit))


def _is_greater(code: Code, bits: Value, limit: int) -> Value:
    return code.icmp_signed(">", bits, constant(bits.type, limit))
