"""`weft launch`: starts the processes of a program, watches them, and ends all of them when one fails.

Each process (rank) runs weft/parallel/rank.py. The processes share the control page; nothing else is left behind, however they end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from ..errors import RunError, UserError
from ..knobs import knobs
from ..mesh.control import GRACE, LAUNCHER
from ..mesh.failures import exit_reason
from ..signals import Terminated
from .rank import PARENT
from .ranks import LaunchGroup

POLL_SECONDS = 0.05
LOOK_SECONDS = 1.0  # how often the launcher looks for unresponsive processes
STOP_SECONDS = (
    25.0  # time for the processes to exit by themselves after an interrupt, for example to write a checkpoint
)


def launch(command: Sequence[str], ranks: int, *, threads: int | None = None, all_output: bool = False) -> None:
    """Run a program in `ranks` processes on this machine and wait for it to end. If one fails, all are ended, and the error names it.

    `command` is a script with its arguments, `-m MODULE` with its arguments, or `weft VERB ...`. The processes find each other by
    `weft.parallel.Mesh`. Rank 0 prints as usual; of the other ranks only errors are shown, prefixed by the rank, or everything with `all_output`.
    """
    words = program(command)
    group = LaunchGroup(ranks)
    started = _Processes(words, group, threads, all_output)
    try:
        started.start()
        started.wait()
    except (KeyboardInterrupt, Terminated) as signalled:
        started.stop(signal.SIGINT if isinstance(signalled, KeyboardInterrupt) else signal.SIGTERM)
        raise
    finally:
        started.end_all()
        group.close()
    if group.control.failure is not None:
        raise started.error()


def program(command: Sequence[str]) -> list[str]:
    """The arguments of Python that run a command; weft's verbs are run by `-m weft`."""
    words = list(command)
    if words and Path(words[0]).name in ("python", "python3"):
        words = words[1:]
    if not words or words == ["-m"]:
        raise UserError("weft launch", "a script, -m MODULE, or weft VERB ... is required after the options.")
    if words[0] == "weft":
        return ["-m", *words]
    if words[0] != "-m" and not Path(words[0]).is_file():
        raise UserError(
            "weft launch", f"a script is required, {words[0]} does not exist. To run a module: -m {words[0]}."
        )
    return words


class _Processes:
    """The processes of one launch."""

    def __init__(self, words: Sequence[str], group: LaunchGroup, threads: int | None, all_output: bool) -> None:
        self.words, self.group, self.threads, self.all_output = words, group, threads, all_output
        self.control = group.control
        self.processes: list[subprocess.Popen[str]] = []
        self._output = _Output(deduplicate=not all_output)

    def start(self) -> None:
        for rank in range(self.group.ranks):
            shown, piped = rank == 0 and not self.all_output, subprocess.PIPE
            variables = {**os.environ, **self.group.variables(rank, self.threads), PARENT: str(os.getpid())}
            if not shown:
                variables["PYTHONUNBUFFERED"] = "1"
            process = subprocess.Popen(
                [sys.executable, "-m", "weft.parallel.rank", *self.words], env=variables, text=True, errors="replace",
                stdin=subprocess.DEVNULL, stderr=None if shown else piped,
                stdout=None if shown else piped if self.all_output else subprocess.DEVNULL,
                start_new_session=True,  # the launcher passes the terminal's signals on
            )  # fmt: skip
            self.processes.append(process)
            for source, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
                if source is not None:
                    self._output.follow(rank, source, target)

    def wait(self) -> None:
        """Wait until all processes have ended, or one has failed."""
        looked = time.monotonic()
        while any(p.poll() is None for p in self.processes) and self.control.failure is None:
            self._look_for_the_dead()
            if time.monotonic() - looked > LOOK_SECONDS:
                self.control.look_at_others(knobs.stall_seconds)
                looked = time.monotonic()
            time.sleep(POLL_SECONDS)
        self._look_for_the_dead()

    def _look_for_the_dead(self) -> None:
        for rank, process in enumerate(self.processes):
            if process.poll():
                self.control.give_up(rank, exit_reason(process.returncode))

    def stop(self, number: signal.Signals) -> None:
        """Pass a signal on, and wait for the processes to exit by themselves. A second signal ends them at once."""
        self._send(number)
        deadline = time.monotonic() + STOP_SECONDS
        with suppress(KeyboardInterrupt):
            while any(p.poll() is None for p in self.processes) and time.monotonic() < deadline:
                if self.control.failure is not None:
                    return
                time.sleep(POLL_SECONDS)

    def _send(self, number: signal.Signals) -> None:
        for process in self.processes:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)

    def error(self) -> RunError:
        """Why the launch failed. A process that others first reported as dead has an exit code by now."""
        rank, reason = self.control.failure or (LAUNCHER, "")
        if reason == "died." and self.processes[rank].returncode:
            return RunError("parallel", f"rank {rank} {exit_reason(self.processes[rank].returncode)}")
        return self.control.error()

    def end_all(self) -> None:
        """End all processes: those that wait for others give up by themselves, the rest get signals, as do the processes they started."""
        if any(p.poll() is None for p in self.processes):
            self.control.give_up(LAUNCHER, "the launcher ends all processes.")
        for seconds, number in ((1.0, signal.SIGTERM), (GRACE - 1.0, signal.SIGKILL)):
            deadline = time.monotonic() + seconds
            while any(p.poll() is None for p in self.processes) and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
            self._send(number)
            self._kill_failed()
        for process in self.processes:
            process.wait()
        self._output.close()

    def _kill_failed(self) -> None:
        """Kill the failed process: one that does not respond may ignore every other signal."""
        failed = (self.control.failure or (LAUNCHER, ""))[0]
        if failed != LAUNCHER and self.processes[failed].poll() is None:
            os.killpg(self.processes[failed].pid, signal.SIGKILL)


class _Output:
    """Shows the output of the processes line by line, prefixed by their rank."""

    def __init__(self, deduplicate: bool) -> None:
        self._deduplicate = deduplicate
        self._lock = threading.Lock()
        self._recent: deque[str] = deque(maxlen=200)
        self._threads: list[threading.Thread] = []

    def follow(self, rank: int, source: IO[str], target: IO[str]) -> None:
        thread = threading.Thread(target=self._copy, args=(rank, source, target), daemon=True)
        thread.start()
        self._threads.append(thread)

    def _copy(self, rank: int, source: IO[str], target: IO[str]) -> None:
        with source:
            for line in source:
                if self._is_new(line):
                    with self._lock, suppress(OSError, ValueError):  # the reader may be gone
                        target.write(f"[{rank}] {line.rstrip()}\n")
                        target.flush()

    def _is_new(self, line: str) -> bool:
        """Whether a line is not a repetition of what another rank printed recently."""
        with self._lock:
            known = self._deduplicate and line in self._recent
            self._recent.append(line)
        return not known

    def close(self) -> None:
        for thread in self._threads:
            thread.join(1.0)
