"""Measuring on a GPU: the same work by all contestants, in turns, in one process.

A call only puts work into the device's queue. So a turn is many calls back to back and then one wait, by the clock on the
wall; beside it stand how long the host is busy with a call, and how long one call takes from its start until its result is
there. Otherwise as on a CPU (cases/measure.py): every round gives each contestant its turn, medians over rounds are
reported, and contestants must agree before anything is timed. One that fails is a result too, and stops no other.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
from cases import measure

WARM = 4  # calls before the first look at the clock: what is compiled, captured or chosen by measuring is so by then
MOST_CALLS = 2000  # in a turn
T = TypeVar("T")


class Place:
    """Where all contestants work. A dry run is on the CPU, with small shapes: it tries the script, not the device."""

    device = "cuda"

    @classmethod
    def is_gpu(cls) -> bool:
        return cls.device.startswith("cuda")


@dataclass
class Contestant:
    """A contestant ready to run."""

    call: Callable[[], Any]  # puts the work once into the queue
    wait: Callable[[], Any]  # until all of it is done
    values: Callable[[], Sequence[np.ndarray]]  # what it computed, to be compared; called once, before timing
    memory: Callable[[], float] | None = None  # the most bytes on the device; asked after `values`


@dataclass
class Case:
    """One row: some work, and for each contestant how to get ready for it."""

    group: str
    name: str
    contestants: Mapping[str, Callable[[], Contestant]]  # weft's own have names that begin with "weft"
    tf32: bool = False  # whether products of float32 may round their factors to TF32, for everyone
    goal: float | None = None  # seconds
    ahead: float | None = None  # how many times faster than the best peer weft should be
    flops: float = 0.0
    repeats: int = 1  # how many times a call does the work: times and flops are of one
    items: int = 0
    allowed: float = 1e-3  # of the difference to the first peer
    dry: bool = False  # part of a dry run
    note: str = ""


@dataclass
class Row(measure.Row):
    """What came out; as on a CPU, and what only a device has."""

    goal_seconds: float | None = None
    host: dict[str, float] = field(default_factory=dict)  # seconds the host is busy with a call
    latency: dict[str, float] = field(default_factory=dict)  # seconds from a call's start to its result
    memory: dict[str, float] = field(default_factory=dict)  # bytes


@dataclass(frozen=True)
class Effort:
    """How much time a row may take once its contestants are ready."""

    seconds: float = 3.0
    rounds: int = 9
    least: int = 3  # rounds, whatever they take
    turn: float = 0.05  # seconds


SHORT = Effort(seconds=0.6, rounds=5, turn=0.02)
DRY = Effort(seconds=0.05, rounds=2, least=1, turn=0.001)


def run(case: Case, effort: Effort) -> Row:
    """Make all contestants ready, check that they agree, time them."""
    row = Row(case.group, case.name, goal=case.ahead, goal_seconds=case.goal, items=case.items, note=case.note)
    ready: dict[str, Contestant] = {}
    for name, make in case.contestants.items():
        made = _try(row, ready, name, make)
        if made is not None:
            ready[name] = made
    _compare(ready, row, case.allowed)
    times = {name: [t / case.repeats for t in found] for name, found in rounds(ready, row, effort).items()}
    row.seconds = {name: statistics.median(t) for name, t in times.items()}
    row.least = {name: min(t) for name, t in times.items()}
    row.rounds = len(next(iter(times.values()), []))
    measure.rate(row, times)
    if case.flops and row.best_weft:
        row.gflops = case.flops / row.seconds[row.best_weft] / 1e9
    ready.clear()
    gc.collect()
    return row


def _try(row: Row, ready: dict[str, Contestant], name: str, work: Callable[[], T]) -> T | None:
    """Do it, or note why not and go on without this contestant."""
    try:
        return work()
    except Exception as error:  # libraries raise errors of every kind, and one that fails is a result too
        row.failures[name] = measure.failure(error)
        ready.pop(name, None)
        return None


def _compare(ready: dict[str, Contestant], row: Row, allowed: float) -> None:
    """Note how far each contestant is from the first peer; one that is wrong is timed and shown, but does not count."""
    first: list[np.ndarray] | None = None
    for name in sorted(ready, key=measure.is_ours):
        one = ready[name]
        shown = _try(row, ready, name, partial(_shown, one))
        if shown is None:
            continue
        first = shown if first is None else first
        row.differences[name] = measure.difference(first, shown)
        if not row.differences[name] <= allowed:
            row.failures[name] = f"differs from {next(iter(row.differences))} by {row.differences[name]:.1e}"
        if one.memory is not None:
            row.memory[name] = one.memory()


def _shown(one: Contestant) -> list[np.ndarray]:
    return [np.asarray(v, np.float64) for v in one.values()]


def rounds(ready: dict[str, Contestant], row: Row, effort: Effort) -> dict[str, list[float]]:
    """The times of a call of each contestant, round after round."""
    calls, cost = {}, 0.0
    for name, one in list(ready.items()):
        once = _try(row, ready, name, partial(_warmed, one))
        if once is not None:
            calls[name] = max(1, min(MOST_CALLS, int(effort.turn / max(once, 1e-9))))
            cost += once * (calls[name] + 4)
    times: dict[str, list[float]] = {name: [] for name in ready}
    singles: dict[str, list[tuple[float, float]]] = {name: [] for name in ready}
    gc.collect()
    gc.freeze()  # collections stay on, as in life, but look at new objects only
    try:
        for _ in range(max(effort.least, min(effort.rounds, int(effort.seconds / max(cost, 1e-9))))):
            for name, one in list(ready.items()):
                if _try(row, ready, name, partial(_turn, one, calls[name], times[name], singles[name])) is None:
                    del times[name], singles[name]
    finally:
        gc.unfreeze()
    row.host = {name: statistics.median(h for h, _ in found) for name, found in singles.items()}
    row.latency = {name: statistics.median(t for _, t in found) for name, found in singles.items()}
    return times


def _warmed(one: Contestant) -> float:
    """The seconds of a call, once it is warm."""
    for _ in range(WARM):
        one.call()
    one.wait()
    return min(_timed(one, 2)[1] / 2 for _ in range(2))


def _turn(one: Contestant, calls: int, times: list[float], singles: list[tuple[float, float]]) -> bool:
    _timed(one, 1)  # its code and data are in the caches again
    times.append(_timed(one, calls)[1] / calls)
    singles.append(_timed(one, 1))
    return True


def _timed(one: Contestant, calls: int) -> tuple[float, float]:
    """So many calls back to back: the seconds until the host was free, and until all was done."""
    start = time.perf_counter()
    for _ in range(calls):
        one.call()
    free = time.perf_counter()
    one.wait()
    return free - start, time.perf_counter() - start
