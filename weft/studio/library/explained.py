"""Networks of runs that are looked into: their layers, activations for an image, and explanations. What was computed last is kept."""

from __future__ import annotations

import hashlib
import tempfile
import threading
from collections import OrderedDict
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np

from ...data.dataset import Dataset
from ...data.images import Unreadable
from ...errors import UserError
from ...interpret import Explainer, LayerSurvey, survey
from ...interpret.explanation import ImageExplanation, explained
from ...interpret.statistics import BATCH
from ...jobs.job import held_out, job_of
from ...jobs.stored import settings_of
from .layer_facts import LayerDetails, LayerRow, WeightDetails, layer_details, layer_rows
from .loaded import LoadedNetwork, LoadedNetworks

KEPT_NETWORKS, KEPT_IMAGES, KEPT_UPLOADS = 4, 4, 32
SAMPLE = 64  # held-out images that tell which channels are dead, and which images excite a channel
UPLOAD = "upload"
K = TypeVar("K")
V = TypeVar("V")


class RunImages:
    """The images that the networks of one run are looked at with: those of its held-out split, and those that were sent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._uploads: OrderedDict[str, np.ndarray] = OrderedDict()
        self._lock = threading.Lock()

    @cached_property
    def held_out(self) -> tuple[str, Dataset]:
        """The held-out split of the run's data: its name and its examples."""
        job = job_of("studio", settings_of("studio", self.folder))
        return held_out(job.splits, None)

    def keep(self, pixels: np.ndarray) -> str:
        """Keep an image; its name."""
        name = f"{UPLOAD}-{hashlib.sha256(pixels.tobytes()).hexdigest()[:16]}"
        with self._lock:
            _keep(self._uploads, name, pixels, KEPT_UPLOADS)
        return name

    def image(self, name: str) -> np.ndarray:
        """The pixels of an image by its name."""
        split, _, number = name.rpartition("-")
        if split == UPLOAD:
            with self._lock:
                if name in self._uploads:
                    return self._uploads[name]
            raise UserError("studio", "the image is not kept any more. Choose it again.")
        known, examples = self.held_out
        if split != known or not number.isdigit() or int(number) >= len(examples):
            raise UserError(
                "studio", f"an image from {known}-0 to {known}-{len(examples) - 1} is required, got {name!r}."
            )
        return np.asarray(examples.inputs([int(number)])[0])


