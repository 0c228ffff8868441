"""Checks the page of a run: series and their decimation, results, actions and downloads over the API, and the page in a browser."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from run_tools import EXAMPLES, api, evaluated_run, write_events
from studio_tools import BROWSER, LocalStudio, chromium, make_run, served_studio
from weft.jobs.queue.record import WAITING
from weft.locks import one_writer
from weft.report.predictions import read_predictions
from weft.studio.library.run_images import cell_examples, mistakes, predictions_of
from weft.studio.library.run_schedule import planned_rates
from weft.studio.library.run_series import POINTS, RunEvents, all_series, mean_window, window
from weft.studio.library.runs import RunIndex
from weft.studio.pages.run_charts import metrics_of
from weft.studio.pages.run_confusion import Matrix, matrix_lines, pixels, read_matrix
from weft.studio.pages.run_tiles import metric_tiles
from weft.studio.ui.context import Studio

RUN = "/runs/classify/good"


@pytest.fixture
def web(tmp_path: Path) -> tuple[TestClient, Studio]:
    evaluated_run(tmp_path, "good", 0, [0.5, 0.8])
    return api(tmp_path)


# --- series -------------------------------------------------------------------------------------------------------------------


def test_events_are_read_once_as_they_are_written(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "live", [0.5])
    write_events(folder, [(1, 10, 0.9)])
    events = RunEvents(folder)
    assert events.read().progress.places["step"] == [10]
    with (folder / "events.jsonl").open("a") as file:
        line = json.dumps(
            {"type": "progress", "time": 200.0, "epoch": 1, "epochs": 2, "step": 20, "steps": 20, "loss": 0.5}
        )
        file.write(line[:30])
        file.flush()
        assert events.read().progress.places["step"] == [10]
        file.write(line[30:] + "\n")
    assert events.read().progress.places["step"] == [10, 20]
    assert events.progress.places["epoch"] == [0.5, 1.0]
    assert events.log[0][1:] == ("warning", "look here")
    write_events(folder, [])
    assert events.read().progress.places["step"] == []


def test_time_does_not_count_pauses(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "paused", [0.5])
    step = {"type": "progress", "epoch": 1, "epochs": 2, "steps": 20, "loss": 1.0}
    lines = [
        {"type": "started", "time": 0.0}, {**step, "step": 5, "time": 10.0}, {"type": "resumed", "time": 1000.0}, {**step, "step": 9, "time": 1004.0},
    ]  # fmt: skip
    (folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert RunEvents(folder).read().progress.places["time"] == [10.0, 14.0]


def test_many_points_become_few_and_a_part_shows_more(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "long", [0.5])
    lines = (f'{{"type":"progress","time":{i},"epoch":{1 + i // 1000},"epochs":100,"step":{1 + i % 1000},"steps":1000,"loss":{1 / (1 + i)}}}' for i in range(20_000))  # fmt: skip
    (folder / "events.jsonl").write_text("\n".join(lines) + "\n")
    events = RunEvents(folder).read()
    x, y = events.progress.series("loss", "epoch")
    assert len(x) == 20_000
    shown = window(x, y)
    assert len(shown) <= POINTS
    assert len(mean_window(x, y)) == POINTS // 3
    assert mean_window(x[:100], y[:100]) == []
    part = window(x, y, (15.0, 15.5))
    assert 14.9 < part[0][0] < 15.0 < 15.5 < part[-1][0] < 15.6
    assert len(part) >= 500
    index = RunIndex(tmp_path)
    index.refresh()
    assert {"step_loss", "validation_accuracy"} <= set(all_series(index.rows()[0], "time"))


def test_series_over_the_api(web: tuple[TestClient, Studio]) -> None:
    client, _ = web
    found = client.get(f"{RUN}/series").json()
    assert found["step_loss"] == [[0.5, 0.9], [1.0, 0.8], [1.5, 0.7], [2.0, 0.6]]
    assert found["validation_accuracy"] == [[1.0, 0.5], [2.0, 0.8]]
    assert found["cpu_cores"] == [[1.0, 1.5], [1.5, 1.5], [2.0, 1.5]]
    by_step = client.get(f"{RUN}/series?x=step&names=step_loss,validation_loss").json()
    assert sorted(by_step) == ["step_loss", "validation_loss"]
    assert by_step["validation_loss"][0][0] == 20
    text = client.get(f"{RUN}/series.csv?x=time&names=step_loss").text
    assert text.splitlines()[:2] == ["series,time,value", "step_loss,2.0,0.9"]
    assert client.get(f"{RUN}/series?x=moon").status_code == 400


# --- results ------------------------------------------------------------------------------------------------------------------


def test_evaluation_and_the_images_behind_a_cell(web: tuple[TestClient, Studio]) -> None:
    client, studio = web
    scores = client.get(f"{RUN}/evaluation").json()
    assert scores["examples"] == EXAMPLES
    folder = studio.index.rows()[0].folder
    known = read_predictions(folder)
    assert known is not None
    pair = scores["confusions"][0]
    cell = client.get(f"{RUN}/examples?row={pair['row']}&column={pair['column']}").json()
    assert cell["count"] == pair["count"] == len(cell["examples"])
    assert {(one["true"], one["predicted"]) for one in cell["examples"]} == {(pair["true"], pair["predicted"])}
    sure = [one["probability"] for one in cell["examples"]]
    assert sure == sorted(sure, reverse=True)
    every = client.get(f"{RUN}/examples").json()
    assert every["count"] == int((~known.right).sum()) == len(mistakes(folder))
    assert client.get(f"{RUN}/examples/{every['examples'][0]['index']}.png").content[:4] == b"\x89PNG"
    assert client.get(f"{RUN}/examples/{EXAMPLES}.png").status_code == 404
    assert client.get(f"{RUN}/watched").json()["2"][1]["predicted"] == "dog"
    assert client.get(f"{RUN}/watched/1.png").status_code == 200
    assert predictions_of(folder) is predictions_of(folder)


def test_a_run_without_predictions_says_so(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "old", [0.5])
    client, _ = api(tmp_path)
    assert client.get("/runs/classify/old/evaluation").status_code == 404
    assert client.get("/runs/classify/old/examples").json() == {"count": 0, "examples": []}
    assert cell_examples(folder, 0, 1) == []
    assert read_matrix(folder) is None
    (folder / "confusion.csv").write_text("true\\predicted,a,b\na,3,1\nb,0,2\n")
    matrix = read_matrix(folder)
    assert matrix is not None
    assert matrix.counts.tolist() == [[3, 1], [0, 2]]


def test_the_matrix_of_a_page() -> None:
    lines = matrix_lines(Matrix(np.array([[9, 1], [0, 5]]), ["a", "b"]))
    assert [(cell.count, cell.level) for cell in lines[0].cells] == [(9, 7), (1, 1)]
    assert (lines[0].recall, lines[1].cells[0].level) == ("90.0 %", 0)
    assert pixels(np.eye(300)).startswith("data:image/png")


def test_history_log_and_metrics(web: tuple[TestClient, Studio]) -> None:
    client, studio = web
    assert [one["what"] for one in client.get(f"{RUN}/history").json()] == ["started", "ended"]
    assert client.get(f"{RUN}/log").json()[0]["text"] == "look here"
    row = studio.index.rows()[0]
    assert metrics_of(row) == ["loss", "accuracy"]
    other = make_run(studio.config.runs, "before", [0.6, 0.7])
    studio.index.refresh()
    before = studio.index.get(f"classify/{other.name}")
    tiles = {tile.title: tile for tile in metric_tiles(row, before)}
    assert (tiles["Versus before"].number, tiles["Versus before"].tone) == ("+10.0", "up")
    rates = planned_rates({"data": "digits", "rate": 0.1, "epochs": 4, "schedule": "linear"}, None)
    assert rates[0] == (0.0, pytest.approx(0.1))
    assert rates[-1][1] < 0.01
    assert planned_rates({"rate": "auto"}, None) == []


# --- actions ------------------------------------------------------------------------------------------------------------------


def test_checkpoints_and_more_epochs_over_the_api(web: tuple[TestClient, Studio]) -> None:
    client, studio = web
    names = [one["name"] for one in client.get(f"{RUN}/checkpoints").json()]
    assert names == ["state/last", "weights/best", "weights/last", "weights/epoch-0002", "weights/epoch-0001"]
    assert client.delete(f"{RUN}/checkpoints/weights/best").status_code == 400
    assert client.delete(f"{RUN}/checkpoints/weights/last").status_code == 200
    kept = client.post(f"{RUN}/checkpoints/keep", json={"best": 1}).json()
    assert kept["deleted"] == ["weights/epoch-0001"]
    assert client.post(f"{RUN}/checkpoints/keep", json={"worst": 1}).status_code == 422
    told = client.post(f"{RUN}/extend", json={"more": 3}).json()
    assert studio.queue.job(told["number"]).settings["epochs"] == 5
    assert client.post(f"{RUN}/extend", json={"epochs": 1}).status_code == 400
    refused = client.post(f"{RUN}/branch", json={"checkpoint": "weights/nothing", "name": "x"})
    assert "a checkpoint of good is required" in refused.json()["message"]
    assert client.post(f"{RUN}/stop").status_code == 200  # the job that waits
    assert client.post(f"{RUN}/stop").status_code == 400


def test_exports_and_downloads_over_the_api(web: tuple[TestClient, Studio]) -> None:
    client, studio = web
    number = client.post(f"{RUN}/exports", json={"to": "onnx"}).json()["number"]
    assert client.get(f"{RUN}/exports").json() == {
        "files": [], "jobs": [{"number": number, "to": "onnx", "state": WAITING, "why": ""}],
    }  # fmt: skip
    assert client.post(f"{RUN}/exports", json={"to": "zip"}).status_code == 400
    folder = studio.index.rows()[0].folder
    (folder / "exports").mkdir()
    (folder / "exports" / "good.onnx").write_bytes(b"net")
    assert client.get(f"{RUN}/exports").json()["files"][0]["file"] == "exports/good.onnx"
    (folder / ".hidden").write_text("no")
    (folder / "link").symlink_to("/etc/hostname")
    answer = client.get(f"{RUN}/download.zip")
    with zipfile.ZipFile(io.BytesIO(answer.content)) as packed:
        assert packed.testzip() is None
        names = set(packed.namelist())
        assert packed.read("good/exports/good.onnx") == b"net"
    assert {"good/metrics.csv", "good/weights/best.safetensors"} <= names
    assert not names & {"good/.hidden", "good/link", "good/state/last.safetensors"}


def test_a_run_that_somebody_trains_cannot_be_extended(web: tuple[TestClient, Studio]) -> None:
    client, studio = web
    with one_writer(studio.index.rows()[0].folder):
        refused = client.post(f"{RUN}/extend", json={"more": 1})
    assert "Stop it first" in refused.json()["message"]


# --- in a browser -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStudio]:
    runs = tmp_path_factory.mktemp("studio") / "runs"
    for i, (name, rate) in enumerate((("good", 0.1), ("other", 0.01), ("third", 0.001))):
        evaluated_run(runs, name, i, [0.5, 0.8 - 0.1 * i], rate=rate)
    with served_studio(runs, runner=True, roots=(runs.parent,)) as started:
        yield started


@pytest.fixture(scope="module")
def page(server: LocalStudio) -> Iterator[Any]:
    with chromium() as browser:
        opened = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
        opened.goto(server.way_in)
        yield opened


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on this machine")
def test_the_page_of_a_run_in_a_browser(server: LocalStudio, page: Any) -> None:
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    sent: list[Any] = []

    def annotations(route: Any) -> None:
        """Tags and notes as the API answers."""
        sent.extend([route.request.post_data_json] if route.request.method == "PATCH" else [])
        tags = [tag for change in sent for tag in change.get("add_tags", [])]
        route.fulfill(json={"tags": tags, "notes": "", "group": "", "starred": False})

    page.route(re.compile("/api/v1/runs/classify/good(/annotations)?$"), annotations)
    page.goto(f"{server.address}/runs/classify/good")
    page.get_by_role("button", name="Add a tag").click()
    page.keyboard.type("baseline")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Remove the tag baseline").wait_for()
    assert sent == [{"add_tags": ["baseline"]}]
    card = page.locator("section.card[aria-label=Loss]")
    card.locator("canvas").wait_for()
    card.get_by_role("button", name="Log scale").click()
    assert card.get_by_role("button", name="Log scale").get_attribute("aria-pressed") == "true"
    card.get_by_role("button", name="Loss as a table").click()
    assert card.locator("table td").first.inner_text() == "0.5"
    card.get_by_role("button", name="Loss as a table").click()
    box = card.locator("canvas").bounding_box()
    page.mouse.move(box["x"] + 100, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 220, box["y"] + 60, steps=3)
    assert card.locator(".brush").is_visible()
    page.mouse.up()
    page.get_by_role("button", name="Steps").click()
    page.locator("[data-emit=axis][data-value=step][aria-pressed=true]").wait_for()
    page.get_by_role("button", name="Share of row").click()
    page.locator(".matrix button.cell", has_text="%").first.wait_for()
    page.locator(".matrix button.cell").nth(0).click()
    page.get_by_role("heading", name="cat, classified correctly").wait_for()
    page.locator("summary[aria-label^='More actions']").click()
    page.get_by_role("button", name="Extend by epochs").click()
    page.locator("dialog.form input[name=more]").fill("2")
    page.locator("dialog.form").get_by_role("button", name="Extend").click()
    page.get_by_text("good goes on to epoch 4").wait_for()
    for tab in ("evaluation", "predictions", "resources", "checkpoints", "files", "history"):
        page.goto(f"{server.address}/runs/classify/good?tab={tab}")
        page.locator(".tabs [aria-current=page]").wait_for()
    page.goto(f"{server.address}/runs/classify/good?tab=evaluation")
    page.get_by_role("button", name="ROC", exact=True).click()
    page.locator("[data-emit=kind][data-value=roc][aria-pressed=true]").wait_for()
    page.goto(f"{server.address}/compare?runs=classify/good,classify/other,classify/third")
    page.get_by_role("heading", name="Where they disagree").wait_for()
    page.get_by_role("link", name="Remove other").click()
    page.locator(".pick").nth(1).wait_for()
    colours = page.locator(".pick .square").evaluate_all("all => all.map(e => e.style.getPropertyValue('--c'))")
    assert colours == ["var(--s1)", "var(--s3)"]
    page.get_by_role("button", name="Last").click()
    page.locator("[data-emit=at][data-value=last][aria-pressed=true]").wait_for()
    assert errors == []
