"""The lowering rules of elementwise ops to LLVM IR: one row an op, for scalars and vectors alike.

In registers a bool is an i1 and a 16-bit float is a float32, rounded after every op that can leave its range of numbers; in
memory a bool is a byte. No op is contracted or reordered: a sum of a product is rounded twice, as the reference does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from ...dtypes import DType, bfloat16, bool_, converted, float16, float64, int64
from ...graph.node import Node
from . import half_floats
from .ir_builder import F32, F64, I1, I16, I32, I64, Code, Value, constant, element_of, lanes_of, like
from .math import functions as maths

Flag = Callable[[Value, Value], None]  # (mask, value) -> None: reports a runtime error where the mask is set


def storage_type(dtype: DType) -> ir.Type:
    """The type of an element in memory."""
    if dtype.is_float:
        return {"float16": I16, "bfloat16": I16, "float32": F32, "float64": F64}[dtype.name]
    return ir.IntType(dtype.bits)


def register_type(dtype: DType) -> ir.Type:
    """The type of an element in registers."""
    if dtype is bool_:
        return I1
    return F32 if dtype.is_half else storage_type(dtype)


def from_storage(code: Code, value: Value, dtype: DType) -> Value:
    if dtype is bool_:
        return code.icmp_unsigned("!=", value, constant(value.type, 0))
    if dtype is float16:
        return half_floats.from_float16(code, value)
    if dtype is bfloat16:
        return half_floats.from_bfloat16(code, value)
    return value


def to_storage(code: Code, value: Value, dtype: DType) -> Value:
    if dtype is bool_:
        return code.zext(value, like(value.type, ir.IntType(8)))
    if dtype is float16:
        return half_floats.to_float16(code, value)
    if dtype is bfloat16:
        return half_floats.to_bfloat16(code, value)
    return value


def rounded(code: Code, value: Value, dtype: DType) -> Value:
    """The value rounded to what the dtype can represent."""
    return from_storage(code, to_storage(code, value, dtype), dtype) if dtype.is_half else value


def number(dtype: DType, value: Any, lanes: int = 1) -> Value:
    """A constant of a dtype; nan and infinities may be given as text."""
    type = register_type(dtype)
    if dtype.is_float:
        value = float(converted(np.asarray(float(value)), dtype))
        if type == F32:
            return _float32(value, lanes)
        return constant(ir.VectorType(type, lanes) if lanes > 1 else type, value)
    whole = int(value) & ((1 << (1 if dtype is bool_ else dtype.bits)) - 1)
    return constant(ir.VectorType(type, lanes) if lanes > 1 else type, whole)


def _float32(value: float, lanes: int) -> Value:
    return constant(ir.VectorType(F32, lanes) if lanes > 1 else F32, value)


def emit(code: Code, node: Node, args: list[Value], flag: Flag) -> Value:
    """The op of a node applied to the values of its inputs."""
    name = node.op.name
    if name in maths.NAMES and node.dtype.is_float:
        return rounded(code, maths.emit(code, name, *args), node.dtype)
    result = TABLE[name](LoweringContext(code, node, args, flag))
    return result if name in UNROUNDED else rounded(code, result, node.dtype)


class LoweringContext:
    """The arguments of a lowering rule: the builder, the node, and the values of its inputs."""

    def __init__(self, code: Code, node: Node, args: list[Value], flag: Flag) -> None:
        self.code, self.node, self.args, self.flag = code, node, args, flag
        self.x = args[0]
        self.y = args[1] if len(args) > 1 else args[0]
        self.dtype = node.inputs[0].dtype
        self.type = self.x.type

    @property
    def is_float(self) -> bool:
        return self.dtype.is_float

    @property
    def signed(self) -> bool:
        return self.dtype.kind == "int"

    def const(self, value: Any) -> Value:
        return constant(self.type, value)


def _neg(c: LoweringContext) -> Value:
    return c.code.fneg(c.x) if c.is_float else c.code.sub(c.const(0), c.x)


def _abs(c: LoweringContext) -> Value:
    if c.is_float:
        return c.code.intrinsic("fabs", c.x)
    if not c.signed:
        return c.x
    return c.code.select(c.code.icmp_signed("<", c.x, c.const(0)), c.code.sub(c.const(0), c.x), c.x)


def _sign(c: LoweringContext) -> Value:
    if c.is_float:
        positive = c.code.fcmp_ordered(">", c.x, c.const(0.0))
        negative = c.code.fcmp_ordered("<", c.x, c.const(0.0))
        zero = c.code.fcmp_ordered("==", c.x, c.const(0.0))
        rest = c.code.select(zero, c.const(0.0), c.x)  # nan
        return c.code.select(positive, c.const(1.0), c.code.select(negative, c.const(-1.0), rest))
    below = c.code.icmp_signed("<", c.x, c.const(0)) if c.signed else constant(like(c.type, I1), 0)
    zero = c.code.icmp_unsigned("==", c.x, c.const(0))
    return c.code.select(zero, c.const(0), c.code.select(below, c.const(-1), c.const(1)))


def _rounding(intrinsic: str) -> Callable[[LoweringContext], Value]:
    return lambda c: c.code.intrinsic(intrinsic, c.x) if c.is_float else c.x


def _arithmetic(floats: str, ints: str) -> Callable[[LoweringContext], Value]:
    def write(c: LoweringContext) -> Value:
        if c.dtype is bool_:  # numpy: + is or, * is and
            ways = {"add": c.code.or_, "mul": c.code.and_}
            return ways[ints](c.x, c.y)
        return getattr(c.code, floats if c.is_float else ints)(c.x, c.y)

    return write


def extreme(code: Code, x: Value, y: Value, dtype: DType, greater: bool) -> Value:
    """The greater (or less) of two; nan if either is nan."""
    if dtype.is_float:
        return code.intrinsic("maximum" if greater else "minimum", x, y)
    compare = code.icmp_signed if dtype.kind == "int" else code.icmp_unsigned
    return code.select(compare(">" if greater else "<", x, y), x, y)


def _compare(sign: str) -> Callable[[LoweringContext], Value]:
    def write(c: LoweringContext) -> Value:
        if c.is_float:
            return c.code.fcmp_ordered(sign, c.x, c.y)
        return (c.code.icmp_signed if c.signed else c.code.icmp_unsigned)(sign, c.x, c.y)

    return write


def _checked_divisor(c: LoweringContext) -> Value:
    zero = c.code.icmp_unsigned("==", c.y, c.const(0))
    c.flag(zero, c.y)
    return c.code.select(zero, c.const(1), c.y)


def _floor_divide(c: LoweringContext) -> Value:
    code = c.code
    if c.is_float:
        return _float_divmod(c)[0]
    by = _checked_divisor(c)
    if not c.signed:
        return code.udiv(c.x, by)
    minus_one = code.icmp_signed("==", by, c.const(-1))  # the least integer divided by -1 would trap
    safe = code.select(minus_one, c.const(1), by)
    quotient = code.sdiv(c.x, safe)
    rest = code.sub(c.x, code.mul(quotient, safe))
    differ = code.icmp_signed("<", code.xor(rest, safe), c.const(0))
    below = code.and_(code.icmp_signed("!=", rest, c.const(0)), differ)
    floor = code.sub(quotient, code.zext(below, c.type))
    return code.select(minus_one, code.sub(c.const(0), c.x), floor)


def _remainder(c: LoweringContext) -> Value:
    code = c.code
    if c.is_float:
        return _float_divmod(c)[1]
    by = _checked_divisor(c)
    if not c.signed:
        return code.urem(c.x, by)
    safe = code.select(code.icmp_signed("==", by, c.const(-1)), c.const(1), by)
    rest = code.srem(c.x, safe)
    differ = code.icmp_signed("<", code.xor(rest, safe), c.const(0))
    add = code.and_(code.icmp_signed("!=", rest, c.const(0)), differ)
    return code.select(add, code.add(rest, safe), rest)


def _float_divmod(c: LoweringContext) -> tuple[Value, Value]:
    """Floored quotient and remainder with the divisor's sign, as in NumPy; with infinities the plain quotient."""
    code, zero = c.code, c.const(0.0)
    mod = code.frem(c.x, c.y)
    nonzero = code.fcmp_unordered("!=", mod, zero)
    opposite = code.xor(code.fcmp_ordered("<", c.y, zero), code.fcmp_ordered("<", mod, zero))
    fix = code.and_(nonzero, opposite)
    quotient = code.fdiv(code.fsub(c.x, mod), c.y)
    quotient = code.select(fix, code.fsub(quotient, c.const(1.0)), quotient)
    floor = code.intrinsic("floor", quotient)
    near = code.fcmp_ordered(">", code.fsub(quotient, floor), c.const(0.5))
    floor = code.select(near, code.fadd(floor, c.const(1.0)), floor)
    signed_zero = code.intrinsic("copysign", zero, code.fdiv(c.x, c.y))
    floor = code.select(code.fcmp_ordered("==", quotient, zero), signed_zero, floor)
    by_zero = code.fcmp_ordered("==", c.y, zero)
    infinite = code.fcmp_ordered("==", code.intrinsic("fabs", c.x), c.const(math.inf))
    infinite = code.or_(infinite, code.fcmp_ordered("==", code.intrinsic("fabs", c.y), c.const(math.inf)))
    floor = code.select(code.or_(by_zero, infinite), code.fdiv(c.x, c.y), floor)
    rest = code.select(nonzero, code.select(fix, code.fadd(mod, c.y), mod), code.intrinsic("copysign", zero, c.y))
    return floor, rest


