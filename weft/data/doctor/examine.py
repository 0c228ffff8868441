"""Examines a dataset: runs the checks one after the other, and stores the report after each, so that an interrupted examination continues."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UserError
from ...hints import nearest
from ..create import read_failures
from ..dataset import Dataset
from ..dataset_folder import describe, open_dataset_folder
from .balance import check_balance
from .copies import FoundCopies, find_copies
from .duplicates import check_duplicates, check_leaks, check_near_duplicates
from .image_facts import BLANK, Features, ImageFacts, image_facts
from .labels import check_labels
from .outliers import check_outliers
from .quality import check_quality
from .report import CheckResult, DoctorReport, load_report

DoctorProgress = Callable[[str, int, int], None]  # what is being done, how much of it, and of how much


def _nobody(what: str, done: int, total: int) -> None:
    """Shows nothing."""


class Examination:
    """The checks of one dataset. What several of them need is computed once, when it is first needed."""

    def __init__(self, folder: Path, features: Features | None, progress: DoctorProgress) -> None:
        self.folder, self.about, self._features, self._progress = folder, describe(folder), features, progress
        parts = open_dataset_folder(folder)._asdict()
        self.splits: dict[str, Dataset] = {split: part for split, part in parts.items() if part is not None}
        self.classes = self.splits["train"].classes

    @cached_property
    def facts(self) -> ImageFacts:
        return image_facts(self.splits, self._features, self._show("Reading images"))

    @cached_property
    def copies(self) -> FoundCopies:
        self._progress("Comparing images", 0, 1)
        return find_copies(self.facts, self.side)

    @property
    def usable(self) -> np.ndarray:
        """The images that show something."""
        return np.asarray(self.facts.spread >= BLANK)

    @property
    def side(self) -> int:
        return min(self.splits["train"].shape[1:])

    def _show(self, what: str) -> Callable[[int, int], None]:
        return lambda done, total: self._progress(what, done, total)

    # --- the checks ----------------------------------------------------------------------------------------------------

    def leaks(self) -> CheckResult:
        return check_leaks(self.facts, self.classes, self.copies)

    def labels(self) -> CheckResult:
        return check_labels(self.facts, self.classes, self.usable, self._show("Looking for wrong labels"))

    def duplicates(self) -> CheckResult:
        return check_duplicates(self.facts, self.classes, self.copies)

    def near_duplicates(self) -> CheckResult:
        return check_near_duplicates(self.facts, self.classes, self.copies)

    def outliers(self) -> CheckResult:
        return check_outliers(self.facts, self.classes, self.usable, self._show("Looking for outliers"))

    def quality(self) -> CheckResult:
        rows = read_failures(self.folder / "failed.csv")
        failed = [row for row in rows if not row[1].startswith("passed over: ")]
        return check_quality(self.facts, self.classes, failed, self.side)

    def balance(self) -> CheckResult:
        return check_balance({split: part.counts() for split, part in self.splits.items()})


CHECKS: dict[str, Callable[[Examination], CheckResult]] = {
    "leaks": Examination.leaks,
    "duplicates": Examination.duplicates,
    "near-duplicates": Examination.near_duplicates,
    "quality": Examination.quality,
    "balance": Examination.balance,
    "outliers": Examination.outliers,
    "labels": Examination.labels,  # the longest comes last
}


def examine(
    folder: str | os.PathLike[str],
    *,
    features: Features | None = None,
    features_name: str | None = None,
    again: bool = False,
    progress: DoctorProgress = _nobody,
) -> DoctorReport:
    """Make all checks of the dataset in `folder`, and keep the report there as doctor.json.

    `features` gives the features of images for wrong labels and outliers, such as those of a trained network, which
    `features_name` names; without, they are simple descriptors of edges and colours. A complete report is returned as it
    is, unless `again`; an interrupted one goes on after its last check.
    """
    path = Path(os.path.abspath(folder))
    about = describe(path)
    settings: dict[str, Any] = {"features": features_name}
    report = None if again else load_report(path, about["digest"])
    if report is None or report.settings != settings:
        report = DoctorReport(about["name"], about["digest"], settings, (), False, 0.0, 0.0)
    examination = Examination(path, features, progress)
    for name, check in CHECKS.items():
        if report.result(name) is None:
            report = _with(report, examination, check)
            report.save(path)
    return report


def _with(report: DoctorReport, examination: Examination, check: Callable[[Examination], CheckResult]) -> DoctorReport:
    """The report with one more result."""
    start = time.perf_counter()
    result = check(examination)
    seconds = time.perf_counter() - start
    results = (*report.results, replace(result, seconds=round(seconds, 3)))
    return replace(
        report, results=results, complete=len(results) == len(CHECKS), time=round(time.time(), 3),
        seconds=round(report.seconds + seconds, 3),
    )  # fmt: skip


def known_checks(names: Iterable[str]) -> list[str]:
    """The names of checks, after rejecting those that are none."""
    found = list(names)
    for name in found:
        if name not in CHECKS:
            raise UserError("dataset doctor", f"there is no check {name!r}. {nearest(name, list(CHECKS))}")
    return found
