"""The geometry of convolutions: forward convolutions and data gradients as sweeps, which the native functions compute.

A convolution and its data gradient are one computation: every pixel of the result is a sum, over some places (taps) of
the kernel, of a pixel of the source times a matrix. Without a stride the data gradient is a convolution with the kernel
reversed. With a stride s the pixels of the result fall into s phases along each axis; the pixels of a phase meet
only every (s / gcd(s, dilation))-th tap, and meet the source at stride 1, so no zeros are ever multiplied.

Along one axis, for the phase r of the result (a forward convolution has the one phase 0, and `step` is its stride):

    class   rho   = (r / common * inverse) mod classes, or none if common does not divide r
    taps    t     = rho, rho + classes, ... below kernel: `count` of them, kept in memory from the last to the first
    pixels  out   = first, first + phases, ...            where first = (r - reach) mod phases
    source  in    = (out + reach - t * dilation) / phases for the first pixel, + step for each next pixel,
                                                          + dilation / common for each next tap in memory
"""

from __future__ import annotations

from dataclasses import astuple, replace
from math import gcd, prod

from ....records import dataclass
from ...ir.conv_shape import ConvShape
from ..gemm.arithmetic import WORD
from ..target import LINE


def whole_lines(size: int) -> int:
    """Bytes rounded up to whole cache lines."""
    return -(-size // LINE) * LINE


@dataclass(frozen=True)
class ConvAxis:
    """One axis of a sweep; the terms are explained in the module's docstring."""

    inside: int  # size of the source
    outside: int  # size of the result
    kernel: int
    phases: int
    common: int
    classes: int
    inverse: int
    dilation: int
    reach: int
    step: int

    @property
    def most_taps(self) -> int:
        """Of any phase."""
        return -(-self.kernel // self.classes)


@dataclass(frozen=True)
class FilterView:
    """The offset of the element (group, output, input, taps) of the filter, in elements."""

    base: int
    group: int
    output: int
    input: int
    taps: tuple[int, int, int]


@dataclass(frozen=True)
class Sweep:
    """A forward convolution or a data gradient."""

    batch: int
    groups: int
    inputs: int  # channels of the source, of one group
    outputs: int  # channels of the result, of one group
    axes: tuple[ConvAxis, ConvAxis, ConvAxis]
    filter: FilterView
    flops: int
    kind: str = "f32"  # of its products; those of integers count words of channels, see gemm/arithmetic.py
    border: int = 0  # the value of the padding, of 8-bit integers

    @property
    def taps(self) -> int:
        return prod(axis.kernel for axis in self.axes)

    @property
    def most_taps(self) -> int:
        return prod(axis.most_taps for axis in self.axes)

    @property
    def pixels(self) -> int:
        """Of the largest phase."""
        return self.batch * prod(-(-axis.outside // axis.phases) for axis in self.axes)

    @property
    def single(self) -> bool:
        """Has the result one phase only?"""
        return all(axis.phases == 1 for axis in self.axes)

    @property
    def pointwise(self) -> bool:
        """Is it a plain matrix product: every pixel of the result needs just the same pixel of the source?"""
        return all(a.kernel == a.phases == a.step == 1 and a.reach == 0 and a.inside == a.outside for a in self.axes)

    @property
    def numbers(self) -> dict[str, int]:
        """The arguments `batch` to `x_step` of the native functions."""
        found = {"batch": self.batch, "groups": self.groups, "inputs": self.inputs, "outputs": self.outputs}
        for letter, axis in zip("zyx", self.axes, strict=True):
            found |= {f"{letter}_{word}": n for word, n in zip(AXIS_WORDS, astuple(axis), strict=True)}
        return found


AXIS_WORDS = tuple(ConvAxis.__dataclass_fields__)
SWEEP_WORDS = ("batch", "groups", "inputs", "outputs", *(f"{letter}_{word}" for letter in "zyx" for word in AXIS_WORDS))


def forward_sweep(shape: ConvShape, w_strides: tuple[int, ...]) -> Sweep:
    """From x to y: one phase, and the kernel reversed because taps are stored from the last to the first."""
    lifted, taps = shape.lifted, _lift_strides(w_strides)
    axes = [
        ConvAxis(i, o, k, 1, 1, 1, 0, d, (k - 1) * d - p, s)
        for i, o, k, s, p, d in zip(
            lifted.spatial, lifted.out, lifted.kernel, lifted.stride, lifted.padding, lifted.dilation, strict=True
        )
    ]
    outputs = shape.filters // shape.groups
    base = sum((k - 1) * t for k, t in zip(lifted.kernel, taps, strict=True))
    view = FilterView(base, outputs * w_strides[0], w_strides[0], w_strides[1], (-taps[0], -taps[1], -taps[2]))
    return Sweep(
        shape.batch,
        shape.groups,
        shape.channels // shape.groups,
        outputs,
        (axes[0], axes[1], axes[2]),
        view,
        shape.flops,
    )


def integer_sweep(shape: ConvShape, kind: str, border: int = 0) -> Sweep:
    """From x to y, both operands of 8-bit integers, the filter (filters, *kernel, channels / groups) and contiguous.

    A depthwise filter has words of one element: it is int32.
    """
    words = 1 if shape.depthwise else shape.channels // shape.groups // WORD
    steps, step = [1], words
    for size in reversed(shape.kernel):
        steps.insert(1, step)
        step *= size
    made = forward_sweep(replace(shape, channels=words * shape.groups), (step, *steps))
    return replace(made, flops=shape.flops, kind=kind, border=border)


def data_sweep(shape: ConvShape, w_strides: tuple[int, ...]) -> Sweep:
    """From g to the gradient of x."""
    lifted = shape.lifted
    axes = [
        _data_axis(i, o, k, s, p, d)
        for i, o, k, s, p, d in zip(
            lifted.spatial, lifted.out, lifted.kernel, lifted.stride, lifted.padding, lifted.dilation, strict=True
        )
    ]
    inputs = shape.filters // shape.groups
    view = FilterView(0, inputs * w_strides[0], w_strides[1], w_strides[0], _lift_strides(w_strides))
    return Sweep(
        shape.batch,
        shape.groups,
        inputs,
        shape.channels // shape.groups,
        (axes[0], axes[1], axes[2]),
        view,
        shape.flops,
    )


def _data_axis(spatial: int, out: int, kernel: int, stride: int, padding: int, dilation: int) -> ConvAxis:
    common = gcd(dilation, stride)
    classes = stride // common
    inverse = pow(dilation // common, -1, classes) if classes > 1 else 0
    return ConvAxis(out, spatial, kernel, stride, common, classes, inverse, dilation, padding, 1)


def _lift_strides(w_strides: tuple[int, ...]) -> tuple[int, int, int]:
    taps = (0,) * (5 - len(w_strides)) + tuple(w_strides[2:])
    return taps[0], taps[1], taps[2]
