"""Sampling: from the logits of the next token to the token, inside of the compiled step.

The number is drawn by inverting the cumulative distribution, with one uniform number for each example and step. What only changes
numbers (temperature, top_p, the penalty) is state of the step and not compiled into it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ..dtypes import bool_, float32, int32
from ..errors import UserError
from ..ops.convert import asarray
from ..ops.creation import arange, zeros
from ..ops.declare import whole
from ..ops.elementwise import astype, minimum, where
from ..ops.indexing import take_along_axis
from ..ops.math import isnan
from ..ops.movement import expand_dims, squeeze
from ..ops.reduce import argmax, cumulative_sum, max, sum
from ..ops.sorting import top_k
from ..ops.statistics import softmax
from ..random import Generator
from ..records import dataclass
from ..tensor import Tensor

COLDEST = 1e-30  # smaller probabilities may be 0 in single precision
NOT_A_NUMBER = -1  # the token of an example whose logits are nan


class SamplingKind(NamedTuple):
    """What a step is compiled for."""

    is_greedy: bool
    top_k: int | None
    has_top_p: bool
    has_penalty: bool


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen; see `generate`."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", "repetition_penalty"):
            value = getattr(self, name)
            is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
            if not is_number and not (name == "top_p" and value is None):
                raise UserError("generate", f"{name} must be a number, got {value!r}.")
        if not 0 <= self.temperature < math.inf:
            raise UserError("generate", f"temperature must be 0 or more, got {self.temperature}.")
        if self.top_k is not None:
            whole("generate", "top_k", self.top_k, least=1)
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UserError("generate", f"top_p must be above 0 and at most 1, got {self.top_p}.")
        if not 0 < self.repetition_penalty < math.inf:
            raise UserError("generate", f"repetition_penalty must be above 0, got {self.repetition_penalty}.")

    @property
    def kind(self) -> SamplingKind:
        greedy, penalized = self.temperature == 0, self.repetition_penalty != 1.0
        if greedy:
            return SamplingKind(True, None, False, penalized)
        return SamplingKind(False, self.top_k, self.top_p is not None, penalized)


class Sampler:
    """Draws a token for each example. Its state: a stream of random numbers, the settings, and which tokens an example has had."""

    def __init__(self, kind: SamplingKind, batch: int, vocabulary: int) -> None:
        self.kind, self.batch, self.vocabulary = kind, batch, vocabulary
        self.stream = Generator()
        self.temperature, self.top_p, self.penalty = (zeros((), dtype=float32).realize() for _ in range(3))
        self.seen = zeros((batch, vocabulary), dtype=bool_).realize() if kind.has_penalty else None

    def begin(self, how: Sampling, prompts: list[list[int]]) -> None:
        """Start a new text, with other numbers of the same kind."""
        self.stream.state = Generator(how.seed).state
        for state, value in (
            (self.temperature, np.maximum(how.temperature, COLDEST)),
            (self.top_p, how.top_p or 1.0),
            (self.penalty, how.repetition_penalty),
        ):
            state.assign(asarray(np.float32(value)))
        if self.seen is not None:
            seen = np.zeros((self.batch, self.vocabulary), bool)
            for row, prompt in zip(seen, prompts, strict=True):
                row[prompt] = True
            self.seen.assign(asarray(seen))

    def draw(self, logits: Tensor) -> Tensor:
        """The tokens (batch,) of logits (batch, vocabulary); NOT_A_NUMBER where they are nan."""
        logits = astype(logits, float32)
        if self.seen is not None:  # as CTRL has it (Keskar et al. 2019)
            logits = where(self.seen, where(logits > 0.0, logits / self.penalty, logits * self.penalty), logits)
        highest = max(logits, axis=1)
        chosen = argmax(logits, axis=1) if self.kind.is_greedy else self._sampled(logits)
        tokens = where(isnan(highest), NOT_A_NUMBER, astype(chosen, int32))
        if self.seen is not None:
            self.seen.assign(self.seen | (arange(self.vocabulary, dtype=int32) == expand_dims(tokens, axis=1)))
        return tokens

    def shares(self, logits: Tensor) -> Tensor:
        """The probability of every token with which it is drawn, (rows, vocabulary), without a penalty."""
        shares, sums, total, places = self._candidates(logits)
        shares = where(sums <= total, shares, 0.0) / total
        if places is None:
            return shares
        rows = expand_dims(arange(logits.shape[0], dtype=int32), axis=1)
        return zeros(logits.shape, dtype=float32).at[rows, places].set(shares)

    def token_of(self, shares: Tensor) -> Tensor:
        """A token for each row of shares, which need not add up to 1."""
        sums = cumulative_sum(shares, axis=1)
        drawn = self.stream.uniform((shares.shape[0], 1)) * sums[:, -1:]
        chosen = sum(astype(sums <= drawn, int32), axis=1)
        return astype(minimum(chosen, shares.shape[1] - 1), int32)

    def _sampled(self, logits: Tensor) -> Tensor:
        _, sums, total, places = self._candidates(logits)
        drawn = self.stream.uniform((self.batch, 1)) * total
        chosen = sum(astype(sums <= drawn, int32), axis=1)
        if places is None:
            return chosen
        return squeeze(take_along_axis(places, expand_dims(chosen, axis=1), axis=1), axis=1)

    def _candidates(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Probabilities, their running sums, the sum of those that are sampled, and of which tokens they are; None: all in order."""
        places, count = None, logits.shape[1]
        if (self.kind.top_k is not None and self.kind.top_k < count) or self.kind.has_top_p:
            logits, places = top_k(logits, min(self.kind.top_k or count, count))
        shares = softmax((logits - max(logits, axis=1, keepdims=True)) / self.temperature)
        sums = cumulative_sum(shares, axis=1)
        total = sums[:, -1:]
        if self.kind.has_top_p:  # they are sorted: the nucleus is a beginning, the one that reaches top_p included
            total = max(where(sums - shares < self.top_p * total, sums, 0.0), axis=1, keepdims=True)
        return shares, sums, total, places
