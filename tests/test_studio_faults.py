"""Breaks a studio in the middle of its work: killed servers, databases that are locked or damaged, full disks, jobs that die, hostile values."""

from __future__ import annotations

import errno
import html
import io
import json
import os
import re
import signal
import socket
import sqlite3
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import numpy as np
import pytest
from PIL import Image

from studio_tools import LocalStudio, Server, make_run, running_studio, served_studio
from weft.errors import RunError, UserError
from weft.jobs import JobQueue, Runner, submit
from weft.jobs.queue.record import JobRecord
from weft.studio import uploads
from weft.studio.api.submission import confined
from weft.studio.config import StudioConfig
from weft.studio.library.training_form import check_form, past_speed
from weft.studio.serve import _run_jobs as run_jobs
from weft.studio.uploads import UploadStore

serving = sys.modules[run_jobs.__module__]  # weft.studio.serve is the function
EVIL = "<img src=x onerror=alert(1)>\"'"


def wait_for(what: Callable[[], Any], seconds: float = 60.0) -> Any:
    """The first true answer within some seconds."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if found := what():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen in time")


@contextmanager
def client(server: Server) -> Iterator[httpx.Client]:
    token = (server.runs / ".studio" / "token").read_text().strip()
    with httpx.Client(base_url=server.address, headers={"Authorization": f"Bearer {token}"}, timeout=30) as web:
        yield web


def images_zip(count: int) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for number in range(count):
            file = io.BytesIO()
            Image.fromarray(np.full((8, 8, 3), 10 * number % 255, np.uint8)).save(file, "PNG")
            archive.writestr(f"{'ab'[number % 2]}/{number}.png", file.getvalue())
    return packed.getvalue()


def half_upload(address: str, token: str, path: str, content: bytes) -> socket.socket:
    """Send the first half of a body and keep the connection open."""
    parts = urlsplit(address)
    connection = socket.create_connection((parts.hostname, parts.port))
    head = f"PUT {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nAuthorization: Bearer {token}\r\nContent-Length: {len(content)}\r\n\r\n"
    connection.sendall(head.encode() + content[: len(content) // 2])
    return connection


# --- the database -----------------------------------------------------------------------------------------------------------------


def test_without_its_database_a_studio_shows_runs(tmp_path: Path) -> None:
    """Another process holds the database, then the file is damaged: what does not need it works, what does says why, nothing is lost."""
    make_run(tmp_path / "runs", "one", [0.5])
    database = tmp_path / "runs" / ".studio" / "studio.sqlite"
    with served_studio(tmp_path / "runs") as started:
        started.studio.store.database.engine.dispose()
        holder = sqlite3.connect(database)
        holder.execute("PRAGMA locking_mode=EXCLUSIVE")
        holder.execute("BEGIN EXCLUSIVE")
        assert started.request("GET", "/api/v1/runs")[0] == 200
        assert started.web.get("/runs/classify/one").status_code == 200
        holder.rollback()
        holder.close()
        started.studio.store.changed()
        started.studio.store.database.engine.dispose()
        for extra in ("-wal", "-shm"):
            database.with_name(database.name + extra).unlink(missing_ok=True)
        whole = database.read_bytes()
        database.write_bytes(whole[:100] + b"\xff" * (len(whole) - 100))
        started.studio.store.changed()
        assert started.request("GET", "/api/v1/runs")[0] == 200
        assert started.web.get("/").status_code == 200
        assert httpx.get(f"{started.address}/assets/studio.css").status_code == 200
        status, answer = started.request("GET", "/api/v1/admin/users")
        assert status == 503
        assert "damaged" in answer["message"]
        assert "Runs, datasets and jobs are not in it" in answer["message"]
        page = started.web.get("/admin")
        assert page.status_code == 503
        assert "move it away" in page.text
    with pytest.raises(RunError, match="move it away"), served_studio(tmp_path / "runs"):
        pass


# --- the server is killed --------------------------------------------------------------------------------------------------------


def test_a_killed_server_goes_on_with_its_jobs_and_uploads(tmp_path: Path) -> None:
    """Killed while a training runs, a dataset waits behind it and an upload arrives; the next server ends all of them."""
    runs, packed = tmp_path / "runs", images_zip(12)
    with running_studio(runs, "largest_upload=100") as first, client(first) as web:
        upload = web.post("/api/v1/uploads").json()["upload"]
        assert web.put(f"/api/v1/uploads/{upload}/archive", content=packed).json() == {"files": 12}
        settings = {"data": "digits", "model": "mlp", "epochs": "2000", "name": "long"}
        training = web.post("/api/v1/jobs", json={"settings": settings}).json()[0]["number"]
        folder = runs / ".jobs" / str(training)
        wait_for(lambda: (runs / "classify" / "long" / "state" / "last.safetensors").exists())
        made = {"kind": "upload", "upload": upload, "name": "made", "size": "8", "validation": "25"}
        dataset = web.post("/api/v1/datasets", json=made).json()["number"]
        other = web.post("/api/v1/uploads").json()["upload"]
        token = (runs / ".studio" / "token").read_text().strip()
        sending = half_upload(first.address, token, f"/api/v1/uploads/{other}/archive", packed)
        wait_for(lambda: list((tmp_path / "datasets" / ".uploads").glob(f"{other}*.part")))
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        sending.close()
    before = _epochs(runs)
    with running_studio(runs) as again, client(again) as web:
        wait_for(lambda: JobRecord(runs / ".jobs" / str(dataset)).state.state == "done")
        assert web.get("/api/v1/datasets/made").json()["versions"]
        assert [one["name"] for one in web.get("/api/v1/runs").json()] == ["long"]
        wait_for(lambda: _epochs(runs) > before)
        assert web.put(f"/api/v1/uploads/{other}/archive", content=packed).json() == {"files": 12}
        assert web.post(f"/api/v1/jobs/{training}/stop").status_code == 200
        wait_for(lambda: JobRecord(folder).state.has_ended)
    assert JobRecord(folder).state.state == "stopped"


def _epochs(runs: Path) -> int:
    return len((runs / "classify" / "long" / "metrics.csv").read_text().splitlines())


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStudio]:
    """A studio in this process, with one run, without a runner of its queue."""
    place = tmp_path_factory.mktemp("faults")
    make_run(place / "runs", "one", [0.5, 0.8])
    (place / "outside").mkdir()
    (place / "outside" / "secret.txt").write_text("root:x:")
    with served_studio(place / "runs", roots=(place / "runs",)) as started:
        yield started


def test_an_upload_that_breaks_off_can_be_sent_again(local: LocalStudio) -> None:
    upload, content = local.request("POST", "/api/v1/uploads")[1]["upload"], b"x" * 200_000
    folder = local.studio.datasets.uploads.folder(upload)
    sending = half_upload(local.address, local.token, f"/api/v1/uploads/{upload}/files/a/1.png", content)
    wait_for(lambda: list(folder.parent.glob("*.part")))
    assert not list(folder.iterdir()), "a part of a file could be taken for an image"
    sending.close()
    wait_for(lambda: not list(folder.parent.glob("*.part")))
    sent = local.web.put(f"/api/v1/uploads/{upload}/files/a/1.png", content=content)
    assert sent.json() == {"bytes": 200_000}


def test_archives_of_a_killed_server_are_removed_in_time(tmp_path: Path) -> None:
    (tmp_path / "0123456789abcdef-0123.part").write_bytes(b"half")
    os.utime(tmp_path / "0123456789abcdef-0123.part", (1, 1))
    kept = UploadStore(tmp_path, 100).new()
    assert [path.name for path in tmp_path.iterdir()] == [kept]


def test_a_submission_that_was_cut_off_is_no_job(tmp_path: Path) -> None:
    """A process that is killed while it writes a job leaves a folder without a state: it is passed over, and its number is not used again."""
    queue = JobQueue(tmp_path)
    submit(queue, {"data": "digits", "model": "mlp", "epochs": 1, "fast_dev_run": 1})
    (tmp_path / ".jobs" / "2").mkdir()
    (tmp_path / ".jobs" / "2" / "job.json").write_text('{"kind": "tr')
    third = submit(queue, {"data": "digits", "model": "mlp", "epochs": 1, "fast_dev_run": 1})
    assert [job.number for job in queue.jobs()] == [1, 3]
    assert third.state.state == "waiting"


# --- jobs, queue and feed -----------------------------------------------------------------------------------------------------------


def test_a_job_whose_process_dies_is_shown_with_reason_and_remedy(local: LocalStudio) -> None:
    job = submit(local.studio.queue, {"data": "digits", "model": "mlp", "epochs": 2, "name": "dies"})
    job.set("failed", "its process ended with signal SIGKILL, for the 3. time")
    (ended,) = local.studio.feed.look(True).ended
    assert ended.remedy.reason == "Its process ended with signal SIGKILL, for the 3. time."
    assert "smaller batch" in ended.remedy.advice
    assert local.request("POST", f"/api/v1/jobs/{job.number}/resume")[0] == 200
    assert job.state.state == "waiting"


def test_the_queue_is_run_again_after_the_disk_was_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended, said, tries = threading.Event(), [], []

    def run(runner: Runner, stay: bool = False, ended: Any = None) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        ended.set()

    monkeypatch.setattr(Runner, "run", run)
    monkeypatch.setattr(serving, "AGAIN", 0.01)
    run_jobs(StudioConfig(tmp_path), ended, said.append)
    assert len(tries) == 2
    assert "No space left on device" in said[0]


def test_the_feed_survives_what_it_cannot_read(local: LocalStudio, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    feed = local.studio.feed
    broken = feed.subscribe(lambda snapshot: 1 / 0)
    listening = feed.subscribe(seen.append)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(feed.machine, "read", lambda: (_ for _ in ()).throw(OSError(errno.EIO, "Input/output error")))
            feed.refresh_soon()
            time.sleep(0.1)
        before = len(seen)
        feed.refresh_soon()
        wait_for(lambda: len(seen) > before, 5)
    finally:
        broken()
        listening()


def test_a_full_disk_is_said_in_a_sentence(local: LocalStudio, monkeypatch: pytest.MonkeyPatch) -> None:
    upload = local.request("POST", "/api/v1/uploads")[1]["upload"]
    monkeypatch.setattr(uploads, "SPARE", 1 << 60)
    refused = local.web.put(f"/api/v1/uploads/{upload}/files/1.png", content=b"x" * 100)
    assert refused.status_code == 400
    assert "the disk is almost full" in refused.json()["message"]

    def full(*given: Any, **settings: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(local.studio.datasets.uploads, "new", full)
    status, answer = local.request("POST", "/api/v1/uploads")
    assert status == 507
    assert "No space left on device" in answer["message"]
    assert "Free some space" in answer["message"]


# --- hostile values -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/etc", "../outside", "~", "~root", "../outside/secret.txt"])
def test_the_form_of_a_training_previews_nothing_outside_the_allowed_folders(local: LocalStudio, path: str) -> None:
    for name in ("data", "weights", "from"):
        values = {"data": "digits", "model": "mlp", name: path}
        check = check_form(values, "runs", lambda one: confined(local.studio, one))
        assert "an allowed folder is required" in check.error
        assert check.settings is None, "a preview would read it"
        status, answer = local.request("POST", "/api/v1/jobs", {"settings": values})
        assert (status, "an allowed folder is required" in answer["message"]) == (400, True)


def test_a_sweep_is_counted_before_it_is_made(local: LocalStudio) -> None:
    many = ",".join(map(str, range(1, 2001)))
    status, answer = local.request(
        "POST", "/api/v1/jobs", {"settings": {"data": "digits", "rate": many, "batch": many, "epochs": many}}
    )
    assert status == 400
    assert "at most 200 trainings at once are accepted, got 8,000,000,000" in answer["message"]


def test_a_network_of_the_studio_has_no_past_speed_yet(local: LocalStudio) -> None:
    text = "input: [1, 8, 8]\nclasses: 10\nlayers:\n  - flatten\n  - linear: {out: classes}\n"
    assert local.request("PUT", "/api/v1/designs/own_net", {"text": text})[0] == 200
    check = check_form({"data": "digits", "model": "own_net"}, str(local.studio.config.runs))
    assert not check.error
    assert check.settings is not None
    assert past_speed(local.studio.index.rows(), check.settings) is None


@pytest.mark.parametrize("path", ["a\0b", "x" * 300, "\ud800", "~nobody/x", "x" * 9000])
def test_paths_that_no_file_can_have_are_refused_in_a_sentence(local: LocalStudio, path: str) -> None:
    with pytest.raises((UserError, OSError), match=r"allowed folder is required|too long"):
        local.studio.paths.path(path)
    assert local.studio.paths.complete(path) == []


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/jobs/1/events?start=99999999999999999999999", "/api/v1/paths?typed=%00", "/api/v1/datasets/" + 300 * "x" + "/versions/1/doctor",
        "/api/v1/runs/classify/one/files/..%2f..%2f..%2foutside%2fsecret.txt", "/api/v1/runs/classify/one/files/%2e%2e/%2e%2e/%2e%2e/outside/secret.txt",
        "/api/v1/runs/classify/one/files/a%00b", "/api/v1/runs/classify/one/files//etc/passwd", "/assets/..%2fserver.py", "/assets/%2e%2e/server.py",
    ],
)  # fmt: skip
def test_hostile_addresses_are_refused_and_leak_nothing(local: LocalStudio, path: str) -> None:
    found = local.web.get(path)
    assert found.status_code < 500
    assert "root:x:" not in found.text
    assert "FastAPI" not in found.text


def test_other_sites_get_no_channel_of_a_page(local: LocalStudio) -> None:
    """A site on another port of this machine counts as the same site for cookies: its Origin tells it apart."""
    channel = "/_nicegui_ws/socket.io/?EIO=4&transport=polling"
    refused = local.web.get(channel, headers={"Origin": "http://127.0.0.1:9"})
    assert refused.status_code == 403
    assert "access-control-allow-origin" not in refused.headers
    assert local.web.get(channel, headers={"Origin": local.address}).status_code == 200


def test_names_are_text_on_every_page(local: LocalStudio) -> None:
    """What people write is never markup: names, tags, groups and notes of runs, messages of jobs, addresses of pages."""
    name = "<img src=x onerror=alert(1)>"
    if not (local.studio.config.runs / "classify" / name).exists():
        folder = make_run(local.studio.config.runs, name, [0.5])
        (folder / "log.txt").write_text(f"12:00:00 {EVIL}\n")
    local.studio.feed.look(True)
    run = quote(f"classify/{name}")
    status, _ = local.request(
        "PATCH", f"/api/v1/runs/{run}/annotations", {"tags": [EVIL], "notes": EVIL, "group": EVIL}
    )
    assert status == 200
    local.studio.feed.look(True)
    tabs = [f"/runs/{run}?tab={tab}" for tab in ("overview", "settings", "log", "files", "history")]
    for path in (
        "/",
        "/runs",
        f"/compare?runs={run}",
        f"/train?clone={run}",
        f"/train?data={quote(EVIL)}",
        f"/runs/{quote(EVIL)}",
        *tabs,
    ):
        found = local.web.get(path).text
        texts = re.findall(r'"(?:html|innerHTML)":"((?:[^"\\]|\\.)*)"', found)
        shown = [
            html.unescape(json.loads(f'"{one}"')) for one in texts
        ]  # pages carry their HTML as JSON, escaped once more
        assert shown or "<main>" in found, path
        assert not [one for one in shown or [found] if "<img src=x" in one], path


def test_numbers_that_no_database_holds_are_refused(local: LocalStudio) -> None:
    assert local.request("DELETE", "/api/v1/admin/tokens/99999999999999999999999") == (
        400, {"message": "a smaller number is required.", "where": "studio"},
    )  # fmt: skip


def test_pages_that_do_not_exist_say_so_and_lead_back(local: LocalStudio) -> None:
    for path, said in (
        ("/runs/classify/none", "There is no run classify/none."),
        ("/datasets/none", "no dataset none"),
    ):
        found = local.web.get(path)
        assert found.status_code == 404
        assert said in found.text
        assert ">Home</a>" in found.text
        assert "HTTPException" not in found.text
