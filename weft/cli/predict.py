"""The verb `predict`: predictions of a trained network for image files, or the continuation of a text."""

from __future__ import annotations

import csv
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..data.resize import WAYS
from ..errors import RunError, UserError
from ..jobs import of_texts
from ..jobs.datasets.image_lists import ImageEntry, image_files
from ..jobs.device import on
from ..jobs.events import Recorder
from ..jobs.prediction.bare_model import ImageInput
from ..jobs.prediction.find import find_predictor
from ..jobs.prediction.predictions import FilePrediction, PredictionRequest, predict_files, predict_to_folder
from ..jobs.prediction.predictor import Predictor
from ..jobs.prediction.results import TABLE, best_per_class, read_predictions, titles
from ..jobs.schema import Setting, flag, numbers, positive, sizes, whole
from ..jobs.settings import DEVICE
from ..report.text_format import counted, listed
from .arguments import Words, read
from .display import Display
from .generate import SAMPLING_SETTINGS, sampling, write
from .progress import ProgressDisplay
from .table import table

IMAGE_SETTINGS = {
    name: Setting(read, default, f"{help} (models without preprocessing)", choices=choices)
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
PREDICT_SETTINGS = {
    "top": Setting(whole, 5, "number of classes to print"),
    **SAMPLING_SETTINGS,
    "out": Setting(str, None, "folder for a table of the predictions, with the accuracy where labels are known"),
    "per_class": Setting(whole, 0, "with out=, number of most confident images of each class to print"),
    "checkpoint": Setting(str, "best", "weights of a run", choices=("best", "last")),
    "device": DEVICE,
    "trust_compiled": Setting(
        flag,
        None,
        "use compiled code in net.weft: true always, false never; default: if you made it",
    ),
    **IMAGE_SETTINGS,
    "csv": Setting(flag, False, "print a table, a line for each image"),
    "json": Setting(flag, False, "print JSON, an object for each image"),
}
MOST_WORDS = 1_000_000  # a shell expands its own patterns


def predict(words: Sequence[str]) -> None:
    """Predict the classes of images with a trained network: weft predict RUN image.jpg ...

    RUN is a run, a program that weft export wrote (net.weft), or an ONNX model (net.onnx). How a model without preprocessing inside takes
    images is printed, and settings such as size=, mean=, std= and labels= change it. Images are files, folders with all files in them, patterns such as
    "shots/*.png", or lists (.txt or .csv) with a path in each line. A file that cannot be read is reported, the others are predicted all the same, and the exit code is 1.
    With out=FOLDER a table of all predictions is kept there, and if folders are named like the classes, or a list has labels, the accuracy
    too; the same command continues where it was stopped.
    For a network that was trained on text the words are the beginning: weft predict RUN "ROMEO:" length=300. See also weft generate.
    """
    given = read_predict(words)
    with on(given["device"]):
        _predict(given)


def read_predict(words: Sequence[str]) -> Words:
    """Read the command."""
    given = read("predict", words, PREDICT_SETTINGS, MOST_WORDS)
    if len(given.plain) < 2:
        raise UserError("weft predict", "a run and an image are required: weft predict RUN image.jpg.")
    if given["csv"] and given["json"]:
        raise UserError("weft predict", "csv and json exclude each other. Use one of them.")
    return given


def _predict(given: Words) -> None:
    name, *words = given.plain
    if given["out"] is not None:
        _write_folder(words, name, given)
        return
    images = ImageInput(**{key: given[key] for key in IMAGE_SETTINGS})
    predictor = find_predictor("predict", name, images, given["trust_compiled"], given["checkpoint"])
    if predictor.text is not None:
        writer = of_texts.writer_of("predict", name, predictor)
        write(writer, [" ".join(words)], sampling(given.settings), given["json"])
        return
    if not predictor.reads_images:
        shape = " x ".join(map(str, predictor.shape))
        raise UserError("weft predict", f"{name} takes inputs of {shape} numbers, and predict reads images.")
    for note in predictor.notes:
        print(f"weft: {note}", file=sys.stderr)
    _print_all([ImageEntry(path) for path in image_files(words)], predictor, given)


# --- images -----------------------------------------------------------------------------------------------------------------


def _print_all(files: Sequence[ImageEntry], predictor: Predictor, given: Words) -> None:
    show_all(predict_files(files, predictor, given["top"]), len(files), given, predictor.classes)


def show_all(found: Iterable[FilePrediction], total: int, given: Words, classes: Sequence[str]) -> None:
    """Print predictions as they come."""
    form: _Form = (_CsvForm if given["csv"] else _JsonForm if given["json"] else _TextForm)(classes, given["top"])
    failed = 0
    piped = not sys.stdout.isatty()  # on a terminal the lines themselves show the progress
    with Display() as display:
        for done, one in enumerate(found, 1):
            failed += bool(one.error)
            if one.error:
                display.line(f"weft: {one.path} {one.error}")
            form.show(one)
            if piped:
                display.bar("predicting", done, total)
    _check_failed(failed, total)


def _check_failed(failed: int, total: int) -> None:
    if failed:
        what = f"{counted(failed, 'file')} of {total:,}"
        others = "; all others were predicted" if failed < total else ""
        raise RunError("weft predict", f"{what} could not be read{others}.")


def _write_folder(words: Sequence[str], name: str, given: Words) -> None:
    """Keep the predictions in a folder, and print how good they are where labels are known."""
    images = {key: given[key] for key in IMAGE_SETTINGS if key in given.given}
    request = PredictionRequest(name, words, given["checkpoint"], given["top"], given["device"], images=images)
    with ProgressDisplay() as progress:
        shown = lambda event: progress(event) if event.type in ("progress", "activity") else None  # noqa: E731
        results = predict_to_folder(request, Path(given["out"]), Recorder(shown))
    print(_results_text(results, Path(given["out"])))
    if given["per_class"]:
        best = best_per_class(read_predictions(Path(given["out"])), results["classes"], given["per_class"])
        rows = [[c, f"{100 * share:.1f} %", one.path] for c, ones in best.items() for one, share in ones]
        print(table(["class", "probability", "image"], rows, left=("class", "image")))
    _check_failed(results["failed"], results["images"])


def _results_text(results: Mapping[str, Any], folder: Path) -> str:
    lines = [f"{counted(results['images'], 'image')} in {results['seconds']:.1f} s: {folder / TABLE}"]
    if "accuracy" in results:
        lines.append(
            f"accuracy {100 * results['accuracy']:.2f} % and top-5 {100 * results['top5_accuracy']:.2f} % of {results['labelled']:,} with labels"
        )
        rows = [
            [name, f"{100 * share:.1f} %", f"{results['class_images'][name]:,}"]
            for name, share in results["class_accuracy"].items()
        ]
        lines.append(table(["class", "accuracy", "images"], rows, left=("class",)))
    if results["unknown_labels"]:
        lines.append(f"labels that are no class of the network do not count: {listed(results['unknown_labels'])}")
    return "\n".join(lines)


class _Form(ABC):
    """How predictions are printed."""

    def __init__(self, classes: Sequence[str], top: int) -> None:
        self.classes, self.top = classes, min(top, len(classes)) if classes else 0

    @abstractmethod
    def show(self, found: FilePrediction) -> None:
        """Print one of them."""


class _TextForm(_Form):
    """A line of text an image."""

    def show(self, found: FilePrediction) -> None:
        if found.error:
            return
        texts = [f"{name} {100 * share:.1f} %" for name, share in found.best]
        print(f"{found.path}: " + ", ".join(texts or [f"{v:.6g}" for v in found.numbers]))


class _JsonForm(_Form):
    """A JSON object a line."""

    def show(self, found: FilePrediction) -> None:
        if found.error:
            print(json.dumps({"path": found.path, "error": found.error}))
        elif found.best:
            print(json.dumps({"path": found.path, "classes": dict(found.best)}))
        else:
            print(json.dumps({"path": found.path, "numbers": list(found.numbers)}))


class _CsvForm(_Form):
    """A table with a line of titles; a file that could not be read has a reason and nothing else."""

    def __init__(self, classes: Sequence[str], top: int) -> None:
        super().__init__(classes, top)
        self._table = csv.writer(sys.stdout, lineterminator="\n")
        if classes:
            self._table.writerow([title for title in titles(classes, top) if title != "label"])

    def show(self, found: FilePrediction) -> None:
        path, _, error, *cells = found.cells()
        self._table.writerow([path, error, *(cells if found.best else found.numbers)])
