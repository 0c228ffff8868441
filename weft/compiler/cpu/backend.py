"""The CPU backend: which ops it compiles, which passes it wants, and a graph as a program for it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ...dtypes import DType
from ...graph.graph import Graph
from ...graph.node import Op
from ..ir.program import Program
from ..lowering import LoweringTable
from ..passes import pipeline
from ..passes.pipeline import PassOptions
from ..passes.slice_updates import spread_updates
from ..planning.build import Target, build
from . import scalars
from .conv.choice import by_loops
from .math import functions
from .planner import plan_for
from .special import plans as special

LOWERINGS = LoweringTable("cpu", scalars.TABLE, special.PLANS, functions.FUNCTIONS)
PASSES = PassOptions(LOWERINGS.lowers, wide_filters=True, widen_copies=True, split_sums=True)


def passes(graph: Graph, narrow: DType | None = None, updates: Mapping[int, int] | None = None) -> dict[str, Graph]:
    """The graph after each pass for CPUs, by the pass's name."""
    return pipeline.passes(spread_updates(graph, updates or {}), PASSES, narrow)


def applied(graph: Graph, narrow: DType | None = None) -> Graph:
    """The graph after all passes for CPUs."""
    return pipeline.applied(graph, PASSES, narrow)


def compiled(
    graph: Graph,
    updates: Mapping[int, int],
    threads: int,
    narrow: DType | None = None,
    constants: frozenset[int] = frozenset(),
) -> Program:
    """The graph as a program: fused, scheduled, with its memory planned.

    `updates`: outputs that replace inputs in place. `constants`: inputs that rarely change, such as the weights of a network
    that is not trained; what is prepared of them is kept from run to run.
    """
    return build(graph, updates, Target(partial(applied, narrow=narrow), plan_for, threads, by_loops), constants)


def can_compile(op: Op) -> bool:
    """Whether programs with this op compile for CPUs."""
    return LOWERINGS.can_compile(op)
