"""How values are combined: the words of reductions and windows, and random bits."""

from __future__ import annotations

from ...dtypes import DType
from . import scalars as scalar
from .ir_builder import I32, I64, Code, Value, constant, lanes_of, vector

NOT_SUMS = ("prod", "max", "min", "window_max")  # reductions of values; all others add them up


def product(code: Code, a: Value, b: Value, dtype: DType) -> Value:
    if lanes_of(a.type) != lanes_of(b.type):
        lanes = max(lanes_of(a.type), lanes_of(b.type))
        a, b = (v if lanes_of(v.type) == lanes else code.splat(v, lanes) for v in (a, b))
    return code.fmul(a, b) if dtype.is_float else code.mul(a, b)


def identity(kind: str, dtype: DType, lanes: int) -> Value:
    """What a reduction of nothing gives."""
    if kind == "prod":
        return scalar.number(dtype, 1, lanes)
    if kind not in ("max", "min", "argmax", "argmin", "window_max", "window_argmax", "window_tap"):
        return scalar.number(dtype, 0, lanes)
    greatest = kind in ("min", "argmin")
    if dtype.is_float:
        return scalar.number(dtype, "inf" if greatest else "-inf", lanes)
    if dtype.kind == "int":
        return scalar.number(dtype, (1 << (dtype.bits - 1)) - 1 if greatest else -(1 << (dtype.bits - 1)), lanes)
    return scalar.number(dtype, (1 << dtype.bits) - 1 if greatest else 0, lanes)


def combined(code: Code, kind: str, a: Value, b: Value, dtype: DType) -> Value:
    if kind == "prod":
        return code.fmul(a, b) if dtype.is_float else code.mul(a, b)
    if kind in ("max", "window_max"):
        return scalar.extreme(code, a, b, dtype, True)
    if kind == "min":
        return scalar.extreme(code, a, b, dtype, False)
    return code.fadd(a, b) if dtype.is_float else code.add(a, b)


def better(code: Code, a: tuple[Value, ...], b: tuple[Value, ...], dtype: DType, greater: bool) -> tuple[Value, ...]:
    """Of two (value, position) the one to keep: the greater (or less), nan before all, the first of equals; -1 is nobody."""
    (x, i), (y, j) = a, b
    sign = ">" if greater else "<"
    if dtype.is_float:
        nan_x, nan_y = code.fcmp_unordered("uno", x, x), code.fcmp_unordered("uno", y, y)
        wins = code.or_(code.and_(nan_y, code.not_(nan_x)), code.and_(code.fcmp_ordered(sign, y, x), code.not_(nan_x)))
        equal = code.or_(code.fcmp_ordered("==", x, y), code.and_(nan_x, nan_y))
    else:
        compare = code.icmp_signed if dtype.kind == "int" else code.icmp_unsigned
        wins, equal = compare(sign, y, x), compare("==", x, y)
    earlier = code.icmp_unsigned("<", j, i)  # -1 counts as the greatest
    nobody = constant(j.type, -1)
    take = code.or_(wins, code.and_(equal, earlier))
    take = code.or_(take, code.icmp_signed("==", i, nobody))
    take = code.and_(take, code.icmp_signed("!=", j, nobody))
    return code.select(take, y, x), code.select(take, j, i)


def philox(code: Code, position: Value, key: Value, offset: Value) -> Value:
    """Random bits: word i % 4 of block offset + i // 4 (Philox 4x32-10)."""
    lanes = lanes_of(position.type)
    wide, narrow = vector(I64, lanes), vector(I32, lanes)
    low = constant(wide, 0xFFFFFFFF)
    shift = constant(wide, 32)
    key, offset = (code.splat(v, lanes) if lanes > 1 else v for v in (key, offset))
    counter = code.add(code.lshr(position, constant(wide, 2)), offset)
    words = [code.and_(counter, low), code.lshr(counter, shift), constant(wide, 0), constant(wide, 0)]
    keys = [code.and_(key, low), code.lshr(key, shift)]
    for _ in range(10):
        left, right = code.mul(words[0], constant(wide, 0xD2511F53)), code.mul(words[2], constant(wide, 0xCD9E8D57))
        words = [
            code.xor(code.xor(code.lshr(right, shift), words[1]), keys[0]), code.and_(right, low),
            code.xor(code.xor(code.lshr(left, shift), words[3]), keys[1]), code.and_(left, low),
        ]  # fmt: skip
        keys = [
            code.and_(code.add(keys[0], constant(wide, 0x9E3779B9)), low),
            code.and_(code.add(keys[1], constant(wide, 0xBB67AE85)), low),
        ]
    which = code.and_(position, constant(wide, 3))
    result = words[0]
    for k in (1, 2, 3):
        result = code.select(code.icmp_unsigned("==", which, constant(wide, k)), words[k], result)
    return code.trunc(result, narrow)
