"""What is known and what is measured of a compiled program, whichever device it is for: plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..compiler.ir.program import Call, Program


@dataclass(frozen=True)
class Facts:
    """The bytes of a program that live during a run, and those that stay from run to run."""

    arena: int
    kept: int


@dataclass(frozen=True)
class CallTime:
    """A call of a program, and how long it took."""

    number: int
    call: Call
    seconds: float


@dataclass(frozen=True)
class Profile:
    """A program, and the time of each of its calls: the median of some runs."""

    program: Program
    calls: list[CallTime]
    runs: int


class Roofline(Protocol):
    """The most that a device can do in a second. Printed, it says so."""

    @property
    def bandwidth(self) -> float:
        """Bytes read and written."""

    def seconds(self, flops: float, nbytes: float, *, itemsize: int = 4) -> float:
        """The least time for so much work on elements of a size."""
