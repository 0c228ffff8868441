"""The common parts of the Winograd functions: their emitter, and the squares of pixels that their transforms read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import SimpleNamespace

from llvmlite import ir

from ....records import dataclass
from ..conv.function_builder import Signature, all_of, below, copy, fill
from ..gemm.register_tile import RegisterTile
from ..ir_builder import F32, Code, Value, vector
from ..target import CpuTarget, current_target

APART = 16  # floats between the matrices of two points: powers of 2 would cause conflict misses


class WinogradEmitter(ABC):
    """Emits a function for one Winograd size and one register tile."""

    def __init__(self, code: Code, a: SimpleNamespace, target: CpuTarget, size: int, tile: RegisterTile) -> None:
        self.code, self.a, self.target, self.size, self.tile = code, a, target, size, tile
        self.reach = size + 2  # pixels of a square of the source
        self.points = self.reach**2
        self.lanes = target.lanes(32)
        self.kind = vector(F32, self.lanes)
        self.width = tile.columns(self.lanes)

    @abstractmethod
    def write(self) -> None:
        """The whole body."""


def written(symbol: str, signature: Signature, writer: type[WinogradEmitter]) -> ir.Module:
    """The function NAME.SIZE.ROWSxVECTORS."""
    _, size, shape = symbol.split(".")
    height, vectors = map(int, shape.split("x"))
    code, a = signature.begin(symbol)
    writer(code, a, current_target(), int(size), RegisterTile(height, vectors)).write()
    code.done()
    return code.module


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

    A square that reaches over an edge is copied to `patch`, with zeros around it and without its other channels.
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
