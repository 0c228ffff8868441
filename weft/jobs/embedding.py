"""The map of a run's examples in its embedding: computed as a job or by `weft interpret RUN`, kept in the run folder.

interpret/embedding.npz                 by the best weights
interpret/embedding-epoch-0007.npz      by those of another checkpoint
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from ..data.dataset import Dataset
from ..data.label_kinds import kind_of
from ..errors import RunError, UserError
from ..interpret import Embedded, Explainer, embedding, pca, tsne
from ..interpret.pictures import as_bytes, resized
from ..io.files import replace_file
from ..records import dataclass
from .device import on
from .events import Listener, Recorder, ignore_events
from .job import held_out, job_of
from .prediction.run_predictor import predictor_of_run
from .run_weights import map_file, weights_path
from .stored import settings_of

EXAMPLES = 2000  # points of the map, and training examples that are searched for similar ones
PERPLEXITY = 30.0
THUMB = 64  # pixels of the longer side
STEPS = 750


@dataclass(frozen=True)
class EmbeddingMap:
    """Held-out examples of a run as points, and training examples to find similar ones among.

    Labels and predictions are class indices, or numbers in a regression. An example with several classes is labelled by the
    one that is predicted, if that is right, else by its first. `thumbs` are (n, height, width, channels) bytes.
    """

    pca: np.ndarray
    tsne: np.ndarray
    labels: np.ndarray
    predicted: np.ndarray
    probability: np.ndarray
    indices: np.ndarray
    vectors: np.ndarray
    thumbs: np.ndarray
    train_vectors: np.ndarray
    train_labels: np.ndarray
    train_indices: np.ndarray
    train_thumbs: np.ndarray
    facts: Mapping[
        str, Any
    ]  # classes, split, checkpoint (best, last or that of an epoch), made_of (time of the weights)

    @property
    def classes(self) -> list[str]:
        return list(self.facts["classes"])

    def is_current(self, folder: Path) -> bool:
        """Whether the weights that it was made by are still those of the run: the embeddings of others cannot be compared."""
        try:
            return bool(_time_of_weights(folder, self.facts["checkpoint"]) == self.facts.get("made_of"))
        except OSError:
            return False


def embed_run(settings: Mapping[str, Any], run: Path | None, listener: Listener = ignore_events) -> None:
    """The work of a job: settings are {run: folder, checkpoint, split, examples, device}."""
    make_embedding(
        Path(settings["run"]), settings.get("checkpoint") or "best", settings.get("split"), settings.get("examples") or EXAMPLES,
        settings.get("device"), listener,
    )  # fmt: skip


def make_embedding(
    folder: Path, checkpoint: str = "best", split: str | None = None, examples: int = EXAMPLES, device: str | None = None,
    listener: Listener = ignore_events,
) -> EmbeddingMap:  # fmt: skip
    """Embed examples of a run, make maps of them, and write both into the run folder."""
    recorder = Recorder(listener)
    with on(device):
        recorder.show("activity", text="reading the data")
        made_of = _time_of_weights(folder, checkpoint)  # before they are read
        predictor = predictor_of_run("interpret", folder, checkpoint)
        if not predictor.reads_images:
            raise UserError("interpret", f"a network for images is required, got {folder.name}.")
        job = job_of("interpret", settings_of("interpret", folder), recorder)
        name, held = held_out(job.splits, split)
        explainer = Explainer(predictor.model, predictor.prepare)

        def embedded(what: str, data: Dataset) -> Embedded:
            return embedding(
                explainer, data, examples, progress=lambda done, total: recorder.show("progress", what=what, done=done, total=total)
            )  # fmt: skip

        points = embedded(f"embedding {name} images", held)
        known = embedded("embedding training images", job.train)
        flat, curved = _maps(points.vectors, recorder)
        made = EmbeddingMap(
            flat, curved, _labels(held.labels[points.indices], points.scores), *_predictions(points, bool(held.classes), predictor.is_multi_label), points.indices,
            points.vectors.astype(np.float16), thumbs_of(held, points.indices), known.vectors.astype(np.float16),
            _labels(job.train.labels[known.indices], known.scores), known.indices, thumbs_of(job.train, known.indices),
            {
                "classes": list(held.classes), "split": name, "checkpoint": checkpoint,
                "made_of": made_of,
            },
        )  # fmt: skip
    write_embedding(folder, made)
    recorder.log(f"{len(points.indices):,} {name} images are embedded: {folder / map_file(checkpoint)}")
    return made


def _time_of_weights(folder: Path, checkpoint: str) -> float:
    return weights_path("interpret", folder, checkpoint).stat().st_mtime


def _maps(vectors: np.ndarray, recorder: Recorder) -> tuple[np.ndarray, np.ndarray]:
    recorder.show("activity", text="making the maps")
    flat = pca(vectors) if len(vectors) > 1 else np.zeros((1, 2))
    perplexity = min(PERPLEXITY, (len(vectors) - 1) / 3.0 - 1e-6)
    if perplexity < 1.0:
        return flat, flat  # a handful of points need no other map
    curved = tsne(
        pca(vectors, min(50, *vectors.shape)), perplexity=perplexity, steps=STEPS,
        progress=lambda done, total: recorder.show("progress", what="t-SNE", done=done, total=total),
    )  # fmt: skip
    return flat, curved


def _labels(labels: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """One class of each example, where examples have several."""
    if kind_of(labels[:1]) != "classes":
        return labels
    predicted = scores.argmax(axis=1)
    right = labels[np.arange(len(labels)), predicted].astype(bool)
    found: np.ndarray = np.where(right, predicted, labels.argmax(axis=1))
    return found


def _predictions(points: Embedded, classifies: bool, is_multi_label: bool) -> tuple[np.ndarray, np.ndarray]:
    if not classifies:
        return points.scores[:, 0], np.full(len(points.scores), np.nan, np.float32)
    if is_multi_label:
        return points.scores.argmax(axis=1), (1.0 / (1.0 + np.exp(-points.scores.max(axis=1)))).astype(np.float32)
    return points.scores.argmax(axis=1), points.probabilities.max(axis=1).astype(np.float32)


def thumbs_of(data: Dataset, indices: np.ndarray) -> np.ndarray:
    """Small pictures of examples."""
    height, width = data.shape[1:]
    scale = min(1.0, THUMB / max(height, width))
    size = max(1, round(height * scale)), max(1, round(width * scale))
    found = []
    for start in range(0, len(indices), 256):
        images = data.inputs(indices[start : start + 256])
        if scale < 1.0:
            bytes_ = images.dtype == np.uint8
            images = resized(images.astype(np.float32) / (255.0 if bytes_ else 1.0), size)
        found.append(images if images.dtype == np.uint8 else as_bytes(images))
    return np.concatenate(found).transpose(0, 2, 3, 1)


def write_embedding(folder: Path, made: EmbeddingMap) -> None:
    """Write a map into the run folder."""
    arrays = {field.name: getattr(made, field.name) for field in fields(made) if field.name != "facts"}
    file = io.BytesIO()
    np.savez_compressed(file, facts=np.array(json.dumps(dict(made.facts))), **arrays)
    path = folder / map_file(made.facts["checkpoint"])
    path.parent.mkdir(exist_ok=True)
    replace_file(path, [file.getvalue()], "interpret")


def read_embedding(folder: Path, checkpoint: str = "best") -> EmbeddingMap | None:
    """The map in a run folder; None if it was not made yet."""
    path = folder / map_file(checkpoint)
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as stored:
            arrays = {field.name: stored[field.name] for field in fields(EmbeddingMap) if field.name != "facts"}
            facts = json.loads(str(stored["facts"]))
            if not {"classes", "split", "checkpoint"} <= facts.keys():
                raise ValueError("facts are missing")
            return EmbeddingMap(**arrays, facts=facts)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, EOFError, BadZipFile, zlib.error) as error:
        raise RunError("interpret", f"{path} is damaged: {error}. Delete it, and make the map again.") from None