class ExplainedNetwork:
    """A loaded network of a run. Images are named: test-12 is one of the held-out split, upload-KEY one that was sent."""

    def __init__(self, images: RunImages, loaded: LoadedNetwork) -> None:
        self.images, self.loaded, self.predictor = images, loaded, loaded.predictor
        self.folder = images.folder
        self.explainer = Explainer(self.predictor.model, self.predictor.prepare)
        self._lock = threading.RLock()  # what is kept
        self._activations: OrderedDict[str, dict[str, np.ndarray]] = OrderedDict()
        self._weights: dict[str, WeightDetails] = {}
        self._survey: LayerSurvey | None = None
        self._surveying = threading.Lock()

    # --- images -------------------------------------------------------------------------------------------------------------

    @property
    def held_out(self) -> tuple[str, Dataset]:
        """The held-out split of the run's data: its name and its examples."""
        return self.images.held_out

    def upload(self, content: bytes) -> str:
        """Keep an image that was sent; its name."""
        with tempfile.NamedTemporaryFile(suffix=".image") as file:
            file.write(content)
            file.flush()
            return self.add_file(Path(file.name))

    def add_file(self, path: Path) -> str:
        """Keep the pixels of an image file; its name."""
        try:
            return self.images.keep(self.predictor.image(str(path)))
        except Unreadable as reason:
            raise UserError("studio", f"an image file is required, got one that {reason}.") from None

    def image(self, name: str) -> np.ndarray:
        """The pixels of an image by its name."""
        return self.images.image(name)

    def true_classes(self, name: str) -> list[int]:
        """The classes of a held-out image: one, or several; none where they are not known."""
        split, _, number = name.rpartition("-")
        if split == UPLOAD or not self.predictor.classes:
            return []
        label = self.held_out[1].labels[int(number)]
        return [int(i) for i in np.flatnonzero(label)] if self.predictor.is_multi_label else [int(label)]

    # --- what it computes ---------------------------------------------------------------------------------------------------

    @cached_property
    def layers(self) -> list[LayerRow]:
        """All layers, in the order in which they are called."""
        with self.loaded.lock:
            return layer_rows(self.explainer, self.predictor.shape)

    def layer(self, name: str) -> LayerRow:
        """A layer by its path."""
        for row in self.layers:
            if row.name == name:
                return row
        raise UserError("studio", f"the path of a layer is required, got {name!r}.")

    def layer_has_parts(self, name: str) -> bool:
        """Whether a layer is made of others; the network itself is."""
        return not name or self.layer(name).has_parts

    @property
    def sample_count(self) -> int:
        """The number of images that `survey` looks at."""
        count = min(SAMPLE, len(self.held_out[1]))
        return count - count % min(BATCH, count)

    def activations(self, image: str) -> dict[str, np.ndarray]:
        """The outputs of all layers for one image, without the axis of the batch."""
        with self._lock:
            if image in self._activations:
                self._activations.move_to_end(image)
                return self._activations[image]
        pixels = self.image(image)
        with self.loaded.lock:
            found = self.explainer.activations(pixels[None])
            made = {name: value.numpy()[0].astype(np.float32) for name, value in found.items()}
        with self._lock:
            _keep(self._activations, image, made, KEPT_IMAGES)
        return made

    def outputs(self, image: str, layer: str) -> np.ndarray:
        """The output of one layer for one image."""
        return self.activations(image)[self.layer(layer).name]

    def weight(self, layer: str) -> np.ndarray | None:
        """The weight of a layer."""
        found = getattr(self.layer(layer).module, "weight", None)
        return None if found is None else np.asarray(found.numpy(), np.float32)

    def details(self, image: str, layer: str) -> LayerDetails:
        """The statistics of a layer for an image; those of its weight are kept."""
        with self._lock:
            known = self._weights.get(layer)
        weight = None if known is not None else self.weight(layer)
        if known is None and weight is not None:
            known = self._weights[layer] = WeightDetails(weight)
        return layer_details(self.outputs(image, layer), known)

    def scores(self, image: str) -> np.ndarray:
        """The outputs of the network for one image."""
        return np.asarray(self.activations(image)[""]).reshape(-1)

    def survey(self) -> LayerSurvey:
        """Statistics and responses of all layers for a sample of held-out images; computed once."""
        with self._surveying:
            if self._survey is None:
                self._survey = survey(self.explainer, self.held_out[1], SAMPLE)
            return self._survey

    def exciting(self, layer: str, channel: int, count: int = 8) -> list[tuple[int, float]]:
        """The held-out images of a sample for which a channel is largest on average, and its means there."""
        return self.survey().responses[self.layer(layer).name].strongest(channel, count)

    def explain(self, image: str, target: int | None = None) -> ImageExplanation:
        """Why it predicts what it does for an image."""
        return explained(self.explainer, self.image(image), target, self.predictor.is_multi_label)


class ExplainedNetworks:
    """The networks that were looked into last. The checkpoints of a run share its images, so that one can be seen with each."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[Path, str], ExplainedNetwork] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, networks: LoadedNetworks, folder: Path, checkpoint: str = "best") -> ExplainedNetwork:
        """The network of a run with the weights of a checkpoint; a new one, without results, if its weights were loaded again."""
        loaded = networks.get(folder, checkpoint)
        with self._lock:
            known = self._known.get((folder, checkpoint))
            if known is None or known.loaded is not loaded:
                known = ExplainedNetwork(self._images(folder), loaded)
            _keep(self._known, (folder, checkpoint), known, KEPT_NETWORKS)
            self._release(networks)
            return known

    def all(self) -> list[ExplainedNetwork]:
        """What is kept, the most recently used last."""
        with self._lock:
            return list(self._known.values())

    def _images(self, folder: Path) -> RunImages:
        """The images of a run: those of another checkpoint of it, if one is kept."""
        return next((one.images for (of, _), one in self._known.items() if of == folder), None) or RunImages(folder)

    def _release(self, networks: LoadedNetworks) -> None:
        """Let go of networks that had to make room for others: kept here, they would stay in memory beyond the limit."""
        there = {id(one) for one in networks.all()}
        for key in [key for key, one in self._known.items() if id(one.loaded) not in there]:
            del self._known[key]


def _keep(kept: OrderedDict[K, V], key: K, value: V, most: int) -> None:
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > most:
        kept.popitem(last=False)
