"""`contract`: the sum of products over shared axes, the primitive of matrix products, batched products and einsum.

The axes of each operand are labelled by letters. A letter in both operands and the result is a batch axis, one in both
operands only is contracted, one in a single operand and the result is free. So a matrix product is "ij", "jk" -> "ik",
and the derivative of a contraction is a contraction.
"""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..dtypes import DTypeLike, float32
from ..errors import UserError
from ..graph.node import Node, Op, Type
from ..tensor import ArrayLike, Tensor, as_tensor, emit, function, number
from .creation import iota
from .declare import Sample, Wrong, accept, broadcast_shape, expand_to, normal_axis, together
from .elementwise import where
from .movement import moveaxis, pad_axis, permute_dims, reshape, same_dtype, squeeze, stack
from .reduce import sum


def _infer(x: Node, y: Node, a: str, b: str, out: str) -> Type:
    accept("contract", x.dtype, "numeric")
    if x.dtype is not y.dtype:
        raise UserError("contract", f"operands of one dtype are required, got {x.dtype.name} and {y.dtype.name}.")
    sizes: dict[str, int] = {}
    for letters, node in ((a, x), (b, y)):
        if len(letters) != len(node.shape) or len(set(letters)) != len(letters):
            raise UserError("contract", f"{letters!r} does not name the {len(node.shape)} axes of {node.type}.")
        for letter, size in zip(letters, node.shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                raise UserError("contract", f"axis {letter!r} has size {sizes[letter]} and size {size}.")
    lonely = (set(a) ^ set(b)) - set(out)
    if lonely or len(set(out)) != len(out) or not set(out) <= set(sizes):
        raise UserError("contract", f"{a!r}, {b!r} -> {out!r} is not a contraction of two operands.")
    return Type(tuple(sizes[letter] for letter in out), x.dtype)


def _reference(x: np.ndarray, y: np.ndarray, a: str, b: str, out: str) -> np.ndarray:
    """As one batched matrix product: (batch, rows, inner) times (batch, inner, columns)."""
    batch = [c for c in a if c in b and c in out]
    inner = [c for c in a if c in b and c not in out]
    rows, columns = [c for c in a if c not in b], [c for c in b if c not in a]
    sizes = dict(zip(a + b, x.shape + y.shape, strict=True))
    n, m, k, p = (math.prod(sizes[c] for c in letters) for letters in (batch, rows, inner, columns))
    left = x.transpose([a.index(c) for c in batch + rows + inner]).reshape(n, m, k)
    right = y.transpose([b.index(c) for c in batch + inner + columns]).reshape(n, k, p)
    product: np.ndarray = np.matmul(left, right).reshape([sizes[c] for c in batch + rows + columns])
    return product.transpose([(batch + rows + columns).index(c) for c in out])


def _flops(node: Node) -> int:
    (a, b), (x, y) = node.get_params("a", "b"), node.inputs
    return 2 * math.prod((dict(zip(a, x.shape, strict=True)) | dict(zip(b, y.shape, strict=True))).values())


_CONTRACT = Op(
    "contract", "anchor", _infer, _reference,
    lambda g, z, x, y, a, b, out: (lambda: contract(g, y, out, b, a), lambda: contract(g, x, out, a, b)), ("a", "b", "out"), 2, True,
    lambda rng: (
        Sample([rng.normal(size=s), rng.normal(size=t)], p) for s, t, p in [
            ((3,), (3,), ("i", "i", "")), ((2, 3), (3, 4), ("ij", "jk", "ik")), ((2, 3, 4), (2, 5, 4), ("bij", "bkj", "bki")),
            ((), (3,), ("", "i", "i")), ((2, 0), (0, 3), ("ij", "jk", "ik")), ((2, 3), (4, 3, 2), ("ab", "cba", "c")),
        ]
    ),
    (
        Wrong(lambda: matmul(number(0.0, float32, (2, 3)), number(0.0, float32, (4, 5))),
              "[matmul] the last axis of the first operand (size 3) must match the second-to-last axis of the second (size 4)"),
        Wrong(lambda: contract(number(0.0, float32, (2,)), number(0.0, float32, (3,)), "i", "i", ""), "[contract] axis 'i' has size 2 and size 3"),
    ),
    kernel="contraction", precision="product", flops=_flops, strided_inputs=(0, 1), operands=("a", "b", "c"),
)  # fmt: skip


def contract(x: Tensor, y: Tensor, a: str, b: str, out: str) -> Tensor:
    """The contraction of two tensors of one dtype; letters of only one operand must be in the result."""
    return emit(_CONTRACT, (x, y), (a, b, out))


@function
def matmul(x1: ArrayLike, x2: ArrayLike, /, *, dtype: DTypeLike | None = None) -> Tensor:
    """The matrix product; leading dimensions are batch dimensions and broadcast.

    `dtype` is the dtype of the sums and of the result, as in NumPy; by default that of the operands. So int8 operands with `dtype="int32"`
    do not overflow, and CPUs multiply them several times as fast as floats.

    >>> matmul(as_tensor([[1.0, 2.0]]), as_tensor([[3.0], [4.0]])).tolist()
    [[11.0]]
    >>> x = as_tensor([[100, 100]]).astype("int8")
    >>> matmul(x, x.T, dtype="int32").tolist()
    [[20000]]
    """
    x, y = as_tensor(x1), as_tensor(x2)
    if x.ndim == 0 or y.ndim == 0:
        raise UserError("matmul", f"vectors or matrices are required, got shapes {x.shape} and {y.shape}. Use x * y.")
    inner = y.shape[-2] if y.ndim > 1 else y.shape[0]
    if x.shape[-1] != inner:
        which = "second-to-last axis" if y.ndim > 1 else "axis"
        raise UserError(
            "matmul",
            f"the last axis of the first operand (size {x.shape[-1]}) must match the {which} of the second (size {inner}); "
            f"got shapes {x.shape} and {y.shape}.",
        )
    x, y = same_dtype("matmul", [x, y], dtype)
    rows, columns = "m" if x.ndim > 1 else "", "n" if y.ndim > 1 else ""
    batch = broadcast_shape("matmul", x.shape[:-2], y.shape[:-2])
    x, a = _batched(x, batch, rows + "k", len(rows) + 1)
    y, b = _batched(y, batch, "k" + columns, len(columns) + 1)
    letters = string.ascii_uppercase[: len(batch)]
    return contract(x, y, a, b, "".join(c for c in letters if c in a or c in b) + rows + columns)


def _batched(x: Tensor, batch: tuple[int, ...], core: str, ndim: int) -> tuple[Tensor, str]:
    """The operand and its letters; an operand without batch axes is not broadcast."""
    own = x.shape[: x.ndim - ndim]
    if not own or (math.prod(own) == 1 and math.prod(batch) != 1):
        return reshape(x, x.shape[x.ndim - ndim :]), core
    return expand_to(x, (*batch, *x.shape[x.ndim - ndim :])), string.ascii_uppercase[: len(batch)] + core


@function
def vecdot(x1: ArrayLike, x2: ArrayLike, /, *, axis: int = -1) -> Tensor:
    """The inner product of vectors along an axis (counted from the end)."""
    x, y = as_tensor(x1), as_tensor(x2)
    if x.ndim == 0 or y.ndim == 0 or not -min(x.ndim, y.ndim) <= axis < 0:
        raise UserError(
            "vecdot", f"an axis of both, counted from the end, is required, got {axis} for {x.shape} and {y.shape}."
        )
    if x.shape[axis] != y.shape[axis]:
        raise UserError("vecdot", f"axis {axis} must have one size in both, got {x.shape} and {y.shape}.")
    x, y = together("vecdot", moveaxis(x, axis, -1), moveaxis(y, axis, -1))
    letters = string.ascii_letters[: x.ndim]
    return contract(x, y, letters, letters, letters[:-1])


@function
def tensordot(x1: ArrayLike, x2: ArrayLike, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Tensor:
    """The sum of products over the given pairs of axes."""
    x, y = same_dtype("tensordot", [x1, x2])
    if isinstance(axes, int):
        axes = (list(range(x.ndim - axes, x.ndim)), list(range(axes)))
    ours = [normal_axis("tensordot", i, x.ndim) for i in axes[0]]
    theirs = [normal_axis("tensordot", i, y.ndim) for i in axes[1]]
    if len(ours) != len(theirs) or any(x.shape[i] != y.shape[j] for i, j in zip(ours, theirs, strict=True)):
        raise UserError("tensordot", f"axes {axes} of shapes {x.shape} and {y.shape} do not match.")
    a = string.ascii_lowercase[: x.ndim]
    b = list(string.ascii_uppercase[: y.ndim])
    for i, j in zip(ours, theirs, strict=True):
        b[j] = a[i]
    free = [c for c in a if c not in b] + [c for c in b if c not in a]
    return contract(x, y, a, "".join(b), "".join(free))


@function
def outer(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """The outer product of two vectors."""
    return tensordot(x1, x2, axes=0)


# --- einsum --------------------------------------------------------------------------------------------------------------


@function
def einsum(equation: str, *operands: Any, dtype: DTypeLike | None = None) -> Tensor:
    """Sums of products in Einstein's notation, with diagonals, ellipses and any number of operands.

    `dtype` is that of the sums and of the result, as in `matmul`.

    >>> einsum("ij,jk->ik", as_tensor([[1, 2]]), as_tensor([[3], [4]])).tolist()
    [[11]]
    >>> einsum("ii->", as_tensor([[1, 2], [3, 4]])).item()
    5
    """
    tensors = same_dtype("einsum", operands, dtype)
    terms, out = _parse_einsum(equation, tensors)
    work = [_diagonals(t, letters) for t, letters in zip(tensors, terms, strict=True)]
    sizes = _sizes(work, equation)
    work = [_without_ones(t, letters, sizes) for t, letters in work]
    while len(work) > 1:
        i, j = _best_pair(work, out, sizes)
        (y, b), (x, a) = work.pop(j), work.pop(i)
        others = set(out).union(*(letters for _, letters in work))
        x, a = _drop(x, a, set(b) | others)
        y, b = _drop(y, b, set(a) | others)
        kept = "".join(c for c in dict.fromkeys(a + b) if c in others)
        work.append((contract(x, y, a, b, kept), kept))
    x, a = _drop(*work[0], set(out))
    shape = tuple(sizes[c] for c in out)
    missing = [c for c in out if c not in a]  # sizes that are 1 in all operands
    x = permute_dims(reshape(x, (*x.shape, *[1] * len(missing))), [(a + "".join(missing)).index(c) for c in out])
    return expand_to(x, shape)


def _parse_einsum(equation: str, tensors: list[Tensor]) -> tuple[list[str], str]:
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(tensors):
        raise UserError("einsum", f"{equation!r} has {len(terms)} terms, but {len(tensors)} operands were given.")
    letters = (left + right).replace("...", "").replace(",", "")
    if any(c not in string.ascii_letters for c in letters) or any(t.count(".") > 3 for t in (*terms, right)):
        raise UserError("einsum", f"letters, commas, '...' and '->' are allowed, got {equation!r}.")
    spare = [c for c in string.ascii_letters if c not in equation]
    widest = 0
    for term, t in zip(terms, tensors, strict=True):
        named = len(term.replace("...", ""))
        if named > t.ndim or (named < t.ndim and "..." not in term):
            raise UserError("einsum", f"the term {term!r} does not name the axes of shape {t.shape}.")
        widest = max(widest, t.ndim - named) if "..." in term else widest
    dots = "".join(spare[:widest])
    full = []
    for term, t in zip(terms, tensors, strict=True):
        covered = t.ndim - len(term.replace("...", ""))
        full.append(term.replace("...", dots[widest - covered :]))
    if not arrow:
        joined = "".join(full)
        return full, dots + "".join(sorted(c for c in set(joined) if joined.count(c) == 1 and c not in dots))
    out = right.replace("...", dots)
    if len(set(out)) != len(out) or not set(out) <= set("".join(full)):
        raise UserError("einsum", f"the result {right!r} must name axes of the operands, each once.")
    return full, out


def _diagonals(x: Tensor, letters: str) -> tuple[Tensor, str]:
    """Replace repeated letters of an operand by the diagonal."""
    for c in dict.fromkeys(letters):
        while letters.count(c) > 1:
            i = letters.index(c)
            j = letters.index(c, i + 1)
            if x.shape[i] != x.shape[j]:
                raise UserError("einsum", f"axis {c!r} has size {x.shape[i]} and size {x.shape[j]}.")
            x = _diagonal(x, i, j)
            letters = letters[:i] + letters[i + 1 : j] + letters[j + 1 :] + c
    return x, letters


def _diagonal(x: Tensor, i: int, j: int, offset: int = 0) -> Tensor:
    """The diagonal of two axes, as the last axis: in a flattened matrix its elements have stride n + 1."""
    x = moveaxis(x, (i, j), (-2, -1))
    rows, columns = x.shape[-2:]
    first = offset if offset >= 0 else -offset * columns
    count = max(0, min(rows + min(offset, 0), columns - max(offset, 0)))
    flat = reshape(x, (*x.shape[:-2], rows * columns))
    return flat[..., first : first + count * (columns + 1) : columns + 1]


@function
def diagonal(x: ArrayLike, /, *, offset: int = 0, axis1: int = -2, axis2: int = -1) -> Tensor:
    """The diagonal of two axes, as the last axis of the result.

    >>> diagonal(as_tensor([[1, 2], [3, 4]])).tolist()
    [1, 4]
    """
    x = as_tensor(x)
    if x.ndim < 2:
        raise UserError("diagonal", f"two or more dimensions are required, got shape {x.shape}.")
    i, j = normal_axis("diagonal", axis1, x.ndim), normal_axis("diagonal", axis2, x.ndim)
    if i == j:
        raise UserError("diagonal", f"two different axes are required, got {axis1} and {axis2}.")
    return _diagonal(x, i, j, offset)


@function
def diag(x: ArrayLike, /, *, offset: int = 0) -> Tensor:
    """A matrix with the vector on its diagonal; of a matrix, its diagonal.

    >>> diag(as_tensor([1, 2])).tolist()
    [[1, 0], [0, 2]]
    """
    x = as_tensor(x)
    if x.ndim != 1:
        return diagonal(x, offset=offset)
    before, size = max(-offset, 0), x.shape[0] + abs(offset)
    rows = pad_axis(x, 0, before, size - before - x.shape[0])
    on_diagonal = reshape(iota(size), (size, 1)) + offset == iota(size)
    return where(on_diagonal, reshape(rows, (size, 1)), number(0, x.dtype))


@function
def trace(x: ArrayLike, /, *, offset: int = 0) -> Tensor:
    """The sum of the diagonal of each matrix."""
    return sum(diagonal(x, offset=offset), axis=-1)


def _sizes(work: list[tuple[Tensor, str]], equation: str) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for x, letters in work:
        for c, n in zip(letters, x.shape, strict=True):
            if n != 1 and sizes.setdefault(c, n) not in (1, n):
                raise UserError("einsum", f"axis {c!r} of {equation!r} has size {sizes[c]} and size {n}.")
            sizes[c] = n if sizes.get(c, 1) == 1 else sizes[c]
    return sizes


def _without_ones(x: Tensor, letters: str, sizes: dict[str, int]) -> tuple[Tensor, str]:
    """Drop axes of size 1 that broadcast to a larger size in another operand."""
    ones = [i for i, c in enumerate(letters) if x.shape[i] == 1 and sizes[c] != 1]
    return squeeze(x, ones) if ones else x, "".join(c for i, c in enumerate(letters) if i not in ones)


def _drop(x: Tensor, letters: str, needed: set[str]) -> tuple[Tensor, str]:
    """Sum over the axes that are in no other operand and not in the result."""
    axes = [i for i, c in enumerate(letters) if c not in needed]
    return (sum(x, axis=axes, dtype=x.dtype) if axes else x), "".join(c for c in letters if c in needed)


def _best_pair(work: list[tuple[Tensor, str]], out: str, sizes: dict[str, int]) -> tuple[int, int]:
    """The pair whose contraction is the smallest; with two operands there is no choice."""

    def cost(pair: tuple[int, int]) -> tuple[int, int]:
        i, j = pair
        both = set(work[i][1]) | set(work[j][1])
        others = set(out).union(*(w[1] for k, w in enumerate(work) if k not in pair))
        return math.prod(sizes[c] for c in both & others), math.prod(sizes[c] for c in both)

    return min(((i, j) for j in range(len(work)) for i in range(j)), key=cost)


@function
def cross(x1: ArrayLike, x2: ArrayLike, /, *, axis: int = -1) -> Tensor:
    """The cross product of vectors of length 3 along an axis."""
    x, y = together("cross", x1, x2)
    axis = normal_axis("cross", axis, x.ndim)
    if x.shape[axis] != 3:
        raise UserError("cross", f"axis {axis} must have size 3, got shape {x.shape}.")
    from_axis = moveaxis(x, axis, 0), moveaxis(y, axis, 0)
    (a, b, c), (d, e, f) = ([t[i] for i in range(3)] for t in from_axis)
    parts = [b * f - c * e, c * d - a * f, a * e - b * d]
    return moveaxis(stack(parts), 0, axis)
