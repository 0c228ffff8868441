"""CRC-32, the checksum of zip archives, by all cores: each computes the checksums of some blocks, which are then combined.

The CRC of A followed by B is x^(8 len(B)) crc(A) + crc(B), with polynomials over GF(2) modulo that of CRC-32. As in zlib, the highest
bit of a number is the coefficient of x^0.
"""

from __future__ import annotations

import os
import threading
import zlib
from functools import lru_cache

import numpy as np

BLOCK = 4 << 20  # bytes; less is not worth a thread
_POLYNOMIAL = 0xEDB88320
_ONE, _X = 1 << 31, 1 << 30


class BackgroundCrc32:
    """Computes the CRC-32 of an array of bytes on other threads, while the caller does something else."""

    def __init__(self, data: np.ndarray) -> None:
        self._blocks = [data[at : at + BLOCK].data for at in range(0, len(data), BLOCK)]
        self._found = [0] * len(self._blocks)
        self._waiting = iter(range(len(self._blocks)))  # shared by the threads
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._threads = [threading.Thread(target=self._work) for _ in range(min(cores, len(self._blocks)) - 1)]
        for thread in self._threads:
            thread.start()

    def _work(self) -> None:
        for i in self._waiting:
            self._found[i] = zlib.crc32(self._blocks[i])  # releases Python's lock

    def result(self) -> int:
        """The checksum; the caller's thread helps to finish it."""
        self._work()
        for thread in self._threads:
            thread.join()
        total = 0
        for block, own in zip(self._blocks, self._found, strict=True):
            total = _product(_power(8 * len(block)), total) ^ own
        return total


def crc32(data: np.ndarray) -> int:
    """The same as zlib.crc32, on all cores that this process may use."""
    return BackgroundCrc32(data).result()


def _product(a: int, b: int) -> int:
    """The product of two polynomials."""
    product = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            product ^= b
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product


@lru_cache(16)
def _power(exponent: int) -> int:
    """x to this power."""
    power, square = _ONE, _X
    while exponent:
        if exponent & 1:
            power = _product(square, power)
        square = _product(square, square)
        exponent >>= 1
    return power
