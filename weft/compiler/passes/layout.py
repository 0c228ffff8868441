"""Layout: every op in the form that its kernel reads, with explicit movement around it.

Matrix products become batched products of matrices, (b, m, k) times (b, k, n). Convolutions become channels-last; the
permutations around them are pushed through elementwise ops, pooling, padding and reductions until they meet and cancel. Those that
remain are views, not kernels.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod
from typing import Any

import numpy as np

from ...dtypes import DType, float32, float64, int32
from ...graph.graph import Graph, rebuild
from ...graph.node import OPS, Node, Op, Shape, Type, make
from ...graph.rewrite import rewrite, transform
from ...records import dataclass
from ..ir.conv_shape import conv_flops
from .aligned_channels import aligned_channels, aligned_counts
from .channel_padding import ChannelPadding
from .graph_builders import cast, move
from .integer_products import (
    WORD,
    Int8Kernels,
    integer_convolution,
    integer_product,
    rounded_to_8_bits,
    unwidened,
)
from .narrow_products import CONTRACT_FLOAT8, undecoded
from .product_padding import aligned_sizes, first_part, padded_to


def layout(
    graph: Graph, pad_to_words: bool = False, int8_kernels: Int8Kernels | None = None, float8_kernels: bool = False
) -> Graph:
    """The graph in its final layout.

    `pad_to_words`: images of few channels, large products and large convolutions are padded, see channel_padding.py,
    product_padding.py and aligned_channels.py. `int8_kernels`: the kernels that the backend has for products of 8-bit integers, see
    integer_products.py. `float8_kernels`: it multiplies 8-bit floats, see narrow_products.py.
    """
    aligned = aligned_counts(graph) if pad_to_words else frozenset()
    kernels = _Kernels(pad_to_words, aligned, int8_kernels, float8_kernels)
    views: set[Node] = set()
    if int8_kernels is not None:
        graph = rewrite(graph, [rounded_to_8_bits])
    return transform(graph, lambda node, inputs: _laid_out(rebuild(node, inputs), kernels, views))


@dataclass(frozen=True)
class _Kernels:
    """What the backend has, and wants."""

    pad_to_words: bool
    aligned: frozenset[int]  # numbers of channels that are padded
    int8: Int8Kernels | None
    float8: bool


def _laid_out(node: Node, kernels: _Kernels, views: set[Node]) -> Node:
    """The node in its final layout; `views` are channels-first views of tensors that this pass has made channels-last."""
    if node.op.name == "contract":
        return _contraction(node, kernels)
    if node.op.kernel == "convolution":
        found = None if kernels.int8 is None else _integer_convolution(node, kernels.int8)
        made: Node | None = found or _convolution(node, kernels)
    elif any(_is_first(i, views) for i in node.inputs):
        made = _pushed(node)
    else:
        return node
    if made is not None:
        views.add(made)
    return made or node


# --- matrix products --------------------------------------------------------------------------------------------------------


def _contraction(node: Node, kernels: _Kernels) -> Node:
    x, y, formats = _operands(node, kernels)
    a, b, out = node.get_params("a", "b", "out")
    free = [c for c in out if (c in a) != (c in b)]
    if free and free[0] in b:  # so that rows come before columns in the result
        x, y, a, b, formats = y, x, b, a, formats[::-1]
    batch = [c for c in out if c in a and c in b]
    rows, columns = [c for c in out if c not in b], [c for c in out if c not in a]
    inner = [c for c in a if c in b and c not in out]
    wanted = dict(zip(a + b, x.shape + y.shape, strict=True))
    sizes = aligned_sizes(x, y, a, b, (rows, inner, columns)) if kernels.pad_to_words else wanted
    x, y = (padded_to(t, tuple(sizes[c] for c in letters)) for t, letters in ((x, a), (y, b)))
    n, m, k, p = (prod(sizes[c] for c in letters) for letters in (batch, rows, inner, columns))
    left = move("reshape", move("permute", x, tuple(a.index(c) for c in batch + rows + inner)), (n, m, k))
    if x.dtype is not node.dtype:
        right = move("reshape", move("permute", y, tuple(b.index(c) for c in batch + columns + inner)), (n, p, k))
        codes = make(CONTRACT_FLOAT8, (left, right), (formats,)) if formats else integer_product(left, right)
        product = cast(codes, node.dtype)
    else:
        right = move("reshape", move("permute", y, tuple(b.index(c) for c in batch + inner + columns)), (n, k, p))
        product = cast(_product(left, right), node.dtype)
    natural = batch + rows + columns
    product = first_part(move("reshape", product, tuple(sizes[c] for c in natural)), tuple(wanted[c] for c in natural))
    return move("permute", product, tuple(natural.index(c) for c in out))


def _operands(node: Node, kernels: _Kernels) -> tuple[Node, Node, tuple[str, ...]]:
    """The operands of a product; if they are 8-bit integers that were widened to int32, those.

    If they are decoded 8-bit floats, the codes and their formats.
    """
    x, y = node.inputs
    if kernels.float8 and node.dtype.is_float:
        first, second = undecoded(x), undecoded(y)
        if first is not None and second is not None:
            return first[0], second[0], (first[1], second[1])
    if kernels.int8 is not None and node.dtype is int32:
        terms = prod(x.shape[axis] for axis, c in enumerate(node.param("a")) if c not in node.param("out"))
        left, right = unwidened(x), unwidened(y)
        if terms >= WORD and left is not None and right is not None and kernels.int8.takes(left, right):
            return left, right, ()
    return x, y, ()


def _product(x: Node, y: Node) -> Node:
    """(b, m, k) times (b, k, n). Without a sum, and for integers, it is a product of elements."""
    (n, m, k), p = x.shape, y.shape[2]
    if k == 1 or not x.dtype.is_float:
        spread = (n, m, k, p)
        left, right = (
            move("expand", move("reshape", x, (n, m, k, 1)), spread),
            move("expand", move("reshape", y, (n, 1, k, p)), spread),
        )
        return (
            make(OPS["sum"], (make(OPS["mul"], (left, right)),), ((2,),))
            if k != 1
            else move("reshape", make(OPS["mul"], (left, right)), (n, m, p))
        )
    wide = float64 if x.dtype is float64 else float32
    return make(OPS["contract"], (cast(x, wide), cast(y, wide)), ("bmk", "bkn", "bmn"))


# --- convolutions -----------------------------------------------------------------------------------------------------------


def to_last(rank: int) -> Shape:
    """The permutation to channels-last."""
    return (0, *range(2, rank), 1)


def to_first(rank: int) -> Shape:
    return (0, rank - 1, *range(1, rank - 1))


def _is_first(node: Node, views: Collection[Node]) -> bool:
    """Whether a node is a channels-first view of a channels-last tensor. Of three axes, it could be the transpose of any matrices."""
    rank = len(node.shape)
    if node.op.name != "permute" or node.param("axes") != to_first(rank):
        return False
    return rank in (4, 5) or (rank == 3 and node in views)


def _last(node: Node) -> Node:
    return move("permute", node, to_last(len(node.shape)))


def _first(node: Node) -> Node:
    return move("permute", node, to_first(len(node.shape)))


def _wide_last(node: Node, wide: DType) -> Node:
    """Channels-last and wide. Narrow values are permuted before they are widened, so that kernels that read 16 bits get the right layout."""
    if node.op.name == "cast" and node.dtype is wide and node.inputs[0].dtype.is_half:
        node = node.inputs[0]
    return cast(_last(node), wide)


def _integer_convolution(node: Node, kernels: Int8Kernels) -> Node | None:
    """A convolution whose operands are 8-bit integers that were widened to int32, if there is a kernel for it."""
    if node.op.name != "conv" or node.dtype is not int32:
        return None
    x, w = (unwidened(i) for i in node.inputs)
    if x is None or w is None or not kernels.takes(x, w):
        return None
    made = integer_convolution(_last(x), w, node.params, kernels)
    return None if made is None else _first(made)


def _convolution(node: Node, kernels: _Kernels) -> Node:
    wanted, node = node.shape, aligned_channels(node, kernels.aligned)
    name, (a, b) = node.op.name, node.inputs
    wide = float64 if node.dtype is float64 else float32 if node.dtype.is_float else node.dtype
    x, other = _wide_last(a, wide), _wide_last(b, wide) if name == "conv_filter" else cast(b, wide)
    padding = _channel_padding(node, x) if kernels.pad_to_words else None
    if name == "conv_filter":
        given, how = (x, node.params) if padding is None else (padding.image(x), (*padding.how, padding.taps))
        made = make(OPS["conv_filter_last"], (given, other), how)
        made = made if padding is None else padding.gradient(cast(made, node.dtype))  # libraries round it for free
        rank = len(made.shape)
        return first_part(cast(move("permute", made, (rank - 1, rank - 2, *range(rank - 2))), node.dtype), wanted)
    how = node.params
    if padding is not None:  # filters with channels last, which is their layout in memory
        x, other, how = padding.image(x), _first(padding.filter(_wide_last(b, wide))), padding.how
    made = cast(make(OPS[f"{name}_last"], (x, other), how), node.dtype)
    return _first(first_part(made, _permuted(wanted, to_last(len(wanted)))))


def _channel_padding(node: Node, x: Node) -> ChannelPadding | None:
    """How the image of a convolution, or of its filter gradient, is padded."""
    how = node.get_params(*CONV_PARAMS)
    match node.op.name:
        case "conv":
            return ChannelPadding.of(x, node.inputs[1].shape[2:], node.shape[2:], how)
        case "conv_filter":
            return ChannelPadding.of(x, node.param("size"), node.inputs[1].shape[2:], how)
    return None


def _pushed(node: Node) -> Node | None:
    """An op on channels-first views as a view of the op on channels-last tensors, if it can be."""
    name, kind = node.op.name, node.op.kind
    x, rank = node.inputs[0], len(node.inputs[0].shape)
    if kind == "elementwise":
        return _first(make(node.op, tuple(_last(i) for i in node.inputs), node.params, node.source))
    if node.op.combine is not None:
        return _reduced(node)
    if node.op.kernel == "window" and name != "window_argmax":  # ops whose result is a position in the flattened input
        params = tuple(_rearranged(p) for p in node.params)
        return _first(make(node.op, tuple(_last(i) for i in node.inputs), params, node.source))
    if name == "pad":
        widths = _rearranged(node.param("widths"))
        return _first(make(node.op, (_last(x),), node.replace_params(widths=widths), node.source))
    if name == "slice":
        return _first(make(node.op, (_last(x),), tuple(_rearranged(p) for p in node.params), node.source))
    if name == "flip":
        axes = tuple(sorted(to_last(rank).index(a) for a in node.param("axes")))
        return _first(make(node.op, (_last(x),), (axes,), node.source))
    if name == "concat":
        axis = to_last(rank).index(node.param("axis"))
        return _first(make(node.op, tuple(_last(i) for i in node.inputs), (axis,), node.source))
    if name == "expand" and len(node.shape) == rank:
        return _first(make(node.op, (_last(x),), (_rearranged(node.shape),), node.source))
    return None


def _rearranged(values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(values[a] for a in to_last(len(values)))


def _reduced(node: Node) -> Node:
    x = node.inputs[0]
    order = to_last(len(x.shape))
    axes = tuple(sorted(order.index(a) for a in node.param("axes")))
    made = make(node.op, (_last(x),), (axes,), node.source)
    kept = [a for a in order if a not in node.param("axes")]  # logical axes in their new order
    return move("permute", made, tuple(kept.index(a) for a in sorted(kept)))


# --- channels-last convolutions as separate ops --------------------------------------------------------------------------------


def _moved_type(name: str) -> Any:
    def infer(a: Node, b: Node, *how: Any) -> Type:
        shape, dtype = OPS[name].infer(
            _Seen(_permuted(a.shape, to_first(len(a.shape))), a.dtype), _other(name, b), *how
        )
        return Type(_filter_shape(shape) if name == "conv_filter" else _permuted(shape, to_last(len(shape))), dtype)

    return infer


class _Seen:
    """A type with the attributes of a node that type rules read."""

    def __init__(self, shape: Shape, dtype: Any) -> None:
        self.shape, self.dtype, self.type = shape, dtype, Type(shape, dtype)


def _other(name: str, b: Node) -> Any:
    return _Seen(_permuted(b.shape, to_first(len(b.shape))), b.dtype) if name == "conv_filter" else b


def _permuted(shape: Shape, order: Shape) -> Shape:
    return tuple(shape[a] for a in order)


def _filter_shape(shape: Shape) -> Shape:
    return (*shape[2:], shape[1], shape[0])


def _moved_reference(name: str) -> Any:
    def compute(a: np.ndarray, b: np.ndarray, *how: Any) -> np.ndarray:
        first = np.moveaxis(a, -1, 1)
        if name == "conv_filter":
            result: np.ndarray = OPS[name].reference(first, np.moveaxis(b, -1, 1), *how)
            return np.transpose(result, (*range(2, result.ndim), 1, 0))
        return np.moveaxis(OPS[name].reference(first, b, *how), 1, -1)

    return compute


def _declare(name: str, params: tuple[str, ...], label: str, operands: tuple[str, ...], strided: tuple[int, ...]) -> Op:
    return Op(
        f"{name}_last", "anchor", _moved_type(name), _moved_reference(name), None, params, 2, True, internal=True,
        kernel="convolution", precision="product", flops=conv_flops, label=label, operands=operands, strided_inputs=strided,
    )  # fmt: skip


CONV_PARAMS = ("stride", "padding", "dilation", "groups", "prefer")
CONV = _declare("conv", CONV_PARAMS, "conv", ("x", "w", "y"), (1,))
CONV_DATA = _declare("conv_data", (*CONV_PARAMS, "size"), "conv data gradient", ("g", "w", "x"), (1,))
CONV_FILTER = _declare("conv_filter", (*CONV_PARAMS, "size"), "conv filter gradient", ("x", "g", "w"), ())
