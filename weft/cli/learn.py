"""Verbs that train and use networks: train, resume, eval, predict."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import data, metrics, nn, optim
from .. import train as training
from ..data.convert import to_array
from ..data.images import Unreadable, read_image
from ..data.resize import resize
from ..errors import RunError, UserError
from ..io import load
from ..jit import jit
from ..ops.convert import asarray
from ..ops.statistics import softmax
from ..random import seed as set_seed
from ..tensor import Tensor
from ..train import RunFolder
from .networks import built, full_name, side
from .words import Setting, Words, flag, number, read, sizes, whole

SETTINGS: dict[str, Setting] = {
    "data": Setting(str, None, "a known name, or a folder made by `weft.data.create`"),
    "model": Setting(str, "lenet", "a network of the zoo"),
    "epochs": Setting(whole, 10, "how often all examples are seen"),
    "batch": Setting(whole, 64, "examples a step"),
    "optimizer": Setting(str, "adam", "by its name"),
    "rate": Setting(number, None, "of learning; the optimizer's own if nobody says"),
    "schedule": Setting(str, "one_cycle", "of the rate: one_cycle, cosine or constant"),
    "weight_decay": Setting(number, 0.0, "how fast weights shrink by themselves"),
    "precision": Setting(str, None, "float16 or bfloat16 for mixed precision"),
    "augment": Setting(str, None, "light, standard or strong"),
    "flip": Setting(flag, True, "whether left and right may be exchanged; not for digits and letters"),
    "size": Setting(sizes, None, "the images' size as the network sees them"),
    "seed": Setting(whole, 0, "of all random numbers"),
    "patience": Setting(whole, None, "stop after so many epochs without a better result"),
    "max_seconds": Setting(number, None, "stop after so much time"),
    "workers": Setting(whole, 1, "threads that read data"),
    "name": Setting(str, None, "of the run"),
    "runs": Setting(str, "runs/train", "the folder that runs are kept in"),
}
RATES = {"adam": 3e-3, "adamw": 3e-3, "sgd": 0.05}  # peaks that work for most small networks


def train(words: Sequence[str]) -> None:
    """Train a network: weft train digits model=lenet epochs=5."""
    given = read("train", words, SETTINGS, 1)
    what = given["data"] or (given.plain[0] if given.plain else None)
    if what is None:
        raise UserError("weft train", "which data? Say weft train digits, or data=FOLDER.")
    settings = {**given.settings, "data": what, "model": full_name(given["model"])}
    name = settings["name"] or f"{Path(what).name}-{settings['model']}-"
    _fit(settings, RunFolder.fresh(settings["runs"], name), resume=False)


def resume(words: Sequence[str]) -> None:
    """Go on with a run that was stopped: weft resume runs/train/digits-lenet5-1."""
    folder = _run_of("resume", words)
    _fit(_settings_of("resume", folder), RunFolder(folder), resume=True)


def evaluate(words: Sequence[str]) -> None:
    """Measure a trained network on examples it has not seen: weft eval RUN."""
    folder = _run_of("eval", words)
    settings = _settings_of("eval", folder)
    splits = data.open_dataset(settings["data"])
    rest = splits.test or splits.validation or splits.train
    network = _Network(settings, splits, folder)
    right = metrics.ConfusionMatrix(len(rest.classes))
    for x, y in data.Loader(rest, 256, shuffle=False):
        right.update(network(x), y)
    accuracy = float(right.accuracy().item())
    print(json.dumps({"examples": len(rest), "accuracy": accuracy, "run": str(folder)}))


def predict(words: Sequence[str]) -> None:
    """What a trained network takes images for: weft predict RUN image.jpg ..."""
    given = read("predict", words, {"top": Setting(whole, 5, "how many classes to name")}, 1000)
    if len(given.plain) < 2:
        raise UserError("weft predict", "a run and an image are required: weft predict RUN image.jpg.")
    folder = Path(given.plain[0])
    settings = _settings_of("predict", folder)
    splits = data.open_dataset(settings["data"])
    network = _Network(settings, splits, folder)
    for path in given.plain[1:]:
        shares = softmax(network(_image(path, splits.train.shape))).numpy()[0]
        best = np.argsort(-shares, kind="stable")[: given["top"]]
        print(f"{path}: " + ", ".join(f"{splits.train.classes[i]} {100 * shares[i]:.1f} %" for i in best))


# --- parts ------------------------------------------------------------------------------------------------------------------


def _fit(settings: Mapping[str, Any], run: RunFolder, *, resume: bool) -> None:
    splits = data.open_dataset(settings["data"])
    held_out = splits.validation or splits.test
    seed = settings["seed"]
    loader = data.Loader(splits.train, settings["batch"], seed=seed, drop_last=True, workers=settings["workers"])
    checks = None if held_out is None else data.Loader(held_out, 256, shuffle=False, workers=settings["workers"])
    set_seed(seed)
    model = built(settings["model"], len(splits.train.classes), splits.train.shape[0])
    steps = max(1, len(loader) * settings["epochs"])
    print(f"{splits.train!r} -> {settings['model']}; everything about this run is in {run.path}")
    try:
        result = training.fit(
            model, loader, checks, epochs=settings["epochs"], optimizer=settings["optimizer"], rate=_rate(settings, steps),
            prepare=_prepare(settings, splits), precision=settings["precision"], seed=seed, patience=settings["patience"],
            max_seconds=settings["max_seconds"], folder=run.path, resume=resume, on_epoch=_say, notes=settings,
            weight_decay=settings["weight_decay"],
        )  # fmt: skip
    except KeyboardInterrupt:
        print(f"\nstopped; go on with: weft resume {run.path}", file=sys.stderr)
        raise
    if checks is not None and result.history:
        cost = nn.summary(model, (1, splits.train.shape[0], *_size(settings, splits)))
        training.write_results(run.path, _Network(settings, splits, run.path), checks, cost)
    _say_end(result, run)


def _rate(settings: Mapping[str, Any], steps: int) -> Any:
    peak = settings["rate"] if settings["rate"] is not None else RATES.get(settings["optimizer"], 1e-3)
    known: dict[str, Callable[[], Any]] = {
        "one_cycle": lambda: optim.schedules.one_cycle(peak, steps),
        "cosine": lambda: optim.schedules.cosine(peak, steps),
        "constant": lambda: peak,
    }
    if settings["schedule"] not in known:
        raise UserError("weft train", f"the schedule must be {', '.join(known)}, got {settings['schedule']!r}.")
    return known[settings["schedule"]]()


def _prepare(settings: Mapping[str, Any], splits: data.Splits) -> nn.Module:
    """From stored pixels to what the network is given; all of it is part of the compiled step."""
    wanted = _size(settings, splits)
    parts: list[nn.Module] = [data.ToFloat()]
    if wanted != tuple(splits.train.shape[1:]):
        parts.append(nn.Resizing(wanted))
    if settings["augment"] is not None:
        parts.append(data.augmentation(settings["augment"], wanted, flip=settings["flip"]))
    if splits.train.mean is not None and splits.train.std is not None:
        parts.append(data.Normalize(splits.train.mean, [max(s, 1e-3) for s in splits.train.std]))
    return nn.Sequential(*parts)


def _size(settings: Mapping[str, Any], splits: data.Splits) -> tuple[int, int]:
    """The size of the images that the network is given: as asked for, as it needs, or as they are."""
    height, width = settings["size"] or splits.train.shape[1:]
    needed = side(settings["model"])
    return (needed, needed) if needed and not settings["size"] else (height, width)


class _Network:
    """A trained network with its preparation, compiled: from stored pixels to logits."""

    def __init__(self, settings: Mapping[str, Any], splits: data.Splits, folder: Path) -> None:
        prepare = _prepare(settings, splits).eval()
        model = built(settings["model"], len(splits.train.classes), splits.train.shape[0]).eval()
        model(prepare(asarray(splits.train.inputs(np.arange(1)))))
        model.load(load(folder / "weights" / "best.safetensors"))
        self._run = jit(lambda x: model(prepare(x)))

    def __call__(self, x: Any) -> Tensor:
        found: Tensor = self._run(x)
        return found


def _image(path: str, shape: Sequence[int]) -> Tensor:
    try:
        image = read_image(path, "gray" if shape[0] == 1 else "rgb")
    except Unreadable as reason:
        raise RunError("weft predict", f"{path} {reason}.") from None
    return asarray(to_array(resize(image, (shape[1], shape[2]), "squash"))[None])


def _run_of(verb: str, words: Sequence[str]) -> Path:
    given = read(verb, words, {}, 1)
    if not given.plain:
        raise UserError(f"weft {verb}", "the folder of a run is required.")
    return Path(given.plain[0])


def _settings_of(verb: str, folder: Path) -> Mapping[str, Any]:
    if not (folder / "args.yaml").exists():
        raise UserError(f"weft {verb}", f"{folder} is no folder of a run: it has no args.yaml.")
    found: Words = read(verb, [f"cfg={folder / 'args.yaml'}"], SETTINGS, 0)
    return found.settings


def _say(row: Mapping[str, float]) -> None:
    words = [
        f"epoch {int(row['epoch']):3}",
        f"loss {row['train_loss']:.4f}",
        f"accuracy {100 * row['train_accuracy']:.2f} %",
    ]
    if "validation_loss" in row:
        words += [f"held out: loss {row['validation_loss']:.4f}", f"accuracy {100 * row['validation_accuracy']:.2f} %"]
    print("  ".join([*words, f"{row['seconds']:.1f} s"]), flush=True)


def _say_end(result: training.Result, run: RunFolder) -> None:
    best = result.best
    accuracy = best.get("validation_accuracy", best.get("train_accuracy", 0.0))
    print(f"\n{result.ended}: best accuracy {100 * accuracy:.2f} %, in epoch {int(best.get('epoch', 0))}")
    print(
        f"look at it: {run.path / 'report.html'}    use it: weft predict {run.path} IMAGE    measure it: weft eval {run.path}"
    )
