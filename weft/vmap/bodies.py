"""Batching of loops and branches: their bodies are batched, and examples that take different branches are selected afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..control import while_loop
from ..dtypes import int8
from ..graph import Graph
from ..graph.graph import close
from ..graph.node import Op, Type, item, make, placeholder
from ..ops.creation import iota, zeros
from ..ops.elementwise import where
from ..ops.indexing import take
from ..ops.movement import moveaxis, reshape
from ..ops.reduce import any as any_of
from ..ops.reduce import argmax
from ..tensor import Tensor, wrap
from .ops import BatchedCall, Each, refuse_draws, rule, walk


def mapped_graph(
    graph: Graph, mapped: Sequence[bool], size: int, wanted: Sequence[bool] = ()
) -> tuple[Graph, list[bool]]:
    """The batched graph, and which of its results are batched. Those that must be are broadcast if they are not."""
    refuse_draws([graph])
    fresh = [
        placeholder(object(), Type((size, *n.shape), n.dtype) if m else n.type)
        for n, m in zip(graph.inputs, mapped, strict=True)
    ]
    found = walk(graph.outputs, dict(zip(graph.inputs, zip(fresh, mapped, strict=True), strict=True)), size)
    spread = [
        _spread(each, size) if want else each for each, want in zip(found, wanted or [False] * len(found), strict=True)
    ]
    return close(fresh, [n for n, _ in spread]), [m for _, m in spread]


def _spread(each: Each, size: int) -> Each:
    return BatchedCall(size, [wrap(each[0])], [each[1]]).each(0).node, True


def _applied(graph: Graph, inputs: Sequence[Each], size: int) -> list[Each]:
    """The graph applied to batched inputs, node by node."""
    refuse_draws([graph])
    return walk(graph.outputs, dict(zip(graph.inputs, inputs, strict=True)), size)


def results(op: Op, inputs: Sequence[Tensor], params: tuple[Any, ...], mapped: Sequence[bool]) -> list[Each]:
    node = make(op, tuple(x.node for x in inputs), params)
    return [(item(node, i), m) for i, m in enumerate(mapped)]


@rule("call")
def _call(call: BatchedCall, op: Op, body: Graph) -> list[Each]:
    graph, mapped = mapped_graph(body, call.mapped, call.size)
    return results(op, call.tensors, (graph,), mapped)


@rule("cond")
def _cond(call: BatchedCall, op: Op, then: Graph, other: Graph) -> list[Each]:
    """If the condition is the same for all examples, one branch runs; otherwise each branch is computed for the examples that take it."""
    condition, inputs, rest = call.tensors[0], call.tensors[1:], call.mapped[1:]
    if not call.mapped[0]:
        wanted = [a or b for a, b in zip(*(mapped_graph(g, rest, call.size)[1] for g in (then, other)), strict=True)]
        graphs = tuple(mapped_graph(g, rest, call.size, wanted)[0] for g in (then, other))
        return results(op, call.tensors, graphs, wanted)
    chosen, not_chosen = (
        _branch(op, graph, taken, inputs, rest, call.size) for graph, taken in ((then, condition), (other, ~condition))
    )
    return [_chosen(condition, a, b, call.size) for a, b in zip(chosen, not_chosen, strict=True)]


def _branch(
    op: Op, graph: Graph, taken: Tensor, inputs: Sequence[Tensor], mapped: Sequence[bool], size: int
) -> list[Each]:
    """A branch for the examples that take it; nothing is computed if there are none."""
    body, every = mapped_graph(graph, mapped, size, [True] * len(graph.outputs))
    nothing = [zeros(o.shape, dtype=o.dtype).node for o in body.outputs]
    given = _with_stand_ins(taken, inputs, mapped)
    return results(op, [any_of(taken), *given], (body, Graph(body.inputs, tuple(nothing))), every)


def _with_stand_ins(taken: Tensor, inputs: Sequence[Tensor], mapped: Sequence[bool]) -> list[Tensor]:
    """The inputs, with examples that do not take the branch replaced by one that does.

    Their values may be ones that the condition guards against: an index out of range, the logarithm of 0, an endless loop.
    """
    rows = where(taken, iota(taken.shape[0]), argmax(taken.astype(int8)))
    return [take(x, rows, axis=0) if m else x for x, m in zip(inputs, mapped, strict=True)]


def _chosen(condition: Tensor, a: Each, b: Each, size: int) -> Each:
    x, y = wrap(_spread(a, size)[0]), wrap(_spread(b, size)[0])
    return where(reshape(condition, (size, *[1] * (x.ndim - 1))), x, y).node, True


@rule("while_loop")
def _while(call: BatchedCall, op: Op, test: Graph, body: Graph, carried: int) -> list[Each]:
    """The loop runs while any example continues; finished examples keep their values."""
    constants, mapped = call.tensors[carried:], call.mapped[carried:]

    def applied(graph: Graph, values: Sequence[Tensor]) -> list[Each]:
        flags = [True] * carried + mapped
        return _applied(graph, [(v.node, m) for v, m in zip(values, flags, strict=True)], call.size)

    def going(values: Sequence[Tensor]) -> Tensor:
        [each] = applied(test, [*values, *constants])
        return wrap(_spread(each, call.size)[0])

    def step(values: Sequence[Tensor]) -> list[Tensor]:
        goes_on = going(values)
        new = applied(body, _with_stand_ins(goes_on, [*values, *constants], [True] * carried + mapped))
        return [wrap(_chosen(goes_on, each, (v.node, True), call.size)[0]) for each, v in zip(new, values, strict=True)]

    start = [call.each(i) for i in range(carried)]
    return [(v.node, True) for v in while_loop(lambda values: any_of(going(values)), step, start)]


@rule("scan")
def _scan(
    call: BatchedCall, op: Op, body: Graph, carried: int, sequences: int, length: int, reverse: bool, history: bool
) -> list[Each]:
    """A carried value is batched if it is so at the beginning or after any step."""
    mapped = list(call.mapped)
    while True:
        _, after = mapped_graph(body, mapped, call.size)
        grown = [m or (i < carried and after[i]) for i, m in enumerate(mapped)]
        if grown == mapped:
            break
        mapped = grown
    graph, after = mapped_graph(body, mapped, call.size, [*mapped[:carried], *after[carried:]])
    inputs = [call.each(i) if m else x for i, (x, m) in enumerate(zip(call.tensors, mapped, strict=True))]
    for i in range(carried, carried + sequences):
        inputs[i] = moveaxis(inputs[i], 0, 1) if mapped[i] else inputs[i]  # steps come first
    every = [*after, *(after[:carried] if history else ())]
    made = results(op, inputs, (graph, carried, sequences, length, reverse, history), every)
    return [(moveaxis(wrap(n), 1, 0).node, True) if m and i >= carried else (n, m) for i, (n, m) in enumerate(made)]
