"""Measures a loader alone, a step alone and both together: see `data_bottleneck`."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from ..data.loader import IndexableDataset, Loader, Pair
from ..data.loading_stages import LoadingStage, drop_cached, loading_stages
from ..errors import RunError, UserError
from ..nn.module import Module
from ..ops.convert import asarray
from ..records import dataclass
from ..report.text_format import counted
from ..runtime import device
from ..tensor import Tensor
from ..tracing.jit import jit
from .data_bottleneck import LOADING, STEP, DataBottleneck, StageTime
from .readable_examples import READ_ERRORS, ReadableExamples

SECONDS = 1.0  # for each measurement
LEAST = 3  # minimum calls of each measurement
STAGE_BATCHES = 8  # batches whose stages are timed one by one
PREFETCH = 2  # the loader's default
NAMED = 5  # unreadable examples that are listed
Step = Callable[[Any, Any], Any]
Clock = Callable[[], float]


def data_bottleneck(
    dataset: IndexableDataset,
    step: Step,
    *,
    batch: int,
    workers: int = 1,
    prepare: Module | None = None,
    stages: Sequence[LoadingStage] | None = None,
    cores: int | None = None,
    cold: bool = False,
    seconds: float = SECONDS,
    clock: Clock = time.perf_counter,
) -> DataBottleneck:
    """Measure whether data loading or computation limits training, and which stage of it.

    `step` is called with arrays (x, y) and really trains. `prepare` is the part of it that resizes and augments, to be timed alone.
    `stages` split the loading of a custom dataset; the first takes indices, the last returns the inputs. `cold` reads files from
    disk: they are dropped from the page cache at the beginning of each measurement and of each epoch.
    """
    if len(dataset) == 0:
        raise UserError("data_bottleneck", "a dataset with at least one example is required, got an empty one.")
    source = _Source(dataset, min(batch, len(dataset)), clock, seconds, cold)
    loading = _loading_times(source, loading_stages(dataset) if stages is None else stages)
    x, y = next(source.batches(0))
    alone = source.per_call(lambda: step(x, y))
    fed = source.batches(workers)
    both = source.per_call(lambda: step(*next(fed)), warm=ahead(workers))
    fed.close()
    most = cores or os.cpu_count() or 1
    loader = {count: source.loader_seconds(count) for count in worker_counts(workers, most)}
    inside = _step_times(source, alone, step, prepare, (x, y))
    return DataBottleneck(
        source.batch, workers, most, (*loading, *inside), loader, alone, both, str(device()), source.notes()
    )


def worker_counts(workers: int, cores: int) -> list[int]:
    """The numbers of workers to measure: the given one, and powers of two up to the cores.

    >>> worker_counts(0, 6), worker_counts(3, 2)
    ([0, 1, 2, 4, 6], [1, 2, 3])
    """
    powers = (1 << power for power in range(cores.bit_length()))
    return sorted({workers, cores, *powers})


def ahead(workers: int) -> int:
    """Batches to skip: the prefetched ones and the first, which do not show the throughput of a loader."""
    return max(PREFETCH, workers) + 1 if workers else 1


@dataclass
class _Source:
    """An endless stream of batches. Unreadable examples are recorded, and replaced by others."""

    dataset: IndexableDataset
    batch: int
    clock: Clock
    seconds: float
    cold: bool = False
    readable: ReadableExamples = field(init=False)

    def __post_init__(self) -> None:
        self.readable = ReadableExamples(self.dataset)
        if self.cold and not drop_cached(self.dataset):
            raise UserError("data_bottleneck", "cold=True requires a dataset in a file, got one that is in memory.")

    def batches(self, workers: int) -> Generator[Pair, None, None]:
        while True:
            if self.cold:
                drop_cached(self.readable.base)
            try:
                yield from Loader(self.dataset, self.batch, drop_last=True, workers=workers, prefetch=PREFETCH).arrays()
            except RunError:
                if self.dataset is self.readable:
                    raise
                self.dataset = self.readable

    def loader_seconds(self, workers: int) -> float:
        found = self.batches(workers)
        taken = self.per_call(lambda: next(found), warm=ahead(workers))
        found.close()
        return taken

    def per_call(self, call: Callable[[], Any], warm: int = 1) -> float:
        """Seconds per call, over calls for the length of a measurement, after a warm-up."""
        for _ in range(warm):
            _wait(call())
        calls, start, result = 0, self.clock(), None
        while calls < LEAST or self.clock() - start < self.seconds:
            result = call()
            calls += 1
        _wait(result)  # a GPU may still be working
        return (self.clock() - start) / calls

    def notes(self) -> tuple[str, ...]:
        bad = self.readable.unreadable
        if not bad:
            return ()
        named = "; ".join(f"{index}: {reason}" for index, reason in sorted(bad.items())[:NAMED])
        more = f"; and {len(bad) - NAMED} more" if len(bad) > NAMED else ""
        return (
            f"note: {counted(len(bad), 'example')} cannot be read, others were measured in their place: {named}{more}",
        )


def _wait(result: Any) -> None:
    if isinstance(result, Tensor):
        result.numpy()


# --- stages ---------------------------------------------------------------------------------------------------------------------


def _loading_times(source: _Source, stages: Sequence[LoadingStage]) -> list[StageTime]:
    order = Loader(source.dataset, source.batch).order(0)
    batches = [order[i : i + source.batch] for i in range(0, len(order), source.batch)][:STAGE_BATCHES]
    return stage_times(stages, batches, source.clock, source.readable.read_each)


def stage_times(
    stages: Sequence[LoadingStage],
    batches: Sequence[np.ndarray],
    clock: Clock,
    on_error: Callable[[np.ndarray], Any] = lambda indices: None,
) -> list[StageTime]:
    """The median seconds of each stage. A batch that fails is passed to `on_error`, and does not count."""
    found: dict[str, list[float]] = {name: [] for name, _ in stages}
    for indices in batches:
        value, taken = indices, {}
        try:
            for name, run in stages:
                start = clock()
                value = run(value)
                taken[name] = clock() - start
        except READ_ERRORS:
            on_error(indices)
            continue
        for name, seconds in taken.items():
            found[name].append(seconds)
    return [StageTime(name, LOADING, statistics.median(seconds) if seconds else 0.0) for name, seconds in found.items()]


def _step_times(source: _Source, alone: float, step: Step, prepare: Module | None, given: Pair) -> list[StageTime]:
    """Copy and augmentation are measured separately; computing is the rest of the step."""
    x, y = given
    copy = 0.0  # host arrays are used in place
    resident = alone
    if device().free_memory() is not None:
        on_device = asarray(x).realize(), asarray(y).realize()
        resident = source.per_call(lambda: step(*on_device))
        copy = max(0.0, alone - resident)
    augment = 0.0
    if prepare is not None and list(prepare.modules())[1:]:
        prepared = jit(lambda inputs: prepare(inputs))
        augment = min(resident, source.per_call(lambda: prepared(x)))
    found = {"copy": copy, "augment": augment, "compute": resident - augment}
    return [StageTime(name, STEP, seconds) for name, seconds in found.items()]
