"""Convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict, Unpack

import numpy as np

from ...errors import UserError
from ...ops.conv import conv, conv_transpose
from ...ops.creation import zeros
from ...ops.movement import pad, reshape
from ...tensor import Tensor
from ..registry import op

Ints = tuple[int, ...]
Pairs = list[tuple[int, int]]


def window_padding(
    auto_pad: str,
    pads: Sequence[int] | None,
    size: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> Pairs:
    """The padding (before, behind) of each spatial axis; SAME keeps ceil(size / stride) windows."""
    rank = len(kernel)
    if auto_pad == "NOTSET":
        flat = [0] * 2 * rank if pads is None else list(pads)
        return list(zip(flat[:rank], flat[rank:], strict=True))
    if auto_pad == "VALID":
        return [(0, 0)] * rank
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        raise UserError("onnx", f"auto_pad NOTSET, VALID, SAME_UPPER or SAME_LOWER is required, got {auto_pad!r}.")
    found = []
    for n, k, s, d in zip(size, kernel, stride, dilation, strict=True):
        total = max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
        small, large = total // 2, total - total // 2
        found.append((small, large) if auto_pad == "SAME_UPPER" else (large, small))
    return found


class ConvAttributes(TypedDict, total=False):
    """The attributes of convolutions."""

    auto_pad: str
    dilations: Ints
    group: int
    kernel_shape: Ints
    pads: Ints
    strides: Ints


@op("Conv")
def convolution(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    **given: Unpack[ConvAttributes],
) -> Tensor:
    kernel = w.shape[2:]
    if tuple(given.get("kernel_shape", kernel)) != kernel:
        raise UserError("onnx", f"a kernel of {given['kernel_shape']} is required, got the filter {w.shape}.")
    ones = (1,) * len(kernel)
    stride, dilation = given.get("strides") or ones, given.get("dilations") or ones
    auto_pad = given.get("auto_pad", "NOTSET")
    padding = window_padding(auto_pad, given.get("pads"), x.shape[2:], kernel, stride, dilation)
    if any(min(p) < 0 for p in padding):
        raise UserError("onnx", f"a padding of 0 or more is required, got {padding}.")
    return conv(x, w, bias, stride=stride, padding=padding, dilation=dilation, groups=given.get("group", 1))


@op("ConvTranspose")
def transposed_convolution(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    output_padding: Ints | None = None,
    output_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    """Everything is computed, then cut (or filled with zeros) to the size that the padding or `output_shape` asks for."""
    kernel = w.shape[2:]
    rank = len(kernel)
    stride, dilation = strides or (1,) * rank, dilations or (1,) * rank
    extra = output_padding or (0,) * rank
    full = [(n - 1) * s + (k - 1) * d + 1 for n, k, s, d in zip(x.shape[2:], kernel, stride, dilation, strict=True)]
    if output_shape is not None or auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        wanted = output_shape or [n * s for n, s in zip(x.shape[2:], stride, strict=True)]
        totals = [f + e - n for f, e, n in zip(full, extra, wanted[-rank:], strict=True)]
        pairs = [(t // 2, t - t // 2) if auto_pad == "SAME_UPPER" else (t - t // 2, t // 2) for t in totals]
    else:
        pairs = window_padding(auto_pad, pads, x.shape[2:], kernel, stride, dilation)
    y = conv_transpose(x, w, None, stride=stride, dilation=dilation, groups=group)
    widths = [(0, 0), (0, 0), *((max(-a, 0), max(e - b, 0)) for (a, b), e in zip(pairs, extra, strict=True))]
    y = pad(y, widths) if any(map(any, widths)) else y
    ends = [n - max(b - e, 0) for n, (_, b), e in zip(y.shape[2:], pairs, extra, strict=True)]
    key = (slice(None), slice(None), *(slice(max(a, 0), end) for (a, _), end in zip(pairs, ends, strict=True)))
    y = y[key]
    return y if bias is None else y + reshape(bias, (-1, *[1] * rank))


@op("Col2Im", host=("image_shape", "block_shape"))
def column_to_image(
    x: Tensor,
    image_shape: np.ndarray,
    block_shape: np.ndarray,
    *,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    """Each column is added to its block of the image."""
    image, block = tuple(image_shape.tolist()), tuple(block_shape.tolist())
    rank = len(block)
    stride, dilation = strides or (1,) * rank, dilations or (1,) * rank
    padding = window_padding("NOTSET", pads, image, block, stride, dilation)
    counts = [
        (n + a + b - (k - 1) * d - 1) // s + 1
        for n, (a, b), k, d, s in zip(image, padding, block, dilation, stride, strict=True)
    ]
    n, channels = x.shape[0], x.shape[1] // int(np.prod(block))
    columns = reshape(x, (n, channels, *block, *counts))
    whole = zeros((n, channels, *(m + a + b for m, (a, b) in zip(image, padding, strict=True))), dtype=x.dtype)
    for place in np.ndindex(*block):
        facts = zip(place, counts, stride, dilation, strict=True)
        key = (..., *(slice(p * d, p * d + (c - 1) * s + 1, s) for p, c, s, d in facts))
        whole = whole.at[key].add(columns[(slice(None), slice(None), *place)])
    inside = (..., *(slice(a, a + m) for m, (a, _) in zip(image, padding, strict=True)))
    return whole[inside]
