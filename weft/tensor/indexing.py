"""Indexing: `x[key]`, and `x.at[key].set(value)` for functional updates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, Self, TypeVar

from ..errors import UserError
from .operators import TensorOperators
from .registry import FUNCTIONS


class TensorIndexing(TensorOperators):
    """Reads and functional updates of selected elements."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> Self:
        return self._apply("index", key)

    def __iter__(self) -> Iterator[Self]:
        return (self[i] for i in range(len(self)))

    def __contains__(self, value: Any) -> bool:
        return bool(FUNCTIONS["any"](self == value))

    @property
    def at(self) -> At[Self]:
        """`x.at[key].set(v)`: a copy of `x` with some elements changed.

        The methods are `get`, `set`, `add`, `subtract`, `multiply`, `min` and `max`. With a mask as key and a value whose
        shape does not depend on the number of selected elements, they also work inside compiled functions.

        >>> import weft
        >>> weft.zeros(4).at[1:3].add(5.0)
        Tensor([0., 5., 5., 0.], dtype=float32)
        """
        return At(self)


T = TypeVar("T", bound=TensorIndexing)


class At(Generic[T]):
    """A selection of elements, for reads and functional updates."""

    __slots__ = ("_keys", "_tensor")

    def __init__(self, tensor: T, *key: Any) -> None:
        self._tensor, self._keys = tensor, key

    def __getitem__(self, key: Any) -> At[T]:
        return At(self._tensor, key)

    @property
    def _key(self) -> Any:
        if not self._keys:
            raise UserError("at", "write x.at[key].set(value): the key is missing.")
        return self._keys[0]

    def _update(self, value: Any, how: str) -> T:
        return self._tensor._apply("index_update", self._key, value, how)

    def get(self) -> T:
        return self._tensor[self._key]

    def set(self, value: Any) -> T:
        return self._update(value, "set")

    def add(self, value: Any) -> T:
        return self._update(value, "add")

    def subtract(self, value: Any) -> T:
        return self._update(value, "subtract")

    def multiply(self, value: Any) -> T:
        return self._update(value, "multiply")

    def min(self, value: Any) -> T:
        return self._update(value, "min")

    def max(self, value: Any) -> T:
        return self._update(value, "max")
