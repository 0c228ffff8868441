"""What must never be silently wrong, on the device: captured tensors, large windows, long sums, mixed precision, nan and infinities."""

import numpy as np
import pytest

import test_captured as captured
import test_long_sums as sums
import test_nonfinite as nonfinite
import test_pooling_windows as pooling
import test_precision as mixed
import weft
from weft.dtypes import bfloat16, float16


@pytest.mark.parametrize("name", captured.NAMES)
def test_results_of_captured_tensors(name):
    """Six calls: graphs are recorded at the second, and two sets of results take turns."""
    captured.check_calls(captured.functions()[name], count=6)


def test_captured_tensors_that_change():
    captured.test_captured_tensors_that_change_are_read_again()
    captured.test_state_that_is_assigned_a_captured_value_is_assigned_at_every_call()
    captured.test_the_norm_of_a_frozen_weight_beside_a_training_step()


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("case", pooling.CASES, ids=str)
def test_large_windows(case, dtype):
    pooling.check(case, dtype)


@pytest.mark.parametrize("name", ["equal", "large first", "random"])
def test_long_sums(name):
    sums.test_sums_of_any_length(name)


@pytest.mark.parametrize(("shape", "axis"), sums.SHAPES)
def test_long_sums_over_axes(shape, axis):
    sums.test_sums_over_axes(shape, axis, "float32")


@pytest.mark.parametrize("half", [bfloat16, float16], ids=lambda d: d.name)
@pytest.mark.parametrize("name", mixed.CHOSEN)
def test_derivatives_find_the_value_that_was_chosen(name, half):
    mixed.test_derivatives_find_the_value_that_was_chosen(name, half)


@pytest.mark.parametrize("name", nonfinite.FUNCTIONS)
def test_values_that_are_not_finite(name):
    nonfinite.test_values(name)
    nonfinite.test_gradients(name)


def test_an_error_of_the_first_call_comes_again():
    table, where = weft.asarray(np.ones((5, 7), np.float32)), weft.asarray([9])
    f = weft.jit(lambda a: weft.sort(table[where]) + a)
    for _ in range(3):
        with pytest.raises(weft.errors.RunError, match="index 9"):
            f(weft.asarray(1.0)).numpy()
