"""Cross-validation: folds are stratified and complete, means are those of the runs, and a killed one repeats nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from uncompiled import uncompiled
from weft import cli, data
from weft.errors import RunError, UserError
from weft.io import load
from weft.jobs.folds import cross_validation
from weft.jobs.folds.cross_validation import cross_validate, fold_runs, read_folds
from weft.jobs.job import job_of
from weft.jobs.queue.job_queue import JobQueue
from weft.jobs.queue.record import DONE, WAITING, JobRecord
from weft.jobs.queue.worker import work
from weft.jobs.recipes import with_recipe

CLASSES = 3


def blobs(path: Path, kind: str = "class", count: int = 90, **more: Any) -> Path:
    """Small vectors that are easy to tell apart, in an .npz file."""
    random = np.random.default_rng(0)
    true = random.permutation(np.arange(count) % CLASSES)
    x = (np.eye(CLASSES, 6)[true] * 3 + random.normal(size=(count, 6))).astype(np.float32)
    labels = {"class": true, "numbers": x[:, :1].sum(1) + 1, "classes": np.eye(CLASSES, dtype=bool)[true]}
    np.savez(path, x_train=x, y_train=labels[kind], x_test=x[:20], y_test=labels[kind][:20], **more)
    return path


def settings(folder: Path, **given: Any) -> dict[str, Any]:
    known = {"data": str(folder / "blobs.npz"), "model": "mlp", "epochs": 1, "rate": 0.01, "runs": str(folder / "runs")}
    return with_recipe("test", {**known, **given})


class InProcess:
    """A runner that does the work of waiting jobs here, in their order: processes take seconds to start."""

    before: Callable[[JobRecord], None] = staticmethod(lambda job: None)

    def __init__(self, queue: JobQueue, at_once: int, watcher: Any, threads: int = 0) -> None:
        self.queue, self.watcher = queue, watcher

    def run(self) -> None:
        for job in self.queue.jobs():
            if job.state.state == WAITING:
                self.watcher(job, "started")
                InProcess.before(job)
                work(job.folder)
                self.watcher(job, "ended")


@pytest.fixture(autouse=True)
def _in_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(cross_validation, "Runner", InProcess)
    monkeypatch.setattr(InProcess, "before", staticmethod(lambda job: None))
    with uncompiled():
        yield


# --- stratification, checked against counts made here ----------------------------------------------------------------------------


def counts(labels: np.ndarray, fold: np.ndarray, folds: int) -> np.ndarray:
    return np.array([[np.sum((labels == c) & (fold == k)) for c in np.unique(labels)] for k in range(folds)])


@pytest.mark.parametrize("folds", [2, 3, 5, 10])
def test_classes_are_spread_evenly(folds: int) -> None:
    labels = np.random.default_rng(folds).choice(4, 203, p=[0.55, 0.25, 0.12, 0.08])
    fold = data.stratified_folds(labels, folds, seed=3)
    sizes = np.bincount(fold, minlength=folds)
    assert sizes.sum() == 203
    assert np.ptp(sizes) <= 1
    assert np.ptp(counts(labels, fold, folds), axis=0).max() <= 1
    np.testing.assert_array_equal(fold, data.stratified_folds(labels, folds, seed=3))
    assert (fold != data.stratified_folds(labels, folds, seed=4)).any()


def test_numbers_are_spread_by_quantiles() -> None:
    labels = np.random.default_rng(0).lognormal(size=1000)
    fold = data.stratified_folds(labels, 5)
    bins = np.searchsorted(np.quantile(labels, np.linspace(0, 1, 11)[1:-1]), labels)
    found = counts(bins, fold, 5)
    assert np.ptp(found, axis=0).max() <= 2, "of 100 values in each tenth, 20 are in each fold"
    means = [labels[fold == k].mean() for k in range(5)]
    assert np.ptp(means) < 0.25 * labels.std()
    assert np.ptp([labels[fold == k].min() for k in range(5)]) > 0, "the smallest are dealt at random"


def test_combinations_of_classes_are_spread_evenly() -> None:
    labels = np.random.default_rng(0).random((400, 4)) < [0.6, 0.3, 0.1, 0.03]
    fold = data.stratified_folds(labels, 4)
    combination = labels @ (1 << np.arange(4))
    assert np.ptp(counts(combination, fold, 4), axis=0).max() <= 1
    each = np.array([labels[fold == k].sum(0) for k in range(4)])
    assert np.ptp(each, axis=0).max() <= 4


def test_groups_stay_together_and_classes_are_still_spread() -> None:
    random = np.random.default_rng(1)
    groups = random.integers(0, 40, 600)
    labels = (groups % 3 + (random.random(600) < 0.2)) % 3
    fold = data.stratified_folds(labels, 4, groups=groups)
    assert all(len(np.unique(fold[groups == g])) == 1 for g in np.unique(groups))
    shares = counts(labels, fold, 4) / np.bincount(labels)
    assert abs(shares - 0.25).max() < 0.06


def test_every_example_is_held_out_once_and_the_test_split_never_used(tmp_path: Path) -> None:
    splits = data.open_dataset(blobs(tmp_path / "blobs.npz"))
    held = []
    for number in (1, 2, 3):
        found = data.fold_splits(splits, number, 3, seed=5)
        assert isinstance(found.train, data.Subset)
        assert isinstance(found.test, data.Subset)
        assert not set(found.train.indices) & set(found.test.indices)
        held += found.test.indices.tolist()
    assert sorted(held) == list(range(90))


@pytest.mark.parametrize(
    ("labels", "folds", "said"),
    [
        (np.zeros(9, int), 1, "2 folds or more are required, got 1."),
        (np.array([0, 0, 0, 1, 1]), 3, "got 3 folds, and class 1 has 2 examples. Use 2 folds or fewer"),
        (np.array([0, 0, 0, 1]), 2, "and class 1 has 1 example. Add examples."),
        (np.zeros(3), 4, "at least as many examples as folds are required, got 3 examples and 4 folds."),
    ],
)
def test_folds_that_cannot_be(labels: np.ndarray, folds: int, said: str) -> None:
    with pytest.raises(UserError) as error:
        data.stratified_folds(labels, folds)
    assert said in error.value.message


def test_groups_that_cannot_be() -> None:
    with pytest.raises(UserError, match="as many groups as folds"):
        data.stratified_folds(np.arange(8) % 2, 3, groups=np.arange(8) % 2)
    with pytest.raises(UserError, match="a group for each example"):
        data.stratified_folds(np.arange(8) % 2, 2, groups=[1, 2])
    with pytest.raises(UserError, match="one for each example"):
        data.Arrays(np.zeros((3, 2)), [0, 1, 0], groups=[1, 2])


# --- a cross-validation ----------------------------------------------------------------------------------------------------------


def test_means_and_out_of_fold_predictions_are_those_of_the_runs(tmp_path: Path) -> None:
    blobs(tmp_path / "blobs.npz", groups=np.arange(90) // 2)
    folder = cross_validate(settings(tmp_path, name="cv"), 3)
    state, runs = read_folds(folder), fold_runs(folder)
    found = [json.loads((run / "summary.json").read_text())["test"] for run in runs]
    for name in ("loss", "accuracy"):
        values = np.array([row[name] for row in found])
        assert state["metrics"][name]["mean"] == pytest.approx(values.mean())
        assert state["metrics"][name]["std"] == pytest.approx(np.sqrt(((values - values.mean()) ** 2).sum() / 2))
    with np.load(folder / "out_of_fold.npz") as file:
        kept = {name: file[name] for name in file.files}
    train = data.open_dataset(tmp_path / "blobs.npz").train
    np.testing.assert_array_equal(kept["true"], train.labels)
    np.testing.assert_array_equal(kept["fold"][::2], kept["fold"][1::2])  # groups of the file
    weights = load(runs[1] / "weights" / "best.safetensors")
    names = list(weights)
    here = np.flatnonzero(kept["fold"] == 2)
    x = train.inputs(here)
    for weight, bias in zip(names[::2], names[1::2], strict=True):  # the network, in NumPy
        x = x @ np.asarray(weights[weight].numpy()).T + weights[bias].numpy() if weight.endswith("weight") else x
        x = np.maximum(x, 0) if weight != names[-2] else x
    shares = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(kept["probabilities"][here], shares / shares.sum(1, keepdims=True), atol=1e-5)
    assert np.mean(kept["probabilities"].argmax(1) == kept["true"]) == pytest.approx(
        state["metrics"]["accuracy"]["mean"], abs=0.02
    )
    rows = (folder / "out_of_fold.csv").read_text().splitlines()
    assert len(rows) == 91
    assert rows[1].split(",")[:4] == ["0", str(kept["fold"][0]), "", str(kept["true"][0])]
    assert json.loads((runs[0] / "annotations.json").read_text())["group"] == "cv"


@pytest.mark.parametrize("kind", ["numbers", "classes"])
def test_numbers_and_several_classes(kind: str, tmp_path: Path) -> None:
    blobs(tmp_path / "blobs.npz", kind)
    folder = cross_validate(settings(tmp_path), 2)
    with np.load(folder / "out_of_fold.npz") as file:
        found = file["probabilities" if kind == "classes" else "numbers"]
        assert found.shape == file["true"].shape
        assert np.isfinite(found).all()
    assert set(read_folds(folder)["metrics"]) == (
        {"loss", "mae"} if kind == "numbers" else {"loss", "binary_accuracy", "f1"}
    )


class Killed(BaseException):
    pass


def test_a_killed_cross_validation_repeats_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs(tmp_path / "blobs.npz")
    whole = cross_validate(settings(tmp_path, runs=str(tmp_path / "whole")), 2)

    def kill_the_second(job: JobRecord) -> None:
        if job.settings["fold"] == "2/2":
            raise Killed

    monkeypatch.setattr(InProcess, "before", staticmethod(kill_the_second))
    with pytest.raises(Killed):
        cross_validate(settings(tmp_path), 2)
    (folder,) = (tmp_path / "runs" / "folds").iterdir()
    with pytest.raises(UserError, match="finished is required"):
        fold_runs(folder)
    (first,) = (tmp_path / "runs" / "classify").iterdir()
    before = {path: path.read_bytes() for path in first.rglob("*") if path.is_file()}
    started: list[str] = []
    monkeypatch.setattr(InProcess, "before", staticmethod(lambda job: started.append(job.settings["fold"])))
    assert cross_validate(settings(tmp_path), 2) == folder
    assert started == ["2/2"]
    assert {path: path.read_bytes() for path in before} == before
    assert (folder / "out_of_fold.npz").read_bytes() == (whole / "out_of_fold.npz").read_bytes()
    assert cross_validation._unfinished(settings(tmp_path), 2) is None, "a finished one is not continued"


def test_a_fold_that_fails_is_named_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs(tmp_path / "blobs.npz")
    hidden = tmp_path / "hidden.npz"

    def lose_the_data(job: JobRecord) -> None:
        if job.settings["fold"] == "2/2":
            (tmp_path / "blobs.npz").rename(hidden)

    monkeypatch.setattr(InProcess, "before", staticmethod(lose_the_data))
    with pytest.raises(RunError, match="1 fold of 2 ended without a result. Fold 2 is failed"):
        cross_validate(settings(tmp_path, name="cv"), 2)
    hidden.rename(tmp_path / "blobs.npz")
    monkeypatch.setattr(InProcess, "before", staticmethod(lambda job: None))
    assert cli.main(["resume", str(tmp_path / "runs" / "folds" / "cv")]) == 0
    assert read_folds(tmp_path / "runs" / "folds" / "cv")["done"]


@pytest.mark.parametrize(
    ("given", "folds", "said"),
    [
        ({}, 1, "2 folds or more"),
        ({}, 31, "got 31 folds, and class 0 has 30 examples"),
        ({"fold": "1/2"}, 2, "Leave one out"),
        ({"overfit": 2}, 2, "a whole training is required"),
        ({"name": "a/b"}, 2, "one word without slashes"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(
    given: dict[str, Any], folds: int, said: str, tmp_path: Path
) -> None:
    blobs(tmp_path / "blobs.npz")
    with pytest.raises(UserError) as error:
        cross_validate(settings(tmp_path, **given), folds)
    assert said in error.value.message
    assert not (tmp_path / "runs").exists()


def test_a_name_with_other_settings_or_that_is_finished_is_refused(tmp_path: Path) -> None:
    blobs(tmp_path / "blobs.npz")
    known = settings(tmp_path, name="cv")
    folder = cross_validation._new(known, 2, job_of("train", known))
    with pytest.raises(UserError, match="got other values of epochs"):
        cross_validate(settings(tmp_path, name="cv", epochs=2), 2)
    with pytest.raises(UserError, match="got other values of folds"):
        cross_validate(known, 3)
    (folder / "folds.json").write_text(json.dumps({**read_folds(folder), "done": True}))
    with pytest.raises(UserError, match="is finished. Give another name"):
        cross_validate(known, 2)


def test_texts_are_refused(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("the quick brown fox " * 100)
    with pytest.raises(UserError, match="got a text"):
        cross_validate(settings(tmp_path, data=str(tmp_path / "words.txt"), model=None, length=16), 2)


def test_jobs_without_folds(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "digits", "jobs=2"]) == 2
    assert "Add folds=5" in capsys.readouterr().err


@pytest.mark.slow
def test_processes_that_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command and the process of one fold are killed; the other fold's process goes on. The same command ends both."""
    monkeypatch.undo()
    blobs(tmp_path / "blobs.npz")
    words = [
        f"{name}={value}" for name, value in settings(tmp_path).items() if name in ("data", "model", "rate", "runs")
    ]
    command = [sys.executable, "-m", "weft", "train", *words, "epochs=300", "folds=2", "jobs=2", "name=cv"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    jobs = tmp_path / "runs" / "folds" / "cv" / ".jobs"
    limit = time.monotonic() + 60
    while not (tmp_path / "runs" / "classify" / "cv-fold2" / "metrics.csv").exists():
        assert time.monotonic() < limit
        time.sleep(0.05)
    worker = json.loads((jobs / "2" / ".lock").read_text())["pid"]
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    os.kill(worker, signal.SIGKILL)
    assert subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode == 0
    assert all(JobRecord(jobs / number).state.state == DONE for number in ("1", "2"))
    assert all(len((run / "metrics.csv").read_text().splitlines()) == 301 for run in fold_runs(jobs.parent))
