"""Batching a computation on one example: the walk over its nodes, and the batching rule of each op.

Every value becomes one with the examples along its first axis, unless it is the same for all of them: then it stays what it is, and is
computed once. Rules are written in graph ops, so what comes out can be differentiated, compiled and mapped again.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..errors import UserError
from ..graph import Graph
from ..graph.graph import rebuild
from ..graph.node import ITEM, OPS, VARIABLE, Node, Op, Shape, blame, dependencies, toposort
from ..ops.contract import contract
from ..ops.creation import iota, zeros
from ..ops.declare import expand_to
from ..ops.elementwise import where
from ..ops.indexing import scatter
from ..ops.movement import moveaxis, permute_dims, reshape
from ..ops.slice_update import read_slice, update_slice
from ..ops.window import Pairs
from ..random import BITS
from ..records import dataclass
from ..tensor import Tensor, emit, emit_all, wrap

Each = tuple[Node, bool]  # a value, and whether the examples are its first axis


@dataclass
class BatchedCall:
    """The inputs of an op that is batched: which of them have the axis of examples in front."""

    size: int  # how many examples
    tensors: list[Tensor]
    mapped: list[bool]  # which of them differ
    draws: bool = False  # from a stream that advances `size` times as fast: each example has numbers of its own

    def each(self, i: int) -> Tensor:
        """An input with the examples in front, broadcast if it is the same for all."""
        x = self.tensors[i]
        return x if self.mapped[i] else expand_to(reshape(x, (1, *x.shape)), (self.size, *x.shape))

    def all(self) -> tuple[Tensor, ...]:
        return tuple(self.each(i) for i in range(len(self.tensors)))


def walk(
    roots: Sequence[Node],
    known: Mapping[Node, Each],
    size: int,
    start: int = -1,
    streams: Mapping[Node, Node] | None = None,
) -> list[Each]:
    """The batched roots, given the batched form of some nodes. Nodes created before the CLOCK `start` are not batched.

    `streams` maps nodes that are positions of random streams to the positions at which these start: each example draws its own numbers.
    """
    done, several, begin = dict(known), dict[Node, list[Each]](), dict(streams or {})
    with blame() as attribute_to:
        for node in toposort(roots, lambda n: () if n in known or n.serial <= start else dependencies(n)):
            if node in done or node in several:
                continue
            attribute_to(node.source)
            inputs = [] if node.serial <= start else [done[i] for i in dependencies(node) if i in done]
            stream = next((begin[i] for i in node.inputs if i in begin), None)
            if node.op is ITEM and node.inputs[0] in several:
                done[node] = several[node.inputs[0]][node.param("index")]
            elif node.op is BITS and stream is not None:
                done[node] = _drawn(inputs, stream, node.param("shape"), size).node, True
            elif any(mapped for _, mapped in inputs) or (stream is not None and is_draw(node)):
                if stream is not None:
                    inputs = [_own_stream(i, each, begin, size) for i, each in zip(node.inputs, inputs, strict=True)]
                made = _apply(node, inputs, size, stream is not None)
                if isinstance(made, list):
                    several[node] = made
                elif isinstance(made, tuple):
                    several[node] = [(t.node, True) for t in made]
                else:
                    done[node] = made.node, True
            else:
                _refuse_draws(node, start)
                done[node] = rebuild(node, tuple(n for n, _ in inputs)) if node.inputs and inputs else node, False
                if stream is not None:
                    begin[node] = stream  # a position further on
    return [done[root] for root in roots]


def _apply(node: Node, inputs: Sequence[Each], size: int, draws: bool = False) -> Any:
    if node.op is VARIABLE:
        return wrap(inputs[0][0])  # a parameter that the function made, and that waits for its value
    if not size:
        nothing = [zeros((0, *t.shape), dtype=t.dtype) for t in node.outputs or (node.type,)]
        return [(t.node, True) for t in nothing] if node.outputs else nothing[0]
    call = BatchedCall(size, [wrap(n) for n, _ in inputs], [mapped for _, mapped in inputs], draws)
    known = node.op.batch
    if known is None and node.op.kind != "elementwise":
        raise UserError(
            "vmap",
            f"the op {node.op.name!r} has no rule for many examples at once. Declare it with `batch=`.",
        )
    return emit(node.op, call.all(), node.params) if known is None else known(call, node.op, *node.params)


# --- random numbers ----------------------------------------------------------------------------------------------------------


def _drawn(inputs: Sequence[Each], start: Node, shape: Shape, size: int) -> Tensor:
    """Bits for all examples, from a stream that advances `size` times as fast, so that no two draws overlap."""
    key, position = (wrap(n) for n, _ in inputs)
    return emit(BITS, (key, times_as_far(wrap(start), position, size)), ((size, *shape),))


def times_as_far(start: Tensor, position: Tensor, size: int) -> Tensor:
    """A position of a stream in which each step from the start is so many times as long."""
    return start + (position - start) * size


def _own_stream(node: Node, each: Each, begin: Mapping[Node, Node], size: int) -> Each:
    """The position of a stream for all examples: the first axis of what is drawn is that of the examples."""
    return (times_as_far(wrap(begin[node]), wrap(each[0]), size).node, False) if node in begin else each


def is_draw(node: Node) -> bool:
    """Whether a node draws random numbers."""
    return node.op is BITS or bool("dropout" in node.op.param_index and node.param("dropout"))


def draws(graph: Graph) -> bool:
    """Whether a graph, or one inside of it, draws random numbers."""
    inner = (p for n in graph.nodes for p in n.params if isinstance(p, Graph))
    return any(map(is_draw, graph.nodes)) or any(map(draws, inner))


def _refuse_draws(node: Node, start: int) -> None:
    if node.serial > start and node.op.kind == "control":
        refuse_draws(p for p in node.params if isinstance(p, Graph))


def refuse_draws(bodies: Iterable[Graph]) -> None:
    """Raise an error for random streams that advance inside of loops and branches: they cannot be batched."""
    if any(map(draws, bodies)):
        raise UserError(
            "vmap",
            "the function draws random numbers inside scan, cond, while_loop or checkpoint, where each example would draw the same. "
            "Draw them before, and pass them in.",
        )


# --- the rules: movement -------------------------------------------------------------------------------------------------------


def rule(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the batching rule of ops: (call, op, *params) -> the result, with the examples in front.

    Of an op with several results it gives a tuple of them, or, if some of them are the same for all examples, a list of Each.
    """

    def enter(f: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            OPS[name].batch = f
        return f

    return enter


def _behind(axes: Iterable[int]) -> tuple[int, ...]:
    """Axes of an example as axes of the batched tensor."""
    return tuple(a + 1 for a in axes)


@rule("tag")
def _tag(call: BatchedCall, op: Op, key: object) -> Tensor:
    return call.tensors[0]  # the derivative that it was for is there already


@rule("transfer")
def _unchanged(call: BatchedCall, op: Op, *params: Any) -> Tensor:
    return emit(op, (call.tensors[0],), params)


@rule("reshape")
def _reshape(call: BatchedCall, op: Op, shape: Shape) -> Tensor:
    return reshape(call.tensors[0], (call.size, *shape))


@rule("permute")
def _permute(call: BatchedCall, op: Op, axes: Shape) -> Tensor:
    return permute_dims(call.tensors[0], (0, *_behind(axes)))


@rule("expand")
def _expand(call: BatchedCall, op: Op, shape: Shape) -> Tensor:
    x = call.tensors[0]
    new = len(shape) - (x.ndim - 1)
    return expand_to(reshape(x, (call.size, *[1] * new, *x.shape[1:])), (call.size, *shape))


@rule("pad")
def _pad(call: BatchedCall, op: Op, widths: tuple[Shape, ...], value: Any) -> Tensor:
    return emit(op, (call.tensors[0],), (((0, 0, 0), *widths), value))


@rule("slice")
def _slice(call: BatchedCall, op: Op, starts: Shape, stops: Shape, steps: Shape) -> Tensor:
    return emit(op, (call.tensors[0],), ((0, *starts), (call.size, *stops), (1, *steps)))


@rule("concat")
def _concat(call: BatchedCall, op: Op, axis: int) -> Tensor:
    return emit(op, call.all(), (axis + 1,))


# --- along axes, over axes, over windows ------------------------------------------------------------------------------------------


@rule("flip", "sum", "prod", "max", "min")
def _over_axes(call: BatchedCall, op: Op, axes: Shape) -> Tensor:
    return emit(op, (call.tensors[0],), (_behind(axes),))


@rule("argmax", "argmin", "cumsum", "cumprod", "argsort")
def _along_axis(call: BatchedCall, op: Op, axis: int, *rest: Any) -> Tensor:
    return emit(op, (call.tensors[0],), (axis + 1, *rest))


@rule("top_k")
def _top_k(call: BatchedCall, op: Op, axis: int, k: int) -> tuple[Tensor, ...]:
    return emit_all(op, (call.tensors[0],), (axis + 1, k))


@rule("window_sum", "window_max")
def _windows(call: BatchedCall, op: Op, size: Shape, stride: Shape, padding: Pairs, dilation: Shape) -> Tensor:
    return emit(op, (call.tensors[0],), ((1, *size), (1, *stride), ((0, 0), *padding), (1, *dilation)))


@rule("window_argmax")
def _window_places(call: BatchedCall, op: Op, *window: Any) -> Tensor:
    places = _windows(call, op, *window)  # among the elements of all examples; below 0 in padding
    others = iota(call.size) * math.prod(call.tensors[0].shape[1:])
    before = expand_to(reshape(others, (call.size, *[1] * (places.ndim - 1))), places.shape)
    return where(places < 0, places, places - before)


# --- products and convolutions -------------------------------------------------------------------------------------------------


@rule("contract")
def _contract(call: BatchedCall, op: Op, a: str, b: str, out: str) -> Tensor:
    """The axis of examples is one more letter of the batched operands."""
    new = next(c for c in string.ascii_letters if c not in a + b)
    x, y = call.tensors
    return contract(x, y, new * call.mapped[0] + a, new * call.mapped[1] + b, new + out)


@rule("conv", "conv_data")
def _conv(call: BatchedCall, op: Op, *params: Any) -> Tensor:
    """If the filter is shared, examples are further images; otherwise each example has its own groups of channels."""
    if not call.mapped[1]:
        x, w = call.tensors
        y = emit(op, (reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:])), w), params)
        return reshape(y, (*x.shape[:2], *y.shape[1:]))
    x, w = call.all()
    y = emit(
        op, (_as_channels(x), reshape(w, (w.shape[0] * w.shape[1], *w.shape[2:]))), _with_groups(params, call.size)
    )
    return moveaxis(reshape(y, (y.shape[0], call.size, y.shape[1] // call.size, *y.shape[2:])), 1, 0)


@rule("conv_filter")
def _conv_filter(call: BatchedCall, op: Op, *params: Any) -> Tensor:
    """Each example has its own groups of channels and its own filters."""
    x, g = call.all()
    w = emit(op, (_as_channels(x), _as_channels(g)), _with_groups(params, call.size))
    return reshape(w, (call.size, w.shape[0] // call.size, *w.shape[1:]))


def _as_channels(x: Tensor) -> Tensor:
    """(examples, images, channels, ...) -> (images, examples * channels, ...)"""
    return reshape(moveaxis(x, 0, 1), (x.shape[1], x.shape[0] * x.shape[2], *x.shape[3:]))


def _with_groups(params: tuple[Any, ...], size: int) -> tuple[Any, ...]:
    stride, padding, dilation, groups, *rest = params
    return (stride, padding, dilation, groups * size, *rest)


# --- reading and writing at indices ------------------------------------------------------------------------------------------------


@rule("gather")
def _gather(call: BatchedCall, op: Op, axes: Shape, wraps: bool) -> Tensor:
    x, *indices = call.tensors
    if not any(call.mapped[1:]):  # all read at the same places: the examples come behind the axes of the indices
        return moveaxis(emit(op, (x, *indices), (_behind(axes), wraps)), indices[0].ndim, 0)
    several = [call.each(i) for i in range(1, len(call.tensors))]
    if not call.mapped[0]:
        return emit(op, (x, *several), (axes, wraps))
    return emit(op, (x, _own_rows(several[0]), *several), ((0, *_behind(axes)), wraps))


@rule("scatter")
def _scatter(call: BatchedCall, op: Op, axes: Shape, how: str) -> Tensor:
    x, values, *indices = call.each(0), call.each(1), *call.tensors[2:]
    if not any(call.mapped[2:]):
        return emit(op, (x, moveaxis(values, 0, indices[0].ndim), *indices), (_behind(axes), how))
    several = [call.each(i) for i in range(2, len(call.tensors))]
    return emit(op, (x, values, _own_rows(several[0]), *several), ((0, *_behind(axes)), how))


@rule("update_slice")
def _update_slice(call: BatchedCall, op: Op, axes: Shape, starts: Shape, steps: Shape) -> Tensor:
    """One index for all: the examples are one more axis. Otherwise each example's index names a row of the static slice."""
    x, value, *indices = call.each(0), call.each(1), *call.tensors[2:]
    starts, steps = (0, *starts), (1, *steps)
    if not any(call.mapped[2:]):
        return emit(op, (x, value, *indices), (_behind(axes), starts, steps))
    several = [call.each(i) for i in range(2, len(call.tensors))]
    kept = [a for a in range(x.ndim) if a - 1 not in axes]
    counts = [x.shape[a] if a not in kept else value.shape[kept.index(a)] for a in range(x.ndim)]
    part = read_slice(x, tuple(counts), (), (), starts, steps)
    part = scatter(part, value, [_own_rows(several[0]), *several], (0, *_behind(axes)), "set")
    return update_slice(x, part, (), (), starts, steps)


def _own_rows(like: Tensor) -> Tensor:
    """An index that selects, for each example, the example itself."""
    return expand_to(reshape(iota(like.shape[0]), (like.shape[0], *[1] * (like.ndim - 1))), like.shape)
