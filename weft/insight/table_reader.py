"""Reads tables of figures from YAML: every figure has a value and a source, and an error names the file, the line and the key.

A figure is written as

    memory_bandwidth: {value: 336.5e9, source: nvidia-titan-x, note: 384 bits at 7.01 Gbit/s}

`source` is a name under `sources:` of the same file, or a text such as a URL. `modelled: true` marks a figure that
is derived from others by a rule that `note` states.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NoReturn, TypeVar

from ..errors import UserError
from ..hints import nearest
from ..records import dataclass
from ..zoo.definition.problems import DefinitionError
from ..zoo.definition.yaml_tree import ListNode, MappingNode, ScalarNode, TreeNode, read_yaml

Content = TypeVar("Content")


@dataclass(frozen=True)
class Figure:
    """A number with its source.

    >>> figure = Figure(336.5e9, "a data sheet")
    >>> float(figure) / 1e9
    336.5
    """

    value: float
    source: str
    note: str = ""
    modelled: bool = False  # derived from other figures by the rule in the note; not published
    date: str = ""  # of a price
    checked: str = ""  # how it was compared with other sources; empty: quoted without a comparison

    def __float__(self) -> float:
        return self.value


@dataclass(frozen=True)
class TableSource:
    """The source of figures, and how they were compared with other sources."""

    text: str
    checked: str = ""


@dataclass(frozen=True)
class TableEntry:
    """A mapping of a table, with its location for errors."""

    table: str  # the file
    path: str  # of keys: machines.titan-x.peak
    node: MappingNode
    sources: Mapping[str, TableSource]

    def names(self) -> list[str]:
        return [key.text for key, _ in self.node.pairs]

    def only(self, known: Sequence[str]) -> None:
        """Reject unknown keys."""
        for key, _ in self.node.pairs:
            if key.text not in known:
                self._fail(key, f"there is no key {self._under(key.text)}. {nearest(key.text, known)}")

    def text(self, key: str, default: str | None = None) -> str:
        if default is not None and self.node.get(key) is None:
            return default
        node = self._required(key)
        if not isinstance(node, ScalarNode):
            self._fail(node, f"{self._under(key)} requires a text, got a list or a mapping.")
        return node.text

    def choice(self, key: str, known: Sequence[str]) -> str:
        found = self.text(key)
        if found not in known:
            place = self.node.get(key) or self.node
            self._fail(
                place, f"{self._under(key)} must be one of {', '.join(known)}, got {found}. {nearest(found, known)}"
            )
        return found

    def number(self, key: str, default: float | None = None) -> float:
        if default is not None and self.node.get(key) is None:
            return default
        return self._number(self._required(key), key)

    def flag(self, key: str) -> bool:
        return self.choice(key, ("true", "false")) == "true" if self.node.get(key) is not None else False

    def entry(self, key: str) -> TableEntry:
        return self._entry(key, self._required(key))

    def optional_entry(self, key: str) -> TableEntry | None:
        node = self.node.get(key)
        return None if node is None else self._entry(key, node)

    def _entry(self, key: str, node: TreeNode) -> TableEntry:
        if not isinstance(node, MappingNode):
            self._fail(node, f"{self._under(key)} requires lines such as `name: ...`, got a text or a list.")
        return TableEntry(self.table, self._under(key), node, self.sources)

    def entries(self) -> Iterator[tuple[str, TableEntry]]:
        """The mappings in this one, by name."""
        for key in self.names():
            yield key, self.entry(key)

    def items(self, key: str) -> list[TableEntry]:
        """The mappings of a list."""
        node = self.node.get(key)
        if node is None:
            return []
        if not isinstance(node, ListNode):
            self._fail(node, f"{self._under(key)} requires a list.")
        found: list[TableEntry] = []
        for i, item in enumerate(node.items):
            if not isinstance(item, MappingNode):
                self._fail(item, f"{self._under(key)} requires items such as `- {{network: alexnet, ...}}`.")
            found.append(TableEntry(self.table, f"{self._under(key)}[{i}]", item, self.sources))
        return found

    def figure(self, key: str) -> Figure:
        """A number with its source."""
        found = self.entry(key)
        found.only(("value", "source", "note", "modelled", "date"))
        source = found.table_source()
        return Figure(
            found.number("value"),
            source.text,
            found.text("note", ""),
            found.flag("modelled"),
            found.text("date", ""),
            source.checked,
        )

    def optional_figure(self, key: str) -> Figure | None:
        return None if self.node.get(key) is None else self.figure(key)

    def figures(self, key: str, known: Sequence[str]) -> dict[str, Figure]:
        """A mapping of figures."""
        found = self.optional_entry(key)
        if found is None:
            return {}
        found.only(known)
        return {name: found.figure(name) for name in found.names()}

    def source(self) -> str:
        """The source of an entry, as text."""
        return self.table_source().text

    def table_source(self) -> TableSource:
        """The source of the figure: a name is looked up in `sources`."""
        name = self.text("source")
        if not name.strip():
            self._fail(self.node, f"{self._under('source')} requires where the number comes from, got nothing.")
        if name in self.sources:
            return self.sources[name]
        if " " not in name and "/" not in name:  # not a URL or a sentence: it was meant as a name
            self._fail(
                self.node.get("source") or self.node,
                f"there is no source {name} under `sources`. {nearest(name, list(self.sources))}",
            )
        return TableSource(name)

    def fail(self, key: str, problem: str) -> NoReturn:
        """Raise an error at a key."""
        self._fail(self.node.get(key) or self.node, f"{self._under(key)} {problem}")

    def _required(self, key: str) -> TreeNode:
        node = self.node.get(key)
        if node is None:
            self._fail(self.node, f"{self._under(key)} is required, got none.")
        return node

    def _number(self, node: TreeNode, key: str) -> float:
        text = node.text if isinstance(node, ScalarNode) else "a list or a mapping"
        try:
            value = float(text.replace("_", ""))
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < 0:
            self._fail(node, f"{self._under(key)} requires a number that is 0 or more, got {text[:40]}.")
        return value

    def _under(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def _fail(self, node: TreeNode, problem: str) -> NoReturn:
        raise UserError(self.table, f"line {node.place.line}: {problem}")


def table_file(read: Callable[[TableEntry], Content]) -> Callable[[Path], Content]:
    """Wrap a function that reads a table to take a file, which is read again only when it has changed."""

    @cache
    def known(path: Path, changed: int) -> Content:
        return read(read_table(path))

    def of(path: Path) -> Content:
        try:
            changed = path.stat().st_mtime_ns
        except OSError as error:
            raise _unreadable(path, error) from None
        return known(path, changed)

    return of


def read_table(path: Path) -> TableEntry:
    """The table in a file."""
    name = path.name
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from None
    try:
        root = read_yaml(text)
    except DefinitionError as error:
        problem = error.problems[0]
        raise UserError(name, f"line {problem.place.line}: {problem.message}") from None
    if not isinstance(root, MappingNode):
        raise UserError(name, f"line {root.place.line}: lines such as `machines:` are required, got a text or a list.")
    top = TableEntry(name, "", root, {})
    return TableEntry(name, "", root, _sources(top))


def _unreadable(path: Path, error: OSError | UnicodeDecodeError) -> UserError:
    reason = error.strerror if isinstance(error, OSError) else error
    return UserError(path.name, f"the file {path} cannot be read: {reason}. Give the path of a table in YAML.")


def _sources(top: TableEntry) -> dict[str, TableSource]:
    found = top.optional_entry("sources")
    read: dict[str, TableSource] = {}
    for name, source in [] if found is None else list(found.entries()):
        source.only(("title", "url", "checked"))
        text = "; ".join(part for part in (source.text("title"), source.text("url", "")) if part)
        read[name] = TableSource(text, source.text("checked", ""))
    return read
