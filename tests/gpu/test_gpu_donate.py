"""Donated arguments on the device: results take their memory, whatever else holds it keeps its value."""

from typing import Any

import numpy as np

import weft
from weft.testing import counted


def place(tensor: weft.Tensor) -> int:
    """Where a tensor's value is."""
    value: Any = tensor.realize()._node.value
    return int(value.device.address(value.device.memory(value, None)))


def test_a_cache_is_updated_in_place() -> None:
    step = weft.jit(lambda cache, row, i: cache.at[:, i].set(row), donate="cache")
    expected = np.zeros((16, 64, 32), np.float32)
    cache = weft.asarray(expected).realize()
    where = place(cache)
    for i in range(64):
        row = np.full((16, 32), i + 1.0, np.float32)
        cache = step(cache, row, i)
        expected[:, i] = row
        assert place(cache) == where
        counted()
    np.testing.assert_array_equal(cache.numpy(), expected)


def test_values_that_others_hold_stay() -> None:
    step = weft.jit(lambda x: x * 2.0 + 1.0, donate=0)
    x = weft.asarray(np.arange(1000, dtype=np.float32)).realize()
    held = []
    for _ in range(6):
        held.append((weft.asarray(x), x.numpy().copy()))
        x = step(x)
    for tensor, expected in held:
        np.testing.assert_array_equal(tensor.numpy(), expected)
        counted()


def test_a_decoder_with_a_donated_cache_agrees_with_one_without() -> None:
    rng = np.random.default_rng(0)
    keys = rng.normal(size=(40, 8, 16)).astype(np.float32)

    def attend(cache: weft.Tensor, key: weft.Tensor, i: weft.Tensor) -> tuple[weft.Tensor, weft.Tensor]:
        cache = cache.at[:, i].set(key)
        scores = (cache * weft.expand_dims(key, axis=1)).sum(axis=-1)
        return cache, weft.softmax(scores, axis=-1)

    def run(step: Any) -> list[np.ndarray]:
        cache, found = weft.zeros((8, 40, 16)).realize(), []
        for i, key in enumerate(keys):
            cache, scores = step(cache, key, i)
            found.append(scores)
        return [f.numpy() for f in found]

    for a, b in zip(run(weft.jit(attend, donate="cache")), run(weft.jit(attend)), strict=True):
        np.testing.assert_array_equal(a, b)
