"""Graph drawings: `to_svg` draws a graph, `to_dot` writes it for Graphviz.

The drawing runs from left to right in columns. An arrow that passes a column has a lane in it, which is a box
without text, so arrows bend only between columns and never run through a box. Names are those of `to_text`.
"""

from __future__ import annotations

from bisect import bisect, insort
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import pairwise
from math import inf
from typing import Any

from ..dtypes import DType
from ..errors import UserError
from .graph import VIEWS, Graph
from .node import Node, Type, toposort
from .text import subgraphs

MAX_SVG_NODES = 1000  # larger drawings are unreadable and take seconds to lay out

# One middle tone for each kind: as an outline and as a thin wash it reads well on white and on black.
_COLOURS = {
    "input": "#16a34a", "output": "#16a34a", "leaf": "#64748b", "const": "#8b949e", "elementwise": "#3b82f6",
    "reduce": "#f97316", "along": "#ca8a04", "random": "#db2777", "move": "#14b8a6", "index": "#a855f7", "anchor": "#ef4444",
    "control": "#ec4899",
}  # fmt: skip
_PILLS = ("input", "output", "leaf", "const")
_STYLE = """
.weft text{font:10px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#57606a}
.weft .name{font:bold 13px ui-sans-serif,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#1f2328}
.weft g text{text-anchor:middle}.weft .port{font-size:8px}.weft .page{fill:#fff;stroke:#d1d9e0}
.weft .edge{fill:none;stroke:#8c959f;stroke-width:1.3}.weft .tip{fill:#8c959f}
.weft g rect{stroke-width:1.3;fill-opacity:.12}.weft .echo rect{stroke-dasharray:3 2}
@media (prefers-color-scheme:dark){.weft text{fill:#9aa4af}.weft .name{fill:#f0f6fc}
.weft .edge{stroke:#6e7681}.weft .tip{fill:#6e7681}.weft g rect{fill-opacity:.2}
.weft .page{fill:#0d1117;stroke:#30363d}}
"""
_MARGIN, _LINE, _STUB = 28.0, 13.5, 10.0  # around it all; from line to line; straight before an arrow's tip


@dataclass(eq=False, slots=True)
class _Box:
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
    ins: list[_Wire] = field(default_factory=list)
    outs: list[_Wire] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class _Wire:
    """An edge, or its part between two adjacent columns. A heavy one is drawn horizontally if possible."""

    source: _Box
    target: _Box
    label: str = ""
    weight: float = 1.0
    port: float = 0.0  # where it ends, seen from the middle of the target

    def __post_init__(self) -> None:
        self.source.outs.append(self)
        self.target.ins.append(self)


