"""Elementary functions as vector polynomials: exp, log, tanh, sin, pow and similar ones, in float32 and float64.

LLVM has no vector code of its own for these, and a call of libm for each lane costs ten times as much. `emit` writes the
formula of a vector in place, so that its constants stay in registers from iteration to iteration; where a block is long already, and for
functions with branches, it writes a call of a private function of the module, one for each name and type, made on first use. Each function is
written once for both types. Branches skip rare cases: sin, cos and tan of huge numbers, which call libm lane by lane, and powers
of zero, negative and non-finite numbers. Every lane goes through the same IEEE operations whatever the number of
lanes, so its bits depend on its own number alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context, Decimal

from ...thresholds import thresholds
from ..ir_builder import Code, Value, element_of, lanes_of
from . import coefficients as tables
from .float_builder import (
    Num,
    absolute,
    both,
    choose,
    clamp,
    copy_sign,
    either,
    fma,
    polynomial,
    rarely,
    root,
    truncate,
)
from .trigonometry import acos, asin, atan, atan2, cos, sin, tan

# Decimals long enough for three float64s. Arithmetic on them rounds to 28 digits: enough for one float64, not for more.
LN2 = Decimal("0.69314718055994530941723212145817656807550013436025525412068000949")
LOG2_E = Decimal("1.4426950408889634073599246810018921374266459541529859341354494069")
LOG10_2 = Decimal("0.30102999566398119521373889472449302676818988146210854131042746113")
POW_FIRST = Context(prec=60).multiply(LOG2_E, Decimal(2))
POW_SECOND = Context(prec=60).divide(POW_FIRST, Decimal(3))
INFINITY, NAN = math.inf, math.nan


def emit(code: Code, name: str, *values: Value) -> Value:
    """The function of that name of float32 or float64 values: scalars or vectors, all of one type.

    Use vectors of several registers where possible: each function is a long dependency chain, and independent chains hide its
    latency.

    Example:
        >>> from weft.compiler.cpu.ir_builder import F32, Code, new_module, vector
        >>> four = vector(F32, 4)
        >>> code = Code.begin(new_module("example"), "example", [four], four)
        >>> function = code.done(emit(code, "sin", emit(code, "exp", code.arguments[0])))
        >>> [f.name for f in function.module.functions if f.blocks]
        ['example', 'weft.sin.v4f32']
    """
    type = values[0].type
    if name not in _BRANCHING and lanes_of(type) > 1 and len(code.block.instructions) < thresholds.inlined_block:
        return FUNCTIONS[name](*(Num(code, value) for value in values)).value
    element = {"float": "f32", "double": "f64"}[str(element_of(type))]
    symbol = f"weft.{name}." + (element if lanes_of(type) == 1 else f"v{lanes_of(type)}{element}")
    function = code.module.globals.get(symbol)
    if function is None:
        body = Code.begin(code.module, symbol, [type] * len(values), type, private=True)
        body.function.attributes.add("readnone")
        result = FUNCTIONS[name](*(Num(body, argument) for argument in body.arguments))
        function = body.done(result.value)
    return code.call(function, values)


# --- exponentials -----------------------------------------------------------------------------------------------------


def _exp_parts(x: Num, shift: int) -> tuple[Num, Num]:
    """(s, p) with exp(x) = 2^-shift * s * (1 + p), s a power of two: for x whose s is a normal number."""
    rounded, r = _reduced(x, x.kind.bias + shift)
    return _power(rounded), _expm1_near(r)


def _exp_split(x: Num) -> tuple[Num, Num, Num]:
    """(s, t, p) with exp(x) = s * (1 + p) * t, s and t powers of two. The last product overflows and underflows when
    the whole does, though 2^(n / 2) and 2^(n - n / 2) are always normal."""
    rounded, r = _reduced(x, 2 * x.kind.bias)
    return *_two_powers(rounded), _expm1_near(r)


def _reduced(x: Num, offset: int, parts: int = 2) -> tuple[Num, Num]:
    """n and x - n ln 2, with n = x / ln 2 rounded and ln 2 in so many parts. n is found in the lowest bits of what is
    returned, more by the offset."""
    total = x.kind.magic + offset
    rounded = fma(x, float(LOG2_E), total)
    n = rounded - total
    for part in x.kind.parts(LN2, parts):
        x = fma(n, -part, x)
    return rounded, x


def _reduced2(x: Num, offset: int, low: Num | None = None) -> tuple[Num, Num]:
    """n in the same way and (x + low - n) ln 2, with n = x rounded: for powers of two."""
    total = x.kind.magic + offset
    rounded = x + total
    r = x - (rounded - total)
    return rounded, (r if low is None else r + low) * float(LN2)


def _exp_tail(r: Num) -> Num:
    """(exp(r) - 1 - r) / r² for |r| <= ln 2 / 2."""
    return polynomial(r, tables.EXP[r.kind.bits])


def _expm1_near(r: Num) -> Num:
    return fma(r * r, _exp_tail(r), r)


def _power(rounded: Num) -> Num:
    """2^n, with n + bias in the lowest bits of a number."""
    return rounded.lowest_bits(rounded.kind.bits - rounded.kind.mantissa)


def _two_powers(rounded: Num) -> tuple[Num, Num]:
    """Two powers of two whose product is 2^n, with n + 2 * bias in the lowest bits of a number."""
    bits = rounded.bits()
    half = rounded.code.lshr(bits, rounded.integer(1))
    return _power(rounded.from_bits(half)), _power(rounded.from_bits(rounded.code.sub(bits, half)))


def _inverse_power(s: Num) -> Num:
    """1 / s for a power of two."""
    return s.from_bits(s.code.sub(s.integer(2 * s.kind.pattern(1.0)), s.bits()))


def exp(x: Num) -> Num:
    low, high = x.kind.exp_range
    s, t, p = _exp_split(clamp(x, low, high))
    return (p + 1.0) * s * choose(x < low, 0.0, t)  # x86 CPUs take hundreds of cycles for a product that underflows


def expm1(x: Num) -> Num:
    s, t, p = _exp_split(clamp(x, -40.0, x.kind.exp_range[1]))
    return copy_sign(fma(s, p, s - _inverse_power(t)) * t, x)


def exp_not_positive(x: Num) -> Num:
    """exp(x) for x <= 0, or a little more: shorter than exp."""
    half, low = x.kind.bias // 2, x.kind.exp_range[0]
    s, p = _exp_parts(clamp(x, low, None), half)
    return (p + 1.0) * choose(x < low, 0.0, s) * 2.0**-half


def exp_without_subnormals(x: Num) -> Num:
    """The same, but 0 where the result would be subnormal: x86 CPUs take hundreds of cycles for each product that is."""
    low = math.ceil((1 - x.kind.bias) * math.log(2.0))
    s, p = _exp_parts(clamp(x, low, None), 0)
    return choose(x < low, 0.0, (p + 1.0) * s)


def sigmoid(x: Num) -> Num:
    """1 / (1 + e), and for x < 0 e / (1 + e) = e - e² / (1 + e), with e = exp(-|x|), which cannot overflow."""
    e = exp_not_positive(-absolute(x))
    inverse = 1.0 / (e + 1.0)
    return choose(x < 0.0, fma(-e, e * inverse, e), inverse)


def tanh(x: Num) -> Num:
    """h / (h + 1) with h = (exp(2 |x|) - 1) / 2, as h - h² / (h + 1) or 1 - 1 / (h + 1): fewer roundings count."""
    a = clamp(absolute(x), None, x.kind.tanh_one)
    rounded, r = _reduced(a + a, x.kind.bias - 1, parts=1)  # exact for n = 1; later the missing part does not count
    s = _power(rounded)
    h = fma(s * (r * r), _exp_tail(r), fma(s, r, s - 0.5))
    near = h < 1.0
    return copy_sign(choose(near, h, 1.0) - choose(near, h * h, 1.0) / (h + 1.0), x)


def sinh(x: Num) -> Num:
    """(e + e / (e + 1)) / 2 with e = exp(|x|) - 1, scaled by 1/4 to avoid early overflow."""
    s, p = _exp_parts(clamp(absolute(x), None, x.kind.exp_range[1]), -2)
    quarter = fma(s, p, s - 0.25)
    return copy_sign(fma(quarter, 2.0, quarter / (quarter + 0.25) * 0.5), x)


def cosh(x: Num) -> Num:
    """(e + 1 / e) / 2 with e = exp(|x|), scaled by 1/4 to avoid early overflow."""
    s, p = _exp_parts(clamp(absolute(x), None, x.kind.exp_range[1]), -2)
    quarter = fma(s, p, s)
    return fma(quarter, 2.0, 0.125 / quarter)


def erf(x: Num) -> Num:
    """A polynomial near zero, 1 - 2^(another one) far from it."""
    kind, a = x.kind, absolute(x)
    near = fma(polynomial(x * x, tables.ERF[kind.bits]), a, a)
    t = clamp(a, None, kind.erf_one)
    rounded, r = _reduced2(t * polynomial(t, tables.ERF_FAR[kind.bits]), kind.bias)
    s = _power(rounded)
    far = fma(-s, _expm1_near(r), 1.0 - s)
    return copy_sign(choose(a < kind.erf_far, near, far), x)


# --- logarithms -------------------------------------------------------------------------------------------------------


def _exponent(x: Num) -> tuple[Value, Num]:
    """For a normal x > 0: the bits of (x's exponent, x in [sqrt(1/2), sqrt(2)) by a power of two)."""
    code, kind = x.code, x.kind
    low = kind.pattern(math.sqrt(0.5))
    shifted = code.add(x.bits(), x.integer(kind.pattern(1.0) - low))
    fraction = code.and_(shifted, x.integer((1 << kind.mantissa) - 1))
    return shifted, x.from_bits(code.add(fraction, x.integer(low)))


def _exponent_number(x: Num, shifted: Value, bias: Num | float) -> Num:
    """The exponent as a number: its bits under those of 2^mantissa, from which 2^mantissa and the bias are taken."""
    base = 2.0**x.kind.mantissa
    exponent = x.code.lshr(shifted, x.integer(x.kind.mantissa))
    return x.from_bits(x.code.or_(exponent, x.integer(x.kind.pattern(base)))) - bias


def _split(x: Num) -> tuple[Num, Num]:
    """(k, f) with x = 2^k (1 + f), sqrt(1/2) <= 1 + f < sqrt(2), for x > 0, subnormal too."""
    kind = x.kind
    bias, tiny = 2.0**kind.mantissa + kind.bias, x < 2.0 ** (1 - kind.bias)
    shifted, m = _exponent(choose(tiny, x * 2.0**kind.mantissa, x))
    zero = x.number(bias)
    return _exponent_number(x, shifted, choose(tiny, zero + kind.mantissa, zero)), m - 1.0


def _log1p_near(f: Num) -> Num:
    """log(1 + f) for sqrt(1/2) <= 1 + f <= sqrt(2)."""
    return fma(f * f, polynomial(f, tables.LOG[f.kind.bits]), f)


def _log_ends(x: Num, result: Num) -> Num:
    """A logarithm of x, corrected for x = 0, x < 0, infinity and nan."""
    ends = choose(x.equals(0.0), x.number(-INFINITY), NAN)
    return choose(x.equals(INFINITY), x, choose(x > 0.0, result, ends))


def log(x: Num) -> Num:
    k, f = _split(x)
    return _log_ends(x, fma(k, float(LN2), _log1p_near(f)))


def log2(x: Num) -> Num:
    k, f = _split(x)
    return _log_ends(x, fma(_log1p_near(f), float(LOG2_E), k))


def log10(x: Num) -> Num:
    k, f = _split(x)
    high, low = x.kind.parts(LOG10_2, 2)
    return _log_ends(x, fma(k, high, fma(k, low, _log1p_near(f) * float(LOG10_2 * LOG2_E))))


def log1p(x: Num) -> Num:
    """As log(1 + x), but without the rounding error of 1 + x: f = x / 2^k + (1 / 2^k - 1), rounded once."""
    code, kind, u = x.code, x.kind, x + 1.0
    shifted, m = _exponent(u)
    k = _exponent_number(x, shifted, 2.0**kind.mantissa + kind.bias)
    power = x.from_bits(code.and_(shifted, x.integer(-1 << kind.mantissa)))
    scale = _inverse_power(power)
    f = choose(u > 2.0 ** (kind.mantissa + 2), m - 1.0, fma(x, scale, scale - 1.0))
    return copy_sign(_log_ends(u, fma(k, float(LN2), _log1p_near(f))), x)


def logaddexp(x: Num, y: Num) -> Num:
    """log(exp(x) + exp(y)): the larger operand plus the contribution of the other."""
    greater = choose(y > x, y, x)
    return greater + choose(x.equals(y), float(LN2), log1p(exp_not_positive(-absolute(x - y))))


def asinh(x: Num) -> Num:
    """log(a + sqrt(a² + 1)), a = |x|, written for log1p. Where a² + 1 is a² it is log(2 a)."""
    a = absolute(x)
    big, square = a > 2.0 ** (x.kind.mantissa + 2), a * a
    inside = choose(big, a, a + square / (root(square + 1.0) + 1.0))
    return copy_sign(log1p(inside) + choose(big, x.number(float(LN2)), 0.0), x)


def acosh(x: Num) -> Num:
    """log(x + sqrt(x² - 1)), written for log1p with t = x - 1. Where x² - 1 is x² it is log(2 x)."""
    big, t = x > 2.0 ** (x.kind.mantissa + 2), x - 1.0
    inside = choose(big, x, t + root(fma(t, t, t + t)))
    result = log1p(inside) + choose(big, x.number(float(LN2)), 0.0)
    return choose(x < 1.0, NAN, result)


def atanh(x: Num) -> Num:
    a = absolute(x)
    return copy_sign(log1p((a + a) / (1.0 - a)) * 0.5, x)


# --- powers -----------------------------------------------------------------------------------------------------------


def hypot(x: Num, y: Num) -> Num:
    """sqrt(x² + y²), scaled by a power of two where the squares would leave the range."""
    a, b, third = absolute(x), absolute(y), x.kind.bias // 3
    greatest = choose(b > a, b, a)
    huge, tiny = greatest > 2.0**third, greatest < 2.0**-third
    shrink = 2.0 ** -(2 * third)
    scale = choose(huge, shrink, choose(tiny, x.number(1 / shrink), 1.0))
    back = choose(huge, 1 / shrink, choose(tiny, x.number(shrink), 1.0))
    a, b = a * scale, b * scale
    endless = either(x, a.equals(INFINITY), b.equals(INFINITY))
    return choose(endless, INFINITY, root(fma(a, a, b * b)) * back)


def _log2_long(x: Num) -> tuple[Num, Num]:
    """log2(x) for x > 0 as a sum of two numbers, the second about as small as the last bit of the first.

    log2(m) = 2 / ln 2 * (s + s³ / 3 + s⁵ / 5 + ...) with s = (m - 1) / (m + 1). Its first term needs more digits than
    the type has, in float64 the second one too, for a power multiplies the error by up to 1000.
    """
    bits, (k, f) = x.kind.bits, _split(x)
    s, s_low = _quotient(f)
    square = s * s
    cube, tail = s * square, polynomial(square, tables.POW[bits])
    if bits == 32:
        s_low = fma(s_low, square, s_low)  # what s_low adds to the second term
    high, low = _long_product(s, s_low, POW_FIRST)
    if bits == 64:
        square_low = fma(s, s, -square) + (s + s) * s_low
        cube_low = fma(s_low, square, fma(s, square_low, fma(s, square, -cube)))
        second, second_low = _long_product(cube, cube_low, POW_SECOND)
        high, low_again = _fast_sum(high, second)
        low, tail = low + low_again + second_low, tail * square
    high, low_again = _fast_sum(k, high)
    return _fast_sum(high, fma(cube, tail, low) + low_again)


def _quotient(f: Num) -> tuple[Num, Num]:
    """f / (2 + f), and what is missing from it."""
    d = f + 2.0
    d_low = f - (d - 2.0)
    inverse = 1.0 / d
    s = f * inverse
    return s, fma(-s, d_low, fma(-s, d, f)) * inverse


def _long_product(x: Num, x_low: Num, factor: Decimal) -> tuple[Num, Num]:
    """x * factor, and what is missing from it."""
    c, c_low = x.kind.parts(factor, 2)
    product = x * c
    return product, fma(x_low, c, fma(x, c_low, fma(x, c, -product)))


def _fast_sum(a: Num, b: Num) -> tuple[Num, Num]:
    """a + b and its rounding error; |a| >= |b|, or a is 0."""
    total = a + b
    return total, b - (total - a)


def pow(x: Num, y: Num) -> Num:
    """2^(y log2 |x|), with a sign if x is negative and y odd."""
    kind, huge = x.kind, 2.0**x.kind.bias
    log_high, log_low = _log2_long(absolute(x))
    zero = -kind.bias - kind.mantissa - 3.0  # 2^this is 0
    high = clamp(y * log_high, zero, kind.bias + 3.0)
    low = clamp(fma(y, log_low, fma(y, log_high, -high)), -1.0, 1.0)  # far less than 1 unless `high` was clamped
    rounded, r = _reduced2(high, 2 * kind.bias, low)
    s, t = _two_powers(rounded)
    result = (_expm1_near(r) + 1.0) * s * choose(high > zero, t, 0.0)
    plain = both(x, x > 0.0, x < huge, absolute(y) < huge)  # of bounds below infinity LLVM makes shorter code
    return rarely(x, x.code.not_(plain), lambda: _pow_ends(x, y, result), result)


def _pow_ends(x: Num, y: Num, result: Num) -> Num:
    """A power of |x|, corrected for zeros, infinities, nan and negative x. y = 0 and x = 1 give 1 even with nan."""
    a, b, half = absolute(x), absolute(y), y * 0.5
    end = choose(choose(a > 1.0, y, -y) > 0.0, x.number(INFINITY), 0.0)
    result = choose(either(x, a.equals(0.0), a.equals(INFINITY), b.equals(INFINITY)), end, result)
    odd = both(x, truncate(y).equals(y), truncate(half).differs(half))
    result = result.flip_sign(choose(both(x, odd, x.negative()), x.number(-0.0), 0.0))
    wrong = either(x, x.differs(x), y.differs(y), both(x, truncate(y).differs(y), x < 0.0, x > -INFINITY))
    one = either(x, y.equals(0.0), x.equals(1.0), both(x, a.equals(1.0), b.equals(INFINITY)))
    return choose(one, 1.0, choose(wrong, NAN, result))


FUNCTIONS: dict[str, Callable[..., Num]] = {
    function.__name__: function
    for function in (
        *(exp, expm1, log, log1p, log2, log10, sin, cos, tan, asin, acos, atan, sinh, cosh, tanh, asinh, acosh, atanh),
        *(erf, sigmoid, pow, atan2, hypot, logaddexp),
    )
}
NAMES = tuple(FUNCTIONS)
_BRANCHING = frozenset({"sin", "cos", "tan", "pow"})  # those that skip rare cases
