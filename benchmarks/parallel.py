"""Data-parallel training over processes of this machine, beside torch's DistributedDataParallel (gloo): weak scaling and all-reduce.

    python benchmarks/parallel.py                          ranks 1, 2, 4, ... up to the cores
    python benchmarks/parallel.py ranks=1,8 only=resnet    some of it
    python benchmarks/parallel.py reduce=true              all-reduce alone, beside gloo and MPI
    python benchmarks/parallel.py peers=none               weft alone
    python benchmarks/parallel.py save=FILE.json           keep the numbers

Every rank has one thread and a batch of its own; the time of a step is the median over steps of the slowest rank. weft and torch take
turns: for each number of ranks, first the one, then the other. Efficiency is the time of one rank over that of n; "apart" is that of n
ranks that do not exchange anything: what caches, memory and clock leave of it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import parallel_torch
import parallel_weft
from parallel_cases import BATCH, NETWORKS, SIZES


def main(words: list[str]) -> None:
    given = dict(word.split("=", 1) for word in words)
    cores = len(os.sched_getaffinity(0))
    ranks = [int(n) for n in given["ranks"].split(",")] if "ranks" in given else [1, 2, 4, 8, 16]
    ranks = [n for n in ranks if n <= cores]
    found: dict[str, Any] = {"cores": cores, "batch": BATCH, "steps": {}, "reduce": {}}
    if "reduce" not in given:
        names = [n for n in NETWORKS if any(part in n for part in given.get("only", "").split(","))]
        measure_steps(ranks, names, found["steps"], given.get("peers") != "none")
    if "only" not in given:
        measure_reduce([n for n in ranks if n > 1], found["reduce"])
    if "save" in given:
        Path(given["save"]).write_text(json.dumps(found, indent=1) + "\n")


def measure_steps(ranks: list[int], names: list[str], found: dict[str, Any], peers: bool) -> None:
    """Print the time of a step of each network at each number of ranks."""
    columns = ("weft ms", "efficiency", "apart ms", "apart", "torch ms", "efficiency", "ratio")
    print(f"{'network':<12}{'ranks':>6}" + "".join(f"{c:>12}" for c in columns), flush=True)
    for n in ranks:
        times = {
            "weft": parallel_weft.step_times(n, names),
            "apart": parallel_weft.step_times(n, names, exchange=False),
            "torch": _try(partial(parallel_torch.step_times, n, names)) if peers else {},
        }
        for name in names:
            row = found.setdefault(name, {})
            row[n] = {kind: times[kind].get(name) for kind in times}
            print(f"{name:<12}{n:>6}{_cells(row, n)}", flush=True)


def _cells(row: dict[int, dict[str, float | None]], n: int) -> str:
    ours, theirs = row[n]["weft"], row[n]["torch"]
    text = ""
    for kind, t in (("weft", ours), ("apart", row[n]["apart"]), ("torch", theirs)):
        first = row[min(row)][kind]
        text += f"{1e3 * t:12.2f}{first / t:12.2f}" if t and first else f"{'-':>12}{'-':>12}"
    return text + (f"{theirs / ours:12.2f}" if ours and theirs else "")


def measure_reduce(ranks: list[int], found: dict[str, Any]) -> None:
    """Print the time of an all-reduce of each size."""
    print(f"\n{'bytes':<12}{'ranks':>6}" + "".join(f"{k:>12}" for k in ("weft us", "gloo us", "MPI us")), flush=True)
    for n in ranks:
        ours = parallel_weft.reduce_times(n)
        gloo, mpi = _try(partial(parallel_torch.reduce_times, n)), _try(partial(mpi_times, n))
        for size in SIZES:
            row = {"weft": ours[str(size)], "gloo": gloo.get(str(size)), "MPI": mpi.get(str(size))}
            found.setdefault(str(n), {})[size] = row
            cells = (f"{1e6 * t:12.1f}" if t else f"{'-':>12}" for t in row.values())
            print(f"{size:<12}{n:>6}" + "".join(cells), flush=True)


def mpi_times(n: int) -> dict[str, float]:
    """mpi4py's own Allreduce."""
    command = [shutil.which("mpiexec") or "mpiexec", "-n", str(n)]
    version = subprocess.run([command[0], "--version"], capture_output=True, text=True).stdout
    if "Open" in version:  # Open MPI
        command += ["--allow-run-as-root", "--oversubscribe"]
    words = [*command, sys.executable, str(Path(__file__).with_name("parallel_mpi.py"))]
    out = subprocess.run(words, capture_output=True, text=True, timeout=120)
    lines = [line for line in out.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise RuntimeError(out.stderr[-300:])
    return dict(json.loads(lines[0]))


def _try(call: Callable[[], dict[str, float]]) -> dict[str, float]:
    """What a peer takes; nothing if it is not installed or does not run here, which is said."""
    try:
        return call()
    except Exception as error:  # whatever a peer raises, the other columns come
        print(f"left out: {type(error).__name__}: {str(error)[-200:]}")
        return {}


if __name__ == "__main__":
    main(sys.argv[1:])
