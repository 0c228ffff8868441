"""Rows as processes: several get ready at the same time, and the one that is being timed has the machine to itself.

A process makes its contestants ready, prints `READY`, waits for a line and then takes its times. Until it ends, the other ones are stopped
(SIGSTOP): they neither compute nor use the GPU.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from typing import Any

READY = "ready to be timed"
CALM = 0.2  # seconds after the others were stopped, in which the GPU finishes their work


def wait_for_turn() -> None:
    """Called in the process of a row, between preparation and timing."""
    print(READY, flush=True)
    sys.stdin.readline()


class RowProcesses:
    """Runs commands that print a row as their last line, in JSON."""

    def __init__(self, jobs: int, limit: float | None) -> None:
        self.jobs, self.limit = jobs, limit
        self._turn, self._running = threading.Lock(), list[subprocess.Popen[str]]()

    def rows(self, commands: Mapping[str, list[str]]) -> Iterator[tuple[str, dict[str, Any]]]:
        """The rows by name, as they are done."""
        with ThreadPoolExecutor(self.jobs) as pool:
            begun = {pool.submit(self._row, command): name for name, command in commands.items()}
            for done in as_completed(begun):
                yield begun[done], done.result()

    def _row(self, command: list[str]) -> dict[str, Any]:
        """One that dies, or takes too long, is a result too."""
        begun, late = time.perf_counter(), threading.Event()
        with tempfile.TemporaryFile("w+") as errors:
            process = self._started(command, errors)

            def give_up() -> None:
                late.set()
                _signal(process, signal.SIGKILL)

            timer = threading.Timer(self.limit or threading.TIMEOUT_MAX, give_up)
            timer.start()
            try:
                last = self._last_line(process)
            finally:
                timer.cancel()
                self._running.remove(process)
            errors.seek(0)
            row = _result(process.wait(), last, errors.read())
        if late.is_set():
            row = {"failures": {"all": f"given up after {self.limit:g} s"}}
        return row | {"took": round(time.perf_counter() - begun, 1)}

    def _started(self, command: list[str], errors: Any) -> subprocess.Popen[str]:
        with self._turn:  # not while another one is being timed
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
            )
            self._running.append(process)
        return process

    def _last_line(self, process: subprocess.Popen[str]) -> str:
        """What it printed last, after its turn."""
        assert process.stdin is not None
        assert process.stdout is not None
        last = ""
        for line in process.stdout:
            if line.strip() != READY:
                last = line.strip() or last
                continue
            with self._turn, self._others_stopped(process), suppress(BrokenPipeError):
                process.stdin.write("go\n")
                process.stdin.flush()
                last = [last, *filter(None, map(str.strip, process.stdout))][-1]
        return last

    @contextmanager
    def _others_stopped(self, process: subprocess.Popen[str]) -> Iterator[None]:
        others = [one for one in self._running if one is not process]
        for one in others:
            _signal(one, signal.SIGSTOP)
        try:
            if others:
                time.sleep(CALM)
            yield
        finally:
            for one in others:
                _signal(one, signal.SIGCONT)


def _signal(process: subprocess.Popen[str], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it has ended
        os.killpg(process.pid, number)


def _result(code: int, last: str, errors: str) -> dict[str, Any]:
    if code == 0:
        with suppress(ValueError):
            found: dict[str, Any] = json.loads(last)
            return found
    said = errors.strip().splitlines()
    return {"failures": {"all": (said[-1] if said else f"it ended with {code}")[:300]}}
