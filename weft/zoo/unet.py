"""U-Net: an encoder and a decoder with skip connections (Ronneberger et al. 2015)."""

from __future__ import annotations

from itertools import pairwise

from .. import nn
from ..errors import UserError
from ..ops.movement import concat
from ..tensor import Tensor
from .facts import network


def _double_conv(inputs: int, outputs: int, norm: bool, padding: int) -> nn.Sequential:
    """Two 3 x 3 convolutions, each with its activation."""
    parts: list[nn.Module] = []
    for before in (inputs, outputs):
        parts.append(nn.Conv2d(before, outputs, 3, padding=padding, bias=not norm, init="he_normal"))
        parts += [nn.BatchNorm2d(outputs), nn.ReLU()] if norm else [nn.ReLU()]
    return nn.Sequential(*parts)


class UNet(nn.Module):
    """A class for every pixel: (batch, channels, height, width) to (batch, classes, height, width).

    Without padding, as published, the result is smaller than the image (572 to 388) and skip connections are cropped.
    """

    def __init__(self, classes: int, channels: int, *, width: int, depth: int, norm: bool, padding: int) -> None:
        if depth < 1:
            raise UserError("unet", f"a depth of 1 or more is required, got {depth}.")
        widths = [width * 2**i for i in range(depth + 1)]
        pairs = list(pairwise(widths))
        self.first = _double_conv(channels, width, norm, padding)
        self.down = [_double_conv(small, large, norm, padding) for small, large in pairs]
        self.grow = [nn.ConvTranspose2d(large, small, 2, stride=2) for small, large in reversed(pairs)]
        self.up = [_double_conv(large, small, norm, padding) for small, large in reversed(pairs)]
        self.pool, self.top = nn.MaxPool2d(2), nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        seen = [self.first(x)]
        for down in self.down:
            seen.append(down(self.pool(seen[-1])))
        x = seen.pop()
        for grow, up in zip(self.grow, self.up, strict=True):
            x = grow(x)
            x = up(concat([_center_crop(seen.pop(), x), x], axis=1))
        logits: Tensor = self.top(x)
        return logits


def _center_crop(x: Tensor, like: Tensor) -> Tensor:
    """The centre of an image, cropped to the size of another."""
    top, left = ((a - b) // 2 for a, b in zip(x.shape[2:], like.shape[2:], strict=True))
    return x[:, :, top : top + like.shape[2], left : left + like.shape[3]]


@network("segmentation", input=(3, 224, 224), classes=2, parameters=31_031_810, macs=36_881_367_040)
def unet(
    classes: int = 2,
    channels: int = 1,
    *,
    width: int = 64,
    depth: int = 4,
    norm: bool = False,
    padding: int = 1,
) -> UNet:
    """U-Net: 31,030,658 parameters. `padding=0` is the paper's; the default keeps the size, which 2**depth must divide."""
    return UNet(classes, channels, width=width, depth=depth, norm=norm, padding=padding)
