"""The verb `sweep`: searches settings, with a live table of the trials on a terminal, and lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

from ..data.catalogue import known_names
from ..data.open import data_path
from ..errors import UserError
from ..jobs.schema import Setting, flag
from ..jobs.settings import COMMON, JSON, SETTINGS
from ..jobs.sweeps.record import SweepRecord, find_sweep, sweeps
from ..jobs.sweeps.settings import SWEEP
from ..jobs.sweeps.sweep import SweepResult, continue_sweep, opened_sweep, reopened_sweep
from ..signals import Terminated
from .arguments import Words, read
from .sweep_display import SweepDisplay, result_facts, result_lines, trial_table
from .table import as_json, table

FOLLOW_SECONDS = 0.5
_SHOW = {"show": Setting(flag, False, "only show the sweep as it is", "sweep")}
# Lists and ranges are read later, with the settings that they are for.
_TEXTS = {name: replace(setting, read=str, choices=()) for name, setting in SETTINGS.items()} | {"json": JSON}
_WITH_NAME = {*SWEEP, *_SHOW, "runs", "json"} - {
    "sampler",
    "pruner",
    "metric",
    "cpus",
    "gpus",
    "cluster_data",
}  # allowed beside the name of a sweep


def sweep(words: Sequence[str]) -> None:
    """Search hyperparameters: weft sweep digits model=lenet,mlp rate=log:1e-4..1e-1 trials=40 jobs=4.

    A setting of weft train with several values is searched: a list (batch=32,64), a range (dropout=0..0.5) or a log-uniform range
    (rate=log:1e-4..1e-1). Each trial is a training run of its own; jobs=4 runs four at a time. To resume an interrupted sweep, repeat the
    command or name the sweep.

      weft sweep                     list all sweeps
      weft sweep NAME                resume a sweep
      weft sweep NAME show=true      show a sweep
    """
    known = {**SWEEP, **_SHOW, **_TEXTS}
    given = read("sweep", words, known, 1, common=(*SWEEP, *_SHOW, *COMMON))
    if not given.plain and not given.given - {"runs", "json"}:
        return _list(given)
    name = _named(given)
    if name is not None:
        _continue(given, name)
        return
    if given["show"]:
        raise UserError("weft sweep", "show=true requires the name of a sweep: weft sweep NAME show=true. weft sweep lists them.")  # fmt: skip
    named = {"data": given.plain[0]} if given.plain and given["data"] is None else {}
    settings = {one: given[one] for one in known if one in given.given and one not in ("json", "show")}
    record = opened_sweep({**named, **settings})
    if record.is_searched:
        _follow(record, given["json"])
    else:
        _search(record, given["json"])


def _named(given: Words) -> str | None:
    """The sweep that the first word names; None if the word is data."""
    if not given.plain or given.given - _WITH_NAME:
        return None
    word = given.plain[0].rstrip("/")
    if Path(word).parent == Path(given["runs"]) / "sweeps":
        word = Path(word).name
    is_data = word in known_names() or data_path(word) is not None
    return None if is_data and word not in sweeps(given["runs"]) else find_sweep(given["runs"], word).name


def _continue(given: Words, name: str) -> None:
    record = find_sweep(given["runs"], name)
    if given["show"]:
        _print_result(SweepResult(record, record.trials()), given["json"], with_table=True)
    elif record.is_searched:
        _follow(record, given["json"])
    else:
        jobs = given["jobs"] if "jobs" in given.given else None
        record = reopened_sweep(given["runs"], name, given["trials"], jobs, given["cluster"])
        _search(record if given["storage"] is None else replace(record, storage=given["storage"]), given["json"])


def _search(record: SweepRecord, in_json: bool) -> None:
    if record.has_ended:
        _print_result(SweepResult(record, record.trials()), in_json, with_table=True)
        return
    with _advice(record), SweepDisplay(quiet=in_json) as display:
        result = continue_sweep(record, display)
    _print_result(result, in_json, with_table=display.live)


@contextmanager
def _advice(record: SweepRecord) -> Iterator[None]:
    """Inside, an interruption also prints how to continue."""
    try:
        yield
    except (KeyboardInterrupt, Terminated):
        where = "" if str(record.runs) == "runs" else f" runs={quote(str(record.runs))}"
        print(f"stopped; continue with: weft sweep {quote(record.name)}{where}", file=sys.stderr)
        raise


def _follow(record: SweepRecord, in_json: bool) -> None:
    """Show a sweep that another process searches, until it ends. Ctrl-C ends watching."""
    with SweepDisplay(quiet=in_json) as display:
        while True:
            last = not record.is_searched  # asked first: what was written before it ended is still shown
            display(record, record.trials())
            if last:
                break
            time.sleep(FOLLOW_SECONDS)
    _print_result(SweepResult(record, record.trials()), in_json, with_table=display.live)


def _print_result(result: SweepResult, in_json: bool, with_table: bool) -> None:
    if in_json:
        print(as_json(result_facts(result)))
        return
    if with_table:
        print(trial_table(result.record, result.trials))
        print()
    for line in result_lines(result):
        print(line)


def _list(given: Words) -> None:
    """All sweeps."""
    found = [_summary(record) for record in sweeps(given["runs"]).values()]
    if given["json"]:
        print(as_json(found))
    elif not found:
        print(f"there are no sweeps in {given['runs']}; weft sweep digits rate=log:1e-4..1e-1 makes one.")
    else:
        rows = [[str(one[name]) for name in found[0]] for one in found]
        print(table(list(found[0]), rows, left=("sweep", "state", "data", "searched", "best")))


def _summary(record: SweepRecord) -> dict[str, Any]:
    result = SweepResult(record, record.trials())
    state = "running" if record.is_searched else "ended" if record.has_ended else "stopped"
    ended = sum(one.has_ended for one in result.trials)
    best: Mapping[str, Any] = result_facts(result)
    return {
        "sweep": record.name, "state": state, "trials": f"{ended}/{record.plan.trials}",
        "data": os.path.basename(str(record.plan.settings["data"])), "searched": ", ".join(one.name for one in record.plan.space),
        "best": best["best"]["shown"] if best["best"] else "",
    }  # fmt: skip
