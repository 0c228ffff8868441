"""The settings of a sweep, besides those of its trainings, and its plan: what is searched, how, and by which metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from ...data.open import data_path, is_image_source
from ...errors import UserError
from ...hints import nearest
from ...io.dataset_names import dataset_name
from ...records import dataclass
from ...report.best_epoch import SELECTION_METRICS
from ...train.folder import check_run_name
from ...train.task import METERS
from ...train.task import task_of as trained_task
from ..checks import check_settings
from ..cluster.settings import CLUSTER, ClusterPlan, cluster_plan
from ..job import Job
from ..recipes import with_recipe, with_saved_recipe
from ..schema import Setting, as_text, count, validated
from .search_space import ChoiceDimension, Dimension, RangeDimension, search_space

WHERE = "weft sweep"
TRIALS = 20  # if nothing else says how many
SIZE = "size"  # the number of parameters, as a metric
METRICS = ("loss", *METERS, SIZE)
OF_DATA = ("model", "size", "resize", "colour")  # what the prepared dataset depends on


def metric_names(text: str) -> tuple[str, ...]:
    """One metric, or several such as accuracy,size; ValueError if there is no such metric."""
    names = tuple(part.strip() for part in text.split(","))
    for name in names:
        if name not in METRICS:
            raise ValueError(f"a metric is {', '.join(METRICS[:-1])} or {METRICS[-1]}")
    if len(set(names)) < len(names) or names == (SIZE,):
        raise ValueError("different metrics are required, and not size alone")
    return names


SWEEP: dict[str, Setting] = {
    "trials": Setting(count, None, f"number of trials; default: all combinations of a grid, else {TRIALS}", "sweep"),
    "jobs": Setting(count, 1, "trials that run at the same time, each on its share of the cores", "sweep"),
    "sampler": Setting(str, None, "search method (default: tpe, or nsga2 with several metrics)", "sweep", ("tpe", "random", "grid", "cmaes", "nsga2")),
    "pruner": Setting(str, "median", "stops trials that fall behind (not used with several metrics)", "sweep", ("median", "hyperband", "none")),
    "metric": Setting(metric_names, None, f"what is optimized on the validation data: {', '.join(METRICS)}; accuracy,size searches for both; default: by the data", "sweep"),
    "storage": Setting(str, None, "database of the trials, such as postgresql://user@host/name; default: a SQLite file beside them", "sweep"),
    **CLUSTER,
}  # fmt: skip


@dataclass(frozen=True)
class SweepMetric:
    """What is optimized: its column in the table of epochs, or the size."""

    name: str

    @property
    def column(self) -> str:
        return "parameters" if self.name == SIZE else f"validation_{self.name}"

    @property
    def maximize(self) -> bool:
        return self.name not in ("loss", "mae", "mse", SIZE)


@dataclass(frozen=True)
class SweepPlan:
    """A sweep as it was asked for. Texts are as a command writes them."""

    texts: Mapping[str, str]  # the settings of the trainings, with lists and ranges
    space: tuple[Dimension, ...]
    fixed: Mapping[str, str]  # the settings that have one value
    metrics: tuple[SweepMetric, ...]
    sampler: str
    pruner: str
    trials: int
    jobs: int
    cluster: ClusterPlan | None = None  # where trials run; None: here

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that a continued sweep shares with its beginning: all except the number of trials, how many run at a time, and where."""
        names = [metric.name for metric in self.metrics]
        return {"settings": dict(self.texts), "metrics": names, "sampler": self.sampler, "pruner": self.pruner}

    @property
    def epochs(self) -> int:
        """The most epochs of a trial."""
        for one in self.space:
            if one.name == "epochs":
                return int(one.high if isinstance(one, RangeDimension) else max(map(int, one.values)))
        return int(self.settings["epochs"])

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that all trainings have."""
        return with_recipe(WHERE, self.fixed)


def grid_of(space: tuple[Dimension, ...]) -> list[dict[str, str]]:
    """All combinations of lists."""
    ranges = [one.name for one in space if isinstance(one, RangeDimension)]
    if ranges:
        raise UserError(
            "weft sweep", f"sampler=grid requires lists, got a range of {ranges[0]}. Write {ranges[0]}=A,B,C."
        )
    lists = [[(one.name, value) for value in one.values] for one in space if isinstance(one, ChoiceDimension)]
    return [dict(pairs) for pairs in product(*lists)]


def planned(given: Mapping[str, Any]) -> SweepPlan:
    """The plan of a sweep with these settings, which are checked. Data that has to be prepared is prepared."""
    plan = checked_sweep(given)
    known = _prepared_metrics(plan)
    for metric in plan.metrics:
        if metric.name not in known:
            raise UserError("weft sweep", f"metric={metric.name} is not measured with these data. {nearest(metric.name, known)}")  # fmt: skip
    return replace(plan, metrics=plan.metrics or (SweepMetric(known[0]),))


def checked_sweep(given: Mapping[str, Any]) -> SweepPlan:
    """Check settings without opening data. The plan has no metric yet where none is given: that depends on the data."""
    given = with_saved_recipe(given)
    own = validated(WHERE, {name: value for name, value in given.items() if name in SWEEP}, SWEEP)
    wanted = {name: value for name, value in given.items() if name not in (*SWEEP, "name", "runs", "json")}
    source = data_path(str(wanted["data"])) if wanted.get("data") is not None else None
    if source is not None:
        wanted["data"] = str(source.absolute())  # it may be continued from another folder
    space, fixed = search_space(WHERE, wanted)
    if not space:
        raise UserError("weft sweep", "a setting with several values is required, got none. Write rate=log:1e-4..1e-1 or batch=32,64.")  # fmt: skip
    if with_recipe(WHERE, fixed)["data"] is None:
        raise UserError("weft sweep", "data is required, got none: weft sweep data=digits rate=log:1e-4..1e-1.")
    _check_trainings(space, fixed)
    metrics = tuple(map(SweepMetric, own["metric"] or ()))
    sampler, pruner = _search(own, "pruner" in given, tuple(space), max(1, len(metrics)))
    most = len(grid_of(tuple(space))) if sampler == "grid" else math.inf
    texts = {name: as_text(value) for name, value in wanted.items()}
    trials = int(min(own["trials"] or (TRIALS if most == math.inf else most), most))
    cluster = cluster_plan(WHERE, own, given, with_recipe(WHERE, fixed)["device"])
    return SweepPlan(texts, tuple(space), fixed, metrics, sampler, pruner, trials, own["jobs"], cluster)


def _search(own: Mapping[str, Any], pruner_given: bool, space: tuple[Dimension, ...], metrics: int) -> tuple[str, str]:
    """Sampler and pruner that suit the space and the metrics."""
    sampler = own["sampler"] or ("tpe" if metrics == 1 else "nsga2")
    if sampler == "cmaes" and (metrics > 1 or not any(isinstance(one, RangeDimension) for one in space)):
        raise UserError("weft sweep", "sampler=cmaes searches ranges of numbers for one metric. Give a range, or take sampler=tpe.")  # fmt: skip
    if metrics == 1:
        return sampler, own["pruner"]
    if pruner_given and own["pruner"] != "none":
        raise UserError("weft sweep", f"pruner={own['pruner']} requires one metric, got {metrics}. Leave it out, or give one metric.")  # fmt: skip
    return sampler, "none"


def _check_trainings(space: list[Dimension], fixed: Mapping[str, str]) -> None:
    """Check each value of each list, and both ends of each range, as settings of a training."""
    first = {one.name: _ends(one)[0] for one in space}
    for one in space:
        for value in _ends(one):
            check_settings("sweep", with_recipe(WHERE, {**fixed, **first, one.name: value}))


def _ends(one: Dimension) -> tuple[Any, ...]:
    return one.values if isinstance(one, ChoiceDimension) else (one.low, one.high)


def _prepared_metrics(plan: SweepPlan) -> list[str]:
    """The metrics that are measured with these data, the usual one first. Image files are packed into datasets on the way: once, for all trials."""
    space, fixed = plan.space, plan.fixed
    source = data_path(plan.settings["data"])
    packed = source is not None and is_image_source(source)
    first = {one.name: _ends(one)[0] for one in space}
    lists = [[(one.name, value) for value in _ends(one)] for one in space if packed and one.name in OF_DATA]
    jobs = [Job(with_recipe(WHERE, {**fixed, **first, **dict(values)})) for values in product(*lists)]
    job = jobs[0]
    if job.splits.validation is None:
        raise UserError("weft sweep", "validation data is required to compare trials, got validation=0. Leave it out.")
    measured = ["loss", *trained_task(np.asarray(job.train.labels[:1]), job.loss(), None).makers]
    order = [name.removeprefix("validation_") for name in SELECTION_METRICS]
    return [*sorted(measured, key=lambda name: order.index(name) if name in order else len(order)), SIZE]


def sweep_name(plan: SweepPlan, taken: Mapping[str, Any]) -> str:
    """DATA-sweep-1, or the first number that is not taken."""
    stem, number = dataset_name(plan.settings["data"]), 1
    while f"{stem}-sweep-{number}" in taken:
        number += 1
    check_run_name(WHERE, f"{stem}-sweep-{number}")
    return f"{stem}-sweep-{number}"


def with_counts(plan: SweepPlan, trials: int | None, jobs: int | None) -> SweepPlan:
    """The plan with other numbers of trials, and of trials at a time."""
    most = len(grid_of(plan.space)) if plan.sampler == "grid" else math.inf
    return replace(plan, trials=int(min(trials or plan.trials, most)), jobs=jobs or plan.jobs)
