"""Tracebacks of internal errors, in colour. They are for bugs: an error that a user can fix is one line, without a traceback."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.traceback import Traceback


def show_bug(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Print a traceback to the terminal."""
    Console(stderr=True).print(Traceback.from_exception(kind, error, traceback))
