"""What tensors tell a tracer: which of them a traced function reads and changes, and on which settings it depends."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from ..graph.node import Node

T_contra = TypeVar("T_contra", contravariant=True)  # tensors, which are defined above this module


class Tracer(Protocol[T_contra]):
    """A tracer that records which outer tensors a traced function reads and changes."""

    start: int  # tensors created later belong to the function
    body: int  # the CLOCK when tracing of a body began, in which no earlier .grad can be written; -1: not a body

    def saw(self, tensor: T_contra, node: Node) -> Node:
        """The tensor is read; returns the node that represents its value."""

    def changed(self, tensor: T_contra) -> None:
        """The tensor is about to refer to a value that is known only when the function runs."""

    def looked(self, tensor: T_contra) -> None:
        """Python reads the tensor's value, so the traced program may depend on it."""

    def depends(self, holder: Holder) -> int:
        """The traced program depends on the settings of this object, such as a module's mode. Returns its number in this trace."""


class Changes:
    """A counter of changes of any holder's settings: while it is unchanged, no settings need to be compared."""

    count = 0


class Holder:
    """An object with settings that traced functions depend on."""

    def __setattr__(self, name: str, value: Any) -> None:
        Changes.count += 1  # compiled functions check again whether they are still valid
        super().__setattr__(name, value)

    def settings(self) -> dict[str, Any]:
        """The current settings by name."""
        raise NotImplementedError

    def holders(self) -> Sequence[Holder]:
        """This object and its parts that have settings of their own."""
        return [self]


class TracingContext(threading.local):
    """The function that this thread is tracing, if it is."""

    watch: Tracer[Any] | None = None
    offsets: dict[Any, Any] | None = None  # the positions of random streams inside the function
    since: float = math.inf  # the CLOCK when tracing began
    inner: float = -1  # the CLOCK when tracing of an inner body (of a loop, a branch) began


TRACING = TracingContext()
