"""Structured events of a job: sent to whoever listens, kept in the run folder as JSON lines, followed live or replayed from disk.

An event has a type, a time (seconds since 1970) and facts. The types:

activity     {text}: what is going on now, such as compiling; nothing else is known about how long it takes
progress     {what, done, total}, or of a training {epoch, epochs, step, steps, loss, examples_per_second}
log          {text, level}: a line for people; level is info or warning
run          {folder, notes}: the run folder exists
epoch        the metrics of an epoch
resources    {memory_bytes, cpu_seconds, free_bytes}
result       {why, best, split, ...}: what the best network reached on examples it has not seen
stopped      {why, folder}: interrupted or terminated
state        {state, why}: of a job that a runner started
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..io.files import append_line
from ..train.folder import plain

FILE = "events.jsonl"
POLL = 0.1  # seconds between two looks at a file that grows


@dataclass(frozen=True)
class Event:
    """What happened, and when."""

    type: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    time: float = 0.0

    def __getitem__(self, name: str) -> Any:
        return self.facts[name]

    def line(self) -> str:
        """One JSON object."""
        return json.dumps({"type": self.type, "time": self.time, **{k: plain(v) for k, v in self.facts.items()}})

    @classmethod
    def of_line(cls, line: str) -> Event:
        found = json.loads(line)
        return cls(found.pop("type"), found, found.pop("time"))


Listener = Callable[[Event], None]


def nobody(event: Event) -> None:
    """Listens to nothing."""


class Recorder:
    """Sends events to a listener, and keeps them as soon as there is a run folder; earlier ones are kept then too."""

    def __init__(self, listener: Listener = nobody) -> None:
        self._listener = listener
        self._early: list[Event] = []
        self._file: Path | None = None

    def begin(self, folder: Path) -> None:
        """From now on events are kept in this folder."""
        self._file = folder / FILE
        for event in self._early:
            self._keep(event)
        self._early.clear()

    def send(self, kind: str, **facts: Any) -> None:
        """An event that is kept."""
        event = Event(kind, facts, round(time.time(), 3))
        if self._file is None:
            self._early.append(event)
        else:
            self._keep(event)
        self._listener(event)

    def show(self, kind: str, **facts: Any) -> None:
        """An event for whoever looks on now: it is too frequent to be kept, or kept by somebody else."""
        self._listener(Event(kind, facts, round(time.time(), 3)))

    def log(self, text: str, level: str = "info") -> None:
        """A line for people."""
        self.send("log", text=text, level=level)

    def _keep(self, event: Event) -> None:
        assert self._file is not None
        append_line(self._file, event.line(), "train")


def replay(folder: str | os.PathLike[str]) -> Iterator[Event]:
    """The events of a run or job so far. A last line that is not complete yet is left out.

    >>> list(replay("nowhere"))
    []
    """
    yield from _lines(Path(folder) / FILE, 0)[0]


def follow(folder: str | os.PathLike[str], ended: Callable[[], bool]) -> Iterator[Event]:
    """All events, and those that are still to come, until it has ended."""
    path, place = Path(folder) / FILE, 0
    while True:
        last = ended()  # asked first: what was written before it ended is still read
        found, place = _lines(path, place)
        yield from found
        if last:
            return
        if not found:
            time.sleep(POLL)


def _lines(path: Path, place: int) -> tuple[list[Event], int]:
    """The events from a place in the file on, and the place after them."""
    try:
        with path.open("rb") as file:
            file.seek(place)
            whole, _, _ = file.read().rpartition(b"\n")
    except FileNotFoundError:
        return [], place
    events = []
    for line in whole.splitlines():
        try:
            events.append(Event.of_line(line.decode()))
        except (ValueError, KeyError):  # a crash of the machine may leave half a line in the middle
            continue
    return events, place + len(whole) + (1 if whole else 0)
