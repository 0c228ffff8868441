"""ResNet: blocks with residual connections (He et al. 2016), for ImageNet and for CIFAR."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from .. import nn
from ..errors import UserError
from ..ops.movement import pad
from ..tensor import Tensor
from .building_blocks import conv_norm
from .facts import network

Stem = Literal["imagenet", "cifar"]


def resnet(
    blocks: Sequence[int],
    classes: int = 1000,
    channels: int = 3,
    *,
    bottleneck: bool = False,
    width: int = 64,
    stem: Stem = "imagenet",
) -> nn.Sequential:
    """Stages of blocks, each with half the size and twice the width of the previous.

    The stem "imagenet" is a 7 x 7 convolution of stride 2 and pooling, "cifar" a 3 x 3 convolution. A bottleneck block
    has its stride in the 3 x 3 convolution, as all later implementations do.
    """
    parts: list[nn.Module] = [_stem(stem, channels, width)]
    inputs = width
    for place, count in enumerate(blocks):
        inner = width * 2**place
        for number in range(count):
            stride = 2 if place and number == 0 else 1
            parts.append(_bottleneck(inputs, inner, stride) if bottleneck else _basic(inputs, inner, stride))
            inputs = 4 * inner if bottleneck else inner
    return nn.Sequential(*parts, nn.GlobalAvgPool(), nn.Linear(inputs, classes, init="fan_in_uniform"))


def _stem(kind: Stem, channels: int, width: int) -> nn.Sequential:
    if kind == "cifar":
        return conv_norm(channels, width, 3)
    if kind != "imagenet":
        raise UserError("resnet", f"there is no stem {kind!r}. Known: imagenet, cifar.")
    return nn.Sequential(conv_norm(channels, width, 7, stride=2), nn.MaxPool2d(3, stride=2, padding=1))


def _basic(inputs: int, outputs: int, stride: int) -> nn.Residual:
    """Two 3 x 3 convolutions."""
    body = nn.Sequential(conv_norm(inputs, outputs, 3, stride=stride), conv_norm(outputs, outputs, 3, activation=None))
    return nn.Residual(body, _projection(inputs, outputs, stride), activation="relu")


def _bottleneck(inputs: int, inner: int, stride: int) -> nn.Residual:
    """A 3 x 3 convolution between two 1 x 1 convolutions, which reduce and restore the channels."""
    body = nn.Sequential(
        conv_norm(inputs, inner, 1),
        conv_norm(inner, inner, 3, stride=stride),
        conv_norm(inner, 4 * inner, 1, activation=None),
    )
    return nn.Residual(body, _projection(inputs, 4 * inner, stride), activation="relu")


def _projection(inputs: int, outputs: int, stride: int) -> nn.Module | None:
    """Option B of the paper: a 1 x 1 convolution where the shape changes, else the identity."""
    same = inputs == outputs and stride == 1
    return None if same else conv_norm(inputs, outputs, 1, stride=stride, activation=None)


@network("classification", input=(3, 224, 224), classes=1000, parameters=11_689_512, macs=1_814_073_344)
def resnet18(classes: int = 1000, channels: int = 3) -> nn.Sequential:
    """ResNet-18: 11,689,512 parameters."""
    return resnet((2, 2, 2, 2), classes, channels)


@network("classification", input=(3, 224, 224), classes=1000, parameters=21_797_672, macs=3_663_761_408)
def resnet34(classes: int = 1000, channels: int = 3) -> nn.Sequential:
    """ResNet-34: 21,797,672 parameters."""
    return resnet((3, 4, 6, 3), classes, channels)


@network("classification", input=(3, 224, 224), classes=1000, parameters=25_557_032, macs=4_089_184_256)
def resnet50(classes: int = 1000, channels: int = 3) -> nn.Sequential:
    """ResNet-50: 25,557,032 parameters."""
    return resnet((3, 4, 6, 3), classes, channels, bottleneck=True)


@network("classification", input=(3, 224, 224), classes=1000, parameters=44_549_160, macs=7_801_405_440)
def resnet101(classes: int = 1000, channels: int = 3) -> nn.Sequential:
    """ResNet-101: 44,549,160 parameters."""
    return resnet((3, 4, 23, 3), classes, channels, bottleneck=True)


@network("classification", input=(3, 224, 224), classes=1000, parameters=60_192_808, macs=11_513_626_624)
def resnet152(classes: int = 1000, channels: int = 3) -> nn.Sequential:
    """ResNet-152: 60,192,808 parameters."""
    return resnet((3, 8, 36, 3), classes, channels, bottleneck=True)


@network("classification", input=(3, 32, 32), classes=10, parameters=11_173_962, macs=555_422_720)
def resnet18_cifar(classes: int = 10, channels: int = 3) -> nn.Sequential:
    """ResNet-18 for 32 x 32 images: 11,173,962 parameters."""
    return resnet((2, 2, 2, 2), classes, channels, stem="cifar")


# --- the thin ones: 6 n + 2 layers, three stages of 16, 32 and 64 channels -----------------------------------------------


class Shortcut(nn.Module):
    """Option A of the paper: subsampled pixels and zero channels, without parameters."""

    def __init__(self, new: int, stride: int) -> None:
        self.before, self.after, self.stride = new // 2, new - new // 2, stride

    @property
    def new(self) -> int:
        """The channels of zeros."""
        return self.before + self.after

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, :, :: self.stride, :: self.stride]
        return pad(x, ((0, 0), (self.before, self.after), (0, 0), (0, 0)))


def resnet_cifar(depth: int, classes: int = 10, channels: int = 3, *, width: int = 16) -> nn.Sequential:
    """The ResNets of the paper's section 4.2, for 32 x 32 images."""
    count, rest = divmod(depth - 2, 6)
    if rest or count < 1:
        raise UserError("resnet_cifar", f"a depth of 6 n + 2 (8, 14, 20, ...) is required, got {depth}.")
    parts: list[nn.Module] = [conv_norm(channels, width, 3)]
    inputs = width
    for outputs in (width, 2 * width, 4 * width):
        for number in range(count):
            parts.append(_thin(inputs, outputs, 2 if number == 0 and outputs > width else 1))
            inputs = outputs
    return nn.Sequential(*parts, nn.GlobalAvgPool(), nn.Linear(inputs, classes, init="he_normal"))


