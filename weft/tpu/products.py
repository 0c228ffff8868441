"""Products of bytes in a graph: their shape on the array, and their exact sums.

int8 networks multiply in int32: `conv(cast(x), cast(w))`. The array computes such a product if both operands are casts of int8 or uint8 and the weights are constants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from ..dtypes import int8, int32, uint8
from ..graph.node import Node
from ..records import dataclass
from .stages import CONVOLVE, MULTIPLY

BYTES = (int8, uint8)  # the array multiplies both
EXACT = 256  # products of bytes that float32 sums without rounding: 256 * 255 * 255 < 2^24


@dataclass(frozen=True, eq=False)
class ArrayProduct:
    """A product or convolution as (rows x inner) times (inner x columns)."""

    node: Node
    x: Node  # the activations, int8 or uint8
    path: tuple[Node, ...]  # from them to the operand: padding, data movement, cast to int32
    operand: Node
    weight: Node  # int32, constant
    kind: str
    rows: int
    inner: int
    columns: int
    groups: int
    sums: Callable[[np.ndarray, np.ndarray], np.ndarray]  # of the operands

    @property
    def name(self) -> str:
        return "convolution" if self.kind == CONVOLVE else "linear"


def array_product(node: Node, static: Mapping[Node, bool]) -> ArrayProduct | None:
    """The product of a node as the array computes it; None if it cannot."""
    if node.dtype is not int32 or node.op.name not in ("conv", "contract"):
        return None
    first, second = node.inputs
    if static[first] == static[second]:
        return None
    is_swapped = static[first]
    operand, weight = (second, first) if is_swapped else (first, second)
    narrow, path = byte_source(operand)
    if narrow is None or static[narrow] or byte_source(weight)[0] is None:
        return None
    if node.op.name == "conv":
        return None if is_swapped else _convolution(node, narrow, path)
    return _contraction(node, narrow, path, is_swapped)


def byte_source(node: Node) -> tuple[Node | None, tuple[Node, ...]]:
    """The tensor of bytes that a node only casts and moves, and the nodes on the path from there."""
    path: list[Node] = []
    while node.dtype not in BYTES:
        if not (node.op.name == "cast" or node.op.kernel == "view" or _pads_with_bytes(node)) or len(node.inputs) != 1:
            return None, ()
        path.append(node)
        node = node.inputs[0]
    while node.inputs and (node.op.name == "pad" or (node.op.kernel == "view" and node.op.name != "expand")):
        path.append(node)
        node = node.inputs[0]
    return node, tuple(reversed(path))


def _pads_with_bytes(node: Node) -> bool:
    return node.op.name == "pad" and -128 <= float(node.param("value")) <= 255


# --- convolutions -----------------------------------------------------------------------------------------------------------------


def _convolution(node: Node, narrow: Node, path: tuple[Node, ...]) -> ArrayProduct:
    x, w = node.inputs
    groups = int(node.param("groups"))
    rows, inner = prod((node.shape[0], *node.shape[2:])), prod(w.shape[1:])

    def sums(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        return convolution_sums(x, w, *node.get_params("stride", "padding", "dilation", "groups"))

    columns = w.shape[0] // groups
    return ArrayProduct(node, narrow, path, x, w, CONVOLVE, rows, inner, columns, groups, sums)


def convolution_sums(x: np.ndarray, w: np.ndarray, stride: Any, padding: Any, dilation: Any, groups: int) -> np.ndarray:
    """An exact convolution of bytes: im2col of one image at a time, times the filters."""
    kernel = w.shape[2:]
    x = np.pad(x, ((0, 0), (0, 0), *padding)).astype(np.float32)
    span = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True))
    windows = np.lib.stride_tricks.sliding_window_view(x, span, tuple(range(2, x.ndim)))
    steps = (
        slice(None),
        slice(None),
        *(slice(None, None, s) for s in stride),
        *(slice(None, None, d) for d in dilation),
    )
    windows = windows[steps]  # image, channel, place ..., kernel ...
    found = np.empty((len(x), len(w), *windows.shape[2 : -len(kernel)]), np.int32)
    inner = prod(w.shape[1:])
    matrices = w.reshape(groups, -1, inner).astype(np.float32)
    for image, result in zip(windows, found, strict=True):
        columns = np.moveaxis(image, range(1, x.ndim - 1), range(-len(kernel), 0)).reshape(groups, inner, -1)
        result[...] = exact_product(matrices, columns).reshape(result.shape)
    return found


# --- matrix products --------------------------------------------------------------------------------------------------------------


def _contraction(node: Node, narrow: Node, path: tuple[Node, ...], is_swapped: bool) -> ArrayProduct | None:
    a, b, out = node.get_params("a", "b", "out")
    x, w = node.inputs
    if is_swapped:
        a, b, x, w = b, a, w, x
    kept_a, kept_b = [c for c in a if c in out], [c for c in b if c in out]
    inner = [c for c in a if c not in out]
    if set(kept_a) & set(kept_b) or set(inner) != {c for c in b if c not in out}:
        return None  # batched weights: one product for each
    size = {**dict(zip(a, x.shape, strict=True)), **dict(zip(b, w.shape, strict=True))}

    def sums(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        left = x.transpose([a.index(c) for c in [*kept_a, *inner]]).reshape(-1, prod(size[c] for c in inner))
        right = w.transpose([b.index(c) for c in [*inner, *kept_b]]).reshape(left.shape[1], -1)
        found = exact_product(left.astype(np.float32), right.astype(np.float32))
        letters = [*kept_a, *kept_b]
        return found.reshape([size[c] for c in letters]).transpose([letters.index(c) for c in out])

    rows, columns = prod(size[c] for c in kept_a), prod(size[c] for c in kept_b)
    total = prod(size[c] for c in inner)
    return ArrayProduct(node, narrow, path, x, w, MULTIPLY, rows, total, columns, 1, sums)


def exact_product(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """An exact int32 product of bytes stored as float32: partial sums that are exact in float32 are added as integers.

    >>> exact_product(np.full((1, 5000), -128, np.float32), np.full((5000, 1), -128, np.float32)).tolist()
    [[81920000]]
    """
    total = np.zeros((*x.shape[:-1], w.shape[-1]), np.int32)
    for first in range(0, x.shape[-1], EXACT):
        total += (x[..., first : first + EXACT] @ w[..., first : first + EXACT, :]).astype(np.int32)
    return total
