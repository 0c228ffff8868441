"""Memory of a training step: it is planned, so whether it fits is known before the first step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import RunError, UserError
from ..report.text_format import counted
from ..runtime import device
from ..runtime.free_memory import SHARE, free_bytes, size_text
from ..tracing.compiled import CallMemory
from ..tracing.jit import Jit

MARGIN = 8  # relative difference of the workspaces of two nearly equal programs
AHEAD = 4  # batches that a loader holds beside the one in use
MOST_BATCH, LEAST_STEPS = 256, 20  # steps an epoch that an automatic batch size leaves


def need(step: Jit[Any], dataset: Any, batch: int) -> CallMemory:
    """The planned memory of a training step with this batch size. Nothing is run."""
    return step.memory(*arrays_like(dataset, batch))


def arrays_like(dataset: Any, batch: int) -> list[np.ndarray]:
    """Arrays with the types of a batch, without memory of their own."""
    ones = dataset.inputs(np.arange(1)), np.asarray(dataset.labels[:1])
    return [np.broadcast_to(np.zeros((), a.dtype.newbyteorder("=")), (batch, *a.shape[1:])) for a in ones]


def total(memory: CallMemory) -> int:
    """All of it, including prefetched batches."""
    return memory.total + AHEAD * memory.arguments


def check(
    step: Jit[Any], dataset: Any, batch: int, accumulate: int, gradients: int, micro_batches: int = 1
) -> CallMemory:
    """The memory of a step if it fits; else an error with a batch size that does. The step is compiled, as it must be anyway.

    `gradients` are the bytes of the gradients; accumulated over n calls, as many are kept as n - 1 has bits (optim/accumulation.py).
    `micro_batches`: those of a batch, if it is computed in parts of this size.
    """
    step.lower(*arrays_like(dataset, batch))
    wanted, free = need(step, dataset, batch), free_bytes()
    if free is None or total(wanted) <= SHARE * free:
        return wanted

    full = batch

    def accumulating(batch: int) -> int:
        """The memory of a step that accumulates gradients over more calls: another program, whose plan may be a little larger."""
        found = need(step, dataset, batch)
        calls = accumulate * -(-full // batch)
        kept = (calls - 1).bit_length() - (accumulate - 1).bit_length()
        return total(found) + gradients * kept + found.work // MARGIN

    start = batch // 2  # memory shrinks at most in proportion to the batch: sizes that cannot fit are not planned
    while start > 1 and total(wanted) * start / batch > SHARE * free:
        start //= 2
    smaller = _largest(lambda b: accumulating(b) <= SHARE * free, start)
    times = -(-batch // smaller) if smaller else 0
    change = f"micro_batches={micro_batches * times}" if micro_batches > 1 else f"batch={smaller} accumulate={accumulate * times}"  # fmt: skip
    advice = (
        f"{change} would fit, and sees as many examples a step"
        if smaller
        else "not even one example a step would fit: take a smaller network or smaller inputs"
    )
    where = "" if device().free_memory() is None else f" on {device()}"
    raise RunError(
        "fit",
        f"a step with {counted(batch, 'example')} needs {size_text(total(wanted))} ({size_text(wanted.work)} of them while it runs), and {size_text(free)} "
        f"are free{where}. {advice}; memory={_limit_text(int(SHARE * free))} trades time for memory.",
    )


def _limit_text(count: int) -> str:
    """Bytes as a setting, rounded down: more would be rejected again."""
    for unit, bits in (("MiB", 20), ("KiB", 10)):
        if count >> bits:
            return f"{count >> bits}{unit}"
    return str(count)


def choose_batch(step: Jit[Any], dataset: Any) -> int:
    """The largest power of two that fits in half of the free memory and leaves enough steps in an epoch."""
    free = free_bytes()
    most = max(1, min(MOST_BATCH, len(dataset) // LEAST_STEPS))
    start = 1 << (most.bit_length() - 1)
    if free is None:
        return start

    def fits(batch: int) -> bool:
        try:
            return total(need(step, dataset, batch)) <= 0.5 * free
        except UserError:
            if not step.memory_limit:
                raise
            return False  # more than the limit, even if everything is computed again

    return max(1, _largest(fits, start))


def _largest(fits: Callable[[int], bool], start: int) -> int:
    """The first of start, start / 2, start / 4, ... that fits; 0 if none fits."""
    while start and not fits(start):
        start //= 2
    return start
