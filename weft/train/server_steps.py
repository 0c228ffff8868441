"""Training with a parameter server (parallel="server:4"): rank 0 has the optimizer, the other ranks compute gradients as fast as each of them can.

Batches of an epoch are dealt out to the workers in turn. All ranks meet at the end of an epoch and before a checkpoint: they then have the
same parameters, validate together, and decide together whether to stop. How far workers are ahead of each other depends on how fast they
are, so results differ from run to run, unless staleness is 0 and no checkpoint
is due within an epoch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..data.loader import Loader
from ..errors import RunError, UserError
from ..metrics import Mean
from ..ops.convert import asarray
from ..optim import Optimizer
from ..parallel.forms import DATA, UNBOUNDED
from ..parallel.parameter_server import ParameterServer
from ..parallel.server_report import ServerReport, ServerUpdate
from ..parallel.sizes import ParallelSizes
from ..random import SUBSTREAM, default_generator
from ..report.text_format import counted
from ..runtime.free_memory import SHARE, free_bytes, size_text
from ..tensor import Tensor
from .memory import arrays_like
from .ranks import Ranks
from .state import Training
from .steps import StepParts, Steps
from .task import match_target_shape, prediction_of
from .watch import Watch

STALENESS = 4  # unless it is given
PROGRESS_SECONDS = 0.1  # between two calls of `on_step`
# What a server does not have, with the values that stand for not having it.
REFUSED = {
    "micro_batches": (None,), "zero": (0,), "local_steps": (1,), "accumulate": (1,), "average": (None,), "memory": (None,),
    "resident": (False,), "freeze": (0,), "freeze_layers": (0,), "precision": (None, "bfloat16"),
}  # fmt: skip


def check_server(sizes: ParallelSizes | None, staleness: Any, settings: Mapping[str, Any]) -> None:
    """Reject a bound of staleness without a parameter server, and settings that no parameter server has. None: sizes are not known yet."""
    if staleness is not None and staleness != UNBOUNDED and (not isinstance(staleness, int) or isinstance(staleness, bool) or staleness < 0):  # fmt: skip
        raise UserError("fit", f"staleness is a number of steps from 0, or {UNBOUNDED}, got {staleness!r}.")
    if sizes is None or not sizes.server:
        if staleness is not None and sizes is not None:
            raise UserError("fit", "staleness= requires a parameter server, such as parallel=server:4. Leave it out otherwise.")  # fmt: skip
        return
    for name, none in REFUSED.items():
        value = settings.get(name, none[0])
        if value not in none:
            raise UserError("fit", f"{name}={value} cannot be used with parallel={sizes}. Leave it out, or use data:{sizes.data}.")  # fmt: skip


class ServerSteps(Steps):
    """The steps of the server or of a worker; `train_until` runs many of them."""

    def __init__(
        self, parts: StepParts, optimizer: Optimizer, ranks: Ranks, staleness: int | str | None, tell: Callable[[str], None]
    ) -> None:  # fmt: skip
        super().__init__(parts, optimizer)
        bound = None if staleness == UNBOUNDED else STALENESS if staleness is None else int(staleness)
        self.server = ParameterServer(
            parts.model, parts.training_loss, lambda parameters: optimizer, axis=DATA, staleness=bound, precision=parts.precision,
            loss_of_batch=self._loss_of_batch,
        )  # fmt: skip
        self.ranks, self._tell, self._told = ranks, tell, False
        tell(
            f"a parameter server and {counted(self.server.workers, 'worker')}, staleness {bound if bound is not None else UNBOUNDED}"
        )

    def _loss_of_batch(self, x: Tensor, y: Tensor) -> Tensor:
        given, target = self.parts.inputs(x, y)
        prediction = match_target_shape(prediction_of(self.model(given)), y)
        loss = self.parts.training_loss(prediction, target)
        self._note(prediction, y, loss)
        return loss

    def check_memory(self, train: Any, accumulate: int, gradients: int) -> None:
        """Compile the step of a worker, if it fits in memory."""
        if self.server.is_server:
            return
        needed = self.server.memory(*arrays_like(train.dataset, train.batch))
        free = free_bytes()
        if free is not None and needed > SHARE * free:
            raise RunError(
                "fit", f"a step of a worker with {counted(train.batch, 'example')} needs {size_text(needed)}, and {size_text(free)} are free. Use a smaller batch, or fewer workers."
            )  # fmt: skip

    def train_until(self, watch: Watch, loader: Loader) -> tuple[Tensor, int, int]:
        """Train on the rest of an epoch, or until a checkpoint is due or the training should end; the last loss, how many examples, how many
        updates. A collective call."""
        training, begin = watch.training, loader.state()
        order = loader.take_order()
        mine = order[:0] if self.server.worker is None else order[self.server.worker :: self.server.workers]
        before = default_generator.state
        stream = (
            training.steps * self.ranks.size + self.ranks.rank
        ) * SUBSTREAM  # each worker has random numbers of its own
        default_generator.state = (before[0], np.uint64(stream % 2**64))
        progress = _UpdateProgress(watch, training)
        try:
            report = self.server.run(loader.read(mine), listener=progress, stop=progress.may_pause)
        finally:
            default_generator.state = before
        done = len(report.updates)
        if done < len(order):
            loader.load({"epoch": begin["epoch"], "position": begin["position"] + done})
        self._share_meters()
        self._tell_waiting(report)
        last = report.updates[-1].loss if done else 0.0
        return asarray(np.float32(last)), round(done * loader.batch / self.ranks.size), done

    def _share_meters(self) -> None:
        """Give rank 0 the metrics of all workers, as it shows and saves them."""
        for meter in self.meters.values():
            whole = self.ranks.merged(meter)
            for name, tensor in vars(whole).items():
                if isinstance(tensor, Tensor):
                    getattr(meter, name).assign(self.ranks.own_share(tensor, meter.combine.get(name, "sum")))

    def _tell_waiting(self, report: ServerReport) -> None:
        """Tell once how much the workers waited and how stale their gradients were."""
        if not self._told and report.updates:
            self._told = True
            self._tell(str(report))


class _UpdateProgress:
    """Called by the server for each update: shows the mean loss, and ends the training if the loss is not finite."""

    def __init__(self, watch: Watch, training: Training) -> None:
        self.watch, self.first, self.batches = watch, training.steps, training.batches
        self.losses: list[float] = []
        self.mean, self.last, self.updates = Mean(), time.monotonic(), 0

    def may_pause(self) -> bool:
        """Whether the workers should stop for a checkpoint or the end, but not before an update: some have to be made."""
        return self.updates > 0 and self.watch.wants_pause()

    def __call__(self, update: ServerUpdate) -> None:
        self.updates += 1
        if not math.isfinite(update.loss):
            raise RunError("fit", f"the loss was nan or infinite at update {self.first + self.updates}, of worker {update.worker}. Use a smaller learning rate, clip_norm=1.0, or check the data.")  # fmt: skip
        self.losses.append(update.loss)
        if self.watch.on_step is None or time.monotonic() - self.last < PROGRESS_SECONDS:
            return
        self.mean.update(np.asarray(self.losses))
        self.losses, self.last = [], time.monotonic()
        self.watch.show(self.batches + self.updates, asarray(np.float32(update.loss)), {"loss": self.mean})
