"""The parameters of a network that compression works on: the weights of its layers, not biases and norms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from ..errors import UserError
from ..hints import nearest
from ..nn.module import Module
from ..records import dataclass
from ..tensor import Tensor
from .parametrize import Parametrization, bake, is_parametrized, parametrization_of, parametrize, restore

Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Weight:
    """A weight of a layer by its path, such as layers.0.weight. Layers that share it (tied weights) keep sharing it."""

    path: str
    layer: Module
    name: str
    others: tuple[tuple[Module, str], ...] = ()  # further layers that share it, each with its name there

    @property
    def value(self) -> np.ndarray:
        """Its current value."""
        found: np.ndarray = getattr(self.layer, self.name).numpy()
        return found

    def finite_value(self, where: str) -> np.ndarray:
        """Its current value; an error if some of it is nan or infinite."""
        return check_finite(where, self.path, self.value)

    @property
    def parametrization(self) -> Parametrization | None:
        return parametrization_of(self.layer, self.name) if is_parametrized(self.layer, self.name) else None

    def replace(self, made: Parametrization) -> None:
        """Compute it by a parametrization, replacing the current one if there is one."""
        for layer, name in self._places():
            if is_parametrized(layer, name):
                bake(layer, name)
            parametrize(layer, name, made)

    def restore(self, value: Tensor) -> None:
        """Replace its parametrization with a tensor as an ordinary parameter."""
        for layer, name in self._places():
            restore(layer, name, value)

    def _places(self) -> tuple[tuple[Module, str], ...]:
        """All layers that have it, with its name there."""
        return ((self.layer, self.name), *self.others)


def check_finite(where: str, path: str, value: np.ndarray) -> np.ndarray:
    """The value of a weight; an error if some of it is nan or infinite."""
    if not np.isfinite(value).all():
        raise UserError(where, f"finite weights are required, {path} has values that are nan or infinite.")
    return value


def weights_of(model: Module) -> dict[str, Weight]:
    """The weights by path: parameters of two or more dimensions, in the order of the layers. Shared ones are listed once."""
    places: dict[int, list[tuple[str, Module, str]]] = {}
    for path, layer in model.named_modules().items():
        if isinstance(layer, Parametrization):
            continue
        for name in _names(layer):
            value = layer_value(layer, name)
            if isinstance(value, Tensor) and not value.requires_grad:
                continue
            if getattr(layer, name).ndim >= 2:  # computed ones too: a bias may be quantized
                places.setdefault(id(value), []).append((f"{path}.{name}" if path else name, layer, name))
    return {
        path: Weight(path, layer, name, tuple((other, its_name) for _, other, its_name in others))
        for (path, layer, name), *others in places.values()
    }


def parameter_of(model: Module, path: str, layer: Module, name: str = "weight") -> Weight:
    """A parameter of one layer, with all other layers of the network that share it."""
    found = layer_value(layer, name)
    others = [
        (other, its_name)
        for other in model.modules()
        for its_name in _names(other)
        if not isinstance(other, Parametrization) and layer_value(other, its_name) is found
    ]
    return Weight(f"{path}.{name}".lstrip("."), layer, name, tuple(one for one in others if one != (layer, name)))


def layer_value(layer: Module, name: str) -> Any:
    """A parameter of a layer, or its parametrization."""
    return parametrization_of(layer, name) if is_parametrized(layer, name) else vars(layer)[name]


def _names(layer: Module) -> list[str]:
    plain = [name for name, value in vars(layer).items() if isinstance(value, Tensor) and not name.startswith("_")]
    return [*plain, *getattr(type(layer), "_computed_names", ())]


def by_weight(where: str, what: str, given: Number | dict[str, Number], model: Module) -> dict[str, Number]:
    """One number for all weights, or numbers by path; a path may be that of a layer."""
    known = weights_of(model)
    if not known:
        raise UserError(
            where, f"a network with weights of two or more dimensions is required, got {type(model).__name__}."
        )
    if not isinstance(given, dict):
        return dict.fromkeys(known, given)
    found = {}
    for path, value in given.items():
        full = path if path in known else f"{path}.weight"
        if full not in known:
            raise UserError(
                where, f"{what} is given for {path!r}, which is no weight of this network. {nearest(path, list(known))}"
            )
        found[full] = value
    return found


def layers_of(
    where: str, model: Module, kinds: tuple[type[Module], ...], skip: Sequence[str], what: str
) -> dict[str, Any]:
    """The layers of these classes by path, without skipped ones; an error if there are none."""
    known = {path: layer for path, layer in model.named_modules().items() if isinstance(layer, kinds)}
    for path in skip:
        if path not in known:
            raise UserError(where, f"skip names {path!r}, which is no such layer. {nearest(path, list(known))}")
    chosen = {path: layer for path, layer in known.items() if path not in skip}
    if not chosen:
        raise UserError(where, f"a network with {what} is required, got none.")
    return chosen


def sharing_layers(model: Module) -> set[Module]:
    """The layers that share a parameter, or its parametrization, with another layer: a change for one changes the other."""
    owners: dict[int, list[Module]] = {}
    for layer in model.modules():
        for value in vars(layer).values():
            if isinstance(value, Tensor | Parametrization):
                owners.setdefault(id(value), []).append(layer)
    return {layer for several in owners.values() if len(several) > 1 for layer in several}
