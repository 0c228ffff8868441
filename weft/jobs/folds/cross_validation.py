"""Cross-validation: a training for each fold, several at the same time, with means and out-of-fold predictions at the end.

RUNS/folds/NAME/       the cross-validation
  folds.json           settings, runs of the folds, mean and standard deviation of each metric
  out_of_fold.*        predictions for every training example by the network that was not trained on it (see results.py)
  evaluation.json      scores of these predictions
  .jobs/               a queue with a job for each fold, unless they are jobs of the common queue (see queue.py)
RUNS/TASK/NAME-fold1   the runs, in the group NAME

Everything is on disk, so the same command, after being killed anywhere, trains what is missing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from ...compiler.host import usable_cores
from ...errors import RunError, UserError
from ...io.dataset_names import dataset_name
from ...io.files import replace_file
from ...io.json_values import json_value
from ...locks import one_writer
from ...report.text_format import counted
from ...signals import Terminated
from ...train.folder import RunFolder, check_run_name
from ..checks import check_settings
from ..cluster.ray_cluster import ray_package
from ..cluster.runner import ClusterQueue, ClusterRunner
from ..cluster.settings import ClusterPlan
from ..device import training_on
from ..events import Listener, Recorder, ignore_events
from ..job import TASKS, Job, job_of
from ..queue.job_queue import JobQueue
from ..queue.record import DONE, JobRecord
from ..queue.runner import Runner
from ..settings import OF_ONE_RUN
from ..stored import settings_of
from .queue import OWN_QUEUE, fold_name, follow_jobs, joined_jobs
from .results import OutOfFold, metric_table, metrics_text

FOLDER, STATE = "folds", "folds.json"


def cross_validate(
    settings: Mapping[str, Any],
    folds: int,
    jobs: int = 1,
    listener: Listener = ignore_events,
    cluster: ClusterPlan | None = None,
    owner: str | None = None,
) -> Path:
    """Train a network for each fold with validated settings, `jobs` at the same time; the folder of the cross-validation.

    A cross-validation with the same settings that is not finished is continued. With `cluster`, its nodes train. With `owner`, the folds are jobs of
    this person, or of nobody, in the queue of all jobs, and its runner trains them.
    """
    if cluster is not None:
        ray_package()  # said before anything is made
    check_settings("train", {**settings, "name": None})
    check_folds(settings, folds)
    recorder = Recorder(listener)
    folder = _unfinished(settings, folds)
    if folder is None:
        is_here = cluster is None and owner is None  # else others have the device
        with training_on(settings["device"]) if is_here else nullcontext():
            first = job_of(
                "train", {**settings, "fold": f"1/{folds}"}, recorder
            )  # opens the data: all checks before anything is written
            folder = _new(settings, folds, first)
    else:
        recorder.log(f"continuing {folder}")
    return _trained(folder, jobs, recorder, cluster, owner)


def resume_folds(
    folder: Path, jobs: int = 1, listener: Listener = ignore_events, cluster: ClusterPlan | None = None, owner: str | None = None
) -> Path:  # fmt: skip
    """Continue a cross-validation that was stopped, here, on a cluster, or as jobs of the queue: see `cross_validate`."""
    return _trained(folder, jobs, Recorder(listener), cluster, owner)


def is_cross_validation(folder: Path) -> bool:
    return (folder / STATE).is_file()


def find_folds(text: str, runs: str | os.PathLike[str] = "runs") -> Path | None:
    """The cross-validation with this folder or name; None if there is none."""
    places = [Path(text), Path(runs) / FOLDER / text]
    return next((place for place in places if is_cross_validation(place)), None)


def read_folds(folder: Path) -> dict[str, Any]:
    """What folds.json says."""
    try:
        found = json.loads((folder / STATE).read_text(encoding="utf-8"))
        if not {"settings", "folds", "name", "task", "done"} <= found.keys():
            raise ValueError("parts are missing")
    except (OSError, ValueError, AttributeError) as error:
        raise RunError("weft train", f"{folder / STATE} is damaged: {error}.") from None
    state: dict[str, Any] = found
    return state


def fold_runs(folder: Path) -> list[Path]:
    """The runs of a cross-validation that is finished."""
    state = read_folds(folder)
    if not state["done"]:
        raise UserError("weft train", f"a cross-validation that is finished is required, got {folder}. Continue it: weft resume {folder}")  # fmt: skip
    return [folder.parent.parent / path for path in state["runs"]]


# --- the beginning ------------------------------------------------------------------------------------------------------------


def check_folds(settings: Mapping[str, Any], folds: int) -> None:
    """Reject settings that a cross-validation cannot have."""
    if folds < 2:
        raise UserError("weft train", f"2 folds or more are required, got {folds}.")
    for name in ("fast_dev_run", "overfit"):
        if settings[name]:
            raise UserError("weft train", f"a whole training is required for a cross-validation, got {name}={settings[name]}. Leave it out.")  # fmt: skip
    if settings["fold"] is not None:
        raise UserError(
            "weft train", f"folds={folds} trains all folds, got fold={settings['fold']} too. Leave one out."
        )
    if settings["name"] is not None:
        check_run_name("weft train", settings["name"])


def _kept(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that the runs of all folds have in common, as JSON holds them."""
    found: dict[str, Any] = json_value({name: value for name, value in settings.items() if name not in OF_ONE_RUN})
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def _unfinished(settings: Mapping[str, Any], folds: int) -> Path | None:
    """The cross-validation that this command began; one of that name with other settings, or that is finished, is an error."""
    root = Path(settings["runs"]) / FOLDER
    wanted: dict[str, Any] = {"settings": _kept(settings), "folds": folds}
    if settings["name"] is None:
        found = [place for place in sorted(root.glob("*")) if is_cross_validation(place)]
        return next((place for place in found if _is_begun(read_folds(place), wanted)), None)
    place = root / str(settings["name"])
    if not is_cross_validation(place):
        return None
    state = read_folds(place)
    if state["done"]:
        raise UserError("weft train", f"a name that is not taken is required, got {settings['name']!r}: {place} is finished. Give another name.")  # fmt: skip
    if not _is_begun(state, wanted):
        other = [n for n, v in wanted["settings"].items() if state["settings"].get(n) != v] or ["folds"]
        raise UserError("weft train", f"the settings that {place} was started with are required, got other values of {', '.join(other)}. Give another name, or continue it: weft resume {place}")  # fmt: skip
    return place


