"""One call of a trace as rows of boxes, for pages: what each thread and each GPU stream did from start to end.

    timeline = call_timeline(json.loads(path.read_text()))

The shortest recorded call is shown, which other programs disturbed least.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..records import dataclass
from .profile_text import amount, duration

NARROWEST = 0.0005  # fraction of the width: narrower boxes are left out
SHOWN = (
    "phase",
    "layer",
    "kernel",
    "call",
    "copy",
    "wait",
    "compile",
    "interpret",
)  # categories that have a box, besides user annotations


@dataclass(frozen=True)
class TimelineBox:
    """A slice of time. Left and width are fractions of the call."""

    left: float
    width: float
    depth: int  # 0: top level
    name: str
    category: str
    layer: str  # that it belongs to; empty: none
    note: str


@dataclass(frozen=True)
class TimelineLane:
    """A thread or a stream, with its boxes; nested boxes are stacked."""

    name: str
    boxes: tuple[TimelineBox, ...]

    @property
    def depth(self) -> int:
        return 1 + max((box.depth for box in self.boxes), default=0)


@dataclass(frozen=True)
class CallTimeline:
    """The timeline of one call; see the top of this file."""

    title: str
    seconds: float
    lanes: tuple[TimelineLane, ...]
    dropped: int  # slices that are too short to draw

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers that have a box, in the order in which they begin."""
        boxes = sorted((box for lane in self.lanes for box in lane.boxes if box.layer), key=lambda box: box.left)
        return tuple(dict.fromkeys(box.layer for box in boxes))


def call_timeline(content: Mapping[str, Any]) -> CallTimeline | None:
    """The shortest recorded call of a trace (see trace_file.py), or the whole trace if no call was annotated; None if it is empty.

    >>> slice = {"ph": "X", "pid": 1, "tid": 1, "cat": "kernel", "args": {"layer": "conv"}}
    >>> events = [slice | {"name": "a", "ts": 0, "dur": 3}, slice | {"name": "b", "ts": 3, "dur": 1}]
    >>> [(box.name, box.left, box.width) for box in call_timeline({"traceEvents": events}).lanes[0].boxes]
    [('a', 0.0, 0.75), ('b', 0.75, 0.25)]
    """
    events = content.get("traceEvents", ())
    slices = [event for event in events if event.get("ph") == "X"]
    if not slices:
        return None
    calls = [one for one in slices if one["cat"] == "user"]
    chosen = min(calls, key=lambda one: one["dur"], default=None)
    begin = chosen["ts"] if chosen else min(one["ts"] for one in slices)
    end = begin + chosen["dur"] if chosen else max(one["ts"] + one["dur"] for one in slices)
    inside = [one for one in slices if one["ts"] < end and one["ts"] + one["dur"] > begin and one["cat"] in SHOWN]
    seen = [one for one in inside if one["dur"] >= NARROWEST * (end - begin)]
    lanes = [TimelineLane(name, tuple(_boxes(own, begin, end))) for name, own in _lanes(events, seen)]
    title = chosen["name"] if chosen else "recorded"
    return CallTimeline(title, (end - begin) / 1e6, tuple(lanes), len(inside) - len(seen))


def _lanes(events: Iterable[Mapping[str, Any]], slices: Sequence[Mapping[str, Any]]) -> Iterable[tuple[str, list[Any]]]:
    """The slices of each row, with its name, in the order of the file."""
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    rows: dict[tuple[int, int], list[Any]] = {}
    for one in slices:
        rows.setdefault((one["pid"], one["tid"]), []).append(one)
    return [(names.get(key, "thread"), rows[key]) for key in sorted(rows)]


def _boxes(slices: Sequence[Mapping[str, Any]], begin: float, end: float) -> Iterable[TimelineBox]:
    open_until: list[float] = []  # ends of the slices that may contain the next one
    for one in sorted(slices, key=lambda one: (one["ts"], -one["dur"])):
        last = one["ts"] + one["dur"]
        while open_until and open_until[-1] < last - 1e-6:
            open_until.pop()
        left, right = max(one["ts"], begin), min(last, end)
        facts = one.get("args", {})
        layer = facts.get("layer", one["name"] if one["cat"] == "layer" else "")
        yield TimelineBox(
            (left - begin) / (end - begin), (right - left) / (end - begin), len(open_until), one["name"], one["cat"], layer, _note(one, facts)
        )  # fmt: skip
        open_until.append(last)


def _note(one: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    parts = [one["name"], duration(one["dur"] / 1e6).replace("us", "µs")]
    if facts.get("layer"):
        parts.append(str(facts["layer"]))
    parts += [f"{amount(facts[name])}{unit}" for name, unit in (("FLOP", "FLOP"), ("bytes", "B")) if facts.get(name)]
    return ", ".join(parts)
