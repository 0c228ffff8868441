"""Discrete Fourier transforms of a few points, written out for vectors of independent sequences: no shuffles are needed.

    X[k] = sum over n of x[n] exp(-2 pi i k n / N)        forward
    x[n] = sum over k of X[k] exp(+2 pi i k n / N)        inverse, without the factor 1 / N

A sequence of N = 2^a, 3 * 2^a or 5 * 2^a points is divided into its even and odd elements until an odd length is left. The spectrum
of a real sequence is symmetric (X[N - k] is the conjugate of X[k]), so only its first N / 2 + 1 points are computed and stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, pi, sin

from ..ir_builder import Code, Value, constant

Complex = tuple[Value, Value]


def real_transform(code: Code, x: Sequence[Value]) -> list[Complex]:
    """The first half of the spectrum of a real sequence. The imaginary parts of the first and the middle point are zeros."""
    size = len(x)
    if size % 2:
        return _odd_real(code, x)
    half = size // 2
    even, odd = real_transform(code, x[0::2]), real_transform(code, x[1::2])
    points: list[Complex] = [even[0]] * (half + 1)
    points[0] = code.fadd(even[0][0], odd[0][0]), _zero(x[0])
    points[half] = code.fsub(even[0][0], odd[0][0]), _zero(x[0])
    for k in range(1, (half + 1) // 2):
        points[k], other = butterfly(code, even[k], odd[k], -2 * pi * k / size)
        points[half - k] = other[0], code.fneg(other[1])
    if half % 2 == 0:
        points[half // 2] = even[half // 2][0], code.fneg(odd[half // 2][0])
    return points


def real_inverse(code: Code, points: Sequence[Complex], size: int) -> list[Value]:
    """The real sequence of the first half of a spectrum. Imaginary parts that must be zeros are not read."""
    if size % 2:
        return _odd_real_inverse(code, points, size)
    half = size // 2
    first, middle = points[0][0], points[half][0]
    even: list[Complex] = [(code.fadd(first, middle), first)]
    odd: list[Complex] = [(code.fsub(first, middle), first)]
    for k in range(1, half // 2 + 1):
        (a, b), (c, d) = points[k], points[half - k]
        if 2 * k == half:
            even.append((code.fadd(a, a), a))
            odd.append((code.fmul(constant(b.type, -2.0), b), a))
            continue
        even.append((code.fadd(a, c), code.fsub(b, d)))
        odd.append(_rotated(code, (code.fsub(a, c), code.fadd(b, d)), 2 * pi * k / size))
    pairs = zip(real_inverse(code, even, half), real_inverse(code, odd, half), strict=True)
    return [value for pair in pairs for value in pair]


def complex_transform(code: Code, z: Sequence[Complex], sign: int) -> list[Complex]:
    """The transform of complex numbers: forward with the sign -1, inverse with +1."""
    size = len(z)
    if size % 2:
        return _odd_complex(code, z, sign)
    even, odd = complex_transform(code, z[0::2], sign), complex_transform(code, z[1::2], sign)
    both = [butterfly(code, even[k], odd[k], sign * 2 * pi * k / size) for k in range(size // 2)]
    return [a for a, _ in both] + [b for _, b in both]


def butterfly(code: Code, a: Complex, b: Complex, angle: float) -> tuple[Complex, Complex]:
    """a + w b and a - w b for w = exp(i angle), in six fused multiply-adds.

    The larger of cosine and sine is factored out of w, so the other factor is at most 1 and rounding errors stay small.
    """
    c, s = _unit(angle)
    if s == 0 and c == 1:
        return _sum_and_difference(code, a, b)
    if c == 0 and abs(s) == 1:
        turned = (code.fneg(b[1]), b[0]) if s > 0 else (b[1], code.fneg(b[0]))
        return _sum_and_difference(code, a, turned)
    if abs(c) >= abs(s):
        real, imaginary = _scaled(code, -s / c, b[1], b[0]), _scaled(code, s / c, b[0], b[1])
        factor = c
    else:
        real, imaginary = _scaled(code, c / s, b[0], code.fneg(b[1])), _scaled(code, c / s, b[1], b[0])
        factor = s
    plus = _scaled(code, factor, real, a[0]), _scaled(code, factor, imaginary, a[1])
    minus = _scaled(code, -factor, real, a[0]), _scaled(code, -factor, imaginary, a[1])
    return plus, minus


def _sum_and_difference(code: Code, a: Complex, b: Complex) -> tuple[Complex, Complex]:
    plus = code.fadd(a[0], b[0]), code.fadd(a[1], b[1])
    return plus, (code.fsub(a[0], b[0]), code.fsub(a[1], b[1]))


def _rotated(code: Code, z: Complex, angle: float) -> Complex:
    """z * exp(i angle)."""
    c, s = (constant(z[0].type, part) for part in _unit(angle))
    return code.fma(c, z[0], code.fneg(code.fmul(s, z[1]))), code.fma(s, z[0], code.fmul(c, z[1]))


# --- odd lengths, by the definition -----------------------------------------------------------------------------------------


def _odd_real(code: Code, x: Sequence[Value]) -> list[Complex]:
    size, half = len(x), len(x) // 2
    sums = [code.fadd(x[j], x[size - j]) for j in range(1, half + 1)]
    differences = [code.fsub(x[j], x[size - j]) for j in range(1, half + 1)]
    points = [(_total(code, x[0], sums, [1.0] * half), _zero(x[0]))]
    for k in range(1, half + 1):
        cosines, sines = _circle(size, k)
        points.append((_total(code, x[0], sums, cosines), _total(code, None, differences, [-s for s in sines])))
    return points


def _odd_real_inverse(code: Code, points: Sequence[Complex], size: int) -> list[Value]:
    half, first = size // 2, points[0][0]
    real, imaginary = [p[0] for p in points[1:]], [p[1] for p in points[1:]]
    values = [_total(code, first, real, [2.0] * half)] * size
    for n in range(1, half + 1):
        cosines, sines = _circle(size, n)
        even = _total(code, first, real, [2 * c for c in cosines])
        odd = _total(code, None, imaginary, [2 * s for s in sines])
        values[n], values[size - n] = code.fsub(even, odd), code.fadd(even, odd)
    return values


def _odd_complex(code: Code, z: Sequence[Complex], sign: int) -> list[Complex]:
    size, half = len(z), len(z) // 2
    if size == 1:
        return list(z)
    plus, minus = (
        list(p) for p in zip(*(_sum_and_difference(code, z[j], z[-j]) for j in range(1, half + 1)), strict=True)
    )
    points = [
        (
            _total(code, z[0][0], [p[0] for p in plus], [1.0] * half),
            _total(code, z[0][1], [p[1] for p in plus], [1.0] * half),
        )
    ]
    points *= size
    for k in range(1, half + 1):
        cosines, sines = _circle(size, k)
        sines = [sign * s for s in sines]
        even = tuple(_total(code, z[0][part], [p[part] for p in plus], cosines) for part in (0, 1))
        odd = tuple(_total(code, None, [m[part] for m in minus], sines) for part in (0, 1))
        points[k] = code.fsub(even[0], odd[1]), code.fadd(even[1], odd[0])
        points[size - k] = code.fadd(even[0], odd[1]), code.fsub(even[1], odd[0])
    return points


def _circle(size: int, k: int) -> tuple[list[float], list[float]]:
    """cos and sin of 2 pi j k / size for j = 1 ... size / 2."""
    angles = [2 * pi * (j * k % size) / size for j in range(1, size // 2 + 1)]
    return [cos(a) for a in angles], [sin(a) for a in angles]


def _total(code: Code, start: Value | None, values: Sequence[Value], factors: Sequence[float]) -> Value:
    """start + sum of factor * value."""
    for value, factor in zip(values, factors, strict=True):
        start = code.fmul(constant(value.type, factor), value) if start is None else _scaled(code, factor, value, start)
    return start


def _scaled(code: Code, factor: float, value: Value, more: Value) -> Value:
    """factor * value + more."""
    if factor in (1.0, -1.0):
        return code.fadd(more, value) if factor > 0 else code.fsub(more, value)
    return code.fma(constant(value.type, factor), value, more)


def _unit(angle: float) -> tuple[float, float]:
    """Cosine and sine, exact where they are 0 or 1."""
    return tuple(round(part) + 0.0 if abs(part - round(part)) < 1e-12 else part for part in (cos(angle), sin(angle)))  # type: ignore[return-value]


def _zero(value: Value) -> Value:
    return constant(value.type, 0.0)
