"""SNIP (Lee et al. 2019): pruning before training, by the effect of removing a weight on the loss, |weight * gradient|."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..derivatives import gradients
from ..errors import UserError
from ..nn.losses import loss as find_loss
from ..nn.module import Module
from ..tensor import Tensor, as_tensor
from ..tracing.jit import jit
from .layers import Weight, weights_of
from .prune import Scope, prune_by


def snip(
    model: Module,
    density: float | dict[str, float],
    x: Any,
    y: Any,
    *,
    loss: Any = "cross_entropy",
    scope: Scope = "global",
) -> dict[str, float]:
    """Mask the weights that matter least on one batch (x, y) of training data; returns the density of every weight afterwards."""
    return prune_by("snip", model, density, sensitivities(model, x, y, loss=loss), scope=scope)


def sensitivities(model: Module, x: Any, y: Any, *, loss: Any = "cross_entropy") -> dict[str, np.ndarray]:
    """|weight * gradient of the loss| of all weights, on one batch."""
    weights = weights_of(model)
    leaves = [_trained(one) for one in weights.values()]
    function = find_loss(loss)

    @jit
    def products(x: Tensor, y: Tensor) -> list[Tensor]:
        found = gradients(function(model(x), y), leaves)
        return [g * w for g, w in zip(found, leaves, strict=True)]

    state = {tensor: tensor.numpy() for tensor in model.named_tensors().values() if not tensor.requires_grad}
    found = products(as_tensor(x), as_tensor(y))
    for tensor, value in state.items():  # the batch is only measured: running means of batch norms stay as they were
        tensor.assign(value)
    return {path: np.abs(product.numpy()) for path, product in zip(weights, found, strict=True)}


def _trained(one: Weight) -> Tensor:
    """The parameter under a weight: itself, or the original of a mask, whose gradient is zero where it is masked."""
    made = one.parametrization
    found = getattr(one.layer, one.name) if made is None else vars(made).get("original")
    if not isinstance(found, Tensor):
        raise UserError("snip", f"a weight or a pruned weight is required, got {one.path}, a {type(made).__name__}.")
    return found
