"""EfficientNet: the inverted blocks of MobileNet v2 with channel gates, scaled in depth and width (Tan and Le 2019)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .. import nn
from .building_blocks import SqueezeExcite, conv_norm, round_channels
from .facts import network

# Table 1 of the paper: how many times wider inside, kernel, stride of the first, channels, how many blocks.
ROWS = (
    (1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3), (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)  # fmt: skip


def efficientnet(
    classes: int = 1000,
    channels: int = 3,
    *,
    width: float = 1.0,
    depth: float = 1.0,
    dropout: float = 0.2,
    drop_path: float = 0.2,
    rows: Sequence[tuple[int, int, int, int, int]] = ROWS,
    lite: bool = False,
) -> nn.Sequential:
    """The family: `width` and `depth` scale B0. Blocks are dropped more often the later they come, up to `drop_path`.

    `lite`: without channel gates, with ReLU6, and with the padding and epsilon of TensorFlow, where its weights come from.
    """
    inputs = round_channels(32 * width)
    parts: list[nn.Module] = [_convolution(lite, channels, inputs, 3, stride=2)]
    counts = [math.ceil(row[-1] * depth) for row in rows]
    done = 0
    for (times, kernel, stride, row, _), count in zip(rows, counts, strict=True):
        outputs = round_channels(row * width)
        for number in range(count):
            rate = drop_path * done / sum(counts)
            parts.append(_block(inputs, outputs, times, kernel, stride if number == 0 else 1, rate, lite))
            inputs, done = outputs, done + 1
    top = [_convolution(lite, inputs, 4 * inputs, 1), nn.GlobalAvgPool(), nn.Dropout(dropout)]
    return nn.Sequential(*parts, *top, nn.Linear(4 * inputs, classes, init="fan_in_uniform"))


def _convolution(
    lite: bool, inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1, linear: bool = False
) -> nn.Sequential:
    if lite:
        after = None if linear else nn.ReLU6
        return conv_norm(
            inputs,
            outputs,
            kernel,
            stride=stride,
            groups=groups,
            activation=after,
            padding="same",
            eps=1e-3,
            momentum=0.01,
        )
    return conv_norm(inputs, outputs, kernel, stride=stride, groups=groups, activation=None if linear else nn.SiLU)


def _block(inputs: int, outputs: int, times: int, kernel: int, stride: int, drop_path: float, lite: bool) -> nn.Module:
    inner = inputs * times
    same = stride == 1 and inputs == outputs
    body = nn.Sequential(
        *([_convolution(lite, inputs, inner, 1)] if times > 1 else []),
        _convolution(lite, inner, inner, kernel, stride=stride, groups=inner),
        *([] if lite else [SqueezeExcite(inner, max(1, inputs // 4))]),
        _convolution(lite, inner, outputs, 1, linear=True),
        *([nn.DropPath(drop_path)] if same and drop_path else []),
    )
    return nn.Residual(body) if same else body


@network("classification", input=(3, 224, 224), classes=1000, parameters=5_288_548, macs=385_814_752)
def efficientnet_b0(classes: int = 1000, channels: int = 3, *, dropout: float = 0.2) -> nn.Sequential:
    """EfficientNet-B0 for 224 x 224 images: 5,288,548 parameters."""
    return efficientnet(classes, channels, dropout=dropout)


@network("classification", input=(3, 240, 240), classes=1000, parameters=7_794_184, macs=686_802_832)
def efficientnet_b1(classes: int = 1000, channels: int = 3, *, dropout: float = 0.2) -> nn.Sequential:
    """EfficientNet-B1 for 240 x 240 images: 7,794,184 parameters."""
    return efficientnet(classes, channels, depth=1.1, dropout=dropout)


@network("classification", input=(3, 224, 224), classes=1000, parameters=4_652_008, macs=385_187_552)
def efficientnet_lite0(classes: int = 1000, channels: int = 3, *, dropout: float = 0.2) -> nn.Sequential:
    """EfficientNet-Lite0 for 224 x 224 images, made for small devices: 4,652,008 parameters."""
    return efficientnet(classes, channels, dropout=dropout, lite=True)
