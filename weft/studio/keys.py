"""The secrets of a studio, in a folder that only its owner can read: what signs cookies, and the token of programs on this machine."""

from __future__ import annotations

import os
import secrets
import threading
from pathlib import Path

FOLDER = ".studio"  # below the folder of runs


def private_folder(runs: Path) -> Path:
    """The folder of what only the owner of a studio may read."""
    folder = runs.absolute() / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    return folder


def secret(runs: Path, name: str) -> str:
    """A random text that stays the same from start to start. Only the owner of the file can read it."""
    path = private_folder(runs) / name
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_text("utf-8").strip()
    with os.fdopen(file, "w") as opened:
        opened.write(secrets.token_urlsafe(32) + "\n")
    return path.read_text("utf-8").strip()


class OneTimeToken:
    """The token in the printed address. It opens one browser; then there is a new one, which `announce` prints."""

    def __init__(self) -> None:
        self.value = secrets.token_urlsafe(18)
        self.used = 0
        self._lock = threading.Lock()

    def fits(self, given: str) -> bool:
        """Whether this is the token."""
        return secrets.compare_digest(given.encode(), self.value.encode())

    def take(self, given: str) -> bool:
        """Whether this is the token; if so, it is used up."""
        with self._lock:
            if not self.fits(given):
                return False
            self.value = secrets.token_urlsafe(18)
            self.used += 1
            return True
