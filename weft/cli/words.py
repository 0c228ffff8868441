"""The words of a command: `weft VERB word ... key=value ... --key value`, checked against what the verb knows."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..hints import nearest


@dataclass(frozen=True)
class Setting:
    """One setting of a verb: how its text is read, what it is if nobody says, and what it means."""

    read: Callable[[str], Any]
    default: Any
    meaning: str


def number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("it must be a finite number")
    return value


def whole(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError("it must be 0 or more")
    return value


def count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError("it must be 1 or more")
    return value


def not_negative(text: str) -> float:
    if number(text) < 0:
        raise ValueError("it must be 0 or more")
    return number(text)


def positive(text: str) -> float:
    if number(text) <= 0:
        raise ValueError("it must be above 0")
    return number(text)


def seed(text: str) -> int:
    if whole(text) >= 1 << 64:
        raise ValueError("it must be below 2**64")
    return whole(text)


def flag(text: str) -> bool:
    known = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    if text.lower() not in known:
        raise ValueError("it must be true or false")
    return known[text.lower()]


def sizes(text: str) -> tuple[int, int]:
    """28, or 28x32 (height x width)."""
    parts = [int(p) for p in text.lower().replace(",", "x").split("x")]
    if not 1 <= len(parts) <= 2 or min(parts) < 1:
        raise ValueError("it must be a size such as 28 or 28x32")
    return parts[0], parts[-1]


def share_or_path(text: str) -> float | str:
    """A share such as 0.25, or else a folder or a list."""
    try:
        value = float(text)
    except ValueError:
        return text
    if not 0 <= value < 1:
        raise ValueError("it must be a share from 0 to below 1, or a path")
    return value


def one_of(*known: str) -> Callable[[str], str]:
    """A reader of a few words."""

    def chosen(text: str) -> str:
        if text not in known:
            raise ValueError(f"it must be {', '.join(known[:-1])} or {known[-1]}")
        return text

    return chosen


class Help(Exception):
    """Somebody asked what a verb does: its name, what it does where the verb's own words do not say it, and its settings."""

    def __init__(self, verb: str, about: str, known: Mapping[str, Setting]) -> None:
        super().__init__(verb)
        self.verb, self.about, self.known = verb, about, known

    def text(self, about: str) -> str:
        """The page; `about` is what the verb says of itself."""
        lines = [f"weft {self.verb}", "", inspect.cleandoc(self.about or about)]
        rows = [(name, as_text(s.default), s.meaning) for name, s in self.known.items() if s.meaning]
        if not rows:
            return "\n".join(lines)
        rows = [
            ("setting", "if not given", "meaning"),
            *rows,
            ("cfg", "none", "a file of settings, lines `name: value`"),
        ]
        wide = [max(len(row[i]) for row in rows) for i in (0, 1)]
        lines += ["", *(f"  {name:{wide[0]}}  {default:{wide[1]}}  {meaning}" for name, default, meaning in rows)]
        return "\n".join([*lines, "", "Settings are written name=value, --name value or --name=value."])


def as_text(value: Any) -> str:
    """A value as a command says it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(as_text, value)) if isinstance(value, tuple | list) else str(value)


@dataclass(frozen=True)
class Words:
    """What a command said: plain words, and settings by name (its own, a file's, and the defaults)."""

    plain: tuple[str, ...]
    settings: Mapping[str, Any]
    given: frozenset[str]  # the settings that somebody set

    def __getitem__(self, name: str) -> Any:
        return self.settings[name]


def read(
    verb: str, words: Sequence[str], known: Mapping[str, Setting], most_plain: int, about: str | None = ""
) -> Words:
    """Defaults, then what a file (cfg=FILE) says, then the command itself. `about`: what help says of a part of a verb."""
    if asks_for_help(words):
        raise Help(verb, about or "", known)
    plain, texts = _split(verb, words, known)
    if len(plain) > most_plain:
        raise UserError(
            f"weft {verb}",
            f"at most {_words(most_plain)} without '=' {'is' if most_plain == 1 else 'are'} understood, got {' '.join(plain)}.",
        )
    values = {name: setting.default for name, setting in known.items()}
    from_file = _file(verb, texts["cfg"], known) if "cfg" in texts else {}
    own = {name: _value(verb, name, text, known) for name, text in texts.items() if name != "cfg"}
    return Words(tuple(plain), {**values, **from_file, **own}, frozenset({*from_file, *own}))


def _words(number_: int) -> str:
    return "1 word" if number_ == 1 else f"{number_} words"


def asks_for_help(words: Sequence[str]) -> bool:
    """Whether a command only wants to know what it could be."""
    return list(words) == ["help"] or "--help" in words or "-h" in words


def part(verb: str, words: Sequence[str], parts: Mapping[str, Callable[[Sequence[str]], None]]) -> None:
    """Run a verb that has parts: weft VERB PART word ..."""
    name, *rest = words or ["help"]
    if name in parts:
        return parts[name](rest)
    if asks_for_help(words) or not words:
        wide = max(map(len, parts))
        lines = [f"  weft {verb} {one:{wide}}  {first_line(call)}" for one, call in parts.items()]
        end = f"weft {verb} PART --help says more of a part."
        raise Help(verb, "\n".join(["What it can do:", "", *lines, "", end]), {})
    raise UserError(f"weft {verb}", f"there is no weft {verb} {name}. {nearest(name, list(parts))}")


def first_line(call: Callable[..., Any]) -> str:
    """What a verb says of itself, in one line."""
    return (inspect.getdoc(call) or "").partition("\n")[0]


def _split(verb: str, words: Sequence[str], known: Mapping[str, Setting]) -> tuple[list[str], dict[str, str]]:
    plain: list[str] = []
    texts: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        dashed = word.startswith("--")
        name, equals, text = word.removeprefix("--").partition("=")
        name = name.replace("-", "_") if dashed or equals else name
        if not dashed and not equals:
            plain.append(word)
            continue
        if not equals and name in known and known[name].read is not flag:
            if not rest:
                raise UserError(f"weft {verb}", f"--{name} needs a value.")
            text = rest.pop(0)
        elif not equals:
            text = "true"
        if name not in known and name != "cfg":
            raise UserError(f"weft {verb}", f"there is no setting {name!r}. {nearest(name, [*known, 'cfg'])}")
        texts[name] = text
    return plain, texts


def _value(verb: str, name: str, text: str, known: Mapping[str, Setting]) -> Any:
    if text.lower() in ("none", "null") and known[name].default is None:
        return None
    try:
        return known[name].read(text)
    except ValueError as error:
        raise UserError(f"weft {verb}", f"{name}={text} cannot be used: {error}.") from None


def _file(verb: str, path: str, known: Mapping[str, Setting]) -> dict[str, Any]:
    """Lines `name: value`, as args.yaml of a run has them; # begins a comment."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"weft {verb}", f"the file {path} cannot be read: {error}.") from None
    found = {}
    for number_, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, colon, text = (part.strip() for part in line.partition(":"))
        if not colon or name not in known:
            hint = nearest(name, list(known)) if colon else "Lines are written as name: value."
            raise UserError(f"weft {verb}", f"{path}, line {number_}: {line.strip()!r} is not understood. {hint}")
        found[name] = _value(verb, name, _unquoted(text), known)
    return found


def _unquoted(text: str) -> str:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    if isinstance(value, list):  # as args.yaml has several values
        return as_text(value)
    return value if isinstance(value, str) else text
