"""Convolutions and their gradients as plans of native functions: the algorithms that apply, and a choice among them.

Tensors are channels last: x (batch, *spatial, channels), y (batch, *out, filters), both contiguous. The filter is
(filters, channels / groups, *kernel) with any strides. Element type: float32.

    forward          operands "x", "w", result "y"
    data_gradient    operands "g", "w", result "x"
    filter_gradient  operands "x", "g", result "w": (*kernel, channels / groups, filters), contiguous

The first phases of the first two repack the filter. With `packed=True` they are left out, and the filter is read from
"w_packed", as the plan of `packing` writes it: a constant filter is packed once.
"""

from __future__ import annotations

from math import prod

from ...ir.conv_shape import ConvShape, Direction
from ...ir.fft_tiling import LEAST_TAPS, fft_applies
from ...ir.fft_tiling import NAMES as FFT_NAMES
from ...ir.plan import Plan
from ..fft import filter_gradient_plan as fft_gradient
from ..fft import plan as fft
from ..target import CpuTarget, current_target
from ..winograd.filter_gradient_plan import gradient_applies, gradient_cost, gradient_plan
from ..winograd.plan import SIZES, applies, filter_phase, packed_size, winograd_cost, winograd_plan
from . import col2im as conv_scatter
from . import depthwise as conv_depth
from . import depthwise_dot as conv_dot
from .col2im import scatter_plan, scatters
from .depthwise_filter import filter_plan
from .few_channels import by_rows, row_plan
from .filter_gradient_plan import filter_cost, filter_plans
from .shape import Sweep, data_sweep, forward_sweep
from .sweep_plan import MODES, SweepOperands, gemm_plan, pack_phases, sweep_plan
from .sweep_plan import packing as _packing

Plans = dict[str, Plan]


def forward(
    shape: ConvShape, w_strides: tuple[int, ...], threads: int, target: CpuTarget | None = None, *, packed: bool = False
) -> Plans:
    """The plans of all algorithms that can compute y = conv(x, w), by name."""
    sweep = forward_sweep(shape, w_strides)
    return _sweeps(
        shape,
        sweep,
        threads,
        target or current_target(),
        SweepOperands("x", "y", "w_packed" if packed else "work"),
        packed,
    )


def integers(sweep: Sweep, shape: ConvShape, threads: int, *, packed: bool = False, streamed: bool = False) -> Plan:
    """y = conv(x, w) of 8-bit integers, summed in int32; `streamed`: only the epilogue reads the sums."""
    names, target = SweepOperands("x", "y", "w_packed" if packed else "work"), current_target()
    if shape.depthwise and conv_dot.applies(sweep, target):
        return conv_dot.sweep_plan(sweep, threads, names, packed, streamed)
    if shape.depthwise:
        return conv_depth.sweep_plan("DIRECT", sweep, threads, target, names, packed)
    return sweep_plan("DIRECT", sweep, threads, target, names, packed, streamed)


def integer_packing(sweep: Sweep, shape: ConvShape) -> tuple[Plan, int]:
    """The plan that writes "w_packed" from a filter of 8-bit integers, and the bytes it writes."""
    target = current_target()
    if shape.depthwise and conv_dot.applies(sweep, target):
        return Plan("pack", (conv_dot.pack_phase(sweep, "w_packed"),), 0, 0), conv_dot.packed_bytes(sweep)
    if shape.depthwise:
        size = conv_depth.packed_size(sweep, target)
        return Plan("pack", tuple(conv_depth.pack_phases(sweep, target, "w_packed")), 0, 0), 4 * size
    return Plan("pack", tuple(pack_phases(sweep, target, "w_packed")), 0, 0), 4 * _packing(sweep, target).floats


