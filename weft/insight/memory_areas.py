"""Memory during one call as stacked areas over time: weights, activations and workspace, in a square of 1000 by 1000."""

from __future__ import annotations

from collections.abc import Sequence

from ..records import dataclass
from ..report.axes import make_axis
from .profile_record import MemoryRecord, MemoryStep

NAMES = ("weights", "activations", "workspace")
UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
WIDE, LETTER = 0.05, 0.015  # fractions of the width: of a layer that is labelled, and of a letter of the label


@dataclass(frozen=True)
class MemoryAreas:
    """Paths from the lowest area up; ticks and notes at positions from 0 (left, bottom) to 1."""

    paths: tuple[str, ...]
    y_ticks: tuple[tuple[float, str], ...]
    x_ticks: tuple[tuple[float, str], ...]
    notes: tuple[tuple[float, str], ...]


def memory_areas(memory: MemoryRecord, seconds: float) -> MemoryAreas:
    """The areas of a call of `seconds` seconds; steps are scaled to that, as kernels are timed separately from the call."""
    steps = memory.steps
    total = sum(step.seconds for step in steps) or 1.0
    size, unit = next((one for one in UNITS if memory.peak >= one[0]), UNITS[-1])
    y = make_axis([0.0, memory.peak / size], count=4)
    x = make_axis([0.0, 1e3 * seconds], tight=True)

    def top(step: MemoryStep, number: int) -> float:
        parts = (memory.weights, step.activations, step.workspace)
        return y.position(sum(parts[: number + 1]) / size)

    paths = tuple(_path(steps, total, [(top(s, n - 1) if n else 0.0, top(s, n)) for s in steps]) for n in range(3))
    y_ticks = tuple((y.position(t), label) for t, label in zip(y.ticks, y.labels, strict=True))
    x_ticks = tuple((x.position(t), label) for t, label in zip(x.ticks, x.labels, strict=True))
    return MemoryAreas(paths, _with_unit(y_ticks, unit), _with_unit(x_ticks, "ms", first=True), _notes(steps, total))


def _path(steps: Sequence[MemoryStep], total: float, heights: Sequence[tuple[float, float]]) -> str:
    """Upper edges from left to right, then lower edges back."""
    upper, lower = [], []
    for step, (low, high) in zip(steps, heights, strict=True):
        left, right = 1000 * step.begin / total, 1000 * (step.begin + step.seconds) / total
        upper += [(left, high), (right, high)]
        lower += [(left, low), (right, low)]
    points = [*upper, *reversed(lower)]
    return "M" + "L".join(f"{x:.1f} {1000 * (1 - y):.1f}" for x, y in points) + "Z" if points else ""


def _with_unit(ticks: Sequence[tuple[float, str]], unit: str, first: bool = False) -> tuple[tuple[float, str], ...]:
    """Append the unit to one of the ticks: the first, or the last."""
    at = 0 if first else len(ticks) - 1
    return tuple((place, f"{label} {unit}" if i == at else label) for i, (place, label) in enumerate(ticks))


def _notes(steps: Sequence[MemoryStep], total: float) -> tuple[tuple[float, str], ...]:
    """The names of layers that take long enough, centred on their time."""
    spans: list[tuple[str, float, float]] = []
    for step in steps:
        if spans and spans[-1][0] == step.layer:
            spans[-1] = (step.layer, spans[-1][1], step.begin + step.seconds)
        else:
            spans.append((step.layer, step.begin, step.begin + step.seconds))
    found: list[tuple[float, str]] = []
    free = 0.0  # where the last name ends
    for name, begin, end in spans:
        middle, half = (begin + end) / 2 / total, 0.5 * LETTER * len(name)
        if (end - begin) / total >= WIDE and middle - half >= free and middle + half <= 1.0:
            found.append((middle, name))
            free = middle + half + LETTER
    return tuple(found)
