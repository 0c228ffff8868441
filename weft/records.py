"""`dataclass`, as in the standard library, and more than twice as quick to define.

A process that compiles a program imports more than a hundred dataclasses. The standard decorator compiles up to six methods for each of them,
one by one, which took a fifth of the time from the start of Python to the first prediction of a small network. Here the methods that are
called often are compiled at once, and the others look at the fields when they are called. `fields`, `replace` and `asdict` of the standard
library work as ever.
"""

from __future__ import annotations

import dataclasses
from dataclasses import MISSING, FrozenInstanceError
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: type | None = None, /, *, frozen: bool = False, eq: bool = True) -> Any:
        """A class whose annotated names are fields: `dataclasses.dataclass` with the arguments that weft uses."""
        return _made(cls, frozen, eq) if cls is not None else lambda cls: _made(cls, frozen, eq)


def _made(cls: type, frozen: bool, eq: bool) -> type:
    own = dict(vars(cls))
    cls.__doc__ = cls.__doc__ or cls.__name__  # else a signature would be made for it
    dataclasses.dataclass(init=False, repr=False, eq=False)(cls)
    methods: dict[str, Any] = {**_compiled(cls, frozen, eq), "__repr__": _repr}
    if frozen:
        methods |= {"__setattr__": _set, "__delattr__": _delete}
    elif eq:
        methods["__hash__"] = None
    if "__eq__" in own and own.get("__hash__") is None:
        own.pop("__hash__", None)  # Python itself wrote it, because the class has an __eq__
    for name in methods.keys() - own.keys():
        setattr(cls, name, methods[name])
    return cls


def _compiled(cls: type, frozen: bool, eq: bool) -> dict[str, Any]:
    """The methods that are called often."""
    fields = dataclasses.fields(cls)
    namespace: dict[str, Any] = {"_FACTORY": _FACTORY, "_store": object.__setattr__}
    text = _init(cls, fields, frozen, namespace)
    if eq:
        mine, other = (
            "(" + "".join(f"{which}.{field.name}, " for field in fields if field.compare) + ")"
            for which in ("self", "other")
        )
        text += f"def __eq__(self, other):\n    return {mine} == {other} if other.__class__ is self.__class__ else NotImplemented\n"
        text += f"def __hash__(self):\n    return hash({mine})\n" if frozen else ""
    # Named like a file of weft: errors point at the first line that is not weft's own.
    exec(compile(text, f"{__file__}:{cls.__qualname__}", "exec"), namespace)
    methods: dict[str, Any] = {
        name: namespace[name] for name in ("__init__", "__eq__", "__hash__") if name in namespace
    }
    for name, method in methods.items():
        method.__qualname__, method.__module__ = f"{cls.__qualname__}.{name}", cls.__module__
    methods["__init__"].__annotations__ = {field.name: field.type for field in fields if field.init} | {"return": None}
    return methods


def _init(cls: type, fields: tuple[dataclasses.Field[Any], ...], frozen: bool, namespace: dict[str, Any]) -> str:
    """The text of `__init__`; the values that it needs go into the namespace."""
    parameters, body = ["self"], ["pass"]
    for field in fields:
        name, given = field.name, field.name
        if field.default_factory is not MISSING:
            namespace[f"_make_{name}"] = field.default_factory
            given = f"_make_{name}() if {name} is _FACTORY else {name}" if field.init else f"_make_{name}()"
        elif not field.init:
            continue
        if field.init and field.default is not MISSING:
            namespace[f"_default_{name}"] = field.default
            parameters.append(f"{name}=_default_{name}")
        elif field.init:
            parameters.append(f"{name}=_FACTORY" if field.default_factory is not MISSING else name)
        body.append(f"_store(self, {name!r}, {given})" if frozen else f"self.{name} = {given}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    return f"def __init__({', '.join(parameters)}):\n    " + "\n    ".join(body) + "\n"


class _Factory:
    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()


@recursive_repr()
def _repr(self: Any) -> str:
    shown = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)
    return f"{self.__class__.__qualname__}({shown})"


def _set(self: Any, name: str, value: object) -> None:
    _check_frozen(self, name, "assign to")
    object.__setattr__(self, name, value)


def _delete(self: Any, name: str) -> None:
    _check_frozen(self, name, "delete")
    object.__delattr__(self, name)


def _check_frozen(self: Any, name: str, what: str) -> None:
    """A class that is derived from a dataclass, and is none itself, may have attributes besides the fields."""
    if "__dataclass_fields__" in vars(type(self)) or name in self.__dataclass_fields__:
        raise FrozenInstanceError(f"cannot {what} field {name!r}")
