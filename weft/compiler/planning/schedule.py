"""Schedule: the order of the kernels.

A kernel runs after the kernels that write what it reads. Updates of state in place add a constraint: readers of the old value
run before the kernel that writes the new one. If that were a cycle, the update is written to other memory and copied at the end.

Kernels that reduce live memory are scheduled eagerly: a weight is updated right after its gradient is computed, not at the end, where
the gradients of all layers would be alive.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise

from ...graph.node import Node
from ...records import dataclass
from ..ir.index import linear
from ..ir.kernel import Kernel
from ..ir.loops import is_inline
from ..ir.program import Fused
from ..ir.storage import nbytes
from .in_place import chain, overwrites
from .overlap import communicates, due_levels, gates, is_collective, kernels_beside

SMALL_RESULTS = 256  # bytes: smaller savings of memory are ignored


@dataclass(frozen=True)
class KernelSchedule:
    """The order of the kernels, and the updates that are done in place."""

    kernels: tuple[Kernel, ...]
    in_place: Mapping[Node, Node]  # new value -> the input whose memory it takes
    written_over: Mapping[
        Node, Node
    ]  # result of a kernel that replaces a part of a tensor -> the tensor, whose memory it takes
    beside: frozenset[Kernel] = frozenset()  # that run beside the others, in their order


def schedule(
    fused: Fused,
    updates: Mapping[Node, Node],
    gathers: bool = False,
    early_free_bytes: int = 1,
    persistent: Collection[Node] = (),
    overlaps: bool = False,
) -> KernelSchedule:
    """An order for the kernels. `updates` says which inputs should be replaced by which results.

    `gathers`: kernels that read state alone, such as weights cast to 16 bits, come first, side by side. `early_free_bytes`: a kernel
    that frees so many bytes is scheduled eagerly. `persistent`: values that are computed once for many runs, and must not be overwritten.
    `overlaps`: collectives run beside other kernels.
    """
    home = {o: k for k in fused.kernels for o in k.outputs}
    readers: dict[Node, list[Kernel]] = defaultdict(list)
    after: dict[Kernel, set[Kernel]] = {k: set() for k in fused.kernels}
    for kernel in fused.kernels:
        for node in kernel.reads:
            readers[node].append(kernel)
            if node in home and home[node] is not kernel:
                after[kernel].add(home[node])
    position = {k: i for i, k in enumerate(fused.kernels)}
    in_place: dict[Node, Node] = {}
    results, order = {*fused.graph.outputs}, TopologicalOrder(fused.kernels, after)
    possible = {new: old for k in fused.kernels for new, old in overwrites(k).items()}
    written_over: dict[Node, Node] = {}

    def write_over(new: Node, old: Node) -> bool:
        """Let all other readers of the old value run before the kernel that writes the new one over it, if they can."""
        return order.put_after(home[new], {k for k in readers[old] if k is not home[new]})

    for new, old in updates.items():
        writer = home.get(new)
        if writer is None or old in results or new in in_place:
            continue
        steps = chain(new, old, possible)
        if steps and not any(n in results or n in written_over for n in steps[1:]):
            if all(write_over(n, possible[n]) for n in steps):
                in_place[new] = old
                written_over |= {n: possible[n] for n in steps}
        elif _reads_where_it_writes(writer, new, old) and write_over(new, old):
            in_place[new] = old
    _keep_order_of_collectives(fused, order)
    kept = {*results, *persistent, *fused.graph.inputs, *written_over.values()}
    for new, old in possible.items():
        if (
            new in written_over or new in in_place
        ):  # the state that it replaces may still be read when the old value is written
            continue
        if old in home and old not in kept and write_over(new, old):
            written_over[new] = old
            kept.add(old)
    awaited = {k for waiting in after.values() for k in waiting}
    # Kernels that none depends on come last, side by side: the updates of an optimizer need no barrier between them.
    last = {k for k in fused.kernels if k.anchor is None and k not in awaited}
    in_order = _small_first(_ordered(fused.kernels, after, position), after)
    beside = kernels_beside(in_order, after, results) if overlaps else frozenset()
    levels = due_levels(in_order, after, beside) if overlaps else _collective_levels(in_order, after)
    held = gates(in_order, after, beside, last) if overlaps else {}
    order_found = _freeing_early(in_order, after, last, levels, results, early_free_bytes, held)
    state = set(updates.values())

    def comes_first(kernel: Kernel) -> bool:
        loops = kernel.anchor is None and kernel in awaited and not after[kernel]
        return gathers and loops and bool(kernel.reads) and kernel.reads <= state

    found = tuple(sorted(order_found, key=lambda k: not comes_first(k)))
    return KernelSchedule(found, in_place, written_over, beside)


def _keep_order_of_collectives(fused: Fused, order: TopologicalOrder) -> None:
    """Let collectives run in one order, the same in all processes: those with fewer ops before them first, because their inputs are made
    first; one that others wait for may come earlier. What is exchanged, combined and exchanged again counts as one op."""
    collectives = {k.anchor: k for k in fused.kernels if k.anchor is not None and is_collective(k)}
    if len(collectives) < 2:
        return
    depth: dict[Node, int] = {}
    exchanged: set[Node] = set()  # results of collectives, and what loops make of them
    for node in fused.graph.nodes:
        last = max(node.inputs, key=depth.__getitem__, default=None)
        depth[node] = 0 if last is None else depth[last] + (last not in exchanged)
        if node in collectives or (last in exchanged and is_inline(node)):
            exchanged.add(node)
    number = {node: (depth[node], i) for i, node in enumerate(fused.graph.nodes)}
    for earlier, later in pairwise(sorted(collectives, key=number.__getitem__)):
        order.put_after(collectives[later], {collectives[earlier]})


def _collective_levels(order: Sequence[Kernel], after: Mapping[Kernel, set[Kernel]]) -> dict[Kernel, int]:
    """The number of collectives on the longest path to each kernel, including itself. Kernels are scheduled by this level: everything that
    needs no collective runs before the first one, where processes wait for the slowest. So they wait once for the whole backward pass, not
    for each of its layers.
    """
    levels: dict[Kernel, int] = {}
    for kernel in order:
        levels[kernel] = max((levels[k] for k in after[kernel]), default=0) + is_collective(kernel)
    return levels


def _reads_where_it_writes(kernel: Kernel, new: Node, old: Node) -> bool:
    """Whether the kernel reads each old element only where it writes the new one."""
    if any(v.base is old for v in kernel.views):
        return False
    if kernel.nest is None:
        return old not in kernel.reads
    written = [
        (i, linear(s.place, new.shape)) for i, p in enumerate(kernel.nest.phases) for s in p.stores if s.node is new
    ]
    if not written:
        return old not in kernel.reads
    [(phase, position)] = written
    for i, part in enumerate(kernel.bodies):
        for step in part.steps:
            if step.kind == "load" and step.node is old and (i != phase or step.indices[0] != position):
                return False
    return True


class TopologicalOrder:
    """A topological order of kernels that is maintained while dependences are added (Pearce and Kelly's algorithm).

    Whether one kernel depends on another is answered by looking only at those between the two, not at the whole program.
    """

    def __init__(self, kernels: Sequence[Kernel], after: dict[Kernel, set[Kernel]]) -> None:
        self.after = after
        self.before: dict[Kernel, set[Kernel]] = {k: set() for k in kernels}  # the kernels that depend on each
        for kernel, waits_for in after.items():
            for earlier in waits_for:
                self.before[earlier].add(kernel)
        self.place = {k: i for i, k in enumerate(kernels)}

    def put_after(self, kernel: Kernel, earlier: Collection[Kernel]) -> bool:
        """Make a kernel depend on others, unless one of them depends on it."""
        behind = self._reached([k for k in earlier if self.place[k] > self.place[kernel]], self.after, kernel, 1)
        if kernel in behind:
            return False
        if behind:
            last = max(behind, key=self.place.__getitem__)
            waiting = self._reached([kernel], self.before, last, -1)
            self._reorder(behind, waiting)
        self.after[kernel] |= set(earlier)
        for k in earlier:
            self.before[k].add(kernel)
        return True

    def _reached(
        self, start: Sequence[Kernel], following: Mapping[Kernel, set[Kernel]], limit: Kernel, sign: int
    ) -> set[Kernel]:
        """The kernels reachable from some, up to the position of the limit."""
        place, bound = self.place, sign * self.place[limit]
        found, stack = set(start), list(start)
        while stack:
            for k in following[stack.pop()]:
                if k not in found and sign * place[k] >= bound:
                    found.add(k)
                    stack.append(k)
        return found

    def _reorder(self, first: Collection[Kernel], then: Collection[Kernel]) -> None:
        """Permute both among their positions: the first before the others, each group in its own order."""
        in_turn = [*sorted(first, key=self.place.__getitem__), *sorted(then, key=self.place.__getitem__)]
        places = sorted(self.place[k] for k in in_turn)
        self.place.update(zip(in_turn, places, strict=True))


def _ordered(
    kernels: tuple[Kernel, ...], after: Mapping[Kernel, set[Kernel]], position: Mapping[Kernel, int]
) -> tuple[Kernel, ...]:
    """A topological order, otherwise as given."""
    order: dict[Kernel, None] = {}
    for kernel in kernels:
        stack = [kernel]
        while stack:
            top = stack[-1]
            waiting = [k for k in after[top] if k not in order]
            if top in order or not waiting:
                stack.pop()
                order[top] = None
            else:
                stack += sorted(waiting, key=position.__getitem__, reverse=True)
    return tuple(order)


def _small_first(order: Sequence[Kernel], after: Mapping[Kernel, set[Kernel]]) -> tuple[Kernel, ...]:
    """The order with kernels that wait for nothing and write a few numbers first, such as the step count of an optimizer and what follows
    from it: the updates of all weights wait for them, and so do the gradients and activations that these read."""

    def is_small(kernel: Kernel) -> bool:
        return kernel.anchor is None and not after[kernel] and sum(map(nbytes, kernel.outputs)) <= SMALL_RESULTS

    return tuple(sorted(order, key=lambda kernel: not is_small(kernel)))


def _freeing_early(
    order: Sequence[Kernel],
    after: Mapping[Kernel, set[Kernel]],
    last: Collection[Kernel],
    levels: Mapping[Kernel, int],
    results: Collection[Node],
    early_free_bytes: int,
    held_until: Mapping[Kernel, int],
) -> list[Kernel]:
    """The same order by levels, `last` at the end, except that of the ready kernels one that frees enough memory goes first.

    Kernels that are `held_until` so many collectives have begun come later, as long as there are others. Where there are such kernels, those
    that free memory need not wait for their level, only for kernels of level 0.
    """
    readers = Counter(n for k in order for n in k.reads)
    made = {o for k in order for o in k.outputs if o not in results}
    followers: dict[Kernel, list[Kernel]] = defaultdict(list)
    missing = {k: len(after[k]) for k in order}
    for kernel in order:
        for earlier in after[kernel]:
            followers[earlier].append(kernel)

    def freed(kernel: Kernel) -> int:
        """Bytes that it frees, less those that it allocates."""
        last = (n for n in kernel.reads if n in made and readers[n] == 1)
        return sum(map(nbytes, last)) - sum(nbytes(o) for o in kernel.outputs if o in made)

    waiting_for: dict[Node, list[Kernel]] = defaultdict(list)
    for kernel in order:
        for node in kernel.reads:
            waiting_for[node].append(kernel)
    position = {k: (levels[k], k in last, i) for i, k in enumerate(order)}
    by_place = {place: k for k, place in position.items()}
    ready = [position[k] for k in order if not missing[k] and not held_until.get(k)]
    heapify(ready)
    # The bytes that a kernel frees only grow while it waits, so an eager kernel remains eager.
    eager = [place for place in ready if freed(by_place[place]) >= early_free_bytes]
    heapify(eager)
    done: set[Kernel] = set()
    found: list[Kernel] = []
    # Ready kernels that wait for collectives to begin.
    held = [(held_until[k], position[k]) for k in order if not missing[k] and held_until.get(k)]
    heapify(held)
    begun = 0
    while ready or held:
        released: list[Kernel] = []
        while held and (held[0][0] <= begun or not (ready or released)):
            released.append(by_place[heappop(held)[1]])
        for kernel in released:
            heappush(ready, position[kernel])
            if freed(kernel) >= early_free_bytes:
                heappush(eager, position[kernel])
        if eager and (eager[0][0] <= ready[0][0] or (held_until and ready[0][0])):
            kernel = by_place[heappop(eager)]
        else:
            kernel = by_place[heappop(ready)]
        if kernel in done:
            continue
        done.add(kernel)
        found.append(kernel)
        begun += communicates(kernel)
        readers.subtract(kernel.reads)
        changed = [
            k for n in kernel.reads if readers[n] == 1 for k in waiting_for[n] if k not in done and not missing[k]
        ]
        for follower in followers[kernel]:
            missing[follower] -= 1
            if missing[follower]:
                continue
            if held_until.get(follower, 0) > begun:
                heappush(held, (held_until[follower], position[follower]))
            else:
                heappush(ready, position[follower])
                changed.append(follower)
        for k in changed:
            if held_until.get(k, 0) <= begun and freed(k) >= early_free_bytes:
                heappush(eager, position[k])
    return found
