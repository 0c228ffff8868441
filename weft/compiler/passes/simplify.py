"""Simplify: the same values with less work. Constants are folded, movement that undoes itself goes, identities drop out.

Equal nodes are one node by construction, and what nothing uses is in no graph, so neither needs a rule here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from ...dtypes import bool_
from ...errors import WeftError
from ...graph.graph import Graph, rebuild
from ...graph.node import CONST, ITEM, OPS, Node, blame, constant, make, toposort
from ..ir.window_ops import IN_RANGE, SPREAD, TAP
from ..thresholds import thresholds
from .sum_identities import centred_sum, scaled_sum

Rewrite = Callable[[Node], Node | None]


def simplify(graph: Graph, fuel: int | None = None, compute_again: bool = False, fast_math: bool = False) -> Graph:
    """The graph after all rules. `fuel` stops after so many replacements, to find one that breaks a program.

    `compute_again`: what follows easily from values that are read anyway is not read from memory.
    """
    budget = [fuel if fuel is not None else 1 << 60]
    outputs = tuple(_rewritten(graph, _rules(fast_math), budget))
    return Graph(graph.inputs, _turned_products(_masks_from_results(outputs, budget, compute_again), budget))


def refine(graph: Graph, fuel: int | None = None, in_two: bool = True, fast_math: bool = False) -> Graph:
    """What is better written otherwise once the layout is known; then everything is simplified again.

    `in_two`: long sums are cut in two, for threads to share.
    """
    budget = [fuel if fuel is not None else 1 << 60]
    late = LATE if in_two else tuple(rule for rule in LATE if rule is not _long_reduction)
    outputs = tuple(_rewritten(graph, (*_rules(fast_math), *late), budget))
    return Graph(graph.inputs, outputs)


def _rules(fast_math: bool) -> Sequence[Rewrite]:
    """The rules that hold for every float; with `fast_math` also those that can change which values overflow."""
    return RULES if fast_math else tuple(rule for rule in RULES if rule is not scaled_sum)


def _rewritten(graph: Graph, rules: Sequence[Rewrite], budget: list[int]) -> list[Node]:
    done: dict[Node, Node] = {i: i for i in graph.inputs}
    with blame() as put_down_to:  # what is made for a node is put down to its line
        for node in toposort([*graph.inputs, *graph.outputs]):
            if node not in done:
                put_down_to(node.source)
                done[node] = _settled(rebuild(node, tuple(done[i] for i in node.inputs)), rules, budget)
    return [done[o] for o in graph.outputs]


def _settled(node: Node, rules: Sequence[Rewrite], budget: list[int]) -> Node:
    """The node after rules, until none applies; inputs are settled already."""
    while budget[0] > 0:
        new = next((found for rule in rules if (found := rule(node)) is not None), None)
        if new is None or new is node:
            return node
        budget[0] -= 1
        node = new
    return node


def _passed_through(node: Node) -> Node | None:
    """Ops that only say something about derivatives."""
    name = node.op.name
    if name in ("tag", "stop_gradient") or (name == "cast" and node.dtype is node.inputs[0].dtype):
        return node.inputs[0]
    if node.op is ITEM and node.inputs[0].op.name == "custom":
        result: Node = node.inputs[0].inputs[node.params[0]]
        return result
    return None


def _folded(node: Node) -> Node | None:
    """Constants: what is computed from them, and the same constant in another shape."""
    if not node.inputs or any(i.op is not CONST for i in node.inputs):
        return None
    name = node.op.name
    if name in ("reshape", "permute", "expand", "slice", "flip"):
        return make(CONST, (), (node.inputs[0].params[0], node.dtype, node.shape), node.source)
    if node.op.kind != "elementwise":
        return None
    wide = [np.float32 if i.dtype.is_half and node.op.widen else i.dtype.numpy for i in node.inputs]
    arrays = [np.asarray(_number(i)).astype(i.dtype.numpy).astype(w) for i, w in zip(node.inputs, wide, strict=True)]
    try:
        with np.errstate(all="ignore"):
            value = np.asarray(node.op.reference(*arrays, *node.params)).astype(node.dtype.numpy)
    except (WeftError, ArithmeticError, ValueError):  # an error of the run stays one
        return None
    return constant(value.item() if not node.dtype.is_half else float(value), node.dtype, node.shape)


def _number(node: Node) -> Any:
    value = node.params[0]
    return float(value) if isinstance(value, str) else value


def _identity(node: Node) -> Node | None:
    """x + 0, x * 1 and their like."""
    name = node.op.name
    if name not in ("add", "sub", "mul", "div", "neg", "where"):
        return None
    a = node.inputs[0]
    if name == "neg":
        return a.inputs[0] if a.op.name == "neg" else None
    if name == "where":
        _, x, y = node.inputs
        return x if x is y else (x if a.params[0] else y) if a.op is CONST else None
    b = node.inputs[1]
    if b.op is CONST and _is_neutral(b, name):
        return a
    if name in ("add", "mul") and a.op is CONST and _is_neutral(a, name):
        return b
    return None


def _is_neutral(node: Node, name: str) -> bool:
    """Whether a constant changes nothing. For floats 0.0 does: -0.0 + 0.0 is 0.0, only -0.0 can be added without a trace."""
    value = node.params[0]
    if name in ("mul", "div"):
        return bool(_number(node) == 1)
    if node.dtype.is_float and name == "add":
        return bool(value == "-0.0")
    return not isinstance(value, str) and value == 0


def _movement(node: Node) -> Node | None:
    """Movement after movement of the same kind is one movement, and none if nothing moves."""
    name = node.op.name
    if node.op.kind != "move":
        return None
    x = node.inputs[0]
    if name == "reshape":
        if node.shape == x.shape:
            return x
        if x.op.name == "reshape":
            return make(node.op, x.inputs, node.params, node.source)
    elif name == "permute":
        axes = node.params[0]
        if axes == tuple(range(len(axes))):
            return x
        if x.op.name == "permute":
            return make(node.op, x.inputs, (tuple(x.params[0][a] for a in axes),), node.source)
    elif name == "expand":
        if node.shape == x.shape:
            return x
        if x.op.name == "expand":
            return make(node.op, x.inputs, node.params, node.source)
    elif (name in ("slice", "pad") and node.shape == x.shape) or (name == "concat" and len(node.inputs) == 1):
        return x
    return None


def _small_reduction(node: Node) -> Node | None:
    """A reduction over axes of size 1 only drops them."""
    if node.op.name not in ("sum", "prod", "max", "min"):
        return None
    x, axes = node.inputs[0], node.params[0]
    if all(x.shape[a] == 1 for a in axes):
        return make(OPS["reshape"], (x,), (node.shape,), node.source) if axes else x
    return None


def _empty_sum(node: Node) -> Node | None:
    """A product or convolution over nothing is zero."""
    if node.op.name in ("contract", "conv", "conv_data", "conv_filter") and not all(prod(i.shape) for i in node.inputs):
        return constant(0, node.dtype, node.shape)
    return None


def _pooling(node: Node) -> Node | None:
    """The derivative of max pooling, written as a scatter: every element asks the windows that see it instead."""
    if node.op.name != "reshape" or node.inputs[0].op.name != "scatter":
        return None
    scatter = node.inputs[0]
    into, values, *places = scatter.inputs
    if scatter.params != ((0,), "add") or into.op is not CONST or _number(into) != 0:
        return None
    found = _unguarded(_flat(places[0]))
    g = _unguarded(_flat(values), found)
    if found.op.name != "window_argmax" or found.inputs[0].shape != node.shape:
        return None
    g = g if g.shape == found.shape else make(OPS["reshape"], (g,), (found.shape,))
    tap = make(TAP, found.inputs, found.params, node.source)
    return make(SPREAD, (tap, g), (*found.params, node.shape), node.source)


def _unguarded(node: Node, found: Node | None = None) -> Node:
    """What stands behind `where(found < 0, 0, ...)`: a window that sees padding alone has found nothing, and asks nobody."""
    if node.op.name != "where":
        return node
    test, zero, inner = node.inputs
    asked = test.inputs[0] if test.op.name == "lt" else None
    is_guard = (
        asked is (inner if found is None else found) and test.inputs[1].op is CONST and _number(test.inputs[1]) == 0
    )
    return inner if is_guard and zero.op is CONST and _number(zero) == 0 else node


def _flat(node: Node) -> Node:
    return node.inputs[0] if node.op.name == "reshape" else node


def _one_hot(node: Node) -> Node | None:
    """A scatter that writes one value a row along one axis, into a constant: a comparison with the place."""
    if node.op.name != "scatter" or node.inputs[0].op is not CONST:
        return None
    into, values, *places = node.inputs
    axes, how = node.params
    if (
        axes != tuple(range(len(node.shape)))
        or len(places[0].shape) != len(axes)
        or (how == "add" and _number(into) != 0)
    ):
        return None
    free = [a for a, p in zip(axes, places, strict=True) if not _counts_along(p, a)]
    if len(free) != 1 or places[0].shape[free[0]] != 1:
        return None
    axis = free[0]
    if any(n != m for a, (n, m) in enumerate(zip(places[0].shape, node.shape, strict=True)) if a != axis):
        return None
    index = places[axis]
    size = node.shape[axis]
    if size > np.iinfo(np.int32).max:
        return None
    wrapped = make(IN_RANGE, (index,), (size, axis), node.source)
    along = make(OPS["iota"], (), (size, wrapped.dtype))
    grid = make(OPS["reshape"], (along,), (tuple(size if a == axis else 1 for a in axes),))
    here = _elementwise("eq", _spread(grid, node.shape), _spread(wrapped, node.shape))
    return _elementwise("where", here, _spread(values, node.shape), into)


def _counts_along(place: Node, axis: int) -> bool:
    """Whether an index tensor is just the number of its place along an axis."""
    while place.op.name in ("expand", "reshape") and place.op.name:
        shape = place.inputs[0].shape
        if place.op.name == "reshape" and prod(shape) != max(place.shape, default=1):
            return False
        if place.op.name == "reshape":
            if place.shape[axis] != prod(shape):
                return False
        elif len(shape) != len(place.shape):
            return False
        place = place.inputs[0]
    return place.op.name == "iota"


def _elementwise(name: str, *inputs: Node) -> Node:
    return make(OPS[name], inputs)


def _spread(node: Node, shape: tuple[int, ...]) -> Node:
    return node if node.shape == shape else make(OPS["expand"], (node,), (shape,))


# --- once the layout is known ------------------------------------------------------------------------------------------------


def _separate_windows(node: Node) -> Node | None:
    """Windows that do not overlap: each element belongs to one, and compares the winner's number with its own."""
    if node.op is not SPREAD:
        return None
    tap, g = node.inputs
    size, stride, padding, dilation, shape = node.params
    if size != stride or any(map(any, padding)) or any(d != 1 for d in dilation):
        return None
    if shape != tuple(n * k for n, k in zip(g.shape, size, strict=True)):
        return None
    apart = tuple(m for n, k in zip(g.shape, size, strict=True) for m in ((n, k) if k > 1 else (n,)))
    outer = tuple(m for n, k in zip(g.shape, size, strict=True) for m in ((n, 1) if k > 1 else (n,)))
    places = [p for p, m in enumerate(apart) if outer[p] == 1 and m > 1 and _is_tap_axis(p, size, g.shape)]
    number: Node = constant(0, tap.dtype, apart)
    step = prod(size)
    for place in places:
        step //= apart[place]
        along = make(OPS["iota"], (), (apart[place], tap.dtype))
        grid = make(OPS["reshape"], (along,), (tuple(apart[place] if p == place else 1 for p in range(len(apart))),))
        number = _elementwise(
            "add", number, _elementwise("mul", _spread(grid, apart), constant(step, tap.dtype, apart))
        )
    won = _elementwise("eq", _spread(_reshaped(tap, outer), apart), number)
    chosen = _elementwise("where", won, _spread(_reshaped(g, outer), apart), constant(0, g.dtype, apart))
    return _reshaped(chosen, shape)


