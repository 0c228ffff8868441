"""Verbs that train networks: train, resume."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from ..errors import UserError
from ..insight.trace_file import trace
from ..jobs import training
from ..jobs.compression import resume_compression
from ..jobs.compression_state import is_compression
from ..jobs.events import Listener
from ..jobs.recipes import with_recipe
from ..jobs.schema import Setting
from ..jobs.settings import COMMON, SETTINGS
from ..jobs.stored import run_of
from .arguments import read
from .progress import ProgressDisplay, print_json

# Not a setting of the run: it changes nothing about it, and is not kept with it.
TRACE = {"trace": Setting(str, None, "write a timeline of the first steps for Perfetto: trace=FILE.json", "output")}


def train(words: Sequence[str]) -> None:
    """Train a network: weft train digits model=lenet epochs=5.

    The data is the first word, or data=. A folder with a folder of images for each class is packed into a
    dataset first. The run is kept in runs/TASK/NAME, with weights, tables, plots and report.html.
    """
    given = read("train", words, SETTINGS | TRACE, 1, common=COMMON)
    named = {"data": given.plain[0]} if given.plain and given["data"] is None else {}
    settings = with_recipe("weft train", {**named, **{name: given[name] for name in given.given if name not in TRACE}})
    with shown(given["json"]) as listener, _traced(given["trace"]):
        training.train(settings, listener)


def resume(words: Sequence[str]) -> None:
    """Continue a run that was stopped: weft resume runs/classify/digits-lenet5-1.

    It continues at the step where it was stopped, with its own settings and on the same device; settings can be changed, such
    as epochs=30. A run that was stopped before its first checkpoint starts again. max_seconds holds for one command only.
    """
    given = read("resume", words, SETTINGS | TRACE, 1, common=COMMON)
    folder = run_of("resume", given.plain)
    with shown(given["json"]) as listener, _traced(given["trace"]):
        if is_compression(folder):
            if set(given.given) - {"json", "trace"}:
                raise UserError(
                    "weft resume", f"a compression continues with its own settings, got {sorted(given.given)}."
                )
            resume_compression(folder, listener)
            return
        training.resume(folder, {name: given[name] for name in given.given if name not in TRACE}, listener)


def _traced(path: str | None) -> AbstractContextManager[Any]:
    return nullcontext() if path is None else trace(path)


@contextmanager
def shown(as_json: bool) -> Iterator[Listener]:
    """A listener that renders events, or prints them as JSON."""
    if as_json:
        yield print_json
    else:
        with ProgressDisplay() as progress:
            yield progress
