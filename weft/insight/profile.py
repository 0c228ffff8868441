"""`weft.profile`: where the time, the bytes and the energy of a program go, layer by layer.

    print(weft.profile(step, x, y))

Times are measured inside the real program: its kernels run in their order, on its memory, with a clock between them. A kernel that
computes several layers counts for each by its share of the work. Energy is modelled, unless a counter was read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from ..errors import Scope
from ..explain import Explanation, Row
from ..tracing.jit import Jit, jit
from .bounds import Bound, bound_of
from .energy_counts import row_counts
from .energy_model import energy
from .profile_text import profile_text

NOTHING = 1e-12  # seconds: a layer that only renames values, such as a flatten
PHASES = ("forward", "backward", "update")
OUTSIDE = "outside of layers"  # the loss, metrics, the user's own code


@dataclass(frozen=True)
class KernelProfile:
    """A kernel of a program."""

    number: int
    name: str
    seconds: float
    flops: float
    nbytes: float
    least: float  # seconds that the machine would need at its roof
    live: int  # bytes of memory in use while it runs
    format: str
    joules: float  # modelled
    layers: tuple[tuple[Scope, float], ...]
    sources: tuple[str, ...]

    @property
    def roof(self) -> float:
        """How close to the machine's roof it is: 1 is at the roof."""
        return self.least / self.seconds

    @property
    def intensity(self) -> float:
        """Operations for each byte moved."""
        return self.flops / self.nbytes if self.nbytes else 0.0


@dataclass(frozen=True)
class LayerProfile:
    """A layer in one phase of a step, or in all of them."""

    path: str
    kind: str
    phase: str  # forward, backward, update; "" for the sum of them
    seconds: float = 0.0
    flops: float = 0.0
    nbytes: float = 0.0
    least: float = 0.0
    joules: float = 0.0
    live: int = 0
    kernels: tuple[int, ...] = ()
    root: int = 0

    @property
    def roof(self) -> float:
        return self.least / self.seconds if self.seconds else 0.0

    @property
    def intensity(self) -> float:
        return self.flops / self.nbytes if self.nbytes else 0.0

    @property
    def label(self) -> str:
        return self.path or self.kind or ("optimizer" if self.phase == "update" else OUTSIDE)

    def __add__(self, other: LayerProfile) -> LayerProfile:
        sums = {
            name: getattr(self, name) + getattr(other, name)
            for name in ("seconds", "flops", "nbytes", "least", "joules")
        }
        kernels = tuple(dict.fromkeys((*self.kernels, *other.kernels)))
        return replace(self, **sums, live=max(self.live, other.live), kernels=kernels)


@dataclass(frozen=True)
class ProgramProfile:
    """See the head of this file. `print` it, or read `kernels`, `layers` and `total`."""

    kernels: tuple[KernelProfile, ...]
    explanation: Explanation
    node_nm: float  # process of the energy model

    @property
    def where(self) -> str:
        """The hardware that it ran on."""
        return self.explanation.where

    @property
    def seconds(self) -> float:
        """A run without a clock, or the sum of the kernels where that was not measured."""
        return self.explanation.plain or self.explanation.seconds

    @cached_property
    def layers(self) -> tuple[LayerProfile, ...]:
        """Every layer in every phase, in the order in which they first run."""
        return _summed(self.kernels, lambda scope: scope)

    @cached_property
    def by_layer(self) -> tuple[LayerProfile, ...]:
        """Every layer with all of its phases; the optimizer stands for itself."""
        return _summed(self.kernels, lambda s: s if s.phase == "update" else s._replace(phase=""))

    @cached_property
    def by_phase(self) -> dict[str, LayerProfile]:
        """Forward, backward and update."""
        found = _summed(self.kernels, lambda s: Scope(phase=s.phase))
        return {phase: one for phase in PHASES for one in found if one.phase == phase}

    @cached_property
    def total(self) -> LayerProfile:
        return sum(self.layers, LayerProfile("", "total", ""))

    def bound(self, one: KernelProfile) -> Bound:
        """What limits a kernel, and what would help."""
        return bound_of(one.name, one.seconds, one.flops, one.nbytes, one.least, one.format, self.explanation.roof)

    def worst(self, most: int = 10) -> list[KernelProfile]:
        """The kernels that lose most time against the roof, worst first."""
        return sorted(self.kernels, key=lambda k: k.least - k.seconds)[:most]

    def to_json(self) -> str:
        """Everything as JSON."""
        known = {
            "where": self.where,
            "seconds": self.seconds,
            "clock_overhead": self.explanation.overhead,
            "runs": self.explanation.runs,
            "roof": asdict(self.explanation.roof),  # type: ignore[call-overload]
            "memory": asdict(self.explanation.memory),
            "energy": {"joules": self.total.joules, "modelled": True, "process_nm": self.node_nm},
            "layers": [asdict(one) | {"label": one.label, "roof": one.roof} for one in self.layers],
            "kernels": [asdict(k) | {"roof": k.roof, "bound": self.bound(k).limit} for k in self.kernels],
        }
        return json.dumps(known, indent=1)

    def __str__(self) -> str:
        return profile_text(self)