def _is_tap_axis(place: int, size: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether an axis of the taken-apart shape counts the taps of a window (rather than windows)."""
    kinds = [kind for k in size for kind in (("window", "tap") if k > 1 else ("window",))]
    return kinds[place] == "tap"


def _reshaped(node: Node, shape: tuple[int, ...]) -> Node:
    return node if node.shape == shape else make(OPS["reshape"], (node,), (shape,))


def _long_reduction(node: Node) -> Node | None:
    """A long reduction to few results is done in two steps, the first of which has work for several threads.

    Where it is cut follows from the shape alone, so the bits of the result do not depend on the number of threads.
    """
    if node.op.name not in ("sum", "max", "min", "prod"):
        return None
    x, axes = node.inputs[0], node.params[0]
    results = prod(node.shape)
    length = prod(x.shape[a] for a in axes)
    if (
        length < thresholds.long_reduction
        or results * thresholds.long_reduction > prod(x.shape)
        or results > thresholds.long_reduction
    ):
        return None
    first = next(a for a in axes if x.shape[a] > 1)
    if x.shape[first] < thresholds.even_pieces:
        first = max(axes, key=lambda a: x.shape[a])
    n = x.shape[first]
    pieces = next((p for p in range(min(thresholds.reduction_pieces, n), 1, -1) if n % p == 0), 1)
    if len(axes) > 1 and n <= thresholds.reduction_pieces * 4 and n > 1:
        pieces = n
    elif pieces < thresholds.even_pieces and n >= thresholds.reduction_pieces * thresholds.even_pieces:
        return _with_rest(node, first)
    if pieces == 1 or length // pieces < 16:
        return None
    return _in_pieces(node, first, pieces)


def _in_pieces(node: Node, first: int, pieces: int) -> Node:
    """A reduction of the reductions of so many pieces, equal parts of an axis."""
    x, axes = node.inputs[0], node.params[0]
    n = x.shape[first]
    apart = (*x.shape[:first], pieces, n // pieces, *x.shape[first + 1 :])
    inner = tuple(
        sorted({*(a + 1 if a > first else a for a in axes if a != first), *((first + 1,) if n > pieces else ())})
    )
    part = make(
        node.op,
        (_reshaped(x, apart if n > pieces else x.shape),),
        (inner if n > pieces else tuple(a for a in axes if a != first),),
    )
    kept = [a for a in range(len(x.shape)) if a not in axes or a == first]
    return make(node.op, (part,), ((kept.index(first),),), node.source)


def _with_rest(node: Node, axis: int) -> Node:
    """A reduction of what can be cut evenly, and of the few elements that are left over along an axis without good factors."""
    x = node.inputs[0]
    end = x.shape[axis] - x.shape[axis] % thresholds.reduction_pieces

    def part(begin: int, end: int) -> Node:
        where = [(begin, end, 1) if a == axis else (0, n, 1) for a, n in enumerate(x.shape)]
        some = make(OPS["slice"], (x,), tuple(zip(*where, strict=True)))
        return make(node.op, (some,), node.params, node.source)

    both = _in_pieces(part(0, end), axis, thresholds.reduction_pieces), part(end, x.shape[axis])
    return _elementwise((_OF_BOOLS if node.dtype is bool_ else _COMBINES)[node.op.name], *both)


_COMBINES = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}
_OF_BOOLS = {"max": "or_", "min": "and_"}


def _rounded_last(node: Node) -> Node | None:
    """A product's result is rounded once it has the shape in which it is wanted: what follows is then one kernel with it."""
    if node.op.name != "reshape":
        return None
    rounded = node.inputs[0]
    if rounded.op.name != "cast" or not rounded.dtype.is_half or rounded.inputs[0].op.name != "contract":
        return None
    return make(rounded.op, (_reshaped(rounded.inputs[0], node.shape),), rounded.params, rounded.source)


def _many_pieces(node: Node) -> Node | None:
    """A concat of very many tensors is one of concats: every element asks each piece whether it lies there."""
    if node.op.name != "concat" or len(node.inputs) <= thresholds.concat_pieces:
        return None
    full = len(node.inputs) // thresholds.concat_pieces * thresholds.concat_pieces
    groups = [node.inputs[i : i + thresholds.concat_pieces] for i in range(0, full, thresholds.concat_pieces)]
    rest = node.inputs[full:]
    return make(node.op, (*(make(node.op, g, node.params) for g in groups), *rest), node.params, node.source)


LATE: tuple[Rewrite, ...] = (_separate_windows, _long_reduction, _rounded_last, _many_pieces)
RULES: tuple[Rewrite, ...] = (
    _passed_through,
    _folded,
    _identity,
    _movement,
    _small_reduction,
    _empty_sum,
    _pooling,
    _one_hot,
    centred_sum,
    scaled_sum,
)


def _turned_products(outputs: tuple[Node, ...], budget: list[int]) -> tuple[Node, ...]:
    """A matrix product that is only wanted transposed is computed so: the gradient of x @ w.T for w is one."""
    users: dict[Node, set[Node]] = {}
    for node in toposort(outputs):
        for i in node.inputs:
            users.setdefault(i, set()).add(node)
    done: dict[Node, Node] = {}
    for node in toposort(outputs):
        product = node.inputs[0] if node.op.name == "permute" else None
        if (
            product is None
            or product.op.name != "contract"
            or product in outputs
            or len(users[product]) != 1
            or budget[0] <= 0
        ):
            done[node] = rebuild(node, tuple(done[i] for i in node.inputs))
            continue
        budget[0] -= 1
        a, b, out = product.params
        turned = "".join(out[axis] for axis in node.params[0])
        # Of what its inputs have become: with what they were, all below them would be computed twice.
        done[node] = make(product.op, tuple(done[i] for i in product.inputs), (a, b, turned), product.source)
    return tuple(done[o] for o in outputs)


def _is_scaled(node: Node, most: int = 32) -> bool:
    """Whether it is one large value times others, plus others, as batch norm gives it: the derivative needs that value."""
    scaled, large = False, set()
    stack, seen = [node], {node}
    while stack and len(seen) < most:
        n = stack.pop()
        if n.op is CONST:
            continue
        if n.op.kind not in ("elementwise", "move"):
            large |= {n} if prod(n.shape) == prod(node.shape) else set()
            continue
        scaled |= n.op.name == "mul" and all(i.op is not CONST for i in n.inputs)
        new = [i for i in n.inputs if i not in seen]
        seen.update(new)
        stack += new
    return scaled and len(large) == 1 and not stack


def _masks_from_results(outputs: tuple[Node, ...], budget: list[int], compute_again: bool) -> tuple[Node, ...]:
    """A relu keeps its result; its derivative asks whether the input was positive. The result knows: the input can go.

    Unless the derivative will read what the input is computed from, and the input can be computed again.
    """
    order = toposort(outputs)
    relus = {}
    for node in order:
        if node.op.name == "where":
            test, zero, x = node.inputs
            if (
                test.op.name == "le"
                and test.inputs[0] is x
                and zero.op is CONST
                and _number(zero) == 0
                and test.inputs[1] is zero
                and not (compute_again and _is_scaled(x))
            ):
                relus[test] = node
    if not relus:
        return outputs
    results = set(relus.values())
    done: dict[Node, Node] = {}

    def mask(test: Node) -> Node:
        """The question, asked of the result; whoever asks cannot be part of it."""
        relu = relus[test]
        result = rebuild(relu, tuple(done[i] for i in relu.inputs))
        return make(OPS["le"], (result, constant(0, result.dtype, result.shape)), (), test.source)

    for node in order:
        inputs = tuple(
            mask(i) if i in relus and node not in results and budget[0] > 0 else done[i] for i in node.inputs
        )
        done[node] = rebuild(node, inputs)
    return tuple(done[o] for o in outputs)
