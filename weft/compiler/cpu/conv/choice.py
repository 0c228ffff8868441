"""Chooses the algorithm of a convolution on CPUs from the user's preference, the algorithms that apply, and measured times.

The fastest algorithm is the one that `find_algorithms` measured on this machine for this shape, or else the choice of the cost model,
always for all cores of the machine: results must not change with the setting `threads`, and algorithms round differently.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import astuple
from functools import lru_cache
from math import prod

from ....graph.graph import Graph
from ....graph.node import Node
from ....knobs import ALGORITHMS, GPU_ALGORITHMS
from ....options import CompileOptions
from ...ir.conv_shape import ConvShape, Direction, described
from ...ir.fft_tiling import NEEDS as FFT_NEEDS
from ...ir.plan import Plan
from ...planning.algorithms import (
    LOOPS,
    NO_WORKSPACE,
    ConvChoice,
    asked_for_loops,
    preferred,
    sums_wider,
    workspace_limit,
)
from ...store import cache, compiler_version
from ...thresholds import thresholds
from .. import conv
from ..target import CpuTarget, current_target

WINOGRAD = frozenset({"WINOGRAD", "WINOGRAD_2X2"})
NEEDS = {
    "GEMM": "one group",
    "IMPLICIT_GEMM": "groups of more than one channel",
    "IMPLICIT_PRECOMP_GEMM": "one group",
    "CUDNN": "an NVIDIA GPU",
    **FFT_NEEDS,
    **dict.fromkeys(
        WINOGRAD,
        "a 3 x 3 filter, stride and dilation 1, one group, and at least as many channels as a vector has lanes",
    ),
}

REMEMBERED = 256  # convolutions whose plans are kept: a deep network has few different ones


def candidates(
    direction: Direction, shape: ConvShape, strides: tuple[int, ...], options: CompileOptions
) -> dict[str, Plan]:
    """The plans that can do it and that the options allow, by name."""
    found = _possible(direction, shape, strides, options.threads, thresholds.changed(), current_target())
    return {name: plan for name, plan in found.items() if options.winograd or name not in WINOGRAD}


@lru_cache(REMEMBERED)
def _possible(
    direction: Direction, shape: ConvShape, strides: tuple[int, ...], threads: int, changed: str, target: CpuTarget
) -> Mapping[str, Plan]:
    """The plans that apply. `changed`: thresholds that differ from their defaults, as a cache key."""
    makers: dict[str, Callable[..., dict[str, Plan]]] = {
        "forward": conv.algorithms.forward, "data_gradient": conv.algorithms.data_gradient, "filter_gradient": conv.algorithms.filter_gradient,
    }  # fmt: skip
    return makers[direction](shape, strides, threads, target)


@lru_cache(REMEMBERED)
def _estimated(
    direction: Direction,
    shape: ConvShape,
    strides: tuple[int, ...],
    forbidden: frozenset[str],
    changed: str,
    target: CpuTarget,
) -> str:
    """The name of the plan with the lowest estimated cost on all cores of the target."""
    return conv.algorithms.choose(direction, shape, strides, target.cores, target, forbid=forbidden).name


def decide(
    direction: Direction, shape: ConvShape, strides: tuple[int, ...], options: CompileOptions, prefer: str = ""
) -> ConvChoice:
    """The plan for a convolution."""
    prefer = prefer or options.conv_algorithm
    plans = candidates(direction, shape, strides, options)
    least = min(plans.values(), key=lambda p: p.workspace)
    if prefer in plans:
        return ConvChoice(plans[prefer])
    if prefer in (NO_WORKSPACE, LOOPS):
        return ConvChoice(least, f"{least.workspace} bytes of workspace are the least")
    if prefer in (*ALGORITHMS, *GPU_ALGORITHMS):
        return ConvChoice(_fastest(direction, shape, strides, plans), refusal(prefer, options))
    limit = workspace_limit(prefer)
    fitting = {name: plan for name, plan in plans.items() if limit is None or plan.workspace <= limit}
    if not fitting:
        return ConvChoice(least, f"no plan fits into {limit} bytes: {least.workspace} are the least")
    return ConvChoice(_fastest(direction, shape, strides, fitting))


def refusal(name: str, options: CompileOptions) -> str:
    """Why an algorithm does not do a case."""
    if name in WINOGRAD and not options.winograd:
        return f"{name} is forbidden by the setting winograd"
    return f"{name} needs {NEEDS[name]}"


def _fastest(direction: Direction, shape: ConvShape, strides: tuple[int, ...], plans: Mapping[str, Plan]) -> Plan:
    """The fastest of these plans, as measured or else as estimated."""
    times = measured(direction, shape)
    known = [name for name in plans if name in times]
    if known:
        return plans[min(known, key=lambda name: times[name])]
    forbidden = frozenset(ALGORITHMS) - set(plans)
    return plans[_estimated(direction, shape, strides, forbidden, thresholds.changed(), current_target())]


def by_loops(node: Node, options: CompileOptions) -> bool:
    """Whether a convolution (channels last) is computed by plain loops: no plan exists, or none that is small enough."""
    if sums_wider(node):
        return False
    prefer = preferred(node) or options.conv_algorithm
    if asked_for_loops(node, options.conv_algorithm) or prefer == NO_WORKSPACE:
        return True
    limit = workspace_limit(prefer)
    if limit is None or not prod(node.shape):
        return False
    direction, shape = described(node)
    strides = (1,) * (2 + len(shape.kernel))  # workspace does not depend on them
    plans = candidates(direction, shape, strides, options)
    return all(plan.workspace > limit for plan in plans.values())


# --- what was measured ------------------------------------------------------------------------------------------------------

_here: dict[str, dict[str, float]] = {}  # times measured by this process: the disk cache may be off


def _key(direction: Direction, shape: ConvShape) -> str:
    """The cache key of measured times. It omits the strides of the filter, which matter little: every algorithm packs it first."""
    return f"{current_target().key} {compiler_version()}\nalgorithms {direction} {astuple(shape)}"


def remember(direction: Direction, shape: ConvShape, milliseconds: Mapping[str, float]) -> None:
    """Store the time of each algorithm, for this process and on disk for later ones."""
    key = _key(direction, shape)
    _here[key] = dict(milliseconds)
    cache().put(key, json.dumps(_here[key]).encode())


def measured(direction: Direction, shape: ConvShape) -> dict[str, float]:
    """The stored times; empty if there are none."""
    key, then = _key(direction, shape), _then.get()
    if then is not None and key in then:
        return then[key]
    if key in _here:
        return _here[key]
    content = cache().get(key)
    try:
        found = json.loads(content) if content is not None else {}
        return {str(name): float(time) for name, time in found.items()}
    except (ValueError, TypeError, AttributeError):
        return {}  # an invalid file counts as none


def forget() -> None:
    """Clear the times of this process; those on disk are kept."""
    _here.clear()


_then: ContextVar[Mapping[str, dict[str, float]] | None] = ContextVar("measured before", default=None)


def times_of(graph: Graph) -> dict[str, dict[str, float]]:
    """The times known now for the convolutions of a graph."""
    found = [described(node) for node in _convolutions(graph)]
    return {_key(*one): measured(*one) for one in found}


@contextmanager
def measured_as(times: Mapping[str, dict[str, float]]) -> Iterator[None]:
    """Use these times inside the `with` block: reproduces a choice that was made before further measurements."""
    before = _then.set(times)
    try:
        yield
    finally:
        _then.reset(before)


def fingerprint(graph: Graph) -> str:
    """What the choice of algorithms in a graph depends on besides the graph and the options: part of the cache key of its code."""
    facts = [_fact(node) for node in _convolutions(graph)]
    return str(facts) if facts else ""


def _fact(node: Node) -> list[str]:
    times = measured(*described(node))
    return sorted(times, key=lambda name: times[name])


def _convolutions(graph: Graph) -> list[Node]:
    return [node for node in _every_node(graph) if node.op.kernel == "convolution"]


def _every_node(graph: Graph) -> Iterator[Node]:
    """The nodes of a graph and of the bodies of its control flow, each body once."""
    waiting, seen = [graph], {graph}
    while waiting:
        for node in waiting.pop().nodes:
            yield node
            for part in node.params:
                if isinstance(part, Graph) and part not in seen:
                    seen.add(part)
                    waiting.append(part)
