"""Evaluations of a run: any of its splits with the weights of any checkpoint. Saved ones are kept in the run folder.

evaluation.json, predictions.npz, ...     what the run wrote at its end: the held-out split, with the best weights
evaluations/train-epoch-0007/             one that was made later, with the same files. It counts while its weights are unchanged
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..io.files import cannot_write
from ..records import dataclass
from ..report.evaluation import read_evaluation
from ..train.results import Evaluation, evaluated, write_scores
from .datasets.facts import split_sizes, stored_split_sizes
from .device import on
from .ensembles.members import seen_note
from .evaluation_data import as_learned, as_stored
from .events import Listener, Recorder, ignore_events
from .job import Job, held_out, job_of, job_of_run
from .queue.job_queue import JobQueue
from .queue.kinds import EVALUATION
from .queue.record import JobRecord
from .run_weights import EVALUATIONS, weight_names, weights_path
from .stored import settings_of

SPLITS = ("train", "validation", "test")
STALE_SECONDS = 3600.0  # a hidden folder that is older was left by a process that was killed while it saved


@dataclass(frozen=True)
class RunEvaluation:
    """The evaluation of a run on a split, and notes on what to know about its numbers."""

    split: str
    data: str
    found: Evaluation
    notes: list[str]


def evaluate_run(
    folder: Path, split: str | None = None, checkpoint: str = "best", device: str | None = None, *, other: str | None = None,
    save: bool = False, listener: Listener = ignore_events,
) -> RunEvaluation:  # fmt: skip
    """Evaluate a run: on the test split if there is one, else on validation; `other` is the name or path of other data.

    `save` keeps the evaluation in the run folder, where `find_evaluation` and the studio find it.
    """
    recorder, settings = Recorder(listener), settings_of("eval", folder)
    weights = weights_path("weft eval", folder, checkpoint)
    with on(device):
        learned = job_of_run(settings, folder)
        if save:
            _check_can_be_saved(learned, folder, other)
        job = job_of("eval", {**settings, **as_stored(learned, other)}, recorder)
        name, given = held_out(job.splits, split)
        examples, notes = as_learned(given, learned.train, job.settings["data"])
        if other is None:
            notes += seen_note(folder, name)
        read = _stamp(weights)  # before they are read: weights that change now make the evaluation an old one
        _, network = learned.trained(folder, checkpoint)
        what = f"evaluating {name} examples"
        found = evaluated(
            network, job.checks(examples), learned.loss(),
            progress=lambda done: recorder.show("progress", what=what, done=done, total=len(examples)),
        )  # fmt: skip
    if save:
        place = _save(folder, found, name, {"checkpoint": checkpoint, **read})
        recorder.log(f"{len(examples):,} {name} examples are evaluated: {place}")
    return RunEvaluation(name, job.settings["data"], found, notes)


def _check_can_be_saved(learned: Job, folder: Path, other: str | None) -> None:
    if other is not None:
        raise UserError("weft eval", f"save=true keeps evaluations on the data of the run, got data={other}.")
    if not _has_scores(learned):
        raise UserError(
            "weft eval", f"save=true keeps scores of classes or numbers, and {folder.name} predicts a text."
        )  # fmt: skip


def _has_scores(learned: Job) -> bool:
    """Whether evaluation.json is written for such a network."""
    return learned.kind != "text"


def keeps_evaluations(folder: Path) -> bool:
    """Whether evaluations of a run can be saved: it predicts classes or numbers, and has weights."""
    return bool(weight_names(folder)) and _has_scores(job_of_run(settings_of("eval", folder), folder))


# --- saved evaluations --------------------------------------------------------------------------------------------------------


def find_evaluation(folder: Path, split: str | None = None, checkpoint: str = "best") -> Path | None:
    """The folder with the evaluation of a split and a checkpoint; None if there is none, or its weights have changed since.

    Without a split, the one that the run was evaluated on at its end.
    """
    own = read_evaluation(folder)
    wanted = split or (own["split"] if own is not None else None)
    if wanted is None:
        return None
    place = folder / EVALUATIONS / f"{wanted}-{checkpoint}"
    if _is_current(folder, place, checkpoint):
        return place
    return folder if own is not None and (own["split"], "best") == (wanted, checkpoint) else None


def saved_evaluations(folder: Path) -> list[dict[str, Any]]:
    """Split, checkpoint and number of examples of all evaluations of a run that count."""
    found = [(split, name) for split in SPLITS for name in weight_names(folder)]
    known = [(split, name, find_evaluation(folder, split, name)) for split, name in found]
    return [
        {"split": split, "checkpoint": name, "examples": (read_evaluation(place) or {}).get("examples")}
        for split, name, place in known
        if place is not None
    ]


def split_names(folder: Path) -> list[str]:
    """The splits of a run's data: train, validation, test, as far as there are such."""
    known = stored_split_sizes(folder)
    if known is None:
        known = _opened_split_sizes(folder, (folder / "args.yaml").stat().st_mtime_ns)
    return [name for name in SPLITS if known.get(name)]


