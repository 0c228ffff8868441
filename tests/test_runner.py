"""Checks the queue of jobs: states on disk, processes that are stopped and killed, the same result after a pause, events."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import weft
from weft import locks
from weft.cli import main
from weft.errors import UserError
from weft.io import load
from weft.jobs import JobQueue, JobRecord, Runner, submit
from weft.jobs.events import Event, Recorder, follow, latest, replay
from weft.jobs.queue import runner as runner_module
from weft.jobs.queue.schedule import change_schedule
from weft.jobs.schema import validated
from weft.jobs.settings import SETTINGS
from weft.jobs.training import train
from weft.locks import lock_holder, one_writer
from weft.train.folder import RunFolder

QUICK = {"data": "digits", "model": "logistic_regression", "epochs": 2, "schedule": "constant"}
LONG = {**QUICK, "epochs": 100_000}


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobQueue:
    monkeypatch.chdir(tmp_path)
    return JobQueue("runs")


@contextmanager
def running(*words: str) -> Iterator[subprocess.Popen[str]]:
    """`weft job run` in a process of its own, which has ended afterwards."""
    environment = {**os.environ, "PYTHONPATH": str(Path(weft.__file__).parent.parent)}
    command = [sys.executable, "-m", "weft", "job", "run", *words]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def first_epoch(job: JobRecord) -> None:
    for event in job.follow():
        if event.type == "epoch":
            return
    raise AssertionError(f"there was no epoch: {job.state}")


def process_of(job: JobRecord) -> int:
    holder = lock_holder(job.folder)
    assert holder is not None
    return holder.pid


def test_a_job_runs_in_a_process_of_its_own_and_its_events_can_be_followed(queue: JobQueue) -> None:
    job = submit(queue, QUICK)
    runner = threading.Thread(target=Runner(queue).run)
    runner.start()
    live = [event.type for event in job.follow()]
    runner.join()
    assert job.state.state == "done"
    assert job.state.run == str(queue.root / "classify" / "digits-logistic_regression-1")
    assert [kind for kind in live if kind in ("state", "run", "epoch", "result")] == [
        "state", "state", "run", "state", "epoch", "epoch", "result", "state",
    ]  # fmt: skip
    assert live == [event.type for event in job.events()], "what is replayed is what was followed"
    kept = [event.type for event in replay(job.state.run)]
    assert {"log", "run", "started", "epoch", "ended", "result"} <= set(kept)
    assert (job.folder / "output.txt").read_text() == "", "nothing in a job prints"
    assert [one.folder for one in queue.jobs()] == [job.folder]
    with pytest.raises(UserError, match="stopped or has failed is required, got job 1, which is done"):
        queue.resume(job)
    with pytest.raises(UserError, match="waiting or running is required, got job 1, which is done"):
        queue.cancel(job)


def test_a_job_that_another_process_pauses_ends_with_the_same_bits(queue: JobQueue) -> None:
    job = submit(queue, {**QUICK, "epochs": 40, "name": "paused"})
    with running() as runner:
        first_epoch(job)
        with pytest.raises(UserError, match=f"process {runner.pid} runs the jobs in .* already"):
            Runner(queue).run()
        queue.pause(job)
        queue.pause(job)  # asked twice, it still writes its checkpoint
        said, _ = runner.communicate()
    assert (job.state.state, job.state.why) == ("stopped", "paused")
    assert "job 1 is stopped: paused; continue it with: weft job resume 1" in said
    done = len((queue.root / "classify" / "paused" / "metrics.csv").read_text().splitlines()) - 1
    assert done < 40
    queue.resume(job)
    Runner(queue).run()
    assert job.state.state == "done"
    train(validated("train", {**QUICK, "epochs": 40, "name": "whole", "runs": str(queue.root)}, SETTINGS))
    ends = [load(queue.root / "classify" / name / "weights" / "last.safetensors") for name in ("paused", "whole")]
    for name, tensor in ends[0].items():
        np.testing.assert_array_equal(tensor.numpy(), ends[1][name].numpy())


def test_a_killed_job_has_failed_and_the_next_one_starts(queue: JobQueue, capsys: pytest.CaptureFixture[str]) -> None:
    killed, after = submit(queue, LONG), submit(queue, {**QUICK, "epochs": 1, "data": "nowhere-at-all"})
    change_schedule(killed.folder, lambda known: replace(known, losses=runner_module.ATTEMPTS - 1))
    with running():
        first_epoch(killed)
        assert after.state.state == "waiting"
        os.kill(process_of(killed), signal.SIGKILL)
        assert queue.wait(after, 60).state == "failed"
    assert "nowhere-at-all" in after.state.why
    assert (killed.state.state, killed.state.why) == (
        "failed",
        "its process ended with signal SIGKILL, for the 3. time",
    )
    assert main(["job", "follow", "1"]) == 1
    said = capsys.readouterr()
    assert "epoch      1/100000" in said.out
    assert (
        "[weft job follow] job 1 failed: its process ended with signal SIGKILL, for the 3. time; continue it with: weft job resume 1"
        in said.err
    )
    assert queue.resume(killed).state.state == "waiting"


def test_jobs_outlive_a_killed_runner_and_go_back_to_the_queue_of_one_that_is_terminated(queue: JobQueue) -> None:
    job, second = submit(queue, LONG), submit(queue, QUICK)
    with running() as runner:
        first_epoch(job)
        runner.kill()
    assert queue.runner() is None
    assert (job.state.state, second.state.state) == ("running", "waiting")
    with running("stay=true") as runner:  # counts the job that runs already
        while queue.runner() is None:
            time.sleep(0.05)
        queue.cancel(job)
        first_epoch(second)
        assert (job.state.state, job.state.why) == ("stopped", "cancelled")
        assert queue.wait(second, 60).state == "done"
        third = submit(queue, LONG)
        first_epoch(third)
        runner.terminate()
        assert runner.wait(60) == 143
    assert (third.state.state, third.state.why) == ("waiting", "requeued")
    assert third.state.run is not None
    assert (Path(third.state.run) / "state" / "last.safetensors").exists()


# --- states that no process can record any more ---------------------------------------------------------------------------------


def claimed(queue: JobQueue) -> JobRecord:
    job = queue.add({**QUICK, "name": None})
    assert job.claim() is not None
    return job


@pytest.mark.parametrize("stale", [{"boot": "an earlier one"}, {"began": 1}, {"pid": 2**22 + 1}])
def test_a_job_of_a_process_that_is_gone_has_failed(queue: JobQueue, stale: dict[str, object]) -> None:
    job = claimed(queue)
    with one_writer(job.folder):
        assert job.state.state == "running"
        lock = json.loads((job.folder / locks.NAME).read_text())
    (job.folder / locks.NAME).write_text(json.dumps({**lock, **stale}))
    assert (job.state.state, job.state.why[:31]) == ("failed", "its process ended without a res")
    queue.resume(job)
    assert job.state.state == "waiting"


def test_a_job_of_another_machine_runs_and_is_stopped_there(queue: JobQueue) -> None:
    job = claimed(queue)
    (job.folder / locks.NAME).write_text(json.dumps({"pid": 1, "host": "node7", "began": 1}))
    assert job.state.state == "running"
    with pytest.raises(UserError, match="job 1 runs on node7: stop it there"):
        queue.cancel(job)


@pytest.mark.parametrize(
    ("request_", "state"), [("paused", "stopped"), ("cancelled", "stopped"), ("requeued", "waiting")]
)
def test_a_process_that_ends_before_it_can_record_a_request(queue: JobQueue, request_: str, state: str) -> None:
    job = claimed(queue)
    (job.folder / "request").write_text(request_)
    assert (job.state.state, job.state.why) == (state, request_)


def test_a_waiting_job_is_cancelled_at_once_and_cannot_be_claimed(queue: JobQueue) -> None:
    job = queue.add(QUICK)
    queue.pause(job)
    assert (job.state.state, job.state.why) == ("stopped", "paused")
    queue.cancel(job)
    assert (job.state.state, job.state.why) == ("stopped", "cancelled")
    assert job.claim() is None
    with pytest.raises(UserError, match="which is stopped"):
        queue.cancel(job)


def test_a_second_cancel_ends_the_process_at_once(queue: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    job = claimed(queue)
    with one_writer(job.folder):
        queue.pause(job)
        queue.pause(job)
        assert sent == [(os.getpid(), signal.SIGTERM)]
        queue.cancel(job)  # the signal was sent: only the reason changes
        assert job.request == "cancelled"
        assert len(sent) == 1
        queue.cancel(job)
        assert len(sent) == 2


def test_a_process_that_cannot_start_or_ends_with_a_code(queue: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    gone, broken = queue.add(QUICK), queue.add(QUICK)
    (gone.folder / "job.json").write_text(json.dumps({"settings": QUICK, "folder": str(queue.root / "gone")}))
    monkeypatch.setattr(runner_module, "sys", SimpleNamespace(executable="false"))
    Runner(queue).run()
    assert gone.state.state == "failed"
    assert gone.state.why.startswith("it could not be started")
    assert broken.state.why == f"its process ended with code 1; see {broken.folder / 'output.txt'}"


@pytest.mark.parametrize("content", ["{", "", "[]", "{}", '{"state": 3, "why": "", "run": null, "time": 0}', "\udc80"])
def test_a_damaged_job_does_not_stop_the_others(
    queue: JobQueue, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, other = queue.add(QUICK), queue.add(QUICK)
    (bad.folder / "state.json").write_bytes(content.encode(errors="surrogateescape"))
    (other.folder / "job.json").write_bytes(content.encode(errors="surrogateescape"))
    assert bad.state.state == "failed"
    assert "state.json" in bad.state.why
    assert main(["job", "list"]) == 0
    submit(queue, {**QUICK, "epochs": 1, "name": "mine"})
    if content == "{":
        Runner(queue).run()
        assert [job.state.state for job in queue.jobs()] == ["failed", "failed", "done"]
        assert "job.json" in other.state.why
        queue.resume(bad)
        assert bad.state.state == "waiting"


def test_a_job_that_is_just_created(queue: JobQueue) -> None:
    queue.add(QUICK)
    (queue.folder / "7").mkdir()  # somebody is just creating it
    assert [one.number for one in queue.jobs()] == [1]
    with pytest.raises(UserError, match=r"there is no job 7 in .*\. Jobs: 1\."):
        queue.job(7)


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "../x", "a\nb", "x" * 201])
def test_names_of_runs_are_folders_of_their_own(queue: JobQueue, name: str) -> None:
    """`name=.. exist_ok=true` replaced the folder of all runs."""
    (queue.root / "classify" / "precious").mkdir(parents=True)
    (queue.root / "args.yaml").write_text("")
    for given in ({**QUICK, "name": name}, {**QUICK, "name": name, "exist_ok": True}):
        with pytest.raises(UserError, match="one word without slashes"):
            submit(queue, given)
    with pytest.raises(UserError, match="one word without slashes"):
        RunFolder.named(queue.root / "classify", name, exist_ok=True)
    assert (queue.root / "classify" / "precious").is_dir()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"epochs": "5.5"}, "epochs=5.5 cannot be used: it must be a whole number"),
        ({"epochs": ""}, "epochs= cannot be used: it must be a whole number"),
        ({"rate": "fast"}, "rate=fast cannot be used: it must be a number"),
        ({"size": "axb"}, "size=axb cannot be used: it must be a size such as 28"),
        ({"size": "28x"}, "size=28x cannot be used: it must be a size such as 28"),
        ({"weights": "nope.onnx"}, "there is no file nope.onnx"),
    ],
)
def test_wrong_values_are_explained_in_words(queue: JobQueue, setting: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        submit(queue, {**QUICK, **setting})


def test_settings_are_checked_before_a_job_is_made(queue: JobQueue) -> None:
    for wrong in (
        {"epoch": 3},
        {"epochs": 0},
        {"model": "lenett"},
        {"optimizer": "adam", "momentum": 0.9},
        {"data": None},
    ):
        with pytest.raises(UserError):
            submit(queue, {**QUICK, **wrong})
    assert not queue.root.exists()
    submit(queue, {**QUICK, "name": "mine"})
    with pytest.raises(UserError, match="a name that is not taken is required, got 'mine', the name of job 1"):
        submit(queue, {**QUICK, "name": "mine"})


# --- the command line -------------------------------------------------------------------------------------------------------------


def test_jobs_from_the_command_line(queue: JobQueue, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*words: str, code: int = 0) -> str:
        assert main(["job", *words]) == code
        found = capsys.readouterr()
        return found.out if code == 0 else found.err

    assert said("list") == "there are no jobs in runs; weft job submit adds one.\n"
    settings = ("digits", "model=logistic_regression", "epochs=1")
    assert said("submit", *settings) == "job 1 is waiting; start the queue with: weft job run\n"
    assert json.loads(said("submit", *settings, "--json"))["job"] == 2
    assert said("pause", "2") == "job 2 is stopped: paused; continue it with: weft job resume 2\n"
    assert said("cancel", "2") == "job 2 is stopped: cancelled; continue it with: weft job resume 2\n"
    assert "job 1 is done; its run is runs/classify/digits-logistic_regression-1" in said("run")
    assert said("resume", "2") == "job 2 is waiting\nstart the queue with: weft job run\n"
    shown = said("list")
    assert [line.split()[:5] for line in shown.splitlines()[2:4]] == [
        ["1", "done", "digits", "logistic_regression", "1/1"],
        ["2", "waiting", "digits", "logistic_regression", *shown.splitlines()[3].split()[4:5]],
    ]
    assert [one["state"] for one in json.loads(said("list", "--json"))] == ["done", "waiting"]
    assert [json.loads(line)["type"] for line in said("follow", "1", "--json").splitlines()][-2:] == ["result", "state"]
    assert "the number of a job is required" in said("pause", code=2)
    assert "there is no job 9" in said("cancel", "9", code=2)
    assert "there is no job x" in said("follow", "x", code=2)


def test_a_list_of_jobs_fits_into_80_columns_without_colours(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    job = queue.add({**QUICK, "data": "a-long-name-of-a-folder/with-another"})
    job.set("failed", "a long reason " * 9, run=str(queue.root / "classify" / "a-long-name-of-a-run-1"))
    assert main(["job", "list"]) == 0
    said = capsys.readouterr().out
    assert "\x1b[3" not in said, "no colours"
    lines = re.sub(r"\x1b\[[0-9;]*m", "", said).splitlines()  # bold titles are no colours
    assert max(map(len, lines[:-1])) <= 80
    assert lines[-1].startswith("job 1 failed: a long reason")


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


def test_the_latest_event_is_found_at_the_end_of_a_long_file(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.begin(tmp_path)
    assert latest(tmp_path, "epoch") is None
    for epoch in range(3000):
        recorder.send("epoch", epoch=epoch)
    recorder.log("end")
    found = latest(tmp_path, "epoch", "progress")
    assert found is not None
    assert found["epoch"] == 2999


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
