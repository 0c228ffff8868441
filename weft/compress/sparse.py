"""Pruned linear layers that run fast on CPUs: only kept weights are stored, read and multiplied.

    prune(model, 0.1); fit(...); share(model, bits=5); fit(...)
    print(sparse(model.eval()))                  # which layers were replaced, and why

A product with one example is bandwidth-bound by its weight, so at density 0.1 it is several times as fast. Shared weights stay one byte each: the
codebook is looked up inside the kernel. The speedup is measured on this machine, for the given batch size. Replaced layers
can no longer be trained. Convolutions stay dense: their weights are read from the cache for every pixel, where dense vectors win.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Literal

import numpy as np

from ..errors import UserError
from ..nn.activations import Activation
from ..nn.activations import activation as find
from ..nn.checks import check_channels
from ..nn.linear import Linear
from ..nn.module import Module
from ..nn.replace import replace_layers
from ..ops.contract import matmul
from ..ops.convert import asarray
from ..ops.movement import transpose
from ..ops.sparse import MOST_CODES, sparse_matmul
from ..records import dataclass
from ..tensor import ArrayLike, Tensor
from ..tracing.jit import jit
from .codebooks import Codebook
from .layer_sizes import table_text
from .layers import layers_of
from .parametrize import is_parametrized, parametrization_of
from .sparse_format import SparseArrays, sparse_codes, sparse_values

Choice = Literal["measured", "all"]
SECONDS, LEAST_RUNS, MOST_RUNS = 0.02, 5, 200  # of each measurement
MARGIN = 1.1  # required speedup over the dense product: less may be noise


class SparseLinear(Module):
    """y = x W^T + b over the last axis, as `nn.Linear`, for a sparse W of fixed values; the bias can be trained.

    >>> layer = SparseLinear(sparse_values(np.float32([[0, 2, 0], [0, 0, 0]])), 3, None)
    >>> layer(asarray([[1.0, 2.0, 3.0]])).tolist()
    [[4.0, 0.0]]
    """

    def __init__(self, weight: SparseArrays, inputs: int, bias: Tensor | None, activation: Activation = None) -> None:
        self.inputs, self.block, self.bias, self.activation = inputs, weight.block, bias, activation
        self.values = asarray(weight.values).realize()
        self.columns, self.starts = asarray(weight.columns).realize(), asarray(weight.starts).realize()
        self.codes = None if weight.codes is None else asarray(weight.codes).realize()

    def forward(self, x: ArrayLike) -> Tensor:
        x = check_channels("SparseLinear", x, self.inputs, axis=-1)
        y = sparse_matmul(x, self.values, self.columns, self.starts, self.codes, block=self.block)
        return find(self.activation)(y if self.bias is None else y + self.bias)


@dataclass(frozen=True)
class SparseLayer:
    """The result for one linear layer. Bytes are those of the weight that a product reads, times in microseconds (0: not measured)."""

    name: str
    outputs: int
    inputs: int
    density: float
    form: str  # "codes" for shared weights, else "values"
    dense_bytes: int
    sparse_bytes: int
    dense_time: float
    sparse_time: float
    is_sparse: bool
    reason: str  # why it stayed dense

    @property
    def speedup(self) -> float:
        return self.dense_time / self.sparse_time if self.sparse_time else 0.0


@dataclass(frozen=True)
class SparseReport:
    """The linear layers of a network, and which of them became sparse; printed, it is a table."""

    layers: tuple[SparseLayer, ...]
    batch: int

    def as_json(self) -> dict[str, Any]:
        """The report as data."""
        return {"batch": self.batch, "layers": [asdict(layer) for layer in self.layers]}

    def __str__(self) -> str:
        titles = ["layer", "weight", "kept", "form", "dense MB", "sparse MB", "dense us", "sparse us", "speedup", "now"]
        return table_text([titles, *(_cells(layer) for layer in self.layers), self._totals()])

    def _totals(self) -> list[str]:
        """Total bytes and times of products, before and after."""
        before, now = (sum(layer.dense_bytes for layer in self.layers), sum(_now(layer)[0] for layer in self.layers))
        dense, after = (sum(layer.dense_time for layer in self.layers), sum(_now(layer)[1] for layer in self.layers))
        times = [f"{dense:.0f}", f"{after:.0f}", f"{dense / after:.1f}x"] if after else [""] * 3
        count = sum(layer.is_sparse for layer in self.layers)
        return ["total", "", "", "", f"{before / 1e6:.2f}", f"{now / 1e6:.2f}", *times, f"{count} sparse"]


def sparse(model: Module, *, batch: int = 1, choose: Choice = "measured", skip: Sequence[str] = ()) -> SparseReport:
    """Replace linear layers whose weights are mostly 0 by sparse ones, in place; returns a report.

    `choose`: "measured" replaces a layer if the sparse weight is smaller than the dense one, and its product with `batch` examples at least 1.1 times
    as fast, measured on the current device; "all" replaces every linear layer that has a weight of 0. Layers in `skip`, by path, stay unchanged.

    >>> from weft import compress, nn
    >>> net = nn.Sequential(nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 10)).eval()
    >>> _ = compress.prune(net, 0.1), compress.share(net, bits=4)
    >>> found = sparse(net, choose="all")
    >>> [(layer.form, layer.density, layer.is_sparse) for layer in found.layers]
    [('codes', 0.1, True), ('codes', 0.1, True)]
    """
    if choose not in ("measured", "all"):
        raise UserError("sparse", f"choose must be 'measured' or 'all', got {choose!r}.")
    if not isinstance(batch, int) or batch < 1:
        raise UserError("sparse", f"a batch of 1 or more is required, got {batch!r}.")
    layers = layers_of("sparse", model, (Linear,), skip, "linear layers")
    if model in layers.values():
        raise UserError("sparse", "a network of layers is required, got a Linear. Put it in nn.Sequential.")
    new: dict[Module, Module] = {}
    rows = []
    for path, layer in layers.items():
        made = _made(layer)
        row = _compared(path, layer, made, batch, choose)
        rows.append(row)
        if row.is_sparse:
            new[layer] = made.train(layer.training)
    replace_layers(model, new)
    return SparseReport(tuple(rows), batch)


def _made(layer: Linear) -> SparseLinear:
    """The sparse layer: shared weights by codes, others by values."""
    shared = parametrization_of(layer, "weight") if is_parametrized(layer, "weight") else None
    if isinstance(shared, Codebook) and shared.centroids.shape[0] < MOST_CODES:
        weight = sparse_codes(shared.centroids.numpy(), shared.indices.numpy())
    else:
        weight = sparse_values(layer.weight.numpy())
    return SparseLinear(weight, layer.weight.shape[1], layer.bias, layer.activation)


def _compared(path: str, layer: Linear, made: SparseLinear, batch: int, choose: Choice) -> SparseLayer:
    """The bytes and times of both forms of a layer, and the choice between them."""
    weight = layer.weight.detach().realize()
    outputs, inputs = weight.shape
    tensors = [t for t in (made.values, made.columns, made.starts, made.codes) if t is not None]
    kept, before, after = (
        int(np.count_nonzero(weight.numpy())),
        weight.numpy().nbytes,
        sum(t.numpy().nbytes for t in tensors),
    )
    dense_time, sparse_time, is_sparse = 0.0, 0.0, kept < weight.size
    reason = "" if is_sparse else "nothing is pruned"
    if is_sparse and choose == "measured":
        if after < before:
            x = asarray(np.random.default_rng(0).normal(size=(batch, inputs)).astype(weight.dtype.numpy))
            products = [lambda x: matmul(x, transpose(weight)), lambda x: sparse_matmul(x, *tensors, block=made.block)]
            dense_time, sparse_time = _times(products, x)
        is_sparse = dense_time > MARGIN * sparse_time
        reason = "" if is_sparse else "not faster" if after < before else "not smaller"
    return SparseLayer(
        path, outputs, inputs, kept / max(1, weight.size), "values" if made.codes is None else "codes", before, after,
        1e6 * dense_time, 1e6 * sparse_time, is_sparse, reason,
    )  # fmt: skip


def _times(functions: Sequence[Callable[[Tensor], Tensor]], x: Tensor) -> list[float]:
    """The minimum time of each function in seconds, measured in turns."""
    compiled = [jit(f) for f in functions]
    for f in (*compiled, *compiled):  # warm-up: the second call is like all later ones
        f(x).numpy()
    found: list[list[float]] = [[] for _ in functions]
    end = time.perf_counter() + SECONDS * len(functions)
    while len(found[0]) < LEAST_RUNS or (time.perf_counter() < end and len(found[0]) < MOST_RUNS):
        for f, times in zip(compiled, found, strict=True):
            begin = time.perf_counter()
            f(x).numpy()
            times.append(time.perf_counter() - begin)
    return [min(times) for times in found]


def _now(layer: SparseLayer) -> tuple[int, float]:
    return (layer.sparse_bytes, layer.sparse_time) if layer.is_sparse else (layer.dense_bytes, layer.dense_time)


def _cells(layer: SparseLayer) -> list[str]:
    times = [f"{t:.0f}" if t else "" for t in (layer.dense_time, layer.sparse_time)]
    return [
        layer.name, f"{layer.outputs} x {layer.inputs}", f"{100 * layer.density:.1f} %", layer.form, f"{layer.dense_bytes / 1e6:.2f}",
        f"{layer.sparse_bytes / 1e6:.2f}", *times, f"{layer.speedup:.1f}x" if layer.speedup else "", "sparse" if layer.is_sparse else f"dense: {layer.reason}",
    ]  # fmt: skip
