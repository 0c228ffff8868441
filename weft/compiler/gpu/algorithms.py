"""The algorithm of a product or convolution on a GPU: what the user prefers, what is possible, and what was measured.

Algorithms of convolutions are IMPLICIT_GEMM (our kernel), DEPTHWISE (ours for depthwise convolutions), CUDNN, GEMM, FFT, FFT_TILED, DIRECT and LOOPS (an ordinary loop kernel, no plan); of matrix
products TRITON (our kernel), CUBLASLT, TILED and NAIVE; of attention TRITON and CUDNN, the faster one. As on CPUs, an algorithm that cannot compute a case is not an error: another
one does, and the note of the choice says so. Our kernel needs workspace only when it splits long sums, so some algorithm fits
every limit. All are deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

from ...errors import RunError
from ...graph.node import Node
from ...options import CompileOptions
from ...records import dataclass
from ..ir.fft_tiling import NAMES as FFT_NAMES
from ..ir.kernel import Kernel
from ..ir.plan import Plan, PlanPhase
from ..ir.program import operand_names, result_nodes
from ..ir.storage import nbytes
from ..planning.algorithms import NO_WORKSPACE, PREFER_FASTEST, ConvChoice, preferred, workspace_limit
from . import textbook_kernels as teaching
from .anchors import anchor_of, is_attention, is_convolution, is_grouped, is_product, is_semi_sparse
from .attention import plans as attention
from .contraction import (
    parts_for,
    workspace,
    write_after,
    write_contraction,
    write_copy,
    write_filter,
    write_finish,
    write_parts,
)
from .depthwise import copied_taps, is_depthwise, write_depthwise, write_taps
from .few_rows import is_of_few_rows, write_few_rows
from .fft import plans as fft
from .grouped import write_grouped
from .kernel_utils import COUNTABLE, scratch_offsets
from .source import KernelSource
from .vendor.claims import Claim, Judge, claims, operations

FFT_WORKSPACE = 1 << 30  # bytes of spectra, up to which weft takes FFTs unasked


def choose(
    kernel: Kernel, hidden: bool, judge: Judge | None, options: CompileOptions, constants: Collection[Node] = ()
) -> ConvChoice:
    """The plan of a product or convolution, and a note if it is not the requested one. `constants`: values that rarely change."""
    if is_grouped(anchor_of(kernel)):
        return ConvChoice(replace(_in_one("TRITON", "grouped", kernel), hidden=hidden))
    if is_semi_sparse(anchor_of(kernel)):
        return ConvChoice(replace(_semi_sparse_plan(kernel, judge, constants), hidden=hidden))
    prefer, tf32 = _preference(anchor_of(kernel), options), bool(options.tf32)
    limit = 0 if prefer == NO_WORKSPACE else workspace_limit(prefer)
    note = ""
    if limit is None and prefer != PREFER_FASTEST:
        plan = _by_name(prefer, kernel, _Asked(judge, tf32, constants))
        if isinstance(plan, Plan):
            return ConvChoice(replace(plan, hidden=hidden))
        note = f"{prefer} {plan}"
    return ConvChoice(replace(_fastest(kernel, limit, judge, tf32, constants), hidden=hidden), note)


def _preference(anchor: Node, options: CompileOptions) -> str:
    if is_attention(anchor):
        return PREFER_FASTEST
    if is_convolution(anchor):
        return preferred(anchor) or options.conv_algorithm
    return options.matmul_algorithm


def _fastest(kernel: Kernel, limit: int | None, judge: Judge | None, tf32: bool, constants: Collection[Node]) -> Plan:
    for wanted in claims(kernel, limit, tf32, constants) if judge is not None else ():
        if judge is not None and judge(kernel, wanted):
            return library_plan(kernel, wanted)
    return own_plan(kernel, limit, tf32, constants)


def _semi_sparse_plan(kernel: Kernel, judge: Judge | None, constants: Collection[Node]) -> Plan:
    """cuSPARSELt, with as much of the epilogue as it can express: it was measured to be faster when the product was made."""
    for wanted in claims(kernel, constants=constants):
        if judge is not None and judge(kernel, replace(wanted, by_name=True)):
            return library_plan(kernel, wanted)
    raise RunError("cusparselt", f"cuSPARSELt did a product before that it refuses now ({kernel.name}).")


# --- plans ------------------------------------------------------------------------------------------------------------------------


def own_plan(kernel: Kernel, limit: int | None = None, tf32: bool = False, constants: Collection[Node] = ()) -> Plan:
    """weft's kernel with its epilogue; or, if there are few long sums, two kernels and the partial sums between them, as many as fit into
    the limit; or the kernels of an FFT."""
    if is_attention(anchor_of(kernel)):
        return _plan("TRITON", kernel, *attention.phases(kernel))
    if is_depthwise(kernel):
        depthwise = _depthwise_plan(kernel, kernel.views[1].base in constants)
        if limit is None or depthwise.workspace <= limit:
            return depthwise
    if is_of_few_rows(kernel):
        return _in_one("TRITON", "few_rows", kernel)
    if not tf32 and fft.is_faster(kernel):
        transforms = _transform_plan("FFT_TILED", kernel, tf32, constants)
        most = FFT_WORKSPACE if limit is None else min(limit, FFT_WORKSPACE)
        if isinstance(transforms, Plan) and transforms.workspace + transforms.packed <= most:
            return transforms
    return _contraction_plan(kernel, limit, tf32)


def _contraction_plan(kernel: Kernel, limit: int | None = None, tf32: bool = False) -> Plan:
    name, parts = _own_name(kernel), parts_for(anchor_of(kernel))
    while parts > 1 and limit is not None and nbytes(workspace(kernel, parts)) > limit:
        parts //= 2
    if parts == 1:
        return _in_one(name, "whole", kernel, *_rounding(tf32))
    first = PlanPhase("parts", (parts, *_rounding(tf32)), _operands(kernel), frozenset(("work",)))
    return _plan(f"{name}, in parts", kernel, first, _finishing(kernel, parts))


def _depthwise_plan(kernel: Kernel, kept: bool = False) -> Plan:
    """The copy of weights that are constants is `kept` from run to run."""
    _, second, _ = operand_names(kernel)
    copied = frozenset(("packed" if kept else "work",))
    copy = PlanPhase("taps", (), frozenset((second,)), copied)
    main = PlanPhase("depthwise", ("epilogue",), (_operands(kernel) - {second}) | copied, _result(kernel))
    return _plan("DEPTHWISE", kernel, copy, main)


def _transform_plan(name: str, kernel: Kernel, tf32: bool, constants: Collection[Node]) -> Plan | str:
    phases = fft.phases(name, kernel, tf32, kernel.views[1].base in constants)
    return phases if isinstance(phases, str) else _plan(name, kernel, *phases)


def library_plan(kernel: Kernel, wanted: Claim) -> Plan:
    """A library call, and a kernel for the epilogue if the library does not apply all of it."""
    if is_attention(anchor_of(kernel)):
        inputs = frozenset(operand_names(kernel)[: len(kernel.views)])
        phase = PlanPhase("library", ("direct", *_rounding(wanted.spec.tf32)), inputs, frozenset(result_nodes(kernel)))
        return _plan(wanted.library, kernel, phase)
    limit, work = () if wanted.limit is None else (wanted.limit,), frozenset(("work",))
    words = [word for word in ("direct", "kept") if getattr(wanted, word)]
    how = (*words, *limit, *_rounding(wanted.spec.tf32))
    before = []
    if wanted.filter is not None:
        before.append(PlanPhase("filter", how, frozenset(operand_names(kernel)[1:2]), work))
    if wanted.rounded is not None:
        copied = frozenset(("packed",)) if wanted.kept else work
        before.append(PlanPhase("bias", ("epilogue", *how), frozenset(), copied))
    reads = _operands(kernel).union(*(phase.writes for phase in before))
    if wanted.direct:
        library = PlanPhase("library", ("epilogue", *how), reads, _result(kernel))
        return _plan(wanted.library, kernel, *before, library)
    after = PlanPhase("after", ("epilogue", *how), work, _result(kernel))
    return _plan(wanted.library, kernel, *before, PlanPhase("library", how, reads, work), after)


def _gemm_plan(kernel: Kernel, tf32: bool) -> Plan:
    """First the patches (im2col), then the product of their memory with the second operand."""
    parts = parts_for(anchor_of(kernel))
    _, second, _ = operand_names(kernel)
    patches = PlanPhase("patches", (), _operands(kernel) - {second}, frozenset(("work",)))
    reads = frozenset((second, "work"))
    if parts == 1:
        return _plan(
            "GEMM", kernel, patches, PlanPhase("unfolded", ("epilogue", *_rounding(tf32)), reads, _result(kernel))
        )
    product = PlanPhase("unfolded_parts", (parts, *_rounding(tf32)), reads, frozenset(("work",)))
    return _plan("GEMM, in parts", kernel, patches, product, _finishing(kernel, parts))


def _rounding(tf32: bool) -> tuple[str, ...]:
    """The argument of a phase that says whether float32 operands are rounded to TF32."""
    return ("tf32",) if tf32 else ()


def _finishing(kernel: Kernel, parts: int) -> PlanPhase:
    return PlanPhase("finish", ("epilogue", parts), frozenset(("work",)), _result(kernel))


def _in_one(name: str, symbol: str, kernel: Kernel, *arguments: str | int) -> Plan:
    """One phase that does it all."""
    return _plan(name, kernel, PlanPhase(symbol, ("epilogue", *arguments), _operands(kernel), _result(kernel)))


def _plan(name: str, kernel: Kernel, *phases: PlanPhase) -> Plan:
    plan = Plan(name, phases, 0, operations(kernel))
    scratch_tensors = plan_scratch_offsets(kernel, plan)
    workspace = max((begin + nbytes(node) for node, begin in scratch_tensors.items()), default=0)
    return replace(plan, workspace=workspace, packed=sum(map(nbytes, kept_tensors(kernel, plan))))


def _own_name(kernel: Kernel) -> str:
    return "TRITON" if _is_product(kernel) else "IMPLICIT_GEMM"


def _operands(kernel: Kernel) -> frozenset[str]:
    return frozenset(operand_names(kernel)[:-1])


def _result(kernel: Kernel) -> frozenset[str]:
    return frozenset(operand_names(kernel)[-1:])


# --- by name: a plan, or why there is none ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Asked:
    """What a plan depends on besides the kernel."""

    judge: Judge | None
    tf32: bool
    constants: Collection[Node]


def _by_name(name: str, kernel: Kernel, asked: _Asked) -> Plan | str:
    ways = _PRODUCTS if _is_product(kernel) else _CONVOLUTIONS
    return ways[name](kernel, asked) if name in ways else "does not exist on GPUs"


def _by_library(kernel: Kernel, asked: _Asked) -> Plan | str:
    judge = asked.judge
    for wanted in claims(kernel, tf32=asked.tf32) if judge is not None else ():
        if judge is not None and judge(kernel, replace(wanted, by_name=True)):
            return library_plan(kernel, wanted)
    return "has no kernel for it, or is not installed"


def _by_squares(kernel: Kernel) -> Plan | str:
    if kernel.views[0].base.dtype.itemsize == 1:
        return "multiplies floats of 16 bits or more"
    return _in_one("TILED", "tiled", kernel)


def _by_channels(kernel: Kernel) -> Plan | str:
    return _depthwise_plan(kernel) if is_depthwise(kernel) else "is for depthwise convolutions and their data gradients"


def _by_transforms(name: str, kernel: Kernel, asked: _Asked) -> Plan | str:
    return _transform_plan(name, kernel, asked.tf32, asked.constants)


def _by_patches(kernel: Kernel, tf32: bool) -> Plan | str:
    if teaching.patches(kernel).shape[0] > COUNTABLE:
        return "has more patches than can be counted"
    return _gemm_plan(kernel, tf32)


_Way = Callable[[Kernel, _Asked], Plan | str]
_PRODUCTS: dict[str, _Way] = {
    "TRITON": lambda kernel, asked: own_plan(kernel, tf32=asked.tf32),
    "CUBLASLT": _by_library,
    "TILED": lambda kernel, asked: _by_squares(kernel),
    "NAIVE": lambda kernel, asked: _in_one("NAIVE", "naive", kernel),
}
_CONVOLUTIONS: dict[str, _Way] = {
    "IMPLICIT_GEMM": lambda kernel, asked: _contraction_plan(kernel, tf32=asked.tf32),
    "DEPTHWISE": lambda kernel, asked: _by_channels(kernel),
    "CUDNN": _by_library,
    "GEMM": lambda kernel, asked: _by_patches(kernel, asked.tf32),
    "DIRECT": lambda kernel, asked: _in_one("DIRECT", "naive", kernel),
    **{name: partial(_by_transforms, name) for name in FFT_NAMES},
}


# --- plans as kernels ---------------------------------------------------------------------------------------------------------------


def write(kernel: Kernel, phase: PlanPhase) -> KernelSource:
    """The source of one phase of a plan; None for library calls."""
    if is_attention(anchor_of(kernel)):
        return attention.write(kernel, phase)
    if phase.symbol in fft.SYMBOLS:
        return fft.write(kernel, phase)
    return _WRITERS[phase.symbol](kernel, phase)


def sources(kernel: Kernel, plan: Plan) -> list[KernelSource]:
    """The kernels of all phases that run each time, without library calls."""
    once = "packed"  # what is written there is kept
    return [write(kernel, p) for p in plan.phases if p.symbol != "library" and once not in p.writes]


def plan_scratch_offsets(kernel: Kernel, plan: Plan) -> dict[Node, int]:
    """The tensors internal to a plan, and their offsets in its workspace, in bytes."""
    scratch_tensors: list[Node] = []
    for phase in plan.phases:
        if phase.symbol == "attention.delta":
            scratch_tensors += attention.scratch_tensors(kernel)
        if phase.symbol == "taps" and "work" in phase.writes:
            scratch_tensors.append(copied_taps(kernel))
        if phase.symbol == "patches":
            scratch_tensors.append(teaching.patches(kernel))
        elif phase.symbol == "finish":
            scratch_tensors.append(workspace(kernel, _parts(phase)))
        elif phase.symbol == "library":
            scratch_tensors += claimed(kernel, phase).scratch_tensors
    return scratch_offsets([*scratch_tensors, *fft.spectra(kernel, plan, "work")])


def kept_tensors(kernel: Kernel, plan: Plan) -> list[Node]:
    """The tensors of a plan that are kept from run to run: the copy of a bias or of depthwise weights, or the spectra of a filter, that is a constant."""
    copies = [copied_taps(kernel) for phase in plan.phases if phase.symbol == "taps" and "packed" in phase.writes]
    claims = [claimed(kernel, phase) for phase in plan.phases if phase.symbol == "bias"]
    return [
        *copies,
        *fft.spectra(kernel, plan, "packed"),
        *(claim.bias_copy for claim in claims if claim.kept and claim.bias_copy is not None),
    ]


def claimed(kernel: Kernel, phase: PlanPhase) -> Claim:
    """The spec of a library call in a phase, or in the previous one."""
    every = claims(kernel, _number(phase), _is_tf32(phase))
    return replace(next(c for c in every if c.direct == ("direct" in phase.arguments)), kept="kept" in phase.arguments)


def _is_tf32(phase: PlanPhase) -> bool:
    return "tf32" in phase.arguments


def _number(phase: PlanPhase) -> int | None:
    """The number in the arguments of a phase: of partial sums, or the limit of a workspace."""
    return next((a for a in phase.arguments if isinstance(a, int)), None)


def _parts(phase: PlanPhase) -> int:
    parts = _number(phase)
    assert parts is not None
    return parts


_WRITERS: dict[str, Callable[[Kernel, PlanPhase], KernelSource]] = {
    "filter": lambda kernel, phase: write_filter("kernel", kernel, claimed(kernel, phase).filter),
    "bias": lambda kernel, phase: write_copy("kernel", claimed(kernel, phase).rounded, claimed(kernel, phase).more[0]),
    "after": lambda kernel, phase: write_after("kernel", kernel, claimed(kernel, phase).result),
    "grouped": lambda kernel, phase: write_grouped("kernel", kernel),
    "few_rows": lambda kernel, phase: write_few_rows("kernel", kernel),
    "whole": lambda kernel, phase: write_contraction("kernel", kernel, tf32=_is_tf32(phase)),
    "parts": lambda kernel, phase: write_parts("kernel", kernel, _parts(phase), _is_tf32(phase)),
    "finish": lambda kernel, phase: write_finish("kernel", kernel, _parts(phase)),
    "taps": lambda kernel, phase: write_taps("kernel", kernel),
    "depthwise": lambda kernel, phase: write_depthwise("kernel", kernel),
    "naive": lambda kernel, phase: teaching.write_naive("kernel", kernel),
    "tiled": lambda kernel, phase: teaching.write_tiled("kernel", kernel),
    "patches": lambda kernel, phase: teaching.write_patches("kernel", kernel),
    "unfolded": lambda kernel, phase: teaching.write_unfolded("kernel", kernel, tf32=_is_tf32(phase)),
    "unfolded_parts": lambda kernel, phase: teaching.write_unfolded("kernel", kernel, _parts(phase), _is_tf32(phase)),
}


def _is_product(kernel: Kernel) -> bool:
    return is_product(anchor_of(kernel))


__all__ = ["choose", "claimed", "kept_tensors", "library_plan", "own_plan", "plan_scratch_offsets", "sources", "write"]
