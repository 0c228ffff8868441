"""Datasets in the studio: looked at, made, shown, changed and deleted, over the API and in a browser."""

from __future__ import annotations

import io
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from studio_tools import BROWSER, LocalStudio, chromium, make_run, served_studio
from weft import data
from weft.data.changes import DatasetChanges
from weft.data.doctor.report import CheckResult, DoctorFinding, DoctorReport
from weft.data.scan import scan_source
from weft.errors import UserError
from weft.jobs import JobQueue, submit_dataset
from weft.jobs.datasets.create import create_dataset
from weft.jobs.events import Event
from weft.studio.library.dataset_form import DEFAULTS, DatasetForms
from weft.studio.library.dataset_images import ImageFilter, OpenDatasets, OpenedDataset, flags_of
from weft.studio.library.datasets import DatasetIndex, DatasetRow
from weft.studio.library.runs import RunIndex
from weft.studio.paths import AllowedPaths
from weft.studio.uploads import UploadStore

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 220)}
HEADER = {"X-Weft-Studio": "1"}


def picture(colour: tuple[int, int, int], size: tuple[int, int] = (20, 12)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, "PNG")
    return buffer.getvalue()


def make_photos(folder: Path, each: int = 8) -> Path:
    for name, colour in COLOURS.items():
        (folder / name).mkdir(parents=True)
        for number in range(each):
            (folder / name / f"{name}-{number}.png").write_bytes(picture(colour, (20 + number, 12)))
    (folder / "red" / "broken.png").write_bytes(b"no image")
    return folder


def zipped(folder: Path) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in sorted(folder.rglob("*.png")):
            archive.write(path, Path("photos") / path.relative_to(folder))
    return buffer.getvalue()


# --- the library --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def forms(tmp_path: Path) -> Iterator[DatasetForms]:
    paths = AllowedPaths([tmp_path])
    made = DatasetForms(tmp_path / "datasets", paths, UploadStore(tmp_path / "datasets" / ".uploads", 1 << 20))
    yield made
    made.worker.close()


def test_a_source_is_counted_and_its_sizes_are_known(tmp_path: Path) -> None:
    found = scan_source(make_photos(tmp_path / "photos"))
    assert (found.images, found.classes, found.complete) == (25, {"red": 9, "green": 8, "blue": 8}, True)
    assert found.size_range == ((12, 20), (12, 27))
    assert found.unreadable[0][0] == "broken.png"
    assert "not an image" in found.unreadable[0][1]
    assert scan_source("digits").splits == {"train": 1438, "test": 359}
    with pytest.raises(UserError, match="class folders"):
        scan_source(tmp_path / "photos" / "red")


def test_the_form_gives_settings_a_forecast_and_a_command(forms: DatasetForms, tmp_path: Path) -> None:
    make_photos(tmp_path / "photos")
    check = forms.check({"source": "photos", "name": "colours", "size": "16", "validation": "20", "test": "10"})
    assert check.is_ready
    assert check.settings is not None
    assert (check.settings["size"], check.settings["validation"], check.settings["test"]) == ((16, 16), 0.2, 0.1)
    assert check.settings["folder"] == str(tmp_path / "datasets" / "colours" / "v1")
    assert check.forecast is not None
    assert check.forecast.others["arrays"] == 25 * 3 * 16 * 16
    assert check.command.endswith("size=16x16 resize=crop validation=0.2 test=0.1 small=drop store=lmdb encoding=jpeg")
    assert check.sample.endswith(".png")
    assert forms.suggested_name({**DEFAULTS, "source": "photos"}) == "photos"
    assert forms.suggested_name({**DEFAULTS, "kind": "known"}) == "my-digits"


@pytest.mark.parametrize(
    ("given", "field", "message"),
    [
        ({"source": "nothing/"}, "source", "exists in an allowed folder"),
        ({"source": "/etc/"}, "source", "exists in an allowed folder"),
        ({"source": "photos", "name": "a/b"}, "name", "letters, digits"),
        ({"source": "photos", "name": "ok", "size": "many"}, "size", "a size such as 28"),
        (
            {"source": "photos", "name": "ok", "validation": "60", "test": "50"},
            "validation",
            "leave files for training",
        ),
        ({"source": "photos", "name": "ok", "kind": "list"}, "source", "must be a .csv or .txt file"),
        (
            {"source": "photos", "name": "ok", "kind": "movie"},
            "kind",
            "must be one of folder, upload, list, npz, known",
        ),
        ({"kind": "upload", "upload": "../x", "name": "ok"}, "upload", "one of this studio"),
        ({"source": "photos", "name": "ok", "labels": "numbers"}, "labels", "requires a .csv or .txt list"),
    ],
)
def test_errors_stand_at_their_fields(
    forms: DatasetForms, tmp_path: Path, given: dict[str, str], field: str, message: str
) -> None:
    make_photos(tmp_path / "photos", 2)
    errors = forms.check(given).errors
    assert list(errors) == [field]
    assert message in errors[field]


