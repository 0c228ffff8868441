"""A profile as a trace in the format of Chrome's and Perfetto's viewers: kernels in their order, below the layers that they belong to.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU describes the format: complete events (`ph` X) with
times in microseconds, and metadata events (`ph` M) that name processes and threads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .layer_profile import KernelProfile
from .profile import ProgramProfile

ROWS = {"phases": 1, "layers": 2, "kernels": 3}


def trace_events(profiles: Mapping[str, ProgramProfile]) -> list[dict[str, Any]]:
    """The events of profiles by name; each is a process of its own in the viewer."""
    return [
        event for number, (name, found) in enumerate(profiles.items(), 1) for event in _process(number, name, found)
    ]


def save_trace(path: str | Path, profiles: Mapping[str, ProgramProfile]) -> None:
    """Write a trace file: open it at https://ui.perfetto.dev or in chrome://tracing."""
    content = {"traceEvents": trace_events(profiles), "displayTimeUnit": "ms"}
    Path(path).write_text(json.dumps(content), encoding="utf-8")


def _process(number: int, name: str, found: ProgramProfile) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "pid": number, "name": "process_name", "args": {"name": f"{name}, {found.where}"}}
    for row, place in ROWS.items():
        yield {"ph": "M", "pid": number, "tid": place, "name": "thread_name", "args": {"name": row}}
    begin = 0.0
    open_: dict[str, tuple[str, float]] = {}
    for kernel in found.kernels:
        scope = max(kernel.layers, key=lambda pair: pair[1])[0]
        layer = scope.path or scope.kind or ("optimizer" if scope.phase == "update" else "outside of layers")
        for row, label in (("phases", scope.phase), ("layers", layer)):
            before = open_.get(row)
            if before is not None and before[0] != label:
                yield _complete(number, row, before[0], before[1], begin, {})
            if before is None or before[0] != label:
                open_[row] = label, begin
        yield _complete(number, "kernels", kernel.name, begin, begin + kernel.seconds, _facts(found, kernel))
        begin += kernel.seconds
    for row, (label, start) in open_.items():
        yield _complete(number, row, label, start, begin, {})


def _complete(process: int, row: str, name: str, begin: float, end: float, facts: Mapping[str, Any]) -> dict[str, Any]:
    place = {"ph": "X", "pid": process, "tid": ROWS[row], "name": name, "cat": row}
    return place | {"ts": round(1e6 * begin, 3), "dur": round(1e6 * (end - begin), 3), "args": dict(facts)}


def _facts(found: ProgramProfile, kernel: KernelProfile) -> dict[str, Any]:
    return {
        "FLOP": kernel.flops,
        "bytes": kernel.nbytes,
        "roof": round(kernel.roof, 4),
        "bound by": found.bound(kernel).limit,
        "joules (modelled)": kernel.joules,
        "source": kernel.sources[0] if kernel.sources else "",
    }
