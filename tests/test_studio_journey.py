"""The whole journey in a browser: from a zip file of images to a network that is trained, compared, used and exported."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from studio_tools import BROWSER, Server, running_studio

NETWORK = """name: stripes_net
input: [1, 16, 16]
classes: 2
layers:
  - conv: {out: 8, kernel: 3}
  - max_pool
  - flatten
  - linear: {out: classes}
"""
SLOW = 60_000  # milliseconds that a job may take on a busy machine


def stripes(upright: bool, seed: int) -> bytes:
    """An image of stripes with noise, as PNG."""
    noise = np.random.default_rng(seed)
    lines = np.where((np.arange(20) + seed) % 4 < 2, 210, 40)
    pixels = np.broadcast_to(lines[None] if upright else lines[:, None], (20, 20)) + noise.normal(0, 12, (20, 20))
    file = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_studio(tmp_path_factory.mktemp("journey") / "runs") as started:
        yield started


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Twenty images of each of two classes, and one that cannot be read."""
    with zipfile.ZipFile(tmp_path / "stripes.zip", "w") as packed:
        for name, upright in (("across", False), ("upright", True)):
            for number in range(20):
                packed.writestr(f"stripes/{name}/{number:02}.png", stripes(upright, number))
        packed.writestr("stripes/across/broken.png", b"no image")
    return tmp_path / "stripes.zip"


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on this machine")
def test_from_a_zip_of_images_to_an_exported_network(server: Server, archive: Path, tmp_path: Path) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce").new_page()
        errors: list[str] = []
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.set_default_timeout(SLOW)
        page.goto(server.way_in)
        create_dataset(page, archive)
        open_the_doctor(page)
        design_network(page, server)
        train(page, "first", "400")
        watch_stop_and_resume(page)
        clone(page)
        compare(page, server)
        classify(page, server, tmp_path)
        export(page, server)
        browser.close()
    assert errors == []
    check_what_is_on_disk(server)


def create_dataset(page: Any, archive: Path) -> None:
    page.get_by_role("link", name="Datasets").first.click()
    page.get_by_role("link", name="New dataset").click()
    page.get_by_role("button", name="Upload").click()
    page.get_by_label("Choose files").set_input_files(archive)
    page.get_by_label("Name", exact=True).fill("stripes")
    page.get_by_label("Size", exact=True).fill("16")
    page.get_by_label("Colour").select_option("gray")
    page.wait_for_selector("section[aria-label='Found so far'] >> text=Ready")
    page.get_by_role("button", name="Create dataset").click()
    page.wait_for_url("**/datasets/stripes")
    page.wait_for_selector(".title >> text=Ready")
    page.get_by_role("link", name="see why").click()
    page.wait_for_selector("td >> text=broken.png")


def open_the_doctor(page: Any) -> None:
    page.get_by_role("link", name="Data doctor").click()
    page.get_by_role("button", name="Start the data doctor").wait_for()


def design_network(page: Any, server: Server) -> None:
    page.goto(f"{server.address}/networks/new")
    page.wait_for_selector("[data-valid]:not([hidden])")
    page.locator(".cm-content").click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(NETWORK.replace("linear", "linaer"))
    page.wait_for_selector(".diag")
    page.get_by_role("button", name="Fix").click()
    page.wait_for_selector("[data-valid]:not([hidden])")
    page.get_by_label("Name of the network").fill("stripes_net")
    page.get_by_role("button", name="Train").click()
    page.wait_for_url("**/train?model=stripes_net")


def train(page: Any, name: str, epochs: str) -> None:
    page.get_by_label("Dataset", exact=True).fill("datasets/stripes")
    page.get_by_label("Epochs", exact=True).fill("0")
    page.wait_for_selector(".problem >> text=epochs=0")
    page.get_by_label("Epochs", exact=True).fill(epochs)
    page.get_by_label("Name", exact=True).fill(name)
    page.wait_for_selector(f"text=name={name}", state="attached")  # the command line is folded
    page.locator("header").get_by_role("button", name="Train").click()
    page.wait_for_selector(f"a >> text={name}")


