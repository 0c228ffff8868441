"""Recurrent layers as one kernel each: the results of the CPU, and the same bits again and again."""

from typing import Any

import numpy as np
import pytest
from gpu_tools import floats

import weft
from weft import nn, optim

# Rows, steps, inputs and hidden features: odd ones, one program, many programs, wide products.
SIZES = [(37, 9, 5, 20), (16, 64, 8, 128), (300, 33, 31, 100), (1000, 17, 16, 64), (48, 12, 20, 200)]
REPEATS = 5


def steps(kind: str, precision: str | None, sizes: tuple[int, int, int, int], count: int) -> list[np.ndarray]:
    """Losses, outputs and parameters after some steps of training."""
    rows, length, inputs, hidden = sizes
    weft.seed(3)
    model = getattr(nn, kind)(inputs, hidden)
    model(weft.zeros((1, 1, inputs)))
    optimizer = optim.sgd(model, 0.1)

    @weft.jit(precision=precision)
    def step(x: Any) -> Any:
        outputs, _ = model(x)
        loss = (outputs**2).mean()
        optimizer.minimize(loss)
        return loss, outputs

    x = floats(rows, length, inputs)
    found = [value for _ in range(count) for value in step(x)]
    return [value.astype("float32").numpy() for value in (*found, *model.parameters())]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("precision", [None, "bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_training_is_that_of_the_cpu(kind: str, precision: str | None, sizes: tuple[int, int, int, int]) -> None:
    here = steps(kind, precision, sizes, 3)
    with weft.knobs.set(device="cpu"):
        there = steps(kind, precision, sizes, 3)
    allowed = 2e-5 if precision is None else 3e-2
    for a, b in zip(here, there, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=allowed * max(1.0, float(np.abs(b).max())))


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_the_same_bits_again(kind: str) -> None:
    first = steps(kind, "bfloat16", (1000, 40, 16, 128), 3)
    for _ in range(REPEATS):
        for a, b in zip(steps(kind, "bfloat16", (1000, 40, 16, 128), 3), first, strict=True):
            np.testing.assert_array_equal(a, b)
