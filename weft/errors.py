"""The three kinds of errors: user errors, runtime errors and internal errors (bugs of weft).

Every message starts with the line of the user's program that led to it, then says where, what is required,
what was given, and what to do: `[conv] the input has 3 channels but the filter expects 4 (groups=1). ...`.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
import threading
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any, NamedTuple

_OURS: dict[str, bool] = {}  # cache of which files belong to weft: looked up for every new node
_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


OUTSIDE = "outside of layers"  # the label of the loss, metrics, the user's own code


class Scope(NamedTuple):
    """The part of a network that an operation belongs to: a module by its path and class, in one phase of a training step."""

    path: str = ""  # in the outermost module that was called, such as "layers.0"
    kind: str = ""  # the class of the module; "" outside of any
    phase: str = "forward"  # backward, update
    root: int = 0  # the outermost module, by its number in the trace

    @property
    def label(self) -> str:
        """A name for it.

        >>> Scope("layers.0", "Linear").label, Scope(phase="update").label, Scope().label
        ('layers.0', 'optimizer', 'outside of layers')
        """
        return self.path or self.kind or ("optimizer" if self.phase == "update" else OUTSIDE)


class Source(NamedTuple):
    """A location in the user's program. The line number is computed lazily. It is false if only the scope is known."""

    code: CodeType | None
    instruction: int
    scope: Scope | None = None

    @property
    def line(self) -> int:
        if self.code is None:
            return 0
        for start, end, line in self.code.co_lines():
            if start <= self.instruction < end and line is not None:
                return line
        return self.code.co_firstlineno

    @property
    def file(self) -> str:
        return "" if self.code is None else self.code.co_filename

    def in_phase(self, phase: str) -> Source:
        """The same, in another phase of a training step."""
        return self._replace(scope=(self.scope or Scope())._replace(phase=phase))

    def __bool__(self) -> bool:
        return self.code is not None

    def __str__(self) -> str:
        text = linecache.getline(self.file, self.line).strip()
        place = f"{os.path.basename(self.file)}:{self.line}"
        return f"{place}: {text}" if text else place


class _Current(threading.local):
    scope: Scope | None = None


_current = _Current()


def current_scope() -> Scope | None:
    """The scope of operations that are recorded now."""
    return _current.scope


@contextlib.contextmanager
def in_scope(scope: Scope) -> Iterator[None]:
    """Inside, operations are attributed to a scope."""
    before, _current.scope = _current.scope, scope
    try:
        yield
    finally:
        _current.scope = before


def user_source() -> Source | None:
    """The innermost frame of the current call that is not weft's own code, and the current scope."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        ours = _OURS.get(name)
        if ours is None:
            ours = _OURS[name] = name.startswith(_PACKAGE) or name == contextlib.__file__
        if not ours:
            return _source(frame.f_code, frame.f_lasti)
        frame = frame.f_back
    return None if _current.scope is None else _source(None, 0)


def _source(code: CodeType | None, instruction: int) -> Source:
    """The source of a frame; the last one is cached, because a loop asks for the same line repeatedly."""
    global _last
    last, scope = _last, _current.scope
    if last is None or last.code is not code or last.instruction != instruction or last.scope is not scope:
        _last = last = Source(code, instruction, scope)
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
