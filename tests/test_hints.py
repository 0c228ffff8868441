"""Hints for words that are not known."""

import inspect

import pytest

from weft import optim, train
from weft.hints import ELSEWHERE, nearest
from weft.jobs.settings import SETTINGS


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("lr", "Did you mean rate?"),  # called so elsewhere
        ("rat", "Did you mean rate?"),  # a slip
        ("batch_size", "Known: rate, size, weights."),  # nothing that is called so elsewhere is known here
        ("zzz", "Known: rate, size, weights."),
    ],
)
def test_hints(word: str, hint: str) -> None:
    assert nearest(word, ["size", "rate", "weights", "rate"]) == hint


def test_all_that_is_hinted_at_exists() -> None:
    known = {*inspect.signature(train.fit).parameters, *optim.settings_of(optim.adam), *SETTINGS}
    assert known >= ELSEWHERE.keys()
    words = [word for all_of_one in ELSEWHERE.values() for word in all_of_one.split()]
    assert len(words) == len({*words})
    assert known & {*words} == {"betas"}  # a setting of commands; in Python it is b1 and b2
