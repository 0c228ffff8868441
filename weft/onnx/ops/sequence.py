"""Sequences (lists) and optional values (None, or the value)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import UserError
from ...ops.movement import concat, stack
from ..registry import op
from ..values import Value, frozen, is_known, known, tensor
from .shapes import cut


@op("SequenceEmpty", raw=True)
def sequence_empty(*, dtype: int = 1) -> list[Value]:
    return []


@op("SequenceConstruct", raw=True)
def sequence_construct(*values: Value) -> list[Value]:
    return list(values)


def _place(position: Value, size: int) -> int:
    found = int(known(position, "the position in a sequence").reshape(()))
    if not -size <= found < max(size, 1):
        raise UserError("onnx", f"a position in a sequence of {size} is required, got {found}.")
    return found


@op("SequenceAt", raw=True)
def sequence_at(values: Value, position: Value) -> Value:
    return values[_place(position, len(values))]


@op("SequenceInsert", raw=True)
def sequence_insert(values: Value, value: Value, position: Value = None) -> list[Value]:
    found = list(values)
    found.insert(len(found) if position is None else _insertion(position, len(found)), value)
    return found


def _insertion(position: Value, size: int) -> int:
    place = int(known(position, "the position in a sequence").reshape(()))
    return place + size if place < 0 else place


@op("SequenceErase", raw=True)
def sequence_erase(values: Value, position: Value = None) -> list[Value]:
    found = list(values)
    del found[-1 if position is None else _place(position, len(found))]
    return found


@op("SequenceLength", raw=True)
def sequence_length(values: Value) -> np.ndarray:
    return np.array(len(values), np.int64)


@op("ConcatFromSequence", raw=True)
def concat_from_sequence(values: Value, *, axis: int, new_axis: int = 0) -> Value:
    if all(map(is_known, values)):
        return frozen(np.stack(values, axis) if new_axis else np.concatenate(values, axis))
    parts = [tensor(v) for v in values]
    return stack(parts, axis=axis) if new_axis else concat(parts, axis=axis)


@op("SplitToSequence", raw=True)
def split_to_sequence(x: Value, split: Value = None, *, axis: int = 0, keepdims: int = 1) -> list[Value]:
    """Parts of 1 by default; a number gives parts of that size, of which the last may be smaller."""
    given = tensor(x)
    size = given.shape[axis]
    if split is None:
        parts = list(cut(given, [1] * size, axis))
        return parts if keepdims else [part.squeeze(axis) for part in parts]
    sizes = known(split, "the sizes of the parts")
    if sizes.ndim:
        return list(cut(given, sizes.tolist(), axis))
    each = int(sizes)
    return list(cut(given, [min(each, size - start) for start in range(0, size, each)], axis))


@op("Optional", raw=True)
def optional(value: Value = None, *, type: Any = None) -> Value:
    return value


@op("OptionalGetElement", raw=True)
def optional_get_element(value: Value) -> Value:
    if value is None:
        raise UserError("onnx", "an optional value that holds an element is required, got an empty one.")
    return value


@op("OptionalHasElement", raw=True)
def optional_has_element(value: Value = None) -> np.ndarray:
    return np.array(value is not None)
