"""Weight-only quantization to 8 or 4 bits, for transformers: they are bandwidth-bound, and activations are hard to quantize.

    weight_only(model, bits=4, group=64)

The integers are stored, two to a byte for 4 bits, with a scale per group of inputs of a row. The weight is dequantized on use, on GPUs inside
products with up to 64 rows; it can no longer be trained.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import UserError
from ..nn.linear import Embedding, Linear
from ..nn.module import Module
from ..ops.convert import asarray
from ..ops.elementwise import astype
from ..ops.grouped import grouped_weight, packed
from ..tensor import Tensor
from .grids import symmetric
from .layers import Weight, layer_value, layers_of, parameter_of
from .parametrize import Parametrization
from .ranges import Values, chosen_range


class GroupedWeight(Parametrization):
    """W[o, i] = q[o, i] * scale[o, i // group], with q of 4 or 8 bits.

    >>> weight = GroupedWeight(np.float32([[1.0, -7.0, 0.5, 0.25]]), bits=4, group=2)
    >>> weight().numpy().round(2).tolist() == np.float32([[1.0, -7.0, 0.49, 0.28]]).tolist(), weight.nbytes
    (True, 10)
    """

    def __init__(self, weight: np.ndarray, bits: int, group: int) -> None:
        self.bits, self.group, self.shape, self.dtype = bits, group, tuple(weight.shape), str(weight.dtype)
        rows = weight.astype(np.float32).reshape(-1, group)
        found = Values.exact(rows, 0)
        most = np.maximum(np.abs(found.low), np.abs(found.high))
        values = Values(found.points, found.counts, -most, most, found.width)
        grid = symmetric(bits, *chosen_range("weight_only", values, bits, "symmetric", "mse"), 0)
        integers = grid.quantize(rows).reshape(-1)
        self.integers = asarray(packed(integers, group) if bits == 4 else integers).realize()
        self.scale = asarray(grid.scale).realize()

    @property
    def nbytes(self) -> int:
        """The bytes of integers and scales."""
        return int(self.integers.numpy().nbytes + self.scale.numpy().nbytes)

    def forward(self) -> Tensor:
        return astype(grouped_weight(self.integers, self.scale, bits=self.bits, shape=self.shape), self.dtype)


def weight_only(
    model: Module, bits: int = 8, *, group: int | None = None, embeddings: bool = False, skip: Sequence[str] = ()
) -> dict[str, int]:
    """Store the weights of all linear layers (and embeddings) in 8 or 4 bits, in place; returns the bytes of each by path.

    A weight that layers share stays shared, and is listed under the first of them.
    `group` is the number of inputs that share a scale: it must divide those of each layer; by default, all of a row for 8 bits and 32 for 4 bits.
    """
    if bits not in (4, 8):
        raise UserError("weight_only", f"4 or 8 bits are required, got {bits}.")
    kinds = (Linear, Embedding) if embeddings else (Linear,)
    layers = layers_of("weight_only", model, kinds, skip, "linear layers")
    sizes = {path: _group(path, layer.weight.shape[1], bits, group) for path, layer in layers.items()}
    weights: dict[int, tuple[str, Weight]] = {}
    for path, layer in layers.items():
        weights.setdefault(id(layer_value(layer, "weight")), (path, parameter_of(model, path, layer)))
    return {path: _replace(weight, bits, sizes[path]) for path, weight in weights.values()}


def _replace(weight: Weight, bits: int, group: int) -> int:
    made = GroupedWeight(weight.finite_value("weight_only"), bits, group)
    weight.replace(made)
    return made.nbytes


def _group(path: str, inputs: int, bits: int, group: int | None) -> int:
    if group is None:
        group = 32 if bits == 4 and inputs % 32 == 0 else inputs
    if group < 1 or inputs % group or (bits == 4 and group % 2):
        raise UserError(
            "weight_only", f"a group that divides the {inputs} inputs of {path or 'the layer'}, even for 4 bits, is required, got {group}."
        )  # fmt: skip
    return group
