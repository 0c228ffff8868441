"""The source of a kernel while it is written, and what a launch needs to know about it."""

from __future__ import annotations

from collections.abc import Sequence

from ...graph.node import Node
from ...records import dataclass
from ..ir.index import Loop
from .device_functions import with_helpers

FIRST_ERROR = "first_error = 0"  # a line of kernels that can report invalid values
Site = tuple[str, str, object]  # op, message with {value}, the user's line


@dataclass(frozen=True)
class KernelSource:
    """A kernel as text, and how it is launched: tensors in the order of its arguments, and the number of programs.

    The last argument is the status: the number of an error and the value that is wrong, both 0 at the beginning.
    """

    name: str
    body: str  # the function alone
    arguments: tuple[Node, ...]
    writes: tuple[Node, ...]
    programs: int
    warps: int
    stages: int
    errors: tuple[Site, ...]
    loose: tuple[int, ...] = ()  # arguments whose memory may not be aligned for wide loads
    shared: int = 0  # the maximum bytes of shared memory that strips of operands take

    @property
    def text(self) -> str:
        """A file that can be compiled."""
        return with_helpers(self.body)


class KernelWriter:
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

    def finished(self, programs: int, warps: int, stages: int = 2, shared: int = 0) -> KernelSource:
        arguments = ", ".join([*self.pointers.values(), "status"])
        if self.errors:
            self.lines.insert(0, f"    {FIRST_ERROR}")
        body = f"@triton.jit\ndef {self.name}({arguments}):\n" + "\n".join(self.lines) + "\n"
        return KernelSource(
            self.name, body, tuple(self.pointers), tuple(self.written), programs, warps, stages, tuple(self.errors), shared=shared,
        )  # fmt: skip


def decomposed(loops: tuple[Loop, ...], number: str) -> dict[Loop, str]:
    """The value of each of several nested loops, from the number of an iteration."""
    found, below = {}, 1
    for loop in reversed(loops):
        part = number if below == 1 else f"({number} // {below})"
        found[loop] = part if loop is loops[0] else f"({part} % {loop.size})"
        below *= loop.size
    return found


def joined(name: str, sources: Sequence[KernelSource]) -> KernelSource:
    """Independent kernels merged to one: the first programs run the first kernel, and so on."""
    if len(sources) == 1:
        return sources[0]
    arguments = list(dict.fromkeys(node for source in sources for node in source.arguments))
    places = {node: f"p{i}" for i, node in enumerate(arguments)}
    parts, calls, errors, first = [], [], list[Site](), 0
    for number, source in enumerate(sources):
        given = ", ".join([*(places[node] for node in source.arguments), "status"])
        parts.append(_as_part(source, f"part{number}", len(errors)))
        calls.append((first, f"part{number}(program - {first}, {given})"))
        first += source.programs
        errors += source.errors
    lines = _chosen(calls, "    ")
    names = ", ".join([*places.values(), "status"])
    main = f"@triton.jit\ndef {name}({names}):\n    program = tl.program_id(0)\n" + "\n".join(lines) + "\n"
    writes = tuple(dict.fromkeys(node for source in sources for node in source.writes))
    return KernelSource(
        name, "\n\n".join([*parts, main]), tuple(arguments), writes, first, max(s.warps for s in sources),
        max(s.stages for s in sources), tuple(errors), shared=sum(s.shared for s in sources),
    )  # fmt: skip


def _chosen(calls: Sequence[tuple[int, str]], indent: str) -> list[str]:
    """The call of a program, found by binary search: a chain of hundreds of cases would be too deep for Triton. Each call comes with the
    number of its first program.
    """
    if len(calls) == 1:
        return [indent + calls[0][1]]
    middle = len(calls) // 2
    before, after = (_chosen(some, indent + "    ") for some in (calls[:middle], calls[middle:]))
    return [f"{indent}if program < {calls[middle][0]}:", *before, f"{indent}else:", *after]


def _as_part(source: KernelSource, name: str, errors: int) -> str:
    """The function of a kernel, which gets the number of its program; its errors are numbered after the previous ones."""
    text = source.body.replace(f"def {source.name}(", f"def {name}(number, ").replace("tl.program_id(0)", "number")
    return text.replace(FIRST_ERROR, FIRST_ERROR.replace("0", str(errors)))
