"""One tensor in a packed file: its head, and the symbols that go to the streams of the file.

The head: dtype, shape and form; the number of values of a codebook; of a mask the number of weights that are not zero, the number of classes of rows
and columns, and tables; the values; then the table of their numbers (rANS), or distances and numbers in Huffman codes. With DISTANCES (rANS) a mask
is missing, and the tables of distances and of numbers come last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..dtypes import as_dtype
from ..records import dataclass
from .byte_stream import ByteReader, ByteWriter, Damaged
from .context_coding import SymbolSegment, read_segments
from .density_classes import COUNTS, DensityClasses, choose_classes
from .frequencies import Frequencies
from .relative_coding import MOST_BITS, placed, read_relative, shortest, write_relative
from .tensor_content import MOST_VALUES, TensorContent, as_half, mask_shape, plain_tensor

MASKED, CODEBOOK, HALF, DISTANCES = 1, 2, 4, 8
# Their order is a part of the format.
DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32", "float64")  # fmt: skip
_MOST_DIMENSIONS = 32


@dataclass(frozen=True)
class TensorForm:
    """A way to write a tensor."""

    head: bytes
    classes: tuple[SymbolSegment, ...] = ()
    symbols: tuple[SymbolSegment, ...] = ()
    mask_bits: float = 0.0  # that say where it is zero, in the streams or in the head
    value_bits: float = 0.0  # that say which value each weight has
    coded: int = 0  # bytes of the head that those bits are
    has_distances: bool = False  # zeros are told by the distances of the others: since version 2 of the format

    @property
    def bytes(self) -> float:
        return len(self.head) - self.coded + (self.mask_bits + self.value_bits) / 8


def plain_form(array: np.ndarray) -> TensorForm:
    """All values as they are."""
    return TensorForm(bytes(_begun(plain_tensor(array)).content))


def rans_form(content: TensorContent) -> TensorForm:
    """Masks with contexts, and numbers of values with one table."""
    classes, symbols, mask_bits = list[SymbolSegment](), list[SymbolSegment](), 0.0
    head = _begun(content, write_mask=lambda out, mask: _write_mask(out, mask, classes, symbols))
    mask_bits = sum(one.bits for one in (*classes, *symbols))
    if content.indices is None:
        return TensorForm(bytes(head.content), tuple(classes), tuple(symbols), mask_bits)
    numbers = SymbolSegment.of_symbols(content.indices, len(content.values))
    head.frequencies(numbers.tables)
    return TensorForm(bytes(head.content), tuple(classes), (*symbols, numbers), mask_bits, numbers.bits)


def distances_form(content: TensorContent) -> TensorForm | None:
    """Distances between weights and numbers of their values, each with one table: shorter than a mask where weights stand in groups.

    None if there are too many values, or no zeros.
    """
    if content.indices is None or content.mask is None or not 0 < len(content.values) < MOST_VALUES:
        return None
    head, one = _begun(content, distances=True), shortest(content)
    head.varint(one.bits, len(one.gaps))
    gaps = SymbolSegment.of_symbols(one.gaps, 1 << one.bits)
    values = SymbolSegment.of_symbols(one.values.astype(np.uint8), len(content.values) + 1)
    for segment in (gaps, values):
        head.frequencies(segment.tables)
    return TensorForm(bytes(head.content), (), (gaps, values), gaps.bits, values.bits, has_distances=True)


def huffman_form(content: TensorContent) -> TensorForm | None:
    """Distances and numbers of values in Huffman codes; None if there are too many values."""
    if content.indices is None or len(content.values) >= MOST_VALUES:
        return None
    head = _begun(content)
    gaps, values = write_relative(head, content)
    return TensorForm(bytes(head.content), (), (), 8.0 * gaps, 8.0 * values, gaps + values)


def _begun(content: TensorContent, write_mask: Any = None, distances: bool = False) -> ByteWriter:
    """The head up to the values."""
    out, half = ByteWriter(), as_half(content.values)
    form = MASKED * (content.mask is not None) | CODEBOOK * (content.indices is not None) | HALF * (half is not None)
    form |= DISTANCES * distances
    out.varint(DTYPES.index(content.dtype.name), len(content.shape), *content.shape, form)
    if content.indices is not None:
        out.varint(len(content.values))
    if content.mask is not None and write_mask is not None:
        write_mask(out, content.mask)
    out.array(content.values if half is None else half)
    return out


def _write_mask(out: ByteWriter, mask: np.ndarray, classes: list[SymbolSegment], symbols: list[SymbolSegment]) -> None:
    chosen = choose_classes(mask)
    out.varint(int(mask.sum()), chosen.row_classes, chosen.column_classes)
    for of_axis, count in ((chosen.rows, chosen.row_classes), (chosen.columns, chosen.column_classes)):
        if count > 1:
            classes.append(SymbolSegment.of_symbols(of_axis, count))
            out.frequencies(classes[-1].tables)
    symbols.append(SymbolSegment.of_symbols(mask.view(np.uint8).ravel(), 2, chosen.contexts(), chosen.count))
    out.frequencies(symbols[-1].tables)


# --- reading ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MaskHead:
    """What the head says of a mask: how many weights are kept, and the tables of classes and of the mask."""

    kept: int
    counts: tuple[int, int]  # classes of rows, of columns
    class_tables: tuple[Frequencies, ...]
    tables: Frequencies


@dataclass(frozen=True)
class DistancesHead:
    """What the head says of distances: their bits, how many there are, and the tables of distances and of values."""

    bits: int
    count: int
    gaps: Frequencies
    values: Frequencies


@dataclass(frozen=True)
class TensorHead:
    """A tensor whose head was read. `array` is known already if no symbols are missing."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    values: np.ndarray
    mask: MaskHead | None = None
    tables: Frequencies | None = None  # of the numbers of values
    array: np.ndarray | None = None
    distances: DistancesHead | None = None

    @property
    def count(self) -> int:
        """Weights that are not left out."""
        return math.prod(self.shape) if self.mask is None else self.mask.kept

    def class_segments(self) -> list[SymbolSegment]:
        if self.mask is None:
            return []
        sizes = [size for size, count in zip(mask_shape(self.shape), self.mask.counts, strict=True) if count > 1]
        return [SymbolSegment(size, table) for size, table in zip(sizes, self.mask.class_tables, strict=True)]

    def symbol_segments(self, classes: Sequence[np.ndarray]) -> list[SymbolSegment]:
        """Of the mask, whose contexts follow from the classes, and of the numbers of values; or of distances and values."""
        if self.distances is not None:
            return [
                SymbolSegment(self.distances.count, table) for table in (self.distances.gaps, self.distances.values)
            ]
        found = []
        if self.mask is not None:
            given = iter(classes)
            rows, columns = (
                next(given) if count > 1 else np.zeros(size, np.uint8)
                for size, count in zip(mask_shape(self.shape), self.mask.counts, strict=True)
            )
            contexts = DensityClasses(rows, columns, *self.mask.counts).contexts()
            found.append(SymbolSegment(math.prod(self.shape), self.mask.tables, contexts))
        return found if self.tables is None else [*found, SymbolSegment(self.count, self.tables)]

    def decoded(self, symbols: Sequence[np.ndarray]) -> np.ndarray:
        """The tensor made of its symbols."""
        if self.array is not None:
            return self.array
        if self.distances is not None:
            return placed(symbols[0], symbols[1], math.prod(self.shape), self.values).reshape(self.shape)
        given = iter(symbols)
        mask = None if self.mask is None else next(given).view(np.bool_).reshape(mask_shape(self.shape))
        if mask is not None and int(np.count_nonzero(mask)) != self.count:
            raise Damaged("a mask keeps another number of weights than its head says")
        indices = None if self.tables is None else next(given)
        return TensorContent(self.shape, self.dtype, mask, self.values, indices).array()


