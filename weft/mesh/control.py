"""The control page shared by the processes of one machine: which of them are alive, and whether to give up.

Every process writes a timestamp (heartbeat) to its word a few times a second. If one of them ends with an error, dies or stalls, the first process
to notice writes its rank and the reason here, and all others stop waiting. Processes on several machines have a page each, and
synchronize them by messages (see control_network.py).
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from ..errors import RunError, UserError

SIZE = 1 << 17
STOP, STOPPED_RANK, TEXT_LENGTH, MEMORY, PURPOSE = range(5)  # words
MOST_RANKS = 1216
# The first words of the arrays with one entry per rank: heartbeats, process ids, numbers of threads, memories that it has mapped.
BEATS, PIDS, THREADS, MAPPED = (64 + i * MOST_RANKS for i in range(4))
TEXT = 1 << 16  # bytes; the words end before
BEAT_SECONDS = 0.25
ENDED = -1  # the heartbeat of a process that has ended normally
GRACE = 5.0  # seconds for a process to exit after another one has failed
LAUNCHER = -1  # the rank of the process that started the others

Waits = Callable[[], set[int]]  # the ranks that this process waits for


def _nothing() -> None:
    pass


def new_memory(name: str, nbytes: int) -> int:
    """An anonymous file in memory: it disappears when the last process that uses it ends, for whatever reason."""
    if not hasattr(os, "memfd_create"):
        raise UserError("parallel", "shared memory between ranks requires Linux.")
    file = os.memfd_create(name)
    try:
        os.posix_fallocate(file, 0, nbytes)
    except OSError as error:
        os.close(file)
        raise RunError(
            "parallel",
            f"{nbytes >> 20} MiB of shared memory are required: {error.strerror}. Free memory, or use fewer ranks.",
        ) from error
    return file


def path_of(file: int, pid: int | None = None) -> str:
    """The path by which other processes of this user open a file that a process (by default this one) has open."""
    return f"/proc/{os.getpid() if pid is None else pid}/fd/{file}"


class ControlPage:
    """The shared page, as seen by one process."""

    def __init__(self, path: str | Path, rank: int, size: int) -> None:
        self.path, self.rank, self.size = Path(path), rank, size
        with open(self.path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), SIZE)
        self.words = np.frombuffer(self._map, np.int64)
        self.stop_address = self.words.ctypes.data + 8 * STOP
        self.waits: list[Waits] = []  # of the meshes of this process
        self.stops: list[
            Callable[[], None]
        ] = []  # called when the processes should give up, to end waits that cannot poll
        self.gave_up: Callable[[], None] = _nothing  # called when this process has reported a failure
        self.ended: Callable[[], None] = _nothing  # called when this process ends normally
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._parent = os.getppid()
        self.apart = False  # whether the processes are on several machines, with a page each

    @staticmethod
    def create() -> int:
        """Create an empty page: a file that stays open until its creator closes it."""
        return new_memory("weft control page", SIZE)

    # --- failures -------------------------------------------------------------------------------------------------------------

    def give_up(self, rank: int, reason: str) -> None:
        """Tell all processes to give up because of a rank; the first reason wins."""
        if self.words[STOP]:
            return
        text = reason.encode()[: SIZE - TEXT]
        self._map[TEXT : TEXT + len(text)] = text
        self.words[TEXT_LENGTH], self.words[STOPPED_RANK] = len(text), rank
        self.words[STOP] = 1
        self.gave_up()

    @property
    def failure(self) -> tuple[int, str] | None:
        """The rank that failed and the reason, if the processes should give up."""
        if not self.words[STOP]:
            return None
        text = self._map[TEXT : TEXT + int(self.words[TEXT_LENGTH])]
        return int(self.words[STOPPED_RANK]), text.decode(errors="replace")

    def error(self) -> RunError:
        """Why the processes give up."""
        rank, reason = self.failure or (self.rank, "gave up.")
        return RunError("parallel", reason if rank == LAUNCHER else f"rank {rank} {reason}")

    def check(self) -> None:
        """Raise an error if the processes should give up."""
        if self.failure is not None:
            raise self.error()

    def check_threads(self, threads: int) -> None:
        """Wait for the others' numbers of threads, and check that they are equal: each thread exchanges data with its counterparts of the same index."""
        self.words[THREADS + self.rank] = threads
        given = self.words[THREADS : THREADS + self.size]
        while not given.all():
            self.check()
            time.sleep(0.001)
        if len(set(given.tolist())) > 1:
            raise UserError(
                "parallel",
                f"all ranks need the same number of threads, got {given.tolist()}. Set WEFT_THREADS for all of them.",
            )

    # --- heartbeats -----------------------------------------------------------------------------------------------------------

    def begin(self, stall_seconds: float, before_exit: Callable[[], None] = _nothing) -> None:
        """Start the heartbeat, and monitor the others. `before_exit` is called when the failure of another process ends this one."""
        self.words[PIDS + self.rank] = os.getpid()
        self.words[BEATS + self.rank] = time.monotonic_ns()
        self._thread = threading.Thread(
            target=self._watch, args=(stall_seconds, before_exit), name="weft ranks", daemon=True
        )
        self._thread.start()

    def end(self) -> None:
        """Report that this process is done: the others no longer wait for it."""
        self._ended.set()
        self.words[BEATS + self.rank] = ENDED
        self.ended()

    def _watch(self, stall_seconds: float, before_exit: Callable[[], None]) -> None:
        last, stopped, told = time.monotonic(), 0.0, False
        while not self._ended.wait(BEAT_SECONDS):
            now = time.monotonic()
            self.words[BEATS + self.rank] = time.monotonic_ns()
            if now - last < stall_seconds / 2:  # this process itself was not suspended
                self.look_at_others(stall_seconds)
            if os.getppid() != self._parent:  # its parent was killed, and nothing else would end it
                os._exit(1)
            if self.words[STOP] and not told:
                told = True
                for stop in self.stops:
                    stop()
            stopped += now - last if self.words[STOP] else 0.0
            if stopped > GRACE:  # it does not wait for the others, so it has not noticed
                before_exit()
                os._exit(1)
            last = now

    def look_at_others(self, stall_seconds: float) -> None:
        """Give up if another process has died or stalled, or will never reach the point where this one waits for it."""
        waited = set().union(*(waits() for waits in self.waits))
        for rank in range(self.size):
            beat, pid = int(self.words[BEATS + rank]), int(self.words[PIDS + rank])
            if rank == self.rank or beat == 0 or self.words[STOP]:
                continue
            silent = (time.monotonic_ns() - beat) / 1e9
            if beat == ENDED:
                if rank in waited:
                    self.give_up(rank, "has ended, and others wait for it.")
            elif pid and not _lives(pid):
                self.give_up(rank, "died.")
            elif silent > stall_seconds:
                network = ", or the network to it is down" if self.apart else ""
                why = f"it was stopped, or its machine is overloaded{network}."
                self.give_up(rank, f"has not answered for {silent:.0f} seconds: {why}")


def _lives(pid: int) -> bool:
    with suppress(PermissionError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        with suppress(OSError, IndexError):  # no /proc: its parent will notice
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    return True
