"""The tables and pictures of docs/insight.md, made from the files that `benchmarks/insight.py` wrote: no figure is copied by hand.

    python -m benchmarks.insight_page            # writes them; a test fails if the page differs from the files

Tables stand between two comments of the page: `<!-- table NAME ... -->` and `<!-- end of table -->`. Pictures are docs/pictures/insight/*.svg.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import cache
from itertools import compress
from pathlib import Path
from typing import Any

from benchmarks.energy import Fit, Measured, PowerFit, fit, fit_power
from benchmarks.insight_projection import Profiles, ProjectionError, projected_errors
from weft.insight import ProgramProfile, profile_from_json, throughput_svg
from weft.insight.profile_text import amount, duration
from weft.insight.roofline_plot import roofline_svg
from weft.insight.throughput_table import ThroughputRow
from weft.report.axes import short

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE, PICTURES = ROOT / "benchmarks/results", ROOT / "docs/insight.md", ROOT / "docs/pictures/insight"
MACHINES = {
    "cascadelake-1-threads": "Cascade Lake, 1 thread",
    "cascadelake-2-threads": "Cascade Lake, 2 threads",
    "emeraldrapids-1-threads": "Emerald Rapids, 1 thread",
    "emeraldrapids-16-threads": "Emerald Rapids, 16 threads",
    "h200": "H200",
}
NETWORKS = {
    "lenet5": "LeNet-5",
    "alexnet": "AlexNet",
    "resnet50": "ResNet-50",
    "mobilenet_v2": "MobileNetV2",
    "char_lstm": "LSTM",
    "gpt": "GPT",
}
# The projections between four machines compare the programs of one version of weft: that of the day on which Cascade Lake was measured.
ONE_VERSION = RESULTS / "projections-2026-11-17.json"
DRAWN = ("cascadelake-2-threads", "emeraldrapids-16-threads", "h200")  # in pictures
MARK = re.compile(r"(<!-- table (\w+)[^>]*-->\n).*?(<!-- end of table -->)", re.DOTALL)
MISSING = "–"


@cache
def measured(machine: str) -> dict[str, Any]:
    """The file of a machine."""
    known: dict[str, Any] = json.loads((RESULTS / f"insight-{machine}.json").read_text(encoding="utf-8"))
    return known


def machines() -> dict[str, str]:
    """The machines that there are files of, with their titles."""
    return {name: title for name, title in MACHINES.items() if (RESULTS / f"insight-{name}.json").is_file()}


def part(machine: str, network: str, name: str) -> Any:
    """What was measured; None if it was not, or failed."""
    found = measured(machine)["networks"].get(network, {}).get(name)
    return None if isinstance(found, dict) and "note" in found else found


@cache
def profile_of(machine: str, network: str) -> ProgramProfile | None:
    found = part(machine, network, "profile")
    return None if found is None else profile_from_json(found)


def newer_profiles() -> Profiles:
    """The machines that were measured after Cascade Lake, by name and network."""
    older = measured("cascadelake-2-threads")["date"]
    names = [name for name in machines() if measured(name)["date"] > older]
    return {name: {network: one for network in NETWORKS if (one := profile_of(name, network))} for name in names}


@cache
def profiles_of_one_version() -> Profiles:
    """All machines with the version of weft that Cascade Lake was measured with."""
    older = json.loads(ONE_VERSION.read_text(encoding="utf-8"))
    name = "cascadelake-2-threads"
    here = {network: one for network in NETWORKS if (one := profile_of(name, network))}
    return {name: here} | {
        machine: {network: profile_from_json(one["profile"]) for network, one in found["networks"].items()}
        for machine, found in older.items()
    }


def rows_of(machine: str, network: str, what: str) -> dict[int, ThroughputRow]:
    names = [field.name for field in fields(ThroughputRow)]
    rows = [row for row in part(machine, network, what) or () if "note" not in row]
    return {row["batch"]: ThroughputRow(**{name: row[name] for name in names if name in row}) for row in rows}


def markdown(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Rows as a table of Markdown; the first `left` columns are text. Columns without any figure are named below it instead.

    >>> print(markdown([["network", "A", "B"], ["LeNet-5", "3", MISSING]]))
    | network | A |
    | --- | ---: |
    | LeNet-5 | 3 |
    <BLANKLINE>
    Not measured: B.
    >>> markdown([["network", "A"]])
    'Not measured.'
    """
    head, *body = rows
    if not body:
        return "Not measured."
    known = [any(row[i] != MISSING for row in body) for i in range(len(head))]
    rule = ["---" if i < left else "---:" for i in range(len(head))]
    lines = ["| " + " | ".join(compress(row, known)) + " |" for row in (head, rule, *body)]
    unknown = [title for title, is_known in zip(head, known, strict=True) if not is_known]
    return "\n".join([*lines, *(["", f"Not measured: {'; '.join(unknown)}."] if unknown else [])])


def each_network(cells: Callable[[str], Sequence[str] | None]) -> Iterator[list[str]]:
    for name, title in NETWORKS.items():
        found = cells(name)
        if found is not None and set(found) != {MISSING}:
            yield [title, *found]


