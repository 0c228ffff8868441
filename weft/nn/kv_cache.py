"""The key-value cache of a causal transformer: keys and values of earlier tokens are kept, so that every token is computed once.

    cache = model.new_cache(batch=2, capacity=256)
    logits = model(prompts, cache=cache.begin(prompts.shape[1]))     # prefill: all tokens of the prompts at once
    logits = model(tokens, cache=cache.advance())                    # decode: one more token for each example, (batch, 1)
    logits = model(several, cache=cache.advance(4))                  # four at once; cache.rewind(2) forgets the last two

Cross-attention layers keep the keys and values of their context, which the first pass computes and later ones read:

    cache = nn.KVCache([layer.attention], 2, 256, cross=[layer.cross_attention], context=encoded.shape[1])
    y = layer(x, encoded, cache=cache.begin(x.shape[1]))
    y = layer(x_next, cache=cache.advance())

The tensors have a fixed size and are state of the compiled function: a step writes one row of each in place, and is compiled once.
All examples write to the same row. Prompts of different lengths therefore end together, the shorter ones behind padding that nobody
attends to.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import field
from typing import Any, NamedTuple, Protocol

from ..dtypes import DType, int32
from ..errors import UserError
from ..ops.creation import arange, zeros
from ..ops.elementwise import maximum
from ..ops.movement import broadcast_to, expand_dims, permute_dims, reshape
from ..records import dataclass
from ..tensor import Tensor, as_tensor
from ..tracing.context import outside
from .checks import check_count


class CacheRow(NamedTuple):
    """What a layer stores for each token."""

    key_heads: int
    head_size: int  # of keys
    value_size: int
    dtype: DType


class CachedLayer(Hashable, Protocol):
    """An attention layer as a cache sees it."""

    def cache_row(self) -> CacheRow: ...


@dataclass
class _LayerCache:
    keys: Tensor  # (batch, key heads, capacity, head size): what a head reads is contiguous
    values: Tensor

    @property
    def row(self) -> CacheRow:
        """What it holds for each token."""
        return CacheRow(self.keys.shape[1], self.keys.shape[3], self.values.shape[3], self.keys.dtype)


class KVCache:
    """Keys and values of attention layers for up to `capacity` tokens of each example, and how many rows are filled.

    With `padded`, the first rows of an example may be padding; how many is given to `begin`. `cross` are layers that attend to a
    context of `context` rows.

    >>> from weft import zoo
    >>> model = zoo.gpt(65, context=8, features=16, heads=2, layers=1).eval()
    >>> cache = model.new_cache(batch=1)
    >>> logits = model([[1, 2, 3]], cache=cache.begin(3))
    >>> cache.length.item(), model([[4]], cache=cache.advance()).shape, cache.length.item()
    (3, (1, 1, 65), 4)
    """

    def __init__(
        self,
        layers: Sequence[CachedLayer],
        batch: int,
        capacity: int,
        *,
        padded: bool = False,
        cross: Sequence[CachedLayer] = (),
        context: int | None = None,
    ) -> None:
        self.batch = check_count("KVCache", "examples", batch)
        self.capacity = check_count("KVCache", "rows", capacity)
        if bool(cross) != (context is not None):
            raise UserError("KVCache", f"layers and rows of a context belong together, got {len(cross)} and {context}.")
        rows = 0 if context is None else check_count("KVCache", "rows of the context", context)
        with outside():
            self.layers = {layer: self._made(layer.cache_row(), self.capacity) for layer in layers}
            self.contexts = {layer: self._made(layer.cache_row(), rows) for layer in cross}
            self.length = _state((), int32)
            self.padding = _state((self.batch,), int32) if padded else None

    def _made(self, row: CacheRow, rows: int) -> _LayerCache:
        shape = (self.batch, row.key_heads, rows)
        return _LayerCache(_state((*shape, row.head_size), row.dtype), _state((*shape, row.value_size), row.dtype))

    @property
    def nbytes(self) -> int:
        """The memory of keys and values."""
        kept = (*self.layers.values(), *self.contexts.values())
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in kept)

    def fits(self, layers: Collection[Any]) -> bool:
        """Whether its layers are among these, with the sizes and dtypes that it was made for."""
        found, held = set(layers), (*self.layers.items(), *self.contexts.items())
        return all(layer in found and layer.cache_row() == kept.row for layer, kept in held)

    def begin(self, length: Any, padding: Any = None) -> CachePass:
        """A pass that fills an empty cache with this many tokens, an int or a scalar tensor. Tokens beyond are overwritten later.

        `padding` (one number for each example): how many of its first tokens do not count.
        """
        if (padding is None) != (self.padding is None):
            raise UserError(
                "KVCache.begin", f"padding is {'missing' if padding is None else 'only'} for a cache with padded=True."
            )
        self.length.assign(as_tensor(length).astype(int32))
        if self.padding is not None:
            self.padding.assign(broadcast_to(as_tensor(padding).astype(int32), (self.batch,)))
        return CachePass(self, None)

    def advance(self, tokens: int = 1) -> CachePass:
        """A pass that adds one token to each example, or several."""
        filled = self.length + check_count("KVCache.advance", "tokens", tokens)
        self.length.assign(filled)
        return CachePass(self, filled, tokens)

    def rewind(self, tokens: Any) -> None:
        """Forget the last tokens of each example, an int or a scalar tensor: their rows are written again."""
        self.length.assign(maximum(self.length - as_tensor(tokens).astype(int32), 0))


@dataclass
class CachePass:
    """One call of a network with a cache: it writes keys and values of its tokens, and attends to all before them."""

    cache: KVCache
    filled: Tensor | None  # rows after this pass; None: it begins with the first row
    tokens: int = 1  # that it adds, unless it begins
    _seen: set[Hashable] = field(default_factory=set)

    def positions(self, time: int) -> Tensor:
        """The positions of the next `time` tokens: (time,), or (batch, time) with padding, whose positions are 0."""
        first = 0 if self.filled is None else self.filled - self.tokens
        rows = arange(time, dtype=int32) + first
        if self.cache.padding is None:
            return rows
        return maximum(rows - expand_dims(self.cache.padding, axis=1), 0)

    def store(self, layer: CachedLayer, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values (batch, time, key heads, width); those to attend to."""
        kept = self._layer(layer, k)
        for held, new in ((kept.keys, k), (kept.values, v)):
            if self.filled is None:
                held.assign(held.at[:, :, : new.shape[1]].set(_heads_first(new)))
            else:
                held.assign(self._with_rows(held, new, self.filled))
        return (k, v) if self.filled is None else (_heads_first(kept.keys), _heads_first(kept.values))

    def _with_rows(self, held: Tensor, new: Tensor, filled: Tensor) -> Tensor:
        """Each row is written in place, as one slice."""
        for i in range(self.tokens):
            held = held.at[:, :, filled + (i - self.tokens)].set(new[:, i])
        return held

    def holds_context_of(self, layer: CachedLayer) -> bool:
        """Whether the cache keeps what this layer computes of its context."""
        return layer in self.cache.contexts

    def context(self, layer: CachedLayer, made: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
        """Keys and values of the context (batch, rows, key heads, width): the first pass is given them, later ones find them."""
        kept = self._once(layer, self.cache.contexts)
        if (made is None) == (self.filled is None):
            problem = "is missing in the first pass" if made is None else "is for the first pass only, which keeps it"
            raise UserError("KVCache", f"the context of cross-attention {problem}.")
        if made is None:
            return _heads_first(kept.keys), _heads_first(kept.values)
        for held, new in zip((kept.keys, kept.values), made, strict=True):
            if _heads_first(new).shape != held.shape:
                wanted = f"{self.cache.batch} contexts of {held.shape[2]} rows"
                raise UserError("KVCache", f"{wanted} are required, got {new.shape[0]} of {new.shape[1]}.")
            held.assign(_heads_first(new))
        return made

    def key_lengths(self) -> Tensor | None:
        """How many rows of each example are filled, (batch,); None if the pass attends to its own tokens only."""
        return None if self.filled is None else broadcast_to(self.filled, (self.cache.batch,))

    def mask(self, keys: int) -> Tensor | None:
        """Which of the first `keys` keys are not padding: (batch, 1, 1, keys)."""
        if self.cache.padding is None:
            return None
        counts = arange(keys, dtype=int32) >= expand_dims(self.cache.padding, axis=1)
        return reshape(counts, (self.cache.batch, 1, 1, keys))

    def _once(self, layer: CachedLayer, held: dict[CachedLayer, _LayerCache]) -> _LayerCache:
        """What is held of a layer that is called for the first time in this pass."""
        if layer not in held or layer in self._seen:
            problem = "is called twice" if layer in self._seen else "has no place in this cache"
            raise UserError("KVCache", f"every attention layer is called once with its own cache, but one {problem}.")
        self._seen.add(layer)
        return held[layer]

    def _layer(self, layer: CachedLayer, k: Tensor) -> _LayerCache:
        cache, kept = self.cache, self._once(layer, self.cache.layers)
        batch, time = k.shape[:2]
        if batch != cache.batch or time > cache.capacity or (self.filled is not None and time != self.tokens):
            several = f"{self.tokens} tokens" if self.tokens > 1 else "one token"
            wanted = f"up to {cache.capacity} tokens" if self.filled is None else several
            raise UserError("KVCache", f"{wanted} of {cache.batch} examples are required, got {time} of {batch}.")
        return kept


def _heads_first(x: Tensor) -> Tensor:
    """(batch, time, heads, width) as (batch, heads, time, width), or back."""
    return permute_dims(x, (0, 2, 1, 3))


def _state(shape: tuple[int, ...], dtype: DType) -> Tensor:
    return zeros(shape, dtype=dtype).realize()
