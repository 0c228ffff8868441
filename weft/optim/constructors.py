"""Constructors of optimizers: from parameters and settings to parameter groups with their chains of transforms."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..errors import UserError
from ..hints import nearest
from ..nn.module import Module
from ..tensor import Tensor
from .common import Common
from .optimizer import Chain, Group, Optimizer, Rate
from .sharing import sharing

Parameters = Module | Tensor | Mapping[str, Any] | Iterable[Any]
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {}
_COMMON = ("clip_norm", "clip_value", "accumulate", "average", "axis", "zero", "local_steps")


def optimizer(chain: Chain) -> Callable[..., Optimizer]:
    """Turn a function from settings (the learning rate first) to a chain of transforms into an optimizer constructor.

    The constructor takes the parameters first: a module, tensors, or parameter groups with their own settings:
    [{"parameters": head, "rate": 0.1}, {"parameters": body}].
    """
    name = chain.__name__
    known = inspect.signature(chain).parameters

    @functools.wraps(chain)
    def make(parameters: Parameters, rate: Rate | None = None, **settings: Any) -> Optimizer:
        common = Common(**{word: settings.pop(word) for word in _COMMON if word in settings})
        common.check(name)
        share = sharing(common.axis, common.zero, common.local_steps)
        if rate is not None:
            settings["rate"] = rate
        made = []
        for tensors, own in _groups(name, parameters):
            every = {**settings, **own}
            unknown = [word for word in every if word not in known]
            if unknown:
                hint = nearest(unknown[0], list(known) if unknown[0] in own else settings_of(make))
                raise UserError(name, f"there is no setting {unknown[0]!r}. {hint}")
            rated = every.pop("rate", known["rate"].default)
            _check_rate(name, rated)
            made.append(Group(functools.partial(chain, rate=rated), tensors, rated, every, share))
        return Optimizer(name, made, common, share)

    OPTIMIZERS[name] = make
    return make


def settings_of(make: Callable[..., Optimizer]) -> list[str]:
    """The settings of an optimizer constructor."""
    return [*inspect.signature(make).parameters, *_COMMON]


def find(name: str | Callable[..., Optimizer]) -> Callable[..., Optimizer]:
    """Look up an optimizer constructor by name."""
    if callable(name):
        return name
    if name not in OPTIMIZERS:
        raise UserError("optim", f"there is no optimizer {name!r}. {nearest(str(name).lower(), list(OPTIMIZERS))}")
    return OPTIMIZERS[name]


def _groups(name: str, parameters: Parameters) -> list[tuple[list[Tensor], dict[str, Any]]]:
    if not isinstance(parameters, Module | Tensor | Iterable):
        raise UserError(name, f"a module, tensors, or groups of them are required as parameters, got {parameters!r}.")
    given = [parameters] if isinstance(parameters, Module | Tensor | Mapping) else list(parameters)
    if any(isinstance(g, Mapping) and "parameters" in g for g in given):
        found = []
        for group in given:
            settings = dict(group) if isinstance(group, Mapping) else {"parameters": group}
            found.append((_tensors(name, settings.pop("parameters")), settings))
        return found
    return [(_tensors(name, given), {})]


def _tensors(name: str, parameters: Any) -> list[Tensor]:
    if isinstance(parameters, Module):
        return parameters.parameters()
    if isinstance(parameters, Tensor):
        return [parameters]
    if isinstance(parameters, Mapping):
        parameters = parameters.values()
    found: list[Tensor] = []
    for part in parameters:
        found += _tensors(name, part) if isinstance(part, Module | Mapping | list | tuple) else [part]
    return found


def _check_rate(name: str, rate: Any) -> None:
    if not callable(rate) and not (isinstance(rate, int | float) and rate >= 0):
        raise UserError(name, f"a rate of 0 or more, or a schedule, is required, got {rate!r}.")