def test_arrays_keep_their_size_and_colour_unless_others_are_chosen(forms: DatasetForms, tmp_path: Path) -> None:
    np.savez(tmp_path / "wide.npz", x=np.zeros((6, 3, 10, 14), np.uint8), y=np.arange(6) % 2)
    make_photos(tmp_path / "photos", 2)

    def made(**given: str) -> tuple[object, object]:
        settings = forms.settings({"name": "new", **given})
        return settings["size"], settings["colour"]

    assert made(kind="known") == ((8, 8), "gray")
    assert made(kind="npz", source="wide.npz") == ((10, 14), "rgb")
    assert made(kind="npz", source="wide.npz", size="20") == ((20, 20), "rgb")
    assert made(source="photos") == ((128, 128), "rgb")


def test_a_path_that_is_being_typed_is_no_error(forms: DatasetForms, tmp_path: Path) -> None:
    make_photos(tmp_path / "photos", 2)
    assert forms.paths.complete("pho") == ["photos/"]
    assert forms.paths.complete("photos/r", folders_only=True) == ["photos/red/"]
    assert not forms.check({"source": "pho"}).errors


def test_the_preview_is_what_the_dataset_holds(forms: DatasetForms, tmp_path: Path) -> None:
    make_photos(tmp_path / "photos", 2)
    path = tmp_path / "photos" / "red" / "red-1.png"
    for way, black in (("fill", True), ("squash", False)):
        content, _ = forms.preview(path, "8x8", way, "rgb")
        pixels = np.asarray(Image.open(io.BytesIO(content)))
        assert pixels.shape == (8, 8, 3)
        assert (pixels[0].sum() == 0) == black
    with pytest.raises(UserError, match=r"broken.png is not an image"):
        forms.preview(tmp_path / "photos" / "red" / "broken.png", "8", "crop", "rgb")


def test_a_job_creates_a_dataset_and_records_it(tmp_path: Path) -> None:
    make_photos(tmp_path / "photos")
    queue = JobQueue(tmp_path / "runs")
    given = {
        "source": str(tmp_path / "photos"),
        "folder": str(tmp_path / "datasets/colours/v1"),
        "size": 8,
        "name": "colours",
    }
    job = submit_dataset(queue, given)
    index = DatasetIndex(tmp_path / "datasets", queue)
    assert [(row.name, row.state) for row in index.refresh()] == [("colours", "making")]
    with pytest.raises(UserError, match="job 1 creates"):
        submit_dataset(queue, given)
    events: list[Event] = []
    create_dataset(job.settings, None, events.append)
    last = events[-1]
    assert (last.type, last["images"], last["failed"]) == ("dataset", 24, 1)
    assert any(event.type == "progress" and event["total"] == 25 for event in events)
    assert len(data.open_dataset(tmp_path / "datasets" / "colours").train) == 18
    job.set("done")
    (row,) = index.refresh()
    assert row.newest is not None
    assert (row.state, row.newest.images, row.newest.failed, row.newest.labels) == ("ready", 24, 1, "class")


def test_arrays_and_known_sets_become_datasets(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 255, (12, 6, 6)).astype(np.uint8)
    np.savez(tmp_path / "a.npz", x_train=x[:8], y_train=np.arange(8) % 2, x_test=x[8:], y_test=np.arange(4) % 2)
    folder = tmp_path / "made" / "v1"
    job = submit_dataset(
        JobQueue(tmp_path),
        {"source": str(tmp_path / "a.npz"), "folder": str(folder), "colour": "gray", "validation": 0},
    )
    create_dataset(job.settings, None, lambda event: None)
    made = data.open_dataset(folder)
    assert made.test is not None
    assert (len(made.train), len(made.test), made.train.shape) == (8, 4, (1, 6, 6))
    assert not (folder.parent / ".v1.files").exists()


def opened(folder: Path) -> OpenedDataset:
    return OpenDatasets().version(folder, str(data.describe(folder)["digest"]))


