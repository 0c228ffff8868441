"""Reads protobuf's text format, in which Caffe describes networks (.prototxt): names with values or with messages in braces.

    layer { name: "conv1" type: "Convolution" convolution_param { num_output: 20 kernel_size: 5 } }

A message is a dict of lists, because every field may be repeated. No schema is needed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ..errors import RunError

MAX_BYTES, MAX_DEPTH = 16 << 20, 32
Message = dict[str, list[Any]]  # of texts, numbers, names (as texts) and messages
_TOKEN = re.compile(
    # Possessive: a comment is never split again, which would take time without end.
    r"""(?:\s++|\#[^\n]*+)*+(?:
    (?P<name>[A-Za-z_][A-Za-z0-9_]*) | (?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)f? |
    (?P<text>"[^"\n]*"|'[^'\n]*') | (?P<sign>[{}:;,<>\[\]]) | (?P<end>\Z) )""",
    re.VERBOSE,
)


class _DamagedText(Exception):
    pass


def read_prototxt(path: Path) -> Message:
    """The message in a file."""
    try:
        content = path.read_bytes()[: MAX_BYTES + 1]
    except OSError as error:
        raise RunError("prototxt", f"{path} cannot be read: {error.strerror or error}.") from error
    if len(content) > MAX_BYTES:
        raise RunError("prototxt", f"{path} has more than {MAX_BYTES} bytes.")
    try:
        return parse_prototxt(content.decode("utf-8"))
    except (_DamagedText, ValueError) as error:
        raise RunError("prototxt", f"{path} is damaged, or no description of a network of Caffe: {error}.") from None


def parse_prototxt(text: str) -> Message:
    """The message in a text; ValueError says what is wrong and in which line.

    >>> parse_prototxt('name: "LeNet" layer { bottom: "a" bottom: "b" }')
    {'name': ['LeNet'], 'layer': [{'bottom': ['a', 'b']}]}
    """
    try:
        return _Parser(text).message()
    except _DamagedText as error:
        raise ValueError(str(error)) from None


class _Parser:
    """A stack of open messages: nesting takes no Python frames."""

    def __init__(self, text: str) -> None:
        self.text, self.place = text, 0

    def token(self) -> tuple[str, str]:
        """The next token: its class and its text."""
        found = _TOKEN.match(self.text, self.place)
        if found is None:
            raise self.wrong("a name, a number or a text is required")
        self.place = found.end()
        kind = str(found.lastgroup)
        return kind, found[kind]

    def wrong(self, why: str) -> _DamagedText:
        line = self.text.count("\n", 0, self.place) + 1
        return _DamagedText(f"line {line}: {why}")

    def message(self) -> Message:
        root: Message = {}
        stack = [root]
        while True:
            kind, text = self.token()
            if kind == "end":
                if len(stack) > 1:
                    raise self.wrong("a brace is not closed")
                return root
            if kind == "sign" and text in "};,>":
                if text in "}>":
                    stack.pop()
                if not stack:
                    raise self.wrong("a brace is closed that was not opened")
                continue
            if kind != "name":
                raise self.wrong(f"a name is required, got {text[:50]!r}")
            self.field(stack, text)

    def field(self, stack: list[Message], name: str) -> None:
        """A value of the innermost message, or a message that is opened in it."""
        kind, text = self.token()
        if kind == "sign" and text == ":":
            kind, text = self.token()
        values = stack[-1].setdefault(name, [])
        if kind == "sign" and text in "{<":
            if len(stack) > MAX_DEPTH:
                raise self.wrong(f"messages are nested more than {MAX_DEPTH} deep")
            values.append({})
            stack.append(values[-1])
        elif kind == "sign" and text == "[":
            self.items(values)
        else:
            values.append(self.value(kind, text))

    def items(self, values: list[Any]) -> None:
        kind, text = self.token()
        while (kind, text) != ("sign", "]"):
            if (kind, text) != ("sign", ","):
                values.append(self.value(kind, text))
            kind, text = self.token()

    def value(self, kind: str, text: str) -> Any:
        if kind == "text":
            return text[1:-1]
        if kind == "name":
            return {"true": True, "false": False}.get(text, text)
        if kind == "number" and len(text) <= 40:
            return float(text) if re.search("[.eE]", text) else int(text)
        raise self.wrong(f"a value is required, got {text[:50]!r}")
