"""A profile as data that outlives the program: it can be shown later, compared with others, and written to disk as JSON."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from ..records import dataclass
from ..version import __version__
from .bounds import NEAR
from .layer_profile import KernelProfile, LayerProfile
from .profile_text import PrintableProfile
from .roof_lines import RoofLines, roof_lines

FORMAT = 2
WORST = 10
CALL = "call"  # the subject of a profile without network or batch


@dataclass(frozen=True)
class CallTimes:
    """Latencies of whole calls in seconds. `spread`: the interquartile range relative to the median."""

    p50: float
    p95: float
    p99: float
    spread: float
    calls: int
    warmup: int

    @classmethod
    def of(cls, seconds: Sequence[float], warmup: int) -> CallTimes:
        """
        >>> CallTimes.of([0.1, 0.2, 0.3], 1).p50
        0.2
        """
        low, high = np.percentile(seconds, (25, 75))
        p50, p95, p99 = percentiles(seconds)
        return cls(p50, p95, p99, float(high - low) / p50, len(seconds), warmup)


def percentiles(seconds: Sequence[float]) -> tuple[float, float, float]:
    """The 50th, 95th and 99th percentile of latencies. Each is the time of a real call, without interpolation.

    >>> percentiles(range(1, 101))
    (50.0, 95.0, 99.0)
    >>> percentiles([3.0])
    (3.0, 3.0, 3.0)
    """
    p50, p95, p99 = np.percentile(seconds, (50, 95, 99), method="inverted_cdf")
    return float(p50), float(p95), float(p99)


@dataclass(frozen=True)
class LayerRecord:
    """A layer with all of its phases."""

    label: str
    kind: str
    seconds: float
    flops: float
    nbytes: float
    least: float  # seconds at the roofline
    joules: float
    live: int
    bound: str
    format: str
    phases: Mapping[str, float]  # seconds of each phase
    kernels: int

    @property
    def intensity(self) -> float:
        return self.flops / self.nbytes if self.nbytes else 0.0

    @property
    def rate(self) -> float:
        """Operations per second."""
        return self.flops / self.seconds if self.seconds else 0.0

    @property
    def roof(self) -> float:
        return self.least / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Offender:
    """A kernel that loses time relative to the roofline, and what would help."""

    name: str
    layer: str
    seconds: float
    lost: float
    roof: float
    bound: str
    advice: str
    source: str


@dataclass(frozen=True)
class MemoryStep:
    """Memory in use while one kernel runs, besides weights, in bytes."""

    layer: str
    begin: float
    seconds: float
    activations: int
    workspace: int


@dataclass(frozen=True)
class MemoryRecord:
    """Memory during one call. `weights` are all persistent inputs: parameters, statistics, packed operands."""

    weights: int
    inputs: int
    results: int
    steps: tuple[MemoryStep, ...]

    @property
    def peak(self) -> int:
        return self.weights + max((step.activations + step.workspace for step in self.steps), default=0)


@dataclass(frozen=True)
class ProfileRecord:
    """The record of a profile. Times are measured; `joules` are modelled unless `energy_measured`, those of layers always."""

    subject: str
    what: str  # infer, train or call
    batch: int
    device: str
    where: str
    made: float  # Unix time in seconds
    weft: str
    times: CallTimes | None  # None: whole calls were not timed
    seconds: float  # of a call, by the program's own clock
    overhead: float | None
    roof: RoofLines
    roof_text: str
    joules: float
    energy_measured: bool
    node_nm: float
    layers: tuple[LayerRecord, ...]
    worst: tuple[Offender, ...]
    memory: MemoryRecord
    program: PrintableProfile | None = (
        None  # the profile that this was computed from, to compare or project it; None in older files
    )

    @property
    def latency(self) -> float:
        """The median latency of a call in seconds."""
        return self.times.p50 if self.times is not None else self.seconds

    @property
    def per_second(self) -> float:
        """Throughput in examples per second: inferences, or training samples."""
        return self.batch / self.latency if self.latency else 0.0

    @property
    def per_joule(self) -> float:
        return self.batch / self.joules if self.joules else 0.0

    @property
    def layer_seconds(self) -> float:
        return sum(one.seconds for one in self.layers)

    @property
    def near_roof(self) -> float:
        """The fraction of time in layers above 70 % of the roofline."""
        near = sum(one.seconds for one in self.layers if one.roof >= NEAR)
        return near / self.layer_seconds if self.layers else 0.0

    def in_blocks(self) -> ProfileRecord:
        """The same with the layers of each block of the network merged: `layers.3.body.layers.0` counts for `layers.3`."""
        counts = Counter(block_of(one.label) for one in self.layers)
        alone = [one for one in self.layers if counts[block_of(one.label)] == 1]
        renamed = [
            replace(
                one,
                label=block_of(one.label),
                kind=one.kind if one in alone else f"{counts[block_of(one.label)]} layers",
            )
            for one in self.layers
        ]
        worst = tuple(replace(one, layer=block_of(one.layer)) for one in self.worst)
        steps = tuple(replace(one, layer=block_of(one.layer)) for one in self.memory.steps)
        return replace(self, layers=_merged(renamed), worst=worst, memory=replace(self.memory, steps=steps))

    def layer(self, label: str | None) -> LayerRecord | None:
        return next((one for one in self.layers if one.label == label), None)

    def to_json(self) -> str:
        """The text of a file."""
        return json.dumps({"format": FORMAT, **asdict(self)})

    def summary(self) -> dict[str, Any]:
        """The summary figures."""
        return {
            "subject": self.subject, "what": self.what, "batch": self.batch, "device": self.device, "where": self.where, "made": self.made,
            "per_second": self.per_second, "p50": self.latency, "p99": self.times.p99 if self.times else None, "per_joule": self.per_joule,
            "energy_measured": self.energy_measured, "near_roof": self.near_roof, "peak_bytes": self.memory.peak,
        }  # fmt: skip


def block_of(label: str) -> str:
    """The block of the network that a layer belongs to.

    >>> block_of("layers.3.body.layers.0"), block_of("prepare.layers.0"), block_of("stem.conv"), block_of("outside of layers")
    ('layers.3', 'prepare', 'stem', 'outside of layers')
    """
    first, *rest = label.split(".")
    return f"{first}.{rest[0]}" if rest and rest[0].isdigit() else first


def profile_record(
    found: PrintableProfile, subject: str = "program", *, what: str = "infer", batch: int = 1, device: str = "cpu", times: CallTimes | None = None,
    arguments: int = 0, joules: float | None = None, rename: Callable[[str], str] = str,
) -> ProfileRecord:  # fmt: skip
    """Create the record of a profile. `arguments`: the bytes of the arguments of a call; all other inputs of the program are weights.

    `joules` is the energy of a call, if it was measured; the energy of layers is always modelled.
    `rename` gives layers other labels, such as those of a saved program.
    """
    return ProfileRecord(
        subject, what, batch, device, found.where, round(time.time(), 3), __version__, times, found.seconds, found.explanation.overhead,
        roof_lines(found.explanation.roof), str(found.explanation.roof), found.total.joules if joules is None else joules, joules is not None, found.node_nm,
        _merged(_layer(found, one, rename) for one in found.by_layer), tuple(_offender(found, one, rename) for one in found.worst(WORST) if one.seconds > one.least),
        _memory(found, arguments, rename), found.without_rows(),
    )  # fmt: skip


def as_record(found: PrintableProfile | ProfileRecord, name: str) -> ProfileRecord:
    """The record of a new profile, or the given record."""
    return found if isinstance(found, ProfileRecord) else profile_record(found, name, what=CALL)


def _layer(found: PrintableProfile, one: LayerProfile, rename: Callable[[str], str]) -> LayerRecord:
    main = max((found.kernels[number] for number in one.kernels), key=lambda k: k.seconds)
    same = [o for o in found.layers if (o.path, o.kind, o.root) == (one.path, one.kind, one.root)]
    phases = {o.phase: o.seconds for o in same if (o.phase == "update") == (one.phase == "update")}
    return LayerRecord(
        rename(one.label), one.kind if one.path and one.kind != one.label else "", one.seconds, one.flops, one.nbytes, one.least, one.joules, one.live,
        found.bound(main).limit, main.format, phases, len(one.kernels),
    )  # fmt: skip


def _merged(layers: Iterable[LayerRecord]) -> tuple[LayerRecord, ...]:
    """Merge layers with the same label after renaming; the merged layer has the bound of its longer part."""
    found: dict[str, LayerRecord] = {}
    for one in layers:
        known = found.get(one.label)
        found[one.label] = one if known is None else _sum(known, one)
    return tuple(found.values())


def _sum(one: LayerRecord, other: LayerRecord) -> LayerRecord:
    longer = max(one, other, key=lambda layer: layer.seconds)
    names = ("seconds", "flops", "nbytes", "least", "joules", "kernels")
    sums = {name: getattr(one, name) + getattr(other, name) for name in names}
    phases = {name: one.phases.get(name, 0.0) + other.phases.get(name, 0.0) for name in {**one.phases, **other.phases}}
    return replace(longer, **sums, live=max(one.live, other.live), phases=phases)


def _offender(found: PrintableProfile, one: KernelProfile, rename: Callable[[str], str]) -> Offender:
    bound = found.bound(one)
    source = one.sources[0] if one.sources else ""
    return Offender(
        one.name,
        rename(_layer_of(one)),
        one.seconds,
        one.seconds - one.least,
        one.roof,
        bound.limit,
        bound.advice,
        source,
    )


def _layer_of(kernel: KernelProfile) -> str:
    """The layer with the largest share of a kernel."""
    return max(kernel.layers, key=lambda pair: pair[1])[0].label


def _memory(found: PrintableProfile, arguments: int, rename: Callable[[str], str]) -> MemoryRecord:
    memory = found.explanation.memory
    begin, steps = 0.0, []
    for kernel in found.kernels:
        steps.append(MemoryStep(rename(_layer_of(kernel)), begin, kernel.seconds, kernel.live, kernel.workspace))
        begin += kernel.seconds
    return MemoryRecord(memory.inputs - arguments + memory.kept, arguments, memory.results, tuple(steps))