def decode_tensors(reader: ByteReader, heads: Sequence[TensorHead]) -> list[np.ndarray]:
    """The tensors of these heads; their streams are read."""
    classes = _by_head(reader, [head.class_segments() for head in heads])
    symbols = _by_head(reader, [head.symbol_segments(found) for head, found in zip(heads, classes, strict=True)])
    return [head.decoded(found) for head, found in zip(heads, symbols, strict=True)]


def _by_head(reader: ByteReader, segments: Sequence[Sequence[SymbolSegment]]) -> list[list[np.ndarray]]:
    found = iter(read_segments(reader, [one for some in segments for one in some]))
    return [[next(found) for _ in some] for some in segments]


def read_head(reader: ByteReader, most: int, *, with_contexts: bool) -> TensorHead:
    """The head of a tensor of at most so many bytes."""
    dtype = as_dtype(DTYPES[reader.at_most(len(DTYPES) - 1, "a dtype")]).numpy
    shape = tuple(reader.varint() for _ in range(reader.at_most(_MOST_DIMENSIONS, "the number of dimensions")))
    size = math.prod(shape)
    if size * dtype.itemsize > most or max(shape, default=0) > most:
        raise Damaged(f"a tensor of shape {shape} is larger than a file of this size can hold")
    form = reader.at_most(MASKED | CODEBOOK | HALF | (DISTANCES if with_contexts else 0), "a form")
    if form & DISTANCES and form & (MASKED | CODEBOOK) != MASKED | CODEBOOK:
        raise Damaged("a tensor with distances has no codebook")
    if form & HALF and dtype != np.float32:
        raise Damaged(f"values of {dtype} are said to be float16")
    values = reader.at_most(MOST_VALUES, "the number of values") if form & CODEBOOK else None
    mask = _read_mask(reader, size) if form & MASKED and with_contexts and not form & DISTANCES else None
    count = values if values is not None else size if mask is None else mask.kept
    stored = np.dtype(np.float16) if form & HALF else dtype
    found = reader.array(stored, count).astype(dtype, copy=False)
    if values is None:
        if form & MASKED and not with_contexts:
            raise Damaged("a tensor without a codebook is said to be in Huffman codes")
        array = found.reshape(shape) if mask is None else None
        return TensorHead(shape, dtype, found, mask, None, array)
    if form & DISTANCES:
        return TensorHead(shape, dtype, found, distances=_read_distances(reader, size, values))
    if with_contexts:
        return TensorHead(shape, dtype, found, mask, reader.frequencies(1, values) if values else None)
    return TensorHead(shape, dtype, found, array=read_relative(reader, size, found).reshape(shape))


def _read_distances(reader: ByteReader, size: int, values: int) -> DistancesHead:
    bits = reader.at_most(MOST_BITS, "the bits of distances")
    count = reader.at_most(size, "the number of weights")
    return DistancesHead(bits, count, reader.frequencies(1, 1 << bits), reader.frequencies(1, values + 1))


def _read_mask(reader: ByteReader, size: int) -> MaskHead:
    kept = reader.at_most(size, "the number of weights")
    counts = reader.at_most(max(COUNTS), "a number of classes"), reader.at_most(max(COUNTS), "a number of classes")
    if 0 in counts:
        raise Damaged("a number of classes is 0")
    of_classes = tuple(reader.frequencies(1, count) for count in counts if count > 1)
    return MaskHead(kept, counts, of_classes, reader.frequencies(counts[0] * counts[1], 2))
