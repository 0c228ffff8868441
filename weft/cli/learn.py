"""Verbs that train networks: train, resume."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from .. import data, nn
from .. import train as training
from ..errors import RunError, UserError
from ..ops.convert import asarray
from ..report.text_format import counted
from ..runtime import device as find_device
from ..train import RunFolder
from ..train.lock import one_writer
from ..train.making import Plan
from ..train.results import evaluated, write_results, write_text
from ..train.signals import Terminated
from .checks import check_settings
from .evaluate import held_out, number_text
from .job import FACTS, Job, facts, job_of, job_of_run
from .networks import about
from .say import Speaker
from .settings import SETTINGS as SETTINGS
from .settings import on
from .stored import run_of, settings_of
from .words import read

SAMPLE = 1000  # characters that a network for text writes at the end


def train(words: Sequence[str]) -> None:
    """Train a network: weft train digits model=lenet epochs=5.

    The data is the first word, or data=. A folder with a folder of images for each class is made into a dataset on the
    way. The run is kept in runs/TASK/NAME, with weights, tables, plots and report.html.
    """
    given = read("train", words, SETTINGS, 1)
    settings = {**given.settings, "data": given["data"] or (given.plain[0] if given.plain else None)}
    with on(given["device"]) as device:
        check_settings("train", settings)
        _fit(job_of("train", {**settings, "device": device.name}), None)


def resume(words: Sequence[str]) -> None:
    """Go on with a run that was stopped: weft resume runs/classify/digits-lenet5-1.

    It goes on at the very step it had come to, with the settings it was started with and on the same device; others can be
    given, such as epochs=30. A run that was stopped before its first checkpoint begins anew. A limit of time holds for one
    command only.
    """
    given = read("resume", words, SETTINGS, 1)
    folder = run_of("resume", given.plain)
    with one_writer(folder):
        told = settings_of("resume", folder)
        settings = {**told, "max_seconds": None, "json": False, **{n: given[n] for n in given.given}}
        fresh = _is_fresh(folder)
        if "device" not in given.given:
            _expect_device(told["device"])
        with on(settings["device"]) as device:
            check_settings("resume", settings)
            job = job_of("resume", {**settings, "device": device.name})
            if fresh:
                job.notes.append("it was stopped before its first checkpoint, and begins anew")
            elif told["device"] not in (None, device.name):
                job.notes.append(
                    f"it was on {told['device']} before: on {device} it goes on with the same values, but not to the same bits"
                )
            _fit(job, folder)


def _is_fresh(folder: Path) -> bool:
    """Whether nothing was learned yet. Where something was, and the checkpoint is gone, beginning anew would write over it."""
    if (folder / "state" / "last.safetensors").exists():
        return False
    if (folder / "metrics.csv").exists():
        command = f"weft train cfg={quote(str(folder / 'args.yaml'))}"
        raise RunError(
            "weft resume", f"{folder} has no checkpoint any more. Its settings begin a run of their own with: {command}"
        )
    return True


# --- parts ------------------------------------------------------------------------------------------------------------------


def _fit(job: Job, folder: Path | None) -> None:
    """Train; a run whose folder is given goes on. A new one gets its folder when all that can be wrong was seen."""
    epochs = 1 if job.settings["fast_dev_run"] else job.settings["epochs"]
    speaker = Speaker(job.settings["json"], epochs)
    begun: list[Path] = [] if folder is None else [folder]
    try:
        with ExitStack() as held:
            if folder is not None:
                _check_same_data(folder, job)
            job.check_memory()
            model = job.model()
            body = job.begin_from_weights(model)
            _find_what_is_auto(job, model, speaker)
            cost = nn.summary(model, _example(job))
            _introduce(job, cost, body, speaker)

            def begin() -> Path:
                run = _new_run(job)
                held.enter_context(one_writer(run.path))
                begun.append(run.path)
                _say_where(run, job, speaker)
                return run.path

            if folder is not None:
                _say_where(RunFolder(folder), job, speaker)
            result = _trained(job, model, body, cost, epochs, begin if folder is None else folder, speaker)
            speaker.clear()
            _finish(job, result, speaker, cost)
    except (KeyboardInterrupt, Terminated) as stop:
        speaker.clear()
        how = "terminated" if isinstance(stop, Terminated) else "stopped"
        is_run = bool(begun) and (begun[0] / "args.yaml").exists()
        next_step = f"go on with: weft resume {quote(str(begun[0]))}" if is_run else "no run was begun"
        speaker.say(f"{how}; {next_step}")
        speaker.tell("stopped", why=how, folder=str(begun[0]) if is_run else None)
        raise
    finally:
        speaker.clear()


def _trained(
    job: Job, model: nn.Module, body: Sequence[str], cost: nn.Summary, epochs: int, folder: Path | Callable[[], Path],
    speaker: Speaker,
) -> training.Result:  # fmt: skip
    settings, (loader, checks) = job.settings, job.loaders()
    steps = (settings["overfit"] or len(loader)) * epochs
    return training.fit(
        model, loader, checks, epochs=epochs, optimizer=settings["optimizer"],
        rate=job.schedule(job.peak_rate(cost.parameters), max(1, steps)), loss=job.loss(),
        prepare=job.prepare(), precision=settings["precision"], seed=settings["seed"], patience=settings["patience"],
        max_seconds=settings["max_seconds"], keep=settings["keep"], body=body, body_rate=settings["body_rate"],
        freeze=settings["freeze"], fast_dev_run=settings["fast_dev_run"], overfit=settings["overfit"],
        folder=folder, resume=not callable(folder), on_step=speaker.step, on_epoch=speaker.epoch, notes=settings,
        **job.optimizer_settings(),
    )  # fmt: skip


def _new_run(job: Job) -> RunFolder:
    settings = job.settings
    name = settings["name"] or f"{Path(settings['data']).stem}-{job.name}-"
    return RunFolder.fresh(Path(settings["runs"]) / job.kind, name)


def _say_where(run: RunFolder, job: Job, speaker: Speaker) -> None:
    run.write_json(FACTS, facts(job.train))
    speaker.say(f"everything about this run is in {run.path}")
    speaker.tell("run", folder=str(run.path), notes=job.notes)


def _check_same_data(folder: Path, job: Job) -> None:
    """A run goes on with data like that it began with: its network knows these classes and no others."""
    if not (folder / FACTS).exists():
        return
    before, now = job_of_run(job.settings, folder).train, job.train
    same = before.shape == now.shape and before.classes == now.classes
    if isinstance(before, data.Text) and isinstance(now, data.Text):
        same = before.vocabulary == now.vocabulary
    if not same:
        what = f"{about(before, count=False)}, and {job.settings['data']} holds {about(now, count=False)}"
        command = f"weft train {quote(str(job.settings['data']))} weights={quote(str(folder))}"
        raise UserError("weft resume", f"{folder} learned from {what}. Begin a run from its weights with: {command}")


def _introduce(job: Job, cost: nn.Summary, body: Sequence[str], speaker: Speaker) -> None:
    steps = job.settings["overfit"] or len(job.loaders()[0])
    said = [
        f"{about(job.train)} -> {job.name}",
        counted(cost.parameters, "parameter"),
        f"{counted(steps, 'step')} an epoch",
    ]
    speaker.say(", ".join(said))
    for note in job.notes:
        speaker.say(note)
    if body:
        verb = "begins" if len(body) == 1 else "begin"
        speaker.say(f"{counted(len(body), 'parameter tensor')} {verb} from {job.settings['weights']}")
    speaker.say("compiling the training step ...")


def _find_what_is_auto(job: Job, model: nn.Module, speaker: Speaker) -> None:
    """Settings that are to be found out become numbers: a resumed run uses the same ones."""
    plan = Plan(job.settings["optimizer"], 1e-3, job.loss(), (), job.prepare(), job.settings["precision"])
    if job.settings["batch"] == "auto":
        job.settings["batch"] = training.find_batch(model, job.train, plan)
        speaker.say(f"batch={job.settings['batch']} suits the data, and fits in memory")
    if job.settings["rate"] == "auto":
        loader, _ = job.loaders()
        found = training.find_rate(
            model, loader, optimizer=plan.optimizer, loss=plan.loss, prepare=plan.prepare, precision=plan.precision,
            seed=job.settings["seed"],
        )  # fmt: skip
        job.settings["rate"] = float(f"{found.best:.2g}")
        speaker.say(f"rate={job.settings['rate']} is where the loss falls fastest")


def _finish(job: Job, result: training.Result, speaker: Speaker, cost: nn.Summary) -> None:
    """Measure the best network, once, on what it has not seen; write the report; say what can be done next."""
    if result.folder is None or job.settings["overfit"]:
        numbers = ", ".join(
            f"{n.replace('_', ' ')} {v:.4g}" for n, v in result.best.items() if "loss" in n or "accuracy" in n
        )
        speaker.say(f"{'it works' if result.folder is None else 'best'}: {numbers}")
        return
    run, path = RunFolder(result.folder), quote(str(result.folder))
    if not result.history:
        speaker.say(f"{result.ended}, before the first epoch was; go on with: weft resume {path}")
        return
    model, network = job.trained(run.path)
    split, examples = held_out(job.splits, None)
    found = evaluated(network, job.checks(examples), job.loss())
    run.summary(**{split: found.numbers})
    if isinstance(job.train, data.Text):
        write_text(
            run.path, training.generate(model, job.train, job.train.decode(job.train.ids[:1]), SAMPLE, temperature=0.8)
        )
    write_results(run.path, found, cost)
    numbers = ", ".join(f"{n} {number_text(n, v)}" for n, v in found.numbers.items())
    speaker.say(
        f"\n{result.ended}; the best epoch was {int(result.best['epoch'])}. On {counted(len(examples), split + ' example')}: {numbers}"
    )
    use = '"Once upon a time"' if isinstance(job.train, data.Text) else "IMAGE"
    speaker.say(f"look at it:  {run.path / 'report.html'}\nuse it:      weft predict {path} {use}")
    speaker.say(f"measure it:  weft eval {path}\ncompare it:  weft runs list")
    speaker.tell("ended", why=result.ended, best=result.best, split=split, **found.numbers, classes=found.classes)


def _example(job: Job) -> Any:
    """What the network is given for one example, to count what it costs."""
    if job.is_image_source:
        return (1, job.train.shape[0], *job.size())
    return asarray(job.train.inputs(np.arange(1)))


def _expect_device(name: str | None) -> None:
    """Whoever did not ask for the run's device may not know that there is another way."""
    try:
        find_device(name)
    except UserError as error:
        raise UserError(
            "weft resume", f"the run was on {name}. {error.message} device=cpu goes on with it on the CPU."
        ) from None
