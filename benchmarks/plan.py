"""Predicted steps beside measured ones: data parallel training over 1, 2, 4, ... ranks of one thread on this machine.

    python -m benchmarks.plan [ranks=1,2,4,8,16] [networks=lenet5,small_cnn,resnet18_cifar,char_lstm] [batch=32] [seconds=0.5] [save=FILE.json]

For each number of ranks, one pool of processes measures all-reduces and slow-downs (the calibration of `weft plan --measure`), and then real
steps: gradients, one all-reduce of all of them, SGD. The prediction knows a profile of one rank and the calibration, not the steps.
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import weft
from weft import nn, parallel
from weft.compiler.cpu.target import host
from weft.compiler.host import usable_cores
from weft.insight.profile_text import duration, table
from weft.jobs.profile_subject import find_subject
from weft.knobs import knobs
from weft.plan import MeasuredCluster, ParallelSplit, StepWork, measured_work, predict
from weft.plan.calibration import SIZES, SWEEPS, default_ranks, slowest
from weft.plan.plan_text import checks_text
from weft.plan.published import published_checks
from weft.plan.rank_measures import AXIS, measure_rank, mesh_of

RESULTS = Path(__file__).parent / "results"
DEFAULTS = {"ranks": "", "networks": "lenet5,small_cnn,resnet18_cifar,char_lstm", "batch": "32", "seconds": "0.5", "save": ""}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "char_lstm": {"length": 32},"small_cnn": {"size": (32, 32), "channels": 3}, "resnet18_cifar": {"size": (32, 32), "channels": 3}}  # fmt: skip
REPEATS = {"resnet18_cifar": 3}  # profiled runs of a network with long steps
RATE = 1e-3
FEWEST, MOST = 5, 2000  # steps
WITHIN = 0.15  # of the measured time


@dataclass(frozen=True)
class Row:
    network: str
    ranks: int
    predicted: float
    measured: float
    predicted_efficiency: float
    measured_efficiency: float
    all_reduce: float  # predicted seconds of it

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


def data_parallel_step(network: str, batch: int) -> tuple[Any, tuple[Any, ...]]:
    """Gradients of the loss, one all-reduce of all of them as one flat array, SGD."""
    subject = find_subject(network, **SHAPES.get(network, {}))
    model = subject.make()
    assert subject.labels is not None
    model(*map(weft.asarray, subject.inputs(1)))
    model.train()
    args = (*map(weft.asarray, subject.inputs(batch)), weft.asarray(subject.labels(batch)))
    return weft.jit(step_function(model)), args


def step_function(model: nn.Module) -> Callable[..., Any]:
    weights = model.parameters()

    def train(x: Any, y: Any) -> Any:
        given = model(x)
        found = given[0] if isinstance(given, tuple) else given  # beside the state of an LSTM
        loss = weft.cross_entropy(found, y, axis=-1 if y.ndim == found.ndim - 1 and y.ndim > 1 else 1)
        made = weft.gradients(loss, weights)
        flat = weft.concat([g.reshape(-1) for g in made])
        total = parallel.all_reduce(flat, AXIS) / parallel_size()
        first = 0
        for weight in weights:
            weight.assign(weight - RATE * total[first : first + weight.size].reshape(weight.shape))
            first += weight.size
        return loss

    return train


def parallel_size() -> int:
    return parallel.world().size


def measured_steps(ranks: int, network: str, batch: int, seconds: float) -> float:
    """Runs in every rank: the lower quartile of the times of steps."""
    mesh_of(ranks)
    step, args = data_parallel_step(network, batch)
    for _ in range(2):
        step(*args).numpy()
    begin = time.perf_counter()
    step(*args).numpy()
    once = parallel.all_reduce(weft.asarray(np.float32(time.perf_counter() - begin)), AXIS, "max").item()
    times = []
    for _ in range(int(min(MOST, max(FEWEST, seconds / once)))):
        begin = time.perf_counter()
        step(*args).numpy()
        times.append(time.perf_counter() - begin)
    return statistics.quantiles(times, n=4)[0]


def run(settings: dict[str, str]) -> tuple[MeasuredCluster, list[Row]]:
    networks, batch = settings["networks"].split(","), int(settings["batch"])
    most = usable_cores()
    ranks = [int(n) for n in settings["ranks"].split(",")] if settings["ranks"] else [n for n in default_ranks(most) if n <= 16]  # fmt: skip
    ranks = sorted({1, *ranks})
    works = {name: profiled(name, batch) for name in networks}
    calibration, steps = {}, {}
    for n in ranks:
        with parallel.RankPool(n, threads=1) as pool:
            calibration[n] = slowest(pool.run(measure_rank, n, list(SIZES), list(SWEEPS)))
            note(f"{n} ranks: calibrated")
            for name in networks:
                steps[name, n] = max(pool.run(measured_steps, n, name, batch, float(settings["seconds"])))
                note(f"{n} ranks: {name} {duration(steps[name, n])}")
    here = MeasuredCluster(calibration, host().cpu, max(most, ranks[-1]), 0.0)
    return here, [row(works[name], here, name, n, batch, steps) for name in networks for n in ranks]


def profiled(name: str, batch: int) -> StepWork:
    """A rank that is alone, in this process."""
    with knobs.set(threads=1):
        mesh_of(1)
        work = measured_work(lambda size: data_parallel_step(name, size), batch, REPEATS.get(name))
    note(f"profile of {name}: {duration(work.seconds(batch))} a step")
    return work


def row(work: StepWork, here: MeasuredCluster, name: str, ranks: int, batch: int, steps: dict[tuple[str, int], float]) -> Row:  # fmt: skip
    made = predict(here.work(work, 1), here.work(work, ranks), ParallelSplit(data=ranks), here, batch)
    measured = steps[name, ranks]
    return Row(name, ranks, made.seconds, measured, made.efficiency, steps[name, 1] / measured, made.communication)


def note(text: str) -> None:
    print(f"{time.perf_counter() - BEGUN:5.0f} s  {text}", file=sys.stderr, flush=True)


def text(here: MeasuredCluster, rows: list[Row]) -> str:
    lines = [["network", "ranks", "predicted", "measured", "error", "efficiency predicted", "measured", "all-reduce"]]
    for one in rows:
        shares = [f"{one.predicted_efficiency:.1%}", f"{one.measured_efficiency:.1%}"]
        lines.append([one.network, str(one.ranks), duration(one.predicted), duration(one.measured), f"{one.error:+.1%}", *shares, duration(one.all_reduce) if one.all_reduce else "-"])  # fmt: skip
    within = sum(abs(one.error) <= WITHIN for one in rows)
    links = [f"{n} ranks: all-reduce {duration(m.line.latency)} + bytes / {m.line.bandwidth / 1e9:.2f} GB/s, products {here.compute_factor(n):.2f}x, 64 MB of memory {here.memory_factor(n, 64e6):.2f}x" for n, m in here.measures.items() if n > 1]  # fmt: skip
    return "\n".join([table(lines, left=1), f"{within} of {len(rows)} within {WITHIN:.0%}", "", *links])


def main(words: list[str]) -> None:
    settings = DEFAULTS | dict(word.split("=", 1) for word in words)
    here, rows = run(settings)
    print(f"{here.title}\n{text(here, rows)}\n\n{checks_text(published_checks())}")
    path = Path(settings["save"] or RESULTS / f"plan-{here.cpu}-{here.cores}-cores.json")
    checks = [{"network": c.published.network, "published": c.published.efficiency, "predicted": c.predicted.efficiency, "reason": c.reason} for c in published_checks()]  # fmt: skip
    facts = {"machine": here.title, "python": platform.python_version(), "weft": weft.__version__, "batch": int(settings["batch"])}  # fmt: skip
    path.write_text(json.dumps(facts | {"calibration": here.to_dict(), "rows": [vars(r) | {"error": r.error} for r in rows], "published": checks}, indent=1))  # fmt: skip
    print(f"written: {path}")


BEGUN = time.perf_counter()

if __name__ == "__main__":
    main(sys.argv[1:])
