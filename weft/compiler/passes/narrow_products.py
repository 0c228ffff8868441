"""Products that read codes of few bits, as anchors, for backends that decode them inside the product.

contract_float8     (b, m, k) times (b, n, k), both codes of 8-bit floats, summed in float32: for products of `from_float8`
contract_grouped    (1, m, k) times a weight (n, k) of 8 or 4 bits with a scale for each group of inputs: for products with `grouped_weight`
"""

from __future__ import annotations

from math import prod

import numpy as np

from ...dtypes import float32
from ...graph.graph import Graph, rebuild
from ...graph.node import OPS, Node, Op, Type, make
from ...graph.rewrite import rewrite, rule
from .graph_builders import cast, move
from .integer_products import MOST_MOVES

RUN = 16  # bytes of codes that a kernel reads at once; they all belong to one group
MOST_ROWS = 32  # rows of the left operand: for more, decoding the weight first is faster


# --- 8-bit floats -------------------------------------------------------------------------------------------------------------


def undecoded(node: Node) -> tuple[Node, str] | None:
    """The codes of 8-bit floats whose decoded values a node has, in its shape, and their format. 16-bit floats represent all of these
    values, too."""
    moves: list[Node] = []
    while len(moves) < MOST_MOVES and node.inputs and (node.op.kernel == "view" or _is_exact_cast(node)):
        if node.op.name != "cast":
            moves.append(node)
        node = node.inputs[0]
    if node.op.name != "from_float8":
        return None
    codes = node.inputs[0]
    for above in reversed(moves):
        codes = rebuild(above, (codes,))
    return codes, node.param("format")


def _is_exact_cast(node: Node) -> bool:
    """Whether it converts between float32 and 16-bit floats."""
    return node.op.name == "cast" and (node.dtype.is_half or node.dtype is float32)


def _float8_type(x: Node, y: Node, formats: tuple[str, str]) -> Type:
    return Type((x.shape[0], x.shape[1], y.shape[1]), float32)


def _float8_reference(x: np.ndarray, y: np.ndarray, formats: tuple[str, str]) -> np.ndarray:
    a, b = (OPS["from_float8"].reference(codes, format) for codes, format in zip((x, y), formats, strict=True))
    result: np.ndarray = np.matmul(a, b.swapaxes(1, 2))
    return result


CONTRACT_FLOAT8 = Op(
    "contract_float8", "anchor", _float8_type, _float8_reference, None, ("formats",), 2, internal=True, kernel="contraction",
    precision="product", flops=lambda node: 2 * prod(node.shape) * node.inputs[0].shape[2], operands=("a", "b", "c"), label="contract",
)  # fmt: skip


# --- weights of 8 and 4 bits --------------------------------------------------------------------------------------------------


def grouped_products(graph: Graph) -> Graph:
    """Products of few rows with weights of 8 or 4 bits read the codes; other uses of such weights are decoded."""
    return rewrite(graph, [_grouped_product])


@rule("contract")
def _grouped_product(node: Node) -> Node | None:
    x, y = linear_operands(node) or (None, None)
    if x is None or y is None or y.op.name != "grouped_weight" or y.dtype is not float32:
        return None
    (codes, scale), (bits, (outputs, inputs)) = y.inputs, y.get_params("bits", "shape")
    rows, group = prod(x.shape) // max(1, inputs), inputs * outputs // max(1, scale.shape[0])
    run = RUN * 8 // bits  # weights
    if not 0 < rows <= MOST_ROWS or inputs % run or group % run:
        return None
    left = move("reshape", cast(x, float32), (1, rows, inputs))
    product = make(CONTRACT_GROUPED, (left, codes, scale), (bits, group), node.source)
    return move("reshape", cast(product, node.dtype), node.shape)


def linear_operands(node: Node) -> tuple[Node, Node] | None:
    """The operands of a product x W^T over the last axis, as in linear layers: x with that axis last, and W, (outputs, inputs), before any
    conversion to another float. None for other products."""
    (x, y), (a, b, out) = node.inputs, node.get_params("a", "b", "out")
    if len(b) != 2 or len(y.shape) != 2:
        return None
    while y.op.name == "permute" or _is_exact_cast(y):  # of a weight in 16 bits, which is rounded only where necessary
        y, b = y.inputs[0], b[::-1] if y.op.name == "permute" else b
    free = a.replace(b[1], "")
    if b[1] not in a or b[1] in out or b[0] not in out or out != free + b[0]:
        return None
    return move("permute", x, tuple(a.index(c) for c in free + b[1])), y


def _grouped_type(x: Node, codes: Node, scale: Node, bits: int, group: int) -> Type:
    return Type((1, x.shape[1], scale.shape[0] * group // x.shape[2]), float32)


def _grouped_reference(x: np.ndarray, codes: np.ndarray, scale: np.ndarray, bits: int, group: int) -> np.ndarray:
    inputs = x.shape[2]
    weight = OPS["grouped_weight"].reference(codes, scale, bits, (len(scale) * group // inputs, inputs))
    result: np.ndarray = np.matmul(x, weight.T)
    return result


CONTRACT_GROUPED = Op(
    "contract_grouped", "anchor", _grouped_type, _grouped_reference, None, ("bits", "group"), 3, internal=True, kernel="contraction",
    precision="product", flops=lambda node: 2 * prod(node.shape) * node.inputs[0].shape[2], operands=("a", "b", "scale", "c"), label="contract",
)  # fmt: skip
