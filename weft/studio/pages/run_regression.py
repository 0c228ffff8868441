"""The evaluation of a regression: errors, predicted against true values, and residuals."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from ..ui.formats import three_figures
from ..ui.fragment import fragment
from .run_tiles import MetricTile

OUTPUTS = 8  # outputs with charts of their own


def regression_cards(found: dict[str, Any]) -> None:
    """Cards for each output."""
    first = found["outputs"][0]
    names = {"mae": "Mean absolute error", "rmse": "Root mean squared error", "r2": "R²", "bias": "Bias"}
    tiles = [
        MetricTile(title, three_figures(first[key]) if first[key] is not None else "–", "", f"{found['examples']:,} {found['split']} examples")
        for key, title in names.items()
    ]  # fmt: skip
    with ui.element("section").classes("card sect").props('aria-label="Scores"'):
        fragment("metric_strip.html", metrics=tiles)
    for number, one in enumerate(found["outputs"][:OUTPUTS]):
        title = "" if len(found["outputs"]) == 1 else f", output {number}"
        with ui.element("div").classes("cols c2 sect"):
            with ui.element("section").classes("card").props('aria-label="Predicted and true"'):
                fragment("scatter.html", title=f"Predicted over true{title}", **_scatter(one["scatter"]))
            with ui.element("section").classes("card").props('aria-label="Residuals"'):
                counts, edges = one["residuals"]["counts"], one["residuals"]["edges"]
                fragment(
                    "residuals.html",
                    title=f"Residuals{title}",
                    counts=counts,
                    edges=edges,
                    most=max(counts),
                    bias=one["bias"],
                )


def _scatter(points: list[tuple[float, float]]) -> dict[str, Any]:
    """Points in a square of 300 by 300, both axes with the same scale."""
    values = [v for point in points for v in point]
    low, high = min(values), max(values)
    scale = 300 / ((high - low) or 1.0)
    places = [(round((a - low) * scale, 1), round(300 - (b - low) * scale, 1)) for a, b in points]
    ticks = [low + (high - low) * i / 4 for i in range(5)]
    return {"points": places, "ticks": [(round(75.0 * i), three_figures(v)) for i, v in enumerate(ticks)]}
