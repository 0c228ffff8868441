"""Precision: matrix products and convolutions in 16 bits, everything else in float32.

The graph is differentiated already, so one pass serves forward and backward. A float32 product takes its operands as float16 or
bfloat16 and returns that dtype, with sums in float32 inside; its result is cast back for its users. Elementwise ops, reductions,
losses and updates stay float32, and so do inputs: parameters are float32 masters, cast where they are used.

Operands of products are stored in the narrow dtype only. If other users read a wide copy, both would be alive from the forward
to the backward pass; so they read the narrow one, widened again. That halves the memory of activations. The last products
on a path, such as the gradients of weights, read narrow operands but return their float32 sums: no stored activation depends
on them. If the graph converts such a result to the narrow dtype itself, the product returns that. Ops of the precision class "exact" read values before they are rounded: the derivative of a maximum looks for the element
that equals it, and would find none that equals the rounded one. On GPUs the gradients of filters are rounded, too: NVIDIA's kernels
for convolutions have narrow results, those with wide ones take half as long again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from math import prod

from ...dtypes import DType, bfloat16, float16, float32
from ...errors import UserError
from ...graph.graph import Graph, rebuild
from ...graph.node import CONST, ITEM, OPS, Node, make, toposort
from ...graph.rewrite import transform
from ...graph.text import subgraphs
from ..thresholds import thresholds
from .simplify import simplify


def precision(graph: Graph, dtype: DType, wide_filters: bool = True, fast_math: bool = False) -> Graph:
    """The graph with its float32 products in `dtype`, bodies of control flow included. Its inputs and outputs keep their types.

    `wide_filters`: the gradients of filters are not rounded. `fast_math`: as in `simplify`, which bodies go through first.
    """
    if dtype not in (float16, bfloat16):
        raise UserError("precision", f"float16 or bfloat16 is required, got {dtype.name}.")
    bodies: dict[Graph, Graph] = {}
    for body in subgraphs(graph):  # simplified first, like the graph itself
        bodies[body] = _Narrowing(simplify(body, fast_math=fast_math), dtype, bodies, wide_filters).result()
    return _Narrowing(graph, dtype, bodies, wide_filters).result()


class _Narrowing:
    """The rewriting of one graph. Every node has a wide form; operands of products also have a narrow and an exact, unrounded one."""

    def __init__(self, graph: Graph, dtype: DType, bodies: Mapping[Graph, Graph], wide_filters: bool) -> None:
        self.graph, self.dtype, self.bodies = graph, dtype, bodies
        self.order = toposort([*graph.inputs, *graph.outputs])
        self.fed = _fed(self.order)
        last = _last_products(self.order) - _only_narrowed(self.order, graph.outputs, dtype)
        self.stay_wide = {n for n in last if not n.outputs and (wide_filters or n.op.name != "conv_filter")}
        self.wide: dict[Node, Node] = {}
        self.narrow: dict[Node, Node] = {}
        self.exact: dict[Node, Node] = {}

    def result(self) -> Graph:
        for node in self.order:
            self._place(node)
        return Graph(self.graph.inputs, tuple(self.wide[o] for o in self.graph.outputs))

    def _place(self, node: Node) -> None:
        if node in self.fed and _moves(node):
            self.narrow[node] = make(node.op, tuple(self.narrow[i] for i in node.inputs), node.params, node.source)
            self.wide[node] = self._rebuilt(node)
        elif node in self.fed:
            self.exact[node] = new = self._rebuilt(node)
            self.narrow[node] = _cast(new, self.dtype)
            self.wide[node] = _cast(self.narrow[node], float32) if node.inputs else new
        else:
            self.wide[node] = self._rebuilt(node)
        if node not in self.exact:
            inputs = tuple(self.exact[i] for i in node.inputs)
            is_moved = node.op.kind == "move" and inputs != tuple(self.wide[i] for i in node.inputs)
            self.exact[node] = make(node.op, inputs, node.params, node.source) if is_moved else self.wide[node]

    def _rebuilt(self, node: Node) -> Node:
        """The node on the new inputs, with its old type."""
        if _is_product(node) and node.outputs:
            rounded = set(_rounded(node))
            operands = tuple(self.narrow[i] if i in rounded else self.wide[i] for i in node.inputs)
            return make(node.op, operands, node.params, node.source)
        if _is_product(node):
            operands = tuple(self.narrow[i] for i in node.inputs)
            if node in self.stay_wide:
                return make(node.op, tuple(_cast(o, float32) for o in operands), node.params, node.source)
            return _cast(make(node.op, operands, node.params, node.source), float32)
        known = self.exact if _reads_exact(node) else self.wide
        if node.op.precision == "selects" and all(map(self._is_only_narrow, node.inputs)):
            known = self.narrow
        inputs = tuple(known[i] for i in node.inputs)
        params = tuple(self.bodies.get(p, p) if isinstance(p, Graph) else p for p in node.params)
        new = node if (inputs, params) == (node.inputs, node.params) else make(node.op, inputs, params, node.source)
        return _cast(new, node.dtype) if node.op is ITEM else new  # one of the narrow results of a product

    def _is_only_narrow(self, node: Node) -> bool:
        return node in self.narrow and bool(node.inputs)


def _is_product(node: Node) -> bool:
    return node.op.precision == "product" and node.dtype is float32


def _rounded(node: Node) -> tuple[Node, ...]:
    """The operands of a product that are rounded."""
    chosen = node.op.product_inputs
    return node.inputs if chosen is None else tuple(node.inputs[i] for i in chosen)


def _moves(node: Node) -> bool:
    """Whether rounding before the op gives the same result as after it."""
    return bool(node.inputs) and (node.op.kind == "move" or node.op.precision == "commutes")


def _reads_exact(node: Node) -> bool:
    """A comparison with a constant can read the rounded value, which lies on the same side, so only one form is stored."""
    return node.op.precision == "exact" and not any(_below_moves(i)[1].op is CONST for i in node.inputs)


def _fed(order: list[Node]) -> set[Node]:
    """The operands of products, also through movement."""
    fed: set[Node] = set()
    for node in reversed(order):
        if _is_product(node):
            fed.update(_rounded(node))
        elif node in fed and _moves(node):
            fed.update(node.inputs)
    return fed


def _only_narrowed(order: list[Node], outputs: Iterable[Node], dtype: DType) -> set[Node]:
    """Values that the graph itself converts to the narrow dtype, also after movement: the logits that a model gives in 16 bits."""
    wanted: dict[Node, bool] = dict.fromkeys(outputs, False)
    for node in reversed(order):
        narrows = (node.op.name == "cast" and node.dtype is dtype) or (_moves(node) and wanted.get(node, False))
        for i in node.inputs:
            wanted[i] = wanted.get(i, True) and narrows
    return {node for node, narrows in wanted.items() if narrows}


def _last_products(order: list[Node]) -> set[Node]:
    """Products that no other product depends on."""
    leads: set[Node] = set()
    last = set()
    for node in reversed(order):
        if _is_product(node) and node not in leads:
            last.add(node)
        if _is_product(node) or node in leads:
            leads.update(node.inputs)
    return last


def _cast(node: Node, dtype: DType) -> Node:
    """The node in another dtype. Narrow, widened and narrowed again is the same value; wide, narrowed and widened is not."""
    if node.dtype is dtype:
        return node
    if node.op.name == "cast" and node.inputs[0].dtype is dtype and dtype.is_half:
        return node.inputs[0]
    return make(OPS["cast"], (node,), (dtype,), node.source)


def handed_on(graph: Graph, written: Iterable[Node], dtype: DType) -> Graph:
    """The graph with large values that one kernel writes for others in `dtype`.

    Inside a kernel everything is float32. In memory, sums stay float32, and so does what is computed from the last products on a
    path: gradients of weights, and updates.
    """
    final = _final(graph)
    chosen = {
        n for n in written
        if n.dtype is float32 and prod(n.shape) >= thresholds.handed_on_elements and n not in final and n.inputs and n.op.kind in ("elementwise", "move")
        and _below_moves(n)[1].op.precision != "exact"
    } - set(graph.outputs) - {n for n in graph.nodes if _is_widened(n)}  # fmt: skip
    if not chosen:
        return graph

    def visit(node: Node, inputs: tuple[Node, ...]) -> Node:
        new = rebuild(node, inputs)
        return make(OPS["cast"], (_cast(new, dtype),), (float32,), node.source) if node in chosen else new

    return transform(graph, visit)


def _is_widened(node: Node) -> bool:
    return node.op.name == "cast" and node.inputs[0].dtype.is_half


def _final(graph: Graph) -> set[Node]:
    """Products that no other product depends on, and everything computed from them."""
    order = toposort([*graph.inputs, *graph.outputs])
    products = {n for n in order if n.op.precision == "product"}
    leads: set[Node] = set()
    for node in reversed(order):
        if node in leads or node in products:
            leads.update(node.inputs)
    final: set[Node] = set()
    for node in order:
        if (node in products and node not in leads) or any(i in final for i in node.inputs):
            final.add(node)
    return final


def widened_copies(graph: Graph) -> Graph:
    """Convolutions read float32 only, so values stored in 16 bits are widened for them, separately for each.

    Equal nodes are one node, and a copy that forward and backward pass share would be alive from one to the other, at full size.
    Copies are distinguished by additional axes of size 1 in front.
    """
    uses: Counter[Node] = Counter()

    def visit(node: Node, inputs: tuple[Node, ...]) -> Node:
        if node.op.kernel == "convolution":
            inputs = tuple(_own_copy(i, uses) for i in inputs)
        return rebuild(node, inputs)

    return transform(graph, visit)


def _own_copy(operand: Node, uses: Counter[Node]) -> Node:
    moves, below = _below_moves(operand)
    if below.op.name != "cast" or not below.inputs[0].dtype.is_half:
        return operand
    narrow = below.inputs[0]
    base = _below_moves(narrow)[1]
    uses[base] += 1
    for move in reversed(moves):
        narrow = make(move.op, (narrow,), move.params, move.source)
    apart = make(OPS["reshape"], (narrow,), ((*(1,) * uses[base], *narrow.shape),))
    return make(OPS["reshape"], (_cast(apart, below.dtype),), (narrow.shape,))


def _below_moves(node: Node) -> tuple[list[Node], Node]:
    """The movement ops above a value, the outermost first, and the value."""
    moves = []
    while node.op.kind == "move" and len(node.inputs) == 1:
        moves.append(node)
        node = node.inputs[0]
    return moves, node
