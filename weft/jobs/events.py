"""Structured events of a job: sent to a listener, kept in the run folder as JSON lines, followed live or replayed from disk.

An event has a type, a time (seconds since 1970) and facts. The types:

activity     {text}: the current activity, such as compiling, when its duration is unknown
progress     {what, done, total}; in training also {epoch, epochs, metrics, examples_per_second}
log          {text, level}: a message; level is info or warning
dataset      {folder, images, failed}: a dataset was created
run          {folder, notes}: the run folder was created
epoch        the metrics of an epoch
resources    {memory_bytes, cpu_seconds, free_bytes}
rank         {rank, pid, examples_per_second, memory}: of one process of several, after an epoch
rank         {rank, pid, host, examples_per_second, memory}: one process of a training over several; memory in bytes
result       {why, best, split, ...}: what the best network reached on the held-out split
dataset      {folder}: a dataset was written
stopped      {why, folder}: interrupted or terminated
state        {state, why}: a job of the queue changed its state
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from ..io.files import append_line
from ..io.json_values import json_value
from ..records import dataclass

FILE = "events.jsonl"
POLL = 0.1  # seconds between two reads of a growing file
TAIL = 1 << 16  # bytes at the end of the file that `latest` reads


@dataclass(frozen=True)
class Event:
    """Something that happened: its type, its facts and its time."""

    type: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    time: float = 0.0

    def __getitem__(self, name: str) -> Any:
        return self.facts[name]

    def line(self) -> str:
        """One JSON object."""
        return json.dumps({"type": self.type, "time": self.time, **{k: json_value(v) for k, v in self.facts.items()}})

    @classmethod
    def of_line(cls, line: str) -> Event:
        found = json.loads(line)
        return cls(found.pop("type"), found, found.pop("time"))


Listener = Callable[[Event], None]


def ignore_events(event: Event) -> None:
    """A listener that ignores events."""


class Recorder:
    """Sends events to a listener and writes them to the run folder. Events from before the folder exists are written when it does."""

    def __init__(self, listener: Listener = ignore_events) -> None:
        self._listener = listener
        self._early: list[Event] = []
        self._file: Path | None = None

    def begin(self, folder: Path) -> None:
        """Write events to this folder from now on."""
        self._file = folder / FILE
        for event in self._early:
            self._keep(event)
        self._early.clear()

    def send(self, kind: str, **facts: Any) -> None:
        """Send an event and write it to the run folder."""
        event = Event(kind, facts, round(time.time(), 3))
        if self._file is None:
            self._early.append(event)
        else:
            self._keep(event)
        self._listener(event)

    def show(self, kind: str, **facts: Any) -> None:
        """Send an event without writing it: it is too frequent, or written elsewhere."""
        self._listener(Event(kind, facts, round(time.time(), 3)))

    def log(self, text: str, level: str = "info") -> None:
        """Send a message."""
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


def latest(folder: str | os.PathLike[str], *types: str) -> Event | None:
    """The last event of these types, if it is among the last ones: the end of the file is all that is read."""
    path = Path(folder) / FILE
    size = path.stat().st_size if path.exists() else 0
    events, _ = _lines(path, max(0, size - TAIL))
    return next((event for event in reversed(events) if event.type in types), None)


def events_from(folder: str | os.PathLike[str], place: int) -> tuple[list[Event], int]:
    """The events from a place in the file on, and the place after them."""
    return _lines(Path(folder) / FILE, place)


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
