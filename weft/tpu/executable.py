"""A graph compiled for the simulated machine: exact values, and modelled times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import prod

from ..graph.graph import Graph
from ..options import CompileOptions
from ..runtime import native
from ..runtime.facts import CallTime, Profile
from ..runtime.reference import InterpretedExecutable
from .compile import compiled_program
from .interpreter import Interpreter
from .machine import TpuMachine
from .report import TpuReport
from .roof import TpuRoof

LEAST = 1e-12  # seconds of a call with no modelled time


class HostExecutable(native.NativeExecutable):
    """A program without products, on the simulated host."""

    where = "the simulated host of a TPU"

    def notes(self) -> list[str]:
        return ["the whole program runs on the host: it has no product of int8", *super().notes()]


class TpuExecutable(InterpretedExecutable):
    """A program with int8 products. Its kernels are those of the CPU's planner; times, sources and roofline are those of the machine."""

    where = "simulated TPU"

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
        """The modelled time of each product, including its activation, at the kernel with that product; the other kernels share the rest equally."""
        program = self.program
        last_calls = {call.kernel: number for number, call in enumerate(program.calls)}  # other calls prepare operands
        known = self._product_seconds()
        seconds = [0.0] * len(program.calls)
        for kernel, number in last_calls.items():
            found = known.get(prod(kernel.anchor.shape)) if kernel.anchor is not None else None
            if found:
                seconds[number] = found.pop(0)
        left = (self.report.seconds - sum(seconds)) / max(1, seconds.count(0.0))
        calls = [CallTime(i, call, max(LEAST, seconds[i] or left)) for i, call in enumerate(program.calls)]
        return Profile(program, calls, repeats or 1)

    def _product_seconds(self) -> dict[int, list[float]]:
        """Seconds of products by the number of elements of their results: the compiler rewrites nodes, but keeps these numbers and their order."""
        found: dict[int, list[float]] = {}
        for number, step in enumerate(self.parts.steps):
            if step.product is not None:
                found.setdefault(prod(step.product.node.shape), []).append(self.report.stage_seconds(number))
        return found
