"""Checks what the studio knows of runs and jobs, its form of a training, and who may enter."""

from __future__ import annotations

import asyncio
import json
import stat
import threading
import time
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from studio_tools import make_run
from weft.errors import UserError
from weft.jobs.queue.job_queue import JobQueue
from weft.jobs.queue.record import FAILED
from weft.jobs.sweeps.search_space import expand
from weft.locks import one_writer
from weft.studio.access import HEADERS, AccessMiddleware
from weft.studio.api.runs import inside
from weft.studio.config import StudioConfig
from weft.studio.keys import OneTimeToken, secret
from weft.studio.library.activity import activities, ended_jobs
from weft.studio.library.feed import Feed
from weft.studio.library.machine import Machine
from weft.studio.library.run_series import epoch_points, events_of
from weft.studio.library.runs import RunIndex
from weft.studio.library.schedule import QueueWatch
from weft.studio.library.training_form import check_form, trainings_of
from weft.studio.store.store import open_store
from weft.studio.ui.charts import reduced
from weft.studio.ui.rendering import render

# --- runs ---------------------------------------------------------------------------------------------------------------------


def test_the_index_reads_runs_and_reads_again_only_what_has_changed(tmp_path: Path) -> None:
    make_run(tmp_path, "one", [0.5, 0.9, 0.8])
    two = make_run(tmp_path, "two", [0.5], ended=False, epochs=4)
    index = RunIndex(tmp_path)
    assert index.refresh()
    assert not index.refresh()
    one = index.get("classify/one")
    assert one is not None
    assert (one.best, one.best_epoch, one.status, one.seconds) == (0.9, 2, "finished", 7.5)
    before = index.get("classify/two")
    assert before is not None
    assert (before.status, before.epochs, before.planned) == ("stopped", 1, 4)
    with (two / "metrics.csv").open("a") as file:
        file.write("2,40,0.3,0.3,0.7,5.0\n")
    assert index.refresh()
    assert index.get("classify/one") is one
    after = index.get("classify/two")
    assert after is not None
    assert after.last("validation_accuracy") == 0.7


def test_a_damaged_run_is_listed_with_its_problems(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "odd", [0.5, 0.6])
    (folder / "metrics.csv").write_text("epoch,validation_accuracy\n1,0.5\n2,x\n3")
    (folder / "summary.json").write_text("[1, 2]")
    (folder / "args.yaml").write_text("a: [1")
    index = RunIndex(tmp_path)
    index.refresh()
    (row,) = index.rows()
    assert row.metrics["validation_accuracy"] == [0.5, None]
    assert sorted(problem.split()[0] for problem in row.problems) == ["args.yaml", "summary.json"]


def test_a_run_that_somebody_writes_is_running(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "live", [0.5], ended=False, epochs=10)
    event = {"type": "progress", "time": time.time(), "epoch": 2, "epochs": 10, "step": 5, "steps": 20, "loss": 0.3}
    (folder / "events.jsonl").write_text(json.dumps(event) + "\n")
    index, jobs = RunIndex(tmp_path), JobQueue(tmp_path)
    with one_writer(folder):
        index.refresh()
        (found,) = activities(QueueWatch(jobs).look(), index.rows())
    assert (found.state, found.run, found.job, found.value) == ("running", "classify/live", None, 0.5)
    assert found.progress is not None
    assert found.progress.share == pytest.approx(0.125)
    assert found.progress.seconds_left == pytest.approx(2.5 * 8.75, abs=1)
    index.refresh()
    assert activities(QueueWatch(jobs).look(), index.rows()) == []


def test_jobs_are_listed_running_first_and_failed_ones_for_a_day(tmp_path: Path) -> None:
    jobs = JobQueue(tmp_path)
    waits, failed, old = (jobs.add({"data": "digits", "model": "mlp", "name": None}) for _ in range(3))
    failed.set(FAILED, "no memory")
    old.set(FAILED, "long ago")
    state = json.loads((old.folder / "state.json").read_text())
    (old.folder / "state.json").write_text(json.dumps({**state, "time": time.time() - 90_000}))
    found = activities(QueueWatch(jobs).look(), [])
    assert [(one.job, one.state, one.why) for one in found] == [
        (waits.number, "waiting", ""),
        (failed.number, "failed", "no memory"),
    ]
    assert [one.number for one in ended_jobs(QueueWatch(jobs).look().jobs, 9)] == [old.number, failed.number]
    assert [one.number for one in ended_jobs(QueueWatch(jobs).look().jobs, 1)] == [old.number]


