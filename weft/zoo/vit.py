"""Vision transformer: an image as a sequence of patches (Dosovitskiy et al. 2021; tiny and small: Touvron et al. 2021)."""

from __future__ import annotations

from .. import nn
from ..errors import UserError
from ..ops.movement import broadcast_to, concat, flatten, transpose
from ..tensor import Tensor
from .facts import network


class ViT(nn.Module):
    """Patch embeddings and a class token, learned positions, transformer blocks, and a linear layer on the class token."""

    def __init__(
        self,
        classes: int,
        channels: int,
        *,
        size: int,
        patch: int,
        features: int,
        heads: int,
        layers: int,
        dropout: float,
    ) -> None:
        if patch < 1 or size % patch:
            raise UserError("vit", f"a size that patches divide is required, got size {size} and patches of {patch}.")
        self.patches = nn.Conv2d(channels, features, patch, stride=patch, init="lecun_normal")
        self.first = nn.parameter((1, 1, features), "zeros")
        self.places = nn.parameter((1, 1 + (size // patch) ** 2, features), nn.init.normal(std=0.02))
        self.dropout = nn.Dropout(dropout)
        self.blocks = [nn.TransformerEncoderLayer(features, heads, dropout=dropout, eps=1e-6) for _ in range(layers)]
        self.norm = nn.LayerNorm(features, eps=1e-6)
        self.top = nn.Linear(features, classes, init="zeros")  # as published: equal logits at initialization

    def forward(self, x: Tensor) -> Tensor:
        tokens = transpose(flatten(self.patches(x), 2), 1, 2)
        first = broadcast_to(self.first, (tokens.shape[0], 1, tokens.shape[2]))
        y = self.dropout(concat([first, tokens], axis=1) + self.places)
        for block in self.blocks:
            y = block(y)
        logits: Tensor = self.top(self.norm(y)[:, 0])
        return logits


def vit(
    classes: int = 1000,
    channels: int = 3,
    *,
    size: int = 224,
    patch: int = 16,
    features: int = 768,
    heads: int = 12,
    layers: int = 12,
    dropout: float = 0.0,
) -> ViT:
    """A vision transformer of any size, for images of `size` x `size`."""
    return ViT(
        classes, channels, size=size, patch=patch, features=features, heads=heads, layers=layers, dropout=dropout
    )


@network("classification", input=(3, 224, 224), classes=1000, parameters=5_717_416, macs=1_253_683_200, needs_size=True)
def vit_tiny(classes: int = 1000, channels: int = 3, *, size: int = 224, dropout: float = 0.0) -> ViT:
    """ViT-Ti/16: 5,717,416 parameters."""
    return vit(classes, channels, size=size, features=192, heads=3, dropout=dropout)


@network(
    "classification", input=(3, 224, 224), classes=1000, parameters=22_050_664, macs=4_598_882_304, needs_size=True
)
def vit_small(classes: int = 1000, channels: int = 3, *, size: int = 224, dropout: float = 0.0) -> ViT:
    """ViT-S/16: 22,050,664 parameters."""
    return vit(classes, channels, size=size, features=384, heads=6, dropout=dropout)


@network(
    "classification", input=(3, 224, 224), classes=1000, parameters=86_567_656, macs=17_563_828_224, needs_size=True
)
def vit_base(classes: int = 1000, channels: int = 3, *, size: int = 224, dropout: float = 0.0) -> ViT:
    """ViT-B/16: 86,567,656 parameters."""
    return vit(classes, channels, size=size, dropout=dropout)
