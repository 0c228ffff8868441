"""How many single checks ran, and with which seed: sweeps are sampled, and a silent sweep is worth nothing."""

from __future__ import annotations

import os
import zlib

import numpy as np

_SEED = int(os.environ.get("WEFT_TEST_SEED", "20240229"))
_count = 0


def counted(number: int = 1) -> None:
    """Record that this many checks ran."""
    global _count
    _count += number


def checks_run() -> int:
    """How many checks ran in this process."""
    return _count


def seed() -> int:
    """The seed of all sampled sweeps; WEFT_TEST_SEED chooses it."""
    return _SEED


def generator(name: str) -> np.random.Generator:
    """A generator for one sweep, the same whichever other sweeps run."""
    return np.random.default_rng([_SEED, zlib.crc32(name.encode())])
