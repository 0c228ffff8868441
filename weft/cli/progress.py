"""Renders the events of a job: a progress bar on a terminal, a line an epoch, or JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any

from ..io.json_values import json_value
from ..jobs.events import Event
from ..report.text_format import counted
from ..signals import Terminated
from . import epochs
from .display import Display
from .table import number_text

PROGRAMS_READ = ("run", "epoch", "result", "folds", "stopped")  # types of events that `--json` prints


@contextmanager
def when_terminated(text: str) -> Iterator[None]:
    """Inside, SIGTERM also prints this text."""
    try:
        yield
    except Terminated:
        print(f"weft: {text}", file=sys.stderr)
        raise


def print_json(event: Event) -> None:
    """An event as one JSON object a line."""
    if event.type in PROGRAMS_READ:
        print(json.dumps({"type": event.type, **{k: json_value(v) for k, v in event.facts.items()}}), flush=True)
    elif event.type == "log" and event["level"] == "warning":
        print(f"weft: {event['text']}", file=sys.stderr)


class ProgressDisplay:
    """Renders events as text. A context manager, which removes bars at the end."""

    def __init__(self) -> None:
        self._display = Display(sys.stdout)
        self._show = {
            "log": self._log, "activity": self._activity, "progress": self._progress, "epoch": self._epoch,
            "stopped": self._stopped, "result": self._result,
        }  # fmt: skip
        self._has_header = False

    def __call__(self, event: Event) -> None:
        if event.type in self._show:
            self._show[event.type](event)

    def __enter__(self) -> ProgressDisplay:
        return self

    def __exit__(self, *error: object) -> None:
        self._display.clear()

    def _log(self, event: Event) -> None:
        if event["level"] == "warning":
            self._display.clear()
            print(f"weft: {event['text']}", file=sys.stderr)
        else:
            self._display.line(event["text"])

    def _activity(self, event: Event) -> None:
        self._display.activity(event["text"])

    def _progress(self, event: Event) -> None:
        text = _metrics_text(event.facts.get("metrics", {}))
        if "examples_per_second" in event.facts:
            text += f"  {event['examples_per_second']:,.0f}/s"
        self._display.bar(event["what"], event["done"], event["total"], text)

    def _epoch(self, event: Event) -> None:
        if not self._has_header:
            self._has_header = True
            self._display.line(epochs.header(event.facts, event["epochs"]), "dim")
        self._display.line(epochs.line(event.facts, event["epochs"]), "bold" if event["is_best"] else "")

    def _stopped(self, event: Event) -> None:
        folder = event["folder"]
        rest = "no run was created" if folder is None else f"continue with: weft resume {quote(folder)}"
        self._display.line(f"{event['why']}; {rest}")

    def _result(self, event: Event) -> None:
        for line in result_lines(event.facts):
            self._display.line(line)


def result_lines(facts: Mapping[str, Any]) -> list[str]:
    """The result of a training, and the next commands."""
    best, folder = facts["best"], facts["folder"]
    if not best:
        return [f"{facts['why']}, before the first epoch was complete; continue with: weft resume {quote(str(folder))}"]
    if facts["split"] is None:
        found = {n: v for n, v in best.items() if "loss" in n or "accuracy" in n}
        numbers = ", ".join(f"{n.replace('_', ' ')} {v:.4g}" for n, v in found.items())
        return [f"{'it works' if folder is None else 'best'}: {numbers}"]
    measured = {n: v for n, v in facts.items() if isinstance(v, float)}
    numbers = ", ".join(f"{n} {number_text(n, v)}" for n, v in measured.items())
    path, root = quote(folder), str(Path(folder).parents[1])
    uses = (
        f'generate:  weft generate {path} "Once upon a time"'
        if facts["task"] == "text"
        else f"predict:   weft predict {path} IMAGE"
    )
    return [
        "",
        f"{facts['why']}; the best epoch was {int(best['epoch'])}. "
        f"On {counted(facts['examples'], facts['split'] + ' example')}: {numbers}",
        f"report:    {folder}/report.html",
        uses,
        f"evaluate:  weft eval {path}",
        f"compare:   weft runs list{'' if root == 'runs' else ' ' + quote(root)}",
    ]


def _metrics_text(metrics: Mapping[str, float]) -> str:
    words = [f"{name} {100 * v:.1f} %" if "accuracy" in name else f"{name} {v:.4f}" for name, v in metrics.items()]
    return "  ".join(words)
