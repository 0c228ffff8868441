"""A dataset as its page shows it."""

from __future__ import annotations

from ...records import dataclass
from ..library.dataset_images import OpenedDataset
from ..library.datasets import DatasetRow, VersionRow
from ..library.runs import RunRow
from ..ui.context import Studio

KNOWN = "known"  # the only version of a known dataset, in addresses


@dataclass(frozen=True)
class DatasetView:
    """A dataset as its page shows it: a version of one that was created, or a known one."""

    studio: Studio
    name: str
    opened: OpenedDataset
    row: DatasetRow | None = None  # none for a known dataset
    version: VersionRow | None = None
    of_class: str = ""
    may_change: bool = True  # whether who looks may make new versions

    @property
    def version_name(self) -> str:
        return KNOWN if self.version is None else self.version.name

    @property
    def digest(self) -> str:
        return "" if self.version is None else self.version.digest

    @property
    def address(self) -> str:
        """The address of the page, ready for another parameter."""
        version = f"version={self.version.name}&" if self.version is not None else ""
        return f"{self.studio.config.prefix}/datasets/{self.name}?{version}"

    @property
    def following(self) -> str:
        """The name of the next version; empty where none can be made."""
        return next_version(self.row, self.version)

    @property
    def is_editable(self) -> bool:
        return self.may_change and bool(self.following)

    @property
    def data(self) -> str:
        """What `weft train data=` takes."""
        return self.name if self.version is None else str(self.version.folder)

    def runs(self) -> list[tuple[RunRow, str]]:
        """The runs that learned from it, with the version."""
        rows = self.studio.index.rows()
        if self.row is None:
            return [(run, "") for run in rows if run.settings.get("data") == self.name]
        named = {str(one.folder): one.name for one in self.row.versions}
        return [(run, named.get(str(run.settings.get("data")), "newest")) for run in self.row.used_by(rows)]


def next_version(row: DatasetRow | None, version: VersionRow | None) -> str:
    """The name of the version that changes would make; empty where none can be made."""
    if row is None or version is None or version.problem or version.folder == row.folder:
        return ""
    return f"v{1 + max(int(one.name[1:]) for one in row.versions)}"
