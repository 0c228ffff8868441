"""The verb `runs`: list runs, show one, compare several."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from ..errors import RunError, UserError
from ..jobs.annotations import Annotations, annotate, group_name, read_annotations, tag_names
from ..jobs.find import find_run, run_folders
from ..jobs.schema import Setting, flag
from ..jobs.trash import delete_runs, empty_trash, restore_runs, trash_entries
from ..locks import writer_of
from ..records import dataclass
from ..report import compare as facts
from ..report.axes import duration, short
from ..report.run_record import RunRecord, read_run
from . import run_parts
from .arguments import Words, part, read
from .run_notes import notes_of
from .table import as_csv, as_json, pairs, table

MOST_EPOCHS = 12  # lines of the table of epochs
DONE = "all epochs are done"
_JSON = Setting(flag, False, "print JSON, for programs")
_CSV = Setting(flag, False, "print CSV, for spreadsheets")
_ROOT = Setting(str, "runs", "folder to search for runs")


def runs(words: Sequence[str]) -> None:
    """List, show and compare runs: weft runs list, weft runs show RUN, weft runs compare RUN RUN."""
    part(
        "runs", words,
        {
            "list": _list, "show": _show, "compare": _compare, "checkpoints": _checkpoints, "branch": _branch, "tag": _tag, "delete": _delete,
            "restore": _restore, "trash": _trash,
        },
    )  # fmt: skip


@dataclass(frozen=True)
class _Facts:
    """A row of the list of runs."""

    run: str
    folder: str
    model: str
    data: str
    epochs: int
    best: facts.Best | None
    last_loss: float | None
    seconds: float | None
    when: str
    status: str
    notes: tuple[str, ...]
    tags: tuple[str, ...] = ()
    group: str = ""


def _facts(name: str, folder: Path) -> _Facts:
    run = read_run(folder)
    known = facts.settings(run)
    told, loss = run.summary.get("epochs"), facts.last_value(run, "train_loss")
    done = facts.epochs(run) or (told if isinstance(told, int) else 0)
    try:
        annotations = read_annotations(folder)
    except RunError as error:
        annotations, problems = Annotations(), [error.message]
    else:
        problems = []
    return _Facts(
        name, str(folder), str(known.get("model", "")), str(known.get("data", "")), done, facts.best(run), loss,
        facts.training_seconds(run), _when(run, folder), _status(run, folder), tuple(notes_of(run) + problems), annotations.tags,
        annotations.group,
    )  # fmt: skip


def _status(run: RunRecord, folder: Path) -> str:
    writer = writer_of(folder)
    if writer is not None:
        return f"running: {writer}"
    ended = run.summary.get("ended")
    if not ended:
        return "not finished"
    return "done" if ended in (DONE, True) else f"stopped: {ended}"


def _when(run: RunRecord, folder: Path) -> str:
    """The start time in ISO 8601: from env.json, else the modification time of args.yaml."""
    try:
        return datetime.fromisoformat(str(run.environment["date"])).astimezone().isoformat(timespec="seconds")
    except (KeyError, ValueError, OverflowError):
        written = (folder / "args.yaml").stat().st_mtime
        return datetime.fromtimestamp(written).astimezone().isoformat(timespec="seconds")


# --- list -----------------------------------------------------------------------------------------------------------------------


def _list(words: Sequence[str]) -> None:
    """All runs in a folder, the newest first: weft runs list runs sort=best."""
    known = {
        "root": _ROOT,
        "sort": Setting(str, "new", "order: new, best, time or name", choices=("new", "best", "time", "name")),
        "tag": Setting(tag_names, None, "only runs with this tag, or with all of several: baseline,small"),
        "group": Setting(group_name, None, "only runs of this group"),
        "json": _JSON,
        "csv": _CSV,
    }
    given = _read("list", words, known, 1, _list.__doc__)
    root = Path(given.plain[0] if given.plain else given["root"])
    if not root.is_dir() and (given.plain or "root" in given.given):
        raise UserError("weft runs list", f"{root} is not a folder. Use weft runs list FOLDER.")
    found = [_facts(f.relative_to(root).as_posix() if f != root else f.name, f) for f in run_folders(root)]
    found = [one for one in found if set(given["tag"] or ()) <= set(one.tags)]
    found = [one for one in found if given["group"] is None or one.group == given["group"]]
    found = _sorted(found, given["sort"])
    if given["csv"]:
        print(_list_csv(found))
    elif given["json"]:
        print(as_json([asdict(one) for one in found]))
    elif not found:
        fits = given["tag"] is not None or given["group"] is not None
        print(f"there are no {'such ' if fits else ''}runs in {root}; weft train digits makes one.")
    else:
        print(_list_text(found))


def _read(part: str, words: Sequence[str], known: dict[str, Setting], most: int, about: str | None) -> Words:
    given = read(f"runs {part}", words, known, most, about)
    if given["csv"] and given["json"]:
        raise UserError(f"weft runs {part}", "csv and json exclude each other. Use one of them.")
    return given


def _list_csv(found: Sequence[_Facts]) -> str:
    titles = [
        "run",
        "folder",
        "model",
        "data",
        "epochs",
        "best_metric",
        "best",
        "last_loss",
        "seconds",
        "when",
        "status",
    ]
    best = [(None, None) if one.best is None else (one.best.name, one.best.value) for one in found]
    rows = [
        [
            one.run, one.folder, one.model, one.data, one.epochs, *best[i], one.last_loss, one.seconds, one.when, one.status,
        ]
        for i, one in enumerate(found)
    ]  # fmt: skip
    return as_csv(titles, rows)


def _sorted(found: Sequence[_Facts], by: str) -> list[_Facts]:
    if by == "name":
        return sorted(found, key=lambda one: one.run)
    if by == "time":
        return sorted(found, key=lambda one: (one.seconds is None, -(one.seconds or 0.0)))
    newest = sorted(found, key=lambda one: datetime.fromisoformat(one.when).timestamp(), reverse=True)
    return newest if by == "new" else sorted(newest, key=_rank)


def _rank(one: _Facts) -> tuple[bool, bool, float]:
    """Accuracies, then losses, then runs without results."""
    if one.best is None:
        return True, True, 0.0
    loss = one.best.name.endswith("loss")
    return False, loss, one.best.value if loss else -one.best.value


def _list_text(found: Sequence[_Facts]) -> str:
    titles = ["run", "model", "data", "epochs", "best", "last loss", "time", "when", "status"]
    rows = [
        [
            one.run, one.model, one.data, str(one.epochs), _best_text(one.best), facts.value_text("loss", one.last_loss),
            "-" if one.seconds is None else duration(one.seconds), one.when[:16].replace("T", " "), one.status,
        ]
        for one in found
    ]  # fmt: skip
    notes = [f"{one.run}: {'; '.join(one.notes)}" for one in found if one.notes]
    shown = table(titles, rows, ("run", "model", "data", "status"), optional=("last loss", "time", "data", "epochs"))
    return "\n".join([shown, *(["", *notes] if notes else [])])


def _best_text(best: facts.Best | None) -> str:
    if best is None:
        return "-"
    return f"{'loss ' if best.name.endswith('loss') else ''}{facts.value_text(best.name, best.value)}"


# --- show -----------------------------------------------------------------------------------------------------------------------


def _show(words: Sequence[str]) -> None:
    """One run: its settings, its machine, its epochs, its files: weft runs show RUN. With csv only its table of epochs."""
    given = _read("show", words, {"root": _ROOT, "json": _JSON, "csv": _CSV}, 1, _show.__doc__)
    if not given.plain:
        raise UserError("weft runs show", "a run is required, got none: weft runs show RUN; weft runs list names them.")
    folder = find_run(given.plain[0], given["root"])
    run, known = read_run(folder), _facts(folder.name, folder)
    if given["csv"]:
        print(as_csv(list(run.metrics), [[_stored(*one) for one in row.items()] for row in _rows(run)]))
        return
    if given["json"]:
        args, rows = facts.settings(run), _rows(run)
        print(as_json({**asdict(known), "args": args, "summary": run.summary, "env": run.environment, "rows": rows}))
        return
    best = "no results yet" if known.best is None else str(known.best)
    took = [] if known.seconds is None else [f"in {duration(known.seconds)}"]
    began = f"started {known.when[:16].replace('T', ' ')}"
    print(f"{folder}: {known.model or 'a network'} on {known.data or 'some data'}")
    print(", ".join([known.status, best, *took, began]))
    for title, text in (
        ("settings", pairs(facts.settings(run))),
        ("machine", pairs(_machine(run))),
        ("epochs", _epochs_text(run, known.best)),
        ("files", _files_text(folder)),
        ("notes", "\n".join(f"  {note}" for note in known.notes)),
    ):
        if text:
            print(f"\n{title}\n{text}")
    page = folder / "report.html"
    print(f"\nreport: {page}" if page.exists() else "\nthere is no report yet")


def _machine(run: RunRecord) -> dict[str, Any]:
    command = run.environment.get("command")
    said = {"command": " ".join(map(str, command))} if isinstance(command, list) else {}
    return {name: value for name, value in run.environment.items() if name != "date"} | said


def _rows(run: RunRecord) -> list[dict[str, float | None]]:
    """The table of epochs, line by line."""
    return [{name: values[i] for name, values in run.metrics.items()} for i in range(facts.epochs(run))]


def _epochs_text(run: RunRecord, best: facts.Best | None) -> str:
    """A selection of epochs with the first, the last and the best, which is marked by a star."""
    rows = _rows(run)
    if not rows:
        return ""
    top = next((i for i, row in enumerate(rows) if best and row.get("epoch") == best.epoch), None)
    steps = min(len(rows), MOST_EPOCHS) - (len(rows) > MOST_EPOCHS)
    picked = {round(i * (len(rows) - 1) / max(1, steps - 1)) for i in range(steps)} | (
        {top} if top is not None else set()
    )
    names = [name for name in run.metrics if name != "steps"]
    cells = [[*(_cell(name, rows[i][name]) for name in names), "*" if i == top else ""] for i in sorted(picked)]
    lines = table([*(name.replace("_", " ") for name in names), ""], cells).splitlines()
    return "\n".join(f"  {line}" for line in lines)


def _stored(name: str, value: float | None) -> float | int | None:
    """A number as metrics.csv has it: counts are whole."""
    return int(value) if value is not None and name in ("epoch", "steps") and value.is_integer() else value


def _cell(name: str, value: float | None) -> str:
    if value is not None and name == "epoch" and math.isfinite(value):
        return f"{value:.15g}"
    return facts.value_text("time" if name == "seconds" and value is not None and math.isfinite(value) else name, value)


def _files_text(folder: Path) -> str:
    try:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return "\n".join(f"  {short(p.stat().st_size):>6} bytes  {p.relative_to(folder).as_posix()}" for p in files)
    except OSError as error:
        return f"  they cannot be listed: {error.strerror or error}"


# --- compare --------------------------------------------------------------------------------------------------------------------


# --- tag ------------------------------------------------------------------------------------------------------------------------


def _tag(words: Sequence[str]) -> None:
    """Add tags to a run, and set its group and notes: weft runs tag RUN baseline small remove=old group=first."""
    known = {
        "root": _ROOT,
        "remove": Setting(tag_names, (), "tags that are taken away, such as old,slow"),
        "group": Setting(str, None, "group that the run is listed in; an empty one takes it out"),
        "notes": Setting(str, None, "notes about the run"),
        "star": Setting(flag, None, "mark the run with a star"),
    }
    given = read("runs tag", words, known, 1000, _tag.__doc__)
    if not given.plain:
        raise UserError(
            "weft runs tag", "a run is required, got none: weft runs tag RUN baseline; weft runs list names them."
        )
    run, *tags = given.plain
    new = annotate(
        find_run(run, given["root"]), add_tags=tags, remove_tags=given["remove"], group=given["group"], notes=given["notes"],
        starred=given["star"],
    )  # fmt: skip
    shown = [f"tags: {', '.join(new.tags) or 'none'}"] + ([f"group: {new.group}"] if new.group else [])
    print("; ".join(shown))


# --- trash ----------------------------------------------------------------------------------------------------------------------


def _delete(words: Sequence[str]) -> None:
    """Move runs to the trash: weft runs delete RUN RUN. weft runs restore brings them back."""
    given = read("runs delete", words, {"root": _ROOT}, 10_000, _delete.__doc__)
    if not given.plain:
        raise UserError("weft runs delete", "a run is required, got none; weft runs list names them.")
    entry = delete_runs(Path(given["root"]), [find_run(text, given["root"]) for text in given.plain])
    print(f"{len(entry.runs)} in the trash; bring back with: weft runs restore {entry.id}")


def _restore(words: Sequence[str]) -> None:
    """Bring deleted runs back: weft runs restore ENTRY; weft runs trash lists them."""
    given = read("runs restore", words, {"root": _ROOT}, 1, _restore.__doc__)
    if not given.plain:
        raise UserError("weft runs restore", "an entry of the trash is required, got none; weft runs trash lists them.")
    print(f"restored: {', '.join(restore_runs(Path(given['root']), given.plain[0]).runs)}")


def _trash(words: Sequence[str]) -> None:
    """What was deleted, the last first: weft runs trash. empty=true deletes it for good."""
    known = {"root": _ROOT, "empty": Setting(flag, False, "delete everything in the trash for good")}
    given = read("runs trash", words, known, 0, _trash.__doc__)
    if given["empty"]:
        print(f"{empty_trash(Path(given['root']))} runs are gone for good")
        return
    found = trash_entries(Path(given["root"]))
    print("\n".join(f"{entry.id}  {', '.join(entry.runs)}" for entry in found) if found else "the trash is empty")


# Subcommands that need arrays or the compiler are imported when they are used.


def _compare(words: Sequence[str]) -> None:
    """Compare runs side by side, the best values marked by a star: weft runs compare RUN RUN html=compare.html."""
    run_parts.compare(words, "runs compare")


def _checkpoints(words: Sequence[str]) -> None:
    """The checkpoints of a run with epoch, metric and size: weft runs checkpoints RUN; delete=NAME or keep_best=3 removes some."""
    run_parts.checkpoints(words)


def _branch(words: Sequence[str]) -> None:
    """A new run from a checkpoint, with changed settings: weft runs branch RUN name=NEW checkpoint=state/last rate=0.001."""
    run_parts.branch(words)
