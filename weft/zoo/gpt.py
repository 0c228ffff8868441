"""GPT: a decoder-only transformer that predicts the next token (Radford et al. 2019)."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

from .. import nn
from ..errors import UserError
from ..ops.contract import matmul
from ..ops.creation import arange
from ..ops.indexing import take
from ..ops.movement import expand_dims, transpose
from ..tensor import ArrayLike, Tensor, as_tensor
from .facts import network

Positions = Literal["learned", "rotary", "alibi"]
_START = nn.init.normal(std=0.02)


class GPT(nn.Module):
    """Token and position embeddings, causal transformer blocks, and logits by the tied token embedding."""

    def __init__(
        self,
        vocabulary: int,
        context: int,
        features: int,
        heads: int,
        layers: int,
        dropout: float,
        *,
        positions: Positions = "learned",
        key_heads: int | None = None,
        window: int | None = None,
        eps: float = 1e-5,
    ) -> None:
        if positions not in get_args(Positions):
            raise UserError("GPT", f"positions must be 'learned', 'rotary' or 'alibi', got {positions!r}.")
        self.context = context
        self.tokens = nn.Embedding(vocabulary, features, init=_START)
        self.places = nn.Embedding(context, features, init=_START) if positions == "learned" else None
        self.dropout = nn.Dropout(dropout)
        settings: dict[str, Any] = {"rotary": positions == "rotary", "alibi": positions == "alibi", "eps": eps}
        settings |= {"dropout": dropout, "key_heads": key_heads, "window": window}
        self.blocks = [_block(features, heads, layers, settings) for _ in range(layers)]
        self.norm = nn.LayerNorm(features, eps=eps)

    def forward(self, x: ArrayLike, *, cache: nn.CachePass | None = None, last: Any = None) -> Tensor:
        """Tokens (batch, time) to logits (batch, time, vocabulary).

        With a pass of a cache (see `new_cache`), x are the next tokens. With `last`, an int or a scalar tensor, there are only the
        logits at this time step: (batch, 1, vocabulary).
        """
        x = as_tensor(x)
        if x.ndim != 2 or x.shape[1] > self.context:
            raise UserError("GPT", f"tokens (batch, time up to {self.context}) are required, got shape {x.shape}.")
        y = self.tokens(x)
        if self.places is not None:
            y = y + self.places(arange(x.shape[1]) if cache is None else cache.positions(x.shape[1]))
        y = self.dropout(y)
        for block in self.blocks:
            y = block(y, cache=cache)
        if last is not None:
            y = expand_dims(take(y, as_tensor(last), axis=1), axis=1)
        return matmul(self.norm(y), transpose(self.tokens.weight))

    def new_cache(self, batch: int, capacity: int | None = None, *, padded: bool = False) -> nn.KVCache:
        """An empty cache of keys and values for a batch of this size; the capacity is the context by default."""
        capacity = self.context if capacity is None else capacity
        if capacity > self.context:
            raise UserError("GPT", f"a capacity of up to {self.context} tokens is required, got {capacity}.")
        return nn.KVCache([block.attention for block in self.blocks], batch, capacity, padded=padded)


def _block(features: int, heads: int, layers: int, settings: dict[str, Any]) -> nn.TransformerBlock:
    """A block with the published initialization: residual projections are scaled down with the number of layers."""
    block = nn.TransformerBlock(features, heads, activation=nn.GELU(approximate=True), **settings)
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
    positions: Positions = "learned",
    key_heads: int | None = None,
    window: int | None = None,
) -> GPT:
    """A GPT of any size; the defaults suit character-level text on one machine.

    `positions` are "learned", "rotary" or "alibi". With fewer `key_heads`, heads share keys and values; with a `window`, a token attends
    to so many tokens up to itself.

    >>> import weft
    >>> gpt(65, context=8, features=16, heads=2, layers=1)(weft.zeros((2, 8), dtype="int64")).shape
    (2, 8, 65)
    """
    return GPT(
        vocabulary, context, features, heads, layers, dropout, positions=positions, key_heads=key_heads, window=window
    )


@network("text", parameters=124_439_808)
def gpt2(vocabulary: int = 50257, *, dropout: float = 0.1) -> GPT:
    """GPT-2 small: 124,439,808 parameters."""
    return gpt(vocabulary, 1024, 768, 12, 12, dropout=dropout)
