"""Tensors as in Deep Compression (Han, Mao, Dally 2016): the value of each nonzero weight and its distance to the one before it, in two Huffman codes.

Distances have few bits; where one is longer, a weight that is zero is put in between. The code of values has a word for it.
"""

from __future__ import annotations

import numpy as np

from ..records import dataclass
from . import huffman
from .byte_stream import ByteReader, ByteWriter, Damaged
from .tensor_content import TensorContent

MOST_BITS = 8  # of a distance


@dataclass(frozen=True)
class RelativeWeights:
    """Nonzero weights and fillers in order: the zeros before each (below 2^bits), and its value: 0 for a filler, else 1 + number in the codebook."""

    bits: int
    gaps: np.ndarray
    values: np.ndarray


def relative_weights(content: TensorContent, bits: int) -> RelativeWeights:
    """The nonzero weights of a tensor with distances of so many bits."""
    indices = content.indices
    assert indices is not None
    places = np.arange(len(indices)) if content.mask is None else np.flatnonzero(content.mask)
    gaps = np.diff(places, prepend=-1) - 1
    fillers = gaps >> bits
    ends = np.cumsum(fillers + 1)
    found, values = np.full(int(ends[-1]), (1 << bits) - 1, np.uint8), np.zeros(int(ends[-1]), np.int64)
    found[ends - 1] = gaps & ((1 << bits) - 1)
    values[ends - 1] = indices.astype(np.int64) + 1
    return RelativeWeights(bits, found, values)


def shortest(content: TensorContent) -> RelativeWeights:
    """With as many bits for distances as give the shortest codes."""
    return min((relative_weights(content, bits) for bits in range(1, MOST_BITS + 1)), key=_cost)


def _cost(one: RelativeWeights) -> float:
    counts = [np.bincount(one.gaps), np.bincount(one.values)]
    return float(sum((c * huffman.code_lengths(c)).sum() + 4 * len(c) for c in counts))


def write_relative(out: ByteWriter, content: TensorContent) -> tuple[int, int]:
    """Write distances and values; the bytes that both codes take."""
    one = shortest(content)
    out.varint(one.bits, len(one.gaps))
    blocks = []
    for symbols, width in ((one.gaps, 1 << one.bits), (one.values.astype(np.uint8), len(content.values) + 1)):
        lengths = huffman.code_lengths(np.bincount(symbols, minlength=width))
        out.bits(lengths, 4)
        blocks.append(huffman.encode(symbols, lengths))
        out.block(blocks[-1])
    return len(blocks[0]), len(blocks[1])


def read_relative(content: ByteReader, size: int, codebook: np.ndarray) -> np.ndarray:
    """The tensor in one dimension."""
    bits = content.at_most(MOST_BITS, "the bits of distances")
    count = content.at_most(size, "the number of weights")
    gaps, values = (
        huffman.decode(code, count, lengths)
        for lengths, code in [_code(content, width) for width in (1 << bits, len(codebook) + 1)]
    )
    return placed(gaps, values, size, codebook)


def placed(gaps: np.ndarray, values: np.ndarray, size: int, codebook: np.ndarray) -> np.ndarray:
    """A tensor in one dimension, of distances and numbers of values."""
    places = np.cumsum(gaps.astype(np.int64) + 1) - 1
    if len(places) and places[-1] >= size:
        raise Damaged("weights lie beyond the end of their tensor")
    found = np.zeros(size, codebook.dtype)
    found[places] = np.concatenate([np.zeros(1, codebook.dtype), codebook])[values]
    return found


def _code(content: ByteReader, width: int) -> tuple[np.ndarray, bytes]:
    lengths = content.bits(width, 4).astype(np.uint8)
    return lengths, content.block()
