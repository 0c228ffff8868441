"""The order in which a pipeline stage works on micro-batches.

GPipe (Huang et al. 2019) runs all forward passes, then all backward passes. 1F1B (Narayanan et al. 2019) runs a backward pass as soon as
it can: it takes equally long, but stores activations of at most `stages - stage` micro-batches.
"""

from __future__ import annotations

from typing import NamedTuple

from ..errors import UserError

FORWARD, BACKWARD = "forward", "backward"


class Work(NamedTuple):
    """A pass of one stage over one micro-batch."""

    phase: str
    micro_batch: int


def gpipe(stage: int, stages: int, micro_batches: int) -> list[Work]:
    """All forward passes, then all backward passes."""
    return [Work(phase, m) for phase in (FORWARD, BACKWARD) for m in range(micro_batches)]


def one_forward_one_backward(stage: int, stages: int, micro_batches: int) -> list[Work]:
    """Warm-up with one forward pass for each stage after this one; then forward and backward passes alternate.

    >>> [f"{w.phase[0]}{w.micro_batch}" for w in one_forward_one_backward(0, 2, 3)]
    ['f0', 'f1', 'b0', 'f2', 'b1', 'b2']
    """
    ahead = min(stages - 1 - stage, micro_batches)
    order = [Work(FORWARD, m) for m in range(ahead)]
    for m in range(micro_batches):
        if m + ahead < micro_batches:
            order.append(Work(FORWARD, m + ahead))
        order.append(Work(BACKWARD, m))
    return order


SCHEDULES = {"gpipe": gpipe, "1f1b": one_forward_one_backward}


def schedule(name: str, stage: int, stages: int, micro_batches: int) -> list[Work]:
    """The passes of a stage in the order of the named schedule."""
    if name not in SCHEDULES:
        raise UserError("Pipeline", f"a schedule is one of {', '.join(SCHEDULES)}, got {name!r}.")
    return SCHEDULES[name](stage, stages, micro_batches)


def most_stored(work: list[Work]) -> int:
    """The peak number of micro-batches between their forward and their backward pass.

    >>> most_stored(gpipe(0, 2, 8)), most_stored(one_forward_one_backward(0, 2, 8))
    (8, 2)
    """
    stored = most = 0
    for phase, _ in work:
        stored += 1 if phase == FORWARD else -1
        most = max(most, stored)
    return most


def ideal_bubble(stages: int, micro_batches: int) -> float:
    """The bubble: the fraction of time in which a stage is idle, if all stages take equally long and communication takes no time.

    >>> ideal_bubble(4, 8)
    0.2727272727272727
    """
    return (stages - 1) / (micro_batches + stages - 1)
