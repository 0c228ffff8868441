"""Networks that are loaded to predict with. They stay in memory, the most recently used ones up to a limit."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Generator, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from ...data.images import Unreadable
from ...errors import UserError
from ...jobs.prediction.find import find_predictor
from ...jobs.prediction.predictions import TOP, outcome
from ...jobs.prediction.predictor import Predictor
from ...jobs.prediction.run_predictor import predictor_of_run
from ...jobs.run_weights import weight_names, weights_path
from ...ops.convert import asarray
from ...records import dataclass
from ...text.generate import stream
from ..decoding import guarded_pixels

LIMIT = 2 << 30  # bytes of parameters of all loaded networks
Key = tuple[Path, str]


@dataclass(frozen=True)
class ImagePrediction:
    """What a network makes of one image: the best classes with their probabilities, or numbers; or why the image cannot be read."""

    classes: Sequence[tuple[str, float]] = ()
    numbers: Sequence[float] = ()
    error: str = ""


@dataclass
class LoadedNetwork:
    """A network in memory with its size and the lock that lets one request at a time use it."""

    path: Path  # the folder of its run, or its file
    checkpoint: str
    predictor: Predictor
    nbytes: int
    stamp: int  # the time of its file
    used: float = field(default_factory=time.time)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def predict(self, images: Sequence[bytes | Path], top: int = TOP) -> tuple[list[ImagePrediction], float]:
        """Predictions for the content of image files, or for files; and the milliseconds that the network took."""
        pixels = [decoded(self.predictor, image) for image in images]
        good = [one for one in pixels if isinstance(one, np.ndarray)]
        with self.lock:
            self.used = time.time()
            start = time.perf_counter()
            values = iter(self._run(good))
            milliseconds = 1000 * (time.perf_counter() - start)
        return [
            ImagePrediction(error=one)
            if isinstance(one, str)
            else ImagePrediction(*outcome(next(values), self.predictor.classes, top))
            for one in pixels
        ], milliseconds

    def characters(self, prompt: str, length: int, **settings: Any) -> Generator[str]:
        """The text after a prompt, as `weft.text.stream` writes it. Others who use the network wait until it is closed."""
        text = self.predictor.text
        assert text is not None
        model, tokenizer = self.predictor.model, text.tokenizer
        found = stream(model, prompt, tokenizer, max_new_tokens=length, **settings)  # what is wrong is said now

        def alone() -> Generator[str]:
            with self.lock:
                self.used = time.time()
                yield from found

        return alone()

    def _run(self, images: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Image by image: the program for one image is compiled when the network is loaded, and is quick."""
        size = self.predictor.batch or 1
        found: list[np.ndarray] = []
        for start in range(0, len(images), size):
            part = [*images[start : start + size]]
            full = np.stack([*part, *[np.zeros_like(part[0])] * (size - len(part))])
            found += list(self.predictor.run(asarray(full)).numpy()[: len(part)])
        return found


def decoded(predictor: Predictor, image: bytes | Path) -> np.ndarray | str:
    """The pixels of an image as the network takes them, or why there are none."""
    try:
        content = image.read_bytes() if isinstance(image, Path) else image
        return guarded_pixels(content, predictor.shape, predictor.resize)
    except OSError as error:
        return f"it cannot be read: {error.strerror or error}."
    except Unreadable as reason:
        return f"an image file is required, got one that {reason}."


class LoadedNetworks:
    """The loaded networks by path and checkpoint, the most recently used last."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self._loaded: OrderedDict[Key, LoadedNetwork] = OrderedDict()
        self._loading: dict[Key, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, path: Path, checkpoint: str = "best", for_text: bool = False) -> LoadedNetwork:
        """The network of a run (its folder) or of a file, for images or for text, loaded now unless it is; new weights are loaded again.

        Two requests for one network load it once, and nobody else waits for that.
        """
        weights = weights_file(path, checkpoint)
        key = path, checkpoint if path.is_dir() else ""
        with self._lock:
            loading = self._loading.setdefault(key, threading.Lock())
        with loading:
            stamp = weights.stat().st_mtime_ns
            known = self._loaded.get(key)
            if known is None or known.stamp != stamp:
                known = _load(*key, stamp)
            _check_use(known.predictor, path.name, for_text)
            with self._lock:
                self._loaded[key] = known
                self._loaded.move_to_end(key)
                while len(self._loaded) > 1 and self.nbytes > self.limit:
                    self._loaded.popitem(last=False)
            return known

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in self._loaded.values())

    def all(self) -> list[LoadedNetwork]:
        """What is loaded, the most recently used first."""
        with self._lock:
            return list(reversed(self._loaded.values()))

    def release(self, path: Path, checkpoint: str | None = None) -> int:
        """Free the memory of a network, or of one of its checkpoints; how many were loaded."""
        with self._lock:
            gone = [key for key in self._loaded if key[0] == path and checkpoint in (None, key[1])]
            for key in gone:
                del self._loaded[key]
        return len(gone)


def weights_file(path: Path, checkpoint: str) -> Path:
    """The file that holds the weights of a run's checkpoint, or of an imported network."""
    if not path.is_dir():
        return path
    if not weight_names(path):
        raise UserError("studio", f"{path.name} has no weights yet: they are written after its first epoch.")
    return weights_path("studio", path, checkpoint)


def _load(path: Path, checkpoint: str, stamp: int) -> LoadedNetwork:
    if path.is_dir():
        predictor = predictor_of_run("studio", path, checkpoint)
    else:
        predictor = find_predictor("studio", str(path), trust_compiled=False)
    if predictor.reads_images:
        zeros = np.zeros((predictor.batch or 1, *predictor.shape), np.uint8)
        predictor.run(asarray(zeros))  # compiled now, not at the first image
    nbytes = sum(int(np.prod(t.shape)) * t.dtype.itemsize for t in predictor.model.named_tensors().values())
    return LoadedNetwork(path, checkpoint, predictor, nbytes, stamp)


def _check_use(predictor: Predictor, name: str, for_text: bool) -> None:
    """Refuse a network that is not for what it is asked."""
    if for_text and predictor.task != "text":
        raise UserError("studio", f"a network that continues text is required, got {name}, which takes images.")
    if not for_text and predictor.task == "text":
        raise UserError(
            "studio", f"a network for images is required, got {name}, which continues text: see Classify, Text."
        )
    if not for_text and not predictor.reads_images:
        shape = " x ".join(map(str, predictor.shape))
        raise UserError("studio", f"a network for images is required, got {name}, which takes {shape} numbers.")
