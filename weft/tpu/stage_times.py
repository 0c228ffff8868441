"""The stages of a program as a profile shows them: modelled time, work, bytes that cross the edge of the chip, and what bounds each."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ..graph.node import Node
from ..runtime.facts import ModelledStage
from .instructions import HostTransfer, ReadWeights, TpuProgram
from .machine import TpuMachine
from .partition import Partition, PartitionStep
from .report import TpuReport, product_size
from .stages import CONVOLVE, MatrixStage, Stage, VectorStage
from .timing import ACTIVATION, COMPUTE, HAZARD, HOST, WEIGHT_SHIFT, WEIGHT_WAIT

LIMITS = {
    COMPUTE: "compute",
    ACTIVATION: "compute",
    WEIGHT_WAIT: "memory",
    WEIGHT_SHIFT: "memory",
    HOST: "memory",
    HAZARD: "waiting",
}


def stage_times(parts: Partition, report: TpuReport) -> Iterator[ModelledStage]:
    """The stages that take time. The bytes of a transfer that takes none of its own count for the stage that waits for it.

    The bytes of weights are those of whole tiles, as they are read; the roof allows for the weights in use, once.
    """
    program = report.program
    weights, transfers = _bytes_read(program)
    waiting = 0
    for number, (step, stage) in enumerate(zip(parts.steps, program.stages, strict=True)):
        waiting += transfers[number]
        cycles = report.timing.by_stage[number]
        seconds = report.stage_seconds(number)
        if not seconds:
            continue
        flops, least = _work(stage, transfers[number], program.machine)
        limit = LIMITS[max(cycles, key=lambda cause: cycles[cause])]
        yield ModelledStage(
            _name(stage), seconds, flops, weights[number] + waiting, least, limit, "int8",
            tuple(_nodes(step)), program.held_bytes[number], weights[number],
        )  # fmt: skip
        waiting = 0


def _bytes_read(program: TpuProgram) -> tuple[list[int], list[int]]:
    """Bytes read from the weight memory, and bytes moved from and to the host, by stage."""
    weights, transfers = [0] * len(program.stages), [0] * len(program.stages)
    for instruction in program.instructions:
        if isinstance(instruction, ReadWeights):
            weights[instruction.stage] += program.machine.tile_bytes
        elif isinstance(instruction, HostTransfer):
            transfers[instruction.stage] += instruction.value.nbytes
    return weights, transfers


def _work(stage: Stage, transferred: int, machine: TpuMachine) -> tuple[int, float]:
    """The operations of a stage, and its least time: at the roof, on the activation unit, or for its transfers."""
    if isinstance(stage, MatrixStage):
        peak = machine.peak_tops * 1e12 / stage.cycles_per_row
        return 2 * stage.macs, max(2 * stage.macs / peak, stage.weights / machine.weight_bandwidth)
    if isinstance(stage, VectorStage):
        return stage.elements, stage.elements / machine.columns / machine.clock
    return 0, transferred / machine.host_bandwidth


def _name(stage: Stage) -> str:
    if not isinstance(stage, MatrixStage):
        return stage.name
    return f"{'conv' if stage.kind == CONVOLVE else 'matmul'} {product_size(stage)}"


def _nodes(step: PartitionStep) -> Iterator[tuple[Node, float]]:
    """The nodes of a step; a product takes nearly all of it."""
    if step.product is not None:
        yield step.product.node, 1e18
    for node in step.nodes:
        yield node, float(prod(node.shape))
