"""The latency of whole calls, from the call to the result in host memory; the energy of back-to-back calls; their timeline."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..knobs import knobs
from ..runtime import Device
from ..tensor import Tensor
from ..timeline import Timeline
from ..tree import flatten
from .counter_error import CounterError
from .energy_counters import EnergyReading, counter_of, measured_energy
from .profile_record import CallTimes
from .trace_file import annotate, recording

WARMUP, CALLS, FEWEST = 20, 200, 5
LONGEST = 20.0  # seconds of all calls, unless their number is given
ENERGY_SECONDS = 1.0  # length of an energy measurement: counters update slowly
RECORDED = 5  # calls in a timeline, on each device
TELL = 0.5  # seconds between two progress reports


def call_times(
    function: Callable[..., Any], args: Sequence[Any], calls: int | None = None, told: Callable[[int, int], None] = lambda done, total: None
) -> CallTimes:  # fmt: skip
    """Time calls after a warm-up. By default 200 calls, or fewer if they would take longer than 20 seconds.

    >>> call_times(lambda x: x, (1,), calls=3).calls
    3
    """
    warmup = min(WARMUP, calls or WARMUP)
    begun = time.perf_counter()
    done = 0
    while done < warmup and (done < 2 or time.perf_counter() - begun < LONGEST / 4):
        wait_for(function(*args))
        done += 1
    return CallTimes.of(_measured(function, args, calls, told), done)


def calls_in_a_row(
    function: Callable[..., Any], args: Sequence[Any], calls: int, device: Device, idle_watts: float | None = None
) -> tuple[float, EnergyReading]:
    """The seconds of back-to-back calls, which a GPU queues, and the reading of its energy counter."""
    with measured_energy(device, idle_watts=idle_watts) as used:
        begin = time.perf_counter()
        for _ in range(calls):
            function(*args)
        device.wait()
        seconds = time.perf_counter() - begin
    return seconds, used


def measured_joules(
    function: Callable[..., Any], args: Sequence[Any], device: Device, expected: float
) -> tuple[float | None, str]:
    """The energy of a call that takes about `expected` seconds, and its source; without a counter None, and the reason.

    Calls run only if there is a counter.
    """
    try:
        counter_of(device).close()
    except CounterError as error:
        return None, str(error)
    calls = max(FEWEST, round(ENERGY_SECONDS / max(expected, 1e-9)))
    _, used = calls_in_a_row(function, args, calls, device)
    return (None, used.note) if used.joules is None else (used.joules / calls, used.source)


def recorded_calls(steps: Mapping[str, tuple[Callable[..., Any], Sequence[Any]]]) -> Timeline:
    """The timeline of some calls of a function on each device, by its name. A warm-up call compiles the recorded programs."""
    for device, (function, args) in steps.items():
        with knobs.set(device=device), recording():
            wait_for(function(*args))
    with recording() as timeline:
        for device, (function, args) in steps.items():
            for number in range(RECORDED):
                with knobs.set(device=device), annotate(f"call {number + 1} on {device}"):
                    wait_for(function(*args))
    return timeline


def _measured(
    function: Callable[..., Any], args: Sequence[Any], calls: int | None, told: Callable[[int, int], None]
) -> list[float]:
    found: list[float] = []
    wanted, begun = calls or CALLS, time.perf_counter()
    last = begun
    while len(found) < wanted:
        now = time.perf_counter()
        if calls is None and len(found) >= FEWEST and now - begun > LONGEST:
            break
        if now - last > TELL:
            told(len(found), wanted)
            last = time.perf_counter()
        start = time.perf_counter()
        wait_for(function(*args))
        found.append(time.perf_counter() - start)
    return found


def wait_for(result: Any) -> None:
    """Wait until the result is in host memory: a GPU still works after a call has returned."""
    for leaf in flatten(result)[0]:
        if isinstance(leaf, Tensor):
            leaf.numpy()
