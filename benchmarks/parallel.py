"""Data-parallel training over processes of this machine, beside torch's DistributedDataParallel (gloo): weak scaling and all-reduce.

    python benchmarks/parallel.py                          ranks 8, 16, 2, 4, as far as there are cores
    python benchmarks/parallel.py ranks=8 only=resnet      some of it
    python benchmarks/parallel.py reduce=true              all-reduce alone, beside gloo and MPI
    python benchmarks/parallel.py reduce=false             steps alone
    python benchmarks/parallel.py peers=none               weft alone
    python benchmarks/parallel.py seconds=120              begin nothing after so many seconds
    python benchmarks/parallel.py save=FILE.json           keep the numbers

Every rank has one thread, a core and a batch of its own. All are measured in turns of about a fifth of a second, over and over: one rank alone, n
ranks together, n ranks "apart", which work at the same time and do not exchange anything; weft, then torch. A virtual machine that is twice as fast
a minute later is so for all of them. The time of a turn is the median step of the slowest rank, the time of a row the median of its turns.
Efficiency is the median over turns of the time alone over the time beside it. That of "apart" is what clock, caches and memory leave.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import parallel_mpi
import parallel_torch
import parallel_weft
from parallel_cases import BATCH, NETWORKS, SIZES, cores_in_order

from weft import parallel

TURN_SECONDS = 0.2  # of steps
ROW_SECONDS = 3.0  # of turns
TURNS = 5  # at least
REDUCE_SECONDS = 0.05  # of all-reduces in a turn
STEP_KINDS = ("alone", "together", "apart")
BEGUN = time.monotonic()


def main(words: list[str]) -> None:
    given = dict(word.split("=", 1) for word in words)
    cores = cores_in_order()
    ranks = [int(n) for n in given.get("ranks", "8,16,2,4").split(",")]
    ranks = [n for n in ranks if 1 < n <= len(cores)]
    peers, deadline = given.get("peers") != "none", BEGUN + float(given.get("seconds", 1e9))
    found: dict[str, Any] = {"cores": len(cores), "order of cores": cores, "batch": BATCH, "steps": {}, "reduce": {}}
    names = [n for n in NETWORKS if any(part in n for part in given.get("only", "").split(","))]
    for n in ranks:
        with Engines(n, steps=given.get("reduce") != "true", reduces=given.get("reduce") != "false", peers=peers) as engines:  # fmt: skip
            if given.get("reduce") != "true":
                measure_steps(engines, names, found["steps"], deadline)
            if given.get("reduce") != "false" and "only" not in given:
                measure_reduce(engines, found["reduce"], deadline)
        if "save" in given:
            Path(given["save"]).write_text(json.dumps(found, indent=1) + "\n")


class Engines:
    """The processes of all engines with n ranks, which are called in turn. One that is not installed or does not run here is left out, which is said."""

    def __init__(self, n: int, steps: bool, reduces: bool, peers: bool) -> None:
        self.n = n
        self.weft = parallel.RankPool(n, threads=1)
        self.weft.run(parallel_weft.place, n)
        self.peers: dict[str, Any] = {}
        self._start("torch", lambda: parallel_torch.started(n) if peers else None)
        self._start("MPI", lambda: parallel_mpi.started(n) if peers and reduces else None)

    def _start(self, name: str, start: Callable[[], Any]) -> None:
        try:
            made = start()
        except Exception as error:  # whatever a peer raises, the other columns come
            print(f"left out: {name}: {type(error).__name__}: {str(error)[-200:]}", flush=True)
            return
        if made is not None:
            self.peers[name] = made

    def prepare(self, name: str) -> None:
        """Make the steps of a network."""
        self.weft.run(parallel_weft.prepare, name, self.n)
        if "torch" in self.peers:
            self.peers["torch"].run("prepare", name)

    def turn(self, engine: str, kind: str, count: int) -> float:
        """The median step of the slowest rank."""
        found = self.weft.run(parallel_weft.turn, kind, count) if engine == "weft" else self.peers[engine].run("turn", kind, count)  # fmt: skip
        return max(float(median(times)) for times in found if times)

    def reduce(self, engine: str, size: int, count: int) -> float:
        """The median all-reduce of the slowest rank."""
        if engine in self.peers:
            found = self.peers[engine].run("reduce", size, count)
        else:
            found = self.weft.run(parallel_weft.reduce, size, count, engine == "inside")
        return max(float(median(times)) for times in found)

    def __enter__(self) -> Engines:
        return self

    def __exit__(self, *error: object) -> None:
        self.weft.close()
        for one in self.peers.values():
            one.close()


def measure_steps(engines: Engines, names: list[str], found: dict[str, Any], deadline: float) -> None:
    """Print the time of a step of each network."""
    columns = ("alone ms", "together ms", "apart ms", "efficiency", "apart", "torch alone", "together", "efficiency", "torch/weft", "turns")  # fmt: skip
    print(f"\n{'network':<12}{'ranks':>6}" + "".join(f"{c:>12}" for c in columns), flush=True)
    for name in names:
        if time.monotonic() > deadline:
            return
        engines.prepare(name)
        turns = step_turns(engines, min(deadline, time.monotonic() + ROW_SECONDS))
        row = figures(turns)
        found.setdefault(name, {})[str(engines.n)] = row | {"turns": turns}
        print(f"{name:<12}{engines.n:>6}{_cells(row)}{len(turns):>12}", flush=True)


def step_turns(engines: Engines, deadline: float) -> list[dict[str, float]]:
    """The times of each turn, by engine and kind."""
    kinds = [("weft", kind) for kind in STEP_KINDS]
    kinds += [("torch", kind) for kind in STEP_KINDS[:2] if "torch" in engines.peers]
    first = {both: engines.turn(*both, 1) for both in kinds}
    counts = {both: max(1, int(TURN_SECONDS / t)) for both, t in first.items()}
    turns: list[dict[str, float]] = []
    while len(turns) < TURNS or time.monotonic() < deadline:
        turns.append({" ".join(both): engines.turn(*both, counts[both]) for both in kinds})
    return turns


def figures(turns: list[dict[str, float]]) -> dict[str, float]:
    """The median times of turns, and the efficiencies: medians of the ratios within a turn."""
    row = {kind: median(turn[kind] for turn in turns) for kind in turns[0]}
    ratios = {"efficiency": ("weft alone", "weft together"), "efficiency apart": ("weft alone", "weft apart")}
    ratios |= {"torch efficiency": ("torch alone", "torch together"), "torch over weft": ("torch together", "weft together")}  # fmt: skip
    for name, (a, b) in ratios.items():
        if a in row and b in row:
            row[name] = median(turn[a] / turn[b] for turn in turns)
    return row


def _cells(row: dict[str, float]) -> str:
    names = ("weft alone", "weft together", "weft apart", "efficiency", "efficiency apart", "torch alone", "torch together", "torch efficiency", "torch over weft")  # fmt: skip
    cells = [(1e3 * row[n] if n.startswith(("weft", "torch a", "torch t")) else row[n]) if n in row else None for n in names]  # fmt: skip
    return "".join(f"{c:12.2f}" if c is not None else f"{'-':>12}" for c in cells)


def measure_reduce(engines: Engines, found: dict[str, Any], deadline: float) -> None:
    """Print the time of an all-reduce of each size: of an array (weft, torch, MPI), and inside of a compiled function."""
    names = ["weft", "inside", *engines.peers]
    print(f"\n{'bytes':<12}{'ranks':>6}" + "".join(f"{k + ' us':>12}" for k in names), flush=True)
    for size in SIZES:
        if time.monotonic() > deadline:
            return
        kinds = [k for k in names if k != "inside" or size <= 1 << 22]
        first = {k: engines.reduce(k, size, 2) for k in kinds}
        counts = {k: max(1, min(300, int(REDUCE_SECONDS / t))) for k, t in first.items()}
        turns = [{k: engines.reduce(k, size, counts[k]) for k in kinds} for _ in range(2 if size > 1 << 26 else 4)]
        row = {k: median(turn[k] for turn in turns) for k in kinds}
        found.setdefault(str(engines.n), {})[size] = row
        print(f"{size:<12}{engines.n:>6}" + "".join(f"{1e6 * row[k]:12.1f}" if k in row else f"{'-':>12}" for k in names), flush=True)  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
