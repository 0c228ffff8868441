"""What a job shows while it runs: a moving bar on a terminal, one line an epoch, or JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from shlex import quote
from typing import Any

from ..jobs.events import Event
from ..report.wording import counted
from ..train.folder import plain
from ..train.signals import Terminated
from ..train.task import line_of
from .bar import Bars
from .table import number_text

PROGRAMS_READ = ("run", "epoch", "result", "stopped")  # types of events that `--json` prints


@contextmanager
def when_terminated(text: str) -> Iterator[None]:
    """Inside, SIGTERM is answered with this too: what is left of the work."""
    try:
        yield
    except Terminated:
        print(f"weft: {text}", file=sys.stderr)
        raise


def print_json(event: Event) -> None:
    """An event as one JSON object a line."""
    if event.type in PROGRAMS_READ:
        print(json.dumps({"type": event.type, **{k: plain(v) for k, v in event.facts.items()}}), flush=True)
    elif event.type == "log" and event["level"] == "warning":
        print(f"weft: {event['text']}", file=sys.stderr)


class Progress:
    """Shows events to people. Use it in a `with`, which takes the bar away at the end."""

    def __init__(self) -> None:
        self._bars: Bars | None = None
        self._what = ""

    def __call__(self, event: Event) -> None:
        show = getattr(self, f"_{event.type}", None)
        if show is not None:
            show(event)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self._clear()

    def _clear(self) -> None:
        if self._bars is not None:
            self._bars.__exit__(None, None, None)
            self._bars = None

    def _say(self, text: str) -> None:
        self._clear()
        print(text, flush=True)

    def _log(self, event: Event) -> None:
        if event["level"] == "warning":
            self._clear()
            print(f"weft: {event['text']}", file=sys.stderr)
        else:
            self._say(event["text"])

    def _activity(self, event: Event) -> None:
        if event["text"].startswith("compiling"):
            self._say(f"{event['text']} ...")

    def _progress(self, event: Event) -> None:
        if self._bars is None or self._what != event["what"]:
            self._clear()
            self._what, self._bars = event["what"], Bars(event["what"], sys.stdout)
        text = _metrics_text(event.facts.get("metrics", {}))
        if "examples_per_second" in event.facts:
            text += f"  {event['examples_per_second']:,.0f}/s"
        self._bars(event["done"], event["total"], text)

    def _epoch(self, event: Event) -> None:
        row = {name: value for name, value in event.facts.items() if name != "epochs"}
        self._say(line_of(row, event["epochs"]))

    def _stopped(self, event: Event) -> None:
        folder = event["folder"]
        rest = "no run was begun" if folder is None else f"go on with: weft resume {quote(folder)}"
        self._say(f"{event['why']}; {rest}")

    def _result(self, event: Event) -> None:
        for line in result_lines(event.facts):
            self._say(line)


def result_lines(facts: Mapping[str, Any]) -> list[str]:
    """What came of a training, and what can be done next."""
    best, folder = facts["best"], facts["folder"]
    if not best:
        return [f"{facts['why']}, before the first epoch was; go on with: weft resume {quote(str(folder))}"]
    if facts["split"] is None:
        found = {n: v for n, v in best.items() if "loss" in n or "accuracy" in n}
        numbers = ", ".join(f"{n.replace('_', ' ')} {v:.4g}" for n, v in found.items())
        return [f"{'it works' if folder is None else 'best'}: {numbers}"]
    measured = {n: v for n, v in facts.items() if isinstance(v, float)}
    numbers = ", ".join(f"{n} {number_text(n, v)}" for n, v in measured.items())
    use = '"Once upon a time"' if facts["task"] == "text" else "IMAGE"
    path = quote(folder)
    return [
        "",
        f"{facts['why']}; the best epoch was {int(best['epoch'])}. "
        f"On {counted(facts['examples'], facts['split'] + ' example')}: {numbers}",
        f"look at it:  {folder}/report.html",
        f"use it:      weft predict {path} {use}",
        f"measure it:  weft eval {path}",
        "compare it:  weft runs list",
    ]


def _metrics_text(metrics: Mapping[str, float]) -> str:
    words = [f"{name} {100 * v:.1f} %" if "accuracy" in name else f"{name} {v:.4f}" for name, v in metrics.items()]
    return "  ".join(words)