def _thin(inputs: int, outputs: int, stride: int) -> nn.Residual:
    body = nn.Sequential(conv_norm(inputs, outputs, 3, stride=stride), conv_norm(outputs, outputs, 3, activation=None))
    shortcut = None if inputs == outputs else Shortcut(outputs - inputs, stride)
    return nn.Residual(body, shortcut, activation="relu")


@network("classification", input=(3, 32, 32), classes=10, parameters=269_722, macs=40_551_040)
def resnet20(classes: int = 10, channels: int = 3) -> nn.Sequential:
    """ResNet-20 for CIFAR: 269,722 parameters."""
    return resnet_cifar(20, classes, channels)


@network("classification", input=(3, 32, 32), classes=10, parameters=464_154, macs=68_862_592)
def resnet32(classes: int = 10, channels: int = 3) -> nn.Sequential:
    """ResNet-32 for CIFAR: 464,154 parameters."""
    return resnet_cifar(32, classes, channels)


@network("classification", input=(3, 32, 32), classes=10, parameters=658_586, macs=97_174_144)
def resnet44(classes: int = 10, channels: int = 3) -> nn.Sequential:
    """ResNet-44 for CIFAR: 658,586 parameters."""
    return resnet_cifar(44, classes, channels)


@network("classification", input=(3, 32, 32), classes=10, parameters=853_018, macs=125_485_696)
def resnet56(classes: int = 10, channels: int = 3) -> nn.Sequential:
    """ResNet-56 for CIFAR: 853,018 parameters."""
    return resnet_cifar(56, classes, channels)


@network("classification", input=(3, 32, 32), classes=10, parameters=1_727_962, macs=252_887_680)
def resnet110(classes: int = 10, channels: int = 3) -> nn.Sequential:
    """ResNet-110 for CIFAR: 1,727,962 parameters."""
    return resnet_cifar(110, classes, channels)
