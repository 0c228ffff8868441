"""Previews of a training before it starts: its memory, and a training image as augmentation changes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..data.augment import augmentation
from ..data.open import data_path, is_image_source
from ..errors import UserError
from ..ops.convert import asarray
from ..random import seed as set_seed
from ..records import dataclass
from ..runtime.free_memory import free_bytes
from .device import on
from .job import Job, job_of
from .planned_memory import PlannedMemory, planned_job
from .weights import settings_for_weights

SHOWN = 4  # variants of the image


@dataclass(frozen=True)
class TrainingPreview:
    """The memory of a training, its examples, and variants of one of its images (count, height, width, channels) in uint8."""

    memory: PlannedMemory
    about: str
    images: np.ndarray | None


def preview_training(settings: Mapping[str, Any]) -> TrainingPreview:
    """Open the data of validated settings and plan a step; nothing is trained. Datasets that are still to be created are not created."""
    source = data_path(str(settings["data"]))
    if source is not None and is_image_source(source):
        raise UserError(
            "preview",
            f"a dataset is required, got the image files of {source.name}. It is created when the training starts.",
        )
    with on(settings["device"]) as device:
        free = free_bytes()  # before the plan takes some of it
        job = job_of("train", settings_for_weights({**settings, "device": device.name}))
        shape = " × ".join(map(str, job.train.shape))
        about = f"{len(job.train):,} train examples of {shape}"
        return TrainingPreview(planned_job(job, free), about, augmented_examples(job))


def augmented_examples(job: Job, count: int = SHOWN) -> np.ndarray | None:
    """One training image as it is seen in `count` epochs; None where nothing augments it."""
    if job.settings["augment"] is None or not job.is_image_source:
        return None
    set_seed(job.settings["seed"])
    flip = job.train.shape[0] == 3 if job.settings["flip"] is None else job.settings["flip"]
    change = augmentation(job.settings["augment"], job.size(), flip=flip)
    stored = job.train.inputs(np.full(count, len(job.train) // 2))
    values = change(job.resized(asarray(stored))).numpy()
    pixels: np.ndarray = np.rint(np.clip(values, 0.0, 1.0) * 255).astype(np.uint8)
    return pixels.transpose(0, 2, 3, 1)