def _pow(c: LoweringContext) -> Value:
    """Integer powers by repeated squaring."""
    code = c.code
    if c.signed:
        negative = code.icmp_signed("<", c.y, c.const(0))
        c.flag(negative, c.y)

    def step(bit: Value, values: list[Value]) -> list[Value]:
        result, square = values
        amount = code.splat(code.trunc(bit, element_of(c.type)) if element_of(c.type) != I64 else bit, lanes_of(c.type))
        is_set = code.icmp_unsigned("!=", code.and_(code.lshr(c.y, amount), c.const(1)), c.const(0))
        return [code.select(is_set, code.mul(result, square), result), code.mul(square, square)]

    return code.loop_carrying(0, element_of(c.type).width, [c.const(1), c.x], step)[0]


def _copysign(c: LoweringContext) -> Value:
    return c.code.intrinsic("copysign", c.x, c.y)


def _nextafter(c: LoweringContext) -> Value:
    code, dtype = c.code, c.dtype
    bits_type = like(c.type, ir.IntType(dtype.bits))
    x = to_storage(code, c.x, dtype)
    bits = x if dtype.is_half else code.bitcast(x, bits_type)
    away = code.xor(code.fcmp_ordered("<", c.x, c.y), code.fcmp_ordered("<", c.x, c.const(0.0)))
    moved = code.select(away, code.add(bits, constant(bits_type, 1)), code.sub(bits, constant(bits_type, 1)))
    sign = constant(bits_type, 1 << (dtype.bits - 1))
    target = to_storage(code, c.y, dtype)
    target = target if dtype.is_half else code.bitcast(target, bits_type)
    least = code.or_(code.and_(target, sign), constant(bits_type, 1))
    moved = code.select(code.fcmp_ordered("==", c.x, c.const(0.0)), least, moved)
    result = moved if dtype.is_half else code.bitcast(moved, like(c.type, storage_type(dtype)))
    result = from_storage(code, result, dtype)
    result = code.select(code.fcmp_ordered("==", c.x, c.y), c.y, result)
    return code.select(code.fcmp_unordered("uno", c.x, c.y), code.fadd(c.x, c.y), result)


