"""The loops of a fused kernel, and what is computed at each place.

    for outer loops (divided among the threads):
        phase 1: for its own loops: reduce something to one value a row
        phase 2: for its own loops: compute with it, and store
        ...

So a softmax is one kernel: the row's maximum, its sum of exponentials, its quotients; the row stays in the cache. The body of a
phase is a list of steps in topological order, from loads to what is stored or reduced (`body`). Movement of data is no
step: it only changes the place at which its input is read.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field
from math import prod
from typing import Any

from ...errors import InternalError
from ...graph.node import CONST, Node, Shape, toposort
from ...records import dataclass
from ..thresholds import thresholds
from .index import IndexExpr, Inside, Loop, Place, Quotient, Read, Remainder, fresh, inside, linear, moved, substituted
from .window_ops import SPREAD

Key = tuple[Node, Place]  # an element to compute: its node and its place
Position = Callable[[Place, Shape], IndexExpr]


@dataclass(frozen=True)
class Step:
    """One operation for each element. `args` are the numbers of earlier steps.

    load: read `node` at `place`. row: the value an earlier phase gave `node`. op: the node's own op on args. iota, const.
    guard: the arg where all conditions hold, else the filler of `node` (a pad). choose: of args the first whose conditions
    hold (a concat). bits: random bits from args (key, offset). window: the combination of args, each under conditions.
    """

    kind: str
    node: Node
    place: Place = ()
    args: tuple[int, ...] = ()
    conditions: tuple[tuple[Inside, ...], ...] = ()
    indices: tuple[
        IndexExpr, ...
    ] = ()  # the form of the place that code generation needs: positions in memory, or the index itself


@dataclass(frozen=True)
class Body:
    """Steps, and the number of the step for each wanted element (also those that places read from)."""

    steps: tuple[Step, ...]
    number: Mapping[Key, int]


def taps(node: Node) -> int:
    """How many elements a window op combines; 0 for other ops."""
    return prod(node.param("size")) if node.op.kernel == "window" else 0


def is_inline(node: Node) -> bool:
    """Whether a node can be computed element by element inside another's loops."""
    return (
        node.op.kind == "elementwise"
        or node.op.kernel in ("loop", "view")
        or (0 < taps(node) <= thresholds.unrolled_taps)
    )


def body(
    wanted: Iterable[Key], stored: Collection[Node], rows: Collection[Node] = (), position: Position = linear
) -> Body:
    """The steps that compute the wanted elements from stored nodes and row values. `position`: `linear`, or one that remembers."""

    def below(key: Key) -> Sequence[Key]:
        return needs(key, stored, rows)

    order = toposort(list(wanted), below)
    number: dict[Key, int] = {}
    steps = []
    for key in order:
        steps.append(_step(key, number, stored, rows, position))
        number[key] = len(number)
    return Body(tuple(steps), number)


def needs(key: Key, stored: Collection[Node], rows: Collection[Node] = ()) -> list[Key]:
    """The elements that one element is computed from."""
    node, place = key
    if node in rows:
        return []
    if node in stored or node.op.name == "iota":
        return reads(place)
    if node.op is CONST:
        return []
    if node.op.name == "random_bits":
        return [*reads(place), *((i, ()) for i in node.inputs)]
    if node.op.kind == "elementwise":
        return [(i, place) for i in node.inputs]
    if node.op.kind == "move":
        found = []
        for x, there, conditions in sources(node, place):
            found += [(x, there), *condition_reads(conditions)]
        return found
    if node.op.name == "gather":
        x, there = gathered(node, place)
        return [*reads(there), (x, there)]
    if taps(node):
        seen = window_taps(node, place)
        return [
            k
            for _, there, conditions in seen
            for k in (*((i, there) for i in node.inputs), *condition_reads(conditions))
        ]
    raise InternalError("loops", f"{node} cannot be computed inside a loop.")


