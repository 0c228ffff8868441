"""Makes run folders as training leaves them, and starts a studio as people do."""

from __future__ import annotations

import json
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

import yaml

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
