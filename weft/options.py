"""The options of a compilation as one value: `CompileOptions`.

The options are captured when a function is traced. They are part of every cache key, in memory and on disk, and stay with the
executable, so that its passes, sources and times describe the code that runs. The compiler is given them and reads no settings. This file is the
one place that says which settings shape compiled code: those with a field below. `NOT_IN_CODE` names the others.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from contextvars import ContextVar
from dataclasses import asdict, fields
from typing import Any

from .dtypes import DType, as_dtype
from .knobs import KNOBS, knobs
from .records import dataclass

# Settings that shape no compiled code: they decide when something is computed, where it is kept, or what is printed.
NOT_IN_CODE = frozenset(
    {
        "seed", "pending_nodes", "pending_bytes", "compile_after", "cache", "cache_bytes", "data", "debug", "machines",
        "engine", "machine_ranks", "stall_seconds",
    }
)  # fmt: skip

# Of the `weft.algorithms` block around this code.
BLOCK_CONV_ALGORITHM: ContextVar[str] = ContextVar("block_conv_algorithm", default="")


@dataclass(frozen=True)
class CompileOptions:
    """The options of one compilation. Fields that are named like a setting have its meaning.

    >>> CompileOptions("cpu", threads=2) == CompileOptions("cpu", threads=2)
    True
    >>> print(CompileOptions("cpu", threads=2, fast_math=1))
    device=cpu threads=2 fast_math=1
    """

    device: str
    precision: str | None = (
        None  # of matrix products and convolutions: float16 or bfloat16; None: that of their operands
    )
    threads: int = 0  # that programs may run on; 0 where the device has no such number
    conv_algorithm: str = "fastest"
    block_conv_algorithm: str = ""  # of the `weft.algorithms` block around the call; convolutions are traced with it
    matmul_algorithm: str = "fastest"
    winograd: int = 1
    fast_math: int = 0
    optimize: int = 1  # whether LLVM optimizes the programs of CPUs
    tf32: int = 0
    memory: int = 0  # bytes that the program may take, its arguments, state and results included; 0: no limit

    @classmethod
    def current(cls, device: str, ignored: frozenset[str] = frozenset(), **given: Any) -> CompileOptions:
        """The current settings. A device names those that its compiler never reads: they keep their defaults."""
        read = {name: getattr(knobs, name) for name in SETTINGS if name not in ignored}
        return cls(device, **{**read, "block_conv_algorithm": BLOCK_CONV_ALGORITHM.get(), **given})

    @property
    def narrow(self) -> DType | None:
        """The type of mixed precision, if there is one."""
        return None if self.precision is None else as_dtype(self.precision)

    @property
    def key(self) -> str:
        """The options as part of a key on disk. Not the device's name: what the machine is stands there instead."""
        return " ".join(f"{name} {value}" for name, value in asdict(self).items() if name != "device")

    @property
    def number(self) -> int:
        """An integer that is equal for equal options, faster to hash and compare: for keys in memory."""
        return _numbers[self]

    @staticmethod
    def numbered(number: int) -> CompileOptions:
        """The options with this number."""
        return next(options for options, found in list(_numbers.items()) if found == number)

    def __str__(self) -> str:
        """What differs from the defaults."""
        changed = [f for f in fields(self) if getattr(self, f.name) != f.default]
        return " ".join(f"{f.name}={getattr(self, f.name)}" for f in changed)


_numbers: defaultdict[CompileOptions, int] = defaultdict(itertools.count().__next__)

# Settings that the compiler reads. The device is named apart: it compiles, and need not be the default one.
SETTINGS = tuple(f.name for f in fields(CompileOptions) if f.name in KNOBS and f.name != "device")
