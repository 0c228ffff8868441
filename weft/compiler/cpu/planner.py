"""Which library functions do the work of an anchor."""

from __future__ import annotations

from collections.abc import Collection
from math import prod

from ...dtypes import DType
from ...graph.node import Node
from ..ir.conv_shape import described
from ..ir.index import linear
from ..ir.kernel import Kernel, View, anchor_place
from ..ir.plan import Phase, Plan
from ..planning.algorithms import Choice, preferred
from .conv import algorithms as conv
from .conv.choice import decide
from .gemm import plans as gemm
from .special import plans as special

_SHORT = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16"}


def plan_for(kernel: Kernel, threads: int, still: Collection[Node] = (), hidden: bool = False) -> Plan:
    """The plan of a kernel that is built around an anchor. What `still` holds is the same in every step of a loop.

    Hidden: only the epilogue has to see the anchor's own result.
    """
    anchor = kernel.anchor
    assert anchor is not None
    if anchor.op.name == "contract":
        if kernel.views[1].base in still:
            return _packed_product(anchor, kernel.views, threads)
        return _product(anchor, kernel.views, threads, hidden)
    if anchor.op.own_kernels:
        return special.plan(kernel, threads)
    plan = choice(kernel, threads).plan
    if anchor.op.name in ("conv_last", "conv_data_last") and kernel.views[1].base in still and plan.phases:
        return _packed_filter(anchor, kernel.views[1].strides, plan.name, threads)
    return plan


def _packed_filter(anchor: Node, strides: tuple[int, ...], algorithm: str, threads: int) -> Plan:
    """A convolution whose filter stays the same: it is packed, or transformed, in phases of their own."""
    direction, shape = described(anchor)
    plans = (conv.forward if direction == "forward" else conv.data_gradient)(shape, strides, threads, packed=True)
    main = plans[algorithm]
    pack, size = conv.packing(direction, algorithm, shape, strides)
    phases = tuple(_renamed(phase, "w_packed") for phase in (*pack.phases, *main.phases))
    return Plan(f"{main.name}, packed once", phases, main.workspace, main.flops, size)


def choice(kernel: Kernel, threads: int) -> Choice:
    """The algorithm of a convolution, and what to say if it is not the one that was asked for."""
    anchor = kernel.anchor
    assert anchor is not None
    if not prod(anchor.shape):
        return Choice(Plan("nothing", (), 0, 0))
    direction, shape = described(anchor)
    strides = kernel.views[1].strides if direction != "filter_gradient" else _wanted(kernel)
    return decide(direction, shape, strides, threads, preferred(anchor))


def _wanted(kernel: Kernel) -> tuple[int, ...]:
    """The strides of a filter's gradient, as its epilogue writes it: filters side by side, as in training, or not."""
    anchor = kernel.anchor
    assert anchor is not None
    *taps, channels, filters = anchor.shape
    stores = kernel.nest.phases[0].stores if kernel.nest is not None else []
    here = linear(anchor_place(anchor, kernel.rows), anchor.shape) if stores else None
    if all(linear(s.place, s.node.shape) == here for s in stores):
        return 1, filters, *(filters * channels for _ in taps)
    return channels * prod(taps), prod(taps), *(1 for _ in taps)


def _short(dtype: DType) -> str:
    return _SHORT[dtype.name]


def _steps(view: View) -> tuple[int, int]:
    """From row to row and from column to column of an operand."""
    _, row, column = view.strides
    return row, column


def _packed_product(anchor: Node, views: tuple[View, ...], threads: int) -> Plan:
    """A product whose right operand stays the same: it is packed in a phase of its own, which a loop makes once."""
    x, y = views
    batch, m, n = anchor.shape
    k = anchor.inputs[0].shape[2]
    kind, a_type, b_type = _short(anchor.dtype), _short(x.base.dtype), _short(y.base.dtype)
    if m < 2 or n < 2 or k < 2:
        return _product(anchor, views, threads)
    left, right = _steps(x), _steps(y)
    width = gemm.panel_width(m, n, k, left, dtype=kind, a_type=a_type, threads=threads)
    count = gemm.packed_size(n, k, width)
    pack = gemm.pack_plan(n, k, right, width, batch=batch, b_batch=y.strides[0], dtype=kind, b_type=b_type)
    main = gemm.plan(
        m, n, k, left, right, ldc=n, batch=batch, a_batch=x.strides[0], b_batch=count, c_batch=m * n,
        dtype=kind, a_type=a_type, b_type=kind, threads=threads, b_packed=width,
    )  # fmt: skip
    phases = (*pack.phases, *(_renamed(phase, "b") for phase in main.phases))
    return Plan(f"{main.name}, packed once", phases, main.workspace, main.flops, batch * count * anchor.dtype.itemsize)


def _renamed(phase: Phase, operand: str) -> Phase:
    """The phase with "packed" for an operand."""
    names = {operand: "packed"}
    return Phase(
        phase.symbol,
        tuple(names.get(a, a) if isinstance(a, str) else a for a in phase.arguments),
        frozenset(names.get(n, n) for n in phase.reads),
        frozenset(names.get(n, n) for n in phase.writes),
    )


def _product(anchor: Node, views: tuple[View, ...], threads: int, hidden: bool = False) -> Plan:
    x, y = views
    batch, m, n = anchor.shape
    k = anchor.inputs[0].shape[2]
    return gemm.plan(
        m, n, k, _steps(x), _steps(y), ldc=n, batch=batch,
        a_batch=x.strides[0], b_batch=y.strides[0], c_batch=m * n,
        dtype=_short(anchor.dtype), a_type=_short(x.base.dtype), b_type=_short(y.base.dtype), threads=threads, hidden=hidden,
    )  # fmt: skip
