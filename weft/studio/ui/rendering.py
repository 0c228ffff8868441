"""Renders templates: HTML files with the values of a page. Every value is escaped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ...io.dataset_names import dataset_label
from ...jobs.definitions import network_label
from ...jobs.sweeps.record import metric_text, setting_text
from ...records import dataclass
from ..library.audit_text import change_text
from . import formats
from .energy_view import joules_text

FOLDER = Path(__file__).parent.parent / "templates"


@dataclass(frozen=True)
class SparkPath:
    """A line in a square of 1000 by 1000: the line, the area below it, and the height of its end in percent from above."""

    path: str
    area: str
    last: float


def spark_path(values: Sequence[float], lowest: float | None = None, highest: float | None = None) -> SparkPath | None:
    """The line of some values, from left to right; None for fewer than two.

    >>> spark_path([0, 1]).path
    'M0 1000L1000 0'
    """
    known = [value for value in values if math.isfinite(value)]
    if len(known) < 2:
        return None
    low = min(known) if lowest is None else lowest
    high = max(known) if highest is None else highest
    scale = (high - low) or 1.0
    points = [
        (round(1000 * i / (len(known) - 1)), round(1000 * (1 - (value - low) / scale))) for i, value in enumerate(known)
    ]
    path = "M" + "L".join(f"{x} {y}" for x, y in points)
    return SparkPath(path, f"{path}L1000 1000L0 1000Z", points[-1][1] / 10)


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    names = (
        "metric_name",
        "metric_value",
        "duration",
        "percent",
        "moment",
        "size",
        "size_pair",
        "count",
        "short",
        "full_time",
        "clock",
        "ago",
        "ends",
    )
    made.filters |= {name: getattr(formats, name) for name in names}
    made.filters["capitalize_first"] = lambda text: text[:1].upper() + text[1:]
    made.filters["lower_first"] = lambda text: text[:1].lower() + text[1:]
    made.filters["metric_cell"] = lambda value: formats.metric_value("recall", value)
    made.filters |= {"setting_text": setting_text, "sweep_metric": metric_text, "joules": joules_text}
    made.filters |= {"network_label": network_label, "dataset_label": dataset_label}
    made.globals |= {"spark_path": spark_path, "change_text": change_text, "base": ""}
    return made


ENVIRONMENT = _environment()
ICONS = Markup((FOLDER / "icons.svg").read_text("utf-8"))


def render(template: str, **values: Any) -> str:
    """The HTML of a template."""
    return ENVIRONMENT.get_template(template).render(**values)
