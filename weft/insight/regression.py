"""Performance regression tests: which layers of two programs differ in time beyond noise.

    print(compare_steps(before.step(16), after.step(16)))

Both are profiled alternately, round after round, so that disturbances affect both equally; the order changes with each round. A
layer's figure is the mean of log(B / A) over the rounds, trimmed by a fifth at either end against bursts of other programs. Its
confidence interval is that of Student's t for trimmed means (Tukey and McLaughlin 1963), widened for the number of layers (Bonferroni), so
that a comparison of two equal programs raises any false alarm with a probability of about 1 in 100. A layer has changed if the interval does
not contain a ratio of 1 and the change is large enough to matter.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ..errors import UserError
from ..records import dataclass
from ..report.axes import short
from ..tracing.jit import Jit
from .profile import ProgramProfile, profile_of
from .profile_text import cut, duration, table

ROUNDS, FEWEST = 12, 3
REPEATS = 3  # runs of a program per round, of which the median is used
CONFIDENCE = 0.99  # that no layer of two equal programs is reported as changed
LEAST = 0.05  # smallest relevant relative change
TRIMMED = 0.2  # fraction of the rounds, at either end
TOTAL = "total"
Compiled = tuple[Jit[Any], tuple[Any, ...]]


@dataclass(frozen=True)
class LayerChange:
    """A layer in both programs. `ratio` is B / A, between `low` and `high` with the confidence of the comparison."""

    name: str
    before: float  # seconds, the median of the rounds
    after: float
    ratio: float
    low: float
    high: float
    changed: bool

    @property
    def verdict(self) -> str:
        return "" if not self.changed else "slower" if self.ratio > 1 else "faster"


@dataclass(frozen=True)
class RegressionReport:
    """All layers of two programs. `print` it, or read `changed`."""

    names: tuple[str, str]
    layers: tuple[LayerChange, ...]
    total: LayerChange
    only: tuple[tuple[str, ...], tuple[str, ...]]  # layers that only one program has
    rounds: int

    @property
    def changed(self) -> tuple[LayerChange, ...]:
        return tuple(one for one in self.layers if one.changed)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        return asdict(self) | {"changed": [one.name for one in self.changed]}

    def __str__(self) -> str:
        return _text(self)


def compare_steps(
    a: Compiled, b: Compiled, *, names: tuple[str, str] = ("A", "B"), rounds: int = ROUNDS
) -> RegressionReport:
    """Profile two compiled functions, each with its arguments, alternately.

    >>> import weft
    >>> from weft import nn
    >>> small, large = (weft.jit(nn.Linear(n, n)) for n in (8, 256))
    >>> report = compare_steps((small, (weft.ones((4, 8)),)), (large, (weft.ones((4, 256)),)), rounds=3)
    >>> [layer.name for layer in report.layers], report.rounds
    (['Linear'], 3)
    """
    times: tuple[dict[str, list[float]], dict[str, list[float]]] = ({}, {})
    for number in range(rounds):
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            function, args = (a, b)[which]
            for name, seconds in layer_times(profile_of(function.explain(*args, repeats=REPEATS))).items():
                times[which].setdefault(name, []).append(seconds)
    first, second = times
    return compare_times(unwrapped(first, second), unwrapped(second, first), names=names)


def unwrapped(times: Mapping[str, list[float]], others: Mapping[str, list[float]]) -> Mapping[str, list[float]]:
    """The times with layers called as in the other network, if this one wraps it in a layer: an int8 network calls it `body`.

    >>> list(unwrapped({"body.layers.0": [1.0], "Int8Network": [2.0]}, {"layers.0": [3.0]}))
    ['layers.0', 'Int8Network']
    """
    wrappers = {name.partition(".")[0] for name in times if "." in name}
    if len(wrappers) != 1 or any("." in name and name in others for name in times):
        return times
    wrapper = f"{wrappers.pop()}."
    inner = {name.removeprefix(wrapper): seconds for name, seconds in times.items()}
    return inner if len(inner) == len(times) and any(name not in times and name in others for name in inner) else times


def layer_times(found: ProgramProfile) -> dict[str, float]:
    """The seconds of each layer with all of its phases, and of the whole."""
    times: dict[str, float] = {}
    for one in found.by_layer:
        times[one.label] = times.get(one.label, 0.0) + one.seconds
    return times | {TOTAL: found.seconds}


def compare_times(
    a: Mapping[str, Sequence[float]], b: Mapping[str, Sequence[float]], *, names: tuple[str, str] = ("A", "B"),
    confidence: float = CONFIDENCE, least: float = LEAST,
) -> RegressionReport:  # fmt: skip
    """Compare times of layers by name, one number per round, with the rounds in the same order in both.

    >>> report = compare_times({"conv": [1, 1.1, 1], "total": [3, 3.1, 3]}, {"conv": [2, 2.2, 2.02], "total": [4, 4.1, 4.1]})
    >>> [(one.name, one.verdict) for one in report.changed]
    [('conv', 'slower')]
    """
    rounds = min(len(a[TOTAL]), len(b[TOTAL]))
    if rounds < FEWEST:
        raise UserError("profile", f"{FEWEST} rounds or more are required to tell changes from noise, got {rounds}.")
    # The shortest layers may be too short to be listed in some rounds.
    shared = [name for name in a if name in b and min(len(a[name]), len(b[name])) >= rounds]
    chance = (1 - confidence) / max(1, len(shared))
    found = {name: _change(name, a[name], b[name], chance, least) for name in shared}
    only = tuple(name for name in a if name not in b), tuple(name for name in b if name not in a)
    total = found.pop(TOTAL)
    return RegressionReport(names, tuple(found.values()), total, only, rounds)


def _change(name: str, a: Sequence[float], b: Sequence[float], chance: float, least: float) -> LayerChange:
    middle, half = trimmed_interval([math.log(y / x) for x, y in zip(a, b, strict=True)], chance)
    changed = abs(middle) > half and abs(middle) >= math.log1p(least)
    ratio, low, high = (math.exp(value) for value in (middle, middle - half, middle + half))
    return LayerChange(name, statistics.median(a), statistics.median(b), ratio, low, high, changed)


def trimmed_interval(values: Sequence[float], chance: float) -> tuple[float, float]:
    """The trimmed mean, and the half-width of its confidence interval with this error probability.

    >>> middle, half = trimmed_interval([1.0, 1.1, 0.9, 1.0, 25.0], 0.05)
    >>> round(middle, 2), half < 0.3
    (1.03, True)
    """
    ordered, count = sorted(values), len(values)
    cut_off = int(TRIMMED * count)
    kept = ordered[cut_off : count - cut_off]
    winsorized = [kept[0]] * cut_off + kept + [kept[-1]] * cut_off
    error = statistics.stdev(winsorized) / ((1 - 2 * cut_off / count) * math.sqrt(count))
    return statistics.fmean(kept), student_t(len(kept) - 1, chance) * error


def student_t(freedom: int, chance: float) -> float:
    """The two-sided critical value of Student's t: |t| exceeds it with this probability.

    >>> round(student_t(9, 0.05), 3), round(student_t(2, 0.01), 3), round(student_t(1, 0.5), 3)
    (2.262, 9.925, 1.0)
    """
    low, high = 0.0, 1.0
    while 1 - _within(high, freedom) > chance:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if 1 - _within(middle, freedom) > chance else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """The probability that |t| is smaller: Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan2(t, math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term, total = (cosine, 0.0) if odd else (1.0, 0.0)
    for n in range(odd, freedom - 1, 2):
        total += term
        term *= cosine**2 * (n + 1) / (n + 2)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def _text(report: RegressionReport) -> str:
    rows = [["layer", "A", "B", "B / A", f"{CONFIDENCE:.0%} interval", ""]]
    for one in (*report.layers, report.total):
        interval = f"{short(one.low)} to {short(one.high)}"
        rows.append([cut(one.name), duration(one.before), duration(one.after), short(one.ratio), interval, one.verdict])
    lines = [table(rows, left=1, ragged=(5,))]
    for letter, name, only in zip("AB", report.names, report.only, strict=True):
        more = f"; only it has {', '.join(only)}" if only else ""
        lines.append(f"{letter}: {name}{more}")
    count = len(report.changed)
    said = "no layer changed" if not count else "1 layer changed" if count == 1 else f"{count} layers changed"
    lines.append(
        f"{said} beyond noise ({report.rounds} rounds, interleaved; the intervals hold for all layers together; changes below {LEAST:.0%} do not count)"
    )
    return "\n".join(lines)
