"""Windows of text that overlap, and which epoch of a text is the best."""

import numpy as np
import pytest

from weft import data
from weft.errors import UserError
from weft.train.task import is_better, task_of


def test_windows_begin_every_stride_tokens():
    ids = np.arange(20, dtype=np.int32)
    found = data.Text(ids, "abcdefghijklmnopqrst", length=5, stride=3)
    assert found.x[:, 0].tolist() == [0, 3, 6, 9, 12]
    np.testing.assert_array_equal(found.labels, found.x + 1)
    assert found.labels[-1, -1] == 17  # the next window would need one token more than there are


@pytest.mark.parametrize("length", [1, 3, 5, 19])
def test_without_a_stride_windows_follow_each_other(length):
    ids = np.arange(20, dtype=np.int32)
    found = data.Text(ids, "abcdefghijklmnopqrst", length=length)
    count = 19 // length
    np.testing.assert_array_equal(found.x, ids[: count * length].reshape(count, length))
    np.testing.assert_array_equal(found.labels, found.x + 1)


def test_only_training_windows_overlap():
    train, validation, _ = data.Text(np.arange(40) % 7, "abcdefg", length=4, stride=1).split(0.25)
    assert (len(train), len(validation)) == (26, 2)


def test_a_stride_of_zero_is_rejected():
    with pytest.raises(UserError, match="1 or more"):
        data.Text(np.arange(9), "abcdefghi", length=2, stride=0)


def test_the_best_epoch_of_a_text_has_the_least_loss():
    assert list(task_of(np.zeros((1, 4), np.int64), None, None).makers) == ["token_accuracy"]
    assert list(task_of(np.zeros(1, np.int64), None, None).makers) == ["accuracy"]
    early, late = (
        {"validation_loss": loss, "validation_token_accuracy": share} for loss, share in ((1.5, 0.5), (1.6, 0.6))
    )
    assert is_better(early, late)
    assert not is_better(late, early)
