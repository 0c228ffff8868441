"""The measured memory of a step, to compare with its forecast.

On a CPU, `tracemalloc` counts the bytes of the arrays that NumPy holds: parameters, moments, batches, results and the arena are arrays.
Parameters that lie in the pages of a mapped file, or in the bytes that were read from one, are added. On a GPU, the memory pool reports how many of its bytes are in use, workspaces of libraries included.
"""

from __future__ import annotations

import gc
import resource
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..records import dataclass
from ..runtime.device import device
from ..tracing.jit import Jit

CALLS = 2  # the first allocates; the second reuses everything
PAGE_FIELD = 1  # of /proc/self/statm: resident pages
Make = Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]


@dataclass(frozen=True)
class MeasuredMemory:
    """Bytes in use after a few calls, with the results of the last one, and how they were counted."""

    allocated: int
    how: str


def measured_memory(make: Make) -> MeasuredMemory:
    """Create a function and its arguments, call it, and count the bytes that they hold.

    >>> import weft
    >>> def make():
    ...     model = weft.nn.Linear(1000, 500)
    ...     return weft.jit(lambda x: model(x)), (np.ones((64, 1000), np.float32),)
    >>> measured_memory(make).allocated >= 4 * (1000 * 500 + 64 * 1000 + 64 * 500)
    True
    """
    device().release_arenas()  # earlier programs may have left a sufficiently large one
    return _on_cpu(make) if device().allocated_memory() is None else _on_gpu(make)


def _on_cpu(make: Make) -> MeasuredMemory:
    if tracemalloc.is_tracing():
        return _counted(make)
    tracemalloc.start()
    try:
        return _counted(make)
    finally:
        tracemalloc.stop()


def _counted(make: Make) -> MeasuredMemory:
    before = _array_bytes()
    held = _called(make)
    allocated, loaded = _array_bytes() - before, _loaded_bytes(*held[:2])
    del held
    how = "bytes of NumPy arrays, counted by tracemalloc"
    return MeasuredMemory(allocated + loaded, f"{how}, and of parameters in a loaded file" if loaded else how)


def _loaded_bytes(function: Callable[..., Any], args: tuple[Any, ...]) -> int:
    """The bytes of the tensors that a compiled function reads from the content of a file, which NumPy does not hold."""
    if not isinstance(function, Jit):
        return 0
    arrays = [state.find().numpy() for state in function.traced_function(*args).states if not state.written]
    return sum(array.nbytes for array in arrays if not isinstance(_owner(array), np.ndarray))


def _owner(array: np.ndarray) -> Any:
    """What holds the memory that an array shows."""
    found: Any = array
    while isinstance(found, np.ndarray) and found.base is not None:
        found = found.base
    return found


def _array_bytes() -> int:
    gc.collect()
    only_arrays = tracemalloc.DomainFilter(inclusive=True, domain=np.lib.tracemalloc_domain)
    return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([only_arrays]).traces)


def _on_gpu(make: Make) -> MeasuredMemory:
    gc.collect()
    before = device().allocated_memory() or 0
    held = _called(make)
    allocated = (device().allocated_memory() or 0) - before
    del held
    return MeasuredMemory(allocated, f"bytes in use in the memory pool of {device()}")


def _called(make: Make) -> Any:
    """Everything that must stay alive during the count: the function, its arguments and its last results."""
    function, args = make()
    result = None
    for _ in range(CALLS):
        result = function(*args)
    return function, args, result


def resident_bytes() -> int | None:
    """The resident memory of this process; None where the system does not report it."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[PAGE_FIELD])
    except OSError:
        return None
    return pages * resource.getpagesize()
