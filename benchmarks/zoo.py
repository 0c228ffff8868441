"""The whole zoo against torch: a training step and inference of every network, in turns, on this machine's CPU or a GPU.

    python benchmarks/zoo.py                            all networks on all cores; hours, most of them in torch.compile
    python benchmarks/zoo.py --only resnet "random 3"   networks whose names hold one of these words
    python benchmarks/zoo.py --group random             those of the catalogue (zoo), others, or ten made by chance (random)
    python benchmarks/zoo.py --threads 1 2 16           on so many cores, one after the other
    python benchmarks/zoo.py --device cuda              on a GPU: training in bfloat16, inference in float16
    python benchmarks/zoo.py --device cuda --precision tf32 --jobs 12    in other numbers; 12 rows get ready at a time, and one is timed
    python benchmarks/zoo.py --mode training            a training step alone
    python benchmarks/zoo.py --skip-compile             without torch.compile
    python benchmarks/zoo.py --cpu-time                 on one core and in CPU time: for a machine that others use too
    python benchmarks/zoo.py --json FILE --resume       keep rows in FILE, and measure only those that are not there yet
    python benchmarks/zoo.py --limit 180                give up on a row after so many seconds
    python benchmarks/zoo.py --threshold gpu_padded_conv=1000000000000    with another limit of weft/compiler/thresholds.py
    python benchmarks/zoo.py --skip-explain             times alone: on a busy machine those of kernels, which are wall-clock, say nothing

Every row is a process of its own, which has the machine to itself while it is timed. Beside the times stand how much of weft's own time is above the roof of the machine, by `explain`, and the
three kernels that lose most of it. See benchmarks/README.md for the method.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

from cases import peers
from cases.row_processes import RowProcesses, wait_for_turn

MODES = ("training", "inference")
HEAD = "| network | weft | best of torch | ratio | above the roof | loses most |\n|---|---:|---:|---:|---:|---|"
GOALS = {"training": 1.4, "inference": 1.4}  # geometric means on CPUs
GPU_GOAL = 1.3
PRECISIONS = ("float32", "tf32", "bfloat16", "float16")
ON_GPU = {"training": "bfloat16", "inference": "float16"}


def main() -> None:
    options = _options()
    if options.one:
        _one(options)
        return
    rows = _kept(options)
    for threads in options.threads:
        for mode in options.mode:
            _sweep(options, mode, threads, rows)
    if not rows:
        sys.exit("[benchmarks/zoo] no network has such a name. See `weft models`.")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--only", nargs="+", default=[], help="networks whose names hold one of these")
    parser.add_argument("--group", nargs="+", default=["zoo", "other", "random"], choices=["zoo", "other", "random"])
    parser.add_argument("--mode", nargs="+", default=list(MODES), choices=MODES)
    parser.add_argument("--threads", type=int, nargs="+", default=[0], help="numbers of cores; 0: all")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--precision", choices=PRECISIONS, help="of products; float32 on a CPU, 16 bits on a GPU")
    parser.add_argument("--jobs", type=int, default=1, help="rows that get ready at the same time")
    parser.add_argument("--batch", type=int, help="examples of a batch; else what suits the network")
    parser.add_argument("--skip-compile", action="store_true", help="without torch.compile")
    parser.add_argument("--skip-explain", action="store_true", help="without the kernels that lose most")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--cpu-time", action="store_true", help="one core, CPU time")
    parser.add_argument("--json", type=Path, help="where rows are kept")
    parser.add_argument("--resume", action="store_true", help="skip what the file already has")
    parser.add_argument("--limit", type=float, help="seconds after which a row is given up")
    parser.add_argument("--threshold", nargs="+", default=[], help="NAME=NUMBER of weft/compiler/thresholds.py")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)  # mode and network: one row, in this process
    options = parser.parse_args()
    if options.cpu_time:
        options.threads = [1]
    return options


# --- all rows ---------------------------------------------------------------------------------------------------------------------


def _sweep(options: argparse.Namespace, mode: str, threads: int, rows: list[dict[str, Any]]) -> None:
    where = options.device if options.device != "cpu" else f"{threads or 'all'} cores"
    print(f"\n## {mode}, {where}\n\n{HEAD}", flush=True)
    names = _names(options)
    shown = {
        row["name"]: row for row in rows if (row["mode"], row["asked"]) == (mode, threads) and row["name"] in names
    }
    for row in shown.values():
        print(_line(row))
    processes = RowProcesses(options.jobs, options.limit)
    for name, found in processes.rows({n: _command(options, mode, n, threads) for n in names if n not in shown}):
        shown[name] = {"mode": mode, "name": name, "asked": threads} | found
        rows.append(shown[name])
        _write(options, rows)
        print(_line(shown[name]), flush=True)
    print(f"\n{_summary(list(shown.values()), mode, options.device)}", flush=True)


def _names(options: argparse.Namespace) -> list[str]:
    from cases import zoo_networks

    words = [w.lower() for w in options.only]
    found = [n for n in zoo_networks.networks(options.device, options.batch) if n.group in options.group]
    return [n.name for n in found if not words or any(w in n.name.lower() for w in words)]


def _command(options: argparse.Namespace, mode: str, name: str, threads: int) -> list[str]:
    """A row in a process of its own: one that dies is a result too, and threads do not outlive it."""
    command = [sys.executable, __file__, "--one", mode, name, "--threads", str(threads), "--device", options.device]
    command += ["--batch", str(options.batch)] if options.batch else []
    command += ["--precision", options.precision] if options.precision else []
    command += ["--threshold", *options.threshold] if options.threshold else []
    flags = ("skip-compile", "skip-explain", "quick", "cpu-time")
    return command + [f"--{flag}" for flag in flags if getattr(options, flag.replace("-", "_"))]


def _kept(options: argparse.Namespace) -> list[dict[str, Any]]:
    if not options.resume or options.json is None or not options.json.exists():
        return []
    rows: list[dict[str, Any]] = json.loads(options.json.read_text())["rows"]
    return [row for row in rows if row.get("ratio") is not None]


def _write(options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        facts = {
            "device": options.device,
            "clock": "CPU time" if options.cpu_time else "time",
            "versions": peers.versions(),
        }
        options.json.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


def _line(row: dict[str, Any]) -> str:
    name = f"{row['name']}, batch {row['batch']}" if "batch" in row else row["name"]
    failures = "; ".join(f"**{who}: {why.replace('|', '/')}**" for who, why in row.get("failures", {}).items())
    if row.get("ratio") is None:
        return f"| {name} | - | - | - | - | {failures} |"
    ours, peer = 1e3 * row["seconds"]["weft"], 1e3 * row["seconds"][row["best_peer"]]
    losers, above = "", "-"
    if "losers" in row:
        losers = "; ".join(f"{what} {1e3 * lost:.2g} ms ({roof:.0%})" for what, lost, roof in row["losers"])
        above = f"{1e3 * row['above_roof']:.3g} of {1e3 * row['explained']:.3g} ms"
    cells = (name, f"{ours:.3g} ms", f"{peer:.3g} ms ({row['best_peer']})", f"{row['ratio']:.2f}", above)
    return f"| {' | '.join(cells)} | {losers}{'; ' if failures else ''}{failures} |"


def _summary(rows: list[dict[str, Any]], mode: str, device: str) -> str:
    ratios = {row["name"]: row["ratio"] for row in rows if row.get("ratio") is not None}
    if not ratios:
        return "Nothing was measured."
    mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
    goal = GOALS[mode] if device == "cpu" else GPU_GOAL
    behind = sorted((r, n) for n, r in ratios.items() if r < 1.0)
    text = f"{len(ratios)} networks, geometric mean {mean:.2f} (goal {goal}), {len(behind)} below 1.00"
    return text + (": " + ", ".join(f"{n} {r:.2f}" for r, n in behind) if behind else "")


# --- one row ----------------------------------------------------------------------------------------------------------------------


def _one(options: argparse.Namespace) -> None:
    threads = peers.settle(options.threads[0])  # before any library is loaded
    from cases import zoo_contestants, zoo_measure

    _set_thresholds(options.threshold)
    mode, name = options.one
    place = zoo_contestants.Place(options.device, options.precision or _precision(mode, options.device))
    if options.cpu_time:
        zoo_measure.use_cpu_time()
    row = zoo_measure.prepared_row(
        name, mode == "training", place, batch=options.batch, compiled=not options.skip_compile, explained=not options.skip_explain
    )  # fmt: skip
    wait_for_turn()
    print(json.dumps(row.measured(options.quick) | {"threads": threads, "precision": place.precision}))


def _set_thresholds(given: list[str]) -> None:
    """Programs on disk are kept whatever their thresholds were: the cache is off."""
    from weft.compiler.thresholds import thresholds
    from weft.knobs import knobs

    for name, value in (one.split("=") for one in given):
        assert name in vars(thresholds), name
        setattr(thresholds, name, int(value))
        knobs.cache = "off"


def _precision(mode: str, device: str) -> str:
    return "float32" if device == "cpu" else ON_GPU[mode]


if __name__ == "__main__":
    main()
