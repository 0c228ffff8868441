"""Networks in the studio: the table with its chart, REST of designs and imports, and the editor in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import weft
from studio_tools import BROWSER, LocalStudio, chromium, make_run, served_studio
from weft import zoo
from weft.errors import UserError
from weft.io import save
from weft.jobs.definitions import ACCESS, network_facts
from weft.jobs.network_store import NetworkStore
from weft.jobs.settings import SETTINGS
from weft.studio.library.designs import START, check_design, picture_of, startable, vocabulary, zoo_text
from weft.studio.library.networks import cost_chart, network_rows, zoo_abouts
from weft.studio.library.runs import RunIndex
from weft.studio.library.training_form import check_form
from weft.studio.library.zoo_profiles import PROFILES
from weft.zoo.definition import feature_profile, network_picture, profile_svg

TEXT = """\
input: [1, 8, 8]
layers:
  - conv: {out: 4, name: low}
  - branches: [[conv: 4, relu], [conv: {out: 4, kernel: 1}]]
  - concat: [low, previous]
  - flatten
  - linear: classes
"""
DEFAULTS = {name: setting.default for name, setting in SETTINGS.items()}
CHANGE = {"X-Weft-Studio": "1"}


# --- what the pages show ----------------------------------------------------------------------------------------------------------


def test_the_table_lists_the_zoo_own_and_imported_networks_with_their_best_runs(tmp_path: Path) -> None:
    store = NetworkStore(tmp_path)
    store.save("mine", TEXT)
    (store.folder / "broken.yaml").write_text("layers: [relo]")
    weights = {name: value.numpy() for name, value in zoo.lenet5(classes=3).named_tensors().items()}
    save(tmp_path / "w.safetensors", weights)
    store.import_file(tmp_path / "w.safetensors", "start")
    for name, model, best in (
        ("a", "lenet", 0.9),
        ("b", "lenet5", 0.95),
        ("c", "mlp", 0.8),
        ("d", "nets/mine.yaml", 0.99),
    ):
        make_run(tmp_path, name, [0.1, best], model=model)
    index = RunIndex(tmp_path)
    index.refresh()
    rows = {row.name: row for row in network_rows(store, index.rows())}
    assert len(rows) == len(zoo.names()) + 3
    assert list(rows)[:3] == ["mine", "lenet5", "mlp"]
    assert (rows["lenet5"].best and rows["lenet5"].best.name, rows["lenet5"].runs) == ("b", 2)
    assert (rows["mine"].kind, rows["mine"].parameters, rows["start"].kind) == ("text", 7898, "imported")
    assert "for lenet5" in rows["start"].about
    assert "Unknown layer" in rows["broken"].problem
    chart = cost_chart(list(rows.values()))
    assert chart is not None
    assert [point.row.name for point in chart.points] == ["mine", "mlp", "lenet5"]
    assert [point.is_best for point in chart.points] == [True, False, False]  # mine is cheaper and better than both
    assert all(0 <= point.x <= 1 and 0 <= point.y <= 1 for point in chart.points)
    assert cost_chart([rows["mlp"]]) is None


def test_small_pictures_of_the_zoo_are_those_of_its_networks() -> None:
    assert set(PROFILES) == set(startable())
    for name in ("lenet5", "resnet20", "vit_tiny", "squeezenet1_1"):
        costs = check_design(zoo_text(name) or "").costs
        assert costs is not None
        assert list(PROFILES[name]) == feature_profile([one.output for one in costs.layers if one.depth == 0])
    assert profile_svg(PROFILES["lenet5"]).count("<rect") == len(PROFILES["lenet5"])
    assert zoo_abouts()["resnet18"] == "ResNet-18"


def test_the_picture_has_branches_and_marks_the_bad_layer() -> None:
    check = check_design(TEXT)
    assert check.plan is not None
    boxes = {box.title: box for box in network_picture(check.plan).all_boxes()}
    left, right = boxes["Branches"].columns
    assert left[0].y == right[0].y
    assert left[0].x + left[0].width <= right[0].x
    assert boxes["Concat"].reads == ("low", "previous")
    assert "--bad-soft" not in picture_of(check)
    assert picture_of(check, bad_line=7).count("--bad-soft") == 1
    detailed = network_picture(check.plan, detailed=True)
    assert len(list(detailed.all_boxes())) > len(boxes)
    hostile = check_design("blocks:\n  x: [relu]\nlayers:\n  - relu: {name: a}\n  - x")
    assert "<script" not in picture_of(hostile)


def test_the_start_is_valid_and_the_vocabulary_has_every_layer() -> None:
    assert check_design(START.format(name="x")).is_valid
    words = vocabulary()
    conv = next(one for one in words["layers"] if one["name"] == "conv")
    assert conv["main"] == "out"
    assert "double" in next(one for one in conv["arguments"] if one["name"] == "out")["choices"]


def test_the_form_of_a_training_knows_networks_that_are_text(tmp_path: Path) -> None:
    NetworkStore(tmp_path).save("mine", TEXT)
    check = check_form({"data": "digits", "model": "mine"}, str(tmp_path))
    assert check.error == ""
    assert check.network is not None
    assert check.network.parameters == 7898
    (tmp_path / ".networks" / "mine.yaml").write_text("layers: [relo]")
    assert "Unknown layer" in check_form({"data": "digits", "model": "mine"}, str(tmp_path)).error


def test_a_server_takes_networks_from_allowed_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net.yaml").write_text(TEXT)
    (tmp_path / "net.py").write_text("raise SystemExit('executed')")
    settings = {**DEFAULTS, "model": str(tmp_path / "net.py")}
    assert network_facts(settings) is None  # known by its name, and not executed
    monkeypatch.setattr(ACCESS, "python", False)
    with pytest.raises(UserError, match="python_models=true"):
        network_facts(settings)
    monkeypatch.setattr(ACCESS, "allows", lambda path: False)
    with pytest.raises(UserError, match="allowed folder"):
        network_facts({**DEFAULTS, "model": str(tmp_path / "net.yaml")})


# --- over HTTP --------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStudio]:
    runs = tmp_path_factory.mktemp("networks") / "runs"
    make_run(runs, "good-1", [0.5, 0.9])
    make_run(runs, "good-2", [0.4, 0.8], model="mlp")
    NetworkStore(runs).save("mine", TEXT)
    with served_studio(runs, roots=(runs.parent,)) as started:
        yield started


@pytest.fixture(scope="module")
def web(server: LocalStudio) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.address, timeout=30) as client:
        client.headers["Authorization"] = f"Bearer {(server.runs / '.studio' / 'token').read_text().strip()}"
        yield client


def test_pages_answer(web: httpx.Client) -> None:
    for path in (
        "/networks",
        "/networks/new",
        "/networks/new?from=lenet5",
        "/networks/mine",
        "/networks/gpt",
        "/networks/import",
    ):
        answer = web.get(path)
        assert answer.status_code == 200, path
        assert "weft studio" in answer.text
    for path in ("/networks/nothing", "/networks/new?from=gpt", "/networks/new?from=nothing"):
        assert web.get(path).status_code == 404, path
    assert "python_models=true" in web.get("/networks/import").text


def test_designs_are_checked_saved_cloned_and_deleted(web: httpx.Client) -> None:
    found = web.post("/api/v1/designs/check", json={"text": TEXT, "batch": 8}, headers=CHANGE).json()
    assert found["valid"]
    assert (found["parameters"], found["output"], found["layers"][0]["output"]) == (7898, [10], [4, 8, 8])
    bad = web.post("/api/v1/designs/check", json={"text": "layers:\n  - linaer: 3\n"}, headers=CHANGE).json()
    assert (bad["valid"], bad["problems"][0]["line"], bad["problems"][0]["fix"]["text"]) == (False, 2, "linear")
    assert web.put("/api/v1/designs/second", json={"text": TEXT}, headers=CHANGE).json()["version"] == 1
    assert web.put("/api/v1/designs/second", json={"text": TEXT + "# more\n"}, headers=CHANGE).json()["version"] == 2
    assert web.get("/api/v1/designs/second?version=1").json()["text"] == TEXT
    assert web.post("/api/v1/designs/second/clone", json={"to": "third"}, headers=CHANGE).json()["version"] == 1
    names = [one["name"] for one in web.get("/api/v1/designs").json()["saved"]]
    assert names == ["mine", "second", "third"]
    for name in ("second", "third"):
        assert web.delete(f"/api/v1/designs/{name}", headers=CHANGE).status_code == 200
    for answer in (
        web.put("/api/v1/designs/resnet18", json={"text": TEXT}, headers=CHANGE),
        web.put("/api/v1/designs/bad", json={"text": "layers: [relo]"}, headers=CHANGE),
        web.delete("/api/v1/designs/nothing", headers=CHANGE),
        web.delete("/api/v1/designs/..%2F..%2Fgood-1", headers=CHANGE),
    ):
        assert answer.status_code in (400, 404, 405)
    assert web.get("/api/v1/designs/nothing").status_code == 404
    assert "linear: {out: classes" in web.get("/api/v1/designs/zoo/lenet5").json()["text"]
    assert web.get("/api/v1/designs/zoo/gpt").status_code == 400


def test_files_are_imported(web: httpx.Client, server: LocalStudio, tmp_path: Path) -> None:
    save(
        tmp_path / "w.safetensors",
        {name: value.numpy() for name, value in zoo.lenet5(classes=3).named_tensors().items()},
    )
    content = (tmp_path / "w.safetensors").read_bytes()
    made = web.post("/api/v1/designs/import?filename=w.safetensors&name=start", content=content, headers=CHANGE).json()
    assert (made["kind"], made["network"], made["runnable"], made["open"]) == (
        "weights",
        "lenet5",
        False,
        "/networks/start",
    )
    assert web.get("/networks/start").status_code == 200
    assert "start" in web.get("/networks").text
    for filename, body in (
        ("x.py", b"import os"),
        ("x.onnx", b"nothing"),
        ("x.pth", b"\x80\x02cos\nsystem\n."),
        ("../../x.weft", b""),
    ):
        refused = web.post(f"/api/v1/designs/import?filename={filename}", content=body, headers=CHANGE)
        assert refused.status_code == 400, filename  # a mistake of the user, not of the server
        assert Path(filename).name in refused.json()["message"]
        assert ".networks" not in refused.json()["message"], "where it lay for a moment"
    outside = web.post("/api/v1/designs/import-path", json={"path": str(tmp_path / "w.safetensors")}, headers=CHANGE)
    assert outside.status_code == 400
    assert "allowed folder" in outside.json()["message"]
    assert [one["name"] for one in web.get("/api/v1/designs").json()["imported"]] == ["start"]
    assert not [
        path for path in (server.runs / ".networks").rglob("*") if "upload" in path.name or "importing" in path.name
    ]


def test_an_imported_program_is_used_by_its_name(web: httpx.Client, server: LocalStudio, tmp_path: Path) -> None:
    weft.save(
        tmp_path / "net.weft",
        lambda x: x.reshape((-1, 64)) @ np.ones((64, 3), np.float32),
        np.ones((1, 1, 8, 8), np.float32),
    )
    content = (tmp_path / "net.weft").read_bytes()
    assert web.post("/api/v1/designs/import?filename=net.weft&name=sums", content=content, headers=CHANGE).json()[
        "runnable"
    ]
    page = web.get("/networks/sums").text
    assert "/api/v1/networks/" in page
    assert "/designs/sums" not in page, "a route that is not there"
    assert "/classify?runs=sums" in page
    assert web.post("/api/v1/networks/sums/load", headers=CHANGE).status_code == 200
    web.delete("/api/v1/designs/sums", headers=CHANGE)


# --- in a browser -----------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on this machine")
def test_an_error_is_shown_at_its_line_and_fixed_by_the_button(server: LocalStudio) -> None:
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        errors: list[str] = []
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(server.way_in)
        page.goto(f"{server.address}/networks/new")
        page.wait_for_selector("[data-valid]:not([hidden])")
        _misspell_and_fix(page)
        _complete(page)
        page.locator(".cm-line", has_text="name:").click()
        page.keyboard.press("End")
        page.keyboard.type("_b")  # the name above follows the one in the text, until somebody writes another
        page.wait_for_function("document.querySelector('[data-design-name]').value === 'my_network_b'")
        page.get_by_label("Name of the network").fill("designed")
        page.keyboard.press("Tab")
        page.get_by_role("button", name="Save").click()
        page.wait_for_selector("text=saved as version 1")
        page.get_by_role("button", name="Train").click()
        page.wait_for_url("**/train?model=designed")
        assert page.locator("#f-model").input_value() == "designed"
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 900})
            for path in ("/networks", "/networks/designed"):
                page.goto(server.address + path)
                page.wait_for_selector("main h1")
                assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0, path
    assert errors == []
    assert "designed" in NetworkStore(server.runs).names()


def _misspell_and_fix(page: Any) -> None:
    page.locator(".cm-line", has_text="linear").click()
    page.keyboard.press("Home")
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    page.keyboard.type("x")
    page.wait_for_selector(".diag")
    assert "Did you mean linear?" in page.locator(".diag").inner_text()
    page.wait_for_selector("[data-errors]:not([hidden])")
    assert page.get_by_role("button", name="Train").is_disabled()
    page.wait_for_selector("text=the last valid network")
    assert page.locator(".netbox rect[style*='--bad-soft']").count() == 1
    page.get_by_role("button", name="Fix").click()
    page.wait_for_selector("[data-valid]:not([hidden])")
    assert page.locator(".diag").count() == 0
    assert page.locator(".netbox rect[style*='--bad-soft']").count() == 0


def _complete(page: Any) -> None:
    page.locator(".cm-line", has_text="global_avg_pool").click()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    page.keyboard.type("- drop")
    page.locator(".cm-tooltip-autocomplete li", has_text="dropout2d").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.type("out: 0.1")
    page.wait_for_function(
        "document.querySelectorAll('.netbox').length > 0 && document.querySelector('.picture').textContent.includes('0.1')"
    )
