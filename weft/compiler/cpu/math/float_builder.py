"""A builder of floating-point formulas in LLVM IR, which functions.py uses.

A `Num` is a float value, scalar or vector, with its builder: `a * b + c` writes a product and a sum,
each rounded; `fma(a, b, c)` rounds once. A Python number stands for a constant of the type at hand. Comparisons give
masks: plain values of LLVM, for `choose`, joined by `both` and `either`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from functools import reduce

from llvmlite import ir

from ....records import dataclass
from ..ir_builder import F32, F64, I32, I64, Code, Value, constant, element_of, lanes_of, like

Mask = Value  # an i1, or a vector of them


@dataclass(frozen=True)
class Kind:
    """A floating-point type: where its bits are, and the arguments beyond which functions reach their limits."""

    element: ir.Type
    integer: ir.Type
    bits: int
    mantissa: int  # how many bits of it are stored
    bias: int  # of the exponent
    exp_range: tuple[float, float]  # beyond these exp is 0, sinh infinite
    tanh_one: float  # tanh is 1 from here
    erf_far: float  # here the second polynomial of erf begins
    erf_one: float  # erf is 1 from here
    trig_limit: float  # up to here a remainder by three parts of pi is exact enough

    @property
    def magic(self) -> float:
        """Added to a number it rounds it to an integer, to be found in the lowest bits of the sum."""
        return 1.5 * 2.0**self.mantissa

    def pattern(self, number: float) -> int:
        """The bits of a number as an integer."""
        return int.from_bytes(struct.pack("<f" if self.bits == 32 else "<d", number), "little")

    def parts(self, number: Decimal, count: int) -> list[float]:
        """Numbers of this type that add up to a longer one."""
        found, exact = [], Context(prec=150)
        for _ in range(count):
            found.append(self.rounded(float(number)))
            number = exact.subtract(number, Decimal(found[-1]))
        return found

    def rounded(self, number: float) -> float:
        return float(struct.unpack("<f", struct.pack("<f", number))[0]) if self.bits == 32 else number


KINDS = {
    str(F32): Kind(F32, I32, 32, 23, 127, (-104.5, 89.5), 10.0, 0.6, 4.0, 1e5),
    str(F64): Kind(F64, I64, 64, 52, 1023, (-746.0, 710.5), 20.0, 1.0, 6.0, 2.0**30),
}


@dataclass(frozen=True, eq=False)
class Num:
    """A float value, scalar or vector, with its builder."""

    code: Code
    value: Value

    @property
    def type(self) -> ir.Type:
        return self.value.type

    @property
    def kind(self) -> Kind:
        return KINDS[str(element_of(self.type))]

    def lift(self, other: Num | float) -> Value:
        """The value of the other, or a constant of this one's type."""
        return other.value if isinstance(other, Num) else constant(self.type, float(other))

    def with_value(self, value: Value) -> Num:
        return Num(self.code, value)

    def number(self, constant: float) -> Num:
        """A constant of this one's type."""
        return self.with_value(self.lift(constant))

    def __add__(self, other: Num | float) -> Num:
        return self.with_value(self.code.fadd(self.value, self.lift(other)))

    def __sub__(self, other: Num | float) -> Num:
        return self.with_value(self.code.fsub(self.value, self.lift(other)))

    def __rsub__(self, other: float) -> Num:
        return self.with_value(self.code.fsub(self.lift(other), self.value))

    def __mul__(self, other: Num | float) -> Num:
        return self.with_value(self.code.fmul(self.value, self.lift(other)))

    def __truediv__(self, other: Num | float) -> Num:
        return self.with_value(self.code.fdiv(self.value, self.lift(other)))

    def __rtruediv__(self, other: float) -> Num:
        return self.with_value(self.code.fdiv(self.lift(other), self.value))

    def __neg__(self) -> Num:
        return self.with_value(self.code.fneg(self.value))

    def __lt__(self, other: Num | float) -> Mask:
        return self.code.fcmp_ordered("<", self.value, self.lift(other))

    def __gt__(self, other: Num | float) -> Mask:
        return self.code.fcmp_ordered(">", self.value, self.lift(other))

    def equals(self, other: Num | float) -> Mask:
        return self.code.fcmp_ordered("==", self.value, self.lift(other))

    def differs(self, other: Num | float) -> Mask:
        """Not equal; so is nan from everything."""
        return self.code.fcmp_unordered("!=", self.value, self.lift(other))

    # --- bits -------------------------------------------------------------------------------------------------------

    def bits(self) -> Value:
        return self.code.bitcast(self.value, like(self.type, self.kind.integer))

    def from_bits(self, bits: Value) -> Num:
        return self.with_value(self.code.bitcast(bits, like(bits.type, self.kind.element)))

    def integer(self, value: int) -> Value:
        """An integer constant as wide as this."""
        return constant(like(self.type, self.kind.integer), value)

    def lowest_bits(self, count: int) -> Num:
        """The lowest bits, as many as given, shifted to the top; the others are dropped."""
        return self.from_bits(self.code.shl(self.bits(), self.integer(self.kind.bits - count)))

    def flip_sign(self, signs: Num) -> Num:
        """This, negated where `signs` has its sign bit set. It must have no other bits."""
        return self.from_bits(self.code.xor(self.bits(), signs.bits()))

    def negative(self) -> Mask:
        """Whether the sign bit is set, of -0.0 too."""
        return self.code.icmp_signed("<", self.bits(), self.integer(0))


