"""The report of a compressed network: the size of each layer after pruning, sharing and entropy coding, as in the tables of Deep Compression.

A row has the number of weights of a layer, their density, and bits per kept weight: for its value (weight) and its position (index),
first with fixed-length codes, then with Huffman or rANS codes. Bytes are those of the packed file, with tables, codebooks and biases.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ..nn.module import Module
from ..packing.packed_tensors import Coder, PackedTensors, pack_tensors
from ..packing.relative_coding import MOST_BITS, relative_weights
from ..packing.tensor_content import MOST_VALUES, split_tensor
from ..packing.tensor_forms import TensorForm
from ..records import dataclass
from .layers import weights_of
from .pack import packed_weights

OTHERS = "biases and others"


@dataclass(frozen=True)
class LayerSize:
    """A row of the report. Bits are per kept weight; `before` and `after` are bytes."""

    name: str
    weights: int
    density: float
    weight_bits: float  # with fixed-length codes: 32 until values are shared
    index_bits: float
    coded_weight_bits: float
    coded_index_bits: float
    before: int
    after: float
    share: float  # of the bytes of the file


@dataclass(frozen=True)
class CompressionReport:
    """The sizes of a network by layer. `after` is the number of bytes of a packed file with all its tensors."""

    layers: tuple[LayerSize, ...]
    coder: Coder
    before: int
    after: int

    @property
    def ratio(self) -> float:
        """The compression ratio: the size of the plain tensors over that of the packed file."""
        return self.before / self.after

    def as_json(self) -> dict[str, Any]:
        """The report as data."""
        rows = [asdict(layer) for layer in self.layers]
        return {"coder": self.coder, "before": self.before, "after": self.after, "ratio": self.ratio, "layers": rows}

    def __str__(self) -> str:
        titles = ["layer", "weights", "kept", "weight bits", f"{self.coder}", "index bits", f"{self.coder}", "before", "after", "ratio", "of file"]  # fmt: skip
        rows = [_cells(layer) for layer in self.layers]
        weights = sum(layer.weights for layer in self.layers)
        total = ["total", f"{weights:,}", "", "", "", "", "", f"{self.before:,}", f"{self.after:,}", f"{self.ratio:.1f}x", "100.0 %"]  # fmt: skip
        return table_text([titles, *rows, total])


def report(model: Module, *, half: bool = False, coder: Coder = "rans") -> CompressionReport:
    """The bytes of each layer of a network before and after packing; printed, it is a table.

    >>> from weft import nn
    >>> from weft.compress import prune, share
    >>> net = nn.Sequential(nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 10))
    >>> _ = prune(net, 0.1), share(net, bits=4)
    >>> found = report(net)
    >>> [layer.density for layer in found.layers[:2]], found.ratio > 10
    ([0.1, 0.1], True)
    """
    tensors = packed_weights(model, half)
    packed = pack_tensors(tensors, coder)
    rows, held = [], set[str]()
    for path, one in weights_of(model).items():
        parts = [path] if path in tensors else [name for name in tensors if name.startswith(f"{path}_parametrization.")]
        held |= set(parts)
        plain = path in tensors
        made = (
            _plain_row(tensors[path], packed.forms[path]) if plain else _stored_row(one.value, tensors, packed, parts)
        )
        after = sum(packed.forms[name].bytes for name in parts)
        name = path.removesuffix(".weight")
        rows.append(LayerSize(name, one.value.size, *made, one.value.nbytes, after, after / len(packed.content)))
    others_before = sum(value.nbytes for name, value in tensors.items() if name not in held)
    before = others_before + sum(row.before for row in rows)
    rest_after = len(packed.content) - sum(row.after for row in rows)
    count = sum(value.size for name, value in tensors.items() if name not in held)
    others = LayerSize(OTHERS, count, 1.0, 32.0, 0.0, 32.0, 0.0, others_before, rest_after, rest_after / len(packed.content))  # fmt: skip
    return CompressionReport((*rows, others), coder, before, len(packed.content))


def _plain_row(value: np.ndarray, form: TensorForm) -> tuple[float, float, float, float, float]:
    """Density and bits of a weight that is stored directly."""
    kept = max(1, int(np.count_nonzero(value)))
    weight_bits, index_bits = _fixed_bits(value)
    # Small tensors are stored uncompressed.
    coded = form.value_bits if form.value_bits else 8 * form.bytes - form.mask_bits
    shared = split_tensor(value).indices is not None
    return (
        kept / value.size, weight_bits, index_bits, coded / kept if shared else weight_bits, form.mask_bits / kept,
    )  # fmt: skip


def _stored_row(
    value: np.ndarray, tensors: Mapping[str, np.ndarray], packed: PackedTensors, parts: Sequence[str]
) -> tuple[float, float, float, float, float]:
    """Density and bits of a weight that is computed from stored tensors: integers and scales, or indices and codebooks."""
    kept = max(1, int(np.count_nonzero(value)))
    plain, coded = sum(8 * tensors[name].nbytes for name in parts), sum(8 * packed.forms[name].bytes for name in parts)
    return kept / value.size, plain / kept, 0.0, coded / kept, 0.0


def against_original(rows: Sequence[LayerSize], original: Sequence[LayerSize]) -> list[LayerSize]:
    """Rows for the layers of the original network, where layers have shrunk or were split: density and `before` are relative to the original."""
    found, left = [], list(rows)
    for layer in original:
        parts = [row for row in left if row.name == layer.name or row.name.startswith(f"{layer.name}.")]
        left = [row for row in left if row not in parts]
        found.append(_joined(layer, parts))
    return [*found, *left]


def _joined(layer: LayerSize, parts: Sequence[LayerSize]) -> LayerSize:
    """Merge the rows of the parts that a layer was split into; bits are the mean over kept weights."""
    kept = [row.density * row.weights for row in parts]
    every = max(sum(kept), 1e-9)

    def mean(name: str) -> float:
        return float(sum(getattr(row, name) * n for row, n in zip(parts, kept, strict=True)) / every)

    bits = (mean("weight_bits"), mean("index_bits"), mean("coded_weight_bits"), mean("coded_index_bits"))
    after, share = sum(row.after for row in parts), sum(row.share for row in parts)
    density = min(1.0, sum(kept) / max(layer.weights, 1))  # quantized networks have scales that the original has not
    return LayerSize(layer.name, layer.weights, density, *bits, layer.before, after, share)


def _fixed_bits(value: np.ndarray) -> tuple[float, float]:
    """Bits of a weight and of the distance to the previous one, with fixed-length codes: after sharing, before entropy coding."""
    content = split_tensor(value)
    if content.indices is None or len(content.values) >= MOST_VALUES:
        return 8.0 * value.itemsize, 0.0
    values = len(content.values) + (content.mask is not None)  # zero is one of them, for fillers
    width = float(max(1, math.ceil(math.log2(values))))
    if content.mask is None:
        return width, 0.0
    fillers = {
        bits: len(relative_weights(content, bits).gaps) / len(content.indices) for bits in range(1, MOST_BITS + 1)
    }
    bits = min(fillers, key=lambda one: fillers[one] * (width + one))
    return fillers[bits] * width, fillers[bits] * bits


def _cells(layer: LayerSize) -> list[str]:
    return [
        layer.name, f"{layer.weights:,}", f"{100 * layer.density:.1f} %", f"{layer.weight_bits:.1f}", f"{layer.coded_weight_bits:.1f}",
        f"{layer.index_bits:.1f}", f"{layer.coded_index_bits:.1f}", f"{layer.before:,}", f"{layer.after:,.0f}",
        f"{layer.before / max(layer.after, 1):.1f}x", f"{100 * layer.share:.1f} %",
    ]  # fmt: skip


def table_text(rows: Sequence[Sequence[str]]) -> str:
    """A table with right-aligned columns, the first left-aligned. The first row has titles, the last one totals."""
    wide = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join([row[0].ljust(wide[0]), *(cell.rjust(w) for cell, w in zip(row[1:], wide[1:], strict=True))]).rstrip()
        for row in rows
    ]
    rule = "-" * max(map(len, lines))
    return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1]])
