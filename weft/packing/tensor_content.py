"""A tensor as packing sees it: where it is zero, and the values elsewhere, by number if there are few different ones. Nothing is rounded."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..records import dataclass

MOST_VALUES = 256  # of a codebook: the numbers of values are bytes
_SAMPLE = 1 << 16  # values that are looked at first: tensors with many different ones are known by them


@dataclass(frozen=True)
class TensorContent:
    """The parts of a tensor. Without `mask` no entry is zero, or zero is one of the values; without `indices` the values are all different ones in turn."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    mask: np.ndarray | None  # of two dimensions: true where it is not zero
    values: np.ndarray  # the codebook, or all values that are not zero
    indices: np.ndarray | None  # the number of each value in the codebook

    def array(self) -> np.ndarray:
        """The tensor."""
        given = self.values if self.indices is None else self.values[self.indices]
        if self.mask is None:
            return given.reshape(self.shape)
        found = np.zeros(self.mask.size, self.dtype)
        found[self.mask.ravel()] = given
        return found.reshape(self.shape)


def split_tensor(array: np.ndarray) -> TensorContent:
    """The parts of a tensor. Values are compared bit by bit: a negative zero is a value, and so is each nan."""
    bits = np.ascontiguousarray(array).reshape(-1).view(f"u{array.dtype.itemsize}")
    mask = bits != 0
    kept = bits[mask]
    few = len(kept) > 0 and len(np.unique(kept[:_SAMPLE])) <= MOST_VALUES
    values, indices = np.unique(kept, return_inverse=True) if few else (kept, None)
    if len(values) > MOST_VALUES or len(values) >= len(kept):
        values, indices = kept, None
    rows = mask_shape(array.shape)
    return TensorContent(
        array.shape, array.dtype, None if mask.all() else mask.reshape(rows), values.view(array.dtype),
        None if indices is None else indices.astype(np.uint8),
    )  # fmt: skip


def plain_tensor(array: np.ndarray) -> TensorContent:
    """All entries of a tensor as values."""
    return TensorContent(array.shape, array.dtype, None, array.reshape(-1), None)


def mask_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """A row for each output of a layer."""
    rows = shape[0] if len(shape) > 1 else 1
    return rows, math.prod(shape) // max(rows, 1)


def as_half(values: np.ndarray) -> np.ndarray | None:
    """float32 values as float16, if that changes none of them."""
    if values.dtype != np.float32:
        return None
    with np.errstate(over="ignore"):
        found = values.astype(np.float16)
    same = np.array_equal(found.astype(np.float32).view(np.uint32), values.view(np.uint32))
    return found if same else None
