"""An index of image files with labels: the input of `create`."""

from __future__ import annotations

import numpy as np

from ..records import dataclass
from .label_kinds import LabelKind, kind_of, label_counts


@dataclass(frozen=True)
class Index:
    """Image files and their labels: int64 (n,) classes, bool (n, classes), or floats. No file has been opened yet."""

    paths: tuple[str, ...]
    names: tuple[str, ...]  # file names in lists and reports, relative to the source
    labels: np.ndarray
    classes: tuple[str, ...]
    name: str = ""
    passed_over: tuple[tuple[str, str], ...] = ()  # name and reason of each entry that was skipped

    def counts(self) -> dict[str, int]:
        """The number of files of each class, including empty classes."""
        return label_counts(self.labels, self.classes)

    @property
    def kind(self) -> LabelKind:
        return kind_of(self.labels)

    def __len__(self) -> int:
        return len(self.paths)

    def __repr__(self) -> str:
        return f"<{self.name}: {len(self)} files in {len(self.classes)} classes, {len(self.passed_over)} passed over>"
