"""Stored predictions of a run on held-out examples: predictions.npz, with pictures of some of them in thumbnails.npz.

predictions.npz   log_probabilities (examples, classes) in float16, true, classes, split, examples (a digest: equal for runs on the same split).
                  Large sets keep the largest probabilities of each example only: top_log_probabilities and top_classes.
thumbnails.npz    images (number, height, width, channels) in uint8, and index: the example that each shows
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..errors import RunError
from ..io.files import replace_file
from ..io.zip_archive import check_method
from ..records import dataclass

FILE, THUMBNAILS = "predictions.npz", "thumbnails.npz"
MAX_VALUES = 1 << 24  # probabilities that are stored whole: 32 MiB
TOP = 20  # probabilities of each example that are stored of larger sets
MAX_BYTES = 1 << 28  # unpacked; larger files are not read


@dataclass(frozen=True)
class Predictions:
    """Predicted probabilities of the examples of a split, and their true classes."""

    probabilities: np.ndarray  # (examples, classes), float32
    true: np.ndarray  # (examples,)
    classes: list[str]
    split: str = ""
    examples: str = ""  # a digest of the examples: two runs with the same one saw the same examples in the same order

    @property
    def predicted(self) -> np.ndarray:
        return np.asarray(self.probabilities.argmax(axis=1))

    @property
    def confidence(self) -> np.ndarray:
        """The probability of the predicted class."""
        return np.asarray(self.probabilities.max(axis=1))

    @property
    def right(self) -> np.ndarray:
        return np.asarray(self.predicted == self.true)

    def confusion(self) -> np.ndarray:
        """Counts, rows true and columns predicted."""
        counts = np.zeros((len(self.classes),) * 2, np.int64)
        np.add.at(counts, (self.true, self.predicted), 1)
        return counts


def digest(labels: np.ndarray, indices: np.ndarray | None, name: str) -> str:
    """A short text that tells the examples of one split from those of another."""
    found = hashlib.sha256(name.encode())
    for part in (labels, indices):
        found.update(b"-" if part is None else np.ascontiguousarray(part, np.int64).tobytes())
    return found.hexdigest()[:16]


def log_softmax(outputs: np.ndarray) -> np.ndarray:
    """Logarithms of the probabilities of logits, in float32."""
    shifted = np.asarray(outputs, np.float32) - outputs.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def write_predictions(
    folder: Path, logits: np.ndarray, true: np.ndarray, classes: Sequence[str], split: str, examples: str
) -> None:
    """Write predictions.npz. Logarithms are stored: float16 then keeps 0.9999 and 1e-6 apart from 1 and 0."""
    logs = log_softmax(logits)
    known = {"true": true.astype(np.int32), "classes": np.array(list(classes)), "split": np.array(split), "examples": np.array(examples)}  # fmt: skip
    if logs.size <= MAX_VALUES:
        known["log_probabilities"] = logs.astype(np.float16)
    else:
        top = np.argpartition(-logs, TOP, axis=1)[:, :TOP]
        known |= {"top_classes": top.astype(np.int32), "top_log_probabilities": np.take_along_axis(logs, top, 1).astype(np.float16)}  # fmt: skip
    write_npz(folder / FILE, **known)


def write_npz(path: Path, **arrays: np.ndarray) -> None:
    """Write arrays by name, compressed; the file is replaced as a whole."""
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **arrays)
    replace_file(path, [file.getvalue()])


def read_predictions(folder: Path) -> Predictions | None:
    """The predictions of a run; None if there are none."""
    path = folder / FILE
    if not path.exists():
        return None
    found = read_npz(path)
    try:
        classes = [str(name) for name in found["classes"].tolist()]
        logs = found["log_probabilities"] if "log_probabilities" in found else _widened(found, len(classes))
        shares = np.exp(logs.astype(np.float32))
        shares /= shares.sum(axis=1, keepdims=True)
        true = found["true"].astype(np.int64)
        if shares.shape != (len(true), len(classes)) or (
            len(true) and not 0 <= true.min() <= true.max() < len(classes)
        ):
            raise ValueError("its parts do not fit together")
        return Predictions(shares, true, classes, str(found["split"]), str(found["examples"]))
    except (KeyError, ValueError, IndexError) as error:
        raise RunError("report", f"{path} is damaged: {error}.") from None


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file. Damaged files, files with objects and those that unpack to more than MAX_BYTES are rejected."""
    try:
        with zipfile.ZipFile(path) as packed:
            for part in packed.infolist():
                check_method(part)
            if sum(part.file_size for part in packed.infolist()) > MAX_BYTES:
                raise ValueError(f"it unpacks to more than {MAX_BYTES >> 20} MiB")
        with np.load(path, allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise RunError("report", f"{path} cannot be read: {error}.") from None


def _widened(found: dict[str, np.ndarray], classes: int) -> np.ndarray:
    """The probabilities of all classes: what the stored ones leave is spread over the others."""
    top, logs = found["top_classes"], found["top_log_probabilities"].astype(np.float32)
    rest = np.maximum(1.0 - np.exp(logs).sum(axis=1, keepdims=True), 1e-7) / max(1, classes - top.shape[1])
    every = np.repeat(np.log(rest), classes, axis=1)
    np.put_along_axis(every, top.astype(np.int64), logs, 1)
    return np.asarray(every)
