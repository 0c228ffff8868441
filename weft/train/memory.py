"""Will it fit? The memory that a training needs is known from its graph before it runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import RunError
from ..report.text_format import counted
from ..runtime import device
from ..tracing.compiled import CallMemory
from ..tracing.jit import Jit

SHARE = 0.9  # of the free memory that may be used: the rest of the process needs some too
MARGIN = 8  # the part of its work by which a program may differ from one that computes all but the same
AHEAD = 4  # batches that a loader holds beside the one in use
MOST_BATCH, LEAST_STEPS = 256, 20  # of a batch that is chosen here: small enough for so many steps an epoch
LIMITS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def free_bytes() -> int | None:
    """The memory that a training may still take: of the GPU it runs on, else of the host; None where nobody says."""
    own = device().free_memory()
    return _free_on_host() if own is None else own


def _free_on_host() -> int | None:
    """What this process may still take of the machine, or of the container."""
    found = []
    for line in _text("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) << 10)
    for most, used in LIMITS:
        limit, taken = _text(most).strip(), _text(used).strip()
        if limit.isdigit() and taken.isdigit():
            found.append(int(limit) - int(taken))
    return max(0, min(found)) if found else None


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def need(step: Jit[Any], dataset: Any, batch: int) -> CallMemory:
    """What a training step with batches of this size needs. Nothing is run."""
    return step.memory(*_like(dataset, batch))


def _like(dataset: Any, batch: int) -> list[np.ndarray]:
    """Arrays with the types of a batch, which take no memory."""
    ones = dataset.inputs(np.arange(1)), np.asarray(dataset.labels[:1])
    return [np.broadcast_to(np.zeros((), a.dtype.newbyteorder("=")), (batch, *a.shape[1:])) for a in ones]


def total(memory: CallMemory) -> int:
    """All of it, with the batches that wait."""
    return memory.total + AHEAD * memory.arguments


def check(step: Jit[Any], dataset: Any, batch: int, accumulate: int, gradients: int) -> CallMemory:
    """What it needs, if it fits; else an error that says what would. The step is compiled, as it must be anyway.

    `gradients` are the bytes that gradients take when they are accumulated.
    """
    step.lower(*_like(dataset, batch))
    wanted, free = need(step, dataset, batch), free_bytes()
    if free is None or total(wanted) <= SHARE * free:
        return wanted

    def accumulating(batch: int) -> int:
        """What a step would need that adds its gradients up: another program, whose plan may be a little larger."""
        found = need(step, dataset, batch)
        return total(found) + (gradients + found.work // MARGIN if accumulate == 1 else 0)

    start = batch // 2  # what a step needs shrinks at most as much as its batch: sizes that cannot fit are not planned
    while start > 1 and total(wanted) * start / batch > SHARE * free:
        start //= 2
    smaller = _largest(lambda b: accumulating(b) <= SHARE * free, start)
    advice = (
        f"batch={smaller} accumulate={accumulate * -(-batch // smaller)} would fit, and sees as many examples a step"
        if smaller
        else "not even one example a step would fit: take a smaller network or smaller inputs"
    )
    where = "" if device().free_memory() is None else f" on {device()}"
    raise RunError(
        "fit",
        f"a step with {counted(batch, 'example')} needs {size_text(total(wanted))} ({size_text(wanted.work)} of them while it runs), and {size_text(free)} "
        f"are free{where}. {advice}; weft.checkpoint around parts of the network trades time for memory.",
    )


def choose_batch(step: Jit[Any], dataset: Any) -> int:
    """The largest power of two that fits in half of the free memory and leaves enough steps in an epoch."""
    free = free_bytes()
    most = max(1, min(MOST_BATCH, len(dataset) // LEAST_STEPS))
    start = 1 << (most.bit_length() - 1)
    if free is None:
        return start
    return max(1, _largest(lambda b: total(need(step, dataset, b)) <= 0.5 * free, start))


def _largest(fits: Callable[[int], bool], start: int) -> int:
    """The first of start, start / 2, start / 4, ... that fits; 0 if none does."""
    while start and not fits(start):
        start //= 2
    return start


def size_text(count: float) -> str:
    """Bytes as people read them."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
