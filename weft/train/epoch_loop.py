"""The epochs of a training: steps, then validation, until all epochs are done or there is a reason to stop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..runtime import device
from ..signals import Terminated
from .batches import arrays
from .epoch_program import ResidentEpochs
from .names import Row
from .phase import Phase
from .server_steps import ServerSteps
from .watch import AskedToEnd, Interrupted, Stop, Watch
from .watched import WatchedExamples


class EpochLoop:
    """The loop over epochs; `resident_epochs`, if the examples are on the device, runs an epoch as one program."""

    def __init__(
        self, watch: Watch, phase: Phase, train: Any, validation: Any, resident_epochs: ResidentEpochs | None,
        watched: WatchedExamples | None, on_epoch: Callable[[Row], None] | None,
    ) -> None:  # fmt: skip
        self.watch, self.phase, self.train, self.validation = watch, phase, train, validation
        self.resident_epochs, self.watched, self.on_epoch = resident_epochs, watched, on_epoch
        self.training, self.steps, self.ranks = watch.training, watch.steps, watch.ranks

    def run(self) -> str:
        """Train until the end; returns why it ended. The end is recorded in the run folder, also after an error."""
        ended = "it failed"
        try:
            with self.watch.interruptible():
                while self.training.epoch < self.watch.epochs:
                    self._epoch()
            ended = "all epochs are done"
        except Stop as stop:
            ended = str(stop)
            self.watch.save()
            if isinstance(stop, Interrupted):
                raise KeyboardInterrupt from None
            if isinstance(stop, AskedToEnd):
                raise Terminated from None
        finally:
            self.training.model.unfreeze()
            if self.watch.run is not None:
                self.watch.run.close(ended, self.training.epoch)
        return ended

    def _epoch(self) -> None:
        self.phase.begin(self.training.epoch)
        self.watch.begins_epoch()
        if self.training.batches < len(self.train):  # else it was stopped after the last batch of the epoch
            self._train()
        self.watch.stop_if_bad()
        self.steps.synchronize()
        row = self._metrics()
        self.watch.ended_epoch(row)
        if self.on_epoch is not None:
            self.on_epoch(row)
        self.watch.stop_if_asked()

    def _train(self) -> None:
        """The remaining steps of the epoch."""
        if self.resident_epochs is not None:
            self.watch.stepped(*self.resident_epochs.run(self.training.epoch))
            return
        if isinstance(self.steps, ServerSteps):
            while self.training.batches < len(self.train):
                self.watch.stepped(*self.steps.train_until(self.watch, self.train))
            return
        batches: Iterable[Any] = arrays(self.train)
        for x, y in batches:
            self.watch.stepped(self.steps.step(x, y), x.shape[0])

    def _metrics(self) -> Row:
        """The metrics of the epoch, on training and on validation data."""
        training, ranks = self.training, self.ranks
        row: Row = {"epoch": training.epoch + 1, "steps": training.steps // ranks.accumulate}
        row |= {f"train_{name}": value for name, value in ranks.values(self.steps.meters).items()}
        row["rate"] = training.optimizer.rates()[-1]
        row["examples_per_second"] = round(self.watch.speed(), 1)
        if self.validation is not None:
            with training.averaged():
                found = self._validate()
            row |= {f"validation_{name}": value for name, value in found.items()}
            if self.watched is not None and ranks.leads:
                self.watched.write(training.epoch + 1)
        return row

    def _validate(self) -> Row:
        """The loss and the metrics on validation data, of which each process has every n-th batch."""
        start, ranks, watched = 0, self.ranks, self.watched
        self.steps.set_mode(training=False)
        for meter in self.steps.checks.values():
            meter.reset()
        for number, (x, y) in enumerate(arrays(self.validation)):
            shown = watched is not None and watched.wants(start, x.shape[0])
            if (0 if shown else number % ranks.size) == ranks.rank:
                prediction = self.steps.check(x, y, shown)
                if watched is not None and shown:
                    watched.take(start, prediction)
            start += x.shape[0]
            device().keep_up()
            if ranks.processes == 1:
                self.watch.stop_if_asked()
        return ranks.values(self.steps.checks)
