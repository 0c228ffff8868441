"""Convolutions in 1, 2 and 3 dimensions: plain, depthwise and separable. x is (batch, channels, spatial...)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from ..ops.conv import Padding, Sizes, conv, per_axis
from ..tensor import ArrayLike, Tensor
from . import checks
from .activations import Activation, known
from .activations import activation as find
from .module import Init, Module, parameter


class _Conv(Module):
    """Base class of convolutions of all ranks."""

    rank: ClassVar[int]

    def __init__(
        self,
        inputs: int | None,
        outputs: int,
        kernel: Sizes,
        *,
        stride: Sizes = 1,
        padding: Padding = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        activation: Activation = None,
        init: Init = "he_uniform",
        bias_init: Init = "zeros",
        algorithm: str | None = None,
    ) -> None:
        name, rank = type(self).__name__, self.rank
        inputs, outputs = (
            checks.check_optional_count(name, "inputs", inputs),
            checks.check_count(name, "outputs", outputs),
        )
        self.groups = checks.check_count(name, "groups", groups)
        checks.check_groups(name, "inputs", inputs, groups)
        checks.check_groups(name, "outputs", outputs, groups)
        self.stride = checks.check_sizes(name, "stride", stride, rank)
        self.padding = checks.check_padding(name, padding, rank)
        self.dilation = checks.check_sizes(name, "dilation", dilation, rank)
        self.activation, self.algorithm = known(activation), checks.check_algorithm(name, algorithm)
        width = None if inputs is None else inputs // groups
        self.weight = parameter((outputs, width, *per_axis(name, "kernel", kernel, rank)), init)
        self.bias = parameter((outputs,), bias_init) if bias else None

    def sizes(self, x: ArrayLike) -> Mapping[str, tuple[int, ...]]:
        name, shape = type(self).__name__, self.weight.shape
        found = checks.check_spatial(name, x, self.rank).shape[1]
        checks.check_groups(name, "inputs", found, self.groups)
        return {"weight": (shape[0], found // self.groups, *shape[2:])}

    def forward(self, x: ArrayLike) -> Tensor:
        name = type(self).__name__
        x = checks.check_channels(name, checks.check_spatial(name, x, self.rank), self.weight.shape[1] * self.groups)
        y = conv(
            x, self.weight, self.bias, stride=self.stride, padding=self.padding, dilation=self.dilation,
            groups=self.groups, algorithm=self.algorithm,
        )  # fmt: skip
        return find(self.activation)(y)


class Conv1d(_Conv):
    """y[o, p] = b[o] + sum over c, t of W[o, c, t] x[c, p * stride + t * dilation - padding]"""

    rank = 1


class Conv2d(_Conv):
    """y[o, p] = b[o] + sum over c, t of W[o, c, t] x[c, p * stride + t * dilation - padding], p and t in the plane

    weight: (outputs, inputs / groups, height, width), bias: (outputs,). The padding is a number, a number or a pair
    (before, behind) for each dimension, "valid" (none) or "same" (as many results as inputs, divided by the stride).

    >>> Conv2d(3, 8, 3, padding="same")([[[[0.0] * 6] * 5] * 3]).shape
    (1, 8, 5, 6)
    """

    rank = 2


class Conv3d(_Conv):
    """y[o, p] = b[o] + sum over c, t of W[o, c, t] x[c, p * stride + t * dilation - padding], p and t in space"""

    rank = 3


class DepthwiseConv2d(Module):
    """y[c * multiplier + m, p] = b + sum over t of W[c * multiplier + m, t] x[c, p * stride + t * dilation - padding]

    Each channel has filters of its own: weight (inputs * multiplier, 1, height, width).
    """

    def __init__(
        self,
        inputs: int | None,
        kernel: Sizes,
        *,
        multiplier: int = 1,
        stride: Sizes = 1,
        padding: Padding = 0,
        dilation: Sizes = 1,
        bias: bool = True,
        activation: Activation = None,
        init: Init = "he_uniform",
        bias_init: Init = "zeros",
    ) -> None:
        name = "DepthwiseConv2d"
        inputs, self.multiplier = (
            checks.check_optional_count(name, "inputs", inputs),
            checks.check_count(name, "filters", multiplier),
        )
        self.stride = checks.check_sizes(name, "stride", stride, 2)
        self.padding = checks.check_padding(name, padding, 2)
        self.dilation = checks.check_sizes(name, "dilation", dilation, 2)
        self.activation = known(activation)
        outputs = None if inputs is None else inputs * multiplier
        self.weight = parameter((outputs, 1, *per_axis(name, "kernel", kernel, 2)), init)
        self.bias = parameter((outputs,), bias_init) if bias else None

    def sizes(self, x: ArrayLike) -> Mapping[str, tuple[int, ...]]:
        outputs = checks.check_spatial("DepthwiseConv2d", x, 2).shape[1] * self.multiplier
        return {"weight": (outputs, *self.weight.shape[1:]), "bias": (outputs,)}

    def forward(self, x: ArrayLike) -> Tensor:
        inputs = self.weight.shape[0] // self.multiplier
        x = checks.check_channels("DepthwiseConv2d", checks.check_spatial("DepthwiseConv2d", x, 2), inputs)
        y = conv(
            x, self.weight, self.bias, stride=self.stride, padding=self.padding, dilation=self.dilation, groups=inputs
        )  # fmt: skip
        return find(self.activation)(y)


class SeparableConv2d(Module):
    """y = pointwise(depthwise(x)): a filter for each channel, then a 1 x 1 convolution over channels (Chollet 2017)"""

    def __init__(
        self,
        inputs: int | None,
        outputs: int,
        kernel: Sizes,
        *,
        stride: Sizes = 1,
        padding: Padding = 0,
        dilation: Sizes = 1,
        multiplier: int = 1,
        bias: bool = True,
        activation: Activation = None,
    ) -> None:
        self.depthwise = DepthwiseConv2d(
            inputs, kernel, multiplier=multiplier, stride=stride, padding=padding, dilation=dilation, bias=False
        )
        width = None if inputs is None else inputs * multiplier
        self.pointwise = Conv2d(width, outputs, 1, bias=bias, activation=activation)

    def forward(self, x: ArrayLike) -> Tensor:
        return self.pointwise(self.depthwise(x))  # type: ignore[no-any-return]
