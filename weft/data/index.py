"""Image files with labels, before they are made into a dataset."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Index:
    """Which files there are and which class each belongs to. Nothing has been opened yet."""

    paths: tuple[str, ...]
    names: tuple[str, ...]  # how the files are called in lists and reports, relative to the source
    labels: np.ndarray
    classes: tuple[str, ...]
    name: str = ""
    passed_over: tuple[tuple[str, str], ...] = ()  # name and reason of all that was seen and not taken

    def counts(self) -> dict[str, int]:
        """How many files each class has, also those that have none."""
        return dict(zip(self.classes, np.bincount(self.labels, minlength=len(self.classes)).tolist(), strict=True))

    def __len__(self) -> int:
        return len(self.paths)

    def __repr__(self) -> str:
        return f"<{self.name}: {len(self)} files in {len(self.classes)} classes, {len(self.passed_over)} passed over>"
