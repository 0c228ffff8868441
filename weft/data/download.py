"""Gets a file from the network: it goes on where it stopped, tries again, and keeps nothing that has a wrong checksum."""

from __future__ import annotations

import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import RunError

TRIES = 4
_TIMEOUT = 30.0  # seconds without a byte
_MOST_BYTES = 1 << 33
Report = Callable[[int, int | None], None]  # bytes that are here, and of how many if that is known

pause = time.sleep  # the wait between two tries


def fetch(urls: Sequence[str], path: Path, sha256: str, report: Report | None = None) -> Path:
    """The file at `path`, from the first address that gives it. It appears there only when its checksum is right."""
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    problems: list[str] = []
    for attempt in range(TRIES):
        for url in urls:
            problem = _attempt(url, part, sha256, report)
            if problem is None:
                os.replace(part, path)
                return path
            problems.append(f"{url}: {problem}")
        if attempt < TRIES - 1:
            pause(2.0**attempt)
    raise RunError(
        "download",
        f"{path.name} could not be had after {TRIES} tries. {'; '.join(problems[-len(urls) :])}. "
        "On a machine without network, give the folder that has the files with from_ (weft dataset get NAME from=FOLDER).",
    )


def _attempt(url: str, part: Path, sha256: str, report: Report | None) -> str | None:
    """Load what is missing and check it; the answer is what went wrong."""
    try:
        _load_rest(url, part, report)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # more is here than there: what is here cannot be right
            part.unlink(missing_ok=True)
        return f"the server answered {error.code} {error.reason}"
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, OSError) and error.errno == 28:
            raise RunError("download", f"the disk of {part.parent} is full.") from error
        return f"{getattr(error, 'reason', None) or error or type(error).__name__}"
    found = checksum(part)
    if found == sha256:
        return None
    part.unlink()
    return f"the checksum is {found[:16]}..., it should be {sha256[:16]}..."


def _load_rest(url: str, part: Path, report: Report | None) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "weft"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
        have = have if answer.status == 206 else 0  # some servers begin again from the start
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length and length.isdecimal() else None
        with open(part, "ab" if have else "wb") as file:
            while block := answer.read(1 << 18):
                file.write(block)
                have += len(block)
                if have > _MOST_BYTES:
                    raise OSError("it does not end")
                if report is not None:
                    report(have, total)
    if total is not None and have < total:
        raise OSError(f"the connection broke after {have} of {total} bytes")


def checksum(path: Path) -> str:
    """The SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
