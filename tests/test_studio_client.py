"""The client of a studio, and the verbs of the command line that take server=URL."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nicegui")

from studio_tools import LocalStudio, make_run, served_studio
from test_studio_use import image, lightness, run_jobs, with_weights
from weft.cli import main
from weft.errors import RunError, UserError
from weft.jobs.prediction import predictions
from weft.jobs.queue.record import JobRecord
from weft.locks import one_writer
from weft.studio import Client
from weft.studio.library import loaded


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStudio]:
    root = tmp_path_factory.mktemp("client")
    with_weights(make_run(root / "runs", "one", [0.5, 0.9]))
    make_run(root / "runs", "two", [0.4, 0.7], model="mlp")
    patch = pytest.MonkeyPatch()
    patch.setattr(loaded, "predictor_of_run", lightness)
    patch.setattr(predictions, "find_predictor", lightness)
    with served_studio(root / "runs", roots=(root,)) as served:
        yield served
    patch.undo()


@pytest.fixture
def client(local: LocalStudio) -> Iterator[Client]:
    with Client(local.address, local.token) as made:
        yield made


def test_the_client_needs_nothing_but_python() -> None:
    code = "import sys; from weft.studio import Client; print([m for m in ('fastapi', 'nicegui', 'numpy', 'httpx') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_runs_and_files(client: Client, tmp_path: Path) -> None:
    assert {run["name"] for run in client.runs()} == {"one", "two"}
    assert client.run("classify/one")["settings"]["model"] == "lenet5"
    assert client.metrics("classify/two")["validation_accuracy"] == [0.4, 0.7]
    saved = client.download("classify/one", "metrics.csv", tmp_path / "m.csv")
    assert saved.read_text().startswith("epoch,")
    with pytest.raises(UserError, match="there is no run classify/none"):
        client.run("classify/none")


def test_jobs_are_submitted_paused_resumed_and_stopped(client: Client) -> None:
    job = client.submit(data="digits", model="mlp", epochs=1, name="from-client")
    assert (job["state"], job["settings"]["epochs"]) == ("waiting", 1)
    assert client.pause(job["number"])["why"] == "paused"
    assert client.resume(job["number"])["state"] == "waiting"
    assert client.stop(job["number"])["why"] == "cancelled"
    assert [one["number"] for one in client.jobs()][-1] == job["number"]
    assert len(client.submit_all({"data": "digits", "rate": "0.1,0.03"})) == 2
    for found in client.jobs()[-2:]:
        client.stop(found["number"])
    for settings, words in (
        ({"data": "digits", "model": "lenett"}, "no network"), ({"data": "/etc"}, "allowed folder"),
        ({"data": "digits", "runs": "/tmp"}, "a setting of a training"), ({"data": "digits", "weights": "/etc/passwd"}, "allowed folder"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=words):
            client.submit(**settings)


def test_waiting_for_a_job_follows_its_events(client: Client, local: LocalStudio) -> None:
    job = client.submit(data="digits", model="mlp", epochs=1)
    record = local.studio.queue.job(job["number"])
    heard: list[dict[str, Any]] = []

    def end() -> None:
        time.sleep(0.3)
        record.set("done")
        local.studio.feed.refresh_soon()

    threading.Thread(target=end).start()
    assert client.wait(job["number"], 30, heard.append)["state"] == "done"
    assert heard[-1]["state"] == "done"
    heard.clear()
    client.wait(job["number"], 30, heard.append)  # it ended long ago, and no event tells of it
    assert [(one["type"], one["job"], one["state"]) for one in heard] == [("job", job["number"], "done")]
    waiting = client.submit(data="digits", model="mlp", epochs=1)
    with pytest.raises(RunError, match="has not ended within"):
        threading.Timer(0.3, lambda: local.studio.feed._loop.call_soon_threadsafe(local.studio.events.publish, "run", "a", {})).start()  # fmt: skip
        client.wait(waiting["number"], 0.1)
    client.stop(waiting["number"])


def test_images_are_classified(client: Client, local: LocalStudio, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(image(250))
    found = client.classify("classify/one", [tmp_path / "a.png", image(3)], top=1)
    assert [one["classes"][0]["name"] for one in found] == ["bright", "dark"]
    assert client.classify("classify/one", str(tmp_path / "a.png"))[0]["image"] == "a.png"
    assert [one["id"] for one in client.networks()] == ["classify/one"]
    batch = client.predict("classify/one", str(local.studio.paths.roots[0] / "runs" / "classify" / "one" / "weights"))
    run_jobs(local)
    assert client.prediction(batch["number"])["failed"] == 2


def test_errors_say_what_to_do(local: LocalStudio, client: Client) -> None:
    with Client(local.address, "wrong") as stranger, pytest.raises(UserError, match="a token is required"):
        stranger.runs()
    with pytest.raises(RunError, match="Is weft studio running"):
        Client("http://127.0.0.1:9", "x").runs()
    with pytest.raises(UserError, match="an address such as"):
        Client("ftp://x")
    with pytest.raises(UserError, match="no job 999"):
        client.pause(999)
    with pytest.raises(UserError, match="/docs describes the API"):
        client.get("/nothing")
    assert client.jobs() is not None, "the connection serves on after errors"


def test_certificates_are_checked() -> None:
    made = Client("https://example.com")
    assert made._connection._tls is not None
    assert made._connection._tls.check_hostname


# --- the command line -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def weft(local: LocalStudio, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.setenv("WEFT_STUDIO_TOKEN", local.token)

    def run(*words: str, code: int = 0) -> str:
        assert main([*words, f"server={local.address}"]) == code, capsys.readouterr().err
        found = capsys.readouterr()
        return found.out if code == 0 else found.err

    return run


def test_runs_elsewhere(weft: Any) -> None:
    assert "classify/two" in weft("runs", "list")
    assert {run["id"] for run in json.loads(weft("runs", "list", "--json"))} == {"classify/one", "classify/two"}
    shown = weft("runs", "show", "one")
    assert "90.00 %" in shown
    assert "lenet5" in shown
    compared = weft("runs", "compare", "one", "two")
    assert "best: one, best validation accuracy 90.00 %" in compared
    assert "a run of" in weft("runs", "show", "none", code=2)


def test_jobs_elsewhere(weft: Any, local: LocalStudio) -> None:
    assert "is waiting at" in weft("job", "submit", "digits", "model=mlp", "epochs=1")
    number = str(local.studio.queue.jobs()[-1].number)
    assert "paused" in weft("job", "pause", number)
    assert "waiting" in weft("job", "resume", number)
    assert "cancelled" in weft("job", "cancel", number)
    assert number in weft("job", "list")
    assert "the number of a job is required" in weft("job", "pause", code=2)


def test_a_training_elsewhere_is_followed(weft: Any, local: LocalStudio) -> None:
    before = len(local.studio.queue.jobs())

    def work() -> None:
        while len(local.studio.queue.jobs()) == before:
            time.sleep(0.05)
        job: JobRecord = local.studio.queue.jobs()[-1]
        with one_writer(job.folder):  # as the process of a job does: without one, the job would count as lost
            job.set("running")
            job.set("failed", "no memory")

    threading.Thread(target=work).start()
    assert "failed: no memory" in weft("train", "digits", "model=mlp", "epochs=1", code=1)


def test_predictions_elsewhere(weft: Any, tmp_path: Path) -> None:
    for name, value in (("a.png", 250), ("b.png", 5)):
        (tmp_path / name).write_bytes(image(value))
    assert [line.split(": ")[1].split()[0] for line in weft("predict", "one", str(tmp_path)).splitlines()] == [
        "bright",
        "dark",
    ]
    assert weft("predict", "one", str(tmp_path), "--csv").startswith("path,error,class,probability,class_2")
    assert "out works on local files only" in weft("predict", "one", str(tmp_path), "out=x", code=2)


def test_other_verbs_are_local(weft: Any) -> None:
    for words in (["eval", "one"], ["export", "one"], ["job", "run"], ["devices"]):
        assert "this verb works on local files only" in weft(*words, code=2)


def test_a_file_can_hold_the_token(
    weft: Any, local: LocalStudio, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WEFT_STUDIO_TOKEN")
    (tmp_path / "token").write_text(local.token + "\n")
    assert "classify/one" in weft("runs", "list", f"token={tmp_path / 'token'}")
    assert "a token is required" in weft("runs", "list", code=2)
    assert "token= requires a file" in weft("runs", "list", "token=nowhere", code=2)
