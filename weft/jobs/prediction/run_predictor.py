"""Predicting with the network of a run: with the weights of a checkpoint, and the preprocessing of its training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ... import data
from ...data.label_kinds import kind_of
from ...data.resize import Resize
from ...nn.module import Module
from ...ops.elementwise import sigmoid
from ...ops.statistics import softmax
from ...tracing.jit import jit
from ...train.task import prediction_of
from ..job import Job, job_of_run
from ..stored import settings_of
from .predictor import Predictor, Task


class Deployed(Module):
    """A trained network with its preprocessing and, in evaluation mode, the softmax of a classifier; sigmoids where an example can have
    several classes.

    A recurrent network for text is given its state and gives the next one.
    """

    def __init__(self, network: Module, prepare: Module, classifies: bool, several: bool = False) -> None:
        self.network, self.prepare, self.classifies, self.several = network, prepare, classifies, several

    def forward(self, x: Any, state: Any = None) -> Any:
        if state is not None:
            return self.network(self.prepare(x), state)
        y = prediction_of(self.network(self.prepare(x)))
        if not self.classifies or self.training:
            return y
        return sigmoid(y) if self.several else softmax(y)


def predictor_of_run(verb: str, folder: Path, checkpoint: str = "best") -> Predictor:
    """The network of a run with the weights of a checkpoint."""
    job = job_of_run(settings_of(verb, folder), folder)
    deployed = deployed_of(job, folder, checkpoint)
    text = job.train if isinstance(job.train, data.Text) else None
    return Predictor(
        task_of(job), tuple(job.train.shape), resize_of(job), job.train.classes if text is None else (), jit(deployed),
        deployed.network, text, prepare=deployed.prepare, is_multi_label=is_multi_label(job),
    )  # fmt: skip


def deployed_of(job: Job, folder: Path, checkpoint: str = "best") -> Deployed:
    """The network of a run with the weights of a checkpoint and its preprocessing."""
    model, _ = job.trained(folder, checkpoint)
    deployed = Deployed(model, job.prepare(), task_of(job) == "classify", is_multi_label(job))
    return deployed.eval()


def is_multi_label(job: Job) -> bool:
    """Whether an example may have several classes."""
    return not isinstance(job.train, data.Text) and kind_of(job.train.labels[:1]) == "classes"


def task_of(job: Job) -> Task:
    return "text" if isinstance(job.train, data.Text) else "classify" if job.train.classes else "regress"


def resize_of(job: Job) -> Resize:
    way: Resize = job.settings["resize"] or "squash"
    return way
