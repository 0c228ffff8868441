"""Products with weights of 2:4 sparsity, as anchors, for backends whose matrix units read such weights compressed.

compress_semi_sparse    a weight (n, k) in the form that the backend reads: opaque bytes, made once if the weight does not change
contract_semi_sparse    (1, m, k) times such a weight: (1, m, n), of 16-bit floats, summed in float32 and rounded once

Where the dense product is faster, `semi_sparse_weight` stays what it is, and is expanded.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from ...dtypes import DType, uint8
from ...errors import InternalError
from ...graph.graph import Graph
from ...graph.node import Node, Op, Type, make
from ...graph.rewrite import rewrite, rule
from .graph_builders import cast, move
from .narrow_products import linear_operands
from .product_padding import first_part, padded_to

MULTIPLE = 8  # rows of the left operand come in groups of 16 bytes
WEIGHT_MULTIPLE = 16  # of outputs and inputs
# (rows, outputs, inputs, dtype) -> the bytes of the compressed weight, or 0 if the dense product is faster.
CompressedBytes = Callable[[int, int, int, DType], int]


def semi_sparse_products(graph: Graph, compressed_bytes: CompressedBytes, narrow: DType | None) -> Graph:
    """Products of 16-bit floats with weights of 2:4 sparsity read them compressed, where that is faster. `narrow`: of mixed precision."""

    @rule("contract")
    def semi_sparse_product(node: Node) -> Node | None:
        x, weight = linear_operands(node) or (None, None)
        if x is None or weight is None or weight.op.name != "semi_sparse_weight":
            return None
        dtype = node.dtype if node.dtype.is_half else narrow
        return None if dtype is None else _compressed(node, x, weight, dtype, compressed_bytes)

    return rewrite(graph, [semi_sparse_product])


def _compressed(node: Node, x: Node, weight: Node, dtype: DType, compressed_bytes: CompressedBytes) -> Node | None:
    """The product by a compressed weight, if that is faster; rows of zeros are added where there are not as many as it takes."""
    (values, positions), (outputs, inputs) = weight.inputs, weight.shape
    if not prod(node.shape) or not inputs or outputs % WEIGHT_MULTIPLE or inputs % WEIGHT_MULTIPLE:
        return None
    rows = prod(x.shape) // inputs
    padded = rows + -rows % MULTIPLE
    size = compressed_bytes(padded, outputs, inputs, dtype)
    if not size:
        return None
    packed = make(COMPRESS_SEMI_SPARSE, (cast(values, dtype), positions), (size,), node.source)
    lines = padded_to(cast(move("reshape", x, (1, rows, inputs)), dtype), (1, padded, inputs))
    product = make(CONTRACT_SEMI_SPARSE, (lines, packed), (outputs,), node.source)
    return move("reshape", cast(first_part(product, (1, rows, outputs)), node.dtype), node.shape)


def _opaque(*arrays: np.ndarray) -> np.ndarray:
    raise InternalError("semi_sparse", "compressed weights have no meaning outside of the library that makes them.")


COMPRESS_SEMI_SPARSE = Op(
    "compress_semi_sparse", "index", lambda values, positions, nbytes: Type((nbytes,), uint8), _opaque, None, ("nbytes",), 2,
    internal=True, own_kernels=True, precision="exact",
)  # fmt: skip
CONTRACT_SEMI_SPARSE = Op(
    "contract_semi_sparse", "anchor", lambda x, weight, outputs: Type((*x.shape[:2], outputs), x.dtype), _opaque, None, ("outputs",), 2,
    internal=True, kernel="contraction", precision="product", product_inputs=(0,), flops=lambda node: prod(node.shape) * node.inputs[0].shape[2],
    operands=("a", "b", "c"), label="contract",
)  # fmt: skip