# --- tables -----------------------------------------------------------------------------------------------------------------------


def devices_table() -> str:
    rows = [["machine", "device", "measured roof", "energy", "measured on"]]
    for name, title in machines().items():
        found, profile = measured(name), profile_of(name, "lenet5")
        roof = str(profile.explanation.roof) if profile else MISSING
        watts = found["idle_watts"]
        energy = "modelled: no counter" if watts is None else f"{found['energy']}; idle {watts:.0f} W"
        device = found["device"] if found["kind"] == "gpu" else found["processor"]
        rows.append([title, device, roof, energy, found["date"][:10]])
    return markdown(rows, left=5)


def inference_table() -> str:
    """Time of a call and distance from the roof."""

    def cells(network: str) -> list[str]:
        profiles = [profile_of(name, network) for name in machines()]
        first = next((one for one in profiles if one), None)
        work = [f"{amount(first.total.flops)}FLOP"] if first else [MISSING]
        return work + [
            MISSING if one is None else f"{duration(one.seconds)}, {one.total.least / one.total.seconds:.0%}"
            for one in profiles
        ]

    return markdown([["network", "work", *machines().values()], *each_network(cells)])


def bounds_table() -> str:
    """What the time goes to."""

    def cells(network: str) -> list[str]:
        found = []
        for name in machines():
            profile = profile_of(name, network)
            found.append(MISSING if profile is None else _bounds(profile))
        return found

    return markdown([["network", *machines().values()], *each_network(cells)], left=1 + len(machines()))


def _bounds(profile: ProgramProfile) -> str:
    times: dict[str, float] = {}
    for kernel in profile.kernels:
        limit = profile.bound(kernel).limit
        times[limit] = times.get(limit, 0.0) + kernel.seconds
    total = sum(times.values())
    shares = sorted(((seconds / total, limit) for limit, seconds in times.items()), reverse=True)
    return ", ".join(f"{limit} {share:.0%}" for share, limit in shares if share >= 0.05)


def latency_table(batch: int = 1) -> str:
    """p50, p95 and p99."""

    def cells(network: str) -> list[str]:
        found = []
        for name in machines():
            row = rows_of(name, network, "infer").get(batch)
            found.append(MISSING if row is None else " / ".join(map(duration, (row.p50, row.p95, row.p99))))
        return found

    return markdown([["network", *machines().values()], *each_network(cells)])


def throughput_table(what: str = "infer") -> str:
    """Examples a second by batch size, machines side by side; energy and cost where they are known."""
    names = list(machines())
    cpu, gpu = (next((name for name in names if measured(name)["kind"] == kind), None) for kind in ("cpu", "gpu"))
    unit = "inferences" if what == "infer" else "samples"
    head = ["network", "batch", *(f"{title}, {unit}/s" for title in machines().values())]
    head += [f"{MACHINES[cpu]}, {unit}/J, modelled"] if cpu else []
    costs = ("J, measured", "s/W of the limit", "$ of rent")
    head += [f"{MACHINES[gpu]}, {unit}/{cost}" for cost in costs] if gpu else []
    rows = [head]
    for network, title in NETWORKS.items():
        found = {name: rows_of(name, network, what) for name in names}
        for batch in sorted({batch for one in found.values() for batch in one}):
            cells = [short(found[name][batch].per_second) if batch in found[name] else MISSING for name in names]
            cells += [_per_joule(found[cpu].get(batch), "modelled")] if cpu else []
            rows.append([title, str(batch), *cells, *(_cost_cells(found[gpu].get(batch)) if gpu else ())])
    return markdown(rows)


def _per_joule(row: ThroughputRow | None, energy: str) -> str:
    known = None if row is None or row.energy != energy else row.per_joule
    return MISSING if known is None else short(known)


def _cost_cells(row: ThroughputRow | None) -> list[str]:
    costs = (None, None) if row is None else (row.per_second_per_watt, row.per_dollar)
    return [_per_joule(row, "measured"), *(MISSING if one is None else short(one) for one in costs)]


def phases_table() -> str:
    """A training step."""

    def cells(network: str) -> list[str]:
        found = []
        for name in machines():
            known = part(name, network, "training")
            if known is None:
                found.append(MISSING)
                continue
            times = {phase: one["seconds"] for phase, one in known["phases"].items()}
            shares = " + ".join(
                f"{times.get(phase, 0.0) / sum(times.values()):.0%}" for phase in ("forward", "backward", "update")
            )
            found.append(f"{duration(known['seconds'])}: {shares}")
        return found

    return markdown([["network, batch 16", *machines().values()], *each_network(cells)])


def overhead_table() -> str:
    """How much longer a run with a clock takes."""

    def cells(network: str) -> list[str]:
        return [_percent(one.explanation.overhead if one else None) for one in (profile_of(name, network) for name in machines())]  # fmt: skip

    return markdown([["network", *machines().values()], *each_network(cells)])


def _percent(value: float | None) -> str:
    return MISSING if value is None else f"{value:+.1%}"


