"""Shared weights: every weight is one of a few centroids. The gradient of a centroid is the sum of the gradients of its weights."""

from __future__ import annotations

import numpy as np

from ..errors import UserError
from ..ops.convert import asarray
from ..ops.convert import parameter as as_parameter
from ..ops.creation import zeros
from ..ops.indexing import take
from ..ops.movement import concat
from ..tensor import ArrayLike, Tensor
from .parametrize import Parametrization


class Codebook(Parametrization):
    """0 where an index is 0, else a centroid: index i means centroids[i - 1].

    >>> Codebook([0.5, -0.25], [[0, 1], [2, 1]])().tolist()
    [[0.0, 0.5], [-0.25, 0.5]]
    """

    def __init__(self, centroids: ArrayLike, indices: ArrayLike) -> None:
        self.centroids = as_parameter(asarray(centroids).detach())
        if self.centroids.ndim != 1:
            raise UserError("Codebook", f"centroids in one dimension are required, got {self.centroids.shape}.")
        given = np.asarray(indices)
        if given.size and (given.min() < 0 or given.max() > self.centroids.shape[0]):
            raise UserError(
                "Codebook",
                f"indices from 0 to {self.centroids.shape[0]} are required, got {given.min()} to {given.max()}.",
            )
        self.indices = asarray(given.astype(np.int32)).realize()

    def forward(self) -> Tensor:
        values = concat([zeros((1,), dtype=self.centroids.dtype), self.centroids])
        return take(values, self.indices, axis=0)

    @property
    def density(self) -> float:
        """The fraction of weights that are not pruned: sharing keeps zeros."""
        return float(np.mean(self.indices.numpy() != 0))
