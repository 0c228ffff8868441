"""An interpreter of pickles that executes nothing: an allow-list of opcodes, and of globals that map to functions of ours.

Python's `pickle` calls whatever a file names. Here a global is looked up in a table given by the caller; a name that is not in it is
refused, with the name. Every opcode is listed in `_OPCODES`; all others are rejected too. Opcodes, nesting and lengths are bounded,
so a hostile file costs at most time and memory proportional to its size.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

MAX_OPCODES = 2_000_000  # about thirty are needed for a tensor
MAX_INT_BYTES = 16  # of a long: sizes and offsets take eight, the magic number of the legacy format ten
Call = Callable[..., Any]  # what a global maps to, if the file may call it


class PickleError(Exception):
    """A pickle that is damaged, or asks for something that is not allowed; the caller adds the file's name."""


class Refused(PickleError):
    """A pickle that is well-formed but names a global or an opcode that is not allowed."""


class PickleReader:
    """Reads one pickle after another from a buffer; `position` is the end of the last one."""

    def __init__(
        self, data: memoryview, allowed: Mapping[str, Any], persistent: Callable[[Any], Any] | None = None
    ) -> None:
        self.data, self.allowed, self.persistent = data, allowed, persistent
        self.position = 0
        self.opcodes = 0

    def read(self) -> Any:
        """The value of the next pickle."""
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        while True:
            self.opcodes += 1
            if self.opcodes > MAX_OPCODES:
                raise PickleError(f"it has more than {MAX_OPCODES} pickle opcodes")
            code = self._bytes(1)[0]
            if code == _STOP:
                value = self._pop()
                if self.stack or self.marks:
                    raise PickleError("the pickle stops with values left on its stack")
                return value
            function = _OPCODES.get(code)
            if function is None:
                raise Refused(f"the pickle opcode {bytes([code])!r} is not allowed")
            function(self)

    # --- the buffer ------------------------------------------------------------------------------------------------------

    def _bytes(self, count: int) -> memoryview:
        end = self.position + count
        if end > len(self.data):
            raise PickleError("the pickle is cut off")
        found = self.data[self.position : end]
        self.position = end
        return found

    def _number(self, form: str) -> int:
        found: int = struct.unpack(form, self._bytes(struct.calcsize(form)))[0]
        return found

    def _text(self, count: int) -> str:
        try:
            return str(self._bytes(count), "utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise PickleError("the pickle has a text that is not UTF-8") from None

    def _line(self) -> str:
        """A text up to the end of the line: module and name of the opcode GLOBAL."""
        window = bytes(self.data[self.position : self.position + 1024])
        end = window.find(b"\n")
        if end < 0:
            raise PickleError("the pickle has a global without an end")
        text = self._text(end)
        self.position += 1
        return text

    # --- the stack -------------------------------------------------------------------------------------------------------

    def _pop(self) -> Any:
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise PickleError("the pickle takes a value from an empty stack")
        return self.stack.pop()

    def _last(self) -> Any:
        value = self._pop()
        self.stack.append(value)
        return value

    def _since_mark(self) -> list[Any]:
        if not self.marks:
            raise PickleError("the pickle ends a group that was not begun")
        start = self.marks.pop()
        found = self.stack[start:]
        del self.stack[start:]
        return found

    # --- opcodes ---------------------------------------------------------------------------------------------------------

    def protocol(self) -> None:
        version = self._number("<B")
        if version > 5:
            raise PickleError(f"pickle protocol {version} is not known")

    def frame(self) -> None:
        if self._number("<Q") > len(self.data) - self.position:
            raise PickleError("the pickle is cut off")

    def mark(self) -> None:
        self.marks.append(len(self.stack))

    def pop(self) -> None:
        self._pop()

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def long(self, form: str) -> None:
        count = self._number(form)
        if not 0 <= count <= MAX_INT_BYTES:
            raise PickleError(f"the pickle has an integer of {count} bytes")
        self.push(int.from_bytes(self._bytes(count), "little", signed=True))

    def binary_float(self) -> None:
        self.push(struct.unpack(">d", self._bytes(8))[0])

    def text(self, form: str) -> None:
        self.push(self._text(self._number(form)))

    def python2_text(self, form: str) -> None:
        """A `str` of Python 2, which is text in files of weights; as Latin-1 every byte has a meaning."""
        count = self._number(form)
        if count < 0:
            raise PickleError("the pickle has a text of negative length")
        self.push(str(self._bytes(count), "latin-1"))

    def binary(self, form: str) -> None:
        self.push(bytes(self._bytes(self._number(form))))

    def tuple_of(self, count: int) -> None:
        values = [self._pop() for _ in range(count)]
        self.push(tuple(reversed(values)))

    def tuple_since_mark(self) -> None:
        self.push(tuple(self._since_mark()))

    def append(self) -> None:
        value = self._pop()
        self._list().append(value)

    def appends(self) -> None:
        values = self._since_mark()
        self._list().extend(values)

    def _list(self) -> list[Any]:
        target = self._last()
        if not isinstance(target, list):
            raise PickleError("the pickle appends to something that is no list")
        return target

    def set_item(self) -> None:
        value, key = self._pop(), self._pop()
        self._set_items([key, value])

    def set_items(self) -> None:
        self._set_items(self._since_mark())

    def _set_items(self, pairs: list[Any]) -> None:
        target = self._last()
        if not isinstance(target, dict) or len(pairs) % 2:
            raise PickleError("the pickle sets items of something that is no dict")
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            if type(key) not in (
                str,
                int,
                bool,
                float,
                type(None),
            ):  # hashing nested tuples is recursion without a bound
                raise Refused(f"a dict with keys of type {type(key).__name__} is not allowed")
            target[key] = value

    def put(self, form: str) -> None:
        self.memo[self._number(form)] = self._last()

    def memoize(self) -> None:
        self.memo[len(self.memo)] = self._last()

    def get(self, form: str) -> None:
        place = self._number(form)
        if place not in self.memo:
            raise PickleError(f"the pickle reads value {place} of its memo, which was not stored")
        self.push(self.memo[place])

    def named_global(self) -> None:
        self._global(self._line(), self._line())

    def stacked_global(self) -> None:
        name, module = self._pop(), self._pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise PickleError("the pickle has a global without a name")
        self._global(module, name)

    def _global(self, module: str, name: str) -> None:
        path = f"{module}.{name}"
        if path not in self.allowed:
            raise Refused(f"it asks for {path[:200]!a}, which is not on the list of what files of weights may contain")
        self.push(self.allowed[path])

    def reduce(self) -> None:
        args, function = self._pop(), self._pop()
        if not isinstance(function, AllowedCall) or not isinstance(args, tuple):
            raise PickleError("the pickle calls something that cannot be called")
        self.push(function(args))

    def build(self) -> None:
        """The state of an object. State dicts have one (`_metadata`, versions of layers); it holds no weights."""
        self._pop()
        if not isinstance(self._last(), dict):
            raise Refused("an object with a state is not allowed")

    def persistent_id(self) -> None:
        if self.persistent is None:
            raise Refused("a persistent id is not allowed here")
        self.push(self.persistent(self._pop()))


class AllowedCall:
    """A global that a pickle may call with `least` arguments or more. The function of ours gets them, and checks them."""

    def __init__(self, function: Call, least: int = 0) -> None:
        self.function, self.least = function, least

    def __call__(self, args: tuple[Any, ...]) -> Any:
        if len(args) < self.least:
            raise PickleError(f"the pickle makes a call with {len(args)} arguments, and {self.least} are needed")
        return self.function(*args)


_STOP = ord(".")
_OPCODES: dict[int, Callable[[PickleReader], None]] = {
    0x80: PickleReader.protocol,
    0x95: PickleReader.frame,
    ord("("): PickleReader.mark,
    ord("0"): PickleReader.pop,
    ord("1"): lambda reader: reader._since_mark().clear(),
    ord("N"): lambda reader: reader.push(None),
    0x88: lambda reader: reader.push(True),
    0x89: lambda reader: reader.push(False),
    ord("J"): lambda reader: reader.push(reader._number("<i")),
    ord("K"): lambda reader: reader.push(reader._number("<B")),
    ord("M"): lambda reader: reader.push(reader._number("<H")),
    0x8A: lambda reader: reader.long("<B"),
    0x8B: lambda reader: reader.long("<i"),
    ord("G"): PickleReader.binary_float,
    0x8C: lambda reader: reader.text("<B"),
    ord("X"): lambda reader: reader.text("<I"),
    0x8D: lambda reader: reader.text("<Q"),
    ord("U"): lambda reader: reader.python2_text("<B"),
    ord("T"): lambda reader: reader.python2_text("<i"),
    ord("C"): lambda reader: reader.binary("<B"),
    ord("B"): lambda reader: reader.binary("<I"),
    ord("}"): lambda reader: reader.push({}),
    ord("]"): lambda reader: reader.push([]),
    ord(")"): lambda reader: reader.push(()),
    0x85: lambda reader: reader.tuple_of(1),
    0x86: lambda reader: reader.tuple_of(2),
    0x87: lambda reader: reader.tuple_of(3),
    ord("t"): PickleReader.tuple_since_mark,
    ord("a"): PickleReader.append,
    ord("e"): PickleReader.appends,
    ord("s"): PickleReader.set_item,
    ord("u"): PickleReader.set_items,
    ord("q"): lambda reader: reader.put("<B"),
    ord("r"): lambda reader: reader.put("<I"),
    0x94: PickleReader.memoize,
    ord("h"): lambda reader: reader.get("<B"),
    ord("j"): lambda reader: reader.get("<I"),
    ord("c"): PickleReader.named_global,
    0x93: PickleReader.stacked_global,
    ord("R"): PickleReader.reduce,
    ord("b"): PickleReader.build,
    ord("Q"): PickleReader.persistent_id,
}
