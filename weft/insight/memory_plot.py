"""Plots a memory timeline: bytes by kind over the kernels of a step, and the lifetimes of the largest values below."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from ..records import dataclass
from ..report import svg
from ..report.axes import ChartAxis, make_axis
from .memory_text import PrintableTimeline, size_text
from .memory_values import ACTIVATIONS, CALL, GRADIENTS, KINDS, OPTIMIZER, PARAMETERS, TEMPORARIES, LiveValue

WIDTH, LEFT, RIGHT, MARGIN = 960, 226, 84, 20
PLOT_TOP, PLOT_HEIGHT = 116, 250
STRIP, ROW, BAR = 7, 21, 14  # heights: of the phases, of a lifetime's row, of its bar
LIFETIMES = 14  # number drawn
TOOLTIPS = 600  # kernels: above, columns are too narrow for the pointer
SERIES = {PARAMETERS: 0, OPTIMIZER: 3, CALL: 5, ACTIVATIONS: 2, GRADIENTS: 1, TEMPORARIES: 4}  # colours of report.svg
PHASES = {"forward": 2, "backward": 1, "update": 3}


@dataclass(frozen=True)
class _MemoryScale:
    """Kernels from left to right, bytes from the bottom up."""

    kernels: int
    up: ChartAxis

    def x(self, kernel: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * kernel / self.kernels

    def y(self, count: float) -> float:
        return PLOT_TOP + PLOT_HEIGHT * (1 - self.up.position(count))


def timeline_svg(found: PrintableTimeline) -> str:
    """The plot as SVG, with light and dark colours."""
    scale = _MemoryScale(max(1, len(found.kernels)), make_axis([0, 1.08 * found.peak], tight=True))
    bars = sorted((v for v in found.values if v.in_arena), key=lambda v: -v.nbytes * (v.last - v.first + 1))[:LIFETIMES]
    bars.sort(key=lambda value: (value.first, value.last))
    first_row = PLOT_TOP + PLOT_HEIGHT + STRIP + 74
    height = first_row + max(1, len(bars)) * ROW + MARGIN
    parts = [*_head(found), *_grid(scale), *_areas(found, scale), *_peak(found, scale, height - MARGIN)]
    parts += [*_phases(found, scale), *_lifetimes(found, bars, scale, first_row)]
    return svg.document(WIDTH, height, "Memory of a step over its kernels", parts)


def _head(found: PrintableTimeline) -> Iterator[str]:
    yield svg.text(MARGIN, 32, "Memory of a step", "title")
    yield svg.text(
        MARGIN, 52, f"{size_text(found.peak)} at the peak, {len(found.kernels)} kernels on {found.where}", "soft"
    )
    for number, (kind, count) in enumerate(found.at_peak().items()):
        x = MARGIN + number * (WIDTH - 2 * MARGIN) / len(KINDS)
        yield svg.rect(x, 69, 11, 11, f"f{SERIES[kind]}", corner=2)
        yield svg.text(x + 17, 79, kind)
        yield svg.text(x + 17, 96, size_text(count), "soft", size=11)


def _grid(scale: _MemoryScale) -> Iterator[str]:
    for tick, label in zip(scale.up.ticks, scale.up.labels, strict=True):
        y = scale.y(tick)
        yield svg.line(LEFT, y, WIDTH - RIGHT, y, "grid" if tick else "axis")
        yield svg.text(LEFT - 8, y + 4, f"{label}B" if tick else "0", "soft", anchor="end", size=11)


def _areas(found: PrintableTimeline, scale: _MemoryScale) -> Iterator[str]:
    """One area for each kind, stacked; each kernel is a column."""
    below = [0] * scale.kernels
    for kind in KINDS:
        above = [a + b for a, b in zip(below, found.live[kind], strict=True)]
        if above != below:
            edge = [*_steps(scale, above), *reversed(list(_steps(scale, below)))]
            places = "L".join(f"{x:.1f} {y:.1f}" for x, y in edge)
            yield f'<path d="M{places}Z" class="f{SERIES[kind]}" fill-opacity=".86"/>'
        below = above
    if scale.kernels <= TOOLTIPS:
        yield from _columns(found, scale)


def _steps(scale: _MemoryScale, counts: Sequence[int]) -> Iterator[tuple[float, float]]:
    """The upper edge; adjacent columns of equal height are merged."""
    kernel = 0
    for count, run in groupby(counts):
        width = len(list(run))
        yield scale.x(kernel), scale.y(count)
        yield scale.x(kernel + width), scale.y(count)
        kernel += width


def _columns(found: PrintableTimeline, scale: _MemoryScale) -> Iterator[str]:
    """The tooltips of kernels."""
    for kernel in found.kernels:
        i = kernel.number
        split = ", ".join(f"{kind} {size_text(found.live[kind][i])}" for kind in KINDS if found.live[kind][i])
        note = f"kernel {i}: {kernel.name} ({kernel.layer}, {kernel.phase}): {size_text(found.totals[i])}: {split}"
        width = scale.x(i + 1) - scale.x(i)
        yield svg.rect(scale.x(i), PLOT_TOP, width, PLOT_HEIGHT, "paper", note=note, opacity=0)


def _peak(found: PrintableTimeline, scale: _MemoryScale, bottom: float) -> Iterator[str]:
    x, y = scale.x(found.peak_kernel + 0.5), scale.y(found.peak)
    yield svg.line(x, y, x, bottom, "axis d2")
    near_right = x > WIDTH - RIGHT - 130
    label = f"peak {size_text(found.peak)}"
    yield svg.text(x - 6 if near_right else x + 6, y - 6, label, "strong", anchor="end" if near_right else "start")


def _phases(found: PrintableTimeline, scale: _MemoryScale) -> Iterator[str]:
    """A strip below the axis: forward, backward and update, and the layers' names in tooltips."""
    y = PLOT_TOP + PLOT_HEIGHT + 9
    for phase, run in groupby(found.kernels, lambda kernel: kernel.phase):
        numbers = [kernel.number for kernel in run]
        left, right = scale.x(numbers[0]), scale.x(numbers[-1] + 1)
        yield svg.rect(
            left, y, max(0.5, right - left - 0.5), STRIP, f"f{PHASES.get(phase, 5)}", note=phase, opacity=0.45
        )
        if right - left > svg.text_width(phase, 11) + 8:
            yield svg.text((left + right) / 2, y + STRIP + 13, phase, "soft", anchor="middle", size=11)
    yield svg.text(LEFT - 8, y + STRIP + 13, f"{len(found.kernels)} kernels", "soft", anchor="end", size=11)


