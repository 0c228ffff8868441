"""A sweep: many trainings with different settings, chosen by a sampler, stopped early by a pruner, the best one ready to use.

found = weft.jobs.sweep({"data": "digits", "model": ["lenet", "mlp"], "rate": "log:1e-4..1e-1", "trials": 40, "jobs": 4})
found.best.run                              # the folder of the best run

Everything is on disk at any time: what was asked in Optuna's study, what runs in the queue of jobs, what was reached in the runs. After a kill the same call
goes on: trials that run are found again, killed ones continue from their checkpoints, and none is run twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...locks import one_writer
from ...records import dataclass
from ...train.folder import check_run_name
from ..cluster.ray_cluster import ray_package
from ..cluster.settings import ClusterPlan
from ..events import Listener
from ..queue.job_queue import JobQueue
from ..queue.kinds import SWEEP as SWEEP_JOB
from ..queue.kinds import TRAIN
from ..queue.needs import needs_of
from ..queue.record import JobRecord
from ..schema import as_text
from .record import SweepRecord, SweepTrial, best_trial, find_sweep, sweeps, without_password
from .search import SweepListener, SweepSearch
from .settings import SWEEP, WHERE, checked_sweep, planned, sweep_name, with_counts
from .study import SweepStudy, optuna_package
from .trials import QueuedTrials


@dataclass(frozen=True)
class SweepResult:
    """The trials of a sweep, and the best of them."""

    record: SweepRecord
    trials: list[SweepTrial]

    @property
    def best(self) -> SweepTrial | None:
        return best_trial(self.record.plan.metrics, self.trials)


def sweep(given: Mapping[str, Any], listener: SweepListener | None = None, runner: bool = True) -> SweepResult:
    """Search the settings that have several values: those of a training, and those of the sweep (trials, jobs, sampler, ...).

    A sweep that was started with the same settings is continued, also with more trials. With `runner`, this process runs the queue of jobs while no other one does.
    """
    return continue_sweep(opened_sweep(given), listener, runner)


def opened_sweep(given: Mapping[str, Any]) -> SweepRecord:
    """The sweep with these settings: one that exists, or a new one."""
    optuna_package()  # said before data is prepared
    if given.get("cluster") is not None:
        ray_package()
    runs, name, plan = Path(given.get("runs") or "runs"), given.get("name"), planned(given)
    known = sweeps(runs)
    if name is not None:
        check_run_name(WHERE, name)
    same = [one for one in known.values() if one.plan.identity == plan.identity and name in (None, one.name)]
    if same:
        _check_place(same[-1], plan.cluster)
        found = replace(same[-1], plan=plan, storage=given.get("storage") or same[-1].storage)
        if not found.is_searched:
            found.write()
        return found
    if name in known:
        raise UserError("weft sweep", f"the sweep {name!r} has other settings: {_difference(known[name].plan.identity, plan.identity)}. Give another name=.")  # fmt: skip
    return SweepRecord.create(runs, name or sweep_name(plan, known), plan, given.get("storage"))


def reopened_sweep(
    runs: str | Path, name: str, trials: int | None = None, jobs: int | None = None, cluster: str | None = None
) -> SweepRecord:
    """A sweep by its name, to continue it; one that runs on a cluster also at another address."""
    known = find_sweep(runs, name)
    found = replace(known, plan=with_counts(known.plan, trials, jobs))
    if cluster is not None:
        moved = replace(known.plan.cluster or ClusterPlan(), address=cluster)
        _check_place(known, moved)
        found = replace(found, plan=replace(found.plan, cluster=moved))
    if found.plan != known.plan:
        found.write()
    return found


def continue_sweep(
    record: SweepRecord, listener: SweepListener | None = None, runner: bool = True, owner: str = ""
) -> SweepResult:
    """Run the trials that are left, as jobs of `owner`."""
    with one_writer(record.folder):
        search = SweepSearch(record, SweepStudy(record), listener)
        trials = QueuedTrials(record, runner, owner)
        with trials.serving():
            search.run(trials)
        search.write(final=True)
    return SweepResult(record, search.known)


def submit_sweep(queue: JobQueue, given: Mapping[str, Any], owner: str = "") -> JobRecord:
    """Check the settings of a sweep and add it to the queue, as a job whose trials are jobs of the queue too. Cancelling or pausing it pauses them."""
    plan = checked_sweep(given)
    name = given.get("name") or sweep_name(plan, sweeps(queue.root))
    check_run_name(WHERE, name)
    storage = given.get("storage")
    if storage is not None and without_password(storage) != storage:
        raise UserError("weft sweep", "a storage without a password is required, since jobs are kept on disk. Set PGPASSWORD instead.")  # fmt: skip
    own = {one: as_text(given[one]) for one in SWEEP if given.get(one) is not None}
    if plan.cluster is None:
        queue.check(needs_of(TRAIN, plan.fixed), owner)
    return queue.add({**plan.texts, **own, "name": name}, SWEEP_JOB, owner=owner)


def sweep_job(settings: Mapping[str, Any], run: Path | None, listener: Listener) -> None:
    """The work of a job that is a sweep: the runner of the queue runs its trials too."""
    told = dict(settings)
    owner = str(told.pop("owner", ""))
    continue_sweep(opened_sweep(told), runner=False, owner=owner)


def _check_place(known: SweepRecord, cluster: ClusterPlan | None) -> None:
    """Trials of a cluster have a queue of their own, so a sweep stays on one side."""
    if (known.plan.cluster is None) == (cluster is None) or not known.trials():
        return
    if cluster is None:
        raise UserError("weft sweep", f"the sweep {known.name!r} was started on a cluster. Add cluster={known.plan.cluster and known.plan.cluster.address}, or give another name=.")  # fmt: skip
    raise UserError("weft sweep", f"the sweep {known.name!r} was started without a cluster. Leave cluster= out, or give another name=.")  # fmt: skip


def _difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The first setting that two sweeps do not have in common."""
    was, are = ({**one["settings"], **{n: one[n] for n in ("metrics", "sampler", "pruner")}} for one in (before, now))
    name = next(name for name in [*was, *are] if was.get(name) != are.get(name))
    return f"{name} was {was.get(name, 'not given')}, got {are.get(name, 'none')}"
