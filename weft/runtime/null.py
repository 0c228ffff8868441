"""The device `null`: accepts every program and computes nothing. Tests of passes and plans use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from ..compiler import cpu as compiler
from ..dtypes import DType
from ..errors import RunError
from ..graph.graph import Graph
from ..graph.node import Op
from ..options import CompileOptions
from ..records import dataclass
from .device import EAGER, Buffer, Device, NodeProgram, register
from .facts import CallTime, Facts, Profile

if TYPE_CHECKING:
    from ..compiler.ir.program import KernelProgram as CompiledProgram

INSTANT = 1e-9  # seconds: the time that is reported for everything


class NullDevice(Device):
    """See the head of this file."""

    name = "null"
    has_kernels = False
    ignored_settings = frozenset({"threads", "optimize", "tf32", "matmul_algorithm"})

    def can_compile(self, op: Op) -> bool:
        return compiler.backend.LOWERINGS.can_compile(op)

    def put(self, array: np.ndarray, dtype: DType) -> Buffer:
        return Buffer(self, array.shape, dtype, None)

    def get(self, buffer: Buffer) -> np.ndarray:
        raise RunError("null", "the null device computes nothing, so there is no value to read. Use another device.")

    def run(self, program: NodeProgram) -> list[Buffer]:
        return [Buffer(self, node.shape, node.dtype, None) for node in program.wanted]

    def executable(
        self, graph: Graph, updates: Mapping[int, int], options: CompileOptions, constants: frozenset[int]
    ) -> NullExecutable:
        return NullExecutable(graph, updates, options, constants)

    def planned_program(
        self, graph: Graph, updates: Mapping[int, int], options: CompileOptions, constants: frozenset[int]
    ) -> CompiledProgram:
        return self.executable(graph, updates, options, constants).program

    def memory(self, buffer: Buffer, order: tuple[int, ...] | None) -> object:
        return object()

    def copied(self, buffer: Buffer, order: tuple[int, ...] | None) -> tuple[object, None]:
        if buffer.device is not self:
            raise RunError(
                "null",
                f"state must be on the null device to be replaced there, got a tensor on {buffer.device}: its value would be lost. "
                "Make it on the null device.",
            )
        return object(), None

    def address(self, memory: object) -> int:
        return 0


@dataclass(frozen=True)
class NullRoof:
    """Nothing bounds what is not done."""

    bandwidth: float = inf

    def seconds(self, flops: float, nbytes: float, *, itemsize: int = 4) -> float:
        return 0.0

    def __str__(self) -> str:
        return "none: nothing is computed"


class NullExecutable:
    """A program that is planned for one thread of a CPU and does nothing when it is run."""

    where = "no hardware"
    label = EAGER

    def __init__(
        self, graph: Graph, updates: Mapping[int, int], options: CompileOptions, constants: frozenset[int]
    ) -> None:
        self.graph, self.updates, self.options, self.constants = graph, dict(updates), options, constants

    @cached_property
    def program(self) -> CompiledProgram:
        return compiler.backend.compiled(self.graph, self.updates, replace(self.options, threads=1), self.constants)

    @property
    def facts(self) -> Facts:
        memory = self.program.memory
        return Facts(memory.arena, memory.kept, memory.recomputed)

    @property
    def workspace_bytes(self) -> int:
        return max((plan.workspace for plan in self.program.plans.values()), default=0)

    def argument(self, position: int, given: Buffer | np.ndarray) -> tuple[Any, int]:
        return None, 0

    def call(self, inputs: Sequence[int], again: bool = True) -> list[None]:
        return [None for number in range(len(self.graph.outputs)) if number not in self.updates]

    def passes(self) -> dict[str, Graph]:
        return compiler.backend.passes(self.graph, self.options, self.updates)

    def sources(self) -> list[str]:
        return []

    def notes(self) -> list[str]:
        return []

    def profile(self, inputs: Sequence[int], repeats: int | None = None) -> Profile:
        calls = [CallTime(i, call, INSTANT) for i, call in enumerate(self.program.calls)]
        return Profile(self.program, calls, repeats or 1)

    def seconds(self, inputs: Sequence[int]) -> float:
        return INSTANT

    def roof(self) -> NullRoof:
        return NullRoof()


null = register(NullDevice())
