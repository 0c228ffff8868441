"""The search of a sweep: asks Optuna for trials, starts them, reports their epochs, stops unpromising ones, and reports how each ended."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ...errors import RunError, UserError
from ..queue.record import CANCELLED, DONE, PRUNED
from .record import FAILED, FINISHED, RUNNING, WAITING, SweepRecord, SweepTrial
from .record import PRUNED as STOPPED_EARLY
from .results import write_results
from .search_space import setting_value
from .settings import SIZE
from .study import WHY, SweepStudy
from .trials import TrialJobs, TrialStatus

POLL = 0.05  # seconds between two looks at the trials
RESULTS_SECONDS = 5.0  # between two pages, while it runs
FIRST_FAILURES = 4  # after so many the search ends, if there was nothing else

SweepListener = Callable[[SweepRecord, list[SweepTrial]], None]


class SweepSearch:
    """Asks for trials, starts them, reports their epochs, and tells how they ended."""

    def __init__(self, record: SweepRecord, study: SweepStudy, listener: SweepListener | None = None) -> None:
        self.record, self.study, self.listener = record, study, listener
        self.before = {one.number: one for one in record.trials()}
        self.active: dict[int, TrialStatus] = {}
        self.known: list[SweepTrial] = []
        self.written_results = 0.0
        self.failures: float = 0  # in a row, before any trial has reached anything

    def run(self, jobs: TrialJobs) -> None:
        """Run until all trials have ended. Those of a search that was killed come first."""
        self._recover(jobs)
        for number, values in self.study.unfinished():
            self._start(jobs, number, values)
        self.write()
        while self._step(jobs):
            time.sleep(POLL)

    def _recover(self, jobs: TrialJobs) -> None:
        """Complete the rows of trials whose end was reported to the study but not written to disk."""
        for trial in self.study.trials():
            number = trial.number + 1
            found = None if self._before(number).has_ended or not trial.state.is_finished() else jobs.find(number)
            if found is not None:
                self.before[number] = self._live(self._before(number), found)

    def _step(self, jobs: TrialJobs) -> bool:
        """Look at the trials once; whether there is more to do."""
        jobs.step()
        changed = False
        for number, before in list(self.active.items()):
            now = jobs.status(number)
            self.active[number] = now
            changed |= (now.state, now.run, len(now.rows)) != (before.state, before.run, len(before.rows))
            if now.is_active and len(now.rows) > len(before.rows):
                worse, last = self.study.report(number, self._reports(now)), now.rows[max(now.rows)]
                if worse and last["epoch"] < last["epochs"]:
                    jobs.prune(number)
            if not now.is_active and not now.is_interrupted:
                self._end(number, now)
        more = self._fill(jobs)
        if more:
            jobs.step()  # starts what was just added
        if changed or more:
            self.write()
        return any(not now.is_interrupted for now in self.active.values())

    def _fill(self, jobs: TrialJobs) -> bool:
        """Start trials until the wanted number is running; returns whether any was started."""
        begun = False
        while sum(now.is_active for now in self.active.values()) < self.record.plan.jobs:
            asked = self.study.ask()
            if asked is None:
                break
            self._start(jobs, *asked)
            begun = True
        return begun

    def _start(self, jobs: TrialJobs, number: int, values: Mapping[str, Any]) -> None:
        twin = self.study.twin(number, values)
        if twin is not None:  # the same settings give the same bits
            self.before[number] = replace(self._before(twin), number=number, job=None)
            self.study.finished(number, self.study.values(twin), f"as trial {twin}")
            return
        try:
            jobs.start(number, values)
            self.active[number] = TrialStatus(WAITING)
        except UserError as error:  # these values do not go together
            self._fail(number, error.message)

    def _fail(self, number: int, why: str) -> None:
        """Record that a trial has failed. When the first ones all do, so will the others."""
        self.study.failed(number, why)
        self.failures += 1
        if self.failures >= max(FIRST_FAILURES, self.record.plan.jobs):
            self.write(final=True)
            raise RunError(
                "weft sweep", f"the first {self.failures} trials have all failed, the last one because: {why}"
            )

    def _reports(self, now: TrialStatus) -> dict[int, float]:
        column = self.record.plan.metrics[0].column
        return {epoch: float(row[column]) for epoch, row in sorted(now.rows.items()) if row.get(column) is not None}

    def _end(self, number: int, now: TrialStatus) -> None:
        """Tell the study how a trial ended."""
        reports = self._reports(now)
        self.study.record(number, reports)
        if now.state == DONE:
            values = self._values(now)
            if values is None:
                self._fail(number, f"its run {now.run} has no {self.record.plan.metrics[0].column}")
            else:
                self.failures = -math.inf
                self.study.finished(number, values)
        elif now.why == PRUNED:
            self.study.pruned(number, f"by {self.record.plan.pruner} after epoch {max(reports, default=0)}")
        else:
            self._fail(number, now.why or CANCELLED)
        self.before[number] = self._live(self._before(number), now)
        del self.active[number]

    def _values(self, now: TrialStatus) -> list[float] | None:
        """The metrics of the best epoch, and the size."""
        summary = now.summary
        best = summary.get("best", {})
        found = [(summary if one.name == SIZE else best).get(one.column) for one in self.record.plan.metrics]
        known = [float(value) for value in found if value is not None]
        return known if len(known) == len(found) else None

    # --- what is written ----------------------------------------------------------------------------------------------------

    def write(self, final: bool = False) -> None:
        """Write the trials, and now and then the page."""
        self.known = [self._row(one) for one in self.study.trials()]
        self.record.write_trials(self.known)
        if final or time.monotonic() - self.written_results > RESULTS_SECONDS:
            write_results(self.record, self.known, self.study.importances())
            self.written_results = time.monotonic()
        if self.listener is not None:
            self.listener(self.record, self.known)

    def _before(self, number: int) -> SweepTrial:
        return self.before.get(number, SweepTrial(number, WAITING, {}))

    def _row(self, trial: Any) -> SweepTrial:
        """A trial as it is now: the study knows its values, its job how far it is."""
        number, states = trial.number + 1, self.study.optuna.trial.TrialState
        known = self._before(number)
        if number in self.active:
            known = self._live(known, self.active[number])
        ended = {states.COMPLETE: FINISHED, states.PRUNED: STOPPED_EARLY, states.FAIL: FAILED}
        state = ended.get(trial.state, known.state if not known.has_ended else RUNNING)
        settings = {name: setting_value(name, value) for name, value in trial.params.items()}
        values = None if trial.values is None else tuple(trial.values)
        trend = tuple(value for _, value in sorted(trial.intermediate_values.items())) or known.trend
        return replace(
            known, state=state, settings=settings, values=values, trend=trend, why=trial.user_attrs.get(WHY, "")
        )

    def _live(self, known: SweepTrial, now: TrialStatus) -> SweepTrial:
        last = now.rows[max(now.rows)] if now.rows else {}
        return replace(
            known, state=now.state, epoch=int(last.get("epoch", known.epoch)), epochs=last.get("epochs", known.epochs),
            seconds=last.get("seconds", known.seconds), run=now.run or known.run, job=now.job or known.job,
            trend=tuple(self._reports(now).values()),
        )  # fmt: skip
