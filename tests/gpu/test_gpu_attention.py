"""Attention and its gradients on a GPU, against the definition in float64: every option, odd sizes, cuDNN's kernels and ours."""

import ml_dtypes
import numpy as np
import pytest

import weft
from test_attention_kernels import CASES, LOWER, UPPER, Case, assert_right
from weft.testing import generator

DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16, np.float64]
LARGE = {
    "full": Case((2, 4, 4, 256, 256, 64, 64)),
    "causal, grouped": Case((2, 4, 2, 256, 256, 64, 64), LOWER),
    "more keys, heads of 128": Case((1, 2, 2, 200, 456, 128, 128), LOWER),
    "upper left, odd length": Case((2, 2, 2, 333, 333, 64, 64), UPPER),
    "heads of 256": Case((1, 2, 2, 128, 128, 256, 256), LOWER),
    "window": Case((1, 2, 2, 300, 300, 64, 64), (50, 0, "lower_right")),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("name", CASES)
def test_options(name, dtype):
    assert_right(CASES[name], dtype)


@pytest.mark.parametrize("dtype", DTYPES[:3], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("name", LARGE)
def test_sizes_that_libraries_take(name, dtype):
    assert_right(LARGE[name], dtype)


@pytest.mark.parametrize("seed", range(12))
def test_random_sizes(seed):
    rng = generator(f"attention {seed}")
    key_heads = int(rng.integers(1, 3))
    heads, (queries, keys) = key_heads * int(rng.integers(1, 3)), map(int, rng.integers(1, 300, 2))
    features, values = map(int, rng.integers(1, 80, 2))
    window = (int(rng.integers(0, 60)), int(rng.integers(0, 9)), "lower_right")
    band = [(-1, -1, "upper_left"), UPPER, LOWER, window][int(rng.integers(4))]
    case = Case((int(rng.integers(1, 3)), heads, key_heads, queries, keys, features, values), band)
    for dtype in DTYPES[::2]:
        assert_right(case, dtype)


def test_a_transformer_trains_as_on_the_cpu():
    """Three steps of a small GPT, with dropout, from the same random numbers."""
    losses = {}
    for device in ("cpu", str(weft.knobs.device)):
        with weft.knobs.set(device=device):
            weft.seed(3)
            model = weft.zoo.gpt(67, context=40, features=48, heads=4, layers=2, dropout=0.1)
            optimizer = weft.optim.adamw(model, 1e-2)
            tokens = weft.asarray(np.random.default_rng(0).integers(0, 67, (3, 41)))

            def step(tokens, model=model, optimizer=optimizer):
                loss = weft.cross_entropy(model(tokens[:, :-1]).reshape((-1, 67)), tokens[:, 1:].reshape((-1,)))
                optimizer.minimize(loss)
                return loss

            run = weft.jit(step)
            losses[device] = [run(tokens).item() for _ in range(3)]
    first, *_, last = [losses["cpu"], *losses.values()]
    np.testing.assert_allclose(last, first, rtol=2e-4)
