"""Cross-validations and ensembles as jobs of a queue: the same results as by a command, and one continues what the other began."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from test_ensemble import images, member
from test_folds import InProcess, Killed, blobs, settings
from uncompiled import uncompiled
from weft.errors import UserError
from weft.io import load
from weft.jobs.ensembles.job import submit_ensemble
from weft.jobs.folds import cross_validation
from weft.jobs.folds import queue as fold_queue
from weft.jobs.folds.cross_validation import cross_validate, fold_runs, read_folds
from weft.jobs.folds.jobs import continue_folds, pause_folds, submit_folds
from weft.jobs.queue.job_queue import JobQueue
from weft.jobs.queue.kinds import SWEEP, TRAIN
from weft.jobs.queue.needs import GPU, GROUP, JobNeeds, needs_of
from weft.jobs.queue.plan import RunnerSlots, queue_plan, write_slots
from weft.jobs.queue.quotas import JobQuota, write_quotas
from weft.jobs.queue.record import CANCELLED, DONE, PAUSED, RUNNING, STOPPED, WAITING, JobRecord
from weft.jobs.queue.slots import ComputeSlot, host_slots
from weft.jobs.queue.view import QueueView
from weft.jobs.queue.worker import work
from weft.locks import one_writer
from weft.signals import Terminated

GIVEN = ("data", "model", "epochs", "rate")


@pytest.fixture(autouse=True)
def _in_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(cross_validation, "Runner", InProcess)
    monkeypatch.setattr(InProcess, "before", staticmethod(lambda job: None))
    with uncompiled():
        yield


@pytest.fixture
def queue(tmp_path: Path) -> JobQueue:
    blobs(tmp_path / "blobs.npz")
    return JobQueue(tmp_path / "runs")


def submitted(queue: JobQueue, folds: int = 2, **given: Any) -> JobRecord:
    known = {name: value for name, value in settings(queue.root.parent).items() if name in GIVEN}
    return submit_folds(queue, {**known, **given}, folds, owner="anna")


def run_beside(queue: JobQueue, monkeypatch: pytest.MonkeyPatch, stop: Callable[[list[str]], bool] = lambda _: False) -> list[str]:  # fmt: skip
    """Whenever a group waits, the next training is done. After `stop`, the group is asked to end; the folds that were trained."""
    trained: list[str] = []

    def next_training(seconds: float) -> None:
        if stop(trained):
            raise Terminated
        job = next((one for one in queue.jobs() if one.kind == TRAIN and one.state.state == WAITING), None)
        if job is not None:
            trained.append(str(job.settings["fold"]))
            work(job.folder)

    monkeypatch.setattr(fold_queue, "sleep", next_training)
    return trained


def trainings(queue: JobQueue) -> list[JobRecord]:
    return [job for job in queue.jobs() if job.kind == TRAIN]


def test_the_results_are_those_of_the_command(queue: JobQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_command = cross_validate(settings(tmp_path, runs=str(tmp_path / "others"), name="cv"), 2)
    trained = run_beside(queue, monkeypatch)
    job = submitted(queue, name="cv", tags="small")
    work(job.folder)
    assert job.state.state == DONE, job.state.why
    assert trained == ["1/2", "2/2"]
    assert {one.submitted()["owner"] for one in trainings(queue)} == {"anna"}
    folder = queue.root / "folds" / "cv"
    assert read_folds(folder)["metrics"] == read_folds(by_command)["metrics"]
    assert (folder / "out_of_fold.npz").read_bytes() == (by_command / "out_of_fold.npz").read_bytes()
    told = json.loads((fold_runs(folder)[0] / "annotations.json").read_text())
    assert (told["group"], told["tags"]) == ("cv", ["small"])
    seen = [event.facts["text"] for event in job.events() if event.type == "log"]
    assert "cv: 2 folds, 2 to train, in the queue" in seen


def test_a_pause_pauses_the_folds_and_nothing_is_trained_twice(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_beside(queue, monkeypatch, stop=lambda trained: len(trained) == 1)
    job = submitted(queue, folds=3)
    (job.folder / "request").unlink(missing_ok=True)
    work(job.folder)  # as if it had been asked to stop
    assert job.state.state == STOPPED
    assert [one.state.why for one in trainings(queue)] == ["", PAUSED, PAUSED]
    name = str(job.settings["name"])
    assert continue_folds(queue, name).number == job.number
    with pytest.raises(UserError, match="which runs or waits for its turn"):
        continue_folds(queue, name)
    trained = run_beside(queue, monkeypatch)
    work(job.folder)
    assert (job.state.state, trained) == (DONE, ["2/3", "3/3"])
    with pytest.raises(UserError, match="is finished"):
        continue_folds(queue, name)
    with pytest.raises(UserError, match="which does not"):
        pause_folds(queue, name)


def test_a_queue_continues_what_a_command_began(
    queue: JobQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill_the_second(job: JobRecord) -> None:
        if job.settings["fold"] == "2/3":
            raise Killed

    monkeypatch.setattr(InProcess, "before", staticmethod(kill_the_second))
    monkeypatch.chdir(tmp_path)  # relative paths of the command start here
    with pytest.raises(Killed):
        cross_validate(settings(tmp_path, data="blobs.npz", name="cv"), 3)
    monkeypatch.chdir("/")
    own = JobQueue(queue.root, queue.root / "folds" / "cv" / ".jobs")
    own.pause(own.jobs()[1])
    own.cancel(own.jobs()[2])
    trained = run_beside(queue, monkeypatch)
    job = continue_folds(queue, "cv", owner="anna")
    work(job.folder)
    assert (job.state.state, trained) == (DONE, ["2/3", "3/3"])
    assert own.jobs()[1].state.why == CANCELLED, "it cannot be resumed any more"


def test_a_command_continues_what_a_queue_began(
    queue: JobQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_beside(queue, monkeypatch, stop=lambda trained: len(trained) == 1)
    job = submitted(queue, name="cv")
    work(job.folder)
    folder = queue.root / "folds" / "cv"
    second = trainings(queue)[1]
    queue.resume(second)
    with pytest.raises(UserError, match="got fold 2, which is waiting as job 3 of the queue"):
        cross_validation.resume_folds(folder)
    queue.cancel(second)
    first = {path: path.read_bytes() for path in (queue.root / "classify" / "cv-fold1").rglob("*.safetensors")}
    cross_validation.resume_folds(folder)
    assert read_folds(folder)["done"]
    assert {path: path.read_bytes() for path in first} == first
    assert len(trainings(queue)) == 2


@pytest.mark.parametrize(
    ("given", "folds", "said"),
    [
        ({}, 1, "2 folds or more"),
        ({"fold": "1/2"}, 2, "Leave one out"),
        ({"rate": -1.0}, 2, "rate"),
        ({"name": "taken"}, 2, "a name that is not taken"),
        ({"device": "cuda:7"}, 2, "a device of this machine is required"),
    ],
)
def test_what_cannot_be_is_refused_at_once(queue: JobQueue, given: dict[str, Any], folds: int, said: str) -> None:
    (queue.root / "folds" / "taken").mkdir(parents=True)
    with pytest.raises(UserError) as error:
        submitted(queue, folds, **given)
    assert said in error.value.message
    assert queue.jobs() == []


def test_folds_count_for_the_quota_of_their_owner(queue: JobQueue) -> None:
    write_quotas(queue.folder, {"anna": JobQuota(waiting_jobs=4)})
    with pytest.raises(UserError, match="at most 4 waiting jobs"):
        submitted(queue, folds=5)
    assert submitted(queue, folds=4).state.state == WAITING


def test_names_are_free_ones(queue: JobQueue) -> None:
    names = [submitted(queue).settings["name"] for _ in range(2)]
    assert names == ["blobs-mlp-folds-1", "blobs-mlp-folds-2"]
    with pytest.raises(UserError, match="the name of job 1"):
        submitted(queue, name=names[0])


def test_groups_keep_nothing_from_starting(queue: JobQueue) -> None:
    """Two sweeps would otherwise take both task slots, and one on the only GPU that of its own trials."""
    assert needs_of(SWEEP, {"device": "cuda"}).slot == GROUP
    offered = RunnerSlots((ComputeSlot("cuda:0", GPU, 10**10), *host_slots(1, 2)), per_owner=1)
    queue.folder.mkdir(parents=True)
    write_slots(queue.folder, offered)
    with ExitStack() as locks:
        for _ in range(3):
            job = queue.add({"data": "digits", "device": "cuda"}, SWEEP, owner="anna")
            job.set(RUNNING)
            locks.enter_context(one_writer(job.folder))
        waiting = [queue.add({"data": "digits"}, kind, needs, owner) for kind, needs, owner in (("export", None, ""), (TRAIN, JobNeeds(GPU), "anna"))]  # fmt: skip
        view = QueueView(queue.folder)
        made = queue_plan(view, view.jobs(), offered, 0.0)
        assert {one.job.number: one.slots for one in made.starting} == {waiting[0].number: ("task:0",), waiting[1].number: ("cuda:0",)}  # fmt: skip


# --- ensembles --------------------------------------------------------------------------------------------------------------------


def test_an_ensemble_is_a_job_that_can_be_killed(tmp_path: Path) -> None:
    images(tmp_path / "images.npz")
    for number, name in enumerate(("one", "two")):
        member(tmp_path, name, number)
    queue = JobQueue(tmp_path / "runs")
    job = submit_ensemble(queue, ["one", "two"], {"method": "weights"}, owner="anna")
    name = str(job.settings["name"])
    assert name == "images-ensemble-1"
    with pytest.raises(UserError, match="the name of job 1"):
        submit_ensemble(queue, ["one", "two"], {"name": name})
    left = queue.root / "classify" / name  # what a killed attempt leaves
    left.mkdir()
    (left / "args.yaml").write_text("data: digits\n")
    job.set(WAITING, run=str(left))
    work(job.folder)
    assert (job.state.state, job.state.run) == (DONE, str(left)), job.state.why
    weights = [load(queue.root / "classify" / one / "weights" / "best.safetensors") for one in ("one", "two", name)]
    first = next(iter(weights[0]))
    mean = (weights[0][first].numpy() + weights[1][first].numpy()) / 2
    assert abs(mean - weights[2][first].numpy()).max() < 1e-6
    before = (left / "summary.json").stat().st_mtime_ns
    job.set(WAITING)
    work(job.folder)  # it was killed after its last step
    assert (left / "summary.json").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("members", "given", "said"),
    [
        (["one"], {}, "two or more different runs"),
        (["one", "one"], {}, "one twice"),
        (["one", "absent"], {}, "absent"),
        (["one", "two"], {"soup": "greedy"}, "method=weights is required"),
        (["one", "two"], {"method": "sum"}, "method"),
        (["one", "two"], {"exist_ok": True}, "settings of an ensemble"),
        (["one", "two"], {"name": "../up"}, "one word without slashes"),
        (["one", "two"], {"name": "two"}, "a name that is not taken"),
    ],
)
def test_ensembles_that_cannot_be(tmp_path: Path, members: list[str], given: dict[str, Any], said: str) -> None:
    images(tmp_path / "images.npz")
    for number, name in enumerate(("one", "two")):
        member(tmp_path, name, number)
    queue = JobQueue(tmp_path / "runs")
    with pytest.raises(UserError) as error:
        submit_ensemble(queue, members, given)
    assert said in error.value.message
    assert queue.jobs() == []
