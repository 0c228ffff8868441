"""Small JSON files that several processes change: one at a time, so that no change gets lost."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from ...io.files import cannot_write, replace_file

Content = TypeVar("Content", bound=Any)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Inside, no other process or thread is inside for the same file, which is created."""
    try:
        file = path.open("w")
    except OSError as error:
        raise cannot_write("jobs", path, error) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)  # released when the file is closed, or the process ends
        yield


def change_file(
    path: Path, lock: Path, read: Callable[[Path], Content], change: Callable[[Content], Content]
) -> Content:
    """Replace a dataclass in a file by what `change` makes of it; `read` reads it. What stays the same is not written."""
    with locked(lock):
        before = read(path.parent)
        new = change(before)
        if new != before:
            replace_file(path, [(json.dumps(asdict(new)) + "\n").encode()], "jobs")
        return new
