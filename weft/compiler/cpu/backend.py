"""The CPU backend: its lowering table, its pass options, and the compilation of a graph to a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from ...graph.graph import Graph
from ...graph.node import Op
from ...options import CompileOptions
from ..ir.program import KernelProgram
from ..lowering import LoweringTable
from ..passes import pipeline
from ..passes.integer_products import Int8Kernels
from ..passes.pipeline import PassOptions
from ..passes.slice_updates import spread_updates
from ..planning.build import Backend, build
from . import scalars
from .conv.choice import by_loops
from .gemm.arithmetic import prefers_unsigned
from .math import functions
from .planner import plan_for
from .special import plans as special
from .target import current_target

LOWERINGS = LoweringTable("cpu", scalars.TABLE, special.PLANS, functions.FUNCTIONS)
PASSES = PassOptions(LOWERINGS.lowers_node, wide_filters=True, widen_copies=True, split_sums=True)
DEFAULTS = CompileOptions("cpu", threads=1)


def passes(
    graph: Graph, options: CompileOptions = DEFAULTS, updates: Mapping[int, int] | None = None
) -> dict[str, Graph]:
    """The graph after each pass for CPUs, by the pass's name."""
    return pipeline.passes(spread_updates(graph, updates or {}), _pass_options(), options)


def apply_passes(graph: Graph, options: CompileOptions = DEFAULTS) -> Graph:
    """The graph after all passes for CPUs."""
    return pipeline.apply_passes(graph, _pass_options(), options)


def _pass_options() -> PassOptions:
    """Those of the current target."""
    kernels = Int8Kernels(unsigned=True, depthwise=True, unsigned_left=prefers_unsigned(current_target()))
    return replace(PASSES, int8_kernels=kernels)


def compiled(
    graph: Graph,
    updates: Mapping[int, int],
    options: CompileOptions,
    constants: frozenset[int] = frozenset(),
) -> KernelProgram:
    """The graph as a program: fused, scheduled, with its memory planned. It depends on these arguments only.

    `updates`: outputs that replace inputs in place. `constants`: inputs that rarely change, such as the weights of a network
    that is not trained; what is prepared of them is kept from run to run.
    """
    LOWERINGS.check(graph, options.device)
    target = Backend(
        partial(apply_passes, options=options), partial(plan_for, options=options), options.threads, partial(by_loops, options=options),
        memory=options.memory or None,
    )  # fmt: skip
    return build(graph, updates, target, constants)


def can_compile(op: Op) -> bool:
    """Whether programs with this op compile for CPUs."""
    return LOWERINGS.can_compile(op)