def to_dot(graph: Graph, title: str = "") -> str:
    """The graph in the DOT language of Graphviz."""

    def quote(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'

    numbers = {box: i for i, box in enumerate(_boxes(graph))}
    lines = [f"digraph {quote(title or 'graph')} {{", "  rankdir=LR;", f"  label={quote(title)}; labelloc=t;"]
    lines.append('  node [style="rounded,filled", fontname=Helvetica]; edge [arrowsize=0.6];')
    for box, i in numbers.items():
        label, shape = quote("\n".join(box.lines)), "oval" if box.kind in _PILLS else "box"
        look = f'shape={shape}, color="{_COLOURS[box.kind]}", fillcolor="{_COLOURS[box.kind]}20"'
        lines.append(f"  n{i} [label={label}, tooltip={quote(box.detail)}, {look}];")
        for w in box.ins:
            label = f' [headlabel="{w.label}"]' if w.label else ""
            lines.append(f"  n{numbers[w.source]} -> n{i}{label};")
    return "\n".join([*lines, "}", ""])


def to_svg(graph: Graph, title: str = "") -> str:
    """The graph as a self-contained SVG. Tooltips show the details of each node."""
    if (count := len(graph.nodes)) > MAX_SVG_NODES:
        advice = "Draw a part of it, read it with to_text(), or give to_dot() to Graphviz."
        raise UserError("svg", f"a picture can have {MAX_SVG_NODES} nodes, this graph has {count}. {advice}")
    boxes = _boxes(graph)
    _choose_layers(boxes)
    columns = _columns(boxes)
    _choose_order(columns)
    _choose_heights(columns, _weave(columns))
    return _draw(columns, title)


def _boxes(graph: Graph) -> list[_Box]:
    """A box for each node after those of its inputs, then the outputs; a wire for each argument."""
    names = {node: f"x{i}" for i, node in enumerate(graph.inputs)}
    for node in graph.nodes:
        names.setdefault(node, f"v{len(names) - len(graph.inputs)}")
    bodies = {body: f"body{i}" for i, body in enumerate(subgraphs(graph))}
    found: dict[Node, _Box] = {}
    for node in toposort([*graph.outputs, *graph.inputs]):  # so first arguments start out above second ones
        params = {key: _spell(value, bodies) for key, value in zip(node.op.params, node.params, strict=True)}
        types = [str(t) for t in node.outputs or (node.type,)]
        call = f"{names[node]} = {node.op.name}({', '.join(names[i] for i in node.inputs)})"
        detail = [call, *(f"{key}: {text}" for key, text in params.items()), ", ".join(types)]
        lines = [node.op.name, *_notable(node, params), *types]
        if len(lines) > 8:
            lines[5:-2] = ["…"]
        found[node] = box = _Box(node.op.kind, lines, names[node])
        box.detail = "\n".join([*detail, str(node.source)] if node.source else detail)
        if node in graph.inputs:
            box.kind, box.lines = "input", [box.name, *types]
        elif node.op.name == "const":
            text = params["value"]
            box.kind, box.lines = "const", [text if len(text) < 9 else f"{node.param('value'):.4g}"]
        numbered = len(node.inputs) > 1 and not node.op.commutes
        for i, argument in enumerate(node.inputs):
            _Wire(found[argument], box, str(i) if numbered else "")
    boxes = list(found.values())
    for i, node in enumerate(graph.outputs):
        label = f"output {i}" if len(graph.outputs) > 1 else "output"
        boxes.append(_Box("output", [label], detail=f"{label} = {names[node]}\n{node.type}"))
        _Wire(found[node], boxes[-1])
    for box in boxes:
        box.width = max([8.4 * len(box.lines[0]), *(6.1 * len(line) for line in box.lines[1:])]) + 28
        box.height = max(_LINE * len(box.lines) + (10 if box.kind in _PILLS else 15), 9.0 * len(box.ins) + 9)
    return boxes


def _spell(value: Any, bodies: dict[Graph, str]) -> str:
    """A parameter as text that is the same in every run: without addresses."""
    if isinstance(value, Graph):
        return f"{bodies.get(value, 'graph')} ({len(value.nodes)} nodes)"
    if isinstance(value, tuple):
        return "(" + ", ".join(_spell(v, bodies) for v in value) + ("," if len(value) == 1 else "") + ")"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    return value.name if isinstance(value, DType) else f"<{type(value).__name__}>"


def _notable(node: Node, params: dict[str, str]) -> list[str]:
    """The parameters that are not implied by the type, in short lines."""
    lines: list[str] = []
    for (key, text), value in zip(params.items(), node.params, strict=True):
        implied = value is node.dtype or isinstance(value, Type) or (key == "shape" and value == node.shape)
        if not (implied or text in ("None", "False", "()") or text.startswith("<")):
            piece = f"{key}={text}" if len(text) < 36 else f"{key}={text[:35]}…"
            lines.append(f"{lines.pop()}, {piece}" if lines and len(lines[-1] + piece) < 27 else piece)
    return lines


def _choose_layers(boxes: list[_Box]) -> None:
    """Each box right of what it needs, then further right where that makes arrows shorter."""
    free: dict[_Box, bool] = {}  # nothing else is made from what it is made from, so all of that can move along
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


def _columns(boxes: list[_Box]) -> list[list[_Box]]:
    """The boxes by column, and the wires cut into parts from column to column; those of a box share lanes.

    A constant stands next to its first user. Users further on get an echo of it instead of a long arrow.
    """
    columns: list[list[_Box]] = [[] for _ in range(1 + max((b.layer for b in boxes), default=-1))]
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
                    stops[layer] = echo if box.kind == "const" else _Box(box.kind, layer=layer)
                    columns[layer].append(stops[layer])
                    if box.kind != "const":
                        _Wire(stops[layer - 1], stops[layer], weight=2.0 if layer == box.layer + 1 else 8.0)
            light = box.kind in _PILLS and w.target.kind != "output"
            _Wire(stops[last], w.target, w.label, 2.0 if not stops[last].lines else 1.0 if light else 4.0)
    return columns


def _choose_order(columns: list[list[_Box]]) -> None:
    """The order in each column: boxes go to the mean of their neighbours, back and forth, and two change
    places where that undoes crossings. The best order met is kept.
    """
    best: list[list[_Box]] = []
    fewest = inf
    for sweep in range(17):
        for column in columns[::-1] if sweep % 2 else columns:
            mean: dict[_Box, float] = {}
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


def _put(column: list[_Box], order: list[_Box]) -> None:
    column[:] = order
    for rank, box in enumerate(column):
        box.rank = rank


def _weave(columns: list[list[_Box]]) -> int:
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
        joined: dict[_Box, int] = {}
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


def _choose_heights(columns: list[list[_Box]], count: int) -> None:
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


def _draw(columns: list[list[_Box]], title: str) -> str:
    """Choose the x of each box, as the space between columns depends on how steep the wires are, and write all."""
    boxes = [box for column in columns for box in column]
    top = _MARGIN + (30 if title else 0) - min((b.y - b.height / 2 for b in boxes), default=0)
    end = top + max((b.y + b.height / 2 for b in boxes), default=0) + 24
    spans: list[tuple[float, float]] = []  # the left and the right edge of each column
    x = _MARGIN
    for column in columns:
        steep = max((abs(w.source.y - w.target.y - w.port) for b in column for w in b.ins), default=0)
        x += min(34 + 0.16 * steep, 110) + _STUB if spans else 0
        spans.append((x, x + max(box.width for box in column)))
        x = spans[-1][1]
    for box in boxes:
        side = 0.5 if box.kind not in _PILLS else 0.0 if box.kind == "output" else 1.0
        left, right = spans[box.layer]
        box.x, box.y = left + side * (right - left - box.width), box.y + top
    arrows, shapes, legend = [], [], []
    for box in [box for box in boxes if box.outs]:
        start, path, tips = spans[box.layer][1], "", ""
        for w in box.outs:
            to, y, stop = w.target, w.target.y + w.port, spans[w.target.layer][0] - _STUB
            bend = (start + stop) / 2
            path += f"M{box.x + box.width if box.lines else start:.1f} {box.y:.1f}H{start:.1f}"
            if abs(y - box.y) > 0.1:
                path += f"C{bend:.1f} {box.y:.1f} {bend:.1f} {y:.1f} {stop:.1f} {y:.1f}"
            path += f"H{to.x - 4 if to.lines else spans[to.layer][1]:.1f}"
            tips += f"M{to.x:.1f} {y:.1f}l-7-3.2v6.4z" if to.lines else ""
        arrows.append(f'<path class="edge" d="{path}"/><path class="tip" d="{tips}"/>')
    for box in [box for box in boxes if box.lines]:
        mark = f'" data-name="{box.name}"' if box.name else ' echo"' if box.kind == "const" else '"'
        corner, middle = box.height / 2 if box.kind in _PILLS else 8, box.x + box.width / 2
        shapes.append(f'<g class="node {box.kind}{mark}><title>{_xml(box.detail)}</title>')
        shapes.append(f'<rect x="{box.x:.1f}" y="{box.y - box.height / 2:.1f}" width="{box.width:.1f}"')
        shapes.append(f'height="{box.height:.1f}" rx="{corner:.1f}"/>')
        for i, line in enumerate(box.lines):
            look, y = "" if i else ' class="name"', box.y + 4 + _LINE * (i - (len(box.lines) - 1) / 2)
            shapes.append(f'<text{look} x="{middle:.1f}" y="{y:.1f}">{_xml(line)}</text>')
        for w in [w for w in box.ins if w.label]:
            y = box.y + w.port + 3
            shapes.append(f'<text class="port" x="{box.x + 7:.1f}" y="{y:.1f}">{w.label}</text>')
        shapes.append("</g>")
    at = _MARGIN
    for kind in [kind for kind in _COLOURS if kind != "output" and any(box.kind == kind for box in boxes)]:
        legend.append(f'<g class="{kind}"><rect x="{at:.1f}" y="{end:.1f}" width="9" height="9" rx="2"/></g>')
        legend.append(f'<text x="{at + 14:.1f}" y="{end + 8:.1f}">{kind}</text>')
        at += 6.1 * len(kind) + 26
    width, height = f"{max(x, at - 10, _MARGIN + 8.4 * len(title)) + _MARGIN:.0f}", f"{end + 32:.0f}"
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="weft" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img"><title>{_xml(title or "graph")}</title><style>{_STYLE}',
        *(f".weft .{kind} rect{{stroke:{colour};fill:{colour}}}" for kind, colour in _COLOURS.items()),
        f'</style><rect class="page" width="{width}" height="{height}" rx="10"/>',
        f'<text class="name" x="{_MARGIN}" y="34">{_xml(title)}</text>',
    ]
    return "\n".join([*head, *arrows, *shapes, *legend, "</svg>", ""])


def _xml(text: str) -> str:
    printable = "".join(c if c.isprintable() or c == "\n" else " " for c in text)
    return printable.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


VIEWS["dot"], VIEWS["svg"] = to_dot, to_svg