def test_values_that_were_trained_twice_are_shown_once(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "again", [0.5, 0.6])
    steps = [(1, 10, 0.9), (1, 20, 0.8), (2, 10, 0.7), (1, 20, 0.75), (2, 10, 0.65)]
    lines = [
        json.dumps({"type": "progress", "time": 0, "epoch": e, "epochs": 2, "step": s, "steps": 20, "loss": v})
        for e, s, v in steps
    ]
    (folder / "events.jsonl").write_text("\n".join(lines) + "\n")
    index = RunIndex(tmp_path)
    index.refresh()
    x, y = events_of(folder).read().progress.series("loss", "epoch")
    assert list(zip(x.tolist(), y.tolist(), strict=True)) == [(0.5, 0.9), (1.0, 0.75), (1.5, 0.65)]
    assert epoch_points(index.rows()[0], "validation_accuracy") == [(1.0, 0.5), (2.0, 0.6)]


def test_the_feed_tells_what_changed_from_its_own_thread(tmp_path: Path) -> None:
    make_run(tmp_path, "one", [0.5])
    feed = Feed(RunIndex(tmp_path), JobQueue(tmp_path), Machine(tmp_path))
    seen: list[tuple[int, str]] = []

    async def watch() -> None:
        heard = asyncio.Event()

        def hear(snapshot: object) -> None:
            seen.append((feed.snapshot.runs, threading.current_thread().name))
            heard.set()

        stop = feed.subscribe(hear)
        feed.start()
        await asyncio.wait_for(heard.wait(), 10)
        make_run(tmp_path, "two", [0.5])
        feed.refresh_soon()
        while seen[-1][0] != 2:
            heard.clear()
            await asyncio.wait_for(heard.wait(), 10)
        stop()
        feed.stop()

    asyncio.run(watch())
    assert {name for _, name in seen} == {"MainThread"}
    assert 0.0 <= feed.snapshot.load.cpu <= 1.0
    assert feed.snapshot.load.memory_used <= feed.snapshot.load.memory


def test_long_series_keep_their_peaks() -> None:
    points = [(float(i), 0.0) for i in range(100_000)]
    points[77_777] = (77_777.0, 5.0)
    found = reduced(points)
    assert len(found) <= 2000
    assert (77_777.0, 5.0) in found
    assert found == sorted(found)


def test_what_people_call_their_runs_is_never_markup() -> None:
    html = render("page_header.html", title="<script>alert(1)</script>")
    assert "<script>" not in html
    assert "&lt;script&gt;" in html


# --- the form -----------------------------------------------------------------------------------------------------------------


def test_a_list_of_values_makes_a_training_of_each() -> None:
    assert len(expand({"data": "digits", "rate": "0.1,0.03", "batch": "16, 32,64", "betas": "0.9,0.99"})) == 6
    named = trainings_of({"data": "digits", "rate": "0.1,0.03", "name": "mine", "model": ""})
    assert [one["name"] for one in named] == ["mine-rate0.1", "mine-rate0.03"]


def test_the_form_says_what_is_wrong_before_anything_starts(tmp_path: Path) -> None:
    runs = str(tmp_path / "runs")
    good = check_form({"data": "digits", "model": "lenet", "rate": "0.1, 0.03", "name": " "}, runs)
    assert (good.error, good.runs, len(good.rates)) == ("", 2, 2)
    assert good.network is not None
    assert good.network.parameters == 431_080
    assert good.command == "weft job submit data=digits model=lenet rate=0.1,0.03"
    peaks = [max(value for _, value in line) for _, line in good.rates]
    assert peaks == pytest.approx([0.1, 0.03], rel=1e-3)
    for given, field in (({"data": "digits", "epochs": "many"}, "epochs"), ({"model": "lenet5"}, "data")):
        found = check_form(given, runs)
        assert found.error
        assert found.field == field
    assert "no network" in check_form({"data": "digits", "model": "lenett"}, runs).error
    assert "At most" in check_form({"data": "digits", "seed": ",".join(map(str, range(300)))}, runs).error


# --- who may enter --------------------------------------------------------------------------------------------------------------


