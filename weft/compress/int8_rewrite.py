"""Rewrites a traced network with quantize-dequantize pairs to one that computes with the integers between them.

A quantized tensor is stored as int8: x = (q - zero) * scale; unsigned grids are shifted by 128, because CPUs multiply signed integers faster. For each pair, the float
expression before it is traced back to the quantized tensors that it is computed from:

    product or convolution of integers   sums in int32, times a scale for each channel, plus an offset with bias and zero points
    addition                             both terms in steps of the result's grid
    ReLU, ReLU6, clip                    limits of the result, often implied by the saturation of int8
    max pooling, data movement, concatenation of the integers themselves: rounding preserves order

Everything else is computed in float from the dequantized integers, inside the kernels that read them.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from ..dtypes import int8
from ..errors import Scope, current_scope, in_scope
from ..graph.graph import rebuild
from ..graph.node import OPS, Node, make, toposort
from ..ops.contract import einsum
from ..ops.conv import conv
from ..ops.convert import asarray
from ..ops.elementwise import astype, maximum, minimum, round
from ..ops.movement import pad, permute_dims
from ..records import dataclass
from ..tensor import Tensor, wrap
from .grids import Grid
from .qdq import IntegerWeight, Pairs

LEAST, LARGEST = -128, 127


def integer_form(root: Node, pairs: Pairs) -> Node:
    """The same value, computed with integers where the pairs allow it."""
    return _Rewrite(root, pairs).result()


@dataclass(frozen=True)
class Quantized:
    """x = (integers - zero) * scale."""

    integers: Tensor  # int8
    scale: float
    zero: int


@dataclass(frozen=True)
class GridSteps:
    """A tensor in steps of a grid: main + offset. Offsets are constants: a number, or a vector along the channels."""

    main: Tensor
    offset: np.ndarray

    def total(self, more: float = 0.0) -> Tensor:
        offset = np.asarray(self.offset + more, np.float32)
        return self.main + asarray(offset) if offset.any() else self.main


class _Rewrite:
    def __init__(self, root: Node, pairs: Pairs) -> None:
        self.root, self.pairs = root, pairs
        self.order = toposort([root])
        self.readers = Counter(i for node in self.order for i in node.inputs)
        self.floats: dict[Node, Node] = {}
        self.quantized: dict[tuple[Node, float, int], Tensor] = {}

    def result(self) -> Node:
        for node in self.order:  # so that each pair finds its predecessors
            self.floats[node] = self._float(node)
        return self.floats[self.root]

    def _float(self, node: Node) -> Node:
        """A node with its inputs rewritten."""
        if node in self.pairs.activations:
            return self._dequantized(self._pair(node)).node
        product = self._product(node, 1.0)
        if product is not None:
            return product.total().node
        return rebuild(node, tuple(self.floats[i] for i in node.inputs))

    # --- pairs --------------------------------------------------------------------------------------------------------------

    def _pair(self, node: Node) -> Quantized:
        before, grid = self.pairs.activations[node]
        scale, zero = float(grid.scale), int(grid.zero) - _shift(grid)
        return Quantized(self._integers(before, scale, zero, grid), scale, zero)

    def _integers(self, node: Node, scale: float, zero: int, grid: Grid) -> Tensor:
        """The integers of a node on a grid."""
        key = node, scale, zero
        if key not in self.quantized:
            moved = self._moved(node, scale, zero, grid)
            self.quantized[key] = self._rounded(node, scale, zero, grid) if moved is None else moved
        return self.quantized[key]

    def _moved(self, node: Node, scale: float, zero: int, grid: Grid) -> Tensor | None:
        """Apply ops that only move or select values to the integers directly."""
        if node in self.pairs.activations:
            found = self._pair(node)
            return found.integers if (found.scale, found.zero) == (scale, zero) else None
        chooses = node.op.kernel == "view" or node.op.name in ("window_max", "concat")
        pads = node.op.name == "pad" and node.param("value") == 0
        if not (chooses or pads):
            return None
        inputs = tuple(self._integers(i, scale, zero, grid).node for i in node.inputs)
        params = node.replace_params(value=zero) if pads else node.params
        return wrap(make(node.op, inputs, params, node.source))

    def _rounded(self, node: Node, scale: float, zero: int, grid: Grid) -> Tensor:
        node, limits = _without_clips(node)
        value = self._steps(node, scale).total(float(zero))
        numbers: list[tuple[float, bool]] = []  # limits in steps of the grid, and whether they are lower ones
        for limit in limits:
            if isinstance(limit.value, Node):
                bound = wrap(self.floats[limit.value]) * (1.0 / scale) + float(zero)
                low, high = _combined(numbers)
                value = maximum(value, low) if low > -np.inf else value
                value = minimum(value, high) if high < np.inf else value
                value, numbers = (maximum if limit.is_lower else minimum)(value, bound), []
            else:
                numbers.append((limit.value / scale + zero, limit.is_lower))
        low, high = _combined([*numbers, (grid.low - _shift(grid), True), (grid.high - _shift(grid), False)])
        value = maximum(value, low) if low > LEAST else value  # the conversion to int8 saturates anyway
        value = minimum(value, high) if high < LARGEST else value
        return astype(round(value), int8)

    # --- values in steps ----------------------------------------------------------------------------------------------------

    def _steps(self, node: Node, scale: float) -> GridSteps:
        """A node divided by a scale."""
        if node in self.pairs.activations:
            found = self._pair(node)
            ratio = found.scale / scale
            return GridSteps(astype(found.integers, "float32") * ratio, np.asarray(-found.zero * ratio))
        product = self._product(node, scale)
        if product is not None:
            return product
        if node.op.name == "add":
            return self._sum(node, scale)
        return self._scaled_float(node, scale)

    def _scaled_float(self, node: Node, scale: float) -> GridSteps:
        return GridSteps(wrap(self.floats[node]) * (1.0 / scale), np.zeros(()))

    def _sum(self, node: Node, scale: float) -> GridSteps:
        """An addition; a term with other readers is stored in float, and read from there."""
        first, second = node.inputs
        for main, other in ((first, second), (second, first)):
            vector = _broadcast(other)
            if vector is not None and not vector.abstract:
                steps = self._alone(main, scale)
                return GridSteps(steps.main, steps.offset + _value(vector) / scale)
        a, b = self._alone(first, scale), self._alone(second, scale)
        return GridSteps(a.main + b.main, a.offset + b.offset)

    def _alone(self, node: Node, scale: float) -> GridSteps:
        if self.readers[node] > 1 and node not in self.pairs.activations:
            return self._scaled_float(node, scale)
        return self._steps(node, scale)

    # --- products -----------------------------------------------------------------------------------------------------------

    def _product(self, node: Node, scale: float) -> GridSteps | None:
        """A product or convolution of quantized operands divided by a scale, attributed to the layer of the float one."""
        scope = node.source.scope if node.source is not None else None
        with in_scope(scope or current_scope() or Scope()):
            return self._integer_product(node, scale)

    def _integer_product(self, node: Node, scale: float) -> GridSteps | None:
        if node.op.name == "conv" and node.inputs[0] in self.pairs.activations:
            weight = self.pairs.weights.get(node.inputs[1])
            return None if weight is None else self._convolution(node, self._pair(node.inputs[0]), weight, scale)
        if node.op.name == "contract" and node.inputs[0] in self.pairs.activations:
            y, axes = _unpermuted(node.inputs[1])
            weight = self.pairs.weights.get(y)
            return None if weight is None else self._contraction(node, self._pair(node.inputs[0]), weight, axes, scale)
        return None

    def _convolution(self, node: Node, x: Quantized, weight: IntegerWeight, scale: float) -> GridSteps:
        stride, padding, dilation, groups = node.get_params("stride", "padding", "dilation", "groups")
        integers = x.integers
        if x.zero and any(map(any, padding)):  # the padding is 0, which is `zero` among the integers
            integers, padding = pad(integers, ((0, 0), (0, 0), *padding), value=x.zero), 0
        total = conv(
            integers, weight.integers, stride=stride, padding=padding, dilation=dilation, groups=groups, dtype="int32"
        )
        return _scaled(total, x, weight, scale, 1)

    def _contraction(
        self, node: Node, x: Quantized, weight: IntegerWeight, axes: tuple[int, ...], scale: float
    ) -> GridSteps | None:
        a, b, out = node.get_params("a", "b", "out")
        outputs = b[axes.index(0)]
        if outputs not in out or any(c in out for i, c in enumerate(b) if axes[i] != 0):
            return None
        total = einsum(f"{a},{b}->{out}", x.integers, permute_dims(weight.integers, axes), dtype="int32")
        return _scaled(total, x, weight, scale, out.index(outputs))

    def _dequantized(self, q: Quantized) -> Tensor:
        wide = astype(q.integers, "float32")
        return (wide - float(q.zero) if q.zero else wide) * q.scale


def _scaled(total: Tensor, x: Quantized, weight: IntegerWeight, scale: float, axis: int) -> GridSteps:
    """Sums of products in grid steps: (sum(q w) - zero * sum(w)) * scales. Constants are folded now, in float64."""
    shape = [-1 if i == axis else 1 for i in range(total.ndim)][axis:]
    factor = weight.scale.numpy().astype(np.float64) * (x.scale / scale)
    integers = weight.integers.numpy()
    sums = integers.reshape(len(integers), -1).sum(1, dtype=np.int64)
    main = astype(total, "float32") * asarray(_along(factor, shape).astype(np.float32))
    return GridSteps(main, _along(-x.zero * sums * factor, shape))


def _along(value: np.ndarray, shape: list[int]) -> np.ndarray:
    return value.reshape(shape) if value.ndim else value


def _value(node: Node) -> np.ndarray:
    return wrap(node).numpy().astype(np.float64)


# --- patterns -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Limit:
    """A number, or the node of a tensor that broadcasts."""

    value: Any
    is_lower: bool


def _combined(limits: list[tuple[float, bool]]) -> tuple[float, float]:
    """One lower and one upper limit for several, the innermost first: an outer limit beyond an inner one wins."""
    low, high = -np.inf, np.inf
    for end, is_lower in limits:
        low, high = (max(low, end), max(high, end)) if is_lower else (min(low, end), min(high, end))
    return float(low), float(high)


def _without_clips(node: Node) -> tuple[Node, list[Limit]]:
    """The node below ReLU, ReLU6 and clips, and their limits, the innermost first."""
    limits: list[Limit] = []
    while True:
        found = _clipped(node)
        if found is None:
            return node, limits[::-1]
        node, more = found
        limits += more[::-1]


def _clipped(node: Node) -> tuple[Node, list[Limit]] | None:
    if node.op.name in ("maximum", "minimum"):
        for x, bound in (node.inputs, node.inputs[::-1]):
            value = _limit(bound)
            if value is not None:
                return x, [Limit(value, node.op.name == "maximum")]
    if node.op.name != "where":
        return None
    condition, chosen, x = node.inputs
    number = _number(chosen)
    if number is not None and _is_le(condition, x, chosen):  # max(x, number)
        return x, [Limit(number, True)]
    if condition.op.name == "or_" and chosen.op.name == "where":
        is_low, low, high = chosen.inputs
        if _is_le(is_low, x, low) and set(condition.inputs) == {is_low, make(OPS["le"], (high, x))}:
            ends = _number(low), _number(high)
            if None not in ends:
                return x, [Limit(ends[0], True), Limit(ends[1], False)]
    return None


def _is_le(node: Node, x: Node, y: Node) -> bool:
    return node.op.name == "le" and node.inputs == (x, y)


def _number(node: Node) -> float | None:
    return float(node.param("value")) if node.op.name == "const" else None


def _limit(node: Node) -> Any:
    number = _number(node)
    return number if number is not None else _broadcast(node)


def _broadcast(node: Node) -> Node | None:
    """The node that is expanded to the shape of a node."""
    return node.inputs[0] if node.op.name == "expand" else None


def _unpermuted(node: Node) -> tuple[Node, tuple[int, ...]]:
    if node.op.name == "permute":
        return node.inputs[0], node.param("axes")
    return node, tuple(range(len(node.shape)))


def _shift(grid: Grid) -> int:
    return 0 if grid.signed else 128