def _same(name: str) -> Callable[[Num], Num]:
    return lambda x: x.with_value(x.code.intrinsic(name, x.value))


absolute, root, truncate = _same("fabs"), _same("sqrt"), _same("trunc")


def fma(a: Num, b: Num | float, c: Num | float) -> Num:
    """a * b + c, rounded once."""
    return a.with_value(a.code.exact_fma(a.value, a.lift(b), a.lift(c)))


def clamp(x: Num, low: float | None, high: float | None) -> Num:
    """x between two bounds; nan stays nan."""
    value = x.value if low is None else x.code.intrinsic("maximum", x.value, x.lift(low))
    return x.with_value(value if high is None else x.code.intrinsic("minimum", value, x.lift(high)))


def choose(mask: Mask, a: Num | float, b: Num | float) -> Num:
    """a where the mask is set, b elsewhere."""
    known = a if isinstance(a, Num) else b
    assert isinstance(known, Num)
    return known.with_value(known.code.select(mask, known.lift(a), known.lift(b)))


def both(x: Num, *masks: Mask) -> Mask:
    return reduce(x.code.and_, masks)


def either(x: Num, *masks: Mask) -> Mask:
    return reduce(x.code.or_, masks)


def copy_sign(x: Num, sign: Num) -> Num:
    return x.with_value(x.code.intrinsic("copysign", x.value, sign.value))


def polynomial(x: Num, coefficients: Sequence[float]) -> Num:
    """The sum of c[i] * x^i. Pairs first, then Horner in x²: half the chain of Horner in x, with one more product."""
    terms = [fma(x, high, low) for low, high in zip(coefficients[::2], coefficients[1::2], strict=False)]
    if len(coefficients) % 2:
        terms.append(x.number(coefficients[-1]))
    result, square = terms.pop(), x * x
    while terms:
        result = fma(result, square, terms.pop())
    return result


def rarely(x: Num, mask: Mask, otherwise: Callable[[], Num], usual: Num) -> Num:
    """`usual`, or `otherwise()` where the mask is set; its code is skipped if the mask is set nowhere."""
    code, word = x.code, ir.IntType(lanes_of(x.type))
    anywhere = code.icmp_unsigned("!=", code.bitcast(mask, word), ir.Constant(word, 0))
    before = code.block
    with code.if_then(anywhere, likely=False):
        rare = choose(mask, otherwise(), usual)
        after = code.block
    result = code.phi(x.type)
    result.add_incoming(usual.value, before)
    result.add_incoming(rare.value, after)
    return x.with_value(result)


def libm(name: str, x: Num) -> Num:
    """The C library's function, for each lane."""
    code, kind = x.code, x.kind
    symbol = name + "f" if kind.bits == 32 else name
    function = code.module.globals.get(symbol)
    if function is None:
        function = ir.Function(code.module, ir.FunctionType(kind.element, [kind.element]), symbol)
        function.attributes.add("nounwind")
        function.attributes.add("readnone")
    lanes = range(lanes_of(x.type))
    return x.with_value(code.gather_lanes([code.call(function, [code.lane(x.value, lane)]) for lane in lanes]))
