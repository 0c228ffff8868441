"""Details of pages: a missing batch, the device of the Train form, sweeps, when a run has finished, uploads behind a proxy, tabs on phones."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from PIL import Image

pytest.importorskip("nicegui")

from studio_tools import BROWSER, LocalStudio, chromium, make_run, served_studio
from weft.data import create
from weft.jobs.settings import SETTINGS
from weft.locks import one_writer
from weft.studio.api.submission import confined
from weft.studio.library.runs import RUNNING
from weft.studio.library.training_fields import GROUPS, NOT_IN_FORM
from weft.studio.library.training_form import check_form, device_choices, past_speed
from weft.studio.pages.train import _cloned, field_hints
from weft.studio.ui.rendering import render
from weft.studio.ui.run_columns import all_columns


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStudio]:
    runs = tmp_path_factory.mktemp("details") / "runs"
    make_run(runs, "done", [0.5, 0.9])
    with served_studio(runs) as found, one_writer(make_run(runs, "still", [0.5], ended=False, epochs=4)):
        found.studio.index.refresh()
        yield found


def test_a_missing_batch_is_not_found(local: LocalStudio) -> None:
    answer = local.web.get("/classify/batches/77")
    assert answer.status_code == 404
    assert "There are no predictions 77." in answer.text


def test_a_run_that_runs_has_not_finished(local: LocalStudio) -> None:
    rows = {row.name: row for row in local.studio.index.rows()}
    column = all_columns(list(rows.values()))["ended"]
    assert rows["still"].status == RUNNING
    assert (column.value(rows["still"]), column.hint(rows["still"])) == (None, "")  # type: ignore[misc]
    assert column.value(rows["done"]) is not None
    assert column.text(None) == "–"


def test_devices_of_the_form_have_names() -> None:
    form = render(
        "train_form.html", groups=GROUPS, values={"device": "cuda"}, lists={}, wrong="", devices=device_choices([], "cuda"), device_help="x"
    )  # fmt: skip
    offered = re.findall(r'<option value="([^"]*)" (\w*)>([^<]+)<', form[form.index('name="device"') :])[:3]
    assert offered == [("", "", "CPU (default)"), ("cpu", "", "CPU"), ("cuda", "selected", "GPU (CUDA)")]
    assert "Cpu" not in form
    assert re.findall(r"<legend[^>]*>([^<]+)", form) == [group.title for group in GROUPS]


def test_the_form_has_every_setting_once() -> None:
    names = [field.name for group in GROUPS for field in (*group.fields, *group.more)]
    assert sorted((*names, *NOT_IN_FORM)) == sorted(SETTINGS)


def test_a_mistake_is_shown_at_its_field_and_empty_fields_show_their_value(local: LocalStudio) -> None:
    runs = str(local.studio.config.runs)
    wrong = check_form({"data": "digits", "epochs": "0"}, runs)
    assert field_hints(wrong, None) == {"epochs": {"text": "E" + wrong.error[1:], "bad": True}}
    hints = field_hints(check_form({"data": "digits", "model": "lenet"}, runs), None)
    assert hints == {"model": {"text": "431 k parameters, 2.29 M MACs"}, "rate": {"placeholder": "0.003"}}
    several = check_form({"data": "digits", "model": "lenet", "rate": "0.1,0.03", "batch": "32,64"}, runs)
    assert field_hints(several, None)["rate"] == {"text": "2 values make 4 runs"}


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("data", "nosuch", "there is no dataset 'nosuch'. Known: cifar10,"),
        ("data", "digit", "Did you mean digits?"),
        ("model", "resnet19", "Did you mean resnet18?"),
        ("rate", "-1", "a rate of 0 or more"),
        ("rate", "0.1,-1", "a rate of 0 or more"),
        ("name", "a/b", "without slashes"),
        ("momentum", "0.9", "adam takes"),
    ],
)
def test_mistakes_are_shown_at_the_field_that_would_have_to_change(
    local: LocalStudio, field: str, value: str, said: str
) -> None:
    values = {"data": "digits", "model": "lenet", "epochs": "3", field: value}
    check = check_form(values, str(local.studio.config.runs), lambda one: confined(local.studio, one))
    assert said in check.error
    assert check.field == field


def test_a_size_of_two_numbers_is_one_value(local: LocalStudio) -> None:
    """Written with a comma, as other lists are, it would be a sweep over two sizes."""
    make_run(local.studio.config.runs, "wide", [0.5], size=[24, 32])
    local.studio.index.refresh()
    assert _cloned(local.studio, "classify/wide")["size"] == "24x32"
    settings = {"data": "digits", "model": "mlp", "epochs": 1, "size": [24, 32]}
    status, made = local.request("POST", "/api/v1/jobs", {"settings": settings})
    assert (status, [job["settings"]["size"] for job in made]) == (200, [[24, 32]])


def test_datasets_of_the_studio_have_names(local: LocalStudio) -> None:
    folder = local.studio.config.dataset_folder
    for label in ("a", "b"):
        for number in range(3):
            path = folder.parent / "images" / label / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (80 * number, 9, 9)).save(path)
    create(folder.parent / "images", folder / "few" / "v1", workers=0)
    assert confined(local.studio, {"data": "few", "epochs": "1"}) == {"data": str(folder / "few" / "v1"), "epochs": "1"}
    assert confined(local.studio, {"data": "digits"}) == {"data": "digits"}


def test_the_time_of_a_training_is_known_from_an_earlier_run(local: LocalStudio) -> None:
    """Runs record the device that they were trained on; a form that names none means the default."""
    make_run(local.studio.config.runs, "earlier", [0.5, 0.6], device="cpu", batch=64, accumulate=1)
    local.studio.index.refresh()
    for given, known in (({}, True), ({"device": "cpu"}, True), ({"batch": "32"}, False)):
        check = check_form({"data": "digits", "model": "lenet", "epochs": "10", **given}, str(local.studio.config.runs))
        assert check.settings is not None
        speed = past_speed(local.studio.index.rows(), check.settings)
        assert (speed is not None) == known, given
        assert speed is None or speed.seconds(10) == pytest.approx(25)


def test_a_sweep_says_what_it_varies(local: LocalStudio) -> None:
    runs = str(local.studio.config.runs)
    check = check_form({"data": "digits", "model": "mlp", "rate": "0.1, 0.03", "batch": "32,64"}, runs)
    assert (check.runs, check.swept) == (4, (("Learning rate", "0.1, 0.03"), ("Batch size", "32, 64")))
    panel = render("train_forecast.html", check=check, preview=None, why="", speed=None, device="CPU", search="")
    assert "<dt>Learning rate</dt><dd>0.1, 0.03</dd>" in panel
    header = render("train_header.html", check=check, title="Train", crumb=(), is_sweep=False)
    assert "Train 4 runs" in header
    assert "Start sweep of 4 trials" in header
    wrong = check_form({"data": "digits", "epochs": "0"}, runs)
    disabled = render("train_header.html", check=wrong, title="Train", crumb=(), is_sweep=False)
    assert f'disabled title="{wrong.error}"' in disabled


def answering(status: int, body: str) -> Callable[[Any], None]:
    return lambda route: route.fulfill(status=status, body=body, content_type="text/html")


@pytest.mark.skipif(BROWSER is None, reason="there is no browser")
def test_in_the_browser(local: LocalStudio) -> None:
    with chromium() as browser:
        page = browser.new_context(viewport={"width": 390, "height": 800}).new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(local.way_in)
        page.goto(f"{local.address}/runs/classify/done?tab=history")
        tab = page.locator(".tabs > [aria-current]")
        tab.wait_for()
        assert tab.inner_text().startswith("History")
        page.wait_for_function("document.querySelector('.tabs').scrollLeft > 0")
        place = tab.bounding_box()
        assert place is not None
        assert 0 <= place["x"] <= 390 - place["width"]

        page.goto(f"{local.address}/datasets/new?kind=upload")
        answers = {
            "**/api/v1/uploads/*/files/**": (502, "<html>Bad gateway</html>"),
            "**/api/v1/uploads": (200, "<html>Sign in</html>"),
        }
        for path, (status, body) in answers.items():
            page.route(path, answering(status, body))
            chosen = {"name": "a.png", "mimeType": "image/png", "buffer": b"x"}
            page.locator("[data-upload] input[type=file]").first.set_input_files([chosen])
            said = page.locator(
                "[data-said]", has_text=f"The server gave an answer ({status}) that the studio does not know"
            )
            said.wait_for()
            assert page.locator("[data-upload]").get_attribute("data-state") == "failed"
        assert errors == []
