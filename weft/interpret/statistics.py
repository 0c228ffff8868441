"""Statistics of weights and activations: moments, zeros, histograms, channels that are always zero."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..data.dataset import Dataset
from ..dtypes import float32
from ..errors import UserError
from ..nn.module import Module
from ..ops.convert import asarray
from ..ops.elementwise import abs as absolute
from ..ops.elementwise import astype
from ..ops.reduce import max as maximum_over
from ..ops.reduce import min as minimum_over
from ..ops.reduce import sum as sum_over
from ..ops.statistics import mean
from ..records import dataclass
from ..tensor import Tensor
from ..tracing.jit import jit
from .explainer import Explainer

BINS = 40
SAMPLED = 1 << 15  # values of each layer and batch that histograms are made of
WHOLE = 1 << 22  # values; of larger weights a sample makes the histogram
BATCH = 32
EXAMPLES = 256  # of a dataset, spread over it, if no number is given


@dataclass(frozen=True)
class TensorStatistics:
    """Statistics of one tensor. `zeros` is the share of exact zeros; `dead` are the channels that are zero for every example.

    `counts` is a histogram between `edges`; that of activations is made of a sample of their values. The norm of activations is the root of
    the mean square of the norms of examples.
    """

    shape: tuple[int, ...]
    mean: float
    std: float
    min: float
    max: float
    norm: float
    zeros: float
    counts: np.ndarray
    edges: np.ndarray
    dead: tuple[int, ...] = ()


def weight_statistics(model: Module) -> dict[str, TensorStatistics]:
    """The statistics of all parameters and state by path.

    >>> from weft import nn
    >>> weight_statistics(nn.Linear(2, 3, init="ones"))["weight"].norm
    2.449489742783178
    """
    return {path: statistics_of(tensor.numpy()) for path, tensor in model.named_tensors().items()}


def statistics_of(values: np.ndarray) -> TensorStatistics:
    """The statistics of an array. Sums are in float64, without a copy; the histogram of a large array is made of a sample."""
    found = np.asarray(values)
    flat = (found if found.dtype in (np.float32, np.float64) else found.astype(np.float32)).ravel()
    if not flat.size:
        raise UserError("statistics", f"a tensor with values is required, got shape {np.shape(values)}.")
    mean_ = float(flat.mean(dtype=np.float64))
    square = (
        float(np.einsum("i,i->", flat, flat, dtype=np.float64))
        if flat.size <= WHOLE
        else float(np.linalg.norm(flat)) ** 2
    )
    counts, edges = _histogram(flat if flat.size <= WHOLE else flat[:: flat.size // WHOLE])
    return TensorStatistics(
        tuple(np.shape(values)), mean_, float(np.sqrt(max(square / flat.size - mean_ * mean_, 0.0))), float(flat.min()), float(flat.max()),
        float(np.sqrt(square)), float(1.0 - np.count_nonzero(flat) / flat.size), counts, edges,
    )  # fmt: skip


def activation_statistics(
    model: Module | Explainer, data: Any, examples: int = EXAMPLES, batch: int = BATCH
) -> dict[str, TensorStatistics]:
    """The statistics of every layer's output over examples of a dataset or array, by path; the shape is that of one example."""
    return survey(model, data, examples, batch).statistics


@dataclass(frozen=True)
class ChannelResponses:
    """The mean of each channel for each example, (examples, channels), and the places of the examples in their dataset."""

    values: np.ndarray
    indices: np.ndarray

    def strongest(self, channel: int, count: int = 8) -> list[tuple[int, float]]:
        """The examples for which a channel is largest, and its mean there, the largest first."""
        order = np.argsort(-self.values[:, channel], kind="stable")[:count]
        return [(int(self.indices[i]), float(self.values[i, channel])) for i in order]


@dataclass(frozen=True)
class LayerSurvey:
    """What every layer does with many examples, by path: statistics of its outputs, and the responses of its channels."""

    statistics: dict[str, TensorStatistics]
    responses: dict[str, ChannelResponses]


def survey(model: Module | Explainer, data: Any, examples: int = EXAMPLES, batch: int = BATCH) -> LayerSurvey:
    """Look at all layers for examples spread evenly over a dataset or array, in one compiled program."""
    explainer = model if isinstance(model, Explainer) else Explainer(model)
    measure = _Measure(explainer)
    found: dict[str, list[list[np.ndarray]]] = {}
    for x in batches(data, examples, batch):
        for name, sums in measure(x).items():
            found.setdefault(name, []).append(sums)
    shapes = {call.name: call.tensor.shape[1:] for call in explainer.layers(x) if call.tensor is not None}
    places = spread(len(data), examples, batch)
    return LayerSurvey(
        {name: _combined(shapes[name], parts) for name, parts in found.items()},
        {name: ChannelResponses(np.concatenate([part[-1] for part in parts]), places) for name, parts in found.items()},
    )


