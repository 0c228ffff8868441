"""The operations of reductions and windows on LLVM values, and the random bits of Philox."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from ...dtypes import DType
from ...graph.node import Op
from ...records import dataclass
from . import scalars as scalar
from .ir_builder import I32, I64, Code, Value, constant, lanes_of, vector

Identity = Literal["zero", "one", "least", "greatest"]
Combine = Callable[[Code, Value, Value, DType], Value]


@dataclass(frozen=True)
class Combiner:
    """How a reduction combines two values, and the value of an empty reduction."""

    combine: Combine
    identity: Identity
    is_sum: bool = False
    returns_position: bool = False  # argmax: the result is where the value was found
    prefers_greater: bool = True  # of those that return a position

    def identity_value(self, dtype: DType, lanes: int) -> Value:
        """The identity as a vector of `lanes` elements."""
        if self.identity in ("zero", "one"):
            return scalar.number(dtype, int(self.identity == "one"), lanes)
        greatest = self.identity == "greatest"
        if dtype.is_float:
            return scalar.number(dtype, "inf" if greatest else "-inf", lanes)
        if dtype.kind == "int":
            return scalar.number(dtype, (1 << (dtype.bits - 1)) - 1 if greatest else -(1 << (dtype.bits - 1)), lanes)
        return scalar.number(dtype, (1 << dtype.bits) - 1 if greatest else 0, lanes)


def add(code: Code, a: Value, b: Value, dtype: DType) -> Value:
    return code.fadd(a, b) if dtype.is_float else code.add(a, b)


def _multiply(code: Code, a: Value, b: Value, dtype: DType) -> Value:
    return code.fmul(a, b) if dtype.is_float else code.mul(a, b)


def _maximum(code: Code, a: Value, b: Value, dtype: DType) -> Value:
    return scalar.extreme(code, a, b, dtype, True)


def _minimum(code: Code, a: Value, b: Value, dtype: DType) -> Value:
    return scalar.extreme(code, a, b, dtype, False)


SUM = Combiner(add, "zero", is_sum=True)
MAXIMUM = Combiner(_maximum, "least")
MINIMUM = Combiner(_minimum, "greatest", prefers_greater=False)
ARGMAX, ARGMIN = (replace(c, returns_position=True) for c in (MAXIMUM, MINIMUM))
# Every other op that is lowered to a reduction is a sum: products and convolutions are sums of products.
_COMBINERS = {
    "prod": Combiner(_multiply, "one"),
    "max": MAXIMUM,
    "argmax": ARGMAX,
    "window_max": MAXIMUM,
    "window_argmax": ARGMAX,
    "window_tap": ARGMAX,
    "min": MINIMUM,
    "argmin": ARGMIN,
}


def combiner_of(op: Op) -> Combiner:
    """The combiner of an op that is lowered to a reduction."""
    return _COMBINERS.get(op.name, SUM)


def product(code: Code, a: Value, b: Value, dtype: DType) -> Value:
    if lanes_of(a.type) != lanes_of(b.type):
        lanes = max(lanes_of(a.type), lanes_of(b.type))
        a, b = (v if lanes_of(v.type) == lanes else code.splat(v, lanes) for v in (a, b))
    return code.fmul(a, b) if dtype.is_float else code.mul(a, b)


def better(code: Code, a: tuple[Value, ...], b: tuple[Value, ...], dtype: DType, greater: bool) -> tuple[Value, ...]:
    """Select one of two (value, position) pairs: the greater (or lesser) value, nan before all others, the first of equals.

    The position -1 marks an empty pair, which is never selected over another.
    """
    (x, i), (y, j) = a, b
    sign = ">" if greater else "<"
    if dtype.is_float:
        nan_x, nan_y = code.fcmp_unordered("uno", x, x), code.fcmp_unordered("uno", y, y)
        wins = code.or_(code.and_(nan_y, code.not_(nan_x)), code.and_(code.fcmp_ordered(sign, y, x), code.not_(nan_x)))
        equal = code.or_(code.fcmp_ordered("==", x, y), code.and_(nan_x, nan_y))
    else:
        compare = code.icmp_signed if dtype.kind == "int" else code.icmp_unsigned
        wins, equal = compare(sign, y, x), compare("==", x, y)
    earlier = code.icmp_unsigned("<", j, i)  # unsigned: -1 is the greatest
    empty = constant(j.type, -1)
    take = code.or_(wins, code.and_(equal, earlier))
    take = code.or_(take, code.icmp_signed("==", i, empty))
    take = code.and_(take, code.icmp_signed("!=", j, empty))
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
