"""Draws a profile as a graph: layers from top to bottom in the order of data flow, with the shapes of their results, coloured by cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from xml.sax.saxutils import escape

from ..errors import Scope, UserError
from ..graph.layered_layout import LayoutBox, LayoutWire, laid_out
from ..records import dataclass
from .layer_flow import INPUT, FlowLayer, LayerKey
from .layer_profile import NOTHING, KernelProfile, LayerProfile, part_of
from .profile_text import amount, duration

MOST = 400  # boxes; larger pictures are unreadable
LINE, PADDING, MARGIN, HEAD, GAP = 15.0, 8.0, 24.0, 84.0, 26.0
SHOWN = 0.002  # fraction of the time: cheaper layers are merged into the box before them
FOLDED = 3  # classes of layers without kernels that a box lists
RAMP = (
    (255, 247, 232),
    (253, 203, 128),
    (242, 120, 60),
    (176, 32, 24),
)  # from zero to the maximum, for light and dark pages
OPTIMIZER: LayerKey = ("", "optimizer", 0)


@dataclass(frozen=True)
class _Cost:
    title: str
    of: Callable[[LayerProfile], float]
    text: Callable[[float], str]
    adds_up: bool = True

    def sum(self, values: Sequence[float]) -> float:
        return sum(values) if self.adds_up else max(values, default=0.0)


COSTS = {
    "time": _Cost("time of a call", lambda one: one.seconds, duration),
    "energy": _Cost("energy of a call, modelled", lambda one: one.joules, lambda v: f"{amount(v)}J"),
    "memory": _Cost("memory in use while a layer runs", lambda one: float(one.live), lambda v: f"{amount(v)}B", False),
}


def graph_svg(flow: Sequence[FlowLayer], kernels: Sequence[KernelProfile], by: str = "time", title: str = "") -> str:
    """The graph as SVG. Layers with hardly any time of their own, such as a fused activation, are merged into the box before them."""
    if by not in COSTS:
        raise UserError("graph_svg", f"by is one of {', '.join(COSTS)}, got {by!r}.")
    cost, found = COSTS[by], _costs(kernels, {layer.key for layer in flow})
    enough = SHOWN * sum(one.seconds for one in found.values())
    layers = _folded(flow, {key for key, one in found.items() if one.seconds >= enough or key == OPTIMIZER})
    if not 0 < len(layers) <= MOST:
        raise UserError("graph_svg", f"a picture has 1 to {MOST} layers, this profile has {len(layers)}.")
    values = {key: cost.of(one) for key, one in found.items()}
    total = cost.sum(list(values.values()))
    drawn = [_Drawn(layer, _value(layer, layers, values, cost)) for layer in layers]
    return _draw(drawn, cost, max((one.value or 0.0 for one in drawn), default=0.0), total, title)


def _costs(kernels: Sequence[KernelProfile], drawn: set[LayerKey]) -> dict[LayerKey, LayerProfile]:
    """The costs of each layer in all phases; updates of parameters belong to the optimizer."""
    found: dict[LayerKey, LayerProfile] = {}
    for kernel in kernels:
        for scope, share in kernel.layers:
            key = OPTIMIZER if scope.phase == "update" else _drawn_layer((scope.path, scope.kind, scope.root), drawn)
            found[key] = found.get(key, LayerProfile(*key[:2], "")) + part_of(kernel, share)
    least = NOTHING * sum(one.seconds for one in found.values())
    return {key: one for key, one in found.items() if one.seconds > least}


def _drawn_layer(key: LayerKey, drawn: set[LayerKey]) -> LayerKey:
    """The layer itself, or the enclosing one that has a box: layers inside control flow have none."""
    path, _, root = key
    around = [
        one for one in drawn
        if one[2] == root and one[1] != INPUT and (not one[0] or path.startswith(f"{one[0]}."))
    ]  # fmt: skip
    return key if key in drawn or not around else max(around, key=lambda one: len(one[0]))


# --- boxes -------------------------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _LayerBox:
    """A box: a layer and the following ones without kernels."""

    key: LayerKey
    shape: tuple[int, ...]
    reads: list[_LayerBox]
    nodes: int
    folded: list[LayerKey] = field(default_factory=list)


def _folded(flow: Sequence[FlowLayer], costly: set[LayerKey]) -> list[_LayerBox]:
    """A box for each layer that has a cost or joins others."""
    readers = Counter(i for one in flow for i in one.reads)
    found: list[_LayerBox] = []
    box_of: list[_LayerBox] = []
    for one in flow:
        reads = list(dict.fromkeys(box_of[i] for i in one.reads))
        last = reads[0] if len(one.reads) == 1 and readers[one.reads[0]] == 1 else None
        if last is not None and one.key not in costly and one.kind and last.key[1] != INPUT:
            last.folded.append(one.key)
            last.shape = one.shape
            box_of.append(last)
        else:
            found.append(_LayerBox(one.key, one.shape, reads, one.nodes))
            box_of.append(found[-1])
    if OPTIMIZER in costly and found:
        found.append(_LayerBox(OPTIMIZER, (), [found[-1]], 0))
    return found


def _value(layer: _LayerBox, layers: Sequence[_LayerBox], values: dict[LayerKey, float], cost: _Cost) -> float | None:
    """The cost of a box. For a layer with several boxes, it is shown at the largest part."""
    same = [one for one in layers if one.key == layer.key]
    own = [layer.key] if max(same, key=lambda one: one.nodes) is layer else []
    known = [values[key] for key in dict.fromkeys([*own, *layer.folded]) if key in values]
    return cost.sum(known) if known else None


# --- drawing -----------------------------------------------------------------------------------------------------------------------


@dataclass
class _Drawn:
    layer: _LayerBox
    value: float | None

    @property
    def title(self) -> str:
        path, kind, _ = self.layer.key
        return Scope(path, kind).label

    def lines(self, cost: _Cost, total: float) -> list[str]:
        path, kind, _ = self.layer.key
        more = [f"+ {name}" for name in dict.fromkeys(kind for _, kind, _ in self.layer.folded if kind)]
        more[FOLDED:] = ["..."] if len(more) > FOLDED else []
        classes = " ".join([kind if path else "", *more]).strip()
        shape = " × ".join(map(str, self.layer.shape))
        return [line for line in (classes, shape, self.cost_text(cost, total)) if line]

    def cost_text(self, cost: _Cost, total: float) -> str:
        if self.value is None:
            return ""
        share = f", {self.value / total:.1%}" if cost.adds_up and total else ""
        return cost.text(self.value) + share


def _draw(drawn: Sequence[_Drawn], cost: _Cost, largest: float, total: float, title: str) -> str:
    lines = {one.layer: [one.title, *one.lines(cost, total)] for one in drawn}
    boxes = {one.layer: _box(one, lines[one.layer]) for one in drawn}
    for layer, box in boxes.items():
        for read in layer.reads:
            LayoutWire(boxes[read], box)
    rows = laid_out(list(boxes.values()))
    edges = [(wire, wire.target) for row in rows for box in row for wire in box.outs]
    width, height = _place(rows)
    width = max(width, 460.0)
    parts = [_edge(wire.source, target) for wire, target in edges]
    by_box = {boxes[one.layer]: one for one in drawn}
    parts += [_rectangle(box, one, lines[one.layer], largest) for box, one in by_box.items()]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" '
        f'role="img" aria-label="{escape(title or "Network")}, coloured by {cost.title}" class="layergraph">'
        f"<style>{_STYLE}</style>{''.join(_legend(cost, largest, total, title))}{''.join(parts)}</svg>"
    )


def _box(one: _Drawn, lines: Sequence[str]) -> LayoutBox:
    """A box for the layout, which runs from left to right: height and width are swapped."""
    wide = max(8.0 * len(lines[0]), *(6.9 * len(line) for line in [*lines[1:], ""])) + 28
    tall = LINE * len(lines) + 2 * PADDING
    return LayoutBox("box", list(lines), one.title, width=tall, height=max(150.0, wide))


def _place(rows: Sequence[Sequence[LayoutBox]]) -> tuple[float, float]:
    """Transpose the layout: its columns become rows. Returns the size of the picture."""
    for segment in _segments(rows):
        _centre(segment)
    left = min(box.y - box.height / 2 for row in rows for box in row)
    y = HEAD
    for row in rows:
        tall = max(box.width for box in row)
        for box in row:
            box.width, box.height = box.height, box.width if box.lines else tall
            box.x, box.y = MARGIN + box.y - box.width / 2 - left, y
        y += tall + GAP
    return MARGIN + max(box.x + box.width for row in rows for box in row), y - GAP + MARGIN


def _segments(rows: Sequence[Sequence[LayoutBox]]) -> Iterator[list[LayoutBox]]:
    """The boxes between two boxes that all data passes through, and each of those alone: segments can be moved sideways independently."""
    found: list[LayoutBox] = []
    for row in rows:
        if len(row) > 1:
            found += row
            continue
        yield from ([found] if found else [])
        yield list(row)
        found = []
    yield from ([found] if found else [])


def _centre(boxes: Sequence[LayoutBox]) -> None:
    """Centre boxes around 0, along the layout's direction."""
    ends = [end for box in boxes for end in (box.y - box.height / 2, box.y + box.height / 2)]
    middle = (min(ends) + max(ends)) / 2
    for box in boxes:
        box.y -= middle