@lru_cache(maxsize=64)
def _opened_split_sizes(folder: Path, stamp: int) -> dict[str, int]:
    """Of runs that began before the sizes were written down."""
    return split_sizes(job_of("eval", settings_of("eval", folder)).splits)


def _stamp(weights: Path) -> dict[str, int]:
    """What tells whether a file of weights has changed."""
    found = weights.stat()
    return {"bytes": found.st_size, "modified_ns": found.st_mtime_ns}


def _is_current(folder: Path, place: Path, checkpoint: str) -> bool:
    found = read_evaluation(place) if checkpoint in weight_names(folder) else None
    if found is None:
        return False
    now = _stamp(weights_path("weft eval", folder, checkpoint))
    return bool(found.get("weights") == {"checkpoint": checkpoint, **now})


def _save(folder: Path, found: Evaluation, split: str, weights: Mapping[str, Any]) -> Path:
    """Write the files beside their place and move them there together, so that readers see all of them or none."""
    place = folder / EVALUATIONS / f"{split}-{weights['checkpoint']}"
    try:
        place.parent.mkdir(exist_ok=True)
        _remove_leftovers(place.parent)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{place.name}.") as beside:
            made, old = Path(beside) / "new", Path(beside) / "old"
            made.mkdir()
            write_scores(made, found, split, weights=dict(weights))
            if place.exists():
                os.rename(place, old)
            os.rename(made, place)
    except OSError as error:
        raise cannot_write("weft eval", place, error) from error
    return place


def _remove_leftovers(place: Path) -> None:
    for one in place.glob(".*"):
        if time.time() - one.stat().st_mtime > STALE_SECONDS:
            shutil.rmtree(one, ignore_errors=True)


# --- as a job -----------------------------------------------------------------------------------------------------------------


def evaluation_job(settings: Mapping[str, Any], run: Path | None, listener: Listener = ignore_events) -> None:
    """The work of a job: settings are {run: folder, split, checkpoint, device}."""
    evaluate_run(
        Path(settings["run"]), settings["split"], settings["checkpoint"], settings.get("device"), save=True, listener=listener
    )  # fmt: skip


def submit_evaluation(
    queue: JobQueue,
    folder: Path,
    split: str,
    checkpoint: str = "best",
    device: str = "cpu",
    owner: str = "",
    **shown: str,
) -> JobRecord:
    """Check what is asked and add the job that evaluates a run; the one that waits or runs, if there is one already.

    `shown` are further facts that the queue shows: model and data.
    """
    weights_path("weft eval", folder, checkpoint)
    names = split_names(folder)
    if split not in names:
        raise UserError("weft eval", f"there is no {split} split; there are {', '.join(names)}.")
    known = latest_evaluation_job(queue, folder, split, checkpoint)
    if known is not None and not known.state.has_ended:
        return known
    settings = {
        "name": f"Evaluation of {folder.name}, {split}, {checkpoint}", "run": str(folder), "split": split, "checkpoint": checkpoint,
        "device": device, **shown,
    }  # fmt: skip
    return queue.add(settings, EVALUATION, owner=owner)


def latest_evaluation_job(queue: JobQueue, folder: Path, split: str, checkpoint: str) -> JobRecord | None:
    """The last job that was to evaluate a split with a checkpoint."""
    fits = (job for job in reversed(queue.jobs()) if is_evaluation_of(job.kind, job.readable_settings, folder, split, checkpoint))  # fmt: skip
    return next(fits, None)


def is_evaluation_of(kind: str, settings: Mapping[str, Any], folder: Path, split: str, checkpoint: str) -> bool:
    """Whether a job of this kind with these settings evaluates a split of a run with a checkpoint."""
    wanted = {"run": str(folder), "split": split, "checkpoint": checkpoint}
    return kind == EVALUATION and wanted.items() <= settings.items()
