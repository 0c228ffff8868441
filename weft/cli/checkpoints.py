"""`weft runs checkpoints` and `weft runs branch`: list and delete checkpoints of a run, and start a new run from one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ..errors import UserError
from ..jobs import training
from ..jobs.checkpoints import (
    branch_settings,
    branch_state,
    delete_checkpoint,
    find_checkpoint,
    keep_checkpoints,
)
from ..jobs.checkpoints import checkpoints as list_checkpoints
from ..jobs.find import find_run
from ..jobs.schema import Setting, flag, whole
from ..jobs.settings import SETTINGS
from ..report.compare import value_text
from .arguments import Words, read
from .progress import ProgressDisplay
from .table import as_json, table

_ROOT = Setting(str, "runs", "folder to search for runs")


def checkpoints(words: Sequence[str]) -> None:
    """The checkpoints of a run with epoch, metric and size: weft runs checkpoints RUN; delete=NAME or keep_best=3 removes some."""
    known = {
        "root": _ROOT,
        "delete": Setting(str, None, "checkpoint to delete, such as weights/epoch-0007"),
        "keep_best": Setting(
            whole, None, "number of best epochs whose weights are kept; those of other epochs are deleted"
        ),
        "keep_last": Setting(whole, None, "number of last epochs whose weights are kept"),
        "json": Setting(flag, False, "print JSON, for programs"),
    }
    given = read("runs checkpoints", words, known, 1, checkpoints.__doc__)
    folder = _run("checkpoints", given)
    if given["delete"] is not None:
        print(f"deleted {given['delete']}, {delete_checkpoint(folder, given['delete']):,} bytes")
        return
    if given["keep_best"] is not None or given["keep_last"] is not None:
        gone = keep_checkpoints(folder, given["keep_best"] or 0, given["keep_last"] or 0)
        print(f"deleted {', '.join(gone) or 'nothing'}")
        return
    found = list_checkpoints(folder)
    if given["json"]:
        print(as_json([{**asdict(one), "path": str(one.path), "exact": one.is_exact} for one in found]))
        return
    rows = [
        [
            one.name, "exact state" if one.is_exact else "weights", "-" if one.epoch is None else str(one.epoch),
            value_text(one.metric or "", one.value), f"{one.bytes:,}",
        ]
        for one in found
    ]  # fmt: skip
    metric = found[0].metric.replace("_", " ") if found and found[0].metric else "metric"
    titles = ["checkpoint", "holds", "epoch", metric, "bytes"]
    print(table(titles, rows, left=("checkpoint", "holds")) if rows else f"{folder} has no checkpoints yet")


def branch(words: Sequence[str]) -> None:
    """A new run from a checkpoint, with changed settings: weft runs branch RUN name=NEW checkpoint=state/last rate=0.001.

    From state/last or state/previous training continues exactly, with optimizer, random numbers and place in the data. From weights/best and
    other weights it starts with a fresh optimizer and schedule.
    """
    own = {"root": _ROOT, "checkpoint": Setting(str, "state/last", "the checkpoint; weft runs checkpoints lists them")}
    given = read(
        "runs branch", words, {**SETTINGS, **own}, 1, branch.__doc__, common=("checkpoint", "name", "epochs", "rate")
    )
    folder = _run("branch", given)
    changes = {name: given[name] for name in given.given if name not in own}
    if not given["name"]:
        raise UserError(
            "weft runs branch",
            "a name for the new run is required, got none. Give it with: weft runs branch RUN name=NEW",
        )
    with ProgressDisplay() as shown:
        if find_checkpoint(folder, given["checkpoint"]).is_exact:
            training.resume(branch_state(folder, given["checkpoint"], given["name"], changes), listener=shown)
        else:
            training.train(branch_settings(folder, given["checkpoint"], changes), shown)


def _run(part: str, given: Words) -> Path:
    if not given.plain:
        raise UserError(f"weft runs {part}", "a run is required, got none; weft runs list names them.")
    return find_run(given.plain[0], given["root"])
