"""The programs that a compiled function has become, one for each kind of arguments, and where those of methods are kept."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from typing import Any, NamedTuple

from .compiled import Compiled

_KEPT = "_compiled_methods"  # an attribute: what a method was compiled to holds its object's tensors, and must go when it goes


class Forms(NamedTuple):
    """The programs of one function, or of a method for one object."""

    latest: OrderedDict[Any, Compiled]  # by what they depend on; that of the last call comes last
    all: dict[Any, list[Compiled]]  # with those that do not fit now: they had grads to add to, or other settings
    lock: threading.RLock

    @classmethod
    def none(cls) -> Forms:
        return cls(OrderedDict(), {}, threading.RLock())


class _Methods:
    """The programs of one object's methods. A copy of the object, which has its attributes, does not share them."""

    def __init__(self, owner: Any = None) -> None:
        self.owner = None if owner is None else weakref.ref(owner)
        self.forms: dict[Any, Forms] = {}

    def belong_to(self, instance: Any) -> bool:
        return self.owner is not None and self.owner() is instance

    def __reduce__(self) -> Any:
        return _Methods, ()  # programs are not copied, and not put into files


def has_room(instance: Any) -> bool:
    """Whether programs can be kept on this object."""
    return (hasattr(instance, "__dict__") and hasattr(instance, "__weakref__")) or isinstance(instance, type)


def forms_for(instance: Any, method: Any) -> Forms:
    """The programs of a method for this object, or class."""
    methods: _Methods | None = instance.__dict__.get(_KEPT)
    if methods is None or not methods.belong_to(instance):
        methods = _Methods(instance)
        if isinstance(instance, type):
            setattr(instance, _KEPT, methods)
        else:
            instance.__dict__[_KEPT] = methods  # nobody is asked: some objects forbid or note assignments
    return methods.forms.get(method) or methods.forms.setdefault(method, Forms.none())
