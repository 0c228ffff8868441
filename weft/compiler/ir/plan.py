"""Plans of anchors: a list of phases, each a call of a library function or of a kernel.

A phase is data, so that programs can be stored on disk, and barriers follow from what is read and written.
"""

from __future__ import annotations

from ...records import dataclass


@dataclass(frozen=True)
class PlanPhase:
    """A call by all threads. Arguments are ints, "tid", "threads", or names of pointers: operands, "work", "epilogue", "context".

    A function that can meet wrong values (an index out of range) takes "status", a pointer to two i64: it writes the number that it got as
    "site0" (or "site1", ... for further axes) and the wrong value there, and continues with a safe value.
    """

    symbol: str
    arguments: tuple[str | int, ...]
    reads: frozenset[str]  # names of pointers
    writes: frozenset[str]
    written: int | None = None  # bytes of the result that it writes, if not all
    copies: bool = False  # it only copies "x0" to "y": omitted if both are the same memory
    share: float | None = None  # of the main work and the result, if several phases compute different parts of it


@dataclass(frozen=True)
class Plan:
    """How an anchor is computed: its phases, and the bytes of workspace that they share ("work")."""

    name: str  # the algorithm
    phases: tuple[PlanPhase, ...]
    workspace: int
    flops: int
    packed: int = 0  # bytes of another buffer, "packed": an operand prepared once for many runs
    hidden: bool = False  # the result has no memory: it is streamed to the epilogue, block by block
