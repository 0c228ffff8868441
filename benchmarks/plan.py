"""Predicted steps beside measured ones: data parallel training over 1, 2, 4, ... ranks of one thread on this machine.

    python -m benchmarks.plan [ranks=1,2,4,8,16] [networks=lenet5,small_cnn,resnet18_cifar,char_lstm] [batch=32] [seconds=1] [save=FILE.json]
    python -m benchmarks.plan from=FILE.json      # predict the steps in a file again, with this version of the model

For each number of ranks there is one pool of processes. For each network it takes TURNS turns: a round of the benchmarks of
`weft plan --measure`, steps of one rank alone, steps of all ranks. What other virtual machines take changes within seconds, and is so part of
all three. The prediction knows a profile of one rank, scaled to what a step alone takes in these turns, and the calibration of these turns; it
does not know the steps of all ranks. With one rank, prediction and measurement are the same.
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import weft
from weft import optim, parallel
from weft.compiler.cpu.target import host
from weft.compiler.host import usable_cores
from weft.insight.memory_timeline import MemoryTimeline
from weft.insight.memory_values import PARAMETERS, LiveValue
from weft.insight.profile_file import profile_from_json
from weft.insight.profile_text import duration, table
from weft.jobs.profiles.subject import find_subject
from weft.knobs import knobs
from weft.plan import MeasuredCluster, ParallelSplit, StepWork, measured_work, predict
from weft.plan.calibration import FORMAT, SIZES, SWEEPS, default_ranks
from weft.plan.plan_text import checks_text
from weft.plan.published import published_checks
from weft.plan.rank_measures import AXIS, RankBenchmarks, RankMeasures, mesh_of, slowest
from weft.plan.step_work import other_batch, work_of

RESULTS = Path(__file__).parent / "results"
DEFAULTS = {"ranks": "", "networks": "lenet5,small_cnn,resnet18_cifar,char_lstm", "batch": "32", "seconds": "1", "save": "", "from": ""}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "char_lstm": {"length": 32},"small_cnn": {"size": (32, 32), "channels": 3}, "resnet18_cifar": {"size": (32, 32), "channels": 3}}  # fmt: skip
REPEATS = {"resnet18_cifar": 3}  # profiled runs of a network with long steps
RATE = 1e-3
MOST = 500  # steps in a turn
TURNS = 7
DIGITS = 7  # of the seconds of a step
WITHIN = 0.15  # of the measured time
_steps: dict[bool, Any] = {}  # of this process: together with the others or not
_benchmarks: list[RankBenchmarks] = []  # of this process


@dataclass(frozen=True)
class Turns:
    """The measurements of a network on a number of ranks."""

    network: str
    ranks: int
    alone_steps: Sequence[Sequence[float]]  # seconds of the steps of each turn, by one rank
    steps: Sequence[Sequence[float]]  # by all ranks
    calibration: RankMeasures

    @property
    def alone(self) -> float:
        return lower_quartile(self.alone_steps)

    @property
    def measured(self) -> float:
        return lower_quartile(self.steps)

    @classmethod
    def from_dict(cls, known: dict[str, Any]) -> Turns:
        facts = {field.name: known[field.name] for field in fields(cls)}
        return cls(**facts | {"calibration": RankMeasures.from_dict(known["calibration"])})


@dataclass(frozen=True)
class Row:
    turns: Turns
    predicted: float
    all_reduce: float  # predicted seconds of it

    @property
    def error(self) -> float:
        return self.predicted / self.turns.measured - 1

    @property
    def efficiencies(self) -> tuple[float, float]:
        """The predicted one, and the measured one."""
        return self.turns.alone / self.predicted, self.turns.alone / self.turns.measured

    def to_dict(self) -> dict[str, Any]:
        turns = self.turns
        predicted, measured = self.efficiencies
        return {
            "network": turns.network, "ranks": turns.ranks, "predicted": self.predicted, "measured": turns.measured, "alone": turns.alone,
            "predicted_efficiency": predicted, "measured_efficiency": measured, "all_reduce": self.all_reduce, "error": self.error,
            "alone_steps": turns.alone_steps, "steps": turns.steps, "calibration": turns.calibration.to_dict(),
        }  # fmt: skip


def lower_quartile(turns: Sequence[Sequence[float]]) -> float:
    """That of the steps of all turns."""
    return statistics.quantiles([step for steps in turns for step in steps], n=4)[0]


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


def prepare_benchmarks(ranks: int) -> None:
    """Runs in every rank: compile the benchmarks of the calibration."""
    _benchmarks[:] = [RankBenchmarks(ranks, SIZES, SWEEPS)]


def add_round() -> None:
    """Runs in every rank: a round of the calibration."""
    _benchmarks[0].add()


def rank_measures(rounds: int | None) -> RankMeasures:
    """Runs in every rank: the calibration of the last rounds, or of all."""
    return _benchmarks[0].measures(rounds)


def measured_turns(pool: Any, ranks: int, network: str, batch: int, seconds: float) -> Turns:
    """Rounds of the calibration, steps of one rank alone and steps of all together, in turns."""
    pool.run(prepare, ranks, network, batch)
    once = max(max(times, default=0.0) for times in pool.run(step_times, ranks, True, 1))
    count = int(min(MOST, max(1, seconds / TURNS / once)))
    turns: dict[bool, list[list[float]]] = {False: [], True: []}
    for _ in range(TURNS):
        pool.run(add_round)
        for together, found in turns.items():
            times = [one for one in pool.run(step_times, ranks, together, count) if one]
            found.append([round(max(step), DIGITS) for step in zip(*times, strict=True)])
    return Turns(network, ranks, turns[False], turns[True], slowest(pool.run(rank_measures, TURNS)))


def run(settings: dict[str, str]) -> tuple[MeasuredCluster, list[Row]]:
    """Measure all numbers of ranks; the file is written after each."""
    networks, batch = settings["networks"].split(","), int(settings["batch"])
    most = usable_cores()
    ranks = [int(n) for n in settings["ranks"].split(",")] if settings["ranks"] else [n for n in default_ranks(most) if n <= 16]  # fmt: skip
    works = {name: profiled(name, batch) for name in networks}
    calibration: dict[int, RankMeasures] = {}
    rows: list[Row] = []
    for n in sorted({1, *ranks}):
        with parallel.RankPool(n, threads=1) as pool:
            pool.run(prepare_benchmarks, n)
            note(f"{n} ranks: benchmarks compiled")
            for name in networks:
                rows.append(row(works[name], measured_turns(pool, n, name, batch, float(settings["seconds"])), batch))
                turns = rows[-1].turns
                note(f"{n} ranks: {name} alone {duration(turns.alone)}, together {duration(turns.measured)}")
            calibration[n] = slowest(pool.run(rank_measures, None))
        here = MeasuredCluster(dict(calibration), host().cpu, max(most, n), 0.0)
        save(settings, here, works, rows)
    return here, rows


def profiled(name: str, batch: int) -> StepWork:
    """The profile of a rank that is alone, in this process."""
    with knobs.set(threads=1):
        mesh_of(1)
        work = measured_work(lambda size: training_step(name, size, False), batch, REPEATS.get(name))
    note(f"profile of {name}: {duration(work.seconds(batch))} a step")
    return work


def row(work: StepWork, turns: Turns, batch: int) -> Row:
    """The prediction knows what a step alone takes in the turns of the measurement: clocks of virtual machines change from minute to minute."""
    here = MeasuredCluster({turns.ranks: turns.calibration}, host().cpu, turns.ranks, 0.0)
    split = ParallelSplit(data=turns.ranks)
    made = predict(here.work(work, 1), here.work(work, turns.ranks), split, here, batch)
    predicted = (made.seconds - made.communication) * turns.alone / work.seconds(batch) + made.communication
    return Row(turns, predicted, made.communication)


def cells(one: Row) -> list[str]:
    shares = [f"{100 * share:.1f}%" for share in one.efficiencies]
    return [one.turns.network, str(one.turns.ranks), duration(one.turns.alone), duration(one.predicted), duration(one.turns.measured), f"{one.error:+.1%}", *shares, duration(one.all_reduce) if one.all_reduce else "-"]  # fmt: skip


def note(text: str) -> None:
    print(f"{time.perf_counter() - BEGUN:5.0f} s  {text}", file=sys.stderr, flush=True)


def text(here: MeasuredCluster, rows: list[Row]) -> str:
    heads = ["network", "ranks", "alone", "predicted", "measured", "error", "efficiency predicted", "measured", "all-reduce"]  # fmt: skip
    several = [one for one in rows if one.turns.ranks > 1]  # that of one rank is its own measurement
    within = sum(abs(one.error) <= WITHIN for one in several)
    links = [f"{n} ranks: all-reduce {duration(m.line.latency)} + bytes / {m.line.bandwidth / 1e9:.2f} GB/s, {factors(here, n)}" for n, m in here.measures.items() if n > 1]  # fmt: skip
    return "\n".join([table([heads, *map(cells, rows)], left=1), f"{within} of {len(several)} with several ranks within {WITHIN:.0%}", "", *links])  # fmt: skip


def factors(here: MeasuredCluster, ranks: int) -> str:
    """How much longer benchmarks take than in one rank alone."""
    return f"products {here.compute_factor(ranks):.2f}x, convolutions {here.convolution_factor(ranks):.2f}x, 64 MB of memory {here.memory_factor(ranks, 64e6):.2f}x"


def main(words: list[str]) -> None:
    settings = DEFAULTS | dict(word.split("=", 1) for word in words)
    if settings["from"]:
        here, rows = stored(Path(settings["from"]))
        print(f"{here.title}\n{text(here, rows)}")
        return
    here, rows = run(settings)
    print(f"{here.title}\n{text(here, rows)}\n\n{checks_text(published_checks())}")
    print(f"written: {file_of(settings, here)}")


def file_of(settings: dict[str, str], here: MeasuredCluster) -> Path:
    """Where the results go."""
    return Path(settings["save"] or RESULTS / f"plan-{here.cpu}-{here.cores}-cores.json")


def save(settings: dict[str, str], here: MeasuredCluster, works: dict[str, StepWork], rows: list[Row]) -> None:
    """Write what was measured so far, and the profiles, from which the rows can be predicted again."""
    checks = [{"network": c.published.network, "published": c.published.efficiency, "predicted": c.predicted.efficiency, "reason": c.reason} for c in published_checks()]  # fmt: skip
    facts = {"machine": here.title, "python": platform.python_version(), "weft": weft.__version__, "batch": int(settings["batch"])}  # fmt: skip
    profiles = {name: {"parameters": work.parameters, "profile": json.loads(work.profiles[0][1].to_json())} for name, work in works.items()}  # fmt: skip
    found = {"calibration": here.to_dict(), "rows": [one.to_dict() for one in rows], "published": checks, "works": profiles}  # fmt: skip
    file_of(settings, here).write_text(json.dumps(facts | found, indent=1))


def stored(file: Path) -> tuple[MeasuredCluster, list[Row]]:
    """The measurements in a file, and new predictions for them."""
    known = json.loads(file.read_text())
    told, batch = known["calibration"], known["batch"]
    if told["format"] != FORMAT:
        sys.exit(f"[benchmarks/plan] {file} has calibrations of format {told['format']}, which lack what predictions need now (format {FORMAT}): measure again.")  # fmt: skip
    calibration = {int(n): RankMeasures.from_dict(measures) for n, measures in told["measures"].items()}
    works = {name: stored_work(one, batch) for name, one in known["works"].items()}
    rows = [row(works[one["network"]], Turns.from_dict(one), batch) for one in known["rows"]]
    return MeasuredCluster(calibration, told["cpu"], told["cores"], told["memory_bytes"]), rows


def stored_work(known: dict[str, Any], batch: int) -> StepWork:
    """A profiled step in a file. At its own batch size, the profile at the other one does not count."""
    found = profile_from_json(known["profile"])
    weights = LiveValue("weights", "", known["parameters"], PARAMETERS, "", "", 0, 0, in_arena=False)
    memory = MemoryTimeline((), (weights,), 0, found.where)
    profiles = [(size, found) for size in (batch, other_batch(batch))]
    return work_of(profiles, [memory, memory], [(size, found.kernels) for size, _ in profiles], found.where)


BEGUN = time.perf_counter()

if __name__ == "__main__":
    main(sys.argv[1:])
