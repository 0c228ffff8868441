"""The verb `predict`: predictions of a trained network for image files, or the continuation of a text."""

from __future__ import annotations

import csv
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import train as training
from ..data.images import Unreadable
from ..data.resize import WAYS
from ..errors import RunError, UserError
from ..jobs.device import on
from ..jobs.onnx_predictor import ImageInput
from ..jobs.predictor import Predictor, find_predictor
from ..jobs.schema import Setting, flag, number, numbers, positive, sizes, whole
from ..jobs.settings import DEVICE
from ..ops.convert import asarray
from ..report.text_format import counted
from .arguments import Words, read
from .display import Display
from .files import image_files

BATCH = 64  # images that are predicted together
IMAGE_SETTINGS = {
    name: Setting(read, default, f"{help} (ONNX models)", choices=choices)
    for name, read, default, help, choices in (
        ("size", sizes, None, "image size, if the model takes any; 224 by default", ()),
        ("layout", str, None, "order of the axes; default: the axis of 1 or 3 is the channels", ("nchw", "nhwc")),
        ("colour", str, "rgb", "order of the channels", ("rgb", "bgr")),
        ("range", positive, 1.0, "value of a white pixel: 1 or 255", ()),
        ("mean", numbers, None, "mean to subtract, for each channel or for all", ()),
        ("std", numbers, None, "standard deviation to divide by", ()),
        ("resize", str, "squash", "how images are resized", WAYS),
        ("labels", str, None, "file with the names of the classes, a line each or a JSON list", ()),
    )
}
MOST_WORDS = 1_000_000  # a shell expands its own patterns


def predict(words: Sequence[str]) -> None:
    """Classify images, or continue a text, with a trained network: weft predict RUN image.jpg ...

    RUN is a run, a program that weft export wrote (net.weft), or an ONNX model (net.onnx). How a foreign model takes images is printed, and
    settings such as size=, mean=, std= and labels= change it. Images are files, folders with all files in them, patterns such as
    "shots/*.png", or lists (.txt or .csv) with a path in each line. A file that cannot be read is reported, the others are predicted all the same, and the exit code is 1.
    For a network that was trained on text the words are the beginning: weft predict RUN "ROMEO:" length=300.
    """
    known = {
        "top": Setting(whole, 5, "number of classes to print"),
        "length": Setting(whole, 500, "number of characters to generate"),
        "temperature": Setting(number, 0.8, "sampling temperature of a text; 0: always the most likely character"),
        "seed": Setting(whole, 0, "of the text"),
        "device": DEVICE,
        "trust_compiled": Setting(
            flag,
            None,
            "use compiled code in net.weft: true wherever it comes from, false never; if you made it when nobody says",
        ),
        **IMAGE_SETTINGS,
        "csv": Setting(flag, False, "print a table, a line for each image"),
        "json": Setting(flag, False, "print JSON, an object for each image"),
    }
    given = read("predict", words, known, MOST_WORDS)
    if len(given.plain) < 2:
        raise UserError("weft predict", "a run and an image are required: weft predict RUN image.jpg.")
    if given["csv"] and given["json"]:
        raise UserError("weft predict", "csv and json exclude each other. Use one of them.")
    with on(given["device"]):
        _predict(given)


def _predict(given: Words) -> None:
    name, *words = given.plain
    images = ImageInput(**{key: given[key] for key in IMAGE_SETTINGS})
    predictor = find_predictor("predict", name, images, given["trust_compiled"])
    if predictor.text is not None:
        text = training.generate(
            predictor.model, predictor.text, " ".join(words), given["length"], temperature=given["temperature"], seed=given["seed"]
        )  # fmt: skip
        print(json.dumps({"text": text}) if given["json"] else text)
        return
    if not predictor.reads_images:
        shape = " x ".join(map(str, predictor.shape))
        raise UserError("weft predict", f"{name} takes inputs of {shape} numbers, and predict reads images.")
    for note in predictor.notes:
        print(f"weft: {note}", file=sys.stderr)
    _print_all(image_files(words), predictor, given)


# --- images -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prediction:
    """The prediction for one file: class probabilities, or numbers, or the error."""

    path: str
    values: np.ndarray | None
    error: str = ""


def _print_all(files: Sequence[str], predictor: Predictor, given: Words) -> None:
    form: _Form = (_Csv if given["csv"] else _Json if given["json"] else _Lines)(predictor.classes, given["top"])
    failed = 0
    piped = not sys.stdout.isatty()  # on a terminal the lines themselves show the progress
    with Display() as display:
        for done, found in enumerate(_predictions(files, predictor), 1):
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


def _predictions(files: Sequence[str], predictor: Predictor) -> Iterator[Prediction]:
    """Batch by batch, in the order of the files. All batches have one size, so that one program serves them all."""
    size = predictor.batch or min(BATCH, len(files))
    for start in range(0, len(files), size):
        read_ones = [_image(path, predictor) for path in files[start : start + size]]
        images = [image for image in read_ones if isinstance(image, np.ndarray)]
        if images:
            full = np.stack([*images, *[np.zeros_like(images[0])] * (size - len(images))])
            values = iter(predictor.run(asarray(full)).numpy()[: len(images)])
        for path, image in zip(files[start : start + size], read_ones, strict=True):
            yield Prediction(path, None, image) if isinstance(image, str) else Prediction(path, next(values))


def _image(path: str, predictor: Predictor) -> np.ndarray | str:
    """The pixels, or why there are none."""
    try:
        return predictor.image(path)
    except Unreadable as reason:
        return str(reason)


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
