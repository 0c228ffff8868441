"""MobileNet: depthwise separable convolutions (Howard 2017, Sandler 2018)."""

from __future__ import annotations

from collections.abc import Sequence

from .. import nn
from .building_blocks import conv_norm, round_channels
from .facts import network

# Table 2 of the second paper: how many times wider inside, channels, how many blocks, stride of the first.
ROWS_V2 = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
# Table 1 of the first paper: channels and stride of each pair.
ROWS_V1 = (
    (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *(((512, 1),) * 5), (1024, 2), (1024, 1),
)  # fmt: skip


@network("classification", input=(3, 224, 224), classes=1000, parameters=4_231_976, macs=568_740_352)
def mobilenet_v1(
    classes: int = 1000,
    channels: int = 3,
    *,
    width: float = 1.0,
    dropout: float = 0.001,
    rows: Sequence[tuple[int, int]] = ROWS_V1,
) -> nn.Sequential:
    """MobileNet for 224 x 224 images: 4,231,976 parameters."""
    inputs = round_channels(32 * width)
    parts: list[nn.Module] = [conv_norm(channels, inputs, 3, stride=2, activation=nn.ReLU6)]
    for row, stride in rows:
        outputs = round_channels(row * width)
        depthwise = conv_norm(inputs, inputs, 3, stride=stride, groups=inputs, activation=nn.ReLU6)
        parts += [depthwise, conv_norm(inputs, outputs, 1, activation=nn.ReLU6)]
        inputs = outputs
    return nn.Sequential(*parts, nn.GlobalAvgPool(), nn.Dropout(dropout), nn.Linear(inputs, classes))


@network("classification", input=(3, 224, 224), classes=1000, parameters=3_504_872, macs=300_774_272)
def mobilenet_v2(
    classes: int = 1000,
    channels: int = 3,
    *,
    width: float = 1.0,
    dropout: float = 0.2,
    rows: Sequence[tuple[int, int, int, int]] = ROWS_V2,
    last: int = 1280,
) -> nn.Sequential:
    """MobileNet v2 for 224 x 224 images: 3,504,872 parameters. `width` scales the channels of all layers."""
    inputs = round_channels(32 * width)
    parts: list[nn.Module] = [conv_norm(channels, inputs, 3, stride=2, activation=nn.ReLU6)]
    for times, row, count, stride in rows:
        outputs = round_channels(row * width)
        for number in range(count):
            parts.append(_inverted(inputs, outputs, times, stride if number == 0 else 1))
            inputs = outputs
    wide = round_channels(last * max(1.0, width))
    parts += [conv_norm(inputs, wide, 1, activation=nn.ReLU6), nn.GlobalAvgPool(), nn.Dropout(dropout)]
    return nn.Sequential(*parts, nn.Linear(wide, classes, init=nn.init.normal(std=0.01)))


def _inverted(inputs: int, outputs: int, times: int, stride: int) -> nn.Module:
    """An inverted residual block: expand, depthwise, linear projection, with a residual connection if shapes match."""
    inner = inputs * times
    widen = [conv_norm(inputs, inner, 1, activation=nn.ReLU6)] if times > 1 else []
    body = nn.Sequential(
        *widen,
        conv_norm(inner, inner, 3, stride=stride, groups=inner, activation=nn.ReLU6),
        conv_norm(inner, outputs, 1, activation=None),
    )
    return nn.Residual(body) if stride == 1 and inputs == outputs else body
