"""Training: `fit` is the loop, here to be read.

    result = train.fit(zoo.lenet5(), data.open_dataset("mnist"), epochs=5, folder="runs/mnist")

A run that was killed goes on with `resume=True` and ends with the very same bits as one that was not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import metrics as measures
from .. import optim
from ..errors import RunError, UserError
from ..metrics import Mean, Metric
from ..nn.losses import loss as find_loss
from ..nn.module import Module
from ..ops.convert import asarray
from ..precision import LossScale
from ..random import seed as set_seed
from ..tensor import Tensor
from .folder import RunFolder
from .state import Training
from .steps import Loss, Steps

Row = dict[str, float]
METERS: dict[str, Callable[[], Metric]] = {"accuracy": measures.Accuracy, "top5": lambda: measures.TopK(5)}


@dataclass
class Result:
    """How a training went: a row of numbers for each epoch, the best of them, and why it ended."""

    history: list[Row]
    best: Row
    ended: str
    folder: Path | None


def fit(
    model: Module,
    train: Any,
    validation: Any = None,
    *,
    epochs: int = 10,
    optimizer: str | Callable[..., optim.Optimizer] = "adam",
    rate: Any = None,
    loss: str | Loss = "cross_entropy",
    metrics: Sequence[str] = ("accuracy",),
    prepare: Module | None = None,
    precision: str | None = None,
    seed: int = 0,
    patience: int | None = None,
    max_seconds: float | None = None,
    save_seconds: float = 60.0,
    folder: str | Path | None = None,
    resume: bool = False,
    on_epoch: Callable[[Row], None] | None = None,
    notes: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Result:
    """Train a network on a loader of batches (x, y), and check it on another after each epoch.

    `optimizer` and `loss` are names or functions, further settings (clip_norm, weight_decay, accumulate, ...) go to the optimizer.
    `prepare` turns stored inputs into what the network is given, inside the compiled step: conversion, augmentation. `patience`: stop
    after so many epochs without a better result. With a folder, weights, checkpoints and tables are kept there; `notes` are the
    settings that its args.yaml names, if not the ones given here.
    """
    run = None if folder is None else RunFolder(folder)
    set_seed(seed)
    training, steps = _made(model, train, optimizer, rate, loss, metrics, prepare, precision, settings)
    if resume:
        _resume(training, run)
    elif run is not None:
        own = {"epochs": epochs, "rate": rate, "precision": precision, "seed": seed, **settings}
        run.start(own if notes is None else notes)
    ended, clock = "all epochs are done", _Clock(training.seconds, max_seconds, save_seconds)
    try:
        while training.epoch < epochs:
            _set_mode(steps, training=True)
            for x, y in train:
                steps.train(x, y)
                training.steps += 1
                if clock.save_is_due():
                    _keep(run, training, clock)
                if clock.is_over():
                    raise _Stop("the time is over")
            _stop_if_bad(steps, model)
            row = _row(training, steps, clock, validation)
            training.epoch += 1
            better = _is_better(row, training.best)
            training.history.append(row)
            training.best = row if better else training.best
            _keep(run, training, clock, best=better)
            if on_epoch is not None:
                on_epoch(row)
            if patience is not None and training.epoch - int(training.best["epoch"]) >= patience:
                raise _Stop(f"no better result in {patience} epochs")
    except _Stop as stop:
        ended = str(stop)
        _keep(run, training, clock)
    except KeyboardInterrupt:
        _keep(run, training, clock)
        raise
    finally:
        if run is not None:
            run.close()
    return Result(training.history, training.best, ended, None if run is None else run.path)


class _Stop(Exception):
    """The training ends before all epochs are done."""


def _made(
    model: Module,
    train: Any,
    optimizer: Any,
    rate: Any,
    loss: Any,
    names: Sequence[str],
    prepare: Module | None,
    precision: str | None,
    settings: Mapping[str, Any],
) -> tuple[Training, Steps]:
    """The network, its optimizer and its meters, ready for the first step."""
    unknown = [n for n in names if n not in METERS]
    if unknown:
        raise UserError("fit", f"there is no metric {unknown[0]!r} to train with. Known: {', '.join(METERS)}.")
    prepared = prepare or _Same()
    prepared.eval()
    model(prepared(asarray(train.dataset.inputs(np.arange(1)))))  # makes parameters whose sizes are not known yet
    made = optim.find(optimizer)(model, **({} if rate is None else {"rate": rate}), **settings)
    meters, checks = _meters(names), _meters(names)
    scale = LossScale() if precision == "float16" else None
    steps = Steps(model, prepared, find_loss(loss), made, meters, checks, precision, scale)
    return Training(model, made, train, meters, scale), steps


def _meters(names: Sequence[str]) -> dict[str, Metric]:
    return {"loss": Mean(), **{name: METERS[name]() for name in names}}


class _Same(Module):
    """y = x"""

    def forward(self, x: Tensor) -> Tensor:
        return x


def _resume(training: Training, run: RunFolder | None) -> None:
    if run is None:
        raise UserError("fit", "resume=True needs the folder of the run.")
    if run.checkpoint.exists():
        training.load(run.checkpoint)
        run.event("resumed", epoch=training.epoch, steps=training.steps)


def _set_mode(steps: Steps, *, training: bool) -> None:
    steps.model.train(training)
    steps.prepare.train(training)


def _row(training: Training, steps: Steps, clock: _Clock, validation: Any) -> Row:
    """The numbers of an epoch; the meters of training begin anew."""
    row: Row = {"epoch": float(training.epoch + 1), "steps": float(training.steps)}
    row |= {f"train_{name}": float(meter.value().item()) for name, meter in steps.meters.items()}
    row["rate"] = training.optimizer.rates()[0]
    for meter in steps.meters.values():
        meter.reset()
    if validation is not None:
        row |= {f"validation_{name}": value for name, value in check(steps, validation).items()}
    training.seconds = clock.seconds()
    row["seconds"] = round(training.seconds, 3)
    return row


def check(steps: Steps, batches: Any) -> dict[str, float]:
    """The loss and the metrics on other data; nothing is learned."""
    _set_mode(steps, training=False)
    for meter in steps.checks.values():
        meter.reset()
    for x, y in batches:
        steps.check(x, y)
    return {name: float(meter.value().item()) for name, meter in steps.checks.items()}


def _is_better(row: Row, best: Row) -> bool:
    """By the accuracy if there is one, else by the loss; of validation if there is one, else of training."""
    for name in ("validation_accuracy", "validation_loss", "train_accuracy", "train_loss"):
        if name in row:
            sign = 1.0 if name.endswith("accuracy") else -1.0
            return not best or sign * row[name] > sign * best[name]
    return True


def _keep(run: RunFolder | None, training: Training, clock: _Clock, *, best: bool | None = None) -> None:
    """A checkpoint; at the end of an epoch the tables and the weights too."""
    training.seconds = clock.seconds()
    if run is None:
        return
    if best is not None:
        if best:
            run.weights("best", training.model)
        run.weights("last", training.model)
        run.rows(training.history, training.best)
        run.event("epoch", **training.history[-1])
        run.scalars(training.history[-1])
    training.save(run.checkpoint)
    clock.saved()


def _stop_if_bad(steps: Steps, model: Module) -> None:
    """A loss that is not a number teaches nothing: say when it came, and where it is by now."""
    step = int(steps.first_bad.item())
    if step < 0:
        return
    bad = [name for name, t in model.named_tensors().items() if not math.isfinite(float(t.detach().sum().item()))]
    where = f"in {', '.join(bad[:3])}" if bad else "in no parameter yet"
    raise RunError(
        "fit",
        f"the loss was nan or infinite at step {step + 1}; by now such values are {where}. "
        "Use a smaller rate, clip_norm=1.0, or look at the data.",
    )


class _Clock:
    """How long a training has taken, pauses left out, and when it is time for something."""

    def __init__(self, before: float, limit: float | None, save_seconds: float) -> None:
        self.before, self.limit, self.save_seconds = before, limit, save_seconds
        self.start = self.last_save = time.monotonic()

    def seconds(self) -> float:
        return self.before + time.monotonic() - self.start

    def save_is_due(self) -> bool:
        return time.monotonic() - self.last_save >= self.save_seconds

    def is_over(self) -> bool:
        return self.limit is not None and self.seconds() >= self.limit

    def saved(self) -> None:
        self.last_save = time.monotonic()
