"""Inception-ResNet v2: Inception modules whose output is scaled down and added (Szegedy et al. 2017), for 299 x 299 images."""

from __future__ import annotations

from collections.abc import Sequence

from .. import nn
from ..errors import UserError
from ..ops.activation import relu
from ..tensor import Tensor
from .building_blocks import Branches, conv_norm, scaled
from .facts import network
from .inception import stem

Kernel = int | tuple[int, int]
Branch = Sequence[tuple[int, Kernel]]  # (channels, kernel) of its convolutions, one after the other


def _chain(inputs: int, branch: Branch, width: float, *, halve: bool = False) -> tuple[list[nn.Module], int]:
    """The convolutions of a branch; with `halve`, the last one has stride 2 and no padding."""
    parts: list[nn.Module] = []
    for place, (channels, kernel) in enumerate(branch):
        outputs, last = scaled((channels,), width)[0], halve and place == len(branch) - 1
        stride, padding = (2, 0) if last else (1, None)
        parts.append(conv_norm(inputs, outputs, kernel, stride=stride, padding=padding, eps=1e-3))
        inputs = outputs
    return parts, inputs


class InceptionResNetBlock(nn.Module):
    """relu(x + scale * W [branches of x]); the last block of all has no relu."""

    def __init__(self, inputs: int, branches: Sequence[Branch], width: float, scale: float, last: bool = False) -> None:
        self.scale, self.last = scale, last
        made = [_chain(inputs, branch, width) for branch in branches]
        self.branches = Branches(*(nn.Sequential(*parts) for parts, _ in made))
        self.up = nn.Conv2d(sum(outputs for _, outputs in made), inputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.scale * self.up(self.branches(x))
        return y if self.last else relu(y)


def _reduction(inputs: int, branches: Sequence[Branch], width: float) -> tuple[nn.Module, int]:
    """A reduction module: strided branches in parallel with pooling."""
    made = [_chain(inputs, branch, width, halve=True) for branch in branches]
    parts = Branches(*(nn.Sequential(*p) for p, _ in made), nn.MaxPool2d(3, stride=2))
    return parts, inputs + sum(outputs for _, outputs in made)


def _mixed_5b(inputs: int, width: float) -> tuple[nn.Module, int]:
    """Module 5b, the only one without a residual connection."""
    branches: list[Branch] = [((96, 1),), ((48, 1), (64, 5)), ((64, 1), (96, 3), (96, 3))]
    made = [_chain(inputs, branch, width) for branch in branches]
    behind, outputs = _chain(inputs, ((64, 1),), width)
    pool = nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)
    parts = Branches(*(nn.Sequential(*p) for p, _ in made), nn.Sequential(pool, *behind))
    return parts, outputs + sum(n for _, n in made)


BLOCK_35: list[Branch] = [((32, 1),), ((32, 1), (32, 3)), ((32, 1), (48, 3), (64, 3))]
BLOCK_17: list[Branch] = [((192, 1),), ((128, 1), (160, (1, 7)), (192, (7, 1)))]
BLOCK_8: list[Branch] = [((192, 1),), ((192, 1), (224, (1, 3)), (256, (3, 1)))]
REDUCE_35: list[Branch] = [((384, 3),), ((256, 1), (256, 3), (384, 3))]
REDUCE_17: list[Branch] = [((256, 1), (384, 3)), ((256, 1), (288, 3)), ((256, 1), (288, 3), (320, 3))]


@network(
    "classification", input=(3, 299, 299), classes=1000, parameters=55_843_464, macs=13_155_794_016, needs_size=True
)
def inception_resnet_v2(
    classes: int = 1000,
    channels: int = 3,
    *,
    dropout: float = 0.2,
    blocks: tuple[int, int, int] = (10, 20, 10),
    width: float = 1.0,
) -> nn.Sequential:
    """Inception-ResNet v2: 55,843,464 parameters (batch norm with scale and shift; running statistics are not counted).

    Others count 55,873,736: without the scales, but with the running means and variances.
    """
    if blocks[2] < 1:
        raise UserError("inception_resnet_v2", f"at least one block of the last kind is required, got {blocks=}.")
    parts, inputs = stem(channels, scaled((32, 32, 64, 80, 192), width))
    mixed, inputs = _mixed_5b(inputs, width)
    parts += [mixed, *(InceptionResNetBlock(inputs, BLOCK_35, width, 0.17) for _ in range(blocks[0]))]
    half, inputs = _reduction(inputs, REDUCE_35, width)
    parts += [half, *(InceptionResNetBlock(inputs, BLOCK_17, width, 0.10) for _ in range(blocks[1]))]
    half, inputs = _reduction(inputs, REDUCE_17, width)
    parts += [half, *(InceptionResNetBlock(inputs, BLOCK_8, width, 0.20) for _ in range(blocks[2] - 1))]
    parts.append(InceptionResNetBlock(inputs, BLOCK_8, width, 1.0, last=True))
    top, outputs = _chain(inputs, ((1536, 1),), width)
    return nn.Sequential(*parts, *top, nn.GlobalAvgPool(), nn.Dropout(dropout), nn.Linear(outputs, classes))
