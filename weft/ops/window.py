"""Reductions over sliding windows along any axes: the primitives of pooling and local normalization.

A window has a size, a stride, a padding (before, behind) and a dilation per axis. Padding is zero for sums and minus
infinity for maxima, so that padding is never the maximum.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..dtypes import float32, int64
from ..errors import UserError
from ..graph.node import Node, Op, Shape, Type
from ..tensor import Tensor, emit, number
from .creation import zeros
from .declare import Sample, Wrong, accept
from .elementwise import where
from .indexing import scatter
from .movement import flatten, pad_constant, reshape, slice_
from .reduce import folded_maximum

Pairs = tuple[tuple[int, int], ...]
_PARAMS = ("size", "stride", "padding", "dilation")


def out_size(n: int, size: int, stride: int, padding: tuple[int, int], dilation: int) -> int:
    """The number of windows along an axis."""
    return (n + padding[0] + padding[1] - (size - 1) * dilation - 1) // stride + 1


def _infer(name: str, result: Any = None) -> Callable[..., Type]:
    def infer(x: Node, size: Shape, stride: Shape, padding: Pairs, dilation: Shape) -> Type:
        accept(name, x.dtype, "numeric")
        if not len(size) == len(stride) == len(padding) == len(dilation) == len(x.shape):
            raise UserError(name, f"a window for each of {len(x.shape)} dimensions is required, got {size}.")
        shape = []
        for n, k, s, p, d in zip(x.shape, size, stride, padding, dilation, strict=True):
            extent = (k - 1) * d + 1
            if min(k, s, d) < 1 or min(p) < 0 or max(p) > extent - 1:
                raise UserError(
                    name,
                    f"size, stride and dilation of 1 or more and a padding below the window are required, got size {k}, "
                    f"stride {s}, padding {p}, dilation {d}.",
                )
            if n + sum(p) < extent and (n or extent > 1):  # the dilation of a window of size 1 has no effect
                raise UserError(name, f"a window of {extent} does not fit into {n} elements with padding {p}.")
            shape.append(out_size(n, k, s, p, d))
        return Type(tuple(shape), result or x.dtype)

    return infer


def _taps(
    x: np.ndarray, filler: Any, size: Shape, stride: Shape, padding: Pairs, dilation: Shape
) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """For each position in the window, the elements of all windows at this position."""
    counts = [out_size(*facts) for facts in zip(x.shape, size, stride, padding, dilation, strict=True)]
    padded = np.pad(x, padding, constant_values=filler) if x.ndim else x
    for tap in itertools.product(*map(range, size)):
        view = tuple(
            slice(t * d, t * d + (c - 1) * s + 1, s) for t, d, c, s in zip(tap, dilation, counts, stride, strict=True)
        )
        yield tap, padded[view]


def _lowest(x: np.ndarray) -> Any:
    return -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min


def _sum(x: np.ndarray, *window: Any) -> np.ndarray:
    wide = x.astype(np.float64) if x.dtype.kind == "f" else x
    return np.asarray(np.sum([part for _, part in _taps(wide, 0, *window)], axis=0, dtype=wide.dtype))


def _max(x: np.ndarray, *window: Any) -> np.ndarray:
    return np.asarray(folded_maximum(np.stack([part for _, part in _taps(x, _lowest(x), *window)]), (0,)))


def _argmax(x: np.ndarray, *window: Any) -> np.ndarray:
    """The index, in the flattened input, of the first maximum (or first nan) of each window; -1 for padding."""
    places = np.arange(x.size).reshape(x.shape)
    best = found = None
    for (_, part), (_, place) in zip(_taps(x, _lowest(x), *window), _taps(places, -1, *window), strict=True):
        if best is None or found is None:
            best, found = part.copy(), place.copy()
            continue
        better = (place >= 0) & ((found < 0) | (part > best) | ((part != part) & (best == best)))
        best, found = np.where(better, part, best), np.where(better, place, found)
    assert found is not None
    return found


def _sum_vjp(
    g: Tensor, y: Tensor, x: Tensor, size: Shape, stride: Shape, padding: Pairs, dilation: Shape
) -> tuple[Tensor]:
    """Each element gets the sum of the cotangents of the windows that contain it: a window sum with stride 1."""
    widths, rest = [], []
    for n, m, k, s, p, d in zip(x.shape, g.shape, size, stride, padding, dilation, strict=True):
        reach = (k - 1) * d
        covered = (m - 1) * s + 1  # the positions from the start of the first window to that of the last
        widths.append((reach, max(n + sum(p) - covered, 0), s - 1))
        rest.append((p[0], p[0] + n))
    spread = pad_constant(g, tuple(widths))
    total = window_sum(spread, size, (1,) * x.ndim, ((0, 0),) * x.ndim, dilation)
    return (slice_(total, tuple(a for a, _ in rest), tuple(b for _, b in rest), (1,) * x.ndim),)


def _max_vjp(g: Tensor, y: Tensor, x: Tensor, *window: Any) -> tuple[Tensor]:
    places = window_argmax(x, *window)
    if any(p != (0, 0) for p in window[2]):  # a wide window may hold only padding
        nothing = places < 0
        places, g = where(nothing, 0, places), where(nothing, 0.0, g)
    spread = scatter(zeros(x.size, dtype=g.dtype), flatten(g), [flatten(places)], (0,), "add")
    return (reshape(spread, x.shape),)


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, size, stride, padding, dilation in [
        ((5,), (2,), (1,), ((0, 0),), (1,)),
        ((6,), (3,), (2,), ((1, 2),), (1,)),
        ((2, 5, 6), (1, 3, 2), (1, 2, 2), ((0, 0), (1, 1), (0, 1)), (1, 1, 1)),
        ((7, 3), (3, 1), (2, 1), ((2, 1), (0, 0)), (2, 1)),
        ((0, 4), (1, 2), (1, 2), ((0, 0), (0, 0)), (1, 1)),
        ((), (), (), (), ()),
    ]:
        yield Sample([rng.normal(size=shape)], (size, stride, padding, dilation))


def _wrong(call: Callable[..., Tensor], name: str) -> tuple[Wrong, ...]:

    def x() -> Tensor:
        return number(0.0, float32, (4,))

    return (
        Wrong(lambda: call(x(), (5,), (1,), ((0, 0),), (1,)), f"[{name}] a window of 5 does not fit into 4 elements"),
        Wrong(lambda: call(x(), (2,), (0,), ((0, 0),), (1,)), f"[{name}] size, stride and dilation of 1 or more"),
        Wrong(lambda: call(x(), (2,), (1,), ((2, 0),), (1,)), f"[{name}] size, stride and dilation of 1 or more"),
    )


def window_sum(x: Tensor, size: Shape, stride: Shape, padding: Pairs, dilation: Shape) -> Tensor:
    """The sum of each window."""
    return emit(_SUM, (x,), (size, stride, padding, dilation))


def window_max(x: Tensor, size: Shape, stride: Shape, padding: Pairs, dilation: Shape) -> Tensor:
    """The maximum of each window; the derivative goes to the first of equals."""
    return emit(_MAX, (x,), (size, stride, padding, dilation))


def window_argmax(x: Tensor, size: Shape, stride: Shape, padding: Pairs, dilation: Shape) -> Tensor:
    """The index of that maximum in the flattened input."""
    return emit(_ARGMAX, (x,), (size, stride, padding, dilation))


_SUM = Op(
    "window_sum", "anchor", _infer("window_sum"), _sum, _sum_vjp, _PARAMS, 1, True, _samples,
    _wrong(window_sum, "window_sum"), kernel="window",
)  # fmt: skip
_MAX = Op(
    "window_max", "anchor", _infer("window_max"), _max, _max_vjp, _PARAMS, 1, True, _samples,
    _wrong(window_max, "window_max"), kernel="window", precision="commutes",
)  # fmt: skip
_ARGMAX = Op(
    "window_argmax", "anchor", _infer("window_argmax", int64), _argmax, None, _PARAMS, 1, True, _samples,
    _wrong(window_argmax, "window_argmax"), kernel="window", precision="selects", returns_position=True,
)  # fmt: skip
