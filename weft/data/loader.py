"""A data loader: shuffled batches of a dataset, prefetched by threads.

The order of an epoch depends only on (seed, epoch), and a batch only on (order, position). So the loader's state is two
numbers, and neither the number of threads nor an interruption changes the following batches.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..errors import RunError, UserError
from ..ops.convert import asarray
from ..ops.declare import whole
from ..records import dataclass
from ..tensor import Tensor
from ..timeline import RECORDING, recorded
from .dataset import Arrays
from .image_readers import Encoded, MappedImages
from .loading_stages import loading_stages
from .subset import Subset


class IndexableDataset(Protocol):
    """The interface that a loader requires of a dataset."""

    def __len__(self) -> int: ...

    @property
    def labels(self) -> np.ndarray:
        """The labels of all examples."""

    def inputs(self, indices: np.ndarray, /) -> np.ndarray:
        """The inputs of these examples, as one array."""


class Batch(NamedTuple):
    """A batch of inputs, in the dtype they are stored in, and their labels."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Shard:
    """The micro-batches of every batch that one of several processes has: `count` of them, from number `first`."""

    micro_batches: int = 1
    first: int = 0
    count: int = 1


class Loader:
    """An iterable over batches (x, y) of a dataset; each `for` loop over it is one epoch.

    With `shuffle`, every epoch has a new order. `workers` threads prefetch batches, at most max(prefetch, workers)
    ahead; with 0 workers batches are read on demand. `drop_last` drops a last batch that is not full. `limit` ends an epoch after this many
    batches, so that each epoch sees other examples of a large dataset. With `shard`, the batch is cut into
    equal micro-batches, of which these are yielded: processes that train together have different ones of the same epoch.

    >>> import numpy as np
    >>> class Squares:
    ...     labels = np.arange(5) ** 2
    ...     def __len__(self): return 5
    ...     def inputs(self, indices): return np.asarray(indices)
    >>> [(x.tolist(), y.tolist()) for x, y in Loader(Squares(), 2, shuffle=False)]
    [([0, 1], [0, 1]), ([2, 3], [4, 9]), ([4], [16])]
    """

    def __init__(
        self,
        dataset: IndexableDataset,
        batch: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        workers: int = 1,
        prefetch: int = 2,
        shard: Shard | None = None,
        limit: int | None = None,
    ) -> None:
        self.dataset, self.shuffle, self.drop_last = dataset, bool(shuffle), bool(drop_last)
        self.batch = whole("Loader", "size of a batch", batch, least=1)
        self.workers = whole("Loader", "number of workers", workers)
        self.prefetch = whole("Loader", "number of batches to prefetch", prefetch, least=1)
        self.seed = whole("Loader", "seed", seed)
        self.limit = None if limit is None else whole("Loader", "limit of batches", limit, least=1)
        if self.seed >= 1 << 64:
            raise UserError("Loader", f"the seed must be an int from 0 to 2**64 - 1, got {seed}.")
        _check_not_empty(len(dataset), self.batch, self.drop_last)
        self.shard = Shard() if shard is None else shard
        if self.shard.micro_batches > 1:
            _check_shard(self.shard, self.batch, self.drop_last)
        self._epoch = self._position = 0
        self._started = False  # whether an iteration over this epoch has started
        self._iterations = 0

    def __len__(self) -> int:
        """The number of batches of an epoch; with a shard, of its micro-batches."""
        count = len(self.dataset)
        batches = count // self.batch if self.drop_last else -(-count // self.batch)
        return min(batches, self.limit or batches) * self.shard.count

    def __iter__(self) -> Iterator[Batch]:
        """The batches of the next epoch, or the rest of the epoch that `load` restored."""
        return (Batch(asarray(x), asarray(y)) for x, y in self.arrays())

    def arrays(self) -> Iterator[Pair]:
        """The same as NumPy arrays, which compiled functions accept: a GPU copies them asynchronously."""
        if self._started:  # the previous iteration stopped early
            self._epoch, self._position = self._epoch + 1, 0
        self._started = True
        self._iterations += 1
        return self._epoch_from(self._iterations, self._epoch, self._position)

    def order(self, epoch: int) -> np.ndarray:
        """The indices of the examples in the order of an epoch."""
        count = len(self.dataset)
        return permutation(count, self.seed, epoch) if self.shuffle else np.arange(count)

    def take_order(self) -> np.ndarray:
        """The indices of the batches of the next epoch, or of the rest of one, a row for each; the position moves on as if they had been read.

        >>> loader = Loader(Arrays(np.zeros((5, 1)), np.arange(5)), 2, shuffle=False, drop_last=True)
        >>> loader.take_order().tolist(), loader.state()
        ([[0, 1], [2, 3]], {'epoch': 1, 'position': 0})
        """
        if not self.drop_last:
            raise UserError("Loader", "take_order requires batches of one size. Use drop_last=True.")
        if self._started:
            self._epoch, self._position = self._epoch + 1, 0
        order = self.order(self._epoch)
        rows = [order[self._range(i)] for i in range(self._position, len(self))]
        self._epoch, self._position, self._started = self._epoch + 1, 0, False
        self._iterations += 1
        return np.stack(rows)

    def read(self, order: np.ndarray) -> Iterator[Pair]:
        """The batches of these indices, a row for each, as NumPy arrays; they are prefetched as usual, and the position does not change."""
        return _batches(self.dataset, iter(order), self.workers, self.prefetch)

    def state(self) -> dict[str, int]:
        """The position in the run, for `load` to resume from, in whole batches: it holds for every shard."""
        if self._position == len(self):
            return {"epoch": self._epoch + 1, "position": 0}
        return {"epoch": self._epoch, "position": self._position // self.shard.count}

    def load(self, state: Mapping[str, int]) -> None:
        """Restore a position returned by `state`: the next `for` loop yields the rest of that epoch."""
        if set(state) != {"epoch", "position"}:
            raise UserError("Loader.load", f"a state must have epoch and position, got {', '.join(map(str, state))}.")
        epoch, position = (whole("Loader.load", name, state[name]) for name in ("epoch", "position"))
        position *= self.shard.count
        if position >= len(self):
            raise UserError(
                "Loader.load",
                f"the position must be below {len(self)}, the number of batches, got {position}. Use a loader with the same settings.",
            )
        self._epoch, self._position, self._started = epoch, position, False
        self._iterations += 1  # iterators that are still active no longer change the position

    def _epoch_from(self, iteration: int, epoch: int, first: int) -> Iterator[Pair]:
        order = self.order(epoch)
        batches = (order[self._range(i)] for i in range(first, len(self)))
        for position, (x, y) in enumerate(_batches(self.dataset, batches, self.workers, self.prefetch), first + 1):
            if iteration == self._iterations:  # only the newest iterator sets the position
                self._position = position
            yield x, y
        if iteration == self._iterations:
            self._epoch, self._position, self._started = epoch + 1, 0, False

    def _range(self, number: int) -> slice:
        """Where the examples of a batch, or of a micro-batch of the shard, lie in the order of an epoch."""
        batch, part = divmod(number, self.shard.count)
        size = self.batch // self.shard.micro_batches
        begin = batch * self.batch + (self.shard.first + part) * size
        return slice(begin, begin + size)


def permutation(count: int, seed: int, epoch: int) -> np.ndarray:
    """A permutation of 0..count-1 that depends on seed and epoch.

    It sorts raw Philox output, which is stable across versions of NumPy; NumPy's own permutations are not.
    """
    words = np.random.Philox(key=np.array([seed, epoch], np.uint64)).random_raw(count)
    return np.argsort(words, kind="stable")


def _check_not_empty(count: int, batch: int, drop_last: bool) -> None:
    if count == 0:
        raise UserError("Loader", "a dataset with at least one example is required, got an empty one.")
    if drop_last and count < batch:
        raise UserError(
            "Loader", f"{count} examples do not fill a batch of {batch}. Use a smaller batch, or drop_last=False."
        )


def _check_shard(shard: Shard, batch: int, drop_last: bool) -> None:
    if not drop_last or batch % shard.micro_batches:
        raise UserError(
            "Loader",
            f"batches that can be cut into {shard.micro_batches} equal micro-batches, and drop_last=True, are required, got batch={batch}.",
        )


# --- filling batches -------------------------------------------------------------------------------------------------

Pair = tuple[np.ndarray, np.ndarray]


def _batches(dataset: IndexableDataset, batches: Iterator[np.ndarray], workers: int, prefetch: int) -> Iterator[Pair]:
    """Yield batches in order. A new batch is submitted for each one consumed, so threads never block on a full queue."""
    if workers == 0:
        yield from (_raise_failure(_fill(dataset, indices)) for indices in batches)
        return
    threads, pending = _PrefetchThreads(dataset, workers), deque[Callable[[], Pair]]()
    try:
        for indices in batches:
            pending.append(threads.submit(indices))
            if len(pending) > max(prefetch, workers):
                yield pending.popleft()()
        while pending:
            yield pending.popleft()()
    finally:  # end of the epoch, an error, Ctrl-C, or the iterator was dropped
        threads.close()


class _PrefetchThreads:
    """Threads that fill batches. They hold no reference to the iterator, so that dropping it closes them."""

    def __init__(self, dataset: IndexableDataset, workers: int) -> None:
        self.dataset, self.process = dataset, os.getpid()
        self.executor = ThreadPoolExecutor(workers, "weft-loader")

    def submit(self, indices: np.ndarray) -> Callable[[], Pair]:
        """Submit a batch; calling the result waits for it."""
        future = (
            self.executor.submit(copy_context().run, _fill, self.dataset, indices) if self._owns_threads() else None
        )
        return lambda: self._result(future, indices)

    def _result(self, future: Future[_Filled] | None, indices: np.ndarray) -> Pair:
        if future is None or not self._owns_threads():
            return _raise_failure(_fill(self.dataset, indices))
        with recorded("wait for data", "wait"):
            return _raise_failure(future.result())

    def _owns_threads(self) -> bool:
        """Whether this is the process that started the threads: a forked process has no copy of them and would hang."""
        return os.getpid() == self.process

    def close(self) -> None:
        """Cancel pending batches. A thread ends after its current batch."""
        if self._owns_threads():
            self.executor.shutdown(wait=False, cancel_futures=True)


class _Failure(NamedTuple):
    text: str
    error: Exception


_Filled = Pair | _Failure


def _fill(dataset: IndexableDataset, indices: np.ndarray) -> _Filled:
    """Read the arrays of a batch as copies, so that the dataset may reuse its buffers."""
    try:
        with recorded("load a batch", "data", examples=len(indices)):
            x, y = _native_read_only(_inputs(dataset, indices)), _native_read_only(np.array(dataset.labels[indices]))
    except Exception as error:  # any error of a user's dataset is raised in the consumer's thread
        return _Failure(_read_failure(dataset, indices, error), error)
    if len(x) != len(indices):
        problem = f"inputs() must return one input per index, got {len(x)} for {len(indices)} indices."
        return _Failure(problem, ValueError(problem))
    return x, y


def _inputs(dataset: IndexableDataset, indices: np.ndarray) -> np.ndarray:
    if type(dataset) is Subset:
        indices, dataset = dataset.indices[indices], dataset.base
    if type(dataset) is Arrays:  # a single copy from memory or from a mapped file
        return np.take(np.asarray(dataset.x), indices, axis=0)
    if isinstance(dataset, Encoded) and RECORDING.active is not None:
        return _inputs_by_stage(dataset, indices)
    if isinstance(dataset, (MappedImages, Encoded)):  # they return copies already
        return dataset.inputs(indices)
    return np.array(dataset.inputs(indices), order="C")


def _inputs_by_stage(dataset: Encoded, indices: np.ndarray) -> np.ndarray:
    """The same, reading and decoding apart on the timeline that is being recorded."""
    found: Any = indices
    for name, stage in loading_stages(dataset):
        with recorded(name, "data"):
            found = stage(found)
    array: np.ndarray = found
    return array


def _native_read_only(array: np.ndarray) -> np.ndarray:
    """Convert to native byte order and make read-only, because tensors share the memory."""
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    native.flags.writeable = False
    return native


def _read_failure(dataset: IndexableDataset, indices: np.ndarray, error: Exception) -> str:
    """Describe why a batch cannot be read, with the index of the failing example if there is one."""
    for index in indices:
        try:
            dataset.inputs(np.array([index]))
        except Exception as one:
            return f"example {index} cannot be read: {type(one).__name__}: {one}"
    listed = ", ".join(map(str, indices[:4])) + (", ..." if len(indices) > 4 else "")
    return f"the batch of examples {listed} cannot be read: {type(error).__name__}: {error}"


def _raise_failure(result: _Filled) -> Pair:
    """Return the arrays, or raise the error of a thread here, where the user's line is known."""
    if isinstance(result, _Failure):
        raise RunError("Loader", result.text) from result.error
    return result
