"""Attention in models that spell it out: softmax(query key^T * scale) value becomes one op, which never stores queries x keys.

Exporters write attention as two products with a softmax between them, each with transpositions and reshapes of its own. The traced graph
is the same for all of them, `contract(softmax(contract(query, key) * scale), value)`, but for moves, which are followed here.

Attention with a mask is left as it is: where an added mask leaves a query nothing to attend to, softmax gives nan and the op 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, prod
from typing import NamedTuple

from ..graph.node import CONST, Node
from ..ops.attention import MOST_FEATURES, attention
from ..ops.movement import permute_dims, reshape
from ..tensor import Tensor, wrap

Axes = tuple[int | None, ...]  # which axis of another value each axis is; None for one of size 1
SUMMED = "*"  # the features that queries and keys have in common


def fused_attention(product: Tensor) -> Tensor:
    """The product, computed by the op if it is one of attention weights and values."""
    contraction, axes = _below_moves(product.node)
    found = _match(contraction)
    if found is None:
        return product
    query, key, value, scale = found
    y, _ = attention(query.as_four_axes(), key.as_four_axes(), value.as_four_axes(), scale=scale)
    sizes, letters = query.sizes | value.sizes, query._replace(features=value.features).in_order()
    wanted = [
        contraction.param("out")[i] for i, size in zip(axes, product.shape, strict=True) if i is not None and size > 1
    ]
    y = reshape(y, tuple(sizes[c] for c in letters))
    return reshape(permute_dims(y, tuple(letters.index(c) for c in wanted)), product.shape)


class AttentionOperand(NamedTuple):
    """Queries, keys or values, with a letter for each axis longer than 1."""

    node: Node
    sizes: dict[str, int]  # in the order of the axes
    lead: str  # letters of the batch axes, and last of the heads
    time: str
    features: str

    def in_order(self) -> str:
        """The letters as (batch, time, heads, features)."""
        return self.lead[:-1] + self.time + self.lead[-1:] + self.features

    def as_four_axes(self) -> Tensor:
        letters = list(self.sizes)
        x = reshape(wrap(self.node), tuple(self.sizes.values()))
        x = permute_dims(x, tuple(letters.index(c) for c in self.in_order()))
        time, heads, features = (self.sizes.get(c, 1) for c in (self.time, self.lead[-1:], self.features))
        return reshape(x, (prod(self.sizes[c] for c in self.lead[:-1]), time, heads, features))


# --- the pattern --------------------------------------------------------------------------------------------------------------------


def _match(product: Node) -> tuple[AttentionOperand, AttentionOperand, AttentionOperand, float] | None:
    """Queries, keys, values and the scale, if a product is one of attention weights and values."""
    if product.op.name != "contract" or not all(prod(x.shape) for x in product.inputs):
        return None
    found = _softmax(product.inputs[0])
    if found is None:
        return None
    scores, key_axis, weight_axes = found
    scale, inner, score_axes = _scaled(scores)
    if inner.op.name != "contract" or len({x.dtype for x in (*inner.inputs, *product.inputs)}) > 1:
        return None
    a, b, out = product.get_params("a", "b", "out")
    # The same axis has a letter in each of the two products: that of the outer one is used for both.
    same = [(a[i], j, score_axes[j]) for i, j in enumerate(weight_axes) if j is not None]
    names = {inner.param("out")[k]: letter for letter, _, k in same if k is not None}
    keys = "".join(letter for letter, j, _ in same if j == key_axis)
    names |= {letter: SUMMED for letter in inner.param("a") if letter not in inner.param("out")}
    left, right = (
        _long_axes(x, [names.get(c, "") for c in inner.param(side)]) for x, side in zip(inner.inputs, "ab", strict=True)
    )
    of_query, of_key = (left, right) if keys in right else (right, left)
    of_weights, of_value = (_long_axes(x, letters) for x, letters in zip(product.inputs, (a, b), strict=True))
    lead = "".join(c for c in of_weights if c in of_value and c != keys)
    queries = "".join(c for c in of_weights if c not in of_value)
    features = "".join(c for c in of_value if c not in of_weights)
    wanted = {lead + queries + SUMMED: of_query, lead + keys + SUMMED: of_key, lead + keys + features: of_value}
    wanted[lead + queries + features] = _long_axes(product, out)
    if not keys or max(map(len, (queries, features))) > 1 or any(sorted(w) != sorted(f) for w, f in wanted.items()):
        return None
    if max(of_query[SUMMED], of_value.get(features, 1)) > MOST_FEATURES or not isfinite(scale):
        return None
    q, k = inner.inputs if of_query is left else inner.inputs[::-1]
    if any(prod(x.shape) != prod(sizes.values()) for x, sizes in ((q, of_query), (k, of_key))):
        return None  # several axes are summed over
    return (
        AttentionOperand(q, of_query, lead, queries, SUMMED),
        AttentionOperand(k, of_key, lead, keys, SUMMED),
        AttentionOperand(product.inputs[1], of_value, lead, keys, features),
        scale,
    )


def _long_axes(node: Node, letters: Sequence[str]) -> dict[str, int]:
    """The sizes of the axes longer than 1, by letter, in their order."""
    return {c: n for c, n in zip(letters, node.shape, strict=True) if n > 1}


def _softmax(node: Node) -> tuple[Node, int, Axes] | None:
    """The scores, the axis that is normalized, and which of the scores' axes the node's are, if it is a softmax, perhaps moved."""
    node, axes = _below_moves(node)
    if node.op.name != "div":
        return None
    raised, total = node.inputs
    if raised.op.name != "exp" or raised.inputs[0].op.name != "sub":
        return None
    scores, top = raised.inputs[0].inputs
    summed, highest = _reduction(total, "sum"), _reduction(top, "max")
    if summed is None or highest is None or summed.inputs[0] is not raised or highest.inputs[0] is not scores:
        return None
    if summed.params != highest.params or len(summed.param("axes")) != 1:
        return None
    return scores, summed.param("axes")[0], axes


def _reduction(node: Node, name: str) -> Node | None:
    """The reduction of this name that a value is broadcast from."""
    while node.op.name in ("expand", "reshape", "stop_gradient"):
        node = node.inputs[0]
    return node if node.op.name == name else None


def _scaled(node: Node) -> tuple[float, Node, Axes]:
    """A value as a number times another one that is moved: the number, the other value, and which of its axes the value's are."""
    scale = 1.0
    axes: Axes = tuple(range(len(node.shape)))
    while True:
        node, moved = _below_moves(node)
        axes = tuple(None if i is None else moved[i] for i in axes)
        found = _times_number(node)
        if found is None:
            return scale, node, axes
        factor, node = found
        scale *= factor


def _times_number(node: Node) -> tuple[float, Node] | None:
    """The number and the value, if a node multiplies or divides a value by a finite number other than 0."""
    if node.op.name not in ("mul", "div"):
        return None
    value, number = node.inputs
    if node.op.name == "mul" and value.op is CONST:
        value, number = number, value
    factor = float(number.param("value")) if number.op is CONST else 0.0
    if not factor or not isfinite(factor):
        return None
    return (factor if node.op.name == "mul" else 1.0 / factor), value


def _below_moves(node: Node) -> tuple[Node, Axes]:
    """What a value is made of by permutations and by reshapes that add or drop axes of size 1."""
    axes: Axes = tuple(range(len(node.shape)))
    while node.op.name in ("permute", "reshape"):
        below = node.inputs[0]
        if node.op.name == "permute":
            step: Axes = node.param("axes")
        else:
            if [n for n in node.shape if n > 1] != [n for n in below.shape if n > 1]:
                break
            long = iter([i for i, n in enumerate(below.shape) if n > 1])
            step = tuple(next(long) if n > 1 else None for n in node.shape)
        axes = tuple(None if i is None else step[i] for i in axes)
        node = below
    return node, axes
