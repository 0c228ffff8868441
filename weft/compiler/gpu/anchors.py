"""Facts about anchors: the products and convolutions that a kernel is built around. The layout pass has made these forms of them."""

from __future__ import annotations

from math import prod

from ...graph.node import Node
from ..ir.kernel import Kernel
from ..ir.loops import CONVOLUTIONS

INTEGERS = frozenset(("contract_int8", "conv_int8_last"))  # anchors of 8-bit integers, summed in int32
LINES_OF_K = frozenset(("contract_int8", "contract_float8"))  # both operands have k last: (b, m, k) times (b, n, k)
PRODUCTS = LINES_OF_K | {"contract", "contract_grouped", "contract_semi_sparse"}


def anchor_of(kernel: Kernel) -> Node:
    """The anchor of a kernel that has one."""
    assert kernel.anchor is not None
    return kernel.anchor


def is_product(anchor: Node) -> bool:
    """Whether it is a batch of matrix products."""
    return anchor.op.name in PRODUCTS


def is_grouped(anchor: Node) -> bool:
    """Whether it is a product with a weight of 8 or 4 bits that has a scale for each group of inputs."""
    return anchor.op.name == "contract_grouped"


def is_semi_sparse(anchor: Node) -> bool:
    """Whether it is a product with a compressed weight, which cuSPARSELt alone can read."""
    return anchor.op.name == "contract_semi_sparse"


def is_convolution(anchor: Node) -> bool:
    """Whether it is a convolution or one of its gradients."""
    return anchor.op.name in CONVOLUTIONS


def is_attention(anchor: Node) -> bool:
    """Whether it is attention or its gradients."""
    return anchor.op.name in ("attention", "attention_gradients")


def is_filter_gradient(anchor: Node) -> bool:
    """Whether it is the gradient of a convolution's filter."""
    return anchor.op.name == "conv_filter_last"


def of_integers(anchor: Node) -> bool:
    """Whether it multiplies 8-bit integers."""
    return anchor.op.name in INTEGERS


def is_contraction(kernel: Kernel) -> bool:
    """Whether its anchor is computed by tensor cores: a product or convolution of floats or of 8-bit integers."""
    anchor = kernel.anchor
    if anchor is None or not (is_product(anchor) or is_convolution(anchor)):
        return False
    return anchor.dtype.is_float or of_integers(anchor)


def groups_of(anchor: Node) -> int:
    """The number of groups of the result's columns; columns of one group read the same part of the left operand."""
    return 1 if is_product(anchor) else int(anchor.param("groups"))


def sum_length(anchor: Node) -> int:
    """The number of terms in the sum of each element of the result."""
    x, y = anchor.inputs[:2]
    if is_product(anchor):
        return x.shape[2]
    if is_filter_gradient(anchor):
        return prod(y.shape[:-1])
    if of_integers(anchor):
        return prod(y.shape[1:])
    taps = prod(y.shape[2:])
    return taps * (y.shape[1] if anchor.op.name == "conv_last" else y.shape[0] // groups_of(anchor))
