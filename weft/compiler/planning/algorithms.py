"""Preferences among the algorithms of convolutions and matrix products, independent of the backend.

A preference is a string (`knobs.preference` lists its forms): the fastest algorithm, none with a workspace, none with more than a number
of bytes, or an algorithm by name. It is a parameter of the convolution; an empty one means the setting conv_algorithm. Each backend
chooses among its own algorithms (cpu/conv/choice.py, gpu/algorithms.py). An algorithm that cannot compute a case is not an error:
another one does, and the note of the choice says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...dtypes import float32
from ...errors import UserError
from ...graph.node import Node
from ...knobs import knobs, preference
from ...options import BLOCK_CONV_ALGORITHM
from ...records import dataclass
from ..ir.plan import Plan

LOOPS = "LOOPS"  # the definition of a convolution, computed by loops like any other kernel: no plan, no workspace, slow

PREFER_FASTEST = "fastest"
NO_WORKSPACE = "no_workspace"


def WORKSPACE_LIMIT(nbytes: int) -> str:
    """The preference for algorithms that need at most this many bytes of workspace.

    >>> WORKSPACE_LIMIT(1 << 20)
    'workspace:1048576'
    """
    return normal("WORKSPACE_LIMIT", f"workspace:{nbytes}")


def normal(where: str, prefer: Any) -> str:
    """A preference in its normal form."""
    try:
        return preference(str(prefer))
    except ValueError as error:
        raise UserError(where, f"a known algorithm is required, got {prefer!r}: {error}.") from None


@contextmanager
def algorithms(prefer: str) -> Iterator[None]:
    """Convolutions made inside the `with` block, and their gradients, prefer this algorithm.

    >>> import weft
    >>> x, w = weft.ones((1, 4, 8, 8)), weft.ones((4, 4, 3, 3))
    >>> with algorithms("DIRECT"):
    ...     y = weft.conv(x, w)
    """
    before = BLOCK_CONV_ALGORITHM.set(normal("algorithms", prefer))
    try:
        with knobs.set(conv_algorithm=knobs.conv_algorithm):  # so that compiled functions check their settings again
            yield
    finally:
        BLOCK_CONV_ALGORITHM.reset(before)


def in_force(where: str, given: Any = None) -> str:
    """The preference of a convolution created now: that of the call, of the `with` block around it, or the setting. The setting's default
    is resolved when the convolution is compiled.
    """
    if given is not None:
        return normal(where, given)
    return BLOCK_CONV_ALGORITHM.get() or ("" if knobs.conv_algorithm == PREFER_FASTEST else knobs.conv_algorithm)


def check(where: str, prefer: Any) -> None:
    """Reject a parameter that is not a preference: the text of a graph may contain anything."""
    if prefer != "" and (not isinstance(prefer, str) or normal(where, prefer) != prefer):
        raise UserError(where, f"a preference among algorithms is required, got {prefer!r}.")


def workspace_limit(prefer: str) -> int | None:
    """The workspace limit of a preference, if it has one in bytes."""
    kind, _, size = prefer.partition(":")
    return int(size) if kind == "workspace" else None


def preferred(node: Node) -> str:
    """The preference that a convolution was made with."""
    return str(node.param("prefer")) if "prefer" in node.op.params else ""


@dataclass(frozen=True)
class ConvChoice:
    """The algorithm of a convolution, and a note if it is not the requested one."""

    plan: Plan
    note: str = ""


def asked_for_loops(node: Node, conv_algorithm: str = PREFER_FASTEST) -> bool:
    """Whether a convolution has no kernel on any backend, or was requested to be computed by plain loops.

    `conv_algorithm`: the option of the compilation, for convolutions that were made without a preference.
    """
    if sums_wider(node):
        return False
    return node.dtype is not float32 or (preferred(node) or conv_algorithm) == LOOPS


def sums_wider(node: Node) -> bool:
    """Whether a convolution sums 8-bit integers in int32: the layout pass makes such nodes for kernels that exist."""
    return node.dtype is not node.inputs[0].dtype
