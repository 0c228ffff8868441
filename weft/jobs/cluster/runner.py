"""Runs the jobs of a queue on a cluster: one training a node's actor, with its events and files copied to where they would be without a cluster.

The process that runs this (the driver) holds the locks of jobs and runs, writes their events and states, and keeps a copy of every run that is as new as its
last checkpoint. A training that is lost with its node waits again under the same number, and continues from that copy on another node. When the driver is
killed, its trainings end; the next driver continues them in the same way.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...data.open import data_path
from ...device_names import gpu_name
from ...errors import RunError
from ...io.files import append_line, replace_file
from ...knobs import knobs
from ...locks import one_writer
from ..definitions import definition_file
from ..events import FILE, Event
from ..queue.job_queue import JobQueue
from ..queue.record import FAILED, LOST, REQUESTS, REQUEUED, RUNNING, WAITING, JobRecord
from ..queue.runner import Watcher, ignore, lose
from ..queue.schedule import REMOTE, change_schedule
from ..queue.view import JobView, QueueView
from ..training import annotate_run
from ..weights import find_weights, settings_for_weights
from .file_copies import CHECKPOINT, FileCopy, changed_files, file_stamps, update_run
from .ray_cluster import NodeLost, RayCluster
from .remote_training import RemoteReport, RemoteWork
from .settings import PACK, ClusterPlan

POLL = 0.2  # seconds between two status requests to a training
SYNC = 2.0  # seconds between two copies of its files, if there is a new checkpoint
SHARE = 0.1  # of the time that copying may take
ATTEMPTS = 5  # of a training that is lost without a new checkpoint
RETRY = 2.0  # seconds before it is started again, then twice as long: Ray takes a while to notice that a node is gone, and would choose it again
LAST_CHECKPOINT = 60.0  # seconds that trainings have to write one when the driver is stopped


class ClusterQueue(JobQueue):
    """The jobs of one command, which no runner of this machine starts. GPUs are those of the cluster, which checks them itself."""

    def gpus(self) -> list[str]:
        return [gpu_name(0)]


class ClusterRunner:
    """Starts waiting jobs on a cluster, `at_once` at the same time; `watcher` is called when one starts and when one ends."""

    def __init__(self, queue: JobQueue, plan: ClusterPlan, at_once: int = 1, watcher: Watcher = ignore) -> None:
        self.queue, self.plan, self.at_once, self.watcher = queue, plan, at_once, watcher
        self.cluster = RayCluster(plan)
        self.active: dict[Path, _ClusterJob] = {}
        self._view = QueueView(queue.folder)

    def run(self) -> None:
        """Run jobs until none waits any more."""
        with self.serving():
            while self.step():
                time.sleep(POLL / 4)

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Inside, `step` runs the queue. When it is left by an error or a signal, trainings stop with a checkpoint and wait in the queue."""
        self.queue.folder.mkdir(parents=True, exist_ok=True)
        with one_writer(self.queue.folder), self.cluster.connected():
            try:
                yield
            except BaseException:
                self._give_back()
                raise

    def step(self) -> bool:
        """Check running jobs and start those that can start; returns whether any job runs or waits."""
        self._look()
        jobs = [one for one in self._view.jobs() if one.record.folder not in self.active]
        for one in jobs:
            if one.state.why == LOST:
                one.record.set(WAITING, "its driver ended; it continues from its last checkpoint")
        waiting = [one for one in jobs if one.state.state == WAITING or one.state.why == LOST]
        ready = [one.record for one in waiting if _may_start(one)]
        for job in ready[: max(0, self.at_once - len(self.active))]:
            self._start(job)
        return bool(self.active or waiting)

    def collect(self) -> None:
        """Nothing to wait for: a job has ended when its training has left the cluster."""

    def _look(self) -> None:
        for folder, one in list(self.active.items()):
            if one.step():
                del self.active[folder]
                self.watcher(one.job, "ended")

    def _start(self, job: JobRecord) -> None:
        job.settle()
        try:
            self.active[job.folder] = _ClusterJob(job, self.queue.root, self.cluster, self.watcher)
        except RunError as error:
            job.set(FAILED, f"it could not be started: {error}")
            self.watcher(job, "ended")

    def _give_back(self) -> None:
        limit = time.monotonic() + LAST_CHECKPOINT
        for folder, one in list(self.active.items()):
            if one.node:
                one.request(REQUEUED)
            else:  # it still waits for a node
                self.active.pop(folder).leave()
        while self.active and time.monotonic() < limit:
            self._look()
            time.sleep(POLL / 4)
        for one in self.active.values():
            one.leave()


