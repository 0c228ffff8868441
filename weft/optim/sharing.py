"""How the processes of a data-parallel training share gradients, parameters and the state of an optimizer.

All processes have all parameters. Gradients are summed in buckets, which an engine may send as one message. With `zero`, each process keeps the state of a part of every parameter only, updates that part, and
the parts are gathered (ZeRO): zero=1 sums whole gradients, zero=2 gives each process the sum of its part alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from ..control import cond
from ..dtypes import int64
from ..errors import UserError
from ..mesh import mesh as meshes
from ..ops.collective import all_gather, all_reduce, all_reduce_many, axis_index, reduce_scatter
from ..ops.creation import zeros
from ..ops.movement import pad_axis, reshape
from ..tensor import Tensor
from .transform import Transform

BUCKET_BYTES = 1 << 22


class Alone:
    """One process."""

    size = 1  # processes whose gradients are summed
    processes = 1  # that train together

    @property
    def rank(self) -> Tensor:
        """The number of this process."""
        return zeros((), dtype=int64)

    def state_of(self, p: Tensor) -> Tensor:
        """The part of a parameter whose state this process keeps."""
        return p

    def sums(self, gs: Sequence[Tensor]) -> list[Tensor]:
        """The gradients of these parts, summed over all processes."""
        return list(gs)

    def total(self, x: Tensor) -> Tensor:
        """A sum over the elements of all parts, given that over those of this process."""
        return x

    def agreed(self, flag: Tensor) -> Tensor:
        """Whether a condition holds in all processes."""
        return flag

    def whole(self, parts: Sequence[Tensor], parameters: Sequence[Tensor]) -> list[Tensor]:
        """New values of whole parameters, given those of the parts of this process."""
        return list(parts)

    def gathered(self, state: Tensor, p: Tensor) -> Tensor:
        """The state of a whole parameter, given that of the part of this process; a collective call."""
        return state

    def local(self, state: Tensor, p: Tensor) -> Tensor:
        """The state of the part of this process, given that of a whole parameter."""
        return state

    def check(self, name: str, chain: Sequence[Transform]) -> None:
        """Raise an error if a chain of transforms cannot work on parts."""


class Replicated(Alone):
    """Processes along an axis that all keep everything."""

    def __init__(self, axis: str) -> None:
        self.axis, self.size = axis, meshes.current().size(axis)
        self.processes = self.size

    @property
    def rank(self) -> Tensor:
        return axis_index(self.axis)

    def sums(self, gs: Sequence[Tensor]) -> list[Tensor]:
        sums: dict[int, Tensor] = {}
        for bucket in _buckets(gs):
            sums |= zip(bucket, all_reduce_many([gs[i] for i in bucket], self.axis), strict=True)
        return [sums[i] for i in range(len(gs))]

    def agreed(self, flag: Tensor) -> Tensor:
        return all_reduce(flag.astype("int32"), self.axis, "min") > 0


class Local(Alone):
    """Processes along an axis that train by themselves, and average their parameters after some steps (local SGD, Stich 2019).

    The state of the optimizer is averaged with them (Yu, Jin and Yang 2019), so that a checkpoint of that moment is that of all processes.
    """

    def __init__(self, axis: str, every: int) -> None:
        self.axis, self.every = axis, every
        self.processes = meshes.current().size(axis)

    @property
    def rank(self) -> Tensor:
        return axis_index(self.axis)

    def agreed(self, flag: Tensor) -> Tensor:
        return all_reduce(flag.astype("int32"), self.axis, "min") > 0  # a step is counted by all processes, or by none

    def means(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The means of tensors over all processes."""
        return [t / float(self.processes) for t in all_reduce_many(tensors, self.axis)]

    def averaged(self, tensors: Sequence[Tensor], steps: Tensor) -> list[Tensor]:
        """The same, if an average is due after this step."""
        if not tensors:
            return []
        return list(cond(steps % self.every == 0, lambda *ts: tuple(self.means(ts)), lambda *ts: ts, *tensors))


class Sharded(Replicated):
    """Processes along an axis that each keep the state of a part of every parameter."""

    def __init__(self, axis: str, zero: int) -> None:
        super().__init__(axis)
        self.zero = zero

    def check(self, name: str, chain: Sequence[Transform]) -> None:
        whole = [type(t).__name__ for t in chain if not t.elementwise]
        if whole:
            raise UserError(
                name,
                f"zero= splits parameters, and {', '.join(whole)} needs them whole. Take zero=0, or another optimizer.",
            )

    def state_of(self, p: Tensor) -> Tensor:
        return self._part(p)

    def sums(self, gs: Sequence[Tensor]) -> list[Tensor]:
        if self.zero == 1:
            return [self._part(g) for g in super().sums(gs)]
        return [reduce_scatter(self._rows(g), self.axis) for g in gs]

    def total(self, x: Tensor) -> Tensor:
        return all_reduce(x, self.axis)

    def whole(self, parts: Sequence[Tensor], parameters: Sequence[Tensor]) -> list[Tensor]:
        return [self._assembled(all_gather(part, self.axis), p) for part, p in zip(parts, parameters, strict=True)]

    def gathered(self, state: Tensor, p: Tensor) -> Tensor:
        if not state.ndim:  # a count
            return state
        return self._assembled(all_gather(state.detach(), self.axis), p)

    def local(self, state: Tensor, p: Tensor) -> Tensor:
        return self._part(state) if state.ndim else state

    def _rows(self, x: Tensor) -> Tensor:
        """A tensor as one row for each process; the last one is filled up with zeros."""
        count = prod(x.shape)
        length = -(-count // self.size)
        return reshape(pad_axis(reshape(x, (-1,)), 0, 0, length * self.size - count), (self.size, length))

    def _assembled(self, rows: Tensor, p: Tensor) -> Tensor:
        return reshape(reshape(rows, (-1,))[: prod(p.shape)], p.shape)

    def _part(self, x: Tensor) -> Tensor:
        return self._rows(x)[axis_index(self.axis)]


def sharing(axis: str | None, zero: int, local_steps: int) -> Alone:
    """How processes along an axis share."""
    if axis is None or meshes.current().is_single(axis):
        return Alone()
    if local_steps > 1:
        return Local(axis, local_steps)
    return Sharded(axis, zero) if zero else Replicated(axis)


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[int]]:
    """Numbers of tensors, of up to BUCKET_BYTES together; the last parameters first, whose gradients are made first."""
    bucket: list[int] = []
    filled = 0
    for i in reversed(range(len(tensors))):
        nbytes = tensors[i].size * tensors[i].dtype.itemsize
        if bucket and filled + nbytes > BUCKET_BYTES:
            yield bucket
            bucket, filled = [], 0
        bucket.append(i)
        filled += nbytes
    if bucket:
        yield bucket
