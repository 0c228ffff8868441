"""The data doctor of a version of a dataset: its report, the decisions, the job that examines it, and its images."""

from __future__ import annotations

import csv
import io
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ...data.dataset import Splits
from ...data.dataset_folder import describe, open_dataset_folder
from ...data.doctor.decisions import Decisions, decide, load_decisions
from ...data.doctor.report import FILE, DoctorFinding, DoctorReport, load_report
from ...data.image_names import read_names
from ...data.version_folders import versions
from ...errors import UserError
from ...jobs.events import latest
from ...jobs.queue.job_queue import JobQueue
from ...jobs.queue.kinds import DATASET_VERSION, DOCTOR
from ...jobs.queue.record import FAILED, RUNNING, STOPPED, JobRecord
from ...records import dataclass
from ...report.png import png

_NAME = re.compile(r"[^/\\.\x00][^/\\\x00]*")


def version_folder(root: Path, name: str, version: str | int | None = None) -> Path:
    """The folder of a version of a dataset of the studio, the newest if none is named; v3 and 3 name the same."""
    if _NAME.fullmatch(name) and (root / name).is_dir():
        known = versions(root / name / "v1")
        number = str(version or max(known, default="")).removeprefix("v")
        if number.isdecimal() and int(number) in known:
            return known[int(number)]
    raise UserError("studio", f"there is no dataset {name} {version or ''}".rstrip() + ".")


@dataclass(frozen=True)
class ExaminationJob:
    """The job that examines a dataset: its state, and how far it is."""

    number: int
    state: str
    why: str = ""
    what: str = ""
    done: int = 0
    total: int = 0

    @property
    def is_active(self) -> bool:
        return self.state in ("waiting", RUNNING)

    @property
    def share(self) -> float:
        return self.done / self.total if self.total else 0.0


@dataclass(frozen=True)
class DoctorView:
    """What the page shows of one version."""

    name: str
    number: int
    folder: Path
    about: dict[str, Any]
    versions: tuple[int, ...]
    report: DoctorReport | None
    decisions: Decisions
    job: ExaminationJob | None
    images: int

    @property
    def next_number(self) -> int:
        return 1 + max(self.versions)


def read_view(queue: JobQueue, name: str, folder: Path) -> DoctorView:
    """Look at the disk."""
    about = describe(folder)
    number = int(folder.name.removeprefix("v"))
    report = load_report(folder, about["digest"])
    job = find_job(queue, folder)
    decisions = load_decisions(folder, about["digest"])
    images = sum(_examples(folder, about["digest"]).values())
    return DoctorView(name, number, folder, about, tuple(versions(folder)), report, decisions, job, images)


def find_job(queue: JobQueue, folder: Path) -> ExaminationJob | None:
    """The last job that examines this version, unless it is done."""
    for job in reversed(queue.jobs()):
        if job.kind == DOCTOR and job.readable_settings.get("folder") == str(folder):
            return job_now(job)
    return None


def job_now(job: JobRecord) -> ExaminationJob | None:
    """How far an examination is; None if it is done."""
    state = job.state
    if state.state not in ("waiting", RUNNING, FAILED, STOPPED):
        return None
    event = latest(job.folder, "progress") if state.state == RUNNING else None
    facts = {} if event is None else event.facts
    return ExaminationJob(
        job.number,
        state.state,
        state.why,
        str(facts.get("what", "")),
        int(facts.get("done", 0)),
        int(facts.get("total", 0)),
    )


def examination_title(name: str, folder: Path) -> str:
    """What the job is called in the queue."""
    return f"Data doctor: {name} {folder.name}"


def start_examination(
    queue: JobQueue, name: str, folder: Path, again: bool, features: str | None = None, owner: str = ""
) -> JobRecord:
    """Add the job that examines a version. A second one while one waits or runs is rejected."""
    running = find_job(queue, folder)
    if running is not None and running.is_active:
        raise UserError("studio", f"job {running.number} examines {name} already.")
    settings = {"name": examination_title(name, folder), "folder": str(folder), "again": again, "features": features}
    return queue.add(settings, DOCTOR, owner=owner)


def save_version(queue: JobQueue, name: str, folder: Path, owner: str = "") -> JobRecord:
    """Add the job that makes the decisions a new version."""
    report, decisions = report_and_decisions(folder)
    changes = decisions.changes(report)
    if not changes:
        raise UserError("studio", "a decision to remove, move or relabel is required, got none.")
    about = describe(folder)
    changes.check(_examples(folder, about["digest"]), about["classes"])
    settings = {"name": name, "folder": str(folder), "changes": changes.as_json()}
    return queue.add(settings, DATASET_VERSION, owner=owner)


def report_and_decisions(folder: Path) -> tuple[DoctorReport, Decisions]:
    """Both, of a version that has been examined."""
    digest = describe(folder)["digest"]
    report = load_report(folder, digest)
    if report is None:
        raise UserError("studio", "the dataset has not been checked yet. Start the doctor first.")
    return report, load_decisions(folder, digest)


def decide_on(folder: Path, given: dict[str, str | None]) -> Decisions:
    """Keep decisions on findings."""
    return decide(folder, report_and_decisions(folder)[0], given)


# --- images ------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def _opened(folder: Path, digest: str) -> Splits:
    return open_dataset_folder(folder)


def _examples(folder: Path, digest: str) -> dict[str, int]:
    return {split: len(part) for split, part in _opened(folder, digest)._asdict().items() if part is not None}


def image_of(folder: Path, split: str, row: int) -> np.ndarray:
    """An image as (height, width, channels)."""
    part = _opened(folder, describe(folder)["digest"])._asdict().get(split)
    if part is None or not 0 <= row < len(part):
        raise UserError("studio", f"there is no image {row} in {split}.")
    found: np.ndarray = np.ascontiguousarray(part.inputs(np.array([row]))[0].transpose(1, 2, 0))
    return found


def picture_of(folder: Path, split: str, row: int) -> bytes:
    """An image as PNG."""
    return png(image_of(folder, split, row))


def difference_of(folder: Path, first: tuple[str, int], second: tuple[str, int], mirrored: bool) -> bytes:
    """Four times the difference of two images, as PNG."""
    one, other = (image_of(folder, *place).astype(np.int16) for place in (first, second))
    return png(np.clip(4 * np.abs(one[:, ::-1] - other if mirrored else one - other), 0, 255).astype(np.uint8))


@lru_cache(maxsize=8)
def _names(folder: Path, digest: str) -> dict[str, list[str]]:
    return {split: read_names(folder / split, count) for split, count in _examples(folder, digest).items()}


def names_of(folder: Path, finding: DoctorFinding) -> list[str]:
    """The file names of the images of a finding."""
    names = _names(folder, describe(folder)["digest"])
    return [names[split][row] for split, row in finding.images]


def findings_csv(folder: Path) -> str:
    """All findings as a table, with the decisions."""
    report, decisions = report_and_decisions(folder)
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["check", "split", "row", "file", "text", "score", "decision"])
    for result in report.results:
        for finding in result.findings:
            score = "" if finding.score is None else f"{finding.score:.4f}"
            names = names_of(folder, finding)
            places = [(split, str(row), name) for (split, row), name in zip(finding.images, names, strict=True)]
            for place in places or [("", "", "")]:
                writer.writerow([result.check, *place, finding.text, score, decisions.of(finding)])
    return buffer.getvalue()


def report_stamp(folder: Path) -> float:
    """When the report was last written."""
    try:
        return (folder / FILE).stat().st_mtime
    except OSError:
        return 0.0
