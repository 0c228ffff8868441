"""A sweep on disk: a folder RUNS/sweeps/NAME. One process searches, any process may read.

sweep.json       what is searched and how: settings with their lists and ranges, metrics, sampler, pruner, number of trials, storage
trials.json      all trials with their settings, state, values, epochs and runs
optuna.db        Optuna's study, unless storage= names another database
importance.json  the importance of each setting
parallel.json    axes and lines of the parallel coordinates
report.html      the same as a page
.lock            the process that searches (see weft/locks.py)
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...errors import RunError, UserError
from ...hints import nearest
from ...io.files import replace_file
from ...io.json_values import json_value
from ...locks import lock_holder
from ...records import dataclass
from ...report.axes import short
from ...train.folder import check_run_name
from ..cluster.settings import ClusterPlan
from ..schema import as_text
from .search_space import search_space
from .settings import SIZE, WHERE, SweepMetric, SweepPlan

FOLDER = "sweeps"  # below the folder of runs
WAITING, RUNNING, FINISHED, PRUNED, FAILED = "waiting", "running", "finished", "pruned", "failed"


@dataclass(frozen=True)
class SweepTrial:
    """A trial: the settings that were chosen for it, and what became of it."""

    number: int  # from 1
    state: str
    settings: Mapping[str, Any]
    values: tuple[float, ...] | None = (
        None  # one for each metric: of the best epoch, or of the last one if it was pruned
    )
    trend: tuple[float, ...] = ()  # the first metric, epoch by epoch
    epoch: int = 0  # the last one that is done
    epochs: int | None = None
    seconds: float | None = None  # of training
    why: str = ""  # it was pruned or has failed, or which trial it repeats
    run: str | None = None
    job: int | None = None

    @property
    def has_ended(self) -> bool:
        return self.state in (FINISHED, PRUNED, FAILED)


@dataclass(frozen=True)
class SweepRecord:
    """The folder of a sweep; see the head of this file."""

    folder: Path
    plan: SweepPlan
    study: str  # its name in the storage, which may hold those of others
    storage: str | None  # None: optuna.db
    created: float = 0.0

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def runs(self) -> Path:
        return self.folder.parent.parent

    @property
    def url(self) -> str:
        """The storage as SQLAlchemy names it."""
        if self.storage is None:
            return f"sqlite:///{(self.folder / 'optuna.db').absolute()}"
        return re.sub("^postgres(ql)?://", "postgresql+psycopg://", self.storage)

    @classmethod
    def create(cls, runs: Path, name: str, plan: SweepPlan, storage: str | None) -> SweepRecord:
        """A new sweep. Its name is that of its trials too, so no run may have it."""
        check_run_name(WHERE, name)
        taken = next(iter(sorted(runs.glob(f"*/{name}-[0-9]*"))), None)
        if taken is not None:
            raise UserError("weft sweep", f"a name that is not taken is required, got {name!r}: {taken} exists. Give another name=.")  # fmt: skip
        made = cls(runs / FOLDER / name, plan, f"{name}-{secrets.token_hex(4)}", storage, round(time.time(), 3))
        try:
            made.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(
                "weft sweep", f"the folder {made.folder} cannot be made: {error.strerror or error}."
            ) from error
        made.write()
        return made

    def write(self) -> None:
        """Write sweep.json. The password of a storage is not kept."""
        hidden = None if self.storage is None else without_password(self.storage)
        self.write_json("sweep.json", {
            **self.plan.identity, "trials": self.plan.trials, "jobs": self.plan.jobs, "study": self.study, "storage": hidden,
            "created": self.created, "cluster": None if self.plan.cluster is None else asdict(self.plan.cluster),
        })  # fmt: skip

    def write_json(self, name: str, content: Any) -> None:
        replace_file(self.folder / name, [(json.dumps(json_value(content), indent=1) + "\n").encode()], WHERE)

    def write_trials(self, trials: Sequence[SweepTrial]) -> None:
        self.write_json("trials.json", [{**asdict(one), "settings": dict(one.settings)} for one in trials])

    def trials(self) -> list[SweepTrial]:
        """The trials as they were last written."""
        found = _read(self.folder / "trials.json") if (self.folder / "trials.json").exists() else []
        try:
            known = [{**one, "values": one["values"] and tuple(one["values"]), "trend": tuple(one["trend"])} for one in found]  # fmt: skip
            return [SweepTrial(**one) for one in known]
        except (TypeError, KeyError) as error:
            raise RunError("weft sweep", f"{self.folder / 'trials.json'} is damaged: {error}.") from error

    @property
    def is_searched(self) -> bool:
        """Whether a process works on it now."""
        return lock_holder(self.folder) is not None

    @property
    def has_ended(self) -> bool:
        return sum(one.has_ended for one in self.trials()) >= self.plan.trials


def best_first(metrics: Sequence[SweepMetric], trials: Sequence[SweepTrial]) -> list[SweepTrial]:
    """The finished trials by their first metric, the best first; then the pruned ones."""
    known = [one for one in trials if one.state in (FINISHED, PRUNED) and one.values and math.isfinite(one.values[0])]
    sign = -1 if metrics[0].maximize else 1
    return sorted(known, key=lambda one: (one.state != FINISHED, sign * (one.values or (0.0,))[0], one.number))


def best_trial(metrics: Sequence[SweepMetric], trials: Sequence[SweepTrial]) -> SweepTrial | None:
    """The best finished trial."""
    return next((one for one in best_first(metrics, trials) if one.state == FINISHED), None)


def pareto_front(metrics: Sequence[SweepMetric], trials: Sequence[SweepTrial]) -> list[SweepTrial]:
    """The finished trials that no other one beats in all metrics."""
    finished = [one for one in trials if one.state == FINISHED and one.values]
    signs = [-1 if metric.maximize else 1 for metric in metrics]
    costs = {one.number: tuple(s * v for s, v in zip(signs, one.values or (), strict=True)) for one in finished}

    def beaten(one: tuple[float, ...]) -> bool:
        return any(other != one and all(a <= b for a, b in zip(other, one, strict=True)) for other in costs.values())

    return [one for one in finished if not beaten(costs[one.number])]


def metric_text(metric: SweepMetric, value: float | None) -> str:
    """
    >>> metric_text(SweepMetric("accuracy"), 0.9724), metric_text(SweepMetric("size"), 61706)
    ('97.24 %', '61,706')
    """
    if value is None or not math.isfinite(value):
        return ""
    if metric.name == SIZE:
        return f"{value:,.0f}"
    return f"{100 * value:.2f} %" if "accuracy" in metric.name else f"{value:.4g}"


def without_password(url: str) -> str:
    """
    >>> without_password("postgresql://weft:secret@host/trials")
    'postgresql://weft@host/trials'
    """
    return re.sub(r"(://[^:@/]*):[^@/]*@", r"\1@", url)


def setting_text(value: Any) -> str:
    """The value of a setting in few digits.

    >>> setting_text(0.006431172), setting_text("lenet"), setting_text(None)
    ('0.00643', 'lenet', 'none')
    """
    return short(value, 3) if isinstance(value, float) else as_text(value)


def sweeps(runs: str | os.PathLike[str]) -> dict[str, SweepRecord]:
    """All sweeps below a folder of runs by name, the oldest first."""
    found = [read_sweep(path.parent) for path in (Path(runs) / FOLDER).glob("*/sweep.json")]
    return {one.name: one for one in sorted(found, key=lambda one: one.created)}


def find_sweep(runs: str | os.PathLike[str], name: str) -> SweepRecord:
    """A sweep by its name."""
    if (Path(runs) / FOLDER / name / "sweep.json").exists():
        return read_sweep(Path(runs) / FOLDER / name)
    known = sorted(sweeps(runs))
    hint = nearest(name, known) if known else "weft sweep DATA rate=log:1e-4..1e-1 makes one."
    raise UserError("weft sweep", f"there is no sweep {name!r} in {runs}. {hint}")


def read_sweep(folder: Path) -> SweepRecord:
    """A sweep from its folder."""
    found = _read(folder / "sweep.json")
    try:
        space, fixed = search_space(WHERE, found["settings"])
        plan = SweepPlan(
            found["settings"], tuple(space), fixed, tuple(map(SweepMetric, found["metrics"])), found["sampler"], found["pruner"],
            found["trials"], found["jobs"], ClusterPlan(**found["cluster"]) if found.get("cluster") else None,
        )  # fmt: skip
        return SweepRecord(folder, plan, found["study"], found["storage"], found["created"])
    except (KeyError, TypeError, UserError) as error:
        raise RunError("weft sweep", f"{folder / 'sweep.json'} is damaged: {error}.") from error


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise RunError("weft sweep", f"{path} cannot be read: {error}.") from error
