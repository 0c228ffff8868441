"""Runs a compiled program while a timeline is recorded: in a variant of it, every thread records when each call began and ended.

It runs on the same memory and waits at the same barriers as the program itself, so its results and the division of work between threads are
the same; each call costs two additional reads of the CPU's clock.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..compiler import cpu as compiler
from ..options import CompileOptions
from ..timeline import HOST, CallSpan, Slice, Timeline, TimelineRow, clock, this_thread, with_parents
from .call_labels import call_labels
from .collectives import collectives_of
from .profile import loaded_variant
from .team import Team, ticks

if TYPE_CHECKING:
    from ..compiler.ir.program import KernelProgram


class TimestampedProgram:
    """The variant of a program, with a frame of its own."""

    def __init__(self, program: KernelProgram, options: CompileOptions) -> None:
        written = compiler.module.write(program, timestamps=True)
        self._loaded = loaded_variant(written, bool(options.optimize), collectives_of(program.graph))
        self._main = self._loaded.address("main")
        self._stamps = np.zeros((options.threads, len(program.calls), 2), np.int64)
        self._frame = (ctypes.c_int64 * (program.frame_size + 1))()
        self._frame[program.frame_size] = self._stamps.ctypes.data
        self.labels = call_labels(program)

    def run(self, team: Team, frame: ctypes.Array[ctypes.c_int64], timeline: Timeline) -> None:
        """Run it instead of the program, whose frame this is."""
        ctypes.memmove(self._frame, frame, ctypes.sizeof(frame))
        self._stamps[:] = 0  # of calls that do not run
        begin, first = clock(), ticks()
        team.run(self._main, ctypes.addressof(self._frame))
        last, end = ticks(), clock()
        runs = timeline.source(TeamRuns, "cpu", TeamRuns)
        runs.found.append(_TeamRun(self, this_thread(), begin, end, first, last, self._stamps.copy()))
        timeline.will_have(2 * len(self.labels) * team.threads)  # kernels, and about as many layers and phases


class _TeamRun(NamedTuple):
    """One run: its time by the host's clock and by the CPU's, and the timestamps of its threads."""

    program: TimestampedProgram
    caller: TimelineRow
    begin: int
    end: int
    first_tick: int
    last_tick: int
    stamps: np.ndarray

    def slices(self) -> Iterator[Slice]:
        # The CPU's clock has a constant rate: between two moments read on both clocks, times are exact.
        rate = (self.end - self.begin) / max(1, self.last_tick - self.first_tick)
        times = self.begin + np.rint((self.stamps - self.first_tick) * rate).astype(np.int64)
        times = np.clip(times, self.begin, self.end)
        for thread, noted in enumerate(self.stamps):
            spans = [
                CallSpan(int(times[thread, i, 0]), int(times[thread, i, 1]), self.program.labels[i])
                for i in np.flatnonzero(noted[:, 1])
            ]
            yield from with_parents(self.row(thread), spans)

    def row(self, thread: int) -> TimelineRow:
        """The caller is the first thread of the team."""
        size = len(self.stamps)
        return TimelineRow(HOST, f"CPU worker {thread}", ("team", size, thread)) if thread else self.caller


class TeamRuns:
    """All runs of a timeline."""

    def __init__(self) -> None:
        self.found: list[_TeamRun] = []

    def slices(self) -> Iterable[Slice]:
        return (one for run in self.found for one in run.slices())
