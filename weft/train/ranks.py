"""Training over several processes: what each of them does, and what they must agree on.

Every process calls `fit` with the same arguments. Those along the axis `data` have micro-batches of their own; those along `pipeline` and
`model` share the network, and get the same examples. Rank 0 alone writes files. The processes take the same decisions because they take
them on the same numbers: metrics are summed over all, and reasons to stop that only one of them knows (a signal, the time) are exchanged
several times a second.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..data.loader import Loader, Shard
from ..errors import UserError
from ..mesh.mesh import current, run_collective
from ..mesh.world import world
from ..metrics import Metric
from ..nn.module import Module
from ..ops.collective import all_reduce, broadcast
from ..ops.creation import zeros_like
from ..parallel.forms import DATA, MODEL, PIPELINE
from ..parallel.sizes import ParallelSizes, read_sizes
from ..report.text_format import counted
from ..tensor import Tensor

AGREE_SECONDS = 0.25  # between two exchanges of reasons to stop
ONE = ParallelSizes()
PER_STAGE = 4  # micro-batches for each stage of a pipeline, unless their number is given


class Ranks:
    """The processes of a training; one process is a special case."""

    def __init__(
        self, sizes: ParallelSizes = ONE, micro_batches: int | None = None, staleness: int | str | None = None
    ) -> None:
        """`staleness`: the bound of a parameter server."""
        self.sizes, self.size, self.processes = sizes, sizes.data, sizes.processes
        self._given, self.staleness = micro_batches, staleness
        check_micro_batches(sizes, micro_batches)
        self.micro_batches = 1 if sizes.server else micro_batches or self.size
        places = [self._index(axis) for axis in (DATA, PIPELINE, MODEL)]
        self.rank = places[0]
        self.leads = not any(places)  # whether this process writes files
        self._interval, self._since, self._last = 1, 0, time.monotonic()

    @classmethod
    def of(cls, parallel: str | None, micro_batches: int | None, staleness: int | str | None = None) -> Ranks:
        """From a setting such as "data:4"; the mesh is made if there is none. Without it, there is one process."""
        sizes = read_sizes(parallel, world().size)
        if sizes.processes > 1:
            sizes.mesh()
        return cls(sizes, None if sizes.server else micro_batches, staleness)

    def _index(self, axis: str) -> int:
        return current().index(axis) if getattr(self.sizes, axis) > 1 else 0

    @property
    def accumulate(self) -> int:
        """The calls of a step for each batch; a pipeline takes all micro-batches of this process in one."""
        return 1 if self.sizes.pipeline > 1 or self.sizes.server else self.micro_batches // self.size

    # --- data ---------------------------------------------------------------------------------------------------------------------

    def shard(self, loader: Any) -> Any:
        """The loader with this process's micro-batches of every batch; workers of a parameter server have whole batches."""
        if self.micro_batches == self.processes == 1:
            return loader
        if not isinstance(loader, Loader):
            raise UserError("fit", "several ranks or micro-batches require a weft.data.Loader of training data.")
        if not loader.drop_last:
            raise UserError(
                "fit",
                "ranks share batches of one size: a Loader that drops the last, smaller batch (drop_last) is required.",
            )
        if self.sizes.server:
            return loader
        self.micro_batches = micro_batches_of(self.sizes, self._given, loader.batch)
        check_batch(self.sizes, self.micro_batches, loader.batch, len(loader.dataset))
        count = self.accumulate
        parts = self.size if self.sizes.pipeline > 1 else self.micro_batches
        return Loader(
            loader.dataset, loader.batch, shuffle=loader.shuffle, seed=loader.seed, drop_last=loader.drop_last,
            workers=loader.workers, prefetch=loader.prefetch, shard=Shard(parts, self.rank * count, count), limit=loader.limit,
        )  # fmt: skip

    def settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The optimizer's settings: it averages over processes and micro-batches."""
        if self.sizes.server or (self.micro_batches == 1 and self.sizes.pipeline == 1):
            return dict(given)
        calls = given.get("accumulate", 1)
        if calls != 1:
            raise UserError(
                "fit",
                f"accumulate={calls} is for one rank. With several, gradients are accumulated over the micro-batches of a batch: "
                f"use micro_batches={calls * self.micro_batches} and a batch {calls} times as large.",
            )
        return {**given, "accumulate": self.accumulate, **({"axis": DATA} if self.size > 1 else {})}

    def check(self, refused: Mapping[str, Sequence[str]]) -> None:
        """Reject axes that other settings rule out; `refused` names these settings."""
        for axis, names in refused.items():
            if getattr(self.sizes, axis) > 1:
                raise UserError(
                    "fit", f"{names[0]}= cannot be used with parallel={self.sizes}. Use data:{self.processes}."
                )

    # --- agreement -----------------------------------------------------------------------------------------------------------------

    def start_alike(self, model: Module) -> None:
        """Send the parameters of rank 0 to all processes."""
        for tensor in model.named_tensors().values() if self.processes > 1 else ():
            for axis in self.sizes.axes:
                tensor.assign(broadcast(tensor.detach(), axis))

    def values(self, meters: Mapping[str, Metric]) -> dict[str, float]:
        """The values of metrics over the examples of all processes."""
        return {name: float(self.merged(meter).value().item()) for name, meter in meters.items()}

    def merged(self, meter: Metric) -> Metric:
        """A metric over the examples of all processes."""
        whole = copy.copy(meter)
        for name, tensor in vars(meter).items():
            if isinstance(tensor, Tensor):
                setattr(whole, name, self._total(tensor.detach(), meter.combine.get(name, "sum")))
        return whole

    def _total(self, count: Tensor, combine: str) -> Tensor:
        """Combine counts over batches of all processes. Those of a pipeline are made by its last stage."""
        if self.sizes.pipeline > 1:
            count = broadcast(count, PIPELINE, self.sizes.pipeline - 1)
        return all_reduce(count, DATA, combine) if self.size > 1 else count

    def own_share(self, total: Tensor, combine: str) -> Tensor:
        """The part of such a total that this process holds after a checkpoint was loaded: rank 0 holds all of a sum."""
        return total if self.rank == 0 or combine != "sum" else zeros_like(total)

    def told_by_leader(self, text: str) -> str:
        """A text of the leading process, in all of them; a collective call."""
        return broadcast_text(text, self.sizes.axes)

    def gathered(self, *numbers: float) -> list[list[float]]:
        """Numbers of all processes, by rank; a collective call."""
        found = np.array(numbers, np.float64)
        for axis in reversed(self.sizes.axes):
            found = run_collective("all_gather", found, axis, current().axes, "summed")
        rows: list[list[float]] = found.reshape(-1, len(numbers)).tolist()
        return rows

    def agreed(self, *wishes: float, now: bool = False) -> tuple[float, ...]:
        """For each of several requests, the largest value of any process; zeros between two exchanges.

        It is called by all processes after the same steps. They exchange requests four times a second: how many steps that is, they
        agree on, too.
        """
        if self.processes == 1:
            return wishes
        self._since += 1
        if self._since < self._interval and not now:
            return (0.0,) * len(wishes)
        moment = time.monotonic()
        taken = (moment - self._last) / self._since
        given = np.array([*wishes, taken])
        for axis in self.sizes.axes:
            given = run_collective("all_reduce", given, axis, current().axes, "max", "summed")
        *found, longest = given.tolist()
        self._interval = max(1, min(1000, int(AGREE_SECONDS / max(longest, 1e-6))))
        self._since, self._last = 0, moment
        return tuple(found)


