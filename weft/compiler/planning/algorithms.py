"""Which algorithm computes a convolution: what the user prefers, what can be done at all, and what was measured.

A preference is a word (`knobs.preference` has its forms): the fastest algorithm, none with a workspace, none with more than
so many bytes, or an algorithm by name. It is a parameter of the convolution; an empty one means the setting conv_algorithm.
GPUs have algorithms of their own (gpu/algorithms.py), and need none that is slow to do without a workspace.
The fastest is the one that `find_algorithms` measured on this machine for this shape, or else the heuristic's, for all cores of the
machine: results must not change with the setting `threads`, and algorithms round differently.
An algorithm that cannot do a case is not an error: another one does it, and the note of the choice says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import astuple, dataclass
from functools import lru_cache
from math import prod
from typing import Any

from ...dtypes import float32
from ...errors import UserError
from ...graph.graph import Graph
from ...graph.node import Node
from ...knobs import ALGORITHMS, GPU_ALGORITHMS, knobs, preference
from ...options import BLOCK_CONV_ALGORITHM
from ..cpu.conv import algorithms as conv
from ..cpu.conv.algorithms import ConvShape, Direction
from ..cpu.library import Plan
from ..cpu.target import usable_cores
from ..store import cache, maker
from ..thresholds import thresholds

DIRECTIONS: dict[str, Direction] = {"conv": "forward", "conv_data": "data_gradient", "conv_filter": "filter_gradient"}
WINOGRAD = frozenset({"WINOGRAD", "WINOGRAD_2X2"})
LOOPS = "LOOPS"  # the sum that defines a convolution, as a kernel like any other: no plan, no workspace, slow
NEEDS = {
    "GEMM": "one group",
    "IMPLICIT_GEMM": "groups of more than one channel",
    "IMPLICIT_PRECOMP_GEMM": "one group",
    "CUDNN": "an NVIDIA GPU",
    **dict.fromkeys(
        WINOGRAD,
        "a 3 x 3 filter, stride and dilation 1, one group, and at least as many channels as a vector has lanes",
    ),
}

REMEMBERED = 256  # convolutions whose plans are kept: a deep network has few different ones

# --- preferences ----------------------------------------------------------------------------------------------------------

PREFER_FASTEST = "fastest"
NO_WORKSPACE = "no_workspace"
WITHIN = "within:"  # and a number of bytes: a limit, on devices that never need loops to keep to one


def WORKSPACE_LIMIT(nbytes: int) -> str:
    """The preference for algorithms that need at most so many bytes besides their operands and results.

    >>> WORKSPACE_LIMIT(1 << 20)
    'workspace:1048576'
    """
    return normal("WORKSPACE_LIMIT", f"workspace:{nbytes}")


def normal(where: str, prefer: Any) -> str:
    """A preference in its one form."""
    try:
        return preference(str(prefer))
    except ValueError as error:
        raise UserError(where, f"a known algorithm is required, got {prefer!r}: {error}.") from None


@contextmanager
def algorithms(prefer: str) -> Iterator[None]:
    """Convolutions made inside the `with` block, and their gradients, prefer this algorithm.

    >>> import weft
    >>> x, w = weft.ones((1, 4, 8, 8)), weft.ones((4, 4, 3, 3))
    >>> with algorithms("DIRECT"):
    ...     y = weft.conv(x, w)
    """
    before = BLOCK_CONV_ALGORITHM.set(normal("algorithms", prefer))
    try:
        with knobs.set(conv_algorithm=knobs.conv_algorithm):  # so that compiled functions look at their settings again
            yield
    finally:
        BLOCK_CONV_ALGORITHM.reset(before)


def in_force(where: str, given: Any = None) -> str:
    """What a convolution made now prefers: as the call says, or the `with` block around it, or the setting.

    The setting's default is left open: it is looked at when the convolution is compiled.
    """
    if given is not None:
        return normal(where, given)
    return BLOCK_CONV_ALGORITHM.get() or ("" if knobs.conv_algorithm == PREFER_FASTEST else knobs.conv_algorithm)


def check(where: str, prefer: Any) -> None:
    """Refuse a parameter that is no preference: the text of a graph may hold anything."""
    if isinstance(prefer, str) and prefer.startswith(WITHIN) and prefer.removeprefix(WITHIN).isdecimal():
        return  # the compiler's own
    if prefer != "" and (not isinstance(prefer, str) or normal(where, prefer) != prefer):
        raise UserError(where, f"a preference among algorithms is required, got {prefer!r}.")


# --- the choice -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """How a convolution is computed, and what to say about it if it is not what was asked for."""

    plan: Plan
    note: str = ""


def candidates(direction: Direction, shape: ConvShape, strides: tuple[int, ...], threads: int) -> dict[str, Plan]:
    """The plans that can do it and that the settings allow, by name."""
    found = _possible(direction, shape, strides, threads, thresholds.changed())
    return {name: plan for name, plan in found.items() if knobs.winograd or name not in WINOGRAD}


@lru_cache(REMEMBERED)
def _possible(
    direction: Direction, shape: ConvShape, strides: tuple[int, ...], threads: int, changed: str
) -> Mapping[str, Plan]:
    """`changed`: thresholds that are not what they usually are."""
    makers: dict[str, Callable[..., dict[str, Plan]]] = {
        "forward": conv.forward, "data_gradient": conv.data_gradient, "filter_gradient": conv.filter_gradient,
    }  # fmt: skip
    return makers[direction](shape, strides, threads)


@lru_cache(REMEMBERED)
def _estimated(
    direction: Direction, shape: ConvShape, strides: tuple[int, ...], forbidden: frozenset[str], changed: str
) -> str:
    """The name of the plan that should be the fastest on all cores of this machine."""
    return conv.choose(direction, shape, strides, usable_cores(), forbid=forbidden).name


def decide(direction: Direction, shape: ConvShape, strides: tuple[int, ...], threads: int, prefer: str = "") -> Choice:
    """The plan for a convolution."""
    prefer = prefer or knobs.conv_algorithm
    plans = candidates(direction, shape, strides, threads)
    least = min(plans.values(), key=lambda p: p.workspace)
    if prefer in plans:
        return Choice(plans[prefer])
    if prefer in (NO_WORKSPACE, LOOPS):
        return Choice(least, f"{least.workspace} bytes of workspace are the least")
    if prefer in (*ALGORITHMS, *GPU_ALGORITHMS):
        return Choice(_fastest(direction, shape, strides, plans), refusal(prefer))
    limit = workspace_limit(prefer)
    fitting = {name: plan for name, plan in plans.items() if limit is None or plan.workspace <= limit}
    if not fitting:
        return Choice(least, f"no plan fits into {limit} bytes: {least.workspace} are the least")
    return Choice(_fastest(direction, shape, strides, fitting))


def refusal(name: str) -> str:
    """Why an algorithm does not do a case."""
    if name in WINOGRAD and not knobs.winograd:
        return f"{name} is forbidden by the setting winograd"
    return f"{name} needs {NEEDS[name]}"


def workspace_limit(prefer: str) -> int | None:
    """The most bytes that a preference allows, if it says so in bytes."""
    kind, _, size = prefer.partition(":")
    return int(size) if kind == "workspace" else None


def _fastest(direction: Direction, shape: ConvShape, strides: tuple[int, ...], plans: Mapping[str, Plan]) -> Plan:
    """The fastest of these plans: as measured, or else as estimated."""
    times = measured(direction, shape)
    known = [name for name in plans if name in times]
    if known:
        return plans[min(known, key=lambda name: times[name])]
    forbidden = frozenset(ALGORITHMS) - set(plans)
    return plans[_estimated(direction, shape, strides, forbidden, thresholds.changed())]


def by_loops(node: Node) -> bool:
    """Whether a convolution (channels last) is computed by plain loops: no plan exists, or none that is small enough."""
    if node.dtype is not float32:
        return True
    prefer = preferred(node) or knobs.conv_algorithm
    limit = workspace_limit(prefer)
    if limit is None or not prod(node.shape):
        return prefer in (NO_WORKSPACE, LOOPS)
    direction, shape = described(node)
    strides = (1,) * (2 + len(shape.kernel))  # workspace does not depend on them
    plans = candidates(direction, shape, strides, knobs.threads or usable_cores())
    return all(plan.workspace > limit for plan in plans.values())


# --- convolutions as numbers ------------------------------------------------------------------------------------------------


def preferred(node: Node) -> str:
    """The preference that a convolution was made with."""
    return str(dict(zip(node.op.params, node.params, strict=True)).get("prefer", ""))


def described(node: Node) -> tuple[Direction, ConvShape]:
    """What a convolution is, be its tensors channels first or, after the pass `layout`, channels last."""
    name = node.op.name.removesuffix("_last")
    last = name != node.op.name
    a, b, y = (n.shape for n in (*node.inputs, node))
    if last:
        a = _first(a)
        b = _first(b) if name == "conv_filter" else b
        y = (y[-1], y[-2], *y[:-2]) if name == "conv_filter" else _first(y)
    x, w, out = {"conv": (a, b, y), "conv_data": (y, b, a), "conv_filter": (a, y, b)}[name]
    stride, padding, dilation, groups = node.params[:4]
    before = tuple(p[0] for p in padding)
    return DIRECTIONS[name], ConvShape(
        x[0], x[1], w[0], groups, x[2:], w[2:], stride, before, dilation, out[2:]
    )  # fmt: skip


def _first(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0], shape[-1], *shape[1:-1])


# --- what was measured ------------------------------------------------------------------------------------------------------

_here: dict[str, dict[str, float]] = {}  # measured by this process: the disk may be off


def _key(direction: Direction, shape: ConvShape) -> str:
    """The strides of the filter are left out: every algorithm packs it first, so they change little."""
    return f"{maker()}\nalgorithms {direction} {astuple(shape)}"


def remember(direction: Direction, shape: ConvShape, milliseconds: Mapping[str, float]) -> None:
    """Keep how long each algorithm took, for this process and the next ones."""
    key = _key(direction, shape)
    _here[key] = dict(milliseconds)
    cache().put(key, json.dumps(_here[key]).encode())


def measured(direction: Direction, shape: ConvShape) -> dict[str, float]:
    """What was remembered; empty if nothing was."""
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
        return {}  # another make of file: as good as none


def forget() -> None:
    """Forget what this process has measured; what is on disk stays."""
    _here.clear()


_then: ContextVar[Mapping[str, dict[str, float]] | None] = ContextVar("measured before", default=None)


def times_of(graph: Graph) -> dict[str, dict[str, float]]:
    """What is known now of the convolutions in a graph."""
    found = [described(node) for node in _convolutions(graph)]
    return {_key(*one): measured(*one) for one in found}


@contextmanager
def measured_as(times: Mapping[str, dict[str, float]]) -> Iterator[None]:
    """Inside, what was measured is this: to look again at a choice that was made before more was measured."""
    before = _then.set(times)
    try:
        yield
    finally:
        _then.reset(before)


def fingerprint(graph: Graph) -> str:
    """All that the choice of algorithms in a graph depends on besides the graph itself: part of the key of its code."""
    facts = [_fact(node) for node in _convolutions(graph)]
    return f"{knobs.conv_algorithm} winograd {knobs.winograd} {facts}" if facts else ""


def _fact(node: Node) -> list[str]:
    times = measured(*described(node))
    return sorted(times, key=lambda name: times[name])


def _convolutions(graph: Graph) -> list[Node]:
    return [node for node in _every_node(graph) if node.op.name.removesuffix("_last") in DIRECTIONS]


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