class _ClusterJob:
    """A job on the cluster."""

    def __init__(self, job: JobRecord, root: Path, cluster: RayCluster, watcher: Watcher) -> None:
        self.job, self.root, self.watcher = job, root, watcher
        work, inputs = remote_work(job, root, cluster.plan)
        self.training = cluster.start(work, inputs)
        self.held = ExitStack()
        self.held.enter_context(one_writer(job.folder))
        change_schedule(job.folder, lambda one: replace(one, slots=(REMOTE,), started=round(time.time(), 3)))
        self.node = ""  # empty: it waits for a node
        self.place = 0
        self.run: Path | None = None if work.run is None else root / work.run
        self.asked, self.with_files = 0.0, False
        self.synced, self.sync_seconds = time.monotonic(), 0.0
        self.is_asked, self.requested = True, ""

    def step(self) -> bool:
        """Check the training once; returns whether it has left the cluster."""
        if not self.node and self.job.state.state != WAITING:  # stopped before it began
            return self.leave()
        self.request(self.job.request if self.node else "")
        if not self.is_asked:
            if time.monotonic() - self.asked >= POLL:
                self._ask(self._sync_is_due())
            return False
        if not self.training.is_answered():
            return False
        self.is_asked = False
        try:
            found = self.training.answer()
            return self._begun(found) if not self.node else self._take(found)
        except NodeLost as error:
            self.leave(lost=True)
            lose(self.job, f"its node was lost ({error})", ATTEMPTS)
        except RunError as error:
            self.leave()
            self.job.set(FAILED, error.message)
        return True

    def request(self, request: str) -> None:
        """Forward the request to stop."""
        if request and not self.requested:
            self.requested = request
            self.training.send("stop", request)

    def leave(self, lost: bool = False) -> bool:
        """End what is left of it on the cluster."""
        self.training.end(tidy=bool(self.node) and not lost)
        self.held.close()
        return True

    def _begun(self, node: str) -> bool:
        """Record that a node has started it."""
        self.node = node
        change_schedule(self.job.folder, lambda one: replace(one, slots=(f"{REMOTE}{node}",)))
        if self.job.claim() is None:
            return self.leave()
        self.watcher(self.job, "started")
        return False

    def _ask(self, with_files: bool) -> None:
        seen = None
        if with_files:
            seen = {} if self.run is None else file_stamps(self.run)
        self.asked, self.is_asked, self.with_files = time.monotonic(), True, with_files
        self.training.ask("report", self.place, seen)

    def _sync_is_due(self) -> bool:
        return time.monotonic() - self.synced >= max(SYNC, self.sync_seconds / SHARE)

    def _take(self, report: RemoteReport) -> bool:
        """Write new events and files; returns whether the training has ended."""
        self.place = report.place
        for event in report.events:
            self._event(event)
        if self.with_files and report.run is not None:
            self._sync(report)
        if not report.ended:
            return False
        if not self.with_files:
            self._ask(with_files=True)
            return False
        if report.output:
            replace_file(self.job.folder / "output.txt", [report.output.encode()], "cluster")
        self.leave()
        self._end(report)
        return True

    def _event(self, event: Event) -> None:
        append_line(self.job.folder / FILE, event.line(), "jobs")
        if event.type == "run":
            self.run = Path(event["folder"])
            if not self.run.exists():
                self.run.mkdir(parents=True)
                annotate_run(self.run, self.job.settings)
            self.held.enter_context(one_writer(self.run))
            self.job.set(RUNNING, run=event["folder"])

    def _sync(self, report: RemoteReport) -> None:
        if not report.files:
            return
        folder = self.root / str(report.run)
        update_run(folder, report.files, report.names)
        self.synced = time.monotonic()
        self.sync_seconds = self.synced - self.asked
        if CHECKPOINT in report.files:  # losses are counted since the last progress
            change_schedule(self.job.folder, lambda one: replace(one, losses=0))

    def _end(self, report: RemoteReport) -> None:
        if report.state == WAITING and self.requested not in REQUESTS:
            lose(self.job, report.why, ATTEMPTS)
        elif report.state in (WAITING, RUNNING):
            self.job.set(REQUESTS[self.requested], self.requested)
        else:
            self.job.set(report.state, report.why)


def _may_start(one: JobView) -> bool:
    """Whether enough time has passed since a job was lost."""
    losses = one.schedule.losses
    return losses == 0 or time.time() - one.state.time >= RETRY * 2 ** (losses - 1)


def remote_work(job: JobRecord, root: Path, plan: ClusterPlan) -> tuple[RemoteWork, list[Path]]:
    """What a node needs for a job, and the inputs that have to be packed."""
    settings = settings_for_weights({**job.settings, "device": job.settings.get("device") or knobs.device})
    inputs = local_inputs(settings)
    for name, path in inputs.items():
        settings[name] = str(path)
    packed = {name: path for name, path in inputs.items() if plan.data == PACK or name == "model"}
    run, files = _copied(job.state.run, root)
    work = RemoteWork(settings, str(root), run, files, tuple(packed), plan.cpus)
    return work, list(packed.values())


def local_inputs(settings: dict[str, Any]) -> dict[str, Path]:
    """The settings that name files of this machine, with their paths."""
    data, source, model, weights = (settings.get(name) for name in ("data", "from", "model", "weights"))
    found = {
        "data": data_path(data) if data is not None else None,
        "from": Path(source).expanduser() if source is not None else None,
        "model": definition_file(model, settings["runs"]) if model is not None else None,
        "weights": find_weights(weights, settings["runs"]).place if weights is not None else None,
    }
    return {name: path.absolute() for name, path in found.items() if path is not None}


def _copied(run: str | None, root: Path) -> tuple[str | None, dict[str, FileCopy]]:
    """The files of a run that was begun, if another node can continue it."""
    if run is None or not (Path(run) / CHECKPOINT).exists() or not (Path(run) / "args.yaml").exists():
        return None, {}
    return Path(run).relative_to(root).as_posix(), changed_files(Path(run), {})
