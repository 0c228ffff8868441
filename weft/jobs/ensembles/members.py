"""The members of an ensemble: finished runs that fit together, and the examples that none of them was trained on."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ... import data, nn
from ...compiler.host import usable_cores
from ...data.label_kinds import LabelKind, kind_of
from ...errors import UserError
from ...knobs import knobs
from ...locks import writer_of
from ...records import dataclass
from ...report.text_format import listed
from ...train.folder import RunFolder
from ...train.results import evaluated
from ..device import on
from ..find import find_run
from ..folds.cross_validation import find_folds, fold_runs
from ..job import ENSEMBLE, Job, job_of, job_of_run
from ..prediction.run_predictor import resize_of
from ..stored import settings_of

COMPARED = 8  # examples whose inputs are compared to tell two datasets apart


@dataclass(frozen=True)
class EnsembleMember:
    """A run with its settings and its job; the data is not opened."""

    folder: Path
    settings: Mapping[str, Any]
    job: Job

    @property
    def kind(self) -> LabelKind:
        return kind_of(self.job.train.labels[:1])

    def network(self) -> nn.Module:
        """From stored inputs to logits or numbers, without augmentation."""
        model, _ = self.job.trained(self.folder)
        return nn.Sequential(self.job.prepare(), model).eval()


def find_members(names: Sequence[str], runs: str) -> list[EnsembleMember]:
    """The runs of these names, and those of the folds of cross-validations; an error unless they are finished and fit together."""
    folders: list[Path] = []
    for name in names:
        folds = find_folds(name, runs)
        folders += [find_run(name, runs)] if folds is None else fold_runs(folds)
    twice = [folder.name for i, folder in enumerate(folders) if folder.resolve() in {f.resolve() for f in folders[:i]}]
    if len(folders) < 2 or twice:
        got = f"{twice[0]} twice" if twice else f"{len(folders)}"
        raise UserError("weft ensemble", f"two or more different runs are required, got {got}: weft ensemble RUN RUN.")
    members = [_member(folder) for folder in folders]
    for member in members[1:]:
        _check_alike(members[0], member)
    return members


def _member(folder: Path) -> EnsembleMember:
    settings = settings_of("ensemble", folder)
    if writer_of(folder) is not None or not _is_finished(folder):
        raise UserError("weft ensemble", f"runs that are finished are required, got {folder}. Wait for it, or continue it: weft resume {folder}")  # fmt: skip
    job = job_of_run({**settings, "augment": None}, folder)
    if isinstance(job.train, data.Text):
        raise UserError("weft ensemble", f"networks of images or numbers are required, got {folder}, one of text.")
    return EnsembleMember(folder, settings, job)


def _is_finished(folder: Path) -> bool:
    """A run that has ended is measured on held-out examples."""
    known = RunFolder(folder).known_summary()
    measured = any(split in known for split in ("test", "validation", "train"))
    return measured and (folder / "weights" / "best.safetensors").exists()


def _check_alike(first: EnsembleMember, other: EnsembleMember) -> None:
    """Members may differ in their networks and preprocessing only: inputs and outputs are the same."""
    ones, others = first.job.train, other.job.train
    if first.kind != other.kind or ones.classes != others.classes or ones.labels.shape[1:] != others.labels.shape[1:]:
        raise UserError(
            "weft ensemble",
            f"runs with the same labels are required: {first.folder.name} has {_labels(ones)}, and {other.folder.name} {_labels(others)}.",
        )
    if ones.shape != others.shape or ones.inputs([0]).dtype != others.inputs([0]).dtype:
        shapes = [" x ".join(map(str, one.shape)) for one in (ones, others)]
        raise UserError(
            "weft ensemble",
            f"runs with the same stored inputs are required: those of {first.folder.name} are {shapes[0]}, those of {other.folder.name} {shapes[1]}. "
            "Train them on one dataset (weft dataset create): networks of other sizes resize its images themselves.",
        )
    if resize_of(first.job) != resize_of(other.job):
        raise UserError(
            "weft ensemble",
            f"runs that resize image files alike are required, got {resize_of(first.job)} and {resize_of(other.job)}.",
        )


def _labels(dataset: data.Dataset) -> str:
    return listed(dataset.classes) if dataset.classes else f"numbers of shape {dataset.labels.shape[1:]}"


# --- examples that no member was trained on -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class UnseenExamples:
    """Examples by the settings of a run: another process opens them again."""

    settings: Mapping[str, Any]
    split: str  # where they are stored
    indices: np.ndarray | None = None  # which of them

    @property
    def name(self) -> str:
        return "validation" if self.indices is not None else self.split

    def open(self) -> data.Dataset:
        found = getattr(job_of("ensemble", self.settings).opened, self.split)
        return found if self.indices is None else data.Subset(found, self.indices)


def unseen_examples(members: Sequence[EnsembleMember]) -> dict[str, UnseenExamples]:
    """The test and the validation examples that no member was trained on, as far as there are any.

    Validation examples that were taken from the training split are those of all members if they have one seed. Runs with different seeds, and
    the folds of a cross-validation, each take others, which the rest was trained on.
    """
    jobs = [job_of("ensemble", {**member.settings, "weights": None}) for member in members]
    first, settings = jobs[0].opened, members[0].settings
    if not all(_is_same(first.train, job.opened.train) for job in jobs):
        return {}
    found = {}
    if first.test is not None and all(_is_same(first.test, job.opened.test) for job in jobs):
        found["test"] = UnseenExamples(settings, "test")
    if first.validation is not None and all(_is_same(first.validation, job.opened.validation) for job in jobs):
        found["validation"] = UnseenExamples(settings, "validation")
    elif first.validation is None and all(_held_out(job) == _held_out(jobs[0]) for job in jobs) and _held_out(jobs[0]):
        found["validation"] = UnseenExamples(settings, "train", np.array(_held_out(jobs[0])))
    return found


def _held_out(job: Job) -> list[int]:
    """The training examples that a run took for validation."""
    return job.splits.validation.indices.tolist() if isinstance(job.splits.validation, data.Subset) else []


def _is_same(one: data.Dataset, other: data.Dataset | None) -> bool:
    if other is None or one.shape != other.shape or not np.array_equal(one.labels, other.labels):
        return False
    some = np.unique(np.linspace(0, len(one) - 1, COMPARED).astype(int))
    return bool(np.array_equal(one.inputs(some), other.inputs(some)))


def seen_note(folder: Path, split: str) -> list[str]:
    """A warning about a split of an ensemble that members were trained on."""
    if not (folder / ENSEMBLE).exists():
        return []
    known = json.loads((folder / ENSEMBLE).read_text(encoding="utf-8"))
    if all(split in member for member in known["members"]):
        return []
    return [
        f"warning: members of this ensemble were trained on examples of the {split} split, so these numbers are too good"
    ]


# --- what they reach ------------------------------------------------------------------------------------------------------------


def member_scores(
    members: Sequence[EnsembleMember], examples: UnseenExamples, device: str | None, jobs: int
) -> list[dict[str, float]]:
    """Loss and metrics of each member, `jobs` of them at the same time in processes of their own."""
    score = partial(_score, examples=examples, device=device)
    folders = [member.folder for member in members]
    if jobs == 1:
        return list(map(score, folders))
    threads = max(1, usable_cores() // jobs)
    with ProcessPoolExecutor(
        min(jobs, len(members)), multiprocessing.get_context("spawn"), _use_threads, (threads,)
    ) as pool:
        return list(pool.map(score, folders))


def _use_threads(count: int) -> None:
    knobs.threads = count


def _score(folder: Path, examples: UnseenExamples, device: str | None) -> dict[str, float]:
    with on(device):
        job = job_of_run(settings_of("ensemble", folder), folder)
        _, network = job.trained(folder)
        return evaluated(network, job.checks(examples.open()), job.loss()).numbers
