"""What signals do while a network is trained: Ctrl-C (SIGINT), and SIGTERM, with which schedulers end a job."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]
TERMINATED = 128 + signal.SIGTERM  # 143: the exit code that shells, SLURM and Kubernetes expect


class Terminated(SystemExit):
    """SIGTERM has ended the work. Unless it is caught, the process exits with code 143."""

    def __init__(self) -> None:
        super().__init__(TERMINATED)


def terminate(number: int, frame: FrameType | None) -> None:
    """A handler of SIGTERM that ends what is going on; a second signal ends the process at once, whatever it does."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise Terminated


@contextmanager
def terminable() -> Iterator[None]:
    """Inside, SIGTERM raises `Terminated`, so that `with` and `finally` blocks clean up."""
    with handling(signal.SIGTERM, terminate, (signal.SIG_DFL,)):
        yield


@contextmanager
def handling(number: signal.Signals, handler: Handler, instead_of: tuple[Any, ...]) -> Iterator[None]:
    """Inside, this function handles a signal, if one of the given handlers handled it before; any other handler stays.

    Python gives signals to the main thread only: in another one nothing changes.
    """
    before = signal.getsignal(number)
    changes = threading.current_thread() is threading.main_thread() and before in instead_of
    if changes:
        signal.signal(number, handler)
    try:
        yield
    finally:
        if changes and signal.getsignal(number) is handler:  # else a handler gave it away, for the second signal
            signal.signal(number, before)