def _step(
    key: Key, number: Mapping[Key, int], stored: Collection[Node], rows: Collection[Node], position: Position
) -> Step:
    node, place = key
    if node in rows:
        return Step("row", node, place)
    if node in stored:
        return Step("load", node, place, indices=(position(place, node.shape),))
    name = node.op.name
    if name == "const":
        return Step(name, node, place)
    if name == "iota":
        return Step(name, node, place, indices=(place[0],))
    if name == "random_bits":
        args = tuple(number[(i, ())] for i in node.inputs)
        return Step("bits", node, place, args, indices=(linear(place, node.shape),))
    if node.op.kind == "elementwise":
        return Step("op", node, place, tuple(number[(i, place)] for i in node.inputs))
    if name == "gather":
        return Step("same", node, place, (number[gathered(node, place)],))
    if taps(node):
        found = window_taps(node, place)
        args = tuple(number[(i, there)] for _, there, _ in found for i in node.inputs)
        if name == "window_argmax":
            positions = tuple(linear(there, node.inputs[0].shape) for _, there, _ in found)
        else:
            positions = tuple(map(IndexExpr, range(len(found))))
        return Step("window", node, place, args, tuple(conditions for _, _, conditions in found), positions)
    alternatives = sources(node, place)
    args = tuple(number[(x, there)] for x, there, _ in alternatives)
    conditions = tuple(c for _, _, c in alternatives)
    if name == "pad":
        return (
            Step("guard", node, place, args, conditions)
            if not args or conditions[0]
            else Step("same", node, place, args)
        )
    if name == "concat" and len(args) > 1:
        return Step("choose", node, place, args, conditions)
    return Step("same", node, place, args)


def sources(node: Node, place: Place) -> list[tuple[Node, Place, tuple[Inside, ...]]]:
    """Where a movement op reads; nothing if its input has no elements."""
    return [s for s in moved(node, place) if prod(s[0].shape)]


def gathered(node: Node, place: Place) -> Key:
    """The element of the table that a gather reads."""
    x, *indices = node.inputs
    axes = node.param("axes")
    count = len(indices[0].shape)
    rest = iter(place[count:])
    by_axis = dict(zip(axes, indices, strict=True))
    there = []
    for axis, n in enumerate(x.shape):
        if axis in by_axis:
            there.append(IndexExpr(0, ((Read(by_axis[axis], place[:count], n, node), 1),)))
        else:
            there.append(next(rest))
    return x, tuple(there)


def window_taps(node: Node, place: Place) -> list[tuple[tuple[int, ...], Place, tuple[Inside, ...]]]:
    """The places that a window op reads for one place of its result, one for each tap."""
    size = node.param("size")
    return [
        (tap, *window_place(node, place, tuple(map(IndexExpr, tap)))) for tap in itertools.product(*map(range, size))
    ]


def window_place(node: Node, place: Place, tap: Place) -> tuple[Place, tuple[Inside, ...]]:
    """The place in the input that a window reads with one of its taps, and the conditions for it not to be padding. For `window_spread` the
    reverse: the window that reads the place with this tap, if there is one.
    """
    stride, padding, dilation = node.get_params("stride", "padding", "dilation")
    there: list[IndexExpr] = []
    conditions: list[Inside] = []
    for i, t, s, (low, _), d, n in zip(place, tap, stride, padding, dilation, node.inputs[0].shape, strict=True):
        if node.op is SPREAD:
            there.append(guarded(i + t * -d + low, n, s, conditions))
        else:
            there.append(guarded(i * s + t * d + -low, n, 1, conditions))
    return tuple(there), tuple(conditions)


def guarded(index: IndexExpr, size: int, step: int, conditions: list[Inside]) -> IndexExpr:
    """A place that is safe to read; the condition under which it is the right one is added to `conditions`, if one is needed."""
    safe = inside(index, size, step)
    term = safe.parts[0][0] if len(safe.parts) == 1 else None
    if isinstance(term, Inside) and term.inner == index:
        conditions.append(term)
    return safe


