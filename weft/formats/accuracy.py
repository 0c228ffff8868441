"""The accuracy of a network in a format, measured by running it with rounded weights and activations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..compress.quantization_report import decibels
from ..nn.module import Module
from ..ops.convert import asarray
from ..records import dataclass
from ..tensor import Tensor
from ..tracing.jit import jit
from ..train.task import prediction_of
from .number_format import NumberFormat
from .rounding_layer import rounded


@dataclass(frozen=True)
class FormatAccuracy:
    """A network that was run in a format: with its weights rounded, and with its activations rounded too.

    Accuracies are None without class labels; `agreement` is the share of predictions that are those of float32.
    """

    format: str
    accuracy_weights: float | None
    accuracy: float | None
    agreement_weights: float
    agreement: float
    snr: float  # of the results with all tensors rounded, in decibels


class RepeatedRuns:
    """Runs a network on the same batches again and again."""

    def __init__(self, model: Module, batches: Sequence[np.ndarray], labels: np.ndarray | None) -> None:
        self.model, self.batches = model, batches
        self.forward = jit(lambda x: prediction_of(model(x)))  # rounded weights are other values of the same program
        self.exact = self._results(self.forward)
        fits = labels is not None and labels.dtype.kind in "iu" and labels.shape == self.exact.shape[:-1]
        self.labels = labels if fits else None
        self.float_accuracy = self._accuracy(self.exact)

    def accuracy(self, format: NumberFormat, largest: Mapping[str, float]) -> FormatAccuracy:
        with rounded(self.model, format, largest, activations=False):
            weights = self._results(self.forward)
        with rounded(self.model, format, largest, activations=True):
            both = self._results(jit(lambda x: prediction_of(self.model(x))))
        with np.errstate(invalid="ignore", over="ignore"):
            noise = float(((both - self.exact) ** 2).sum())
        ratio = decibels(float((self.exact**2).sum()), noise) if np.isfinite(noise) else -np.inf
        return FormatAccuracy(
            format.name,
            self._accuracy(weights),
            self._accuracy(both),
            self._agreement(weights),
            self._agreement(both),
            ratio,
        )

    def _results(self, forward: Callable[[Any], Tensor]) -> np.ndarray:
        return np.concatenate([forward(asarray(batch)).numpy() for batch in self.batches]).astype(np.float64)

    def _accuracy(self, results: np.ndarray) -> float | None:
        if self.labels is None:
            return None
        return float((_decided(results) == self.labels).mean())

    def _agreement(self, results: np.ndarray) -> float:
        """Of decisions among several results; of single results, of those that are equal to three digits."""
        if results.ndim < 2 or results.shape[-1] < 2:
            return float(np.isclose(results, self.exact, rtol=1e-3, atol=0.0).mean())
        return float((_decided(results) == _decided(self.exact)).mean())


def _decided(results: np.ndarray) -> np.ndarray:
    """The largest result of each row; -1 if one is not a number, because then nothing is decided."""
    chosen = np.where(np.isnan(results), -np.inf, results).argmax(-1)
    return np.where(np.isnan(results).any(-1), -1, chosen)
