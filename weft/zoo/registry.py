"""Networks by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from .. import nn
from ..errors import UserError
from .catalogue import FACTS, MODULE_OF


def names() -> list[str]:
    """The names of all networks.

    >>> names()[:3]
    ['linear_regression', 'logistic_regression', 'perceptron']
    """
    return list(FACTS)


def find(name: str) -> Callable[..., nn.Module]:
    """Look up the constructor of a network by name.

    >>> find("lenet5")(classes=4)[-1].weight.shape
    (4, 500)
    """
    if name not in MODULE_OF:
        raise UserError("zoo.find", f"there is no network {name!r}. Known: {', '.join(names())}.")
    constructor: Callable[..., nn.Module] = getattr(import_module(f"{__package__}.{MODULE_OF[name]}"), name)
    return constructor
