"""GoogLeNet: modules of four parallel branches (Szegedy et al. 2015), as published or with batch norm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import nn
from ..tensor import Tensor
from .building_blocks import Branches, conv_norm, scaled
from .facts import network

Row = tuple[int, int, int, int, int, int]

# The paper's table 1: 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, behind the pooling. A pooling stands before 4a and 5a.
MODULES: dict[str, Row] = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


class GoogLeNet(nn.Module):
    """Stem, nine modules, global average pooling, one linear layer; with `aux`, training mode also returns the logits of two auxiliary heads.

    With batch norm it is the network of the common weights: its "5 x 5" branch has a 3 x 3 kernel and the stem no local
    response norm. Without, it is the paper's.
    """

    def __init__(
        self,
        classes: int,
        channels: int,
        *,
        norm: bool,
        aux: bool,
        dropout: float,
        width: float,
        hidden: int,
        rows: Mapping[str, Row],
    ) -> None:
        stem = scaled((64, 64, 192), width)
        self.stem = nn.Sequential(*_stem(channels, stem, norm))
        self.parts: dict[str, nn.Module] = {}
        self.heads: dict[str, nn.Module] = {}
        inputs = stem[-1]
        for name, row in rows.items():
            if aux and name in ("4b", "4e"):  # their inputs are the outputs of 4a and 4d
                self.heads[name] = _head(inputs, scaled((128,), width)[0], hidden, classes, norm)
            branches, inputs = _module(inputs, scaled(row, width), norm)
            self.parts[name] = nn.Sequential(_pool(name, norm), branches) if name in ("4a", "5a") else branches
        self.top = nn.Sequential(nn.GlobalAvgPool(), nn.Dropout(dropout), nn.Linear(inputs, classes))

    def forward(self, x: Tensor) -> Any:
        x = self.stem(x)
        side = []
        for name, part in self.parts.items():
            if self.training and name in self.heads:
                side.append(self.heads[name](x))
            x = part(x)
        logits = self.top(x)
        return (logits, *side) if side else logits


def _conv(inputs: int, outputs: int, kernel: int, norm: bool, stride: int = 1) -> nn.Module:
    if norm:
        return conv_norm(inputs, outputs, kernel, stride=stride, eps=1e-3)
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, activation="relu")


def _stem(channels: int, widths: list[int], norm: bool) -> list[nn.Module]:
    a, b, c = widths
    first = [_conv(channels, a, 7, norm, 2), _pool("3a", norm), *_response(norm)]
    return [*first, _conv(a, b, 1, norm), _conv(b, c, 3, norm), *_response(norm), _pool("3a", norm)]


def _response(norm: bool) -> list[nn.Module]:
    return [] if norm else [nn.LRN(5)]


def _module(inputs: int, row: list[int], norm: bool) -> tuple[nn.Module, int]:
    one, reduce3, three, reduce5, five, behind = row
    branches = Branches(
        _conv(inputs, one, 1, norm),
        nn.Sequential(_conv(inputs, reduce3, 1, norm), _conv(reduce3, three, 3, norm)),
        nn.Sequential(_conv(inputs, reduce5, 1, norm), _conv(reduce5, five, 3 if norm else 5, norm)),
        nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), _conv(inputs, behind, 1, norm)),
    )
    return branches, one + three + five + behind


def _pool(name: str, norm: bool) -> nn.Module:
    return nn.MaxPool2d(2 if norm and name == "5a" else 3, stride=2, ceil_mode=True)


def _head(inputs: int, inner: int, hidden: int, classes: int, norm: bool) -> nn.Module:
    """An auxiliary classifier: at 224 x 224, average pooling over windows of 5 with stride 3 gives 4 x 4."""
    return nn.Sequential(
        nn.AdaptiveAvgPool2d(4),
        _conv(inputs, inner, 1, norm),
        nn.Flatten(),
        nn.Linear(inner * 16, hidden, activation="relu"),
        nn.Dropout(0.7),
        nn.Linear(hidden, classes),
    )


@network("classification", input=(3, 224, 224), classes=1000, parameters=6_624_904, macs=1_498_376_192)
def googlenet(
    classes: int = 1000,
    channels: int = 3,
    *,
    norm: bool = True,
    aux: bool = False,
    dropout: float = 0.2,
    width: float = 1.0,
    hidden: int = 1024,
    rows: Mapping[str, Row] = MODULES,
) -> GoogLeNet:
    """GoogLeNet for 224 x 224 images: 6,624,904 parameters, with `aux` 13,004,888.

    As published, `norm=False` (there with dropout=0.4): 6,998,552, with `aux` 13,378,280.
    """
    return GoogLeNet(classes, channels, norm=norm, aux=aux, dropout=dropout, width=width, hidden=hidden, rows=rows)
