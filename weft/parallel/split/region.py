"""Convolutions and pooling split by regions of the result: each process holds some of the rows, and receives halo rows from others."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ...dtypes import finfo
from ...graph.node import Shape
from ...mesh.parts import part_length
from ...nn.activations import activation
from ...ops import pooling as pools
from ...ops.collective import axis_index, shift
from ...ops.conv import conv, normal_padding, per_axis
from ...ops.convert import asarray
from ...ops.creation import arange
from ...ops.elementwise import where
from ...ops.indexing import take
from ...ops.movement import concat, cut, pad
from ...records import dataclass
from ...tensor import Tensor
from .channels import conv_groups
from .layer import Message, Shapes, SplitLayer, elementwise_activation, parameter_sums
from .layout import ROWS, Layout, Whole, is_uneven, real_rows


@dataclass(frozen=True)
class RowWindow:
    """How windows slide over the rows of the whole tensor."""

    rows: int
    results: int
    kernel: int
    stride: int
    dilation: int
    before: int  # padding above the first row
    ranks: int

    @property
    def length(self) -> int:
        """The rows that a process reads for its results."""
        return self._reach(part_length(self.results, self.ranks))

    def _reach(self, results: int) -> int:
        return (results - 1) * self.stride + (self.kernel - 1) * self.dilation + 1

    @property
    def stays_inside(self) -> bool:
        """Whether no window reads padding."""
        return self.before == 0 and self._reach(self.results) <= self.rows

    def starts(self) -> list[int]:
        """For each process, the first row that it reads, relative to the first that it holds."""
        mine, results = part_length(self.rows, self.ranks), part_length(self.results, self.ranks)
        return [
            r * (results * self.stride - mine) - self.before if r * results < self.results else 0
            for r in range(self.ranks)
        ]

    def halo(self) -> tuple[int, int]:
        """The rows that a process reads from others, above and below its own; the maximum over all processes."""
        mine, results = part_length(self.rows, self.ranks), part_length(self.results, self.ranks)
        above = below = 0
        for rank, start in enumerate(self.starts()):
            count = min(results, self.results - rank * results)
            if count > 0:
                above = max(above, min(-start, rank * mine))
                below = max(below, min(start + self._reach(count), self.rows - rank * mine) - mine)
        return above, below


def rows_for(x: Tensor, window: RowWindow, axis: str, filler: float) -> Tensor:
    """The rows that this process reads for its results; rows outside the tensor are filled with `filler`."""
    above, below = window.halo()
    starts, layout = window.starts(), Layout(ROWS, window.rows)
    wide = concat([*_halo(x, above, 1, axis), x, *_halo(x, below, -1, axis)], axis=ROWS) if above or below else x
    missing = (max(0, -min(starts) - above), max(0, max(starts) + window.length - x.shape[ROWS] - below))
    wide = pad(wide, [missing if d == ROWS else (0, 0) for d in range(x.ndim)]) if any(missing) else wide
    if len(set(starts)) == 1:
        first: Tensor | int = starts[0]
        offset = starts[0] + above + missing[0]
        found = cut(wide, ROWS, offset, offset + window.length)
    else:
        first = take(asarray(starts), axis_index(axis), axis=0)
        found = take(wide, arange(window.length) + (first + (above + missing[0])), axis=ROWS)
    if not filler and not is_uneven(layout, axis):
        return found  # rows that no process has are zero already
    return where(real_rows(window.length, layout, axis, x.ndim, first), found, filler)


def _halo(x: Tensor, count: int, by: int, axis: str) -> list[Tensor]:
    """The last rows of the preceding processes (by=1) or the first rows of the following ones (by=-1), from top to bottom."""
    found, mine = [], x.shape[ROWS]
    for hop in range(1, part_length(count, mine) + 1):
        rows = min(mine, count - (hop - 1) * mine)
        border = cut(x, ROWS, mine - rows, mine) if by > 0 else cut(x, ROWS, 0, rows)
        found.append(shift(border, axis, by * hop))
    return found[::-1] if by > 0 else found


def halo_traffic(window: RowWindow, shapes: Shapes, itemsize: int, backward: bool) -> list[Message]:
    """The rows that a process sends in the forward pass, and their gradients that it sends back."""
    row = prod(shapes.x) // shapes.x[ROWS] * itemsize
    return [Message("shift", count * row) for count in window.halo() for _ in range(1 + backward) if count]


class ConvByRegion(SplitLayer):
    """Each process computes some of the rows of all channels, with all filters."""

    how = "region"
    weight: Any
    bias: Any
    activation: Any

    @classmethod
    def layouts(cls, layer: Any, given: Whole, shapes: Shapes) -> tuple[Whole, Whole]:
        elementwise_activation(layer)
        return Layout(ROWS, shapes.x[ROWS]), Layout(ROWS, shapes.y[ROWS])

    @classmethod
    def traffic(cls, layer: Any, wanted: Whole, shapes: Shapes, itemsize: int, backward: bool) -> list[Message]:
        return parameter_sums(layer) + halo_traffic(cls.window(layer, shapes), shapes, itemsize, backward)

    @staticmethod
    def window(layer: Any, shapes: Shapes) -> RowWindow:
        """The layer's windows along the rows."""
        stride, dilation, pairs = _conv_settings(layer, shapes)
        return RowWindow(
            shapes.x[ROWS], shapes.y[ROWS], layer.weight.shape[2], stride[0], dilation[0], pairs[0][0], shapes.ranks
        )

    def compute(self, x: Tensor) -> Tensor:
        axis, shapes = self._place.axis, self._place.shapes
        stride, dilation, pairs = _conv_settings(self._layer, shapes)
        rows = rows_for(x, self.window(self, shapes), axis, 0.0)
        bias = None if self.bias is None else self.shared(self.bias)
        y = conv(
            rows, self.shared(self.weight), bias, stride=stride, padding=[(0, 0), *pairs[1:]], dilation=dilation,
            groups=conv_groups(self), algorithm=getattr(self, "algorithm", None),
        )  # fmt: skip
        return activation(self.activation)(y)


