"""Predictions for many images, as a job of the queue or from a command. They are written as they are made.

A folder of predictions holds

inputs.csv         path and label of every image, as they were found at the start
predictions.csv    a line for each image: path, label, error, and the best classes with their probabilities, or the numbers
predictions.json   the request, and at the end the results (see results.py)
submission.json    of a job: its number, and what the network and the images are called

Work that was stopped continues after the last line that was written.
"""

from __future__ import annotations

import csv
import io
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

import numpy as np

from ...data.images import Unreadable
from ...errors import UserError
from ...io.files import replace_file
from ...ops.convert import asarray
from ...records import dataclass
from ..datasets.image_lists import ImageEntry, labelled_files
from ..device import on
from ..events import Listener, Recorder
from ..queue.job_queue import JobQueue
from ..queue.kinds import PREDICT
from ..queue.needs import needs_of
from ..queue.record import JobRecord
from .bare_model import ImageInput
from .find import find_predictor
from .predictor import Predictor
from .results import INPUTS, RESULTS, SUBMISSION, TABLE, measure, read_predictions, titles

FOLDER = ".predictions"  # below the folder of runs
BATCH = 64  # images that are predicted together
TOP = 5  # classes that are kept of each image


@dataclass(frozen=True)
class FilePrediction:
    """The prediction for one file: the best classes with their probabilities, or numbers, or the error."""

    path: str
    label: str = ""
    error: str = ""
    best: Sequence[tuple[str, float]] = ()
    numbers: Sequence[float] = ()

    def cells(self) -> list[Any]:
        """Its line in the table."""
        pairs = [cell for name, share in self.best for cell in (name, f"{share:.6g}")]
        return [self.path, self.label, self.error, *(pairs or [f"{v:.9g}" for v in self.numbers])]


@dataclass(frozen=True)
class PredictionRequest:
    """What to predict, and with which network. Files outside `roots`, if there are any, are not read."""

    network: str
    sources: Sequence[str]
    checkpoint: str = "best"
    top: int = TOP
    device: str = "cpu"
    roots: Sequence[str] = ()
    images: Mapping[str, Any] = field(default_factory=dict)  # how a foreign model takes images, see ImageInput

    @classmethod
    def of_settings(cls, settings: Mapping[str, Any]) -> PredictionRequest:
        """From the settings of a job."""
        return cls(**{name: settings[name] for name in cls.__dataclass_fields__ if settings.get(name) is not None})

    def predictor(self) -> Predictor:
        """Load the network."""
        given: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in self.images.items()}
        found = find_predictor(
            "predict", self.network, ImageInput(**given) if given else None, checkpoint=self.checkpoint
        )
        if not found.reads_images:
            raise UserError("predict", f"a network for images is required, got {self.network}.")
        return found


def predict_files(files: Sequence[ImageEntry], predictor: Predictor, top: int = TOP) -> Iterator[FilePrediction]:
    """Batch by batch, in the order of the files. All batches have one size, so that one program serves them all."""
    size = predictor.batch or min(BATCH, len(files))
    for start in range(0, len(files), size):
        part = files[start : start + size]
        pixels = [_pixels(entry.path, predictor) for entry in part]
        images = [image for image in pixels if isinstance(image, np.ndarray)]
        if images:
            full = np.stack([*images, *[np.zeros_like(images[0])] * (size - len(images))])
            values = iter(predictor.run(asarray(full)).numpy()[: len(images)])
        for entry, image in zip(part, pixels, strict=True):
            yield (
                FilePrediction(entry.path, entry.label, image)
                if isinstance(image, str)
                else FilePrediction(entry.path, entry.label, "", *outcome(next(values), predictor.classes, top))
            )


def outcome(
    values: np.ndarray, classes: Sequence[str], top: int
) -> tuple[Sequence[tuple[str, float]], Sequence[float]]:
    """The output of a network for one image as its best classes, or as numbers."""
    if not classes:
        return (), tuple(float(v) for v in values.ravel())
    order = np.argsort(-values, kind="stable")[:top]
    return tuple((classes[i], float(values[i])) for i in order), ()


def _pixels(path: str, predictor: Predictor) -> np.ndarray | str:
    """The pixels, or why there are none."""
    try:
        return predictor.image(path)
    except Unreadable as reason:
        return str(reason)


# --- a folder of predictions ------------------------------------------------------------------------------------------------------


def new_folder(runs: Path) -> Path:
    """The folder of the next predictions: RUNS/.predictions/N."""
    root = runs / FOLDER
    number = 1 + max((int(p.name) for p in root.glob("*") if p.name.isdigit()), default=0)
    while True:
        try:
            (root / str(number)).mkdir(parents=True)
            return root / str(number)
        except FileExistsError:
            number += 1


