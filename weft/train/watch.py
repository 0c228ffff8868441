"""What happens between training steps: timing, checkpoints, callbacks, and reasons to stop."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

from ..errors import RunError
from ..metrics import Metric
from ..records import dataclass
from ..report.text_format import counted
from ..runtime import device
from ..signals import handling, terminate
from ..tensor import Tensor
from .folder import RunFolder
from .ranks import Ranks
from .resources import resources
from .state import Training
from .steps import Steps
from .task import best_epochs, epoch_text, is_better

NEWS_SECONDS = 1.0  # between two progress events
RESOURCE_SECONDS = 10.0  # between two lines about memory and processor time
NOTHING = (0.0,) * 4  # neither a checkpoint nor a reason to stop


class Stop(Exception):
    """Training ends before all epochs are done."""


class Interrupted(Stop):
    """Ctrl-C was pressed."""


class AskedToEnd(Stop):
    """SIGTERM was received, for example from a scheduler."""


@dataclass(frozen=True)
class Now:
    """The progress of a training."""

    epoch: int  # from 1
    epochs: int
    step: int  # of this epoch, from 1
    steps: int  # in an epoch
    examples_per_second: float
    loss: Tensor  # of this step
    meters: Mapping[str, Metric]  # of this epoch so far


class Watch:
    """Called after every step and every epoch."""

    def __init__(
        self, training: Training, steps: Steps, run: RunFolder | None, ranks: Ranks, epochs: int, per_epoch: int, *,
        keeps: bool, max_seconds: float | None, save_seconds: float, patience: int | None, keep: int,
        on_step: Callable[[Now], None] | None,
    ) -> None:  # fmt: skip
        """`keeps`: whether the run has a folder; only rank 0 writes to it."""
        self.training, self.steps, self.run, self.epochs, self.per_epoch = training, steps, run, epochs, per_epoch
        self.ranks, self.keeps = ranks, keeps
        self.max_seconds, self.save_seconds, self.patience, self.keep = max_seconds, save_seconds, patience, keep
        self.on_step = on_step
        self.before, self.start = training.seconds, time.monotonic()
        self.last_save = self.last_news = self.epoch_start = self.start
        self.last_resources = -math.inf
        self.examples = 0  # of this epoch, seen by this process
        self.interrupts = 0
        self.terminated = False
        self._asked: tuple[float, ...] = (
            NOTHING  # what processes have agreed on: to write a checkpoint, reasons to stop
        )

    def seconds(self) -> float:
        """Training time so far, without pauses."""
        return self.before + time.monotonic() - self.start

    def begins_epoch(self) -> None:
        self.epoch_start, self.examples = time.monotonic(), 0

    def speed(self) -> float:
        """Examples per second in this epoch."""
        return self.ranks.size * self.examples / max(time.monotonic() - self.epoch_start, 1e-9)

    def stepped(self, loss: Tensor, examples: int, steps: int = 1) -> None:
        """After a step, or several: write a checkpoint if it is due, call callbacks, and check whether to stop."""
        self.training.steps += steps
        self.training.batches += steps
        self.examples += examples
        device().keep_up()
        now = time.monotonic()
        if self.on_step is not None:
            self.on_step(self._now(loss))
        if now - self.last_news >= NEWS_SECONDS:
            self.last_news = now
            self._tell(loss)
        if self.training.batches % self.ranks.accumulate == 0:  # checkpoints are written between two whole batches only
            asked = self.ranks.agreed(now - self.last_save >= self.save_seconds, *self._reasons())
            self._asked = tuple(map(max, self._asked, asked))
            if any(self._asked) and self.training.optimizer.in_step:  # local SGD: after the next average
                (saves, *stops), self._asked = self._asked, NOTHING
                if saves:
                    self.save()
                _stop(*stops)

    def wants_pause(self) -> bool:
        """Whether this process has a reason to stop, or to write a checkpoint."""
        return any(self._reasons()) or time.monotonic() - self.last_save >= self.save_seconds

    def show(self, step: int, loss: Tensor, meters: Mapping[str, Metric]) -> None:
        """Call the callback in the middle of steps that this process does not take itself."""
        if self.on_step is not None:
            training = self.training
            self.on_step(Now(training.epoch + 1, self.epochs, step, self.per_epoch, self.speed(), loss, meters))

    def _reasons(self) -> tuple[bool, bool, bool]:
        """Why this process should stop: the time, Ctrl-C, SIGTERM."""
        over = self.max_seconds is not None and self.seconds() >= self.max_seconds
        return over, self.interrupts > 0, self.terminated

    def stop_if_asked(self) -> None:
        """Stop if any of the processes has received a signal; a collective call."""
        _stop(0, *self.ranks.agreed(*self._reasons()[1:], now=True))

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM wait for the end of a step, so that the checkpoint is written between two steps.

        A second Ctrl-C raises KeyboardInterrupt at once; a second SIGTERM ends the process, even in the middle of native code.
        """
        with (
            handling(signal.SIGINT, self._interrupt, (signal.default_int_handler,)),
            handling(signal.SIGTERM, self._terminate, (signal.SIG_DFL, terminate)),
        ):
            yield

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self.interrupts += 1
        if self.interrupts > 1:
            raise KeyboardInterrupt

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        self.terminated = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _now(self, loss: Tensor) -> Now:
        training = self.training
        return Now(
            training.epoch + 1, self.epochs, training.batches, self.per_epoch, self.speed(), loss, training.meters
        )

    def _tell(self, loss: Tensor) -> None:
        self.stop_if_bad()
        if self.run is not None:
            at = self._now(loss)
            self.run.event(
                "progress", epoch=at.epoch, epochs=at.epochs, step=at.step, steps=at.steps, loss=float(loss.item()),
                examples_per_second=round(at.examples_per_second, 1),
            )  # fmt: skip
            if self.last_news - self.last_resources >= RESOURCE_SECONDS:
                self.last_resources = self.last_news
                self.run.event("resources", **resources())

    def save(self) -> None:
        """Write a checkpoint, unless the loss is not finite."""
        self.stop_if_bad()
        self.training.seconds = self.seconds()
        tensors = self.training.whole_tensors() if self.keeps else {}
        if self.run is not None:
            self.training.save(self.run.checkpoint, tensors)
        self.last_save = time.monotonic()

    def ended_epoch(self, row: dict[str, float]) -> None:
        """After an epoch: record its metrics and check for early stopping."""
        training = self.training
        training.seconds = self.seconds()
        row["seconds"] = round(training.seconds, 3)
        training.epoch, training.batches = training.epoch + 1, 0
        for meter in training.meters.values():
            meter.reset()
        self._tell_of_ranks()
        better = is_better(row, training.best)
        training.history.append(row)
        training.best = row if better else training.best
        self._write_weights(row, better)
        if self.run is not None:
            self._write(self.run, row)
        self.save()
        if self.patience is not None and training.epoch - int(training.best["epoch"]) >= self.patience:
            raise Stop(f"no better result in {counted(self.patience, 'epoch')}")

    def _tell_of_ranks(self) -> None:
        """Record the speed and the memory of each of several processes."""
        if self.ranks.processes == 1:
            return
        used = resources().get("memory_bytes") or 0
        table = self.ranks.gathered(os.getpid(), self.speed() / self.ranks.size, used)
        for rank, (pid, speed, memory) in enumerate(table if self.run is not None else ()):
            assert self.run is not None
            self.run.event("rank", rank=rank, pid=int(pid), examples_per_second=round(speed, 1), memory=int(memory))

    def _write_weights(self, row: dict[str, float], better: bool) -> None:
        """Write the weights of an epoch; gathering them is a collective call."""
        if not self.keeps:
            return
        with self.training.averaged():
            tensors, run = self.training.places.whole_network(), self.run
            if run is None:
                return
            if better:
                run.weights("best", tensors)
            run.weights("last", tensors)
            if self.keep:
                run.keep_epochs(tensors, int(row["epoch"]), best_epochs(self.training.history, self.keep))

    def _write(self, run: RunFolder, row: dict[str, float]) -> None:
        run.rows(self.training.history)
        run.summary(epochs=len(self.training.history), best=self.training.best, last=row, seconds=row["seconds"])
        run.event("epoch", **row)
        run.scalars(row)
        run.log(epoch_text(row, self.epochs))

    def stop_if_bad(self) -> None:
        """Raise an error if the loss is not finite: at which step it began, and which parameters are affected."""
        step = int(self.steps.first_bad.item())
        if step < 0:
            return
        tensors = self.training.places.network()
        bad = [name for name, t in tensors.items() if not math.isfinite(float(t.detach().sum().item()))]
        where = f"in {', '.join(bad[:3])}" if bad else "in no parameter yet"
        raise RunError(
            "fit",
            f"the loss was nan or infinite at step {step + 1}; such values are now {where}. "
            "Use a smaller learning rate, clip_norm=1.0, or check the data.",
        )


def _stop(time_is_over: float, interrupted: float, terminated: float) -> None:
    """End the training for the first reason that holds."""
    if time_is_over:
        raise Stop("the time is over")
    if interrupted:
        raise Interrupted("it was interrupted")
    if terminated:
        raise AskedToEnd("it was terminated")
