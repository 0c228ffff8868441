"""Internal ops of the compiler, for derivatives that the graph expresses as a scatter.

The gradient of max pooling is two ops that are independent of the memory layout: which tap of each window is the maximum, and the
sum of the gradients of all windows whose maximum an element is. `in_range` checks an index.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from ...dtypes import int32
from ...errors import RunError
from ...graph.node import Node, Op, Shape, Type

_PARAMS = ("size", "stride", "padding", "dilation")


def _tap_infer(x: Node, size: Shape, stride: Shape, padding: Any, dilation: Shape) -> Type:
    facts = zip(x.shape, size, stride, padding, dilation, strict=True)
    return Type(tuple((n + sum(p) - (k - 1) * d - 1) // s + 1 for n, k, s, p, d in facts), int32)


def _views(shape: Shape, out: Shape, size: Shape, stride: Shape, padding: Any, dilation: Shape) -> Any:
    for tap in itertools.product(*map(range, size)):
        yield tuple(
            slice(t * d, t * d + (c - 1) * s + 1, s) for t, d, c, s in zip(tap, dilation, out, stride, strict=True)
        )


def _tap(x: np.ndarray, size: Shape, stride: Shape, padding: Any, dilation: Shape) -> np.ndarray:
    """The number of the first tap whose element is the maximum (or nan)."""
    lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    facts = zip(x.shape, size, stride, padding, dilation, strict=True)
    out = tuple((n + sum(p) - (k - 1) * d - 1) // s + 1 for n, k, s, p, d in facts)
    padded, real = np.pad(x, padding, constant_values=lowest), np.pad(np.ones(x.shape, bool), padding)
    best, found = np.full(out, lowest, x.dtype), np.full(out, -1, np.int32)
    for number, view in enumerate(_views(x.shape, out, size, stride, padding, dilation)):
        part, inside = padded[view], real[view]
        better = inside & ((found < 0) | (part > best) | ((part != part) & (best == best)))
        best, found = np.where(better, part, best), np.where(better, np.int32(number), found)
    return found


def _spread(
    tap: np.ndarray, g: np.ndarray, size: Shape, stride: Shape, padding: Any, dilation: Shape, shape: Shape
) -> np.ndarray:
    """For each element the sum of g over the windows whose maximum it is."""
    total = np.zeros([n + sum(p) for n, p in zip(shape, padding, strict=True)], g.dtype)
    for number, view in enumerate(_views(shape, g.shape, size, stride, padding, dilation)):
        total[view] += np.where(tap == number, g, 0)
    return total[tuple(slice(p[0], p[0] + n) for n, p in zip(shape, padding, strict=True))]


TAP = Op(
    "window_tap", "anchor", _tap_infer, _tap, None, _PARAMS, 1, True, internal=True,
    kernel="window", precision="selects", returns_position=True,
)  # fmt: skip
SPREAD = Op(
    "window_spread", "anchor", lambda tap, g, *how: Type(how[4], g.dtype), _spread, None, (*_PARAMS, "shape"), 2, True,
    internal=True, kernel="window",
)  # fmt: skip


# --- places that were written to -----------------------------------------------------------------------------------------------


def _in_range(index: np.ndarray, size: int, axis: int) -> np.ndarray:
    wide = index.astype(np.int64)
    if index.size and (int(wide.min()) < -size or int(wide.max()) >= size):
        worst = wide.min() if int(wide.min()) < -size else wide.max()
        raise RunError("scatter", f"index {worst} is out of range for axis {axis} of size {size}.")
    return np.where(wide < 0, wide + size, wide).astype(np.int32)


# An index counted from the front; an index out of range is an error at run time.
IN_RANGE = Op(
    "in_range", "elementwise", lambda index, size, axis: Type(index.shape, int32), _in_range, None, ("size", "axis"), 1,
    internal=True, can_fail=True, label="",
)  # fmt: skip
