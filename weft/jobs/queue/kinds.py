"""The kinds of jobs: what the process of a job does. Their modules are imported when a job of that kind runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from ...errors import RunError
from ..events import Listener

TRAIN = "train"
DATASET = "dataset"
DATASET_VERSION = "dataset-version"
DOCTOR = "doctor"
EXPORT = "export"
EMBEDDING = "embedding"
EVALUATION = "evaluation"
PREDICT = "predict"
COMPRESS = "compress"
PROFILE = "profile"
ENERGY = "energy"
SWEEP = "sweep"
FOLDS = "cross-validation"
ENSEMBLE = "ensemble"
GROUPS = (SWEEP, FOLDS)  # compute nothing themselves: they add trainings to the queue and wait for them
Work = Callable[
    [Mapping[str, Any], Path | None, Listener], None
]  # settings, the run folder of an earlier attempt, listener

# Module and function of each kind. A function sends events to the listener, raises Terminated when it is asked to stop, and continues
# where an earlier attempt ended.
KINDS = {
    TRAIN: ("weft.jobs.training", "train_or_resume"),
    DATASET: ("weft.jobs.datasets.create", "create_dataset"),
    DATASET_VERSION: ("weft.jobs.datasets.versions", "make_version"),
    DOCTOR: ("weft.jobs.datasets.doctor", "examine_dataset"),
    EXPORT: ("weft.jobs.export_job", "export"),
    EMBEDDING: ("weft.jobs.embedding", "embed_run"),
    EVALUATION: ("weft.jobs.evaluations", "evaluation_job"),
    PREDICT: ("weft.jobs.prediction.predictions", "predict_job"),
    COMPRESS: ("weft.jobs.compression.compress", "compress_or_resume"),
    PROFILE: ("weft.jobs.profiles.job", "profile_job"),
    ENERGY: ("weft.jobs.profiles.energy_job", "energy_job"),
    SWEEP: ("weft.jobs.sweeps.sweep", "sweep_job"),
    FOLDS: ("weft.jobs.folds.jobs", "folds_job"),
    ENSEMBLE: ("weft.jobs.ensembles.job", "ensemble_job"),
}


def work_of(kind: str) -> Work:
    """The function that does the work of jobs of this kind."""
    if kind not in KINDS:
        raise RunError("jobs", f"a job of kind {kind!r} cannot be run: known are {', '.join(KINDS)}.")
    module, name = KINDS[kind]
    found: Work = getattr(import_module(module), name)
    return found
