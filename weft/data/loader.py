"""Batches of a dataset, in an order that follows from a seed, filled ahead by threads.

The order of an epoch is a function of (seed, epoch) alone, and a batch one of (order, position). So the place in a run
is two numbers, and neither the number of threads nor an interruption changes what comes next.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import NamedTuple, Protocol

import numpy as np

from ..errors import RunError, UserError
from ..ops.convert import asarray
from ..ops.declare import whole
from ..tensor import Tensor
from .dataset import Arrays
from .stored import Encoded, Mapped
from .subset import Subset


class Source(Protocol):
    """What a loader needs of a dataset."""

    def __len__(self) -> int: ...

    @property
    def labels(self) -> np.ndarray:
        """The labels of all examples."""

    def inputs(self, indices: np.ndarray, /) -> np.ndarray:
        """The inputs of some examples, as one array."""


class Batch(NamedTuple):
    """Some inputs, in the dtype they are stored in, and their labels."""

    x: Tensor
    y: Tensor


class Loader:
    """Batches (x, y) of a dataset; each `for` over it is one epoch.

    With `shuffle`, every epoch has an order of its own. `workers` threads fill batches while the last one is used, at
    most `prefetch` ahead (but one for each worker); with 0 a batch is filled when it is asked for. `drop_last` leaves
    out a last batch that is not full.

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
        dataset: Source,
        batch: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        workers: int = 1,
        prefetch: int = 2,
    ) -> None:
        self.dataset, self.shuffle, self.drop_last = dataset, bool(shuffle), bool(drop_last)
        self.batch = whole("Loader", "size of a batch", batch, least=1)
        self.workers = whole("Loader", "number of workers", workers)
        self.prefetch = whole("Loader", "number of batches to prefetch", prefetch, least=1)
        self.seed = whole("Loader", "seed", seed)
        if self.seed >= 1 << 64:
            raise UserError("Loader", f"a seed is an int from 0 to 2**64 - 1, got {seed}.")
        _not_empty(len(dataset), self.batch, self.drop_last)
        self._epoch = self._position = 0
        self._begun = False  # whether somebody has begun to iterate over this epoch
        self._iterations = 0

    def __len__(self) -> int:
        """How many batches an epoch has."""
        count = len(self.dataset)
        return count // self.batch if self.drop_last else -(-count // self.batch)

    def __iter__(self) -> Iterator[Batch]:
        """The batches of the next epoch, or what is left of the one that `load` went back to."""
        return (Batch(asarray(x), asarray(y)) for x, y in self.arrays())

    def arrays(self) -> Iterator[Pair]:
        """The same as NumPy arrays, which a compiled function takes as they are: a GPU fetches them beside its work."""
        if self._begun:  # somebody stopped early
            self._epoch, self._position = self._epoch + 1, 0
        self._begun = True
        self._iterations += 1
        return self._epoch_from(self._iterations, self._epoch, self._position)

    def order(self, epoch: int) -> np.ndarray:
        """The examples in the order of an epoch."""
        count = len(self.dataset)
        return permutation(count, self.seed, epoch) if self.shuffle else np.arange(count)

    def state(self) -> dict[str, int]:
        """The place in the run: give it to `load` to go on from here."""
        if self._position == len(self):
            return {"epoch": self._epoch + 1, "position": 0}
        return {"epoch": self._epoch, "position": self._position}

    def load(self, state: Mapping[str, int]) -> None:
        """Go to a place that `state` told: the next `for` gives what is left of that epoch."""
        if set(state) != {"epoch", "position"}:
            raise UserError("Loader.load", f"a state has epoch and position, got {', '.join(map(str, state))}.")
        epoch, position = (whole("Loader.load", name, state[name]) for name in ("epoch", "position"))
        if position >= len(self):
            raise UserError(
                "Loader.load", f"position {position} is not among the {len(self)} batches. Load it into a loader alike."
            )
        self._epoch, self._position, self._begun = epoch, position, False
        self._iterations += 1  # whoever still iterates does not move the place any more

    def _epoch_from(self, iteration: int, epoch: int, first: int) -> Iterator[Pair]:
        order = self.order(epoch)
        places = (order[i * self.batch : (i + 1) * self.batch] for i in range(first, len(self)))
        for position, (x, y) in enumerate(_filled(self.dataset, places, self.workers, self.prefetch), first + 1):
            if iteration == self._iterations:  # of several iterators the newest says where the loader is
                self._position = position
            yield x, y
        if iteration == self._iterations:
            self._epoch, self._position, self._begun = epoch + 1, 0, False


