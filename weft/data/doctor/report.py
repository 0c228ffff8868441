"""What the doctor found: a result of each check, with findings that carry the changes which would fix them. Stored as doctor.json."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import field
from pathlib import Path
from typing import Any, Literal

from ...errors import RunError, UserError
from ...io.files import replace_file
from ...records import dataclass
from ..changes import DatasetChanges, merged

FILE = "doctor.json"
FORMAT = 1
Severity = Literal["ok", "info", "warning"]
Place = tuple[str, int]  # split and row of an image


@dataclass(frozen=True)
class DoctorFinding:
    """One thing to decide on: an image, or several that belong together; the one to keep stands first.

    `score` says how alike images are, or how sure the doctor is, from 0 to 1. `suggested` are the changes that would fix
    it, empty where only a person can decide.
    """

    check: str
    severity: Severity
    images: tuple[Place, ...]
    text: str
    score: float | None = None
    suggested: DatasetChanges = field(default_factory=DatasetChanges)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """Its name in decisions and addresses."""
        images = "=".join(f"{split}:{row}" for split, row in self.images)
        return f"{self.check}/{images or self.text}"

    def as_json(self) -> dict[str, Any]:
        return {
            **vars(self), "images": [list(place) for place in self.images], "suggested": self.suggested.as_json(),
            "score": None if self.score is None else round(self.score, 4),
        }  # fmt: skip

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> DoctorFinding:
        images = tuple((str(split), int(row)) for split, row in found["images"])
        return cls(**{**found, "images": images, "suggested": DatasetChanges.from_json(found["suggested"])})


@dataclass(frozen=True)
class CheckResult:
    """The result of one check: what it says in one line, and its findings, the most certain first."""

    check: str
    title: str
    severity: Severity
    text: str
    findings: tuple[DoctorFinding, ...] = ()
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "findings": [finding.as_json() for finding in self.findings]}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> CheckResult:
        return cls(**{**found, "findings": tuple(map(DoctorFinding.from_json, found["findings"]))})


@dataclass(frozen=True)
class DoctorReport:
    """The results of all checks of one version of a dataset."""

    name: str
    digest: str  # of the dataset
    settings: dict[str, Any]
    results: tuple[CheckResult, ...]
    complete: bool  # whether all checks have been made
    time: float
    seconds: float

    @property
    def warnings(self) -> int:
        """How many checks found something to look at."""
        return sum(result.severity == "warning" for result in self.results)

    def result(self, check: str) -> CheckResult | None:
        return next((result for result in self.results if result.check == check), None)

    def changes(self, checks: Iterable[str]) -> DatasetChanges:
        """The changes that these checks suggest, together. What one removes, others need not change."""
        wanted = set(checks)
        found = [f.suggested for result in self.results if result.check in wanted for f in result.findings]
        return merged(found)

    def as_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT, "name": self.name, "digest": self.digest, "settings": self.settings, "complete": self.complete,
            "time": self.time, "seconds": self.seconds, "results": [result.as_json() for result in self.results],
        }  # fmt: skip

    def save(self, folder: Path) -> None:
        """Write doctor.json in the folder of the dataset."""
        replace_file(folder / FILE, [(json.dumps(self.as_json(), indent=1) + "\n").encode()], "dataset doctor")


def load_report(folder: Path, digest: str) -> DoctorReport | None:
    """The report in the folder of a dataset; None if there is none, or one of other images or another format."""
    try:
        found = json.loads((folder / FILE).read_bytes())
        if found.pop("format") != FORMAT or found["digest"] != digest:
            return None
        return DoctorReport(**{**found, "results": tuple(map(CheckResult.from_json, found["results"]))})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, UserError) as error:
        raise RunError("dataset doctor", f"{folder / FILE} is damaged: {error}. Delete it and check again.") from None
