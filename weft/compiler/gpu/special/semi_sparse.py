"""compress_semi_sparse: a weight with 2:4 sparsity in the form that cuSPARSELt multiplies. It is expanded first, and the library compresses it.

If the weight does not change, that happens once.
"""

from __future__ import annotations

from math import prod

from ....graph.node import Node
from ...ir.kernel import Kernel
from ...ir.plan import PlanPhase
from ..anchors import anchor_of
from ..kernel_utils import ceil_div, element
from ..source import KernelSource, KernelWriter
from ..vendor.claims import expanded_weight

BLOCK = 512  # groups of four weights for each program
WORK = frozenset(("work",))


def phases(kernel: Kernel) -> tuple[PlanPhase, ...]:
    expand = PlanPhase("semi_sparse.expand", (), frozenset(("x0", "x1")), WORK)
    return expand, PlanPhase("library", ("direct",), WORK, frozenset(("y",)))


def scratch_tensors(kernel: Kernel) -> tuple[Node, ...]:
    return (expanded_weight(anchor_of(kernel)),)


def write(kernel: Kernel, phase: PlanPhase) -> KernelSource:
    """The expansion: a program writes the four weights of each of its groups."""
    anchor, dense = anchor_of(kernel), expanded_weight(anchor_of(kernel))
    values, positions = anchor.inputs
    groups = prod(values.shape) // 2
    writer = KernelWriter("kernel")
    writer.line(f"item = tl.program_id(0) * {BLOCK} + tl.arange(0, {BLOCK})[:, None]")
    writer.line(f"inside = item < {groups}")
    pairs, halves = kernel.views
    codes = element(writer, halves, positions.shape, "item // 2")
    writer.line(f"code = tl.load({codes}, mask=inside, other=0).to(tl.int32) >> (item % 2 * 4)")
    writer.line("place = tl.arange(0, 4)[None, :]")
    for n in (0, 1):
        at = element(writer, pairs, values.shape, f"2 * item + {n}")
        writer.line(f"value{n} = tl.load({at}, mask=inside, other=0).to(tl.float32)")
        writer.line(f"part{n} = tl.where((code >> {2 * n}) & 3 == place, value{n}, 0.0)")
    writer.written.append(dense)
    writer.line(f"tl.store({writer.pointer(dense)} + item * 4 + place, part0 + part1, mask=inside)")
    return writer.finished(ceil_div(groups, BLOCK), 4)