def _shift(left: bool) -> Callable[[LoweringContext], Value]:
    def write(c: LoweringContext) -> Value:
        code, width = c.code, element_of(c.type).width
        if c.signed:
            c.flag(code.icmp_signed("<", c.y, c.const(0)), c.y)
        far = code.icmp_unsigned(">=", c.y, c.const(width))
        by = code.select(far, c.const(width - 1 if not left and c.signed else 0), c.y)
        if not left and c.signed:
            return code.ashr(c.x, by)
        return code.select(far, c.const(0), code.shl(c.x, by) if left else code.lshr(c.x, by))

    return write


def _not(c: LoweringContext) -> Value:
    return c.code.xor(c.x, c.const(-1 if c.dtype is not bool_ else 1))


def _cast(c: LoweringContext) -> Value:
    return convert(c.code, c.x, c.dtype, c.node.param("dtype"))


def convert(code: Code, x: Value, source: DType, target: DType) -> Value:
    """The value as another dtype."""
    if source is target:
        return x
    type = like(x.type, register_type(target))
    if target is bool_:
        return (
            code.fcmp_unordered("!=", x, constant(x.type, 0.0))
            if source.is_float
            else code.icmp_unsigned("!=", x, constant(x.type, 0))
        )
    if source.is_float and target.is_float:
        if source is float64 and target.is_half:
            x = _rounded_to_odd(code, x)
        elif x.type != type:
            x = code.fpext(x, type) if element_of(type) == F64 else code.fptrunc(x, type)
        return rounded(code, x, target)
    if source.is_float:
        signed = "s" if target.kind == "int" else "u"
        return code.intrinsic(f"fpto{signed}i.sat", x, types=[type, x.type], result=type)
    if target.is_float:
        made = code.sitofp(x, type) if source.kind == "int" else code.uitofp(x, type)
        return rounded(code, made, target)
    return _resized(code, x, source, type)


