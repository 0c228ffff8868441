"""A character-level recurrent language model."""

from __future__ import annotations

from typing import Any

from .. import nn
from ..tensor import ArrayLike, Tensor
from .facts import network


class CharLSTM(nn.Module):
    """Embedding, LSTM layers, and the logits of the next character at each time step."""

    def __init__(self, vocabulary: int, features: int, hidden: int, *, layers: int, dropout: float) -> None:
        self.embedding = nn.Embedding(vocabulary, features)
        self.lstm = nn.LSTM(features, hidden, layers=layers, dropout=dropout)
        self.top = nn.Linear(hidden, vocabulary, init="glorot_uniform")

    def forward(self, x: ArrayLike, state: Any = None) -> tuple[Tensor, Any]:
        """Character ids (batch, time) to logits (batch, time, vocabulary), and the state to continue from."""
        outputs, state = self.lstm(self.embedding(x), state)
        return self.top(outputs), state


@network("text", parameters=280_897, rate_scale=3.0)
def char_lstm(
    vocabulary: int, hidden: int = 128, layers: int = 2, *, features: int | None = None, dropout: float = 0.0
) -> CharLSTM:
    """A character-level LSTM (as Karpathy's char-rnn); `features` is the embedding size, `hidden` by default.

    >>> import weft
    >>> logits, state = char_lstm(65, 16, layers=1)(weft.zeros((2, 7), dtype="int64"))
    >>> logits.shape
    (2, 7, 65)
    """
    return CharLSTM(vocabulary, hidden if features is None else features, hidden, layers=layers, dropout=dropout)
