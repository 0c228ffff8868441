"""Pruned weights: the original values and a mask. The mask is state, so a pruned weight is zero in every call, whatever an optimizer does to the original."""

from __future__ import annotations

import numpy as np

from ..errors import UserError
from ..ops.convert import asarray
from ..ops.convert import parameter as as_parameter
from ..ops.elementwise import where
from ..tensor import ArrayLike, Tensor
from .parametrize import Parametrization


class Mask(Parametrization):
    """original where the mask is true, else 0.

    >>> Mask([1.0, 2.0, 3.0], [True, False, True])().tolist()
    [1.0, 0.0, 3.0]
    """

    def __init__(self, original: ArrayLike, mask: ArrayLike) -> None:
        self.original = as_parameter(asarray(original).detach())
        self.mask = asarray(np.asarray(mask, np.bool_)).realize()
        if self.mask.shape != self.original.shape:
            raise UserError("Mask", f"a mask of shape {self.original.shape} is required, got {self.mask.shape}.")

    def forward(self) -> Tensor:
        return where(self.mask, self.original, 0.0)

    @property
    def density(self) -> float:
        """The fraction of weights that are not pruned."""
        return float(np.mean(self.mask.numpy())) if self.mask.shape else float(self.mask.numpy())
