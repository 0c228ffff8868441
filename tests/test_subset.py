"""Checks parts of datasets, and the examples that are held out where nobody made a validation split."""

import re
from pathlib import Path

import numpy as np
import pytest

from weft import data
from weft.data import Arrays, Loader, Splits, Subset, held_out
from weft.data.statistics import Statistics
from weft.errors import UserError
from weft.testing import counted, generator

BYTES = generator("subset").integers(0, 256, (40, 1, 3, 2), np.uint8)
LABELS = np.arange(40) % 4


def whole() -> Arrays:
    return Arrays(BYTES, LABELS, ["a", "b", "c", "d"], "forty")


def numbers_of(part: data.Dataset | None) -> list[int]:
    assert isinstance(part, Subset)
    return part.indices.tolist()


# Subset.


def test_a_subset_is_the_examples_it_names() -> None:
    part = Subset(whole(), [7, 3, 30])
    assert (len(part), part.shape, part.name, part.classes) == (3, (1, 3, 2), "forty", ("a", "b", "c", "d"))
    assert part.labels.tolist() == [3, 3, 2]
    assert part.counts() == {"a": 0, "b": 0, "c": 1, "d": 2}
    np.testing.assert_array_equal(part.inputs([2, 0, 2]), BYTES[[30, 7, 30]])
    np.testing.assert_array_equal(part.inputs(slice(1, 3)), BYTES[[3, 30]])
    np.testing.assert_array_equal(Subset(whole(), slice(5, 9)).inputs(slice(None)), BYTES[5:9])
    assert part.inputs([]).shape == (0, 1, 3, 2)


def test_a_subset_has_the_statistics_of_the_whole() -> None:
    given = Statistics((0.25,), (0.5,))
    assert Subset(Arrays(BYTES, LABELS, statistics=given), [0]).statistics == given
    assert Subset(whole(), [1, 2]).mean == whole().mean
    assert Subset(Arrays(np.ones((3, 2)), [0.5, 1.0, 2.0]), [1]).mean is None


def test_a_subset_of_a_subset_asks_the_whole() -> None:
    base = whole()
    part = Subset(Subset(base, [9, 8, 7, 6]), [3, 1])
    assert part.base is base
    assert part.indices.tolist() == [6, 8]
    np.testing.assert_array_equal(part.inputs([0, 1]), BYTES[[6, 8]])
    assert part.labels.tolist() == [2, 0]


def test_a_subset_cannot_be_written_to() -> None:
    part = Subset(whole(), [7, 3])
    for array in (part.labels, part.indices):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    part.inputs(slice(None))[:] = 0
    np.testing.assert_array_equal(part.inputs([0]), BYTES[[7]])


@pytest.mark.parametrize("indices", [[40], [-1], [0.5]], ids=["behind the end", "below zero", "no whole number"])
def test_wrong_numbers_are_refused(indices: list) -> None:
    with pytest.raises(UserError, match=r"\[inputs\] indices"):
        Subset(whole(), indices)
    with pytest.raises(UserError, match=r"\[inputs\] indices"):
        Subset(whole(), [1, 2]).inputs(indices)


class Careful(data.Dataset):
    """Counts how often it is asked, and for what."""

    def __init__(self) -> None:
        super().__init__(LABELS, "abcd", "careful", None)
        self.asked: list[list[int]] = []

    @property
    def shape(self) -> tuple[int, ...]:
        return (1, 3, 2)

    def inputs(self, indices: np.ndarray) -> np.ndarray:
        self.asked.append(np.asarray(indices).tolist())
        return BYTES[indices]


def test_a_subset_reads_nothing_but_what_is_asked_for() -> None:
    base = Careful()
    part = Subset(base, [5, 6, 7])
    assert base.asked == []
    part.inputs([2])
    assert base.asked == [[7]]


@pytest.mark.parametrize("base", [whole, Careful], ids=["arrays", "other"])
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_a_subset(base: type, workers: int) -> None:
    numbers = np.array([31, 2, 17, 5, 9])
    loader = Loader(Subset(base(), numbers), 2, seed=3, workers=workers)
    order = numbers[loader.order(0)]
    for place, (x, y) in enumerate(loader):
        chosen = order[2 * place : 2 * place + 2]
        np.testing.assert_array_equal(x.numpy(), BYTES[chosen])
        assert y.tolist() == LABELS[chosen].tolist()
        counted()


