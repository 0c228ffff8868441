"""Uses the studio as people do: every page over HTTP, and in a browser where there is one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import axe_playwright_python
import httpx
import pytest

from sampling import sampled
from studio_tools import BROWSER, LocalStudio, chromium, make_run, served_studio

PAGES = (
    "/",
    "/runs",
    "/train",
    "/queue",
    "/networks",
    "/classify",
    "/networks/lenet5",
    "/compare",
    "/compare?runs=classify/good-1,classify/good-2",
    "/runs/classify/good-1",
    *(f"/runs/classify/good-1?tab={tab}" for tab in ("evaluation", "settings", "files", "log")),
)
AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
needs_browser = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on this machine")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStudio]:
    runs = tmp_path_factory.mktemp("studio") / "runs"
    make_run(runs, "good-1", [0.5, 0.8, 0.9])
    make_run(runs, "good-2", [0.4, 0.7], ended=False, epochs=9, model="mlp")
    with served_studio(runs, runner=True, roots=(runs.parent,)) as started:
        yield started


@pytest.fixture(scope="module")
def web(server: LocalStudio) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.address, timeout=30) as client:
        token = (server.runs / ".studio" / "token").read_text().strip()
        client.headers["Authorization"] = f"Bearer {token}"
        yield client


@pytest.mark.parametrize("page", PAGES)
def test_every_page_answers(page: str, web: httpx.Client) -> None:
    answer = web.get(page)
    assert answer.status_code == 200
    assert "weft studio" in answer.text


def test_what_does_not_exist_is_not_found(web: httpx.Client) -> None:
    for path in (
        "/runs/nothing",
        "/api/v1/runs/nothing",
        "/api/v1/runs/classify/good-1/files/../../x",
        "/api/v1/runs/classify/good-1/images/samples/0.png",
    ):
        assert web.get(path).status_code == 404
    refused = web.post("/api/v1/jobs/99/pause", headers={"X-Weft-Studio": "1"})
    assert refused.status_code == 400
    assert "there is no job 99" in refused.json()["message"]


def test_the_api_lists_runs(web: httpx.Client) -> None:
    found = {one["name"]: one for one in web.get("/api/v1/runs").json()}
    assert found["good-1"]["best"] == 0.9
    assert found["good-2"]["status"] == "stopped"
    assert web.get("/api/v1/runs/classify/good-1/metrics").json()["validation_accuracy"] == [0.5, 0.8, 0.9]
    assert web.get("/api/v1/runs/classify/good-1").json()["settings"]["model"] == "lenet5"


# --- in a browser -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as shared:
        yield shared


@pytest.fixture(scope="module")
def let_in(browser: Any, server: LocalStudio) -> Any:
    """The cookies of a browser that has opened the printed address."""
    context = browser.new_context()
    context.new_page().goto(server.way_in)
    cookies = context.storage_state()
    context.close()
    return cookies


@pytest.fixture
def page(browser: Any, let_in: Any) -> Iterator[Any]:
    """A page of a browser that was let in; anything written to its console as an error fails the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, storage_state=let_in)
    opened = context.new_page()
    errors: list[str] = []
    opened.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: errors.append(str(error)))
    yield opened
    context.close()
    assert errors == []


# Asked in the second frame from now: by then charts have taken the new width.
TOO_WIDE = """new Promise((answer) => requestAnimationFrame(() => requestAnimationFrame(
    () => answer(document.documentElement.scrollWidth - window.innerWidth))))"""


@needs_browser
def test_every_page_fits_the_window_and_the_rules_of_accessibility(page: Any, server: LocalStudio) -> None:
    """At the width of a desk in the light theme and at that of a phone in the dark one."""
    problems = []
    checked = {width: sampled(f"axe {width}", PAGES, share=0.7) for width in (1280, 390)}
    for path in PAGES:
        for width, theme in ((1280, "light"), (390, "dark")):
            page.set_viewport_size({"width": width, "height": 900})
            page.goto(f"{server.address}{path}{'&' if '?' in path else '?'}theme={theme}")
            page.wait_for_selector("main h1")
            assert page.evaluate("document.documentElement.dataset.theme") == theme
            wide = page.evaluate(TOO_WIDE)
            problems += [f"{path} is {wide} pixels too wide at {width}"] if wide > 0 else []
            if path in checked[width]:
                problems += [f"{path}, {theme}: {problem}" for problem in against_axe_rules(page)]
    assert not problems, "\n".join(problems)


def against_axe_rules(page: Any) -> list[str]:
    """What the rules of axe-core for WCAG 2 A and AA find on a page."""
    page.evaluate(AXE)
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
    found = page.evaluate("tags => axe.run(document, {runOnly: tags})", tags)
    return [
        f"{one['id']} ({one['help']}): {node['html'][:200]}" for one in found["violations"] for node in one["nodes"][:3]
    ]