def test_images_are_found_by_split_class_name_and_flag(tmp_path: Path) -> None:
    data.create(make_photos(tmp_path / "photos"), tmp_path / "made", size=(8, 8), validation=0.25)
    found = opened(tmp_path / "made")
    everything, total = found.find(ImageFilter())
    assert (len(everything), total) == (24, 24)
    assert found.find(ImageFilter(split="validation", of_class="red"))[1] == 2
    named, _ = found.find(ImageFilter(words="BLUE-3"))
    assert [one.name for one in named] == ["blue/blue-3.png"]
    assert found.find(ImageFilter(words="green"))[1] == 8
    assert found.find(ImageFilter(of_class="yellow"))[1] == 0
    pages = [ref for start in range(0, 24, 5) for ref in found.find(ImageFilter(), start, 5)[0]]
    assert pages == everything
    found.flags = {"train": {2: "Duplicate"}}
    flagged, count = found.find(ImageFilter(flagged=True))
    assert (count, flagged[0].flag, flagged[0].row) == (1, "Duplicate", 2)
    content, kind = found.thumbnail("train", 0, 32)
    assert kind == "image/png"
    assert Image.open(io.BytesIO(content)).size == (8, 8)
    assert found.pixels.mean_image.shape == (3, 8, 8)
    with pytest.raises(UserError, match="no image 99"):
        found.thumbnail("train", 99, 32)


def test_findings_of_the_doctor_flag_images(tmp_path: Path) -> None:
    data.create(make_photos(tmp_path / "photos"), tmp_path / "made", size=(8, 8))
    digest = str(data.describe(tmp_path / "made")["digest"])
    assert flags_of(tmp_path / "made", digest) == {}
    wrong = DatasetChanges(relabel={"train": {1: "red"}})
    findings = (
        DoctorFinding("duplicates", "warning", (("train", 0), ("validation", 2)), "copies"),
        DoctorFinding("labels", "warning", (("train", 1),), "looks red", suggested=wrong),
    )
    results = tuple(CheckResult(one.check, one.check, "warning", "", (one,)) for one in findings)
    DoctorReport("photos", digest, {}, results, True, 0.0, 0.0).save(tmp_path / "made")
    assert flags_of(tmp_path / "made", digest) == {"validation": {2: "Duplicate"}, "train": {1: "Likely red"}}
    assert flags_of(tmp_path / "made", "another") == {}


# --- the API ------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStudio]:
    runs = tmp_path_factory.mktemp("datasets") / "runs"
    make_photos(runs.parent / "photos")
    data.create(runs.parent / "photos", runs.parent / "datasets" / "ready" / "v1", size=(8, 8), validation=0.25)
    make_run(runs, "learned", [0.5, 0.9], data=str(runs.parent / "datasets" / "ready" / "v1"))
    with served_studio(runs, runner=True, roots=(runs.parent,)) as started:
        yield started


@pytest.fixture(scope="module")
def web(server: LocalStudio) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.address, timeout=30) as client:
        client.headers["Authorization"] = f"Bearer {(server.runs / '.studio' / 'token').read_text().strip()}"
        yield client


def until(found: Callable[[], Any], seconds: float = 60) -> Any:
    limit = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < limit, "it takes too long"
        time.sleep(0.1)
    return value


def versions(web: httpx.Client, name: str) -> list[Any]:
    answer = web.get(f"/api/v1/datasets/{name}")
    return list(answer.json()["versions"]) if answer.status_code == 200 else []


def test_pages_answer(web: httpx.Client) -> None:
    for page in (
        "",
        "/new",
        "/ready",
        "/digits",
        *(f"/ready?tab={tab}" for tab in ("images", "versions", "classes", "runs", "failed", "add")),
    ):
        answer = web.get(f"/datasets{page}")
        assert answer.status_code == 200, page
    assert web.get("/datasets/nothing").status_code == 404


def test_pages_of_jobs_show_those_that_make_datasets(web: httpx.Client, server: LocalStudio) -> None:
    x = np.random.default_rng(0).integers(0, 255, (12, 6, 6)).astype(np.uint8)
    np.savez(server.runs.parent / "arrays.npz", x=x, y=np.arange(12) % 2)
    given = {"kind": "npz", "source": "arrays.npz", "name": "arrays", "size": "6", "colour": "gray", "store": "arrays"}
    assert web.post("/api/v1/datasets", headers=HEADER, json=given).status_code == 200
    (made,) = until(lambda: versions(web, "arrays"))
    assert (made["images"], made["shape"]) == (12, [1, 6, 6])
    for page in ("/", "/queue", "/datasets"):
        assert web.get(page).status_code == 200, page


