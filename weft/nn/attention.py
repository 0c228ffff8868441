"""Multi-head attention: each position attends to others and takes a weighted mean of their values."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dtypes import DType, bool_
from ..errors import UserError
from ..ops.attention import Causal, attention
from ..ops.convert import asarray
from ..ops.creation import zeros
from ..ops.movement import expand_dims, reshape, transpose
from ..tensor import ArrayLike, Tensor, as_tensor
from .checks import check_channels, check_count, check_rate
from .kv_cache import CachePass
from .linear import Linear
from .module import Module
from .positions import alibi_slopes, rotary_at
from .positions import rotary as rotated


class MultiHeadAttention(Module):
    """softmax(Q K^T / sqrt(width)) V for each head; the heads are concatenated and projected   (Vaswani et al. 2017)

    Q = x W_query^T, K = context W_key^T, V = context W_value^T, each split into heads of width features / heads.
    With fewer key heads, several heads share keys and values (grouped-query attention, Ainslie et al. 2023). With a window, a query
    attends to this many keys up to its own position. The weights of all queries and keys are never stored.

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
        window: int | None = None,
    ) -> None:
        name = "MultiHeadAttention"
        self.features, self.heads = check_count(name, "features", features), check_count(name, "heads", heads)
        self.key_heads = self.heads if key_heads is None else check_count(name, "key heads", key_heads)
        _check_shares(self.features, self.heads, self.key_heads, rotary)
        self.dropout, self.rotary, self.alibi = check_rate(name, dropout), bool(rotary), bool(alibi)
        self.window = None if window is None else check_count(name, "keys of a window", window)
        shared = self.features // self.heads * self.key_heads
        self.query = Linear(self.features, self.features, bias=bias, init="glorot_uniform")
        self.key = Linear(self.features, shared, bias=bias, init="glorot_uniform")
        self.value = Linear(self.features, shared, bias=bias, init="glorot_uniform")
        self.output = Linear(self.features, self.features, bias=bias, init="glorot_uniform")

    def forward(
        self,
        x: ArrayLike,
        context: Any = None,
        *,
        mask: Any = None,
        causal: Causal = False,
        cache: CachePass | None = None,
    ) -> Tensor:
        """(batch, time, features), from x of that shape, which attends to the context (batch, keys, features) or to x itself.

        A bool mask selects the positions to attend to, a float mask is added to the scores: (queries, keys),
        (batch, queries, keys) or (batch, heads, queries, keys), where sizes of 1 broadcast. For sequences of different
        lengths: mask = (weft.arange(keys) < lengths[:, None])[:, None]. With `causal`, a query attends only to earlier
        positions, with the last query aligned to the last key (or the first to the first: causal="upper_left").
        With a pass of a `KVCache`, x are the next tokens: they attend to what is in the cache, and to themselves causally.
        """
        x = _sequences(x, self.features)
        context = x if context is None else _sequences(context, self.features)
        if context.shape[0] != x.shape[0]:
            raise UserError("MultiHeadAttention", f"one batch is required, got {x.shape} and {context.shape}.")
        q = _split_heads(self.query(x), self.heads)
        k, v = _split_heads(self.key(context), self.key_heads), _split_heads(self.value(context), self.key_heads)
        if cache is not None:
            y = self._attend_cached(q, k, v, cache, mask is not None or context is not x)
        else:
            q, k = _apply_rotary(q, k) if self.rotary else (q, k)
            y = self._attend(q, k, v, mask, causal)
        joined: Tensor = self.output(reshape(y, (*x.shape[:2], y.shape[2] * y.shape[3])))
        return joined

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Any, causal: Causal) -> Tensor:
        """The result of each head: (batch, time, heads, features)."""
        rate = self.dropout if self.training else 0.0
        if rate == 1.0:
            return zeros(q.shape, dtype=q.dtype)
        given = expand_mask(mask, q, k)
        return attention(
            q, k, v, mask=given, causal=causal, window=self.window, slopes=self._slopes(), dropout=rate
        )[0]  # fmt: skip

    def _attend_cached(self, q: Tensor, k: Tensor, v: Tensor, cache: CachePass, more: bool) -> Tensor:
        if more:
            raise UserError("MultiHeadAttention", "a cache is for causal self-attention, without a mask or a context.")
        if self.rotary:
            positions = cache.positions(q.shape[1])
            q, k = (rotary_at(x, positions, cache.cache.capacity) for x in (q, k))
        k, v = cache.store(self, k, v)
        return attention(
            q, k, v, mask=cache.mask(k.shape[1]), causal=True, window=self.window, key_lengths=cache.key_lengths(),
            slopes=self._slopes(),
        )[0]  # fmt: skip

    def cache_row(self) -> tuple[int, int, DType]:
        """Key heads, features of a head, and their dtype: what a `KVCache` holds for each token."""
        return self.key_heads, self.features // self.heads, self.key.weight.dtype

    def _slopes(self) -> Tensor | None:
        return slopes_of(self.heads) if self.alibi else None


def slopes_of(heads: int) -> Tensor:
    """The slopes of ALiBi, one for each head."""
    return asarray(np.asarray(alibi_slopes(heads), np.float32))


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
    """(batch, time, heads * width) as (batch, time, heads, width)."""
    batch, time, features = x.shape
    return reshape(x, (batch, time, heads, features // heads))


def _apply_rotary(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Apply rotary positions, with the last query aligned to the last key."""
    ahead = k.shape[1] - q.shape[1]
    starts = max(0, ahead), max(0, -ahead)
    first, second = (transpose(rotated(transpose(x, 1, 2), start=n), 1, 2) for x, n in zip((q, k), starts, strict=True))
    return first, second


def expand_mask(mask: Any, q: Tensor, k: Tensor) -> Tensor | None:
    """A mask as (batch, heads, queries, keys), where sizes of 1 broadcast."""
    if mask is None:
        return None
    mask, shape = as_tensor(mask), (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    mask = expand_dims(mask, axis=1) if mask.ndim == 3 else mask
    known = mask.ndim in (2, 4) and (mask.dtype is bool_ or mask.dtype.is_float)
    if not known or any(n not in (1, full) for n, full in zip(mask.shape[::-1], shape[::-1], strict=False)):
        raise UserError(
            "MultiHeadAttention",
            f"a bool or float mask that fits (batch, heads, queries, keys) = {shape} is required, with 2 axes "
            f"(queries, keys) or 3 (batch, queries, keys), got {mask.dtype.name} {mask.shape}.",
        )
    return reshape(mask, (*[1] * (4 - mask.ndim), *mask.shape))
