"""Nucleus sampling, and text that arrives character by character."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft import nn, train
from weft.data import Text
from weft.errors import UserError
from weft.random import Generator

VOCABULARY = "abcd"
TEXT = Text(np.arange(40, dtype=np.int32) % 4, VOCABULARY, length=4)
SHARES = np.array([0.1, 0.5, 0.15, 0.25])


class Fixed(nn.Module):
    """Always expects the same characters."""

    context = 4

    def forward(self, x: weft.Tensor) -> weft.Tensor:
        return weft.asarray(np.log(SHARES).astype(np.float32)) + weft.zeros((*x.shape, 4))


def expected(top_p: float, count: int, top: int = 4, seed: int = 3) -> str:
    """The same in NumPy."""
    order = np.argsort(-SHARES)[:top]
    shares = SHARES[order] / SHARES[order].sum()
    kept = order[: 1 + int(np.searchsorted(np.cumsum(shares), top_p - 1e-7))]
    sums, stream = np.cumsum(SHARES[kept] / SHARES[kept].sum()), Generator(seed)
    return "".join(VOCABULARY[kept[np.searchsorted(sums, stream.uniform().item(), side="right")]] for _ in range(count))


@pytest.mark.parametrize(
    ("top_p", "top", "drawn"), [(0.3, 4, "b"), (0.6, 4, "bd"), (0.6, 2, "b"), (0.9, 4, "bcd"), (1.0, 4, "abcd")]
)
def test_the_nucleus_is_sampled(top_p: float, top: int, drawn: str) -> None:
    text = train.generate(Fixed(), TEXT, "a", 60, top=top, top_p=top_p, seed=3)[1:]
    assert text == expected(top_p, 60, top)
    assert set(text) == set(drawn)


def test_characters_come_one_by_one_and_are_those_of_generate() -> None:
    model = Fixed()
    found = train.generated(model, TEXT, "ab", 9, seed=5)
    first = next(found)
    assert not model.training
    assert "ab" + first + "".join(found) == train.generate(model, TEXT, "ab", 9, seed=5)
    assert model.training


def test_who_stops_early_leaves_the_network_as_it_was() -> None:
    model = Fixed()
    found = train.generated(model, TEXT, "ab", 9)
    next(found)
    found.close()  # type: ignore[attr-defined]
    assert model.training


@pytest.mark.parametrize("top_p", [0.0, -1.0, 1.5, float("nan")])
def test_what_is_no_probability_is_refused_at_once(top_p: float) -> None:
    with pytest.raises(UserError, match="top_p must be above 0 and at most 1"):
        train.generated(Fixed(), TEXT, "a", top_p=top_p)
