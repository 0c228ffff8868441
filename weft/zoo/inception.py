"""Inception v3: large filters factorized into small and asymmetric ones (Szegedy et al. 2016), for 299 x 299 images."""

from __future__ import annotations

from typing import Any

from .. import nn
from ..tensor import Tensor
from .building_blocks import Branches, conv_norm
from .facts import network

Counts = tuple[int, int, int]  # of the modules of figures 5, 6 and 7
_START = nn.init.truncated_normal(std=0.1)


def _conv(
    inputs: int, outputs: int, kernel: int | tuple[int, int], stride: int = 1, *, border: bool = True
) -> nn.Module:
    padding = None if border and stride == 1 else 0
    return conv_norm(inputs, outputs, kernel, stride=stride, padding=padding, eps=1e-3, init=_START)


class _Sizes:
    """Numbers of channels, scaled by one factor."""

    def __init__(self, width: float) -> None:
        self.width = width

    def __call__(self, *channels: int) -> Any:
        found = [max(1, round(n * self.width)) for n in channels]
        return found[0] if len(found) == 1 else found


def _pooled(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1), _conv(inputs, outputs, 1))


def _a(inputs: int, behind: int, of: _Sizes) -> tuple[nn.Module, int]:
    """Figure 5: a 5 x 5 filter, and as two of 3 x 3."""
    small, middle, wide = of(48, 64, 96)
    branches = Branches(
        _conv(inputs, middle, 1),
        nn.Sequential(_conv(inputs, small, 1), _conv(small, middle, 5)),
        nn.Sequential(_conv(inputs, middle, 1), _conv(middle, wide, 3), _conv(wide, wide, 3)),
        _pooled(inputs, behind),
    )
    return branches, 2 * middle + wide + behind


def _b(inputs: int, of: _Sizes) -> tuple[nn.Module, int]:
    """Figure 10: half the size without a bottleneck."""
    a, b, c = of(384, 64, 96)
    branches = Branches(
        _conv(inputs, a, 3, 2),
        nn.Sequential(_conv(inputs, b, 1), _conv(b, c, 3), _conv(c, c, 3, 2)),
        nn.MaxPool2d(3, stride=2),
    )
    return branches, a + c + inputs


def _c(inputs: int, inner: int, of: _Sizes) -> tuple[nn.Module, int]:
    """Figure 6: 7 x 7 as 1 x 7 and 7 x 1."""
    n, flat, high = of(192), (1, 7), (7, 1)
    branches = Branches(
        _conv(inputs, n, 1),
        nn.Sequential(_conv(inputs, inner, 1), _conv(inner, inner, flat), _conv(inner, n, high)),
        nn.Sequential(
            _conv(inputs, inner, 1),
            _conv(inner, inner, high),
            _conv(inner, inner, flat),
            _conv(inner, inner, high),
            _conv(inner, n, flat),
        ),
        _pooled(inputs, n),
    )
    return branches, 4 * n


def _d(inputs: int, of: _Sizes) -> tuple[nn.Module, int]:
    n, wide = of(192, 320)
    branches = Branches(
        nn.Sequential(_conv(inputs, n, 1), _conv(n, wide, 3, 2)),
        nn.Sequential(_conv(inputs, n, 1), _conv(n, n, (1, 7)), _conv(n, n, (7, 1)), _conv(n, n, 3, 2)),
        nn.MaxPool2d(3, stride=2),
    )
    return branches, n + wide + inputs


def _e(inputs: int, of: _Sizes) -> tuple[nn.Module, int]:
    """Figure 7: 3 x 3 as 1 x 3 beside 3 x 1."""
    a, b, c, behind = of(320, 384, 448, 192)
    branches = Branches(
        _conv(inputs, a, 1),
        nn.Sequential(_conv(inputs, b, 1), Branches(_conv(b, b, (1, 3)), _conv(b, b, (3, 1)))),
        nn.Sequential(_conv(inputs, c, 1), _conv(c, b, 3), Branches(_conv(b, b, (1, 3)), _conv(b, b, (3, 1)))),
        _pooled(inputs, behind),
    )
    return branches, a + 4 * b + behind


class InceptionV3(nn.Module):
    """Stem, eleven modules, global average pooling, one linear layer; with `aux`, training mode also returns the logits of an auxiliary head."""

    def __init__(self, classes: int, channels: int, *, aux: bool, dropout: float, width: float, counts: Counts) -> None:
        of = _Sizes(width)
        lower, inputs = _lower(channels, counts, of)
        self.lower = nn.Sequential(*lower)
        self.aux = _head(inputs, of(128), of(768), classes) if aux else None
        part, inputs = _d(inputs, of)
        upper = [part]
        for _ in range(counts[2]):
            part, inputs = _e(inputs, of)
            upper.append(part)
        self.upper = nn.Sequential(*upper)
        linear = nn.Linear(inputs, classes, init=_START)
        self.top = nn.Sequential(nn.GlobalAvgPool(), nn.Dropout(dropout), linear)

    def forward(self, x: Tensor) -> Any:
        x = self.lower(x)
        logits = self.top(self.upper(x))
        return (logits, self.aux(x)) if self.aux is not None and self.training else logits


def _lower(channels: int, counts: Counts, of: _Sizes) -> tuple[list[nn.Module], int]:
    parts, inputs = stem(channels, of(32, 32, 64, 80, 192))
    for behind in of(32, 64, 64)[: counts[0]]:
        part, inputs = _a(inputs, behind, of)
        parts.append(part)
    part, inputs = _b(inputs, of)
    parts.append(part)
    for inner in of(128, 160, 160, 192)[: counts[1]]:
        part, inputs = _c(inputs, inner, of)
        parts.append(part)
    return parts, inputs


def stem(channels: int, widths: list[int]) -> tuple[list[nn.Module], int]:
    """Five convolutions and two poolings: 299 x 299 to 35 x 35."""
    a, b, c, d, e = widths
    parts: list[nn.Module] = [
        _conv(channels, a, 3, 2),
        _conv(a, b, 3, border=False),
        _conv(b, c, 3),
        nn.MaxPool2d(3, stride=2),
        _conv(c, d, 1),
        _conv(d, e, 3, border=False),
        nn.MaxPool2d(3, stride=2),
    ]
    return parts, e


def _head(inputs: int, inner: int, wide: int, classes: int) -> nn.Module:
    return nn.Sequential(
        nn.AvgPool2d(5, stride=3),
        _conv(inputs, inner, 1),
        _conv(inner, wide, 5, border=False),
        nn.GlobalAvgPool(),
        nn.Linear(wide, classes, init=nn.init.truncated_normal(std=0.001)),
    )


@network(
    "classification", input=(3, 299, 299), classes=1000, parameters=23_834_568, macs=5_713_216_096, needs_size=True
)
def inception_v3(
    classes: int = 1000,
    channels: int = 3,
    *,
    aux: bool = False,
    dropout: float = 0.5,
    width: float = 1.0,
    counts: Counts = (3, 4, 2),
) -> InceptionV3:
    """Inception v3 for 299 x 299 images (75 x 75 at least): 23,834,568 parameters, with `aux` 27,161,264.

    The auxiliary head requires the full size.
    """
    return InceptionV3(classes, channels, aux=aux, dropout=dropout, width=width, counts=counts)
