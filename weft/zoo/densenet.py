"""DenseNet: each layer gets the outputs of all previous layers (Huang et al. 2017)."""

from __future__ import annotations

from collections.abc import Sequence

from .. import nn
from ..ops.movement import concat
from ..tensor import Tensor
from .building_blocks import HE_NORMAL
from .facts import network


def _norm_conv(inputs: int, outputs: int, kernel: int) -> list[nn.Module]:
    conv = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False, init=HE_NORMAL)
    return [nn.BatchNorm2d(inputs), nn.ReLU(), conv]


class DenseLayer(nn.Module):
    """[x, f(x)]: a bottleneck of 1 x 1, then 3 x 3; its `growth` channels are concatenated to its input."""

    def __init__(self, inputs: int, growth: int, dropout: float) -> None:
        inner = 4 * growth
        drop = [nn.Dropout(dropout)] if dropout else []
        self.body = nn.Sequential(*_norm_conv(inputs, inner, 1), *_norm_conv(inner, growth, 3), *drop)

    def forward(self, x: Tensor) -> Tensor:
        return concat([x, self.body(x)], axis=1)


def densenet(
    blocks: Sequence[int],
    classes: int = 1000,
    channels: int = 3,
    *,
    growth: int = 32,
    width: int = 64,
    dropout: float = 0.0,
) -> nn.Sequential:
    """Blocks of dense layers; between blocks half the channels and half the size."""
    first = nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False, init=HE_NORMAL)
    parts: list[nn.Module] = [first, nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)]
    inputs = width
    for place, count in enumerate(blocks):
        if place:
            parts += [*_norm_conv(inputs, inputs // 2, 1), nn.AvgPool2d(2)]
            inputs //= 2
        parts += [DenseLayer(inputs + i * growth, growth, dropout) for i in range(count)]
        inputs += count * growth
    top = [nn.BatchNorm2d(inputs), nn.ReLU(), nn.GlobalAvgPool(), nn.Linear(inputs, classes)]
    return nn.Sequential(*parts, *top)


@network("classification", input=(3, 224, 224), classes=1000, parameters=7_978_856, macs=2_834_161_664)
def densenet121(classes: int = 1000, channels: int = 3, *, dropout: float = 0.0) -> nn.Sequential:
    """DenseNet-121 for 224 x 224 images: 7,978,856 parameters."""
    return densenet((6, 12, 24, 16), classes, channels, dropout=dropout)


@network("classification", input=(3, 224, 224), classes=1000, parameters=14_149_480, macs=3_359_843_328)
def densenet169(classes: int = 1000, channels: int = 3, *, dropout: float = 0.0) -> nn.Sequential:
    """DenseNet-169 for 224 x 224 images: 14,149,480 parameters."""
    return densenet((6, 12, 32, 32), classes, channels, dropout=dropout)
