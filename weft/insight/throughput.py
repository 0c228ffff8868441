"""Throughput, latency, energy and cost for each batch size, on one device or several.

    table = throughput(lambda batch: subject.step(batch), device="cpu") + throughput(..., device="cuda")
    print(table)

Latencies are those of many single calls, each timed until its result is available. Throughput is that of back-to-back calls, which a GPU
queues. Energy is measured where the device has a counter (see `measured_energy`) and modelled otherwise (see `energy`); every number
says which.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from ..errors import RunError
from ..knobs import knobs
from ..runtime import Device
from ..runtime import device as find_device
from ..runtime.free_memory import SHARE, free_bytes, size_text
from ..tracing.jit import Jit
from .call_times import calls_in_a_row
from .energy_counters import idle_power
from .machines import DescribedMachine, machine_like
from .profile import profile
from .profile_record import percentiles
from .throughput_table import ThroughputRow, ThroughputTable

Step = Callable[[int], tuple[Jit[Any], tuple[Any, ...]]]  # for a batch size: a compiled function and its arguments
WARM = 3  # warm-up calls: they compile, touch memory, wake threads, record GPU graphs
FEWEST = 5  # minimum number of timed calls
MOST_BATCH = 1024  # where doubling ends, if memory suffices
MODELLED = "modelled"
LONGEST = 10.0  # seconds of a call: larger batches are not tried


def throughput(
    step: Step, batches: Sequence[int] | None = None, *, what: str = "infer", device: str | None = None, seconds: float = 1.0,
    most: int = MOST_BATCH, node_nm: float = 45, subtract_idle: bool = False, examples: int | None = None,
) -> ThroughputTable:  # fmt: skip
    """Measure a function for each batch size: by default 1, 2, 4, ... until out of memory or `most`.

    `step` returns a compiled function and its arguments for a batch size. Each size is timed for `seconds`. `examples` is the size of an
    epoch, for its cost. A runtime error (a GPU that is lost) ends the table with a note.

    >>> import weft
    >>> table = throughput(lambda n: (weft.jit(lambda x: x @ x.T), (weft.ones((n, 8)),)), [1, 2], seconds=0.01)
    >>> [row.batch for row in table.rows]
    [1, 2]
    >>> table.rows[0].p50 <= table.rows[0].p99
    True
    """
    rows: list[ThroughputRow] = []
    notes: list[str] = []
    with knobs.set(device=device or knobs.device):
        run = _DeviceRun(find_device(), what, seconds, node_nm, subtract_idle)
        try:
            for batch in batches or _doubling(most, rows, notes):
                function, args = step(batch)
                if batches is None and not _fits(function, args):
                    notes.append(
                        f"{run.device.name}: batch {batch} needs {size_text(function.memory(*args).total)}, more than is free"
                    )
                    break
                rows.append(run.row(function, args, batch))
        except RunError as error:
            notes.append(f"{run.device.name}: {error.message} Smaller batches are shown")
    return ThroughputTable(tuple(rows), (*dict.fromkeys(run.notes), *notes), examples)


def _doubling(most: int, rows: Sequence[ThroughputRow], notes: list[str]) -> Iterator[int]:
    for power in count():
        if 2**power > most:
            return
        if rows and rows[-1].p50 > LONGEST:
            notes.append(
                f"{rows[-1].device}: batches above {rows[-1].batch} were not tried, a call takes {rows[-1].p50:.0f} s"
            )
            return
        yield 2**power


def _fits(function: Jit[Any], args: tuple[Any, ...]) -> bool:
    free = free_bytes()
    return free is None or function.memory(*args).total <= SHARE * free


class _DeviceRun:
    """Measures rows on one device."""

    def __init__(self, device: Device, what: str, seconds: float, node_nm: float, subtract_idle: bool) -> None:
        self.device, self.what, self.seconds, self.node_nm = device, what, seconds, node_nm
        self.notes: list[str] = []
        self.described = machine_like(device)
        self.idle = idle_power(device) if subtract_idle else None
        if self.described is None:
            self.notes.append(
                f"{device.name}: price and power limit are unknown; add the machine to a table of machines and pass it as machines=FILE.yaml"
            )
        else:
            self.notes.append(f"{device.name}: price and power limit of {self.described.title}")

    def row(self, function: Jit[Any], args: tuple[Any, ...], batch: int) -> ThroughputRow:
        row = self._modelled if self.device.is_modelled else self._measured
        return _priced(row(function, args, batch), self.described)

    def _modelled(self, function: Jit[Any], args: tuple[Any, ...], batch: int) -> ThroughputRow:
        """The modelled time of a call: a clock would measure the simulation."""
        found = profile(function, *args, node_nm=self.node_nm)
        self.notes.append(f"{self.device.name}: times are modelled, without computation on the host")
        self._note_modelled_energy(f"there is no energy counter for the device {self.device.name}")
        seconds, joules = found.seconds, found.total.joules
        return ThroughputRow(
            self.device.name, self.what, batch, 0, seconds, seconds, seconds, batch / seconds, joules / batch, MODELLED, timing=MODELLED
        )  # fmt: skip

    def _note_modelled_energy(self, why: str) -> None:
        self.notes.append(
            f"{self.device.name}: energy is modelled, arithmetic and data movement in a {self.node_nm:g} nm process: {why}"
        )

    def _measured(self, function: Jit[Any], args: tuple[Any, ...], batch: int) -> ThroughputRow:
        for _ in range(WARM):
            function(*args)
        self.device.wait()
        times = self._single(function, args)
        rate, joules, how = self._in_a_row(function, args, sum(times) / len(times))
        if len(times) < 100:
            self.notes.append("with fewer than 100 calls, p99 is the longest of them")
        return ThroughputRow(
            self.device.name, self.what, batch, len(times), *percentiles(times), batch * rate, joules / batch, how
        )

    def _single(self, function: Jit[Any], args: tuple[Any, ...]) -> list[float]:
        """The latencies of single calls."""
        times: list[float] = []
        end = time.perf_counter() + self.seconds
        while len(times) < FEWEST or time.perf_counter() < end:
            begin = time.perf_counter()
            function(*args)
            self.device.wait()
            times.append(time.perf_counter() - begin)
        return times

    def _in_a_row(self, function: Jit[Any], args: tuple[Any, ...], expected: float) -> tuple[float, float, str]:
        """Calls per second, joules per call, and whether they are measured or modelled."""
        calls = max(FEWEST, round(self.seconds / max(expected, 1e-9)))
        seconds, used = calls_in_a_row(function, args, calls, self.device, self.idle)
        rate = calls / seconds
        if used.joules is not None:
            idle = (
                "idle power is included"
                if used.idle_watts is None
                else f"{used.idle_watts:.3g} W of idle power are subtracted"
            )
            self.notes.append(f"{self.device.name}: energy is measured by {used.source}; {idle}")
            return rate, used.joules / calls, "measured"
        self._note_modelled_energy(used.note)
        return rate, profile(function, *args, repeats=1, node_nm=self.node_nm).total.joules, MODELLED


def _priced(row: ThroughputRow, described: DescribedMachine | None) -> ThroughputRow:
    if described is None:
        return row
    figures = (described.power, described.price, described.dollars_per_hour)
    power, price, rent = (None if one is None else one.value for one in figures)
    return replace(row, power_limit=power, price=price, dollars_per_hour=rent)