def _edge(source: LayoutBox, target: LayoutBox) -> str:
    x1, y1, x2, y2 = source.x + source.width / 2, source.y + source.height, target.x + target.width / 2, target.y
    middle = (y1 + y2) / 2
    bend = f"V{y2:.1f}" if abs(x1 - x2) < 0.5 else f"C{x1:.1f} {middle:.1f} {x2:.1f} {middle:.1f} {x2:.1f} {y2:.1f}"
    start = f"M{x1:.1f} {source.y if not source.lines else y1:.1f}V{y1:.1f}"
    tip = f'<path class="tip" d="M{x2:.1f} {y2:.1f}l-3.2-6.5h6.4z"/>' if target.lines else ""
    return f'<path class="edge" d="{start}{bend}"/>{tip}'


def _rectangle(box: LayoutBox, one: _Drawn, lines: Sequence[str], largest: float) -> str:
    share = None if one.value is None or not largest else one.value / largest
    look = ' class="plain"' if share is None else f' fill="{_colour(share)}"'
    ink = "" if share is None else ' fill="#fff"' if share > 0.62 else ' fill="#1b1c1a"'
    middle = box.x + box.width / 2
    texts = [
        f'<text{" class=name" if i == 0 else ""}{ink} x="{middle:.1f}" y="{box.y + PADDING + LINE * i + 11:.1f}">{escape(line)}</text>'
        for i, line in enumerate(lines)
    ]
    hint = escape(" / ".join(lines))
    rect = f'<rect{look} x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="7"/>'
    return f'<g class="layer"><title>{hint}</title>{rect}{"".join(texts)}</g>'.replace("class=name", 'class="name"')