def reads(place: Place) -> list[Key]:
    """The elements that the place itself depends on, outermost last."""
    if all(type(term) is Loop for index in place for term, _ in index.parts):
        return []
    found: list[Key] = []
    stack: list[IndexExpr] = list(place)
    while stack:
        for term, _ in stack.pop().parts:
            if isinstance(term, Read):
                found.append((term.node, term.place))
            elif isinstance(term, Quotient | Remainder | Inside):
                stack.append(term.inner)
    return found


def condition_reads(conditions: Iterable[Inside]) -> list[Key]:
    return reads(tuple(c.inner for c in conditions))


# --- kernels ----------------------------------------------------------------------------------------------------------------


@dataclass
class Reduction:
    """A node that is the sum (or another combination) over `loops` of the product of `factors`, a row value.

    The factors of a `window_spread` are a window's tap and its value: the value is used where that tap is the current one.
    """

    node: Node
    place: Place  # in the outer loops
    loops: tuple[Loop, ...]
    factors: tuple[Key, ...]
    conditions: tuple[Inside, ...] = ()  # where they do not hold, no element is combined


@dataclass
class Store:
    """A node whose elements are written."""

    node: Node
    place: Place
    loops: tuple[Loop, ...] = ()  # beside the outer ones


@dataclass
class LoopPhase:
    """The reductions or stores that share the same loops."""

    loops: tuple[Loop, ...]
    reductions: list[Reduction] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    elements: Any = field(default=None, compare=False, repr=False)  # elements.Elements, while kernels merge


@dataclass
class Nest:
    """The loops of one kernel. `rows` are the nodes whose values stay inside it."""

    outer: tuple[Loop, ...]
    phases: list[LoopPhase]

    @property
    def rows(self) -> list[Node]:
        return [r.node for p in self.phases for r in p.reductions]


def reduction(node: Node, place: Place) -> Reduction:
    """The loops of a reduce op at a place of its result."""
    op, x = node.op, node.inputs[0]
    if op.kernel == "convolution":
        loops, factors, conditions = CONVOLUTIONS[op.name](node, place)
        return Reduction(node, place, plain_loops(loops), factors, tuple(conditions))
    if taps(node):
        tap = fresh(node.param("size"))
        there, held = window_place(node, place, tap)
        return Reduction(node, place, plain_loops(tap), tuple((i, there) for i in node.inputs), held)
    axes = (node.param("axis"),) if op.returns_position else node.param("axes")
    rest = iter(place)
    there = tuple(_own_loop(n) if axis in axes else next(rest) for axis, n in enumerate(x.shape))
    inner = tuple(t for axis, i in enumerate(there) if axis in axes for t, _ in i.parts if isinstance(t, Loop))
    return Reduction(node, place, inner, ((x, there),))


Sum = tuple[Place, tuple[Key, ...], list[Inside]]  # loops, factors, conditions
_CONV_PARAMS = ("stride", "padding", "dilation", "groups")


