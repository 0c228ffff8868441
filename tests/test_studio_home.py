"""Checks the tables of the home page: columns, search, groups, pages, deletion with a way back; and the page in a browser where there is one."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from studio_tools import BROWSER, LocalStudio, chromium, make_run, served_studio
from weft.cli import main
from weft.data.checksums import write_checksums
from weft.data.dataset_folder import VERSION
from weft.data.staging import DESCRIPTION
from weft.errors import UserError
from weft.jobs.annotations import annotate, read_annotations
from weft.jobs.find import run_folders
from weft.jobs.trash import delete_runs, empty_trash, restore_runs, trash_entries
from weft.locks import one_writer
from weft.studio.api.runs import runs_csv
from weft.studio.library.runs import RunIndex, RunRow
from weft.studio.ui.run_columns import all_columns, chosen_columns
from weft.studio.ui.run_query import PAGE, RunQuery, fitting, grouped, ordered, page_of

needs_browser = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on this machine")


def rows_of(root: Path) -> list[RunRow]:
    index = RunIndex(root)
    index.refresh()
    return sorted(index.rows(), key=lambda row: row.id)


# --- columns, search, groups ------------------------------------------------------------------------------------------------------


def test_every_metric_and_every_setting_that_differs_can_be_a_column(tmp_path: Path) -> None:
    make_run(tmp_path, "a", [0.5, 0.9], rate=0.1, seed=3)
    make_run(tmp_path, "b", [0.7], rate=0.01, seed=3)
    rows = rows_of(tmp_path)
    known = all_columns(rows)
    assert {"validation_accuracy", "validation_loss", "train_loss", "setting rate", "started", "group"} <= known.keys()
    assert "setting seed" not in known, "it is the same everywhere"
    assert [column.key for column in chosen_columns(known, ["setting rate", "nothing", "train_loss"])] == [
        "name", "setting rate", "train_loss",
    ]  # fmt: skip
    by_rate = ordered(rows, known["setting rate"], descending=True)
    assert [row.name for row in by_rate] == ["a", "b"]
    assert known["train_loss"].text(known["train_loss"].value(rows[0])) == "0.100"


def test_missing_and_mixed_values_are_sorted_last_and_never_fail(tmp_path: Path) -> None:
    for name, rate in (("a", None), ("b", 0.1), ("c", "auto"), ("d", 0.2)):
        make_run(tmp_path, name, [0.5], rate=rate)
    rows = rows_of(tmp_path)
    column = all_columns(rows)["setting rate"]
    for descending, names in ((True, "cdba"), (False, "bdca")):
        assert "".join(row.name for row in ordered(rows, column, descending)) == names


def test_runs_are_found_by_tags_groups_and_settings(tmp_path: Path) -> None:
    one, two = make_run(tmp_path, "one", [0.5], rate=0.1), make_run(tmp_path, "two", [0.9])
    annotate(one, tags=["baseline"], group="first", notes="with Care")
    annotate(two, tags=["baseline", "late"])
    rows = rows_of(tmp_path)

    def found(**given: Any) -> list[str]:
        return [row.name for row in fitting(rows, RunQuery(**given))]

    assert found(words="baseline FIRST") == ["one"]
    assert found(words="care rate=0.1") == ["one"]
    assert found(tag="late") == ["two"]
    assert found(state="running") == []
    groups = grouped(rows, RunQuery(group_by="tag"), "validation_accuracy")
    assert [(group.name, len(group.rows), group.best) for group in groups] == [("baseline", 2, 0.9), ("late", 1, 0.9)]
    assert [group.name for group in grouped(rows, RunQuery(group_by="group"), None)] == ["first", ""], (
        "no group comes last"
    )
    assert grouped(rows, RunQuery(group_by="data"), "validation_loss")[0].best == pytest.approx(0.1)


def test_pages_hold_a_hundred_runs_over_all_groups() -> None:
    rows = [
        RunRow(f"r{i}", Path(f"r{i}"), {"data": "a" if i < 130 else "b"}, {}, {}, "finished", 0.0) for i in range(250)
    ]
    query = RunQuery(group_by="data", page=1)
    shown, page, first, total = page_of(grouped(rows, query, None), query)
    assert (page, first, total, [len(group.rows) for group in shown]) == (1, PAGE, 250, [30, 70])
    closed = RunQuery(group_by="data", page=7, closed=frozenset({"a"}))
    shown, page, first, total = page_of(grouped(rows, closed, None), closed)
    assert (page, total, [group.name for group in shown][-1]) == (1, 120, "b")
    assert page_of([], RunQuery())[2:] == (0, 0)


def test_runs_are_exported_as_a_table(tmp_path: Path) -> None:
    annotate(make_run(tmp_path, "a", [0.5, 0.9], rate=0.1), tags=["x", "y"])
    make_run(tmp_path, "b", [0.7], momentum=0.9)
    found = list(csv.DictReader(io.StringIO(runs_csv(rows_of(tmp_path)))))
    assert [(one["run"], one["tags"], one["rate"], one["validation_accuracy"]) for one in found] == [
        ("classify/a", "x y", "0.1", "0.9"), ("classify/b", "", "none", "0.7"),
    ]  # fmt: skip


# --- trash ------------------------------------------------------------------------------------------------------------------------


def test_deleted_runs_can_be_restored_until_the_trash_is_emptied(tmp_path: Path) -> None:
    folders = [make_run(tmp_path, name, [0.5]) for name in ("a", "b", "c")]
    entry = delete_runs(tmp_path, folders[:2])
    assert entry.runs == ("classify/a", "classify/b")
    assert run_folders(tmp_path) == [folders[2]], "the trash holds no runs of its own"
    make_run(tmp_path, "a", [0.9])
    with pytest.raises(UserError, match="a cannot be restored: a new run has its name"):
        restore_runs(tmp_path, entry.id)
    second = delete_runs(tmp_path, [folders[0]])
    assert restore_runs(tmp_path, entry.id).runs == entry.runs
    assert len(run_folders(tmp_path)) == 3
    assert [one.id for one in trash_entries(tmp_path)] == [second.id]
    assert empty_trash(tmp_path) == 1
    for wrong in (second.id, "..", "x/../..", ""):
        with pytest.raises(UserError, match="there is nothing called"):
            restore_runs(tmp_path, wrong)


def test_a_running_run_and_what_is_no_run_are_not_deleted(tmp_path: Path) -> None:
    folder, other = make_run(tmp_path, "a", [0.5]), make_run(tmp_path, "b", [0.5])
    with one_writer(folder), pytest.raises(UserError, match="which process .* writes to. Stop it first"):
        delete_runs(tmp_path, [other, folder])
    assert other.exists(), "none is deleted, or all"
    (tmp_path / "plain").mkdir()
    with pytest.raises(UserError, match="is no folder of a run"):
        delete_runs(tmp_path, [tmp_path / "plain"])
    with pytest.raises(UserError, match="a run below"):
        delete_runs(tmp_path / "classify" / "a", [other])


def test_the_trash_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(Path("runs"), "mine", [0.5])
    assert main(["runs", "delete", "mine"]) == 0
    entry = capsys.readouterr().out.split()[-1]
    assert main(["runs", "trash"]) == 0
    assert capsys.readouterr().out == f"{entry}  classify/mine\n"
    assert main(["runs", "restore", entry]) == 0
    assert capsys.readouterr().out == "restored: classify/mine\n"
    assert main(["runs", "trash", "empty=true"]) == 0
    assert main(["runs", "delete"]) == 2


def make_dataset(folder: Path, name: str, version: int, images: int) -> None:
    place = folder / name / f"v{version}"
    place.mkdir(parents=True)
    counts = {"train": {"a": images - 1, "b": 0}, "validation": {"a": 0, "b": 1}}
    about = {"format": "weft dataset", "version": VERSION, "digest": "0", "classes": ["a", "b"], "counts": counts}
    (place / DESCRIPTION).write_text(json.dumps({**about, "shape": [3, 24, 32]}))
    write_checksums(place, [DESCRIPTION])


# --- a studio -----------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStudio]:
    root = tmp_path_factory.mktemp("home")
    make_run(root / "runs", "best", [0.5, 0.9], rate=0.1)
    make_run(root / "runs", "other", [0.4, 0.7], rate=0.3)
    make_dataset(root / "datasets", "photos", 2, 20)
    make_dataset(root / "datasets", "photos", 10, 3000)
    (root / "datasets" / "photos" / "v11").mkdir()  # being made
    with served_studio(root / "runs", roots=(root,)) as started:
        yield started


@pytest.fixture(scope="module")
def web(server: LocalStudio) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.address, timeout=30) as client:
        token = (server.runs / ".studio" / "token").read_text().strip()
        client.headers.update({"Authorization": f"Bearer {token}", "X-Weft-Studio": "1"})
        yield client


def test_annotations_and_the_trash_over_the_api(web: httpx.Client, server: LocalStudio) -> None:
    changed = web.patch("/api/v1/runs/classify/best/annotations", json={"add_tags": ["a"], "starred": True})
    assert changed.json() == {"tags": ["a"], "notes": "", "group": "", "starred": True}
    assert web.patch("/api/v1/runs/classify/best/annotations", json={"tag": "a"}).status_code == 422
    refused = web.patch("/api/v1/runs/classify/best/annotations", json={"add_tags": ["a,b"]})
    assert (refused.status_code, "without commas" in refused.json()["message"]) == (400, True)
    assert web.patch("/api/v1/runs/nothing/annotations", json={}).status_code == 404
    both = {"runs": ["classify/best", "classify/other"]}
    assert (
        web.post("/api/v1/runs/annotate", json={**both, "add_tags": ["b"], "group": "g"}).json()["message"]
        == "2 runs changed."
    )
    assert read_annotations(server.runs / "classify" / "other").tags == ("b",)
    text = web.get("/api/v1/runs/export", params={"runs": "classify/best,classify/other"}).text
    assert len(text.splitlines()) == 3
    deleted = web.post("/api/v1/runs/delete", json={"runs": ["classify/other"]}).json()
    assert not (server.runs / "classify" / "other").exists()
    assert deleted["message"] == "other moved to the trash."
    restored = web.post(f"/api/v1{deleted['undo']['path']}", json=deleted["undo"]["body"])
    assert restored.json()["runs"] == ["classify/other"]
    web.post("/api/v1/runs/annotate", json={**both, "tags": [], "group": "", "starred": False})


def test_the_tabs_of_the_home_page(web: httpx.Client) -> None:
    shown = web.get("/", params={"tab": "datasets"}).text
    assert all(text in shown for text in ("photos v10", "3,000 images", "32 × 24"))  # the newest that is whole
    assert "lenet5" in web.get("/", params={"tab": "networks"}).text
    assert web.get("/", params={"tab": "nonsense"}).status_code == 200


@needs_browser
def test_columns_groups_tags_and_deletion_in_a_browser(server: LocalStudio) -> None:
    errors: list[str] = []
    with chromium() as browser:
        page = browser.new_context(viewport={"width": 1280, "height": 1000}).new_page()
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(server.way_in)
        page.wait_for_selector("text=other")
        page.get_by_text("Columns", exact=True).click()
        page.get_by_label("Search columns").fill("rate")
        page.locator("[data-column='setting rate'] input").check()
        page.wait_for_selector("th >> text=rate")
        page.reload()
        page.wait_for_selector("th >> text=rate")  # kept in this browser
        page.get_by_role("button", name="rate").click()
        page.wait_for_selector("tbody tr:first-child >> text=other")
        page.get_by_label("Group by").select_option("model")
        page.wait_for_selector(".group-head >> text=2 runs · best val accuracy 90.0 %")
        page.get_by_label("Select other").check()
        page.get_by_role("button", name="Tag").click()
        page.get_by_label("Tags to add").fill("late, good, with-a-rather-long-name, and-another-long-one")
        page.keyboard.press("Enter")
        page.wait_for_selector(".tag >> text=late")
        for width in (390, 1280):  # with the bar of the selected runs
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
        page.get_by_role("button", name="Delete").click()
        assert "Delete other?" in page.locator("dialog").inner_text()
        page.get_by_role("button", name="Delete other").click()
        page.wait_for_selector("tbody >> text=other", state="detached")
        page.get_by_role("button", name="Undo").click()
        page.wait_for_selector("tbody >> text=other")
        assert page.locator(".bulk").count() == 0, "a deleted run is not selected any more"
    assert errors == []
    assert yaml.safe_load((server.runs / "classify" / "other" / "args.yaml").read_text())["rate"] == 0.3
