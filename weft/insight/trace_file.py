"""`weft.insight.trace`: records what threads, GPU streams and loaders do, and writes it for Perfetto or chrome://tracing.

    with weft.insight.trace("trace.json"):
        for x, y in loader:
            step(x, y)

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. A slice is a complete event (`ph` X) with
times in microseconds; metadata events (`ph` M) name processes and threads. Slices of one row nest or follow one another.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..io.files import replace_file
from ..timeline import HOST, LIMIT, RECORDING, Slice, Timeline, TimelineRow, recorded

_LOADER = "weft-loader_"  # prefix of the names of loader threads
_ORDER = ("main", "CPU worker", "data loader")  # of rows; others follow


@contextmanager
def trace(path: str | Path, *, limit: int = LIMIT) -> Iterator[Timeline]:
    """Record a timeline of the code inside, and write it to a file at the end, even after an error.

    Rows are the threads of the host, the CPU's worker threads, the threads that load data, and the streams of GPUs.
    Recording ends early after `limit` slices. Each program that runs inside is compiled once more, with a clock in it: that
    is on the timeline too, unless the same program was traced before.

    >>> import json, tempfile, weft
    >>> step = weft.jit(lambda x: (x @ x).sum())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with trace(f"{folder}/trace.json"):
    ...         value = step(weft.ones((8, 8))).item()
    ...     events = json.loads(Path(folder, "trace.json").read_text())["traceEvents"]
    >>> {"compile", "call", "kernel"} <= {event.get("cat") for event in events}
    True
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise UserError("trace", f"{target} needs a folder that exists, got {target.parent}.")
    with ExitStack() as at_end, recording(limit) as timeline:
        at_end.callback(lambda: save_trace(target, timeline))
        yield timeline


@contextmanager
def recording(limit: int = LIMIT) -> Iterator[Timeline]:
    """The same without a file: the timeline, whose `slices` can be read afterwards."""
    if RECORDING.active is not None:
        raise UserError("trace", "one trace is recorded at a time, and one is being recorded. End that one first.")
    if not isinstance(limit, int) or limit < 1:
        raise UserError("trace", f"limit is a number of slices from 1, got {limit!r}.")
    timeline = RECORDING.active = Timeline(limit)
    try:
        yield timeline
    finally:
        timeline.stop()


def annotate(name: str, **facts: Any) -> AbstractContextManager[None]:
    """Mark the code inside as a named slice on the timeline, if one is being recorded.

    >>> with annotate("evaluation", epoch=3):
    ...     pass
    """
    return recorded(name, "user", **facts)


def save_trace(path: str | Path, timeline: Timeline) -> None:
    """Write a timeline: open the file at https://ui.perfetto.dev or in chrome://tracing."""
    replace_file(Path(path), [trace_json(timeline).encode()], "trace")


def trace_json(timeline: Timeline) -> str:
    """A timeline in the trace event format."""
    events = [*_events(timeline.slices(), timeline.begin)]
    content = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"notes": timeline.notes}}
    return json.dumps(content, separators=(",", ":"))


def _events(slices: Iterable[Slice], begin: int) -> Iterator[dict[str, Any]]:
    rows = _shown_rows(slices)
    processes = {name: number for number, name in enumerate(dict.fromkeys([HOST, *(p for p, _ in rows)]), 1)}
    for name, number in processes.items():
        yield _metadata(number, 0, "process_name", name=name)
        yield _metadata(number, 0, "process_sort_index", sort_index=number)
    for tid, ((process, name), found) in enumerate(sorted(rows.items(), key=lambda row: _place(row[0])), 1):
        pid = processes[process]
        yield _metadata(pid, tid, "thread_name", name=name)
        yield _metadata(pid, tid, "thread_sort_index", sort_index=tid)
        for one in sorted(found, key=lambda s: (s.begin, -s.end)):
            place = {"ph": "X", "pid": pid, "tid": tid, "name": one.name, "cat": one.category}
            yield place | {"ts": (one.begin - begin) / 1e3, "dur": (one.end - one.begin) / 1e3, "args": dict(one.facts)}


def _metadata(pid: int, tid: int, kind: str, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": args}


def _place(row: tuple[str, str]) -> tuple[bool, int, str]:
    process, name = row
    return process != HOST, next((i for i, start in enumerate(_ORDER) if name.startswith(start)), len(_ORDER)), name


def _shown_rows(slices: Iterable[Slice]) -> dict[tuple[str, str], list[Slice]]:
    """The slices by process and name of their row. A loader starts new threads in each epoch: they share a row unless they run concurrently."""
    by_row: dict[TimelineRow, list[Slice]] = {}
    for one in slices:
        by_row.setdefault(one.row, []).append(one)
    shown: dict[tuple[str, str], list[Slice]] = {}
    for row, found in sorted(by_row.items(), key=lambda pair: _span(pair[1])):
        begin, number = _span(found)[0], 1
        name = _row_name(row.name)
        while _end(shown.get((row.process, name), ())) > begin:
            number += 1
            name = f"{_row_name(row.name)} ({number})"
        shown.setdefault((row.process, name), []).extend(found)
    return shown


def _row_name(name: str) -> str:
    if name == "MainThread":
        return "main thread"
    return f"data loader {name.removeprefix(_LOADER)}" if name.startswith(_LOADER) else name


def _span(slices: Sequence[Slice]) -> tuple[int, int]:
    return min(one.begin for one in slices), _end(slices)


def _end(slices: Sequence[Slice]) -> int:
    return max((one.end for one in slices), default=0)
