"""A line on a terminal that says how far some work is. Where nobody looks, in files and pipes, it is silent."""

from __future__ import annotations

import contextlib
import math
import shutil
import sys
import time
from types import TracebackType
from typing import TextIO

_CLEAR = "\r\x1b[K"  # back to the beginning of the line, and nothing behind it
_PAUSE = 0.1  # seconds between two drawings: eyes see no more, and terminals can be slow
_WIDEST, _NARROWEST = 30, 5  # of the bar itself
_BLOCKS = " ▏▎▍▌▋▊▉█"
_PLAIN = " #"

clock = time.monotonic


class Bar:
    """One line, written again and again: label, bar, percent, the caller's text, and the time that is left.

    Use it in a `with`, which takes the line away at the end. `due` tells whether the next `show` draws, for callers
    whose text is costly.
    """

    def __init__(self, label: str, total: int, stream: TextIO | None = None, first: int = 0) -> None:
        """`first` is what was done before, which took no time."""
        self.label, self.total, self._first = label, total, first
        self._stream = sys.stderr if stream is None else stream
        self._shows = _is_terminal(self._stream)
        self._marks = _BLOCKS if self._shows and _can_write(self._stream, _BLOCKS) else _PLAIN
        self._start, self._last, self._drawn = clock(), -math.inf, False

    def due(self) -> bool:
        """Whether enough time has gone by to draw again."""
        return self._shows and clock() - self._last >= _PAUSE

    def show(self, done: int, text: str = "") -> None:
        """Draw that so much is done: at most ten times a second, but the end always."""
        if self.due() or (self._shows and done >= self.total):
            self._last = clock()
            self._write(_CLEAR + self._line(done, text))
            self._drawn = True

    def clear(self) -> None:
        """Take the line away."""
        if self._drawn:
            self._write(_CLEAR)
            self._drawn = False

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    def _line(self, done: int, text: str) -> str:
        """What fits into the width: the bar shrinks first, then the end is cut off."""
        width = shutil.get_terminal_size().columns - 1  # a full line would wrap on some terminals
        share = min(max(done / self.total, 0.0), 1.0) if self.total > 0 else 1.0
        after = "  ".join(part for part in (f"{int(100 * share):3} %", _one_line(text), self._left(done)) if part)
        room = min(_WIDEST, width - len(self.label) - len(after) - 3)
        bar = f"{_bar(share, room, self._marks)} " if room >= _NARROWEST else ""
        return f"{self.label} {bar}{after}"[: max(width, 0)]

    def _left(self, done: int) -> str:
        """The time that the rest takes at the rate so far."""
        passed, steps = self._last - self._start, done - self._first
        if passed <= 0 or steps <= 0 or done >= self.total:
            return ""
        return f"{_duration(passed * (self.total - done) / steps)} left"

    def _write(self, text: str) -> None:
        # A terminal may go away while somebody works: the work goes on.
        try:
            self._stream.write(text)
            self._stream.flush()
        except UnicodeEncodeError:  # of the caller's text; the next one may fit
            with contextlib.suppress(OSError, ValueError):
                self._stream.write(text.encode("ascii", "replace").decode())
        except (OSError, ValueError):
            self._shows = False


class Bars:
    """A bar for whoever is told (done, total, text) only: a new one whenever the work begins anew, such as with another file.

    Where the total is not known nothing is drawn.
    """

    def __init__(self, label: str, stream: TextIO | None = None) -> None:
        self._label, self._stream = label, stream
        self._bar: Bar | None = None
        self._done = 0

    def __call__(self, done: int, total: int | None, text: str = "") -> None:
        if total is None:
            return
        if self._bar is None or done < self._done or total != self._bar.total:
            self._bar = Bar(self._label, total, self._stream, first=done)
        self._done = done
        self._bar.show(done, text)

    def __enter__(self) -> Bars:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.clear()


def _bar(share: float, width: int, marks: str) -> str:
    """Full blocks, and one that tells the rest as finely as the marks can."""
    steps = len(marks) - 1
    filled = int(share * width * steps)
    rest = marks[filled % steps] if filled % steps else ""
    return (marks[-1] * (filled // steps) + rest).ljust(width, "." if marks is _PLAIN else " ")


def _duration(seconds: float) -> str:
    """2:05, or 1:02:05.

    >>> _duration(125.2), _duration(3725)
    ('2:05', '1:02:05')
    """
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (ValueError, OSError, AttributeError):  # closed, or nothing that can be asked
        return False


def _can_write(stream: TextIO, text: str) -> bool:
    try:
        text.encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
