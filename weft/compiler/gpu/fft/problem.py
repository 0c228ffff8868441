"""Convolutions by fast Fourier transforms as one computation: for each frequency, a matrix product of spectra.

    result = F^-1( F(first) conj(F(second)) )    summed over channels, or, for the gradient of a filter, over windows

    direction         first            second              result            sum over
    forward           windows of x     filter              tiles of y        channels of x
    data gradient     windows of g     reversed filter     tiles of x        channels of g
    filter gradient   windows of x     tiles of g          filter            windows

Each of the three is a `WindowedTensor`: a filter is one window, whose taps are `spacing` pixels from each other. Since pixels are real, half
of the frequencies along x are enough; the others are conjugates.
"""

from __future__ import annotations

from functools import cached_property
from math import prod

from ....dtypes import float32
from ....graph.node import Node
from ....records import dataclass
from ...ir.conv_shape import ConvShape, Direction, described
from ...ir.fft_tiling import NEEDS, FftTiling, FftWindow, fft_applies, fft_tiling, fft_tilings, filter_spans
from ...ir.kernel import Kernel, View
from ..anchors import anchor_of, of_integers
from ..kernel_utils import COUNTABLE, ceil_div, next_power_of_two, scratch_tensor

LEAST_SIDE, SIDE = 16, 64  # of a tile of a product
MULTIPLY_ADDS_PER_BYTE = 16  # that a large GPU does, with three TF32 products for each, while memory moves a byte


@dataclass(frozen=True)
class FftAxis:
    """The windows along an axis: window i has the elements i * step + first, ... + count - 1, as far as they exist, at positions 0, spacing,
    2 * spacing, ... of the transform."""

    size: int  # elements of the tensor
    stride: int  # between them in memory
    windows: int
    count: int
    step: int = 0
    first: int = 0
    spacing: int = 1


@dataclass(frozen=True)
class WindowedTensor:
    """A tensor of (images, y, x, channels), and its windows. Channel c is at (c // group) * group_stride + (c % group) * channel_stride."""

    images: int
    image_stride: int
    y: FftAxis
    x: FftAxis
    channels: int
    group: int = 1
    group_stride: int = 1
    channel_stride: int = 0
    offset: int = 0

    @property
    def count(self) -> int:
        return self.images * self.y.windows * self.x.windows


