"""Products and convolutions of 8-bit integers that are summed in int32, as anchors that read the 8-bit values.

In a graph they are products of int32 operands, which are casts of int8 or uint8 (`matmul(x, y, dtype="int32")`). Kernels multiply
four neighbours along k at once, so the operands have k last, contiguous, in multiples of four: it is padded with zeros. Borders of
any other number, such as the zero point of a quantized image, are read by the kernel as its padding.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ...dtypes import DType, float32, int8, int32, uint8
from ...graph.graph import rebuild
from ...graph.node import OPS, Node, Op, Type, make
from ...graph.rewrite import rule
from ...records import dataclass
from ..ir.conv_shape import conv_flops
from .graph_builders import cast, move

WORD = 4  # elements along k that are multiplied at once
MOST_MOVES = 8  # between a product and the cast of its operand


@dataclass(frozen=True)
class Int8Kernels:
    """What a backend multiplies besides int8: uint8, and depthwise convolutions. It computes the others by plain loops.

    `unsigned_left`: products with an unsigned left operand are the fastest, see unsigned_operands.py.
    """

    unsigned: bool
    depthwise: bool
    unsigned_left: bool = False

    def takes(self, *operands: Node) -> bool:
        """Whether the backend has a kernel for these operands, if they are 8-bit integers."""
        return self.unsigned or all(x.dtype is int8 for x in operands)


def unwidened(node: Node) -> Node | None:
    """The 8-bit integers that an int32 node is a cast of, in its shape; movement between them is moved below the cast."""
    moves: list[Node] = []
    while node.op.kernel == "view" and len(moves) < MOST_MOVES:
        moves.append(node)
        node = node.inputs[0]
    if node.op.name != "cast" or node.dtype is not int32 or node.inputs[0].dtype not in (int8, uint8):
        return None
    narrow = node.inputs[0]
    for above in reversed(moves):
        narrow = rebuild(above, (narrow,))
    return narrow


def integer_product(x: Node, y: Node) -> Node:
    """(b, m, k) times (b, n, k), both of 8 bits, as (b, m, n) in int32. The left one is unsigned if only one is."""
    if x.dtype is int8 and y.dtype is uint8:
        return move("permute", integer_product(y, x), (0, 2, 1))
    return make(CONTRACT, (in_words(x), in_words(y)), ())


def in_words(x: Node) -> Node:
    """The tensor with its last axis padded to a multiple of four."""
    more = -x.shape[-1] % WORD
    widths = ((0, 0, 0),) * (len(x.shape) - 1) + ((0, more, 0),)
    return make(OPS["pad"], (x,), (widths, 0)) if more else x


# --- requantization -----------------------------------------------------------------------------------------------------------


@rule("cast")
def rounded_to_8_bits(node: Node) -> Node | None:
    """cast(round(x)) to 8 bits as one op, which has a faster form than the two."""
    [rounded] = node.inputs
    if node.dtype not in (int8, uint8) or rounded.op.name != "round" or rounded.dtype is not float32:
        return None
    return make(ROUND_8_BITS, rounded.inputs, (node.dtype,), node.source)


def _round_8_bits(x: np.ndarray, dtype: DType) -> np.ndarray:
    low, high = (-128, 127) if dtype is int8 else (0, 255)
    result: np.ndarray = np.clip(np.nan_to_num(np.rint(x), nan=0.0), low, high).astype(dtype.numpy)
    return result


ROUND_8_BITS = Op(
    "round_8_bits", "elementwise", lambda x, dtype: Type(x.shape, dtype), _round_8_bits, None, ("dtype",), 1, internal=True,
    cost=2, label="round",
)  # fmt: skip


# --- matrix products ----------------------------------------------------------------------------------------------------------


def _contract_type(x: Node, y: Node) -> Type:
    return Type((x.shape[0], x.shape[1], y.shape[1]), int32)


def _contract_reference(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    result: np.ndarray = np.matmul(x.astype(np.int32), y.astype(np.int32).swapaxes(1, 2))
    return result


CONTRACT = Op(
    "contract_int8", "anchor", _contract_type, _contract_reference, None, (), 2, internal=True, kernel="contraction", precision="product",
    flops=lambda node: 2 * prod(node.shape) * node.inputs[0].shape[2], operands=("a", "b", "c"), label="contract",
)  # fmt: skip


# --- convolutions -------------------------------------------------------------------------------------------------------------


def integer_convolution(x: Node, w: Node, how: tuple[Any, ...], kernels: Int8Kernels) -> Node | None:
    """A convolution of a channels-last x with w (filters, channels / groups, ...); None if plain loops are as fast."""
    x, how, border = _without_border(x, how)
    stride, padding, _, groups, _ = how
    last = move("permute", w, (0, *range(2, len(w.shape)), 1))
    if w.shape[1] == 1:
        depthwise = kernels.depthwise and groups == w.shape[0] == x.shape[-1] > 1
        return make(CONV, (x, cast(last, int32)), (*how, border)) if depthwise else None
    if groups == 1 and prod(w.shape[2:]) == 1 and set(stride) == {1} and not any(map(any, padding)):
        channels, filters = w.shape[1], w.shape[0]
        rows = move("reshape", x, (1, prod(x.shape[:-1]), channels))
        made = integer_product(rows, move("reshape", last, (1, filters, channels)))
        return move("reshape", made, (*x.shape[:-1], filters))
    if x.dtype is int8 and w.dtype is uint8:
        return None
    if w.shape[1] % WORD:  # the channels of each group are padded
        size = w.shape[1]
        x = in_words(move("reshape", x, (*x.shape[:-1], groups, size)))
        x = move("reshape", x, (*x.shape[:-2], groups * x.shape[-1]))
    return make(CONV, (x, in_words(last)), (*how, border))


def _without_border(x: Node, how: tuple[Any, ...]) -> tuple[Node, tuple[Any, ...], int]:
    """An image whose border was added before a convolution, as one with padding, and the value of the border."""
    if x.op.name == "permute" and x.inputs[0].op.name == "pad":
        axes, below = x.param("axes"), x.inputs[0]
        widths = tuple(below.param("widths")[a] for a in axes)
        x = make(below.op, (move("permute", below.inputs[0], axes),), below.replace_params(widths=widths))
    if x.op.name != "pad" or any(map(any, how[1])):
        return x, how, 0
    batch, *widths, channels = x.param("widths")
    if any(batch) or any(channels) or any(between for _, _, between in widths):
        return x, how, 0
    padding = tuple((before, behind) for before, behind, _ in widths)
    return x.inputs[0], (how[0], padding, *how[2:]), int(x.param("value"))


def _conv_type(x: Node, w: Node, *how: Any) -> Type:
    shape, _ = OPS["conv_last"].infer(x, _ChannelsSecond(w, x.dtype), *how[:-1])
    return Type(shape, int32)


class _ChannelsSecond:
    """A filter (filters, ..., channels / groups) as the type rule of `conv_last` reads it: channels second, of one dtype with x."""

    def __init__(self, w: Node, dtype: DType) -> None:
        self.shape, self.dtype = (w.shape[0], w.shape[-1], *w.shape[1:-1]), dtype
        self.type = Type(self.shape, self.dtype)


def _conv_reference(x: np.ndarray, w: np.ndarray, *how: Any) -> np.ndarray:
    stride, padding, dilation, groups, prefer, border = how
    whole = np.pad(x, ((0, 0), *padding, (0, 0)), constant_values=border).astype(np.int32)
    plain = stride, ((0, 0),) * len(padding), dilation, groups, prefer
    result: np.ndarray = OPS["conv_last"].reference(whole, np.moveaxis(w.astype(np.int32), -1, 1), *plain)
    return result


CONV = Op(
    "conv_int8_last", "anchor", _conv_type, _conv_reference, None, ("stride", "padding", "dilation", "groups", "prefer", "border"), 2,
    internal=True, kernel="convolution", precision="product", flops=conv_flops, label="conv", operands=("x", "w", "y"),
)  # fmt: skip
