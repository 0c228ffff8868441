"""Weights of 8 or 4 bits with a scale for each group of inputs: W[o, i] = q[o, i] * scale[o, i // group].

Integers of 8 bits are int8. Integers of 4 bits are packed in pairs into uint8: the low halves of a group's bytes hold the first half of the
group, the high ones the second, so adjacent bytes belong to adjacent inputs. Integers and scales are in row-major order.
`weft.compress.weight_only` makes them. On GPUs, products with few rows decode them in registers, because such a product is bound by the
bytes of its weight. On other devices the weight is
computed first.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from ..dtypes import int8, uint8
from ..errors import UserError
from ..graph.node import Node, Op, Shape, Type
from ..tensor import ArrayLike, Tensor, as_tensor, emit, function
from .declare import Sample, Wrong, on_nodes
from .elementwise import astype
from .movement import concat, reshape
from .reduce import sum


@function
def grouped_weight(codes: ArrayLike, scale: ArrayLike, *, bits: int, shape: Shape) -> Tensor:
    """The weight of this shape, (outputs, inputs), that codes and scales represent.

    >>> grouped_weight(np.array([0x81, 0x70], np.uint8), [0.5, 1.0], bits=4, shape=(1, 4)).tolist()
    [[0.5, -4.0, 0.0, 7.0]]
    """
    return emit(_GROUPED_WEIGHT, (as_tensor(codes), as_tensor(scale)), (bits, tuple(shape)))


def packed(integers: np.ndarray, group: int) -> np.ndarray:
    """Integers of 4 bits as codes, two in a byte.

    >>> packed(np.array([1, 2, -1, -8], np.int8), 4)
    array([241, 130], dtype=uint8)
    """
    halves = (integers.reshape(-1, 2, group // 2) & 15).astype(np.uint8)
    return np.asarray(halves[:, 0] | (halves[:, 1] << 4), np.uint8).reshape(-1)


def _infer(codes: Node, scale: Node, bits: int, shape: Shape) -> Type:
    where, dtype = "grouped_weight", {8: int8, 4: uint8}.get(bits)
    if dtype is None:
        raise UserError(where, f"4 or 8 bits are required, got {bits}.")
    if codes.dtype is not dtype or not scale.dtype.is_float:
        raise UserError(
            where,
            f"codes of dtype {dtype.name} and a scale of floats are required, got {codes.dtype.name} and {scale.dtype.name}.",
        )
    if len(shape) != 2 or codes.shape != (prod(shape) * bits // 8,):
        raise UserError(where, f"{bits} bits for each weight of {shape} are required, got {codes.type}.")
    group = prod(shape) // max(1, prod(scale.shape))
    if (
        len(scale.shape) != 1
        or not group
        or prod(scale.shape) * group != prod(shape)
        or shape[1] % group
        or (bits == 4 and group % 2)
    ):
        raise UserError(where, f"a scale for each group of inputs of {shape} is required, got {scale.type}.")
    return Type(shape, scale.dtype)


def _reference(codes: np.ndarray, scale: np.ndarray, bits: int, shape: Shape) -> np.ndarray:
    rows = codes.reshape(len(scale), -1)
    if bits == 4:
        halves = np.concatenate([rows & 15, rows >> 4], axis=1).astype(np.int8)
        rows = (halves ^ 8) - 8  # the sign of 4 bits
    return np.asarray((rows.astype(scale.dtype) * scale[:, None]).reshape(shape))


def _integers(codes: Tensor, groups: int, bits: int) -> Tensor:
    """The integers of each group, in order."""
    rows = reshape(codes, (groups, -1))
    if bits == 8:
        return rows
    return (astype(concat([rows & 15, rows >> 4], axis=1), int8) ^ 8) - 8


def _decoded(codes: Tensor, scale: Tensor, bits: int, shape: Shape) -> Tensor:
    return reshape(astype(_integers(codes, scale.shape[0], bits), scale.dtype) * scale[:, None], shape)


def _vjp(g: Tensor, y: Tensor, codes: Tensor, scale: Tensor, bits: int, shape: Shape) -> tuple[Any, ...]:
    """With respect to the scales."""

    def of_scale() -> Tensor:
        integers = astype(_integers(codes, scale.shape[0], bits), scale.dtype)
        return sum(reshape(g, integers.shape) * integers, axis=1)

    return None, of_scale


def _batched(call: Any, op: Op, bits: int, shape: Shape) -> Tensor:
    """The batching rule: the weights of all examples are stacked to the rows of one weight."""
    codes, scale = (reshape(t, (-1,)) for t in call.all())
    rows = emit(op, (codes, scale), (bits, (call.size * shape[0], shape[1])))
    return reshape(rows, (call.size, *shape))


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for bits, shape, group in ((8, (3, 6), 6), (8, (2, 8), 4), (4, (3, 8), 2), (4, (5, 6), 6)):
        low, dtype = (-128, np.int8) if bits == 8 else (0, np.uint8)
        codes = rng.integers(low, low + 256, prod(shape) * bits // 8).astype(dtype)
        yield Sample([codes, rng.normal(size=prod(shape) // group).astype(np.float32)], (bits, shape))


_CODES, _SCALE = np.zeros(8, np.int8), np.ones(2, np.float32)
_GROUPED_WEIGHT = Op(
    "grouped_weight", "index", _infer, _reference, _vjp, ("bits", "shape"), 2, True, samples=_samples,
    errors=(
        Wrong(lambda: grouped_weight(_CODES, _SCALE, bits=5, shape=(2, 4)), "[grouped_weight] 4 or 8 bits are required, got 5"),
        Wrong(lambda: grouped_weight(_CODES, _SCALE, bits=4, shape=(2, 4)), "[grouped_weight] codes of dtype uint8 and a scale of floats are required"),
        Wrong(lambda: grouped_weight(_CODES, _SCALE, bits=8, shape=(3, 4)), "[grouped_weight] 8 bits for each weight of (3, 4) are required"),
        Wrong(lambda: grouped_weight(_CODES, np.ones(3, np.float32), bits=8, shape=(2, 4)), "[grouped_weight] a scale for each group of inputs of (2, 4)"),
    ),
    own_kernels=True, decompose=on_nodes(_decoded), batch=_batched, precision="exact",
)  # fmt: skip
_GROUPED_WEIGHT.external = False  # what it decomposes into is part of weft, so compiled code is kept on disk
