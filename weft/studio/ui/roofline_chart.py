"""The roofline as an element of a page: see assets/roofline.js."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .charts import DrawnChart


class RooflineChart(DrawnChart, component="../assets/roofline.js"):
    """Dots of layers below the roofs of devices. A click selects a layer."""

    def __init__(self, spec: dict[str, Any], select: Callable[[str], None]) -> None:
        super().__init__(spec)
        self.on("select", lambda event: select(str(event.args)))
