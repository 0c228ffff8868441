"""What cuDNN is asked for: attention of 16-bit floats in a band of keys, as it lies in memory, and all of its gradients."""

from __future__ import annotations

from ...ir.kernel import View
from ..vendor.specs import HALVES, AttentionSpec
from .problem import AttentionProblem

ALIGNED = 16  # bytes that operands and their rows begin at a multiple of
NUMBERS = 8  # features of 16 bits in them


def attention_spec(problem: AttentionProblem) -> AttentionSpec | None:
    """The description of a node for cuDNN; None if it has no form for it."""
    batch, heads, queries, keys = problem.sizes
    left, right, align, scale = problem.anchor.get_params("left", "right", "align", "scale")
    gradients = problem.anchor.op.name == "attention_gradients"
    wanted = {"y0", "y1", "y2"} if gradients else {"y0"}
    if problem.extra or problem.dtype.name not in HALVES or not wanted <= set(problem.results):
        return None
    views = [view for i, view in enumerate(problem.kernel.views) if i != 4]  # all but the log-sum-exp
    if problem.features % NUMBERS or problem.values % NUMBERS or not all(map(_is_aligned, views)):
        return None
    shift = keys - queries if align == "lower_right" else 0
    if (right >= 0 and shift + right < 0) or (left >= 0 and queries - 1 + shift - left >= keys):
        return None  # a query that attends to nothing
    return AttentionSpec(
        "gradients" if gradients else "forward", batch, heads, problem.key_heads, queries, keys, problem.features, problem.values,
        tuple(view.strides[axis] for view in views for axis in (0, 2, 1, 3)), left, right, align == "lower_right" and queries != keys,
        scale, problem.dtype.name, stats=gradients or "y1" in problem.results,
    )  # fmt: skip


def _is_aligned(view: View) -> bool:
    *steps, last = view.strides
    return last == 1 and all(n * view.base.dtype.itemsize % ALIGNED == 0 for n in (view.offset, *steps))
