"""Matrix products: squares, and the shapes that LeNet, an MLP and a ResNet ask for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from . import with_jax, with_torch, with_weft
from .measure import Case, Ready

GROUP = "matrix product"
GOAL = 0.97

# rows x terms x columns; "t" behind an operand's letter: it is stored transposed.
SQUARES = [(n, n, n, "ab") for n in (256, 512, 1024, 2048)]
SHAPES = [
    ("LeNet fc1", 64, 400, 120, "abt"),
    ("LeNet fc2", 64, 120, 84, "abt"),
    ("LeNet fc1, weight gradient", 120, 64, 400, "atb"),
    ("LeNet conv2 as a product", 6400, 150, 16, "ab"),
    ("MLP fc1", 512, 784, 300, "abt"),
    ("MLP fc1, weight gradient", 300, 512, 784, "atb"),
    ("ResNet 1x1, 64 to 256 at 56", 3136, 64, 256, "ab"),
    ("ResNet 1x1, 512 to 128 at 28", 784, 512, 128, "ab"),
    ("ResNet 1x1, 1024 to 256 at 14", 196, 1024, 256, "ab"),
    ("ResNet 1x1, 512 to 2048 at 7", 49, 512, 2048, "ab"),
    ("ResNet-50 fc, batch 1", 1, 2048, 1000, "abt"),
    ("AlexNet fc6, batch 1", 1, 9216, 4096, "abt"),
]


def cases() -> Iterator[Case]:
    for m, k, n, how in SQUARES:
        yield _case(f"{n} square", m, k, n, how)
    for name, m, k, n, how in SHAPES:
        yield _case(f"{name}: {m} x {k} x {n}", m, k, n, how)


def _case(name: str, m: int, k: int, n: int, how: str) -> Case:
    """Small products are made several in a call, as a network makes them: else the time of a call is all one sees."""
    flops = 2.0 * m * k * n
    count = 1 if flops > 20e6 or m == 1 else 8
    work = _Work(m, k, n, how, count)
    contestants = {"torch": work.torch, "jax": work.jax, "weft": work.weft}
    layers = [(flops, 4.0 * (m * k + k * n + m * n))] * count
    return Case(GROUP, name, contestants, layers, GOAL, note=f"{count} in a call" if count > 1 else "")


class _Work:
    def __init__(self, m: int, k: int, n: int, how: str, count: int) -> None:
        self.a_shape = (k, m) if "at" in how else (m, k)
        self.b_shape = (n, k) if "bt" in how else (k, n)
        self.turn_a, self.turn_b, self.count = "at" in how, "bt" in how, count

    def arrays(self) -> list[np.ndarray]:
        rng = np.random.default_rng(0)
        return [rng.standard_normal(s, np.float32) for _ in range(self.count) for s in (self.a_shape, self.b_shape)]

    def _products(self, *operands: Any) -> list[Any]:
        pairs = zip(operands[::2], operands[1::2], strict=True)
        return [(a.T if self.turn_a else a) @ (b.T if self.turn_b else b) for a, b in pairs]

    def weft(self) -> Ready:
        return with_weft.function(self._products, self.arrays())

    def torch(self) -> Ready:
        return with_torch.function(self._products, self.arrays())

    def jax(self) -> Ready:
        return with_jax.function(self._products, self.arrays())
