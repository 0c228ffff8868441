"""Names of datasets, derived from their paths: nothing is opened, so that lists of jobs and runs load no readers."""

from __future__ import annotations

import re
from pathlib import Path

VERSION_FOLDER = re.compile(r"v[1-9][0-9]{0,5}")  # name of the folder of a version


def dataset_name(source: str | Path) -> str:
    """What runs on a dataset, given by name or path, are called after; versions are called after their dataset.

    >>> dataset_name("digits"), dataset_name("photos/list.csv"), dataset_name("datasets/flowers/v2")
    ('digits', 'list', 'flowers')
    """
    path = Path(source)
    return path.parent.name if _is_version(path) else path.stem


def dataset_label(source: str | Path) -> str:
    """A dataset, given by name or path, as lists show it.

    >>> dataset_label("digits"), dataset_label("photos/list.csv"), dataset_label("datasets/flowers/v2")
    ('digits', 'list.csv', 'flowers v2')
    """
    path = Path(source)
    return f"{path.parent.name} {path.name}" if _is_version(path) else path.name


def _is_version(path: Path) -> bool:
    return VERSION_FOLDER.fullmatch(path.name) is not None and path.parent.name not in ("", "..")
