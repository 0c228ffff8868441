"""Parametrizations: a parameter of a layer becomes a function of other tensors, as in torch.nn.utils.parametrize.

    layer = nn.Linear(300, 100)
    parametrize(layer, "weight", Mask(keep))        # layer.weight is now original * mask, in every call, trained as before
    bake(layer, "weight")                           # the current value becomes an ordinary parameter again

The layer's own code is unchanged: it reads `self.weight` as before. Its class is replaced by a subclass in which that name is computed. The tensors of
the parametrization are trained instead; they are found by `named_parameters`, saved in checkpoints and updated by optimizers like others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..errors import UserError
from ..nn.module import Module
from ..ops.convert import parameter as as_parameter
from ..tensor import Tensor

SUFFIX = "_parametrization"


class Parametrization(Module):
    """Computes a parameter: `forward()` returns its value. A subclass is created from the parameter that it replaces."""

    def forward(self) -> Tensor:
        raise UserError(
            type(self).__name__, "a parametrization needs a method forward(self) that computes the parameter."
        )

    @property
    def density(self) -> float:
        """The fraction of weights that are not pruned."""
        return 1.0

    def update(self) -> None:
        """Called before each call of the layer in training mode, inside the compiled step: override it to change state, such as a mask."""


def parametrize(layer: Module, name: str, made: Parametrization) -> None:
    """Compute the parameter `name` of a layer by a parametrization."""
    value = vars(layer).get(name)
    if not isinstance(value, Tensor):
        what = "is computed already: bake it first" if is_parametrized(layer, name) else f"is {type(value).__name__}"
        raise UserError("parametrize", f"a tensor of {type(layer).__name__} is required, got {name}, which {what}.")
    if made().shape != value.shape:
        raise UserError("parametrize", f"a value of shape {value.shape} is required for {name}, got {made().shape}.")
    names = (*_computed(layer), name)
    delattr(layer, name)
    setattr(layer, name + SUFFIX, made.train(layer.training))
    layer.__class__ = _subclass(plain_class(layer), names)


def bake(layer: Module, name: str) -> Tensor:
    """Make the current value of a parametrized parameter an ordinary parameter again; returns it."""
    return restore(layer, name, as_parameter(parametrization_of(layer, name)().detach().realize()))


def restore(layer: Module, name: str, value: Tensor) -> Tensor:
    """Replace a parametrized parameter with a tensor as an ordinary parameter."""
    names = tuple(one for one in _computed(layer) if one != name)
    delattr(layer, name + SUFFIX)
    plain = plain_class(layer)
    layer.__class__ = _subclass(plain, names) if names else plain
    setattr(layer, name, value)
    return value


def is_parametrized(layer: Module, name: str) -> bool:
    """Whether a parameter of a layer is computed."""
    return name in _computed(layer)


def parametrization_of(layer: Module, name: str) -> Parametrization:
    """The parametrization of a parameter of a layer."""
    found = vars(layer).get(name + SUFFIX)
    if not isinstance(found, Parametrization):
        raise UserError("parametrize", f"a parametrized parameter is required, got {name} of {type(layer).__name__}.")
    return found


def parametrizations(model: Module) -> Iterator[tuple[str, Module, str, Parametrization]]:
    """All parametrizations of a network: path of the layer, the layer, the name of the parameter, the parametrization."""
    for path, layer in model.named_modules().items():
        for name in _computed(layer):
            yield path, layer, name, parametrization_of(layer, name)


def _computed(layer: Module) -> tuple[str, ...]:
    return getattr(type(layer), "_computed_names", ())


def plain_class(layer: Module) -> type[Module]:
    """The class of a layer without parametrizations."""
    return type(layer).__mro__[1] if _computed(layer) else type(layer)


def replace_plain_class(layer: Module, plain: type[Module]) -> None:
    """Change the class of a layer; parametrized parameters stay parametrized."""
    names = _computed(layer)
    layer.__class__ = _subclass(plain, names) if names else plain


_subclasses: dict[tuple[Any, tuple[str, ...]], type[Module]] = {}


def _subclass(plain: type[Module], names: tuple[str, ...]) -> type[Module]:
    """A class of layers in which these parameters are computed. It has the name of the layer's class, so that printing is unchanged."""
    key = plain, names
    if key not in _subclasses:
        members: dict[str, Any] = {name: _computed_property(name) for name in names}
        members |= {"_computed_names": names, "__module__": plain.__module__, "__doc__": plain.__doc__}
        members["forward"] = _updating_forward(plain, names)
        _subclasses[key] = type(plain.__name__, (plain,), members)
    return _subclasses[key]


def _updating_forward(plain: type[Module], names: tuple[str, ...]) -> Callable[..., Any]:
    def forward(layer: Module, *args: Any, **kwargs: Any) -> Any:
        if layer.training:
            for name in names:
                vars(layer)[name + SUFFIX].update()
        return plain.forward(layer, *args, **kwargs)

    return forward


def _computed_property(name: str) -> property:
    return property(lambda layer: vars(layer)[name + SUFFIX]())
