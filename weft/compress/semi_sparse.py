"""2:4 sparsity for the sparse tensor cores of NVIDIA GPUs (compute capability 8.0 and above): two of four neighbouring weights, and their places.

    prune_n_of_m(model, 2, 4); fit(...)
    semi_sparse(model)

A 16-bit weight takes 9/16 of its dense bytes in files and in the memory of a GPU. In products of 16-bit floats, where it is measured to
be faster than the dense product, cuSPARSELt multiplies it as it is. Everywhere else the weight is expanded, once if it does not change. Values
can still be trained; their places stay.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import UserError
from ..nn.linear import Linear
from ..nn.module import Module
from ..ops.convert import asarray
from ..ops.convert import parameter as as_parameter
from ..ops.semi_sparse import INPUTS, is_semi_sparse, packed, semi_sparse_weight
from ..tensor import Tensor
from .layers import Weight, layer_value, layers_of, parameter_of
from .parametrize import Parametrization


class SemiSparseWeight(Parametrization):
    """A weight (outputs, inputs) with at most two nonzero values in every four neighbouring inputs.

    >>> weight = SemiSparseWeight(np.float32([[0, 1, 0, 2, 3, 0, 0, 0]]))
    >>> weight().tolist(), weight.nbytes
    ([[0.0, 1.0, 0.0, 2.0, 3.0, 0.0, 0.0, 0.0]], 17)
    """

    def __init__(self, weight: np.ndarray) -> None:
        if not is_semi_sparse(weight):
            raise UserError(
                "SemiSparseWeight", f"a matrix with 2:4 sparsity and a multiple of {INPUTS} inputs is required, got {weight.shape}."
            )  # fmt: skip
        values, positions = packed(weight)
        self.values = as_parameter(asarray(values))
        self.positions = asarray(positions).realize()

    @property
    def nbytes(self) -> int:
        """The bytes of values and positions."""
        return int(self.values.numpy().nbytes + self.positions.numpy().nbytes)

    @property
    def density(self) -> float:
        return float(np.count_nonzero(self.values.numpy()) / (2 * self.values.size))

    def forward(self) -> Tensor:
        return semi_sparse_weight(self.values, self.positions)


def semi_sparse(model: Module, *, skip: Sequence[str] = ()) -> dict[str, int]:
    """Store the weights of all linear layers with 2:4 sparsity by their kept values, in place; returns the bytes of each by path.

    Other layers stay as they are, also those whose number of inputs is not a multiple of 8; an error if no layer has the pattern. A weight
    that layers share stays shared, and is listed under the first of them.

    >>> from weft import compress, nn
    >>> net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    >>> _ = compress.prune_n_of_m(net, 2, 4)
    >>> semi_sparse(net)
    {'layers.0': 4352, 'layers.2': 680}
    """
    layers = layers_of("semi_sparse", model, (Linear,), skip, "linear layers")
    weights: dict[int, tuple[str, Weight]] = {}
    for path, layer in layers.items():
        weights.setdefault(id(layer_value(layer, "weight")), (path, parameter_of(model, path, layer)))
    found = {}
    for path, weight in weights.values():
        value = weight.finite_value("semi_sparse")
        if is_semi_sparse(value):
            made = SemiSparseWeight(value)
            weight.replace(made)
            found[path] = made.nbytes
    if not found:
        raise UserError(
            "semi_sparse",
            f"a layer with 2:4 sparsity and a multiple of {INPUTS} inputs is required, got none. Prune it first: compress.prune_n_of_m(model, 2, 4).",
        )
    return found
