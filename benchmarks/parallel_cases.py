"""What benchmarks/parallel.py measures: the data of a rank, the cores that ranks run on, and how calls are timed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 32
NETWORKS = ("resnet18", "lenet5", "cifar_cnn", "lstm")
SIZES = tuple(1 << n for n in (10, 13, 16, 19, 22, 25, 28))  # bytes of an all-reduce
CHANNELS = ((3, 32), (32, 64), (64, 128))  # of the convolutions of cifar_cnn
CHAIN = 20  # all-reduces in one program of weft


def batch_of(name: str, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """A batch of a rank."""
    rng = np.random.default_rng(rank)
    if name == "lstm":
        return rng.integers(0, 64, (BATCH, 64)), rng.integers(0, 64, BATCH)
    shape = (1, 28, 28) if name == "lenet5" else (3, 32, 32)
    return rng.normal(size=(BATCH, *shape)).astype(np.float32), rng.integers(0, 10, BATCH)


def cores_in_order() -> list[int]:
    """The cores that this process may use: one thread of each physical core first, then their siblings."""
    usable, seen = sorted(os.sched_getaffinity(0)), set[str]()
    first: list[int] = []
    later: list[int] = []
    for core in usable:
        place = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        siblings = place.read_text().strip() if place.exists() else str(core)
        (later if siblings in seen else first).append(core)
        seen.add(siblings)
    return first + later


def pin(rank: int) -> int:
    """Keep this process on the core of its rank."""
    cores = cores_in_order()
    core = cores[rank % len(cores)]
    os.sched_setaffinity(0, {core})
    return core


def times_of(call: Callable[[], Any], count: int) -> list[float]:
    """The times of so many calls, one after another."""
    found = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return found
