"""Multi-head attention: each position attends to others and takes a weighted mean of their values."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dtypes import bool_, int32
from ..errors import UserError
from ..ops.attention import Alignment, Causal, attention
from ..ops.convert import asarray
from ..ops.creation import arange, zeros
from ..ops.elementwise import astype
from ..ops.math import clip
from ..ops.movement import expand_dims, reshape, transpose
from ..records import dataclass
from ..tensor import ArrayLike, Tensor, as_tensor
from .checks import check_channels, check_count, check_rate
from .kv_cache import CachePass, CacheRow
from .linear import Linear
from .module import Module
from .positions import alibi_slopes, rotary_at
from .positions import rotary as rotated


@dataclass(frozen=True)
class Selection:
    """Which keys a query attends to."""

    mask: Any
    causal: bool
    align: Alignment
    key_lengths: Tensor | None


class MultiHeadAttention(Module):
    """softmax(Q K^T / sqrt(width)) V for each head; the heads are concatenated and projected   (Vaswani et al. 2017)

    Q = x W_query^T, K = context W_key^T, V = context W_value^T, each split into heads of width `head_size` (features / heads by default),
    those of V of width `value_size` (`head_size` by default). The output projection maps heads * value_size features to `features`.
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
        head_size: int | None = None,
        value_size: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        rotary: bool = False,
        alibi: bool = False,
        window: int | None = None,
    ) -> None:
        name = "MultiHeadAttention"
        self.features, self.heads = check_count(name, "features", features), check_count(name, "heads", heads)
        self.key_heads = self.heads if key_heads is None else check_count(name, "key heads", key_heads)
        self.head_size = _head_size(self.features, self.heads, head_size)
        self.value_size = self.head_size if value_size is None else check_count(name, "values of a head", value_size)
        _check_shares(self.heads, self.key_heads, self.head_size, rotary)
        self.dropout, self.rotary, self.alibi = check_rate(name, dropout), bool(rotary), bool(alibi)
        self.window = None if window is None else check_count(name, "keys of a window", window)
        widths = self.heads * self.head_size, self.key_heads * self.head_size, self.key_heads * self.value_size
        self.query, self.key, self.value = (
            Linear(self.features, width, bias=bias, init="glorot_uniform") for width in widths
        )
        self.output = Linear(self.heads * self.value_size, self.features, bias=bias, init="glorot_uniform")

    def forward(
        self,
        x: ArrayLike,
        context: Any = None,
        *,
        mask: Any = None,
        causal: Causal = False,
        key_lengths: Any = None,
        cache: CachePass | None = None,
    ) -> Tensor:
        """(batch, time, features), from x of that shape, which attends to the context (batch, keys, features) or to x itself.

        A bool mask selects the positions to attend to, a float mask is added to the scores: (queries, keys),
        (batch, queries, keys) or (batch, heads, queries, keys), where sizes of 1 broadcast. With `causal`, a query attends only
        to earlier positions, with the last query aligned to the last key (or the first to the first: causal="upper_left").
        `key_lengths` (batch,) says how many keys of each example count, where shorter sequences are padded at their end; the last
        query is then aligned to the last key that counts. Positions of self-attention stay those of the sequence.
        With a pass of a `KVCache`, x are the next tokens: they attend to what is in the cache, and to themselves causally. If the
        cache holds this layer's context, the context is given to the first pass only.
        """
        x = _sequences(x, self.features)
        given = x if context is None else _sequences(context, self.features)
        if given.shape[0] != x.shape[0]:
            raise UserError("MultiHeadAttention", f"one batch is required, got {x.shape} and {given.shape}.")
        q = _split_heads(self.query(x), self.heads)
        lengths = None if key_lengths is None else _key_lengths(key_lengths, x.shape[0])
        align = _alignment(causal, lengths is not None and given is x)
        which = Selection(mask, bool(causal), align, lengths)
        if cache is not None and cache.holds_context_of(self):
            y = self._attend(q, *self._cached_context(context, cache, which), which)
        elif cache is not None:
            y = self._attend_cached(
                q, *self._projected(x), cache, mask is not None or lengths is not None or given is not x
            )
        else:
            k, v = self._projected(given)
            q, k = _apply_rotary(q, k, align, lengths) if self.rotary else (q, k)
            y = self._attend(q, k, v, which)
        joined: Tensor = self.output(reshape(y, (*x.shape[:2], y.shape[2] * y.shape[3])))
        return joined

    def _projected(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values: (batch, time, key heads, width)."""
        return _split_heads(self.key(context), self.key_heads), _split_heads(self.value(context), self.key_heads)

    def _cached_context(self, context: Any, cache: CachePass, which: Selection) -> tuple[Tensor, Tensor]:
        if self.rotary or self.alibi or self.window is not None or which.causal:
            raise UserError(
                "MultiHeadAttention",
                "a cache of a context knows no positions: neither causal nor rotary, alibi or a window are supported.",
            )
        return cache.context(self, None if context is None else self._projected(_sequences(context, self.features)))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, which: Selection) -> Tensor:
        """The result of each head: (batch, time, heads, values)."""
        rate = self.dropout if self.training else 0.0
        if rate == 1.0:
            return zeros((*q.shape[:3], v.shape[3]), dtype=q.dtype)
        return self._weighted(q, k, v, which, rate)

    def _weighted(self, q: Tensor, k: Tensor, v: Tensor, which: Selection, dropout: float = 0.0) -> Tensor:
        return attention(
            q, k, v, mask=expand_mask(which.mask, q, k), causal=which.causal, align=which.align, window=self.window,
            key_lengths=which.key_lengths, slopes=self._slopes(), dropout=dropout,
        )[0]  # fmt: skip

    def _attend_cached(self, q: Tensor, k: Tensor, v: Tensor, cache: CachePass, more: bool) -> Tensor:
        if more:
            raise UserError(
                "MultiHeadAttention", "a cache is for causal self-attention, without a mask, key lengths or a context."
            )
        if self.rotary:
            positions = cache.positions(q.shape[1])
            q, k = (rotary_at(x, positions, cache.cache.capacity) for x in (q, k))
        k, v = cache.store(self, k, v)
        return attention(
            q, k, v, mask=cache.mask(k.shape[1]), causal=True, window=self.window, key_lengths=cache.key_lengths(),
            slopes=self._slopes(),
        )[0]  # fmt: skip

    def cache_row(self) -> CacheRow:
        """What a `KVCache` holds for each token."""
        return CacheRow(self.key_heads, self.head_size, self.value_size, self.key.weight.dtype)

    def _slopes(self) -> Tensor | None:
        return slopes_of(self.heads) if self.alibi else None


def slopes_of(heads: int) -> Tensor:
    """The slopes of ALiBi, one for each head."""
    return asarray(np.asarray(alibi_slopes(heads), np.float32))


def _head_size(features: int, heads: int, given: int | None) -> int:
    if given is not None:
        return check_count("MultiHeadAttention", "features of a head", given)
    if features % heads:
        raise UserError(
            "MultiHeadAttention",
            f"features that are a multiple of the {heads} heads are required, got {features}. Give head_size for other widths.",
        )
    return features // heads


def _check_shares(heads: int, key_heads: int, head_size: int, rotary: bool) -> None:
    name = "MultiHeadAttention"
    if heads % key_heads:
        raise UserError(name, f"heads that are a multiple of the {key_heads} key heads are required, got {heads}.")
    if rotary and head_size % 2:
        raise UserError(name, f"rotary positions turn pairs: heads of even width are required, got {head_size}.")


def _sequences(x: ArrayLike, features: int) -> Tensor:
    x = as_tensor(x)
    if x.ndim != 3:
        raise UserError("MultiHeadAttention", f"an input (batch, time, features) is required, got shape {x.shape}.")
    return check_channels("MultiHeadAttention", x, features, axis=-1)


def _split_heads(x: Tensor, heads: int) -> Tensor:
    """(batch, time, heads * width) as (batch, time, heads, width)."""
    batch, time, features = x.shape
    return reshape(x, (batch, time, heads, features // heads))


def _key_lengths(given: Any, batch: int) -> Tensor:
    lengths = as_tensor(given)
    if lengths.shape != (batch,) or lengths.dtype.kind != "int":
        raise UserError(
            "MultiHeadAttention",
            f"key_lengths of shape ({batch},) and a signed integer dtype are required, got {lengths.dtype.name} {lengths.shape}.",
        )
    return lengths


def _alignment(causal: Causal, is_padded_itself: bool) -> Alignment:
    """Queries and keys of self-attention are the same positions, however many of the keys count."""
    if causal not in (False, True, "upper_left", "lower_right"):
        raise UserError("MultiHeadAttention", f"causal must be a bool, 'upper_left' or 'lower_right', got {causal!r}.")
    return "upper_left" if is_padded_itself or causal == "upper_left" else "lower_right"


def _apply_rotary(q: Tensor, k: Tensor, align: Alignment, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """Apply rotary positions, aligned as the mask is. Only differences of positions count, so all may be shifted to 0 or more."""
    queries, keys = q.shape[1], k.shape[1]
    if lengths is not None and align == "lower_right":
        places = expand_dims(clip(astype(lengths, int32), 0, keys), axis=1) + arange(queries, dtype=int32)
        return rotary_at(q, places, queries + keys), _rotated_from(k, queries)
    ahead = keys - queries if align == "lower_right" else 0
    return _rotated_from(q, max(0, ahead)), _rotated_from(k, max(0, -ahead))


def _rotated_from(x: Tensor, start: int) -> Tensor:
    return transpose(rotated(transpose(x, 1, 2), start=start), 1, 2)


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