def data_gradient(
    shape: ConvShape, w_strides: tuple[int, ...], threads: int, target: CpuTarget | None = None, *, packed: bool = False
) -> Plans:
    """The plans of all algorithms for the gradient of x, by name."""
    sweep, target = data_sweep(shape, w_strides), target or current_target()
    names = SweepOperands("g", "x", "w_packed" if packed else "work")
    found = _sweeps(shape, sweep, threads, target, names, packed)
    if _by_scattering(shape, sweep, target):
        found["GEMM"] = scatter_plan("GEMM", sweep, threads, target, names, packed)
    return found


def _by_scattering(shape: ConvShape, sweep: Sweep, target: CpuTarget) -> bool:
    """Whether GEMM is computed as a product followed by col2im: im2col is possible only where all pixels have the same taps."""
    return shape.groups == 1 and (not sweep.single or scatters(shape, sweep, target))


def filter_gradient(
    shape: ConvShape, w_strides: tuple[int, ...], threads: int, target: CpuTarget | None = None
) -> Plans:
    """The plans of all algorithms for the gradient of w, by name. `strides`: the layout in which the epilogue stores it; the result itself
    has its filters contiguous."""
    if shape.depthwise:
        return {"DIRECT": filter_plan("DIRECT", shape)}
    turned, target = w_strides[0] != 1, target or current_target()
    found = filter_plans(shape, threads, target, turned)
    if gradient_applies(shape, target):
        found |= {name: gradient_plan(name, shape, threads, target, turned) for name in SIZES}
    if fft_applies(shape):
        found |= _present({name: fft_gradient.gradient_plan(name, shape, target) for name in FFT_NAMES})
    return found


def _present(plans: dict[str, Plan | None]) -> Plans:
    return {name: plan for name, plan in plans.items() if plan is not None}


def packing(
    direction: Direction, algorithm: str, shape: ConvShape, w_strides: tuple[int, ...], target: CpuTarget | None = None
) -> tuple[Plan, int]:
    """The plan that writes "w_packed" from "w" for an algorithm, and the bytes it writes."""
    target = target or current_target()
    sweep = (forward_sweep if direction == "forward" else data_sweep)(shape, w_strides)
    if shape.depthwise:
        size = 4 * conv_depth.packed_size(sweep, target)
        return Plan("pack", tuple(conv_depth.pack_phases(sweep, target, "w_packed")), 0, 0), size
    if direction == "data_gradient" and algorithm == "GEMM" and _by_scattering(shape, sweep, target):
        size = conv_scatter.packed_size(sweep, target)
        return Plan("pack", (conv_scatter.pack_phase(sweep, target, "w_packed"),), 0, 0), size
    if algorithm in SIZES:
        size = SIZES[algorithm]
        return Plan("pack", (filter_phase(sweep, target, size, "w_packed"),), 0, 0), 4 * packed_size(
            sweep, target, size
        )
    if algorithm in FFT_NAMES:
        phase = fft.filter_phase(algorithm, sweep, target, "w_packed")
        return Plan("pack", (phase,), 0, 0), fft.packed_size(algorithm, sweep, target)
    return Plan("pack", tuple(pack_phases(sweep, target, "w_packed")), 0, 0), 4 * _packing(sweep, target).floats


def choose(
    direction: Direction, shape: ConvShape, w_strides: tuple[int, ...], threads: int, target: CpuTarget | None = None,
    *, packed: bool = False, workspace_limit: int | None = None, forbid: frozenset[str] = frozenset(),
) -> Plan:  # fmt: skip
    """The plan with the lowest estimated cost that fits in the workspace; the smallest one if none does."""
    target = target or current_target()
    if direction == "filter_gradient":
        plans = filter_gradient(shape, w_strides, threads, target)
    else:
        plans = (forward if direction == "forward" else data_gradient)(shape, w_strides, threads, target, packed=packed)
    allowed = [p for n, p in plans.items() if n not in forbid] or list(plans.values())
    fitting = [p for p in allowed if workspace_limit is None or p.workspace <= workspace_limit]
    if not fitting:
        return min(allowed, key=lambda p: p.workspace)
    return min(fitting, key=lambda p: _cost(p, direction, shape, threads, target, packed))


