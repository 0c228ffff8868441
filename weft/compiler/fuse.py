"""Fuse: which nodes share a kernel, and which values are written to memory at all.

Everything that works element by element is computed where it is used. Written are: results of the program, operands of
matrix products and convolutions, results of reductions, and values that are dear to compute and used in several kernels.
Each written node begins as a kernel of its own; then kernels absorb each other:

- a producer whose element is read at the place where it is computed goes into its consumer (chains, optimizer updates);
- a reduction goes into the kernel that uses its value in the same row (softmax, layer norm, cross entropy);
- an elementwise consumer of a matrix product or convolution becomes its epilogue (bias, activation, residual, dropout,
  the update of a weight).

A pair is only merged if no third kernel stands between them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from ..errors import InternalError
from ..graph.graph import Graph
from ..graph.node import CONST, ITEM, Node, toposort
from .algorithms import by_loops
from .index import Index, Inside, Loop, Place, fresh, linear, reshaped, strides, substituted
from .loops import (
    CONVOLUTIONS,
    Body,
    Nest,
    Phase,
    Reduction,
    Store,
    body,
    condition_reads,
    is_inline,
    plain_loops,
    reduction,
    sources,
    substituted_place,
    taps,
)

GIVEN = ("placeholder", "data", "variable")
DEAR = {
    **dict.fromkeys(["exp", "expm1", "log", "log1p", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"], 10),
    **dict.fromkeys(["erf", "sigmoid", "pow", "atan2", "hypot", "logaddexp", "floor_divide", "remainder"], 10),
    "random_bits": 20, "div": 3, "sqrt": 3,
}  # fmt: skip
TOO_DEAR = 10  # to be computed again in another kernel
TOO_LONG = 300  # steps in a body: compile time grows faster than they do
ROW_BYTES = 256 << 10  # a row with reductions should stay in the cache


@dataclass(frozen=True)
class View:
    """An operand that is read in place: a stored node, where it begins, and its strides, in elements."""

    base: Node
    offset: int
    strides: tuple[int, ...]


@dataclass(eq=False)
class Kernel:
    """One kernel: loops, or an anchor (a matrix product, a convolution, a sort, control flow) with the loops of its epilogue."""

    anchor: Node | None
    nest: Nest | None
    views: tuple[View, ...] = ()
    outputs: list[Node] = field(default_factory=list)  # stored nodes that it writes
    reads: set[Node] = field(default_factory=set)  # stored nodes of other kernels
    bodies: list[Body] = field(default_factory=list)  # one a phase
    rows: tuple[Loop, ...] = ()  # the loops of an anchor's result: batch, row, column

    @property
    def name(self) -> str:
        return self.anchor.op.name if self.anchor is not None else "loops"


@dataclass(frozen=True)
class Fused:
    """A program as kernels, in an order in which they can run."""

    graph: Graph
    kernels: tuple[Kernel, ...]
    stored: frozenset[Node]


def fuse(graph: Graph) -> Fused:
    """The graph as kernels."""
    dear: set[Node] = set()
    while True:
        fusion = _Fusion(graph, dear)
        more = fusion.too_dear()
        if more <= dear:  # some were taken in again by one of their readers
            return fusion.result()
        dear |= more


def view(node: Node, stored: Iterable[Node]) -> View | None:
    """The node as a view of a stored one, if movement of data is all that lies between."""
    place = fresh(node.shape)
    axes = [i.parts[0][0] if i.parts else None for i in place]
    while node not in stored:
        if node.op.kind != "move":
            return None
        found = sources(node, place)
        if len(found) != 1 or found[0][2]:
            return None
        node, place, _ = found[0]
    position = linear(place, node.shape)
    steps = []
    for axis in axes:
        step = 0 if axis is None else position.coefficient(axis)  # type: ignore[arg-type]
        if step is None:
            return None
        steps.append(step)
    return View(node, position.offset, tuple(steps))


def base_of(anchor: Node, number: int, stored: Iterable[Node]) -> Node:
    """What must be stored so that an anchor can read one of its inputs: the first node below it that it is a view of."""
    node = anchor.inputs[number]
    any_strides = anchor.op.name == "contract" or (anchor.op.name in ("conv_last", "conv_data_last") and number == 1)
    best = below = node
    while below.op.kind == "move" and below not in stored and below.op.name not in ("pad", "concat"):
        below = below.inputs[0]
        found = view(node, {below})
        if found is None or any(s < 0 for s in found.strides):
            break
        if any_strides or is_contiguous(found.strides, node.shape):
            best = below
    return node if best.op is CONST else best


def is_contiguous(steps: Sequence[int], shape: Sequence[int]) -> bool:
    return all(n == 1 or s == t for s, t, n in zip(steps, strides(tuple(shape)), shape, strict=True))


def cost(node: Node) -> int:
    """About how much work an element is, in additions."""
    if node.op.kind == "move" or node.op is CONST:
        return 0
    return DEAR.get(node.op.name, 1) * max(1, taps(node))


class _Fusion:
    """The state of one attempt."""

    def __init__(self, graph: Graph, dear: set[Node]) -> None:
        self.graph = graph
        self.nodes = graph.nodes
        self.position = {n: i for i, n in enumerate(self.nodes)}
        self.stored = self._stored(dear)
        self.home: dict[Node, Kernel] = {}
        self.readers: dict[Node, set[Kernel]] = defaultdict(set)
        self.top: dict[Kernel, int] = {}  # the last position among a kernel's outputs and all that it depends on
        for node in self.nodes:
            if node in self.stored and node.op.name not in GIVEN and node.op is not ITEM:
                self._begin(node)
        # Rows are built from the reductions onwards, everything else from the results backwards: a chain is whole before
        # it becomes the epilogue of an anchor.
        for backwards in (False, True):
            for kernel in sorted(set(self.home.values()), key=self._first, reverse=backwards):
                if self._is_alive(kernel):
                    self._absorb(kernel, rows_only=not backwards)
        self._join_siblings()

    # --- what is stored ------------------------------------------------------------------------------------------------

    def _stored(self, dear: set[Node]) -> set[Node]:
        stored = {n for n in self.nodes if n.op.name in GIVEN or n.op is ITEM or not is_inline(n)}
        stored |= {*self.graph.outputs, *dear} & set(self.nodes)
        length: dict[Node, int] = {}
        for node in self.nodes:
            if is_anchor(node):
                stored |= {base_of(node, i, stored) for i in range(len(node.inputs))}
            for i in self._worth_storing_for(node, stored):
                stored.add(i)
            length[node] = 1 + sum(length[i] for i in node.inputs if i not in stored)
            if length[node] > TOO_LONG and is_inline(node):
                stored.add(node)
        return stored

    def _worth_storing_for(self, node: Node, stored: set[Node]) -> Iterable[Node]:
        """Inputs that would be computed many times over: spread along rows, or seen by many windows."""
        if node.op.name == "expand" or taps(node):
            x = node.inputs[0]
            while x.op.kind == "move" and x not in stored and len(x.inputs) == 1:
                x = x.inputs[0]
            if x in stored or x.op is CONST or x.op.name == "iota":
                return
            spread = prod(x.shape) > 1 and prod(node.shape) >= 4 * prod(x.shape)
            if taps(node) > 1 or (spread and self._cone_cost(x, stored) >= 3):
                yield x

    def _cone_cost(self, node: Node, stored: set[Node], limit: int = 64) -> int:
        total, stack, seen = 0, [node], set()
        while stack and total < limit:
            n = stack.pop()
            if n not in seen and n not in stored:
                seen.add(n)
                total += cost(n)
                stack += n.inputs
        return total

    def too_dear(self) -> set[Node]:
        """Nodes inside several kernels whose computation should happen once."""
        inside: dict[Node, set[Kernel]] = defaultdict(set)
        for kernel in set(self.home.values()):
            for part in kernel.bodies:
                for step in part.steps:
                    if step.kind in ("op", "bits", "window", "same", "guard", "choose"):
                        inside[step.node].add(kernel)
        shared = {
            n for n, kernels in inside.items() if len(kernels) > 1 and self._cone_cost(n, self.stored) >= TOO_DEAR
        }
        users = defaultdict(set)
        for node in self.nodes:
            for i in node.inputs:
                users[i].add(node)
        front = {n for n in shared if n.op.kind != "move" and any(u not in shared for u in users[n] | set())}
        return front - self.stored

    # --- kernels -------------------------------------------------------------------------------------------------------

    def _begin(self, node: Node) -> None:
        if is_anchor(node):
            kernel = self._anchor(node)
        else:
            place = fresh(node.shape)
            outer = plain_loops(place)
            phases = []
            if not is_inline(node):
                found = reduction(node, place)
                phases.append(Phase(found.loops, [found]))
            phases.append(Phase((), stores=[Store(node, place)]))
            kernel = Kernel(None, Nest(outer, phases), outputs=[node])
        for output in kernel.outputs:
            self.home[output] = kernel
        self._refresh(kernel)

    def _anchor(self, node: Node) -> Kernel:
        views = []
        for i in node.inputs:
            found = view(i, self.stored)
            assert found is not None, i
            views.append(found)
        outputs = [node]
        if node.outputs:
            outputs = [n for n in self.nodes if n.op is ITEM and n.inputs[0] is node]
            self.home[node] = kernel = Kernel(node, None, tuple(views), outputs or [node])
            return kernel
        return Kernel(node, None, tuple(views), outputs)

    def _refresh(self, kernel: Kernel) -> None:
        """Compute what the kernel reads, after it has changed."""
        for node in kernel.reads:
            self.readers[node].discard(kernel)
        reads = {v.base for v in kernel.views}
        kernel.bodies = []
        if kernel.nest is not None:
            rows = kernel.nest.rows
            for phase in kernel.nest.phases:
                kernel.bodies.append(phase_body(phase, self.stored, rows))
                reads |= {s.node for s in kernel.bodies[-1].steps if s.kind == "load"}
        own = set(kernel.outputs) | ({kernel.anchor} if kernel.anchor is not None else set())
        kernel.reads = reads - own
        for node in kernel.reads:
            self.readers[node].add(kernel)
        below = [self.top[k] for n in kernel.reads if (k := self.home.get(n)) is not None]
        self.top[kernel] = max([self._first(kernel), *below, self.top.get(kernel, 0)])
        self._raise(kernel)

    def _raise(self, kernel: Kernel) -> None:
        """What depends on a kernel is nowhere before it."""
        stack = [kernel]
        while stack:
            k = stack.pop()
            for reader in {r for o in k.outputs for r in self.readers[o]}:
                if self.top.get(reader, -1) < self.top[k] and reader is not k:
                    self.top[reader] = self.top[k]
                    stack.append(reader)

    def _first(self, kernel: Kernel) -> int:
        return max(self.position[o] for o in kernel.outputs)

    # --- merging -------------------------------------------------------------------------------------------------------

    def _is_alive(self, kernel: Kernel) -> bool:
        return bool(kernel.outputs) and self.home.get(kernel.outputs[0]) is kernel

    def _absorb(self, kernel: Kernel, rows_only: bool) -> None:
        """Merge the kernel with its producers as long as one fits. It may end as the epilogue of one."""
        tried: set[Kernel] = set()
        while kernel.nest is not None and kernel.anchor is None:
            producers = {self.home[n] for n in kernel.reads if n in self.home} - tried
            if not producers:
                return
            producer = max(producers, key=self._first)
            tried.add(producer)
            if rows_only and not (producer.nest is not None and (producer.nest.rows or kernel.nest.rows)):
                continue
            if self._between(producer, kernel):
                continue
            if producer.anchor is not None:
                if self._become_epilogue(producer, kernel):
                    return
            elif self._take_in(producer, kernel):
                tried = set()

    def _between(self, producer: Kernel, consumer: Kernel) -> bool:
        """Whether a third kernel needs the producer and is needed by the consumer."""
        stack = [k for n in consumer.reads if (k := self.home.get(n)) is not None and k is not producer]
        seen: set[Kernel] = set()
        while stack:
            kernel = stack.pop()
            if kernel is producer:
                return True
            if kernel in seen or self.top[kernel] < self.top[producer]:
                continue
            seen.add(kernel)
            stack += [self.home[n] for n in kernel.reads if n in self.home]
        return False

    def _places(self, kernel: Kernel, nodes: Iterable[Node]) -> dict[Node, set[Place]]:
        """At which places a kernel reads each of these nodes."""
        wanted = set(nodes)
        found: dict[Node, set[Place]] = defaultdict(set)
        for part in kernel.bodies:
            for step in part.steps:
                if step.kind == "load" and step.node in wanted:
                    found[step.node].add(step.place)
        return found

    def _take_in(self, producer: Kernel, kernel: Kernel) -> bool:
        assert producer.nest is not None
        assert kernel.nest is not None
        merged = merged_nests(producer, kernel, self._places(kernel, producer.outputs), self.stored)
        if merged is None:
            return False
        alive = [o for o in producer.outputs if self._needed(o, {kernel, producer})]
        for phase in merged.phases:
            phase.stores = [s for s in phase.stores if s.node in alive or s.node in kernel.outputs]
        merged.phases = [p for p in merged.phases if p.stores or p.reductions]
        for node in set(producer.outputs) - set(alive):
            self.stored.discard(node)
        kernel.nest = merged
        kernel.outputs = [*alive, *kernel.outputs]
        self._drop(producer)
        for output in producer.outputs:
            self.home.pop(output, None)
        for output in kernel.outputs:
            self.home[output] = kernel
        self._refresh(kernel)
        return True

    def _join_siblings(self) -> None:
        """Kernels with the same loops that read the same large tensor read it together."""
        alike: dict[tuple[int, ...], list[Kernel]] = defaultdict(list)
        for kernel in sorted(set(self.home.values()), key=self._first):
            if kernel.anchor is None and kernel.nest is not None and kernel.reads:
                alike[tuple(l.size for l in kernel.nest.outer)].append(kernel)
        for group in alike.values():
            for i, first in enumerate(group):
                for second in group[i + 1 :]:
                    if self._is_alive(first) and self._is_alive(second):
                        self._join(first, second)

    def _join(self, first: Kernel, second: Kernel) -> None:
        assert first.nest is not None
        assert second.nest is not None
        if _is_flexible(first.nest) != _is_flexible(second.nest):
            return
        large = max(prod(n.shape) for n in first.reads)
        if not any(prod(n.shape) == large and large > 1 for n in first.reads & second.reads):
            return
        if self._depends(first, second) or self._depends(second, first):
            return
        values = {old: Index(0, ((new, 1),)) for old, new in zip(second.nest.outer, first.nest.outer, strict=True)}
        phases = [_moved_phase(p, values) for p in second.nest.phases]
        first.nest = Nest(first.nest.outer, _jammed([*first.nest.phases, *phases], self.stored))
        first.outputs = [*first.outputs, *second.outputs]
        self._drop(second)
        for output in second.outputs:
            self.home[output] = first
        self._refresh(first)

    def _depends(self, kernel: Kernel, on: Kernel) -> bool:
        stack, seen = [kernel], set()
        while stack:
            k = stack.pop()
            if k is on:
                return True
            if k in seen or self.top[k] < self.top[on]:
                continue
            seen.add(k)
            stack += [self.home[n] for n in k.reads if n in self.home]
        return False

    def _needed(self, node: Node, inside: set[Kernel]) -> bool:
        """Whether a node must be written although these kernels become one."""
        return node in self.graph.outputs or bool(self.readers[node] - inside)

    def _drop(self, kernel: Kernel) -> None:
        for node in kernel.reads:
            self.readers[node].discard(kernel)

    def _become_epilogue(self, producer: Kernel, kernel: Kernel) -> bool:
        anchor = producer.anchor
        assert anchor is not None
        assert kernel.nest is not None
        if not has_epilogue(anchor) or kernel.nest.rows or len(kernel.nest.phases) != 1:
            return False
        places = self._places(kernel, [anchor])[anchor]
        rows = producer.rows or anchor_loops(anchor)
        here = linear(anchor_place(anchor, rows), anchor.shape)
        if len(places) != 1 or not kernel.reads.isdisjoint(set(producer.outputs) - {anchor}):
            return False
        [place] = places
        values = solved(linear(place, anchor.shape), here, kernel.nest.outer)
        if values is None:
            return False
        stores = [Store(s.node, substituted_place(s.place, values)) for s in kernel.nest.phases[0].stores]
        before = producer.nest.phases[0].stores if producer.nest is not None else []
        producer.nest, producer.rows = Nest(rows, [Phase((), stores=[*before, *stores])]), rows
        producer.outputs = [s.node for s in producer.nest.phases[0].stores]
        if self._needed(anchor, {kernel, producer}):
            producer.outputs.insert(0, anchor)
        self._drop(kernel)
        for output in kernel.outputs:
            self.home[output] = producer
        self._refresh(producer)
        return True

    def result(self) -> Fused:
        kernels = sorted(set(self.home.values()), key=self._first)
        order = toposort(kernels, lambda k: [self.home[n] for n in k.reads if n in self.home and self.home[n] is not k])
        place = {k: i for i, k in enumerate(order)}
        if any(place[self.home[n]] > i for i, k in enumerate(order) for n in k.reads if n in self.home):
            raise InternalError("fuse", "kernels wait for each other in a circle.")
        return Fused(self.graph, tuple(order), frozenset(self.stored))


def has_epilogue(node: Node) -> bool:
    """Matrix products and convolutions that the library has: they take an epilogue."""
    return node.op.name == "contract" or (node.op.name in CONVOLUTIONS and not by_loops(node))


def is_anchor(node: Node) -> bool:
    """Whether a kernel is built around the node; its inputs are read as views."""
    return has_epilogue(node) or node.op.name in SPECIAL or (node.op.kind == "control" and node.op is not ITEM)


SPECIAL = ("scatter", "argsort", "cumsum", "cumprod")


def phase_body(phase: Phase, stored: Collection[Node], rows: Sequence[Node]) -> Body:
    """The steps of a phase: what it stores itself is at hand, everything else that is stored is read."""
    own = {s.node for s in phase.stores}
    reduced = {r.node for r in phase.reductions}
    wanted = [(s.node, s.place) for s in phase.stores]
    for r in phase.reductions:
        wanted += r.factors
    wanted += [k for r in phase.reductions for k in condition_reads(r.conditions)]
    return body(wanted, _Without(stored, own), set(rows) - reduced)


class _Without:
    """A set with some members left out, without a copy."""

    def __init__(self, every: Iterable[Node], left_out: set[Node]) -> None:
        self.every, self.left_out = every, left_out

    def __contains__(self, node: object) -> bool:
        return node not in self.left_out and node in self.every  # type: ignore[operator]

    def __len__(self) -> int:
        return 1

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(())


# --- the loops of an anchor's result: (batch, row, column) ----------------------------------------------------------------------


def anchor_shape(anchor: Node) -> tuple[int, int, int]:
    """The result as a batch of matrices, as the library sees it."""
    shape = anchor.shape
    if anchor.op.name == "contract":
        return shape[0], shape[1], shape[2]
    return 1, prod(shape[:-1]), shape[-1]


def anchor_loops(anchor: Node) -> tuple[Loop, ...]:
    return tuple(Loop(n) for n in anchor_shape(anchor))


def anchor_place(anchor: Node, rows: tuple[Loop, ...]) -> Place:
    """The element of the result that belongs to these loops."""
    place = tuple(Index(0, ((l, 1),)) if l.size != 1 else Index() for l in rows)
    return reshaped(place, anchor_shape(anchor), anchor.shape)


# --- two nests into one ----------------------------------------------------------------------------------------------------------


def solved(position: Index, known: Index, loops: Sequence[Loop]) -> dict[Loop, Index] | None:
    """The loops as functions of others, if `position` (over them) counts the same elements as `known`; None if it skips or repeats."""
    digits = sorted(((c, t) for t, c in position.parts), key=lambda d: d[0])
    step = 1
    for c, term in digits:
        if not isinstance(term, Loop) or c != step:
            return None
        step *= term.size
    if position.offset or known.offset or {t for _, t in digits} != {l for l in loops if l.size != 1}:
        return None
    values = {}
    for c, term in digits:
        assert isinstance(term, Loop)
        values[term] = known.divided(c)[0].divided(term.size)[1]
    return values


def merged_nests(
    producer: Kernel, kernel: Kernel, places: dict[Node, set[Place]], stored: Collection[Node]
) -> Nest | None:
    """One nest that does the work of both, or None if they do not fit: every value must be read in the row that computes it."""
    first, second = producer.nest, kernel.nest
    assert first is not None
    assert second is not None
    if not places or any(len(p) != 1 for p in places.values()):
        return None
    values: dict[Loop, Index] | None = None
    for node, [place] in places.items():
        own = _own_place(first, node)
        found = _aligned(linear(own, node.shape), linear(place, node.shape), first, second)
        if found is None or (values is not None and found != values):
            return None
        values = found
    assert values is not None
    image = {l for o in first.outer if o in values for l in values[o].loops}
    outer = tuple(l for l in second.outer if l in image)
    if _is_flexible(second):
        if set(outer) != set(second.outer) and not (first.rows and _fits_a_row(producer, kernel, outer)):
            return None
        inner = tuple(l for l in second.outer if l not in image)
        second = Nest(outer, [Phase((*inner, *p.loops), p.reductions, p.stores) for p in second.phases])
    elif image != set(second.outer):
        return None
    return Nest(second.outer, _jammed([*(_moved_phase(p, values) for p in first.phases), *second.phases], stored))


def _moved_phase(phase: Phase, values: Mapping[Loop, Index]) -> Phase:
    """The phase in other loops."""
    return Phase(
        tuple(l for old in phase.loops for l in (values[old].loops if old in values else (old,))),
        [Reduction(r.node, substituted_place(r.place, values), r.loops,
                   tuple((n, substituted_place(q, values)) for n, q in r.factors),
                   tuple(_moved_condition(c, values) for c in r.conditions))
         for r in phase.reductions],
        [Store(s.node, substituted_place(s.place, values)) for s in phase.stores],
    )  # fmt: skip


def _moved_condition(condition: Inside, values: Mapping[Loop, Index]) -> Inside:
    return Inside(substituted(condition.inner, values), condition.size, condition.step)


def _own_place(nest: Nest, node: Node) -> Place:
    for phase in nest.phases:
        for store in phase.stores:
            if store.node is node:
                return store.place
    for phase in nest.phases:
        for r in phase.reductions:
            if r.node is node:
                return r.place
    raise AssertionError(node)


def _is_flexible(nest: Nest) -> bool:
    """Without reductions every loop is as good as any other."""
    return not nest.rows and len(nest.phases) == 1 and not nest.phases[0].loops


def _aligned(own: Index, read: Index, first: Nest, second: Nest) -> dict[Loop, Index] | None:
    """The first nest's loops as loops of the second, if each of its rows is read in one row of the second."""
    loops = [t for t, _ in own.parts if isinstance(t, Loop)]
    if any(not isinstance(t, Loop) for t, _ in read.parts):
        return None
    values = solved(own, read, loops)
    if values is None or not {l for l in first.outer if l.size != 1} <= set(loops):
        return None
    for loop, value in values.items():
        if loop.size == 1:
            continue
        if value.offset or len(value.parts) != 1:  # a part of the producer is read, or its elements in another order
            return None
        term, c = value.parts[0]
        if c != 1 or not isinstance(term, Loop):
            return None
    used = [t for v in values.values() for t, _ in v.parts]
    if len(used) != len(set(used)) or any(l.size != v.parts[0][0].size for l, v in values.items() if v.parts):
        return None
    return values


