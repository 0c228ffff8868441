"""Progress on a terminal, with rich: bars, and a spinner when nothing else moves. Files and pipes get lines only."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable
from typing import Any, TextIO, cast

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column

SPINNER_SECONDS = 0.5  # without progress, after which a spinner shows the activity

clock = time.monotonic


class Display:
    """Bars and a spinner below lines of text. A context manager, which removes them at the end."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self.live = _is_terminal(self._stream)
        self.console = console(self._stream)
        self._progress = _ProgressLines(self.console, _can_write(self._stream, "⠋━"))
        self._bar: TaskID | None = None
        self._label = ""

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *error: object) -> None:
        self.clear()

    def bar(self, label: str, done: int, total: int | None, text: str = "") -> None:
        """Show progress. A new label, or less done than before, starts a new bar."""
        if not self.live or total is None:
            return
        self._start()
        task = next((t for t in self._progress.tasks if t.id == self._bar), None)
        if task is None or label != self._label or done < task.completed or total != task.total:
            self._remove()
            self._label, self._bar = label, self._progress.add_task(label, total=total, completed=done, text=text)
        else:
            self._progress.update(task.id, completed=done, text=" ".join(text.split()))
        self._progress.moved()
        if done >= total:
            self._progress.refresh()  # the end is always drawn, however soon it comes

    def activity(self, text: str) -> None:
        """Set the current activity: shown with a spinner after half a second without progress."""
        if self.live:
            self._remove()
            self._progress.say(text)
            self._start()

    def line(self, text: str, style: str = "") -> None:
        """Print a line above the bars."""
        if self.live:
            self._remove()
            self.console.print(text, style=style, soft_wrap=True)
            self._progress.moved()
        else:
            print(text, file=self._stream, flush=True)

    def clear(self) -> None:
        """Remove bars and spinner."""
        self._remove()
        self._progress.say("")
        if self._progress.live.is_started:
            self._progress.stop()

    def _start(self) -> None:
        if not self._progress.live.is_started:
            self._progress.start()

    def _remove(self) -> None:
        if self._bar is not None:
            self._progress.remove_task(self._bar)
            self._bar = None


class _ProgressLines(Progress):
    """A line for the bar, and one for the activity when the bar does not move."""

    def __init__(self, console: Console, unicode: bool) -> None:
        spinner = "dots" if unicode else "line"
        # Before super().__init__, which calls get_renderables.
        self._activity = Progress(SpinnerColumn(spinner), TextColumn("{task.description} ..."), console=console)
        self._last = clock()
        super().__init__(
            SpinnerColumn(spinner),
            TextColumn("{task.description}"),
            BarColumn(bar_width=None, table_column=Column(ratio=1)),
            TextColumn("{task.percentage:3.0f} %"),
            TextColumn("{task.fields[text]}", table_column=Column(no_wrap=True, overflow="ellipsis")),
            TimeRemainingColumn(compact=True),
            console=console, transient=True, expand=True, redirect_stdout=False, redirect_stderr=False,
        )  # fmt: skip

    def moved(self) -> None:
        self._last = clock()

    def say(self, text: str) -> None:
        """Set the current activity."""
        self.moved()
        for task in self._activity.task_ids:
            self._activity.remove_task(task)
        if text:
            self._activity.add_task(text, total=None)

    def get_renderables(self) -> Iterable[RenderableType]:
        if self.tasks:
            yield self.make_tasks_table(self.tasks)
        if self._activity.tasks and clock() - self._last >= SPINNER_SECONDS:
            yield self._activity.make_tasks_table(self._activity.tasks)


def console(stream: TextIO | None = None) -> Console:
    """A console without markup and highlighting. NO_COLOR and TERM=dumb are respected."""
    file = sys.stdout if stream is None else stream
    return Console(file=cast(Any, _Steady(file)), markup=False, highlight=False, emoji=False)


class _Steady:
    """A stream that ignores write errors: a terminal may be closed during training."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except UnicodeEncodeError:
            encoding = self._stream.encoding or "ascii"
            return self._stream.write(text.encode(encoding, "replace").decode(encoding))
        except (OSError, ValueError):
            return 0

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (ValueError, OSError, AttributeError):  # closed, or not a file
        return False


def _can_write(stream: TextIO, text: str) -> bool:
    try:
        text.encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