# Measured on layers of well-known networks: how much longer than the direct algorithm.
_COSTS = {"DIRECT": 1.0, "IMPLICIT_PRECOMP_GEMM": 1.03, "IMPLICIT_GEMM": 1.15, "GEMM": 1.3}


_FAR, _FAR_SIZE = 1.7, 1.75  # measured: the slowdown of filters larger than this multiple of the L2 cache
_PACK = 2.0  # cycles to pack an element of the filter; on x86 they cost as much as many multiply-adds


def _cost(plan: Plan, direction: Direction, shape: ConvShape, threads: int, target: CpuTarget, packed: bool) -> float:
    """The estimated cost of a plan, in multiply-adds of the direct algorithm."""
    if plan.name == "GEMM" and direction == "data_gradient":
        sweep = data_sweep(shape, (0,) * (2 + len(shape.kernel)))
        if scatters(shape, sweep, target):
            return 0.0  # the estimate chose it: it is the best
    if direction == "filter_gradient":
        if plan.name in SIZES:
            return gradient_cost(shape, SIZES[plan.name], threads, target)
        if plan.name in FFT_NAMES:
            return fft_gradient.gradient_cost(plan.name, shape, "f32", target)
        return filter_cost(plan.name, shape, target) * _plain_cost("IMPLICIT_GEMM", plan, shape, target, packed)
    if plan.name not in (*SIZES, *FFT_NAMES):
        return _far(shape, target) * _plain_cost(plan.name, plan, shape, target, packed)
    sweep = (forward_sweep if direction == "forward" else data_sweep)(shape, (0,) * (2 + len(shape.kernel)))
    if plan.name in FFT_NAMES:
        return fft.fft_cost(plan.name, sweep, target, packed)
    return winograd_cost(sweep, SIZES[plan.name], threads, target, packed)


def _far(shape: ConvShape, target: CpuTarget) -> float:
    """The slowdown of a sweep whose filter is large and does not stay in the L2 cache."""
    size = 4 * shape.filters * shape.channels // shape.groups * prod(shape.kernel)
    return _FAR if prod(shape.kernel) >= LEAST_TAPS and size > _FAR_SIZE * target.l2 else 1.0


def _plain_cost(name: str, plan: Plan, shape: ConvShape, target: CpuTarget, packed: bool) -> float:
    """The estimated cost of an algorithm that computes every multiplication of the definition."""
    filters = shape.filters * shape.channels // shape.groups * prod(shape.kernel)
    packing = 0.0 if packed or target.arch == "aarch64" else _PACK * 2 * target.lanes(32) * filters
    return _COSTS[name] * plan.flops / 2 + packing


def _sweeps(
    shape: ConvShape, sweep: Sweep, threads: int, target: CpuTarget, names: SweepOperands, packed: bool
) -> Plans:
    if shape.depthwise:
        return {"DIRECT": conv_depth.sweep_plan("DIRECT", sweep, threads, target, names, packed)}
    found = {}
    for name in MODES:
        if name != "IMPLICIT_PRECOMP_GEMM" or shape.groups == 1:
            found[name] = sweep_plan(name, sweep, threads, target, names, packed)
    if by_rows(sweep, target):
        found["DIRECT"] = row_plan("DIRECT", sweep, threads, target, names, packed)
    if sweep.single and shape.groups == 1:
        found["GEMM"] = gemm_plan("GEMM", sweep, threads, target, names, packed)
    if applies(sweep, target):
        found |= {name: winograd_plan(name, sweep, threads, target, names, packed) for name in SIZES}
    if fft.applies(sweep):
        found |= _present({name: fft.fft_plan(name, sweep, target, names, packed) for name in FFT_NAMES})
    return found


__all__ = ["ConvShape", "choose", "data_gradient", "filter_gradient", "forward", "packing"]
