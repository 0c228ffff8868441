"""Runs a program on a GPU while a timeline is recorded: its commands are enqueued one by one, with events between them. The host does not
wait for them. When recording ends, the times between events become slices of the stream. Gaps between the
launches of a replayed graph are shorter than those seen here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ...compiler.gpu.commands import Command
from ...compiler.gpu.program import commands as written_commands
from ...timeline import CallLabel, CallSpan, Slice, Timeline, TimelineRow, clock, with_parents
from ..call_labels import call_label
from .command_runner import is_not_once, is_once
from .driver import Gpu
from .profile import ProfiledProgram

Wanted = Callable[[Command[int]], bool] | None


def command_labels(executable: ProfiledProgram) -> list[CallLabel]:
    """What each command computes, in their order."""
    program = executable.program
    return [call_label(program, step.calls) for step in written_commands(program)]


def wanted_passes(has_once: bool, runs_once: bool) -> list[Wanted]:
    """The order in which commands run: those that prepare persistent values first, if they must, then the others."""
    if not has_once:
        return [None]
    return [is_once, is_not_once] if runs_once else [is_not_once]


def enqueue_recorded(
    executable: ProfiledProgram,
    labels: Sequence[CallLabel],
    frame: Sequence[int],
    passes: Iterable[Wanted],
    timeline: Timeline,
) -> None:
    """Put all commands into the stream, with an event before the first and after each."""
    gpu = executable.gpu
    stream = timeline.source(StreamTimes, gpu.number, lambda: StreamTimes(gpu))
    found: list[tuple[CallLabel, Any]] = []
    first = gpu.mark()
    for wanted in passes:
        for label, command in zip(labels, executable.commands, strict=True):
            if wanted is None or wanted(command):
                executable.runner.run([command], frame, in_order=True)
                found.append((label, gpu.mark()))
    stream.runs.append(_StreamRun(first, tuple(found)))
    timeline.will_have(2 * len(found))  # kernels, and about as many layers and phases


class _StreamRun(NamedTuple):
    """The event before a run, and each command with the event after it."""

    first: Any
    marks: tuple[tuple[CallLabel, Any], ...]


class StreamTimes:
    """The events of a GPU's stream, and one of them whose time on the host's clock is known."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.runs = gpu, list[_StreamRun]()
        gpu.wait()
        before = clock()
        self._base = gpu.mark()
        gpu.wait()
        self._base_time = (before + clock()) // 2

    def slices(self) -> Iterator[Slice]:
        with self.gpu.lock:
            self.gpu.enter()
            self.gpu.wait()
            row = TimelineRow(f"GPU {self.gpu.number}: {self.gpu.name}", "stream", self.gpu.number)
            last = self._base_time
            for run in self.runs:
                spans = self._spans(run, last)
                last = spans[-1].end if spans else last
                yield from with_parents(row, spans)

    def _spans(self, run: _StreamRun, earliest: int) -> list[CallSpan]:
        """Times count from the run's first event: events far apart are timed less precisely."""
        start = max(earliest, self._base_time + self._nanoseconds(self._base, run.first))
        spans: list[CallSpan] = []
        for label, mark in run.marks:
            begin = spans[-1].end if spans else start
            spans.append(CallSpan(begin, max(begin, start + self._nanoseconds(run.first, mark)), label))
        return spans

    def _nanoseconds(self, begin: Any, end: Any) -> int:
        return round(1e9 * self.gpu.seconds(begin, end))
