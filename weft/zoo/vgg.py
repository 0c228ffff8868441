"""VGG: stacks of 3 x 3 convolutions, with pooling after each stack (Simonyan and Zisserman 2015)."""

from __future__ import annotations

from collections.abc import Sequence

from .. import nn
from .facts import network

# How many convolutions the five stacks have: columns A, B, D and E of the paper's table 1.
A, B, D, E = (1, 1, 2, 2, 2), (2, 2, 2, 2, 2), (2, 2, 3, 3, 3), (2, 2, 4, 4, 4)


def vgg(
    stacks: Sequence[int],
    classes: int = 1000,
    channels: int = 3,
    *,
    norm: bool = False,
    dropout: float = 0.5,
    width: int = 64,
    hidden: int = 4096,
) -> nn.Sequential:
    """Stacks of convolutions, each twice as wide as the previous up to 8 times the first, and three linear layers."""
    layers: list[nn.Module] = []
    inputs = channels
    for place, count in enumerate(stacks):
        outputs = width * min(2**place, 8)
        for _ in range(count):
            layers += _conv(inputs, outputs, norm)
            inputs = outputs
        layers.append(nn.MaxPool2d(2))
    small = nn.init.normal(std=0.01)
    return nn.Sequential(
        *layers,
        nn.AdaptiveAvgPool2d(7),
        nn.Flatten(),
        nn.Linear(inputs * 7 * 7, hidden, activation="relu", init=small),
        nn.Dropout(dropout),
        nn.Linear(hidden, hidden, activation="relu", init=small),
        nn.Dropout(dropout),
        nn.Linear(hidden, classes, init=small),
    )


def _conv(inputs: int, outputs: int, norm: bool) -> list[nn.Module]:
    conv = nn.Conv2d(inputs, outputs, 3, padding=1, init="he_normal")
    return [conv, nn.BatchNorm2d(outputs), nn.ReLU()] if norm else [conv, nn.ReLU()]


@network(
    "classification", input=(3, 224, 224), classes=1000, parameters=132_863_336, macs=7_609_090_048, needs_size=True
)
def vgg11(classes: int = 1000, channels: int = 3, *, dropout: float = 0.5) -> nn.Sequential:
    """VGG with 11 layers: 132,863,336 parameters."""
    return vgg(A, classes, channels, dropout=dropout)


@network(
    "classification", input=(3, 224, 224), classes=1000, parameters=133_047_848, macs=11_308_466_176, needs_size=True
)
def vgg13(classes: int = 1000, channels: int = 3, *, dropout: float = 0.5) -> nn.Sequential:
    """VGG with 13 layers: 133,047,848 parameters."""
    return vgg(B, classes, channels, dropout=dropout)


@network(
    "classification", input=(3, 224, 224), classes=1000, parameters=138_357_544, macs=15_470_264_320, needs_size=True
)
def vgg16(classes: int = 1000, channels: int = 3, *, dropout: float = 0.5) -> nn.Sequential:
    """VGG with 16 layers: 138,357,544 parameters."""
    return vgg(D, classes, channels, dropout=dropout)


@network(
    "classification", input=(3, 224, 224), classes=1000, parameters=143_667_240, macs=19_632_062_464, needs_size=True
)
def vgg19(classes: int = 1000, channels: int = 3, *, dropout: float = 0.5) -> nn.Sequential:
    """VGG with 19 layers: 143,667,240 parameters."""
    return vgg(E, classes, channels, dropout=dropout)


@network("classification", input=(3, 224, 224), classes=1000, parameters=132_868_840, macs=7_609_090_048)
def vgg11_bn(classes: int = 1000, channels: int = 3, *, dropout: float = 0.5) -> nn.Sequential:
    """VGG with 11 layers and batch norm."""
    return vgg(A, classes, channels, norm=True, dropout=dropout)


@network("classification", input=(3, 224, 224), classes=1000, parameters=133_053_736, macs=11_308_466_176)
def vgg13_bn(classes: int = 1000, channels: int = 3, *, dropout: float = 0.5) -> nn.Sequential:
    """VGG with 13 layers and batch norm."""
    return vgg(B, classes, channels, norm=True, dropout=dropout)


@network("classification", input=(3, 224, 224), classes=1000, parameters=138_365_992, macs=15_470_264_320)
def vgg16_bn(classes: int = 1000, channels: int = 3, *, dropout: float = 0.5) -> nn.Sequential:
    """VGG with 16 layers and batch norm: 138,365,992 parameters."""
    return vgg(D, classes, channels, norm=True, dropout=dropout)


@network("classification", input=(3, 224, 224), classes=1000, parameters=143_678_248, macs=19_632_062_464)
def vgg19_bn(classes: int = 1000, channels: int = 3, *, dropout: float = 0.5) -> nn.Sequential:
    """VGG with 19 layers and batch norm: 143,678,248 parameters."""
    return vgg(E, classes, channels, norm=True, dropout=dropout)
