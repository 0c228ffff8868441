"""The verb `job`: a queue of trainings. Its parts change and show what is on disk; `weft job run` is the process that trains."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from .. import jobs
from ..errors import RunError, UserError
from ..jobs.events import Event, latest
from ..jobs.profiles.settings import PROFILE_OPTIONS, PROFILE_SETTINGS
from ..jobs.queue.job_queue import JobQueue
from ..jobs.queue.needs import CPU, GPU, PRIORITIES
from ..jobs.queue.plan import HOUR, RunnerSlots, queue_plan, read_slots
from ..jobs.queue.record import FAILED, WAITING, JobRecord
from ..jobs.queue.runner import Runner
from ..jobs.queue.scheduler import clock
from ..jobs.queue.slots import machine_slots
from ..jobs.queue.view import JobView, QueueView
from ..jobs.schema import Setting, count, flag
from ..jobs.settings import COMMON, SETTINGS
from ..jobs.sweeps.search_space import expand
from .arguments import Words, part, read
from .display import Display
from .progress import ProgressDisplay
from .table import as_json, table

_RUNS = Setting(str, "runs", "folder that runs are kept in")
_JSON = Setting(flag, False, "print JSON, for programs")


_OF_JOBS = {
    "priority": Setting(
        str, "normal", "place in the queue: jobs of a higher priority start first", "queue", tuple(PRIORITIES)
    ),
    "owner": Setting(str, "", "whose job it is", "queue"),
    "gpus": Setting(count, 1, "GPUs that it needs at the same time", "queue"),
}


def job(words: Sequence[str]) -> None:
    """Submit and run queued jobs: weft job submit digits epochs=5, weft job run, weft job list."""
    parts = {
        "submit": _submit, "run": _run, "list": _list, "follow": _follow, "pause": _pause, "resume": _resume,
        "profile": _profile, "cancel": _cancel, "hold": _hold, "release": _release, "priority": _priority, "move": _move, "retry": _retry,
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
    given = read("job submit", words, {**SETTINGS, **_OF_JOBS}, 1, _submit.__doc__, common=(*COMMON, *_OF_JOBS))
    named = {"data": given.plain[0]} if given.plain and given["data"] is None else {}
    queue = JobQueue(given["runs"])
    settings = {name: given[name] for name in given.given if name != "json" and name not in _OF_JOBS}
    new = jobs.submit(queue, {**named, **settings}, given["owner"], given["priority"], given["gpus"])
    if given["json"]:
        print(as_json(_facts(new)))
        return
    running = queue.runner()
    print(
        f"{new} is waiting; "
        + ("start the queue with: weft job run" if running is None else f"{_runner(queue)} starts it")
    )


def _profile(words: Sequence[str]) -> None:
    """Add the measurement of a run or a network to the queue: weft job profile resnet18 batch=8.

    The profile is kept beside the run, or in RUNS/.profiles, and the studio shows it.
    """
    known = {name: PROFILE_SETTINGS[name] for name in (*PROFILE_OPTIONS, "runs")} | {"json": _JSON}
    given = read("job profile", words, known, 1, _profile.__doc__)
    if not given.plain:
        raise UserError("weft job profile", "a run or a network is required: weft job profile resnet18.")
    queue = JobQueue(given["runs"])
    settings = {name: given[name] for name in PROFILE_OPTIONS if name in given.given}
    new = jobs.submit_profile(queue, jobs.named_subject(given.plain[0], given["runs"]), settings)
    print(as_json(_facts(new)) if given["json"] else f"{new} is waiting; start the queue with: weft job run")


def _run(words: Sequence[str]) -> None:
    """Run the jobs of the queue, in order: weft job run.

    Each has a process of its own. It ends when no job is waiting or running. Ctrl-C or SIGTERM stops the running jobs with a checkpoint; they continue with the
    next weft job run.
    """
    known = {
        "at_once": Setting(count, 1, "trainings that run on the CPU at the same time; GPUs are shared by memory"),
        "stay": Setting(flag, False, "wait for jobs that are submitted later"),
        "per_owner": Setting(count, None, "jobs of one person that run at the same time"),
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

        queue = JobQueue(given["runs"])
        Runner(queue, given["at_once"], show, per_owner=given["per_owner"]).run(given["stay"])
        for one in _schedule(queue):
            display.line(f"job {one['job']} still waits: {one['why']}")


def _list(words: Sequence[str]) -> None:
    """All jobs and their states: weft job list."""
    given = read("job list", words, {"runs": _RUNS, "json": _JSON}, 0, _list.__doc__)
    queue = JobQueue(given["runs"])
    schedule = {one["job"]: one for one in _schedule(queue)}
    found = [{**_facts(one), **schedule.get(one.number, {})} for one in queue.jobs()]
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
    for one in schedule.values():
        print(f"job {one['job']} waits: {one['why']}" + (f"; starts about {one['starts']}" if one["starts"] else ""))
    for facts in found:
        if facts["state"] == FAILED:
            print(f"job {facts['job']} failed: {facts['why']}")
    if any(facts["state"] == WAITING for facts in found):
        print("start the queue with: weft job run" if queue.runner() is None else f"{_runner(queue)} runs the queue")


def _follow(words: Sequence[str]) -> None:
    """Show a job from its beginning until it ends: weft job follow 1.

    Ctrl-C stops following; the job continues. The exit code is 1 if the job has failed.
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


