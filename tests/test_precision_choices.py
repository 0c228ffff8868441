"""Mixed precision: derivatives of a maximum find the value that was chosen, though products read it rounded."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft.dtypes import DType, bfloat16, float16

HALVES = pytest.mark.parametrize("half", [bfloat16, float16], ids=lambda d: d.name)


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


# Values that feed a product and are compared with what they were chosen from: rounded, they would equal nothing.
CHOSEN: dict[str, Callable[..., Any]] = {
    "max": lambda x, w: weft.max(x, axis=2) @ w,
    "min of something computed": lambda x, w: weft.min(weft.sin(x), axis=2) @ w,
    "max of a max, both feed products": lambda x, w: (
        (weft.max(x, axis=2) @ w) + weft.max(weft.max(x, axis=2), axis=0) @ w
    ),
    "moved before it is used": lambda x, w: weft.max(x, axis=2, keepdims=True).reshape(4, 5)[::-1] @ w,
    "max of what feeds a product": lambda x, w: (
        (weft.exp(x)[:, :, 0] @ w) * weft.max(weft.exp(x), axis=(1, 2))[:, None]
    ),
    "the larger of two": lambda x, w: weft.maximum(x[:, :, 0], x[:, :, 1]) @ w,
    "the smaller of two": lambda x, w: weft.minimum(weft.sin(x[:, :, 0]), x[:, :, 1]) @ w,
    "clipped": lambda x, w: weft.clip(x[:, :, 0], -0.5, 0.5) @ w,
    "max pooling": lambda x, w: weft.max_pool(x[:, None], (1, 3))[:, 0, :, 0] @ w,
    "sorted": lambda x, w: weft.sort(x, axis=2)[:, :, -1] @ w,
    "median": lambda x, w: weft.sort(x, axis=2)[:, :, 3] @ w,
}


@HALVES
@pytest.mark.parametrize("name", CHOSEN)
def test_derivatives_find_the_value_that_was_chosen(name: str, half: DType) -> None:
    f = CHOSEN[name]
    x, w = weft.asarray(floats(4, 5, 6)), weft.asarray(floats(5, 3, seed=1))

    def loss(x: Any, w: Any) -> Any:
        return weft.tanh(f(x, w)).sum()

    exact = weft.grad(loss)(x, w).numpy()
    got = weft.jit(weft.grad(loss), precision=half.name)(x, w).numpy()
    assert np.array_equal(got != 0, exact != 0)
    np.testing.assert_allclose(got, exact, atol=0.03 * np.abs(exact).max())


@HALVES
def test_a_large_maximum_that_is_handed_on_is_not_rounded(half: DType) -> None:
    x, w = weft.asarray(floats(140, 130, 3)), weft.asarray(floats(130, 3, seed=1))
    loss = weft.grad(lambda x: weft.tanh(0.05 * (weft.max(x, axis=2).reshape(140, 130) @ w)).sum())
    exact, got = loss(x).numpy(), weft.jit(loss, precision=half.name)(x).numpy()
    assert np.array_equal(got != 0, exact != 0)
