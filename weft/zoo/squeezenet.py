"""SqueezeNet: modules that squeeze the channels before they are expanded by 1 x 1 and 3 x 3 filters (Iandola et al. 2016)."""

from __future__ import annotations

from collections.abc import Sequence

from .. import nn
from .building_blocks import Branches, scaled
from .facts import network

# Channels of the squeezed tensor and of each of the two branches, by stage; a pooling stands before each stage.
Stages = Sequence[Sequence[tuple[int, int]]]
STAGES_1_0: Stages = (
    ((16, 64), (16, 64), (32, 128)),
    ((32, 128), (48, 192), (48, 192), (64, 256)),
    ((64, 256),),
)
STAGES_1_1: Stages = (
    ((16, 64), (16, 64)),
    ((32, 128), (32, 128)),
    ((48, 192), (48, 192), (64, 256), (64, 256)),
)


def squeezenet(
    stages: Stages,
    stem: tuple[int, int],
    classes: int = 1000,
    channels: int = 3,
    *,
    dropout: float = 0.5,
    width: float = 1.0,
) -> nn.Sequential:
    """A convolution with `stem` = (channels, kernel size), stages of fire modules, and a convolution as the classifier."""
    inputs, kernel = scaled(stem[:1], width)[0], stem[1]
    layers: list[nn.Module] = [nn.Conv2d(channels, inputs, kernel, stride=2), nn.ReLU()]
    for stage in stages:
        layers.append(nn.MaxPool2d(3, stride=2, ceil_mode=True))
        for row in stage:
            squeezed, expanded = scaled(row, width)
            layers.append(_fire(inputs, squeezed, expanded))
            inputs = 2 * expanded
    head = nn.Conv2d(inputs, classes, 1, init=nn.init.normal(std=0.01))
    return nn.Sequential(*layers, nn.Dropout(dropout), head, nn.ReLU(), nn.GlobalAvgPool())


def _fire(inputs: int, squeezed: int, expanded: int) -> nn.Sequential:
    branches = [nn.Sequential(nn.Conv2d(squeezed, expanded, k, padding=k // 2), nn.ReLU()) for k in (1, 3)]
    return nn.Sequential(nn.Conv2d(inputs, squeezed, 1), nn.ReLU(), Branches(*branches))


@network("classification", input=(3, 224, 224), classes=1000, parameters=1_248_424, macs=818_924_576)
def squeezenet1_0(classes: int = 1000, channels: int = 3, *, dropout: float = 0.5, width: float = 1.0) -> nn.Sequential:
    """SqueezeNet 1.0 for 224 x 224 images: 1,248,424 parameters, as accurate as AlexNet with 50 times as many."""
    return squeezenet(STAGES_1_0, (96, 7), classes, channels, dropout=dropout, width=width)


@network("classification", input=(3, 224, 224), classes=1000, parameters=1_235_496, macs=349_151_936)
def squeezenet1_1(classes: int = 1000, channels: int = 3, *, dropout: float = 0.5, width: float = 1.0) -> nn.Sequential:
    """SqueezeNet 1.1 for 224 x 224 images: 1,235,496 parameters, and less than half of the operations of 1.0."""
    return squeezenet(STAGES_1_1, (64, 3), classes, channels, dropout=dropout, width=width)
