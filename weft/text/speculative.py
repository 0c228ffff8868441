"""Speculative decoding: a small network drafts tokens, and the large one checks all of them in one step.

    draft = text.DraftModel(small, tokens=4)
    text.generate(large, prompt, tokenizer, draft=draft)
    draft.accepted_per_step                                   # of 4

A step of the large network reads its weights once, for one token or for five, so that every accepted token saves one step. The result is
that of the large network alone (Leviathan et al. 2023, Chen et al. 2023): greedily, a drafted token is accepted if it is the most likely
one. When sampling, a token x drafted with probability q(x) is accepted with probability min(1, p(x) / q(x)); the first rejected one is
replaced by a sample of max(0, p - q), normalized. If all are accepted, one more token follows.

Both networks keep keys and values in caches of one length. A step adds the drafted tokens to both, and then forgets the rejected ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..dtypes import float32, int32
from ..errors import UserError
from ..nn.kv_cache import KVCache
from ..ops.convert import asarray
from ..ops.creation import arange, zeros
from ..ops.declare import whole
from ..ops.elementwise import astype, maximum, where
from ..ops.indexing import take, take_along_axis
from ..ops.math import isnan
from ..ops.movement import concat, expand_dims, reshape, squeeze
from ..ops.reduce import any, argmax, cumulative_prod, sum
from ..records import dataclass
from ..tensor import Tensor
from ..tracing.jit import jit
from .decoder import CachedDecoder, CachedNetwork
from .sampling import NOT_A_NUMBER, Sampler


@dataclass
class DraftModel:
    """A small network that drafts so many tokens for each step of a large one, and how many of them were accepted.

    >>> from weft import text, zoo
    >>> small, large = (zoo.gpt(3, context=16, features=n, heads=2, layers=1) for n in (4, 8))
    >>> draft = DraftModel(small, tokens=2)
    >>> len(text.generate(large, [0, 1], max_new_tokens=9, draft=draft)), 0 <= draft.accepted_per_step <= 2
    (11, True)
    """

    model: Any  # a CachedNetwork
    tokens: int = 4
    steps: int = 0  # of the large network that checked drafted tokens
    accepted: int = 0  # tokens

    def __post_init__(self) -> None:
        whole("DraftModel", "number of tokens", self.tokens, least=1)
        if not isinstance(self.model, CachedNetwork):
            raise UserError(
                "DraftModel",
                f"a network with a key-value cache (new_cache) is required, got {type(self.model).__name__}.",
            )

    @property
    def accepted_per_step(self) -> float:
        """How many of the drafted tokens a step accepted, in the mean."""
        return self.accepted / (self.steps or 1)


class SpeculativeDecoder(CachedDecoder):
    """See the head of this file. One text at a time: those of a batch would accept different numbers of tokens."""

    def __init__(self, model: Any, draft: DraftModel, sampler: Sampler, capacity: int) -> None:
        super().__init__(model, sampler, capacity, padded=False)
        self.draft, self.ahead = draft, draft.tokens
        self.draft_cache: KVCache = draft.model.new_cache(1, capacity)
        self.draft_token = zeros((1, 1), dtype=int32).realize()  # that the draft network reads next
        # The last column and row are of a call that only writes its row of the cache.
        self.drafted = zeros((1, self.ahead + 1), dtype=int32).realize()
        is_greedy, rows = sampler.kind.is_greedy, (self.ahead + 1, sampler.vocabulary)
        self.draft_shares = None if is_greedy else zeros(rows, dtype=float32).realize()
        self.place = zeros((), dtype=int32).realize()
        self.checked = zeros((self.ahead + 2,), dtype=int32).realize()  # how many tokens a step wrote, and the tokens
        self._draft_prefill, self._draft, self._check = (
            jit(self._draft_prefilled),
            jit(self._drafting),
            jit(self._checking),
        )

    def at_once(self, before: int) -> int:
        """Up to all drafted tokens, and one more."""
        return self.ahead + 1

    def read(self, sequences: Sequence[Sequence[int]]) -> np.ndarray:
        found = super().read(sequences)
        tokens, _ = self._laid_out(sequences)
        self._draft_prefill(asarray(tokens), asarray(np.int32(self.filled)), self.tokens)
        return found

    def advance(self, steps: int) -> np.ndarray:
        """The next tokens: as many as one step gives, up to `steps`. Near the end of the cache, one."""
        if self.room <= self.ahead:
            return super().advance(1)
        for _ in range(self.ahead + 1):
            self._draft()
        self._check(self.drafted, self.draft_shares)
        count, *tokens = self.checked.numpy().tolist()
        self.filled += count
        self.draft.steps += 1
        self.draft.accepted += count - 1
        return np.array([tokens[:count][:steps]])

    def is_of(self, model: Any) -> bool:
        return super().is_of(model) and self.draft_cache.fits(self.draft.model.modules())

    # --- the compiled steps ---
    # They are given what another one has written: of tensors that they capture and do not write themselves, a compiled function expects
    # that they rarely change, and prepares all weights again when one did.

    def _draft_prefilled(self, tokens: Tensor, length: Tensor, first: Tensor) -> None:
        self.draft.model(tokens, cache=self.draft_cache.begin(length), last=length - 1)  # for its cache
        self.draft_token.assign(first)
        self.place.assign(zeros((), dtype=int32))

    def _drafting(self) -> None:
        logits = astype(self.draft.model(self.draft_token, cache=self.draft_cache.advance())[:, 0], float32)
        if self.draft_shares is None:
            token = astype(argmax(logits, axis=1), int32)
        else:
            shares = self.sampler.shares(logits)
            token = self.sampler.token_of(shares)
            self.draft_shares.assign(self.draft_shares.at[self.place].set(shares[0]))
        token = where(any(isnan(logits)), NOT_A_NUMBER, token)
        self.drafted.assign(self.drafted.at[:, self.place].set(token))
        self.place.assign((self.place + 1) % (self.ahead + 1))
        self.draft_token.assign(expand_dims(token, axis=1))

    def _checking(self, drafted: Tensor, their_shares: Tensor | None) -> None:
        drafted = drafted[0, : self.ahead]
        given = concat([self.tokens, expand_dims(drafted, axis=0)], axis=1)
        logits = astype(self.model(given, cache=self.cache.advance(self.ahead + 1))[0], float32)
        accepted, tokens = self._accepted(logits, drafted, their_shares)
        has_failed = any(isnan(logits)) | any(drafted == NOT_A_NUMBER)
        tokens, accepted = where(has_failed, NOT_A_NUMBER, tokens), where(has_failed, 0, accepted)
        for cache in (self.cache, self.draft_cache):
            cache.rewind(self.ahead - accepted)
        last = reshape(take(tokens, accepted, axis=0), (1, 1))
        self.tokens.assign(last)
        self.draft_token.assign(last)
        self.checked.assign(concat([reshape(accepted + 1, (1,)), tokens]))

    def _accepted(self, logits: Tensor, drafted: Tensor, their_shares: Tensor | None) -> tuple[Tensor, Tensor]:
        """How many drafted tokens are accepted, and the tokens up to the one that follows them; those behind it do not count."""
        if their_shares is None:
            best = astype(argmax(logits, axis=1), int32)
            return _leading(best[: self.ahead] == drafted), best
        shares, place = self.sampler.shares(logits), expand_dims(arange(self.ahead + 1, dtype=int32), axis=1)
        drawn = self.sampler.stream.uniform((self.ahead,))
        own, theirs = (_of_tokens(x[: self.ahead], drafted) for x in (shares, their_shares))
        accepted = _leading(drawn * theirs < own)
        rest = maximum(shares - where(place < self.ahead, their_shares, 0.0), 0.0)
        rest, all_of = (take(x, expand_dims(accepted, axis=0), axis=0) for x in (rest, shares))
        # Where rounding leaves nothing, the two distributions are equal.
        last = self.sampler.token_of(where(sum(rest) > 0.0, rest, all_of))
        return accepted, where(squeeze(place, axis=1) < accepted, concat([drafted, last]), last)


def _leading(matches: Tensor) -> Tensor:
    """How many are true before the first that is not."""
    return sum(cumulative_prod(astype(matches, int32), axis=0), dtype=int32)


def _of_tokens(shares: Tensor, tokens: Tensor) -> Tensor:
    return squeeze(take_along_axis(shares, expand_dims(tokens, axis=1), axis=1), axis=1)
