"""The transforms of Winograd's convolution F(m x m, 3 x 3): tiles of m x m results from m * m + 4 m + 4 products.

    y = A' [ (G w G') . (B' d B) ] A        d: a tile of (m + 2) x (m + 2) pixels, w: a 3 x 3 filter

    dw = G' [ (A dy A') . (B' d B) ] G      summed over all tiles before the last step: the gradient of the filter

Along one axis this is polynomial multiplication by evaluation at points: 0, 1, -1, (2, -2) and infinity. The functions below
are the matrices B', G and A', and for the gradient A and G', applied to a list of vectors, written with as few operations as the pairs of points allow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..ir_builder import Code, Value, constant

Transform = Callable[[Code, Sequence[Value]], list[Value]]


def both_axes(code: Code, values: Sequence[Sequence[Value]], transform: Transform) -> list[list[Value]]:
    """The transform along the columns, then along the rows, of a square of vectors."""
    columns = [transform(code, column) for column in zip(*values, strict=True)]
    return [transform(code, row) for row in zip(*columns, strict=True)]


def _scaled(code: Code, factor: float, value: Value, more: Value) -> Value:
    """factor * value + more."""
    return code.fma(constant(value.type, factor), value, more)


def input_2(code: Code, d: Sequence[Value]) -> list[Value]:
    return [code.fsub(d[0], d[2]), code.fadd(d[1], d[2]), code.fsub(d[2], d[1]), code.fsub(d[3], d[1])]


def filter_2(code: Code, w: Sequence[Value]) -> list[Value]:
    half = constant(w[0].type, 0.5)
    even = code.fmul(half, code.fadd(w[0], w[2]))
    return [w[0], _scaled(code, 0.5, w[1], even), _scaled(code, -0.5, w[1], even), w[2]]


def output_2(code: Code, p: Sequence[Value]) -> list[Value]:
    return [code.fadd(p[0], code.fadd(p[1], p[2])), code.fadd(code.fsub(p[1], p[2]), p[3])]


def input_4(code: Code, d: Sequence[Value]) -> list[Value]:
    even, odd = _scaled(code, -4.0, d[2], d[4]), _scaled(code, -4.0, d[1], d[3])
    even_2, odd_2 = code.fsub(d[4], d[2]), code.fsub(d[3], d[1])
    return [
        _scaled(code, 4.0, d[0], _scaled(code, -5.0, d[2], d[4])),
        code.fadd(even, odd),
        code.fsub(even, odd),
        _scaled(code, 2.0, odd_2, even_2),
        _scaled(code, -2.0, odd_2, even_2),
        _scaled(code, 4.0, d[1], _scaled(code, -5.0, d[3], d[5])),
    ]


def filter_4(code: Code, w: Sequence[Value]) -> list[Value]:
    sixth = constant(w[0].type, -1 / 6)
    even = code.fmul(sixth, code.fadd(w[0], w[2]))
    wide = _scaled(code, 1 / 24, w[0], code.fmul(constant(w[0].type, 1 / 6), w[2]))
    return [
        code.fmul(constant(w[0].type, 0.25), w[0]),
        _scaled(code, -1 / 6, w[1], even),
        _scaled(code, 1 / 6, w[1], even),
        _scaled(code, 1 / 12, w[1], wide),
        _scaled(code, -1 / 12, w[1], wide),
        w[2],
    ]


def output_4(code: Code, p: Sequence[Value]) -> list[Value]:
    plus, minus = code.fadd(p[1], p[2]), code.fsub(p[1], p[2])
    plus_2, minus_2 = code.fadd(p[3], p[4]), code.fsub(p[3], p[4])
    return [
        code.fadd(p[0], code.fadd(plus, plus_2)),
        _scaled(code, 2.0, minus_2, minus),
        _scaled(code, 4.0, plus_2, plus),
        code.fadd(_scaled(code, 8.0, minus_2, minus), p[5]),
    ]


def gradient_2(code: Code, g: Sequence[Value]) -> list[Value]:
    return [g[0], code.fadd(g[0], g[1]), code.fsub(g[0], g[1]), g[1]]


def taps_2(code: Code, p: Sequence[Value]) -> list[Value]:
    half = constant(p[0].type, 0.5)
    even, odd = code.fmul(half, code.fadd(p[1], p[2])), code.fmul(half, code.fsub(p[1], p[2]))
    return [code.fadd(p[0], even), odd, code.fadd(even, p[3])]


def gradient_4(code: Code, g: Sequence[Value]) -> list[Value]:
    even, odd = code.fadd(g[0], g[2]), code.fadd(g[1], g[3])
    even_2, odd_2 = _scaled(code, 4.0, g[2], g[0]), _scaled(code, 4.0, g[3], g[1])
    return [
        g[0],
        code.fadd(even, odd),
        code.fsub(even, odd),
        _scaled(code, 2.0, odd_2, even_2),
        _scaled(code, -2.0, odd_2, even_2),
        g[3],
    ]


def taps_4(code: Code, p: Sequence[Value]) -> list[Value]:
    sixth = constant(p[0].type, 1 / 6)
    plus, minus = code.fadd(p[1], p[2]), code.fsub(p[1], p[2])
    plus_2, minus_2 = code.fadd(p[3], p[4]), code.fsub(p[3], p[4])
    return [
        _scaled(code, 0.25, p[0], _scaled(code, 1 / 24, plus_2, code.fmul(constant(p[0].type, -1 / 6), plus))),
        _scaled(code, 1 / 12, minus_2, code.fmul(constant(p[0].type, -1 / 6), minus)),
        code.fadd(code.fmul(sixth, code.fsub(plus_2, plus)), p[5]),
    ]


TRANSFORMS: dict[int, tuple[Transform, Transform, Transform]] = {
    2: (input_2, filter_2, output_2),
    4: (input_4, filter_4, output_4),
}
GRADIENTS: dict[int, tuple[Transform, Transform, Transform]] = {
    2: (input_2, gradient_2, taps_2),
    4: (input_4, gradient_4, taps_4),
}
