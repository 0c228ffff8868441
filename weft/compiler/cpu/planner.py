"""Plans the library calls that compute an anchor: a product, a convolution, or an op with kernels of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from math import prod

from ...dtypes import DType, int8, uint8
from ...graph.node import Node
from ...options import CompileOptions
from ...records import dataclass
from ..ir.conv_shape import described
from ..ir.index import linear
from ..ir.kernel import Kernel, View, anchor_place
from ..ir.plan import Plan, PlanPhase
from ..passes.integer_products import unwidened
from ..planning.algorithms import ConvChoice, preferred
from .conv import algorithms as conv
from .conv.choice import decide
from .conv.shape import integer_sweep
from .gemm import plans as gemm
from .gemm.arithmetic import WORD, is_integer, kind_of
from .gemm.packing import BYTES
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
    product = MatrixBatch.of(kernel.anchor, kernel.views)
    return _packed_product(product, threads, streamed) if invariant else _product(product, threads, streamed)


def _plan_convolution(kernel: Kernel, threads: int, invariant: bool, streamed: bool, options: CompileOptions) -> Plan:
    assert kernel.anchor is not None
    plan = choice(kernel, options).plan
    if invariant and plan.phases:
        return _packed_filter(kernel.anchor, kernel.views[1].strides, plan.name, threads)
    return plan


def _plan_integer_convolution(
    kernel: Kernel, threads: int, invariant: bool, streamed: bool, options: CompileOptions
) -> Plan:
    anchor = kernel.anchor
    assert anchor is not None
    if not prod(anchor.shape):
        return Plan("nothing", (), 0, 0)
    (x, w), (_, shape) = kernel.views, described(anchor)
    kind = _depthwise_kind(anchor) if shape.depthwise else kind_of(x.base.dtype is uint8, w.base.dtype is uint8)
    sweep = integer_sweep(shape, kind, anchor.param("border"))
    main = conv.integers(sweep, shape, threads, packed=invariant, streamed=streamed)
    return _with_packing(main, *conv.integer_packing(sweep, shape)) if invariant else main


def _depthwise_kind(anchor: Node) -> str:
    """The kind of a depthwise product, whose filter is a cast of 8 bits: s8 if both are signed, else that of any filter."""
    x, weights = anchor.inputs[0], unwidened(anchor.inputs[1])
    if x.dtype is uint8:
        return "u8"
    return "s8" if weights is not None and weights.dtype is int8 else "s8 any"


def _plan_filter_gradient(
    kernel: Kernel, threads: int, invariant: bool, streamed: bool, options: CompileOptions
) -> Plan:
    return choice(kernel, options).plan


# The rules of anchors that the shared part of the compiler makes: (kernel, threads, whether the right operand is loop-invariant,
# whether the result is streamed to the epilogue).
_ANCHORS: dict[str, Callable[[Kernel, int, bool, bool, CompileOptions], Plan]] = {
    "contract": _plan_product,
    "contract_int8": _plan_product,
    "conv_last": _plan_convolution,
    "conv_int8_last": _plan_integer_convolution,
    "conv_data_last": _plan_convolution,
    "conv_filter_last": _plan_filter_gradient,
}


def _packed_filter(anchor: Node, strides: tuple[int, ...], algorithm: str, threads: int) -> Plan:
    """A convolution whose filter is loop-invariant: it is packed, or transformed, in separate phases."""
    direction, shape = described(anchor)
    plans = (conv.forward if direction == "forward" else conv.data_gradient)(shape, strides, threads, packed=True)
    main = plans[algorithm]
    return _with_packing(main, *conv.packing(direction, algorithm, shape, strides))


def _with_packing(main: Plan, pack: Plan, size: int) -> Plan:
    """A plan that reads a packed filter, and the phases that pack it."""
    phases = tuple(_renamed(phase, "w_packed") for phase in (*pack.phases, *main.phases))
    return Plan(f"{main.name}, packed once", phases, main.workspace, main.flops, size, main.hidden)


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


@dataclass(frozen=True)
class MatrixBatch:
    """A batch of matrix products, as the library sees it."""

    batch: int
    m: int
    n: int
    k: int
    left: tuple[int, int]  # strides from row to row, from column to column
    right: tuple[int, int]
    a_batch: int
    b_batch: int
    kind: str
    a_type: str
    b_type: str

    @classmethod
    def of(cls, anchor: Node, views: tuple[View, ...]) -> MatrixBatch:
        (x, y), (batch, m, n), k = views, anchor.shape, anchor.inputs[0].shape[2]
        (a_batch, *left), (b_batch, *right) = x.strides, y.strides
        if anchor.op.name == "contract_int8":  # both have k last, contiguous: it counts words
            kind = kind_of(x.base.dtype is uint8, y.base.dtype is uint8)
            a_batch, b_batch, k = (size // WORD for size in (a_batch, b_batch, k))
            return cls(batch, m, n, k, (k, 1), (1, k), a_batch, b_batch, kind, kind, kind)
        types = (_short(dtype) for dtype in (anchor.dtype, x.base.dtype, y.base.dtype))
        return cls(batch, m, n, k, (left[0], left[1]), (right[0], right[1]), a_batch, b_batch, *types)


def _packed_product(p: MatrixBatch, threads: int, streamed: bool) -> Plan:
    """A product whose right operand is loop-invariant: it is packed in a separate phase, which runs once."""
    if p.m < 2 or p.n < 2 or p.k < 2:
        return _product(p, threads)
    width = gemm.panel_width(p.m, p.n, p.k, p.left, dtype=p.kind, a_type=p.a_type, threads=threads)
    count = gemm.packed_size(p.n, p.k, width)
    pack = gemm.pack_plan(p.n, p.k, p.right, width, batch=p.batch, b_batch=p.b_batch, dtype=p.kind, b_type=p.b_type)
    main = gemm.plan(
        p.m, p.n, p.k, p.left, p.right, ldc=p.n, batch=p.batch, a_batch=p.a_batch, b_batch=count, c_batch=p.m * p.n,
        dtype=p.kind, a_type=p.a_type, b_type=p.kind, threads=threads, b_packed=width, streamed=streamed and is_integer(p.kind),
    )  # fmt: skip
    phases = (*pack.phases, *(_renamed(phase, "b") for phase in main.phases))
    size = p.batch * count * BYTES[p.kind]
    return Plan(f"{main.name}, packed once", phases, main.workspace, main.flops, size, main.hidden)


def _renamed(phase: PlanPhase, operand: str) -> PlanPhase:
    """The phase with "packed" for an operand."""
    names = {operand: "packed"}
    return replace(
        phase,
        arguments=tuple(names.get(a, a) if isinstance(a, str) else a for a in phase.arguments),
        reads=frozenset(names.get(n, n) for n in phase.reads),
        writes=frozenset(names.get(n, n) for n in phase.writes),
    )


def _product(p: MatrixBatch, threads: int, streamed: bool = False) -> Plan:
    return gemm.plan(
        p.m, p.n, p.k, p.left, p.right, ldc=p.n, batch=p.batch, a_batch=p.a_batch, b_batch=p.b_batch, c_batch=p.m * p.n,
        dtype=p.kind, a_type=p.a_type, b_type=p.b_type, threads=threads, streamed=streamed,
    )  # fmt: skip
