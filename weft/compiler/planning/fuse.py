"""Fusion: which nodes share a kernel, and which values are stored in memory.

Elementwise ops are computed where their results are used. Stored are: results of the program, operands of matrix products and
convolutions, results of reductions, and values that are expensive to compute and read by several kernels.
Each stored node starts as a separate kernel; then kernels absorb each other:

- a producer whose elements are read at the place where they are computed is merged into its consumer (chains, optimizer updates);
- a reduction is merged into the kernel that uses its value in the same row (softmax, layer norm, cross entropy);
- an elementwise consumer of a matrix product or convolution becomes its epilogue (bias, activation, residual, dropout,
  the update of a weight).

Two kernels are only merged if no path leads from one to the other through a third kernel.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from heapq import heapify, heappop, heappush
from math import prod

from ...errors import InternalError
from ...graph.graph import Graph
from ...graph.node import CONST, ITEM, KernelKind, Node, toposort
from ...records import dataclass
from ..ir.elements import grown
from ..ir.index import IndexExpr, Place, fresh, linear
from ..ir.kernel import (
    ByLoops,
    Kernel,
    anchor_loops,
    anchor_place,
    base_of,
    has_epilogue,
    is_anchor,
    is_copy,
    is_group,
    is_narrowing,
    is_widening,
    unmoved,
    view,
)
from ..ir.loops import LoopPhase, Nest, Store, is_inline, plain_loops, reduction, substituted_place, taps
from ..ir.program import Fused
from ..thresholds import thresholds
from .algorithms import asked_for_loops
from .merge import is_flexible, jammed, merged_nests, moved_phase, phase_body, solved
from .reachability import Spine

KernelKinds = frozenset[KernelKind]
WIDENS: KernelKinds = frozenset(("contraction",))  # anchors that convert 16-bit floats to float32 themselves, on CPUs


def fuse(
    graph: Graph,
    widens: KernelKinds = WIDENS,
    recompute_limit: int | None = None,
    narrows: bool = False,
    by_loops: ByLoops = asked_for_loops,
    libraries: bool = False,
) -> Fused:
    """The graph as kernels.

    `widens`: the kernels that read 16-bit floats and compute in float32. `recompute_limit`: the cost, in additions, above which a value is
    stored rather than recomputed in every kernel that reads it. `narrows`: values that kernels pass to each other will be
    rounded to 16 bits. `by_loops`: the convolutions that are computed by plain loops. `libraries`: products may be computed by a library, which adds a bias and
    one more tensor.
    """
    limit = thresholds.recompute_limit if recompute_limit is None else recompute_limit
    options = _Options(widens, limit, narrows, by_loops, libraries)
    expensive: set[Node] = set()
    beginnings: dict[Node, Nest] = {}
    spine = Spine(graph)
    while True:
        fusion = _Fusion(graph, expensive, options, beginnings, spine)
        more = fusion.too_expensive()
        if more <= expensive:  # some were merged again into one of their readers
            return fusion.result()
        expensive |= more


def cost(node: Node) -> int:
    """The approximate cost of an element, in additions."""
    if node.op.kind == "move" or node.op is CONST:
        return 0
    return node.op.cost * max(1, taps(node))


def _overlaps(node: Node) -> bool:
    """Whether its windows overlap, so that elements belong to several."""
    return taps(node) > 1 and any(s < k for k, s in zip(*node.get_params("size", "stride"), strict=True))


def _largest(nodes: Collection[Node]) -> set[Node]:
    """The largest of these tensors; none if all are scalars."""
    most = max((prod(n.shape) for n in nodes), default=0)
    return {n for n in nodes if prod(n.shape) == most > 1}


@dataclass(frozen=True)
class _Options:
    widens: KernelKinds
    recompute_limit: int
    narrows: bool
    by_loops: ByLoops
    libraries: bool


class _Fusion:
    """The state of one attempt at fusion."""

    def __init__(
        self,
        graph: Graph,
        expensive: set[Node],
        options: _Options,
        beginnings: dict[Node, Nest],
        spine: Spine,
    ) -> None:
        self.graph, self.options = graph, options
        self.nodes, self.results = graph.nodes, frozenset(graph.outputs)
        self.position = {n: i for i, n in enumerate(self.nodes)}
        self.stored = self._stored(expensive)
        self.spine = spine
        self.beginnings = beginnings  # the loops of single nodes, shared by attempts
        self.items: dict[Node, list[Node]] = defaultdict(list)  # the results of multi-result nodes
        for node in self.nodes:
            if node.op is ITEM:
                self.items[node.inputs[0]].append(node)
        self.home: dict[Node, Kernel] = {}
        self.readers: dict[Node, set[Kernel]] = defaultdict(set)
        self.linear = lru_cache(None)(linear)  # the same places are looked up repeatedly
        self.last: dict[Kernel, int] = {}  # the last position among a kernel's outputs
        self.enters: dict[Kernel, int] = {}  # the first place of the spine that depends on a kernel
        self.leaves: dict[Kernel, int] = {}  # the last place of the spine that a kernel depends on
        self.top: dict[
            Kernel, int
        ] = {}  # the greatest depth among a kernel's outputs, and those of all that it depends on
        for node in self.nodes:
            if node in self.stored and node.op.kernel != "input" and node.op is not ITEM:
                self._begin(node)
        # Rows are merged in forward order, starting at reductions; everything else backwards from the results, so that a chain is
        # complete before it becomes the epilogue of an anchor.
        for backwards in (False, True):
            for kernel in sorted(set(self.home.values()), key=self.last.__getitem__, reverse=backwards):
                if self._is_alive(kernel):
                    self._absorb(kernel, rows_only=not backwards)
        self._join_siblings()

    # --- what is stored ------------------------------------------------------------------------------------------------

    def _stored(self, expensive: set[Node]) -> set[Node]:
        stored = {n for n in self.nodes if n.op.kernel == "input" or n.op is ITEM or not is_inline(n)}
        stored |= (self.results | expensive) & set(self.nodes)
        stored |= {n for n in self.nodes if is_narrowing(n)}
        stored |= self._stream_positions()
        length: dict[Node, int] = {}
        for node in self.nodes:
            if is_anchor(node, self.options.by_loops):
                bases = [
                    base_of(node, i, stored, node.op.kernel in self.options.widens) for i in range(len(node.inputs))
                ]
                if node.op.updates_input and bases[1] is bases[0]:
                    bases[1] = node.inputs[1]  # a part of the tensor moves within it: read before it is overwritten
                stored.update(bases)
            for i in self._worth_storing_for(node, stored):
                stored.add(i)
            if node.op.name == "concat":
                stored |= {i for i in node.inputs if i.op is node.op and (i.params == node.params or is_group(i))}
            length[node] = 1 + sum(length[i] for i in node.inputs if i not in stored)
            if length[node] > thresholds.fused_steps and is_inline(node):
                stored.add(node)
        return stored

    def _stream_positions(self) -> set[Node]:
        """The stream positions of many random draws. If they are read from memory, equal layers are equal kernels, compiled once."""
        draws = [n for n in self.nodes if n.op.name == "random_bits"]
        if len(draws) < thresholds.stored_positions:
            return set()
        return {i for n in draws for i in n.inputs if i.op.kind == "elementwise"}

    def _worth_storing_for(self, node: Node, stored: set[Node]) -> Iterable[Node]:
        """Inputs that would be recomputed many times: broadcast along rows, or read by many windows or by a convolution computed by loops."""
        loops = node.op.kernel == "convolution" and self.options.by_loops(node)
        for below in node.inputs if node.op.name == "expand" or taps(node) or loops else ():
            x = below
            while x not in stored and len(x.inputs) == 1 and (x.op.kind == "move" or is_widening(x)):
                x = x.inputs[0]
            if x in stored or x.op.kind == "leaf":
                continue
            spread = prod(node.shape) >= thresholds.spread_times * prod(x.shape)
            worth = 3 if prod(x.shape) > 1 else self.options.recompute_limit  # for a scalar, a kernel must be worth it
            if _overlaps(node) or (
                (spread or loops) and (x.op.name == "concat" or self._cone_cost(x, stored) >= worth)
            ):
                yield x

    def _cone_cost(self, node: Node, stored: set[Node], limit: int = 64, more: Collection[Node] = ()) -> int:
        total, stack, seen = 0, [node], set()
        while stack and total < limit:
            n = stack.pop()
            if n not in seen and n not in stored and n not in more:
                seen.add(n)
                total += cost(n)
                stack += n.inputs
        return total

    def too_expensive(self) -> set[Node]:
        """Nodes that several kernels compute and that should be computed once."""
        inside: dict[Node, set[Kernel]] = defaultdict(set)
        for kernel in set(self.home.values()):
            for part in kernel.elements():
                for node in part.computed():
                    inside[node].add(kernel)
        users: dict[Node, set[Node]] = defaultdict(set)
        for node in self.nodes:
            for i in node.inputs:
                users[i].add(node)
        several = {n for n, kernels in inside.items() if len(kernels) > 1}
        summed = {n for n in several if self.options.libraries and self._is_added_to_a_product(n, inside[n])}
        shared = {n for n in several if n in summed or self._is_expensive(n) or self._replaces_an_anchor(n, users)}
        front = {n for n in shared if n.op.kind != "move" and any(u not in shared for u in users[n])}
        chosen: set[Node] = set()
        for node in sorted(front - self.stored, key=lambda n: self.position[n]):
            # With those before stored, a node may no longer be expensive; but storing a small one costs little.
            if (
                prod(node.shape) < thresholds.stored_elements
                or node in summed
                or self._is_expensive(node, chosen)
                or self._replaces_an_anchor(node, users)
            ):
                chosen.add(node)
        return chosen

    def _is_added_to_a_product(self, node: Node, kernels: Collection[Kernel]) -> bool:
        """Whether it is a sum of tensors as large as itself that an epilogue adds to a product, and that another kernel computes as well. If that one stores it,
        as many bytes move, and a library can add it.
        """
        if node.op.name != "add" or not all(prod(i.shape) == prod(node.shape) for i in self._leaves(node)):
            return False
        anchors = [k.anchor for k in kernels]
        return None in anchors and any(a is not None and a.op.kernel == "contraction" for a in anchors)

    def _replaces_an_anchor(self, node: Node, users: Mapping[Node, set[Node]]) -> bool:
        """Whether it adds a bias to the result of an anchor that has no other user: then the sum is stored instead."""
        if node.op.name != "add":
            return False
        for result, bias in (node.inputs, node.inputs[::-1]):
            if prod(node.shape) < thresholds.spread_times * prod(unmoved(bias).shape):
                continue
            while len(users[result]) == 1 and result not in self.results:
                if has_epilogue(result, self.options.by_loops):
                    return True
                if not self._is_as_large(result):
                    break
                result = result.inputs[0]
        return False

    def _is_as_large(self, node: Node) -> bool:
        """Whether it only reorders or converts the elements of another node, and takes no more memory when it is stored."""
        return node.op.name in ("reshape", "permute") or (
            node.op.name == "cast" and (self.options.narrows or node.dtype.itemsize <= node.inputs[0].dtype.itemsize)
        )

    def _is_expensive(self, node: Node, more: Collection[Node] = ()) -> bool:
        """Whether it should be stored: it is expensive to compute, or reads several tensors as large as itself.

        `more`: further nodes that count as stored.
        """
        if (
            _overlaps(node)
            or self._cone_cost(node, self.stored, 4 * self.options.recompute_limit, more)
            >= self.options.recompute_limit
        ):
            return True
        size = prod(node.shape)
        if size < thresholds.stored_line:
            return False
        many = thresholds.stored_tensors if size >= thresholds.stored_elements else thresholds.stored_lines
        return sum(prod(leaf.shape) >= size for leaf in self._leaves(node, more)) >= many

    def _leaves(self, node: Node, more: Collection[Node] = (), most: int = 64) -> set[Node]:
        """The stored values that a node is computed from."""
        found, stack, seen = set(), [node], {node}
        while stack and len(seen) < most:
            n = stack.pop()
            if n in self.stored or n in more:
                found.add(n)
                continue
            new = [i for i in n.inputs if i not in seen]
            seen.update(new)
            stack += new
        return found

    # --- kernels -------------------------------------------------------------------------------------------------------

    def _begin(self, node: Node) -> None:
        if is_anchor(node, self.options.by_loops):
            kernel = self._anchor(node)
        else:
            kernel = Kernel(None, self._beginning(node), outputs=[node])
        for output in kernel.outputs:
            self.home[output] = kernel
        self._refresh(kernel)

    def _beginning(self, node: Node) -> Nest:
        """The loops that compute a node; those of an earlier attempt, if they are still valid."""
        nest = self.beginnings.get(node)
        if nest is None or not all(p.elements.holds_for(self.stored, node) for p in nest.phases):
            place = fresh(node.shape)
            phases = []
            if not is_inline(node):
                found = reduction(node, place)
                phases.append(LoopPhase(found.loops, [found]))
            phases.append(LoopPhase((), stores=[Store(node, place)]))
            nest = self.beginnings[node] = Nest(plain_loops(place), phases)
            for phase in phases:
                phase.elements = grown(phase, self.stored, nest.rows)
        return Nest(nest.outer, [replace(p, elements=p.elements.copy()) for p in nest.phases])

    def _anchor(self, node: Node) -> Kernel:
        views = []
        for i in node.inputs:
            found = view(i, self.stored, widens=node.op.kernel in self.options.widens)
            assert found is not None, i
            views.append(found)
        outputs = [node]
        if node.outputs:
            outputs = self.items[node]
            self.home[node] = kernel = Kernel(node, None, tuple(views), outputs or [node])
            return kernel
        return Kernel(node, None, tuple(views), outputs)

    def _refresh(self, kernel: Kernel, new: Sequence[Node] | None = None) -> None:
        """Update what is known of a kernel after it has changed. `new`: the outputs that it did not have before; default all."""
        if new is None:
            new = kernel.outputs
            self.last[kernel], self.leaves[kernel], self.enters[kernel] = -1, -1, len(self.nodes)
        reads = {v.base for v in kernel.views}
        if kernel.nest is not None:
            rows = kernel.nest.rows
            for phase in kernel.nest.phases:
                phase.elements = grown(phase, self.stored, rows)
                reads.update(phase.elements.loads)
        own = set(kernel.outputs) | ({kernel.anchor} if kernel.anchor is not None else set())
        before, kernel.reads = kernel.reads, reads - own
        for node in before - kernel.reads:
            self.readers[node].discard(kernel)
        for node in kernel.reads - before:
            self.readers[node].add(kernel)
        spine = self.spine
        self.last[kernel] = max([self.last[kernel], *[self.position[o] for o in new]])
        self.enters[kernel] = min([self.enters[kernel], *[spine.before[o] for o in new]])
        self.leaves[kernel] = max([self.leaves[kernel], *[spine.after[o] for o in new]])
        below = [self.top[k] for n in kernel.reads if (k := self.home.get(n)) is not None]
        self.top[kernel] = max([self.top.get(kernel, 0), *below, *[spine.depth[o] for o in new]])
        self._raise(kernel)

    def _raise(self, kernel: Kernel) -> None:
        """Propagate the depth of a kernel to those that depend on it."""
        stack = [kernel]
        while stack:
            k = stack.pop()
            least = self.top[k]
            for output in k.outputs:
                for reader in self.readers[output]:
                    if self.top[reader] < least:
                        self.top[reader] = least
                        stack.append(reader)

    # --- merging -------------------------------------------------------------------------------------------------------

    def _is_alive(self, kernel: Kernel) -> bool:
        return bool(kernel.outputs) and self.home.get(kernel.outputs[0]) is kernel

    def _absorb(self, kernel: Kernel, rows_only: bool) -> None:
        """Merge the kernel with its producers as long as possible. It may become the epilogue of one."""
        while self._absorb_one(kernel, rows_only):
            pass

    def _absorb_one(self, kernel: Kernel, rows_only: bool) -> bool:
        """Merge the kernel with the last producer that can be merged; whether more may follow."""
        if kernel.nest is None or kernel.anchor is not None or is_copy(kernel):
            return False
        producers = self._sources(kernel)
        for producer in sorted(producers, key=self.last.__getitem__, reverse=True):
            if rows_only and not (producer.nest is not None and (producer.nest.rows or kernel.nest.rows)):
                continue
            if self._between(producer, kernel, producers):
                continue
            if producer.anchor is not None:
                if self._become_epilogue(producer, kernel):
                    return False
            elif self._merge_producer(producer, kernel):
                return True
        return False

    def _sources(self, kernel: Kernel) -> set[Kernel]:
        """The kernels that write what this one reads."""
        return {k for n in kernel.reads if (k := self.home.get(n)) is not None}

    def _between(self, producer: Kernel, consumer: Kernel, sources: set[Kernel]) -> bool:
        """Whether a third kernel needs the producer and is needed by the consumer, which reads `sources`."""
        most = self.top[consumer]
        others = {r for o in producer.outputs for r in self.readers[o] if self.top[r] <= most} - {consumer, producer}
        if not others:
            return False
        if not others.isdisjoint(sources):
            return True
        first = min(self.enters[k] for k in others)
        if any(self.leaves[k] >= first for k in sources if k is not producer):
            return True
        return self._is_path(others, sources - {producer}, self.top[producer], most)

    def _is_path(self, ahead: set[Kernel], behind: set[Kernel], least: int, most: int) -> bool:
        """Whether a path leads from one set of kernels to another. A bidirectional search: mostly one end is short."""
        home, top, readers = self.home, self.top, self.readers
        forward = list(ahead)
        backward = [(top[k], id(k), k) for k in behind if top[k] >= least]
        heapify(backward)
        while forward and backward:
            for output in forward.pop().outputs:
                for kernel in readers[output]:
                    if kernel in behind:
                        return True
                    if kernel not in ahead and top[kernel] <= most:
                        ahead.add(kernel)
                        forward.append(kernel)
            for node in heappop(backward)[2].reads:
                maker = home.get(node)
                if maker is None or maker in behind:
                    continue
                if maker in ahead:
                    return True
                if top[maker] >= least:
                    behind.add(maker)
                    heappush(backward, (top[maker], id(maker), maker))
        return False

    def _leads_to(self, first: Kernel, second: Kernel) -> bool:
        """Whether the second depends on the first."""
        top, most = self.top, self.top[second]
        seen, left = {first}, [first] if top[first] <= most else []
        while left:
            for output in left.pop().outputs:
                for reader in self.readers[output]:
                    if reader is second:
                        return True
                    if reader not in seen and top[reader] <= most:
                        seen.add(reader)
                        left.append(reader)
        return False

    def _places(self, kernel: Kernel, nodes: Iterable[Node]) -> dict[Node, set[Place]]:
        """The places at which a kernel reads each of these nodes."""
        wanted = set(nodes)
        found: dict[Node, set[Place]] = defaultdict(set)
        for part in kernel.elements():
            for node in wanted & part.loads.keys():
                found[node] |= part.loads[node]
        return found

    def _merge_producer(self, producer: Kernel, kernel: Kernel) -> bool:
        assert producer.nest is not None
        assert kernel.nest is not None
        if self._length(producer, kernel) > 2 * thresholds.fused_steps:
            return False
        only_reader = all(self.readers[o] <= {kernel, producer} for o in producer.outputs)
        places = self._places(kernel, producer.outputs)
        merged = merged_nests(producer, kernel, places, self.stored, only_reader)
        if merged is None:
            return False
        alive = [o for o in producer.outputs if self._needed(o, {kernel, producer})]
        written = {*alive, *kernel.outputs}
        for phase in merged.phases:
            phase.stores = [s for s in phase.stores if s.node in written]
        merged.phases = [p for p in merged.phases if p.stores or p.reductions]
        for node in set(producer.outputs) - set(alive):
            self.stored.discard(node)
        kernel.nest = merged
        kernel.outputs = [*alive, *kernel.outputs]
        self._drop(producer)
        for output in producer.outputs:
            self.home.pop(output, None)
        for output in alive:
            self.home[output] = kernel
        self._refresh(kernel, alive)
        return True

    def _join_siblings(self) -> None:
        """Horizontal fusion: kernels with equal loops that read the same large tensor become one."""
        alike: dict[tuple[int, ...], dict[Kernel, int]] = defaultdict(dict)
        for turn, kernel in enumerate(sorted(set(self.home.values()), key=self.last.__getitem__)):
            if kernel.anchor is None and kernel.nest is not None and kernel.reads and not is_copy(kernel):
                alike[tuple(l.size for l in kernel.nest.outer)][kernel] = turn
        for group in alike.values():
            for kernel in group:
                if self._is_alive(kernel):
                    self._join_readers(kernel, group)

    def _join_readers(self, first: Kernel, turns: Mapping[Kernel, int]) -> None:
        """Join a kernel with later ones that read one of its largest operands."""
        large, turn, refused = _largest(first.reads), turns[first], 0
        waiting = self._waiting(large, turns, turn)
        while waiting and refused < thresholds.join_refusals:
            turn, second = waiting.pop()
            if not self._is_alive(second):
                continue
            if not self._join(first, second):
                refused += 1
                continue
            before, large = large, _largest(first.reads)
            if large != before:
                waiting = self._waiting(large, turns, turn)

    def _waiting(self, nodes: Iterable[Node], turns: Mapping[Kernel, int], turn: int) -> list[tuple[int, Kernel]]:
        """The readers of some nodes with a later turn, the next one last."""
        readers = {k for node in nodes for k in self.readers[node] if turns.get(k, -1) > turn}
        return sorted(((turns[k], k) for k in readers), key=lambda one: one[0], reverse=True)

    def _length(self, *kernels: Kernel) -> int:
        """The number of steps of kernels."""
        return sum(len(part.keys) for k in kernels for part in k.elements())

    def _join(self, first: Kernel, second: Kernel) -> bool:
        assert first.nest is not None
        assert second.nest is not None
        if (
            is_flexible(first.nest) != is_flexible(second.nest)
            or self._length(first, second) > 2 * thresholds.fused_steps
        ):
            return False
        if self._leads_to(first, second) or self._leads_to(second, first):
            return False
        values = {old: IndexExpr(0, ((new, 1),)) for old, new in zip(second.nest.outer, first.nest.outer, strict=True)}
        phases = [moved_phase(p, values) for p in second.nest.phases]
        first.nest = Nest(first.nest.outer, jammed([*first.nest.phases, *phases], self.stored))
        first.outputs = [*first.outputs, *second.outputs]
        self._drop(second)
        for output in second.outputs:
            self.home[output] = first
        self._refresh(first, second.outputs)
        return True

    def _needed(self, node: Node, inside: set[Kernel]) -> bool:
        """Whether a node must be stored even if these kernels are merged."""
        return node in self.results or not self.readers[node] <= inside

    def _drop(self, kernel: Kernel) -> None:
        for node in kernel.reads:
            self.readers[node].discard(kernel)

    def _become_epilogue(self, producer: Kernel, kernel: Kernel) -> bool:
        anchor = producer.anchor
        assert anchor is not None
        assert kernel.nest is not None
        if not has_epilogue(anchor, self.options.by_loops) or kernel.nest.rows or len(kernel.nest.phases) != 1:
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
        before = producer.nest.phases[0] if producer.nest is not None else LoopPhase(())
        after = LoopPhase((), stores=[*before.stores, *stores], elements=before.elements)
        producer.nest, producer.rows = Nest(rows, [after]), rows
        producer.outputs = [s.node for s in producer.nest.phases[0].stores]
        if self._needed(anchor, {kernel, producer}):
            producer.outputs.insert(0, anchor)
        self._drop(kernel)
        for output in kernel.outputs:
            self.home[output] = producer
        self._refresh(producer)
        return True

    def result(self) -> Fused:
        kernels = sorted(set(self.home.values()), key=self.last.__getitem__)
        order = toposort(kernels, lambda k: [self.home[n] for n in k.reads if n in self.home and self.home[n] is not k])
        place = {k: i for i, k in enumerate(order)}
        if any(place[self.home[n]] > i for i, k in enumerate(order) for n in k.reads if n in self.home):
            raise InternalError("fuse", "kernels depend on each other in a cycle.")
        for kernel in order:
            self._finish(kernel)
        return Fused(self.graph, tuple(order), frozenset(self.stored))

    def _finish(self, kernel: Kernel) -> None:
        """Make the steps of a kernel, which is final now."""
        if kernel.nest is None:
            return
        rows = kernel.nest.rows
        kernel.bodies = [phase_body(phase, self.stored, rows, self.linear) for phase in kernel.nest.phases]
        for phase in kernel.nest.phases:
            phase.elements = None
