"""Squares of pixels that Winograd's transforms read: in place, or with zeros around them where they reach over an edge."""

from __future__ import annotations

from dataclasses import dataclass

from .build import F32, Code, Value
from .conv_code import all_of, below, copy, fill


@dataclass(frozen=True)
class Image:
    """A batch of images with channels last, of which some channels are read."""

    pointer: Value
    height: Value
    width: Value
    channels: Value
    first: Value
    count: Value


def square(
    code: Code, image: Image, place: tuple[Value, Value, Value], reach: int, patch: Value
) -> tuple[Value, Value, Value]:
    """Where the pixels from (image, y, x) on begin, and the floats from line to line and from pixel to pixel.

    A square that is not whole is copied to `patch`, without its other channels.
    """
    n, y, x = place
    inside = all_of(
        code, code.icmp_signed(">=", y, code.i64(0)), code.icmp_signed("<=", code.plus(y, reach), image.height),
        code.icmp_signed(">=", x, code.i64(0)), code.icmp_signed("<=", code.plus(x, reach), image.width),
    )  # fmt: skip
    with code.if_then(code.not_(inside)):
        _fill(code, image, place, reach, patch)
    pixel = code.plus(code.mul(code.plus(code.mul(n, image.height), y), image.width), x)
    # Not inbounds: a square at the edge does not use it.
    corner = code.gep(image.pointer, [code.plus(code.mul(pixel, image.channels), image.first)], source_etype=F32)
    line = code.select(inside, code.mul(image.width, image.channels), code.times(image.count, reach))
    return code.select(inside, corner, patch), line, code.select(inside, image.channels, image.count)


def _fill(code: Code, image: Image, place: tuple[Value, Value, Value], reach: int, patch: Value) -> None:
    n, y, x = place
    with code.loop(0, reach) as i, code.loop(0, reach) as j:
        yy, xx = code.plus(y, i), code.plus(x, j)
        target = code.at(patch, code.mul(code.plus(code.times(i, reach), j), image.count), F32)
        there = code.and_(below(code, yy, image.height), below(code, xx, image.width))
        with code.if_else(there) as (then, otherwise):
            with then:
                pixel = code.plus(code.mul(code.plus(code.mul(n, image.height), yy), image.width), xx)
                source = code.plus(code.mul(pixel, image.channels), image.first)
                copy(code, code.at(image.pointer, source, F32), target, image.count)
            with otherwise:
                fill(code, target, image.count)
