"""Networks that are loaded to predict with. They stay in memory, the most recently used ones up to a limit."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...data.images import Unreadable
from ...errors import UserError
from ...jobs.predictor import Predictor, predictor_of_run
from ...ops.convert import asarray
from ..decoding import guarded_pixels, shared_decoder

LIMIT = 2 << 30  # bytes of parameters of all loaded networks
TOP = 5


@dataclass(frozen=True)
class ImagePrediction:
    """What a network makes of one image: the best classes with their probabilities, or numbers; the time it took."""

    classes: Sequence[tuple[str, float]]
    numbers: Sequence[float]
    milliseconds: float


@dataclass
class LoadedNetwork:
    """A network in memory with its size and the lock that lets one request at a time use it."""

    predictor: Predictor
    nbytes: int
    lock: threading.Lock

    def predict(self, image: bytes, top: int = TOP) -> ImagePrediction:
        """Predict for the content of an image file."""
        try:
            pixels = guarded_pixels(image, self.predictor.shape, self.predictor.resize)
        except Unreadable as reason:
            raise UserError("studio", f"an image file is required, got one that {reason}.") from None
        with self.lock:
            start = time.perf_counter()
            values = self.predictor.run(asarray(pixels[None])).numpy()[0]
            milliseconds = 1000 * (time.perf_counter() - start)
        classes = self.predictor.classes
        best = [int(i) for i in np.argsort(-values, kind="stable")[:top]] if classes else []
        return ImagePrediction(
            [(classes[i], float(values[i])) for i in best],
            [] if classes else [float(v) for v in values.ravel()],
            milliseconds,
        )


class LoadedNetworks:
    """The networks of runs by folder."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self._loaded: OrderedDict[tuple[Path, str], tuple[int, LoadedNetwork]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, folder: Path, checkpoint: str = "best") -> LoadedNetwork:
        """The network of a run with its best or last weights, loaded now unless it is; new weights are loaded again."""
        weights, key = folder / "weights" / f"{checkpoint}.safetensors", (folder, checkpoint)
        if not weights.exists():
            raise UserError("studio", f"{folder.name} has no weights yet: they are written after its first epoch.")
        stamp = weights.stat().st_mtime_ns
        with self._lock:
            known = self._loaded.get(key)
            if known is None or known[0] != stamp:
                known = stamp, _load(folder, checkpoint)
            self._loaded[key] = known
            self._loaded.move_to_end(key)
            while len(self._loaded) > 1 and sum(one.nbytes for _, one in self._loaded.values()) > self.limit:
                self._loaded.popitem(last=False)
            return known[1]


def _load(folder: Path, checkpoint: str) -> LoadedNetwork:
    predictor = predictor_of_run("studio", folder, checkpoint)
    if not predictor.reads_images:
        raise UserError("studio", f"a network for images is required, got {folder.name}.")
    shared_decoder().start()
    predictor.run(asarray(np.zeros((1, *predictor.shape), np.uint8)))  # compiled now, not at the first image
    nbytes = sum(int(np.prod(t.shape)) * t.dtype.itemsize for t in predictor.model.named_tensors().values())
    return LoadedNetwork(predictor, nbytes, threading.Lock())