@dataclass(frozen=True)
class FftProblem:
    """A convolution with a tiling. Half of the frequencies are taken along x, the second axis of images; for filters of one column, the first."""

    anchor: Node
    direction: Direction
    shape: ConvShape
    tiling: FftTiling
    views: tuple[View, View]

    @cached_property
    def axes(self) -> tuple[int, int]:
        """The axes of images that are y and x."""
        return (1, 0) if self.tiling.window.x == 1 else (0, 1)

    @cached_property
    def window(self) -> tuple[int, int]:
        """Points of a transform along y and x."""
        sizes = self.tiling.window.y, self.tiling.window.x
        return sizes[self.axes[0]], sizes[self.axes[1]]

    @property
    def columns(self) -> int:
        """Frequencies along x that are not conjugates of others."""
        return self.window[1] // 2 + 1

    @property
    def points(self) -> int:
        return self.window[0] * self.columns

    @property
    def of_filter(self) -> bool:
        """Whether it is the gradient of a filter."""
        return self.direction == "filter_gradient"

    @property
    def inputs(self) -> int:
        """Channels of x in a group."""
        return self.shape.channels // self.shape.groups

    @property
    def outputs(self) -> int:
        return self.shape.filters // self.shape.groups

    # --- the three tensors --------------------------------------------------------------------------------------------------------

    @cached_property
    def first(self) -> WindowedTensor:
        """The windows from which tiles of results are computed; in a filter's gradient, those that the pixels of a tile of g meet."""
        view, spans = self.views[0], filter_spans(self.shape)
        if self.direction == "data_gradient":
            sizes, channels = self.shape.out, self.shape.filters
            firsts = [p - span for p, span in zip(self.shape.padding, spans, strict=True)]
        else:
            sizes, channels = self.shape.spatial, self.shape.channels
            firsts = [-p for p in self.shape.padding]
        counts = [tile + span for tile, span in zip(self._tile, spans, strict=True)]
        y, x = (
            FftAxis(sizes[a], view.strides[1 + a], self._tiles[a], counts[a], self._tile[a], firsts[a])
            for a in self.axes
        )
        return self._images(view, y, x, channels)

    @cached_property
    def second(self) -> WindowedTensor:
        """The filter, with the channels that are summed as its images; or the tiles of g."""
        view, axes = self.views[1], self.axes
        if self.of_filter:
            y, x = (
                FftAxis(self.shape.out[a], view.strides[1 + a], self._tiles[a], self._tile[a], self._tile[a])
                for a in axes
            )
            return self._images(view, y, x, self.shape.filters)
        out_stride, in_stride, *taps = view.strides
        sizes = self.shape.kernel
        if self.direction == "forward":
            y, x = (FftAxis(sizes[a], taps[a], 1, sizes[a], spacing=self.shape.dilation[a]) for a in axes)
            return WindowedTensor(self.inputs, in_stride, y, x, self.shape.filters, 1, out_stride, 0, view.offset)
        y, x = (FftAxis(sizes[a], -taps[a], 1, sizes[a], spacing=self.shape.dilation[a]) for a in axes)
        last = sum((size - 1) * stride for size, stride in zip(sizes, taps, strict=True))
        return WindowedTensor(
            self.outputs, out_stride, y, x, self.shape.channels,
            self.inputs, self.outputs * out_stride, in_stride, view.offset + last,
        )  # fmt: skip

    @cached_property
    def result(self) -> WindowedTensor:
        """Strides are in rows of the result."""
        if self.of_filter:
            sizes, strides = self.shape.kernel, (self.shape.kernel[1] * self.inputs, self.inputs)
            y, x = (FftAxis(sizes[a], strides[a], 1, sizes[a], spacing=self.shape.dilation[a]) for a in self.axes)
            return WindowedTensor(self.inputs, 1, y, x, self.shape.filters)
        sizes = _results(self.direction, self.shape)
        y, x = (FftAxis(sizes[a], (sizes[1], 1)[a], self._tiles[a], self._tile[a], self._tile[a]) for a in self.axes)
        channels = self.shape.filters if self.direction == "forward" else self.shape.channels
        return WindowedTensor(self.shape.batch, prod(sizes), y, x, channels)

    def _images(self, view: View, y: FftAxis, x: FftAxis, channels: int) -> WindowedTensor:
        return WindowedTensor(self.shape.batch, view.strides[0], y, x, channels, 1, view.strides[-1], 0, view.offset)

    @property
    def _tile(self) -> tuple[int, int]:
        return self.tiling.y, self.tiling.x

    @property
    def _tiles(self) -> tuple[int, int]:
        return self.tiling.count(_results(self.direction, self.shape))

    # --- products: for each point and group, (rows, depth) times (depth, width) ---------------------------------------------------------

    @property
    def rows(self) -> int:
        return self.result.count

    @property
    def depth(self) -> int:
        return self.second.count

    @property
    def width(self) -> int:
        """Columns of a group."""
        return self.result.channels // self.shape.groups

    # --- memory: real parts of all points, then imaginary parts; each point has a matrix of (windows, channels) ---------------------------

    def spectra(self, of: WindowedTensor) -> Node:
        """The memory for the spectra of one of the three tensors, internal to these kernels."""
        name = "first" if of is self.first else "second" if of is self.second else "product"
        return scratch_tensor(f"fft {name}", self.anchor, (self.size(of),), float32)

    def size(self, of: WindowedTensor) -> int:
        return 2 * self.points * of.count * of.channels

    @property
    def every(self) -> tuple[WindowedTensor, WindowedTensor, WindowedTensor]:
        return self.first, self.second, self.result

    @property
    def cost(self) -> float:
        """The estimated time, in multiply-adds on tensor cores."""
        ny, nx = (_padded(n) if n > 1 else 1 for n in self.window)
        columns = ceil_div(self.columns, LEAST_SIDE) * LEAST_SIDE
        transform = 2 * columns * nx * ny + (4 * ny * ny * columns if ny > 1 else 0)
        moved = 16 * self.points * MULTIPLY_ADDS_PER_BYTE  # a spectrum is written, and read
        products = _padded(self.rows) * _padded(self.depth) * _padded(self.width)
        channels = sum(of.count * of.channels for of in self.every)
        return channels * (transform + moved) + 4 * self.points * self.shape.groups * products


def _padded(size: int) -> int:
    """What blocks of a product make of a size: a power of two from 16 to 64, above that multiples of 64."""
    return max(LEAST_SIDE, next_power_of_two(size)) if size <= SIDE else ceil_div(size, SIDE) * SIDE


def fft_problem(kernel: Kernel, window: FftWindow) -> FftProblem:
    """The convolution with windows of this size."""
    anchor, (first, second) = anchor_of(kernel), kernel.views[:2]
    direction, shape = described(anchor)
    tiling = fft_tiling(window, filter_spans(shape), _results(direction, shape))
    return FftProblem(anchor, direction, shape, tiling, (first, second))


def fastest_problem(name: str, kernel: Kernel) -> FftProblem | str:
    """The convolution with the windows of an algorithm that are the fastest by the estimate; or why there are none."""
    if of_integers(anchor_of(kernel)):
        return "multiplies floats"
    direction, shape = described(anchor_of(kernel))
    applies = fft_applies(shape)
    tilings = fft_tilings(name, filter_spans(shape), _results(direction, shape)) if applies else []
    found = [fft_problem(kernel, tiling.window) for tiling in tilings]
    if not found:
        return f"needs {NEEDS[name]}"
    countable = [p for p in found if all(p.size(of) <= COUNTABLE for of in p.every)]
    return min(countable, key=lambda p: p.cost, default="has more points than can be counted")


def _results(direction: Direction, shape: ConvShape) -> tuple[int, int]:
    """The sizes that are divided into tiles."""
    y, x = shape.spatial if direction == "data_gradient" else shape.out
    return y, x
