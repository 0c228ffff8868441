"""Weights with 2:4 sparsity: of every four neighbouring inputs at most two are not zero, and only those two are stored.

    values[o, 2 g], values[o, 2 g + 1]     the two values of group g of row o, that is of the inputs 4 g to 4 g + 3
    positions[o, g // 2]                   their places in the group, two bits each; the lower half of a byte is of an even group

So 16-bit weights take 9/16 of their dense bytes. `weft.compress.semi_sparse` makes these tensors. NVIDIA GPUs from compute capability 8.0
multiply such weights by sparse tensor cores. Other devices expand the weight: it is then multiplied like any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..dtypes import uint8
from ..errors import UserError
from ..graph.node import Node, Op, Type
from ..tensor import ArrayLike, Tensor, as_tensor, emit, function
from .declare import Sample, Wrong, on_nodes
from .elementwise import where
from .movement import reshape, stack
from .reduce import sum

GROUP = 4  # neighbouring inputs, of which two are stored
INPUTS = 2 * GROUP  # whose positions share a byte


@function
def semi_sparse_weight(values: ArrayLike, positions: ArrayLike) -> Tensor:
    """The dense weight (outputs, inputs) of values (outputs, inputs / 2) and positions (outputs, inputs / 8).

    Two values at the same position are added. The derivative is that with respect to the values.

    >>> import numpy as np
    >>> semi_sparse_weight([[1.0, 2.0, 3.0, 4.0]], np.array([[0b1000_1101]], np.uint8)).tolist()
    [[0.0, 1.0, 0.0, 2.0, 3.0, 0.0, 4.0, 0.0]]
    """
    return emit(_SEMI_SPARSE_WEIGHT, (as_tensor(values), as_tensor(positions)))


def packed(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values and positions of a weight with 2:4 sparsity.

    >>> values, positions = packed(np.float32([[0, 1, 0, 2, 3, 0, 4, 0]]))
    >>> values.tolist(), positions.tolist()
    ([[1.0, 2.0, 3.0, 4.0]], [[141]])
    """
    outputs, inputs = weight.shape
    groups = weight.reshape(outputs, inputs // GROUP, GROUP)
    # Nonzero values first, both kinds in their order; then the two chosen places in ascending order.
    chosen = np.sort(np.argsort(groups == 0, axis=2, kind="stable")[:, :, :2], axis=2)
    values = np.take_along_axis(groups, chosen, axis=2)
    halves = (chosen[:, :, 0] | chosen[:, :, 1] << 2).astype(np.uint8).reshape(outputs, inputs // INPUTS, 2)
    return values.reshape(outputs, inputs // 2), np.asarray(halves[:, :, 0] | halves[:, :, 1] << 4, np.uint8)


def is_semi_sparse(weight: np.ndarray) -> bool:
    """Whether a matrix has 2:4 sparsity along its second axis, in whole bytes of positions.

    >>> is_semi_sparse(np.eye(8)), is_semi_sparse(np.ones((8, 8))), is_semi_sparse(np.zeros((8, 12)))
    (True, False, False)
    """
    if weight.ndim != 2 or not weight.size or weight.shape[1] % INPUTS:
        return False
    return bool((np.count_nonzero(weight.reshape(-1, GROUP), axis=1) <= 2).all())


def _infer(values: Node, positions: Node) -> Type:
    if not values.dtype.is_float or positions.dtype is not uint8:
        raise UserError(
            "semi_sparse_weight",
            f"values of floats and positions of dtype uint8 are required, got {values.dtype.name} and {positions.dtype.name}.",
        )
    if len(values.shape) != 2 or values.shape[1] % GROUP:
        raise UserError("semi_sparse_weight", f"values of shape (n, 4 m) are required, got {values.shape}.")
    outputs, kept = values.shape
    if positions.shape != (outputs, kept // GROUP):
        raise UserError(
            "semi_sparse_weight",
            f"positions of shape {(outputs, kept // GROUP)} are required for values of shape {values.shape}, got {positions.shape}.",
        )
    return Type((outputs, 2 * kept), values.dtype)


def _reference(values: np.ndarray, positions: np.ndarray) -> np.ndarray:
    outputs, kept = values.shape
    halves = np.stack([positions & 15, positions >> 4], axis=2).reshape(outputs, kept // 2)
    places = np.stack([halves & 3, halves >> 2], axis=2)[..., None]
    pairs = values.reshape(outputs, kept // 2, 2, 1)
    first, second = np.moveaxis(np.where(places == np.arange(GROUP), pairs, np.zeros((), values.dtype)), 2, 0)
    return np.asarray(first + second, values.dtype).reshape(outputs, 2 * kept)


def _places(positions: Tensor, kept: int) -> tuple[Tensor, Tensor]:
    """The places of the first and of the second value of each group: (outputs, groups)."""
    halves = reshape(stack([positions & 15, positions >> 4], axis=2), (positions.shape[0], kept // 2))
    return halves & 3, halves >> 2


def _expanded(values: Tensor, positions: Tensor) -> Tensor:
    outputs, kept = values.shape
    pairs = reshape(values, (outputs, kept // 2, 2))
    first, second = (
        stack([where(place == i, pairs[:, :, n], 0.0) for i in range(GROUP)], axis=2)
        for n, place in enumerate(_places(positions, kept))
    )
    return reshape(first + second, (outputs, 2 * kept))


def _vjp(g: Tensor, y: Tensor, values: Tensor, positions: Tensor) -> tuple[Any, ...]:
    """Each value gets the cotangent of its place."""

    def of_values() -> Tensor:
        groups = reshape(g, (values.shape[0], values.shape[1] // 2, GROUP))
        read = [
            sum(stack([where(place == i, groups[:, :, i], 0.0) for i in range(GROUP)], axis=2), axis=2)
            for place in _places(positions, values.shape[1])
        ]
        return reshape(stack(read, axis=2), values.shape)

    return of_values, None


def _batched(call: Any, op: Op) -> Tensor:
    """The batching rule: the rows of all examples are those of one weight."""
    values, positions = (reshape(t, (t.shape[0] * t.shape[1], t.shape[2])) for t in call.all())
    rows = emit(op, (values, positions))
    return reshape(rows, (call.size, rows.shape[0] // max(1, call.size), rows.shape[1]))


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for outputs, kept in ((3, 8), (1, 4), (5, 16), (0, 4), (2, 0)):
        yield Sample(
            [rng.normal(size=(outputs, kept)), rng.integers(0, 256, (outputs, kept // GROUP)).astype(np.uint8)]
        )


_VALUES, _POSITIONS = np.ones((2, 8), np.float32), np.zeros((2, 2), np.uint8)
_SEMI_SPARSE_WEIGHT = Op(
    "semi_sparse_weight", "index", _infer, _reference, _vjp, (), 2, True, samples=_samples,
    errors=(
        Wrong(lambda: semi_sparse_weight(_VALUES, _POSITIONS.astype(np.int8)), "[semi_sparse_weight] values of floats and positions of dtype uint8"),
        Wrong(lambda: semi_sparse_weight(_VALUES[:, :6], _POSITIONS), "[semi_sparse_weight] values of shape (n, 4 m) are required, got (2, 6)"),
        Wrong(lambda: semi_sparse_weight(_VALUES, _POSITIONS[:, :1]), "[semi_sparse_weight] positions of shape (2, 2) are required"),
    ),
    own_kernels=True, decompose=on_nodes(_expanded), batch=_batched, precision="exact",
)  # fmt: skip
_SEMI_SPARSE_WEIGHT.external = False  # what it decomposes into is part of weft, so compiled code is kept on disk
