"""Names that are imported when they are first used, so that `import weft` and `weft --help` are fast.

`lazy_attributes(__name__)`, called by a package or module, gives it every name that the stub beside it (`__init__.pyi`, `verbs.pyi`)
imports. The stub is the one list: type checkers and editors read it as it is, tests/test_imports.py counts its imports as those of the
package, and here it becomes a table from names to modules. Its lines have two forms:

    from .ops.reduce import sum as sum      # `package.sum` imports package.ops.reduce when somebody asks for it
    cumsum = cumulative_sum                 # another name of one that is imported

Ops, and the functions behind methods of tensors, are found by name in registries that their modules fill when they are imported.
Nobody imports those modules just for that: `registered_by(...)` names them, and a `Registry` imports them when it is asked for a name
that it does not have, or for all of its names.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from importlib import import_module
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar


class Origin(NamedTuple):
    """Where a lazy name comes from: an attribute of a module, or the module itself."""

    module: str
    attribute: str | None


def lazy_attributes(module: str) -> None:
    """Give a module, by its name, the attributes that its stub imports; see the head of this file."""
    lazy = sys.modules[module]
    stub = Path(str(lazy.__file__)).with_suffix(".pyi").read_text(encoding="utf-8")
    origins = read_stub(stub, module if hasattr(lazy, "__path__") else module.rpartition(".")[0])
    own = [name for name, value in vars(lazy).items() if name[0] != "_" and not isinstance(value, ModuleType)]
    vars(lazy).update(_origins=origins, __all__=sorted({*own, *origins}))
    lazy.__class__ = LazyModule


def read_stub(text: str, package: str) -> dict[str, Origin]:
    """The table from the names that a stub imports to where they come from."""
    found: dict[str, Origin] = {}
    for line in ast.parse(text).body:
        if isinstance(line, ast.ImportFrom):
            source = resolve_name("." * line.level + (line.module or ""), package)
            for name in line.names:
                # `from . import nn` is the module; `from .ops.reduce import sum` is a name in one.
                origin = Origin(source, name.name) if line.module else Origin(f"{source}.{name.name}", None)
                found[name.asname or name.name] = origin
        elif (
            isinstance(line, ast.Assign) and isinstance(line.value, ast.Name) and isinstance(line.targets[0], ast.Name)
        ):
            found[line.targets[0].id] = found[line.value.id]
    return found


class LazyModule(ModuleType):
    """A module whose attributes are imported when they are first used."""

    _origins: dict[str, Origin]

    def __getattr__(self, name: str) -> Any:
        origin = self._origins.get(name)
        if origin is None:
            return self._submodule(name)
        module = import_module(origin.module)
        value = module if origin.attribute is None else getattr(module, origin.attribute)
        self.__dict__[name] = value
        return value

    def _submodule(self, name: str) -> ModuleType:
        """`weft.tensor` works after `import weft`, though no list names it."""
        full = f"{self.__name__}.{name}"
        try:
            if not name.startswith("__") and "__path__" in vars(self):
                return import_module(full)
        except ModuleNotFoundError as error:
            if error.name != full:  # it is there, but something that it needs is not
                raise
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}", name=name, obj=self)

    def __setattr__(self, name: str, value: Any) -> None:
        # Importing `weft.algorithms` the module would set `weft.algorithms`, which is the function.
        origin = self._origins.get(name)
        if origin is not None and origin.attribute is not None and isinstance(value, ModuleType):
            if value.__name__ == f"{self.__name__}.{name}":
                return
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *self._origins} - {"_origins"})


_registering: list[str] = []  # modules that are not imported yet
DEVICE_MODULES: dict[str, str] = {}  # kinds of devices above the runtime, and the module whose `find()` gives them


def registered_by(*modules: str) -> None:
    """Name modules that fill registries when they are imported."""
    _registering.extend(modules)


def load_registrations() -> None:
    """Import the modules named by `registered_by`."""
    for module in _registering:
        import_module(module)
    _registering.clear()


Value = TypeVar("Value")


class Registry(dict[str, Value]):
    """A table that modules fill when they are imported. Looking up what it has costs what it costs in a dict."""

    def __missing__(self, name: str) -> Value:
        load_registrations()
        if not dict.__contains__(self, name):
            raise KeyError(name)
        return self[name]

    def __contains__(self, name: object) -> bool:
        if not super().__contains__(name):
            load_registrations()
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name, default) if name in self else default

    def __iter__(self) -> Iterator[str]:
        load_registrations()
        return super().__iter__()

    def __len__(self) -> int:
        load_registrations()
        return super().__len__()

    def keys(self) -> KeysView[str]:  # type: ignore[override]
        return KeysView(self)

    def values(self) -> ValuesView[Value]:  # type: ignore[override]
        return ValuesView(self)

    def items(self) -> ItemsView[str, Value]:  # type: ignore[override]
        return ItemsView(self)
