"""Communication that overlaps with computation, for backends with a second stream.

Collectives, and loops between two of them, run beside all other kernels: each after everything before it, in one order, the same in all
processes. Kernels that the next collective depends on come first, so that it starts as early as possible: the gradient of a weight is
computed as soon as possible, not after those of all activations. Readers of a result come late: after the next collective has started, as
long as there is other work.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import accumulate

from ...graph.node import Node
from ..ir.kernel import Kernel
from ..ir.storage import nbytes
from ..thresholds import thresholds


def is_collective(kernel: Kernel) -> bool:
    """Whether all processes of a mesh must run it together."""
    return kernel.anchor is not None and kernel.anchor.op.kind == "collective"


def communicates(kernel: Kernel) -> bool:
    """Whether it communicates: the index of a process is a collective without an operand, and needs no communication."""
    return is_collective(kernel) and kernel.anchor is not None and bool(kernel.anchor.inputs)


def kernels_beside(
    order: Sequence[Kernel], after: Mapping[Kernel, Collection[Kernel]], results: AbstractSet[Node]
) -> frozenset[Kernel]:
    """The kernels that overlap with the others, given all in a valid order."""
    exchanges = {k for k in order if communicates(k)}
    if not exchanges:
        return frozenset()
    readers: dict[Kernel, list[Kernel]] = defaultdict(list)
    for kernel in order:
        for earlier in after[kernel]:
            readers[earlier].append(kernel)
    only_sent: set[Kernel] = set()
    for kernel in reversed(order):
        ends = kernel.anchor is not None or not results.isdisjoint(kernel.outputs)
        if not ends and readers[kernel] and all(k in exchanges or k in only_sent for k in readers[kernel]):
            only_sent.add(kernel)
    beside = set(exchanges)
    for kernel in order:
        if kernel in only_sent and not beside.isdisjoint(after[kernel]):
            beside.add(kernel)
    return frozenset(beside)


def due_levels(
    order: Sequence[Kernel], after: Mapping[Kernel, Collection[Kernel]], beside: Collection[Kernel]
) -> dict[Kernel, int]:
    """Levels by which kernels are scheduled: 0 for those beside the others, else the number of the first collective that needs them."""
    begun = _begun(order)
    last = 1 + max(begun.values(), default=0)
    due = {k: begun[k] if communicates(k) else last for k in order}
    for kernel in reversed(order):
        for earlier in after[kernel]:
            due[earlier] = min(due[earlier], due[kernel])
    return {k: 0 if k in beside else due[k] for k in order}


def gates(
    order: Sequence[Kernel],
    after: Mapping[Kernel, Collection[Kernel]],
    beside: Collection[Kernel],
    last: Collection[Kernel],
) -> dict[Kernel, int]:
    """How many collectives should have begun before each kernel that waits for one runs: one more than it waits for.

    Of the kernels that nothing depends on (`last`), the small ones wait, too: they share a launch with those at the end.
    """
    begun = _begun(order)
    waiting = {k: [begun[e] for e in after[k] if e in beside] for k in order if k not in beside}
    found = {k: 1 + max(numbers) for k, numbers in waiting.items() if numbers}
    if not found:
        return {}
    small = [k for k in last if k not in found and sum(map(nbytes, k.outputs)) <= thresholds.gpu_late_results]
    return {**dict.fromkeys(small, 1 + max(begun.values())), **found}


def _begun(order: Sequence[Kernel]) -> dict[Kernel, int]:
    """How many collectives there are up to each kernel, itself included."""
    return dict(zip(order, accumulate(map(communicates, order)), strict=True))


def in_flight(order: Sequence[Kernel], beside: Collection[Kernel]) -> dict[Kernel, int]:
    """Until which kernel, by its number in the order, each kernel beside the others may still run.

    That is the first of the others that reads its result, or that of a later one: they wait for all that began before.
    """
    if not beside:
        return {}
    first_reader: dict[Node, int] = {}
    for i, kernel in reversed(list(enumerate(order))):
        if kernel not in beside:
            first_reader |= dict.fromkeys(kernel.reads, i)
    ends, end = dict[Kernel, int](), len(order)
    for kernel in reversed(order):
        if kernel in beside:
            end = min([end, *(first_reader[o] for o in kernel.outputs if o in first_reader)])
            ends[kernel] = end
    return ends
