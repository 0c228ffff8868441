"""Trigonometric functions and their inverses: sin, cos, tan, asin, acos, atan, atan2 (see functions.py)."""

from __future__ import annotations

import math
from decimal import Decimal

from ..ir_builder import Value
from . import coefficients as tables
from .float_builder import Num, absolute, both, choose, copy_sign, either, fma, libm, polynomial, rarely, root

# Long enough for three float64s. Arithmetic on it rounds to 28 digits: enough for one float64, not for more.
PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459231")


def _quadrant(x: Num, offset: float = 0.0) -> tuple[Num, Num, Num]:
    """(sin(r), cos(r), n), r = x - n pi / 2, |r| <= pi / 4; n is in the lowest bits, more by the offset."""
    total = x.kind.magic + offset
    rounded = fma(x, float(2 / PI), total)
    n = rounded - total
    for part in x.kind.parts(PI, 3):  # the first difference is exact, the later ones small: only the last one rounds
        x = fma(n, -0.5 * part, x)
    square = x * x
    sine = fma(x * square, polynomial(square, tables.SIN[x.kind.bits]), x)
    cosine = fma(square * square, polynomial(square, tables.COS[x.kind.bits]), fma(square, -0.5, 1.0))
    return sine, cosine, rounded


def _sin_from(x: Num, offset: float) -> Num:
    """sin(x + offset pi / 2)."""
    sine, cosine, n = _quadrant(x, offset)
    odd = n.lowest_bits(1)
    second = n.from_bits(n.code.and_(n.lowest_bits(2).bits(), n.integer(n.kind.pattern(-0.0))))
    return choose(odd.negative(), cosine, sine).flip_sign(second)


def _huge(x: Num, name: str, result: Num) -> Num:
    return rarely(x, absolute(x) > x.kind.trig_limit, lambda: libm(name, x), result)


def sin(x: Num) -> Num:
    return _huge(x, "sin", choose(x.equals(0.0), x, _sin_from(x, 0.0)))  # sums lose the sign of -0.0


def cos(x: Num) -> Num:
    return _huge(x, "cos", _sin_from(x, 1.0))


def tan(x: Num) -> Num:
    """sin(r) / cos(r) or, for odd n, -cos(r) / sin(r)."""
    sine, cosine, n = _quadrant(x)
    sign = n.lowest_bits(1)
    odd = sign.negative()
    result = choose(odd, cosine, sine) / choose(odd, sine, cosine)
    return _huge(x, "tan", choose(x.equals(0.0), x, result.flip_sign(sign)))


def _asin_parts(x: Num) -> tuple[Value, Num]:
    """(far, y): y = asin(|x|), or where |x| is above 1/2 y = asin(sqrt((1 - |x|) / 2)) = acos(|x|) / 2."""
    a = absolute(x)
    far = a > 0.5
    z = choose(far, (1.0 - a) * 0.5, a * a)
    t = choose(far, root(z), a)
    return far, fma(t * z, polynomial(z, tables.ASIN[x.kind.bits]), t)


def asin(x: Num) -> Num:
    far, y = _asin_parts(x)
    return copy_sign(choose(far, fma(y, -2.0, float(PI / 2)), y), x)


def acos(x: Num) -> Num:
    far, y = _asin_parts(x)
    near = float(PI / 2) - copy_sign(y, x)
    return choose(far, choose(x < 0.0, fma(y, -2.0, float(PI)), y + y), near)


def _atan_parts(low: Num, high: Num) -> tuple[Num, Num]:
    """(eighths, y) with atan(low / high) = eighths * pi / 4 + y, for 0 <= low <= high."""
    fold = low > high * (math.sqrt(2.0) - 1.0)  # above tan(pi / 8): turn by pi / 4
    t = choose(fold, low - high, low) / choose(fold, low + high, high)
    square = t * t
    return choose(fold, low.number(1.0), 0.0), fma(t * square, polynomial(square, tables.ATAN[low.kind.bits]), t)


def _mirror(mask: Value, turn: float, eighths: Num, y: Num) -> tuple[Num, Num]:
    """The angle `turn` (in eighths) minus this one where the mask is set."""
    return choose(mask, turn - eighths, eighths), choose(mask, -y, y)


def atan(x: Num) -> Num:
    a = absolute(x)
    steep = a > 1.0
    low, high = choose(steep, 1.0, a), choose(steep, a, 1.0)
    eighths, y = _mirror(steep, 2.0, *_atan_parts(low, high))
    return copy_sign(fma(eighths, float(PI / 4), y), x)


def atan2(y: Num, x: Num) -> Num:
    a, b = absolute(y), absolute(x)
    steep = a > b
    low, high = choose(steep, b, a), choose(steep, a, b)
    shrink = choose(high > 2.0 ** (x.kind.bias - 1), x.number(0.25), 1.0)  # their sum must not overflow
    endless = both(x, low.equals(math.inf), high.equals(math.inf))
    low = choose(endless, 1.0, low * shrink)
    high = choose(either(x, endless, high.equals(0.0)), 1.0, high * shrink)
    eighths, angle = _mirror(steep, 2.0, *_atan_parts(low, high))
    eighths, angle = _mirror(x.negative(), 4.0, eighths, angle)
    return copy_sign(fma(eighths, float(PI / 4), angle), y)
