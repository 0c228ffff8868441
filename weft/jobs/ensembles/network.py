"""Several networks as one: the average of their predictions, or their votes."""

from __future__ import annotations

from collections.abc import Sequence

from ... import nn
from ...data.label_kinds import LabelKind
from ...ops.convert import asarray
from ...ops.creation import one_hot
from ...ops.elementwise import log, sigmoid
from ...ops.math import clip
from ...ops.reduce import argmax
from ...ops.statistics import softmax
from ...tensor import Tensor
from ...train.task import prediction_of

LEAST = 1e-7  # probabilities below it count as this much: their logarithm is needed


class EnsembleNetwork(nn.Module):
    """Mean of the members' probabilities (or numbers), or with `votes` the share of members that choose a class; as logits.

    Each member takes stored inputs and has its own preprocessing. In votes, the mean probability counts as one more vote, shared among the
    classes: it decides ties, and only ties.
    """

    def __init__(self, members: Sequence[nn.Module], kind: LabelKind, votes: bool = False) -> None:
        self.members, self.kind, self.votes = list(members), kind, votes

    def forward(self, x: Tensor) -> Tensor:
        outputs = [prediction_of(member(x)) for member in self.members]
        if self.kind == "numbers":
            return _mean(outputs)
        shares = [softmax(y) if self.kind == "class" else sigmoid(y) for y in outputs]
        found = _mean(shares)
        if self.votes:
            found = (sum(map(self._vote, shares), found)) * (1.0 / (1 + len(shares)))
        found = clip(found, LEAST, 1.0 if self.kind == "class" else 1.0 - LEAST)
        return log(found) if self.kind == "class" else log(found) - log(1.0 - found)

    def _vote(self, shares: Tensor) -> Tensor:
        """One for the most likely class; where an example can have several, one for each that is more likely than not."""
        if self.kind == "classes":
            return (shares > 0.5).astype(shares.dtype)
        return one_hot(argmax(shares, axis=-1), shares.shape[-1], dtype=shares.dtype)


def _mean(tensors: Sequence[Tensor]) -> Tensor:
    return sum(tensors[1:], asarray(tensors[0])) * (1.0 / len(tensors))
