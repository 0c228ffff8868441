"""`weft.profile`: the time, memory and energy of a program by layer.

    print(weft.profile(step, x, y))

Times are measured inside the real program: its kernels run in order, on its memory, with a clock between them. The cost of a kernel that
computes several layers is divided by their share of the work. Energy is modelled, unless a counter was read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from ..errors import Scope
from ..explain import Explanation, Row
from ..records import dataclass
from ..runtime import device as find_device
from ..tracing.jit import Jit, jit
from .bounds import Bound, bound_of
from .energy_counts import CacheModel, cache_bytes, kernel_counts
from .energy_model import energy
from .graph_picture import graph_svg
from .layer_flow import FlowLayer, layer_flow
from .layer_profile import KernelProfile, LayerProfile, summed
from .profile_record import profile_record
from .profile_text import profile_text

PHASES = ("forward", "backward", "update")


@dataclass(frozen=True)
class ProgramProfile:
    """A profile; see the top of this file. `print` it, or read `kernels`, `layers` and `total`."""

    kernels: tuple[KernelProfile, ...]
    explanation: Explanation
    node_nm: float  # process node of the energy model
    flow: tuple[FlowLayer, ...] = ()  # the layers in the order of data flow; empty if unknown
    cache_bytes: float = 0.0  # of the last-level cache, for the energy model

    @property
    def where(self) -> str:
        """The hardware that it ran on."""
        return self.explanation.where

    @property
    def seconds(self) -> float:
        """The time of a run without a clock, or the sum of the kernels where that was not measured."""
        return self.explanation.plain or self.explanation.seconds

    @property
    def cache(self) -> CacheModel:
        """The cache model: which bytes come from the last-level cache, and which from DRAM."""
        return CacheModel.of(self.cache_bytes, self.kernels, self.explanation.memory.persistent)

    @cached_property
    def layers(self) -> tuple[LayerProfile, ...]:
        """Every layer in every phase, in the order in which they first run."""
        return summed(self.kernels, lambda scope: scope)

    @cached_property
    def by_layer(self) -> tuple[LayerProfile, ...]:
        """Every layer with all of its phases; the optimizer is a separate entry."""
        return summed(self.kernels, lambda s: s if s.phase == "update" else s._replace(phase=""))

    @cached_property
    def by_phase(self) -> dict[str, LayerProfile]:
        """Forward, backward and update."""
        found = summed(self.kernels, lambda s: Scope(phase=s.phase))
        return {phase: one for phase in PHASES for one in found if one.phase == phase}

    @cached_property
    def total(self) -> LayerProfile:
        return sum(self.layers, LayerProfile("", "total", ""))

    def bound(self, one: KernelProfile) -> Bound:
        """What limits a kernel, and what would help."""
        roof = self.explanation.roof
        return bound_of(
            one.name,
            one.seconds,
            one.flops,
            one.nbytes,
            one.least,
            one.format,
            roof,
            one.waiting,
            one.limit,
            one.persistent,
        )

    def worst(self, most: int = 10) -> list[KernelProfile]:
        """The kernels that lose most time relative to the roofline, worst first."""
        return sorted(self.kernels, key=lambda k: k.least - k.seconds)[:most]

    def graph_svg(self, by: str = "time", title: str = "") -> str:
        """The layers in the order of data flow, with shapes, coloured by time, energy or memory."""
        return graph_svg(self.flow, self.kernels, by, title)

    def without_rows(self) -> ProgramProfile:
        """The stored form: without the calls that make up kernels, and the lifetimes of single values."""
        memory = replace(self.explanation.memory, largest=())
        return replace(self, explanation=replace(self.explanation, rows=(), plain=self.seconds, memory=memory))

    def to_json(self) -> str:
        """The profile as JSON, the format in which profiles are stored; see `profile_from_json`."""
        return profile_record(self).to_json()

    def __str__(self) -> str:
        return profile_text(self)


def profile(
    function: Callable[..., Any], *args: Any, repeats: int | None = None, node_nm: float = 45, **kwargs: Any
) -> ProgramProfile:
    """Profile one call of a function: a layer, a network, a training step. No state changes.

    Energy is modelled for a process node of `node_nm` nanometres: see `weft.insight.energy`.

    >>> import weft
    >>> from weft import nn
    >>> found = profile(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), weft.ones((3, 4)))
    >>> [layer.label for layer in found.by_layer]  # the activation is computed by the kernel of the product
    ['layers.0', 'layers.2']
    >>> int(found.total.flops) >= 2 * 3 * (4 * 8 + 8 * 2)
    True
    """
    compiled = function if isinstance(function, Jit) else jit(function)
    found = profile_of(compiled.explain(*args, repeats=repeats, **kwargs), node_nm)
    traced = compiled.traced_function(*args, **kwargs)
    first = len(traced.streams)
    return replace(found, flow=layer_flow(traced.graph, traced.graph.inputs[first : first + traced.given]))


def profile_of(explanation: Explanation, node_nm: float = 45) -> ProgramProfile:
    """The profile from an explanation of a program on the current device."""
    scale = _scale(explanation)
    rows: dict[int, list[Row]] = {}
    for row in explanation.rows:
        rows.setdefault(row.kernel, []).append(row)
    kernels = tuple(_kernel(i, calls, scale) for i, calls in enumerate(rows.values()))
    return with_energy(ProgramProfile(kernels, explanation, node_nm, cache_bytes=cache_bytes(find_device())))


def with_energy(found: ProgramProfile) -> ProgramProfile:
    """The same with the modelled energy of every kernel."""
    cache = found.cache
    joules = [energy(kernel_counts(kernel, cache), found.node_nm).joules for kernel in found.kernels]
    return replace(found, kernels=tuple(replace(k, joules=j) for k, j in zip(found.kernels, joules, strict=True)))


def _scale(explanation: Explanation) -> float:
    """The factor that scales the times of kernels to a run without a clock."""
    total = explanation.seconds
    return min(1.0, explanation.plain / total) if explanation.plain and total else 1.0


def _kernel(number: int, calls: Sequence[Row], scale: float) -> KernelProfile:
    """A kernel of one or more calls: those that pack operands or reduce partial results count for it."""
    main, seconds = max(calls, key=lambda row: (row.flops, row.seconds)), sum(row.seconds for row in calls)
    return KernelProfile(
        number,
        main.name,
        scale * seconds,
        sum(row.flops for row in calls),
        sum(row.nbytes for row in calls),
        sum(row.roof * row.seconds for row in calls),
        max(row.live for row in calls),
        main.format,
        0.0,
        main.scopes,
        main.sources,
        max(row.workspace for row in calls),
        sum(row.persistent for row in calls),
        sum(row.waiting * row.seconds for row in calls) / seconds if seconds else 0.0,
        max(row.starts for row in calls),
        main.limit,
        main.anchor,
    )
