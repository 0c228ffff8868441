"""ConvNeXt: a ResNet with design choices of transformers (Liu et al. 2022)."""

from __future__ import annotations

from collections.abc import Sequence

from .. import nn
from ..ops.movement import moveaxis
from ..tensor import Tensor
from .facts import network

_START = nn.init.truncated_normal(std=0.02)


class ChannelNorm(nn.Module):
    """Layer norm over the channels of each pixel; x is (batch, channels, height, width)."""

    def __init__(self, channels: int) -> None:
        self.norm = nn.LayerNorm(channels, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        return moveaxis(self.norm(moveaxis(x, 1, -1)), -1, 1)


class ConvNeXtBlock(nn.Module):
    """x + s W2 gelu(W1 norm(depthwise 7 x 7 (x))), with a learned scale s per channel that is small at first."""

    def __init__(self, channels: int, drop_path: float) -> None:
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels, init=_START)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.widen = nn.Linear(channels, 4 * channels, init=_START, activation="gelu")
        self.narrow = nn.Linear(4 * channels, channels, init=_START)
        self.scale = nn.parameter(channels, 1e-6)
        self.drop = nn.DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        pixels = moveaxis(self.depthwise(x), 1, -1)  # channels last: the rest is applied per pixel
        pixels = self.narrow(self.widen(self.norm(pixels))) * self.scale
        change: Tensor = self.drop(moveaxis(pixels, -1, 1))
        return x + change


def convnext(
    blocks: Sequence[int],
    classes: int = 1000,
    channels: int = 3,
    *,
    width: int = 96,
    drop_path: float = 0.1,
) -> nn.Sequential:
    """Stages of blocks, each with half the size and twice the width of the previous; the stem uses patches of 4 x 4."""
    parts: list[nn.Module] = [nn.Conv2d(channels, width, 4, stride=4, init=_START), ChannelNorm(width)]
    done = 0
    for place, count in enumerate(blocks):
        inner = width * 2**place
        if place:
            parts += [ChannelNorm(inner // 2), nn.Conv2d(inner // 2, inner, 2, stride=2, init=_START)]
        parts += [ConvNeXtBlock(inner, drop_path * (done + i) / max(1, sum(blocks) - 1)) for i in range(count)]
        done += count
    top = [nn.GlobalAvgPool(), nn.LayerNorm(inner, eps=1e-6), nn.Linear(inner, classes, init=_START)]
    return nn.Sequential(*parts, *top)


@network("classification", input=(3, 224, 224), classes=1000, parameters=28_589_128, macs=4_455_531_264)
def convnext_tiny(classes: int = 1000, channels: int = 3, *, drop_path: float = 0.1) -> nn.Sequential:
    """ConvNeXt-T for 224 x 224 images: 28,589,128 parameters."""
    return convnext((3, 3, 9, 3), classes, channels, drop_path=drop_path)
