"""What the tests of `weft.jit` share."""

from typing import Any

import numpy as np

import weft


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def address(tensor: weft.Tensor) -> int:
    return tensor.numpy().ctypes.data


def counting(f: Any) -> tuple[Any, list[int]]:
    """The function, and a list that grows with every trace of it."""
    traces: list[int] = []

    def counted(*args: Any, **kwargs: Any) -> Any:
        traces.append(1)
        return f(*args, **kwargs)

    return counted, traces
