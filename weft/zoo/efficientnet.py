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
) -> nn.Sequential:
    """The family: `width` and `depth` scale B0. Blocks are dropped more often the later they come, up to `drop_path`."""
    inputs = round_channels(32 * width)
    parts: list[nn.Module] = [conv_norm(channels, inputs, 3, stride=2, activation=nn.SiLU)]
    counts = [math.ceil(row[-1] * depth) for row in rows]
    done = 0
    for (times, kernel, stride, row, _), count in zip(rows, counts, strict=True):
        outputs = round_channels(row * width)
        for number in range(count):
            rate = drop_path * done / sum(counts)
            parts.append(_block(inputs, outputs, times, kernel, stride if number == 0 else 1, rate))
            inputs, done = outputs, done + 1
    top = [conv_norm(inputs, 4 * inputs, 1, activation=nn.SiLU), nn.GlobalAvgPool(), nn.Dropout(dropout)]
    return nn.Sequential(*parts, *top, nn.Linear(4 * inputs, classes, init="fan_in_uniform"))


def _block(inputs: int, outputs: int, times: int, kernel: int, stride: int, drop_path: float) -> nn.Module:
    inner = inputs * times
    widen = [conv_norm(inputs, inner, 1, activation=nn.SiLU)] if times > 1 else []
    same = stride == 1 and inputs == outputs
    body = nn.Sequential(
        *widen,
        conv_norm(inner, inner, kernel, stride=stride, groups=inner, activation=nn.SiLU),
        SqueezeExcite(inner, max(1, inputs // 4)),
        conv_norm(inner, outputs, 1, activation=None),
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
