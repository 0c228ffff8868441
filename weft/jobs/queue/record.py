"""A job on disk: a folder with its settings, its state, and its events. Any process may read it, and ask the job to stop.

job.json       the kind of the job, its settings, the folder that relative paths start from, its owner, what it needs of the machine
schedule.json  priority, hold, and where it runs (see schedule.py)
state.json     waiting, running, done, stopped or failed; why; the run folder
request        what the running process was asked to do: one of REQUESTS
events.jsonl   all events of the job, including those from before there is a run folder
output.txt     what the process wrote to stdout and stderr: empty unless something went wrong
.lock          the process that runs the job: its number, its start, its machine (see weft/locks.py)

The state on disk is that of the last process that wrote it. A process that was killed cannot write any more, so `JobRecord.state`
compares it with the lock: a job that is "running" without a living process has ended.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...errors import RunError, UserError
from ...io.files import append_line, replace_file
from ...io.json_values import json_value
from ...locks import lock_holder
from ...records import dataclass
from ..events import FILE, Event, follow, replay
from .kinds import TRAIN
from .locked_file import locked
from .needs import JobNeeds, needs_of
from .schedule import JobSchedule, change_schedule, read_schedule

WAITING, RUNNING, DONE, STOPPED, FAILED = "waiting", "running", "done", "stopped", "failed"
PAUSED, CANCELLED, REQUEUED, PRUNED = "paused", "cancelled", "requeued", "pruned"
REQUESTS = {
    PAUSED: STOPPED,
    CANCELLED: STOPPED,
    PRUNED: STOPPED,
    REQUEUED: WAITING,
}  # and the state that a request ends in
LOST = "its process ended without a result: it was killed, or the machine was restarted"


@dataclass(frozen=True)
class State:
    """The state of a job, why it is in that state, and its run folder."""

    state: str
    why: str = ""
    run: str | None = None
    time: float = 0.0

    @property
    def has_ended(self) -> bool:
        return self.state not in (WAITING, RUNNING)


class JobRecord:
    """The folder of a job; see the head of this file."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    @classmethod
    def create(
        cls, root: Path, settings: Mapping[str, Any], kind: str = TRAIN, needs: JobNeeds | None = None, owner: str = "",
        schedule: JobSchedule | None = None,
    ) -> JobRecord:  # fmt: skip
        """A new job in root/N with the first N from 1 that is not taken. Relative paths start from the current folder."""
        number = 1 + max((int(p.name) for p in root.glob("*") if p.name.isdigit()), default=0)
        while True:
            try:
                (root / str(number)).mkdir(parents=True)
                break
            except FileExistsError:
                number += 1
        record = cls(root / str(number))
        content = {"kind": kind, "settings": json_value(dict(settings)), "folder": os.getcwd(), "owner": owner}
        record._write("job.json", content | {"needs": asdict(needs or needs_of(kind, settings))})
        if schedule is not None:
            change_schedule(record.folder, lambda _: schedule)
        record.set(WAITING)
        return record

    def __str__(self) -> str:
        return f"job {self.number}"

    @property
    def number(self) -> int:
        return int(self.folder.name)

    @property
    def readable_settings(self) -> dict[str, Any]:
        """The settings, or none of a job whose job.json is damaged: for lists of many jobs."""
        try:
            return self.settings
        except RunError:
            return {}

    @property
    def settings(self) -> dict[str, Any]:
        found: dict[str, Any] = self._job("settings")
        return found

    def submitted(self) -> dict[str, Any]:
        """All that job.json holds."""
        found: dict[str, Any] = self._read("job.json")
        return found

    @property
    def kind(self) -> str:
        """What its process does; see kinds.py."""
        return str(self._read("job.json").get("kind", TRAIN))

    @property
    def start_folder(self) -> str:
        """The folder that relative paths in the settings start from."""
        return str(self._job("folder"))

    def _job(self, name: str) -> Any:
        found = self._read("job.json")
        if name not in found:
            raise RunError("jobs", f"{self.folder / 'job.json'} is damaged: {name!r} is missing.")
        return found[name]

    @property
    def state(self) -> State:
        """The state, also of a job whose process could not record its end, or whose record is damaged: others must not suffer."""
        try:
            found = self._stored()
        except RunError as error:
            return State(FAILED, error.message)
        if found.state == RUNNING and lock_holder(self.folder) is None:
            found = self._stored()  # it may have ended in between
            if found.state == RUNNING:
                return self._lost(found)
        return found

    def set(self, state: str, why: str = "", run: str | None = None) -> State:
        """Change the state, and record the change as an event."""
        known = self._known_run()
        new = State(state, why, run or known, round(time.time(), 3))
        # The event first: who sees that the job has ended reads all of its events.
        append_line(self.folder / FILE, Event("state", {"state": state, "why": why}, new.time).line(), "jobs")
        self._write("state.json", asdict(new))
        return new

    @contextmanager
    def changing(self) -> Iterator[State]:
        """Inside, no other process decides on the state. Gives the state now."""
        with locked(self.folder / ".changing"):
            yield self.state

    def settle(self) -> None:
        """Record the state of a job whose process was killed before it could: the next process takes the stored one for its own."""
        with self.changing() as now:
            try:
                settled = self._stored() == now
            except RunError:
                return
            if not settled:
                self.set(now.state, now.why)

    def claim(self) -> State | None:
        """Make a waiting job a running one; None if it does not wait any more."""
        with self.changing() as now:
            if now.state != WAITING:
                return None
            (self.folder / "request").unlink(missing_ok=True)
            return self.set(RUNNING)

    def stop(self, request: str) -> None:
        """Ask a job to stop: a waiting one stops at once, a running one after its step, with a checkpoint.

        A second request to cancel ends the process at once.
        """
        with self.changing() as now:
            if now.state == WAITING or (request == CANCELLED and now.why == PAUSED):
                self.set(REQUESTS[request], request)
                return
            if now.state != RUNNING:
                raise UserError(
                    "jobs", f"a job that is waiting or running is required, got {self}, which is {now.state}."
                )
            before = self.request
            replace_file(self.folder / "request", [request.encode()], "jobs")
            if not before or request == before == CANCELLED:
                self._terminate()

    @property
    def request(self) -> str:
        """What the running process was asked to do, or nothing."""
        try:
            return (self.folder / "request").read_text(encoding="utf-8").strip()
        except OSError:
            return ""

    def events(self) -> list[Event]:
        """All events so far, from disk."""
        return list(replay(self.folder))

    def follow(self) -> Iterator[Event]:
        """All events, and those to come, until the job is done, stopped or failed."""
        return follow(self.folder, lambda: self.state.has_ended)

    def _terminate(self) -> None:
        holder = lock_holder(self.folder)
        if holder is None or read_schedule(self.folder).is_remote:
            return  # it has just ended, or the process that watches it on a cluster passes the request on
        if not holder.is_here:
            raise UserError("jobs", f"{self} runs on {holder.host}: stop it there.")
        os.kill(holder.pid, signal.SIGTERM)

    def _lost(self, last: State) -> State:
        """The state of a job whose process is gone: as requested, if it was asked to stop."""
        request = self.request
        if request in REQUESTS:
            return State(REQUESTS[request], request, last.run, last.time)
        return State(FAILED, LOST, last.run, last.time)

    def _known_run(self) -> str | None:
        """The run folder, by the last state or else by the events: state.json may be missing, or damaged."""
        try:
            return self._stored().run
        except RunError:
            runs = [event for event in replay(self.folder) if event.type == "run"]
            return runs[-1]["folder"] if runs else None

    def _stored(self) -> State:
        found = self._read("state.json")
        types = {"state": str, "why": str, "run": str | None, "time": int | float}
        if found.keys() != types.keys() or not all(isinstance(found[name], kind) for name, kind in types.items()):
            raise RunError("jobs", f"{self.folder / 'state.json'} is damaged.")
        return State(**found)

    def _read(self, name: str) -> Any:
        try:
            found = json.loads((self.folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunError("jobs", f"{self.folder / name} cannot be read: {error}.") from error
        if not isinstance(found, dict):
            raise RunError("jobs", f"{self.folder / name} is damaged: a JSON object is required.")
        return found

    def _write(self, name: str, content: Any) -> None:
        replace_file(self.folder / name, [(json.dumps(content, indent=1) + "\n").encode()], "jobs")
