"""Checks how a training ends before its time: SIGTERM, two writers of one run, and what is left of a run that was killed."""

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from test_cli_settings import photos
from weft import data, nn, train
from weft import locks as lock
from weft.cli import main
from weft.errors import RunError
from weft.io import load
from weft.locks import one_writer
from weft.signals import Terminated
from weft.train.state import Training

X = np.random.default_rng(0).normal(size=(96, 4)).astype(np.float32)
Y = (X.sum(axis=1) > 0).astype(np.int64)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8, activation="relu"), nn.Dropout(0.1), nn.Linear(8, 2))


def fitted(folder: Path | None = None, **settings: Any) -> train.Result:
    import weft

    weft.seed(1)
    return train.fit(network(), data.Arrays(X, Y), batch=16, rate=1e-2, folder=folder, **{"epochs": 3, **settings})


def weights(folder: Path) -> dict[str, bytes]:
    return {name: t.numpy().tobytes() for name, t in load(folder / "weights" / "last.safetensors").items()}


def terminate_at(step: int) -> Any:
    def look(now: train.Now) -> None:
        if (now.epoch - 1) * now.steps + now.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    return look


# --- SIGTERM ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 6, 18])  # the first, the last of an epoch, the very last
def test_sigterm_finishes_the_step_and_keeps_it(step: int, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        fitted(tmp_path / "run", on_step=terminate_at(step))
    assert ended.value.code == 143
    assert isinstance(ended.value, Terminated)
    assert signal.getsignal(signal.SIGTERM) is before
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["ended"] == "it was terminated"
    result = fitted(tmp_path / "run", resume=True)
    assert result.ended == "all epochs are done"
    fitted(tmp_path / "whole")
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")


def test_sigterm_while_the_last_epoch_is_measured_is_not_forgotten(tmp_path: Path) -> None:
    with pytest.raises(Terminated):
        fitted(tmp_path, on_epoch=lambda row: os.kill(os.getpid(), signal.SIGTERM) if row["epoch"] == 3 else None)


def test_a_resumed_run_goes_on_counting_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of the time is one of the whole run, however often it was stopped."""
    fitted(tmp_path / "run", epochs=1)
    load = Training.load

    def loaded(training: Training, path: Path) -> None:
        load(training, path)
        assert 0.0 < training.seconds < 1000.0
        training.seconds += 1000.0

    monkeypatch.setattr(Training, "load", loaded)
    result = fitted(tmp_path / "run", resume=True, max_seconds=1000.0)
    assert result.ended == "the time is over"


def test_a_handler_of_the_user_stays(tmp_path: Path) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        assert fitted(on_step=terminate_at(2)).ended == "all epochs are done"
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [signal.SIGTERM]


def test_in_another_thread_no_handler_is_touched(tmp_path: Path) -> None:
    handlers: list[Any] = []
    thread = threading.Thread(
        target=lambda: fitted(tmp_path, on_step=lambda now: handlers.append(signal.getsignal(signal.SIGTERM)))
    )
    thread.start()
    thread.join()
    assert len(handlers) == 18
    assert set(handlers) == {signal.getsignal(signal.SIGTERM)}


IMPATIENT = """
import os, signal, sys
sys.path.insert(0, {tests!r})
import test_stopping
def look(now):
    if now.step == 3:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        print("it went on", flush=True)
test_stopping.fitted(test_stopping.Path({folder!r}), on_step=look, save_seconds=0.0)
"""


def test_a_second_sigterm_ends_the_process_at_once(tmp_path: Path) -> None:
    code = IMPATIENT.format(tests=str(Path(__file__).parent), folder=str(tmp_path / "run"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -signal.SIGTERM
    assert done.stdout == ""
    assert fitted(tmp_path / "run", resume=True).ended == "all epochs are done"  # and its lock does not stay


# --- one writer ---------------------------------------------------------------------------------------------------------------


def test_a_second_writer_is_told_who_the_first_is(tmp_path: Path) -> None:
    """Python API: another thread of this process is another writer too."""
    refused: list[str] = []

    def second() -> None:
        try:
            fitted(tmp_path / "run", resume=True)
        except RunError as error:
            refused.append(error.message)

    def look(now: train.Now) -> None:
        if now.step == 2 and not refused:
            thread = threading.Thread(target=second)
            thread.start()
            thread.join()

    fitted(tmp_path / "run", on_step=look)
    assert len(refused) == 1
    assert f"process {os.getpid()} on {socket.gethostname()} is writing to {tmp_path / 'run'}" in refused[0]
    assert not (tmp_path / "run" / lock.NAME).exists()
    fitted(tmp_path / "run", resume=True)


def test_the_text_of_a_dead_process_does_not_block(tmp_path: Path) -> None:
    for owner in (
        {"pid": 2**22 + 1, "host": socket.gethostname(), "began": 5},
        {"pid": os.getpid(), "host": "elsewhere"},
    ):
        (tmp_path / lock.NAME).write_text(json.dumps(owner))
        with one_writer(tmp_path), one_writer(tmp_path):  # the holder may ask again
            assert json.loads((tmp_path / lock.NAME).read_text())["pid"] == os.getpid()
    (tmp_path / lock.NAME).write_text("damaged")
    with one_writer(tmp_path):
        pass


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the text decides: a process that runs, or one of another machine, which cannot be asked."""

    def no_locks(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with one_writer(tmp_path):
        text = (tmp_path / lock.NAME).read_text()
    me = json.loads(text)
    for owner, refused in (
        (me, True),
        ({**me, "began": me["began"] - 1}, False),  # its number is used again
        ({**me, "pid": 2**22 + 1}, False),
        ({**me, "host": "node7"}, True),
    ):
        (tmp_path / lock.NAME).write_text(json.dumps(owner))
        if refused:
            with (
                pytest.raises(RunError, match=f"process {owner['pid']} on {owner['host']}.*delete"),
                one_writer(tmp_path),
            ):
                pass
        else:
            with one_writer(tmp_path):
                pass


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    ready, done = os.pipe(), os.pipe()
    with one_writer(tmp_path):
        child = os.fork()
        if child == 0:
            os.write(ready[1], b"1")
            os.read(done[0], 1)
            os._exit(0)
        os.read(ready[0], 1)
    try:
        with one_writer(tmp_path):
            pass
    finally:
        os.write(done[1], b"1")
        os.waitpid(child, 0)


# --- the command line -----------------------------------------------------------------------------------------------------------


def started(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "weft", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    while not path.exists() and process.poll() is None:
        time.sleep(0.01)


def test_kill_resume_twice_and_terminate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    long = ["model=logistic_regression", "schedule=constant", "epochs=100000"]
    run = tmp_path / "runs" / "classify" / "digits-logistic_regression-1"
    first = started("train", "digits", *long)
    wait_for(run / "metrics.csv", first)
    assert main(["resume", str(run)]) == 1
    assert f"process {first.pid} on {socket.gethostname()} is writing to {run}" in capsys.readouterr().err
    assert main(["runs", "list"]) == 0
    assert f"running: process {first.pid}" in capsys.readouterr().out
    first.kill()
    first.communicate()
    assert main(["runs", "list"]) == 0
    assert "not finished" in capsys.readouterr().out
    (run / "metrics.csv").unlink()
    second = started("resume", str(run))
    wait_for(run / "metrics.csv", second)
    second.send_signal(signal.SIGTERM)
    said = second.communicate()[0]
    assert second.returncode == 143
    assert f"terminated; continue with: weft resume {run}" in said
    done = len((run / "metrics.csv").read_text().splitlines()) - 1
    assert main(["resume", str(run), f"epochs={done + 1}"]) == 0


def test_terminated_before_the_run_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from weft.jobs.job import Job

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Job, "model", lambda job: os.kill(os.getpid(), signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    assert main(["train", "digits", "model=mlp", "--json"]) == 143
    assert json.loads(capsys.readouterr().out) == {"type": "stopped", "why": "terminated", "folder": None}
    assert main(["train", "digits", "model=mlp"]) == 143
    said = capsys.readouterr()
    assert "terminated; no run was created" in said.out
    assert "weft: terminated" in said.err
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    "words", [["dataset", "create", "photos", "made", "size=8"], ["train", "photos", "size=8", "epochs=1"]]
)
def test_terminated_while_a_dataset_is_made(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from weft.cli.display import Display
    from weft.knobs import knobs

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(knobs, "data", str(tmp_path / "data"))
    photos(tmp_path / "photos", count=8)
    with monkeypatch.context() as patched:
        patched.setattr(Display, "bar", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        assert main(words) == 143
    said = capsys.readouterr()
    assert "the part of the dataset that was created is kept; the same command continues from there" in said.err
    assert not (tmp_path / "runs").exists()
    assert main([*words, "model=logistic_regression"] if words[0] == "train" else words) == 0


def test_two_trainings_of_one_name_have_folders_of_their_own(tmp_path: Path) -> None:
    names = [train.RunFolder.fresh(tmp_path, "r1").path.name for _ in range(2)]
    assert names == ["r1-1", "r1-2"]