@needs_browser
def test_the_palette_finds_runs_and_opens_them(page: Any, server: LocalStudio) -> None:
    page.goto(f"{server.address}/queue")
    page.wait_for_selector("main h1")
    page.keyboard.press("Control+k")
    page.get_by_role("combobox", name="Find").fill("good-2")
    page.get_by_role("option", name="good-2").wait_for()
    page.keyboard.press("Enter")
    page.wait_for_selector("h1 >> text=good-2")
    page.keyboard.press("?")
    page.get_by_role("dialog", name="Keys").wait_for()


@needs_browser
def test_runs_are_searched_sorted_and_selected(page: Any, server: LocalStudio) -> None:
    page.goto(f"{server.address}/runs")
    page.wait_for_selector("text=good-1")
    page.get_by_label("Search runs").fill("model=mlp")
    page.wait_for_selector("text=good-1", state="detached")
    assert page.locator("tbody tr").count() == 1
    page.get_by_label("Search runs").fill("")
    page.wait_for_selector("text=good-1")
    page.get_by_role("button", name="Val accuracy").click()
    page.wait_for_selector("th[aria-sort=descending] >> text=Val accuracy")
    assert page.locator("tbody tr").first.inner_text().strip().startswith("good-1")
    page.get_by_label("Select good-2").check()
    page.wait_for_selector("text=1 selected")


@needs_browser
def test_the_theme_is_chosen_and_kept(page: Any, server: LocalStudio) -> None:
    page.goto(f"{server.address}/?theme=light")
    page.get_by_label("Light or dark").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.goto(f"{server.address}/runs")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_images_that_cannot_be_read_are_refused(web: httpx.Client) -> None:
    sent = {"X-Weft-Studio": "1"}
    refused = web.post("/api/v1/networks/classify/good-1/classify", headers=sent, files={"image": b"no image"})
    assert refused.status_code == 400
    assert "has no weights yet" in refused.json()["message"]
    assert web.post("/api/v1/networks/classify/none/classify", headers=sent, files={"image": b"x"}).status_code == 404


def test_a_recipe_is_saved_from_the_form_and_fills_it_in(page: Any, server: LocalStudio, web: httpx.Client) -> None:
    page.goto(f"{server.address}/train")
    page.get_by_label("Epochs", exact=True).fill("7")
    page.get_by_label("Name", exact=True).fill("only-once")
    page.get_by_role("button", name="Save as recipe").click()
    page.locator("dialog input").fill("seven")
    page.keyboard.press("Enter")
    page.wait_for_url("**/train?recipe=seven")
    assert page.get_by_label("Recipe", exact=True).input_value() == "seven"
    field = page.locator("input[name=epochs]")
    for recipe, epochs in (("digits", "20"), ("seven", "7"), ("", "")):  # what a recipe filled in goes with it
        page.get_by_label("Recipe", exact=True).select_option(recipe)
        page.wait_for_function("([field, value]) => field.value === value", arg=[field.element_handle(), epochs])
    saved = next(one for one in web.get("/api/v1/recipes").json() if one["name"] == "seven")
    assert saved["settings"] == {"data": "digits", "model": "lenet5", "epochs": "7"}
    assert web.delete("/api/v1/recipes/seven").status_code == 200
    assert web.delete("/api/v1/recipes/seven").status_code == 404


def test_a_recipe_reads_no_more_of_the_server_than_a_training(web: httpx.Client) -> None:
    for settings, message in (({"data": "/etc/passwd"}, "allowed folder"), ({"runs": "/tmp"}, "got 'runs'")):
        refused = web.put("/api/v1/recipes/mine", json={"settings": settings})
        assert (refused.status_code, message in refused.json()["message"]) == (400, True)


def test_extend_tells_the_epochs_of_now(page: Any, server: LocalStudio, web: httpx.Client) -> None:
    make_run(server.runs, "grows", [0.5, 0.6])
    server.studio.index.refresh()
    page.goto(f"{server.address}/runs/classify/grows")
    page.get_by_role("button", name="Extend", exact=True).wait_for()
    shutil.rmtree(server.runs / "classify" / "grows")
    make_run(server.runs, "grows", [0.5, 0.6, 0.7])
    web.patch("/api/v1/runs/classify/grows/annotations", json={"starred": True})  # look at once
    page.wait_for_selector("text=3 of 3 epochs")
    page.get_by_role("button", name="Extend", exact=True).click()
    assert page.locator("dialog output").inner_text() == "3 are planned, 3 are done."
    assert page.locator("dialog input").input_value() == "3"
    shutil.rmtree(server.runs / "classify" / "grows")
