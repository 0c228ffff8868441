"""One row of the sweep over the zoo: contestants agree, take turns, and weft's kernels are held against the roof."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import gpu_measure
import numpy as np

from . import measure
from .measure import Clock, Effort, Ready, Row
from .peers import need
from .zoo_contestants import Place, WeftInference, WeftTraining, Work, contestants, weft_contestant
from .zoo_networks import ZooNetwork, networks

Values = list[np.ndarray]

QUICK, FULL = Effort(2.0, 5, 3), Effort(10.0, 11, 5)
LOSERS = 3  # kernels that are named
ALLOWED = {
    "float32": 1e-3,
    "tf32": 1e-2,
    "float16": 2e-2,
    "bfloat16": 5e-2,
}  # of the difference to the first way of torch
OWN = 5.0  # or so many times the difference between two ways of torch: deep networks with relus amplify roundings
# Or so many times the difference of torch to itself in float32: its ways round alike, and max pooling passes gradients on to other pixels.
ROUNDING = 1.2


@dataclass
class PreparedRow:
    """Contestants that agree and are ready to be timed."""

    network: ZooNetwork
    place: Place
    row: gpu_measure.Row
    ready: dict[str, Work]
    ours: WeftTraining | WeftInference | None  # whose kernels are held against the roof

    def measured(self, quick: bool) -> dict[str, Any]:
        """The times of all contestants and the kernels of weft that lose most, ready for JSON."""
        row, times = self.row, self._times(quick)
        row.seconds = {who: float(np.median(t)) for who, t in times.items()}
        row.least = {who: min(t) for who, t in times.items()}
        measure.rate(row, times)
        return _as_json(row, self.network) | (_explained(self.ours) if self.ours else {})

    def _times(self, quick: bool) -> dict[str, list[float]]:
        if self.place.is_cpu:
            return measure.time_in_rounds(
                {who: _waiting(one) for who, one in self.ready.items()}, QUICK if quick else FULL
            )
        ready = {who: gpu_measure.Contestant(one.call, one.wait, one.values) for who, one in self.ready.items()}
        return gpu_measure.rounds(ready, self.row, gpu_measure.SHORT if quick else gpu_measure.Effort())


def prepared_row(
    name: str, training: bool, place: Place, *, batch: int | None, compiled: bool, explained: bool
) -> PreparedRow:
    """Make the contestants of a row, which compiles them, and compare them."""
    need("torch")  # sets its threads
    place.settle()
    [network] = [n for n in networks(place.device, batch) if n.name == name]
    row = gpu_measure.Row("training" if training else "inference", name)
    ready: dict[str, Work] = {}
    for who, make in contestants(network, training, place, compiled).items():
        try:
            ready[who] = make()
        except Exception as error:  # libraries raise errors of every kind, and one that fails is a result too
            row.failures[who] = measure.failure(error)
    _compare(ready, row, ALLOWED[place.precision], lambda: _in_float32(network, training, place))
    ours = weft_contestant(network, training, place) if "weft" in ready else None
    if isinstance(ours, WeftInference) and not ours.sensitivity() > ALLOWED[place.precision]:
        row.failures["weft"] = "results that hardly depend on the input agree in any case"
    if ours:
        ours.call()
    return PreparedRow(network, place, row, ready, ours if explained else None)


def use_cpu_time() -> None:
    """Time with the CPU time of this process."""
    Clock.now = staticmethod(time.process_time)


def _waiting(one: Work) -> Ready:
    def call() -> None:
        one.call()
        one.wait()

    return Ready(call, one.values)


def _compare(ready: dict[str, Work], row: Row, allowed: float, in_float32: Callable[[], Values]) -> None:
    """Note how far each contestant is from the first; one that is wrong does not count."""
    shown: dict[str, Values] = {}
    for who in list(ready):
        try:
            shown[who] = _values(ready[who])
        except Exception as error:  # as above
            row.failures[who] = measure.failure(error)
            del ready[who]
    first = next(iter(shown), "")
    row.differences = {who: measure.difference(shown[first], found) for who, found in shown.items()}
    own = max((d for who, d in row.differences.items() if not measure.is_ours(who)), default=0.0)
    for who, difference in row.differences.items():
        if not measure.is_ours(who) or difference <= max(allowed, OWN * own):
            continue
        exact = in_float32()
        found, rounding = (measure.difference(exact, shown[one]) for one in (who, first))
        if not found <= ROUNDING * rounding:
            row.failures[who] = (
                f"differs from {first} by {difference:.1e}, torch from itself by {own:.1e}, "
                f"and from float32 by {found:.1e}, torch by {rounding:.1e}"
            )


def _in_float32(network: ZooNetwork, training: bool, place: Place) -> Values:
    """What torch computes in float32."""
    exact = replace(place, precision="float32")
    exact.settle()
    try:
        return _values(contestants(network, training, exact, compiled=False)["torch"]())
    finally:
        place.settle()


def _values(one: Work) -> Values:
    return [np.asarray(v, np.float64) for v in one.values()]


def _as_json(row: Row, network: ZooNetwork) -> dict[str, Any]:
    known = ("seconds", "least", "ratio", "ratios", "best_peer", "differences", "failures")
    return {"batch": network.shape[0], "shape": network.shape, **{name: getattr(row, name) for name in known}}


def _explained(made: WeftTraining | WeftInference) -> dict[str, Any]:
    """Seconds above the roof, and the kernels that lose most of them; kernels of one name count together."""
    rows = made.explain().rows
    lost: dict[str, float] = defaultdict(float)
    spent: dict[str, float] = defaultdict(float)
    for row in rows:
        lost[row.name] += max(0.0, 1.0 - row.roof) * row.seconds
        spent[row.name] += row.seconds
    losers = sorted(lost, key=lambda what: -lost[what])[:LOSERS]
    return {
        "above_roof": sum(lost.values()),
        "explained": sum(row.seconds for row in rows),
        "losers": [(what, lost[what], 1.0 - lost[what] / spent[what]) for what in losers],
    }
