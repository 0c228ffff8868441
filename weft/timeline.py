"""The timeline that is being recorded, if one is: slices of time of host threads, of a team's threads and of GPU streams, on one clock.

`RECORDING.active` is None unless someone records (see weft/insight/trace_file.py), and looking at it is all that code pays otherwise.
Slices that the host sees are added as they end. Native code and GPUs keep raw times; a source turns them into slices at the end.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter_ns
from types import TracebackType
from typing import Any, NamedTuple, Protocol, TypeVar

from .errors import RunError

clock = perf_counter_ns
HOST = "host"
LIMIT = 100_000  # slices, unless said otherwise: some 20 MB of JSON


class TimelineRow(NamedTuple):
    """A thread or a stream. Rows of one name are shown as one if they were never busy at the same time."""

    process: str  # host, or a GPU
    name: str
    key: Hashable = None


class Slice(NamedTuple):
    """What a row did, from `begin` to `end`, in nanoseconds of `time.perf_counter_ns`."""

    row: TimelineRow
    name: str
    category: str
    begin: int
    end: int
    facts: Mapping[str, Any]


class SliceSource(Protocol):
    """Raw times that become slices when recording ends."""

    def slices(self) -> Iterable[Slice]: ...


Source = TypeVar("Source", bound=SliceSource)


class Timeline:
    """Slices as they are recorded, at most about `limit`. Threads may add to it at the same time."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.begin, self.end = clock(), 0
        self.limit, self.notes = limit, list[str]()
        self.is_full = False
        self._slices: list[Slice] = []
        self._sources: dict[tuple[type[SliceSource], Hashable], SliceSource] = {}
        self._pending = 0  # slices that sources will give
        self._lock = threading.Lock()

    def add(self, name: str, category: str, begin: int, end: int, facts: Mapping[str, Any]) -> None:
        """Add a slice of the calling thread."""
        if not self.end:
            self._slices.append(Slice(this_thread(), name, category, begin, end, facts))
            self.will_have(0)

    def source(self, kind: type[Source], key: Hashable, make: Callable[[], Source]) -> Source:
        """The source of this class and key, made when it is first asked for."""
        with self._lock:
            found = self._sources.get((kind, key))
            if found is None:
                found = self._sources[kind, key] = make()
        assert isinstance(found, kind)
        return found

    def will_have(self, count: int) -> None:
        """Count slices that a source will give. Recording ends when there are too many."""
        self._pending += count
        if self._pending + len(self._slices) >= self.limit and not self.end:
            self.is_full = True
            self.notes.append(f"recording ended after {self.limit} slices; limit= sets another number.")
            self.stop()

    def stop(self) -> None:
        """End recording. What was going on is left out."""
        if RECORDING.active is self:
            RECORDING.active = None
        self.end = self.end or clock()

    def slices(self) -> list[Slice]:
        """All slices, once recording has ended. A source that fails, such as a GPU that was lost, is a note."""
        found = list(self._slices)
        for source in self._sources.values():
            try:
                found += source.slices()
            except RunError as error:
                self.notes.append(str(error))
        return found


class _Recording:
    active: Timeline | None = None


RECORDING = _Recording()
_NOTHING: AbstractContextManager[None] = nullcontext()


def recorded(name: str, category: str, **facts: Any) -> AbstractContextManager[None]:
    """What is done inside is a slice of this thread, if a timeline is being recorded."""
    timeline = RECORDING.active
    return _NOTHING if timeline is None else _RecordedSlice(timeline, name, category, facts)


class _RecordedSlice:
    def __init__(self, timeline: Timeline, name: str, category: str, facts: Mapping[str, Any]) -> None:
        self.timeline, self.name, self.category, self.facts = timeline, name, category, facts

    def __enter__(self) -> None:
        self.begin = clock()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.timeline.add(self.name, self.category, self.begin, clock(), self.facts)


def this_thread() -> TimelineRow:
    """The row of the calling thread."""
    thread = threading.current_thread()
    return TimelineRow(HOST, thread.name, thread.ident)


# --- calls of a program -------------------------------------------------------------------------------------------------------


class CallLabel(NamedTuple):
    """What a call of a program computes."""

    name: str
    layer: str
    phase: str
    facts: Mapping[str, Any]


class CallSpan(NamedTuple):
    """When a row ran a call."""

    begin: int
    end: int
    label: CallLabel


def with_parents(row: TimelineRow, calls: Sequence[CallSpan]) -> Iterator[Slice]:
    """Calls in their order, below the phases and layers that they belong to: consecutive calls of one layer have one parent."""
    for phase, of_phase in _runs(calls, lambda label: label.phase):
        yield Slice(row, phase, "phase", of_phase[0].begin, of_phase[-1].end, {})
        for layer, of_layer in _runs(of_phase, lambda label: label.layer):
            yield Slice(row, layer, "layer", of_layer[0].begin, of_layer[-1].end, {"phase": phase})
            for begin, end, label in of_layer:
                yield Slice(row, label.name, "kernel", begin, end, label.facts)


def _runs(calls: Sequence[CallSpan], key: Callable[[CallLabel], str]) -> Iterator[tuple[str, list[CallSpan]]]:
    found: list[CallSpan] = []
    for call in calls:
        if found and key(call.label) != key(found[-1].label):
            yield key(found[-1].label), found
            found = []
        found.append(call)
    if found:
        yield key(found[-1].label), found


def _after_fork() -> None:
    RECORDING.active = None  # what a forked child adds would be lost


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
