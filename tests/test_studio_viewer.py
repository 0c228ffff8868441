"""A viewer in a browser: every page can be looked at, and nothing on it asks the server for what it refuses to viewers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from store_tools import PASSWORD, QUICK_HASHER
from studio_tools import BROWSER, LocalStudio, chromium, make_run, page_errors, served_studio
from test_studio_doctor import labels_report, make_dataset
from test_studio_sweeps import make_sweep
from weft.jobs import JobQueue
from weft.jobs.network_store import NetworkStore
from weft.studio.access import SESSION
from weft.studio.roles import needed_role
from weft.studio.store import accounts

pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on this machine")
PAGES = (
    "/runs",
    "/runs/classify/good",
    "/runs/classify/good?tab=evaluation",
    "/compare?runs=classify/good,classify/better",
    "/datasets/pets?tab=images",
    "/datasets/pets/doctor",
    "/sweeps/one",
    "/folds/cv",
    "/networks/own_net",
    "/queue",
)
OTHERS = (
    "/", "/runs/classify/good?tab=settings", "/runs/classify/good?tab=checkpoints", "/runs/classify/good?tab=files", "/runs/classify/good?tab=profile",
    "/runs/classify/good?tab=compress", "/runs/classify/good?tab=embedding", "/datasets", "/datasets/pets", "/datasets/pets?tab=add", "/networks", "/networks/lenet5",
    "/folds", "/docs",
)  # fmt: skip
OWN = ("/account", "/logout")  # what viewers may change

# Presses every button that can be seen, chooses every value and types every key that a page listens to. Dialogs and menus are opened first.
PRESS = """async () => {
  const seen = (one) => one.checkVisibility() && !one.closest("[data-theme-toggle], [data-chart=full], [data-emit=add], .rail, .bar-bottom");
  document.querySelectorAll("details").forEach((one) => (one.open = true));
  for (const box of document.querySelectorAll("input[type=checkbox]")) if (seen(box)) box.click();
  await new Promise((resolve) => setTimeout(resolve, 250));
  for (const button of document.querySelectorAll("button, [data-request], [data-decide], summary")) if (seen(button) && !button.disabled && !button.closest("summary")) button.click();
  for (const field of document.querySelectorAll("select:enabled, textarea:enabled"))
    if (seen(field) && !field.matches("[onchange], [data-go]") && field.options?.length != 1) {
      if (field.options) field.selectedIndex = (field.selectedIndex + 1) % field.options.length;
      else field.value += "x";
      field.dispatchEvent(new Event("change", {bubbles: true}));
    }
  for (const row of document.querySelectorAll("tr[tabindex]")) row.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowUp", altKey: true, bubbles: true}));
  for (const key of "rmlkzjix") document.body.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
  await new Promise((resolve) => setTimeout(resolve, 100));
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.querySelector("button.pri, button.bad")?.click();
}"""
SEND = """async () => (await fetch("/api/v1/runs/classify/good/evaluations", {
  method: "POST", headers: {"X-Weft-Studio": "1", "Content-Type": "application/json"}, body: JSON.stringify({split: "train", checkpoint: "last"}),
})).status"""
LINKS = """() => [...document.querySelectorAll("a[href]")].filter((one) => one.checkVisibility() && one.origin === location.origin).map((one) => one.pathname)"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStudio]:
    """A studio in which every page shows something, and jobs wait that nobody runs."""
    root = tmp_path_factory.mktemp("viewer")
    runs = root / "runs"
    for name in ("good", "better"):
        folder = make_run(runs, name, [0.5, 0.8])
        (folder / "weights").mkdir()
        for kind in ("best", "last"):
            (folder / "weights" / f"{kind}.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    make_sweep(runs)
    NetworkStore(runs).save("own_net", "input: [1, 8, 8]\nclasses: 10\nlayers:\n  - flatten\n  - linear: classes\n")
    dataset = make_dataset(root, "pets")
    labels_report(dataset).save(dataset)
    folds = runs / "folds" / "cv"
    folds.mkdir(parents=True)
    state = {"name": "cv", "task": "classify", "folds": 2, "model": "mlp", "examples": 9, "settings": {"data": "digits"}, "runs": [], "done": False}  # fmt: skip
    (folds / "folds.json").write_text(json.dumps(state))
    queue = JobQueue(runs)
    for number in range(3):
        queue.add({"data": "digits", "model": "lenet5", "name": f"later-{number}", "epochs": 1})
    accounts.HASHER = QUICK_HASHER
    with served_studio(runs, host="0.0.0.0", hosts=("localhost",)) as started:
        yield started


@pytest.fixture(scope="module")
def viewer(server: LocalStudio) -> Iterator[Any]:
    store = server.studio.store
    store.accounts.add("anna", PASSWORD, "admin")
    account = store.accounts.add("guest", PASSWORD, "viewer")
    store.changed()
    with chromium() as browser:
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        context.add_cookies(
            [{"name": SESSION, "value": store.credentials.open_session(account), "url": server.address}]
        )
        yield context.new_page()


@pytest.mark.parametrize("path", [*PAGES, *(pytest.param(path, marks=pytest.mark.slow) for path in OTHERS)])
def test_a_viewer_sees_the_page_and_asks_for_nothing_that_is_refused(
    server: LocalStudio, viewer: Any, path: str
) -> None:
    asked: list[str] = []

    def note(request: Any) -> None:
        where = urlsplit(request.url).path.removeprefix("/api/v1")
        if request.method not in ("GET", "HEAD") and "/_nicegui" not in where and not where.startswith(OWN):
            asked.append(f"{request.method} {where}")

    viewer.goto(server.address + path)
    viewer.wait_for_selector(".main .card:visible")
    viewer.wait_for_timeout(150)
    problems = page_errors(viewer)
    box = viewer.evaluate(
        "(() => { const s = getComputedStyle(document.querySelector('.frame')); return [s.position, s.backgroundColor]; })()"
    )
    assert box[0] != "fixed", "the frame is laid out as on the pages of others"
    denied = [link for link in viewer.evaluate(LINKS) if needed_role("GET", link) not in ("viewer", "public")]
    assert denied == []
    viewer.on("request", note)
    try:
        viewer.evaluate(PRESS)
        viewer.wait_for_timeout(200)
    finally:
        viewer.remove_listener("request", note)
    assert asked == []
    assert [text for text in problems if "404" not in text] == []


def test_a_viewer_is_told_who_can_evaluate(server: LocalStudio, viewer: Any) -> None:
    viewer.goto(f"{server.address}/runs/classify/good?tab=evaluation&split=train&checkpoint=last")
    viewer.get_by_text("Members and administrators can start it").wait_for()
    assert viewer.get_by_role("button", name="Evaluate", exact=True).count() == 0
    assert viewer.evaluate(SEND) == 403


def test_nothing_has_changed(server: LocalStudio) -> None:
    """After all that pressing: who may look has left everything as it was."""
    queue = JobQueue(server.runs)
    assert [(job.state.state, job.settings["name"]) for job in queue.jobs()] == [("waiting", f"later-{i}") for i in range(3)]  # fmt: skip
    assert sorted(path.name for path in (server.runs / "classify").iterdir() if not path.name.startswith("one-")) == ["better", "good"]  # fmt: skip
    assert not (server.runs.parent / "datasets" / "pets" / "v2").exists()


def test_the_same_pages_offer_it_to_members(server: LocalStudio, viewer: Any) -> None:
    """That the walk finds buttons at all: a member's pages have many that change something."""
    store = server.studio.store
    account = store.accounts.add("mia", PASSWORD, "member")
    store.changed()
    context = viewer.context.browser.new_context()
    context.add_cookies([{"name": SESSION, "value": store.credentials.open_session(account), "url": server.address}])
    page = context.new_page()
    found = 0
    for path in ("/queue", "/runs/classify/good", "/datasets/pets/doctor"):
        page.goto(server.address + path)
        page.wait_for_selector(".main .card")
        page.wait_for_timeout(150)
        found += page.evaluate(
            "[...document.querySelectorAll('[data-request], [data-decide], [data-dialog], [data-movable]')].filter((one) => one.checkVisibility()).length"
        )
    assert found > 15
    context.close()
