"""Simulates a function on a machine without computing values, and shows the effect of other machine settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import UserError
from ..graph import Graph
from ..saved.program import Program
from ..tracing.jit import jit
from .compile import compiled_program
from .lowering import lowered
from .machine import TpuMachine
from .published import PublishedNetwork
from .report import TpuReport, aligned
from .stages import Stage


def simulate(function: Callable[..., Any], *args: Any, machine: TpuMachine | None = None) -> TpuReport:
    """Simulate a call of an int8 network, or of any function, with these arguments on the machine: cycles by cause, TOPS, time.

    The function is traced on the current device, and nothing is computed. Tensors that are not arguments are weights.
    """
    return _report(*_traced(function, args), machine or TpuMachine())


def simulate_program(program: Program, batch: int = 1, machine: TpuMachine | None = None) -> TpuReport:
    """Simulate a saved int8 network, with this size of its free dimensions."""
    closed = program.closed(dict.fromkeys(program.manifest.dimensions, batch))
    return _report(closed.graph, frozenset(closed.tensors), machine or TpuMachine())


def _report(graph: Graph, constants: frozenset[int], machine: TpuMachine) -> TpuReport:
    parts, program = compiled_program(graph, constants, machine)
    if not parts.products:
        raise UserError(
            "tpu",
            "a function with products of int8 is required, got one without. Quantize the network: weft compress RUN method=int8, or weft.compress.int8 and then weft.compress.to_int8.",
        )
    return TpuReport(program)


def _traced(function: Callable[..., Any], args: Sequence[Any]) -> tuple[Graph, frozenset[int]]:
    found = jit(function).artifact(*args)
    constants = (
        i for i, given in enumerate(found.inputs) if given.kind in ("state", "constant") and not given.is_replaced
    )
    return found.graph, frozenset(constants)


VARIANTS: dict[str, dict[str, float]] = {
    "weight bandwidth x 4": {"weight_bandwidth": 4.0},
    "weights from GDDR5 (bandwidth x 5.4)": {"weight_bandwidth": 5.4},
    "clock x 2": {"clock": 2.0},
    "clock x 2, accumulators x 2": {"clock": 2.0, "accumulator_bytes": 2.0},
    "rows and columns x 2": {"rows": 2.0, "columns": 2.0},
    "rows and columns x 2, accumulators x 4": {"rows": 2.0, "columns": 2.0, "accumulator_bytes": 4.0},
}  # factors by which settings are multiplied


def what_changes(
    report: TpuReport | PublishedNetwork,
    variants: Mapping[str, Mapping[str, float]] = VARIANTS,
    machine: TpuMachine | None = None,
) -> dict[str, TpuReport]:
    """Simulate the same work on machines with scaled settings, the unscaled machine first."""
    if isinstance(report, PublishedNetwork):
        report = report.simulate(machine)
    base = report.program.machine
    found = {"as it is": report}
    for name, factors in variants.items():
        settings = {key: type(getattr(base, key))(getattr(base, key) * factor) for key, factor in factors.items()}
        found[name] = _on(report.program.stages, base.with_settings(**settings), report)
    return found


def _on(stages: Sequence[Stage], machine: TpuMachine, report: TpuReport) -> TpuReport:
    return TpuReport(lowered(stages, machine, report.program.host))


def changes_table(found: Mapping[str, TpuReport]) -> str:
    """A table of the changes: time, speed-up over the first, and cycles by cause."""
    first = next(iter(found.values()))
    rows: list[tuple[str, ...]] = [("machine", "ms", "times as fast", "TOPS", "cells useful", "mostly")]
    for name, report in found.items():
        cycles = report.cycles
        mostly = max(cycles, key=lambda cause: cycles[cause])
        rows.append(
            (
                name, f"{1e3 * report.seconds:.4f}", f"{first.seconds / report.seconds:.2f}", f"{report.tops:.2f}",
                f"{report.utilisation:.1%}", f"{mostly} ({cycles[mostly] / report.total_cycles:.0%})",
            )
        )  # fmt: skip
    return "\n".join(aligned(rows))
