"""The compiled programs of a function, one for each kind of arguments, and where those of methods are kept."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from typing import Any

from .cache_key import Key
from .compiled import Compiled

_KEPT = "_compiled_methods"  # an attribute: what a method was compiled to holds its object's tensors, and must go when it goes


class ProgramCache:
    """The programs of one function, or of a method for one object."""

    def __init__(self) -> None:
        self.latest: OrderedDict[Key, Compiled] = (
            OrderedDict()
        )  # by what they depend on; that of the last call comes last
        self.all: dict[Key, list[Compiled]] = {}  # with those whose guards do not hold now
        self.lock = threading.RLock()

    def find(self, key: Key) -> Compiled | None:
        """A program for this key that fits now. The lock is held."""
        made = self.latest.get(key)
        if made is None or not made.fits():
            made = next((m for m in self.all.get(key, ()) if m.fits()), None)
        return made

    def was_used(self, key: Key) -> None:
        """It is the last to be dropped."""
        with self.lock:  # another thread may drop it
            if key in self.latest:
                self.latest.move_to_end(key)

    def add(self, key: Key, made: Compiled, limit: int) -> None:
        """Keep a program as the one to use for this key, and at most `limit` of all. The lock is held."""
        programs = self.all.setdefault(key, [])
        if made not in programs:
            programs.append(made)
        self.latest[key] = made
        self.latest.move_to_end(key)
        while sum(map(len, self.all.values())) > limit:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Drop a program for arguments that were not seen for longest."""
        key, latest = next(iter(self.latest.items()))
        spare = next((made for made in self.all[key] if made is not latest), None)
        if spare is None:
            del self.all[key], self.latest[key]
        else:
            self.all[key].remove(spare)


class _Methods:
    """The programs of one object's methods. A copy of the object, which has its attributes, does not share them."""

    def __init__(self, owner: Any = None) -> None:
        self.owner = None if owner is None else weakref.ref(owner)
        self.caches: dict[Any, ProgramCache] = {}

    def belong_to(self, instance: Any) -> bool:
        return self.owner is not None and self.owner() is instance

    def __reduce__(self) -> Any:
        return _Methods, ()  # programs are not copied, and not put into files


def can_hold_programs(instance: Any) -> bool:
    """Whether programs can be kept on this object."""
    return (hasattr(instance, "__dict__") and hasattr(instance, "__weakref__")) or isinstance(instance, type)


def cache_for(instance: Any, method: Any) -> ProgramCache:
    """The programs of a method for this object, or class."""
    methods: _Methods | None = instance.__dict__.get(_KEPT)
    if methods is None or not methods.belong_to(instance):
        methods = _Methods(instance)
        if isinstance(instance, type):
            setattr(instance, _KEPT, methods)
        else:
            instance.__dict__[_KEPT] = methods  # not setattr: some objects forbid or record assignments
    return methods.caches.get(method) or methods.caches.setdefault(method, ProgramCache())
