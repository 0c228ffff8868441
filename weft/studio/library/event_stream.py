"""What happens, as a stream of events that many clients follow: runs, jobs and their progress.

All clients read one ring of the last events, each from its own place. A client that is slow, or comes back, finds what it has missed while the ring
still holds it; else it is told to read everything again. No client costs more memory than its place in the ring.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict
from itertools import takewhile
from typing import Any

from ...io.json_values import json_value
from ...jobs.queue.record import WAITING
from ...records import dataclass
from .activity import Activity
from .feed import Snapshot
from .runs import RunIndex, RunRow

KEPT = 2048  # events in the ring
HEARTBEAT = 15.0  # seconds without an event, after which a comment shows that the connection is alive
RESET, READY = "reset", "ready"


@dataclass(frozen=True)
class StreamEvent:
    """One event: its number, its type, its facts, and its text, which is made once for all clients."""

    number: int
    type: str
    run: str | None
    facts: Mapping[str, Any]
    text: str


class EventStream:
    """Turns snapshots of the feed into events."""

    def __init__(self, index: RunIndex, kept: int = KEPT) -> None:
        self.index = index
        self.epoch = secrets.token_hex(4)  # ids of an earlier server mean nothing here
        self._events: deque[StreamEvent] = deque(maxlen=kept)
        self._number = 0
        self._more = asyncio.Event()
        self._rows: dict[str, RunRow] = {}
        self._version: int | None = None
        self._jobs: dict[int, tuple[str, str]] = {}
        self._progress: dict[str, Any] = {}

    @property
    def last_id(self) -> str:
        return f"{self.epoch}-{self._number}"

    # --- from snapshots to events ------------------------------------------------------------------------------------------------

    def update(self, snapshot: Snapshot) -> None:
        """Compare with the last snapshot. The first one is the state that events change."""
        first = self._version is None
        if snapshot.runs_version != self._version:
            self._version = snapshot.runs_version
            self._compare_runs(first)
        self._compare_jobs(snapshot, first)
        for one in snapshot.activities:
            self._compare_progress(one)

    def _compare_runs(self, first: bool) -> None:
        rows = {row.id: row for row in self.index.rows()}
        if not first:
            for name, row in rows.items():
                if self._rows.get(name) is not row:  # the index keeps what has not changed
                    self.publish("run", name, _run_facts(row))
            for name in self._rows.keys() - rows.keys():
                self.publish("run", name, {"run": name, "status": "deleted"})
        self._rows = rows

    def _compare_jobs(self, snapshot: Snapshot, first: bool) -> None:
        active = {one.job: (one.state, one.why, one.run) for one in snapshot.activities if one.job is not None}
        ended = {
            one.number: (one.state.state, one.state.why, None) for one in snapshot.ended if one.number not in active
        }
        for number, (state, why, run) in {**ended, **active}.items():
            told = state, "" if state == WAITING else why  # why a job waits changes with the plan
            if self._jobs.get(number) != told:
                self._jobs[number] = told
                if not first:
                    self.publish("job", run, {"job": number, "state": state, "why": why, "run": run})

    def _compare_progress(self, one: Activity) -> None:
        key = f"{one.job}:{one.run}"
        if one.progress is None or self._progress.get(key) == (one.progress, one.doing):
            return
        if len(self._progress) > 10_000:
            self._progress.clear()
        self._progress[key] = one.progress, one.doing
        share = getattr(one.progress, "share", None)
        facts = {"job": one.job, "run": one.run, "doing": one.doing, "share": share, **asdict(one.progress)}
        self.publish("progress", one.run, facts)

    def publish(self, type: str, run: str | None, facts: Mapping[str, Any]) -> None:
        """Add an event, and wake all clients. Called in the event loop."""
        self._number += 1
        content = json.dumps(json_value(facts))
        text = f"id: {self.epoch}-{self._number}\nevent: {type}\ndata: {content}\n\n"
        self._events.append(StreamEvent(self._number, type, run, facts, text))
        self._more.set()
        self._more = asyncio.Event()

    # --- to clients ----------------------------------------------------------------------------------------------------------------

    async def follow(
        self, last_id: str = "", run: str | None = None, heartbeat: float = HEARTBEAT
    ) -> AsyncIterator[str]:
        """The events after `last_id`, as text of server-sent events, for ever. Of one run, if it is given."""
        known = self._place(last_id)
        place = (
            self._number if known is None else known
        )  # decided before anything is sent: what comes meanwhile is not lost
        lost = bool(last_id) and known is None
        yield "retry: 2000\n\n"
        yield (
            self._note(RESET, place, "events were lost: read runs and jobs again") if lost else self._note(READY, place)
        )
        while True:
            more = self._more
            if self._events and place < self._events[0].number - 1:
                place = self._number
                yield self._note(RESET, place, "this client is too slow: read runs and jobs again")
            for event in self._after(place):
                place = event.number
                if run is None or event.run == run:
                    yield event.text
            if more.is_set():  # something came while this client was sent to
                continue
            try:
                await asyncio.wait_for(more.wait(), heartbeat)
            except TimeoutError:
                yield ": heartbeat\n\n"

    def _after(self, place: int) -> list[StreamEvent]:
        """The events after a place. It is near the end, so the ring is read from there."""
        return list(takewhile(lambda one: one.number > place, reversed(self._events)))[::-1]

    def _note(self, type: str, place: int, why: str = "") -> str:
        return f"id: {self.epoch}-{place}\nevent: {type}\ndata: {json.dumps({'why': why})}\n\n"

    def _place(self, last_id: str) -> int | None:
        """The position from which a reconnecting client continues; None if it is new, or if the events that it missed are gone."""
        epoch, _, number = last_id.rpartition("-")
        if epoch != self.epoch or not number.isdigit() or int(number) > self._number:
            return None
        oldest = self._events[0].number if self._events else self._number + 1
        return int(number) if int(number) >= oldest - 1 else None


def _run_facts(row: RunRow) -> dict[str, Any]:
    last = {name: row.last(name) for name in row.metrics if name not in ("epoch", "steps", "seconds")}
    return {
        "run": row.id, "name": row.name, "status": row.status, "epochs": row.epochs, "planned": row.planned, "best_metric": row.best_metric,
        "best": row.best, "best_epoch": row.best_epoch, "last": last,
    }  # fmt: skip
