"""GPT: a decoder-only transformer that predicts the next token (Radford et al. 2019)."""

from __future__ import annotations

import math

from .. import nn
from ..errors import UserError
from ..ops.contract import matmul
from ..ops.creation import arange
from ..ops.movement import transpose
from ..tensor import ArrayLike, Tensor, as_tensor
from .facts import network

_START = nn.init.normal(std=0.02)


class GPT(nn.Module):
    """Token and position embeddings, causal transformer blocks, and logits by the tied token embedding."""

    def __init__(self, vocabulary: int, context: int, features: int, heads: int, layers: int, dropout: float) -> None:
        self.context = context
        self.tokens = nn.Embedding(vocabulary, features, init=_START)
        self.places = nn.Embedding(context, features, init=_START)
        self.dropout = nn.Dropout(dropout)
        self.blocks = [_block(features, heads, layers, dropout) for _ in range(layers)]
        self.norm = nn.LayerNorm(features)

    def forward(self, x: ArrayLike) -> Tensor:
        """Tokens (batch, time) to logits (batch, time, vocabulary)."""
        x = as_tensor(x)
        if x.ndim != 2 or x.shape[1] > self.context:
            raise UserError("GPT", f"tokens (batch, time up to {self.context}) are required, got shape {x.shape}.")
        y = self.dropout(self.tokens(x) + self.places(arange(x.shape[1])))
        for block in self.blocks:
            y = block(y)
        return matmul(self.norm(y), transpose(self.tokens.weight))


def _block(features: int, heads: int, layers: int, dropout: float) -> nn.TransformerBlock:
    """A block with the published initialization: residual projections are scaled down with the number of layers."""
    block = nn.TransformerBlock(features, heads, activation=nn.GELU(approximate=True), dropout=dropout)
    added = (block.attention.output, block.feed_forward.second)
    for part in block.modules():
        if isinstance(part, nn.Linear):
            std = 0.02 / math.sqrt(2 * layers) if part in added else 0.02
            part.weight = nn.parameter(part.weight.shape, nn.init.normal(std=std))
    return block


@network("text", parameters=10_770_816, rate_scale=0.3)
def gpt(
    vocabulary: int,
    context: int = 256,
    features: int = 384,
    heads: int = 6,
    layers: int = 6,
    *,
    dropout: float = 0.0,
) -> GPT:
    """A GPT of any size; the defaults suit character-level text on one machine.

    >>> import weft
    >>> gpt(65, context=8, features=16, heads=2, layers=1)(weft.zeros((2, 8), dtype="int64")).shape
    (2, 8, 65)
    """
    return GPT(vocabulary, context, features, heads, layers, dropout)


@network("text", parameters=124_439_808)
def gpt2(vocabulary: int = 50257, *, dropout: float = 0.1) -> GPT:
    """GPT-2 small: 124,439,808 parameters."""
    return gpt(vocabulary, 1024, 768, 12, 12, dropout=dropout)
