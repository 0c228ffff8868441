"""Modules on the inputs and results of layers: a layer computes after(layer(before(x))).

    tap(layer, before=FakeQuantize(grid))       # its input is quantized, in every call
    untap(layer)                                # restores it

As with `parametrize`, the class of the layer is replaced by a subclass. The layer keeps its path, its name and the names of its parameters, so it works in any
network, whether its parent is a Sequential, a functional model or a module with its own `forward`.
"""

from __future__ import annotations

from typing import Any

from ..nn.module import Module
from .parametrize import plain_class, replace_plain_class

BEFORE, AFTER = "input_quantizer", "output_quantizer"


def tap(layer: Module, *, before: Module | None = None, after: Module | None = None) -> None:
    """Apply a module to the input of a layer, or to its result. An existing one is replaced."""
    for name, module in ((BEFORE, before), (AFTER, after)):
        if module is not None:
            setattr(layer, name, module)
    replace_plain_class(layer, _tapped(_original(layer)))


def untap(layer: Module) -> None:
    """Remove the modules on the input and the result of a layer."""
    for name in (BEFORE, AFTER):
        if name in vars(layer):
            delattr(layer, name)
    replace_plain_class(layer, _original(layer))


def tapped(layer: Module, name: str) -> Module | None:
    """The module on the input (BEFORE) or the result (AFTER) of a layer."""
    found: Module | None = vars(layer).get(name)
    return found


def original_class(layer: Module) -> type[Module]:
    """The class of a layer without taps and parametrizations."""
    return _original(layer)


def _original(layer: Module) -> type[Module]:
    plain = plain_class(layer)
    return plain.__mro__[1] if "_is_tapped" in vars(plain) else plain


_classes: dict[type[Module], type[Module]] = {}


def _tapped(plain: type[Module]) -> type[Module]:
    """The class with taps. It has the name of the layer's class, so that printing is unchanged."""
    if plain not in _classes:

        def forward(self: Module, x: Any, *args: Any, **kwargs: Any) -> Any:
            before, after = tapped(self, BEFORE), tapped(self, AFTER)
            y = plain.forward(self, x if before is None else before(x), *args, **kwargs)
            return y if after is None else after(y)

        members = {"forward": forward, "_is_tapped": True, "__module__": plain.__module__, "__doc__": plain.__doc__}
        _classes[plain] = type(plain.__name__, (plain,), members)
    return _classes[plain]
