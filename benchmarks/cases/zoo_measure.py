"""One row of the sweep over the zoo: contestants agree, take turns, and weft's kernels are held against the roof."""

from __future__ import annotations

import gc
import time
from collections import defaultdict
from typing import Any

import numpy as np

from . import measure
from .measure import Clock, Effort, Ready, Row
from .peers import need
from .zoo_contestants import WeftInference, WeftTraining, Work, contestants
from .zoo_networks import ZooNetwork, networks

QUICK, FULL = Effort(2.0, 5, 3), Effort(10.0, 11, 5)
LOSERS = 3  # kernels that are named
ALLOWED = 1e-3  # of the difference to the first way of torch
OWN = 5.0  # or so many times the difference between two ways of torch: deep networks with relus amplify roundings


def measure_row(
    name: str,
    training: bool,
    device: str,
    *,
    batch: int | None,
    compiled: bool,
    quick: bool,
    cpu_time: bool,
    explained: bool = True,
) -> dict[str, Any]:
    """The times of all contestants and the kernels of weft that lose most, ready for JSON."""
    need("torch")  # sets its threads
    if cpu_time:
        Clock.now = staticmethod(time.process_time)
    [network] = [n for n in networks(batch) if n.name == name]
    row = Row("training" if training else "inference", name)
    ready: dict[str, Work] = {}
    for who, make in contestants(network, training, device, compiled).items():
        try:
            ready[who] = make()
        except Exception as error:  # libraries raise errors of every kind, and one that fails is a result too
            row.failures[who] = measure.failure(error)
    _compare(ready, row)
    times = measure.time_in_rounds({who: _waiting(one) for who, one in ready.items()}, QUICK if quick else FULL)
    row.seconds = {who: float(np.median(t)) for who, t in times.items()}
    row.least = {who: min(t) for who, t in times.items()}
    measure.rate(row, times)
    ready.clear()
    gc.collect()
    return _as_json(row, network) | (_explained(network, training, device) if explained else {})


def _waiting(one: Work) -> Ready:
    def call() -> None:
        one.call()
        one.wait()

    return Ready(call, one.values)


def _compare(ready: dict[str, Work], row: Row) -> None:
    """Note how far each contestant is from the first; one that is wrong does not count."""
    shown: dict[str, list[np.ndarray]] = {}
    for who in list(ready):
        try:
            shown[who] = [np.asarray(v, np.float64) for v in ready[who].values()]
        except Exception as error:  # as above
            row.failures[who] = measure.failure(error)
            del ready[who]
    first = next(iter(shown), "")
    row.differences = {who: measure.difference(shown[first], found) for who, found in shown.items()}
    own = max((d for who, d in row.differences.items() if not measure.is_ours(who)), default=0.0)
    for who, difference in row.differences.items():
        if measure.is_ours(who) and not difference <= max(ALLOWED, OWN * own):
            row.failures[who] = f"differs from {first} by {difference:.1e}, torch from itself by {own:.1e}"


def _as_json(row: Row, network: ZooNetwork) -> dict[str, Any]:
    known = ("seconds", "least", "ratio", "ratios", "best_peer", "differences", "failures")
    return {"batch": network.shape[0], "shape": network.shape, **{name: getattr(row, name) for name in known}}


def _explained(network: ZooNetwork, training: bool, device: str) -> dict[str, Any]:
    """Seconds above the roof, and the kernels that lose most of them; kernels of one name count together."""
    made = (WeftTraining if training else WeftInference)(network, device)
    made.call()
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
