"""Quantization in explicit pairs: a tensor is quantized to integers and dequantized again (QDQ), as in ONNX models.

`qdq(model)` is a network quantized by `int8` in this form: it computes the same as the fake-quantized network, with weights stored in 8 bits.
`weft.onnx.save` writes it as QuantizeLinear and DequantizeLinear, and `to_int8` converts it to a network that computes with the integers.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field

import numpy as np

from ..errors import UserError
from ..graph.node import Node
from ..nn.module import Module
from ..ops.convert import asarray
from ..ops.quantize import dequantize, quantize
from ..records import dataclass
from ..tensor import ArrayLike, Tensor, as_tensor
from .fake_quantize import FakeQuantize, QuantizedWeight, quantizers
from .grids import Grid
from .layers import Weight, weights_of
from .parametrize import Parametrization

MOST_BITS = 8


@dataclass
class Pairs:
    """The quantized tensors of a traced network, by the node of the dequantized one."""

    activations: dict[Node, tuple[Node, Grid]] = field(default_factory=dict)  # the tensor before, and its grid
    weights: dict[Node, IntegerWeight] = field(default_factory=dict)


_recorded: ContextVar[Pairs | None] = ContextVar("pairs", default=None)


@contextmanager
def recorded_pairs() -> Iterator[Pairs]:
    """While active, every traced pair is recorded."""
    pairs = Pairs()
    before = _recorded.set(pairs)
    try:
        yield pairs
    finally:
        _recorded.reset(before)


class QuantizeDequantize(Module):
    """y = dequantize(quantize(x)) on a grid of up to 8 bits for the whole tensor.

    >>> QuantizeDequantize(Grid(8, True, np.float32(0.5), np.int32(0)))(as_tensor([0.3, -0.8, 99.0])).tolist()
    [0.5, -1.0, 63.5]
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    @property
    def grid(self) -> Grid:
        return self._grid

    def forward(self, x: ArrayLike) -> Tensor:
        x, grid = as_tensor(x), self._grid
        scale, zero = float(grid.scale), int(grid.zero)
        made = dequantize(quantize(x, scale, zero, dtype=grid.dtype, bits=grid.bits), scale, zero)
        pairs = _recorded.get()
        if pairs is not None:
            pairs.activations[made.node] = x.node, grid
        return made


class IntegerWeight(Parametrization):
    """A weight stored as int8 with one scale, or one per output channel."""

    def __init__(self, integers: np.ndarray, scale: np.ndarray) -> None:
        self.integers, self.scale = asarray(integers).realize(), asarray(scale).realize()

    def forward(self) -> Tensor:
        made = dequantize(self.integers, self.scale, axis=0)
        pairs = _recorded.get()
        if pairs is not None:
            pairs.weights[made.node] = self
        return made


def qdq(model: Module) -> Module:
    """A copy of a quantized network with explicit pairs. Grids of more than 8 bits, or with per-channel scales of activations, stay fake quantizers."""
    if not any(True for _ in quantizers(model)):
        raise UserError("qdq", "a quantized network is required. Call int8 first.")
    made = copy.deepcopy(model).eval()
    for one in weights_of(made).values():
        store_integers(one)
    for module, name, quantizer in quantizers(made):
        if not isinstance(module, Parametrization) and _has_8_bits(quantizer) and quantizer.grid.axis is None:
            setattr(module, name, QuantizeDequantize(quantizer.grid))
    return made


def store_integers(one: Weight) -> None:
    """Store a weight that is rounded to a symmetric grid of up to 8 bits as integers: its values are the same."""
    found = one.parametrization
    if isinstance(found, QuantizedWeight) and _has_8_bits(found.quantizer):
        grid = found.quantizer.grid
        if grid.signed and not grid.zero.any() and grid.axis in (None, 0):
            one.replace(IntegerWeight(grid.quantize(found.full().numpy()), grid.scale))


def _has_8_bits(quantizer: FakeQuantize) -> bool:
    return quantizer.bits <= MOST_BITS and quantizer.rounding == "even"
