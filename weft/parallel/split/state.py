"""Whole tensors of split networks, by their original names: checkpoints do not depend on the mesh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...errors import UserError
from ...mesh.parts import Part, part_of
from ...nn.module import Module
from ...ops.collective import all_gather
from ...ops.convert import asarray
from ...optim.optimizer import Optimizer
from ...tensor import Tensor
from .layer import part_values


def whole_state(model: Module) -> dict[str, np.ndarray]:
    """All tensors of a network by path, gathered from the parts of all processes, which call this together."""
    return {path: _whole(tensor, part_of(tensor)) for path, tensor in model.named_tensors().items()}


def load_whole(model: Module, values: Mapping[str, Any]) -> None:
    """Load whole tensors by path: each process keeps its parts. All names and shapes must match."""
    own = model.named_tensors()
    model.load({path: _own(values[path], part_of(own[path]), path) if path in own else values[path] for path in values})


def whole_optimizer_state(optimizer: Optimizer) -> dict[str, np.ndarray]:
    """The state of an optimizer of a split network by name, gathered from the parts of all processes, which call this together."""
    parts = _parts_of_state(optimizer)
    return {name: _whole(tensor, parts.get(name)) for name, tensor in optimizer.named_state().items()}


def load_whole_optimizer(optimizer: Optimizer, values: Mapping[str, Any]) -> None:
    """Load what `whole_optimizer_state` gave: each process keeps its parts."""
    parts = _parts_of_state(optimizer)
    optimizer.load({name: _own(value, parts.get(name), name) for name, value in values.items()})


def _parts_of_state(optimizer: Optimizer) -> dict[str, Part]:
    """How tensors of the state that belong to parts of parameters, and have their shapes, were cut."""
    owners = optimizer.state_parameters()
    tensors, found = optimizer.named_state(), {}
    for name, parameter in owners.items():
        part = part_of(parameter)
        if part is not None and tensors[name].shape == parameter.shape:
            found[name] = part
    return found


def _whole(tensor: Tensor, part: Part | None) -> np.ndarray:
    if part is None:
        return tensor.numpy()
    values = all_gather(tensor.detach(), part.axis).numpy()
    return np.take(np.concatenate(list(values), axis=part.dim), range(part.size), axis=part.dim)


def _own(value: Any, part: Part | None, name: str) -> Any:
    if part is None:
        return value
    whole = asarray(value).numpy()
    if whole.ndim <= part.dim or whole.shape[part.dim] != part.size:
        raise UserError(
            "load_whole", f"{name} of size {part.size} along dimension {part.dim} is required, got {whole.shape}."
        )
    return part_values(whole, part)
