"""The programs that a compiled function has become, one for each kind of arguments, and where those of methods are kept."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, NamedTuple

from .compiled import Compiled

_KEPT = "_compiled_methods"  # an attribute: what a method was compiled to holds its object's tensors, and must go when it goes


class Forms(NamedTuple):
    """The programs of one function, or of a method for one object."""

    latest: OrderedDict[Any, Compiled]  # by what they depend on; that of the last call comes last
    all: dict[
        Any, list[Compiled]
    ]  # those that do not fit now, too: with and without grads to add to, for other settings
    lock: threading.RLock

    @classmethod
    def none(cls) -> Forms:
        return cls(OrderedDict(), {}, threading.RLock())


class _Methods:
    """The programs of one object's methods. A copy of the object, which has its attributes, does not share them."""

    def __init__(self, owner: int = 0) -> None:
        self.owner = owner  # the object's id
        self.forms: dict[Any, Forms] = {}

    def __reduce__(self) -> Any:
        return _Methods, ()  # programs are not copied, and not put into files


def forms_for(instance: Any, method: Any) -> Forms | None:
    """The programs of a method for this object, or class; None if the object has no room for attributes."""
    attributes = getattr(instance, "__dict__", None)
    if attributes is None:
        return None
    methods: _Methods | None = attributes.get(_KEPT)
    if methods is None or methods.owner != id(instance):
        methods = _Methods(id(instance))
        if isinstance(instance, type):
            setattr(instance, _KEPT, methods)
        else:
            attributes[_KEPT] = methods  # nobody is asked: some objects forbid or note assignments
    return methods.forms.get(method) or methods.forms.setdefault(method, Forms.none())
