"""Building blocks shared by several networks: convolution + batch norm + activation, parallel branches, squeeze-excite."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from .. import nn
from ..nn.module import Init
from ..ops.conv import Padding
from ..ops.movement import concat
from ..tensor import Tensor

Activation = Callable[[], nn.Module]  # a constructor such as nn.ReLU: each use creates its own layer
HE_NORMAL = nn.init.variance_scaling(2.0, "out", "normal")  # He et al. 2015, fan-out mode: the initialization of ResNet


def conv_norm(
    inputs: int,
    outputs: int,
    kernel: int | tuple[int, int] = 3,
    *,
    stride: int = 1,
    padding: int | Literal["same"] | None = None,
    groups: int = 1,
    eps: float = 1e-5,
    momentum: float = 0.1,
    activation: Activation | None = nn.ReLU,
    init: Init = HE_NORMAL,
) -> nn.Sequential:
    """Convolution without bias, batch norm, activation. A padding of None keeps the size (divided by the stride).

    So does "same", TensorFlow's: with a stride, its border is on the right and at the bottom where the other one is on the left and on top.
    """
    sides = (kernel, kernel) if isinstance(kernel, int) else kernel
    border: Padding = tuple(k // 2 for k in sides) if padding is None else padding
    conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=border, groups=groups, bias=False, init=init)
    norm = nn.BatchNorm2d(outputs, eps=eps, momentum=momentum)
    return nn.Sequential(conv, norm) if activation is None else nn.Sequential(conv, norm, activation())


class Branches(nn.Module):
    """The outputs of several branches, concatenated along the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        self.branches = list(branches)

    def forward(self, x: Tensor) -> Tensor:
        return concat([branch(x) for branch in self.branches], axis=1)


class SqueezeExcite(nn.Module):
    """Scale each channel by a gate computed from the means of all channels: x * gate(W2 f(W1 mean(x))) (Hu et al. 2018)."""

    def __init__(
        self, channels: int, squeezed: int, *, activation: Activation = nn.SiLU, gate: Activation = nn.Sigmoid
    ) -> None:
        self.reduce = nn.Conv2d(channels, squeezed, 1)
        self.expand = nn.Conv2d(squeezed, channels, 1)
        self.activation, self.gate = activation(), gate()

    def forward(self, x: Tensor) -> Tensor:
        means = x.mean(axis=(2, 3), keepdims=True)
        gates: Tensor = self.gate(self.expand(self.activation(self.reduce(means))))
        return x * gates


def round_channels(wanted: float, step: int = 8) -> int:
    """Round a number of channels to a multiple of `step`, but not below 90 % of it."""
    nearest = max(step, int(wanted + step / 2) // step * step)
    return nearest + step if nearest < 0.9 * wanted else nearest


def scaled(channels: Sequence[int], width: float) -> list[int]:
    """All numbers of channels times a factor, at least 1 each."""
    return [max(1, round(n * width)) for n in channels]
