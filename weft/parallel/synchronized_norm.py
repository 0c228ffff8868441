"""Batch normalization over the examples of all processes, for small batches per process."""

from __future__ import annotations

from typing import Any

from ..dtypes import float32
from ..mesh import mesh as meshes
from ..nn.module import Module
from ..nn.norm import BatchNorm
from ..nn.replace import replace_layers
from ..ops.collective import all_reduce
from ..ops.normalize import batch_norm
from ..ops.statistics import mean as mean_of
from ..tensor import ArrayLike, Tensor


class SynchronizedBatchNorm(BatchNorm):
    """BatchNorm with the mean and variance of the batches of all processes along an axis of the mesh.

    It has the parameters and running statistics of the layer that it replaces.
    """

    axis: str

    def __init__(self, layer: BatchNorm, axis: str) -> None:
        vars(self).update(vars(layer), ranks=layer.ranks, axis=axis)

    def forward(self, x: ArrayLike) -> Tensor:
        if not self.training:
            return super().forward(x)
        x = self._checked(x)
        mean, var = self._statistics(x)
        if self.track:
            count = x.size // x.shape[1] * meshes.current().size(self.axis)
            self._track(mean.detach(), var.detach() * (count / (count - 1)))
        return batch_norm(x, self.scale, self.shift, mean_=mean, var_=var, eps=self.eps).value

    def _statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        axes = [i for i in range(x.ndim) if i != 1]
        wide = x.astype(float32) if x.dtype.is_half else x
        processes = float(meshes.current().size(self.axis))
        mean = all_reduce(mean_of(wide, axis=axes), self.axis) / processes
        centred = wide - mean.reshape(1, -1, *(1,) * (x.ndim - 2))
        return mean, all_reduce(mean_of(centred * centred, axis=axes), self.axis) / processes


def synchronize_batch_norms(model: Any, axis: str = "data") -> Module:
    """Make all batch norms of a network normalize over the examples of all processes along an axis; returns the network.

    Gradients must then be averaged over the same processes (optim.sgd(..., axis="data")).
    """
    found: dict[Module, Module] = {
        m: SynchronizedBatchNorm(m, axis) for m in model.modules() if isinstance(m, BatchNorm)
    }
    if model in found:
        return found[model]
    replace_layers(model, found)
    return model  # type: ignore[no-any-return]
