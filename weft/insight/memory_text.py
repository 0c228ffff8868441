"""A memory timeline as text: the peak by kind of memory, and the largest values."""

from __future__ import annotations

from typing import Protocol

from .memory_values import ACTIVATIONS, CALL, GRADIENTS, OPTIMIZER, PARAMETERS, TEMPORARIES, LiveValue, StepKernel
from .profile_text import amount, cut, table

LARGEST = 12  # listed values
MEANING = {
    PARAMETERS: "weights, running statistics and other state of the network",
    OPTIMIZER: "moments of the optimizer",
    CALL: "the batch, and what the call returns",
    ACTIVATIONS: "made in the forward pass, kept for the backward pass",
    GRADIENTS: "made in the backward pass",
    TEMPORARIES: "passed from kernel to kernel within a phase, and workspaces of kernels",
}


class PrintableTimeline(Protocol):
    """The attributes of a timeline that text and plot need: see `MemoryTimeline`."""

    @property
    def kernels(self) -> tuple[StepKernel, ...]: ...
    @property
    def values(self) -> tuple[LiveValue, ...]: ...
    @property
    def live(self) -> dict[str, list[int]]: ...
    @property
    def totals(self) -> list[int]: ...
    @property
    def arena(self) -> int: ...
    @property
    def where(self) -> str: ...
    @property
    def peak(self) -> int: ...
    @property
    def peak_kernel(self) -> int: ...
    @property
    def allocated(self) -> int: ...
    def at_peak(self) -> dict[str, int]: ...
    def largest(self, most: int) -> list[LiveValue]: ...


def timeline_text(found: PrintableTimeline) -> str:
    """The whole report."""
    return "\n\n".join([_head(found), _kinds(found), _largest(found)])


def _head(found: PrintableTimeline) -> str:
    return (
        f"{size_text(found.peak)} at the peak, planned for {found.where}: {peak_text(found)}. A call allocates "
        f"{size_text(found.allocated)}, of which values that do not live at the same time share {size_text(found.arena)}."
    )


def peak_text(found: PrintableTimeline) -> str:
    """The peak, and where it occurs."""
    if not found.kernels:
        return "no kernel runs"
    kernel = found.kernels[found.peak_kernel]
    return f"kernel {kernel.number} of {len(found.kernels)}, {kernel.name} ({kernel.layer}, {kernel.phase})"


def _kinds(found: PrintableTimeline) -> str:
    rows = [["at the peak", "bytes", "share", ""]]
    for kind, count in found.at_peak().items():
        rows.append([kind, size_text(count), f"{count / max(1, found.peak):.0%}", MEANING[kind]])
    return table(rows, left=1, ragged=[3])


def _largest(found: PrintableTimeline) -> str:
    rows = [["largest values", "kind", "layer", "type", "bytes", "kernels", "at the peak", "line"]]
    for value in found.largest(LARGEST):
        there = "yes" if value.first <= found.peak_kernel <= value.last else ""
        rows.append(
            [value.name or "value", value.kind, place_text(value), value.type, size_text(value.nbytes), span(value), there, cut(value.source)]
        )  # fmt: skip
    if len({row[-1] for row in rows[1:] if row[-1]}) < 2:  # all rows name the same line, that of the call
        rows = [row[:-1] for row in rows]
    return table(rows, left=4, ragged=[7])


def place_text(value: LiveValue) -> str:
    """The layer and phase that created a value."""
    return cut(f"{value.layer}, {value.phase}" if value.phase else value.layer)


def span(value: LiveValue) -> str:
    """The lifetime of a value."""
    if not value.in_arena:
        return "all"
    return str(value.first) if value.first == value.last else f"{value.first}-{value.last}"


def size_text(count: float) -> str:
    """Bytes as text.

    >>> size_text(512), size_text(25_000), size_text(3_400_000)
    ('512 B', '25.0 kB', '3.40 MB')
    """
    return f"{amount(count)}B"
