"""Transformer layers: attention and feed-forward blocks with normalization and residual connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import UserError
from ..random import dropout as drop
from ..tensor import ArrayLike, Tensor, as_tensor
from .activations import Activation
from .attention import MultiHeadAttention
from .checks import check_count, check_rate
from .kv_cache import CachePass
from .linear import Linear
from .module import Module
from .norm import LayerNorm


class TransformerLayer(Module):
    """Base class of the layers below: the residual connection around a block.

    norm_first: x + part(norm(x)), which trains more stably (Xiong et al. 2020); else norm(x + part(x)) (Vaswani et al. 2017)
    """

    def __init__(
        self,
        features: int,
        hidden: int | None,
        activation: Activation,
        dropout: float,
        norm_first: bool,
        eps: float = 1e-5,
    ) -> None:
        self.dropout, self.norm_first = check_rate(type(self).__name__, dropout), bool(norm_first)
        features = check_count(type(self).__name__, "features", features)
        self.feed_forward = FeedForward(features, hidden, activation=activation, dropout=dropout)
        self.feed_forward_norm = LayerNorm(features, eps=eps)

    def _around(self, part: Callable[[Tensor], Tensor], norm: LayerNorm, x: Tensor) -> Tensor:
        y = drop(part(norm(x) if self.norm_first else x), self.dropout, training=self.training)
        return x + y if self.norm_first else norm(x + y)


class SelfAttentionLayer(TransformerLayer):
    """Self-attention and feed-forward: the base class of the layers below."""

    def __init__(
        self,
        features: int,
        heads: int,
        *,
        hidden: int | None = None,
        activation: Activation = "gelu",
        dropout: float = 0.0,
        norm_first: bool = True,
        key_heads: int | None = None,
        rotary: bool = False,
        alibi: bool = False,
        window: int | None = None,
        eps: float = 1e-5,
    ) -> None:
        super().__init__(features, hidden, activation, dropout, norm_first, eps)
        self.attention = MultiHeadAttention(
            features, heads, key_heads=key_heads, dropout=dropout, rotary=rotary, alibi=alibi, window=window
        )
        self.attention_norm = LayerNorm(features, eps=eps)

    def _through(self, x: ArrayLike, **options: Any) -> Tensor:
        return self._around(self.feed_forward, self.feed_forward_norm, self._attended(x, **options))

    def _attended(self, x: ArrayLike, **options: Any) -> Tensor:
        return self._around(lambda y: self.attention(y, **options), self.attention_norm, as_tensor(x))


class TransformerEncoderLayer(SelfAttentionLayer):
    """Every position attends to all: x + attention(norm(x)), then x + feed_forward(norm(x)); norms last if not norm_first.

    >>> import weft
    >>> TransformerEncoderLayer(8, 2)(weft.ones((1, 5, 8))).shape
    (1, 5, 8)
    """

    def forward(self, x: ArrayLike, *, mask: Any = None, causal: bool = False, key_lengths: Any = None) -> Tensor:
        """(batch, time, features), from x of that shape; masks and lengths as in MultiHeadAttention."""
        return self._through(x, mask=mask, causal=causal, key_lengths=key_lengths)


class TransformerBlock(SelfAttentionLayer):
    """Causal self-attention, as in a language model: an encoder layer with causal=True   (Radford et al. 2018)

    >>> import weft
    >>> TransformerBlock(8, 2, rotary=True)(weft.ones((1, 5, 8))).shape
    (1, 5, 8)
    """

    def forward(
        self, x: ArrayLike, *, mask: Any = None, key_lengths: Any = None, cache: CachePass | None = None
    ) -> Tensor:
        """(batch, time, features), from x of that shape; masks, lengths and caches as in MultiHeadAttention."""
        return self._through(x, mask=mask, causal=True, key_lengths=key_lengths, cache=cache)


class TransformerDecoderLayer(SelfAttentionLayer):
    """Causal self-attention, cross-attention to the encoder's outputs, and feed-forward.

    Positions and the window are those of self-attention; `key_heads` is for both (Ainslie et al. 2023).

    >>> import weft
    >>> TransformerDecoderLayer(8, 2)(weft.ones((1, 5, 8)), weft.ones((1, 7, 8))).shape
    (1, 5, 8)
    """

    def __init__(
        self,
        features: int,
        heads: int,
        *,
        hidden: int | None = None,
        activation: Activation = "gelu",
        dropout: float = 0.0,
        norm_first: bool = True,
        key_heads: int | None = None,
        rotary: bool = False,
        alibi: bool = False,
        window: int | None = None,
        eps: float = 1e-5,
    ) -> None:
        super().__init__(
            features, heads, hidden=hidden, activation=activation, dropout=dropout, norm_first=norm_first, key_heads=key_heads,
            rotary=rotary, alibi=alibi, window=window, eps=eps,
        )  # fmt: skip
        self.cross_attention = MultiHeadAttention(features, heads, key_heads=key_heads, dropout=dropout)
        self.cross_norm = LayerNorm(features, eps=eps)

    def forward(
        self,
        x: ArrayLike,
        context: Any = None,
        *,
        mask: Any = None,
        context_mask: Any = None,
        causal: bool = True,
        key_lengths: Any = None,
        context_lengths: Any = None,
        cache: CachePass | None = None,
    ) -> Tensor:
        """(batch, time, features), from x of that shape and the context (batch, keys, features).

        `mask` and `key_lengths` are for self-attention, `context_mask` and `context_lengths` for the context. With a pass of a `KVCache`
        that holds the cross-attention, too, the context is given to the first pass only.
        """
        of_context = cache if cache is not None and cache.holds_context_of(self.cross_attention) else None
        if context is None and of_context is None:
            raise UserError("TransformerDecoderLayer", "a context (batch, keys, features) is required, got None.")

        def attend(y: Tensor) -> Tensor:
            found: Tensor = self.cross_attention(
                y, context, mask=context_mask, key_lengths=context_lengths, cache=of_context
            )
            return found

        x = self._attended(x, mask=mask, causal=causal, key_lengths=key_lengths, cache=cache)
        x = self._around(attend, self.cross_norm, x)
        return self._around(self.feed_forward, self.feed_forward_norm, x)


class FeedForward(Module):
    """y = activation(x W_1^T + b_1) W_2^T + b_2, at each position; hidden: 4 times the features if None

    >>> import weft
    >>> FeedForward(8)(weft.ones((1, 5, 8))).shape
    (1, 5, 8)
    """

    def __init__(
        self, features: int, hidden: int | None = None, *, activation: Activation = "gelu", dropout: float = 0.0
    ) -> None:
        features = check_count("FeedForward", "features", features)
        hidden = 4 * features if hidden is None else check_count("FeedForward", "hidden features", hidden)
        self.first = Linear(features, hidden, activation=activation)
        self.second = Linear(hidden, features)
        self.dropout = check_rate("FeedForward", dropout)

    def forward(self, x: ArrayLike) -> Tensor:
        """(..., features), from x of that shape."""
        y: Tensor = self.second(drop(self.first(x), self.dropout, training=self.training))
        return y