def _is_begun(state: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return not state["done"] and all(state[name] == value for name, value in wanted.items())


def _new(settings: Mapping[str, Any], folds: int, first: Job) -> Path:
    """The folder of a new cross-validation; the names of its runs are free."""
    runs, number = Path(settings["runs"]), 1
    name = settings["name"] or f"{dataset_name(settings['data'])}-{first.label}-folds-1"
    while taken := taken_place(runs, name, folds):
        if settings["name"] is not None:
            raise UserError(
                "weft train", f"a name that is not taken is required, got {name!r}: {taken} exists. Give another name."
            )
        number += 1
        name = f"{name.rpartition('-')[0]}-{number}"
    folder = runs / FOLDER / name
    folder.mkdir(parents=True)
    kept = {name: settings[name] for name in ("tags", "notes", "group") if settings[name] is not None}
    about = {"name": name, "task": first.kind, "folds": folds, "model": first.name, "examples": len(first.opened.train)}
    _write(folder, {**about, "settings": _kept(settings), "annotations": kept, "runs": [], "done": False})
    return folder


def taken_place(runs: Path, name: str, folds: int) -> Path | None:
    """What has the name of a cross-validation, or of a run of its folds; None if the name is free."""
    places = [runs / FOLDER / name]
    places += [runs / task / fold_name(name, k + 1) for task in TASKS for k in range(folds)]
    return next((place for place in places if place.exists()), None)


def _write(folder: Path, state: Mapping[str, Any]) -> None:
    replace_file(folder / STATE, [(json.dumps(json_value(dict(state)), indent=1) + "\n").encode()], "folds")


# --- the trainings ------------------------------------------------------------------------------------------------------------


def _trained(folder: Path, jobs: int, recorder: Recorder, cluster: ClusterPlan | None, owner: str | None) -> Path:
    with one_writer(folder):
        state = read_folds(folder)
        if state["done"]:
            return folder
        recorder.begin(folder)
        place = None if owner is not None else folder / OWN_QUEUE
        queue = (JobQueue if cluster is None else ClusterQueue)(folder.parent.parent, place)
        records = joined_jobs(queue, folder, state, owner or "")
        folds = state["folds"]
        waiting = sum(record.state.state != DONE for record in records.values())
        where = "in the queue" if owner is not None else f"{jobs} at the same time"
        recorder.log(f"{state['name']}: {counted(folds, 'fold')}, {waiting} to train, {where}")

        def watch(record: JobRecord, what: str) -> None:
            fold, now = record.settings["fold"], record.state
            if what == "started":
                recorder.log(f"fold {fold} has started")
            elif now.state == DONE and now.run is not None:
                numbers = RunFolder(now.run).known_summary().get("test", {})
                recorder.log(f"fold {fold} is done: " + ", ".join(f"{n} {v:.4f}" for n, v in numbers.items()))
            else:
                recorder.log(f"fold {fold} is {now.state}: {now.why}")
            done = sum(one.state.state == DONE for one in records.values())
            recorder.show("progress", what="folds", done=done, total=folds)

        try:
            if owner is not None:
                follow_jobs(records, watch)
            elif cluster is None:
                Runner(queue, jobs, watch, threads=max(1, usable_cores() // jobs)).run()
            else:
                ClusterRunner(queue, cluster, jobs, watch).run()
        except (KeyboardInterrupt, Terminated) as stop:
            recorder.send(
                "stopped", why="terminated" if isinstance(stop, Terminated) else "stopped", folder=str(folder)
            )
            raise
        _check_done(folder, records)
        runs = [Path(str(records[k].state.run)) for k in range(1, folds + 1)]
        _finish(folder, state, runs, recorder)
    return folder


def _check_done(folder: Path, records: Mapping[int, JobRecord]) -> None:
    missing = {number: record.state for number, record in records.items() if record.state.state != DONE}
    if missing:
        number, state = next(iter(missing.items()))
        raise RunError(
            "weft train",
            f"{counted(len(missing), 'fold')} of {len(records)} ended without a result. Fold {number} is {state.state}: {state.why} "
            f"Continue with: weft resume {folder}",
        )


def _finish(folder: Path, state: dict[str, Any], runs: list[Path], recorder: Recorder) -> None:
    recorder.show("activity", text="collecting out-of-fold predictions")
    found = OutOfFold.of_runs(runs, job_of("train", settings_of("train", runs[0])).opened.train)
    found.write(folder)
    metrics = metric_table(runs)
    places = [run.relative_to(folder.parent.parent.absolute()).as_posix() for run in runs]
    _write(folder, {**state, "runs": places, "metrics": metrics, "done": True})
    recorder.log(f"mean and standard deviation over {state['folds']} folds: {metrics_text(metrics)}")
    recorder.log(f"out-of-fold predictions: {folder / 'out_of_fold.csv'}")
    recorder.send("folds", folder=str(folder), runs=[str(run) for run in runs], metrics=metrics)
