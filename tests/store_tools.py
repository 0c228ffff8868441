"""Databases of the studio for tests: an empty one is made once and copied, which takes a tenth of the time."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from argon2 import PasswordHasher

from weft.studio.store.store import AccountStore, open_store

PASSWORD = "a good password"
QUICK_HASHER = PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)


@functools.cache
def _empty() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        open_store(Path(folder)).close()
        return (Path(folder) / ".studio" / "studio.sqlite").read_bytes()


def new_store(runs: Path) -> AccountStore:
    """The store of a folder without accounts."""
    (runs / ".studio").mkdir(parents=True, exist_ok=True)
    (runs / ".studio" / "studio.sqlite").write_bytes(_empty())
    return open_store(runs)
