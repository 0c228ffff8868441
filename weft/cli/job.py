"""The verb `job`: a queue of trainings. Its parts change and show what is on disk; `weft job run` is the process that trains."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from .. import jobs
from ..errors import RunError, UserError
from ..jobs.events import Event, latest
from ..jobs.queue import JobQueue
from ..jobs.record import FAILED, WAITING, JobRecord
from ..jobs.runner import Runner
from ..jobs.schema import Setting, count, flag
from ..jobs.settings import COMMON, SETTINGS
from ..jobs.sweep import expand
from .arguments import Words, part, read
from .display import Display
from .progress import ProgressDisplay
from .table import as_json, table

_RUNS = Setting(str, "runs", "folder that runs are kept in")
_JSON = Setting(flag, False, "print JSON, for programs")


def job(words: Sequence[str]) -> None:
    """Queue trainings: weft job submit digits epochs=5, weft job run, weft job list."""
    parts = {
        "submit": _submit, "run": _run, "list": _list, "follow": _follow, "pause": _pause, "resume": _resume,
        "cancel": _cancel,
    }  # fmt: skip
    part("job", words, parts)


def _submit(words: Sequence[str]) -> None:
    """Add a training to the queue: weft job submit digits epochs=5.

    It takes the settings of weft train. They are checked now; relative paths start from the current folder. A list of values adds a
    training with each: weft job submit digits rate=0.1,0.03.
    """
    for one in _variants(words):
        _submit_one(one)


def _variants(words: Sequence[str]) -> list[list[str]]:
    """The commands that a command with lists of values stands for."""
    settings = dict(word.removeprefix("--").split("=", 1) for word in words if "=" in word)
    others = [word for word in words if "=" not in word]
    return [[*others, *(f"{name}={text}" for name, text in one.items())] for one in expand(settings)]


def _submit_one(words: Sequence[str]) -> None:
    given = read("job submit", words, SETTINGS, 1, _submit.__doc__, common=COMMON)
    named = {"data": given.plain[0]} if given.plain and given["data"] is None else {}
    queue = JobQueue(given["runs"])
    new = jobs.submit(queue, {**named, **{name: given[name] for name in given.given if name != "json"}})
    if given["json"]:
        print(as_json(_facts(new)))
        return
    running = queue.runner()
    print(
        f"{new} is waiting; "
        + ("start the queue with: weft job run" if running is None else f"{_runner(queue)} starts it")
    )


def _run(words: Sequence[str]) -> None:
    """Run the jobs of the queue, in order: weft job run.

    Each has a process of its own. It ends when no job is waiting or running. Ctrl-C or SIGTERM stops the running jobs with a checkpoint; they continue with the
    next weft job run.
    """
    known = {
        "at_once": Setting(count, 1, "jobs that run at the same time"),
        "stay": Setting(flag, False, "wait for jobs that are submitted later"),
        "runs": _RUNS,
    }
    given = read("job run", words, known, 0, _run.__doc__)
    with Display(sys.stdout) as display:

        def show(one: JobRecord, what: str) -> None:
            if what == "started":
                display.line(f"{one} has started; watch it with: weft job follow {one.number}")
                display.activity(f"{one} is running")
            else:
                display.line(_state_text(one))

        Runner(JobQueue(given["runs"]), given["at_once"], show).run(given["stay"])


def _list(words: Sequence[str]) -> None:
    """All jobs and their states: weft job list."""
    given = read("job list", words, {"runs": _RUNS, "json": _JSON}, 0, _list.__doc__)
    queue = JobQueue(given["runs"])
    found = [_facts(one) for one in queue.jobs()]
    if given["json"]:
        print(as_json(found))
        return
    if not found:
        print(f"there are no jobs in {given['runs']}; weft job submit adds one.")
        return
    titles = ["job", "state", "data", "model", "epoch", "since", "run"]
    rows = [
        [
            str(facts["job"]), facts["why"] if facts["why"] in ("paused", "cancelled") else facts["state"], facts["data"],
            facts["model"] or "", facts["epoch"] or "", facts["since"][5:16].replace("T", " "), _short(facts["run"]),
        ]
        for facts in found
    ]  # fmt: skip
    print(table(titles, rows, left=("state", "data", "model", "run")))
    for facts in found:
        if facts["state"] == FAILED:
            print(f"job {facts['job']} failed: {facts['why']}")
    if any(facts["state"] == WAITING for facts in found):
        print("start the queue with: weft job run" if queue.runner() is None else f"{_runner(queue)} runs the queue")


def _follow(words: Sequence[str]) -> None:
    """Show a job from its beginning until it ends: weft job follow 1.

    Ctrl-C ends watching; the job goes on. The exit code is 1 if the job has failed.
    """
    given = read("job follow", words, {"runs": _RUNS, "json": _JSON}, 1, _follow.__doc__)
    queue = JobQueue(given["runs"])
    (followed,) = _named("follow", given, queue)
    if given["json"]:
        for event in followed.follow():
            print(event.line(), flush=True)
    else:
        if followed.state.state == WAITING and queue.runner() is None:
            print(f"{followed} is waiting, and nothing runs the queue; start it with: weft job run")
        with ProgressDisplay() as progress:
            for event in _without_hints(followed):
                progress(event)
        print(_state_text(followed))
    if followed.state.state == FAILED:
        raise RunError("weft job follow", _state_text(followed))


def _without_hints(followed: JobRecord) -> Iterator[Event]:
    """The events but those whose text names the commands of a training that is not a job."""
    return (event for event in followed.follow() if event.type not in ("stopped", "state"))


def _pause(words: Sequence[str]) -> None:
    """Stop jobs with a checkpoint, to be resumed later: weft job pause 1."""
    given = read("job pause", words, {"runs": _RUNS}, 1000, _pause.__doc__)
    queue = JobQueue(given["runs"])
    for one in _named("pause", given, queue):
        queue.pause(one)
        print(f"{one} pauses after its current step" if not one.state.has_ended else _state_text(one))


def _cancel(words: Sequence[str]) -> None:
    """Stop jobs for good: weft job cancel 1.

    Running jobs stop after their current step, with a checkpoint. Cancelling one twice ends its process at once.
    """
    given = read("job cancel", words, {"runs": _RUNS}, 1000, _cancel.__doc__)
    queue = JobQueue(given["runs"])
    for one in _named("cancel", given, queue):
        queue.cancel(one)
        print(f"{one} stops after its current step" if not one.state.has_ended else _state_text(one))


def _resume(words: Sequence[str]) -> None:
    """Queue stopped or failed jobs again: weft job resume 1.

    They continue from their last checkpoint.
    """
    given = read("job resume", words, {"runs": _RUNS}, 1000, _resume.__doc__)
    queue = JobQueue(given["runs"])
    for one in _named("resume", given, queue):
        print(_state_text(queue.resume(one)))
    if queue.runner() is None:
        print("start the queue with: weft job run")


# --- what is shown of a job -----------------------------------------------------------------------------------------------------


def _named(command: str, given: Words, queue: JobQueue) -> list[JobRecord]:
    if not given.plain:
        raise UserError(
            f"weft job {command}", f"the number of a job is required: weft job {command} 1. See weft job list."
        )
    return [queue.job(text) for text in given.plain]


def _facts(one: JobRecord) -> dict[str, Any]:
    state, settings = one.state, one.readable_settings
    at = latest(one.folder, "epoch", "progress")
    epoch = f"{int(at['epoch'])}/{at['epochs']}" if at is not None and "epochs" in at.facts else None
    since = datetime.fromtimestamp(state.time).astimezone().isoformat(timespec="seconds")
    return {
        "job": one.number, "state": state.state, "why": state.why, "data": settings.get("data", "?"), "model": settings.get("model"),
        "epoch": epoch, "since": since, "run": state.run, "folder": str(one.folder),
    }  # fmt: skip


def _state_text(one: JobRecord) -> str:
    state = one.state
    text = f"{one} is {state.state}" if state.state != FAILED else f"{one} failed"
    why = f": {state.why}" if state.why else ""
    hint = f"; continue it with: weft job resume {one.number}" if state.state in (FAILED, "stopped") else ""
    return f"{text}{why}{hint}" if hint or state.run is None else f"{text}{why}; its run is {_short(state.run)}"


def _runner(queue: JobQueue) -> str:
    holder = queue.runner()
    return "weft job run" if holder is None else f"process {holder.pid}"


def _short(path: str | None) -> str:
    """A path as seen from the current folder."""
    if path is None:
        return ""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path
