"""What a process reports to the others when it fails, and what it prints when another one has failed."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from ..errors import WeftError
from ..signals import Terminated
from .control import ControlPage


def describe(error: BaseException) -> str:
    """An error in one line, with its source location."""
    if isinstance(error, WeftError):
        return f"[{error.where}] {error.message}"
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def reason(error: BaseException) -> str:
    """Why a process ends: a predicate whose subject is its rank."""
    if isinstance(error, KeyboardInterrupt):
        return "was interrupted."
    if isinstance(error, Terminated):
        return "was terminated (SIGTERM)."
    return f"failed: {describe(error)}"


def exit_reason(code: int) -> str:
    """The reason for a process that ended with this exit code; negative codes are signals."""
    return f"was killed by {signal.Signals(-code).name}." if code < 0 else f"ended with exit status {code}."


def is_of_another(page: ControlPage) -> bool:
    """Whether another process has failed before this one."""
    return page.failure is not None and page.failure[0] != page.rank


class FailureHook:
    """Replaces `sys.excepthook`: reports uncaught exceptions to the other processes.

    The process that failed first prints its traceback. The others give up because of it, and one of them prints a message, unless `weft launch`
    does. If rank 0 failed, or cannot be reached, one process per machine prints it: machines communicate through rank 0 only.
    """

    def __init__(self, page: ControlPage, launched: bool, machines: Sequence[int] = ()) -> None:
        """`machines`: the machine of each rank, if there are several."""
        self.page, self.launched = page, launched
        self.machines = machines or [0] * page.size
        self.before = sys.excepthook

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not is_of_another(self.page):
            self.page.give_up(self.page.rank, reason(error))
            if not isinstance(error, KeyboardInterrupt):
                self.before(kind, error, trace)
        if not self.launched:
            self.leave()

    def leave(self) -> NoReturn:
        """Exit immediately after a failure. MPI would wait for all processes to end together."""
        self.say()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)

    def say(self) -> None:
        """Print why all processes end, from one of them."""
        failed, here = (self.page.failure or (0, ""))[0], self.machines[self.page.rank]
        speaker = next((r for r, machine in enumerate(self.machines) if machine == here and r != failed), None)
        if not self.launched and self.page.rank == (speaker if failed == 0 else 0):
            print(f"weft: {self.page.error()}", file=sys.stderr, flush=True)
