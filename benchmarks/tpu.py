"""The simulated TPU against the paper: TOPS of the six production networks of Jouppi et al. 2017, and what other machines would change.

    python -m benchmarks.tpu [json=benchmarks/results/tpu.json]

Everything is modelled; nothing depends on the machine that this runs on. "counters" are the paper's Table 3: useful cells (row 2) times the peak. They and the TOPS
that were measured in production (row 9) come from different runs and do not agree, as the paper says.
"""

from __future__ import annotations

import json
import sys
from math import exp, log
from pathlib import Path
from typing import Any

from weft.tpu import PUBLISHED, PublishedNetwork, TpuMachine, TpuReport, TpuRoof, what_changes
from weft.tpu.timing import CAUSES, COMPUTE, WEIGHT_SHIFT, WEIGHT_WAIT

SHARES = {
    "MLP0": 0.305,
    "MLP1": 0.305,
    "LSTM0": 0.145,
    "LSTM1": 0.145,
    "CNN0": 0.025,
    "CNN1": 0.025,
}  # of deployed TPUs, Table 1, halved within a pair


def row(network: PublishedNetwork, report: TpuReport) -> dict[str, Any]:
    """What is printed of a network, and kept."""
    cycles = report.cycles
    matrix = sum(cycles[cause] for cause in (COMPUTE, WEIGHT_WAIT, WEIGHT_SHIFT))
    counted = network.active + network.weight_wait + network.weight_shift
    return {
        "network": network.name, "layers": network.layers, "weights_millions": network.weights, "batch": network.batch,
        "macs_per_weight_byte": network.intensity, "published_tops": network.tops, "counters_tops": network.useful * TpuMachine().peak_tops,
        "roofline_tops": TpuRoof(TpuMachine()).tops(network.intensity), "simulated_tops": report.tops, "error": report.tops / network.tops - 1,
        "milliseconds": 1e3 * report.seconds, "cycles": {cause: cycles[cause] / report.total_cycles for cause in CAUSES},
        "of_matrix_cycles": [cycles[cause] / matrix for cause in (COMPUTE, WEIGHT_WAIT, WEIGHT_SHIFT)],
        "of_matrix_cycles_published": [share / counted for share in (network.active, network.weight_wait, network.weight_shift)],
        "assumed": network.assumed,
    }  # fmt: skip


def main(words: list[str]) -> None:
    rows = [row(network, network.simulate()) for network in PUBLISHED]
    _print_networks(rows)
    changes = _changes()
    _print_changes(changes)
    for word in words:
        path = Path(word.removeprefix("json="))
        path.write_text(json.dumps({"networks": rows, "speedups": changes}, indent=1) + "\n")


def _print_networks(rows: list[dict[str, Any]]) -> None:
    print("| network | layers | weights | batch | MACs a byte | roofline | counters | published | simulated | off by |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for r in rows:
        sizes = f"{r['weights_millions']} M | {r['batch']} | {r['macs_per_weight_byte']}"
        tops = " | ".join(
            f"{r[key]:.1f}" for key in ("roofline_tops", "counters_tops", "published_tops", "simulated_tops")
        )
        print(f"| {r['network']} | {r['layers']} | {sizes} | {tops} | {r['error']:+.0%} |")
    print(
        "\nWhat the matrix unit does, of the cycles that are put down to it: computing, waiting for weights, shifting them in (published)\n"
    )
    print("| network | compute | weights | shift |")
    print("|---|---:|---:|---:|")
    for r in rows:
        pairs = zip(r["of_matrix_cycles"], r["of_matrix_cycles_published"], strict=True)
        print(f"| {r['network']} | " + " | ".join(f"{ours:.0%} ({theirs:.0%})" for ours, theirs in pairs) + " |")


def _changes() -> dict[str, dict[str, float]]:
    """How many times as fast each network becomes on other machines."""
    found: dict[str, dict[str, float]] = {}
    for network in PUBLISHED:
        reports = what_changes(network)
        first = reports["as it is"].seconds
        for name, report in reports.items():
            found.setdefault(name, {})[network.name] = first / report.seconds
    return found


def _print_changes(changes: dict[str, dict[str, float]]) -> None:
    print("\nTimes as fast\n")
    print(f"| machine | {' | '.join(SHARES)} | geometric mean | weighted mean |")
    print("|---|" + "---:|" * (len(SHARES) + 2))
    for name, by_network in changes.items():
        geometric = exp(sum(log(v) for v in by_network.values()) / len(by_network))
        weighted = sum(SHARES[network] * v for network, v in by_network.items()) / sum(SHARES.values())
        values = " | ".join(f"{by_network[network]:.2f}" for network in SHARES)
        print(f"| {name} | {values} | {geometric:.2f} | {weighted:.2f} |")


if __name__ == "__main__":
    main(sys.argv[1:])
