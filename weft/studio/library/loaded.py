"""Networks that are loaded to predict with. They stay in memory, the most recently used ones up to a limit."""

from __future__ import annotations

import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...data.images import Unreadable
from ...errors import UserError
from ...jobs.predictor import Predictor, find_predictor, predictor_of_run
from ...ops.convert import asarray

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
        with tempfile.NamedTemporaryFile(suffix=".image") as file:
            file.write(image)
            file.flush()
            try:
                pixels = self.predictor.image(file.name)
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
        self._loaded: OrderedDict[Path, tuple[int, LoadedNetwork]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, folder: Path) -> LoadedNetwork:
        """The network of a run with its best weights, loaded now unless it is; new weights are loaded again."""
        weights = folder / "weights" / "best.safetensors"
        if not weights.exists():
            raise UserError("studio", f"{folder.name} has no weights yet: they are written after its first epoch.")
        return self._get(folder, weights.stat().st_mtime_ns)

    def get_file(self, file: Path) -> LoadedNetwork:
        """The network of a saved program or an ONNX model."""
        return self._get(file, file.stat().st_mtime_ns)

    def _get(self, folder: Path, stamp: int) -> LoadedNetwork:
        with self._lock:
            known = self._loaded.get(folder)
            if known is None or known[0] != stamp:
                known = stamp, _load(folder)
            self._loaded[folder] = known
            self._loaded.move_to_end(folder)
            while len(self._loaded) > 1 and sum(one.nbytes for _, one in self._loaded.values()) > self.limit:
                self._loaded.popitem(last=False)
            return known[1]


def _load(folder: Path) -> LoadedNetwork:
    predictor = (
        find_predictor("studio", str(folder), trust_compiled=False)
        if folder.is_file()
        else predictor_of_run("studio", folder)
    )
    if not predictor.reads_images:
        raise UserError("studio", f"a network for images is required, got {folder.name}.")
    predictor.run(asarray(np.zeros((1, *predictor.shape), np.uint8)))  # compiled now, not at the first image
    nbytes = sum(int(np.prod(t.shape)) * t.dtype.itemsize for t in predictor.model.named_tensors().values())
    return LoadedNetwork(predictor, nbytes, threading.Lock())
