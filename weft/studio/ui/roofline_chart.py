"""The roofline as an element of a page: see assets/roofline.js."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nicegui.element import Element
from nicegui.elements.echart import EChart  # registers ECharts, which roofline.js imports

_ = EChart


class RooflineChart(Element, component="../assets/roofline.js"):
    """Dots of layers below the roofs of devices. A click selects a layer."""

    def __init__(self, spec: dict[str, Any], select: Callable[[str], None]) -> None:
        super().__init__()
        self._shown = spec
        self._props["spec"] = spec
        self.on("select", lambda event: select(str(event.args)))

    def show(self, spec: dict[str, Any]) -> None:
        """Show other values."""
        if spec != self._shown:
            self._shown = spec
            self._props["spec"] = spec
            self.run_method("show", spec)
