"""The job that examines a dataset: settings are `folder`, and `features` (a run whose network describes images) and `again` if wanted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...data.doctor.examine import DoctorProgress, examine
from ...data.doctor.image_facts import Features, downscale
from ...data.doctor.report import DoctorReport
from ...errors import UserError
from ...nn.linear import Linear
from ...nn.module import Module, listening
from ...ops.convert import asarray
from ...tracing.jit import jit
from ..events import Listener, Recorder
from ..find import find_run
from ..job import job_of_run
from ..prediction.run_predictor import deployed_of
from ..stored import settings_of

BATCH = 64


def examine_dataset(settings: Mapping[str, Any], run: Path | None, listener: Listener) -> None:
    """Examine a dataset. An interrupted job continues after the last check in the stored report."""
    recorder = Recorder(listener)
    folder = Path(settings["folder"])

    def show(what: str, done: int, total: int) -> None:
        recorder.show("progress", what=what, done=done, total=total)

    report = examine_folder(folder, settings.get("features"), bool(settings.get("again")), show)
    for result in report.results:
        recorder.log(f"{result.title}: {result.text}")


def examine_folder(folder: Path, features: str | None, again: bool, progress: DoctorProgress) -> DoctorReport:
    """The report of a dataset, with features of the network of a run if one is named."""
    found = None if features is None else features_of_run(features)
    return examine(folder, features=found, features_name=features, again=again, progress=progress)


def features_of_run(name: str) -> Features:
    """What the network of a run computes before its last linear layer, as a function of stored images."""
    folder = find_run(name)
    job = job_of_run(settings_of("dataset doctor", folder), folder)
    shape = tuple(job.train.shape)
    if len(shape) != 3:
        raise UserError("dataset doctor", f"a network for images is required, got {folder.name}.")
    deployed = deployed_of(job, folder)

    @jit
    def inner(x: Any) -> Any:
        last = _LastLinear()
        with listening(last):
            y = deployed(x)
        found = y if last.inputs is None else last.inputs
        return found.reshape((found.shape[0], -1))

    return lambda images: _in_batches(inner, _fitted(images, shape), job.train.inputs(slice(0, 1)).dtype)


class _LastLinear:
    """Listens to a network, and keeps the input of its last linear layer."""

    def __init__(self) -> None:
        self.inputs: Any = None

    def begins(self, module: Module, args: tuple[Any, ...]) -> None:
        if isinstance(module, Linear):
            self.inputs = args[0]

    def ends(self, module: Module, result: Any) -> None:
        pass


def _fitted(images: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The images in the size that the network was trained on."""
    if images.shape[1] != shape[0]:
        raise UserError(
            "dataset doctor",
            f"a network for images with {images.shape[1]} channels is required, got one for {shape[0]}.",
        )
    if images.shape[1:] == shape:
        return images
    return np.asarray(np.rint(downscale(images.astype(np.float32), (shape[1], shape[2]))), np.uint8)


def _in_batches(network: Any, images: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """The network takes batches of one size, so that it is compiled once."""
    values = images if dtype == np.uint8 else (images / 255).astype(dtype)
    filled = np.zeros((-len(values) % BATCH + len(values), *values.shape[1:]), values.dtype)
    filled[: len(values)] = values
    parts = [network(asarray(filled[i : i + BATCH])).numpy() for i in range(0, len(filled), BATCH)]
    return np.asarray(np.concatenate(parts)[: len(images)], np.float32)
