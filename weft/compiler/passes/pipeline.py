"""The list of passes that a graph goes through before it is fused into kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ...dtypes import DType
from ...graph.graph import Graph
from ...graph.node import Node
from ...options import CompileOptions
from ...records import dataclass
from .collective_layout import collective_layout
from .collective_sums import Adds, collective_sums
from .decompose import decompose
from .fold import fold
from .integer_products import Int8Kernels
from .layout import layout
from .merged_products import merged_products
from .narrow_products import grouped_products
from .padded_lines import padded_lines
from .precision import precision, widened_copies
from .row_chunks import row_chunks
from .scan_residuals import scan_residuals
from .scan_sums import scan_sums
from .semi_sparse_products import CompressedBytes, semi_sparse_products
from .simplify import refine, simplify
from .unsigned_operands import unsigned_operands

Pass = Callable[[Graph], Graph]


@dataclass(frozen=True)
class PassOptions:
    """The options of the passes that depend on the backend."""

    # Whether the backend has a rule for a node, in the dtype of mixed precision if that is used; nodes without one are decomposed.
    lowers: Callable[[Node, DType | None], bool]
    wide_filters: bool = False  # convolutions read float32 only, so filter gradients are not rounded in mixed precision
    widen_copies: bool = False  # 16-bit operands of kernels that read float32 only become copies of their own
    recompute: bool = False  # cheap values are recomputed, not stored
    # Images of few channels, and large products, are padded, so that every pixel and every line begins at a multiple of 16 bytes.
    pad_to_words: bool = False
    merge_products: bool = False  # products that share an operand become one
    int8_kernels: Int8Kernels | None = None  # the kernels of the backend for products of 8-bit integers
    narrow_kernels: bool = (
        False  # the backend decodes 8-bit floats, and weights of 8 and 4 bits, inside of its products
    )
    # The bytes of a compressed weight with 2:4 sparsity, if the backend multiplies it faster than the dense one; None: it never does.
    semi_sparse: CompressedBytes | None = None
    split_sums: bool = False  # long sums are split in two, so that threads share them
    adds: Adds | None = (
        None  # the collectives whose sums in the backend's engine have the bits that weft defines; None: all
    )


def pass_list(wanted: PassOptions, options: CompileOptions) -> dict[str, Pass]:
    """The passes in order, by name, for a backend under the options of a compilation."""
    narrow, fast_math = options.narrow, bool(options.fast_math)
    mixed: dict[str, Pass] = {}
    if narrow is not None:
        mixed["precision"] = partial(precision, dtype=narrow, wide_filters=wanted.wide_filters, fast_math=fast_math)
    sparse: dict[str, Pass] = {}
    if wanted.semi_sparse is not None:
        sparse["semi-sparse"] = partial(semi_sparse_products, compressed_bytes=wanted.semi_sparse, narrow=narrow)
    return {
        **sparse,
        **({"grouped": grouped_products} if wanted.narrow_kernels else {}),
        **({"collectives": partial(collective_sums, adds=wanted.adds)} if wanted.adds is not None else {}),
        "decompose": partial(decompose, lowers=lambda node: wanted.lowers(node, narrow)),
        "scan residuals": scan_residuals,
        "simplify": partial(simplify, recompute=wanted.recompute, fast_math=fast_math),
        "fold": fold,
        "scan sums": scan_sums,
        "row chunks": row_chunks,
        **({"merged products": merged_products} if wanted.merge_products else {}),
        **mixed,
        "layout": partial(_layout, wanted=wanted),
        **({"unsigned operands": unsigned_operands} if _unsigned_left(wanted) else {}),
        **({"padded lines": padded_lines} if wanted.pad_to_words else {}),
        **({"widened copies": widened_copies} if wanted.widen_copies else {}),
        "refine": partial(refine, split_sums=wanted.split_sums, fast_math=fast_math),
    }


def _unsigned_left(wanted: PassOptions) -> bool:
    return wanted.int8_kernels is not None and wanted.int8_kernels.unsigned_left


def _layout(graph: Graph, wanted: PassOptions) -> Graph:
    found = layout(
        graph,
        pad_to_words=wanted.pad_to_words,
        int8_kernels=wanted.int8_kernels,
        float8_kernels=wanted.narrow_kernels,
    )
    return collective_layout(found)


def passes(graph: Graph, wanted: PassOptions, options: CompileOptions) -> dict[str, Graph]:
    """The graph after each pass, by the pass's name."""
    after = {}
    for name, apply in pass_list(wanted, options).items():
        graph = after[name] = apply(graph)
    return after


def apply_passes(graph: Graph, wanted: PassOptions, options: CompileOptions) -> Graph:
    """The graph after all passes."""
    for apply in pass_list(wanted, options).values():
        graph = apply(graph)
    return graph
