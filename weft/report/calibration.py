"""Calibration: how often predictions of a confidence are right, and the temperature that would correct it (Guo et al. 2017)."""

from __future__ import annotations

import numpy as np

from ..records import dataclass

BINS = 10
COLDEST, HOTTEST = 0.05, 20.0  # temperatures that are tried


@dataclass(frozen=True)
class ReliabilityBin:
    """Predictions with a confidence in (low, high]: how many, their mean confidence, and the fraction that is right."""

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class Calibration:
    """Reliability by confidence, and what dividing the logits by a temperature would change.

    `corrected_error` is measured on examples that the temperature was not fitted to: each half of the examples is scaled by the
    temperature of the other half.
    """

    bins: list[ReliabilityBin]
    error: float  # expected calibration error
    temperature: float
    corrected_error: float


def reliability(confidence: np.ndarray, right: np.ndarray, bins: int = BINS) -> list[ReliabilityBin]:
    """Predictions in equal parts of [0, 1] by confidence; empty parts are left out.

    >>> [(b.count, b.accuracy) for b in reliability(np.array([0.95, 0.93, 0.55]), np.array([True, False, True]))]
    [(1, 1.0), (2, 0.5)]
    """
    place = np.clip(np.ceil(confidence.astype(np.float64) * bins) - 1, 0, bins - 1).astype(np.int64)
    found = []
    for number in np.unique(place):
        chosen = place == number
        found.append(
            ReliabilityBin(
                number / bins, (number + 1) / bins, int(chosen.sum()), float(confidence[chosen].mean(dtype=np.float64)), float(right[chosen].mean())
            )
        )  # fmt: skip
    return found


def expected_error(bins: list[ReliabilityBin]) -> float:
    """The expected calibration error: the mean gap between confidence and accuracy, weighted by count."""
    total = sum(one.count for one in bins)
    return sum(one.count * abs(one.accuracy - one.confidence) for one in bins) / total if total else 0.0


def calibration(probabilities: np.ndarray, true: np.ndarray) -> Calibration:
    """The calibration of predicted probabilities, (examples, classes)."""
    bins = reliability(probabilities.max(axis=1), probabilities.argmax(axis=1) == true)
    logs = np.log(np.maximum(probabilities.astype(np.float64), 1e-30))
    halves = np.arange(len(true)) % 2 == 0
    corrected = np.array(probabilities, np.float64)
    for part in (halves, ~halves):
        if part.any() and not part.all():
            corrected[part] = softened(logs[part], best_temperature(logs[~part], true[~part]))
    after = reliability(corrected.max(axis=1), corrected.argmax(axis=1) == true)
    return Calibration(bins, expected_error(bins), best_temperature(logs, true), expected_error(after))


def softened(logs: np.ndarray, temperature: float) -> np.ndarray:
    """Probabilities of logits that are divided by a temperature."""
    scaled = logs / temperature
    shares = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


def best_temperature(logs: np.ndarray, true: np.ndarray) -> float:
    """The temperature with the lowest log loss, by golden-section search: the loss has one minimum in 1/temperature."""
    low, high = 1.0 / HOTTEST, 1.0 / COLDEST
    ratio = (5**0.5 - 1) / 2
    while high - low > 1e-4 * high:
        a, b = high - ratio * (high - low), low + ratio * (high - low)
        if _log_loss(logs, true, a) <= _log_loss(logs, true, b):
            high = b
        else:
            low = a
    return float(2.0 / (low + high))


def _log_loss(logs: np.ndarray, true: np.ndarray, inverse: float) -> float:
    scaled = logs * inverse
    top = scaled.max(axis=1)
    total = top + np.log(np.exp(scaled - top[:, None]).sum(axis=1))
    return float((total - scaled[np.arange(len(true)), true]).mean())
