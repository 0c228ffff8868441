"""What is wrong with the text of a network: where, what would be right, and a change that repairs it where there is one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from ...errors import UserError
from ...records import dataclass


@dataclass(frozen=True)
class Place:
    """A part of one or more lines; lines and columns count from 1, and the end column is the first one behind it."""

    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(frozen=True)
class Fix:
    """A change of the text: what stands at a place is replaced."""

    place: Place
    text: str
    title: str


@dataclass(frozen=True)
class TextProblem:
    """One thing that is wrong. `message` says what is required and what was given; `hint` what to do."""

    place: Place
    message: str
    hint: str = ""
    fix: Fix | None = None

    def __str__(self) -> str:
        return " ".join(
            filter(None, (f"line {self.place.line}, column {self.place.column}: {self.message}", self.hint))
        )


class DefinitionError(UserError):
    """The text of a network is invalid. `problems` says where and why."""

    def __init__(self, problems: Sequence[TextProblem], name: str = "network") -> None:
        self.problems = tuple(problems)
        more = f" ({len(problems) - 1} more)" if len(problems) > 1 else ""
        super().__init__(name, f"{problems[0]}{more}")


def unknown(what: str, word: str, known: Iterable[str], place: Place, meant: str | None = None) -> TextProblem:
    """The problem of a name that does not exist, with the nearest one that does; `meant` is its name in other libraries."""
    names = list(known)
    close = [meant] if meant in names else difflib.get_close_matches(word[:60], names, 1, 0.5)
    if close:
        fix = Fix(place, close[0], f"Replace by {close[0]}")
        return TextProblem(place, f"Unknown {what} “{word[:60]}”.", f"Did you mean {close[0]}?", fix)
    shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    return TextProblem(place, f"Unknown {what} “{word[:60]}”.", f"Known: {shown}." if names else "")
