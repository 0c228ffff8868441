"""Annotations of a run by its users: tags, notes, a group, a star. They are in `annotations.json` of the run folder, apart from the settings.

annotate(folder, add_tags=["baseline"], notes="first try")
read_annotations(folder).tags                                # ("baseline",)
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..errors import RunError, UserError
from ..io.files import cannot_write, replace_file
from ..records import dataclass

FILE = "annotations.json"
LARGEST = 1 << 18  # bytes of the file
MOST_TAGS, LONGEST_TAG, LONGEST_GROUP, LONGEST_NOTES = 50, 64, 100, 20_000


@dataclass(frozen=True)
class Annotations:
    """The annotations of a run."""

    tags: tuple[str, ...] = ()
    notes: str = ""
    group: str = ""
    starred: bool = False


def read_annotations(folder: str | os.PathLike[str]) -> Annotations:
    """The annotations of a run; empty ones if it has none."""
    path = Path(folder) / FILE
    try:
        if path.stat().st_size > LARGEST:
            raise ValueError(f"it is larger than {LARGEST >> 10} KiB")
        return parse_annotations(json.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        return Annotations()
    except (OSError, ValueError) as error:
        raise RunError("annotations", f"{path} cannot be read: {error}. Delete it to start again.") from error


def parse_annotations(found: Any) -> Annotations:
    """Annotations from JSON; ValueError says what is wrong with it."""
    types = {"tags": list, "notes": str, "group": str, "starred": bool}
    if not isinstance(found, dict) or not found.keys() <= types.keys():
        raise ValueError(f"an object with {', '.join(types)} is required")
    for name, value in found.items():
        if not isinstance(value, types[name]):
            raise ValueError(f"{name} has the wrong type")
    return checked(Annotations(**{**found, "tags": tuple(found.get("tags", ()))}))


def annotate(
    folder: str | os.PathLike[str], *, tags: Sequence[str] | None = None, add_tags: Sequence[str] = (), remove_tags: Sequence[str] = (),
    notes: str | None = None, group: str | None = None, starred: bool | None = None,
) -> Annotations:  # fmt: skip
    """Change the annotations of a run; those that are not given stay. Concurrent changes of several processes are not lost."""
    changes = {"notes": notes, "group": group, "starred": starred}
    given: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
    with _changing(Path(folder)):
        now = read_annotations(folder)
        kept = [tag for tag in (now.tags if tags is None else tags) if tag not in remove_tags]
        try:
            new = checked(replace(now, tags=tuple(dict.fromkeys([*kept, *add_tags])), **given))
        except ValueError as error:
            raise UserError("annotations", f"{error}.") from None
        if new != now:
            replace_file(Path(folder) / FILE, [(json.dumps(asdict(new), indent=1) + "\n").encode()], "annotations")
    return new


def checked(found: Annotations) -> Annotations:
    """The same annotations; ValueError if they are not within the limits."""
    if len(found.tags) > MOST_TAGS:
        raise ValueError(f"at most {MOST_TAGS} tags are possible, got {len(found.tags)}")
    for tag in found.tags:
        tag_name(tag)
    _check_text("notes", found.notes, LONGEST_NOTES, lambda c: c.isprintable() or c in "\n\t")
    _check_text("group", found.group, LONGEST_GROUP, str.isprintable)
    return found


def tag_name(text: Any) -> str:
    """A tag; ValueError if it cannot be one."""
    if not isinstance(text, str) or text != text.strip() or not 1 <= len(text) <= LONGEST_TAG:
        raise ValueError(f"a tag must have 1 to {LONGEST_TAG} characters, got {text!r:.80}")
    if "," in text or not text.isprintable():
        raise ValueError(f"a tag must be printable and without commas, got {text!r}")
    return text


def tag_names(text: str) -> tuple[str, ...]:
    """Tags in a text, such as baseline,small."""
    return tuple(tag_name(part.strip()) for part in text.split(","))


def notes_text(text: str) -> str:
    """The text of notes; ValueError if it is too long."""
    return checked(Annotations(notes=text)).notes


def group_name(text: str) -> str:
    """The name of a group; ValueError if it is too long."""
    return checked(Annotations(group=text)).group


def _check_text(name: str, text: str, longest: int, allowed: Callable[[str], bool]) -> None:
    if len(text) > longest:
        raise ValueError(f"{name} may have up to {longest:,} characters, got {len(text):,}")
    if not all(map(allowed, text)):
        raise ValueError(f"{name} must be printable text")


@contextmanager
def _changing(folder: Path) -> Iterator[None]:
    """Inside, no other process changes the annotations."""
    try:
        file = (folder / ".annotations.lock").open("w")
    except OSError as error:
        raise cannot_write("annotations", folder / FILE, error) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)  # released when the file is closed, or the process ends
        yield
