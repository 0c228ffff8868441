"""The chart of a compression: size, latency or energy of each point against its error, with the Pareto front and what was asked for."""

from __future__ import annotations

from ...jobs.compression.settings import target_of
from ...jobs.compression.state import Point, front
from ...records import dataclass
from ...report.axes import ChartAxis, make_axis
from ..library.compressions import CompressionView
from .energy_view import joules_text
from .formats import size, three_figures

BY = {"bytes": "Size", "latency_ms": "Latency", "joules": "Energy"}


@dataclass(frozen=True)
class ChartDot:
    """A point at percentages from the left and from the top; `number` 0 is the original."""

    number: int
    left: float
    top: float
    is_front: bool
    point: Point


@dataclass(frozen=True)
class CompressionChart:
    """Places in percent. Accuracy grows upwards; a loss falls."""

    by: str
    dots: tuple[ChartDot, ...]
    path: str  # of the front, in a square of 1000 by 1000
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    allowed: float | None  # the lowest line that is good enough, from the top
    wanted: float | None  # the largest size that is small enough, from the left
    allowed_text: str
    wanted_text: str

    @property
    def front_count(self) -> int:
        return sum(dot.is_front for dot in self.dots if dot.number)


def compression_chart(view: CompressionView, by: str = "bytes", log: bool = True) -> CompressionChart | None:
    """The chart; None as long as the original is not measured, or if latencies or energies are unknown."""
    original = view.original
    points = [p for p in view.points if p.get(by) is not None]
    if original is None or original.get(by) is None:
        return None
    is_share = "accuracy" in original
    places = [original, *points]
    asked = _asked_size(view, original) if by == "bytes" else None
    allowed = view.allowed_error if view.allowed_error != float("inf") else None
    x = make_axis([*(p[by] for p in places), *([asked] if asked else [])], log=log)
    y = make_axis(
        [*(_height(p["error"], is_share) for p in places), *([] if allowed is None else [_height(allowed, is_share)])]
    )
    best = front(points, by)
    dots = tuple(
        ChartDot(p["number"], 100 * x.position(p[by]), _top(p["error"], y, is_share), any(p is one for one in best), p) for p in places
    )  # fmt: skip
    return CompressionChart(
        by, dots, _steps([dot for dot in dots if dot.is_front]), tuple((100 * x.position(t), _x_label(t, by)) for t in x.ticks),
        tuple((_place(t, y, is_share), f"{label} %" if is_share else label) for t, label in zip(y.ticks, y.labels, strict=True)),
        None if allowed is None else _top(allowed, y, is_share), None if asked is None else 100 * x.position(asked),
        "" if allowed is None else f"at least {100 * (1 - allowed):.2f} %" if is_share else f"at most {allowed:.4g}",
        "" if asked is None else f"target {size(asked)}",
    )  # fmt: skip


def _height(error: float, is_share: bool) -> float:
    return 100 * (1 - error) if is_share else error


def _place(value: float, y: ChartAxis, is_share: bool) -> float:
    """From the top, in percent."""
    return 100 * ((1 - y.position(value)) if is_share else y.position(value))


def _top(error: float, y: ChartAxis, is_share: bool) -> float:
    return _place(_height(error, is_share), y, is_share)


def _steps(dots: list[ChartDot]) -> str:
    """The front as stairs: between two points, the error is that of the smaller one."""
    known = sorted(dots, key=lambda dot: dot.left)
    parts = [
        f"{'M' if i == 0 else 'H'}{10 * dot.left:.0f}{' ' if i == 0 else 'V'}{10 * dot.top:.0f}"
        for i, dot in enumerate(known)
    ]
    return "".join(parts) + ("H1000" if parts else "")


def _x_label(value: float, by: str) -> str:
    if by == "joules":
        return joules_text(value)
    return size(value).replace(".0 ", " ") if by == "bytes" else f"{three_figures(value)} ms"


def _asked_size(view: CompressionView, original: Point) -> float | None:
    target = target_of(view.settings.get("target"))
    return (
        original["bytes"] * original["ratio"] / target.value if target is not None and target.what == "size" else None
    )