def _hold(words: Sequence[str]) -> None:
    """Keep waiting jobs from starting: weft job hold 3."""
    given = read("job hold", words, {"runs": _RUNS}, 1000, _hold.__doc__)
    queue = JobQueue(given["runs"])
    for one in _named("hold", given, queue):
        queue.hold(one)
        print(f"{one} is held; it waits until: weft job release {one.number}")


def _release(words: Sequence[str]) -> None:
    """Let held jobs start when their turn comes: weft job release 3."""
    given = read("job release", words, {"runs": _RUNS}, 1000, _release.__doc__)
    queue = JobQueue(given["runs"])
    for one in _named("release", given, queue):
        queue.release(one)
        print(f"{one} is released")


def _priority(words: Sequence[str]) -> None:
    """Change the priority of a waiting job to low, normal or high: weft job priority 3 high."""
    given = read("job priority", words, {"runs": _RUNS}, 2, _priority.__doc__)
    if len(given.plain) != 2:
        raise UserError("weft job priority", "a job and a priority are required: weft job priority 3 high.")
    queue = JobQueue(given["runs"])
    queue.prioritize(queue.job(given.plain[0]), given.plain[1])
    print(f"job {given.plain[0]} has the priority {given.plain[1]}")


def _move(words: Sequence[str]) -> None:
    """Move a waiting job in the queue: weft job move 3 up, weft job move 3 before=1.

    Directions are up, down, first and last. Among jobs of another priority it takes theirs.
    """
    known = {"runs": _RUNS, "before": Setting(count, None, "the job that it starts before")}
    given = read("job move", words, known, 2, _move.__doc__)
    queue = JobQueue(given["runs"])
    ways = {"up": -1, "down": 1, "first": -(1 << 30), "last": 1 << 30}
    way = given.plain[1] if len(given.plain) > 1 else None
    if not given.plain or (way is None) == (given["before"] is None) or (way is not None and way not in ways):
        raise UserError(
            "weft job move",
            "a job and where to are required: weft job move 3 up (down, first, last), or weft job move 3 before=1.",
        )
    before = None if given["before"] is None else queue.job(given["before"])
    queue.move(queue.job(given.plain[0]), before, None if way is None else ways[way])
    print(f"order: {', '.join(str(one['job']) for one in _schedule(queue))}")


def _retry(words: Sequence[str]) -> None:
    """Submit a job that has ended again with other settings: weft job retry 3 batch=32."""
    given = read("job retry", words, {**SETTINGS, "runs": _RUNS}, 1, _retry.__doc__)
    queue = JobQueue(given["runs"])
    (one,) = _named("retry", given, queue)
    print(f"{jobs.retry(queue, one, {name: given[name] for name in given.given if name != 'runs'})} is waiting")


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


def _schedule(queue: JobQueue) -> list[dict[str, Any]]:
    """Waiting jobs in their order: why each waits, and when it starts."""
    view = QueueView(queue.folder)
    found = view.jobs()
    offered = read_slots(queue.folder) or RunnerSlots(tuple(machine_slots()))
    plan = queue_plan(view, found, offered, time.time(), 24 * HOUR)
    nobody = "" if queue.runner() is not None else "Nothing runs the queue"
    return [
        {
            "job": one.number, "why": plan.reasons.get(one.number) or nobody or "Starts now", "needs": needs_text(one),
            "priority": one.schedule.priority_name, "held": one.schedule.held,
            "starts": clock(plan.starts[one.number]) if one.number in plan.starts and not nobody else None,
        }
        for one in view.waiting(found, view.order())
    ]  # fmt: skip


def needs_text(one: JobView) -> str:
    """What a job needs of the machine."""
    needs = one.needs
    if needs.slot != GPU:
        return "a CPU slot" if needs.slot == CPU else "a task slot"
    memory = "all memory" if needs.memory is None else f"{needs.memory / 1e9:.1f} GB"
    return f"{needs.device or (f'{needs.gpus} GPUs' if needs.gpus > 1 else '1 GPU')}, {memory}"
