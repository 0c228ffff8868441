"""Merged products: several products that read the same operand become one, which reads it once and has more parallel work.

Queries, keys and values are products of one input with three weights; so are the gradients of these weights, and the gradient of the input is
the sum of three products. The other operands are joined: weights, which are rounded to 16 bits in any case, or results of one op, such as the
gradients of attention, so that no product waits for another's operand.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import NamedTuple

from ...graph.graph import Graph, rebuild
from ...graph.node import ITEM, OPS, Node, make
from ...graph.rewrite import rewrite, rule, transform
from ...records import dataclass
from .graph_builders import move

MOST_MOVES = 6  # ops between an operand and the value that it is a view of


def merged_products(graph: Graph) -> Graph:
    """The graph with products that share an operand merged, then sums of products."""
    groups = _groups(graph)
    if groups:
        graph = transform(graph, lambda node, inputs: _merged(node, inputs, groups))
    return rewrite(graph, [sum_of_products])


@dataclass(frozen=True)
class ProductGroup:
    """Products of one operand with others, whose biases may be added to all of them at once."""

    products: tuple[Node, ...]
    shared: int  # which of their operands is the same
    letter: str  # the axis along which the others are joined
    sums: tuple[Node, ...]  # of each product and a bias; none if not all have one

    def place(self, node: Node) -> int | None:
        """The index of a product, or of its sum with a bias, among those of the group."""
        members = self.sums or self.products
        return members.index(node) if node in members else None


# --- groups ------------------------------------------------------------------------------------------------------------------------


def _groups(graph: Graph) -> dict[Node, ProductGroup]:
    """The groups of products, by each of their products and sums."""
    candidates: dict[ProductKey, list[Node]] = {}
    for node in graph.nodes:
        if node.op.name == "contract":
            for shared in (0, 1):
                key = _key(node, shared, graph)
                if key is not None:
                    candidates.setdefault(key, []).append(node)
    found: dict[Node, ProductGroup] = {}
    for key, nodes in candidates.items():
        if len(nodes) > 1 and not any(n in found for n in nodes):
            in_order = sorted(nodes, key=partial(_order, operand=1 - key.shared, graph=graph))
            group = ProductGroup(tuple(in_order), key.shared, key.letter, _sums(in_order, graph))
            found |= dict.fromkeys((*group.products, *group.sums), group)
    return found


class ProductKey(NamedTuple):
    """The properties that products of one group share."""

    shared: int  # which of their operands is the same
    operand: Node
    letter: str  # the axis along which the others are joined
    params: tuple[object, ...]
    others: tuple[object, ...]  # the sizes, movement, origin and dtype of the other operands


def _key(node: Node, shared: int, graph: Graph) -> ProductKey | None:
    """The group of a product; None if it cannot be merged with others that share this operand."""
    names = node.get_params("a", "b")
    other, letters = node.inputs[1 - shared], names[1 - shared]
    free = [c for c in letters if c in node.param("out") and c not in names[shared]]
    if len(free) != 1 or not node.dtype.is_float:
        return None
    origin = _origin(other)
    if origin.op is ITEM:
        made_of: object = origin.inputs[0]
    elif origin in graph.inputs and len(origin.shape) == 2:
        made_of = "weights"
    else:
        return None
    rest = tuple(size for c, size in zip(letters, other.shape, strict=True) if c != free[0])
    return ProductKey(shared, node.inputs[shared], free[0], node.params, (rest, _moves(other), made_of, other.dtype))


def _order(product: Node, operand: int, graph: Graph) -> int:
    """Results of an op, and weights, are joined in their order, so that operands of several products are joined only once."""
    origin = _origin(product.inputs[operand])
    return int(origin.param("index")) if origin.op is ITEM else graph.inputs.index(origin)


def _origin(node: Node) -> Node:
    """The value below movement that this one is a view of."""
    for _ in range(MOST_MOVES):
        if not _is_moved(node):
            break
        node = node.inputs[0]
    return node


def _is_moved(node: Node) -> bool:
    """Whether it has the elements of its input, each exactly once."""
    return node.op.name in ("permute", "reshape") or (node.op.name == "expand" and _added_axes(node) > 0)


def _added_axes(node: Node) -> int:
    """How many axes of size 1 a reshape or expand adds in front; 0 if it does anything else."""
    if node.op.name not in ("reshape", "expand"):
        return 0
    below = node.inputs[0].shape
    more = len(node.shape) - len(below)
    return more if more > 0 and node.shape == (*[1] * more, *below) else 0


def _moves(node: Node) -> tuple[object, ...]:
    """The movement between a value and the one that it is a view of; the sizes of reshapes may differ along one axis."""
    found: list[object] = []
    while _is_moved(node) and len(found) < MOST_MOVES:
        found.append(node.params if node.op.name == "permute" else len(node.shape))
        node = node.inputs[0]
    return tuple(found)


def _sums(products: Sequence[Node], graph: Graph) -> tuple[Node, ...]:
    """The sums of products and biases, if all users of the products are such sums."""
    users: dict[Node, list[Node]] = {p: [] for p in products}
    for node in graph.nodes:
        for i in node.inputs:
            if i in users:
                users[i].append(node)
    sums = []
    for product in products:
        [*others] = users[product]
        if len(others) != 1 or product in graph.outputs or others[0].op.name != "add":
            return ()
        if _bias(others[0], product, graph) is None:
            return ()
        sums.append(others[0])
    return tuple(sums)


def _bias(total: Node, product: Node, graph: Graph) -> Node | None:
    """The vector along the last axis that is added to a product."""
    expanded = total.inputs[1] if total.inputs[0] is product else total.inputs[0]
    if expanded.op.name != "expand" or expanded.inputs[0].shape[-1:] != product.shape[-1:]:
        return None
    vector = _origin(expanded.inputs[0])
    return vector if vector in graph.inputs and vector.shape == product.shape[-1:] else None


# --- merging --------------------------------------------------------------------------------------------------------------------------


def _merged(node: Node, inputs: tuple[Node, ...], groups: dict[Node, ProductGroup]) -> Node:
    group = groups.get(node)
    place = None if group is None else group.place(node)
    if group is None or place is None:
        return rebuild(node, inputs)
    product = group.products[place]
    if node is product:
        made = _product(group, place, inputs)
    else:
        new = inputs[0] if node.inputs[0] is product else inputs[1]  # still by itself
        made = _product(group, place, new.inputs)
        vectors = [_origin(_added(s, p).inputs[0]) for s, p in zip(group.sums, group.products, strict=True)]
        vector = make(OPS["concat"], tuple(vectors), (0,))
        wide = move("reshape", vector, (*[1] * (len(made.shape) - 1), vector.shape[0]))
        made = make(node.op, (made, move("expand", wide, made.shape)), (), node.source)
    axis = product.param("out").index(group.letter)
    return _part(made, axis, [p.shape[axis] for p in group.products], place)


def _added(total: Node, product: Node) -> Node:
    return total.inputs[1] if total.inputs[0] is product else total.inputs[0]


def _product(group: ProductGroup, place: int, inputs: tuple[Node, ...]) -> Node:
    """The merged product. The operands of the others follow from those of this one: weights are unchanged, and results belong to one op."""
    product, other = group.products[place], 1 - group.shared
    source = _origin(inputs[other])
    operands = [_moved_again(p.inputs[other], source.inputs[0] if source.op is ITEM else None) for p in group.products]
    axis = product.get_params("a", "b")[other].index(group.letter)
    joined = _joined(operands, axis)
    pair = (inputs[group.shared], joined) if group.shared == 0 else (joined, inputs[group.shared])
    return make(product.op, pair, product.params, product.source)


def _moved_again(node: Node, source: Node | None) -> Node:
    """An operand of another product: the same weight, or the same result of a new op."""
    if node.op is ITEM:
        return make(ITEM, (source or node.inputs[0],), node.params)
    return node if source is None or not node.inputs else rebuild(node, (_moved_again(node.inputs[0], source),))


def _joined(operands: Sequence[Node], axis: int) -> Node:
    """Operands joined along an axis; below permutations, in their layout in memory."""
    first = operands[0]
    if all(o.op.name == "permute" and o.params == first.params for o in operands):
        axes = first.param("axes")
        return move("permute", _joined([o.inputs[0] for o in operands], axes[axis]), axes)
    more = _added_axes(first)
    if more and all(_added_axes(o) == more for o in operands):
        joined = _joined([o.inputs[0] for o in operands], axis - more)
        return move("reshape", joined, (*[1] * more, *joined.shape))
    return make(OPS["concat"], tuple(operands), (axis,))


def _part(x: Node, axis: int, sizes: Sequence[int], place: int) -> Node:
    """One of the parts that x has along an axis."""
    begin, end = list(pairwise(accumulate(sizes, initial=0)))[place]
    starts, stops = [0] * len(x.shape), list(x.shape)
    starts[axis], stops[axis] = begin, end
    return make(OPS["slice"], (x,), (tuple(starts), tuple(stops), (1,) * len(x.shape)))


# --- sums of products ---------------------------------------------------------------------------------------------------------------


@rule("add")
def sum_of_products(node: Node) -> Node | None:
    """The sum of two products of results of one op, each with a weight: one product that sums over both."""
    x, y = node.inputs
    if x.op.name != "contract" or y.op is not x.op or x.params != y.params or x is y or not node.dtype.is_float:
        return None
    a, b, out = x.get_params("a", "b", "out")
    summed = [c for c in a if c in b and c not in out]
    if len(summed) != 1 or _source(x.inputs[0]) is None or _source(x.inputs[0]) is not _source(y.inputs[0]):
        return None
    axes = a.index(summed[0]), b.index(summed[0])
    pairs = [pair for product in (x, y) for pair in _pairs(product, axes)]
    if (
        not pairs
        or any(_origin(left).op is not ITEM for left, _ in pairs)
        or len({_rest(pair, axes) for pair in pairs}) > 1
    ):
        return None
    pairs.sort(key=lambda pair: int(_origin(pair[0]).param("index")))
    left, right = (_joined([pair[i] for pair in pairs], axes[i]) for i in (0, 1))
    return make(x.op, (left, right), x.params, node.source)


def _pairs(product: Node, axes: tuple[int, int]) -> list[tuple[Node, Node]]:
    """The operands of a product, or the operands that both were joined from."""
    left, right = (_parts(operand, axis) for operand, axis in zip(product.inputs, axes, strict=True))
    sizes = [[part.shape[axis] for part in parts] for parts, axis in ((left, axes[0]), (right, axes[1]))]
    x, y = product.inputs
    return list(zip(left, right, strict=True)) if sizes[0] == sizes[1] else [(x, y)]


def _rest(pair: tuple[Node, Node], axes: tuple[int, int]) -> tuple[tuple[int, ...], ...]:
    """The sizes of two operands, without those of the axes along which they are joined."""
    return tuple((*p.shape[:axis], *p.shape[axis + 1 :]) for p, axis in zip(pair, axes, strict=True))


def _parts(node: Node, axis: int) -> list[Node]:
    """What an operand was joined from."""
    if node.op.name == "permute":
        axes = node.param("axes")
        return [move("permute", part, axes) for part in _parts(node.inputs[0], axes[axis])]
    return list(node.inputs) if node.op.name == "concat" and node.param("axis") == axis else [node]


def _source(node: Node) -> Node | None:
    """The op of which an operand, or one that it was joined from, is one of several results."""
    origin = _origin(node)
    if origin.op.name == "concat":
        sources = {_source(i) for i in origin.inputs}
        return sources.pop() if len(sources) == 1 else None
    return origin.inputs[0] if origin.op is ITEM else None
