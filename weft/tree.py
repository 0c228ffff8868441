"""Trees of lists, tuples, named tuples and dicts: flatten into leaves, unflatten, map."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .errors import UserError
from .records import dataclass


@dataclass(frozen=True)
class Structure:
    """The structure of a tree without its leaves; `kind` is None for a leaf, NoneType for None."""

    kind: type | None
    keys: tuple[Any, ...] = ()
    children: tuple[Structure, ...] = ()

    @property
    def leaves(self) -> int:
        return 1 if self.kind is None else sum(child.leaves for child in self.children)

    def __str__(self) -> str:
        if self.kind is None:
            return "*"
        inside = ", ".join(map(str, self.children))
        if self.kind is dict:
            inside = ", ".join(f"{k!r}: {c}" for k, c in zip(self.keys, self.children, strict=True))
        return f"{self.kind.__name__}({inside})" if self.kind is not type(None) else "None"


_LEAF = Structure(None)


def flatten(value: Any) -> tuple[list[Any], Structure]:
    """The leaves of a tree, left to right, and its structure.

    Keys of a dict are sorted, so that equal dicts have equal structures regardless of insertion order.

    >>> flatten({"b": [1, 2], "a": 3})[0]
    [3, 1, 2]
    """
    leaves: list[Any] = []
    return leaves, _take(value, leaves)


def _take(part: Any, leaves: list[Any]) -> Structure:
    if part is None:
        return Structure(type(None))
    if type(part) is dict:
        keys = sorted(part) if all(isinstance(k, str) for k in part) else list(part)
        return Structure(dict, tuple(keys), tuple(_take(part[k], leaves) for k in keys))
    if type(part) in (list, tuple) or (isinstance(part, tuple) and hasattr(part, "_fields")):
        return Structure(type(part), (), tuple(_take(v, leaves) for v in part))
    leaves.append(part)
    return _LEAF


def unflatten(structure: Structure, leaves: Iterable[Any]) -> Any:
    """The tree with this structure and these leaves.

    >>> leaves, structure = flatten((1, {"a": 2}))
    >>> unflatten(structure, [10, 20])
    (10, {'a': 20})
    """
    given = list(leaves)
    if len(given) != structure.leaves:
        raise UserError("tree", f"{structure} requires {structure.leaves} leaves, got {len(given)}.")
    return _build(structure, iter(given))


def _build(part: Structure, rest: Iterator[Any]) -> Any:
    # Not a closure: a recursive closure is a reference cycle and would keep the leaves alive.
    if part.kind is None:
        return next(rest)
    if part.kind is type(None):
        return None
    values = [_build(child, rest) for child in part.children]
    if part.kind is dict:
        return dict(zip(part.keys, values, strict=True))
    return part.kind(*values) if hasattr(part.kind, "_fields") else part.kind(values)


def map_tree(function: Callable[..., Any], value: Any, *others: Any) -> Any:
    """Apply `function` to each leaf of a tree (and to the matching leaves of `others`).

    >>> map_tree(lambda a, b: a + b, [1, (2, 3)], [10, (20, 30)])
    [11, (22, 33)]
    """
    leaves, structure = flatten(value)
    columns = [leaves]
    for other in others:
        more, same = flatten(other)
        if same != structure:
            raise UserError("tree", f"trees of the same structure are required, got {structure} and {same}.")
        columns.append(more)
    return unflatten(structure, [function(*row) for row in zip(*columns, strict=True)])
