"""A job on disk: a folder with its settings, its state, and events of its own.

settings.json  what is trained
state.json     waiting, running, done, stopped or failed; why; the run folder; written by one process at a time
request        why somebody asks the process to stop: paused or cancelled
events.jsonl   everything that the job tells, from before there is a run folder on
output.txt     what the process wrote to stdout and stderr: empty unless something went wrong
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import RunError
from ..io.files import append_line, replace_file
from ..locks import writer_of
from ..train.folder import plain
from .events import FILE, Event, follow, replay

WAITING, RUNNING, DONE, STOPPED, FAILED = "waiting", "running", "done", "stopped", "failed"


@dataclass(frozen=True)
class State:
    """Where a job stands."""

    state: str
    why: str = ""
    run: str | None = None  # folder
    time: float = 0.0


class JobRecord:
    """The folder of a job; see the head of this file."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    @classmethod
    def create(cls, root: Path, settings: Mapping[str, Any]) -> JobRecord:
        """A new folder root/N with the first N from 1 that is not taken."""
        number = 1 + max((int(p.name) for p in root.glob("*") if p.name.isdigit()), default=0)
        while True:
            try:
                (root / str(number)).mkdir(parents=True)
                break
            except FileExistsError:
                number += 1
        record = cls(root / str(number))
        record._write("settings.json", plain(dict(settings)))
        record.set(WAITING)
        return record

    @property
    def settings(self) -> dict[str, Any]:
        found: dict[str, Any] = self._read("settings.json")
        return found

    @property
    def state(self) -> State:
        """The state. A job whose process is gone without a word has failed."""
        found = self._stored()
        if found.state == RUNNING and writer_of(self.folder) is None:
            found = self._stored()  # it may have ended in between
            if found.state == RUNNING:
                return State(FAILED, "its process ended without a result", found.run, found.time)
        return found

    def set(self, state: str, why: str = "", run: str | None = None) -> State:
        """Change the state, and tell whoever follows the events."""
        known = self._stored().run if (self.folder / "state.json").exists() else None
        new = State(state, why, run or known, round(time.time(), 3))
        self._write("state.json", asdict(new))
        append_line(self.folder / FILE, Event("state", {"state": state, "why": why}, new.time).line(), "jobs")
        return new

    def events(self) -> list[Event]:
        """All events so far, from disk."""
        return list(replay(self.folder))

    def follow(self) -> Iterator[Event]:
        """All events, and those to come, until the job is done, stopped or failed."""
        return follow(self.folder, lambda: self.state.state not in (WAITING, RUNNING))

    def _stored(self) -> State:
        return State(**self._read("state.json"))

    def _read(self, name: str) -> Any:
        try:
            return json.loads((self.folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunError("jobs", f"{self.folder / name} cannot be read: {error}.") from error

    def _write(self, name: str, content: Any) -> None:
        replace_file(self.folder / name, [(json.dumps(content, indent=1) + "\n").encode()], "jobs")