def test_images_are_served_small_and_cacheable(web: httpx.Client) -> None:
    listed = web.get("/api/v1/datasets/ready/v1/images", params={"class": "blue", "split": "train"}).json()
    assert listed["total"] == 6
    row = listed["images"][0]["row"]
    answer = web.get(f"/api/v1/datasets/ready/v1/images/train/{row}")
    assert "immutable" in answer.headers["cache-control"]
    pixel = np.asarray(Image.open(io.BytesIO(answer.content)))[0, 0]
    assert pixel.argmax() == 2
    assert web.get("/api/v1/datasets/ready/v1/pixels").json()["images"] == 18
    assert web.get("/api/v1/datasets/ready/v1/mean").headers["content-type"] == "image/png"
    assert "not an image" in web.get("/api/v1/datasets/ready/v1/failed").json()[0]["reason"]
    assert web.get("/api/v1/datasets/digits/known/images/train/0").status_code == 200


def test_fields_that_do_not_exist_are_refused(web: httpx.Client) -> None:
    answer = web.post("/api/v1/datasets", json={"kind": "known", "name": "small", "sise": "8"})
    assert answer.status_code == 400
    assert answer.json()["message"] == "a field of the form is required, got 'sise'. Did you mean size?"


def test_sources_are_confined(web: httpx.Client) -> None:
    assert [one["path"] for one in web.get("/api/v1/paths", params={"typed": "pho"}).json()] == ["photos/"]
    assert web.get("/api/v1/paths", params={"typed": "photos/r"}).json() == [
        {"path": "photos/red/", "about": "9 files"}
    ]
    assert web.get("/api/v1/paths", params={"typed": "/etc/"}).json() == []
    assert web.get("/api/v1/datasets/scan", params={"source": "photos"}).json()["images"] == 25
    assert web.get("/api/v1/datasets/preview", params={"path": "/etc/passwd"}).status_code == 400
    refused = web.post("/api/v1/datasets", headers=HEADER, json={"source": "/etc", "name": "x"})
    assert refused.status_code == 400
    assert web.put("/api/v1/uploads/0123456789abcdef/files/a.png", headers=HEADER, content=b"x").status_code == 400


def test_a_corrected_image_is_added_under_its_class(web: httpx.Client, server: LocalStudio) -> None:
    data.create(
        server.runs.parent / "photos", server.runs.parent / "datasets" / "fix" / "v1", size=(8, 8), validation=0.25
    )
    until(lambda: web.get("/api/v1/datasets/fix").status_code == 200)

    def correct(label: str) -> httpx.Response:
        image = {"image": ("image.png", picture(COLOURS["red"]))}
        return web.post("/api/v1/datasets/fix/corrections", headers=HEADER, params={"label": label}, files=image)

    refused = correct("../../red")
    assert (refused.status_code, "a class of fix is required" in refused.json()["message"]) == (400, True)
    made = correct("red").json()
    assert made["message"] == "fix gets a new version with the image as red."
    again = correct("red")  # its version would not have the first image
    assert (again.status_code, "is being changed by job" in again.json()["message"]) == (400, True)
    until(lambda: web.get(f"/api/v1/jobs/{made['number']}").json()["state"] == "done")
    newest = until(lambda: next((one for one in versions(web, "fix") if one["name"] == "v2"), None))
    assert (newest["images"], newest["changes"]) == (25, "added corrected images")


def test_runs_on_relative_paths_belong_to_their_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    row = DatasetRow("shades", tmp_path / "here" / "datasets" / "shades", ())
    for path in ("datasets/shades", "here/datasets/shades", str(tmp_path / "here/datasets/shades")):
        make_run(tmp_path / "runs", f"run{len(path)}", [0.5], data=path)
    index = RunIndex(tmp_path / "runs")
    index.refresh()
    assert len(row.used_by(index.rows())) == 3