def profile(
    function: Callable[..., Any], *args: Any, repeats: int | None = None, node_nm: float = 45, **kwargs: Any
) -> ProgramProfile:
    """Profile one call of a function: a layer, a network, a training step. No state changes.

    Energy is modelled for a process of `node_nm` nanometres: see `weft.insight.energy`.

    >>> import weft
    >>> from weft import nn
    >>> found = profile(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), weft.ones((3, 4)))
    >>> [layer.label for layer in found.by_layer]
    ['layers.0', 'layers.1', 'layers.2']
    >>> int(found.total.flops) >= 2 * 3 * (4 * 8 + 8 * 2)
    True
    """
    compiled = function if isinstance(function, Jit) else jit(function)
    return profile_of(compiled.explain(*args, repeats=repeats, **kwargs), node_nm)


def profile_of(explanation: Explanation, node_nm: float = 45) -> ProgramProfile:
    """The profile that an explanation gives."""
    scale = _scale(explanation)
    rows: dict[int, list[Row]] = {}
    for row in explanation.rows:
        rows.setdefault(row.kernel, []).append(row)
    kernels = tuple(_kernel(i, calls, scale, node_nm) for i, calls in enumerate(rows.values()))
    return ProgramProfile(kernels, explanation, node_nm)


def _scale(explanation: Explanation) -> float:
    """Brings the times of kernels down to those of a run without a clock."""
    total = explanation.seconds
    return min(1.0, explanation.plain / total) if explanation.plain and total else 1.0


def _kernel(number: int, calls: Sequence[Row], scale: float, node_nm: float) -> KernelProfile:
    """A kernel of one call or more: those that pack operands or add up parts count for it."""
    main = max(calls, key=lambda row: (row.flops, row.seconds))
    return KernelProfile(
        number,
        main.name,
        scale * sum(row.seconds for row in calls),
        sum(row.flops for row in calls),
        sum(row.nbytes for row in calls),
        sum(row.roof * row.seconds for row in calls),
        max(row.live for row in calls),
        main.format,
        sum(energy(row_counts(row), node_nm).joules for row in calls),
        main.scopes,
        main.sources,
    )


def _summed(kernels: Iterable[KernelProfile], group: Callable[[Scope], Scope]) -> tuple[LayerProfile, ...]:
    found: dict[Scope, LayerProfile] = {}
    for kernel in kernels:
        for scope, share in kernel.layers:
            wanted = group(scope)
            before = found.get(wanted) or LayerProfile(wanted.path, wanted.kind, wanted.phase, root=wanted.root)
            found[wanted] = before + _part(kernel, share)
    return _told_apart([one for one in found.values() if one.seconds > NOTHING])


def _part(kernel: KernelProfile, share: float) -> LayerProfile:
    return LayerProfile(
        "",
        "",
        "",
        share * kernel.seconds,
        share * kernel.flops,
        share * kernel.nbytes,
        share * kernel.least,
        share * kernel.joules,
        kernel.live,
        (kernel.number,),
    )


def _told_apart(layers: Sequence[LayerProfile]) -> tuple[LayerProfile, ...]:
    """The same, with paths that begin with the network's name if there are several networks in the program."""
    roots = list(dict.fromkeys(one.root for one in layers if one.root))
    if len(roots) < 2:
        return tuple(layers)
    names = {root: next((o.kind for o in layers if o.root == root and not o.path), "network") for root in roots}
    several = {name for name in names.values() if list(names.values()).count(name) > 1}
    unique = {root: f"{name}{i + 1}" if name in several else name for i, (root, name) in enumerate(names.items())}
    return tuple(replace(one, path=f"{unique[one.root]}/{one.path}".rstrip("/")) if one.root else one for one in layers)
