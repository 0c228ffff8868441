"""Training: `fit` is the training loop.

    result = train.fit(zoo.lenet5(), data.open_dataset("mnist"), epochs=5, prepare=data.ToFloat(), folder="runs/mnist")

A run that was killed continues with `resume=True` and ends with the same bits as an uninterrupted one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from .. import optim
from ..errors import RunError, UserError
from ..hints import nearest
from ..locks import one_writer
from ..mesh.world import world
from ..nn.module import Module
from ..parallel.forms import AUTO
from ..parallel.sizes import read_sizes
from ..random import seed as set_seed
from ..records import dataclass
from . import memory
from .auto_split import ParallelChoice, Tell, agreed_choice, choose_parallel
from .batches import first_batches, loaders
from .epoch_loop import EpochLoop
from .epoch_program import ResidentEpochs
from .fit_arguments import batch_size, check_arguments, check_folder, check_resident
from .folder import RunFolder
from .forecast import output_types
from .making import Same, TrainingPlan, make
from .names import Loss, Metrics, Row
from .phase import Phase
from .pipeline_options import PipelineOptions
from .ranks import Ranks, check_zero, min_over_processes, refused_axes
from .rates import Rates, growing, sweep
from .server_steps import check_server
from .state import Training, saved_cuts, saved_micro_batches
from .watch import Now, Watch
from .watched import WatchedExamples

# Arguments that args.yaml does not name.
NOT_SETTINGS = ("model", "data", "validation", "notes", "on_step", "on_epoch", "on_split")


@dataclass
class Result:
    """The result of a training: the metrics of each epoch, the best epoch, and why training ended."""

    history: list[Row]
    best: Row
    ended: str
    folder: Path | None


def fit(
    model: Module,
    data: Any,
    validation: Any = None,
    *,
    batch: int | str = 64,
    epochs: int = 10,
    optimizer: str | Callable[..., optim.Optimizer] = "adam",
    rate: Any = None,
    loss: str | Loss | None = None,
    metrics: Metrics | None = None,
    prepare: Module | None = None,
    label_smoothing: float = 0.0,
    mix: Module | None = None,
    precision: str | None = None,
    memory: int | str | None = None,
    seed: int = 0,
    patience: int | None = None,
    max_seconds: float | None = None,
    save_seconds: float = 60.0,
    keep: int = 0,
    body: Sequence[str] = (),
    body_rate: float = 0.1,
    freeze: int = 0,
    freeze_layers: int = 0,
    fast_dev_run: int = 0,
    overfit: int = 0,
    resident: bool = False,
    alternate_flips: bool = False,
    bias_rate: float = 1.0,
    parallel: str | None = None,
    micro_batches: int | None = None,
    pipeline_schedule: str | None = None,
    recompute: bool = False,
    cuts: str | Sequence[str] | None = None,
    staleness: int | str | None = None,
    on_split: Callable[[str], None] | None = None,
    folder: str | Path | Callable[[], Path] | None = None,
    resume: bool = False,
    on_step: Callable[[Now], None] | None = None,
    on_epoch: Callable[[Row], None] | None = None,
    notes: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Result:
    """Train a network and validate it after each epoch.

    `data` is a loader of batches (x, y), a dataset, or splits. `optimizer`, `loss` and `metrics` are names or functions; by
    default they follow from the labels (integers are classes, floats a regression). Further settings (clip_norm, weight_decay, accumulate,
    ...) go to the optimizer. With `average=0.999`, validation and the saved weights use a moving average of the parameters.
    `prepare` converts stored inputs to the network's inputs, inside the compiled step; `mix` (data.MixUp, data.CutMix) and
    `label_smoothing` change training batches only. `memory` ("8GiB") limits a training step: what does not fit is computed again. With `resident=True` the training examples stay on the device and each epoch is one program,
    on a GPU one CUDA graph, with the same result; `alternate_flips` then mirrors each image in every other epoch. `bias_rate` multiplies the
    learning rate of biases, and of scales and shifts of norms. With `parallel="data:4"`, four processes that call `fit` alike share every batch; the
    result has the bits of one process with micro_batches=4. "model:2" splits layers between processes, "pipeline:2" makes each of them
    train a stage of the network, and "data:2,model:2" does both; `on_split` is called with how.
    Of a pipeline, `pipeline_schedule` is "1f1b" (the default) or "gpipe", `recompute=True` stores the inputs of stages only, and `cuts` says where stages end: "measured"
    (the default) balances the times of layers, "counted" their multiply-adds, and a list names the last layer of each stage but the last. With "server:4",
    one process is a parameter server and three are workers, which may be `staleness` steps ahead of each other (4; "unbounded"). With a folder, weights, checkpoints and tables are kept there; `notes` are the settings that its args.yaml names.
    """
    given = {name: value for name, value in locals().items() if name not in NOT_SETTINGS}
    _check_settings(optimizer, settings)
    check_arguments(given)
    check_zero(settings.get("zero", 0), None if parallel == AUTO else read_sizes(parallel, world().size).data)
    plan = TrainingPlan(
        optimizer, rate, loss, metrics, prepare, precision, body, body_rate, settings, label_smoothing, mix, bias_rate, memory
    )  # fmt: skip
    plan.check()
    check_resident(resident, alternate_flips, memory)
    folder = None if fast_dev_run else folder
    check_folder(folder, resume)
    refused = refused_axes({"freeze": freeze, "freeze_layers": freeze_layers, **settings})
    pipeline = PipelineOptions(pipeline_schedule, recompute, cuts)
    sizes = None if parallel == AUTO else read_sizes(parallel, world().size)
    pipeline.check(None if sizes is None else sizes.pipeline)
    check_server(sizes, staleness, {**given, **settings})
    if sizes is None:
        choice = _automatic(model, data, plan, batch, seed, [*refused], on_split)
        parallel = choice.parallel
        if choice.zero_stage or "zero" in settings:
            settings = {**settings, "zero": choice.zero_stage}
    checkpoint = _checkpoint(folder) if resume else None
    if micro_batches is None and checkpoint is not None:
        micro_batches = saved_micro_batches(checkpoint)
    ranks = Ranks.of(parallel, micro_batches, staleness)
    ranks.check(refused)
    plan = replace(plan, settings=ranks.settings(settings))
    cut_before = saved_cuts(checkpoint) if checkpoint is not None and ranks.sizes.pipeline > 1 else None
    with ExitStack() as held:
        run = _open_run(folder, held) if resume and ranks.leads and Path(str(folder)).exists() else None
        set_seed(seed)
        size = min_over_processes(find_batch(model, data, plan)) if batch == "auto" else batch_size(batch)
        train, validation = loaders(data, validation, size, seed)
        if fast_dev_run or overfit:
            train, validation = _few_batches(train, validation, fast_dev_run, overfit)
            epochs = 1 if fast_dev_run else epochs
        train = ranks.shard(train)
        training, steps = make(
            model, train, plan, ranks, describe=folder is not None, tell=on_split, pipeline=pipeline, cuts=cut_before
        )
        if checkpoint is not None:
            training.load(checkpoint)
        resident_epochs = ResidentEpochs(steps, train, alternate_flips) if resident else None
        check_memory = None if resident_epochs is None else resident_epochs.check_memory
        phase = Phase(training.model, train, steps, body, freeze, freeze_layers, plan.settings.get("accumulate", 1), check_memory)  # fmt: skip
        if training.epoch < epochs:
            phase.begin(training.epoch)
        if run is None and ranks.leads:  # all checks have passed: create the folder only now
            run = _open_run(folder, held)
        _record_start(training, run, given if notes is None else notes)
        watch = Watch(
            training, steps, run, ranks, epochs, len(train), keeps=folder is not None, max_seconds=max_seconds, save_seconds=save_seconds, patience=patience, keep=keep,
            on_step=on_step,
        )  # fmt: skip
        watched = WatchedExamples.of(validation, run.path if run is not None else None if folder is None else Path())
        ended = EpochLoop(watch, phase, train, validation, resident_epochs, watched, on_epoch).run()
        training.places.make_whole(model)
    return Result(training.history, training.best, ended, None if run is None else run.path)


def find_rate(
    model: Module, data: Any, *, low: float = 1e-6, high: float = 1.0, steps: int = 100, batch: int = 64, seed: int = 0,
    optimizer: Any = "adam", loss: Any = None, prepare: Module | None = None, precision: str | None = None, **settings: Any,
) -> Rates:  # fmt: skip
    """Learning rate range test: train for some steps with a growing rate, then restore everything. `.best` is a good learning rate."""
    set_seed(seed)
    train, _ = loaders(data, None, batch, seed)
    schedule = growing(low, high, steps)
    training, made = make(
        model, train, TrainingPlan(optimizer, schedule, loss, (), prepare, precision, settings=settings)
    )
    made.set_mode(training=True)
    return sweep(training, made, train, schedule, steps)


def find_batch(model: Module, data: Any, plan: TrainingPlan | None = None) -> int:
    """A batch size that suits the data and fits in memory."""
    train, _ = loaders(data, None, 1, 0)
    _, steps = make(model, train, plan or TrainingPlan())
    steps.set_mode(training=True)
    return memory.choose_batch(steps.train, train.dataset)


def _checkpoint(folder: Any) -> Path | None:
    """The last checkpoint of the run in a folder; None if it has none."""
    path = Path(str(folder)) / "state" / "last.safetensors"
    return path if path.exists() else None


def _few_batches(train: Any, validation: Any, fast_dev_run: int, overfit: int) -> tuple[Any, Any]:
    """Only the first batches: for a dry run, or to check that a network can overfit them."""
    train = first_batches(train, fast_dev_run or overfit, shuffle=not overfit)
    if overfit or validation is None:
        return train, None
    return train, first_batches(validation, fast_dev_run, shuffle=False)


def _automatic(
    model: Module, data: Any, plan: TrainingPlan, batch: Any, seed: int, refused: Sequence[str], tell: Tell | None
) -> ParallelChoice:
    """The split that parallel="auto" stands for, the same in all processes."""
    if batch == "auto":
        raise UserError("fit", 'a batch size is required with parallel="auto", got batch="auto".')
    size = batch_size(batch)
    set_seed(seed)
    train, _ = loaders(data, None, size, seed)
    output_types(model, plan.prepare or Same(), train.dataset.inputs(np.arange(1)))  # lazy parameters, in all processes
    processes = world().size
    choice = agreed_choice(lambda: choose_parallel(model, train, plan, processes, refused=refused))
    if tell is not None and world().rank == 0:
        tell(f"parallel={choice.parallel} was chosen: {choice.why}")
    return choice


def _check_settings(optimizer: str | Callable[..., optim.Optimizer], settings: Mapping[str, Any]) -> None:
    """Reject settings that neither `fit` nor the optimizer has, and name the nearest."""
    if not isinstance(optimizer, str):
        return  # a custom optimizer checks its own settings
    theirs = optim.settings_of(optim.find(optimizer))
    for name in settings:
        if name not in theirs:
            ours = [n for n, p in inspect.signature(fit).parameters.items() if p.kind is p.KEYWORD_ONLY]
            raise UserError("fit", f"there is no setting {name!r}. {nearest(name, [*ours, *theirs])}")


def _open_run(folder: str | Path | Callable[[], Path] | None, held: ExitStack) -> RunFolder | None:
    """The run folder, locked before anything in it is changed."""
    if folder is None:
        return None
    path = folder() if callable(folder) else Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError("train", f"the folder {path} cannot be made: {error.strerror or error}.") from error
    held.enter_context(one_writer(path))
    return RunFolder(path)


def _record_start(training: Training, run: RunFolder | None, settings: Mapping[str, Any]) -> None:
    """Record the start of a new run, or the continuation of a resumed one."""
    if run is None:
        return
    if not run.checkpoint.exists():
        assert training.described is not None
        run.start(settings, training.described)
    else:
        run.settings(settings)
        run.event("resumed", epoch=training.epoch, steps=training.steps)
