"""Positional encodings: sinusoidal, learned, rotary (RoPE) and ALiBi.

Their tables are computed once in float64, because they multiply large positions by small rates, and are constants of the graph. In a program that
is saved for all lengths, the graph computes them.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from ..dtypes import DType, float32
from ..errors import UserError
from ..ops.convert import asarray
from ..ops.creation import arange
from ..ops.declare import as_float
from ..ops.elementwise import abs, sin
from ..ops.indexing import take
from ..ops.movement import concat, cut, expand_dims, reshape, split, stack
from ..random import dropout as drop
from ..tensor import ArrayLike, Tensor, as_tensor
from ..tracing.context import sizes_are_free
from . import init as inits
from .checks import check_above, check_channels, check_count, check_rate
from .module import Init, Module, parameter


class PositionalEncoding(Module):
    """y = x + the sines and cosines of each position, see `sinusoidal`; x: (batch, time, features)

    >>> import weft
    >>> PositionalEncoding()(weft.zeros((1, 2, 4)))[0, 0].tolist()
    [0.0, 1.0, 0.0, 1.0]
    """

    def __init__(self, *, base: float = 10000.0, dropout: float = 0.0) -> None:
        self.base = check_above("PositionalEncoding", "base", base, 1.0)
        self.dropout = check_rate("PositionalEncoding", dropout)

    def forward(self, x: ArrayLike) -> Tensor:
        x = _sequence("PositionalEncoding", x)
        table = _sine_table(x.shape[-2], x.shape[-1], self.base, x.dtype)
        return drop(x + table, self.dropout, training=self.training)


def sinusoidal(length: int, features: int, *, base: float = 10000.0) -> Tensor:
    """A table (length, features) of sin(p / base^(2i / features)) at 2i, and of the cosine at 2i + 1   (Vaswani et al. 2017)

    >>> sinusoidal(2, 2).numpy().round(3).tolist()
    [[0.0, 1.0], [0.841..., 0.540...]]
    """
    sizes = check_count("sinusoidal", "positions", length), check_count("sinusoidal", "features", features)
    return _sine_table(*sizes, check_above("sinusoidal", "base", base, 1.0), float32)


class LearnedPositions(Module):
    """y = x + W[:time], with a learned row per position; x: (batch, time, features), weight: (length, features)

    >>> import weft
    >>> LearnedPositions(8, 4)(weft.zeros((1, 2, 4))).shape
    (1, 2, 4)
    """

    def __init__(self, length: int, features: int | None = None, *, init: Init = inits.normal(std=0.02)) -> None:
        self.length = check_count("LearnedPositions", "positions", length)
        width = None if features is None else check_count("LearnedPositions", "features", features)
        self.weight = parameter((self.length, width), init)

    def sizes(self, x: ArrayLike) -> dict[str, tuple[int, int]]:
        """The features are the last axis."""
        return {"weight": (self.length, as_tensor(x).shape[-1])}

    def forward(self, x: ArrayLike) -> Tensor:
        x = check_channels("LearnedPositions", _sequence("LearnedPositions", x), self.weight.shape[1], axis=-1)
        time = x.shape[-2]
        if time > self.length:
            raise UserError("LearnedPositions", f"at most {self.length} positions are supported, got {time}.")
        return x + cut(self.weight, 0, 0, time)


def rotary(x: ArrayLike, *, base: float = 10000.0, start: int = 0) -> Tensor:
    """Rotary positions (RoPE): pairs of features are rotated by an angle proportional to their position   (Su et al. 2021)

    (a, b) becomes (a cos - b sin, a sin + b cos) at the angle p / base^(2i / features), where a is the i-th feature of the
    first half and b that of the second. Products of queries and keys then depend only on the distance of their positions.
    x: (..., time, features), with the first time step at position `start`.

    >>> rotary([[1.0, 0.0], [1.0, 0.0]]).numpy().round(3).tolist()
    [[1.0, 0.0], [0.540..., 0.841...]]
    """
    x = _sequence("rotary", x)
    time, features = x.shape[-2:]
    if features % 2 or not features:
        raise UserError("rotary", f"an even number of features is required, got {x.shape}.")
    sines, cosines = _sines_and_cosines(time, features, check_above("rotary", "base", base, 1.0), int(start), x.dtype)
    a, b = split(x, 2, axis=-1)
    return concat([a * cosines - b * sines, a * sines + b * cosines], axis=-1)


def rotary_at(x: Tensor, positions: Tensor, limit: int, *, base: float = 10000.0) -> Tensor:
    """Rotary positions of x (batch, time, heads, features) at given positions below a limit, (time,) or (batch, time)."""
    tables = _sines_and_cosines(limit, x.shape[-1], base, 0, x.dtype)
    sines, cosines = (expand_dims(take(table, positions, axis=0), axis=-2) for table in tables)
    a, b = split(x, 2, axis=-1)
    return concat([a * cosines - b * sines, a * sines + b * cosines], axis=-1)


def alibi(heads: int, queries: int, keys: int) -> Tensor:
    """The ALiBi bias of the attention scores (heads, queries, keys): -slope * distance   (Press et al. 2022)

    The last query is aligned to the last key. The slopes decrease from head to head: 2^(-8/n), 2^(-16/n), ... for n heads; if
    n is not a power of two, those of the next lower one, then every second of those of the next higher one.

    >>> alibi(1, 1, 3).tolist()
    [[[-0.0078125, -0.00390625, 0.0]]]
    """
    sizes = (
        check_count("alibi", "heads", heads),
        check_count("alibi", "queries", queries),
        check_count("alibi", "keys", keys),
    )
    return _distances(*sizes)


def _sequence(name: str, x: ArrayLike) -> Tensor:
    x = as_float(as_tensor(x), name)
    if x.ndim < 2:
        raise UserError(name, f"an input (..., time, features) is required, got shape {x.shape}.")
    return x


def _sines_and_cosines(time: int, features: int, base: float, start: int, dtype: DType) -> tuple[Tensor, Tensor]:
    """Of position times rate, (time, half of the features, rounded up); computed in float64."""
    if not sizes_are_free():
        angles = _angles(time, features, base, start)
        return asarray(np.sin(angles).astype(dtype.numpy)), asarray(np.cos(angles).astype(dtype.numpy))
    turned = expand_dims(arange(start, start + time, dtype="float64"), axis=1) * asarray(_rates(features, base))
    return sin(turned).astype(dtype), sin(turned + math.pi / 2).astype(dtype)  # ONNX Runtime has no cosine of float64


def _sine_table(time: int, features: int, base: float, dtype: DType) -> Tensor:
    """Sines and cosines in turn, (time, features)."""
    if not sizes_are_free():
        return asarray(_sines(time, features, base).astype(dtype.numpy))
    table = stack(_sines_and_cosines(time, features, base, 0, dtype), axis=-1)
    return reshape(table, (time, 2 * table.shape[1]))[:, :features]


@functools.lru_cache(maxsize=32)
def _sines(time: int, features: int, base: float) -> np.ndarray:
    angles = _angles(time, features, base, 0)
    table = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(time, -1)
    return table[:, :features]


def _rates(features: int, base: float) -> np.ndarray:
    found: np.ndarray = base ** (-np.arange(0, features, 2, dtype=np.float64) / features)
    return found


@functools.lru_cache(maxsize=32)
def _angles(time: int, features: int, base: float, start: int) -> np.ndarray:
    return np.outer(np.arange(start, start + time, dtype=np.float64), _rates(features, base))


def alibi_slopes(heads: int) -> list[float]:
    """The slope of each head; see `alibi`."""
    lower = 2 ** int(math.log2(heads))
    higher = [2.0 ** (-4.0 * (i + 1) / lower) for i in range(0, 2 * (heads - lower), 2)]
    return [2.0 ** (-8.0 * (i + 1) / lower) for i in range(lower)] + higher


def _distances(heads: int, queries: int, keys: int) -> Tensor:
    if not sizes_are_free():
        return asarray(_distance_table(heads, queries, keys).astype(np.float32))
    places = expand_dims(arange(keys - queries, keys, dtype="float64"), axis=1)
    return (asarray(_slopes(heads)) * -abs(places - arange(keys, dtype="float64"))).astype(float32)


@functools.lru_cache(maxsize=32)
def _distance_table(heads: int, queries: int, keys: int) -> np.ndarray:
    places = np.arange(keys - queries, keys)[:, None]
    added: np.ndarray = _slopes(heads) * -np.abs(places - np.arange(keys))
    return added


def _slopes(heads: int) -> np.ndarray:
    return np.reshape(np.asarray(alibi_slopes(heads)), (-1, 1, 1))
