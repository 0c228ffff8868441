"""A layered layout of a graph: boxes in columns from left to right, each right of what it reads.

An arrow that passes a column has a lane in it, which is a box without text, so arrows bend only between columns and never run through a box.
"""

from __future__ import annotations

from bisect import bisect, insort
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import pairwise
from math import inf

PILLS = ("input", "output", "leaf", "const")  # kinds of boxes that stand at the ends of arrows


@dataclass(eq=False, slots=True)
class LayoutBox:
    """An item of a column: a node, an output, a copy (echo) of a constant, or a lane."""

    kind: str
    lines: list[str] = field(default_factory=list)
    name: str = ""  # of the node; nothing else has one
    detail: str = ""
    width: float = 0.0
    height: float = 0.0
    layer: int = 0  # which column
    rank: int = 0  # which place in the column
    thread: int = 0  # see _weave
    x: float = 0.0  # of the left edge
    y: float = 0.0  # of the middle
    ins: list[LayoutWire] = field(default_factory=list)
    outs: list[LayoutWire] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class LayoutWire:
    """An edge, or its part between two adjacent columns. A heavy one is drawn horizontally if possible."""

    source: LayoutBox
    target: LayoutBox
    label: str = ""
    weight: float = 1.0
    port: float = 0.0  # where it ends, seen from the middle of the target

    def __post_init__(self) -> None:
        self.source.outs.append(self)
        self.target.ins.append(self)


def laid_out(boxes: list[LayoutBox]) -> list[list[LayoutBox]]:
    """The boxes, which come after those that they read, and lanes, by column. Each has its `y`; the widths of columns are for the drawing."""
    _choose_layers(boxes)
    columns = _columns(boxes)
    _choose_order(columns)
    _choose_heights(columns, _weave(columns))
    return columns


def _choose_layers(boxes: list[LayoutBox]) -> None:
    """Each box right of what it needs, then further right where that makes arrows shorter."""
    free: dict[LayoutBox, bool] = {}  # nothing else is made from what it is made from, so all of that can move along
    for box in boxes:
        box.layer = 1 + max((w.source.layer for w in box.ins), default=-1)
        free[box] = all(free[w.source] and len(w.source.outs) == 1 for w in box.ins)
    for box in reversed(boxes):
        users = {w.target for w in box.outs if w.target.kind != "output"}
        if users and (free[box] or len(users) > sum(not free[w.source] for w in box.ins)):
            box.layer = min(user.layer for user in users) - 1
    for box in boxes:
        if box.kind == "output":
            box.layer = box.ins[0].source.layer + 1


def _columns(boxes: list[LayoutBox]) -> list[list[LayoutBox]]:
    """The boxes by column, and the wires cut into parts from column to column; those of a box share lanes.

    A constant stands next to its first user. Users further on get an echo of it instead of a long arrow.
    """
    columns: list[list[LayoutBox]] = [[] for _ in range(1 + max((b.layer for b in boxes), default=-1))]
    wires = {box: box.outs for box in boxes}
    for box in boxes:
        box.ins, box.outs = [], []
    for box in sorted(boxes, key=lambda box: box.kind == "const"):
        columns[box.layer].append(box)
        stops = {box.layer: box}
        for w in wires[box]:
            last = w.target.layer - 1
            for layer in range(last if box.kind == "const" else box.layer + 1, last + 1):
                if layer not in stops:
                    echo = replace(box, name="", layer=layer, outs=[])
                    stops[layer] = echo if box.kind == "const" else LayoutBox(box.kind, layer=layer)
                    columns[layer].append(stops[layer])
                    if box.kind != "const":
                        LayoutWire(stops[layer - 1], stops[layer], weight=2.0 if layer == box.layer + 1 else 8.0)
            light = box.kind in PILLS and w.target.kind != "output"
            LayoutWire(stops[last], w.target, w.label, 2.0 if not stops[last].lines else 1.0 if light else 4.0)
    return columns


def _choose_order(columns: list[list[LayoutBox]]) -> None:
    """The order in each column: boxes go to the mean of their neighbours, back and forth, and two change
    places where that undoes crossings. The best order met is kept.
    """
    best: list[list[LayoutBox]] = []
    fewest = inf
    for sweep in range(17):
        for column in columns[::-1] if sweep % 2 else columns:
            mean: dict[LayoutBox, float] = {}
            for box in column:
                near = [w.target.rank for w in box.outs] if sweep % 2 else [w.source.rank for w in box.ins]
                if near and sweep:
                    mean[box] = sum(near) / len(near)
            moving = iter(sorted(mean, key=lambda box: mean[box]))
            _put(column, [next(moving) if box in mean else box for box in column])
        for column in columns:
            sides = {b: ([w.source.rank for w in b.ins], [w.target.rank for w in b.outs]) for b in column}
            for i in range(len(column) - 1):
                a, b = column[i : i + 2]
                pairs = [(p, q) for side in (0, 1) for p in sides[a][side] for q in sides[b][side]]
                if sum((p > q) - (p < q) for p, q in pairs) > 0:
                    column[i : i + 2] = b, a
            _put(column, column)
        crossings = 0
        for column in columns:
            ends: list[int] = []
            for rank in [rank for box in column for rank in sorted(w.target.rank for w in box.outs)]:
                crossings += len(ends) - bisect(ends, rank)
                insort(ends, rank)
        if crossings < fewest:
            best, fewest = [list(column) for column in columns], crossings
    for column, order in zip(columns, best, strict=True):
        _put(column, order)


