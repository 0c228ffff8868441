"""Checks the queue of the studio: the plan as lanes, its routes, and the page in a browser where there is one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from studio_tools import BROWSER, LocalStudio, chromium, served_studio
from weft.jobs.queue.job_queue import JobQueue
from weft.jobs.queue.needs import GPU, JobNeeds
from weft.jobs.queue.plan import RunnerSlots, write_slots
from weft.jobs.queue.scheduler import Placement, QueuedJob, SchedulePlan
from weft.jobs.queue.slots import ComputeSlot, host_slots
from weft.studio.library.activity import TrainingProgress, activities
from weft.studio.library.schedule import QueueSnapshot, QueueWatch, plan_lanes, ticks
from weft.studio.ui.rendering import render

GB = 10**9
SLOTS = (ComputeSlot("cuda:0", GPU, 24 * GB), ComputeSlot("cuda:1", GPU, 24 * GB), *host_slots(1, 1))
SETTINGS = {"data": "digits", "model": "lenet5", "epochs": 1, "batch": 64}
needs_browser = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on this machine")


# --- lanes ----------------------------------------------------------------------------------------------------------------------


def placed(
    number: int, slots: tuple[str, ...], start: float, end: float, memory: float, running: bool = False
) -> Placement:
    job = QueuedJob(number, f"job-{number}", JobNeeds(GPU, len(slots)))
    return Placement(job, slots, start, end, int(memory * GB), running)


def test_blocks_of_a_gpu_are_as_high_as_their_memory_and_do_not_overlap() -> None:
    now = 1_000_000.0
    placements = (
        placed(1, ("cuda:0",), now, now + 900, 12, running=True),
        placed(2, ("cuda:0",), now, now + 1800, 6, running=True),
        placed(3, ("cuda:0",), now + 900, now + 5400, 12),
        placed(4, ("cuda:0", "cuda:1"), now + 5400, now + 6000, 20),
    )
    snapshot = QueueSnapshot(offered=RunnerSlots(SLOTS), plan=SchedulePlan(placements))
    first, second, cpu, task = plan_lanes(snapshot, now, 1, {"cuda:0": "97 %"})
    assert (first.title, first.text) == ("GPU 0", "24 GB · 97 %")
    two, one, three = first.blocks  # what runs longest is at the top
    assert (two.left, two.width, two.top, two.height) == (0.0, 0.5, 0.0, 0.25)
    assert (one.width, one.top, one.height) == (0.25, 0.25, 0.5)
    assert (three.left, three.width, three.top) == (0.25, 0.75, 0.25), "where the first one was"
    assert three.text.startswith("12.0 GB, until "), "it goes on after the hour"
    assert not second.blocks
    assert second.free
    assert cpu.free == "Free. Trainings on the CPU run here."
    assert task.title == "Task slot 1"
    later = plan_lanes(snapshot, now, 4)[1].blocks
    assert [block.name for block in later] == ["job-4 · GPU 1 of 2"]


def test_the_axis_has_whole_quarters_and_hours() -> None:
    now = time.mktime((2026, 3, 4, 14, 10, 0, 0, 0, -1))
    shown = {hours: [time.strftime("%H:%M", time.localtime(when)) for when, _ in ticks(now, hours)] for hours in (1, 4)}
    assert shown[1] == ["14:10", "14:30", "14:45", "15:00"]
    assert shown[4] == ["14:10", "15:00", "16:00", "17:00", "18:00"]
    assert [round(share, 3) for _, share in ticks(now, 1)] == [0.0, 0.333, 0.583, 0.833]


def test_the_watch_plans_again_only_when_something_has_changed(tmp_path: Path) -> None:
    queue = JobQueue(tmp_path)
    job = queue.add(SETTINGS)
    watch = QueueWatch(queue)
    first = watch.look()
    assert watch.look() is first
    queue.hold(job, "anna")
    second = watch.look()
    assert second.plan.reasons == {1: "Held"}
    (shown,) = activities(second, [])
    assert (shown.state, shown.held_by, shown.needs) == ("held", "anna", "a CPU slot")


def test_a_failed_job_has_a_button_that_helps_and_no_markup_of_its_own(tmp_path: Path) -> None:
    queue = JobQueue(tmp_path)
    job = queue.add({**SETTINGS, "name": "<b>x</b>"})
    job.set("failed", "[cuda] the GPU is out of memory (x).")
    shown = activities(QueueWatch(queue).look(), [])
    html = render("home_jobs.html", activities=shown, hidden=0, running=0, waiting=0, failed=1)
    assert "&lt;b&gt;x" in html
    assert "<b>x</b>" not in html
    assert "Retry with batch 32" in html
    assert 'data-body="{&#34;settings&#34;: {&#34;accumulate&#34;: 2, &#34;batch&#34;: 32}}"' in html


# --- a studio whose queue is paused: all jobs wait ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStudio]:
    runs = tmp_path_factory.mktemp("queue") / "runs"
    queue = JobQueue(runs)
    for name in ("first", "second", "third"):
        queue.add({**SETTINGS, "name": name})
    failed = queue.add({**SETTINGS, "name": "large"})
    failed.set("failed", "[cuda] the GPU is out of memory (x).")
    queue.pause_all()
    with served_studio(runs, runner=True, roots=(runs.parent,)) as started:
        yield started


@pytest.fixture(scope="module")
def web(server: LocalStudio) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{server.address}/api/v1", timeout=30) as client:
        token = (server.runs / ".studio" / "token").read_text().strip()
        client.headers.update({"Authorization": f"Bearer {token}", "X-Weft-Studio": "1"})
        yield client


def numbers(web: httpx.Client) -> list[int]:
    """The waiting jobs in their order, as soon as the feed has seen the last change."""
    time.sleep(0.3)
    return [one["number"] for one in web.get("/queue").json()["waiting"] if not one["held"]]


def test_the_queue_over_the_api(web: httpx.Client) -> None:
    def post(path: str, body: Any = None, status: int = 200) -> Any:
        answer = web.post(path, json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    found = web.get("/queue").json()
    assert found["paused"]
    assert found["waiting"][0]["why"] == "The queue is paused"
    assert {slot["title"] for slot in found["slots"]} >= {"CPU slot 1", "Task slot 1", "Task slot 2"}
    post("/jobs/3/move", {"before": 1})
    assert numbers(web) == [3, 1, 2]
    post("/jobs/3/move", {"by": 2})
    assert post("/jobs/2/priority", {"priority": "high"})["priority"] == "high"
    assert numbers(web) == [2, 1, 3]
    assert "a priority is low" in post("/jobs/2/priority", {"priority": "urgent"}, 400)["message"]
    post("/jobs/2/priority", {"priority": "normal"})
    post("/jobs/2/hold")
    assert 2 not in numbers(web)
    post("/jobs/2/release")
    assert "held is required" in post("/jobs/2/release", None, 400)["message"]
    assert len(post("/queue/hold")["numbers"]) == 3
    assert len(post("/queue/release")["numbers"]) == 3
    post("/jobs/1/move", {"before": 2})
    post("/jobs/3/move", {})
    assert numbers(web) == [1, 2, 3]
    assert web.get("/jobs/4").json()["remedy"]["label"] == "Retry with batch 32"
    again = post("/jobs/4/retry", {"settings": {"batch": 32}})
    assert (again["settings"]["batch"], again["state"]) == (32, "waiting")
    assert "epochs=x cannot be used" in post("/jobs", {"settings": {"data": "digits", "epochs": "x"}}, 400)["message"]
    (added,) = post("/jobs", {"settings": {"data": "digits", "model": "mlp", "epochs": 1}, "priority": "low"})
    assert (added["priority"], added["needs"]["slot"]) == ("low", "cpu")
    for number in (again["number"], added["number"]):
        assert post(f"/jobs/{number}/stop")["why"] == "cancelled"


@needs_browser
def test_jobs_are_moved_by_keys_and_by_dragging(server: LocalStudio, web: httpx.Client) -> None:
    errors: list[str] = []
    with chromium() as browser:
        page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(server.way_in)
        page.goto(f"{server.address}/queue")
        page.wait_for_selector("#waiting-1")
        page.focus("#waiting-3")
        page.keyboard.press("Alt+ArrowUp")
        page.wait_for_selector("#announcement >> text=third is at place 2 of 3")
        assert numbers(web) == [1, 3, 2]
        assert page.evaluate("document.activeElement.id") == "waiting-3", "the focus stays on the row"
        page.drag_and_drop("#waiting-2 .grip", "#waiting-1 .grip", target_position={"x": 5, "y": 3})
        page.wait_for_selector("#announcement >> text=second is at place 1 of 3")
        assert numbers(web) == [2, 1, 3]
        page.get_by_label("Priority of third").select_option("high")
        page.wait_for_selector("tr:first-child#waiting-3")
        page.get_by_label("Hold third").click()
        page.get_by_role("button", name="Release third").click()
        page.wait_for_selector("#waiting-3")
        page.get_by_role("button", name="Resume the queue")
        assert page.locator("text=The queue is paused").count() > 0
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
    assert errors == []


def test_memory_that_was_measured_is_shown_beside_the_forecast(tmp_path: Path) -> None:
    queue = JobQueue(tmp_path)
    queue.folder.mkdir()
    write_slots(queue.folder, RunnerSlots(SLOTS))
    queue.add(SETTINGS, needs=JobNeeds(GPU, 1, None, 15 * GB))
    (shown,) = activities(QueueWatch(queue).look(), [])
    assert shown.needs == "1 GPU, 15.0 GB"
    progress = TrainingProgress(3, 10, 5, 10, None, 60.0)
    running = replace(shown, state="running", memory_used=14 * GB, progress=progress)
    html = render("queue_running.html", jobs=[running], colour=lambda number: "s1")
    assert "14.0 GB of 15.0 GB forecast" in html
    assert "1 min left" in html
