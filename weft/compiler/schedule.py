"""Schedule: the order of the kernels.

A kernel runs after what it reads. State that is updated in place adds the other direction: whoever reads the old value runs
before the kernel that writes the new one. Where that would be a circle the update goes to other memory first, and is
copied at the end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from ..graph.node import Node
from .fuse import Fused
from .index import linear
from .kernel import Kernel


@dataclass(frozen=True)
class Schedule:
    kernels: tuple[Kernel, ...]
    in_place: Mapping[Node, Node]  # new value -> the input whose memory it takes


def schedule(fused: Fused, updates: Mapping[Node, Node], gathers: bool = False) -> Schedule:
    """An order for the kernels. `updates` says which inputs should be replaced by which results.

    `gathers`: what is made of state alone, such as weights in 16 bits, comes first and together.
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
    # What nobody waits for comes last and together: the updates of an optimizer need no barrier among them.
    awaited = {k for waiting in after.values() for k in waiting}
    order = _ordered(fused.kernels, after, position)
    last = [k for k in order if k.anchor is None and k not in awaited]
    state = set(updates.values())
    first = [k for k in order if gathers and k.anchor is None and not after[k] and k.reads and k.reads <= state]
    moved = {*first, *last}
    middle = (k for k in order if k not in moved)
    return Schedule((*(k for k in first if k in awaited), *middle, *last), in_place)


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
