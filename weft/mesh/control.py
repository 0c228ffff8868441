"""The page of memory that the processes of `weft launch` share: who is alive, and whether to give up.

Every process writes the time to its word a few times a second. If one of them ends with an error, dies or stalls, whoever sees it first writes
its rank and the reason here, and all others give up whatever they wait for.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np

from ..errors import RunError, UserError

SIZE = 1 << 16
STOP, STOPPED_RANK, TEXT_LENGTH, ATTACHED = range(4)  # words
BEATS, PIDS, THREADS = (
    64,
    1280,
    2496,
)  # the first words of times, numbers of processes, and numbers of threads, one a rank
TEXT = 1 << 15  # bytes; the words end before
MOST_RANKS = 1216
BEAT_SECONDS = 0.25


class ControlPage:
    """The shared page, seen from one process."""

    def __init__(self, path: str | Path, rank: int, size: int) -> None:
        self.path, self.rank, self.size = Path(path), rank, size
        with open(self.path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), SIZE)
        self.words = np.frombuffer(self._map, np.int64)
        self.stop_address = self.words.ctypes.data + 8 * STOP
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()

    @staticmethod
    def create(path: Path) -> None:
        """Make an empty page."""
        with open(path, "xb") as file:
            os.posix_fallocate(file.fileno(), 0, SIZE)

    # --- giving up ------------------------------------------------------------------------------------------------------------

    def give_up(self, rank: int, reason: str) -> None:
        """Tell all processes to give up because of a rank; the first reason counts."""
        if self.words[STOP]:
            return
        text = reason.encode()[: SIZE - TEXT]
        self._map[TEXT : TEXT + len(text)] = text
        self.words[TEXT_LENGTH], self.words[STOPPED_RANK] = len(text), rank
        self.words[STOP] = 1

    @property
    def failure(self) -> tuple[int, str] | None:
        """The rank that failed and the reason, if the processes should give up."""
        if not self.words[STOP]:
            return None
        text = self._map[TEXT : TEXT + int(self.words[TEXT_LENGTH])]
        return int(self.words[STOPPED_RANK]), text.decode(errors="replace")

    def check(self) -> None:
        """Raise an error if the processes should give up."""
        if self.failure is not None:
            rank, reason = self.failure
            raise RunError("parallel", f"rank {rank} {reason}")

    def check_threads(self, threads: int) -> None:
        """All processes must have as many threads, because each thread meets those of the same number; wait for what the others have."""
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

    # --- being alive ----------------------------------------------------------------------------------------------------------

    def begin(self, stall_seconds: float) -> None:
        """Note the time from now on, and watch the others."""
        self.words[PIDS + self.rank] = os.getpid()
        self.words[BEATS + self.rank] = time.monotonic_ns()
        self._thread = threading.Thread(target=self._watch, args=(stall_seconds,), name="weft ranks", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """This process is done: nobody waits for it any more."""
        self._ended.set()
        self.words[BEATS + self.rank] = -1

    def _watch(self, stall_seconds: float) -> None:
        last = time.monotonic()
        while not self._ended.wait(BEAT_SECONDS):
            now = time.monotonic()
            self.words[BEATS + self.rank] = time.monotonic_ns()
            if now - last < stall_seconds / 2:  # this process itself was not stopped
                self._look_at_others(stall_seconds)
            last = now

    def _look_at_others(self, stall_seconds: float) -> None:
        for rank in range(self.size):
            beat, pid = int(self.words[BEATS + rank]), int(self.words[PIDS + rank])
            if rank == self.rank or beat <= 0 or self.words[STOP]:
                continue
            silent = (time.monotonic_ns() - beat) / 1e9
            if not _lives(pid):
                self.give_up(rank, "died.")
            elif silent > stall_seconds:
                self.give_up(
                    rank, f"has not answered for {silent:.0f} seconds: it was stopped, or its machine is overloaded."
                )


def _lives(pid: int) -> bool:
    with suppress(PermissionError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        with suppress(OSError, IndexError):  # no /proc: whoever started it will notice
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    return True
