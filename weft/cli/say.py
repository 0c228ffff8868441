"""What a training says: a moving bar on a terminal, one line an epoch, or JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..train import Now
from ..train.folder import plain
from ..train.signals import Terminated
from ..train.task import line_of
from .bar import Bar

MADE_IS_KEPT = "what is made of the dataset is kept; the same command goes on from there"


@contextmanager
def when_terminated(text: str) -> Iterator[None]:
    """Inside, SIGTERM is answered with this too: what is left of the work."""
    try:
        yield
    except Terminated:
        print(f"weft: {text}", file=sys.stderr)
        raise


class Speaker:
    """Whoever reads along: a person, or with `as_json` a program."""

    def __init__(self, as_json: bool, epochs: int) -> None:
        self.as_json, self.epochs = as_json, epochs
        self._bar: Bar | None = None
        self._epoch = 0

    def say(self, text: str = "") -> None:
        """A line for people."""
        if not self.as_json:
            print(text, flush=True)

    def tell(self, kind: str, **facts: Any) -> None:
        """A line for programs."""
        if self.as_json:
            print(json.dumps({"type": kind, **{k: plain(v) for k, v in facts.items()}}), flush=True)

    def step(self, now: Now) -> None:
        """Move the bar."""
        if self.as_json:
            return
        if self._bar is None or self._epoch != now.epoch:
            self._epoch = now.epoch
            self._bar = Bar(f"epoch {now.epoch}/{now.epochs}", now.steps, sys.stdout, first=now.step - 1)
        if self._bar.due():
            numbers = {name: float(meter.value().item()) for name, meter in now.meters.items()}
            self._bar.show(now.step, f"{_shown(numbers)}  {now.examples_per_second:,.0f}/s")

    def epoch(self, row: Mapping[str, float]) -> None:
        self.clear()
        self.say(line_of(dict(row), self.epochs))
        self.tell("epoch", **row)

    def clear(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.clear()
            self._bar = None


def _shown(numbers: Mapping[str, float]) -> str:
    words = [f"{name} {100 * v:.1f} %" if "accuracy" in name else f"{name} {v:.4f}" for name, v in numbers.items()]
    return "  ".join(words)
