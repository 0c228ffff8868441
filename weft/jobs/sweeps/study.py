"""The search of a sweep: Optuna chooses the settings of the next trial and says which trials to stop.

The study is in Optuna's storage, and only the process that searches writes to it: trials are plain trainings that do not know about it. All trials
and their values are on disk, so a search that was killed continues with the same study.
"""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...errors import RunError, UserError
from ...hints import install
from .record import SweepRecord, without_password
from .search_space import ChoiceDimension, Dimension
from .settings import grid_of

STARTUP = 5  # trials that are never pruned
WHY = "why"  # the attribute of a trial that says why it was pruned or has failed, or which one it repeats


def optuna_package() -> Any:
    """The package `optuna`, imported when a sweep is searched: weft works without it."""
    try:
        optuna = importlib.import_module("optuna")
    except ModuleNotFoundError as error:
        if error.name != "optuna":
            raise
        message = f"sweeps require the package optuna, which is not installed. {install('sweep')}"
        raise UserError("weft sweep", message) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna


class SweepStudy:
    """The study of a sweep, in the storage of the sweep or another one of Optuna's. Trials are numbered from 1."""

    def __init__(self, record: SweepRecord, storage: Any = None) -> None:
        self.optuna, self.plan = optuna_package(), record.plan
        self.storage = self._opened(record) if storage is None else storage
        self.study = self.optuna.create_study(
            storage=self.storage, study_name=record.study, load_if_exists=True, pruner=self._pruner(),
            directions=["maximize" if one.maximize else "minimize" for one in self.plan.metrics],
        )  # fmt: skip
        if self.plan.sampler == "grid":
            for values in grid_of(self.plan.space)[: self.plan.trials]:
                self.study.enqueue_trial(values, skip_if_exists=True)
        self._begun = len(self.trials())
        self._reported = {one.number + 1: set(one.intermediate_values) for one in self.trials()}

    def _opened(self, record: SweepRecord) -> Any:
        try:
            return self.optuna.storages.RDBStorage(record.url)
        except (ImportError, ValueError) as error:
            raise UserError("weft sweep", f"storage={without_password(record.storage or '')} cannot be used: {_first_line(error)}. PostgreSQL requires an extra. {install('postgresql')}") from error  # fmt: skip
        except self._database_errors() as error:
            raise RunError("weft sweep", f"the storage cannot be opened: {_first_line(error)}.") from error

    def trials(self) -> list[Any]:
        """Optuna's records of the trials that have begun, in their order."""
        waiting = self.optuna.trial.TrialState.WAITING
        return [one for one in self.study.get_trials(deepcopy=False) if one.state != waiting]

    def ask(self) -> tuple[int, dict[str, Any]] | None:
        """The number and the values of the next trial; None if there are enough."""
        if self._begun >= self.plan.trials:
            return None
        self.study.sampler = self._sampler(self._begun)
        trial = self.study.ask()
        self._begun += 1
        return self._suggested(trial)

    def unfinished(self) -> list[tuple[int, dict[str, Any]]]:
        """The trials that have begun and not ended, of a search that was killed. One whose values were being chosen gets the rest of them."""
        running = self.optuna.trial.TrialState.RUNNING
        return [
            (one.number + 1, dict(one.params))
            if len(one.params) == len(self.plan.space)
            else self._suggested(self.optuna.trial.Trial(self.study, one._trial_id))
            for one in self.trials()
            if one.state == running
        ]

    def report(self, number: int, values: Mapping[int, float]) -> bool:
        """Report the metric of each epoch so far; whether the trial should be stopped after one of those that are new."""
        pruner, storage = self.study.pruner, self.storage
        return any(pruner.prune(self.study, storage.get_trial(one)) for one in self._recorded(number, values))

    def record(self, number: int, values: Mapping[int, float]) -> None:
        """Record the epochs of a trial that has ended: later trials are compared with all of them."""
        for _ in self._recorded(number, values):
            pass

    def twin(self, number: int, values: Mapping[str, Any]) -> int | None:
        """An earlier trial that has finished with the same settings."""
        complete = self.optuna.trial.TrialState.COMPLETE
        same = [one.number + 1 for one in self.trials() if one.state == complete and one.params == values]
        return next((one for one in same if one < number), None)

    def values(self, number: int) -> list[float]:
        """The metrics of a trial that has finished."""
        found: list[float] = self.trials()[number - 1].values
        return found

    def finished(self, number: int, values: Sequence[float], why: str = "") -> None:
        if why:
            self._note(number, why)
        self.study.tell(number - 1, list(values))

    def pruned(self, number: int, why: str) -> None:
        self._note(number, why)
        self.study.tell(number - 1, state=self.optuna.trial.TrialState.PRUNED)

    def failed(self, number: int, why: str) -> None:
        self._note(number, why)
        self.study.tell(number - 1, state=self.optuna.trial.TrialState.FAIL)

    def importances(self) -> dict[str, float]:
        """The importance of each setting for the first metric (PED-ANOVA), the largest first; none with too few trials."""
        complete = [one for one in self.trials() if one.state == self.optuna.trial.TrialState.COMPLETE]
        values = {one.values[0] for one in complete}
        if len(complete) < 4 or len(values) < 2:
            return {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            evaluator = self.optuna.importance.PedAnovaImportanceEvaluator()
            several = len(self.plan.metrics) > 1
            found = self.optuna.importance.get_param_importances(
                self.study, evaluator=evaluator, target=(lambda one: one.values[0]) if several else None
            )
        return {name: float(share) for name, share in found.items()}

    # --- inside -------------------------------------------------------------------------------------------------------------

    def _recorded(self, number: int, values: Mapping[int, float]) -> Iterator[int]:
        """Record the epochs that are new, one after another; the number of the trial in the storage after each."""
        reported = self._reported.setdefault(number, set())
        new = [epoch for epoch, value in values.items() if epoch not in reported and math.isfinite(value)]
        identity = self._identity(number) if new else 0
        for epoch in new:
            self.storage.set_trial_intermediate_value(identity, epoch, values[epoch])
            reported.add(epoch)
            yield identity

    def _identity(self, number: int) -> int:
        """The number of a trial in the storage."""
        found: int = self.storage.get_trial_id_from_study_id_trial_number(self.study._study_id, number - 1)
        return found

    def _note(self, number: int, why: str) -> None:
        self.storage.set_trial_user_attr(self._identity(number), WHY, why)

    def _suggested(self, trial: Any) -> tuple[int, dict[str, Any]]:
        return trial.number + 1, {one.name: _suggest(trial, one) for one in self.plan.space}

    def _sampler(self, begun: int) -> Any:
        """A sampler with a seed of its own for each trial: one seed for all would repeat its numbers after a restart."""
        samplers, seed = self.optuna.samplers, 1000 * self.plan.settings["seed"] % (1 << 31) + begun
        makers = {
            "tpe": samplers.TPESampler, "random": samplers.RandomSampler, "grid": samplers.RandomSampler, "cmaes": samplers.CmaEsSampler,
            "nsga2": samplers.NSGAIISampler,
        }  # fmt: skip
        more: dict[str, Any] = {}
        if self.plan.sampler == "cmaes":
            more = {"warn_independent_sampling": False}  # of lists, which it does not search
        if self.plan.sampler == "nsga2":
            more = {"population_size": max(4, min(50, self.plan.trials // 4))}
        return makers[self.plan.sampler](seed=seed, **more)

    def _pruner(self) -> Any:
        pruners, epochs = self.optuna.pruners, self.plan.epochs
        if self.plan.pruner == "median":
            return pruners.MedianPruner(n_startup_trials=STARTUP, n_warmup_steps=max(1, epochs // 5))
        if self.plan.pruner == "hyperband":
            return pruners.HyperbandPruner(min_resource=1, max_resource=max(2, epochs))
        return pruners.NopPruner()

    def _database_errors(self) -> tuple[type[Exception], ...]:
        return (self.optuna.exceptions.StorageInternalError, importlib.import_module("sqlalchemy").exc.SQLAlchemyError)


def _suggest(trial: Any, one: Dimension) -> Any:
    """A value; one that was chosen before stays."""
    if isinstance(one, ChoiceDimension):
        return trial.suggest_categorical(one.name, one.values)
    if one.whole:
        return trial.suggest_int(one.name, int(one.low), int(one.high), log=one.log)
    return trial.suggest_float(one.name, one.low, one.high, log=one.log)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")
