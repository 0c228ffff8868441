"""Graph drawings: `to_svg` draws a graph, `to_dot` writes it for Graphviz.

The drawing runs from left to right in columns (see weft/graph/layered_layout.py). Names are those of `to_text`.
"""

from __future__ import annotations

from typing import Any

from ..dtypes import DType
from ..errors import UserError
from .graph import VIEWS, Graph
from .layered_layout import PILLS, LayoutBox, LayoutWire, laid_out
from .node import Node, Type, toposort
from .text import subgraphs

MAX_SVG_NODES = 1000  # larger drawings are unreadable and take seconds to lay out

# One middle tone for each kind: as an outline and as a thin wash it reads well on white and on black.
_COLOURS = {
    "input": "#16a34a", "output": "#16a34a", "leaf": "#64748b", "const": "#8b949e", "elementwise": "#3b82f6",
    "reduce": "#f97316", "along": "#ca8a04", "random": "#db2777", "move": "#14b8a6", "index": "#a855f7", "anchor": "#ef4444",
    "control": "#ec4899",
}  # fmt: skip
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


def to_dot(graph: Graph, title: str = "") -> str:
    """The graph in the DOT language of Graphviz."""

    def quote(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'

    numbers = {box: i for i, box in enumerate(_boxes(graph))}
    lines = [f"digraph {quote(title or 'graph')} {{", "  rankdir=LR;", f"  label={quote(title)}; labelloc=t;"]
    lines.append('  node [style="rounded,filled", fontname=Helvetica]; edge [arrowsize=0.6];')
    for box, i in numbers.items():
        label, shape = quote("\n".join(box.lines)), "oval" if box.kind in PILLS else "box"
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
    return _draw(laid_out(boxes), title)


def _boxes(graph: Graph) -> list[LayoutBox]:
    """A box for each node after those of its inputs, then the outputs; a wire for each argument."""
    names = {node: f"x{i}" for i, node in enumerate(graph.inputs)}
    for node in graph.nodes:
        names.setdefault(node, f"v{len(names) - len(graph.inputs)}")
    bodies = {body: f"body{i}" for i, body in enumerate(subgraphs(graph))}
    found: dict[Node, LayoutBox] = {}
    for node in toposort([*graph.outputs, *graph.inputs]):  # so first arguments start out above second ones
        params = {key: _spell(value, bodies) for key, value in zip(node.op.params, node.params, strict=True)}
        types = [str(t) for t in node.outputs or (node.type,)]
        call = f"{names[node]} = {node.op.name}({', '.join(names[i] for i in node.inputs)})"
        detail = [call, *(f"{key}: {text}" for key, text in params.items()), ", ".join(types)]
        lines = [node.op.name, *_notable(node, params), *types]
        if len(lines) > 8:
            lines[5:-2] = ["…"]
        found[node] = box = LayoutBox(node.op.kind, lines, names[node])
        box.detail = "\n".join([*detail, str(node.source)] if node.source else detail)
        if node in graph.inputs:
            box.kind, box.lines = "input", [box.name, *types]
        elif node.op.name == "const":
            text = params["value"]
            box.kind, box.lines = "const", [text if len(text) < 9 else f"{node.param('value'):.4g}"]
        numbered = len(node.inputs) > 1 and not node.op.commutes
        for i, argument in enumerate(node.inputs):
            LayoutWire(found[argument], box, str(i) if numbered else "")
    boxes = list(found.values())
    for i, node in enumerate(graph.outputs):
        label = f"output {i}" if len(graph.outputs) > 1 else "output"
        boxes.append(LayoutBox("output", [label], detail=f"{label} = {names[node]}\n{node.type}"))
        LayoutWire(found[node], boxes[-1])
    for box in boxes:
        box.width = max([8.4 * len(box.lines[0]), *(6.1 * len(line) for line in box.lines[1:])]) + 28
        box.height = max(_LINE * len(box.lines) + (10 if box.kind in PILLS else 15), 9.0 * len(box.ins) + 9)
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


def _draw(columns: list[list[LayoutBox]], title: str) -> str:
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
        side = 0.5 if box.kind not in PILLS else 0.0 if box.kind == "output" else 1.0
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
        corner, middle = box.height / 2 if box.kind in PILLS else 8, box.x + box.width / 2
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
