"""Plans the library calls that compute an anchor: a product, a convolution, or an op with kernels of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import prod

from ...dtypes import DType
from ...graph.node import Node
from ...options import CompileOptions
from ..ir.conv_shape import described
from ..ir.index import linear
from ..ir.kernel import Kernel, View, anchor_place
from ..ir.plan import Plan, PlanPhase
from ..planning.algorithms import ConvChoice, preferred
from .conv import algorithms as conv
from .conv.choice import decide
from .gemm import plans as gemm
from .special import plans as special

_SHORT = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16"}


def plan_for(
    kernel: Kernel, threads: int, invariant: Collection[Node], streamed: bool, options: CompileOptions
) -> Plan:
    """The plan of a kernel that is built around an anchor.

    `invariant`: values that are the same in every iteration of the enclosing loop; an operand among them is packed once.
    `streamed`: only the epilogue reads the anchor's own result, so it need not be stored as a whole.
    """
    anchor = kernel.anchor
    assert anchor is not None
    if anchor.op.own_kernels:
        return special.plan(kernel, threads)
    return _ANCHORS[anchor.op.name](kernel, threads, kernel.views[1].base in invariant, streamed, options)


def _plan_product(kernel: Kernel, threads: int, invariant: bool, streamed: bool, options: CompileOptions) -> Plan:
    assert kernel.anchor is not None
    if invariant:
        return _packed_product(kernel.anchor, kernel.views, threads)
    return _product(kernel.anchor, kernel.views, threads, streamed)


def _plan_convolution(kernel: Kernel, threads: int, invariant: bool, streamed: bool, options: CompileOptions) -> Plan:
    assert kernel.anchor is not None
    plan = choice(kernel, options).plan
    if invariant and plan.phases:
        return _packed_filter(kernel.anchor, kernel.views[1].strides, plan.name, threads)
    return plan


def _plan_filter_gradient(
    kernel: Kernel, threads: int, invariant: bool, streamed: bool, options: CompileOptions
) -> Plan:
    return choice(kernel, options).plan


# The rules of anchors that the shared part of the compiler makes: (kernel, threads, whether the right operand is loop-invariant,
# whether the result is streamed to the epilogue).
_ANCHORS: dict[str, Callable[[Kernel, int, bool, bool, CompileOptions], Plan]] = {
    "contract": _plan_product,
    "conv_last": _plan_convolution,
    "conv_data_last": _plan_convolution,
    "conv_filter_last": _plan_filter_gradient,
}


def _packed_filter(anchor: Node, strides: tuple[int, ...], algorithm: str, threads: int) -> Plan:
    """A convolution whose filter is loop-invariant: it is packed, or transformed, in separate phases."""
    direction, shape = described(anchor)
    plans = (conv.forward if direction == "forward" else conv.data_gradient)(shape, strides, threads, packed=True)
    main = plans[algorithm]
    pack, size = conv.packing(direction, algorithm, shape, strides)
    phases = tuple(_renamed(phase, "w_packed") for phase in (*pack.phases, *main.phases))
    return Plan(f"{main.name}, packed once", phases, main.workspace, main.flops, size)


def choice(kernel: Kernel, options: CompileOptions) -> ConvChoice:
    """The algorithm of a convolution, and a note if it is not the preferred one."""
    anchor = kernel.anchor
    assert anchor is not None
    if not prod(anchor.shape):
        return ConvChoice(Plan("nothing", (), 0, 0))
    direction, shape = described(anchor)
    strides = kernel.views[1].strides if direction != "filter_gradient" else _wanted(kernel)
    return decide(direction, shape, strides, options, preferred(anchor))


def _wanted(kernel: Kernel) -> tuple[int, ...]:
    """The strides of a filter's gradient as its epilogue stores it: filters contiguous, as in training, or taps."""
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
    """The row and column strides of an operand."""
    _, row, column = view.strides
    return row, column


def _packed_product(anchor: Node, views: tuple[View, ...], threads: int) -> Plan:
    """A product whose right operand is loop-invariant: it is packed in a separate phase, which runs once."""
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


def _renamed(phase: PlanPhase, operand: str) -> PlanPhase:
    """The phase with "packed" for an operand."""
    names = {operand: "packed"}
    return PlanPhase(
        phase.symbol,
        tuple(names.get(a, a) if isinstance(a, str) else a for a in phase.arguments),
        frozenset(names.get(n, n) for n in phase.reads),
        frozenset(names.get(n, n) for n in phase.writes),
    )


def _product(anchor: Node, views: tuple[View, ...], threads: int, streamed: bool = False) -> Plan:
    x, y = views
    batch, m, n = anchor.shape
    k = anchor.inputs[0].shape[2]
    return gemm.plan(
        m, n, k, _steps(x), _steps(y), ldc=n, batch=batch,
        a_batch=x.strides[0], b_batch=y.strides[0], c_batch=m * n,
        dtype=_short(anchor.dtype), a_type=_short(x.base.dtype), b_type=_short(y.base.dtype), threads=threads, streamed=streamed,
    )  # fmt: skip
