"""The text of a kernel while it is written, and what a launch must know of it."""

from __future__ import annotations

from dataclasses import dataclass

from ...graph.node import Node
from ..index import Loop
from .helpers import with_helpers

Site = tuple[str, str, object]  # op, message with {value}, the user's line


@dataclass(frozen=True)
class KernelSource:
    """A kernel as text, and how it is launched: tensors in the order of its arguments, and the number of programs.

    The last argument is the status: the number of an error and the value that is wrong, both 0 at the beginning.
    """

    name: str
    text: str
    arguments: tuple[Node, ...]
    writes: tuple[Node, ...]
    programs: int
    warps: int
    stages: int
    errors: tuple[Site, ...]


class Writer:
    """Writes the lines of one kernel."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines: list[str] = []
        self.depth = 1
        self.pointers: dict[Node, str] = {}
        self.written: list[Node] = []
        self.errors: list[Site] = []
        self.names = 0
        self.at: dict[Loop, str] = {}  # the loops that are running
        self.masks: dict[Loop, str] = {}  # which of their places exist
        self.rows: dict[Node, str] = {}  # values that are there already
        self.inside = "inside_rows"  # which places of all loops exist
        self.zero = "0 * row"

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def let(self, stem: str, expression: str) -> str:
        """A name for a value."""
        name = f"{stem}{self.names}"
        self.names += 1
        self.line(f"{name} = {expression}")
        return name

    def pointer(self, node: Node) -> str:
        return self.pointers.setdefault(node, f"p{len(self.pointers)}")

    def site(self, op: str, message: str, source: object) -> int:
        """The number of an error; 0 is none."""
        entry = (op, message, source)
        if entry not in self.errors:
            self.errors.append(entry)
        return self.errors.index(entry) + 1

    def finished(self, programs: int, warps: int, stages: int = 2) -> KernelSource:
        arguments = ", ".join([*self.pointers.values(), "status"])
        text = f"@triton.jit\ndef {self.name}({arguments}):\n" + "\n".join(self.lines) + "\n"
        return KernelSource(
            self.name, with_helpers(text), tuple(self.pointers), tuple(self.written), programs, warps, stages, tuple(self.errors)
        )  # fmt: skip


def decomposed(loops: tuple[Loop, ...], number: str) -> dict[Loop, str]:
    """Each of nested loops, from the number of a place in all of them."""
    found, below = {}, 1
    for loop in reversed(loops):
        part = number if below == 1 else f"({number} // {below})"
        found[loop] = part if loop is loops[0] else f"({part} % {loop.size})"
        below *= loop.size
    return found