def energy_rows(machine: str) -> list[Measured]:
    """What `benchmarks/energy.py` measured: joules of a call beyond idle power, and modelled ones."""
    path = RESULTS / f"energy-{machine}.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else []
    batch = measured(machine)["batch"]
    seconds = {row["network"]: batch / rows_of(machine, row["network"], "infer")[batch].per_second for row in rows}
    return [Measured(**{**row, "seconds": row.get("seconds") or seconds[row["network"]]}) for row in rows]


def energy_fits() -> dict[str, tuple[list[Measured], Fit, PowerFit]]:
    rows = {name: energy_rows(name) for name in machines()}
    return {name: (found, fit(found), fit_power(found)) for name, found in rows.items() if len(found) > 1}


def energy_table() -> str:
    rows = [["network, batch 16", "measured beyond idle", "modelled", "measured / modelled", "after the factor", "after the power"]]  # fmt: skip
    ends = []
    for machine, (found, factor, power) in energy_fits().items():
        for row in found:
            numbers = [f"{amount(one)}J" for one in (row.measured, row.modelled)]
            off = [f"{one.factors[row.network]:.2f}" for one in (factor, power)]
            rows.append([NETWORKS[row.network], *numbers, f"{row.measured / row.modelled:.2f}", *off])
        ends.append(
            f"{machines()[machine]}: one factor of {factor.constant:.3g} leaves all networks within a factor of {factor.within:.2f}; one power of {power.watts:.1f} W "
            f"while it computes, beside what is modelled, within a factor of {power.within:.2f}."
        )
    return "\n".join([markdown(rows), "", *ends])


def memory_table() -> str:
    """Forecast and allocation of a training step."""
    rows = [["network", "machine", "batch", "forecast, MB", "allocated, MB", "error"]]
    for network, title in NETWORKS.items():
        for name, machine in machines().items():
            one = part(name, network, "memory")
            if one is not None:
                error = round(one["forecast"] / one["allocated"] - 1.0, 4) or 0.0  # no -0.00%
                sizes = [f"{one[key] / 1e6:.2f}" for key in ("forecast", "allocated")]
                rows.append([title, machine, str(one["batch"]), *sizes, f"{error:+.2%}"])
    return markdown(rows, left=2)


def errors_of(profiles: Profiles) -> list[ProjectionError]:
    found: list[ProjectionError] = projected_errors(profiles, {name: measured(name)["kind"] for name in profiles})
    return found


def projection_table(profiles: Profiles) -> str:
    """Projected over measured time, from each machine to each other one."""
    errors = errors_of(profiles)
    rows = [["from", "to", *NETWORKS.values(), "within 25 %"]]
    for source, target in dict.fromkeys((one.source, one.target) for one in errors):
        own = {one.network: one.error for one in errors if (one.source, one.target) == (source, target)}
        cells = [f"{own[name]:+.0%}" if name in own else MISSING for name in NETWORKS]
        good = sum(abs(error) <= 0.25 for error in own.values())
        rows.append([MACHINES[source], MACHINES[target], *cells, f"{good} of {len(own)}"])
    return markdown(rows, left=2)


TABLES: dict[str, Callable[[], str]] = {
    "devices": devices_table,
    "inference": inference_table,
    "bounds": bounds_table,
    "latency": latency_table,
    "throughput": throughput_table,
    "training": lambda: throughput_table("train"),
    "phases": phases_table,
    "overhead": overhead_table,
    "energy": energy_table,
    "memory": memory_table,
    "projections": lambda: projection_table(profiles_of_one_version()),
    "newer": lambda: projection_table(newer_profiles()),
}  # fmt: skip


# --- the page ---------------------------------------------------------------------------------------------------------------------


def page(text: str) -> str:
    """The page with its tables as the files have them."""
    return MARK.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}\n{found[3]}", text)


def pictures() -> dict[str, str]:
    """File names and contents: the roofline and the throughput of each network, CPUs and GPU in one picture."""
    drawn, names = {}, [name for name in DRAWN if name in machines()]
    for network, title in NETWORKS.items():
        profiles = {MACHINES[name]: one for name in names if (one := profile_of(name, network)) is not None}
        if profiles:
            drawn[f"{network}-roofline.svg"] = roofline_svg(profiles)
        rows = [
            ThroughputRow(**{**vars(row), "device": MACHINES[name]})
            for name in names for what in ("infer", "train") for row in rows_of(name, network, what).values()
        ]  # fmt: skip
        if rows:
            drawn[f"{network}-throughput.svg"] = throughput_svg(rows, f"{title}, inference and training")
    return drawn


def main() -> None:
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    PICTURES.mkdir(parents=True, exist_ok=True)
    drawn = pictures()
    for path in PICTURES.glob("*.svg"):
        if path.name not in drawn:
            path.unlink()
    for name, content in drawn.items():
        (PICTURES / name).write_text(content, encoding="utf-8")
    print(f"{len(TABLES)} tables, {len(drawn)} pictures from {', '.join(machines()) or 'no file'}")


if __name__ == "__main__":
    main()
