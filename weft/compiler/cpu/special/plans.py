"""Plans of the ops that are neither loops nor matrix products: sort, scatter, cumulative sum and product, products with sparse weights,
collectives."""

from __future__ import annotations

from collections.abc import Callable

from ....errors import InternalError
from ...ir.kernel import Kernel
from ...ir.plan import Plan
from ..attention import plans as attention
from ..collective import mpi as _mpi  # noqa: F401  # registers its functions
from ..collective import point_to_point as point_to_point  # registers its functions
from ..collective import shared_memory as collective
from . import cumulative as cumulate
from . import scatter, slice_update, sort, sparse, top_k

PLANS: dict[
    str, Callable[..., Plan]
] = {  # (node, threads) -> Plan, with several results (node, threads, wanted) -> Plan
    "argsort": sort.plan,
    "top_k": top_k.plan,
    "scatter": scatter.plan,
    "update_slice": slice_update.plan,
    "cumsum": cumulate.plan,
    "cumprod": cumulate.plan,
    "sparse_matmul": sparse.plan,
    "all_reduce_bucket": collective.plan_bucket,
    **dict.fromkeys(
        ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "shift", "axis_index"),
        collective.plan,
    ),
    "attention": attention.plan,
    "attention_gradients": attention.plan_gradients,
}


def plan(kernel: Kernel, threads: int) -> Plan:
    """How library functions compute a node from its inputs ("x0", "x1", ...), by up to so many threads.

    The inputs have no gaps; the rule of an op with `strided_inputs` is told how these lie.

    The rule of an op with several results ("y0", "y1", ...) is told which of them are read: no other has memory.

    Wrong indices of a scatter or update_slice are reported at "status", those of its i-th axis as those of "site{i}".
    """
    node = kernel.anchor
    assert node is not None
    wanted = (frozenset(kernel.results),) if node.outputs else ()
    views = (kernel.views,) if node.op.strided_inputs else ()
    made = PLANS[node.op.name](node, threads, *wanted, *views)
    named = {a for phase in made.phases for a in phase.arguments if isinstance(a, str)}
    unread = {f"y{i}" for i in range(len(node.outputs))} - {f"y{i}" for i in kernel.results}
    if not named.isdisjoint(unread):
        raise InternalError(
            "plan", f"the rule of {node.op.name!r} writes {', '.join(sorted(named & unread))}, which nothing reads."
        )
    return made
