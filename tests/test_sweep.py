"""Sweeps: lists and ranges, the search, its restarts, and what is written."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from optuna.storages import InMemoryStorage

from weft.cli import main
from weft.errors import RunError, UserError
from weft.jobs.queue.job_queue import JobQueue
from weft.jobs.queue.kinds import KINDS, work_of
from weft.jobs.queue.record import DONE, FAILED, LOST, PRUNED, RUNNING, WAITING, State
from weft.jobs.queue.runner import Runner
from weft.jobs.sweeps import study as sweep_study
from weft.jobs.sweeps.record import (
    FINISHED,
    SweepMetric,
    SweepRecord,
    SweepTrial,
    best_trial,
    find_sweep,
    pareto_front,
    sweeps,
)
from weft.jobs.sweeps.search import SweepSearch
from weft.jobs.sweeps.search_space import ChoiceDimension, RangeDimension, search_space
from weft.jobs.sweeps.study import SweepStudy
from weft.jobs.sweeps.sweep import SweepResult, continue_sweep, opened_sweep, reopened_sweep, submit_sweep
from weft.jobs.sweeps.trials import QueuedTrials, TrialStatus

SPACE = {"data": "digits", "model": "mlp,logistic_regression", "rate": "log:1e-4..1e-1", "epochs": 4}


class Killed(BaseException):
    """Ends a search as kill -9 would: nothing is put in order."""


class FakeTrials:
    """Trials that advance an epoch each step, without processes. They survive a search, as jobs on disk do."""

    def __init__(self, folder: Path, epochs: int = 4) -> None:
        self.folder, self.epochs = folder, epochs
        self.started: dict[int, Mapping[str, Any]] = {}
        self.rows: dict[int, dict[int, dict[str, Any]]] = {}
        self.pruned: set[int] = set()
        self.starts = 0
        self.kill_at_step = -1
        self.steps = 0

    def start(self, number: int, values: Mapping[str, Any]) -> None:
        if number not in self.started:
            self.starts += 1
            self.started[number], self.rows[number] = dict(values), {}

    def find(self, number: int) -> TrialStatus | None:
        return self.status(number) if number in self.started else None

    def step(self) -> None:
        self.steps += 1
        if self.steps == self.kill_at_step:
            raise Killed
        for number, rows in self.rows.items():
            if len(rows) < self.epochs and number not in self.pruned:
                epoch = len(rows) + 1
                rows[epoch] = {"epoch": epoch, "epochs": self.epochs, "validation_accuracy": self._value(number, epoch), "seconds": 0.1 * epoch}  # fmt: skip

    def _value(self, number: int, epoch: int) -> float:
        return float(self.started[number]["rate"]) * epoch

    def status(self, number: int) -> TrialStatus:
        rows = dict(self.rows[number])
        if number in self.pruned:
            return TrialStatus("stopped", PRUNED, None, number, rows)
        if len(rows) < self.epochs:
            return TrialStatus(RUNNING, "", None, number, rows)
        run = self.folder / f"trial-{number}"
        run.mkdir(parents=True, exist_ok=True)
        (run / "summary.json").write_text(json.dumps({"best": rows[self.epochs], "parameters": 1000 * number}))
        return TrialStatus(DONE, "", str(run), number, rows)

    def prune(self, number: int) -> None:
        self.pruned.add(number)


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("weft.jobs.sweeps.search.POLL", 0.0)
    monkeypatch.chdir(tmp_path)


STORAGES: dict[str, Any] = {}  # in memory, which is fast and survives a search as well as a database does


def search(record: Any, trials: FakeTrials, on_disk: bool = False) -> SweepResult:
    storage = None if on_disk else STORAGES.setdefault(record.study, InMemoryStorage())
    made = SweepSearch(record, SweepStudy(record, storage))
    made.run(trials)
    made.write(final=True)
    return SweepResult(record, made.known)


# --- lists and ranges ---------------------------------------------------------------------------------------------------------


def test_lists_and_ranges_of_any_setting() -> None:
    space, fixed = search_space(
        "sweep", {**SPACE, "batch": "16..64", "augment": ["none", "light"], "momentum": "0..0.9"}
    )
    assert space == [
        ChoiceDimension("model", ("mlp", "logistic_regression")), RangeDimension("rate", 1e-4, 0.1, log=True),
        RangeDimension("batch", 16, 64, whole=True), ChoiceDimension("augment", ("none", "light")), RangeDimension("momentum", 0.0, 0.9),
    ]  # fmt: skip
    assert fixed == {"data": "digits", "epochs": "4"}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("rat=0.1,0.2", "there is no setting 'rat'. Did you mean rate?"),
        ("rate=lgo:1e-3..1", "there is no range 'lgo'. Did you mean log?"),
        ("rate=1e-3..", "two numbers are required"),
        ("rate=1...5", "two numbers are required"),
        ("rate=0.1..0.01", "the first number must be below the second"),
        ("rate=log:0..1", "starts above 0, got 0"),
        ("rate=auto..1", "the ends of a range are numbers"),
        ("batch=0.5..3", "batch=0.5 cannot be used: it must be a whole number"),
        ("batch=8,x", "batch=x cannot be used"),
        ("batch=8,8", "has a value twice"),
        ("optimizer=log:1..3", "optimizer takes no range"),
        ("optimizer=sgdd,adam", "there is no optimizer 'sgdd'. Did you mean sgd?"),
        ("model=lenet,smal_cnn", "Did you mean small_cnn?"),
        ("rate=0.1", "a setting with several values is required"),
        ("rate=0.1..0.2 sampler=grid", "sampler=grid requires lists, got a range of rate"),
        ("model=mlp,lenet sampler=cmaes", "sampler=cmaes searches ranges"),
        ("rate=0.1,0.2 metric=acuracy", "a metric is loss, accuracy"),
        ("rate=0.1,0.2 metric=mae", "metric=mae is not measured with these data"),
        ("rate=0.1,0.2 metric=accuracy,size pruner=median", "pruner=median requires one metric, got 2"),
        ("rate=0.1,0.2 show=true", "show=true requires the name of a sweep"),
    ],
)
def test_mistakes_are_told_before_anything_is_made(setting: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:  # fmt: skip
    assert main(["sweep", "digits", *setting.split()]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_unknown_sweep_and_a_missing_package_are_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    opened_sweep({**SPACE, "name": "mine"})
    assert main(["sweep", "mien"]) == 2
    assert "Did you mean mine?" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert main(["sweep", "digits", "rate=0.1,0.2"]) == 2
    assert (
        "require the package optuna, which is not installed. Run in the checkout of weft: pip install '.[sweep]'."
        in capsys.readouterr().err
    )


# --- the search ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", ["tpe", "random", "cmaes"])
def test_a_search_runs_so_many_trials_and_finds_the_best(sampler: str, tmp_path: Path) -> None:
    record = opened_sweep({**SPACE, "trials": 8, "jobs": 3, "sampler": sampler, "pruner": "none"})
    trials = FakeTrials(tmp_path / "fake")
    found = search(record, trials)
    assert [one.state for one in found.trials] == [FINISHED] * 8
    assert trials.starts == 8
    assert found.best is not None
    assert found.best.run is not None
    assert found.best.settings["rate"] == max(one.settings["rate"] for one in found.trials)
    assert record.name == "digits-sweep-1"
    assert record.has_ended
    assert len({one.settings["rate"] for one in found.trials}) == 8


def test_a_grid_runs_each_combination_once(tmp_path: Path) -> None:
    record = opened_sweep(
        {"data": "digits", "model": "mlp,lenet", "rate": "0.1,0.01,0.001", "sampler": "grid", "jobs": 2}
    )
    found = search(record, FakeTrials(tmp_path / "fake"))
    assert len({(one.settings["model"], one.settings["rate"]) for one in found.trials}) == len(found.trials) == 6


def test_settings_that_were_tried_are_not_trained_again(tmp_path: Path) -> None:
    record = opened_sweep({"data": "digits", "rate": "0.1,0.01", "sampler": "random", "trials": 8, "pruner": "none"})
    trials = FakeTrials(tmp_path / "fake")
    found = search(record, trials)
    assert (len(found.trials), trials.starts) == (8, 2)
    first = {one.settings["rate"]: one for one in reversed(found.trials)}
    repeated = [one for one in found.trials if one.why]
    assert len(repeated) == 6
    for one in repeated:
        twin = first[one.settings["rate"]]
        assert (one.why, one.run, one.values) == (f"as trial {twin.number}", twin.run, twin.values)


@pytest.mark.parametrize("pruner", ["median", "hyperband"])
def test_a_pruned_trial_says_so_and_keeps_its_epochs(pruner: str, tmp_path: Path) -> None:
    record = opened_sweep({**SPACE, "trials": 16, "jobs": 2, "sampler": "random", "pruner": pruner, "epochs": 9})
    found = search(record, FakeTrials(tmp_path / "fake", epochs=9))
    pruned = [one for one in found.trials if one.state == "pruned"]
    assert pruned
    assert all(one.why == f"by {pruner} after epoch {one.epoch}" and one.epoch < 9 for one in pruned)
    assert all(len(one.trend) == one.epoch and one.values == one.trend[-1:] for one in pruned)
    assert record.trials() == found.trials


@pytest.mark.parametrize("step", [-1, 3])
def test_all_epochs_of_a_trial_are_in_the_study(step: int, tmp_path: Path) -> None:
    """Also those that it reached while nobody searched, and after the last look at it: pruners compare later trials with them."""
    record = opened_sweep({**SPACE, "trials": 4, "jobs": 2, "pruner": "none"})
    trials = FakeTrials(tmp_path)
    trials.kill_at_step = step
    if step > 0:
        with pytest.raises(Killed):
            search(record, trials)
        for _ in range(4):
            trials.step()
    found = search(record, trials)
    assert [(one.state, len(one.trend)) for one in found.trials] == [(FINISHED, 4)] * 4
    studied = SweepStudy(record, STORAGES[record.study]).trials()
    assert [sorted(one.intermediate_values) for one in studied] == [[1, 2, 3, 4]] * 4


def test_accuracy_against_size_has_a_front(tmp_path: Path) -> None:
    record = opened_sweep({**SPACE, "metric": "accuracy,size", "trials": 9, "jobs": 2})
    assert (record.plan.sampler, record.plan.pruner) == ("nsga2", "none")
    found = search(record, FakeTrials(tmp_path / "fake"))
    front = pareto_front(record.plan.metrics, found.trials)
    assert 1 in {one.number for one in front}
    assert found.best in front
    assert "Pareto front" in (record.folder / "report.html").read_text()


@pytest.mark.parametrize("step", [1, 5, 8, *(pytest.param(more, marks=pytest.mark.slow) for more in (2, 3, 11))])
def test_a_killed_search_goes_on_without_losing_or_repeating_a_trial(step: int, tmp_path: Path) -> None:
    given = {**SPACE, "trials": 7, "jobs": 2, "pruner": "none"}
    trials = FakeTrials(tmp_path / "fake")
    trials.kill_at_step = step
    with pytest.raises(Killed):
        search(opened_sweep(given), trials, on_disk=step == 5)
    found = search(opened_sweep(given), trials, on_disk=step == 5)  # the same command
    assert [one.number for one in found.trials] == list(range(1, 8)) == list(trials.started)
    assert all(one.state == FINISHED for one in found.trials)
    assert trials.starts == 7
    assert list(sweeps("runs")) == ["digits-sweep-1"]


def test_a_search_that_was_killed_while_asking_chooses_the_rest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    record = opened_sweep({**SPACE, "trials": 2, "jobs": 1, "pruner": "none"})
    whole = sweep_study._suggest

    def dies(trial: Any, one: Any) -> Any:
        if one.name == "rate":
            raise Killed
        return whole(trial, one)

    trials = FakeTrials(tmp_path / "fake")
    monkeypatch.setattr(sweep_study, "_suggest", dies)
    with pytest.raises(Killed):
        search(record, trials)
    assert not trials.started
    monkeypatch.setattr(sweep_study, "_suggest", whole)
    found = search(record, trials)
    assert [set(one.settings) for one in found.trials] == [{"model", "rate"}] * 2


def test_a_search_that_was_killed_before_it_wrote_the_end_of_a_trial_knows_its_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:  # fmt: skip
    record, trials = opened_sweep({**SPACE, "trials": 3, "pruner": "none"}), FakeTrials(tmp_path / "fake")
    write = SweepRecord.write_trials

    def dies(self: SweepRecord, rows: list[SweepTrial]) -> None:
        if any(one.state == FINISHED for one in rows):
            raise Killed
        write(self, rows)

    monkeypatch.setattr(SweepRecord, "write_trials", dies)
    with pytest.raises(Killed):
        search(record, trials)
    monkeypatch.setattr(SweepRecord, "write_trials", write)
    found = search(record, trials)
    assert trials.starts == 3
    assert [(one.epoch, Path(str(one.run)).name) for one in found.trials] == [
        (4, "trial-1"),
        (4, "trial-2"),
        (4, "trial-3"),
    ]


def test_one_job_at_a_time_gives_the_same_trials_with_and_without_a_kill(tmp_path: Path) -> None:
    chosen = []
    for kill_at, runs in ((-1, "a"), (9, "b")):
        given = {**SPACE, "trials": 5, "pruner": "none", "runs": str(tmp_path / runs)}
        trials = FakeTrials(tmp_path / runs / "fake")
        trials.kill_at_step = kill_at
        try:
            search(opened_sweep(given), trials)
        except Killed:
            search(opened_sweep(given), trials)
        chosen.append(list(trials.started.values()))
    assert chosen[0] == chosen[1]


def test_more_trials_extend_a_sweep_and_other_settings_are_another(tmp_path: Path) -> None:
    given = {**SPACE, "trials": 2, "name": "mine", "pruner": "none"}
    trials = FakeTrials(tmp_path / "fake")
    search(opened_sweep(given), trials)
    assert len(search(opened_sweep({**given, "trials": 3, "jobs": 2}), trials).trials) == 3
    assert len(search(reopened_sweep("runs", "mine", trials=4), trials).trials) == 4
    with pytest.raises(
        UserError, match=re.escape("the sweep 'mine' has other settings: rate was log:1e-4..1e-1, got log:1e-3..1e-1")
    ):
        opened_sweep({**given, "rate": "log:1e-3..1e-1"})
    assert opened_sweep({**SPACE, "rate": "log:1e-3..1e-1"}).name == "digits-sweep-1"


def test_values_that_do_not_go_together_are_a_failed_trial(tmp_path: Path) -> None:
    class Picky(FakeTrials):
        def start(self, number: int, values: Mapping[str, Any]) -> None:
            if number == 1:
                raise UserError("train", "these do not go together.")
            super().start(number, values)

    found = search(opened_sweep({**SPACE, "trials": 3, "pruner": "none"}), Picky(tmp_path / "fake"))
    assert (found.trials[0].state, found.trials[0].why) == ("failed", "these do not go together.")
    assert found.best is not None


def test_a_sweep_whose_first_trials_all_fail_ends(tmp_path: Path) -> None:
    class Broken(FakeTrials):
        def status(self, number: int) -> TrialStatus:
            return TrialStatus(FAILED, "the disk is full", None, number)

    trials = Broken(tmp_path / "fake")
    with pytest.raises(RunError, match="the first 4 trials have all failed, the last one because: the disk is full"):
        search(opened_sweep({**SPACE, "trials": 9}), trials)
    assert trials.starts == 4


def test_the_password_of_a_storage_is_not_kept() -> None:
    record = opened_sweep({**SPACE, "storage": "postgresql://weft:secret@host/trials"})
    assert record.url == "postgresql+psycopg://weft:secret@host/trials"
    assert "secret" not in (record.folder / "sweep.json").read_text()
    assert find_sweep("runs", record.name).storage == "postgresql://weft@host/trials"


def test_a_loss_is_minimized() -> None:
    trials = [SweepTrial(n, FINISHED, {}, (v,)) for n, v in ((1, 0.5), (2, 0.2))]
    assert best_trial([SweepMetric("loss")], trials) == trials[1]
    assert best_trial([SweepMetric("accuracy")], trials) == trials[0]


# --- trials as jobs -----------------------------------------------------------------------------------------------------------


def test_a_trial_is_a_job_of_the_queue_and_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    record = opened_sweep({**SPACE, "name": "mine"})
    QueuedTrials(record).start(1, {"model": "mlp", "rate": 0.01})
    trials, queue = QueuedTrials(record), JobQueue("runs")  # of a search that was started again
    trials.start(1, {"model": "mlp", "rate": 0.01})
    (job,) = queue.jobs()
    assert (job.settings["name"], job.settings["group"], job.settings["rate"]) == ("mine-1", "mine", 0.01)
    assert trials.status(1).state == WAITING
    monkeypatch.setattr(type(job), "state", property(lambda self: State(FAILED, LOST)))
    assert trials.status(1).is_active  # the runner puts it back
    monkeypatch.setattr(type(job), "state", property(lambda self: State(FAILED, "the loss was nan")))
    assert not trials.status(1).is_active


def test_a_trial_that_was_paused_or_killed_too_often_goes_on_with_the_next_command() -> None:
    record, queue = opened_sweep({**SPACE, "name": "mine"}), JobQueue("runs")
    for state, why in (("stopped", "terminated"), (FAILED, f"{LOST}, for the 3. time")):
        QueuedTrials(record).start(1, {"model": "mlp", "rate": 0.01})
        (job,) = queue.jobs()
        job.set(state, why)
        assert job.state.state != WAITING
        again = QueuedTrials(record)
        again.start(1, {})
        assert again.status(1).state == WAITING


@pytest.mark.slow
def test_a_sweep_of_trainings_ends_with_a_run_that_can_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        "sweep",
        "digits",
        "model=logistic_regression",
        "rate=0.003,0.03",
        "epochs=1",
        "sampler=grid",
        "jobs=2",
        "name=mine",
    ]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "mine: 2 of 2 trials: 2 finished" in printed
    assert "best: trial 2" in printed
    record = find_sweep("runs", "mine")
    assert json.loads((record.folder / "parallel.json").read_text())["trials"] == [1, 2]
    assert [one.state.state for one in JobQueue("runs").jobs()] == [DONE, DONE]
    assert main(command) == 0  # nothing is left to do
    assert len(JobQueue("runs").jobs()) == 2
    assert main(["sweep", "mine", "show=true", "json=true"]) == 0
    best = json.loads(capsys.readouterr().out.partition("\n{")[2].join(["{", ""]))["best"]
    assert best["run"].endswith("runs/classify/mine-2")
    assert main(["sweep"]) == 0
    assert "ended" in capsys.readouterr().out


def test_a_sweep_can_be_a_job_itself() -> None:
    queue = JobQueue("runs")
    job = submit_sweep(queue, {**SPACE, "trials": 4, "metric": ["accuracy", "size"]}, owner="anna")
    assert (job.kind, queue.jobs()[0].submitted()["needs"]["slot"]) == ("sweep", "group")
    assert opened_sweep(job.settings).name == job.settings["name"] == "digits-sweep-1"
    with pytest.raises(UserError, match="there is no range 'lgo'"):
        submit_sweep(queue, {**SPACE, "rate": "lgo:1..2"})


def test_a_queue_runs_a_sweep_and_its_trials(tmp_path: Path) -> None:
    queue = JobQueue(tmp_path / "runs")
    given = {
        "data": "digits",
        "model": "logistic_regression",
        "rate": "0.01,0.1",
        "epochs": 1,
        "name": "rates",
        "sampler": "grid",
    }
    job = submit_sweep(queue, given)
    Runner(queue).run()
    assert job.state.state == DONE, job.state
    assert [(one.kind, one.state.state) for one in queue.jobs()] == [("sweep", DONE), ("train", DONE), ("train", DONE)]
    found = find_sweep(queue.root, "rates")
    assert [float(trial.settings["rate"]) for trial in found.trials()] == [0.01, 0.1]


@pytest.mark.parametrize("kind", KINDS)
def test_the_work_of_every_kind_of_job_is_there(kind: str) -> None:
    assert callable(work_of(kind))


def test_trials_pause_when_a_search_ends_that_does_not_run_them() -> None:
    trials = QueuedTrials(opened_sweep({**SPACE, "name": "mine"}), runner=False)
    with pytest.raises(Killed), trials.serving():
        trials.start(1, {"model": "mlp", "rate": 0.01})
        raise Killed
    assert trials.status(1).is_interrupted
    trials = QueuedTrials(trials.record, runner=False)
    trials.start(1, {"model": "mlp", "rate": 0.01})
    assert trials.status(1).is_active


def test_continue_sweep_needs_nobody_else() -> None:
    record = opened_sweep({**SPACE, "name": "mine"})
    code = f"import time; from weft.locks import one_writer\nwith one_writer({str(record.folder)!r}):\n print('held', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert record.is_searched
        with pytest.raises(Exception, match="one writer"):
            continue_sweep(record)
        other.kill()