def client(tmp_path: Path, token: OneTimeToken | None = None, host: str = "127.0.0.1") -> TestClient:
    async def answer(request: Request) -> PlainTextResponse:
        return PlainTextResponse("in")

    app = Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])
    app.add_middleware(
        AccessMiddleware, config=StudioConfig(tmp_path, host), token=token or OneTimeToken(), store=open_store(tmp_path)
    )
    return TestClient(app, "http://127.0.0.1:8800", follow_redirects=False, client=("127.0.0.1", 50000))


def test_only_the_token_lets_one_in_and_only_once(tmp_path: Path) -> None:
    token = OneTimeToken()
    first, second = client(tmp_path, token), client(tmp_path, token)
    assert first.get("/").status_code == 401
    assert first.get("/?token=wrong").status_code == 401
    value = token.value
    welcome = first.get(f"/runs?token={value}&tab=log")
    assert (welcome.status_code, welcome.headers["location"]) == (303, "/runs?tab=log")
    assert "httponly" in welcome.headers["set-cookie"].lower()
    assert value not in welcome.headers["set-cookie"]
    assert first.get("/").text == "in"
    assert second.get(f"/?token={value}").status_code == 401
    assert second.get(f"/?token={token.value}").status_code == 303
    assert second.get("/").text == "in"


def test_the_cookie_holds_over_a_restart_and_not_for_another_studio(tmp_path: Path) -> None:
    token = OneTimeToken()
    first = client(tmp_path / "a", token)
    first.get(f"/?token={token.value}")
    again, other = client(tmp_path / "a"), client(tmp_path / "b")
    again.cookies = other.cookies = first.cookies
    assert again.get("/").text == "in"
    assert other.get("/").status_code == 401


def test_programs_of_this_machine_send_the_token_of_the_folder(tmp_path: Path) -> None:
    sent = {"Authorization": f"Bearer {secret(tmp_path, 'token')}"}
    assert client(tmp_path).get("/api/v1/jobs", headers=sent).text == "in"
    assert client(tmp_path).get("/api/v1/jobs", headers={"Authorization": "Bearer x"}).status_code == 401
    for name in ("token", "secret"):
        secret(tmp_path, name)
        assert stat.S_IMODE((tmp_path / ".studio" / name).stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / ".studio").stat().st_mode) == 0o700


def test_other_sites_can_change_nothing(tmp_path: Path) -> None:
    token = OneTimeToken()
    browser = client(tmp_path, token)
    browser.get(f"/?token={token.value}")
    assert browser.post("/api/v1/jobs/1/stop").status_code == 403
    assert browser.post("/api/v1/jobs/1/stop", headers={"X-Weft-Studio": "1"}).text == "in"
    assert browser.get("/", headers={"Host": "evil.example:8800"}).status_code == 421
    assert browser.get("/", headers={"Host": "localhost:8800"}).text == "in"
    assert "samesite=strict" in client(tmp_path, token).get(f"/?token={token.value}").headers["set-cookie"].lower()


def test_every_answer_has_the_headers(tmp_path: Path) -> None:
    for path in ("/", "/api/v1/jobs", "/nothing"):
        found = client(tmp_path).get(path).headers
        assert all(found[name] == value for name, value in HEADERS.items())


@pytest.mark.parametrize(
    "path", ["../secret.txt", "a/../../secret.txt", "link.txt", "linked/secret.txt", "/etc/passwd", ".lock", "a"]
)
def test_files_outside_a_run_are_not_served(path: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "a").mkdir(parents=True)
    (tmp_path / "secret.txt").write_text("secret")
    (folder / ".lock").write_text("{}")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "linked").symlink_to(tmp_path)
    with pytest.raises(Exception, match="there is no file"):
        inside(folder, path)
    (folder / "a" / "log.txt").write_text("fine")
    assert inside(folder, "a/log.txt").read_text() == "fine"


def test_without_its_packages_the_studio_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.cli import studio as verb

    monkeypatch.setattr(verb, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install '\.\[studio\]'"):
        verb.studio([])


def test_only_loopback_is_local() -> None:
    assert StudioConfig(host="127.0.0.1").is_local
    assert StudioConfig(host="::1").is_local
    assert not StudioConfig(host="0.0.0.0").is_local
    assert not StudioConfig(host="example.org").is_local