def test_batches_of_arrays_are_taken_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """One copy a batch: `inputs`, whose answer would be copied once more, is not asked."""
    monkeypatch.setattr(Arrays, "inputs", lambda self, indices: pytest.fail("asked"))
    [(x, _)] = Loader(Subset(whole(), [4, 8]), 2, shuffle=False)
    np.testing.assert_array_equal(x.numpy(), BYTES[[4, 8]])


# Held out.


def test_a_share_of_every_class_is_held_out() -> None:
    test = Arrays(BYTES[:3], LABELS[:3])
    train, validation, rest = held_out(Splits(whole(), None, test), 0.2, seed=5)
    assert rest is test
    assert validation.counts() == dict.fromkeys("abcd", 2)
    assert train.counts() == dict.fromkeys("abcd", 8)
    assert sorted(numbers_of(train) + numbers_of(validation)) == list(range(40))
    assert numbers_of(train) == sorted(numbers_of(train)), "training keeps its order"


def test_what_is_held_out_follows_from_the_seed() -> None:
    splits = Splits(whole())
    chosen = [tuple(numbers_of(held_out(splits, 0.2, seed).validation)) for seed in (0, 0, 1, 2**64 - 1)]
    assert chosen[0] == chosen[1]
    assert len(set(chosen)) == 3
    # Runs of today must find tomorrow what they held out.
    assert chosen[0] == (1, 5, 10, 27, 28, 30, 32, 39)


def test_no_class_is_lost_on_either_side() -> None:
    labels = np.array([0] * 30 + [1, 1] + [2])
    splits = held_out(Splits(Arrays(np.zeros((33, 2)), labels)), 0.01)
    assert splits.validation.counts() == {"0": 1, "1": 1, "2": 0}
    assert held_out(Splits(Arrays(np.zeros((33, 2)), labels)), 0.99).train.counts() == {"0": 1, "1": 1, "2": 1}


@pytest.mark.parametrize(
    "labels", [np.linspace(0, 1, 20), np.zeros((20, 3), np.int64)], ids=["regression", "labels of many numbers"]
)
def test_without_one_class_for_each_a_share_of_all_is_held_out(labels: np.ndarray) -> None:
    train, validation, _ = held_out(Splits(Arrays(np.arange(20.0), labels)), 0.25)
    assert (len(train), len(validation)) == (15, 5)
    np.testing.assert_array_equal(validation.labels, labels[numbers_of(validation)])


def test_splits_with_validation_stay_as_they_are() -> None:
    splits = Splits(whole(), whole())
    assert held_out(splits, 0.5) is splits
    without = Splits(whole())
    assert held_out(without, 0) is without


def test_a_text_is_cut_at_its_end(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abcdefghij" * 10)
    whole_text = data.text(tmp_path / "a.txt", length=4)
    train, validation, _ = held_out(Splits(whole_text), 0.2)
    assert isinstance(train, data.Text)
    assert (train.ids.tolist(), validation.ids.tolist()) == (whole_text.ids[:80].tolist(), whole_text.ids[80:].tolist())
    for share in (0.04, 0.99):
        with pytest.raises(UserError, match="of 100 characters leave no window of 4 on one side"):
            held_out(Splits(whole_text), share)


WRONG = {
    "all": (whole(), 1.0, 0, "a share in [0, 1) is required, got 1.0."),
    "below zero": (whole(), -0.1, 0, "a share in [0, 1) is required, got -0.1."),
    "no number": (whole(), float("nan"), 0, "a share in [0, 1) is required, got nan."),
    "text": (whole(), "0.1", 0, "a share in [0, 1) is required, got '0.1'."),
    "one of each class": (
        Arrays(BYTES[:4], LABELS[:4]),
        0.5,
        0,
        "two examples or more of a class are required, the training set has 4 in all.",
    ),
    "one example": (
        Arrays(np.zeros(1), [0.5]),
        0.5,
        0,
        "two examples or more are required, the training set has 1 in all.",
    ),
    "a seed below zero": (whole(), 0.5, -1, "the seed must be an int of 0 or more, got -1."),
    "a seed too large": (whole(), 0.5, 2**64, "the seed must be an int from 0 to 2**64 - 1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_shares_that_make_no_sense(name: str) -> None:
    train, share, seed, text = WRONG[name]
    with pytest.raises(UserError, match=re.escape(text)):
        held_out(Splits(train), share, seed)
