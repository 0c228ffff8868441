"""Out-of-fold predictions: a small network is trained on some of the images and predicts the others, until all are predicted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...ops.activation import relu
from ...ops.convert import asarray, parameter
from ...ops.loss import cross_entropy
from ...ops.statistics import softmax
from ...optim import adamw
from ...tensor import Tensor
from ...tracing.jit import jit

COMPONENTS, HIDDEN, BATCH = 96, 128, 128
RATE, DECAY = 3e-3, 1e-2
EPOCHS, FEWEST_STEPS, MOST_STEPS = 40, 300, 2000  # of each training


def principal_components(features: np.ndarray, most: int = COMPONENTS) -> np.ndarray:
    """The features along their directions of largest variance, in units of the largest; float32."""
    centred = features - features.mean(0)
    values, vectors = np.linalg.eigh(centred.T @ centred / max(1, len(features) - 1))
    chosen = np.argsort(values)[::-1][: min(most, int((values > 1e-9 * max(values.max(), 1e-12)).sum()) or 1)]
    found: np.ndarray = centred @ vectors[:, chosen] / np.sqrt(max(float(values.max()), 1e-12))
    return found.astype(np.float32)


def folds_of(labels: np.ndarray, groups: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    """The fold of each image: classes spread evenly, and images of one group (copies) in the same fold."""
    order = np.random.default_rng(seed).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    fold = np.empty(len(labels), np.int64)
    fold[order] = np.arange(len(labels)) % count
    _, first, member = np.unique(groups, return_index=True, return_inverse=True)
    return fold[first[member]]


def out_of_fold(
    features: np.ndarray,
    labels: np.ndarray,
    folds: np.ndarray,
    trusted: np.ndarray,
    progress: Callable[[int, int], None],
) -> np.ndarray:
    """Probabilities (images, classes) of each image by a network that was not trained on its fold.

    Only `trusted` images are trained on; all are asked about. The networks of all folds are trained side by side, as one
    with a leading axis of folds: that takes as many steps as one of them alone.
    """
    classes, count = int(labels.max()) + 1, int(folds.max()) + 1
    rows = [np.flatnonzero((folds != fold) & trusted) for fold in range(count)]
    probe = _Probe(count, features.shape[1], classes)
    rng = np.random.default_rng(0)
    steps = min(MOST_STEPS, max(FEWEST_STEPS, EPOCHS * len(rows[0]) // BATCH))
    for step in range(steps):
        chosen = np.stack([members[rng.integers(0, len(members), BATCH)] for members in rows])
        probe.step(asarray(features[chosen]), asarray(labels[chosen]))
        if step % 50 == 0:
            progress(step, steps)
    progress(steps, steps)
    found = np.empty((len(labels), classes), np.float32)
    for start in range(0, len(labels), BATCH):
        part = np.resize(features[start : start + BATCH], (BATCH, features.shape[1]))  # one size: one compilation
        end = min(start + BATCH, len(labels))
        answers = probe.predict(asarray(np.broadcast_to(part, (count, *part.shape)))).numpy()
        found[start:end] = answers[folds[start:end], np.arange(end - start)]
    return found


class _Probe:
    """A network with one hidden layer for each fold. The initial weights depend on nothing but the sizes."""

    def __init__(self, folds: int, size: int, classes: int) -> None:
        rng = np.random.default_rng(0)

        def layer(inputs: int, outputs: int) -> tuple[Tensor, Tensor]:
            weights = rng.normal(0, np.sqrt(2 / inputs), (1, inputs, outputs)).repeat(folds, 0)
            return parameter(weights.astype(np.float32)), parameter(np.zeros((folds, 1, outputs), np.float32))

        self.layers = layer(size, HIDDEN), layer(HIDDEN, classes)
        self.optimizer = adamw([tensor for one in self.layers for tensor in one], rate=RATE, weight_decay=DECAY)
        self.step = jit(self._step)
        self.predict = jit(lambda x: softmax(self._logits(x)))

    def _logits(self, x: Any) -> Any:
        (hidden, hidden_bias), (out, bias) = self.layers
        return relu(x @ hidden + hidden_bias) @ out + bias

    def _step(self, x: Any, y: Any) -> Any:
        logits = self._logits(x)
        loss = cross_entropy(logits.reshape((-1, logits.shape[-1])), y.reshape((-1,)))
        self.optimizer.minimize(loss * x.shape[0])  # the sum over folds: each learns as if it were alone
        return loss