_MAGIC = 1.5 * 2.0**23  # float32 numbers of this size are whole: adding it rounds, and the low bits are the integer


def _round_8_bits(c: LoweringContext) -> Value:
    """Saturated and rounded to even. Units that convert floats to integers are few; nan has low bits of 0."""
    signed = c.node.param("dtype").kind == "int"
    low, high = (-128.0, 127.0) if signed else (0.0, 255.0)
    inside = c.code.intrinsic("minimum", c.code.intrinsic("maximum", c.x, c.const(low)), c.const(high))
    bits = c.code.bitcast(c.code.fadd(inside, c.const(_MAGIC)), like(c.type, I32))
    return c.code.trunc(bits, like(c.type, ir.IntType(8)))


def _rounded_to_odd(code: Code, x: Value) -> Value:
    """float64 to float32 with round-to-odd, so that the following conversion to 16 bits does not round twice."""
    near = code.fptrunc(x, like(x.type, F32))
    back, bits = code.fpext(near, x.type), code.bitcast(near, like(x.type, I32))
    inexact = code.fcmp_ordered("!=", back, x)
    beyond = code.fcmp_ordered(">", code.intrinsic("fabs", back), code.intrinsic("fabs", x))
    bits = code.sub(bits, code.zext(beyond, bits.type))
    return code.bitcast(code.or_(bits, code.zext(inexact, bits.type)), near.type)


def _resized(code: Code, x: Value, source: DType, type: ir.Type) -> Value:
    before, after = element_of(x.type).width, element_of(type).width
    if before == after:
        return x
    if before > after:
        return code.trunc(x, type)
    return code.sext(x, type) if source.kind == "int" else code.zext(x, type)


def _bitcast(c: LoweringContext) -> Value:
    source, target = c.dtype, c.node.param("dtype")
    stored = to_storage(c.code, c.x, source)
    type = like(c.type, storage_type(target))
    return from_storage(c.code, stored if stored.type == type else c.code.bitcast(stored, type), target)


def _in_range(c: LoweringContext) -> Value:
    code, size = c.code, c.node.param("size")
    wide = convert(code, c.x, c.dtype, int64)
    place = code.select(
        code.icmp_signed("<", wide, constant(wide.type, 0)), code.add(wide, constant(wide.type, size)), wide
    )
    bad = code.icmp_unsigned(">=", place, constant(place.type, size))
    c.flag(bad, wide)
    return code.trunc(code.select(bad, constant(place.type, 0), place), like(c.type, I32))


def _bits(name: str) -> Callable[[LoweringContext], Value]:
    return lambda c: getattr(c.code, name)(c.x, c.y)


TABLE: dict[str, Callable[[LoweringContext], Value]] = {
    "neg": _neg,
    "abs": _abs,
    "sign": _sign,
    "floor": _rounding("floor"),
    "ceil": _rounding("ceil"),
    "trunc": _rounding("trunc"),
    "round": _rounding("roundeven"),
    "sqrt": lambda c: c.code.intrinsic("sqrt", c.x),
    "add": _arithmetic("fadd", "add"),
    "sub": _arithmetic("fsub", "sub"),
    "mul": _arithmetic("fmul", "mul"),
    "div": lambda c: c.code.fdiv(c.x, c.y),
    "floor_divide": _floor_divide,
    "remainder": _remainder,
    "pow": _pow,
    "maximum": lambda c: extreme(c.code, c.x, c.y, c.dtype, True),
    "minimum": lambda c: extreme(c.code, c.x, c.y, c.dtype, False),
    "copysign": _copysign,
    "nextafter": _nextafter,
    "and_": _bits("and_"),
    "or_": _bits("or_"),
    "xor": _bits("xor"),
    "not_": _not,
    "shl": _shift(True),
    "shr": _shift(False),
    "eq": _compare("=="),
    "lt": _compare("<"),
    "le": _compare("<="),
    "where": lambda c: c.code.select(c.args[0], c.args[1], c.args[2]),
    "cast": _cast,
    "round_8_bits": _round_8_bits,
    "bitcast": _bitcast,
    "stop_gradient": lambda c: c.x,
    "in_range": _in_range,
}
# Ops whose results are always representable in 16 bits, given such inputs; the results of all others are rounded.
UNROUNDED = frozenset(TABLE) - {"add", "sub", "mul", "div", "floor_divide", "remainder", "sqrt"}
