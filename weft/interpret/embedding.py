"""Embeddings: what a network knows about examples before its last layer, and which examples are alike by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..data.dataset import Dataset
from ..data.texts import Text
from ..errors import UserError
from ..nn.module import Module
from ..records import dataclass
from .explainer import Explainer

BATCH = 128


@dataclass(frozen=True)
class Embedded:
    """Examples of a dataset: a vector and a row of scores each, and their places in the dataset."""

    vectors: np.ndarray
    scores: np.ndarray
    indices: np.ndarray

    @property
    def probabilities(self) -> np.ndarray:
        """The softmax of the scores."""
        shifted = np.exp(self.scores - self.scores.max(axis=1, keepdims=True))
        return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))


def embedding(
    model: Module | Explainer,
    data: Any,
    examples: int | None = None,
    batch: int = BATCH,
    progress: Callable[[int, int], None] | None = None,
) -> Embedded:
    """The inputs of the last layer for examples of a dataset or array: all, or this many, evenly spaced."""
    if isinstance(data, Text):
        raise UserError(
            "embedding", "a dataset of examples with a row of scores each, such as images, is required, got a text."
        )
    if not len(data):
        raise UserError("embedding", "examples are required, got none.")
    explainer = model if isinstance(model, Explainer) else Explainer(model)
    wanted = len(data) if examples is None else min(examples, len(data))
    indices = np.unique(np.linspace(0, len(data) - 1, wanted).astype(np.int64))
    batch = min(batch, len(indices))
    vectors, scores = [], []
    for start in range(0, len(indices), batch):
        part = indices[start : start + batch]
        # All batches have one size, so that one program serves them all.
        padded = np.concatenate([part, np.repeat(part[-1:], batch - len(part))])
        found = explainer.embed(data.inputs(padded) if isinstance(data, Dataset) else np.asarray(data)[padded])
        vectors.append(found[0][: len(part)])
        scores.append(found[1][: len(part)])
        if progress is not None:
            progress(start + len(part), len(indices))
    return Embedded(np.concatenate(vectors), np.concatenate(scores), indices)


def nearest(vectors: Any, queries: Any, count: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """The rows of `vectors` most similar to each query, and their cosine similarities, the most similar first.

    >>> nearest([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [[2.0, 0.1]], 2)[0].tolist()
    [[0, 2]]
    """
    known, asked = np.asarray(vectors, np.float32), np.asarray(queries, np.float32)
    if known.ndim != 2 or asked.ndim != 2 or known.shape[1] != asked.shape[1]:
        raise UserError(
            "nearest", f"vectors and queries of one length are required, got shapes {known.shape} and {asked.shape}."
        )
    similarity = _unit(asked) @ _unit(known).T
    order = np.argsort(-similarity, axis=1, kind="stable")[:, :count]
    return order, np.take_along_axis(similarity, order, axis=1)


def _unit(vectors: np.ndarray) -> np.ndarray:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12))