def _conv_settings(layer: Any, shapes: Shapes) -> tuple[Shape, Shape, Sequence[tuple[int, int]]]:
    rank, kernel = len(shapes.x) - 2, layer.weight.shape[2:]
    stride, dilation = (per_axis("split", what, getattr(layer, what), rank) for what in ("stride", "dilation"))
    return stride, dilation, normal_padding("split", layer.padding, shapes.x[2:], kernel, stride, dilation)


class PoolByRegion(SplitLayer):
    """Max or average pooling of this process's rows."""

    how = "region"
    dilation: Any
    ceil_mode: bool

    @classmethod
    def layouts(cls, layer: Any, given: Whole, shapes: Shapes) -> tuple[Whole, Whole] | None:
        if isinstance(given, Layout) and given.dim != ROWS:
            return (given, given) if given.dim < ROWS else None  # windows would cross the borders of parts of columns
        _, _, pairs = _pool_settings(layer, shapes)
        if hasattr(layer, "count_include_pad"):
            counts_differ = pairs[0] != (0, 0) and not layer.count_include_pad
            if counts_differ or _overhang(layer, shapes):
                return None
        return given, Layout(ROWS, shapes.y[ROWS])

    @classmethod
    def traffic(cls, layer: Any, wanted: Whole, shapes: Shapes, itemsize: int, backward: bool) -> list[Message]:
        return (
            halo_traffic(cls.window(layer, shapes), shapes, itemsize, backward) if wanted and wanted.dim == ROWS else []
        )

    @staticmethod
    def window(layer: Any, shapes: Shapes) -> RowWindow:
        """The layer's windows along the rows."""
        size, stride, pairs = _pool_settings(layer, shapes)
        dilation = layer.dilation if hasattr(layer, "dilation") else 1
        dilations = per_axis("split", "dilation", dilation, len(size))
        return RowWindow(shapes.x[ROWS], shapes.y[ROWS], size[0], stride[0], dilations[0], pairs[0][0], shapes.ranks)

    def compute(self, x: Tensor) -> Tensor:
        place = self._place
        if place.natural is None or place.natural.dim != ROWS:
            return self.call_layer(x)  # type: ignore[no-any-return]
        size, stride, pairs = _pool_settings(self, place.shapes)
        window, inner = self.window(self, place.shapes), [(0, 0), *pairs[1:]]
        if hasattr(self, "count_include_pad"):
            rows = rows_for(x, window, place.axis, 0.0)
            y = pools.avg_pool(
                rows, size, stride=stride, padding=inner, ceil_mode=self.ceil_mode, count_include_pad=self.count_include_pad
            )  # fmt: skip
        else:
            rows = rows_for(x, window, place.axis, 0.0 if window.stays_inside else float(finfo(x.dtype).min))
            y = pools.max_pool(
                rows, size, stride=stride, padding=inner, dilation=self.dilation, ceil_mode=self.ceil_mode
            )
        if is_uneven(place.natural, place.axis):  # keep huge fillers out of the padding of the result
            y = where(real_rows(y.shape[ROWS], place.natural, place.axis, y.ndim), y, 0.0)
        return y


def _pool_settings(layer: Any, shapes: Shapes) -> tuple[Shape, Shape, Sequence[tuple[int, int]]]:
    rank = len(shapes.x) - 2
    size = per_axis("split", "size", layer.size, rank)
    stride = size if layer.stride is None else per_axis("split", "stride", layer.stride, rank)
    dilation = per_axis("split", "dilation", layer.dilation if hasattr(layer, "dilation") else 1, rank)
    return size, stride, normal_padding("split", layer.padding, shapes.x[2:], size, stride, dilation)


def _overhang(layer: Any, shapes: Shapes) -> bool:
    """Whether the last window of an average pooling exceeds the padded input, so that it averages fewer elements."""
    size, stride, pairs = _pool_settings(layer, shapes)
    return (shapes.y[ROWS] - 1) * stride[0] + size[0] > shapes.x[ROWS] + sum(pairs[0])
