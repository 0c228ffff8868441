"""The sizes at which the compiler switches between two strategies, in one table, so that tests can lower them and small shapes cover
every path.

`thresholds.unrolled_taps` is the current value; `with thresholds.set(unrolled_taps=0): ...` changes it for a test. Keys of compiled code
hold the changed ones. The constants of cost models are beside those.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field, fields
from typing import Any

from ..records import dataclass


def _at(value: int, low: int) -> Any:
    """A threshold, and a low value that small shapes exceed."""
    return field(default=value, metadata={"low": low})


@dataclass
class Thresholds:
    # Loops
    unrolled_taps: int = _at(25, 0)  # taps of a window that is written out; larger ones are loops
    sum_terms: int = _at(32, 2)  # terms of a sum that are added one after another, and blocks of them likewise
    task_elements: int = _at(
        4096, 16
    )  # of a vector loop that one thread takes, where there is no other loop to share out
    far_rows: int = _at(512, 8)  # bytes from row to row, from which on a column is prefetched
    inlined_block: int = _at(256, 0)  # instructions from which on a block calls elementary functions
    segments: int = _at(32, 2)  # the most parts that a vector loop is cut in where a concat changes its input
    # Wide products, whose rows are computed some after the others
    row_chunk_bytes: int = _at(512 << 20, 64)  # of the rows of a chunk, as float32
    # Long reductions, cut for threads
    long_reduction: int = _at(4096, 16)  # elements for each result
    reduction_pieces: int = _at(64, 4)  # that such a reduction is cut in
    piece_bytes: int = _at(256 << 10, 64)  # of a piece that stays in a cache
    even_pieces: int = _at(16, 3)  # fewer even ones than these, and the cut is uneven
    # Fusion
    recompute_limit: int = _at(10, 1)  # cost of a value that is computed again in another kernel rather than stored
    stored_elements: int = _at(1 << 14, 4)  # of a value that is stored if it takes many tensors of its size to compute
    stored_tensors: int = _at(3, 1)  # that are many
    stored_line: int = _at(256, 4)  # of a smaller one, stored if it takes more: the residual stream of a token
    stored_lines: int = _at(6, 2)  # that are more
    spread_times: int = _at(4, 1)  # as many elements as what they are read from: it is spread along rows
    stored_positions: int = _at(8, 1)  # random draws of a graph, from which on their positions in the stream are stored
    fused_steps: int = _at(300, 4)  # of a kernel's body: compile time grows faster than they do
    join_refusals: int = _at(64, 1)  # kernels that cannot be joined with another, after which no more are tried
    row_bytes: int = _at(256 << 10, 64)  # of a row with reductions, which should stay in the cache
    concat_flat: int = _at(8, 3)  # pieces up to which nested concats become one; beyond, the inner one is stored
    concat_pieces: int = _at(64, 2)  # that one kernel chooses between; a longer concat is one of concats
    # Programs
    function_calls: int = _at(128, 2)  # of one LLVM function: it takes more than twice as long for twice as many
    # Threads
    threaded_work: int = _at(1 << 14, 0)  # operations of a program that several threads share
    # Mixed precision
    handed_on_elements: int = _at(1 << 14, 4)  # of a value that kernels hand to each other in 16 bits
    # Sorting
    sort_by_pairs: int = _at(96, 3)  # elements of a row that are compared in pairs; longer ones are sorted by digits
    sort_by_threads: int = _at(1 << 14, 8)  # elements of a row that several threads sort
    # Cumulative sums and products
    cumulate_chunk: int = _at(8192, 2)  # the least elements of a chunk of a line
    cumulate_columns: int = _at(512, 4)  # the most columns of a block
    cumulate_narrow: int = _at(64, 2)  # the least
    cumulate_tasks: int = _at(8, 1 << 30)  # lines, or blocks of columns, of which none needs to be cut
    # Scatters
    scatter_block: int = _at(512, 2)  # indices that are looked through before those found are done
    scatter_columns: int = _at(1024, 4)  # bytes of a row that are enough for a thread
    scatter_few: int = _at(64, 0)  # indices a thread that are too few to share out
    # Products
    matvec_far: int = _at(4 << 20, 64)  # bytes of a matrix beyond the caches, which is read in fewer streams
    matvec_block: int = _at(4096, 64)  # results that are kept in the cache
    matvec_long: int = _at(1 << 22, 64)  # elements of a matrix that is read in stretches
    matvec_piece: int = _at(2048, 8)  # of k, where there are few results; four times as long for very few
    product_piece: int = _at(1024, 8)  # the shortest piece of k that is worth a partial result
    product_short: int = _at(64, 0)  # k up to which a product takes little longer than storing its result
    product_strip: int = _at(
        512 << 10, 0
    )  # bytes of the results that the epilogue is called for, which stay in the cache
    # Sparse products
    sparse_tile: int = _at(512, 3)  # sums that are kept while the blocks of columns pass
    # Attention
    attention_queries: int = _at(32, 5)  # of a block
    attention_keys: int = _at(128, 16)
    attention_few_queries: int = _at(8, 0)  # for which keys and values are read as they lie in memory, not packed first
    # Convolutions
    filter_piece: int = _at(128 << 10, 256)  # bytes of a filter that all pixels of a unit are multiplied with at a time
    filter_chunk: int = _at(512, 8)  # the least pixels of a chunk of a filter gradient
    filter_good_chunk: int = _at(2048, 16)  # pixels that are worth a chunk though there is enough other work
    filter_slab: int = _at(256, 8)  # the most pixels packed at a time
    filter_least_slab: int = _at(96, 4)  # the least
    filter_by_blocks: int = _at(1 << 15, 1)  # elements of a filter whose gradient is finished block by block
    winograd_chunk: int = _at(32, 2)  # the least tiles of a chunk of a filter gradient
    winograd_slab: int = _at(64, 4)  # tiles that are transformed at a time
    fft_slab: int = _at(96, 4)  # the least tiles whose spectra are in memory together
    fft_slab_bytes: int = _at(16 << 20, 1)  # of spectra that are in memory together
    depthwise_chunk: int = _at(256, 4)  # the least pixels of a chunk of a depthwise filter gradient
    row_taps: int = _at(7, 0)  # taps of a row, up to which there is a function for each number
    # GPUs
    gpu_padded_product: int = _at(1 << 28, 8)  # multiplications of a product whose lines are padded to whole words
    gpu_padded_conv: int = _at(1 << 30, 64)  # multiplications of a convolution whose channels are
    gpu_padded_reuse: int = _at(64, 1)  # and of each number of its images, in training steps
    gpu_small: int = _at(256, 1)  # programs of a kernel that leaves room for others in its launch
    gpu_joined: int = _at(32, 2)  # kernels of a launch
    gpu_joined_text: int = _at(
        12_000, 1
    )  # characters of source in a launch of several kernels: Triton compiles long ones slowly
    gpu_short_copy: int = _at(1 << 18, 8)  # bytes: copies up to this size share a launch
    gpu_copies: int = _at(32, 2)  # of a launch
    gpu_cut: int = _at(32768, 8)  # elements that a program must walk through for a reduction to be cut into parts
    gpu_part: int = _at(1024, 4)  # the least elements of such a part
    gpu_scatter_rows: int = _at(128, 128)  # of a tensor, up to which many indices are added to it without sorting
    gpu_scatter_indices: int = _at(2048, 8)  # that are many
    gpu_scatter_bytes: int = _at(16 << 20, 1 << 12)  # of the sums that this takes
    gpu_gathered_sum: int = _at(1 << 14, 16)  # bytes of tensors that all processes gather whole, and sum by themselves
    gpu_late_results: int = _at(4096, 0)  # bytes of results that are computed at the end, in a launch with others

    @contextmanager
    def set(self, **values: int) -> Iterator[None]:
        """Change thresholds inside a `with` block."""
        before = {name: getattr(self, name) for name in values}
        self.__dict__.update(values)
        try:
            yield
        finally:
            self.__dict__.update(before)

    def changed(self) -> str:
        """The thresholds that differ from their defaults: part of the keys of code compiled in this process."""
        return " ".join(f"{f.name}={getattr(self, f.name)}" for f in fields(self) if getattr(self, f.name) != f.default)


thresholds = Thresholds()
LOWERED = {f.name: int(f.metadata["low"]) for f in fields(Thresholds)}
