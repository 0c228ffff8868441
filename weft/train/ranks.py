"""A training over several processes: what each of them does, and what they must agree on.

Every process calls `fit` with the same arguments. Each has its micro-batches of every batch; rank 0 alone writes files. The processes take
the same decisions because they take them on the same numbers: metrics are summed over all, and reasons to stop that only one of them knows
(a signal, the time) are exchanged now and then.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..data.loader import Loader, Shard
from ..errors import UserError
from ..hints import nearest
from ..mesh.mesh import Mesh, current, run_collective
from ..mesh.world import world
from ..metrics import Metric
from ..nn.module import Module
from ..ops.collective import all_reduce, broadcast
from ..tensor import Tensor

AXIS = "data"
AGREE_SECONDS = 0.25  # between two exchanges of reasons to stop


class Ranks:
    """The processes of a data-parallel training; one process is a special case."""

    def __init__(self, size: int = 1, micro_batches: int | None = None) -> None:
        self.micro_batches = micro_batches or size
        if self.micro_batches % size:
            raise UserError(
                "fit",
                f"{size} processes cannot share {self.micro_batches} micro-batches evenly. Take a multiple of {size}.",
            )
        self.size = size
        self.rank = current().index(AXIS) if size > 1 else 0
        self.accumulate = self.micro_batches // size
        self._interval, self._since, self._last = 1, 0, time.monotonic()

    @classmethod
    def of(cls, parallel: str | None, micro_batches: int | None) -> Ranks:
        """From a setting such as "data:4"; the mesh is made if there is none. Without it, there is one process."""
        size = processes_of(parallel)
        if size > 1 and not _has_mesh(size):
            Mesh(data=size)
        return cls(size, micro_batches)

    @property
    def leads(self) -> bool:
        """Whether this process writes files."""
        return self.rank == 0

    # --- data ---------------------------------------------------------------------------------------------------------------------

    def shard(self, loader: Any) -> Any:
        """The loader with this process's micro-batches of every batch."""
        if self.micro_batches == 1:
            return loader
        if not isinstance(loader, Loader):
            raise UserError("fit", "micro-batches require a weft.data.Loader of training data.")
        return Loader(
            loader.dataset, loader.batch, shuffle=loader.shuffle, seed=loader.seed, drop_last=loader.drop_last,
            workers=loader.workers, prefetch=loader.prefetch,
            shard=Shard(self.micro_batches, self.rank * self.accumulate, self.accumulate),
        )  # fmt: skip

    def settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The optimizer's settings: it averages over processes and micro-batches."""
        if self.micro_batches == 1:
            return dict(given)
        if given.get("accumulate", 1) != 1:
            raise UserError(
                "fit", "micro_batches= says how gradients are accumulated; accumulate= is not given beside it."
            )
        return {**given, "accumulate": self.accumulate, **({"axis": AXIS} if self.size > 1 else {})}

    # --- what all agree on ----------------------------------------------------------------------------------------------------------

    def start_alike(self, model: Module) -> None:
        """Give all processes the parameters of rank 0."""
        if self.size > 1:
            for tensor in model.named_tensors().values():
                tensor.assign(broadcast(tensor.detach(), AXIS))

    def values(self, meters: Mapping[str, Metric]) -> dict[str, float]:
        """The values of metrics over the examples of all processes."""
        return {name: float(self._merged(meter).value().item()) for name, meter in meters.items()}

    def _merged(self, meter: Metric) -> Metric:
        if self.size == 1:
            return meter
        whole = copy.copy(meter)
        for name, tensor in vars(meter).items():
            if isinstance(tensor, Tensor):
                setattr(whole, name, all_reduce(tensor.detach(), AXIS))
        return whole

    def gathered(self, *numbers: float) -> list[list[float]]:
        """Numbers of all processes, by rank. All of them come here."""
        if self.size == 1:
            return [list(numbers)]
        found: list[list[float]] = run_collective(
            "all_gather", np.array(numbers, np.float64), AXIS, current().axes, "summed"
        ).tolist()
        return found

    def agreed(self, *wishes: float, now: bool = False) -> tuple[float, ...]:
        """The largest wish of any process, for each of several; zeros while nobody has been asked.

        It is called by all processes after the same steps. They exchange wishes four times a second: how many steps that is, they
        agree on, too.
        """
        if self.size == 1:
            return wishes
        self._since += 1
        if self._since < self._interval and not now:
            return (0.0,) * len(wishes)
        moment = time.monotonic()
        taken = (moment - self._last) / self._since
        given = np.array([*wishes, taken])
        *found, longest = run_collective("all_reduce", given, AXIS, current().axes, "max", "summed").tolist()
        self._interval = max(1, min(1000, int(AGREE_SECONDS / max(longest, 1e-6))))
        self._since, self._last = 0, moment
        return tuple(found)


def processes_of(parallel: str | None) -> int:
    """The number of processes of a setting such as "data:4".

    >>> processes_of("data:4"), processes_of(None)
    (4, 1)
    """
    if parallel is None:
        return 1
    kind, _, count = str(parallel).partition(":")
    if kind != AXIS:
        raise UserError("fit", f"parallel is data:N, got {parallel!r}. {nearest(kind, [AXIS])}")
    if not count:
        return world().size
    if not count.isdecimal() or int(count) < 1:
        raise UserError("fit", f"parallel is data:N with 1 process or more, got {parallel!r}.")
    return int(count)


def _has_mesh(size: int) -> bool:
    try:
        return current().sizes.get(AXIS) == size
    except UserError:
        return False
