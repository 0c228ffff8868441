"""Downloads a file: resumes partial downloads, retries, and verifies the checksum."""

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
_MAX_BYTES = 1 << 33
Report = Callable[[int, int | None], None]  # bytes downloaded so far, and the total if known

pause = time.sleep  # between two attempts


def fetch(urls: Sequence[str], path: Path, sha256: str, report: Report | None = None) -> Path:
    """Download a file to `path` from the first URL that works. It appears there only after its checksum is verified."""
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
        f"{path.name} could not be downloaded in {TRIES} attempts. {'; '.join(problems[-len(urls) :])}. "
        "On a machine without network, pass the folder that has the files as from_ (weft dataset get NAME from=FOLDER).",
    )


def _attempt(url: str, part: Path, sha256: str, report: Report | None) -> str | None:
    """Download the missing bytes and verify the checksum; returns the problem, or None."""
    try:
        _download_rest(url, part, report)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # the partial file is longer than the original, so it is wrong
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


def _download_rest(url: str, part: Path, report: Report | None) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "weft"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
        have = have if answer.status == 206 else 0  # some servers ignore Range and send the whole file
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length and length.isdecimal() else None
        with open(part, "ab" if have else "wb") as file:
            while block := answer.read(1 << 18):
                file.write(block)
                have += len(block)
                if have > _MAX_BYTES:
                    raise OSError(f"it is larger than {_MAX_BYTES} bytes")
                if report is not None:
                    report(have, total)
    if total is not None and have < total:
        raise OSError(f"the connection broke after {have} of {total} bytes")


def checksum(path: Path) -> str:
    """The SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