def _legend(cost: _Cost, largest: float, total: float, title: str) -> Iterator[str]:
    whole = f"{cost.text(total)} in total" if cost.adds_up else f"{cost.text(total)} at most"
    yield f'<text class="name" x="{MARGIN}" y="26">{escape(title or "Network")}</text>'
    yield f'<text x="{MARGIN}" y="46">{escape(cost.title)}, {escape(whole)}</text>'
    steps = 24
    for i in range(steps):
        yield f'<rect x="{MARGIN + 20 + 6 * i:.1f}" y="56" width="6.2" height="10" fill="{_colour(i / (steps - 1))}"/>'
    yield f'<text x="{MARGIN}" y="65">0</text><text x="{MARGIN + 26 + 6 * steps:.1f}" y="65">{escape(cost.text(largest))}</text>'


def _colour(share: float) -> str:
    place = min(max(share, 0.0), 1.0) * (len(RAMP) - 1)
    step = min(int(place), len(RAMP) - 2)
    part = place - step
    mixed = [round(a + part * (b - a)) for a, b in zip(RAMP[step], RAMP[step + 1], strict=True)]
    return "#" + "".join(f"{value:02x}" for value in mixed)


_STYLE = (
    ".layergraph{font:12px system-ui,sans-serif;--ink:#2b2f36;--line:#9aa1ab;--paper:#fff;background:var(--paper)}"
    "@media(prefers-color-scheme:dark){.layergraph{--ink:#d4d9e0;--line:#6b737e;--paper:#15181c}}"
    ":root[data-theme=dark] .layergraph{--ink:#d4d9e0;--line:#6b737e;--paper:#15181c}"
    ":root[data-theme=light] .layergraph{--ink:#2b2f36;--line:#9aa1ab;--paper:#fff}"
    ".layergraph text:not([fill]){fill:var(--ink)}.layergraph .layer text{text-anchor:middle}.layergraph .name{font-weight:600;font-size:13px}"
    ".layergraph .layer rect{stroke:var(--line);stroke-opacity:.55}.layergraph .plain{fill:none;stroke-dasharray:4 3}"
    ".layergraph .edge{fill:none;stroke:var(--line);stroke-width:1.4}.layergraph .tip{fill:var(--line)}"
)
