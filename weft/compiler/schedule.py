"""Schedule: the order of the kernels.

A kernel runs after what it reads. State that is updated in place adds the other direction: whoever reads the old value runs
before the kernel that writes the new one. Where that would be a circle the update goes to other memory first, and is
copied at the end.

Whoever frees more memory than he takes runs as soon as he can: the gradient of a weight right after the last use of the weight, and
not at the end, to where the gradients of all layers would have to be kept.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ..graph.node import Node
from .fuse import Fused
from .index import linear
from .kernel import Kernel
from .memory import nbytes


@dataclass(frozen=True)
class Schedule:
    kernels: tuple[Kernel, ...]
    in_place: Mapping[Node, Node]  # new value -> the input whose memory it takes


def schedule(fused: Fused, updates: Mapping[Node, Node], gathers: bool = False, much: int = 1) -> Schedule:
    """An order for the kernels. `updates` says which inputs should be replaced by which results.

    `gathers`: what is made of state alone, such as weights in 16 bits, comes first and together. `much`: bytes that are worth freeing
    early.
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
    in_place = {}
    for new, old in updates.items():
        writer = home.get(new)
        if (
            writer is None
            or old in fused.graph.outputs
            or new in in_place
            or not _reads_where_it_writes(writer, new, old)
        ):
            continue
        earlier = {k for k in readers[old] if k is not writer}
        if not any(_depends(k, writer, after) for k in earlier):
            after[writer] |= earlier
            in_place[new] = old
    awaited = {k for waiting in after.values() for k in waiting}
    # What nobody waits for comes last and together: the updates of an optimizer need no barrier among them.
    last = {k for k in fused.kernels if k.anchor is None and k not in awaited}
    order = _thrifty(_ordered(fused.kernels, after, position), after, last, {*fused.graph.outputs}, much)
    state = set(updates.values())

    def comes_first(kernel: Kernel) -> bool:
        loops = kernel.anchor is None and kernel in awaited and not after[kernel]
        return gathers and loops and bool(kernel.reads) and kernel.reads <= state

    return Schedule(tuple(sorted(order, key=lambda k: not comes_first(k))), in_place)


def _reads_where_it_writes(kernel: Kernel, new: Node, old: Node) -> bool:
    """Whether the kernel only reads an old element when it writes the new one in its place."""
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


def _depends(kernel: Kernel, on: Kernel, after: Mapping[Kernel, set[Kernel]]) -> bool:
    seen, stack = set(), [kernel]
    while stack:
        k = stack.pop()
        if k is on:
            return True
        if k not in seen:
            seen.add(k)
            stack += after[k]
    return False


def _ordered(
    kernels: tuple[Kernel, ...], after: Mapping[Kernel, set[Kernel]], position: Mapping[Kernel, int]
) -> tuple[Kernel, ...]:
    """Each after those it waits for, otherwise as they came."""
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


def _thrifty(
    order: Sequence[Kernel],
    after: Mapping[Kernel, set[Kernel]],
    last: Collection[Kernel],
    results: Collection[Node],
    much: int,
) -> list[Kernel]:
    """The same order, `last` at the end, but of those that could run, one that frees much more memory than it takes goes first."""
    readers = Counter(n for k in order for n in k.reads)
    made = {o for k in order for o in k.outputs if o not in results}
    followers: dict[Kernel, list[Kernel]] = defaultdict(list)
    missing = {k: len(after[k]) for k in order}
    for kernel in order:
        for earlier in after[kernel]:
            followers[earlier].append(kernel)

    def freed(kernel: Kernel) -> int:
        """Bytes that are there no more after it, less those that it makes."""
        last = (n for n in kernel.reads if n in made and readers[n] == 1)
        return sum(map(nbytes, last)) - sum(nbytes(o) for o in kernel.outputs if o in made)

    position = {k: (k in last, i) for i, k in enumerate(order)}
    ready = [k for k in order if not missing[k]]
    found = []
    while ready:
        ready.sort(key=position.__getitem__)
        kernel = next((k for k in ready if freed(k) >= much), ready[0])
        ready.remove(kernel)
        found.append(kernel)
        readers.subtract(kernel.reads)
        for follower in followers[kernel]:
            missing[follower] -= 1
            if not missing[follower]:
                ready.append(follower)
    return found
