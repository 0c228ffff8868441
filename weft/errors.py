"""The three kinds of errors: user errors, runtime errors and internal errors (bugs of weft).

Every message starts with the line of the user's program that led to it, then says where, what is required,
what was given, and what to do: `[conv] the input has 3 channels but the filter expects 4 (groups=1). ...`.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
from types import CodeType, FrameType
from typing import Any, NamedTuple

_OURS: dict[str, bool] = {}  # cache of which files belong to weft: looked up for every new node
_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


class Source(NamedTuple):
    """A location in the user's program. The line number is computed lazily."""

    code: CodeType
    instruction: int

    @property
    def line(self) -> int:
        for start, end, line in self.code.co_lines():
            if start <= self.instruction < end and line is not None:
                return line
        return self.code.co_firstlineno

    def __str__(self) -> str:
        text = linecache.getline(self.code.co_filename, self.line).strip()
        place = f"{os.path.basename(self.code.co_filename)}:{self.line}"
        return f"{place}: {text}" if text else place


def user_source() -> Source | None:
    """The innermost frame of the current call that is not weft's own code."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        ours = _OURS.get(name)
        if ours is None:
            ours = _OURS[name] = name.startswith(_PACKAGE) or name == contextlib.__file__
        if not ours:
            return _source(frame.f_code, frame.f_lasti)
        frame = frame.f_back
    return None


def _source(code: CodeType, instruction: int) -> Source:
    """The source of a frame; the last one is cached, because a loop asks for the same line repeatedly."""
    global _last
    last = _last
    if last is None or last.code is not code or last.instruction != instruction:
        _last = last = Source(code, instruction)
    return last


_last: Source | None = None


class WeftError(Exception):
    """The base of all errors raised by weft."""

    def __init__(self, where: str, message: str, source: Source | None = None) -> None:
        self.where, self.message = where, message
        self.source = source or user_source()
        text = f"[{where}] {message}"
        super().__init__(f"{self.source}\n{text}" if self.source else text)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.where, self.message, str(self))


def _rebuild(kind: type[WeftError], where: str, message: str, text: str) -> WeftError:
    """Unpickle an error in another process, where the user's line can no longer be looked up but its text is known."""
    error = kind(where, message)
    error.source, error.args = None, (text,)
    return error


class UserError(WeftError, ValueError):
    """A user error: the call is invalid. The message says what to write instead."""


class UserIndexError(UserError, IndexError):
    """A user error: an index or axis is out of range."""


class RunError(WeftError, RuntimeError):
    """A runtime error: the program is valid, but its data or the machine failed (damaged file, disk full, out of memory)."""


class InternalError(WeftError, AssertionError):
    """An internal error: a bug of weft. Please report it with the message."""
