"""Where profiles are kept: RUN/profiles of a run, RUNS/.profiles/NETWORK of a network. Several are kept, each with its trace.

ID.json          the figures (weft/insight/profile_record.py)
ID.trace.json    the trace, for https://ui.perfetto.dev
"""

from __future__ import annotations

import re
import time
from pathlib import Path

from ...errors import RunError, UserError
from ...insight.profile_file import record_from_json
from ...insight.profile_record import ProfileRecord
from ...insight.trace_file import save_trace
from ...io.files import replace_file
from ...records import dataclass
from ...timeline import Timeline

FOLDER, OF_NETWORKS = "profiles", ".profiles"
TRACE = ".trace.json"
_ID = re.compile(r"\d{8}-\d{6}-[a-z0-9_]+-b\d+-[a-z]+(-\d+)?")


@dataclass(frozen=True)
class StoredProfile:
    """A profile on disk. One that cannot be read has a problem instead of a record."""

    id: str
    folder: Path
    made: float
    record: ProfileRecord | None
    problem: str = ""

    @property
    def path(self) -> Path:
        return self.folder / f"{self.id}.json"

    @property
    def trace(self) -> Path:
        return self.folder / f"{self.id}{TRACE}"


def run_profiles(run: Path) -> Path:
    """The folder of the profiles of a run."""
    return run / FOLDER


def network_profiles(runs: str | Path, network: str) -> Path:
    """The folder of the profiles of a network."""
    if re.fullmatch(r"[A-Za-z0-9_-]+", network) is None:
        raise UserError("profile", f"the name of a network is required, got {network[:60]!r}.")
    return Path(runs) / OF_NETWORKS / network


def profile_ids(folder: Path) -> list[str]:
    """The profiles of a folder, the newest first."""
    found = [path.name.removesuffix(".json") for path in folder.glob("*.json") if not path.name.endswith(TRACE)]
    return sorted(filter(_ID.fullmatch, found), reverse=True)


def stored_profiles(folder: Path) -> list[StoredProfile]:
    """All profiles of a folder, the newest first."""
    return [stored_profile(folder, one) for one in profile_ids(folder)]


def stored_profile(folder: Path, id: str) -> StoredProfile:
    """One profile; an unknown one is an error."""
    if not _ID.fullmatch(id) or not (folder / f"{id}.json").is_file():
        known = ", ".join(profile_ids(folder)[:5]) or "none"
        raise UserError("profile", f"there is no profile {id[:60]!r}. Known are: {known}.")
    path = folder / f"{id}.json"
    try:
        record = record_from_json(path.read_text(encoding="utf-8"))
        return StoredProfile(id, folder, record.made, record)
    except RunError as error:
        return StoredProfile(id, folder, path.stat().st_mtime, None, error.message)
    except (OSError, UnicodeDecodeError) as error:
        return StoredProfile(id, folder, 0.0, None, f"this profile cannot be read: {error}.")


def keep_profile(folder: Path, record: ProfileRecord, calls: Timeline) -> StoredProfile:
    """Write a profile and the trace of some calls."""
    folder.mkdir(parents=True, exist_ok=True)
    when = time.strftime("%Y%m%d-%H%M%S", time.localtime(record.made))
    name = f"{when}-{record.device.replace(':', '')}-b{record.batch}-{record.what}"
    id = next(one for n in range(10_000) if not (folder / f"{(one := name + (f'-{n}' if n else ''))}.json").exists())
    save_trace(folder / f"{id}{TRACE}", calls)
    replace_file(folder / f"{id}.json", [record.to_json().encode()], "profile")  # last: it makes a profile of the files
    return StoredProfile(id, folder, record.made, record)


def delete_profile(stored: StoredProfile) -> None:
    """Delete a profile and its trace."""
    stored.path.unlink(missing_ok=True)
    stored.trace.unlink(missing_ok=True)
