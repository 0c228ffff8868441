"""Measuring side by side: the same work by all contestants, in turns, in one process.

Each round gives every contestant its turn, so that a machine that is slower for a while is so for all. The ratio is
computed within rounds; what is reported is the median over rounds. Before anything is timed the contestants must agree:
each shows what it computed, and that is compared with what the first peer computed.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

QUIET = 0.01  # seconds after a turn, until its threads have stopped spinning; those of some go on for longer
LONGER = {"onnxruntime": 0.1}
TURN = 0.02  # a turn is as many calls as this takes, one at the least
ALLOWED = 1e-4  # of the difference to the first peer


class Clock:
    """What times are taken with. CPU time is of use with one thread, on a machine that has other work to do."""

    now = staticmethod(time.perf_counter)


@dataclass
class Ready:
    """A contestant ready to run: one call does the work once and returns when it is done."""

    call: Callable[[], Any]
    values: Callable[[], Sequence[np.ndarray]]  # what it computed, to be compared; called once, before timing


@dataclass
class Case:
    """One row: some work, and for each contestant how to get ready for it."""

    group: str
    name: str
    contestants: dict[str, Callable[[], Ready]]  # those of weft have names that begin with "weft"
    layers: Sequence[
        tuple[float, float]
    ] = ()  # the least that must be done: (operations, bytes moved) one after another
    goal: float | None = None  # how many times faster than the best peer weft should be
    items: int = 0  # per call, where a rate is of interest (images)
    quick: bool = True  # part of a quick run
    allowed: float = ALLOWED
    note: str = ""
    beside: Callable[[], AbstractContextManager[None]] = nullcontext  # what goes on while it is timed


@dataclass
class Row:
    """What came out."""

    group: str
    name: str
    seconds: dict[str, float] = field(default_factory=dict)  # medians; bytes if the unit says so
    least: dict[str, float] = field(default_factory=dict)  # the best rounds: what a busy machine disturbs least
    unit: str = "s"
    rounds: int = 0
    ratio: float | None = None  # best peer's time / weft's
    best_peer: str = ""
    best_weft: str = ""
    ratios: dict[str, float] = field(default_factory=dict)  # every peer's time / weft's
    goal: float | None = None
    gflops: float | None = None
    roof: float | None = None  # the least time the machine allows / weft's time
    items: int = 0
    differences: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class Effort:
    """How much time a row may take."""

    seconds: float
    rounds: int
    least: int  # rounds, whatever they take


QUICK, FULL = Effort(1.0, 5, 1), Effort(3.0, 11, 3)


def run(case: Case, effort: Effort, least_seconds: Callable[[Sequence[tuple[float, float]]], float]) -> Row:
    """Make all contestants ready, check that they agree, time them."""
    row = Row(case.group, case.name, goal=case.goal, items=case.items, note=case.note)
    ready: dict[str, Ready] = {}
    for name, make in case.contestants.items():
        try:
            ready[name] = make()
        except Exception as error:  # libraries raise errors of every kind, and one that fails is a result too
            row.failures[name] = failure(error)
    compare(ready, row, case.allowed)
    with case.beside():
        times = time_in_rounds(ready, effort)
    row.seconds = {name: statistics.median(t) for name, t in times.items()}
    row.least = {name: min(t) for name, t in times.items()}
    row.rounds = len(next(iter(times.values()), []))
    rate(row, times)
    if case.layers and row.best_weft:
        seconds = row.seconds[row.best_weft]
        row.gflops = sum(f for f, _ in case.layers) / seconds / 1e9
        row.roof = least_seconds(case.layers) / seconds
    del ready
    gc.collect()
    return row


def compare(ready: dict[str, Ready], row: Row, allowed: float) -> None:
    """Note how far each contestant is from the first peer; one that fails or is wrong does not take part."""
    shown: dict[str, list[np.ndarray]] = {}
    for name in sorted(ready, key=is_ours):
        try:
            shown[name] = [np.asarray(v, np.float64) for v in ready[name].values()]
        except Exception as error:  # as above
            row.failures[name] = failure(error)
            del ready[name]
            continue
        first = next(iter(shown.values()))
        row.differences[name] = difference(first, shown[name])
        if not row.differences[name] <= allowed:
            row.failures[name] = f"differs from {next(iter(shown))} by {row.differences[name]:.1e}"


def difference(expected: Sequence[np.ndarray], got: Sequence[np.ndarray]) -> float:
    """The largest difference of two arrays: the length of their difference, relative to that of the expected one.

    Not the largest element's: a relu whose input is all but zero may open here and stay shut there, rightly so.
    """
    if [e.shape for e in expected] != [g.shape for g in got]:
        return float("inf")
    pairs = zip(expected, got, strict=True)
    return max((float(np.linalg.norm(e - g)) / max(float(np.linalg.norm(e)), 1e-30) for e, g in pairs), default=0.0)


def failure(error: Exception) -> str:
    """The first line of what went wrong."""
    return f"{type(error).__name__}: {error}".strip().splitlines()[0][:300]


def is_ours(name: str) -> bool:
    return name.startswith("weft")


def time_in_rounds(ready: dict[str, Ready], effort: Effort) -> dict[str, list[float]]:
    calls, cost = {}, 0.0
    times: dict[str, list[float]] = {}
    for name, one in ready.items():
        once = _timed(one.call, 1)
        if once < TURN:
            once = min(once, _timed(one.call, 1))
        calls[name] = max(1, min(2000, int(TURN / max(once, 1e-9))))
        cost += _quiet(name) + once * (calls[name] + 1)
        times[name] = [once]
        time.sleep(_quiet(name))
    rounds = max(effort.least, min(effort.rounds, int(effort.seconds / max(cost, 1e-9))))
    if cost < 1.0:  # else this was a round like any other
        times = {name: [] for name in ready}
    gc.collect()
    gc.freeze()  # collections stay on, as in life, but look at new objects only
    try:
        for _ in range(rounds):
            for name, one in ready.items():
                if calls[name] > 1:
                    one.call()  # wakes its threads, warms its caches
                times[name].append(_timed(one.call, calls[name]))
                time.sleep(_quiet(name))
    finally:
        gc.unfreeze()
    return times


def _quiet(name: str) -> float:
    return LONGER.get(name, QUIET)


def _timed(call: Callable[[], Any], times: int) -> float:
    start = Clock.now()
    for _ in range(times):
        call()
    return (Clock.now() - start) / times


def rate(row: Row, times: dict[str, list[float]]) -> None:
    """The ratio of the best peer's time to weft's, the median over rounds; those that were wrong do not count."""
    ours = [n for n in times if is_ours(n) and n not in row.failures]
    peers = [n for n in times if not is_ours(n) and n not in row.failures]
    if not ours:
        return
    row.best_weft = min(ours, key=row.seconds.__getitem__)
    mine = times[row.best_weft]
    row.ratios = {p: statistics.median(t / w for t, w in zip(times[p], mine, strict=True)) for p in peers}
    if peers:
        row.best_peer = min(peers, key=row.seconds.__getitem__)
        row.ratio = row.ratios[row.best_peer]
