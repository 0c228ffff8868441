"""Products with a sparse weight: only the weights that are kept are stored, and multiplied.

The format is compressed sparse rows (CSR) for each block of columns. Weights are listed by block, then by output, then by column:

    starts[b, o]      where the weights of block b and output o begin; they end where those of o + 1 begin, starts[b, o + 1]
    columns[e]        the input of weight e, counted from the start of its block of `block` inputs: two bytes
    values[e]         its value; or, with codes, values[codes[e]]: a codebook, and one byte for each weight

Padding has codes beyond the codebook, which mean 0, or columns beyond the block, which mean an input of 0. Only as many low bits of a
column are used as `block` has. So any content is valid, and kernels need no checks. `weft.compress.sparse` makes these tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..dtypes import int32, int64, uint8, uint16
from ..errors import UserError
from ..graph.node import Node, Op, Type
from ..tensor import ArrayLike, Tensor, as_tensor, emit, function
from .contract import matmul
from .creation import iota, zeros
from .declare import Sample, Wrong, accept, on_nodes
from .elementwise import astype, where
from .indexing import gather, scatter
from .movement import concat, reshape, stack, transpose
from .sorting import searchsorted

MOST_COLUMNS = (1 << 16) - 1  # of a block: the next number means padding
MOST_CODES = 256


def _infer(inputs: tuple[Node, ...], block: int) -> Type:
    if len(inputs) not in (4, 5):
        raise UserError(
            "sparse_matmul", f"x, values, columns, starts and perhaps codes are required, got {len(inputs)} tensors."
        )
    x, values, columns, starts, *codes = inputs
    accept("sparse_matmul", x.dtype, "float")
    if type(block) is not int or not 1 <= block <= MOST_COLUMNS:
        raise UserError("sparse_matmul", f"a block of 1 to {MOST_COLUMNS} columns is required, got {block}.")
    if len(x.shape) != 2 or len(starts.shape) != 2:
        raise UserError(
            "sparse_matmul", f"x and starts of two dimensions are required, got {x.shape} and {starts.shape}."
        )
    blocks, ends = starts.shape
    if blocks != -(-x.shape[1] // block) or not ends:
        raise UserError(
            "sparse_matmul",
            f"starts of shape ({-(-x.shape[1] // block)}, outputs + 1) are required for {x.shape[1]} inputs in blocks of {block}, got {starts.shape}.",
        )
    listed = codes[0] if codes else values
    for name, node, dtype in (
        ("values", values, x.dtype),
        ("columns", columns, uint16),
        ("starts", starts, int32),
        ("codes", listed, uint8),
    ):
        if node.dtype is not dtype and (name != "codes" or codes):
            raise UserError("sparse_matmul", f"{name} of dtype {dtype.name} are required, got {node.dtype.name}.")
    if len(columns.shape) != 1 or listed.shape != columns.shape or len(values.shape) != 1:
        raise UserError(
            "sparse_matmul",
            f"a {'code' if codes else 'value'} for each column is required, got {listed.shape} and {columns.shape}.",
        )
    if codes and values.shape[0] > MOST_CODES:
        raise UserError("sparse_matmul", f"a codebook of up to {MOST_CODES} values is required, got {values.shape[0]}.")
    return Type((x.shape[0], ends - 1), x.dtype)


def _reference(inputs: tuple[np.ndarray, ...], block: int) -> np.ndarray:
    x, values, columns, starts, *codes = inputs
    weight = dense_weight(values, columns, starts, codes[0] if codes else None, block, x.shape[1])
    return np.asarray(x.astype(np.float64) @ weight.T).astype(x.dtype)


def used_bits(block: int) -> int:
    """A mask of the bits of a column that are used: as many as the number of columns in a block has."""
    return (1 << block.bit_length()) - 1


def dense_weight(
    values: np.ndarray, columns: np.ndarray, starts: np.ndarray, codes: np.ndarray | None, block: int, inputs: int
) -> np.ndarray:
    """The weight (outputs, inputs) that sparse tensors represent, in float64."""
    blocks, outputs = starts.shape[0], starts.shape[1] - 1
    if codes is not None:
        values = np.concatenate([values.astype(np.float64), np.zeros(MOST_CODES - len(values))])[codes]
    begin, end = (np.clip(part.astype(np.int64), 0, len(columns)) for part in (starts[:, :-1], starts[:, 1:]))
    counts = np.maximum(end - begin, 0).ravel()
    first = np.cumsum(counts) - counts
    entry = np.arange(counts.sum()) - np.repeat(first - begin.ravel(), counts)
    where_from = np.repeat(np.arange(blocks * outputs), counts)
    inside = columns[entry].astype(np.int64) & used_bits(block)
    column = where_from // max(outputs, 1) * block + inside
    found = np.zeros((outputs, inputs))
    there = (inside < block) & (column < inputs)
    np.add.at(found, (where_from[there] % max(outputs, 1), column[there]), values[entry[there]].astype(np.float64))
    return found


# --- made of other ops: derivatives, and devices without a kernel --------------------------------------------------------------------


def _places(inputs: Sequence[Tensor], block: int) -> tuple[Tensor, Tensor, Tensor]:
    """For each weight its output, its input, and whether both exist. Requires ascending starts."""
    x, _, columns, starts = inputs[:4]
    outputs, (count,) = starts.shape[1] - 1, columns.shape
    entry = iota(count)
    number = searchsorted(reshape(starts[:, :-1], (-1,)), astype(entry, int32), side="right") - 1
    inside = astype(columns, int64) & used_bits(block)
    column = number // outputs * block + inside
    there = (number >= 0) & (entry < starts[-1, -1]) & (inside < block) & (column < x.shape[1])
    return where(there, number % outputs, 0), where(there, column, 0), there


def _values(inputs: Sequence[Tensor]) -> Tensor:
    _, values, _, _, *codes = inputs
    if not codes:
        return values
    table = concat([values, zeros((MOST_CODES - values.shape[0],), dtype=values.dtype)])
    return gather(table, [astype(codes[0], int64)], (0,))


def _weight(inputs: Sequence[Tensor], block: int) -> Tensor:
    """The dense weight."""
    x, _, columns, starts = inputs[:4]
    empty = zeros((starts.shape[1] - 1, x.shape[1]), dtype=x.dtype)
    if not columns.shape[0] or not empty.size:
        return empty
    output, column, there = _places(inputs, block)
    return scatter(empty, where(there, _values(inputs), 0.0), [output, column], (0, 1), "add")


def _decomposed(*given: Any) -> Tensor:
    *inputs, block = given
    return matmul(inputs[0], transpose(_weight(inputs, block)))


def _vjp(
    g: Tensor, y: Tensor, inputs: tuple[Tensor, ...], block: int
) -> tuple[Tensor | Callable[[], Tensor] | None, ...]:
    rest = (None,) * (len(inputs) - 2)
    return (lambda: matmul(g, _weight(inputs, block)), lambda: _values_gradient(g, inputs, block), *rest)


def _values_gradient(g: Tensor, inputs: tuple[Tensor, ...], block: int) -> Tensor:
    """The gradient of the dense weight at the positions of the weights; for a codebook, summed over the weights that share a value."""
    x, values, columns, _, *codes = inputs
    if not columns.shape[0] or not g.shape[1]:
        return zeros(values.shape, dtype=values.dtype)
    output, column, there = _places(inputs, block)
    each = where(there, gather(matmul(transpose(g), x), [output, column], (0, 1)), 0.0)
    if not codes:
        return each
    table = zeros((MOST_CODES,), dtype=values.dtype)
    return scatter(table, each, [astype(codes[0], int64)], (0,), "add")[: values.shape[0]]


def _batched(call: Any, op: Op, block: int) -> Tensor:
    """The batching rule: the rows of all examples form one product, unless each example has a weight of its own."""
    if any(call.mapped[1:]):
        return stack([emit(op, tuple(t[i] for t in call.all()), (block,)) for i in range(call.size)])
    x, *weight = call.tensors
    y = emit(op, (reshape(x, (-1, x.shape[-1])), *weight), (block,))
    return reshape(y, (*x.shape[:-1], y.shape[-1]))


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for batch, inputs, outputs, block, size in (
        (1, 9, 5, 4, 0),
        (3, 20, 7, 31, 3),
        (2, 6, 3, 2, 40),
        (0, 3, 2, 4, 0),
        (2, 3, 0, 4, 2),
    ):
        blocks = -(-inputs // block)
        counts = rng.integers(0, 6, blocks * outputs)
        edges = np.concatenate([[0], np.cumsum(counts)])
        starts = np.stack([edges[b * outputs : (b + 1) * outputs + 1] for b in range(blocks)]).astype(np.int32)
        columns = rng.integers(0, 2 * block, edges[-1]).astype(np.uint16)
        given = [rng.normal(size=(batch, inputs)), rng.normal(size=size or edges[-1]), columns, starts]
        yield Sample([*given, *([rng.integers(0, size + 1, edges[-1]).astype(np.uint8)] if size else [])], (block,))


def _wrong(**changes: Any) -> Callable[[], Any]:
    given: dict[str, Any] = {
        "x": zeros((1, 4)), "values": zeros(3), "columns": zeros(3, dtype=uint16), "starts": zeros((1, 3), dtype=int32), "block": 4
    }  # fmt: skip
    return lambda: sparse_matmul(**(given | changes))


_SPARSE_MATMUL = Op(
    "sparse_matmul", "index", _infer, _reference, _vjp, ("block",), None, True, samples=_samples,
    errors=(
        Wrong(_wrong(block=0), "[sparse_matmul] a block of 1 to 65535 columns is required, got 0"),
        Wrong(_wrong(x=zeros((1, 5))), "[sparse_matmul] starts of shape (2, outputs + 1) are required for 5 inputs in blocks of 4, got (1, 3)"),
        Wrong(_wrong(columns=zeros(3, dtype=int32)), "[sparse_matmul] columns of dtype uint16 are required, got int32"),
        Wrong(_wrong(values=zeros(2)), "[sparse_matmul] a value for each column is required, got (2,) and (3,)"),
        Wrong(_wrong(values=zeros(257), codes=zeros(3, dtype=uint8)), "[sparse_matmul] a codebook of up to 256 values is required, got 257"),
    ),
    own_kernels=True, decompose=on_nodes(lambda *given: _decomposed(*given)), batch=_batched, precision="exact",
)  # fmt: skip
_SPARSE_MATMUL.external = False  # what it decomposes into is part of weft, so compiled code is kept on disk


@function
def sparse_matmul(
    x: ArrayLike,
    values: ArrayLike,
    columns: ArrayLike,
    starts: ArrayLike,
    codes: ArrayLike | None = None,
    *,
    block: int | None = None,
) -> Tensor:
    """x W^T over the last axis of x, for a sparse weight W of shape (outputs, inputs) in compressed sparse rows, by blocks of `block` columns.
    Without `block` all columns are one block.

    On CPUs only the weights that are listed are read and multiplied. On other devices W is made in every call. The derivative is that with
    respect to x and to the values.

    >>> import numpy as np
    >>> columns, starts = np.array([0, 2, 1], np.uint16), np.array([[0, 2, 3]], np.int32)
    >>> sparse_matmul([1.0, 10.0, 100.0], [0.5, 2.0, 3.0], columns, starts).tolist()
    [200.5, 30.0]
    """
    x, starts = as_tensor(x), as_tensor(starts)
    flat = reshape(x, (-1, x.shape[-1])) if x.ndim != 2 else x
    weight = (as_tensor(values, x.dtype), as_tensor(columns), starts, *(() if codes is None else (as_tensor(codes),)))
    y = emit(_SPARSE_MATMUL, (flat, *weight), (x.shape[-1] if block is None else block,))
    return reshape(y, (*x.shape[:-1], y.shape[-1]))
