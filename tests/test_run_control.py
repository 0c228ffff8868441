"""Trains a small network and works with its run: watched examples, checkpoints, branches, more epochs, exports, history."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from weft.errors import UserError
from weft.io import load
from weft.jobs import training
from weft.jobs.checkpoints import branch_settings, branch_state, checkpoints, delete_checkpoint, keep_checkpoints
from weft.jobs.events import Event
from weft.jobs.export_job import export, exported_files, submit_export
from weft.jobs.profiles.timeline import timeline
from weft.jobs.queue.job_queue import JobQueue
from weft.jobs.queue.record import WAITING
from weft.jobs.queue.run_control import branch_run, job_of_folder, resume_run, stop_run
from weft.jobs.schema import validated
from weft.jobs.settings import SETTINGS
from weft.report.evaluation import read_evaluation
from weft.report.predictions import read_npz, read_predictions
from weft.train.thumbnails import thumbnails
from weft.train.watched import chosen_examples, read_rows


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("control") / "runs"
    given = {
        "data": "digits",
        "model": "logistic_regression",
        "epochs": 2,
        "name": "first",
        "runs": str(root),
        "keep": 2,
    }
    found = training.train(validated("test", {**given, "schedule": "constant"}, SETTINGS))
    assert found is not None
    return found


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of the run, to be changed."""
    return Path(shutil.copytree(trained, tmp_path / "runs" / "classify" / "first"))


def weights(folder: Path) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in load(folder / "weights" / "last.safetensors").items()}


def test_training_keeps_predictions_and_watches_examples(trained: Path) -> None:
    found, scores = read_predictions(trained), read_evaluation(trained)
    assert found is not None
    assert scores is not None
    assert found.split == scores["split"] == "test"
    assert scores["accuracy"] == pytest.approx(found.right.mean())
    pictures = read_npz(trained / "thumbnails.npz")
    assert set(np.flatnonzero(~found.right)) <= set(pictures["index"].tolist())
    assert pictures["images"].shape[1:] == (8, 8, 1)
    rows = read_rows(trained)
    assert [int(row["epoch"]) for row in rows] == [1] * 8 + [2] * 8
    assert len({row["true"] for row in rows}) == 8
    assert all(0 < float(row["probability"]) <= 1 for row in rows)
    assert read_npz(trained / "watched.npz")["images"].shape == (8, 8, 8, 1)


def test_watched_examples_are_of_different_classes() -> None:
    labels = np.array([0] * 50 + [1] * 3 + [2])
    assert chosen_examples(labels, 3, 6).tolist() == [0, 1, 2, 50, 51, 53]
    assert chosen_examples(np.zeros(100), 0, 5).tolist() == [0, 24, 49, 74, 99]
    assert thumbnails(np.full((1, 3, 300, 150), 7, np.uint8)).shape == (1, 75, 37, 3)


def test_checkpoints_are_listed_kept_and_deleted(run: Path) -> None:
    found = {one.name: one for one in checkpoints(run)}
    assert set(found) == {
        "state/last", "state/previous", "weights/best", "weights/last", "weights/epoch-0001", "weights/epoch-0002",
    }  # fmt: skip
    assert (found["state/last"].epoch, found["state/previous"].epoch, found["weights/last"].epoch) == (2, 1, 2)
    assert found["state/last"].is_exact
    assert found["weights/best"].value == max(one.value for one in found.values() if one.value is not None)
    for name in ("weights/best", "state/last"):
        with pytest.raises(UserError, match="stays"):
            delete_checkpoint(run, name)
    assert delete_checkpoint(run, "state/previous") == found["state/previous"].bytes
    derived = [
        run / "interpret" / "embedding-epoch-0001.npz",
        run / "evaluations" / "train-epoch-0001" / "evaluation.json",
    ]
    stays = run / "evaluations" / "train-epoch-0002"
    stays.mkdir(parents=True)
    for path in derived:
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}")
    assert keep_checkpoints(run, last=1) == ["weights/epoch-0001"]
    assert not any(path.exists() for path in derived)  # of no use without the weights
    assert stays.exists()
    with pytest.raises(UserError, match="There are: state/last"):
        delete_checkpoint(run, "nothing")


def test_a_branch_from_a_state_continues_exactly(run: Path) -> None:
    branched = branch_state(run, "state/last", "second", {"epochs": 3})
    training.resume(branched)
    training.resume(run, {"epochs": 3})
    first, second = weights(run), weights(branched)
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert [int(row["epoch"]) for row in read_rows(branched)] == [3] * 8
    assert [int(row["epoch"]) for row in read_rows(run)] == [1] * 8 + [2] * 8 + [3] * 8
    told = [(one.what, one.detail) for one in timeline(branched)]
    assert told[:2] == [("branched", "from first after epoch 2"), ("resumed", "after epoch 2, step 40")]


def test_a_branch_from_an_old_state_forgets_a_best_epoch_without_weights(run: Path) -> None:
    branched = branch_state(run, "state/previous", "older", {})
    assert len((branched / "metrics.csv").read_text().splitlines()) == 2
    assert (branched / "weights" / "last.safetensors").exists()
    with pytest.raises(UserError, match="exact state"):
        branch_state(run, "weights/best", "other", {})
    with pytest.raises(UserError, match="a new run is required"):
        branch_state(run, "state/last", "older", {})
    assert branch_settings(run, "epoch-0001", {"rate": 0.1})["weights"].endswith("weights/epoch-0001.safetensors")


def test_more_epochs_are_a_job(run: Path) -> None:
    queue = JobQueue(run.parent.parent)
    with pytest.raises(UserError, match="more than the 2 planned epochs"):
        resume_run(queue, run, 2)
    job = resume_run(queue, run, 3)
    assert (job.state.state, job.state.run, job.settings["epochs"]) == (WAITING, str(run), 3)
    with pytest.raises(UserError, match="waits already"):
        resume_run(queue, run, 4)
    training.train_or_resume(job.settings, run, lambda event: None)
    assert len((run / "metrics.csv").read_text().splitlines()) == 4
    assert "epochs: 3" in (run / "args.yaml").read_text()
    assert job_of_folder(queue, run) is not None
    stop_run(queue, run)
    assert job.state.state == "stopped"
    with pytest.raises(UserError, match="which is not"):
        stop_run(queue, run)
    assert [one.what for one in timeline(run, queue) if one.job] == ["waiting", "stopped"]


def test_a_branch_is_a_job(run: Path) -> None:
    queue = JobQueue(run.parent.parent)
    exact = branch_run(queue, run, "state/last", "exact", {"epochs": 4})
    assert exact.state.run == str(run.parent / "exact")
    fresh = branch_run(queue, run, "weights/best", "fresh", {})
    assert (fresh.state.run, fresh.settings["name"]) == (None, "fresh")


def test_an_export_is_a_job_whose_file_can_be_downloaded(run: Path) -> None:
    queue, events = JobQueue(run.parent.parent), list[Event]()
    job = submit_export(queue, run, {"to": "weft"})
    assert job.kind == "export"
    export(job.settings, None, events.append)
    assert [path.name for path in exported_files(run)] == ["first.weft"]
    assert [event.type for event in events] == ["activity", "result"]
    with pytest.raises(UserError, match="to=doc"):
        submit_export(queue, run, {"to": "doc"})
