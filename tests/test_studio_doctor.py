"""The data doctor of the studio: the API, and the page as a person uses it."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

pytest.importorskip("nicegui")

from studio_tools import BROWSER, LocalStudio, chromium, page_errors, served_studio
from weft import data
from weft.data.changes import DatasetChanges
from weft.data.doctor.decisions import Decisions, changes_of, decide, load_decisions
from weft.data.doctor.report import CheckResult, DoctorFinding, DoctorReport
from weft.errors import UserError
from weft.studio.library.doctor import version_folder
from weft.testing import generator

CHANGES = {"X-Weft-Studio": "1"}


def make_dataset(root: Path, name: str) -> Path:
    """Two classes of 6 images for training and 2 for validation, one of which is also in train, and a blank image."""
    photos = root / f"{name}-files"
    for split, count in (("train", 6), ("val", 1)):
        for kind in ("cat", "dog"):
            (photos / split / kind).mkdir(parents=True)
            for number in range(count):
                pixels = generator(f"{split}/{kind}/{number}").integers(0, 256, (24, 24, 3), np.uint8)
                Image.fromarray(pixels).save(photos / split / kind / f"{number}.png")
    Image.open(photos / "train" / "cat" / "0.png").save(photos / "val" / "cat" / "leak.png")
    Image.new("RGB", (24, 24), (90, 90, 90)).save(photos / "train" / "dog" / "blank.png")
    folder = root / "datasets" / name / "v1"
    data.create(photos, folder, workers=0)
    return folder


def labels_report(folder: Path) -> DoctorReport:
    """A report with a wrong label, as the doctor would write it: finding one takes seconds."""
    suggested = DatasetChanges(relabel={"train": {2: "dog"}})
    finding = DoctorFinding(
        "labels", "warning", (("train", 2),), "Labelled cat, looks like dog", 0.97, suggested, {"labels": ["cat"], "suggested": "dog"}
    )  # fmt: skip
    leak = DoctorFinding(
        "leaks", "warning", (("train", 0), ("validation", 1)), "The same pixels", 1.0, facts={"labels": ["cat", "cat"]}
    )
    results = (
        CheckResult("leaks", "Leak between splits", "warning", "1 image", (leak,)),
        CheckResult("labels", "Likely wrong labels", "warning", "1 image", (finding,)),
    )
    return DoctorReport("pets", data.describe(folder)["digest"], {"features": None}, results, True, time.time(), 1.0)


# --- decisions ----------------------------------------------------------------------------------------------------------------


def test_decisions_are_kept_and_become_changes(tmp_path: Path) -> None:
    folder = make_dataset(tmp_path, "pets")
    report = labels_report(folder)
    leak, label = (result.findings[0] for result in report.results)
    assert (leak.id, label.id) == ("leaks/train:0=validation:1", "labels/train:2")
    decide(folder, report, {leak.id: "move", label.id: "relabel"})
    made = load_decisions(folder, report.digest)
    assert made.changes(report).as_json() == {
        "relabel": {"train": {"2": "dog"}},
        "move": {"validation": {"1": "train"}},
    }
    made = decide(folder, report, {leak.id: "remove", label.id: "relabel:bird"})
    assert made.changes(report).as_json() == {"remove": {"validation": [1]}, "relabel": {"train": {"2": "bird"}}}
    made = decide(folder, report, {leak.id: None, label.id: "keep"})
    assert made.made == {label.id: "keep"}
    assert not made.changes(report)
    assert load_decisions(folder, "another") == Decisions()


def test_what_cannot_be_decided_is_refused(tmp_path: Path) -> None:
    folder = make_dataset(tmp_path, "pets")
    report = labels_report(folder)
    with pytest.raises(UserError, match=r"about labels/train:2 one can decide relabel, remove, keep, got 'move'"):
        decide(folder, report, {"labels/train:2": "move"})
    with pytest.raises(UserError, match="there is no finding labels/train:3"):
        decide(folder, report, {"labels/train:3": "keep"})
    with pytest.raises(UserError, match="one can decide nothing"):
        changes_of(DoctorFinding("balance", "warning", (), "few"), "remove")


@pytest.mark.parametrize("name", ["..", ".hidden", "a/b", "", "none", "../pets"])
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    make_dataset(tmp_path, "pets")
    (tmp_path / "datasets" / ".hidden").mkdir()
    with pytest.raises(UserError, match="there is no dataset"):
        version_folder(tmp_path / "datasets", name)
    assert version_folder(tmp_path / "datasets", "pets").name == "v1"
    for version in ("v2", "0", "x", "v1/.."):
        with pytest.raises(UserError, match="there is no dataset"):
            version_folder(tmp_path / "datasets", "pets", version)


# --- over HTTP ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStudio]:
    root = tmp_path_factory.mktemp("studio")
    make_dataset(root, "pets")
    labelled = make_dataset(root, "labelled")
    labels_report(labelled).save(labelled)
    with served_studio(root / "runs", runner=True, roots=(root,)) as started:
        yield started


@pytest.fixture(scope="module")
def web(server: LocalStudio) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{server.address}/api/v1", timeout=30) as client:
        client.headers["Authorization"] = f"Bearer {(server.runs / '.studio' / 'token').read_text().strip()}"
        yield client


def test_the_api(web: httpx.Client, server: LocalStudio) -> None:
    doctor = "/datasets/labelled/versions/1/doctor"
    found = web.get(doctor).json()
    assert [result["check"] for result in found["report"]["results"]] == ["leaks", "labels"]
    assert found["job"] is None
    shown = np.asarray(Image.open(io.BytesIO(web.get(f"{doctor}/images/train/3.png").content)))
    stored = data.open_dataset(server.runs.parent / "datasets" / "labelled" / "v1").train.inputs([3])[0]
    np.testing.assert_array_equal(shown, stored.transpose(1, 2, 0))
    assert web.get(f"{doctor}/differences/leaks/0.png").headers["content-type"] == "image/png"
    refused = web.post(f"{doctor}/save", headers=CHANGES)
    assert (refused.status_code, "a decision to remove, move or relabel is required" in refused.text) == (400, True)
    answer = web.put(f"{doctor}/decisions", json={"labels/train:2": "relabel:cow"}, headers=CHANGES)
    assert answer.json() == {"decisions": {"labels/train:2": "relabel:cow"}}
    lines = web.get(f"{doctor}/findings.csv").text.splitlines()
    assert lines[0] == "check,split,row,file,text,score,decision"
    assert lines[-1].endswith('"Labelled cat, looks like dog",0.9700,relabel:cow')
    assert web.post(f"{doctor}/save", headers=CHANGES).status_code == 200
    wait_for(lambda: web.get("/datasets/labelled/versions/2/doctor").status_code == 200)
    assert web.get("/datasets/labelled/versions/2/doctor").json() == {"report": None, "decisions": {}, "job": None}


def test_what_does_not_exist_is_not_found(web: httpx.Client) -> None:
    doctor = "/datasets/labelled/versions/1/doctor"
    for path in (
        "/datasets/nothing/versions/1/doctor", "/datasets/labelled/versions/9/doctor", "/datasets/../versions/1/doctor",
        f"{doctor}/differences/labels/0.png", f"{doctor}/differences/leaks/7.png",
    ):  # fmt: skip
        assert web.get(path).status_code == 404, path
    assert web.get(f"{doctor}/images/train/99.png").status_code == 400
    assert web.post(doctor, json={"features": "classify/none"}, headers=CHANGES).status_code == 400
    assert web.put(f"{doctor}/decisions", json={"x": "keep"}, headers=CHANGES).status_code == 400


def wait_for(condition, seconds: float = 60) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.1)


# --- in a browser -------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on this machine")
def test_a_person_starts_it_decides_by_keys_and_saves(server: LocalStudio) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    with chromium() as browser:
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        page = context.new_page()
        problems = page_errors(page)
        page.goto(server.way_in)
        page.goto(f"{server.address}/datasets/pets/doctor")
        expect = playwright.expect
        page.get_by_role("button", name="Start the data doctor").click()
        expect(page.get_by_text("1 image of validation is also in another split")).to_be_visible(timeout=60_000)
        expect(page.get_by_text("took")).to_be_visible(timeout=60_000)
        save = page.get_by_role("button", name="Save as v2")
        expect(save).to_be_disabled()
        page.keyboard.press("r")
        expect(page.get_by_text("1 removed, 0 open")).to_be_visible()
        page.keyboard.press("z")
        expect(page.get_by_text("1 open", exact=True)).to_be_visible()
        page.keyboard.press("m")
        expect(page.get_by_text("1 moved, 0 open")).to_be_visible()
        page.get_by_role("button", name="Broken or tiny images").click()
        page.get_by_role("button", name="Remove R").click()
        expect(page.get_by_text("1 removed, 0 open")).to_be_visible()
        expect(save).to_be_enabled()
        unnamed = "[...document.querySelectorAll('button, a[href], input, select')].filter(e => !(e.innerText || e.ariaLabel || e.labels?.length)).length"
        assert page.evaluate(unnamed) == 0
        page.set_viewport_size({"width": 390, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        save.click()
        expect(page.get_by_role("link", name="Open v2")).to_be_visible(timeout=60_000)
        page.get_by_role("link", name="Open v2").click()
        expect(page.get_by_role("button", name="Start the data doctor")).to_be_visible()
        assert problems == []
    made = server.runs.parent / "datasets" / "pets" / "v2"
    names = {split: (made / split / "names.txt").read_text().split() for split in ("train", "validation")}
    assert "cat/leak.png" in names["train"]
    assert "dog/blank.png" not in names["train"]
    assert sorted(names["validation"]) == ["cat/0.png", "dog/0.png"]
