"""An index of the datasets of a studio: DATASETS/NAME/v1, v2 and so on, and the jobs that make them. Files are read again only when they change."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from ...data.catalogue import known_names
from ...data.dataset_folder import describe, is_dataset_folder, version_folders
from ...data.doctor.report import FILE as REPORT
from ...data.label_kinds import LabelKind, examples_by_split
from ...data.staging import DESCRIPTION
from ...data.version_folders import described_version
from ...errors import UserError, WeftError
from ...jobs.events import latest
from ...jobs.queue.job_queue import JobQueue
from ...jobs.queue.kinds import DATASET, DATASET_VERSION
from ...jobs.queue.record import CANCELLED, DONE, RUNNING, JobRecord
from ...records import dataclass
from ..paths import AllowedPaths
from ..uploads import UploadStore
from .dataset_form import DatasetForms
from .dataset_images import OpenDatasets, OpenedDataset, flags_of
from .runs import RunRow

KINDS = (DATASET, DATASET_VERSION)
_VERSION = re.compile(r"v[1-9][0-9]*")


@dataclass(frozen=True)
class VersionRow:
    """A version of a dataset: its description, and its size on disk. `problem` says why it cannot be read."""

    name: str  # v1
    folder: Path
    about: Mapping[str, Any]
    nbytes: int
    created: float  # seconds since 1970
    text: str  # what changed
    problem: str = ""

    @property
    def splits(self) -> dict[str, int]:
        return examples_by_split(self.about) if self.about else {}

    @property
    def images(self) -> int:
        return sum(self.splits.values())

    @property
    def classes(self) -> list[str]:
        return list(self.about.get("classes", ()))

    @property
    def labels(self) -> LabelKind:
        found: LabelKind = self.about.get("labels", "class")
        return found

    @property
    def failed(self) -> int:
        return int(self.about.get("failed", 0))

    @property
    def size(self) -> str:
        """Width and height of its images, in pixels."""
        shape = self.about.get("shape") or (0, 0, 0)
        return f"{shape[2]} × {shape[1]}"

    @property
    def left_out(self) -> int:
        """Files that failed or were passed over."""
        return self.failed + int(self.about.get("passed_over", 0))

    @property
    def digest(self) -> str:
        return str(self.about.get("digest", ""))[:12]

    @property
    def parent(self) -> str | None:
        found = self.about.get("parent")
        return None if not found else f"v{found['version']}"


@dataclass(frozen=True)
class DatasetJob:
    """A job that makes a dataset, or a version of one, and how far it is."""

    number: int
    kind: str
    state: str
    why: str = ""
    doing: str = ""
    done: int = 0
    total: int = 0
    failed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def share(self) -> float:
        return self.done / self.total if self.total else 0.0


@dataclass(frozen=True)
class DatasetRow:
    """A dataset with its versions, the oldest first, and the jobs that make it and are not done."""

    name: str
    folder: Path
    versions: tuple[VersionRow, ...]
    jobs: tuple[DatasetJob, ...] = ()

    @property
    def newest(self) -> VersionRow | None:
        return self.versions[-1] if self.versions else None

    @property
    def state(self) -> str:
        """making, failed, stopped or ready."""
        if any(job.state in ("waiting", RUNNING) for job in self.jobs):
            return "making"
        if not self.versions:
            return "failed" if any(job.state == "failed" for job in self.jobs) else "stopped"
        return "ready"

    def version(self, name: str | None) -> VersionRow | None:
        """A version by name; without a name the newest."""
        return self.newest if not name else next((one for one in self.versions if one.name == name), None)

    def used_by(self, runs: Iterable[RunRow], version: str | None = None) -> list[RunRow]:
        """The runs that learned from it, or from one version of it."""
        folders = {str(one.folder): one.name for one in self.versions} | {str(self.folder): "newest"}
        found = []
        for run in runs:
            data = str(run.settings.get("data") or "")
            places = _places(data, self.folder) if self.name in data else ()
            here = next((folders[one] for one in places if one in folders), None)
            if here is not None and version in (None, here):
                found.append(run)
        return found


def _places(data: str, folder: Path) -> tuple[str, str]:
    """Where the data of a run may be: relative paths began beside the datasets of this studio, or where it was started."""
    path = Path(data).expanduser()
    return str(folder.parent.parent / path), str(path.absolute())


class DatasetIndex:
    """All datasets below a folder. `refresh` looks at the disk; `rows` is what the last look found."""

    def __init__(self, root: Path, queue: JobQueue) -> None:
        self.root, self.queue = root, queue
        self._rows: dict[str, DatasetRow] = {}
        self._versions: dict[tuple[Path, int], VersionRow] = {}
        self._kinds: dict[int, tuple[str, Path]] = {}  # of jobs: kind and the folder of the dataset
        self._refreshing = threading.Lock()

    def rows(self) -> list[DatasetRow]:
        """All datasets by name."""
        return sorted(self._rows.values(), key=lambda row: row.name.lower())

    def get(self, name: str) -> DatasetRow | None:
        return self._rows.get(name)

    def refresh(self) -> tuple[DatasetRow, ...]:
        """Look at the disk."""
        with self._refreshing:
            jobs = self._jobs()
            folders = {one for one in _folders(self.root) if is_dataset_folder(one) or version_folders(one)}
            rows = {folder.name: self._row(folder, jobs.get(folder, ())) for folder in folders | jobs.keys()}
            self._rows = rows
        return tuple(self.rows())

    def _row(self, folder: Path, jobs: Iterable[DatasetJob]) -> DatasetRow:
        found = [folder] if is_dataset_folder(folder) else version_folders(folder)
        versions = tuple(self._version(one, "v1" if one == folder else one.name) for one in found)
        return DatasetRow(folder.name, folder, versions, tuple(jobs))

    def _version(self, folder: Path, name: str) -> VersionRow:
        key = folder, (folder / DESCRIPTION).stat().st_mtime_ns
        if key not in self._versions:
            self._versions[key] = read_version(folder, name)
        return self._versions[key]

    def _jobs(self) -> dict[Path, list[DatasetJob]]:
        """The jobs that make datasets below this folder and are not done, by the folder of the dataset."""
        found: dict[Path, list[DatasetJob]] = {}
        for job in self.queue.jobs():
            kind, folder = self._kind_of(job)
            if kind not in KINDS or folder.parent != self.root:
                continue
            state = job.state
            if state.state == DONE or state.why == CANCELLED or (state.has_ended and version_folders(folder)):
                continue  # a failed attempt matters only while there is nothing else
            found.setdefault(folder, []).append(_progress(job, kind, state.state, state.why))
        return found

    def _kind_of(self, job: JobRecord) -> tuple[str, Path]:
        """The kind of a job and its dataset: they never change, so they are read once."""
        if job.number not in self._kinds:
            try:
                folder = Path(str(job.settings.get("folder", "")))
                self._kinds[job.number] = job.kind, folder.parent if _VERSION.fullmatch(folder.name) else folder
            except WeftError:  # it is damaged; the queue says so
                return "", Path()
        return self._kinds[job.number]


def _progress(job: JobRecord, kind: str, state: str, why: str) -> DatasetJob:
    event = latest(job.folder, "progress") if state == RUNNING else None
    doing = latest(job.folder, "activity") if state == RUNNING else None
    settings = job.readable_settings
    if event is None:
        text = "" if doing is None else str(doing["text"])
        return DatasetJob(job.number, kind, state, why, text, settings=settings)
    facts = event.facts
    return DatasetJob(
        job.number, kind, state, why, str(facts.get("what", "")), int(facts.get("done", 0)), int(facts.get("total", 0)),
        int(facts.get("failed", 0)), settings,
    )  # fmt: skip


def read_version(folder: Path, name: str) -> VersionRow:
    """Read what dataset.json says of a version."""
    created = (folder / DESCRIPTION).stat().st_mtime
    try:
        about = describe(folder)
        text = described_version(folder, about).text
    except WeftError as error:
        return VersionRow(name, folder, {}, 0, created, "", error.message)
    return VersionRow(name, folder, about, folder_bytes(folder), created, text)


def folder_bytes(folder: Path) -> int:
    """The size of all files below a folder."""
    return sum(one.lstat().st_size for one in folder.rglob("*") if one.is_file())


class DatasetLibrary:
    """Everything about datasets that pages and the API work with: the index, open images, forms, uploads."""

    def __init__(self, root: Path, queue: JobQueue, paths: AllowedPaths, largest_upload: int) -> None:
        self.root = root
        self.index = DatasetIndex(root, queue)
        self.images = OpenDatasets()
        self.uploads = UploadStore(root / ".uploads", largest_upload)
        self.forms = DatasetForms(root, paths, self.uploads)
        self._last_flags: tuple[tuple[Path, int] | None, dict[str, dict[int, str]]] = (None, {})

    def opened(self, name: str, version: str | None = None) -> OpenedDataset:
        """The images of a version, or of a known dataset; an error if there is none."""
        row = self.index.get(name)
        if row is None and name in known_names():
            return self.images.known(name)
        found = None if row is None else row.version(version)
        if found is None or found.problem:
            why = found.problem if found is not None else f"there is no dataset {name} {version or ''}".strip() + "."
            raise UserError("studio", why)
        opened = self.images.version(found.folder, found.digest)
        opened.flags = self._flags(found)
        return opened

    def _flags(self, version: VersionRow) -> dict[str, dict[int, str]]:
        """What the data doctor found about images, read again when its report has changed."""
        try:
            key = version.folder, (version.folder / REPORT).stat().st_mtime_ns
        except OSError:
            return {}
        if key != self._last_flags[0]:
            self._last_flags = key, flags_of(version.folder, str(version.about["digest"]))
        return self._last_flags[1]


def _folders(root: Path) -> list[Path]:
    try:
        return [one for one in root.iterdir() if one.is_dir() and not one.name.startswith(".")]
    except OSError:
        return []