def permutation(count: int, seed: int, epoch: int) -> np.ndarray:
    """The numbers 0..count-1 in an order that follows from seed and epoch.

    Sorted by the raw words of Philox, which no version of NumPy may change; its own permutations may.
    """
    words = np.random.Philox(key=np.array([seed, epoch], np.uint64)).random_raw(count)
    return np.argsort(words, kind="stable")


def _not_empty(count: int, batch: int, drop_last: bool) -> None:
    if count == 0:
        raise UserError("Loader", "a dataset with at least one example is required, got an empty one.")
    if drop_last and count < batch:
        raise UserError(
            "Loader", f"{count} examples do not fill a batch of {batch}. Take a smaller one, or keep the last."
        )


# --- filling batches -------------------------------------------------------------------------------------------------

Pair = tuple[np.ndarray, np.ndarray]


def _filled(dataset: Source, places: Iterator[np.ndarray], workers: int, prefetch: int) -> Iterator[Pair]:
    """Batches in order. Threads never wait for room: as many batches are begun as may lie ahead, one for each taken."""
    if workers == 0:
        yield from (_told(_fill(dataset, indices)) for indices in places)
        return
    team, waiting = _Team(dataset, workers), deque[Callable[[], Pair]]()
    try:
        for indices in places:
            waiting.append(team.begin(indices))
            if len(waiting) > max(prefetch, workers):
                yield waiting.popleft()()
        while waiting:
            yield waiting.popleft()()
    finally:  # the end, an error, Ctrl-C, or nobody wants the iterator any more
        team.close()


class _Team:
    """Threads that fill batches. They know the dataset but not who iterates, so a dropped iterator is a closed one."""

    def __init__(self, dataset: Source, workers: int) -> None:
        self.dataset, self.process = dataset, os.getpid()
        self.threads = ThreadPoolExecutor(workers, "weft-loader")

    def begin(self, indices: np.ndarray) -> Callable[[], Pair]:
        """Have a batch filled; calling the result waits for it."""
        future = self.threads.submit(copy_context().run, _fill, self.dataset, indices) if self._is_here() else None
        return lambda: self._finished(future, indices)

    def _finished(self, future: Future[_Filled] | None, indices: np.ndarray) -> Pair:
        here = future is not None and self._is_here()
        return _told(future.result() if future and here else _fill(self.dataset, indices))

    def _is_here(self) -> bool:
        """A forked process has a copy of everything but the threads: what waits for them would wait for ever."""
        return os.getpid() == self.process

    def close(self) -> None:
        """Begin nothing more. A thread ends with the batch that it fills now."""
        if self._is_here():
            self.threads.shutdown(wait=False, cancel_futures=True)


class _Failure(NamedTuple):
    text: str
    error: Exception


_Filled = Pair | _Failure


def _fill(dataset: Source, indices: np.ndarray) -> _Filled:
    """The arrays of a batch. They are copies: the dataset may use its memory again, tensors see theirs unchanged."""
    try:
        x, y = _sealed(_inputs(dataset, indices)), _sealed(np.array(dataset.labels[indices]))
    except Exception as error:  # whatever reading a file or a user's dataset may raise belongs to the consumer
        return _Failure(_unreadable(dataset, indices, error), error)
    if len(x) != len(indices):
        problem = f"inputs() of {len(indices)} examples gave {len(x)}. One for each index is required."
        return _Failure(problem, ValueError(problem))
    return x, y


def _inputs(dataset: Source, indices: np.ndarray) -> np.ndarray:
    if type(dataset) is Subset:
        indices, dataset = dataset.indices[indices], dataset.base
    if type(dataset) is Arrays:  # one copy straight from memory, or from a mapped file
        return np.take(np.asarray(dataset.x), indices, axis=0)
    if isinstance(dataset, (Mapped, Encoded)):  # what they give is a copy already
        return dataset.inputs(indices)
    return np.array(dataset.inputs(indices), order="C")


def _sealed(array: np.ndarray) -> np.ndarray:
    """In the byte order of this machine (files may have the other), and not to be written to: tensors share it."""
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    native.flags.writeable = False
    return native


def _unreadable(dataset: Source, indices: np.ndarray, error: Exception) -> str:
    """What to say of a batch that cannot be read: which of its examples it is, if it is one of them."""
    for index in indices:
        try:
            dataset.inputs(np.array([index]))
        except Exception as one:
            return f"example {index} cannot be read: {type(one).__name__}: {one}"
    listed = ", ".join(map(str, indices[:4])) + (", ..." if len(indices) > 4 else "")
    return f"the batch of examples {listed} cannot be read: {type(error).__name__}: {error}"


def _told(result: _Filled) -> Pair:
    """The arrays; errors of a thread are raised here, where the user's line is known."""
    if isinstance(result, _Failure):
        raise RunError("Loader", result.text) from result.error
    return result
