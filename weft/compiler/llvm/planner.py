"""Which library functions do the work of an anchor."""

from __future__ import annotations

from math import prod
from typing import Any

from ...dtypes import DType
from ...graph.node import Node
from ..fuse import SPECIAL, Kernel, View
from . import conv, gemm, special
from .conv import ConvShape
from .library import Plan

_SHORT = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16"}


def plan_for(kernel: Kernel, threads: int) -> Plan:
    """The plan of a kernel that is built around an anchor."""
    anchor = kernel.anchor
    assert anchor is not None
    if anchor.op.name == "contract":
        return _product(anchor, kernel.views, threads)
    if anchor.op.name in SPECIAL:
        return special.plan(anchor, threads)
    direction = {"conv_last": "forward", "conv_data_last": "data_gradient", "conv_filter_last": "filter_gradient"}
    shape, strides = _convolution(anchor, kernel.views)
    if not prod(anchor.shape):
        return Plan("nothing", (), 0, 0)
    return conv.choose(direction[anchor.op.name], shape, strides, threads)  # type: ignore[arg-type]


def _short(dtype: DType) -> str:
    return _SHORT[dtype.name]


def _product(anchor: Node, views: tuple[View, ...], threads: int) -> Plan:
    x, y = views
    batch, m, n = anchor.shape
    k = anchor.inputs[0].shape[2]
    return gemm.plan(
        m, n, k, x.strides[1:], y.strides[1:], ldc=n, batch=batch,  # type: ignore[arg-type]
        a_batch=x.strides[0], b_batch=y.strides[0], c_batch=m * n,
        dtype=_short(anchor.dtype), a_type=_short(x.base.dtype), b_type=_short(y.base.dtype), threads=threads,
    )  # fmt: skip


def _convolution(anchor: Node, views: tuple[View, ...]) -> tuple[ConvShape, tuple[int, ...]]:
    name = anchor.op.name
    stride, padding, dilation, groups = anchor.params[:4]
    a, b = anchor.inputs
    x: tuple[int, ...]
    out: tuple[int, ...]
    if name == "conv_last":
        x, out, w = a.shape, anchor.shape, b.shape
    elif name == "conv_data_last":
        x, out, w = anchor.shape, a.shape, b.shape
    else:
        x, out = a.shape, b.shape
        *kernel, per_group, filters = anchor.shape
        w = (filters, per_group, *kernel)
    shape = ConvShape(
        x[0], x[-1], out[-1], groups, x[1:-1], w[2:], stride, tuple(p[0] for p in padding), dilation, out[1:-1]
    )
    strides: Any = views[1].strides if name != "conv_filter_last" else (1,) * len(w)
    return shape, strides
