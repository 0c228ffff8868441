"""Sweeps in the studio: the list, a sweep's page with its charts, the forms, the REST routes, and the ranks of a parallel training."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from studio_tools import BROWSER, LocalStudio, chromium, make_run, page_errors, served_studio
from weft.errors import UserError
from weft.jobs import JobQueue
from weft.jobs.annotations import annotate
from weft.jobs.queue.kinds import SWEEP
from weft.jobs.queue.record import CANCELLED, DONE, FAILED, PAUSED, STOPPED, WAITING
from weft.jobs.queue.view import QueueView
from weft.jobs.sweeps import control as sweep_control
from weft.jobs.sweeps.control import pause_sweep, resume_sweep, sweep_settings
from weft.jobs.sweeps.record import SweepRecord, SweepTrial, read_sweep
from weft.jobs.sweeps.results import parallel_lines, write_results
from weft.jobs.sweeps.settings import SweepMetric, checked_sweep
from weft.jobs.sweeps.summary import best_so_far, sweep_summary, visible_range
from weft.jobs.sweeps.sweep import submit_sweep
from weft.locks import one_writer
from weft.studio.library.run_ranks import rank_statuses
from weft.studio.library.run_series import RunEvents
from weft.studio.library.sweep_form import check_sweep_form, filled_sweep
from weft.studio.library.sweeps import SweepIndex, SweepSnapshot
from weft.studio.ui.folds_chart import folds_chart
from weft.studio.ui.sweep_chart import best_chart, front_chart, parallel_trials
from weft.studio.ui.sweep_view import TrialQuery, first_rows, segments, sweep_tiles, trial_rows

needs_browser = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on this machine")
ASKED = {"data": "digits", "model": "mlp", "rate": "log:1e-4..1e-1", "batch": "32,64", "epochs": "10", "trials": 12, "jobs": 2}  # fmt: skip
PATH = "/api/v1/sweeps"


def trial(number: int, value: float | None, state: str = "finished", **facts: Any) -> SweepTrial:
    """A trial with a rate of its own; the larger its number, the larger the rate."""
    settings = {"rate": 1e-4 * 2**number, "batch": 32 if number % 2 else 64}
    epoch = facts.pop("epoch", 10)
    trend = tuple((value or 0.5) * (i + 1) / 10 for i in range(epoch))
    values = None if value is None else (value,)
    return SweepTrial(number, state, settings, values, trend, epoch, 10, 20.0, run=f"/runs/classify/one-{number}", job=None, **facts)  # fmt: skip


TRIALS = [
    trial(1, 0.90), trial(2, 0.94), trial(3, 0.10, "pruned", epoch=2, why="by median after epoch 2"), trial(4, 0.96), trial(5, 0.95),
    trial(6, None, "failed", why="a batch of 64 does not fit"), trial(7, None, "running", epoch=4),
]  # fmt: skip


def make_sweep(runs: Path, name: str = "one", trials: list[SweepTrial] | None = None, **asked: Any) -> SweepRecord:
    """A sweep as a search leaves it, and the runs of its trials."""
    plan = replace(checked_sweep({**ASKED, **asked}), metrics=(SweepMetric("accuracy"),))
    record = SweepRecord.create(runs, name, plan, None)
    known = TRIALS if trials is None else trials
    record.write_trials(known)
    write_results(record, known, {"rate": 0.8, "batch": 0.2})
    for one in known:
        if one.state != "failed":
            annotate(make_run(runs, f"{name}-{one.number}", list(one.trend) or [0.5]), group=name)
    return record


def snapshot_of(runs: Path, name: str = "one") -> SweepSnapshot:
    views = [view for view in SweepIndex(runs).refresh(QueueView(JobQueue(runs).folder).jobs()) if view.name == name]
    assert len(views) == 1
    return views[0]


# --- numbers ------------------------------------------------------------------------------------------------------------------


def test_a_summary_tells_what_was_saved_and_what_is_left(tmp_path: Path) -> None:
    record = make_sweep(tmp_path)
    found = sweep_summary(record, TRIALS)
    assert (found.best and found.best.number, found.median) == (4, pytest.approx(0.945))
    assert found.saved == pytest.approx(20.0 / 2 * 8), (
        "the eight epochs that trial 3 was spared, as long as its first two took"
    )
    assert found.left == pytest.approx((12 - 6 - 0.4) * 20.0 / 2), "two at a time"
    assert sweep_summary(record, TRIALS, [40.0]).left == pytest.approx((12 - 6 - 0.4) * 40.0 / 2)
    assert found.best_ranges == {}, "with few trials, ranges mean nothing"
    many = [trial(number, 0.5 + 0.01 * number) for number in range(1, 13)]
    assert sweep_summary(record, many).best_ranges == {"rate": "0.102 to 0.41"}
    assert best_so_far(record, TRIALS) == [(1, 0.90), (2, 0.94), (4, 0.96)]
    assert visible_range(record, [one for one in TRIALS if one.values]) == (pytest.approx(0.96 - 5 * 0.02), 0.96)


def test_axes_are_as_wide_as_what_is_searched(tmp_path: Path) -> None:
    numbers, (rate, batch, value) = parallel_lines(make_sweep(tmp_path), TRIALS)
    assert numbers == [1, 2, 3, 4, 5]
    assert [text for _, text in rate.ticks] == ["0.0001", "0.001", "0.01", "0.1"]
    assert rate.places[0] == pytest.approx(0.1003, abs=1e-3), "2e-4 on a logarithmic axis from 1e-4 to 1e-1"
    assert (batch.ticks, batch.places[:2]) == ([(0.0, "32"), (1.0, "64")], [0.0, 1.0])
    assert value.places[2] == min(value.places), "a trial that is much worse is at the end"


def test_tiles_rows_and_charts(tmp_path: Path) -> None:
    make_sweep(tmp_path)
    view = snapshot_of(tmp_path)
    told = [(tile.title, tile.number + tile.unit, tile.context) for tile in sweep_tiles(view)]
    assert told == [
        ("Best val accuracy", "96.0%", "trial 4, learning rate 0.0016"), ("Gain over the median", "1.5points", "median 94.5 %"),
        ("Finished", "4trials", "of 12, 1 failed"), ("Pruned", "1trial", "1 min 20 s saved"), ("Search", "Bayesian", "10 random, then guided"),
    ]  # fmt: skip
    assert segments(view) == ["d", "d", "p", "d", "d", "f", "n", "", "", "", "", ""]
    rows = trial_rows(view, TrialQuery(), lambda folder: None)
    assert [row.trial.number for row in rows] == [7, 4, 5, 2, 1, 3, 6], (
        "running first, then the best, the pruned, the failed"
    )
    by_rate = trial_rows(view, TrialQuery(sort="rate", down=False), lambda folder: None)
    assert [row.trial.number for row in by_rate] == [7, 1, 2, 3, 4, 5, 6]
    assert [row.trial.number for row in trial_rows(view, TrialQuery(state="pruned"), lambda folder: None)] == [3]
    many = replace(view, trials=tuple(trial(n, 0.5 + n / 100) for n in range(1, 13)) + (trial(13, 0.1, "pruned"),))
    shown = first_rows(trial_rows(many, TrialQuery(), lambda folder: None), TrialQuery())
    assert [row.trial.number for row in shown] == [12, 11, 10, 9, 8, 7, 6, 5, 4, 13], "a pruned one stays in sight"
    chart, lines = best_chart(view), parallel_trials(view)
    assert chart is not None
    assert lines is not None
    assert ([dot.trial.number for dot in chart.dots if dot.is_best], chart.clipped) == ([4], 1)
    assert [text for _, text in chart.x_ticks] == ["0", "3", "6", "9", "12"]
    assert ([title for title, _ in lines.axes], lines.lines[-1].trial.number) == (["Learning rate", "Batch size", "Val accuracy"], 4)  # fmt: skip
    assert lines.lines[-1].text == "Trial 4: learning rate 0.0016, batch size 64, val accuracy 96.0 %"
    assert front_chart(view) is None


def test_a_front_of_two_metrics(tmp_path: Path) -> None:
    found = [replace(one, values=(one.values[0], 1000.0 * one.number)) for one in TRIALS if one.values and one.state == "finished"]  # fmt: skip
    record = make_sweep(tmp_path, trials=found)
    two = replace(record, plan=replace(record.plan, metrics=(SweepMetric("accuracy"), SweepMetric("size"))))
    view = replace(snapshot_of(tmp_path), record=two)
    chart = front_chart(view)
    assert chart is not None
    assert {dot.trial.number for dot in chart.dots if dot.is_best} == {1, 2, 4}, "5 is larger and worse than 4"


# --- pausing and continuing -----------------------------------------------------------------------------------------------------


def test_the_status_of_a_sweep(tmp_path: Path) -> None:
    queue, record = JobQueue(tmp_path), make_sweep(tmp_path)
    assert snapshot_of(tmp_path).status == "stopped"
    with one_writer(record.folder):
        assert snapshot_of(tmp_path).status == "running"
    job = submit_sweep(queue, {**ASKED, "name": "one"})
    assert (snapshot_of(tmp_path).status, snapshot_of(tmp_path).job) == ("waiting", job.number)
    job.set(FAILED, "the disk is full")
    assert (snapshot_of(tmp_path).status, snapshot_of(tmp_path).why) == ("failed", "the disk is full")
    record.write_trials([trial(n, 0.9) for n in range(1, 13)])
    job.set(DONE)
    assert snapshot_of(tmp_path).status == "finished"
    submit_sweep(queue, {**ASKED, "name": "later"})
    pending = snapshot_of(tmp_path, "later")
    assert (pending.status, pending.record, pending.planned, pending.data) == ("waiting", None, 12, "digits")


def test_a_sweep_is_paused_and_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue, record = JobQueue(tmp_path), make_sweep(tmp_path)
    first = resume_sweep(queue, "one", owner="ana")
    assert (first.kind, first.submitted()["owner"]) == (SWEEP, "ana")
    assert checked_sweep({n: v for n, v in first.settings.items() if n != "metric"}).texts == record.plan.texts
    with pytest.raises(UserError, match="runs or waits for its turn"):
        resume_sweep(queue, "one")
    pause_sweep(queue, "one")
    assert (first.state.state, first.state.why) == (STOPPED, PAUSED)
    second = resume_sweep(queue, "one", trials=30)
    assert second.settings["trials"] == "30"
    assert (first.state.why, second.state.state) == (CANCELLED, WAITING), "the new job takes the place of the old one"
    pause_sweep(queue, "one")
    with pytest.raises(UserError, match="which does not"):
        pause_sweep(queue, "one")
    with pytest.raises(UserError, match="more trials than the 6 that have ended are required, got 3"):
        resume_sweep(queue, "one", trials=3)
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(sweep_control.os, "kill", lambda pid, number: told.append((pid, number)))
    with one_writer(record.folder):
        pause_sweep(queue, "one")
    assert told == [(os.getpid(), signal.SIGTERM)], "one that a command searches is asked to stop"
    assert sweep_settings(read_sweep(record.folder))["metric"] == "accuracy"


# --- the form -------------------------------------------------------------------------------------------------------------------


def test_the_form_of_a_sweep(tmp_path: Path) -> None:
    found = check_sweep_form({"data": "digits", "model": "lenet", "rate": "log:1e-4..1e-1", "trials": "30", "epochs": ""}, str(tmp_path))  # fmt: skip
    assert (found.error, found.runs, found.swept) == ("", 30, (("Learning rate", "log:1e-4..1e-1"),))
    assert found.command == "weft sweep data=digits model=lenet rate=log:1e-4..1e-1 trials=30"
    assert [name for name, _ in found.rates] == ["0.0001", "0.1"], "the schedule at both ends of the range"
    lists = {"data": "digits", "batch": "32,64", "rate": "0.1,0.03"}
    assert filled_sweep(lists)["sampler"] == "grid"
    assert check_sweep_form(lists, str(tmp_path)).runs == 4
    assert check_sweep_form({"data": "digits"}, str(tmp_path)).error.startswith(
        "a setting with several values is required"
    )
    wrong = check_sweep_form({"data": "digits", "rate": "1..0.1"}, str(tmp_path))
    assert (wrong.field, "the first number must be below the second" in wrong.error) == ("rate", True)


# --- served ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStudio]:
    runs = tmp_path_factory.mktemp("sweeps") / "runs"
    make_sweep(runs)
    with served_studio(runs) as made:
        yield made


def test_sweeps_over_rest(local: LocalStudio, tmp_path: Path) -> None:
    status, listed = local.request("GET", PATH)
    assert (status, [one["name"] for one in listed]) == (200, ["one"])
    assert (listed[0]["searched"], listed[0]["best"]["number"]) == (["rate", "batch"], 4)
    _, facts = local.request("GET", f"{PATH}/one")
    assert (facts["importance"], len(facts["trials"]), facts["parallel"]["trials"]) == ({"rate": 0.8, "batch": 0.2}, 7, [1, 2, 3, 4, 5])  # fmt: skip
    table = local.request("GET", f"{PATH}/one/trials.csv")[1].decode().splitlines()
    assert table[0] == "trial,state,validation_accuracy,rate,batch,epochs,seconds,run,why"
    assert table[3].startswith("3,pruned,0.1,")
    assert b"Parallel coordinates" in local.request("GET", f"{PATH}/one/report.html")[1]
    assert local.request("GET", f"{PATH}/nothing")[0] == 404
    assert "metric" in [one["name"] for one in local.request("GET", f"{PATH}/settings")[1]]


def test_a_sweep_is_started_over_rest(local: LocalStudio) -> None:
    status, made = local.request("POST", PATH, {"settings": {"data": "digits", "rate": "log:1e-4..1e-1", "trials": 3, "name": "started"}})  # fmt: skip
    assert (status, made["open"]) == (200, "/sweeps/started")
    assert local.request("GET", f"{PATH}/started")[1]["status"] == "waiting"
    assert local.request("POST", f"{PATH}/started/pause")[0] == 200
    assert local.request("POST", PATH, {"settings": {"data": "digits", "rate": "1..0.1"}})[0] == 400
    for refused in ({"storage": "sqlite:////etc/new.db"}, {"runs": "/tmp"}, {"data": "/etc/passwd"}):
        status, why = local.request("POST", PATH, {"settings": {"data": "digits", "rate": "0.1,0.3", **refused}})
        assert status in (400, 403), why
    local.studio.queue.cancel(local.studio.queue.job(made["number"]))


@needs_browser
@pytest.mark.slow
def test_a_sweep_is_followed_in_a_browser(local: LocalStudio) -> None:
    record = read_sweep(local.runs / "sweeps" / "one")
    with chromium() as browser:
        page = browser.new_context(viewport={"width": 1280, "height": 1000}).new_page()
        errors = page_errors(page)
        page.goto(local.way_in)
        page.goto(f"{local.address}/sweeps")
        page.click("text=one >> nth=0")
        page.wait_for_selector("[data-brushes] a[data-trial]")
        assert page.locator("h1").inner_text() == "one"
        assert page.locator(".actions a.pri").get_attribute("href") == "/runs/classify/one-4"
        assert page.locator(".strials tbody tr[data-trial]").count() == 7
        # The keyboard makes a filter of the upper quarter of the last axis; the table follows.
        page.locator("[data-axis='2']").focus()
        page.keyboard.press("ArrowUp")
        assert page.locator("a[data-places]:not(.off)").evaluate_all("all => all.map(one => one.dataset.trial).sort()") == ["4", "5"]  # fmt: skip
        assert page.locator("tr[data-trial='1']").get_attribute("class").split().count("off") == 1
        # A trial ends while somebody looks: the filter stays, the new line obeys it.
        record.write_trials([*TRIALS[:6], trial(7, 0.99)])
        page.wait_for_selector("#line-7", state="attached", timeout=8000)
        page.wait_for_function("document.querySelector('.actions a.pri').textContent.includes('trial 7')")
        assert page.locator("a[data-places]:not(.off)").count() >= 1
        assert page.locator("#line-1").get_attribute("class") == "off"
        page.keyboard.press("Escape")
        assert page.locator("a[data-places].off").count() == 0
        page.click("text=Finished 5")
        page.wait_for_function("document.querySelectorAll('.strials tr[data-trial]').length == 5")
        page.click(".strials .sort >> text=Learning rate")
        page.wait_for_function("document.querySelector('.strials tr[data-trial]').dataset.trial == '7'")
        assert errors == []
    record.write_trials(TRIALS)


# --- cross-validations ----------------------------------------------------------------------------------------------------------


def test_a_cross_validation_shows_mean_and_deviation(local: LocalStudio) -> None:
    folder = local.runs / "folds" / "cv"
    folder.mkdir(parents=True)
    state = {"name": "cv", "task": "classify", "folds": 2, "model": "mlp", "examples": 100, "settings": {"data": "digits"}, "runs": [], "done": False}  # fmt: skip
    (folder / "folds.json").write_text(json.dumps(state))
    make_run(local.runs, "cv-fold1", [0.5, 0.9])
    local.studio.feed.look(at_all_runs=True)
    begun = local.web.get("/folds/cv").text
    assert "1 of 2 folds" in begun
    assert "weft resume" in begun, "it stands still"
    assert local.request("GET", "/api/v1/folds/cv/out_of_fold.csv")[0] == 404
    metrics = {"loss": {"mean": 0.2, "std": 0.1, "values": [0.1, 0.3]}, "accuracy": {"mean": 0.95, "std": 0.0141, "values": [0.94, 0.96]}}  # fmt: skip
    (folder / "folds.json").write_text(json.dumps({**state, "metrics": metrics, "done": True}))
    (folder / "out_of_fold.csv").write_text("example,fold\n0,1\n")
    assert [(one["name"], one["status"]) for one in local.request("GET", "/api/v1/folds")[1]] == [("cv", "finished")]
    assert local.request("GET", "/api/v1/folds/cv/out_of_fold.csv")[1] == b"example,fold\n0,1\n"
    assert "95.0 %" in local.web.get("/folds").text
    chart = folds_chart("accuracy", metrics["accuracy"])
    assert ([dot[3] for dot in chart.dots], chart.dots[0][2] > chart.mean > chart.dots[1][2]) == (
        ["94.0 %", "96.0 %"],
        True,
    )
    assert chart.band[0] + chart.band[1] / 2 == pytest.approx(chart.mean)
    assert local.web.get("/folds/nothing").status_code == 404


# --- ranks ----------------------------------------------------------------------------------------------------------------------


def rank_lines(ranks: int, when: float, **of_last: Any) -> str:
    """A report of each rank; the last one may differ."""
    rows = [{"type": "rank", "time": when, "rank": k, "pid": 100 + k, "examples_per_second": 200.0 + k, "memory": 1e9} for k in range(ranks)]  # fmt: skip
    return "".join(json.dumps(one) + "\n" for one in [*rows[:-1], {**rows[-1], **of_last}])


def test_ranks_that_are_slow_or_silent_are_told(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text(rank_lines(3, 100.0) + rank_lines(3, 140.0, examples_per_second=100.0))
    events = RunEvents(tmp_path).read()
    slow = rank_statuses(list(events.ranks.values()), is_running=True)
    assert [one.problem for one in slow] == ["", "", "40 % slower than the mean"]
    assert (slow[0].reading.pid, list(slow[2].reading.speeds), slow[1].share) == (100, [202.0, 100.0], 1.0)
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write(rank_lines(2, 190.0))
    silent = rank_statuses(list(events.read().ranks.values()), is_running=True)
    assert [one.problem for one in silent] == ["", "", "silent for 50 s"]
    assert rank_statuses([one.reading for one in silent], is_running=False)[2].problem.startswith("40 %")
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write(json.dumps({"type": "resumed", "time": 200.0}) + "\n" + rank_lines(2, 201.0))
    assert sorted(events.read().ranks) == [0, 1], "it goes on with two processes"


def test_a_run_shows_its_ranks(local: LocalStudio) -> None:
    run = local.runs / "classify" / "one-1"
    assert "Rank 1" not in local.web.get("/runs/classify/one-1").text
    (run / "events.jsonl").write_text(rank_lines(2, 100.0, memory=2e9))
    for tab in ("", "?tab=resources"):
        page = local.web.get(f"/runs/classify/one-1{tab}").text
        assert "/sweeps/one" in page, "a trial leads to its sweep"
        assert all(text in page for text in ("Rank 1", "Memory 1.0 GB to 2.0 GB a rank, 3.0 GB in all", "401"))


def test_several_values_in_the_train_form_make_a_sweep(local: LocalStudio) -> None:
    assert "Start sweep of 20 trials" in local.web.get("/train?data=digits&rate=log:1e-4..1e-1").text
    web = local.web.get("/train?data=digits&rate=0.1,0.03").text
    assert "Start sweep of 2 trials" in web
    assert "Train 2 runs" in web
    assert "Search settings" in web
    assert "Trials at a time" in local.web.get("/sweeps/new?clone=one").text
