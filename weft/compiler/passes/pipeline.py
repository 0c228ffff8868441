"""The compiler, from top to bottom: a graph becomes a program, a program becomes code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from ...dtypes import DType
from ...graph.graph import Graph
from ...graph.node import Op
from ..cpu import scalars as scalar
from ..cpu.math import functions as maths
from ..cpu.planner import plan_for
from ..planning.program import Program, Target, build
from .fold import fold
from .layout import layout
from .precision import copies, precision
from .scan_residuals import recall
from .scan_sums import accumulate
from .simplify import refine, simplify

Pass = Callable[[Graph], Graph]


def pass_list(narrow: DType | None = None, native: bool = True) -> dict[str, Pass]:
    """The passes in their order, by name. `narrow`: the type of mixed precision.

    `native`: for CPUs, whose convolutions read float32 only, and whose threads share long sums.
    """
    mixed: dict[str, Pass] = (
        {} if narrow is None else {"precision": partial(precision, dtype=narrow, wide_filters=native)}
    )
    return {
        "recall": recall,
        "simplify": partial(simplify, compute_again=not native),
        "fold": fold,
        "accumulate": accumulate,
        **mixed,
        "layout": partial(layout, whole_words=not native),
        **({"copies": copies} if native else {}),
        "refine": partial(refine, in_two=native),
    }


def passes(graph: Graph, narrow: DType | None = None, native: bool = True) -> dict[str, Graph]:
    """The graph after each pass, by the pass's name."""
    after = {}
    for name, apply in pass_list(narrow, native).items():
        graph = after[name] = apply(graph)
    return after


def can_compile(op: Op) -> bool:
    """Whether the compiler knows an op. One that a user declared has a definition in NumPy only."""
    return op.name in scalar.TABLE or op.name in maths.NAMES or op.name in _OTHERS


_OTHERS = frozenset((
    "placeholder", "data", "variable", "const", "iota", "random_bits", "tag", "item", "custom",
    "reshape", "permute", "expand", "pad", "slice", "flip", "concat", "gather", "scatter", "argsort",
    "sum", "prod", "max", "min", "argmax", "argmin", "cumsum", "cumprod", "window_sum", "window_max", "window_argmax",
    "contract", "conv", "conv_data", "conv_filter", "call", "cond", "while_loop", "scan",
))  # fmt: skip


def applied(graph: Graph, narrow: DType | None = None, native: bool = True) -> Graph:
    """The graph after all passes."""
    for apply in pass_list(narrow, native).values():
        graph = apply(graph)
    return graph


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
    return build(graph, updates, Target(partial(applied, narrow=narrow), plan_for, threads), constants)