class _Measure:
    """Reduces all activations of a batch in one compiled program."""

    def __init__(self, explainer: Explainer) -> None:
        self.explainer = explainer

    def __call__(self, x: np.ndarray) -> dict[str, list[np.ndarray]]:
        with self.explainer.evaluating():
            return {name: [part.numpy() for part in parts] for name, parts in self._sums(asarray(x)).items()}

    @jit
    def _sums(self, x: Tensor) -> dict[str, tuple[Tensor, ...]]:
        _, calls = self.explainer.recorded(x)
        return {call.name: _sums(astype(call.tensor, float32)) for call in calls if call.tensor is not None}


def _sums(x: Tensor) -> tuple[Tensor, ...]:
    """Mean, mean square, smallest, largest, share of zeros, the largest magnitude of each channel, some values, and the channels' means."""
    flat = x.reshape(-1)
    count = float(flat.shape[0])
    channel = channel_axis(x.ndim)
    others = tuple(axis for axis in range(x.ndim) if axis != channel)
    step = max(1, flat.shape[0] // SAMPLED)
    return (
        sum_over(flat) / count, sum_over(flat * flat) / count, minimum_over(flat), maximum_over(flat),
        sum_over(astype(flat == 0.0, float32)) / count, maximum_over(absolute(x), axis=others), flat[::step],
        mean(x, axis=others[1:]) if len(others) > 1 else x.reshape(x.shape[0], -1),
    )  # fmt: skip


def channel_axis(rank: int) -> int:
    """The axis of channels: 1 of vectors and maps, the last of sequences of vectors."""
    return rank - 1 if rank in (1, 3) else 1


def _combined(shape: tuple[int, ...], parts: list[list[np.ndarray]]) -> TensorStatistics:
    """The statistics of batches of one size."""
    means, squares, lows, highs, zeros, channels, samples, _ = zip(*parts, strict=True)
    average, square = np.mean(means, dtype=np.float64), np.mean(squares, dtype=np.float64)
    counts, edges = _histogram(np.concatenate(samples))
    dead = np.flatnonzero(np.max(channels, axis=0) == 0.0)
    return TensorStatistics(
        shape, float(average), float(np.sqrt(max(square - average * average, 0.0))), float(min(lows)), float(max(highs)),
        float(np.sqrt(square * np.prod(shape))), float(np.mean(zeros)), counts, edges, tuple(dead.tolist()),
    )  # fmt: skip


def batches(data: Any, examples: int, batch: int) -> Iterator[np.ndarray]:
    """Examples spread evenly over a dataset or array, in whole batches of one size, which one program serves."""
    chosen = spread(len(data), examples, batch)
    for part in chosen.reshape(-1, min(batch, len(chosen))):
        yield data.inputs(part) if isinstance(data, Dataset) else np.asarray(data)[part]


def spread(count: int, examples: int, batch: int) -> np.ndarray:
    """Indices of at most `examples` of `count` examples, evenly spaced, as many as fill whole batches.

    >>> spread(100, 7, 3).tolist(), spread(2, 7, 3).tolist()
    ([0, 19, 39, 59, 79, 99], [0, 1])
    """
    wanted = min(examples, count)
    if wanted < 1:
        raise UserError("statistics", f"an example or more is required, got {wanted}.")
    return np.linspace(0, count - 1, wanted - wanted % min(batch, wanted)).astype(np.int64)


def _histogram(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    finite = np.asarray(values, np.float64)
    finite = finite[np.isfinite(finite)]
    return np.histogram(finite, BINS) if finite.size else (np.zeros(BINS, np.int64), np.linspace(0.0, 1.0, BINS + 1))


def effective_rank(weight: np.ndarray) -> float:
    """The exponential of the entropy of the normalized singular values of a weight, as a matrix (outputs, rest).

    >>> round(effective_rank(np.eye(4)), 6)
    4.0
    """
    values = np.linalg.svd(np.asarray(weight, np.float64).reshape(len(weight), -1), compute_uv=False)
    shares = values[values > 0] / max(values.sum(), np.finfo(float).tiny)
    return float(np.exp(-(shares * np.log(shares)).sum()))


def near_copies(weight: np.ndarray, similarity: float = 0.95) -> int:
    """The number of pairs of filters with at least this cosine similarity."""
    flat = np.asarray(weight, np.float64).reshape(len(weight), -1)
    lengths = np.linalg.norm(flat, axis=1)
    unit = flat[lengths > 0] / lengths[lengths > 0, None]
    return int(((unit @ unit.T)[np.triu_indices(len(unit), 1)] >= similarity).sum())