def _lifetimes(found: PrintableTimeline, bars: Sequence[LiveValue], scale: _MemoryScale, top: float) -> Iterator[str]:
    yield svg.text(
        MARGIN, top - 16, "Values that hold most memory for longest, and the kernels they live through", "strong"
    )
    if not bars:
        yield svg.text(MARGIN, top + BAR, "none: every value is an input or a result", "soft")
    for row, value in enumerate(bars):
        y = top + row * ROW
        name = f"{value.layer} {value.name}".rstrip()
        label = svg.fit(name, LEFT - MARGIN, 10.5, middle=True)
        yield svg.text(LEFT - 8, y + BAR - 3, label, anchor="end", size=11, note=name)
        yield svg.rect(LEFT, y + BAR / 2 - 0.5, WIDTH - LEFT - RIGHT, 1, "tile")
        x, width = scale.x(value.first), scale.x(value.last + 1) - scale.x(value.first)
        yield svg.rect(x, y, max(2, width), BAR, f"f{SERIES[value.kind]}", note=_note(value), corner=3)
        if value.type and width > svg.text_width(value.type, 10) + 18:
            yield svg.text(x + 7, y + BAR - 3.6, value.type, "over strong", size=10)
        yield svg.text(WIDTH - MARGIN, y + BAR - 3, size_text(value.nbytes), "soft", anchor="end", size=11)


def _note(value: LiveValue) -> str:
    parts = [f"{value.kind}: {value.layer}, {value.phase}", f"{value.type} {size_text(value.nbytes)}".strip()]
    return "\n".join([*parts, f"kernels {value.first} to {value.last}", *([value.source] if value.source else [])])
