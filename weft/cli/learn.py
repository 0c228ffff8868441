"""Verbs that train and use networks: train, resume, eval, predict."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import data, nn
from .. import train as training
from ..data.convert import to_array
from ..data.images import Unreadable, read_image
from ..data.resize import resize
from ..errors import RunError, UserError
from ..ops.convert import asarray
from ..ops.statistics import softmax
from ..runtime import device as find_device
from ..tensor import Tensor
from ..train import RunFolder
from ..train.making import Plan
from ..train.results import evaluated, write_results, write_text
from .job import FACTS, Job, facts, job_of, job_of_run
from .runs import find_run
from .say import Speaker
from .settings import DEVICE, on
from .settings import SETTINGS as SETTINGS
from .table import pairs, table
from .words import Setting, Words, flag, number, one_of, read, whole

SAMPLE = 1000  # characters that a network for text writes at the end


def train(words: Sequence[str]) -> None:
    """Train a network: weft train digits model=lenet epochs=5.

    The data is the first word, or data=. A folder with a folder of images for each class is made into a dataset on the
    way. The run is kept in runs/TASK/NAME, with weights, tables, plots and report.html.
    """
    given = read("train", words, SETTINGS, 1)
    settings = {**given.settings, "data": given["data"] or (given.plain[0] if given.plain else None)}
    with on(given["device"]) as device:
        _fit(job_of("train", {**settings, "device": device.name}), None)


def resume(words: Sequence[str]) -> None:
    """Go on with a run that was stopped: weft resume runs/classify/digits-lenet5-1.

    It goes on at the very step it had come to, with the settings it was started with and on the same device; others can be
    given, such as epochs=30. A limit of time holds for one command only.
    """
    given = read("resume", words, SETTINGS, 1)
    folder = _run_of("resume", given.plain)
    told = _settings_of("resume", folder)
    settings = {**told, "max_seconds": None, **{n: given[n] for n in given.given}}
    if not (folder / "state" / "last.safetensors").exists():
        raise RunError(
            "weft resume", f"{folder} has no checkpoint: it was stopped before the first one. Start it anew."
        )
    if "device" not in given.given:
        _expect_device(told["device"])
    with on(settings["device"]) as device:
        job = job_of("resume", {**settings, "device": device.name})
        if told["device"] not in (None, device.name):
            job.notes.append(
                f"it was on {told['device']} before: on {device} it goes on with the same values, but not to the same bits"
            )
        _fit(job, RunFolder(folder))


def evaluate(words: Sequence[str]) -> None:
    """Measure a trained network on examples it has not learned from: weft eval RUN.

    On the test split if there is one, else on validation; split= names another.
    """
    known = {
        "split": Setting(one_of("train", "validation", "test"), None, "which examples; the test split if nobody says"),
        "data": Setting(str, None, "other data than the run's own, with the same classes"),
        "device": DEVICE,
        "json": Setting(flag, False, "print JSON, for programs"),
    }
    given = read("eval", words, known, 1)
    folder = _run_of("eval", given.plain)
    settings = _settings_of("eval", folder)
    with on(given["device"]):
        job = job_of("eval", {**settings, "data": given["data"] or settings["data"]})
        split, examples = _held_out(job.splits, given["split"])
        _, network = job.trained(folder)
        found = evaluated(network, job.checks(examples), job.loss())
    facts = {
        "run": str(folder),
        "data": job.settings["data"],
        "split": split,
        "examples": len(examples),
        **found.numbers,
    }
    if given["json"]:
        print(json.dumps({**facts, "classes": found.classes}))
        return
    print(pairs({name: _shown(name, value) for name, value in facts.items()}))
    if found.classes:
        print(
            "\n"
            + table(["class", "right"], [[n, f"{100 * v:.2f} %"] for n, v in found.classes.items()], left=["class"])
        )


def predict(words: Sequence[str]) -> None:
    """What a trained network takes images for, or how it goes on with a text: weft predict RUN image.jpg ...

    For a network that was trained on text the words are the beginning: weft predict RUN "ROMEO:" length=300.
    """
    known = {
        "top": Setting(whole, 5, "how many classes to name"),
        "length": Setting(whole, 500, "how many characters to write"),
        "temperature": Setting(number, 0.8, "how daring a text is; 0: always the most likely character"),
        "seed": Setting(whole, 0, "of the text"),
        "device": DEVICE,
        "json": Setting(flag, False, "print JSON, for programs"),
    }
    given = read("predict", words, known, 1000)
    if len(given.plain) < 2:
        raise UserError("weft predict", "a run and an image are required: weft predict RUN image.jpg.")
    with on(given["device"]):
        _predict(find_run(given.plain[0]), given)


def _predict(folder: Path, given: Words) -> None:
    job = job_of_run(_settings_of("predict", folder), folder)
    model, network = job.trained(folder)
    if isinstance(job.train, data.Text):
        text = training.generate(
            model, job.train, " ".join(given.plain[1:]), given["length"], temperature=given["temperature"], seed=given["seed"]
        )  # fmt: skip
        print(json.dumps({"text": text}) if given["json"] else text)
        return
    if not job.are_images:
        raise UserError(
            "weft predict", f"{folder} is a network for {job.train.shape} numbers; images are what predict reads."
        )
    for path in given.plain[1:]:
        _print_prediction(path, network(_image(path, job.train.shape)), job.train.classes, given)


# --- parts ------------------------------------------------------------------------------------------------------------------


def _fit(job: Job, run: RunFolder | None) -> None:
    """Train; a run that is given goes on, else a new one begins, after all that can be wrong with the settings was seen."""
    epochs = 1 if job.settings["fast_dev_run"] else job.settings["epochs"]
    speaker, resume = Speaker(job.settings["json"], epochs), run is not None
    model = job.model()
    body = job.begin_from_weights(model)
    _find_what_is_auto(job, model, speaker)
    loader, checks = job.loaders()
    settings, cost = job.settings, nn.summary(model, _example(job))
    per_epoch = settings["overfit"] or len(loader)
    run = run or _new_run(job)
    if run is not None:
        run.write_json(FACTS, facts(job.train))
    _introduce(job, run, cost, per_epoch, body, speaker)
    try:
        result = training.fit(
            model, loader, checks, epochs=epochs, optimizer=settings["optimizer"],
            rate=job.schedule(job.peak_rate(cost.parameters), max(1, per_epoch * epochs)), loss=job.loss(),
            prepare=job.prepare(), precision=settings["precision"], seed=settings["seed"], patience=settings["patience"],
            max_seconds=settings["max_seconds"], keep=settings["keep"], body=body, body_rate=settings["body_rate"],
            freeze=settings["freeze"], fast_dev_run=settings["fast_dev_run"], overfit=settings["overfit"],
            folder=None if run is None else run.path, resume=resume, on_step=speaker.step, on_epoch=speaker.epoch, notes=settings,
            **job.optimizer_settings(),
        )  # fmt: skip
    except KeyboardInterrupt:
        speaker.clear()
        if run is not None:
            speaker.say(f"stopped; go on with: weft resume {run.path}")
        raise
    finally:
        speaker.clear()
    _finish(job, result, run, speaker, cost)


def _new_run(job: Job) -> RunFolder | None:
    settings = job.settings
    if settings["fast_dev_run"]:
        return None
    name = settings["name"] or f"{Path(settings['data']).stem}-{job.name}-"
    return RunFolder.fresh(Path(settings["runs"]) / job.kind, name)


def _introduce(
    job: Job, run: RunFolder | None, cost: nn.Summary, per_epoch: int, body: Sequence[str], speaker: Speaker
) -> None:
    speaker.say(f"{job.train!r} -> {job.name}, {cost.parameters:,} parameters, {per_epoch} steps an epoch")
    for note in job.notes:
        speaker.say(note)
    if body:
        speaker.say(f"{len(body)} parameter tensors begin from {job.settings['weights']}")
    if run is not None:
        speaker.say(f"everything about this run is in {run.path}")
        speaker.tell("run", folder=str(run.path), notes=job.notes)


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


def _finish(job: Job, result: training.Result, run: RunFolder | None, speaker: Speaker, cost: nn.Summary) -> None:
    """Measure the best network, once, on what it has not seen; write the report; say what can be done next."""
    if run is None or job.settings["overfit"]:
        numbers = ", ".join(
            f"{n.replace('_', ' ')} {v:.4g}" for n, v in result.best.items() if "loss" in n or "accuracy" in n
        )
        speaker.say(f"{'it works' if run is None else 'best'}: {numbers}")
        return
    if not result.history:
        speaker.say(f"{result.ended}, before the first epoch was; go on with: weft resume {run.path}")
        return
    model, network = job.trained(run.path)
    split, examples = _held_out(job.splits, None)
    found = evaluated(network, job.checks(examples), job.loss())
    run.summary(**{split: found.numbers})
    if isinstance(job.train, data.Text):
        write_text(
            run.path, training.generate(model, job.train, job.train.decode(job.train.ids[:1]), SAMPLE, temperature=0.8)
        )
    write_results(run.path, found, cost)
    numbers = ", ".join(f"{n} {_shown(n, v)}" for n, v in found.numbers.items())
    speaker.say(
        f"\n{result.ended}; the best epoch was {int(result.best['epoch'])}. On {len(examples):,} {split} examples: {numbers}"
    )
    use = '"Once upon a time"' if isinstance(job.train, data.Text) else "IMAGE"
    speaker.say(f"look at it:  {run.path / 'report.html'}\nuse it:      weft predict {run.path} {use}")
    speaker.say(f"measure it:  weft eval {run.path}\ncompare it:  weft runs list")
    speaker.tell("ended", why=result.ended, best=result.best, split=split, **found.numbers, classes=found.classes)


def _held_out(splits: data.Splits, name: str | None) -> tuple[str, data.Dataset]:
    """The split to measure on: the one that nothing was decided with, if there is one."""
    found = {n: s for n, s in (("test", splits.test), ("validation", splits.validation), ("train", splits.train)) if s}
    if name is not None and name not in found:
        raise UserError("weft eval", f"there is no {name} split; there are {', '.join(found)}.")
    return (name, found[name]) if name is not None else next(iter(found.items()))


def _example(job: Job) -> Any:
    """What the network is given for one example, to count what it costs."""
    if job.are_images:
        return (1, job.train.shape[0], *job.size())
    return asarray(job.train.inputs(np.arange(1)))


def _image(path: str, shape: Sequence[int]) -> Tensor:
    try:
        image = read_image(path, "gray" if shape[0] == 1 else "rgb")
    except Unreadable as reason:
        raise RunError("weft predict", f"{path} {reason}.") from None
    return asarray(to_array(resize(image, (shape[1], shape[2]), "squash"))[None])


def _print_prediction(path: str, output: Tensor, classes: Sequence[str], given: Any) -> None:
    if not classes:
        numbers = output.numpy()[0].tolist()
        print(json.dumps({"path": path, "numbers": numbers}) if given["json"] else f"{path}: {numbers}")
        return
    shares = softmax(output).numpy()[0]
    best = np.argsort(-shares, kind="stable")[: given["top"]]
    if given["json"]:
        print(json.dumps({"path": path, "classes": {classes[i]: float(shares[i]) for i in best}}))
    else:
        print(f"{path}: " + ", ".join(f"{classes[i]} {100 * shares[i]:.1f} %" for i in best))


def _run_of(verb: str, plain: Sequence[str]) -> Path:
    if not plain:
        raise UserError(f"weft {verb}", "a run is required: weft runs list shows which there are.")
    return find_run(plain[0])


def _expect_device(name: str | None) -> None:
    """Whoever did not ask for the run's device may not know that there is another way."""
    try:
        find_device(name)
    except UserError as error:
        raise UserError(
            "weft resume", f"the run was on {name}. {error.message} device=cpu goes on with it on the CPU."
        ) from None


def _settings_of(verb: str, folder: Path) -> dict[str, Any]:
    if not (folder / "args.yaml").exists():
        raise UserError(f"weft {verb}", f"{folder} is no folder of a run: it has no args.yaml.")
    try:
        settings = dict(read(verb, [f"cfg={folder / 'args.yaml'}"], SETTINGS, 0).settings)
    except UserError as error:
        raise UserError(
            f"weft {verb}", f"{folder} was not made by weft train, or has been changed: {error.message}"
        ) from None
    return {**settings, "data": _found_again(settings["data"], folder)}


def _found_again(path: str | None, folder: Path) -> str | None:
    """A path as it was written when the run began, from where it was written."""
    if path is None or Path(path).expanduser().exists():
        return path
    try:
        there = Path(json.loads((folder / "env.json").read_text(encoding="utf-8"))["folder"]) / path
    except (OSError, ValueError, KeyError, TypeError):
        return path
    return str(there) if there.exists() else path


def _shown(name: str, value: Any) -> str:
    if isinstance(value, float):
        return f"{100 * value:.2f} %" if "accuracy" in name else f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
