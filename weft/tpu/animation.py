"""An animation of a small systolic array multiplying matrices, as an SVG without JavaScript.

Everything that moves is a token with keyframes (SMIL animations on one clock); the values come from the cycle-by-cycle simulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ..errors import UserError
from ..records import dataclass
from .systolic import systolic_product

CELL, PITCH, FEED = 84, 96, 36  # pixels: a cell, the distance of two, the distance of queued activations
MARGIN, TOP, GAP = 28, 156, 44
LARGEST = 8  # rows and columns that are still readable
SECONDS = 1.5  # per cycle
MOVING = 0.45  # fraction of a cycle in which tokens move; then they rest
PAUSE = 3  # cycles at the end

STYLE = """
.tpu { font-family: ui-sans-serif, system-ui, "Segoe UI", Roboto, sans-serif; --back: #ffffff; --ink: #1d2733; --soft: #6b7a89; --line: #d5dde5; --cell: #f5f8fa;
  --lit: #e3f4f1; --edge: #2a9d8f; --token: #1f7a70; --on: #ffffff; --sum: #e07a3f; --weight: #3d5a80; --slot: #fbf3ec }
@media (prefers-color-scheme: dark) { .tpu { --back: #161b22; --ink: #e6edf3; --soft: #8b98a5; --line: #303a45; --cell: #1d242d; --lit: #17352f; --edge: #3fb8a8;
  --token: #2a9d8f; --sum: #e98a52; --weight: #9db8dd; --slot: #231d18 } }
.back { fill: var(--back) } .title { font-size: 21px; font-weight: 650; fill: var(--ink) } .soft { font-size: 14px; fill: var(--soft) }
.cell { fill: var(--cell); stroke: var(--line); stroke-width: 1.5 } .lit { fill: var(--lit); stroke: var(--edge); stroke-width: 2 }
.weight { font-size: 19px; font-weight: 650; fill: var(--weight); text-anchor: middle } .formula { font-size: 15px; fill: var(--ink); text-anchor: middle }
.token { fill: var(--token) } .number { font-size: 15px; font-weight: 600; fill: var(--on); text-anchor: middle }
.sum { fill: var(--sum) } .slot { fill: var(--slot); stroke: var(--line); stroke-dasharray: 3 3 } .count { font-size: 17px; font-weight: 600; fill: var(--ink); text-anchor: end }
.bar { fill: var(--line) } .done { fill: var(--edge) }
"""


def animate_systolic(x: np.ndarray, w: np.ndarray) -> str:
    """An SVG in which an array with one cell per weight computes x @ w: weights are shifted in, activations flow right, sums flow down.

    >>> svg = animate_systolic(np.ones((2, 2), int), np.ones((2, 2), int))
    >>> svg.startswith("<svg"), "script" in svg
    (True, False)
    """
    x, w = np.asarray(x), np.asarray(w)
    if x.ndim != 2 or w.ndim != 2 or x.shape[1] != w.shape[0] or max(*x.shape, *w.shape) > LARGEST:
        raise UserError(
            "tpu",
            f"two matrices of up to {LARGEST} x {LARGEST} that can be multiplied are required, got {x.shape} and {w.shape}.",
        )
    return _Picture(x, w).svg()


@dataclass
class _Moment:
    """A keyframe: from this time on, in cycles, a token is at a position, visible or not."""

    time: float
    x: float
    y: float


class _Picture:
    def __init__(self, x: np.ndarray, w: np.ndarray) -> None:
        self.x, self.w = x, w
        self.rows, self.columns = w.shape
        self.run = systolic_product(x, w, self.rows, self.columns)
        self.start = self.rows  # cycles in which weights are shifted in
        self.total = self.run.cycles + PAUSE
        self.left = MARGIN + max(200, (len(x) + self.rows) * FEED + GAP - 24)
        self.bottom = TOP + self.rows * PITCH
        self.width = self.left + self.columns * PITCH + MARGIN + 8
        self.height = self.bottom + 58 + max(3, len(x)) * 34 + MARGIN - 12

    def svg(self) -> str:
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="tpu" viewBox="0 0 {self.width} {self.height}" role="img" aria-label="A systolic array multiplying">',
            f"<style>{STYLE}</style>", f'<rect class="back" width="{self.width}" height="{self.height}" rx="14"/>',
            *self._frame(), *self._cells(), *self._weights(), *self._formulas(), *self._activations(), *self._sums(), "</svg>",
        ]  # fmt: skip
        return "\n".join(parts)

    # --- static parts -------------------------------------------------------------------------------------------------------------

    def _frame(self) -> list[str]:
        rows = len(self.x)
        lines = [
            f'<text class="title" x="{MARGIN}" y="46">A systolic array: {rows} × {self.rows} times {self.rows} × {self.columns}</text>',
            *self._captions(), *self._counter(),
            f'<text class="soft" x="{self.left}" y="{self.bottom + 30}">accumulators</text>', *self._legend(),
        ]  # fmt: skip
        for m in range(rows):
            _, y = self._slot(m, 0)
            lines.append(f'<text class="soft" text-anchor="end" x="{self.left - 6}" y="{y + 5}">row {m + 1}</text>')
            for c in range(self.columns):
                x, y = self._slot(m, c)
                lines.append(f'<rect class="slot" x="{x - 31}" y="{y - 14}" width="62" height="28" rx="14"/>')
        return lines

    def _legend(self) -> list[str]:
        x, y = MARGIN + 14, self.bottom + 62
        return [
            f'<circle class="token" cx="{x}" cy="{y}" r="11"/><text class="soft" x="{x + 26}" y="{y + 5}">activation: moves right</text>',
            f'<text class="weight" x="{x}" y="{y + 40}">w</text><text class="soft" x="{x + 26}" y="{y + 39}">weight: stays in its cell</text>',
            f'<rect class="sum" x="{x - 14}" y="{y + 58}" width="28" height="20" rx="10"/><text class="soft" x="{x + 26}" y="{y + 73}">sum: moves down</text>',
        ]  # fmt: skip

    def _captions(self) -> list[str]:
        texts = [
            (0, "Weights move down into the array and stay there."),
            (self.start, "Activations flow right, one row a cycle, and one cycle later in each row of cells."),
            (self.start + self.rows, "Every cell multiplies and adds to the sum from above. Complete sums leave at the bottom."),
            (self.run.cycles, f"{len(self.x)} rows enter in {len(self.x)} cycles; the wave needs {self.rows + self.columns - 2} more to leave the array."),
        ]  # fmt: skip
        lines = []
        for number, (begin, text) in enumerate(texts):
            end = texts[number + 1][0] if number + 1 < len(texts) else self.total
            for i, line in enumerate(_wrapped(text, (self.width - 2 * MARGIN) // 7)):
                lines.append(
                    f'<text class="soft" x="{MARGIN}" y="{76 + 20 * i}">{line}{self._visible(begin, end)}</text>'
                )
        return lines

    def _counter(self) -> list[str]:
        x, wide = self.width - MARGIN, 150
        lines = [f'<rect class="bar" x="{x - wide}" y="52" width="{wide}" height="4" rx="2"/>']
        lines.append(
            f'<rect class="done" x="{x - wide}" y="52" width="0" height="4" rx="2"><animate attributeName="width" dur="{self._dur}" '
            f'repeatCount="indefinite" keyTimes="0;{self.run.cycles / self.total:.4f};1" values="0;{wide};{wide}"/></rect>'
        )
        for cycle in range(self.run.cycles):
            end = cycle + 1 if cycle + 1 < self.run.cycles else self.total
            lines.append(
                f'<text class="count" x="{x}" y="44">cycle {cycle + 1} of {self.run.cycles}{self._visible(cycle, end)}</text>'
            )
        return lines

    def _cells(self) -> list[str]:
        lines = []
        for r in range(self.rows):
            for c in range(self.columns):
                x, y = self._cell(r, c)
                box = f'x="{x}" y="{y}" width="{CELL}" height="{CELL}" rx="12"'
                begin = self.start + r + c
                lines.append(f'<rect class="cell" {box}/>')
                lines.append(f'<rect class="lit" {box}>{self._visible(begin, begin + len(self.x))}</rect>')
        return lines

    # --- moving parts -------------------------------------------------------------------------------------------------------------

    def _weights(self) -> list[str]:
        """A weight enters above its column and moves down to its row; columns start one after the other."""
        lines = []
        for r in range(self.rows):
            for c in range(self.columns):
                x, y = self._cell(r, c)
                x, y = x + CELL - 25, y + 22
                above, enters = TOP - 16, self.rows - 1 - r + c
                way = [_Moment(0, x, above)]
                way += [_Moment(enters + k, x, y - (r - k) * PITCH) for k in range(r + 1)]
                text = f'<text class="weight" y="6">{_number(self.w[r, c])}</text>'
                lines.append(self._token(text, way, enters - 0.5 if enters else 0))
        return lines

    def _formulas(self) -> list[str]:
        lines = []
        for m in range(len(self.x)):
            for r in range(self.rows):
                for c in range(self.columns):
                    x, y = self._cell(r, c)
                    begin = self.start + m + r + c
                    text = f"{_number(self.x[m, r])} × {_number(self.w[r, c])}"
                    shown = self._visible(begin + MOVING, begin + 1)
                    lines.append(f'<text class="formula" x="{x + CELL / 2}" y="{y + 51}">{text}{shown}</text>')
        return lines

    def _activations(self) -> list[str]:
        lines = []
        for m in range(len(self.x)):
            for r in range(self.rows):
                enters = self.start + m + r
                way = [_Moment(0, *self._waiting(m + r + 1, r))]
                way += [_Moment(t, *self._waiting(enters - t, r)) for t in range(self.start, enters)]
                for c in range(self.columns):
                    x, y = self._cell(r, c)
                    way.append(_Moment(enters + c, x + 20, y + 22))
                x, y = self._cell(r, self.columns)
                way.append(_Moment(enters + self.columns, x - PITCH + CELL + 4, y + 22))
                text = f'<circle class="token" r="14"/><text class="number" y="5">{_number(self.x[m, r])}</text>'
                lines.append(self._token(text, way, 0, enters + self.columns + MOVING))
        return lines

    def _sums(self) -> list[str]:
        lines = []
        for m in range(len(self.x)):
            for c in range(self.columns):
                begin = self.start + m + c
                x, y = self._cell(0, c)
                way = [_Moment(0, x + CELL / 2, y + CELL - 16)]
                way += [_Moment(begin + r, x + CELL / 2, y + r * PITCH + CELL - 16) for r in range(self.rows)]
                way.append(_Moment(begin + self.rows, *self._slot(m, c)))
                parts = ['<rect class="sum" x="-27" y="-12" width="54" height="24" rx="12"/>']
                for r, total in enumerate(np.cumsum(self.x[m] * self.w[:, c])):
                    # The number changes when the token has arrived and the product is added.
                    first = begin + r + MOVING
                    last = self.total if r + 1 == self.rows else begin + r + 1 + MOVING
                    parts.append(f'<text class="number" y="5">{_number(total)}{self._visible(first, last)}</text>')
                lines.append(self._token("".join(parts), way, begin + MOVING))
        return lines

    # --- places and times ---------------------------------------------------------------------------------------------------------

    def _cell(self, r: int, c: int) -> tuple[float, float]:
        return self.left + c * PITCH, TOP + r * PITCH

    def _waiting(self, cycles: int, r: int) -> tuple[float, float]:
        """The position of an activation that enters the array in `cycles` cycles."""
        return self.left - 10 - cycles * FEED, self._cell(r, 0)[1] + 22

    def _slot(self, m: int, c: int) -> tuple[float, float]:
        return self.left + c * PITCH + CELL / 2, self.bottom + 62 + m * 34

    @property
    def _dur(self) -> str:
        return f"{self.total * SECONDS:g}s"

    def _token(self, content: str, way: Sequence[_Moment], begin: float, end: float | None = None) -> str:
        """A group that moves to each position at the beginning of its cycle, and rests there."""
        times, places = [0.0], [way[0]]
        for before, now in pairwise(way):
            times += [now.time, now.time + MOVING]
            places += [before, now]
        times.append(self.total)
        places.append(way[-1])
        keys = ";".join(f"{t / self.total:.4f}" for t in times)
        values = ";".join(f"{p.x:g} {p.y:g}" for p in places)
        splines = ";".join([".4 0 .2 1"] * (len(times) - 1))
        move = (
            f'<animateTransform attributeName="transform" type="translate" dur="{self._dur}" repeatCount="indefinite" calcMode="spline" '
            f'keyTimes="{keys}" keySplines="{splines}" values="{values}"/>'
        )
        shown = self._visible(begin, self.total if end is None else end)
        return f'<g transform="translate({way[-1].x:g} {way[-1].y:g})">{move}{shown}{content}</g>'

    def _visible(self, begin: float, end: float) -> str:
        """An animation that shows its parent from one time to another."""
        begin, end = max(0.0, begin) / self.total, min(end, self.total) / self.total
        if begin <= 0 and end >= 1:
            return ""
        keys, values = ["0"], ["1" if begin <= 0 else "0"]
        if begin > 0:
            keys.append(f"{begin:.4f}")
            values.append("1")
        if end < 1:
            keys.append(f"{end:.4f}")
            values.append("0")
        return (
            f'<animate attributeName="opacity" dur="{self._dur}" repeatCount="indefinite" calcMode="discrete" '
            f'keyTimes="{";".join(keys)}" values="{";".join(values)}"/>'
        )


def _number(value: float) -> str:
    return f"{int(value)}".replace("-", "−")


def _wrapped(text: str, most: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) > most:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
