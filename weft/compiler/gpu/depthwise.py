"""Depthwise convolutions and their data gradients, on CUDA cores, at the speed of memory. A program computes a rectangle of pixels for some
channels. For each tap it reads the pixels that the tap covers, most of which are still in the cache from the previous tap, and multiplies
them by the weights of the tap. Weights are copied first, so that those of a tap are contiguous. The epilogue is applied to the sums before
they are stored.
"""

from __future__ import annotations

from math import prod

from ...graph.node import Node
from ..ir.conv_shape import described
from ..ir.index import IndexExpr, Loop, strides
from ..ir.kernel import Kernel, View
from .anchors import anchor_of, is_convolution, is_filter_gradient, of_integers
from .contraction import NOTHING, ContractionWriter, Operand, finish
from .kernel_utils import ceil_div, next_power_of_two, scratch_tensor
from .source import KernelSource, decomposed
from .textbook_kernels import FlatWriter
from .values import PhaseValues

SIDE = 8  # pixels of a rectangle, along each of the last two axes
CHANNELS = 32
TAP_LANES = 256
UNROLLED = 16  # taps of a line that are unrolled


def is_depthwise(kernel: Kernel) -> bool:
    """Whether it is such a convolution."""
    anchor = anchor_of(kernel)
    if not is_convolution(anchor) or is_filter_gradient(anchor) or of_integers(anchor):
        return False
    return anchor.dtype.is_float and described(anchor)[1].depthwise


def copied_taps(kernel: Kernel) -> Node:
    """The memory for the weights, tap by tap, as a tensor internal to these two kernels."""
    _, shape = described(anchor_of(kernel))
    return scratch_tensor("taps", anchor_of(kernel), (prod(shape.kernel), shape.channels), kernel.views[1].base.dtype)


def write_taps(name: str, kernel: Kernel) -> KernelSource:
    """The first kernel: copies the weights."""
    return _Taps(name, kernel, None).source()


def write_depthwise(name: str, kernel: Kernel) -> KernelSource:
    """The second: the convolution with its epilogue."""
    return _Depthwise(name, kernel, None).source()


class _Taps(FlatWriter):
    def source(self) -> KernelSource:
        scratch = copied_taps(self.kernel)
        self.line(f"# the weights of {self.anchor.op.name}, tap by tap: {self.length} x {self.width}")
        programs = self._elements(prod(scratch.shape), TAP_LANES, (*self.depth_loops, self.group))
        self.at[self.local] = "0"
        weight = self._element(self.right)
        self.written.append(scratch)
        self.line(f"tl.store({self.pointer(scratch)} + row, {weight}, mask={self.inside})")
        return self.finished(programs, 4)


class _Depthwise(ContractionWriter):
    def _sum(self) -> tuple[tuple[Loop, ...], Operand, Operand]:
        """The weights come from the copy."""
        taps, left, _ = super()._sum()
        position = IndexExpr()
        for loop, stride in zip((*taps, self.group), strides((*(l.size for l in taps), self.group.size)), strict=True):
            position = position + IndexExpr(0, ((loop, stride),) if loop.size > 1 else ())
        return taps, left, Operand(View(copied_taps(self.kernel), 0, ()), position, ())

    def source(self) -> KernelSource:
        programs = self._rectangle()
        wide = self._wide().name
        *outer, last = self.depth_loops or (Loop(1),)
        self.line(f"total = tl.zeros(({self.high * self.wide}, {self.channels}), tl.{wide})")
        if outer:
            self.line(f"for line in range({prod(l.size for l in outer)}):")
            self.depth += 1
        unrolled = "tl.static_range" if last.size <= UNROLLED else "range"
        self.line(f"for tap in {unrolled}({last.size}):")
        self.depth += 1
        self.at |= decomposed(tuple(outer), "line") | {last: "tap"}
        pixels, weights = (
            self._read(self.left, "inside_rows & inside_columns"),
            self._read(self.right, "inside_columns"),
        )
        self.line(f"total += {pixels}.to(tl.{wide}) * {weights}.to(tl.{wide})")
        self.depth = 1
        finish(self, self.kernel, self.loops, "total")
        return self.finished(programs, 4)

    def _rectangle(self) -> int:
        """The pixels and channels of this program; how many programs there are."""
        images, high, wide = self._sides()
        self.high, self.wide = min(SIDE, next_power_of_two(high)), min(SIDE, next_power_of_two(wide))
        self.channels = min(CHANNELS, next_power_of_two(self.width))
        down, across, parts = ceil_div(high, self.high), ceil_div(wide, self.wide), ceil_div(self.width, self.channels)
        self.line(
            f"# {self.anchor.op.name}: {' x '.join(map(str, self._sides()))} pixels, {self.width} channels, {self.length} taps"
        )
        self.line("program = tl.program_id(0)")
        self.line(f"column = program % {parts} * {self.channels} + tl.arange(0, {self.channels})[None, :]")
        self.line(f"rectangle = program // {parts}")
        self.line(f"pixel = tl.arange(0, {self.high * self.wide})[:, None]")
        self.line(f"y = rectangle // {across} % {down} * {self.high} + pixel // {self.wide}")
        self.line(f"x = rectangle % {across} * {self.wide} + pixel % {self.wide}")
        self.line(f"row = (rectangle // {across * down} * {high} + y) * {wide} + x")
        self.line(f"inside_rows = (y < {high}) & (x < {wide})")
        self.line(f"inside_columns = column < {self.width}")
        self.at |= dict(zip(self.loops, ("0", "row", "column"), strict=True))
        self.at |= {self.group: "column", self.local: "0"}
        self.masks |= {self.loops[1]: "inside_rows", self.loops[2]: "inside_columns"}
        return images * down * across * parts

    def _sides(self) -> tuple[int, int, int]:
        """The number of images, and their last two axes."""
        *images, high, wide = (1, *self.anchor.shape[:-1])
        return prod(images), high, wide

    def _read(self, operand: Operand, inside: str) -> str:
        values = PhaseValues(self, NOTHING)
        where = f"{self.pointer(operand.view.base)} + ({values.index(operand.position)})"
        return self.let("element", self._loaded(operand, where, values.all_of([inside], operand.conditions)))
