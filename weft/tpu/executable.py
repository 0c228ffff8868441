"""A graph compiled for the simulated machine: exact values, and modelled times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from ..graph.graph import Graph
from ..options import CompileOptions
from ..runtime import native
from ..runtime.facts import Profile
from ..runtime.reference import InterpretedExecutable
from .compile import compiled_program
from .interpreter import Interpreter
from .machine import TpuMachine
from .report import TpuReport
from .roof import TpuRoof
from .stage_times import stage_times


class HostExecutable(native.NativeExecutable):
    """A program without products, on the simulated host."""

    where = "the simulated host of a TPU"

    def notes(self) -> list[str]:
        return ["the whole program runs on the host: it has no product of int8", *super().notes()]


class TpuExecutable(InterpretedExecutable):
    """A program with int8 products. Its memory plan is that of the CPU's planner; its times, sources and roofline are those of the machine."""

    where = "simulated TPU, modelled"

    def __init__(
        self,
        graph: Graph,
        updates: Mapping[int, int],
        options: CompileOptions,
        constants: frozenset[int],
        machine: TpuMachine,
    ) -> None:
        self.describe(graph, updates, options, constants)
        self.machine = machine
        self.parts, self.instructions = compiled_program(graph, constants, machine)
        self.values = Interpreter(self.parts, options).run

    @cached_property
    def report(self) -> TpuReport:
        return TpuReport(self.instructions)

    def sources(self) -> list[str]:
        """The listing of its instructions."""
        return [self.instructions.text()]

    def notes(self) -> list[str]:
        return [f"on the host: {part}" for part in self.report.host_parts]

    def seconds(self, inputs: Sequence[int]) -> float:
        return self.report.seconds

    def roof(self) -> TpuRoof:
        return TpuRoof(self.machine)

    def profile(self, inputs: Sequence[int], repeats: int | None = None) -> Profile:
        """The modelled time of each stage."""
        return Profile(self.program, [], 1, stages=tuple(stage_times(self.parts, self.report)))
