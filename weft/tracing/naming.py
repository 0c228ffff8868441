"""Names of tensors and random streams that a function finds outside: the paths by which its code reaches them.

`w` in a closure or among the globals is "w", a parameter of a network "net.layers.0.weight", a gradient "w.grad", a stream "net.drop.stream".
"""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..random import Generator, default_generator
from ..tensor import Holder, Tensor

DEEPEST, LONGEST = 12, 10_000  # attributes in a path, and elements of a container that are looked at
_PLAIN = (str, bytes, int, float, complex, np.ndarray, np.generic, type, types.ModuleType)
_WITHOUT_STATE = ("weft.tracing", "weft.runtime", "weft.compiler", "weft.graph", "llvmlite", "threading", "weakref")


def names_of(function: Callable[..., Any]) -> dict[int, str]:
    """The names of all tensors and random streams that can be reached from a function, by their `id`.

    Of several paths the shortest; but a parameter is named after the module that it belongs to, not after an optimizer that lists it.
    """
    roots = [*_roots(function), ("weft.random", default_generator)]
    return _reached(roots, lambda part: True) | _reached(
        roots, lambda part: isinstance(part, Holder | Tensor | list | dict)
    )


def _reached(roots: Sequence[tuple[str, Any]], follow: Callable[[Any], bool]) -> dict[int, str]:
    found: dict[int, str] = {}
    seen: set[int] = set()
    waiting = deque((name, value, 0) for name, value in roots)
    while waiting:
        path, value, depth = waiting.popleft()
        if id(value) in seen or value is None or isinstance(value, _PLAIN) or not follow(value):
            continue
        seen.add(id(value))
        if isinstance(value, Tensor | Generator):
            found[id(value)] = path
        if depth < DEEPEST:
            waiting += ((f"{path}.{name}", part, depth + 1) for name, part in _parts(value))
    return found


def _roots(function: Any) -> Iterator[tuple[str, Any]]:
    """What the code of a function names: variables of the functions around it, globals, and the object of a method."""
    if isinstance(function, functools.partial):
        yield from _roots(function.func)
        yield from ((f"args.{i}", v) for i, v in enumerate(function.args))
        yield from function.keywords.items()
    elif isinstance(function, types.MethodType):
        yield "self", function.__self__
        yield from _roots(function.__func__)
    elif isinstance(function, types.FunctionType):
        code = function.__code__
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                yield name, cell.cell_contents
            except ValueError:  # it has no value yet
                continue
        yield from ((n, function.__globals__[n]) for n in _global_names(code) if n in function.__globals__)
    else:
        yield "self", function


def _global_names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:  # functions that are made inside of it
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Tensor):
        yield "grad", value.grad
    elif isinstance(value, dict):
        yield from ((str(k), v) for k, v in list(value.items())[:LONGEST])
    elif isinstance(value, list | tuple):
        yield from ((str(i), v) for i, v in enumerate(value[:LONGEST]))
    elif hasattr(value, "__wrapped__"):  # a function that is compiled by itself, or decorated in another way
        yield from _roots(value.__wrapped__)
    elif isinstance(value, types.FunctionType | types.MethodType | functools.partial):
        if not _is_from(value.__module__ if hasattr(value, "__module__") else "", "weft"):
            yield from _roots(value)
    elif isinstance(getattr(value, "__dict__", None), dict) and not _is_from(type(value).__module__, *_WITHOUT_STATE):
        yield from vars(value).items()


def _is_from(module: str | None, *packages: str) -> bool:
    return any(module == package or (module or "").startswith(f"{package}.") for package in packages)