def _fits_a_row(producer: Kernel, kernel: Kernel, outer: Sequence[Loop]) -> bool:
    """Whether a kernel may be cut into rows for the sake of a reduction: the row is read along memory and stays in the cache."""
    assert producer.nest is not None
    if not outer:
        return False
    rows = prod(l.size for l in outer)
    total = max((prod(r.factors[0][0].shape) for p in producer.nest.phases for r in p.reductions), default=1)
    along = 0
    for part in [*producer.bodies, *kernel.bodies]:
        for step in part.steps:
            if step.kind == "load":
                position = linear(step.place, step.node.shape)
                steps = {l: position.coefficient(l) for l in position.loops}
                if (
                    any(c == 1 for l, c in steps.items() if l in producer.nest.outer or l in outer)
                    and prod(step.node.shape) > rows
                ):
                    along += 1
    return 4 * total // rows <= ROW_BYTES and (along == 0 or total // rows <= 64)


def _jammed(phases: Sequence[Phase], stored: Collection[Node]) -> list[Phase]:
    """Phases over equal loops become one, unless one needs what the other reduces."""
    result: list[Phase] = []
    for phase in phases:
        if phase.stores or not result:  # what the last phase stores is at hand for those that join it
            earliest = len(result) - 1
        else:
            needed = _needed_by(phase, stored, [r.node for p in result for r in p.reductions])
            earliest = max((i + 1 for i, p in enumerate(result) if not needed.isdisjoint(_made_by(p))), default=0)
        target = next((p for p in result[max(earliest, 0) :] if _can_jam(p, phase, result)), None)
        if target is None:
            result.append(Phase(phase.loops, list(phase.reductions), list(phase.stores)))
            continue
        values = {old: Index(0, ((new, 1),)) for old, new in zip(phase.loops, target.loops, strict=True)}
        moved = _moved_phase(phase, values)
        target.stores += moved.stores
        target.reductions += [
            Reduction(r.node, r.place, target.loops, r.factors, r.conditions) for r in moved.reductions
        ]
    return result


def _can_jam(target: Phase, phase: Phase, so_far: Sequence[Phase]) -> bool:
    """Reductions go with reductions; stores only with the last phase, so that what they read is written."""
    if [l.size for l in target.loops] != [l.size for l in phase.loops]:
        return False
    if phase.stores:
        return target is so_far[-1] and not target.reductions and set(target.loops) == set(phase.loops)
    return bool(target.reductions) and not target.stores


def _made_by(phase: Phase) -> list[Node]:
    return [*(r.node for r in phase.reductions), *(w.node for w in phase.stores)]


def _needed_by(phase: Phase, stored: Collection[Node], rows: Sequence[Node]) -> set[Node]:
    """Row values and stored nodes that a phase reads."""
    return {s.node for s in phase_body(phase, stored, rows).steps if s.kind in ("row", "load")}


__all__ = ["Fused", "Kernel", "View", "anchor_shape", "base_of", "fuse", "phase_body", "strides", "view"]
