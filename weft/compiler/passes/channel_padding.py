"""Channel padding: images of few channels get channels of zeros, so that every pixel begins at a multiple of 16 bytes.

GPUs read 16 bytes at a time, and their libraries require that alignment. With a stride, a block of pixels becomes one pixel first
(space to depth), with the channels of all of them and a stride of 1: that needs less padding, and libraries are fastest without
strides. A filter of 7 x 7 taps for 3 channels with stride 2 becomes one of 4 x 4 taps for 12 channels, padded to 16.
"""

from __future__ import annotations

from math import prod
from typing import Any

from ...graph.node import OPS, Node, Shape, make
from ...records import dataclass
from .graph_builders import cast, move
from .product_padding import WORD, first_part


@dataclass(frozen=True)
class ChannelPadding:
    """How an image (batch, *spatial, channels) and its filters are padded."""

    kernel: Shape
    step: Shape  # the pixels of a block along each axis; all 1: no blocks
    before: Shape  # pixels of zeros before the image
    count: Shape  # blocks of the image
    taps: Shape  # blocks that a filter covers
    channels: int  # of a block
    more: int  # channels of zeros
    how: tuple[Any, ...]  # the parameters of the padded convolution

    @classmethod
    def of(cls, x: Node, kernel: Shape, out: Shape, how: tuple[Any, ...]) -> ChannelPadding | None:
        """For a convolution with an output of shape `out`; None if it has enough channels, or a single one."""
        stride, padding, dilation, groups, prefer = how
        word, channels, ones = WORD // _narrow(x).dtype.itemsize, x.shape[-1], (1,) * len(kernel)
        if groups != 1 or not 1 < channels < word or not x.dtype.is_float:
            return None
        # If the user requested an algorithm, the convolution is not changed.
        can = not prefer and all(d == 1 and s <= k for d, s, k in zip(dilation, stride, kernel, strict=True))
        if not can or prod(stride) == 1:
            return cls(kernel, ones, (0,) * len(kernel), x.shape[1:-1], kernel, channels, word - channels, how)
        taps = tuple(-(-k // s) for k, s in zip(kernel, stride, strict=True))
        count = tuple(n + t - 1 for n, t in zip(out, taps, strict=True))
        before, joined = tuple(p[0] for p in padding), prod(stride) * channels
        how = ones, ((0, 0),) * len(kernel), ones, 1, prefer
        return cls(kernel, stride, before, count, taps, joined, -joined % word, how)

    def image(self, x: Node) -> Node:
        """The padded image."""
        return self._fitted(x, self.before, self.count)

    def filter(self, w: Node) -> Node:
        """The filters (filters, *kernel, channels) for such an image."""
        return self._fitted(w, (0,) * len(self.kernel), self.taps)

    def _fitted(self, x: Node, before: Shape, count: Shape) -> Node:
        """The image in blocks, and padded. Below a cast, if there is one, so that the narrow value is stored."""
        if x.op.name == "cast":
            return cast(self._fitted(x.inputs[0], before, count), x.dtype)
        none = [(0, 0)] * (len(x.shape) - 1)
        return _padded(_in_blocks(x, before, count, self.step), [*none, (0, self.more)])

    def gradient(self, w: Node) -> Node:
        """Filters of the padded image (*taps, channels, filters) as filters of the image itself (*kernel, channels, filters)."""
        rank, filters, channels = len(self.kernel), w.shape[-1], self.channels // prod(self.step)
        w = first_part(w, (*self.taps, self.channels, filters))
        if prod(self.step) == 1:
            return w
        w = move("reshape", w, (*self.taps, *self.step, channels, filters))
        pairs = [axis for a in range(rank) for axis in (a, rank + a)]
        w = move("permute", w, (*pairs, 2 * rank, 2 * rank + 1))
        sizes = tuple(t * s for t, s in zip(self.taps, self.step, strict=True))
        return first_part(move("reshape", w, (*sizes, channels, filters)), (*self.kernel, channels, filters))


def _narrow(x: Node) -> Node:
    return x.inputs[0] if x.op.name == "cast" else x


def _in_blocks(x: Node, before: Shape, count: Shape, step: Shape) -> Node:
    """(n, *spatial, c) as (n, *count, channels of a block), padded with zeros before and after."""
    if prod(step) == 1:
        return x
    n, *spatial, c = x.shape
    sizes = tuple(i * s for i, s in zip(count, step, strict=True))
    behind = [max(0, size - b - old) for size, b, old in zip(sizes, before, spatial, strict=True)]
    x = first_part(_padded(x, [(0, 0), *zip(before, behind, strict=True), (0, 0)]), (n, *sizes, c))
    rank = len(step)
    x = move("reshape", x, (n, *(i for pair in zip(count, step, strict=True) for i in pair), c))
    x = move("permute", x, (0, *range(1, 2 * rank, 2), *range(2, 2 * rank + 1, 2), 2 * rank + 1))
    return move("reshape", x, (n, *count, prod(step) * c))


def _padded(x: Node, widths: list[tuple[int, int]]) -> Node:
    return make(OPS["pad"], (x,), (tuple((b, a, 0) for b, a in widths), 0.0)) if any(map(any, widths)) else x
