"""The work of a network that is not measured here: a known time of the whole step, distributed over layers by multiply-adds."""

from __future__ import annotations

from ..nn.summary import LayerCost, Summary
from .step_work import BatchLine, LayerWork, StepWork

BACKWARD = 2.0  # times the forward pass: the gradients of inputs and of parameters


def summary_work(summary: Summary, examples_per_second: float, where: str = "") -> StepWork:
    """The work of a network by its summary for one example, given the throughput of a single rank.

    Memory is that of a program that stores the results of all layers, with SGD and momentum.

    >>> from weft import nn
    >>> found = nn.summary(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), (1, 4))
    >>> work = summary_work(found, 1000.0)
    >>> round(work.seconds(64), 9), work.parameters
    (0.064, 232.0)
    """
    lines = [line for line in summary.lines if line.macs or line.parameters or not line.has_parts]
    macs = sum(line.macs for line in lines) or 1
    layers, given, kept = [], 0.0, 0.0
    for line in lines:
        kept += line.nbytes
        layers.append(_layer(line, line.macs / macs / examples_per_second, given, kept))
        given = float(line.nbytes)
    parameters = sum(layer.parameters for layer in layers)
    return StepWork(tuple(layers), 0.0, parameters, BatchLine(0.0, kept), where=where)


def _layer(line: LayerCost, seconds: float, given: float, kept: float) -> LayerWork:
    forward = seconds / (1 + BACKWARD)
    output = float(line.nbytes)
    return LayerWork(
        line.name, BatchLine(0.0, forward), BatchLine(0.0, BACKWARD * forward), 4.0 * line.parameters,
        BatchLine(0.0, output), BatchLine(0.0, kept + output), output, ((output, given),) if line.parameters else (),
    )  # fmt: skip
