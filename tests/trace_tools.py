"""Reads trace files, and checks the rules of the trace event format."""

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

Events = dict[str, list[dict[str, Any]]]  # by the name of their row


def checked(path: Path) -> Events:
    """Read a trace, and check the rules of its format."""
    content = json.loads(path.read_text())
    assert set(content) == {"traceEvents", "displayTimeUnit", "otherData"}
    names: dict[tuple[int, int], str] = {}
    processes: dict[int, str] = {}
    found = defaultdict(list)
    for event in content["traceEvents"]:
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "M":
            if event["name"] == "thread_name":
                names[event["pid"], event["tid"]] = event["args"]["name"]
            if event["name"] == "process_name":
                processes[event["pid"]] = event["args"]["name"]
            continue
        assert event["ph"] == "X"
        assert event["name"]
        assert event["cat"]
        assert event["ts"] >= 0 <= event["dur"]
        found[names[event["pid"], event["tid"]]].append(event)  # a row is named before its first event
        assert event["pid"] in processes
    assert len(set(names.values())) == len(names), "rows have names of their own"
    for events in found.values():
        check_nesting(events)
    return found


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
