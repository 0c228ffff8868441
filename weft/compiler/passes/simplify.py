"""Simplify: the same values with less work. Constants are folded, movement that cancels is removed, and so are neutral operands.

Common subexpressions and dead code need no rule: equal nodes are one node by construction, and a graph holds only what its
outputs depend on.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ...errors import WeftError
from ...graph.graph import Graph
from ...graph.node import CONST, OPS, Node, Op, Shape, constant, make
from ...graph.rewrite import Fuel, Rule, rewrite, rule
from ..thresholds import thresholds
from .graph_builders import const_value
from .long_reductions import long_reduction, moments_of_pieces
from .products_and_masks import masks_from_results, transposed_products
from .scatters import one_hot, pooling_gradient, scatter_into_sum, separate_windows
from .sum_identities import centred_sum, one_hot_sum, scaled_sum


def simplify(graph: Graph, fuel: int | None = None, recompute: bool = False, fast_math: bool = False) -> Graph:
    """The graph after all rules. `fuel` limits the number of replacements, to find by bisection one that breaks a program.

    `recompute`: values that are cheap to compute from others that are read anyway are recomputed, not read from memory.
    """
    budget = Fuel(fuel)
    graph = rewrite(graph, _rules(fast_math), budget)
    graph = masks_from_results(graph, budget, recompute)
    return transposed_products(graph, budget)


def refine(graph: Graph, fuel: int | None = None, split_sums: bool = True, fast_math: bool = False) -> Graph:
    """The rewrites that need the layout to be known, together with all of `simplify`.

    `split_sums`: long reductions are done in two steps, so that threads share them.
    """
    late = [*SPLIT_RULES, *LATE_RULES] if split_sums else LATE_RULES
    return rewrite(graph, [*_rules(fast_math), *late], fuel)


def _rules(fast_math: bool) -> Sequence[Rule]:
    """The rules that hold for every float; with `fast_math` also those that can change which values overflow."""
    return RULES if fast_math else [r for r in RULES if r is not scaled_sum]


# --- constants and identities -------------------------------------------------------------------------------------------------


@rule(where=lambda op: op.derivative_marker)
def derivative_markers(node: Node) -> Node | None:
    """Tags and stopped gradients are identities here, since the graph is differentiated already."""
    return node.inputs[0]


@rule("permute")
def permuted_before_expand(node: Node) -> Node | None:
    """A value is permuted before it is expanded, not after: one number per channel is usually only reshaped."""
    spread = node.inputs[0]
    if spread.op.name != "expand":
        return None
    small, order = spread.inputs[0], node.param("axes")
    shape = (1,) * (len(spread.shape) - len(small.shape)) + small.shape
    target = tuple(shape[a] for a in order)
    if small.shape != shape:
        small = make(OPS["reshape"], (small,), (shape,))
    wide = [a for a in order if shape[a] != 1]
    moved = make(OPS["permute"], (small,), (order,)) if wide != sorted(wide) else None
    small = moved or (small if small.shape == target else make(OPS["reshape"], (small,), (target,)))
    return make(OPS["expand"], (small,), (node.shape,), node.source)


@rule("cast")
def cast_to_same_dtype(node: Node) -> Node | None:
    return node.inputs[0] if node.dtype is node.inputs[0].dtype else None


@rule("item")
def custom_result(node: Node) -> Node | None:
    """A function with a custom derivative is its results."""
    source = node.inputs[0]
    return source.inputs[node.param("index")] if source.op.name == "custom" else None


@rule(where=lambda op: op.kernel == "view" or op.kind == "elementwise")
def fold_constants(node: Node) -> Node | None:
    """Elementwise ops on constants, and a constant in another shape."""
    if not node.inputs or any(i.op is not CONST for i in node.inputs):
        return None
    if node.op.kernel == "view":
        return make(CONST, (), node.inputs[0].replace_params(dtype=node.dtype, shape=node.shape), node.source)
    wide = [np.float32 if i.dtype.is_half and node.op.widen else i.dtype.numpy for i in node.inputs]
    arrays = [
        np.asarray(const_value(i)).astype(i.dtype.numpy).astype(w) for i, w in zip(node.inputs, wide, strict=True)
    ]
    try:
        with np.errstate(all="ignore"):
            value = np.asarray(node.op.reference(*arrays, *node.params)).astype(node.dtype.numpy)
    except (WeftError, ArithmeticError, ValueError):  # an error of the run stays one
        return None
    return constant(value.item() if not node.dtype.is_half else float(value), node.dtype, node.shape)


@rule("add", "sub", "mul", "div")
def neutral_operand(node: Node) -> Node | None:
    """x + 0, x * 1 and the like."""
    a, b = node.inputs
    if b.op is CONST and _is_neutral(b, node.op):
        return a
    if node.op.commutes and a.op is CONST and _is_neutral(a, node.op):
        return b
    return None


def _is_neutral(node: Node, op: Op) -> bool:
    """Whether a constant changes nothing. Of floats only -0.0 is neutral for addition: -0.0 + 0.0 is 0.0."""
    value = node.param("value")
    if op.name in ("mul", "div"):
        return bool(const_value(node) == 1)
    if node.dtype.is_float and op.name == "add":
        return bool(value == "-0.0")
    return not isinstance(value, str) and value == 0


@rule("neg")
def double_negation(node: Node) -> Node | None:
    x = node.inputs[0]
    return x.inputs[0] if x.op is node.op else None


@rule("where")
def known_selection(node: Node) -> Node | None:
    """A selection between equal values, or by a constant condition."""
    condition, x, y = node.inputs
    if x is y:
        return x
    return (x if condition.param("value") else y) if condition.op is CONST else None


# --- movement -----------------------------------------------------------------------------------------------------------------


@rule("reshape", "expand")
def merge_shapes(node: Node) -> Node | None:
    """A reshape of a reshape, or an expand of an expand, is one; none if the shape stays."""
    x = node.inputs[0]
    if node.shape == x.shape:
        return x
    return make(node.op, x.inputs, node.params, node.source) if x.op is node.op else None


@rule("permute")
def merge_permutes(node: Node) -> Node | None:
    x, axes = node.inputs[0], node.param("axes")
    if axes == tuple(range(len(axes))):
        return x
    if x.op is node.op:
        below = x.param("axes")
        return make(node.op, x.inputs, (tuple(below[a] for a in axes),), node.source)
    return None


@rule("permute")
def merge_permutes_around_ones(node: Node) -> Node | None:
    """Two permutations between which a reshape only adds or drops axes of size 1 are one; none if the order of the others stays."""
    spaced, order = node.inputs[0], node.param("axes")
    if spaced.op.name != "reshape" or spaced.inputs[0].op is not node.op:
        return None
    moved = spaced.inputs[0]
    x, below = moved.inputs[0], moved.param("axes")
    if [n for n in spaced.shape if n != 1] != [n for n in moved.shape if n != 1]:
        return None
    origins = dict(zip(_long_axes(spaced.shape), (below[a] for a in _long_axes(moved.shape)), strict=True))
    axes = [origins[a] for a in order if a in origins]
    if axes != sorted(axes):
        x = make(node.op, (x,), ((*axes, *(a for a, n in enumerate(x.shape) if n == 1)),))
    return make(OPS["reshape"], (x,), (node.shape,), node.source)


def _long_axes(shape: Shape) -> list[int]:
    return [a for a, n in enumerate(shape) if n != 1]


@rule("slice", "pad")
def whole_slice(node: Node) -> Node | None:
    """A slice of everything, or a pad by nothing."""
    return node.inputs[0] if node.shape == node.inputs[0].shape else None


@rule("concat")
def concat_of_one(node: Node) -> Node | None:
    return node.inputs[0] if len(node.inputs) == 1 else None


@rule("concat")
def concat_of_concats(node: Node) -> Node | None:
    """A concat of concats along the same axis is one concat, as long as it has few pieces: kernels are cut where one passes to the next.

    In a network whose layers append to what they read (DenseNet), every few layers the result is kept as it is; fusion stores it.
    """
    parts, most = list(node.inputs), min(thresholds.concat_flat, thresholds.concat_pieces)
    for inner in node.inputs:
        if inner.op is node.op and inner.params == node.params:
            expanded = len(parts) - 1 + len(inner.inputs)
            if expanded <= most:
                at = parts.index(inner)
                parts[at : at + 1] = inner.inputs
    return make(node.op, tuple(parts), node.params, node.source) if len(parts) > len(node.inputs) else None


# --- reductions and products --------------------------------------------------------------------------------------------------


@rule(where=lambda op: op.combine is not None)
def reduction_of_ones(node: Node) -> Node | None:
    """A reduction over axes of size 1 only drops them."""
    x, axes = node.inputs[0], node.param("axes")
    if all(x.shape[a] == 1 for a in axes):
        return make(OPS["reshape"], (x,), (node.shape,), node.source) if axes else x
    return None


@rule(where=lambda op: op.kernel in ("contraction", "convolution"))
def empty_product(node: Node) -> Node | None:
    """A product or convolution without terms is zero."""
    return None if all(prod(i.shape) for i in node.inputs) else constant(0, node.dtype, node.shape)


# --- once the layout is known -------------------------------------------------------------------------------------------------


@rule("reshape")
def round_after_reshape(node: Node) -> Node | None:
    """The result of a product is rounded after it has its final shape, so that what follows is one kernel with it."""
    rounded = node.inputs[0]
    if rounded.op.name != "cast" or not rounded.dtype.is_half or rounded.inputs[0].op.kernel != "contraction":
        return None
    inner = make(node.op, rounded.inputs, node.params) if rounded.inputs[0].shape != node.shape else rounded.inputs[0]
    return make(rounded.op, (inner,), rounded.params, rounded.source)


@rule("concat")
def concat_in_groups(node: Node) -> Node | None:
    """A concat of very many tensors is one of concats, because each element tests every piece whether it lies there."""
    if len(node.inputs) <= thresholds.concat_pieces:
        return None
    full = len(node.inputs) // thresholds.concat_pieces * thresholds.concat_pieces
    groups = [node.inputs[i : i + thresholds.concat_pieces] for i in range(0, full, thresholds.concat_pieces)]
    rest = node.inputs[full:]
    return make(node.op, (*(make(node.op, g, node.params) for g in groups), *rest), node.params, node.source)


RULES: tuple[Rule, ...] = (
    derivative_markers,
    cast_to_same_dtype,
    custom_result,
    fold_constants,
    neutral_operand,
    double_negation,
    known_selection,
    merge_shapes,
    merge_permutes,
    merge_permutes_around_ones,
    whole_slice,
    concat_of_one,
    concat_of_concats,
    reduction_of_ones,
    empty_product,
    pooling_gradient,
    one_hot,
    centred_sum,
    one_hot_sum,
    scatter_into_sum,
    scaled_sum,
)
LATE_RULES: tuple[Rule, ...] = (separate_windows, round_after_reshape, concat_in_groups)
SPLIT_RULES: tuple[Rule, ...] = (permuted_before_expand, moments_of_pieces, long_reduction)  # for CPUs
