"""Checks jobs in processes of their own: states, queue, cancel, pause, resume, events that are followed and replayed."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from weft.errors import UserError
from weft.io import load
from weft.jobs.events import Event, Recorder, follow, replay
from weft.jobs.record import JobRecord
from weft.jobs.runner import Runner
from weft.jobs.schema import validated
from weft.jobs.settings import SETTINGS
from weft.jobs.training import train

QUICK = {"data": "digits", "model": "logistic_regression", "epochs": 2, "schedule": "constant"}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def test_a_job_runs_in_a_process_of_its_own_and_its_events_can_be_followed(root: Path) -> None:
    runner = Runner(root)
    job = runner.submit(QUICK)
    live = [event.type for event in job.follow()]
    assert runner.wait(job) == "done"
    assert job.state.run == str(root / "classify" / "digits-logistic_regression-1")
    assert [kind for kind in live if kind in ("state", "run", "epoch", "result")] == [
        "state", "state", "run", "state", "epoch", "epoch", "result", "state",
    ]  # fmt: skip
    assert live == [event.type for event in job.events()], "what is replayed is what was followed"
    kept = [event.type for event in replay(job.state.run)]
    assert {"log", "run", "started", "epoch", "ended", "result"} <= set(kept)
    assert (job.folder / "output.txt").read_text() == "", "nothing in a job prints"
    assert [one.folder for one in runner.jobs()] == [job.folder]
    with pytest.raises(UserError, match="stopped or has failed is required, got one that is done"):
        runner.resume(job)


def first_epoch(job: JobRecord) -> None:
    for event in job.follow():
        if event.type == "epoch":
            return
    raise AssertionError(f"there was no epoch: {job.state}")


def test_a_job_is_paused_and_ends_with_the_same_bits(root: Path) -> None:
    runner = Runner(root)
    job = runner.submit({**QUICK, "epochs": 150, "name": "paused"})
    waiting = runner.submit({**QUICK, "name": "second"})
    first_epoch(job)
    assert waiting.state.state == "waiting"
    runner.cancel(waiting)
    assert (waiting.state.state, waiting.state.why) == ("stopped", "cancelled")
    runner.pause(job)
    assert runner.wait(job) == "stopped"
    assert job.state.why == "paused"
    done = len((root / "classify" / "paused" / "metrics.csv").read_text().splitlines()) - 1
    assert done < 150
    runner.resume(job)
    assert runner.wait(job) == "done"
    train(validated("train", {**QUICK, "epochs": 150, "name": "whole", "runs": str(root)}, SETTINGS))
    ends = [load(root / "classify" / name / "weights" / "last.safetensors") for name in ("paused", "whole")]
    for name, tensor in ends[0].items():
        np.testing.assert_array_equal(tensor.numpy(), ends[1][name].numpy())


def test_a_job_fails_with_a_reason(root: Path) -> None:
    runner = Runner(root)
    job = runner.submit({**QUICK, "data": "nowhere-at-all"})
    assert runner.wait(job) == "failed"
    assert "nowhere-at-all" in job.state.why
    killed = runner.submit({**QUICK, "epochs": 100_000})
    first_epoch(killed)
    os.kill(runner._processes[killed.folder].pid, signal.SIGKILL)
    assert runner.wait(killed) == "failed"
    assert killed.state.why == "its process was ended by SIGKILL"


def test_settings_are_checked_before_a_job_is_made(root: Path) -> None:
    runner = Runner(root)
    for wrong in (
        {"epoch": 3},
        {"epochs": 0},
        {"model": "lenett"},
        {"optimizer": "adam", "momentum": 0.9},
        {"data": None},
    ):
        with pytest.raises(UserError):
            runner.submit({**QUICK, **wrong})
    assert not root.exists()


# --- events -----------------------------------------------------------------------------------------------------------------------


def test_events_from_before_the_folder_are_kept_too(tmp_path: Path) -> None:
    heard: list[Event] = []
    recorder = Recorder(heard.append)
    recorder.log("early")
    recorder.begin(tmp_path)
    recorder.show("progress", what="x", done=1, total=2)
    recorder.send("run", folder="x", notes=["a"], loss=float("nan"))
    assert [event.type for event in heard] == ["log", "progress", "run"]
    kept = list(replay(tmp_path))
    assert [event.type for event in kept] == ["log", "run"]
    assert kept[0]["text"] == "early"
    assert kept[1].facts == {"folder": "x", "notes": ["a"], "loss": "nan"}


def test_a_line_that_is_not_complete_is_left_for_later(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"type": "log", "time": 1, "text": "a"}\nnonsense\n{"type": "lo')
    assert [event["text"] for event in replay(tmp_path)] == ["a"]
    begin = time.monotonic()
    ends = iter([False, True])
    found = []
    for event in follow(tmp_path, lambda: next(ends)):
        found.append(event["text"])
        path.write_text('{"type": "log", "time": 1, "text": "a"}\nnonsense\n{"type": "log", "time": 2, "text": "b"}\n')
    assert found == ["a", "b"]
    assert time.monotonic() - begin < 10
