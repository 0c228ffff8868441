"""The arguments of a command: `weft VERB word ... key=value ... --key value`, checked against the settings of the verb."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from ..errors import UserError
from ..hints import nearest
from ..jobs.schema import Setting, as_text, flag, parsed
from ..jobs.yaml_files import read_settings
from ..records import dataclass
from .table import rendered

HELP_WIDTH = 100  # of help pages, unless the terminal is narrower
LONG_DEFAULT = 14  # characters: longer defaults stand in the help text, not in their column


class Help(Exception):
    """Help on a verb was requested: its name, a text for one of its subcommands, and its settings.

    Where some settings are `common`, help shows only those; --help-all shows everything.
    """

    def __init__(
        self, verb: str, about: str, known: Mapping[str, Setting], common: Sequence[str] = (), everything: bool = False
    ) -> None:
        super().__init__(verb)
        self.verb, self.about, self.known = verb, about, known
        self.shown = {n: s for n, s in known.items() if s.help and (everything or not common or n in common)}
        self.hidden = len(known) - len(self.shown) if common else 0

    def text(self, about: str) -> str:
        """The help page; `about` is the docstring of the verb."""
        lines = [f"weft {self.verb}", "", rendered(Text(_reflowed(self.about or about)), HELP_WIDTH)]
        if not self.shown:
            return "\n".join(lines)
        lines += [
            "",
            rendered(self._table(), HELP_WIDTH),
            "",
            "Write name=value or --name value; cfg=FILE reads a YAML file.",
        ]
        if self.hidden:
            lines.append(f"weft {self.verb} --help-all shows all {len(self.known)} settings.")
        return "\n".join(lines)

    def _table(self) -> Table:
        """A table of name, default and help, by group."""
        found = Table.grid(padding=(0, 2, 0, 0))
        found.add_column(no_wrap=True, style="cyan")
        found.add_column(no_wrap=True)
        found.add_column(overflow="fold")
        for group in dict.fromkeys(setting.group for setting in self.shown.values()):
            if group:
                found.add_row(Text(group, "bold"))
            for name, setting in self.shown.items():
                if setting.group == group:
                    found.add_row(f"  {name}", _default(setting), Text(_meaning(setting)))
        return found


def _reflowed(docstring: str) -> str:
    """The paragraphs of a docstring without the line breaks of the source; indented lines stay as they are.

    >>> _reflowed("Train a network.\\n\\n    One line\\n    and its end.\\n\\n      an example")
    'Train a network.\\n\\nOne line and its end.\\n\\n  an example'
    """
    return re.sub(r"(?<=\S)\n(?=\S)", " ", inspect.cleandoc(docstring))


def _default(setting: Setting) -> str:
    """The default, if it is short; the help describes what happens without a value."""
    text = as_text(setting.default)
    return "" if setting.default is None or len(text) > LONG_DEFAULT else text


def _meaning(setting: Setting) -> str:
    """The help of a setting, with its choices unless the text names them."""
    text = setting.help
    if setting.choices and not all(choice in text for choice in setting.choices):
        text = f"{text}: {', '.join(setting.choices[:-1])} or {setting.choices[-1]}"
    return f"{text}; default: {as_text(setting.default)}" if len(as_text(setting.default)) > LONG_DEFAULT else text


@dataclass(frozen=True)
class Words:
    """The arguments of a command: positional words, and settings by name (from the command, a file, and the defaults)."""

    plain: tuple[str, ...]
    settings: Mapping[str, Any]
    given: frozenset[str]  # the settings that are not defaults

    def __getitem__(self, name: str) -> Any:
        return self.settings[name]


def read(
    verb: str, words: Sequence[str], known: Mapping[str, Setting], most_plain: int, about: str | None = "",
    common: Sequence[str] = (),
) -> Words:  # fmt: skip
    """Read a command: defaults, then a file (cfg=FILE), then the command itself. `about` is the help of a subcommand."""
    if asks_for_help(words):
        raise Help(verb, about or "", known, common, everything="--help-all" in words)
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
    """Whether a command asks for help."""
    return list(words) == ["help"] or not {"--help", "-h", "--help-all"}.isdisjoint(words)


def has_server(words: Sequence[str]) -> bool:
    """Whether a command is for a studio elsewhere: server=URL."""
    return any(word.startswith(("server=", "--server=")) or word == "--server" for word in words)


def part(verb: str, words: Sequence[str], parts: Mapping[str, Callable[[Sequence[str]], None]]) -> None:
    """Run a verb with subcommands: weft VERB SUBCOMMAND word ..."""
    name, *rest = words or ["help"]
    if name in parts:
        return parts[name](rest)
    if asks_for_help(words) or not words:
        listed = Table.grid(padding=(0, 2, 0, 0))
        for one, call in parts.items():
            listed.add_row(Text(f"  weft {verb} {one}", no_wrap=True), Text(first_line(call)))
        end = f"weft {verb} SUBCOMMAND --help shows its settings."
        raise Help(verb, f"Subcommands:\n\n  {rendered(listed, HELP_WIDTH).strip()}\n\n{end}", {})
    raise UserError(f"weft {verb}", f"there is no weft {verb} {name}. {nearest(name, list(parts))}")


def first_line(call: Callable[..., Any]) -> str:
    """The first line of a verb's docstring."""
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
