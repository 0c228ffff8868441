"""What the cards of a layer say: the strip of facts, the list of statistics, histograms, a line about a channel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...interpret import TensorStatistics
from ...records import dataclass
from ..library.layer_facts import LayerDetails, LayerRow, shape_text
from .formats import three_figures


@dataclass(frozen=True)
class LayerFact:
    """A cell of the strip above."""

    title: str
    number: str
    unit: str
    context: str


@dataclass(frozen=True)
class HistogramView:
    """Bars from 0 to 1, and what stands below and beside them."""

    title: str
    note: str
    colour: str
    bars: Sequence[float]
    low: str
    high: str


def layer_facts(
    chosen: LayerRow, details: LayerDetails, dead: Mapping[str, int] | None, images: int
) -> list[LayerFact]:
    """Up to five numbers. `dead`: dead channels of layers that have any, among so many images; None while they are counted."""
    found, weight = details.activations, details.weight
    cells = [LayerFact("Layer", chosen.title, "", f"{chosen.name} · {shape_text(chosen.shape)}")]
    if weight is not None:
        spread = f"deviation {three_figures(weight.statistics.std)}"
        cells.append(LayerFact("Weight norm", three_figures(weight.statistics.norm), "", spread))
    span = f"from {three_figures(found.min)} to {three_figures(found.max)}"
    cells.append(LayerFact("Mean activation", three_figures(found.mean), "", span))
    cells.append(LayerFact("Zeros", f"{100 * found.zeros:.0f}", "%", f"of {int(np.prod(found.shape)):,} activations"))
    if dead is None:
        return [*cells, LayerFact("Dead channels", "…", "", "looking at more images")]
    others = {name: count for name, count in dead.items() if name != chosen.name}
    worst = max(others, key=lambda name: others[name], default="")
    context = f"{others[worst]} in {worst}" if worst else f"in {images} images"
    return [*cells, LayerFact("Dead channels", str(dead.get(chosen.name, 0)), f"of {chosen.channels}", context)]


def layer_statistics(
    chosen: LayerRow, details: LayerDetails, dead: Mapping[str, int] | None, images: int
) -> list[tuple[str, str]]:
    """The list beside the cards: names and values."""
    found = [
        ("Parameters", f"{chosen.parameters:,}" if chosen.parameters else "none"),
        ("Output", " × ".join(map(str, chosen.shape))),
        ("Silent on this image", f"{details.silent:,} of {chosen.channels:,}"),
    ]
    if dead is not None:
        found.append((f"Dead in {images} images", f"{dead.get(chosen.name, 0):,} of {chosen.channels:,}"))
    weight = details.weight
    if weight is not None and weight.copies is not None:
        found.append(
            ("Near copies", f"{weight.copies:,} pair{'s' if weight.copies > 1 else ''}" if weight.copies else "none")
        )
    if weight is not None and weight.rank is not None:
        most = min(weight.shape[0], int(np.prod(weight.shape[1:])))
        found.append(("Effective rank", f"{weight.rank:.0f} of {most:,}"))
    return found


def channel_line(values: np.ndarray, channel: int) -> str:
    """A sentence about one channel of a layer's output."""
    if values.ndim != 3:
        value = values[channel] if values.ndim == 1 else values[:, channel].mean()
        return f"Channel {channel} is {three_figures(float(value))}"
    one = values[channel]
    return (
        f"Channel {channel} fires on {100 * float((one > 0).mean()):.0f} % of this image, "
        f"mean {three_figures(float(one.mean()))}, largest {three_figures(float(one.max()))}"
    )


def histograms(details: LayerDetails) -> list[HistogramView]:
    """Of the weights, if there are any, and of the activations."""
    found, weight = details.activations, details.weight
    made = []
    if weight is not None:
        made.append(_histogram("Weights", f"deviation {three_figures(weight.statistics.std)}", "q5", weight.statistics))
    note = f"{100 * found.zeros:.0f} % are zero" if found.zeros >= 0.005 else f"deviation {three_figures(found.std)}"
    return [*made, _histogram("Activations", note, "s6", found)]


def _histogram(title: str, note: str, colour: str, found: TensorStatistics) -> HistogramView:
    bars = (found.counts / max(1, found.counts.max())).tolist()
    low, high = (three_figures(float(edge)) for edge in (found.edges[0], found.edges[-1]))
    return HistogramView(title, note, colour, bars, low, high)
