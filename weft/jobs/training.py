"""Training and resuming a job: from settings to a measured network in a run folder, with events on the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from .. import data, nn
from .. import train as training
from ..device_names import read_device_name
from ..errors import RunError, UserError
from ..io.dataset_names import dataset_name
from ..mesh.world import world
from ..ops.convert import asarray
from ..parallel.forms import AUTO
from ..report.text_format import counted
from ..runtime import device as find_device
from ..signals import Terminated
from ..text.generate import generate
from ..train import RunFolder
from ..train.ranks import min_over_processes
from ..train.results import evaluated, write_results, write_text
from ..train.task import is_better
from ..train.watch import Now
from .annotations import annotate
from .checks import check_settings
from .datasets.facts import FACTS, facts, split_sizes
from .definitions import keep_definition
from .device import training_on
from .events import Listener, Recorder, ignore_events
from .folds.results import write_fold
from .job import ENSEMBLE, Job, held_out, job_of, job_of_run
from .networks import dataset_text
from .parallel_checks import left_out
from .parallel_training import check_processes, chosen_split, in_processes, leads, needs_processes, with_ranks, writing
from .rate_schedules import schedule
from .schema import validated
from .settings import SETTINGS
from .stored import settings_of
from .weights import settings_for_weights

SAMPLE = 1000  # tokens that are generated at the end
SHOW_SECONDS = 0.1  # between two progress events


def train(settings: Mapping[str, Any], listener: Listener = ignore_events, notes: Sequence[str] = ()) -> Path | None:
    """Train a network with validated settings; the run folder, or None where none is kept. Its log begins with the notes."""
    settings, recorder = with_ranks(settings), Recorder(listener if leads() else ignore_events)
    if settings["parallel"] == AUTO:
        check_settings("train", settings)
        split = chosen_split(lambda: job_of("train", settings_for_weights(settings), recorder), recorder)
        settings, notes = {**settings, **split.settings}, [*notes, split.note]
    if needs_processes(settings):
        check_settings("train", settings)
        check_processes("train", settings, recorder=recorder)
        return in_processes(settings, train, settings, listener=listener, notes=notes)
    with training_on(settings["device"]) as device:
        check_settings("train", settings)
        told = settings_for_weights({**settings, "device": device.name})
        job = job_of("train", told, recorder)
        job.notes[:0] = notes
        return _fit(job, None, recorder)


def train_or_resume(settings: Mapping[str, Any], run: Path | None, listener: Listener) -> None:
    """Train with the settings of a job, or continue the run that it began. A job with more epochs than its run extends it."""
    if run is not None and (run / "args.yaml").exists():
        planned, epochs, device = (
            settings_of("resume", run)["epochs"],
            settings.get("epochs"),
            str(settings.get("device") or ""),
        )
        changed: dict[str, Any] = {"device": device} if read_device_name(device).is_one_gpu else {}
        changed |= {"epochs": epochs} if isinstance(epochs, int) and epochs > planned else {}
        resume(run, changed, listener)
    else:
        train(validated("jobs", settings, SETTINGS), listener)


def resume(
    folder: Path, given: Mapping[str, Any] | None = None, listener: Listener = ignore_events, notes: Sequence[str] = ()
) -> Path | None:
    """Continue a run that was stopped, with its own settings and those given. A time limit holds for one call only."""
    recorder, changed = Recorder(listener if leads() else ignore_events), given or {}
    told = settings_of("resume", folder)
    if world().size > 1:
        changed = {**changed, "parallel": with_ranks({**told, **changed})["parallel"]}
    if {**told, **changed}["parallel"] == AUTO:
        split = chosen_split(lambda: job_of("resume", {**told, **changed}, recorder), recorder)
        changed, notes = {**changed, **split.settings}, [*notes, split.note]
    unused = left_out(told, changed)
    changed = {**changed, **unused.settings}
    if needs_processes({**told, **changed}):
        check_settings("resume", {**told, **changed})
        check_processes("resume", {**told, **changed}, folder, recorder)
        return in_processes(
            {**told, **changed}, resume, folder, changed, listener=listener, notes=[*notes, *unused.notes]
        )
    with writing(folder):
        if (folder / ENSEMBLE).exists():
            raise UserError("weft resume", f"a run that was trained is required, got {folder}, which weft ensemble made. Resume its members.")  # fmt: skip
        settings = {**told, "max_seconds": None, "json": False, **changed}
        fresh = _is_fresh(folder)
        if "device" not in changed:
            _expect_device(told["device"])
        with training_on(settings["device"]) as device:
            check_settings("resume", settings)
            job = job_of("resume", {**settings, "device": device.name}, recorder)
            job.notes[:0] = [*notes, *unused.notes]
            if fresh:
                job.notes.append("it was stopped before its first checkpoint, and starts again")
            elif told["device"] not in (None, device.name):
                job.notes.append(
                    f"it was on {told['device']} before: on {device} it continues with the same values, but results are not bitwise the same"
                )
            return _fit(job, folder, recorder)


def resumed_settings(folder: Path, given: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    """The settings with which this many processes, started together, resume a run."""
    told = settings_of("resume", folder)
    changed = {**given, "parallel": with_ranks({**told, **given}, ranks)["parallel"]}
    return {**told, **changed, **left_out(told, changed, ranks).settings}


def _is_fresh(folder: Path) -> bool:
    """Whether the run has no checkpoint yet. If its checkpoint was lost, starting again would overwrite its results: an error."""
    if (folder / "state" / "last.safetensors").exists():
        return False
    if (folder / "metrics.csv").exists():
        command = f"weft train cfg={quote(str(folder / 'args.yaml'))} name={quote(folder.name + '-again')}"
        raise RunError(
            "weft resume", f"{folder} has no checkpoint any more. Its settings start a new run with: {command}"
        )
    return True


def _expect_device(name: str | None) -> None:
    """Suggest the CPU if the device of the run is missing and no other was given."""
    try:
        find_device(name)
    except UserError as error:
        raise UserError(
            "weft resume", f"the run was on {name}. {error.message} device=cpu continues on the CPU."
        ) from None


# --- the steps of a job -----------------------------------------------------------------------------------------------------


def _fit(job: Job, folder: Path | None, recorder: Recorder) -> Path | None:
    """Train a new run, or continue the one in `folder`. A new run gets its folder after all checks."""
    epochs = 1 if job.settings["fast_dev_run"] else job.settings["epochs"]
    begun: list[Path] = [] if folder is None else [folder]
    try:
        with ExitStack() as held:
            if folder is not None:
                _check_same_data(folder, job)
            recorder.show("activity", text=f"building {job.label}")
            job.check_memory()
            model = job.model()
            body = job.initialize_from_weights(model)
            job.initialize_from_data(model)
            _find_what_is_auto(job, model, recorder)
            cost = nn.summary(model, _example(job))
            _introduce(job, cost, body, recorder)

            def begin() -> Path:
                run = _new_run(job)
                held.enter_context(writing(run.path))
                begun.append(run.path)
                annotate_run(run.path, job.settings)
                _begin_run(run, job, recorder)
                return run.path

            if folder is not None and leads():
                _begin_run(RunFolder(folder), job, recorder)
            recorder.show("activity", text="compiling the training step")
            result = _trained(job, model, body, cost, epochs, begin if folder is None else folder, recorder)
            if leads():
                _finish(job, result, recorder, cost)
            return result.folder
    except (KeyboardInterrupt, Terminated) as stop:
        how = "terminated" if isinstance(stop, Terminated) else "stopped"
        is_run = bool(begun) and (begun[0] / "args.yaml").exists()
        recorder.send("stopped", why=how, folder=str(begun[0]) if is_run else None)
        raise


def _trained(
    job: Job, model: nn.Module, body: Sequence[str], cost: nn.Summary, epochs: int, folder: Path | Callable[[], Path],
    recorder: Recorder,
) -> training.Result:  # fmt: skip
    settings, (loader, checks) = job.settings, job.loaders()
    steps = (settings["overfit"] or len(loader)) * epochs
    return training.fit(
        model, loader, checks, epochs=epochs, optimizer=settings["optimizer"],
        rate=schedule(settings, job.peak_rate(cost.parameters), max(1, steps), epochs), loss=job.loss(),
        prepare=job.prepare(), label_smoothing=settings["label_smoothing"], mix=job.mix(),
        precision=settings["precision"], memory=settings["memory"], seed=settings["seed"], patience=settings["patience"],
        max_seconds=settings["max_seconds"], keep=settings["keep"], body=body, body_rate=settings["body_rate"],
        freeze=settings["freeze"], freeze_layers=settings["freeze_layers"], fast_dev_run=settings["fast_dev_run"], overfit=settings["overfit"],
        resident=settings["resident"], alternate_flips=settings["alternate_flips"], bias_rate=settings["bias_rate"], parallel=settings["parallel"], micro_batches=settings["micro_batches"],
        pipeline_schedule=settings["pipeline_schedule"], recompute=settings["recompute"], cuts=settings["cuts"], staleness=settings["staleness"], on_split=recorder.log, folder=folder, resume=not callable(folder), on_step=StepEvents(recorder), notes=settings,
        on_epoch=_Epochs(recorder, epochs, folder), **job.optimizer_settings(),
    )  # fmt: skip


class StepEvents:
    """Sends progress, at most ten times a second: reading the metrics waits for the step."""

    def __init__(self, recorder: Recorder, what: str = "") -> None:
        self.recorder, self.what, self.last = recorder, what, 0.0

    def __call__(self, now: Now) -> None:
        if time.monotonic() - self.last >= SHOW_SECONDS or now.step == now.steps:
            self.last = time.monotonic()
            metrics = {name: float(meter.value().item()) for name, meter in now.meters.items()}
            self.recorder.show(
                "progress", what=f"{self.what}epoch {now.epoch}/{now.epochs}", done=now.step, total=now.steps, epoch=now.epoch,
                epochs=now.epochs, metrics=metrics, examples_per_second=round(now.examples_per_second, 1),
            )  # fmt: skip
        if now.step == now.steps:
            self.recorder.show("activity", text=f"validating epoch {now.epoch}")


class _Epochs:
    """Sends the metrics of each epoch, and whether it is the best so far."""

    def __init__(self, recorder: Recorder, epochs: int, folder: Path | Callable[[], Path]) -> None:
        self.recorder, self.epochs = recorder, epochs
        self.best: dict[str, float] = {} if callable(folder) else RunFolder(folder).known_summary().get("best", {})

    def __call__(self, row: dict[str, float]) -> None:
        better = is_better(row, self.best)
        self.best = row if better else self.best
        self.recorder.show("epoch", **row, epochs=self.epochs, is_best=better)


def _new_run(job: Job) -> RunFolder:
    settings = job.settings
    root = Path(settings["runs"]) / job.kind
    if settings["name"] is not None:
        return RunFolder.named(root, settings["name"], settings["exist_ok"])
    return RunFolder.fresh(root, f"{dataset_name(settings['data'])}-{job.label}-")


def annotate_run(folder: Path, settings: Mapping[str, Any]) -> None:
    """Write tags, notes and group of a new run. A resumed one keeps those that people have changed meanwhile."""
    given = {name: settings[name] for name in ("tags", "notes", "group") if settings[name] is not None}
    if given:
        annotate(folder, **given)


def _begin_run(run: RunFolder, job: Job, recorder: Recorder) -> None:
    run.write_json(FACTS, facts(job.train, job.statistics) | {"splits": split_sizes(job.splits)})
    if job.definition is not None:
        keep_definition(run.path, job.label, job.definition)
    recorder.begin(run.path)
    recorder.log(f"run folder: {run.path}")
    recorder.send("run", folder=str(run.path), notes=job.notes)


def _check_same_data(folder: Path, job: Job) -> None:
    """A resumed run requires data with the same classes and shapes."""
    if not (folder / FACTS).exists():
        return
    before, now = job_of_run(job.settings, folder).train, job.train
    same = before.shape == now.shape and before.classes == now.classes
    if isinstance(before, data.Text) and isinstance(now, data.Text):
        same = before.vocabulary == now.vocabulary
    if not same:
        what = f"{dataset_text(before, count=False)}, and {job.settings['data']} holds {dataset_text(now, count=False)}"
        command = f"weft train {quote(str(job.settings['data']))} weights={quote(str(folder))}"
        raise UserError(
            "weft resume", f"{folder} learned from {what}. Start a new run from its weights with: {command}"
        )


def _introduce(job: Job, cost: nn.Summary, body: Sequence[str], recorder: Recorder) -> None:
    steps = job.settings["overfit"] or len(job.loaders()[0])
    facts_ = [
        f"{dataset_text(job.train)} -> {job.label}",
        counted(cost.parameters, "parameter"),
        f"{counted(steps, 'step')} an epoch",
    ]
    recorder.log(", ".join(facts_))
    for note in job.notes:
        recorder.log(note)
    if body:
        verb = "is" if len(body) == 1 else "are"
        recorder.log(f"{counted(len(body), 'parameter tensor')} {verb} initialized from {job.settings['weights']}")


def _find_what_is_auto(job: Job, model: nn.Module, recorder: Recorder) -> None:
    """Replace settings that are `auto` by numbers, so that a resumed run uses the same ones."""
    plan = job.plan()
    if job.settings["batch"] == "auto":
        recorder.show("activity", text="finding a batch size")
        job.settings["batch"] = min_over_processes(training.find_batch(model, job.train, plan))
        recorder.log(f"batch={job.settings['batch']} was chosen: it suits the data and fits in memory")
    if job.settings["rate"] == "auto":
        recorder.show("activity", text="finding a learning rate")
        loader, _ = job.loaders()
        found = training.find_rate(
            model, loader, optimizer=plan.optimizer, loss=plan.loss, prepare=plan.prepare, precision=plan.precision,
            seed=job.settings["seed"], **{n: v for n, v in plan.settings.items() if n not in ("accumulate", "average")},
        )  # fmt: skip
        job.settings["rate"] = float(f"{found.best:.2g}")
        recorder.log(f"rate={job.settings['rate']} is where the loss falls fastest")


def _finish(job: Job, result: training.Result, recorder: Recorder, cost: nn.Summary) -> None:
    """Evaluate the best network once on the held-out split, and write the report."""
    told: dict[str, Any] = {"why": result.ended, "best": result.best, "folder": result.folder and str(result.folder)}
    if result.folder is None or job.settings["overfit"] or not result.history:
        recorder.send("result", **told, split=None)
        return
    recorder.show("activity", text="evaluating the best network")
    run = RunFolder(result.folder)
    model, network = job.trained(run.path)
    split, examples = held_out(job.splits, None)
    found = evaluated(network, job.checks(examples), job.loss())
    run.summary(**{split: found.numbers})
    if job.settings["fold"] is not None:
        write_fold(run.path, found)
    if isinstance(job.train, data.Text):
        recorder.show("activity", text="writing a sample")
        start = job.train.decode(job.train.ids[:1])
        sample = generate(model, start, job.train.tokenizer, max_new_tokens=SAMPLE, temperature=0.8)
        write_text(run.path, sample)
    recorder.show("activity", text="writing the report")
    write_results(run.path, found, cost, split)
    recorder.send(
        "result", **told, split=split, examples=len(examples), **found.numbers, classes=found.classes,
        task=job.kind,
    )  # fmt: skip


def _example(job: Job) -> Any:
    """The input of one example, to count parameters and multiply-adds."""
    if job.is_image_source:
        return (1, job.train.shape[0], *job.size())
    return asarray(job.train.inputs(np.arange(1)))
