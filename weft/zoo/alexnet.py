"""AlexNet in one column (Krizhevsky 2014, "One weird trick for parallelizing convolutional neural networks")."""

from __future__ import annotations

from .. import nn
from .facts import network


@network("classification", input=(3, 224, 224), classes=1000, parameters=61_100_840, macs=714_188_480, needs_size=True)
def alexnet(
    classes: int = 1000, channels: int = 3, *, dropout: float = 0.5, width: int = 64, hidden: int = 4096
) -> nn.Sequential:
    """Five convolutions and three linear layers, for 224 x 224 images: 61,100,840 parameters."""
    a, b, c, d = width, 3 * width, 6 * width, 4 * width
    return nn.Sequential(
        nn.Conv2d(channels, a, 11, stride=4, padding=2, activation="relu"),
        nn.MaxPool2d(3, stride=2),
        nn.Conv2d(a, b, 5, padding=2, activation="relu"),
        nn.MaxPool2d(3, stride=2),
        nn.Conv2d(b, c, 3, padding=1, activation="relu"),
        nn.Conv2d(c, d, 3, padding=1, activation="relu"),
        nn.Conv2d(d, d, 3, padding=1, activation="relu"),
        nn.MaxPool2d(3, stride=2),
        nn.AdaptiveAvgPool2d(6),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(d * 6 * 6, hidden, activation="relu"),
        nn.Dropout(dropout),
        nn.Linear(hidden, hidden, activation="relu"),
        nn.Linear(hidden, classes, init=nn.init.normal(std=0.01)),
    )
