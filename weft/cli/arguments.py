"""The words of a command: `weft VERB word ... key=value ... --key value`, checked against what the verb knows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import UserError
from ..hints import nearest
from ..jobs.schema import Setting, as_text, flag, parsed
from ..jobs.yaml_files import read_settings


class Help(Exception):
    """Somebody asked what a verb does: its name, what it does where the verb's own words do not say it, and its settings."""

    def __init__(self, verb: str, about: str, known: Mapping[str, Setting]) -> None:
        super().__init__(verb)
        self.verb, self.about, self.known = verb, about, known

    def text(self, about: str) -> str:
        """The page; `about` is what the verb says of itself."""
        lines = [f"weft {self.verb}", "", inspect.cleandoc(self.about or about)]
        rows = [(name, as_text(s.default), s.help) for name, s in self.known.items() if s.help]
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
    from_file = read_settings(f"weft {verb}", texts["cfg"], known) if "cfg" in texts else {}
    own = {name: parsed(f"weft {verb}", name, text, known) for name, text in texts.items() if name != "cfg"}
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