def submit_predictions(
    queue: JobQueue, request: PredictionRequest, folder: Path | None = None, owner: str = "", **facts: Any
) -> tuple[JobRecord, Path]:
    """Add predictions to a queue; the job, and the folder that will hold them. `facts` are kept beside them, in submission.json."""
    queue.check(needs_of(PREDICT, asdict(request)), owner)
    out = folder or new_folder(queue.root)
    shown = {
        "model": facts.get("network_name") or request.network,
        "data": facts.get("source_name") or request.sources[0],
    }
    job = queue.add({**asdict(request), "out": str(out), "name": None, **shown}, PREDICT, owner=owner)
    _write(out / SUBMISSION, {**facts, "job": job.number, "created": round(time.time(), 3)})
    return job, out


def predict_job(settings: Mapping[str, Any], earlier: Path | None, listener: Listener) -> None:
    """The work of a job of kind `predict`: `settings` are those of a PredictionRequest, and `out`, the folder of predictions."""
    request = PredictionRequest.of_settings(settings)
    with on(request.device):
        predict_to_folder(request, Path(settings["out"]), Recorder(listener))


def predict_to_folder(request: PredictionRequest, folder: Path, recorder: Recorder) -> dict[str, Any]:
    """Predict all images, continuing where it ended before; the results, which are in predictions.json too."""
    folder.mkdir(parents=True, exist_ok=True)
    recorder.send("run", folder=str(folder), notes=[])
    recorder.show("activity", text="loading the network")
    predictor, started = request.predictor(), time.time()
    facts = _begin(request, folder, predictor.classes)
    files = [ImageEntry(*row[:2]) for row in _rows(folder / INPUTS)[1:]]
    done = _kept(folder / TABLE, files, titles(predictor.classes, request.top, _width(predictor)))
    with (folder / TABLE).open("a", encoding="utf-8", errors="surrogateescape", newline="") as opened:
        table = csv.writer(opened, lineterminator="\n")
        for i, one in enumerate(_allowed(files[done:], predictor, request), done + 1):
            table.writerow(one.cells())
            if i % BATCH == 0:
                opened.flush()
            recorder.show("progress", what="predicting", done=i, total=len(files))
    results = facts | measure(read_predictions(folder), predictor.classes)
    results |= {"done": True, "seconds": round(time.time() - started, 3)}
    _write(folder / RESULTS, results)
    recorder.log(f"all images are predicted: {folder / TABLE}")
    return results


def _begin(request: PredictionRequest, folder: Path, classes: Sequence[str]) -> dict[str, Any]:
    """Write down what is asked and which files that means; what an earlier attempt wrote stays."""
    asked = {"network": request.network, "checkpoint": request.checkpoint, "sources": list(request.sources)}
    before = json.loads((folder / RESULTS).read_text("utf-8")) if (folder / RESULTS).exists() else {}
    if "classes" in before and (folder / INPUTS).exists():
        if {name: before.get(name) for name in asked} != asked:
            raise UserError(
                "predict",
                f"a folder for new predictions is required, got {folder}, which holds others, of {before.get('network')}.",
            )
        return dict(before)
    files = labelled_files(request.sources, classes, "predict")
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([("path", "label"), *files])
    replace_file(folder / INPUTS, [text.getvalue().encode("utf-8", "surrogateescape")], "predict")
    facts: dict[str, Any] = before | asked
    facts |= {"classes": list(classes), "images": len(files), "started": round(time.time(), 3), "done": False}
    _write(folder / RESULTS, facts)
    return facts


def _allowed(files: Sequence[ImageEntry], predictor: Predictor, request: PredictionRequest) -> Iterator[FilePrediction]:
    """Predictions in the order of the files; those outside of the allowed folders are not opened."""
    inside = [not request.roots or _is_inside(entry.path, request.roots) for entry in files]
    found = predict_files([e for e, ok in zip(files, inside, strict=True) if ok], predictor, request.top)
    for entry, ok in zip(files, inside, strict=True):
        yield next(found) if ok else FilePrediction(*entry, "is outside of the allowed folders")


def _is_inside(path: str, roots: Sequence[str]) -> bool:
    real = Path(os.path.realpath(path))
    return any(real.is_relative_to(root) for root in roots)


def _width(predictor: Predictor) -> int:
    """How many numbers a network without classes gives."""
    if predictor.classes:
        return 0
    size = predictor.batch or 1
    values = predictor.run(asarray(np.zeros((size, *predictor.shape), np.uint8))).numpy()
    return int(values.size // size)


def _kept(table: Path, files: Sequence[ImageEntry], head: Sequence[str]) -> int:
    """How many images are in the table already. A line that was not finished is removed."""
    rows = _rows(table)
    good = 0
    for row, entry in zip(rows[1:], files, strict=False):
        if row[:1] != [entry.path] or (len(row) != len(head) and not (len(row) == 3 and row[2])):
            break
        good += 1
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *rows[1 : good + 1]])
    replace_file(table, [text.getvalue().encode("utf-8", "surrogateescape")], "predict")
    return good


def _rows(path: Path) -> list[list[str]]:
    """The complete lines of a table."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    return list(csv.reader(io.StringIO(text[: text.rfind("\n") + 1])))


def _write(path: Path, content: Mapping[str, Any]) -> None:
    replace_file(path, [(json.dumps(content, indent=1) + "\n").encode()], "predict")
