"""Transposed convolutions in 1, 2 and 3 dimensions: learned upsampling by the stride."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from ..errors import UserError
from ..ops.conv import Padding, Sizes, conv_transpose, per_axis
from ..ops.convert import asarray
from ..ops.movement import reshape, transpose
from ..tensor import ArrayLike, Tensor
from . import checks
from . import init as inits
from .activations import Activation, known
from .activations import activation as find
from .module import Init, Module, parameter


class _ConvTranspose(Module):
    """Base class of transposed convolutions of all ranks."""

    rank: ClassVar[int]

    def __init__(
        self,
        inputs: int | None,
        outputs: int,
        kernel: Sizes,
        *,
        stride: Sizes = 1,
        padding: Padding = 0,
        output_padding: Sizes = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        activation: Activation = None,
        init: Init = "he_uniform",
        bias_init: Init = "zeros",
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
        self.output_padding = checks.check_sizes(name, "output_padding", output_padding, rank, least=0)
        self.dilation = checks.check_sizes(name, "dilation", dilation, rank)
        self._check_spare(name)
        self.activation = known(activation)
        sizes = per_axis(name, "kernel", kernel, rank)
        self.weight = parameter((inputs, outputs // groups, *sizes), _transposed_init(init, groups))
        self.bias = parameter((outputs,), bias_init) if bias else None

    def _check_spare(self, name: str) -> None:
        spare = per_axis(name, "output_padding", self.output_padding, self.rank, least=0)
        steps = per_axis(name, "stride", self.stride, self.rank)
        if any(e >= s for e, s in zip(spare, steps, strict=True)):
            raise UserError(
                name, f"an output_padding below the stride is required, got {self.output_padding} and {self.stride}."
            )

    def sizes(self, x: ArrayLike) -> Mapping[str, tuple[int, ...]]:
        name = type(self).__name__
        found = checks.check_spatial(name, x, self.rank).shape[1]
        checks.check_groups(name, "inputs", found, self.groups)
        return {"weight": (found, *self.weight.shape[1:])}

    def forward(self, x: ArrayLike) -> Tensor:
        name = type(self).__name__
        x = checks.check_channels(name, checks.check_spatial(name, x, self.rank), self.weight.shape[0])
        y = conv_transpose(
            x, self.weight, self.bias, stride=self.stride, padding=self.padding, output_padding=self.output_padding,
            dilation=self.dilation, groups=self.groups,
        )  # fmt: skip
        return find(self.activation)(y)


def _transposed_init(start: Init, groups: int) -> Callable[[tuple[int, ...]], Any]:
    """Initial values for a weight (inputs, outputs / groups, kernel...), where `start` expects outputs first."""

    def make(shape: tuple[int, ...]) -> Tensor:
        inputs, outputs, kernel = shape[0] // groups, shape[1], shape[2:]
        values = asarray(inits.values(start, (outputs * groups, inputs, *kernel)))
        return reshape(transpose(reshape(values, (groups, outputs, inputs, *kernel)), 1, 2), shape)

    return make


class ConvTranspose1d(_ConvTranspose):
    """y[o, p * stride + t * dilation - padding] is the sum over c, p, t of x[c, p] W[c, o, t], plus b[o]"""

    rank = 1


class ConvTranspose2d(_ConvTranspose):
    """y[o, p * stride + t * dilation - padding] is the sum over c, p, t of x[c, p] W[c, o, t], plus b[o], in the plane

    weight: (inputs, outputs / groups, height, width), bias: (outputs,). The result is (n - 1) * stride + (kernel - 1) *
    dilation + 1 - both paddings + output_padding large; with padding="same", n * stride.
    """

    rank = 2


class ConvTranspose3d(_ConvTranspose):
    """y[o, p * stride + t * dilation - padding] is the sum over c, p, t of x[c, p] W[c, o, t], plus b[o], in space"""

    rank = 3
