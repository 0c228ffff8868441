"""Aligned channels: large convolutions in 16 bits get channels and filters of zeros, so that every pixel begins at a multiple of 16 bytes.

GPUs load 16 bytes at a time, and feed their tensor cores so; pixels of 43 channels are loaded number by number. What is computed between two
such convolutions is computed for whole padded pixels, see padded_lines.py. Images of few channels are padded by channel_padding.py.
"""

from __future__ import annotations

from ...graph.node import Node, make
from ..ir.conv_shape import described
from ..thresholds import thresholds
from .product_padding import WORD, padded_to, stored_value

_AXES = {"conv": ("nc", "oc"), "conv_data": ("no", "oc"), "conv_filter": ("nc", "no")}  # images, channels, filters


def aligned_channels(node: Node) -> Node:
    """A convolution or gradient, channels first, with aligned channels: the first part of its result is the result of the node. The node
    itself if its channels are aligned, or if it does little."""
    direction, shape = described(node)
    groups, prefer = node.get_params("groups", "prefer")
    dtypes = {stored_value(_unpermuted(i)).dtype for i in node.inputs}
    # If the user requested an algorithm, the convolution is not changed.
    if groups != 1 or prefer or not all(d.is_half for d in dtypes) or shape.flops // 2 < thresholds.gpu_padded_conv:
        return node
    word = WORD // next(iter(dtypes)).itemsize
    is_image = direction != "data_gradient" and shape.channels < word  # channel_padding.py knows more about it
    channels = shape.channels if is_image or shape.channels == 1 else _up(shape.channels, word)
    sizes = {"n": shape.batch, "c": channels, "o": _up(shape.filters, word)}
    axes = _AXES[node.op.name]
    operands = tuple(
        padded_to(i, (*(sizes[a] for a in names), *i.shape[2:])) for i, names in zip(node.inputs, axes, strict=True)
    )
    return node if operands == node.inputs else make(node.op, operands, node.params, node.source)


def _unpermuted(node: Node) -> Node:
    return node.inputs[0] if node.op.name == "permute" else node


def _up(count: int, word: int) -> int:
    return count + -count % word
