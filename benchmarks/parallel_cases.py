"""What benchmarks/parallel.py measures: the data of a rank, and how a step is timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

SECONDS = 0.8  # of steps that are timed
BATCH = 32
NETWORKS = ("lenet5", "cifar_cnn", "resnet18", "lstm")
SIZES = tuple(1 << n for n in (10, 13, 16, 19, 22, 25, 28))  # bytes of an all-reduce
CHANNELS = ((3, 32), (32, 64), (64, 128))  # of the convolutions of cifar_cnn


def batch_of(name: str, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """A batch of a rank."""
    rng = np.random.default_rng(rank)
    if name == "lstm":
        return rng.integers(0, 64, (BATCH, 64)), rng.integers(0, 64, BATCH)
    shape = (1, 28, 28) if name == "lenet5" else (3, 32, 32)
    return rng.normal(size=(BATCH, *shape)).astype(np.float32), rng.integers(0, 10, BATCH)


def timed(step: Callable[[], Any], agree: Callable[[int], int]) -> float:
    """The median time of a step. All ranks do as many: `agree` gives the number of rank 0."""
    for _ in range(3):
        step()
    return median(seconds(step) for _ in range(agree(max(5, min(300, int(SECONDS / seconds(step)))))))


def repeats(size: int) -> int:
    """How often an all-reduce of so many bytes is timed."""
    return 3 if size > 1 << 26 else 10 if size > 1 << 21 else 200


def seconds(step: Callable[[], Any]) -> float:
    """The time of a call."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start
