"""Rounding errors at random, to measure how far they can move the results of a program.

Within `noise`, the reference computes every node with relative errors as large as those of a dtype could be. Branches, loops, derivatives,
layers and optimizers are all made of nodes, so all of them are covered, and nothing has to be known about a program.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...graph.node import Node
from ...runtime import reference

ULPS = 2.0  # that an elementwise function may be off
CHAIN = {"contract", "conv", "conv_data", "conv_filter", "cumsum", "cumprod", "prod"}  # added up one after the other
BLOCKS = {"sum", "window_sum", "scatter"}  # added up in blocks, pairwise
INEXACT = {
    "exp", "expm1", "log", "log1p", "log2", "log10", "sqrt", "sigmoid", "erf", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh",
    "asinh", "acosh", "atanh", "add", "sub", "mul", "div", "remainder", "pow", "atan2", "hypot", "logaddexp",
}  # fmt: skip


@contextmanager
def noise(sample: int, unit: float) -> Iterator[None]:
    """Within the block, the reference device rounds at random: relative errors of a few times `unit`."""
    plain, rng = reference.compute, np.random.default_rng(sample)

    def compute(node: Node, inputs: Sequence[Any]) -> Any:
        op = node.op.name
        if op in CHAIN or op in BLOCKS:
            size = ULPS * unit * _growth(node)
            return _moved(plain(node, [_moved(i, size, rng) for i in inputs]), ULPS * unit, rng)
        result = plain(node, inputs)
        return _moved(result, ULPS * unit, rng) if op in INEXACT else result

    reference.compute = compute
    try:
        yield
    finally:
        reference.compute = plain


def moved(array: np.ndarray, unit: float, seed: Sequence[int]) -> np.ndarray:
    """An array with such errors."""
    return np.asarray(_moved(array, unit, np.random.default_rng(seed)))


def _moved(array: Any, size: float, rng: np.random.Generator) -> Any:
    if not isinstance(array, np.ndarray) or array.dtype.kind in "biu":
        return array
    factors = 1.0 + size * rng.uniform(-1.0, 1.0, array.shape)
    return np.asarray(array * factors, array.dtype)


def _growth(node: Node) -> float:
    """By how much the errors of a sum are larger than those of one operation, for each of its terms."""
    sizes = [math.prod(i.shape) for i in node.inputs if i.dtype.is_float]
    if node.op.name in BLOCKS or not sizes:
        return 1.0 + math.log2(1 + max(sizes, default=0))
    if len(sizes) == 1:
        return math.sqrt(sizes[0])
    terms = math.sqrt(math.prod(sizes) / max(1, math.prod(node.shape)))
    return 2.0 * math.sqrt(1.0 + terms)
