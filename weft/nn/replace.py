"""Replace tensors and layers inside of a network, wherever its modules hold them: in attributes, lists and dicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import UserError
from ..tensor import Tensor
from .functional_model import Model
from .module import Module


def replace_tensors(model: Module, new: Mapping[Tensor, Tensor]) -> None:
    """Put other tensors in the place of tensors of a network; shared ones are replaced everywhere."""
    by_id = {id(before): after for before, after in new.items()}
    for module in model.modules():
        _replace_in(module, by_id)


def replace_layers(model: Module, new: Mapping[Module, Module]) -> None:
    """Put other layers in the place of layers of a network; shared ones are replaced everywhere."""
    for module in model.modules():
        if isinstance(module, Model) and any(layer in new for layer in module.layers):
            raise UserError(
                "replace_layers",
                "layers inside of nn.Model cannot be replaced, got one. Write the network as a Module or nn.Sequential.",
            )
        if module not in new:
            _replace_in(module, {id(before): after for before, after in new.items()})


def _replace_in(module: Module, by_id: Mapping[int, Any]) -> None:
    for name, value in list(vars(module).items()):
        if not name.startswith("_"):
            changed = _replaced(value, by_id)
            if changed is not value:
                setattr(module, name, changed)


def _replaced(value: Any, by_id: Mapping[int, Any]) -> Any:
    if id(value) in by_id:
        return by_id[id(value)]
    if isinstance(value, list | tuple):
        parts = [_replaced(part, by_id) for part in value]
        return type(value)(parts) if any(a is not b for a, b in zip(parts, value, strict=True)) else value
    if isinstance(value, dict):
        entries = {key: _replaced(part, by_id) for key, part in value.items()}
        return entries if any(entries[key] is not part for key, part in value.items()) else value
    return value
