"""Paths that people type into the studio. They are confined to configured folders: links and .. that lead out of them are rejected."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ..errors import UserError

MOST = 50  # completions of a path
LONGEST = 4096  # bytes of a path


class AllowedPaths:
    """The folders that the studio may read for its users, and the paths inside them."""

    def __init__(self, roots: Sequence[Path], secrets: Sequence[Path] = ()) -> None:
        """`secrets` are files and folders that nobody reads through the studio, wherever they are: who could would be its administrator."""
        self.roots, self.secrets = (tuple(one.expanduser().absolute().resolve() for one in given) for given in (roots, secrets))  # fmt: skip

    def path(self, given: str, what: str = "path") -> Path:
        """An existing path inside an allowed folder, without links."""
        for candidate in self._candidates(given.strip()):
            found = Path(os.path.realpath(candidate))
            if self.allows(found) and found.exists():
                return found
        allowed = ", ".join(map(str, self.roots)) or "none"
        raise UserError(
            "studio",
            f"a {what} that exists in an allowed folder is required, got {given!r}. Allowed: {allowed}. "
            "Allow more with weft studio roots=FOLDER,FOLDER.",
        )

    def _candidates(self, given: str) -> list[Path]:
        """The paths that a text may mean; none for a text that no file can be called."""
        if not is_path_text(given):
            return []
        typed = _home(given)
        return [typed] if typed.is_absolute() else [root / typed for root in self.roots]

    def allows(self, found: Path) -> bool:
        """Whether a path without links is inside an allowed folder."""
        inside = any(found.is_relative_to(root) for root in self.roots)
        return inside and not any(found.is_relative_to(secret) for secret in self.secrets)

    def complete(self, typed: str, folders_only: bool = False) -> list[str]:
        """Paths that begin with what was typed, folders with a slash at the end. Hidden ones are shown when their dot is typed."""
        if not is_path_text(typed):
            return []
        if not typed.strip():
            return [f"{root}/" for root in self.roots]
        full = str(_home(typed)) + "/" * typed.endswith("/") if typed.startswith("~") else typed
        folder, slash, begun = full.rpartition("/")
        starts = ["/"] if full.startswith("/") else self.roots
        places = [Path(os.path.realpath(Path(start) / (folder or "."))) for start in starts]
        names = {
            name for place in places if self.allows(place) for name in _begun(place, begun, folders_only) if self.allows(place / name)
        }  # fmt: skip
        above = [f"{root}/" for root in self.roots if full.startswith("/") and str(root).startswith(full)]
        return above + [f"{folder}{slash}{name}" for name in sorted(names)[:MOST]]


def is_path_text(text: str) -> bool:
    """Whether a file can be called so: names have no NUL, no half of a character, and limited length."""
    try:
        return "\0" not in text and len(os.fsencode(text)) < LONGEST
    except UnicodeEncodeError:
        return False


def _home(typed: str) -> Path:
    """A path with ~ replaced, unless nobody has that name."""
    try:
        return Path(typed).expanduser()
    except RuntimeError:
        return Path(typed)


def _begun(place: Path, begun: str, folders_only: bool) -> list[str]:
    """The names in a folder that begin so; folders with a slash at the end."""
    try:
        with os.scandir(place) as entries:
            found = [one for one in entries if one.name.startswith(begun) and (begun or not one.name.startswith("."))]
            return [one.name + ("/" if one.is_dir() else "") for one in found if one.is_dir() or not folders_only]
    except OSError:
        return []
