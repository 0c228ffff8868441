"""The verb `predict`: predictions of a trained network for image files, or the continuation of a text."""

from __future__ import annotations

import csv
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import data
from .. import train as training
from ..data.convert import to_array
from ..data.images import Unreadable, read_image
from ..data.resize import resize
from ..errors import RunError, UserError
from ..jobs.device import on
from ..jobs.find import find_run
from ..jobs.job import Job, job_of_run
from ..jobs.schema import Setting, flag, number, whole
from ..jobs.settings import DEVICE
from ..jobs.stored import settings_of
from ..ops.convert import asarray
from ..ops.statistics import softmax
from ..report.text_format import counted
from ..tensor import Tensor
from .arguments import Words, read
from .display import Display
from .files import image_files

BATCH = 64  # images that are predicted together
MOST_WORDS = 1_000_000  # a shell expands its own patterns


def predict(words: Sequence[str]) -> None:
    """Classify images, or continue a text, with a trained network: weft predict RUN image.jpg ...

    Images are files, folders with all files in them, patterns such as "shots/*.png", or lists (.txt or .csv) with a path in each
    line. A file that cannot be read is reported, the others are predicted all the same, and the exit code is 1.
    For a network that was trained on text the words are the beginning: weft predict RUN "ROMEO:" length=300.
    """
    known = {
        "top": Setting(whole, 5, "number of classes to print"),
        "length": Setting(whole, 500, "number of characters to generate"),
        "temperature": Setting(number, 0.8, "sampling temperature of a text; 0: always the most likely character"),
        "seed": Setting(whole, 0, "of the text"),
        "device": DEVICE,
        "csv": Setting(flag, False, "print a table, a line for each image"),
        "json": Setting(flag, False, "print JSON, an object for each image"),
    }
    given = read("predict", words, known, MOST_WORDS)
    if len(given.plain) < 2:
        raise UserError("weft predict", "a run and an image are required: weft predict RUN image.jpg.")
    if given["csv"] and given["json"]:
        raise UserError("weft predict", "csv and json exclude each other. Use one of them.")
    with on(given["device"]):
        _predict(find_run(given.plain[0]), given)


def _predict(folder: Path, given: Words) -> None:
    job = job_of_run(settings_of("predict", folder), folder)
    if not job.is_image_source and not isinstance(job.train, data.Text):
        shape = " x ".join(map(str, job.train.shape))
        raise UserError("weft predict", f"{folder} takes inputs of {shape} numbers, and predict reads images.")
    files = [] if isinstance(job.train, data.Text) else image_files(given.plain[1:])
    model, network = job.trained(folder)
    if isinstance(job.train, data.Text):
        text = training.generate(
            model, job.train, " ".join(given.plain[1:]), given["length"], temperature=given["temperature"], seed=given["seed"]
        )  # fmt: skip
        print(json.dumps({"text": text}) if given["json"] else text)
        return
    _print_all(files, job, network, given)


# --- images -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prediction:
    """The prediction for one file: class probabilities, or numbers, or the error."""

    path: str
    values: np.ndarray | None
    error: str = ""


def _print_all(files: Sequence[str], job: Job, network: Callable[[Any], Tensor], given: Words) -> None:
    classes = job.train.classes
    form: _Form = (_Csv if given["csv"] else _Json if given["json"] else _Lines)(classes, given["top"])
    failed = 0
    piped = not sys.stdout.isatty()  # on a terminal the lines themselves show the progress
    with Display() as display:
        for done, found in enumerate(_predictions(files, job, network), 1):
            failed += found.values is None
            if found.values is None:
                display.line(f"weft: {found.path} {found.error}")
            form.show(found)
            if piped:
                display.bar("predicting", done, len(files))
    if failed:
        what = f"{counted(failed, 'file')} of {len(files):,}"
        others = "; all others were predicted" if failed < len(files) else ""
        raise RunError("weft predict", f"{what} could not be read{others}.")


def _predictions(files: Sequence[str], job: Job, network: Callable[[Any], Tensor]) -> Iterator[Prediction]:
    """Batch by batch, in the order of the files. All batches have one size, so that one program serves them all."""
    size = min(BATCH, len(files))
    way = job.settings["resize"] or "squash"
    for start in range(0, len(files), size):
        read_ones = [_image(path, job.train.shape, way) for path in files[start : start + size]]
        images = [image for image in read_ones if isinstance(image, np.ndarray)]
        if images:
            full = np.stack([*images, *[np.zeros_like(images[0])] * (size - len(images))])
            output = network(asarray(full))
            values = iter((softmax(output) if job.train.classes else output).numpy()[: len(images)])
        for path, image in zip(files[start : start + size], read_ones, strict=True):
            yield Prediction(path, None, image) if isinstance(image, str) else Prediction(path, next(values))


def _image(path: str, shape: Sequence[int], way: Any) -> np.ndarray | str:
    """The pixels, or the error."""
    try:
        image = read_image(path, "gray" if shape[0] == 1 else "rgb")
    except Unreadable as reason:
        return str(reason)
    return to_array(resize(image, (shape[1], shape[2]), way))


class _Form(ABC):
    """How predictions are printed."""

    def __init__(self, classes: Sequence[str], top: int) -> None:
        self.classes, self.top = classes, min(top, len(classes)) if classes else 0

    @abstractmethod
    def show(self, found: Prediction) -> None:
        """Print one of them."""

    def best(self, values: np.ndarray) -> list[tuple[str, float]]:
        order = np.argsort(-values, kind="stable")[: self.top]
        return [(self.classes[i], float(values[i])) for i in order]


class _Lines(_Form):
    """A line of text an image."""

    def show(self, found: Prediction) -> None:
        if found.values is None:
            return
        texts = [f"{name} {100 * share:.1f} %" for name, share in self.best(found.values)]
        print(f"{found.path}: " + ", ".join(texts if self.classes else [f"{v:.6g}" for v in found.values.ravel()]))


class _Json(_Form):
    """A JSON object a line."""

    def show(self, found: Prediction) -> None:
        if found.values is None:
            print(json.dumps({"path": found.path, "error": found.error}))
        elif self.classes:
            print(json.dumps({"path": found.path, "classes": dict(self.best(found.values))}))
        else:
            print(json.dumps({"path": found.path, "numbers": found.values.ravel().tolist()}))


class _Csv(_Form):
    """A table with a line of titles; a file that could not be read has a reason and nothing else."""

    def __init__(self, classes: Sequence[str], top: int) -> None:
        super().__init__(classes, top)
        self._table = csv.writer(sys.stdout, lineterminator="\n")
        if classes:
            ranks = [f"_{i}" if i > 1 else "" for i in range(1, self.top + 1)]
            self._table.writerow(["path", "error", *(f"{w}{r}" for r in ranks for w in ("class", "probability"))])

    def show(self, found: Prediction) -> None:
        cells: list[Any] = []
        if found.values is not None:
            pairs = [(name, f"{share:.6g}") for name, share in self.best(found.values)]
            cells = [cell for pair in pairs for cell in pair] if self.classes else found.values.ravel().tolist()
        self._table.writerow([found.path, found.error, *cells])
