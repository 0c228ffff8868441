"""How good the energy model is: measured joules of networks against modelled ones, after fitting one constant, in two ways.

    python -m benchmarks.energy [device=cuda] [networks=lenet5,alexnet,...] [batch=16] [seconds=2] [node=45] [idle=subtract] [save=FILE.json]

Needs an energy counter: NVML of a GPU, RAPL of a processor. The model has arithmetic and data alone, so the constant (measured over modelled, the geometric mean of
all networks) stands for instructions, clocks, leakage and the process. What remains is the factor by which each network is off.
The other way, the constant is a power: what a busy board takes beyond its idle power, whatever it computes; measured = modelled + power x time.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from weft.insight import idle_power, profile
from weft.insight.call_times import calls_in_a_row
from weft.insight.counter_error import CounterError
from weft.insight.energy_counters import counter_of
from weft.insight.profile_text import amount, table
from weft.jobs.device import on
from weft.jobs.profiles.subject import find_subject
from weft.runtime import Device
from weft.runtime import device as find_device

DEFAULTS = {
    "device": "cpu",
    "networks": "lenet5,alexnet,resnet50,mobilenet_v2,char_lstm,gpt",
    "batch": "16",
    "seconds": "2",
    "node": "45",
    "idle": "include",
    "save": "",
}
WARM = 3  # calls before those that are measured


@dataclass(frozen=True)
class Measured:
    """A network: joules of a call."""

    network: str
    measured: float
    modelled: float
    seconds: float = 0.0  # of a call


@dataclass(frozen=True)
class Deviations:
    """What a fit leaves of each network: measured over fitted."""

    factors: dict[str, float]

    @property
    def within(self) -> float:
        """All networks are within this factor, in one direction or the other."""
        return max(max(factor, 1 / factor) for factor in self.factors.values())


@dataclass(frozen=True)
class Fit(Deviations):
    """Measured = constant x modelled x factor; the factors' geometric mean is 1."""

    constant: float


def fit(rows: Sequence[Measured]) -> Fit:
    """The constant with the least squared error of logarithms.

    >>> found = fit([Measured("a", 20.0, 1.0), Measured("b", 5.0, 1.0)])
    >>> round(found.constant, 6), round(found.within, 6)
    (10.0, 2.0)
    """
    constant = math.exp(sum(math.log(row.measured / row.modelled) for row in rows) / len(rows))
    return Fit({row.network: row.measured / row.modelled / constant for row in rows}, constant)


@dataclass(frozen=True)
class PowerFit(Deviations):
    """Measured = (modelled + watts x seconds) x factor."""

    watts: float


def fit_power(rows: Sequence[Measured]) -> PowerFit:
    """The power with the least squared error of logarithms, to a tenth of a watt.

    >>> found = fit_power([Measured("a", 21.0, 1.0, 2.0), Measured("b", 6.0, 1.0, 0.5)])
    >>> round(found.watts, 1), round(found.within, 2)
    (10.0, 1.0)
    """

    def factors(watts: float) -> dict[str, float]:
        return {row.network: row.measured / (row.modelled + watts * row.seconds) for row in rows}

    def error(watts: float) -> float:
        return sum(math.log(factor) ** 2 for factor in factors(watts).values())

    watts = min((0.1 * step for step in range(20_000)), key=error)
    return PowerFit(factors(watts), watts)


def measure(network: str, batch: int, seconds: float, node_nm: float, device: Device, idle: float | None) -> Measured:
    """Both energies of a call. Raises CounterError if the counter stops answering."""
    function, args = find_subject(network).step(batch)
    found = profile(function, *args, repeats=3, node_nm=node_nm)
    calls_in_a_row(function, args, WARM, device)
    calls = max(WARM, round(seconds / found.seconds))
    taken, used = calls_in_a_row(function, args, calls, device, idle)
    if used.joules is None:
        raise CounterError(used.note)
    if used.joules <= 0:
        raise CounterError(f"{network} took no energy beyond idle power; measure for longer")
    return Measured(network, used.joules / calls, found.total.joules, taken / calls)


def report(rows: Sequence[Measured], found: Fit, power: PowerFit, where: str) -> str:
    lines = [["network", "measured J", "modelled J", "measured / modelled", "after the factor", "after the power"]]
    for row in rows:
        numbers = [amount(row.measured), amount(row.modelled), f"{row.measured / row.modelled:.1f}"]
        lines.append([row.network, *numbers, f"{found.factors[row.network]:.2f}", f"{power.factors[row.network]:.2f}"])
    end = f"constant: {found.constant:.3g} (measured over modelled); after it, all networks are within a factor of {found.within:.2f}"
    other = f"or {power.watts:.1f} W while it computes, beside what is modelled; after that, within a factor of {power.within:.2f}"
    return f"{where}\n\n{table(lines, left=1)}\n\n{end}\n{other}"


def main(words: Sequence[str]) -> int:
    given = DEFAULTS | dict(word.split("=", 1) for word in words)
    with on(given["device"]):
        device = find_device()
        try:
            counter_of(device).close()
            idle = idle_power(device) if given["idle"] == "subtract" else None
            rows = [
                measure(name, int(given["batch"]), float(given["seconds"]), float(given["node"]), device, idle)
                for name in given["networks"].split(",")
            ]
        except CounterError as error:
            print(f"energy cannot be measured here, so the model cannot be checked: {error}")
            return 1
        where = f"{device.about()}, batch {given['batch']}, {given['node']} nm, idle power {'included' if idle is None else 'subtracted'}"
    found, power = fit(rows), fit_power(rows)
    print(report(rows, found, power, where))
    if given["save"]:
        kept = {
            "where": where,
            "rows": [asdict(row) for row in rows],
            **asdict(found),
            "within": found.within,
            "power": asdict(power),
        }
        Path(given["save"]).write_text(json.dumps(kept, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
