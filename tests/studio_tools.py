"""Makes run folders as training leaves them, and starts a studio as people do."""

from __future__ import annotations

import atexit
import functools
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import nicegui
import uvicorn
import yaml

from weft.jobs import JobQueue, Runner
from weft.studio.config import StudioConfig
from weft.studio.keys import OneTimeToken, secret
from weft.studio.server import create

CHROMIUM = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--mute-audio", "--no-first-run", "--disable-quic",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions", "--disable-dev-shm-usage",
    "--force-prefers-reduced-motion",  # without animations, which it would paint without a GPU
)  # fmt: skip
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def make_run(root: Path, name: str, accuracies: list[float], ended: bool = True, **settings: object) -> Path:
    """The folder of a run with these accuracies, one an epoch."""
    folder = root / "classify" / name
    folder.mkdir(parents=True)
    known = {"data": "digits", "model": "lenet5", "epochs": len(accuracies), "rate": None, **settings}
    (folder / "args.yaml").write_text(yaml.safe_dump(known))
    rows = [f"{i + 1},{20 * (i + 1)},{1 - a},{1 - a},{a},{2.5 * (i + 1)}" for i, a in enumerate(accuracies)]
    head = "epoch,steps,train_loss,validation_loss,validation_accuracy,seconds"
    (folder / "metrics.csv").write_text("\n".join([head, *rows]) + "\n")
    if ended:
        (folder / "summary.json").write_text(json.dumps({"ended": "all epochs are done"}))
    return folder


@dataclass(frozen=True)
class Server:
    """A studio that runs: where it answers, and the address with the token that lets one in."""

    address: str
    way_in: str
    runs: Path
    process: subprocess.Popen[str]


@contextmanager
def running_studio(runs: Path, *words: str) -> Iterator[Server]:
    """Start `weft studio` in a process of its own, on a free port; `words` are further settings of it."""
    runs.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "weft", "studio", f"runs={runs}", "open=false", *words]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=runs.parent, env={**os.environ}
    )
    try:
        line = first_line(process, 60, "studio: ")
        assert "token=" in line, line
        way_in = line.split()[-1]
        yield Server(way_in.split("/setup")[0].split("/?")[0], way_in, runs, process)
    finally:
        process.terminate()
        process.wait(20)
        assert process.stdout is not None
        process.stdout.close()


def first_line(process: subprocess.Popen[str], seconds: float, beginning: str = "") -> str:
    """The first line with this beginning that a process prints, within some seconds; all of its output goes on being read."""
    lines: queue.Queue[str] = queue.Queue()
    assert process.stdout is not None
    threading.Thread(target=lambda: [lines.put(line) for line in process.stdout or ()], daemon=True).start()
    seen = ""
    while True:
        try:
            line = lines.get(timeout=seconds)
        except queue.Empty:
            raise AssertionError(f"no line begins with {beginning!r}:\n{seen}") from None
        if line.startswith(beginning):
            return line
        seen += line


@dataclass(frozen=True)
class LocalStudio:
    """A studio that is served by a thread of this process."""

    address: str
    token: str
    studio: Any
    web: httpx.Client
    key: OneTimeToken

    @property
    def runs(self) -> Path:
        found: Path = self.studio.config.runs
        return found

    @property
    def way_in(self) -> str:
        """The address that lets a browser in."""
        place = "/" if self.studio.config.is_local else "/setup"
        return f"{self.address}{place}?token={self.key.value}"

    def request(self, method: str, path: str, content: Any = None) -> Any:
        """The status and the content of an answer. `content` is JSON, or the options of httpx."""
        sent = {} if content is None else content if "files" in content else {"json": content}
        found = self.web.request(method, path, **sent)
        is_json = found.headers["content-type"].startswith("application/json")
        return found.status_code, found.json() if is_json else found.content


@contextmanager
def served_studio(runs: Path, runner: bool = False, **settings: Any) -> Iterator[LocalStudio]:
    """Serve a studio from a thread; with `runner`, another one runs its queue. A process of its own takes ten times as long to start."""
    config, key = StudioConfig(runs, **settings), OneTimeToken()
    runs.mkdir(parents=True, exist_ok=True)
    # NiceGUI is one application in a process, which an earlier file of tests may have started.
    nicegui.app.middleware_stack = None
    nicegui.app.user_middleware.clear()
    app, studio = create(config, key)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
    thread, ended = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True), threading.Event()
    running = threading.Thread(target=Runner(JobQueue(runs)).run, args=(True, ended), daemon=True)
    thread.start()
    if runner:
        running.start()
    try:
        for _ in range(500):
            if server.started:
                break
            time.sleep(0.02)
        assert server.started
        name, port = config.hosts[0] if config.hosts else "127.0.0.1", listener.getsockname()[1]
        address, token = f"http://{name}:{port}", secret(runs, "token")
        with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {token}"}, timeout=30) as web:
            yield LocalStudio(address, token, studio, web, key)
    finally:
        ended.set()
        server.should_exit = True
        for one in (thread, running) if runner else (thread,):
            one.join(20)
        listener.close()


# --- a browser ----------------------------------------------------------------------------------------------------------------


@functools.cache
def _browser_address() -> str:
    """Where the one Chromium of this process takes connections; it is started now and ends with the process."""
    assert BROWSER is not None
    profile = tempfile.mkdtemp(prefix="weft-chromium-")
    command = [BROWSER, *CHROMIUM, f"--user-data-dir={profile}", "--remote-debugging-port=0", "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)

    def end() -> None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        shutil.rmtree(profile, ignore_errors=True)

    atexit.register(end)
    told = Path(profile) / "DevToolsActivePort"
    for _ in range(1500):
        if told.exists() and "\n" in (text := told.read_text()):
            return f"http://127.0.0.1:{text.splitlines()[0]}"
        time.sleep(0.02)
    raise AssertionError("Chromium did not start")


@contextmanager
def chromium() -> Iterator[Any]:
    """The browser of this process, by Playwright. Its start takes seconds, so tests share it; their contexts share nothing."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.connect_over_cdp(_browser_address())
        try:
            yield browser
        finally:
            for context in browser.contexts[1:]:  # the first one is the browser's own
                context.close()


def page_errors(page: Any) -> list[str]:
    """What goes wrong on a page from now on: a list that grows."""
    found: list[str] = []
    page.on("console", lambda message: found.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: found.append(str(error)))
    return found
