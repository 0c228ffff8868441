"""Epilogues of products and convolutions that NVIDIA's libraries can apply, recognized in the graph.

Those are a bias with one value per column, a residual laid out as the result, and then a relu or a tanh gelu, which may also store its
argument: the derivative of the gelu, which may follow a product as well, reads that. With 16-bit operands, sums may be rounded
between these steps: libraries round at the end only, which is at least as accurate.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from math import isclose, prod

from ....dtypes import float32
from ....graph.node import CONST, Node
from ....records import dataclass
from ...ir.index import IndexExpr, Place, fresh, linear, moved
from ...ir.kernel import Kernel, anchor_place, unmoved
from ...ir.storage import nbytes
from ...passes.graph_builders import const_value
from ..anchors import anchor_of, is_filter_gradient, is_product
from .gelu_gradient import CUBIC, SLOPE, is_gelu_slope
from .specs import SCALES

MOST_ADDED = 2  # a bias and a residual
MOST_FACTORS = 5  # the maximum number of factors of a product inside a gelu
MOST_STEPS = 80  # the maximum number of steps of a gelu's derivative, which has about 40
SATURATED = 10.0  # from here on, the tanh in a gelu is 1, so clipping beyond it changes nothing


@dataclass(frozen=True)
class Epilogue:
    """The tensor activation(result + bias + residual). A gelu may also store its argument, the sum, which its derivative reads."""

    store: Node
    activation: str  # "", "relu", "gelu_tanh" or "dgelu_tanh"
    bias: Node | None = None
    residual: Node | None = None
    sum: Node | None = None


def epilogue(kernel: Kernel) -> Epilogue | None:
    """The epilogue of a kernel, if it has this form."""
    stores = _stores(kernel)
    if not all(store.dtype.is_float for store in stores):
        return None
    match stores:
        case [store]:
            return _activation(kernel, store) or _slope(kernel, store)
        case [one, other]:
            return _with_sum(kernel, one, other) or _with_sum(kernel, other, one)
    return None


@dataclass(frozen=True)
class Scaling:
    """The tensor result * factor * numbers in memory."""

    store: Node
    factor: float
    numbers: tuple[Node, ...]


def scaling(kernel: Kernel) -> Scaling | None:
    """The epilogue of a kernel, if it multiplies the result by up to two float32 numbers, and perhaps rounds it."""
    store = only_store(kernel)
    if store is None:
        return None
    value, found = unmoved(unnarrowed(store)), list[Node]()
    while value is not kernel.anchor:
        single = [n for n in value.inputs if prod(unmoved(n).shape) == 1]
        if value.op.name != "mul" or len(single) != 1:
            return None
        found += single
        value = unmoved(next(n for n in value.inputs if n is not single[0]))
    factor, numbers = 1.0, list[Node]()
    while found:
        node = unmoved(found.pop())
        if node.op is CONST:
            factor *= const_value(node)
        elif node in kernel.reads and node.dtype is float32:
            numbers.append(node)
        elif node.op.name == "mul":
            found += node.inputs
        else:
            return None
    return Scaling(store, factor, tuple(numbers)) if len(numbers) <= len(SCALES) else None


def only_store(kernel: Kernel) -> Node | None:
    """The tensor that an epilogue writes, if it is the only one and has the layout in which a library writes the result."""
    stores = _stores(kernel)
    return stores[0] if len(stores) == 1 else None


def _stores(kernel: Kernel) -> list[Node]:
    """The tensors that an epilogue writes, if it writes no others and they have the layout in which a library writes the result."""
    if kernel.nest is None or kernel.anchor in kernel.outputs:
        return []
    stores, written = kernel.nest.phases[0].stores, _written(kernel)
    lie = all(_same(linear(store.place, store.node.shape), written) for store in stores)
    return [store.node for store in stores] if lie else []


def _with_sum(kernel: Kernel, store: Node, sum: Node) -> Epilogue | None:
    """A gelu, and what it is taken of."""
    done, kept = _activation(kernel, store), _activation(kernel, sum)
    if done is None or kept is None or (done.activation, kept.activation) != ("gelu_tanh", ""):
        return None
    return replace(done, sum=sum) if (done.bias, done.residual) == (kept.bias, kept.residual) else None


def _activation(kernel: Kernel, store: Node) -> Epilogue | None:
    """An activation of a sum."""
    anchor = anchor_of(kernel)
    activation, value = _activated(unnarrowed(store))
    reader = _Reader(anchor, kernel.reads, _rounds(kernel))
    found = reader.summed(value, fresh(value.shape), MOST_ADDED)
    if found is None:
        return None
    here, added = found
    given = [p for p in (reader.read(node, place) for node, place in added) if p is not None]
    done = _sorted(anchor, here, given, Epilogue(store, activation)) if len(given) == len(added) else None
    if done is None or any(n is not None and _may_be_replaced(n, store) for n in _unsafe(anchor, done)):
        return None
    return done


def _unsafe(anchor: Node, done: Epilogue) -> tuple[Node | None, ...]:
    """The tensors that a library may read after it has written the result: all but the residual of a product, which may share its memory."""
    return (done.bias,) if is_product(anchor) else (done.bias, done.residual)


def _slope(kernel: Kernel, store: Node) -> Epilogue | None:
    """The derivative of a gelu, times the result of a product."""
    anchor, steps = kernel.anchor, kernel.bodies[0].steps
    assert anchor is not None
    loads = [step for step in steps if step.kind == "load"]
    given = {step.node for step in loads} - {anchor}
    if not is_product(anchor) or len(given) != 1 or len(loads) != 2 or len(steps) > MOST_STEPS:
        return None
    [sum] = given
    lie = all(_same(step.indices[0], _written(kernel)) for step in loads)
    if not lie or sum.dtype is not store.dtype or _may_be_replaced(sum, store):
        return None
    return Epilogue(store, "dgelu_tanh", sum=sum) if is_gelu_slope(steps, anchor, sum, _rounds(kernel)) else None


def _rounds(kernel: Kernel) -> bool:
    """Whether operands are of 16 bits."""
    return all(view.base.dtype.is_half for view in kernel.views)


def _written(kernel: Kernel) -> IndexExpr:
    """The offset at which a library writes an element: that in the result, except for filters, which it writes one after the other."""
    anchor = anchor_of(kernel)
    if not is_filter_gradient(anchor):
        return linear(anchor_place(anchor, kernel.rows), anchor.shape)
    _, element, filter = kernel.rows
    return IndexExpr(0, tuple((l, step) for l, step in ((filter, element.size), (element, 1)) if l.size != 1))


def unnarrowed(node: Node) -> Node:
    """The node below the last rounding, which the library does, too."""
    node = unmoved(node)
    return unmoved(node.inputs[0]) if node.op.name == "cast" and node.dtype.is_half else node


def _may_be_replaced(node: Node, store: Node) -> bool:
    """Whether the result may overwrite the residual: new state over the old."""
    return node.op.kernel == "input" and nbytes(node) == nbytes(store)


# --- sums ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Reader:
    """Follows movement, and roundings that do not matter, from the written node to the nodes that are read."""

    anchor: Node
    reads: Collection[Node]
    rounds: bool  # intermediate sums may be rounded to 16 bits

    def summed(self, node: Node, place: Place, most: int) -> tuple[Place, list[tuple[Node, Place]]] | None:
        """The place at which a sum reads the anchor, and the other operands with their places."""
        node, place = self._below(node, place)
        if node is self.anchor:
            return place, []
        if node.op.name != "add" or not most:
            return None
        for sum, other in (node.inputs, node.inputs[::-1]):
            found = self.summed(sum, place, most - 1)
            if found is not None:
                return found[0], [*found[1], (other, place)]
        return None

    def read(self, node: Node, place: Place) -> tuple[Node, IndexExpr] | None:
        """The stored tensor that a node is a view of, and the place of the element in it."""
        node, place = self._below(node, place)
        return (node, linear(place, node.shape)) if node in self.reads else None

    def _below(self, node: Node, place: Place) -> tuple[Node, Place]:
        while node not in self.reads:
            if self.rounds and _is_rounding(node):
                node = node.inputs[0]
                continue
            found = moved(node, place) if node.op.kind == "move" else []
            if len(found) != 1 or found[0][2]:
                break
            node, place, _ = found[0]
        return node, place


def _is_rounding(node: Node) -> bool:
    """A cast from or to 16 bits, or between them."""
    if node.op.name != "cast":
        return False
    kinds = (node.dtype, node.inputs[0].dtype)
    return any(k.is_half for k in kinds) and all(k.is_half or k.name == "float32" for k in kinds)


def _sorted(anchor: Node, here: Place, added: list[tuple[Node, IndexExpr]], known: Epilogue) -> Epilogue | None:
    """The bias and the residual among the tensors, in whatever order they are added."""
    for biases, residuals in ((added[:1], added[1:]), (added[1:], added[:1])):
        if all(_is_by_column(*b, here, anchor) for b in biases) and all(
            _is_whole(there, here, anchor) for _, there in residuals
        ):
            bias, residual = (next((node for node, _ in found), None) for found in (biases, residuals))
            return replace(known, bias=bias, residual=residual)
    return None


def _is_by_column(bias: Node, there: IndexExpr, here: Place, anchor: Node) -> bool:
    """Whether it has one number for each column of the result, a filter of a convolution."""
    return prod(bias.shape) == anchor.shape[-1] and _same(there, here[-1])


def _is_whole(there: IndexExpr, here: Place, anchor: Node) -> bool:
    """Whether it has one number for each element of the result, in the same order, perhaps followed by others."""
    return _same(there, linear(here, anchor.shape))


def _same(a: IndexExpr, b: IndexExpr) -> bool:
    """Whether two places are equal, in whatever order their parts are added."""
    return a.offset == b.offset and dict(a.parts) == dict(b.parts)


# --- activations ------------------------------------------------------------------------------------------------------------------


def _activated(node: Node) -> tuple[str, Node]:
    """The activation that a node is the result of, and its argument; "" if libraries do not support it."""
    for name, argument in ACTIVATIONS.items():
        x = argument(node)
        if x is not None:
            return name, x
    return "", node


def _relu_argument(node: Node) -> Node | None:
    """What a relu is the relu of."""
    if node.op.name != "where":
        return None
    test, zero, x = node.inputs
    zeros = all(_number(n) == 0 for n in (zero, *test.inputs[1:]))
    return x if test.op.name == "le" and test.inputs[0] is x and zeros else None


def _gelu_argument(node: Node) -> Node | None:
    """The argument x of a tanh gelu, x / 2 (1 + tanh(SLOPE (x + CUBIC x³)))."""
    half, factors = _factors(node)
    if half != 0.5 or len(factors) != 2:
        return None
    for x, gate in (factors, factors[::-1]):
        if _is_gate(gate, x):
            return x
    return None


def _is_gate(gate: Node, x: Node) -> bool:
    """1 + tanh(SLOPE (x + CUBIC x³))."""
    for one, curve in _added(gate):
        if _number(one) == 1 and curve.op.name == "tanh":
            slope, rest = _factors(curve.inputs[0])
            return isclose(slope, SLOPE, rel_tol=1e-6) and len(rest) == 1 and _is_cubic(rest[0], x)
    return False


def _is_cubic(sum: Node, x: Node) -> bool:
    """x + CUBIC x³, of an x that may be clipped where that makes no difference."""
    for near, cube in _added(sum):
        cubic, rest = _factors(cube)
        if isclose(cubic, CUBIC, rel_tol=1e-6) and len(rest) == 3 and all(n is near for n in rest):
            return near is x or _clip_argument(near) is x
    return False


def _clip_argument(node: Node) -> Node | None:
    """The argument of a clip to ±SATURATED or beyond; its lower bound is below its upper one."""
    if node.op.name != "where" or node.inputs[0].op.name != "lt":
        return None
    test, high, below = node.inputs
    bound = _number(high)
    if test.inputs != (high, below) or bound is None or bound < SATURATED:
        return None
    if below.op.name != "where" or below.inputs[0].op.name != "lt":
        return None
    test, low, x = below.inputs
    bound = _number(low)
    return x if test.inputs == (x, low) and bound is not None and bound <= -SATURATED else None


def _factors(node: Node) -> tuple[float, list[Node]]:
    """A product as its constant and its other factors; a product of too many factors is a factor itself."""
    constant, rest, left = 1.0, [], [node]
    while left:
        top = left.pop()
        number = _number(top)
        if number is not None:
            constant *= number
        elif top.op.name == "mul":
            left += top.inputs
        else:
            rest.append(top)
        if len(left) + len(rest) > MOST_FACTORS:
            return 1.0, [node]
    return constant, rest


def _added(node: Node) -> list[tuple[Node, Node]]:
    """The two operands of a sum, in both orders."""
    return [(a, b) for a, b in (node.inputs, node.inputs[::-1])] if node.op.name == "add" else []


def _number(node: Node) -> float | None:
    return float(node.param("value")) if node.op is CONST else None


# The activations that libraries support, each with its pattern: a function from a node to the argument of the activation, or None.
ACTIVATIONS: dict[str, Callable[[Node], Node | None]] = {"relu": _relu_argument, "gelu_tanh": _gelu_argument}

__all__ = ["Epilogue", "epilogue", "only_store", "unnarrowed"]
