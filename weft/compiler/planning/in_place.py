"""Which kernels write their result into the memory of an input.

A kernel that replaces a part of a tensor (`update_slice`, `scatter`), a loop that carries such a tensor, and a sum over processes can do so
if nothing reads the old value afterwards: every other reader runs before. Otherwise the kernel writes to other memory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ...graph.node import ITEM, Node
from ..ir.kernel import Kernel, is_contiguous
from ..ir.storage import nbytes
from ..passes.slice_updates import updated_carries


def overwrites(kernel: Kernel) -> dict[Node, Node]:
    """The results of a kernel that can be written over one of its inputs, and that input."""
    anchor = kernel.anchor
    if anchor is None:
        return {}
    if anchor.op.updates_input or (anchor.op.overwrites_inputs and not anchor.outputs):
        source = _whole(kernel, 0)
        return {} if source is None else {anchor: source}
    carries = range(len(anchor.inputs)) if anchor.op.overwrites_inputs else updated_carries(anchor)
    items = [n for n in kernel.outputs if n.op is ITEM and n.param("index") in carries] if carries else []
    found = {n: _whole(kernel, n.param("index")) for n in items}
    return {n: source for n, source in found.items() if source is not None}


def _whole(kernel: Kernel, number: int) -> Node | None:
    """The stored tensor that an operand is, if the kernel reads it as a whole, and nowhere else."""
    assert kernel.anchor is not None
    found, node = kernel.views[number], kernel.anchor.inputs[number]
    others = (v.base for i, v in enumerate(kernel.views) if i != number)
    same = not found.offset and is_contiguous(found.strides, node.shape) and nbytes(found.base) == nbytes(node)
    return found.base if same and found.base not in others else None


def chain(new: Node, old: Node, before: Mapping[Node, Node]) -> list[Node]:
    """The results that lead from an old value to a new one, each written over the one before, the last one first; else none."""
    found = [new]
    while found[-1] in before:
        if before[found[-1]] is old:
            return found
        found.append(before[found[-1]])
    return []


def shared_places(before: Mapping[Node, Node], fixed: Collection[Node]) -> dict[Node, Node]:
    """Whose place each node takes: that of the one which must have a certain place, or the first of those written over each other."""
    after = {old: new for new, old in before.items()}
    shares: dict[Node, Node] = {}
    for first in after:
        if first in before:
            continue
        group = [first]
        while group[-1] in after:
            group.append(after[group[-1]])
        home = next((n for n in group if n in fixed), first)
        shares |= {n: home for n in group if n is not home}
    return shares