def min_over_processes(number: int) -> int:
    """The smallest number of any process that was started together with this one; a collective call."""
    size = world().size
    if size == 1:
        return number
    mesh = ParallelSizes(data=size).mesh()
    return int(run_collective("all_reduce", np.asarray(number), DATA, mesh.axes, "min", "summed"))


# --- checks that need no processes -----------------------------------------------------------------------------------------------


def check_micro_batches(sizes: ParallelSizes, given: int | None) -> None:
    """Reject micro-batches that ranks cannot share evenly."""
    if given is not None and given % sizes.data and not sizes.server:
        more = -(-given // sizes.data) * sizes.data
        raise UserError(
            "fit",
            f"{sizes.data} ranks cannot share {counted(given, 'micro-batch', 'micro-batches')} evenly. Use micro_batches={more}.",
        )


def micro_batches_of(sizes: ParallelSizes, given: int | None, batch: int) -> int:
    """The micro-batches of a batch: as given, or one per rank; of a pipeline as many as keep its stages busy and divide the batch evenly."""
    if given is not None or sizes.pipeline == 1:
        return given or sizes.data
    return sizes.data * largest_divisor(batch // sizes.data, PER_STAGE * sizes.pipeline)


def check_batch(sizes: ParallelSizes, parts: int, batch: int, examples: int) -> None:
    """Reject batches that cannot be divided into equal micro-batches. A batch has at most all of the examples."""
    if batch % parts == 0:
        return
    fitting = [size for size in (batch // parts * parts, -(-batch // parts) * parts) if 0 < size <= examples]
    hint = f"Use batch={' or batch='.join(map(str, fitting))}." if fitting else "Use fewer ranks."
    all_of = " (all of the training data)" if batch == examples else ""
    each = f", one or more for each of {sizes.data} ranks" if sizes.data > 1 else ""
    raise UserError(
        "fit",
        f"a batch of {counted(batch, 'example')}{all_of} cannot be divided into {parts} equal micro-batches{each}. {hint}",
    )


def check_zero(zero: Any, ranks: int | None) -> None:
    """Reject stages of ZeRO that there are not, and ZeRO without ranks that share batches. None: their number is not known yet."""
    if zero not in (0, 1, 2):
        raise UserError("fit", f"zero is 0, 1 or 2, got {zero!r}.")
    if zero and ranks == 1:
        raise UserError("fit", f"zero={zero} shards the optimizer's state over ranks that share every batch, got one rank. Use parallel=data:2 or more, or leave zero= out.")  # fmt: skip


# --- agreements ------------------------------------------------------------------------------------------------------------------


def broadcast_text(text: str, axes: Iterable[str]) -> str:
    """A text of the first process along these axes of the mesh, in all of them; a collective call."""
    encoded, known = text.encode(), current().axes
    length = np.asarray(len(encoded))
    for axis in axes:
        length = run_collective("broadcast", length, axis, known, 0)
    told = np.resize(np.frombuffer(encoded or b" ", np.uint8), int(length))
    for axis in axes:
        told = run_collective("broadcast", told, axis, known, 0)
    return told.tobytes().decode()


def refused_axes(settings: Mapping[str, Any]) -> dict[str, list[str]]:
    """The axes that settings rule out, with the names of these settings.

    >>> refused_axes({"freeze": 1, "local_steps": 1})
    {'pipeline': ['freeze']}
    """
    found: dict[str, list[str]] = {}
    for name, axes in {"freeze": (PIPELINE,), "freeze_layers": (PIPELINE,), "local_steps": (PIPELINE, MODEL)}.items():
        if settings.get(name) not in (None, 0, 1 if name == "local_steps" else 0):
            for axis in axes:
                found.setdefault(axis, []).append(name)
    return found


def largest_divisor(number: int, most: int) -> int:
    """
    >>> largest_divisor(48, 10), largest_divisor(7, 4)
    (8, 1)
    """
    return next(n for n in range(max(1, min(most, number)), 0, -1) if number % n == 0)
