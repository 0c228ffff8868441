"""Reads trace files, and checks the rules of the trace event format."""

import json
import math
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

Events = dict[str, list[dict[str, Any]]]  # by the name of their row

# The format as its document describes it ("Trace Event Format"): metadata events and the arguments of each, and the fields of a complete event.
METADATA = {"process_name": ("name", str), "process_sort_index": ("sort_index", int), "thread_name": ("name", str), "thread_sort_index": ("sort_index", int)}  # fmt: skip
COMPLETE = {"ph": str, "pid": int, "tid": int, "name": str, "cat": str, "ts": (int, float), "dur": (int, float), "args": dict}  # fmt: skip
LARGEST_ID = 2**31 - 1  # processes and threads are 32-bit numbers in the viewers


def check_event(event: dict[str, Any]) -> None:
    """The fields of one event: those of its phase and no others, each of its type."""
    for name in ("pid", "tid"):
        assert type(event[name]) is int, event
        assert 0 <= event[name] <= LARGEST_ID, event
    if event["ph"] == "M":
        argument, kind = METADATA[event["name"]]
        assert set(event) == {"ph", "pid", "tid", "name", "args"}, event
        assert set(event["args"]) == {argument}, event
        assert type(event["args"][argument]) is kind, event
        return
    assert event["ph"] == "X", event
    assert set(event) == set(COMPLETE), event
    for name, kinds in COMPLETE.items():
        assert isinstance(event[name], kinds), event
        assert not isinstance(event[name], bool), event
    assert event["name"], event
    assert event["cat"], event
    assert math.isfinite(event["ts"]), event
    assert math.isfinite(event["dur"]), event
    assert event["ts"] >= 0 <= event["dur"], event


def checked(path: Path) -> Events:
    """Read a trace, and check the rules of its format."""
    content = json.loads(path.read_text(), parse_constant=_refuse)
    assert set(content) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert content["displayTimeUnit"] in ("ms", "ns")
    names: dict[tuple[int, int], str] = {}
    processes: dict[int, str] = {}
    found = defaultdict(list)
    for event in content["traceEvents"]:
        check_event(event)
        if event["ph"] == "M":
            if event["name"] == "thread_name":
                names[event["pid"], event["tid"]] = event["args"]["name"]
            if event["name"] == "process_name":
                processes[event["pid"]] = event["args"]["name"]
            continue
        found[names[event["pid"], event["tid"]]].append(event)  # a row is named before its first event
        assert event["pid"] in processes
    assert len(set(names.values())) == len(names), "rows have names of their own"
    for events in found.values():
        check_nesting(events)
    return found


def _refuse(text: str) -> None:
    raise AssertionError(f"{text} is no JSON: viewers refuse the file")


def check_nesting(events: list[dict[str, Any]]) -> None:
    """Events of a row are in order, and each is inside of the one that it begins in."""
    assert all(a["ts"] <= b["ts"] for a, b in pairwise(events))
    open_: list[int] = []
    for event in events:
        begin = round(1000 * event["ts"])
        end = begin + round(1000 * event["dur"])
        while open_ and open_[-1] <= begin:
            open_.pop()
        assert not open_ or end <= open_[-1], event
        open_.append(end)


def names(events: list[dict[str, Any]], category: str) -> list[str]:
    return [event["name"] for event in events if event["cat"] == category]
