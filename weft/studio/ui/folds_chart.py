"""A metric by fold, as places in a square: a dot for each fold, their mean, and the band of one standard deviation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...records import dataclass
from ...report.axes import make_axis
from .formats import is_share, metric_value, three_figures


@dataclass(frozen=True)
class FoldsChart:
    """Dots as (number of the fold, left, top, text); lines in percent from above."""

    dots: list[tuple[int, float, float, str]]
    mean: float
    band: tuple[float, float]  # its top and its height
    y_ticks: list[tuple[float, str]]


def folds_chart(name: str, metric: Mapping[str, Any]) -> FoldsChart:
    """The chart of one metric."""
    scale = 100.0 if is_share(name) else 1.0
    values, mean, std = [float(v) for v in metric["values"]], float(metric["mean"]), float(metric["std"])
    axis = make_axis([scale * v for v in (*values, mean - std, mean + std)], count=4)

    def top(value: float) -> float:
        return 100 * (1 - axis.position(scale * value))

    width = 100 / len(values)
    dots = [(i + 1, width * (i + 0.5), top(value), metric_value(name, value)) for i, value in enumerate(values)]
    unit = " %" if scale > 1 else ""
    ticks = [(100 * (1 - axis.position(at)), f"{text}{unit}") for at, text in zip(axis.ticks, axis.labels, strict=True)]
    return FoldsChart(dots, top(mean), (top(mean + std), top(mean - std) - top(mean + std)), ticks)


def mean_text(name: str, metric: Mapping[str, Any]) -> tuple[str, str]:
    """Mean and standard deviation of a metric, in percent where it is a share.

    >>> mean_text("accuracy", {"mean": 0.975, "std": 0.0102}), mean_text("loss", {"mean": 0.1, "std": 0.02})
    (('97.5 %', '± 1.0'), ('0.100', '± 0.0200'))
    """
    if is_share(name):
        return metric_value(name, metric["mean"]), f"± {100 * metric['std']:.1f}"
    return three_figures(metric["mean"]), f"± {three_figures(metric['std'])}"


def main_metric(metrics: Sequence[str]) -> str:
    """The metric that is shown first: an accuracy, else the first one."""
    return next((name for name in metrics if is_share(name)), metrics[0] if metrics else "")
