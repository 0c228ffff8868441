"""Predicted steps beside measured ones: data parallel training over 1, 2, 4, ... ranks of one thread on this machine.

    python -m benchmarks.plan [ranks=1,2,4,8,16] [networks=lenet5,small_cnn,resnet18_cifar,char_lstm] [batch=32] [seconds=1] [save=FILE.json]

For each number of ranks, one pool of processes measures all-reduces and slow-downs (the calibration of `weft plan --measure`), and then real
steps, in turns with steps of one rank alone. The prediction knows a profile of one rank, scaled to what a step alone takes at that moment, and the
calibration of all numbers of ranks; it does not know the steps of all ranks. With one rank, prediction and measurement are the same.
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import weft
from weft import optim, parallel
from weft.compiler.cpu.target import host
from weft.compiler.host import usable_cores
from weft.insight.profile_text import duration, table
from weft.jobs.profiles.subject import find_subject
from weft.knobs import knobs
from weft.plan import MeasuredCluster, ParallelSplit, StepWork, measured_work, predict
from weft.plan.calibration import SIZES, SWEEPS, default_ranks, measured_by
from weft.plan.plan_text import checks_text
from weft.plan.published import published_checks
from weft.plan.rank_measures import AXIS, RankMeasures, mesh_of

RESULTS = Path(__file__).parent / "results"
DEFAULTS = {"ranks": "", "networks": "lenet5,small_cnn,resnet18_cifar,char_lstm", "batch": "32", "seconds": "1", "save": ""}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "char_lstm": {"length": 32},"small_cnn": {"size": (32, 32), "channels": 3}, "resnet18_cifar": {"size": (32, 32), "channels": 3}}  # fmt: skip
REPEATS = {"resnet18_cifar": 3}  # profiled runs of a network with long steps
RATE = 1e-3
MOST = 500  # steps in a turn
TURNS = 8
WITHIN = 0.15  # of the measured time
_steps: dict[bool, Any] = {}  # of this process: together with the others or not


@dataclass(frozen=True)
class Row:
    network: str
    ranks: int
    predicted: float
    measured: float
    alone: float  # measured beside it, one rank
    predicted_efficiency: float
    measured_efficiency: float
    all_reduce: float  # predicted seconds of it

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


def training_step(network: str, batch: int, exchange: bool) -> tuple[Any, tuple[Any, ...]]:
    """A step of SGD with momentum, whose gradients are averaged over all ranks."""
    subject = find_subject(network, **SHAPES.get(network, {}))
    model = subject.make()
    assert subject.labels is not None
    model(*map(weft.asarray, subject.inputs(1)))
    model.train()
    optimizer = optim.sgd(model, rate=RATE, momentum=0.9, axis=AXIS if exchange else None)

    def train(x: Any, y: Any) -> Any:
        given = model(x)
        found = given[0] if isinstance(given, tuple) else given  # beside the state of an LSTM
        loss = weft.cross_entropy(found, y, axis=-1 if y.ndim == found.ndim - 1 and y.ndim > 1 else 1)
        optimizer.minimize(loss)
        return loss

    return weft.jit(train), (*map(weft.asarray, subject.inputs(batch)), weft.asarray(subject.labels(batch)))


def prepare(ranks: int, network: str, batch: int) -> None:
    """Runs in every rank: make the steps together and alone, and compile them."""
    mesh_of(ranks)
    for together in (True, False):
        step, args = training_step(network, batch, together)
        _steps[together] = lambda step=step, args=args: step(*args).numpy()
        _steps[together]()


def step_times(ranks: int, together: bool, count: int) -> list[float]:
    """Runs in every rank: the times of steps; those of one rank alone are those of rank 0."""
    if not together and mesh_of(ranks).index(AXIS) != 0:
        return []
    found = []
    for _ in range(count):
        begin = time.perf_counter()
        _steps[together]()
        found.append(time.perf_counter() - begin)
    return found


def measured_steps(pool: Any, ranks: int, network: str, batch: int, seconds: float) -> tuple[float, float]:
    """The lower quartiles of steps of one rank alone and of all together, in turns."""
    pool.run(prepare, ranks, network, batch)
    once = max(max(times, default=0.0) for times in pool.run(step_times, ranks, True, 1))
    count = int(min(MOST, max(1, seconds / TURNS / once)))
    turns: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(TURNS):
        for together, found in turns.items():
            times = [one for one in pool.run(step_times, ranks, together, count) if one]
            found += [max(step) for step in zip(*times, strict=True)]
    alone, all_ = (statistics.quantiles(found, n=4)[0] for found in turns.values())
    return alone, all_


def run(settings: dict[str, str]) -> tuple[MeasuredCluster, list[Row]]:
    """Measure all numbers of ranks; the file is written after each."""
    networks, batch = settings["networks"].split(","), int(settings["batch"])
    most = usable_cores()
    ranks = [int(n) for n in settings["ranks"].split(",")] if settings["ranks"] else [n for n in default_ranks(most) if n <= 16]  # fmt: skip
    works = {name: profiled(name, batch) for name in networks}
    calibration: dict[int, RankMeasures] = {}
    steps: list[tuple[str, int, float, float]] = []
    for n in sorted({1, *ranks}):
        with parallel.RankPool(n, threads=1) as pool:
            calibration[n] = measured_by(pool, n, SIZES, SWEEPS)
            note(f"{n} ranks: calibrated")
            for name in networks:
                steps.append((name, n, *measured_steps(pool, n, name, batch, float(settings["seconds"]))))
                note(f"{n} ranks: {name} alone {duration(steps[-1][2])}, together {duration(steps[-1][3])}")
        here = MeasuredCluster(dict(calibration), host().cpu, max(most, n), 0.0)
        rows = [row(works[name], here, name, ranks, batch, alone, all_) for name, ranks, alone, all_ in steps]
        save(settings, here, rows)
    return here, rows


def profiled(name: str, batch: int) -> StepWork:
    """The profile of a rank that is alone, in this process."""
    with knobs.set(threads=1):
        mesh_of(1)
        work = measured_work(lambda size: training_step(name, size, False), batch, REPEATS.get(name))
    note(f"profile of {name}: {duration(work.seconds(batch))} a step")
    return work


def row(work: StepWork, here: MeasuredCluster, name: str, ranks: int, batch: int, alone: float, measured: float) -> Row:
    """The prediction knows what a step alone takes at the moment of the measurement: clocks of virtual machines change from minute to minute."""
    made = predict(here.work(work, 1), here.work(work, ranks), ParallelSplit(data=ranks), here, batch)
    predicted = (made.seconds - made.communication) * alone / work.seconds(batch) + made.communication
    return Row(name, ranks, predicted, measured, alone, alone / predicted, alone / measured, made.communication)


def cells(one: Row) -> list[str]:
    shares = [f"{100 * share:.1f}%" for share in (one.predicted_efficiency, one.measured_efficiency)]
    return [one.network, str(one.ranks), duration(one.alone), duration(one.predicted), duration(one.measured), f"{one.error:+.1%}", *shares, duration(one.all_reduce) if one.all_reduce else "-"]  # fmt: skip


def note(text: str) -> None:
    print(f"{time.perf_counter() - BEGUN:5.0f} s  {text}", file=sys.stderr, flush=True)


def text(here: MeasuredCluster, rows: list[Row]) -> str:
    heads = ["network", "ranks", "alone", "predicted", "measured", "error", "efficiency predicted", "measured", "all-reduce"]  # fmt: skip
    several = [one for one in rows if one.ranks > 1]  # that of one rank is its own measurement
    within = sum(abs(one.error) <= WITHIN for one in several)
    links = [f"{n} ranks: all-reduce {duration(m.line.latency)} + bytes / {m.line.bandwidth / 1e9:.2f} GB/s, products {here.compute_factor(n):.2f}x, 64 MB of memory {here.memory_factor(n, 64e6):.2f}x" for n, m in here.measures.items() if n > 1]  # fmt: skip
    return "\n".join([table([heads, *map(cells, rows)], left=1), f"{within} of {len(several)} with several ranks within {WITHIN:.0%}", "", *links])  # fmt: skip


def main(words: list[str]) -> None:
    settings = DEFAULTS | dict(word.split("=", 1) for word in words)
    here, rows = run(settings)
    print(f"{here.title}\n{text(here, rows)}\n\n{checks_text(published_checks())}")
    print(f"written: {file_of(settings, here)}")


def file_of(settings: dict[str, str], here: MeasuredCluster) -> Path:
    """Where the results go."""
    return Path(settings["save"] or RESULTS / f"plan-{here.cpu}-{here.cores}-cores.json")


def save(settings: dict[str, str], here: MeasuredCluster, rows: list[Row]) -> None:
    """Write what was measured so far."""
    checks = [{"network": c.published.network, "published": c.published.efficiency, "predicted": c.predicted.efficiency, "reason": c.reason} for c in published_checks()]  # fmt: skip
    facts = {"machine": here.title, "python": platform.python_version(), "weft": weft.__version__, "batch": int(settings["batch"])}  # fmt: skip
    file_of(settings, here).write_text(json.dumps(facts | {"calibration": here.to_dict(), "rows": [vars(r) | {"error": r.error} for r in rows], "published": checks}, indent=1))  # fmt: skip


BEGUN = time.perf_counter()

if __name__ == "__main__":
    main(sys.argv[1:])
