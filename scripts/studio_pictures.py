"""Takes the pictures of docs/studio: every page of the studio in light, dark and at the width of a phone.

python scripts/studio_pictures.py [page=NAME,NAME] [folder=/tmp/weft-example] [out=docs/studio]

Needs Chromium and Playwright's Python package. The example of studio_example.py is made once and kept beside the folder.
"""

from __future__ import annotations

import collections
import io
import os
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, StorageState, ViewportSize, sync_playwright
from studio_example import PASSWORD, ExampleStudio, add_accounts, draw_flowers, write_digits, write_text

FORMS = {"light": (1280, 800), "dark": (1280, 800), "narrow": (390, 844)}  # width and height
PAUSE = 1000  # milliseconds until charts are drawn
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]
RUN, DIGITS = "classify/flowers-cnn", "classify/lenet"
SWEEP = [f"classify/sweep-rate{rate}-batch{batch}" for rate in (0.03, 0.01, 0.003, 0.001) for batch in (32, 128)]


@dataclass(frozen=True)
class Shot:
    """A page and what is done on it before it is photographed: JavaScript, or a digit that is drawn."""

    path: str
    script: str = ""
    wait: int = PAUSE
    draws: bool = False
    signed_in: bool = True
    tallest: int = 1500  # pixels


FILL_DATASET = """(() => { const put = (name, text) => { const e = document.querySelector(`[name="${name}"]`);
  if (e) { e.value = text; for (const kind of ["input", "change"]) e.dispatchEvent(new Event(kind, {bubbles: true})); } };
  put("source", "photos"); put("name", "meadow"); put("size", "64"); })()"""
WRITE = """(() => { const field = document.querySelector("textarea"); field.value = "A network"; field.dispatchEvent(new Event("input", {bubbles: true}));
  document.querySelector("[data-write], .main button.pri")?.click(); })()"""
SELECT_LAYER = "document.querySelector('.players .pname')?.click()"
SHOTS = {
    "home": Shot("/"),
    "runs": Shot("/runs"),
    "datasets": Shot("/datasets"),
    "new-dataset": Shot("/datasets/new", FILL_DATASET, 6000),
    "dataset": Shot("/datasets/flowers"),
    "versions": Shot("/datasets/flowers?tab=versions"),
    "doctor": Shot("/datasets/flowers/doctor?version=v1"),
    "networks": Shot("/networks", tallest=1200),
    "network": Shot("/networks/resnet18"),
    "design": Shot("/networks/flower_cnn", wait=3000),
    "import": Shot("/networks/import"),
    "train": Shot("/train?data=digits&model=lenet&rate=0.03,0.01&augment=standard", wait=6000),
    "run": Shot("/runs/classify/flowers-long"),
    "run-overview": Shot(f"/runs/{RUN}"),
    "run-evaluation": Shot(f"/runs/{RUN}?tab=evaluation"),
    "run-predictions": Shot(f"/runs/{RUN}?tab=predictions"),
    "run-layers": Shot(f"/runs/{RUN}?tab=layers", wait=9000),
    "run-embedding": Shot(f"/runs/{RUN}?tab=embedding", wait=3000),
    "run-profile": Shot(f"/runs/{RUN}?tab=profile", SELECT_LAYER, tallest=2700),
    "run-ensemble": Shot("/runs/classify/digits-together", tallest=1300),
    "run-text": Shot("/runs/text/guides?tab=evaluation", tallest=1200),
    "run-compress": Shot(f"/runs/{DIGITS}?tab=compress", tallest=1600),
    "run-checkpoints": Shot(f"/runs/{RUN}?tab=checkpoints"),
    "run-files": Shot(f"/runs/{RUN}?tab=files", tallest=1000),
    "run-settings": Shot(f"/runs/{RUN}?tab=settings", tallest=1100),
    "sweep": Shot("/sweeps/rates", tallest=1700),
    "new-sweep": Shot("/sweeps/new?data=digits&model=lenet,mlp&rate=log:1e-4..1e-1", wait=6000, tallest=1100),
    "folds": Shot("/folds/digits-folds"),
    "new-folds": Shot("/train?data=digits&model=mlp&folds=5", wait=6000, tallest=1100),
    "compare": Shot("/compare?runs=" + ",".join(SWEEP), wait=3000),
    "classify": Shot(f"/classify?runs={DIGITS},classify/mlp", wait=6000, draws=True),
    "write": Shot("/classify?tab=text&runs=text/guides", WRITE, 9000),
    "batch": Shot("/classify/batches/2", tallest=1100),
    "queue": Shot("/queue"),
    "admin": Shot("/admin"),
    "storage": Shot("/admin?tab=storage"),
    "account": Shot("/account"),
    "login": Shot("/login", signed_in=False, wait=500),
    "api": Shot("/docs", tallest=1100),
    "palette": Shot(
        "/", "document.dispatchEvent(new KeyboardEvent('keydown', {key: 'k', ctrlKey: true, bubbles: true}))"
    ),
}


