"""Containers of modules: Sequential, ModuleList, ModuleDict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..errors import UserError
from .module import Module


def _all_modules(layer: str, modules: Mapping[Any, Any]) -> None:
    for name, module in modules.items():
        if not isinstance(module, Module):
            raise UserError(layer, f"modules are required, got {module!r} at {name!r}. Wrap a function in Lambda.")


class Sequential(Module):
    """y = f_n(... f_2(f_1(x))): modules in sequence, or a dict of them by name.

    >>> from weft import nn
    >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> len(net), len(net[:2]), net[2].weight.shape
    (3, 2, (2, 4))
    """

    def __init__(self, *modules: Module | Mapping[str, Module]) -> None:
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            self.layers: Any = dict(modules[0])
        else:
            self.layers = list(modules)
        _all_modules("Sequential", self.named())

    def named(self) -> dict[Any, Module]:
        """The modules by name or index."""
        return dict(self.layers) if isinstance(self.layers, dict) else dict(enumerate(self.layers))

    def forward(self, *xs: Any) -> Any:
        for module in self:
            xs = (module(*xs),)
        return xs[0]

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Module]:
        return iter(self.named().values())

    def __getitem__(self, key: int | str | slice) -> Any:
        if isinstance(key, slice):
            items = list(self.named().items())[key]
            return Sequential(dict(items)) if isinstance(self.layers, dict) else Sequential(*(m for _, m in items))
        if isinstance(key, str):
            return _found("Sequential", self.named(), key)
        return _at("Sequential", list(self), key)


class ModuleList(Module):
    """A list of modules. It computes nothing itself; a plain list as an attribute works too."""

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        self.items = list(modules)
        _all_modules("ModuleList", dict(enumerate(self.items)))

    def append(self, module: Module) -> None:
        """Append a module."""
        _all_modules("ModuleList", {len(self.items): module})
        self.items = [*self.items, module]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Module]:
        return iter(self.items)

    def __getitem__(self, key: int | slice) -> Any:
        return ModuleList(self.items[key]) if isinstance(key, slice) else _at("ModuleList", self.items, key)


class ModuleDict(Module):
    """A dict of modules. It computes nothing itself; a plain dict as an attribute works too."""

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        self.items = dict(modules or {})
        _all_modules("ModuleDict", self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[str]:
        return iter(self.items)

    def __contains__(self, name: str) -> bool:
        return name in self.items

    def __getitem__(self, name: str) -> Module:
        return _found("ModuleDict", self.items, name)

    def __setitem__(self, name: str, module: Module) -> None:
        _all_modules("ModuleDict", {name: module})
        self.items = {**self.items, name: module}


def _found(layer: str, modules: Mapping[Any, Module], key: str) -> Module:
    if key not in modules:
        raise UserError(layer, f"there is no module {key!r}. Known: {', '.join(map(str, modules))}.")
    return modules[key]


def _at(layer: str, modules: list[Module], place: int) -> Module:
    if not -len(modules) <= place < len(modules):
        raise IndexError(f"[{layer}] there is no module {place} among {len(modules)}.")
    return modules[place]
