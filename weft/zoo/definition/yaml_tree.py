"""Reads YAML into a tree that knows the position of everything. Nothing is constructed but texts, lists and mappings.

Tags, anchors and aliases are rejected, so no text can grow when it is read; length, depth and the number of values are bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from ...records import dataclass
from .problems import DefinitionError, Place, TextProblem

LONGEST = 200_000  # characters of a text
DEEPEST = 60  # nested lists and mappings
MOST_VALUES = 40_000


@dataclass(frozen=True)
class ScalarNode:
    """A word, a number or a text, as it was written."""

    text: str
    place: Place
    is_plain: bool = True  # without quotes


@dataclass(frozen=True)
class ListNode:
    items: tuple[TreeNode, ...]
    place: Place


@dataclass(frozen=True)
class MappingNode:
    pairs: tuple[tuple[ScalarNode, TreeNode], ...]
    place: Place

    def get(self, name: str) -> TreeNode | None:
        return next((value for key, value in self.pairs if key.text == name), None)


TreeNode = ScalarNode | ListNode | MappingNode


def read_yaml(text: str) -> TreeNode:
    """The tree of a text."""
    if len(text) > LONGEST:
        raise _error(Place(1, 1, 1, 1), f"A text of at most {LONGEST:,} characters is required, got {len(text):,}.")
    try:
        root = _TreeReader(yaml.parse(text, Loader=yaml.SafeLoader)).document()
    except DefinitionError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(1, 1, 1, 2) if mark is None else _after(mark)
        raise _error(place, f"YAML is required: {error.problem or error.context}.", _hint(str(error.problem))) from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # characters and numbers that YAML does not have
        said = " ".join(str(error).split())[:120]
        raise _error(Place(1, 1, 1, 2), f"YAML is required: {said}.") from None
    if root is None:
        raise _error(Place(1, 1, 1, 1), "The text is empty.", "Begin with `layers:` and a list of layers.")
    return root


def _hint(problem: str) -> str:
    if "mapping values are not allowed" in problem:
        return "Write the arguments of a layer in braces: conv: {out: 32, kernel: 3}."
    if "found character '\\t'" in problem:
        return "Indent with spaces."
    if "expected <block end>" in problem:
        return "Indent all layers of a list by the same number of spaces."
    return ""


class _TreeReader:
    """Builds the tree from the events of the parser, with a stack: deep texts do not exhaust Python's."""

    def __init__(self, events: Iterator[yaml.Event]) -> None:
        self.events = events
        self.count = 0

    def document(self) -> TreeNode | None:
        open_: list[tuple[yaml.Event, list[TreeNode]]] = []
        root: TreeNode | None = None
        documents = 0
        for event in self.events:
            made: TreeNode | None = None
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise _error(_after(event.start_mark), "One network is required, got a second document.")
            elif isinstance(event, yaml.NodeEvent):
                self._check(event, len(open_))
                if isinstance(event, yaml.ScalarEvent):
                    made = ScalarNode(str(event.value), _span(event, event), event.style is None)
                else:
                    open_.append((event, []))
            elif isinstance(event, yaml.SequenceEndEvent):
                start, items = open_.pop()
                made = ListNode(tuple(items), _span(start, event))
            elif isinstance(event, yaml.MappingEndEvent):
                start, items = open_.pop()
                made = _mapping(items, _span(start, event))
            if made is not None and open_:
                open_[-1][1].append(made)
            elif made is not None:
                root = made
        return None if isinstance(root, ScalarNode) and root.is_plain and not root.text else root

    def _check(self, event: yaml.NodeEvent, depth: int) -> None:
        place = _after(event.start_mark)
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise _error(
                place,
                "YAML's anchors and aliases are not used here.",
                "Define a block under `blocks:` and use its name.",
            )
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise _error(place, f"YAML's tags are not used here, got {str(tag)[:40]}.", "Remove it.")
        self.count += 1
        if self.count > MOST_VALUES:
            raise _error(place, f"A text of at most {MOST_VALUES:,} values is required, got more.")
        if depth > DEEPEST:
            raise _error(place, f"At most {DEEPEST} nested lists are accepted, got more.")


def _mapping(items: list[TreeNode], place: Place) -> MappingNode:
    pairs: list[tuple[ScalarNode, TreeNode]] = []
    seen: set[str] = set()
    for key, value in zip(items[::2], items[1::2], strict=True):
        if not isinstance(key, ScalarNode):
            raise _error(key.place, "A name is required before a colon, got a list or a mapping.")
        if key.text in seen:
            raise _error(key.place, f"Each name is required once, got {key.text[:40]} again.", "Remove one of them.")
        seen.add(key.text)
        pairs.append((key, value))
    return MappingNode(tuple(pairs), place)


def _span(start: yaml.Event, end: yaml.Event) -> Place:
    a, b = _marks(start, end)
    return Place(a.line + 1, a.column + 1, b.line + 1, b.column + 1)


def _marks(start: yaml.Event, end: yaml.Event) -> tuple[Any, Any]:
    return start.start_mark, end.end_mark


def _after(mark: Any) -> Place:
    return Place(mark.line + 1, mark.column + 1, mark.line + 1, mark.column + 2)


def _error(place: Place, message: str, hint: str = "") -> DefinitionError:
    return DefinitionError([TextProblem(place, message, hint)])
