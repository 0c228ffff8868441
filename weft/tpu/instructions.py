"""Instructions of the machine, and the listing of a program."""

from __future__ import annotations

from typing import ClassVar

from ..records import dataclass
from .machine import TpuMachine
from .stages import Stage, TpuValue


@dataclass(frozen=True, eq=False)
class Instruction:
    """An instruction, and the index of its stage."""

    stage: int


@dataclass(frozen=True, eq=False)
class HostTransfer(Instruction):
    """A transfer of a value between host memory and unified buffer."""

    name: ClassVar[str]
    value: TpuValue
    why: str = ""

    def __str__(self) -> str:
        return _line(self.name, f"{self.value}, {self.value.nbytes} bytes", self.why)


class ReadHostMemory(HostTransfer):
    """Host memory to unified buffer."""

    name = "read_host_memory"


class WriteHostMemory(HostTransfer):
    """Unified buffer to host memory."""

    name = "write_host_memory"


@dataclass(frozen=True, eq=False)
class ReadWeights(Instruction):
    """Weight memory to weight FIFO, one tile."""

    tile: int
    inner: tuple[int, int]  # the part of the weight matrix: first row, end
    columns: tuple[int, int]

    def __str__(self) -> str:
        return _line("read_weights", f"tile {self.tile}, inputs {_span(self.inner)}, outputs {_span(self.columns)}")


@dataclass(frozen=True, eq=False)
class MatrixMultiply(Instruction):
    """Rows of the unified buffer times the tile in the array, into the accumulators. A convolution reads the rows by implicit im2col."""

    kind: str
    tile: int
    rows: tuple[int, int]
    macs: int
    cycles: int
    accumulate: bool  # add to the existing sums
    reads: tuple[TpuValue, ...]
    group: int  # of accumulators, drained by one `activate`

    def __str__(self) -> str:
        target = f"{'add to' if self.accumulate else 'into'} sums {self.group}"
        return _line(self.kind, f"rows {_span(self.rows)} x tile {self.tile}, {target}", f"{self.cycles} cycles")


@dataclass(frozen=True, eq=False)
class Activate(Instruction):
    """Accumulators to unified buffer, through the activation function of a layer."""

    function: str
    group: int
    rows: tuple[int, int]
    columns: tuple[int, int]
    reads: tuple[TpuValue, ...]  # besides the accumulators
    writes: tuple[TpuValue, ...]

    def __str__(self) -> str:
        what = f"{self.function}, sums {self.group}: rows {_span(self.rows)}, outputs {_span(self.columns)}"
        return _line("activate", f"{what} -> {', '.join(map(str, self.writes))}")


@dataclass(frozen=True, eq=False)
class Vector(Instruction):
    """Unified buffer to unified buffer, through the activation unit."""

    function: str
    elements: int
    reads: tuple[TpuValue, ...]
    writes: tuple[TpuValue, ...]

    def __str__(self) -> str:
        names = ", ".join(map(str, self.reads)), ", ".join(map(str, self.writes))
        return _line("vector", f"{self.function}, {self.elements} elements: {names[0]} -> {names[1]}")


@dataclass(frozen=True, eq=False)
class Synchronize(Instruction):
    """The matrix unit waits until the activations that it reads next have been written."""

    reads: tuple[TpuValue, ...]

    def __str__(self) -> str:
        return _line("synchronize", ", ".join(map(str, self.reads)))


@dataclass(frozen=True, eq=False)
class HostWork(Instruction):
    """Host computation between two transfers; not an instruction of the machine."""

    reads: tuple[TpuValue, ...]
    writes: tuple[TpuValue, ...]
    what: str

    def __str__(self) -> str:
        return _line("(host)", self.what)


@dataclass(frozen=True, eq=False)
class TpuProgram:
    """Instructions for a machine. `print(program)` lists them.

    `host` names the parts that run on the host because the machine does not support them.
    """

    machine: TpuMachine
    stages: tuple[Stage, ...]
    instructions: tuple[Instruction, ...]
    held_bytes: tuple[int, ...]  # in the unified buffer during each stage
    spilled: tuple[str, ...] = ()  # values spilled from the unified buffer
    host: tuple[str, ...] = ()

    @property
    def buffer_bytes(self) -> int:
        """The peak use of the unified buffer."""
        return max(self.held_bytes, default=0)

    def text(self, most: int | None = None) -> str:
        """The listing, of the first `most` instructions or all."""
        lines, stage = [f"; {self.machine}"], -1
        for instruction in self.instructions[:most]:
            if instruction.stage != stage:
                stage = instruction.stage
                lines.append(f"; {self.stages[stage].name}")
            lines.append(f"  {instruction}")
        left = len(self.instructions) - len(self.instructions[:most])
        return "\n".join([*lines, *([f"; {left} more instructions"] if left else []), "  halt"])

    def __str__(self) -> str:
        return self.text()


def _line(name: str, what: str, comment: str = "") -> str:
    return f"{name:18}{what}" + (f"  ; {comment}" if comment else "")


def _span(part: tuple[int, int]) -> str:
    return f"{part[0]}..{part[1] - 1}"
