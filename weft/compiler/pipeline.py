"""The compiler, from top to bottom: a graph becomes a program, a program becomes code."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..graph.graph import Graph
from .layout import layout
from .llvm.planner import plan_for
from .program import Program, build
from .simplify import simplify

PASSES: dict[str, Callable[[Graph], Graph]] = {"simplify": simplify, "layout": layout, "simplify again": simplify}


def passes(graph: Graph) -> dict[str, Graph]:
    """The graph after each pass, by the pass's name."""
    after = {}
    for name, apply in PASSES.items():
        graph = after[name] = apply(graph)
    return after


def applied(graph: Graph) -> Graph:
    """The graph after all passes."""
    for apply in PASSES.values():
        graph = apply(graph)
    return graph


def compiled(graph: Graph, updates: Mapping[int, int], threads: int) -> Program:
    """The graph as a program: fused, scheduled, with its memory planned. `updates`: outputs that replace inputs in place."""
    return build(graph, updates, plan_for, applied, threads)