def _put(column: list[LayoutBox], order: list[LayoutBox]) -> None:
    column[:] = order
    for rank, box in enumerate(column):
        box.rank = rank


def _weave(columns: list[list[LayoutBox]]) -> int:
    """Join boxes to threads, along heavy wires that do not cross. Each thread will be level. Count them."""
    count = 0
    for column in columns:
        ends = []
        for box in column:
            box.ins.sort(key=lambda w: w.source.rank)
            for i, w in enumerate(box.ins):
                if bool(w.source.lines) == bool(box.lines):
                    ends.append((-w.weight, abs(2 * i + 1 - len(box.ins)), box.rank, i))
        chosen: list[tuple[int, int]] = []
        joined: dict[LayoutBox, int] = {}
        for *_, rank, i in sorted(ends):
            end = (column[rank].ins[i].source.rank, rank)
            at = bisect(chosen, end)
            if all((end[0] - a) * (end[1] - b) > 0 for a, b in chosen[max(at - 1, 0) : at + 1]):
                chosen.insert(at, end)
                joined[column[rank]] = i
        for box in column:
            middle = joined.get(box, (len(box.ins) - 1) / 2)
            step = min(11.0, (box.height / 2 - 7) / max(middle, len(box.ins) - 1 - middle, 1))
            for i, w in enumerate(box.ins):
                w.port = (i - middle) * step
            box.thread = box.ins[joined[box]].source.thread if box in joined else count
            count += box not in joined
    return count


def _choose_heights(columns: list[list[LayoutBox]], count: int) -> None:
    """The heights of the threads: from a tight packing on, each goes where its wires are short, and pushes
    others out of its way if the whole gains.
    """
    below: list[dict[int, float]] = [{} for _ in range(count)]
    above: list[dict[int, float]] = [{} for _ in range(count)]
    y = dict.fromkeys(range(count + 1), 0.0)  # the last one stays 0 and draws all a little to it
    links = [[(count, 0.0, 0.1)] for _ in range(count)]
    for column in columns:
        for a, b in pairwise(column):
            space = (a.height + b.height) / 2 + 8 + 4 * (bool(a.lines) + bool(b.lines))
            space = max(space, below[a.thread].get(b.thread, 0))
            below[a.thread][b.thread] = above[b.thread][a.thread] = space
        for w in [w for box in column for w in box.ins if w.source.thread != box.thread]:
            links[w.source.thread].append((w.target.thread, w.port, w.weight))
            links[w.target.thread].append((w.source.thread, -w.port, w.weight))

    def push(thread: int, goal: float) -> dict[int, float]:
        sign, ahead = (1, below) if goal >= y[thread] else (-1, above)
        moved, waiting = {thread: goal}, [(0.0, thread)]
        while waiting:
            _, t = heappop(waiting)
            for other, space in ahead[t].items():
                if sign * (moved[t] - moved.get(other, y[other])) + space > 1e-6:
                    moved[other] = moved[t] + sign * space
                    heappush(waiting, (sign * y[other], other))  # by height, so that each pushes once
        return moved

    def gain(moved: dict[int, float]) -> float:
        total = 0.0
        for t, new in moved.items():
            for other, gap, weight in links[t]:
                change = abs(y[t] - y[other] - gap) - abs(new - moved.get(other, y[other]) - gap)
                total += change * (weight / 2 if other in moved else weight)
        return total

    for t in range(count):
        y |= push(t, y[t])
    for sweep in range(4):
        for t in range(count)[:: -1 if sweep % 2 else 1]:
            goals = sorted((y[other] + gap, weight) for other, gap, weight in links[t])
            rest = sum(weight for _, weight in goals) / 2
            while (rest := rest - goals[0][1]) > 0:
                goals.pop(0)
            goal = goals[0][0]  # the weighted median
            least = max((y[other] + space for other, space in above[t].items()), default=-inf)
            most = min((y[other] - space for other, space in below[t].items()), default=inf)
            for moved in (push(t, goal), {t: min(max(goal, least), most)}):
                if gain(moved) > 1e-6:
                    y |= moved
                    break
    for box in [box for column in columns for box in column]:
        box.y = y[box.thread]