def main() -> None:
    given = dict(word.split("=", 1) for word in sys.argv[1:])
    folder = Path(given.get("folder", "/tmp/weft-example")).absolute()
    out = Path(given.get("out", "docs/studio"))
    names = given["page"].split(",") if "page" in given else list(SHOTS)
    kept = folder.with_name(f"{folder.name}-kept")
    if not kept.exists():
        make_example(folder)
        shutil.copytree(folder, kept)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(kept, folder)
    with running(folder / "runs") as address:
        example = ExampleStudio(address, folder / "runs", say)
        example.go_live()
        try:
            take(address, names, out)
        finally:
            example.stop()


def make_example(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    draw_flowers(folder / "photos")
    write_digits(folder / "handwriting")
    write_text(folder / "guides.txt", Path(__file__).resolve().parent.parent / "docs" / "how-to")
    (folder / "runs").mkdir()
    add_accounts(folder / "runs")
    with running(folder / "runs") as address:
        ExampleStudio(address, folder / "runs", say).fill()


def say(text: str) -> None:
    print(text, flush=True)


@contextmanager
def running(runs: Path) -> Iterator[str]:
    """A studio in a process of its own; its address."""
    command = [sys.executable, "-m", "weft", "studio", f"runs={runs}", "open=false"]
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=runs.parent, env=environment)
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=lambda: collections.deque(map(lines.put, process.stdout or ()), 0), daemon=True).start()
    try:
        line = lines.get(timeout=60)
        while not line.startswith("studio: "):
            line = lines.get(timeout=60)
        yield line.split()[1].split("/?")[0].rstrip("/")
    finally:
        process.terminate()
        process.wait(20)


def take(address: str, names: list[str], out: Path) -> None:
    """All pictures of these pages."""
    out.mkdir(parents=True, exist_ok=True)
    program = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=OPTIONS)
        state = sign_in(browser, address)
        for form, (width, height) in FORMS.items():
            viewport = ViewportSize(width=width, height=height)
            for signed_in in (True, False):
                context = browser.new_context(
                    viewport=viewport, storage_state=state if signed_in else None, has_touch=form == "narrow"
                )
                page = context.new_page()
                page.on("console", lambda m: say(f"  console: {m.text[:200]}") if m.type == "error" else None)
                page.on("pageerror", lambda e: say(f"  error: {str(e)[:300]}"))
                for name in names:
                    if SHOTS[name].signed_in == signed_in:
                        photograph(page, address, name, form, out)
                context.close()
        browser.close()


def sign_in(browser: Browser, address: str) -> StorageState:
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{address}/login")
    page.fill("#name", "anna")
    page.fill("#password", PASSWORD)
    page.click("button[type=submit]")
    page.wait_for_url(f"{address}/")
    state = context.storage_state()
    context.close()
    return state


def photograph(page: Page, address: str, name: str, form: str, out: Path) -> None:
    """One picture, as a PNG of 256 colours: half the size, and no difference to see."""
    shot, (width, height) = SHOTS[name], FORMS[form]
    theme = "dark" if form == "dark" else "light"
    page.set_viewport_size({"width": width, "height": height})
    page.goto(f"{address}{shot.path}{'&' if '?' in shot.path else '?'}theme={theme}")
    page.wait_for_selector("main .card:visible, form:visible", timeout=60_000)
    page.wait_for_timeout(PAUSE)
    if shot.script:
        page.evaluate(shot.script)
    if shot.draws:
        draw_three(page)
    page.wait_for_timeout(shot.wait)
    wide = page.evaluate("document.documentElement.scrollWidth")
    if wide > width:
        say(f"  {name}-{form} is {wide} wide")
    high = min(shot.tallest, page.evaluate("document.documentElement.scrollHeight"))
    page.set_viewport_size({"width": width, "height": max(height, high)})  # what sticks to the bottom is there
    page.wait_for_timeout(600)
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    few = picture.quantize(256, method=Image.Quantize.MEDIANCUT, kmeans=2, dither=Image.Dither.NONE)
    few.save(out / f"{name}-{form}.png", optimize=True)
    say(f"{name}-{form} {(out / f'{name}-{form}.png').stat().st_size // 1000} kB")


def draw_three(page: Page) -> None:
    box = page.locator("canvas").first.bounding_box()
    if box is None:
        return
    points = [(0.32, 0.22), (0.45, 0.16), (0.62, 0.2), (0.66, 0.32), (0.58, 0.44), (0.46, 0.48)]
    points += [(0.6, 0.52), (0.68, 0.64), (0.62, 0.78), (0.46, 0.84), (0.32, 0.78)]
    places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in points]
    page.mouse.move(*places[0])
    page.mouse.down()
    for place in places[1:]:
        page.mouse.move(*place, steps=6)
    page.mouse.up()


if __name__ == "__main__":
    main()
