"""Checks x[key], x.at[key] and their relatives against NumPy, which defines what they mean.

Keys are drawn at random from everything NumPy allows. Where NumPy refuses a key, weft must refuse it too. What a write
must do is read off `np.arange(size).reshape(shape)[key]`: the places it writes to, in order.
"""

import sys
from collections.abc import Callable
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft

FORMS: dict[str, Callable[[np.ndarray], Any]] = {
    "list": np.ndarray.tolist,
    "numpy": np.asarray,
    "tensor": weft.asarray,
}
# What a write does to one element, and NumPy's way to do it with repeated places.
WRITES: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], None]] = {
    "set": lambda flat, places, values: [flat.__setitem__(p, v) for p, v in zip(places, values, strict=True)] and None,
    "add": np.add.at,
    "multiply": np.multiply.at,
    "min": np.minimum.at,
    "max": np.maximum.at,
}


# --- random keys -----------------------------------------------------------------------------------------------------


@st.composite
def part(draw: Any, size: int, common: tuple[int, ...], advanced: bool) -> Any:
    """What can stand for one axis."""
    kinds = ["slice", *(["int"] if size else []), *(["array"] * 2 if size and advanced else [])]
    kind = draw(st.sampled_from(kinds))
    if kind == "int":
        return draw(st.integers(-size, size - 1))
    if kind == "slice":
        edge = st.none() | st.integers(-size - 2, size + 2)
        return slice(draw(edge), draw(edge), draw(st.none() | st.integers(-4, 4).filter(bool)))
    shape = draw(st.sampled_from([common, common[1:], (1,) * len(common)]))
    dtype, low = draw(st.sampled_from([("int64", -size), ("int32", -size), ("int8", -size), ("uint8", 0)]))
    return draw(hnp.arrays(dtype, shape, elements=st.integers(low, size - 1)))


@st.composite
def keys(draw: Any, shape: tuple[int, ...], advanced: bool) -> tuple[Any, ...]:
    """A key in NumPy's terms: the axes between `first` and `last` are left to '...' or to nobody."""
    first = draw(st.integers(0, len(shape)))
    last = draw(st.integers(first, len(shape)))
    common = draw(hnp.array_shapes(min_dims=1, max_dims=2, max_side=3))
    parts: list[Any] = []

    def cover(axis: int, end: int) -> None:
        while axis < end:
            if advanced and draw(st.integers(0, 4)) == 0:
                count = draw(st.integers(1, end - axis))
                parts.append(draw(hnp.arrays(bool, shape[axis : axis + count])))
                axis += count
            else:
                parts.append(draw(part(shape[axis], common, advanced)))
                axis += 1

    cover(0, first)
    if first < last < len(shape) or draw(st.booleans()):
        parts.append(...)
    cover(last, len(shape))
    for _ in range(draw(st.integers(0, 2))):
        parts.insert(draw(st.integers(0, len(parts))), None)
    return tuple(parts)


@st.composite
def cases(draw: Any, advanced: bool, floats: bool = False) -> tuple[np.ndarray, Any, Any]:
    """An array, a key for NumPy, and the same key for weft."""
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    key = draw(keys(shape, advanced))
    form = FORMS[draw(st.sampled_from(sorted(FORMS)))]
    spelled = tuple(form(p) if isinstance(p, np.ndarray) and p.size else p for p in key)
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    if len(key) == 1 and draw(st.booleans()):
        key, spelled = key[0], spelled[0]
    return (x * 0.5 + 1.0 if floats else x), key, spelled


def places(x: np.ndarray, key: Any) -> np.ndarray:
    """The flat places a key names; hypothesis drops the keys that NumPy refuses."""
    try:
        return np.arange(x.size).reshape(x.shape)[key]
    except IndexError:  # masks and arrays that do not broadcast together
        raise pytest.skip.Exception("unreachable") if False else _Refused from None


class _Refused(Exception):
    """NumPy does not take this key."""


def check_read(x: np.ndarray, key: Any, spelled: Any) -> None:
    try:
        expected = x[key]
    except IndexError:
        with pytest.raises(weft.UserError):
            weft.asarray(x)[spelled].numpy()
        return
    got = weft.asarray(x)[spelled]
    assert got.shape == expected.shape
    np.testing.assert_array_equal(got.numpy(), expected)