def watch_stop_and_resume(page: Any) -> None:
    page.wait_for_selector("text=/Epoch [2-9]/")
    page.locator("a >> text=first").first.click()
    page.wait_for_selector("h1 >> text=first")
    page.wait_for_selector("section[aria-label=Loss] canvas")
    page.get_by_role("button", name="Stop first").click()
    page.wait_for_selector(".title >> text=Stopped")
    page.get_by_role("button", name="Resume first").click()
    page.get_by_role("button", name="Pause first").click()
    page.wait_for_selector(".title >> text=Paused")


def clone(page: Any) -> None:
    """A second run with the settings of the first one and fewer epochs, to its end."""
    page.get_by_role("link", name="Clone", exact=True).first.click()
    page.wait_for_url("**/train?clone=**")
    assert "stripes_net" in page.get_by_label("Network", exact=True).input_value()
    train(page, "second", "3")
    page.locator("a >> text=second").first.click()
    page.wait_for_selector(".title >> text=Finished")


def compare(page: Any, server: Server) -> None:
    page.goto(f"{server.address}/runs")
    for name in ("first", "second"):
        page.get_by_label(f"Select {name}").check()
    page.get_by_role("toolbar").get_by_role("link", name="Compare").click()
    page.wait_for_url("**/compare?runs=**")
    page.wait_for_selector(".pick >> text=second")
    page.wait_for_selector("section canvas")
    page.wait_for_selector("section[aria-label='Settings that differ'] >> text=/epochs/i")


def classify(page: Any, server: Server, folder: Path) -> None:
    (folder / "new.png").write_bytes(stripes(True, 77))
    page.goto(f"{server.address}/classify?runs=classify/first,classify/second")
    draw_a_line(page)
    page.goto(f"{server.address}/classify?runs=classify/first,classify/second")
    page.get_by_role("button", name="Upload").click()
    page.get_by_label("Choose an image file").set_input_files(folder / "new.png")
    page.wait_for_function("[...document.querySelectorAll('[data-answer]')].every(e => e.textContent !== '–')")
    assert page.locator("[data-answer]").first.inner_text() == "upright"


def draw_a_line(page: Any) -> None:
    """Draw with the mouse; every network answers with the shares of the classes, the largest first."""
    page.get_by_role("button", name="Draw", exact=True).click()
    page.wait_for_function(
        "document.querySelector('[data-pad] canvas')?.getContext('2d').getImageData(5, 5, 1, 1).data[3] === 255"
    )
    box = page.locator("[data-pad] canvas").bounding_box()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.15 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.85 * box["height"], steps=5)
    page.mouse.up()
    page.wait_for_function("[...document.querySelectorAll('[data-answer]')].every(e => e.textContent !== '–')")
    shares = [float(text.split()[0]) for text in page.locator("[data-shares]").first.locator("b").all_inner_texts()]
    assert len(shares) == 2
    assert shares == sorted(shares, reverse=True)


def export(page: Any, server: Server) -> None:
    page.goto(f"{server.address}/runs/classify/first?tab=files")
    page.locator(".exports > div", has_text="ONNX").get_by_role("button", name="Export").click()
    row = page.locator("tr", has_text=".onnx")
    with page.expect_download() as download:
        row.get_by_role("link", name="Download").click()
    assert download.value.path().stat().st_size > 1000


def check_what_is_on_disk(server: Server) -> None:
    """It went on where it was, epoch after epoch, and the pages said what the files say."""
    events = map(json.loads, (server.runs / "classify" / "first" / "events.jsonl").read_text().splitlines())
    epochs = [one["epoch"] for one in events if one["type"] == "progress"]
    assert epochs == sorted(epochs)
