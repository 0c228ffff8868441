"""Multi-head attention: each position attends to others and takes a weighted mean of their values."""

from __future__ import annotations

import math
from typing import Any

from ..dtypes import bool_, finfo
from ..errors import UserError
from ..ops.creation import arange
from ..ops.elementwise import where
from ..ops.loss import dot_product_attention
from ..ops.movement import expand_dims, reshape, transpose
from ..ops.selection import repeat
from ..ops.statistics import softmax
from ..random import dropout as drop
from ..tensor import ArrayLike, Tensor, as_tensor
from .checks import check_channels, check_count, check_rate
from .linear import Linear
from .module import Module
from .positions import alibi as alibi_bias
from .positions import rotary as rotated


class MultiHeadAttention(Module):
    """softmax(Q K^T / sqrt(width)) V for each head; the heads are concatenated and projected   (Vaswani et al. 2017)

    Q = x W_query^T, K = context W_key^T, V = context W_value^T, each split into heads of width features / heads.
    With fewer key heads, several heads share keys and values (grouped-query attention, Ainslie et al. 2023).

    >>> import weft
    >>> MultiHeadAttention(8, 2)(weft.ones((1, 5, 8)), causal=True).shape
    (1, 5, 8)
    """

    def __init__(
        self,
        features: int,
        heads: int,
        *,
        key_heads: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        rotary: bool = False,
        alibi: bool = False,
    ) -> None:
        name = "MultiHeadAttention"
        self.features, self.heads = check_count(name, "features", features), check_count(name, "heads", heads)
        self.key_heads = self.heads if key_heads is None else check_count(name, "key heads", key_heads)
        _check_shares(self.features, self.heads, self.key_heads, rotary)
        self.dropout, self.rotary, self.alibi = check_rate(name, dropout), bool(rotary), bool(alibi)
        shared = self.features // self.heads * self.key_heads
        self.query = Linear(self.features, self.features, bias=bias, init="glorot_uniform")
        self.key = Linear(self.features, shared, bias=bias, init="glorot_uniform")
        self.value = Linear(self.features, shared, bias=bias, init="glorot_uniform")
        self.output = Linear(self.features, self.features, bias=bias, init="glorot_uniform")

    def forward(self, x: ArrayLike, context: Any = None, *, mask: Any = None, causal: bool = False) -> Tensor:
        """(batch, time, features), from x of that shape, which attends to the context (batch, keys, features) or to x itself.

        A bool mask selects the positions to attend to, a float mask is added to the scores: (queries, keys),
        (batch, queries, keys) or (batch, heads, queries, keys), where sizes of 1 broadcast. For sequences of different
        lengths: mask = (weft.arange(keys) < lengths[:, None])[:, None]. With `causal`, a query attends only to earlier
        positions, with the last query aligned to the last key.
        """
        x = _sequences(x, self.features)
        context = x if context is None else _sequences(context, self.features)
        if context.shape[0] != x.shape[0]:
            raise UserError("MultiHeadAttention", f"one batch is required, got {x.shape} and {context.shape}.")
        q = _split_heads(self.query(x), self.heads)
        k, v = _split_heads(self.key(context), self.key_heads), _split_heads(self.value(context), self.key_heads)
        if self.rotary:
            q, k = _apply_rotary(q, k)
        k, v = (repeat(t, self.heads // self.key_heads, axis=1) for t in (k, v))
        y = self._attend(q, k, v, self._mask(mask, q, k), causal)
        joined: Tensor = self.output(reshape(transpose(y, 1, 2), (*x.shape[:2], y.shape[1] * y.shape[3])))
        return joined

    def _mask(self, mask: Any, q: Tensor, k: Tensor) -> Tensor | None:
        """The user's mask with four axes, plus the ALiBi bias."""
        shape = (*q.shape[:3], k.shape[2])
        given = None if mask is None else _expand_mask(as_tensor(mask), shape)
        if not self.alibi:
            return given
        bias = alibi_bias(*shape[1:]).astype(q.dtype)
        if given is None:
            return bias
        return where(given, bias, -math.inf) if given.dtype is bool_ else given.astype(q.dtype) + bias

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        if not self.training or self.dropout == 0.0:
            return dot_product_attention(q, k, v, mask=mask, causal=causal)
        return drop(attention_weights(q, k, mask=mask, causal=causal), self.dropout) @ v


def attention_weights(query: Tensor, key: Tensor, *, mask: Tensor | None = None, causal: bool = False) -> Tensor:
    """The attention weights (..., queries, keys) of dot_product_attention; fully masked rows are zeros."""
    scores = query @ key.mT * (1.0 / math.sqrt(query.shape[-1]))
    allowed: Tensor | None = None
    if mask is not None:
        allowed = mask if mask.dtype is bool_ else mask > -math.inf
        if mask.dtype is not bool_:
            scores = scores + where(allowed, mask, 0.0).astype(scores.dtype)
    if causal:
        queries, keys = scores.shape[-2:]
        past = arange(keys) <= expand_dims(arange(queries), axis=1) + (keys - queries)
        allowed = past if allowed is None else allowed & past
    if allowed is None:
        return softmax(scores)
    lowest = float(finfo(scores.dtype).min)  # not -inf, which would make a fully masked row nan
    return where(allowed, softmax(where(allowed, scores, lowest)), 0.0)


def _check_shares(features: int, heads: int, key_heads: int, rotary: bool) -> None:
    name = "MultiHeadAttention"
    if features % heads:
        raise UserError(name, f"features that are a multiple of the {heads} heads are required, got {features}.")
    if heads % key_heads:
        raise UserError(name, f"heads that are a multiple of the {key_heads} key heads are required, got {heads}.")
    if rotary and features // heads % 2:
        width = features // heads
        raise UserError(name, f"rotary positions turn pairs: heads of even width are required, got {width}.")


def _sequences(x: ArrayLike, features: int) -> Tensor:
    x = as_tensor(x)
    if x.ndim != 3:
        raise UserError("MultiHeadAttention", f"an input (batch, time, features) is required, got shape {x.shape}.")
    return check_channels("MultiHeadAttention", x, features, axis=-1)


def _split_heads(x: Tensor, heads: int) -> Tensor:
    """(batch, time, heads * width) as (batch, heads, time, width)."""
    batch, time, features = x.shape
    return transpose(reshape(x, (batch, time, heads, features // heads)), 1, 2)


def _apply_rotary(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Apply rotary positions, with the last query aligned to the last key."""
    ahead = k.shape[2] - q.shape[2]
    return rotated(q, start=max(0, ahead)), rotated(k, start=max(0, -ahead))


def _expand_mask(mask: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A mask as (batch, heads, queries, keys)."""
    mask = expand_dims(mask, axis=1) if mask.ndim == 3 else mask
    known = mask.ndim in (2, 4) and (mask.dtype is bool_ or mask.dtype.is_float)
    if not known or any(n not in (1, full) for n, full in zip(mask.shape[::-1], shape[::-1], strict=False)):
        raise UserError(
            "MultiHeadAttention",
            f"a bool or float mask that fits (batch, heads, queries, keys) = {shape} is required, with 2 axes "
            f"(queries, keys) or 3 (batch, queries, keys), got {mask.dtype.name} {mask.shape}.",
        )
    return mask
