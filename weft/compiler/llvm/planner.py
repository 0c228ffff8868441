"""Which library functions do the work of an anchor."""

from __future__ import annotations

from math import prod

from ...dtypes import DType
from ...graph.node import Node
from ..algorithms import Choice, decide, described, preferred
from ..fuse import SPECIAL, Kernel, View
from . import gemm, special
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
    return choice(kernel, threads).plan


def choice(kernel: Kernel, threads: int) -> Choice:
    """The algorithm of a convolution, and what to say if it is not the one that was asked for."""
    anchor = kernel.anchor
    assert anchor is not None
    if not prod(anchor.shape):
        return Choice(Plan("nothing", (), 0, 0))
    direction, shape = described(anchor)
    strides = kernel.views[1].strides if direction != "filter_gradient" else (1,) * len(anchor.shape)
    return decide(direction, shape, strides, threads, preferred(anchor))


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