def _conv_sum(node: Node, place: Place) -> Sum:
    """A convolution as the sum that defines it: for dtypes without a faster algorithm."""
    (x, w), (stride, padding, dilation, groups) = node.inputs, node.get_params(*_CONV_PARAMS)
    n, *o, f = place
    per_group = w.shape[1]
    c, *t = loops = fresh(w.shape[1:])
    group = f.divided(w.shape[0] // groups)[0]
    conditions: list[Inside] = []
    facts = zip(o, t, stride, padding, dilation, x.shape[1:-1], strict=True)
    there = [guarded(i * s + k * d + -p[0], size, 1, conditions) for i, k, s, p, d, size in facts]
    return loops, ((x, (n, *there, group * per_group + c)), (w, (f, c, *t))), conditions


def _integer_sum(node: Node, place: Place) -> Sum:
    """The same of 8-bit integers, whose filters have their channels last."""
    (x, w), (stride, padding, dilation, groups) = node.inputs, node.get_params(*_CONV_PARAMS)
    n, *o, f = place
    *t, c = fresh(w.shape[1:])
    group = f.divided(w.shape[0] // groups)[0]
    conditions: list[Inside] = []
    facts = zip(o, t, stride, padding, dilation, x.shape[1:-1], strict=True)
    there = [guarded(i * s + k * d + -p[0], size, 1, conditions) for i, k, s, p, d, size in facts]
    return (c, *t), ((x, (n, *there, group * w.shape[-1] + c)), (w, (f, *t, c))), conditions


def _data_sum(node: Node, place: Place) -> Sum:
    (g, w), (stride, padding, dilation, groups) = node.inputs, node.get_params(*_CONV_PARAMS)
    n, *i, c = place
    per_group = w.shape[0] // groups
    group, channel = c.divided(w.shape[1])
    f, *t = loops = fresh((per_group, *w.shape[2:]))
    conditions: list[Inside] = []
    facts = zip(i, t, stride, padding, dilation, g.shape[1:-1], strict=True)
    there = [guarded(at + k * -d + p[0], size, s, conditions) for at, k, s, p, d, size in facts]
    filter = group * per_group + f
    return loops, ((g, (n, *there, filter)), (w, (filter, channel, *t))), conditions


def _filter_sum(node: Node, place: Place) -> Sum:
    (x, g), (stride, padding, dilation, groups) = node.inputs, node.get_params(*_CONV_PARAMS)
    *t, c, f = place
    group = f.divided(g.shape[-1] // groups)[0]
    n, *o = loops = fresh(g.shape[:-1])
    conditions: list[Inside] = []
    facts = zip(o, t, stride, padding, dilation, x.shape[1:-1], strict=True)
    there = [guarded(i * s + k * d + -p[0], size, 1, conditions) for i, k, s, p, d, size in facts]
    return loops, ((x, (n, *there, group * (x.shape[-1] // groups) + c)), (g, (*loops, f))), conditions


# The sum that defines each channels-last convolution.
CONVOLUTIONS: dict[str, Callable[[Node, Place], Sum]] = {
    "conv_last": _conv_sum,
    "conv_data_last": _data_sum,
    "conv_filter_last": _filter_sum,
    "conv_int8_last": _integer_sum,
}


def _own_loop(size: int) -> IndexExpr:
    # An axis without elements is still a loop, which is never entered.
    return IndexExpr(0, ((Loop(size), 1),)) if size != 1 else IndexExpr()


def plain_loops(place: Place) -> tuple[Loop, ...]:
    """The loops of a place made by `fresh`."""
    return tuple(t for i in place for t, _ in i.parts if isinstance(t, Loop))


# --- fewer and better loops ---------------------------------------------------------------------------------------------------


def split(loops: Sequence[Loop], places: Iterable[Place]) -> dict[Loop, tuple[IndexExpr, tuple[Loop, ...]]]:
    """Loops that a reshape divides evenly are cut in two, so that the division disappears."""
    found: dict[Loop, tuple[IndexExpr, tuple[Loop, ...]]] = {}
    for place in places:
        for index in place:
            for term, _ in index.parts:
                if not isinstance(term, Quotient | Remainder) or len(term.inner.parts) != 1 or term.inner.offset:
                    continue
                (inner, c), by = term.inner.parts[0], term.by if isinstance(term, Quotient) else term.size
                if (
                    isinstance(inner, Loop)
                    and c == 1
                    and inner in loops
                    and inner not in found
                    and inner.size % by == 0
                ):
                    high, low = Loop(inner.size // by), Loop(by)
                    found[inner] = IndexExpr(0, ((high, by), (low, 1))), (high, low)
    return found


def mergeable(first: Loop, second: Loop, indices: Iterable[IndexExpr]) -> bool:
    """Whether two adjacent loops can be merged: in every place, a step of the first equals all steps of the second."""
    for index in indices:
        a, b = index.coefficient(first), index.coefficient(second)
        if a is None or b is None or a != b * second.size:
            return False
    return True


def substituted_place(place: Place, values: Mapping[Loop, IndexExpr]) -> Place:
    return tuple(substituted(i, values) for i in place)
