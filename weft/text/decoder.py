"""Decoders: the compiled steps that continue token sequences, all of a batch at once.

CachedDecoder     a network with a key-value cache: one program reads the prompts, another adds a token to each example
RecurrentDecoder  a network that returns its state: the same two programs, for prompts of one length
WindowDecoder     any other causal network: it is given the last tokens again for each new one

SpeculativeDecoder (speculative.py) is a CachedDecoder whose tokens another network drafts.

A step is one native call, whose tokens stay on the device: `advance(n)` runs n steps and waits once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..dtypes import int32
from ..nn.kv_cache import KVCache
from ..nn.module import Module
from ..ops.convert import asarray
from ..ops.creation import zeros
from ..ops.indexing import take_along_axis
from ..ops.movement import expand_dims, reshape
from ..runtime import device as find_device
from ..tensor import Tensor
from ..tracing.jit import jit
from .sampling import Sampler, Sampling

MOST_STEPS = 16  # that run before their tokens are read
LEAST_WIDTH = 16  # of prompts that are read at once: a power of two, so that few programs are compiled


@runtime_checkable
class CachedNetwork(Protocol):
    """A network with a key-value cache: forward(tokens, cache=, last=) returns logits, see `weft.zoo.gpt`."""

    context: int

    def new_cache(self, batch: int, capacity: int | None = None, *, padded: bool = False) -> KVCache: ...


class Decoder(ABC):
    """Continues the token sequences of a batch."""

    def __init__(self, model: Any, sampler: Sampler) -> None:
        self.model, self.sampler, self.batch = model, sampler, sampler.batch
        self.written = zeros(
            (self.batch, MOST_STEPS), dtype=int32
        ).realize()  # the last tokens of each example, in a ring
        self.column = zeros((), dtype=int32).realize()
        self._column = 0

    @property
    def room(self) -> int | None:
        """How many tokens can follow until `read` must be called again; None: any number."""
        return None

    def at_once(self, before: int) -> int:
        """How many tokens to compute before they are read, and `before` when it was asked last."""
        return min(2 * before, MOST_STEPS) if find_device().is_accelerator else 1

    def begin(self, prompts: Sequence[Sequence[int]], how: Sampling) -> np.ndarray:
        """Read the prompts; the first new token of each, (batch, 1)."""
        self.sampler.begin(how, [list(prompt) for prompt in prompts])
        return self.read(prompts)

    @abstractmethod
    def read(self, sequences: Sequence[Sequence[int]]) -> np.ndarray:
        """Read whole sequences, as if they had been written here; the next token of each, (batch, 1)."""

    def advance(self, steps: int) -> np.ndarray:
        """The next tokens, (batch, steps)."""
        for _ in range(steps):
            self._step()
        return self._last(steps)

    @abstractmethod
    def _step(self) -> None:
        """Compute one more token of each example, without waiting for it."""

    def _keep(self, tokens: Tensor) -> None:
        """Part of a step: put its tokens into the ring."""
        self.written.assign(self.written.at[:, self.column].set(tokens))
        self.column.assign((self.column + 1) % MOST_STEPS)

    def _last(self, steps: int) -> np.ndarray:
        self._column += steps
        ring = self.written.numpy()
        return np.take(ring, np.arange(self._column - steps, self._column) % MOST_STEPS, axis=1)


class CachedDecoder(Decoder):
    """See the head of this file."""

    def __init__(self, model: Any, sampler: Sampler, capacity: int, padded: bool) -> None:
        super().__init__(model, sampler)
        self.cache: KVCache = model.new_cache(self.batch, capacity, padded=padded)
        self.tokens = zeros((self.batch, 1), dtype=int32).realize()
        self.filled = 0
        self._prefill, self._decode = jit(self._prefilled), jit(self._decoded)

    @property
    def room(self) -> int:
        return self.cache.capacity - self.filled

    def read(self, sequences: Sequence[Sequence[int]]) -> np.ndarray:
        tokens, padding = self._laid_out(sequences)
        self.filled = max(map(len, sequences))
        given = () if self.cache.padding is None else (asarray(padding),)
        self._prefill(asarray(tokens), asarray(np.int32(self.filled)), *given)
        return self._last(1)

    def _laid_out(self, sequences: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
        """Sequences that end together, in one of a few widths; and the padding before each."""
        longest = max(map(len, sequences))
        tokens = np.zeros((self.batch, min(self.cache.capacity, padded_width(longest))), np.int32)
        padding = np.array([longest - len(row) for row in sequences], np.int32)
        for line, row, before in zip(tokens, sequences, padding, strict=True):
            line[before:longest] = row
        return tokens, padding

    def _prefilled(self, tokens: Tensor, length: Tensor, padding: Tensor | None = None) -> None:
        self._draw(self.model(tokens, cache=self.cache.begin(length, padding), last=length - 1))

    def _decoded(self) -> None:
        self._draw(self.model(self.tokens, cache=self.cache.advance()))

    def _draw(self, logits: Tensor) -> None:
        tokens = self.sampler.draw(reshape(logits, (self.batch, logits.shape[2])))
        self.tokens.assign(expand_dims(tokens, axis=1))
        self._keep(tokens)

    def _step(self) -> None:
        self._decode()
        self.filled += 1

    def is_of(self, model: Module) -> bool:
        """Whether the cache is still that of the network: its layers may have been replaced, or their dtype."""
        return self.cache.fits(model.modules())


class RecurrentDecoder(Decoder):
    """See the head of this file."""

    def __init__(self, model: Any, sampler: Sampler) -> None:
        super().__init__(model, sampler)
        self.state: Any = None
        self.tokens: Tensor = self.written
        self._prefill, self._decode = jit(self._prefilled), jit(self._decoded)

    def read(self, sequences: Sequence[Sequence[int]]) -> np.ndarray:
        self.tokens, self.state = self._prefill(asarray(np.array(sequences, np.int32)))
        return self._last(1)

    def _prefilled(self, prompts: Tensor) -> tuple[Tensor, Any]:
        logits, state = self.model(prompts)
        return self._draw(logits), state

    def _decoded(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        logits, state = self.model(tokens, state)
        return self._draw(logits), state

    def _draw(self, logits: Tensor) -> Tensor:
        tokens = self.sampler.draw(logits[:, -1])
        self._keep(tokens)
        return expand_dims(tokens, axis=1)

    def _step(self) -> None:
        self.tokens, self.state = self._decode(self.tokens, self.state)


class WindowDecoder(Decoder):
    """See the head of this file. Tokens are at the start of a window of a fixed size; what follows does not matter to a causal network."""

    def __init__(self, model: Any, sampler: Sampler, context: int) -> None:
        super().__init__(model, sampler)
        self.context = context
        self._compute = jit(self._computed)

    @property
    def room(self) -> int:
        return 0

    def read(self, sequences: Sequence[Sequence[int]]) -> np.ndarray:
        window = np.zeros((self.batch, self.context), np.int32)
        for line, row in zip(window, sequences, strict=True):
            line[: len(row)] = row
        self._compute(asarray(window), asarray(np.array([len(row) - 1 for row in sequences], np.int32)))
        return self._last(1)

    def _computed(self, window: Tensor, last: Tensor) -> None:
        logits = self.model(window)
        at = reshape(last, (self.batch, 1, 1))
        self._keep(self.sampler.draw(reshape(take_along_axis(logits, at, axis=1), (self.batch, logits.shape[2]))))

    def _step(self) -> None:
        raise NotImplementedError("there is room for nothing: read is called for every token")


def padded_width(length: int) -> int:
    """The width in which prompts are read: the next power of two."""
    return max(LEAST_WIDTH, 1 << (length - 1).bit_length())