def test_a_dataset_is_made_from_an_upload_changed_and_deleted(web: httpx.Client, server: LocalStudio) -> None:
    name = web.post("/api/v1/uploads", headers=HEADER).json()["upload"]
    for path in sorted((server.runs.parent / "photos").rglob("*-[0-3].png")):
        relative = path.relative_to(server.runs.parent)
        answer = web.put(f"/api/v1/uploads/{name}/files/{relative}", headers=HEADER, content=path.read_bytes())
        assert answer.json()["bytes"] == path.stat().st_size
    assert web.put(f"/api/v1/uploads/{name}/files/..%2Fout.png", headers=HEADER, content=b"x").status_code in (400, 404)
    given = {"kind": "upload", "upload": name, "name": "sent", "size": "8", "store": "arrays", "validation": "25"}
    answer = web.post("/api/v1/datasets", headers=HEADER, json=given)
    assert answer.json()["open"] == "/datasets/sent"
    (made,) = until(lambda: versions(web, "sent"))
    assert (made["images"], sorted(made["classes"])) == (12, ["blue", "green", "red"])
    until(lambda: not (server.runs.parent / "datasets" / ".uploads" / name).exists())

    wrong = web.post("/api/v1/datasets/sent/v1/changes", headers=HEADER, json={"remove": {"train": [99]}})
    assert wrong.status_code == 400
    changes = {"remove": {"train": [0]}, "rename": {"red": "warm"}, "add": "photos"}
    assert web.post("/api/v1/datasets/sent/v1/changes", headers=HEADER, json=changes).status_code == 200
    newest = until(lambda: versions(web, "sent")[1:])[0]
    assert (newest["images"], newest["parent"], "warm" in newest["classes"]) == (35, "v1", True)
    assert newest["changes"] == "removed 1 image, renamed red to warm, added photos"

    kept = web.delete("/api/v1/datasets/ready", headers=HEADER)
    assert kept.status_code == 400
    assert "1 run learned from it: learned" in kept.json()["message"]
    assert web.delete("/api/v1/datasets/sent/v1", headers=HEADER).status_code == 200
    assert [one["name"] for one in versions(web, "sent")] == ["v2"]
    assert web.delete("/api/v1/datasets/sent", headers=HEADER).status_code == 200
    assert versions(web, "sent") == []


def test_a_dataset_that_could_not_be_made_says_why_and_goes_away(web: httpx.Client, server: LocalStudio) -> None:
    broken = server.runs.parent / "broken" / "a"
    broken.mkdir(parents=True)
    for number in range(3):
        (broken / f"{number}.png").write_bytes(b"no image")
    given = {"source": "broken", "name": "hopeless", "size": "8", "minimum": "1"}
    assert web.post("/api/v1/datasets", headers=HEADER, json=given).status_code == 200
    until(lambda: web.get("/api/v1/datasets/hopeless").json()["state"] == "failed")
    assert "3 of 3 files failed" in web.get("/api/v1/datasets/hopeless").json()["jobs"][0]["why"]
    until(lambda: "The dataset was not made" in web.get("/datasets/hopeless").text)
    assert web.delete("/api/v1/datasets/hopeless", headers=HEADER).status_code == 200
    assert web.get("/api/v1/datasets/hopeless").status_code == 404


def test_archives_that_lead_out_are_refused(web: httpx.Client) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("../out.png", b"x")
    name = web.post("/api/v1/uploads", headers=HEADER).json()["upload"]
    refused = web.put(f"/api/v1/uploads/{name}/archive", headers=HEADER, content=buffer.getvalue())
    assert refused.status_code == 400
    assert "leads out" in refused.json()["message"]
    assert web.delete(f"/api/v1/uploads/{name}", headers=HEADER).status_code == 200


# --- in a browser -------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on this machine")
def test_a_zip_becomes_a_dataset_in_the_browser(server: LocalStudio, tmp_path: Path) -> None:
    (tmp_path / "photos.zip").write_bytes(zipped(server.runs.parent / "photos"))
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        problems: list[str] = []
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(server.way_in)
        page.goto(f"{server.address}/datasets/new")
        page.click("button[data-value=upload]")
        page.set_input_files("[data-upload] input[multiple]", tmp_path / "photos.zip")
        page.get_by_text("25", exact=True).wait_for()  # images found
        page.fill("#f-name", "from-zip")
        page.fill("#f-size", "8")
        page.locator(".chip", has_text="Ready").wait_for()
        page.locator(".mode", has_text="Squash").click()
        page.click("[data-create]")
        page.wait_for_url("**/datasets/from-zip")
        page.locator(".chip", has_text="Ready").wait_for(timeout=60_000)
        page.locator("[data-image]").first.wait_for()
        assert "1 failed to load" in page.inner_text("main")
        page.locator("[data-image]").first.press("Enter")
        page.locator(".viewer").wait_for()
        page.keyboard.press("Escape")
        page.locator(".viewer").wait_for(state="detached")
        page.get_by_text("see why").click()
        page.get_by_text("is not an image in a supported format").wait_for()
        page.set_viewport_size({"width": 390, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert problems == []
