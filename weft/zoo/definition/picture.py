"""The picture of a network: boxes with shapes from top to bottom, branches side by side, and lines where a layer reads an earlier one.

`network_picture` groups layers as people speak of them (a convolution with its norm and activation is one box) and gives every box its place;
`svg` draws it. Colours are CSS variables with fallbacks, so that a picture follows the theme of a page and stands alone as a file, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from html import escape
from math import prod

from ...records import dataclass
from .plan import NetworkPlan, PlannedLayer, Shape

WIDTH = 440.0  # of a picture with one column
LEAST, HEIGHT, GAP, MARGIN = 210.0, 34.0, 18.0, 30.0
NARROW = 225.0  # columns that are narrower have two lines in a box
MOST_COLUMNS = 6

_ACTIVATIONS = {
    "relu": "ReLU",
    "relu6": "ReLU6",
    "gelu": "GELU",
    "silu": "SiLU",
    "elu": "ELU",
    "selu": "SELU",
    "leaky_relu": "leaky ReLU",
}
_FOLLOWERS = {
    "batch_norm": "BN",
    "dropout": "dropout",
    "drop_path": "drop path",
    "layer_norm": "LN",
    "lrn": "LRN",
    **_ACTIVATIONS,
}
_TITLES = {
    "conv": "Conv", "conv_norm": "Conv", "linear": "Linear", "global_avg_pool": "Global average pool", "global_max_pool": "Global max pool",
    "max_pool": "Max pool", "avg_pool": "Average pool", "lstm": "LSTM", "gru": "GRU", "rnn": "RNN", "lrn": "LRN", "residual": "Residual block",
    "batch_norm": "Batch norm", "transformer_encoder": "Transformer layer", "transformer_block": "Transformer block", "conv_transpose": "Transposed conv",
    "depthwise_conv": "Depthwise conv", "separable_conv": "Separable conv", "convnext_block": "ConvNeXt block", "at_time": "One step",
}  # fmt: skip


@dataclass
class PictureBox:
    """A box of the picture: what it says and stands for, and where it is."""

    title: str
    note: str
    shape: Shape
    kind: str  # weights, block, other or io
    paths: tuple[str, ...] = ()
    lines: tuple[int, ...] = ()
    times: int = 1
    columns: list[list[PictureBox]] = field(default_factory=list)
    reads: tuple[str, ...] = ()
    name: str = ""
    x: float = 0.0
    y: float = 0.0
    width: float = 0.0
    height: float = HEIGHT

    @property
    def shape_text(self) -> str:
        return " × ".join(map(str, self.shape))


@dataclass(frozen=True)
class NetworkPicture:
    """Boxes with their places; `height` of all of them."""

    boxes: tuple[PictureBox, ...]
    height: float

    def all_boxes(self) -> Iterator[PictureBox]:
        return _walk(self.boxes)

    def svg(self, bad_line: int | None = None, label: str = "Picture of the network") -> str:
        """The picture; the box of `bad_line` is marked."""
        parts = [_edges(self.boxes), *(_box(box, bad_line) for box in self.all_boxes())]
        return (
            f'<svg class="netpic" viewBox="0 0 {WIDTH:g} {self.height:.0f}" role="img" aria-label="{escape(label)}" '
            f'xmlns="http://www.w3.org/2000/svg" font-family="Inter, system-ui, sans-serif" font-size="12.5">{"".join(parts)}</svg>'
        )


def network_picture(plan: NetworkPlan, detailed: bool = False) -> NetworkPicture:
    """The picture of a network; `detailed` shows what is inside of residual blocks and sequences."""
    first = PictureBox("Input", "", plan.input, "io", name="input")
    boxes = [first, *_grouped(plan.layers, detailed)]
    sizes = [prod(box.shape) for box in boxes if box.shape]
    height = _place(boxes, 0.0, 0.0, WIDTH, (min(sizes), max(sizes)))
    return NetworkPicture(tuple(boxes), height + 2)


# --- what belongs together ----------------------------------------------------------------------------------------------------------


def _grouped(layers: Sequence[PlannedLayer], detailed: bool) -> list[PictureBox]:
    boxes: list[PictureBox] = []
    for layer in layers:
        follows = (
            boxes
            and layer.kind in _FOLLOWERS
            and not layer.text.sources
            and boxes[-1].kind in ("weights", "block")
            and not detailed
        )
        if follows and not boxes[-1].name and not boxes[-1].columns:
            last = boxes[-1]
            note = ", ".join(filter(None, (last.note, _FOLLOWERS[layer.kind])))
            boxes[-1] = replace(
                last,
                note=note,
                shape=layer.output,
                paths=(*last.paths, layer.path),
                lines=(*last.lines, layer.text.place.line),
                name=layer.text.name or "",
            )
        else:
            boxes += _boxes(layer, detailed)
    return _merged(boxes)


def _boxes(layer: PlannedLayer, detailed: bool) -> list[PictureBox]:
    reads = tuple(name for name, _ in layer.text.sources or ())
    made = PictureBox(
        layer_title(layer),
        _note(layer),
        layer.output,
        _kind(layer),
        (layer.path,),
        (layer.text.place.line,),
        reads=reads,
        name=layer.text.name or "",
    )
    if layer.kind == "branches" or (detailed and layer.kind == "residual"):
        made.columns = [_grouped(part, detailed) for part in layer.parts]
    elif layer.kind == "sequence" or (detailed and layer.parts):
        inner = _grouped(layer.parts[0], detailed)
        return [*inner[:-1], replace(inner[-1], name=made.name)] if inner else [made]
    return [made]


def _merged(boxes: Sequence[PictureBox]) -> list[PictureBox]:
    """Equal neighbours as one box with a count."""
    found: list[PictureBox] = []
    for box in boxes:
        last = found[-1] if found else None
        same = (
            last is not None
            and (last.title, last.note, last.shape, last.name, last.reads) == (box.title, box.note, box.shape, "", ())
            and not box.columns
            and not last.columns
        )
        if same and last is not None:
            found[-1] = replace(
                last, times=last.times + 1, paths=(*last.paths, *box.paths), lines=(*last.lines, *box.lines)
            )
        else:
            found.append(box)
    return found


def _kind(layer: PlannedLayer) -> str:
    if layer.parts:
        return "block"
    return "weights" if layer.parameters else "other"


def layer_title(layer: PlannedLayer) -> str:
    """What people call a layer, such as Conv 3 × 3 / 2."""
    if layer.text.block is not None:
        return layer.text.block.name.replace("_", " ").capitalize()
    known, name = layer.arguments, layer.kind
    title = _TITLES.get(name) or _ACTIVATIONS.get(name) or name.replace("_", " ").capitalize()
    if "kernel" in known and not layer.parts:
        kernel, stride = known["kernel"], known.get("stride", 1)
        size = " × ".join(map(str, kernel)) if isinstance(kernel, tuple) else f"{kernel} × {kernel}"
        title += f" {size}" + (f" / {stride}" if stride != 1 else "")
    elif name in ("max_pool", "avg_pool"):
        stride = known["stride"]
        title += f" {known['size']}" + (f" / {stride}" if stride not in (None, known["size"]) else "")
    return title


def _note(layer: PlannedLayer) -> str:
    known, name = layer.arguments, layer.kind
    if name == "conv_norm":
        return ", ".join(filter(None, ("BN", _ACTIVATIONS.get(known["activation"], known["activation"] or ""))))
    if layer.parts and name != "branches":
        return _inside(layer)
    if name == "branches":
        return str(known["merge"])
    if name == "dropout":
        return f"{known['rate']:g}"
    activation = known.get("activation")
    return (
        _ACTIVATIONS.get(activation, activation)
        if isinstance(activation, str) and name in ("conv", "linear", "conv1d")
        else ""
    )


def _inside(layer: PlannedLayer) -> str:
    """What a block is made of, such as 2 conv 3 × 3."""
    counts: dict[str, int] = {}
    waiting = [one for part in layer.parts[:1] for one in part]
    while waiting:
        one = waiting.pop(0)
        if one.parts:
            waiting = [inner for part in one.parts for inner in part] + waiting
        elif one.parameters and one.kind not in _FOLLOWERS:
            text = layer_title(one).partition(" / ")[0].lower()
            counts[text] = counts.get(text, 0) + 1
    shown = [f"{count} {text}" for text, count in counts.items()]
    return ", ".join(shown[:2]) + (", ..." if len(shown) > 2 else "")


# --- places -------------------------------------------------------------------------------------------------------------------------


def _place(boxes: Sequence[PictureBox], left: float, top: float, width: float, sizes: tuple[int, int]) -> float:
    """Give boxes their places in a column; the bottom of the last one."""
    y = top
    for box in boxes:
        if box.columns:
            y = _place_columns(box, left, y, width, sizes)
        share = _share(prod(box.shape), sizes)
        box.width = (
            width
            if width <= NARROW
            else min(
                width, LEAST + (width - 2 * MARGIN - LEAST) * share if width == WIDTH else width * (0.7 + 0.3 * share)
            )
        )
        box.height = HEIGHT if width > NARROW else HEIGHT + 12
        box.x, box.y = left + (width - box.width) / 2, y
        y += box.height + GAP
    return y - GAP if boxes else y


def _place_columns(box: PictureBox, left: float, top: float, width: float, sizes: tuple[int, int]) -> float:
    """Branches side by side; where their merged box begins."""
    shown = box.columns[:MOST_COLUMNS]
    gap = 10.0
    each = (width - gap * (len(shown) - 1)) / len(shown)
    bottoms = [_place(column, left + i * (each + gap), top, each, sizes) for i, column in enumerate(shown)]
    return max([top + HEIGHT / 2, *bottoms]) + GAP


def _share(size: int, sizes: tuple[int, int]) -> float:
    low, high = (math.log(max(1, one)) for one in sizes)
    return 1.0 if high == low else (math.log(max(1, size)) - low) / (high - low)


# --- drawing ------------------------------------------------------------------------------------------------------------------------

_FILLS = {
    "weights": "fill:var(--q1,#dde4fa);stroke:var(--q2,#b9c7f4)", "block": "fill:var(--q1,#dde4fa);stroke:var(--q2,#b9c7f4)",
    "other": "fill:var(--sunken,#f1f1ee);stroke:var(--line,#e4e4df)", "io": "fill:var(--surface,#fff);stroke:var(--line-strong,#cfcfc8);stroke-dasharray:4 3",
    "bad": "fill:var(--bad-soft,#fdecea);stroke:var(--bad,#b9291f)",
}  # fmt: skip


def _box(box: PictureBox, bad_line: int | None) -> str:
    kind = "bad" if bad_line is not None and bad_line in box.lines else box.kind
    middle = box.y + 21
    title = (f"{box.times} × " if box.times > 1 else "") + box.title
    lines = " ".join(map(str, box.lines))
    start = f'<g class="netbox" data-lines="{lines}" data-path="{escape(" ".join(box.paths))}"><title>{escape(title)}: {box.shape_text}</title>'
    rect = f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.0f}" rx="7" style="{_FILLS[kind]}"/>'
    if box.height > HEIGHT:
        room = max(4, int((box.width - 12) / 6.2))
        texts = (
            _words(box.x + box.width / 2, box.y + 19, _cut(title, room), "600", "middle")
            + _words(box.x + box.width / 2, box.y + 35, _cut(box.shape_text, room), "400", "middle", muted=True)
        )  # fmt: skip
        return f"{start}{rect}{texts}</g>"
    room = int((box.width - 44 - 6.6 * len(title) - 6.6 * len(box.shape_text)) / 6.4)
    note = _cut(box.note, room) if box.note and room > 3 else ""
    texts = _words(box.x + 12, middle, title, "600", "start", note)
    texts += _words(box.x + box.width - 12, middle, box.shape_text, "400", "end", muted=True)
    return f"{start}{rect}{texts}</g>"


def _words(x: float, y: float, text: str, weight: str, anchor: str, note: str = "", muted: bool = False) -> str:
    fills = {False: "var(--ink,#1b1c1a)", True: "var(--ink-2,#5c5d58)"}
    beside = f'<tspan dx="8" font-weight="400" style="fill:{fills[True]}">{escape(note)}</tspan>' if note else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-weight="{weight}" text-anchor="{anchor}" style="fill:{fills[muted]}">'
        f"{escape(text)}{beside}</text>"
    )


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: max(1, room - 1)]}…"


def _edges(boxes: Sequence[PictureBox]) -> str:
    """Lines from box to box, and curves at the side to those that read earlier ones."""
    found: list[str] = []
    _column_edges(boxes, None, found)
    known = {box.name: box for box in _walk(boxes) if box.name}
    for box in _walk(boxes):
        for place, name in enumerate(box.reads):
            if name in known and name != "previous":
                found.append(_skip(known[name], box, place))
    return f'<g fill="none" style="stroke:var(--line-strong,#cfcfc8)" stroke-width="1.5">{"".join(found)}</g>'


def _column_edges(boxes: Sequence[PictureBox], before: PictureBox | None, found: list[str]) -> None:
    for box in boxes:
        if box.columns:
            for column in box.columns[:MOST_COLUMNS]:
                _column_edges(column, before, found)
                found.append(_line(column[-1] if column else before, box))
        elif before is not None and (not box.reads or "previous" in box.reads):
            found.append(_line(before, box))
        before = box


def _line(a: PictureBox | None, b: PictureBox) -> str:
    if a is None:
        return ""
    x1, y1, x2, y2 = a.x + a.width / 2, a.y + a.height, b.x + b.width / 2, b.y
    if abs(x1 - x2) < 0.5:
        return f'<path d="M{x1:.1f} {y1:.1f}V{y2:.1f}"/>'
    middle = y1 + GAP / 2 if y2 > y1 + GAP else (y1 + y2) / 2
    if y2 - y1 > 2 * GAP:  # around what is between them: down at the target's column
        return f'<path d="M{x1:.1f} {y1:.1f}V{middle:.1f}H{x2:.1f}V{y2:.1f}"/>'
    return f'<path d="M{x1:.1f} {y1:.1f}C{x1:.1f} {middle:.1f} {x2:.1f} {middle:.1f} {x2:.1f} {y2:.1f}"/>'


def _skip(a: PictureBox, b: PictureBox, place: int) -> str:
    """A curve along the right side."""
    x1, y1, x2, y2 = a.x + a.width, a.y + a.height / 2, b.x + b.width, b.y + b.height / 2
    far = min(WIDTH - 3, max(x1, x2) + 14 + 4 * place)
    return f'<path d="M{x1:.1f} {y1:.1f}H{far - 8:.1f}Q{far:.1f} {y1:.1f} {far:.1f} {y1 + 8:.1f}V{y2 - 8:.1f}Q{far:.1f} {y2:.1f} {far - 8:.1f} {y2:.1f}H{x2:.1f}" stroke-dasharray="4 3"/>'


def _walk(boxes: Sequence[PictureBox]) -> Iterator[PictureBox]:
    for box in boxes:
        for column in box.columns[:MOST_COLUMNS]:
            yield from _walk(column)
        yield box


# --- a small picture for tables -------------------------------------------------------------------------------------------------------


def feature_profile(shapes: Sequence[Shape], most: int = 10) -> list[tuple[int, int]]:
    """How sizes and channels change through a network: (height, channels) of up to `most` places.

    >>> feature_profile([(8, 16, 16), (8, 16, 16), (16, 8, 8), (10,)])
    [(16, 8), (8, 16), (1, 10)]
    """
    found: list[tuple[int, int]] = []
    for shape in shapes:
        one = (shape[1], shape[0]) if len(shape) == 3 else (math.isqrt(prod(shape[:-1])), shape[-1])
        if not found or found[-1] != one:
            found.append(one)
    if len(found) <= most:
        return found
    step = (len(found) - 1) / (most - 1)
    return [found[round(i * step)] for i in range(most)]


def profile_svg(profile: Sequence[tuple[int, int]], width: int = 96, height: int = 24) -> str:
    """Bars from left to right: higher is a larger image, darker is more channels."""
    if not profile:
        return ""
    largest, most = max(size for size, _ in profile), max(channels for _, channels in profile)
    each = min(10.5, width / len(profile))
    bars = []
    for i, (size, channels) in enumerate(profile):
        tall = max(3.0, (height - 4) * (math.log(1 + size) / math.log(1 + max(2, largest))))
        shade = 2 + round(4 * math.log(1 + channels) / math.log(1 + max(2, most)))
        bars.append(
            f'<rect x="{i * each:.1f}" y="{(height - tall) / 2:.1f}" width="{each - 2.5:.1f}" height="{tall:.1f}" rx="1.5" style="fill:var(--q{min(6, shade)})"/>'
        )
    return f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" aria-hidden="true" style="display:block">{"".join(bars)}</svg>'
