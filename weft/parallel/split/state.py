"""Whole tensors of split networks, by their original names: checkpoints do not depend on the mesh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...errors import UserError
from ...mesh.parts import Part, part_of
from ...nn.module import Module
from ...nn.replace import replace_layers, replace_tensors
from ...ops.collective import all_gather
from ...ops.convert import asarray
from ...ops.convert import parameter as as_parameter
from ...optim.optimizer import Optimizer
from ...tensor import Tensor
from .layer import SplitLayer, part_values


def whole_state(model: Module) -> dict[str, np.ndarray]:
    """All tensors of a network by path, gathered from the parts of all processes, which must call this together."""
    return {path: whole_value(tensor, part_of(tensor)) for path, tensor in model.named_tensors().items()}


def load_whole(model: Module, values: Mapping[str, Any]) -> None:
    """Load whole tensors by path: each process keeps its parts. All names and shapes must match."""
    own = model.named_tensors()
    model.load({n: own_value(values[n], part_of(own[n]), n) if n in own else values[n] for n in values})


def make_whole(model: Module, values: Mapping[str, Any]) -> None:
    """Undo `split`, or the freeing of tensors by a pipeline: the network has its own layers again, and these values in every process."""
    replace_layers(model, {part: part._layer for part in model.modules() if isinstance(part, SplitLayer)})
    new: dict[Tensor, Tensor] = {}
    for name, tensor in model.named_tensors().items():
        value = asarray(values[name], dtype=tensor.dtype, copy=True)
        if tensor._node.abstract:
            new[tensor] = as_parameter(value) if tensor.requires_grad else value.realize()
        else:
            tensor.assign(value)
    replace_tensors(model, new)


def whole_optimizer_state(optimizer: Optimizer) -> dict[str, np.ndarray]:
    """The optimizer state of a split network by name, gathered from the parts of all processes, which must call this together."""
    return gathered_parts(optimizer, optimizer.named_state() | optimizer.whole_state())


def gathered_parts(optimizer: Optimizer, state: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """Optimizer state of the parameters of this process, gathered from the parts of all processes."""
    parts = _parts_of_state(optimizer)
    return {name: whole_value(t, parts.get(name) if t.ndim else None) for name, t in state.items()}


def load_whole_optimizer(optimizer: Optimizer, values: Mapping[str, Any]) -> None:
    """Load the result of `whole_optimizer_state`: each process keeps its parts."""
    optimizer.load(optimizer.local_state(own_parts(optimizer, values)))


def own_parts(optimizer: Optimizer, values: Mapping[str, Any]) -> dict[str, Any]:
    """Optimizer state of the parameters of this process, cut from whole tensors."""
    parts = _parts_of_state(optimizer)
    return {n: own_value(v, parts.get(n) if asarray(v).ndim else None, n) for n, v in values.items()}


def _parts_of_state(optimizer: Optimizer) -> dict[str, Part]:
    """How the parameters of the state's tensors were split. The tensors were split alike; counts were not."""
    owners = {name: part_of(p) for name, p in optimizer.state_parameters().items()}
    return {name: part for name, part in owners.items() if part is not None}


def whole_value(value: Any, part: Part | None) -> np.ndarray:
    """A whole tensor, gathered from this process's part; all processes along the part's axis must call this."""
    if part is None:
        return asarray(value).numpy()
    values = all_gather(asarray(value).detach(), part.axis).numpy()
    return np.take(np.concatenate(list(values), axis=part.dim), range(part.size), axis=part.dim)


def own_value(value: Any, part: Part | None, name: str) -> Any:
    """This process's part of a whole tensor."""
    if part is None:
        return value
    whole = asarray(value).numpy()
    if whole.ndim <= part.dim or whole.shape[part.dim] != part.size:
        raise UserError(
            "load_whole", f"{name} of size {part.size} along dimension {part.dim} is required, got {whole.shape}."
        )
    return part_values(whole, part)
