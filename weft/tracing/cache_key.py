"""What the program of a call depends on: its key in the cache, and the arguments that are values."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from ..errors import UserError
from ..knobs import knobs
from ..options import CompileOptions
from ..runtime import device as find_device
from ..tensor import Tensor
from ..tree import Structure, flatten
from .arguments import type_of
from .scalars import NUMBERS, is_number

Key = tuple[Any, ...]  # the number of its options first: integers are hashed and compared faster
_known: tuple[Any, int] = (None, -1)  # the number of the options that were last looked up, and when


def key_of(args: tuple[Any, ...], kwargs: dict[str, Any], static: Collection[str | int]) -> tuple[Key, Sequence[Any]]:
    """The key of a call, and its values in their order."""
    if not kwargs and not static:
        types = []
        for arg in args:
            if type(arg) is Tensor:
                types.append(arg._node.type)
            elif type(arg) is np.ndarray or type(arg) in NUMBERS:
                types.append(type_of(arg))
            else:
                break
        else:
            known = _known  # read once: another thread may have other settings
            return (known[1] if known[0] == knobs.changes else _number(), tuple(types)), args
    every, structure = flatten((args, kwargs))
    fixed: list[Any] = []
    values: list[Any] = []
    kinds: list[Any] = []
    for name, leaf in zip(argument_names(structure), every, strict=True):
        if name not in static and is_value(leaf):
            values.append(leaf)
            kinds.append(type_of(leaf))
        else:
            fixed.append(_hashable(leaf, name))
            kinds.append(None)
    if not kwargs and not fixed and structure.children[0].leaves == len(args) == len(structure.children[0].children):
        return (_number(), tuple(kinds)), values  # plain values, as above
    return (_number(), structure, tuple(kinds), tuple(fixed)), values


def _number() -> int:
    """The number of the current options; those of the function itself, such as its precision, are added when it is traced."""
    global _known
    changes, number = knobs.changes, find_device().options_number()
    _known = changes, number
    return number


def argument_names(structure: Structure) -> list[str | int]:
    """For each leaf of (args, kwargs) the argument it belongs to: a position or a name."""
    positional, named = structure.children
    result: list[str | int] = []
    for i, child in enumerate(positional.children):
        result += [i] * child.leaves
    for name, child in zip(named.keys, named.children, strict=True):
        result += [name] * child.leaves
    return result


def is_value(leaf: Any) -> bool:
    """Whether an argument is a value, which the program does not depend on: a tensor, an array, a number."""
    return isinstance(leaf, Tensor | np.ndarray) or is_number(leaf)


def _hashable(leaf: Any, name: str | int) -> Any:
    try:
        hash(leaf)
    except TypeError:
        raise UserError(
            "jit",
            f"argument {name!r} is neither a value nor hashable: {type(leaf).__name__}. Static arguments must be hashable.",
        ) from None
    # Equality is not enough: 1, True and 1.0 are equal, and so are 0.0 and -0.0.
    return type(leaf), repr(leaf) if isinstance(leaf, float) else leaf


def difference(old: Key, new: Key) -> str:
    """Why two keys differ, as text."""
    if old[0] != new[0]:
        return f"the options were {CompileOptions.numbered(old[0])}, now they are {CompileOptions.numbered(new[0])}"
    if len(old) != len(new):
        return "other kinds of arguments"
    for a, b in zip(_flat(old[1:]), _flat(new[1:]), strict=False):
        if a != b:
            return f"an argument was {a}, now it is {b}"
    return "another number of arguments"


def _flat(value: Any) -> list[Any]:
    return (
        [v for part in value for v in (_flat(part) if type(part) is tuple else [part])]
        if type(value) is tuple
        else [value]
    )
