"""Aligned channels: large convolutions in 16 bits get channels and filters of zeros, so that every pixel begins at a multiple of 16 bytes.

GPUs load 16 bytes at a time, and feed their tensor cores so; pixels of 43 channels are loaded number by number. What is computed between two
such convolutions is computed for whole padded pixels, see padded_lines.py. Images of few channels are padded by channel_padding.py.

Training steps read the first part of pixels in reductions over them, such as those of batch norm, and store some values in both lengths:
they move up to a quarter more bytes. So only convolutions that multiply every number they read or write many times are padded there.
"""

from __future__ import annotations

from collections.abc import Collection
from math import prod

from ...graph.graph import Graph
from ...graph.node import Node, make
from ...records import dataclass
from ..ir.conv_shape import conv_flops, described
from ..thresholds import thresholds
from .product_padding import WORD, padded_to, stored_value

_AXES = {"conv": ("nc", "oc"), "conv_data": ("no", "oc"), "conv_filter": ("nc", "no")}  # images, channels, filters


def aligned_counts(graph: Graph) -> frozenset[int]:
    """The numbers of channels that are aligned, those of large convolutions. Smaller convolutions that have as many are padded, too:
    then tensors of such a network, of which some may be added, all have whole pixels."""
    trains = any(n.op.name == "conv_filter" for n in graph.nodes)
    least = thresholds.gpu_padded_reuse if trains else 0
    large = (
        _Channels.of(n)
        for n in graph.nodes
        if n.op.name in _AXES and conv_flops(n) // 2 >= thresholds.gpu_padded_conv and _reuse(n) >= least
    )
    return frozenset(count for found in large if found is not None for count in found.to_align)


def _reuse(node: Node) -> float:
    """How often a convolution multiplies a number of its images, on average."""
    _, shape = described(node)
    return prod(shape.kernel) * shape.channels * shape.filters / (shape.channels + shape.filters)


def aligned_channels(node: Node, counts: Collection[int]) -> Node:
    """A convolution, channels first, with aligned channels if there are so many: the first part of its result is the result of the node."""
    found = _Channels.of(node) if counts else None
    if found is None or not any(count in counts for count in found.to_align):
        return node
    up = {count: count + -count % found.word for count in found.to_align if count in counts}
    sizes = {"n": found.batch, "c": up.get(found.channels, found.channels), "o": up.get(found.filters, found.filters)}
    if found.is_image:
        sizes["c"] = found.channels
    operands = tuple(
        padded_to(i, (*(sizes[a] for a in names), *i.shape[2:]))
        for i, names in zip(node.inputs, _AXES[node.op.name], strict=True)
    )
    return node if operands == node.inputs else make(node.op, operands, node.params, node.source)


@dataclass(frozen=True)
class _Channels:
    """The channels of a convolution of 16-bit floats."""

    batch: int
    channels: int
    filters: int
    word: int  # channels of 16 bytes
    is_image: bool  # few channels are read: channel_padding.py knows more about them

    @classmethod
    def of(cls, node: Node) -> _Channels | None:
        """None if they are never padded: in groups, for an algorithm that the user requested, and if not all operands have 16 bits."""
        groups, prefer = node.get_params("groups", "prefer")
        dtypes = {stored_value(_unpermuted(i)).dtype for i in node.inputs}
        if groups != 1 or prefer or not all(d.is_half for d in dtypes):
            return None
        direction, shape = described(node)
        word = WORD // next(iter(dtypes)).itemsize
        is_image = shape.channels == 1 or (direction != "data_gradient" and shape.channels < word)
        return cls(shape.batch, shape.channels, shape.filters, word, is_image)

    @property
    def to_align(self) -> tuple[int, ...]:
        return (self.filters,) if self.is_image else (self.channels, self.filters)


def _unpermuted(node: Node) -> Node:
    return node.inputs[0] if node.op.name == "permute" else node
