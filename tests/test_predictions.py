"""Predictions for many images: labels of folders and lists, the table, going on where it was stopped, and what is measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import weft
from weft.errors import UserError
from weft.jobs.datasets.image_lists import ImageEntry, labelled_files
from weft.jobs.events import Event, Recorder
from weft.jobs.prediction import predictions
from weft.jobs.prediction.predictions import PredictionRequest, predict_job, predict_to_folder
from weft.jobs.prediction.predictor import Predictor
from weft.jobs.prediction.results import StoredPrediction, best_per_class, measure, read_predictions
from weft.nn import Module
from weft.signals import Terminated

CLASSES = ("dark", "bright")


class Brightness(Module):
    """Tells dark images from bright ones, without training."""

    def forward(self, x: weft.Tensor) -> weft.Tensor:
        bright = x.astype("float32").mean(axis=(1, 2, 3)) / 255
        return weft.stack([1 - bright, bright], axis=1)


@pytest.fixture(autouse=True)
def network(monkeypatch: pytest.MonkeyPatch) -> Predictor:
    made = Predictor("classify", (1, 4, 4), "squash", CLASSES, Brightness(), Brightness(), batch=4)
    monkeypatch.setattr(predictions, "find_predictor", lambda *given, **more: made)
    return made


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two folders of classes, in each six images; one of the bright ones is dark, and one file is no image."""
    root = tmp_path / "photos"
    for name, value in (("dark", 20), ("bright", 220)):
        (root / name).mkdir(parents=True)
        for i in range(6):
            Image.fromarray(np.full((4, 4), value + i, np.uint8)).save(root / name / f"{i}.png")
    Image.fromarray(np.full((4, 4), 10, np.uint8)).save(root / "bright" / "odd.png")
    (root / "dark" / "broken.png").write_bytes(b"no image")
    return root


def test_labels_come_from_folders_and_lists(photos: Path, tmp_path: Path) -> None:
    found = labelled_files([str(photos)], CLASSES)
    assert [Path(e.path).parent.name for e in found] == [e.label for e in found]
    assert labelled_files([str(photos)], ("cat",))[0].label == ""
    (tmp_path / "list.txt").write_text("photos/dark/0.png bright\nphotos/dark/1.png 1\nphotos/dark/2.png\n")
    assert [e.label for e in labelled_files([str(tmp_path / "list.txt")], CLASSES)] == ["bright", "bright", ""]
    (tmp_path / "a b.png").write_bytes((photos / "dark" / "0.png").read_bytes())
    (tmp_path / "list.csv").write_text("class,path\ndark,photos/dark/0.png\nbright,a b.png\n")
    assert labelled_files([str(tmp_path / "list.csv")], CLASSES)[1] == ImageEntry(str(tmp_path / "a b.png"), "bright")


def test_a_folder_is_predicted_and_measured(photos: Path, tmp_path: Path) -> None:
    out, events = tmp_path / "out", list[Event]()
    results = predict_to_folder(PredictionRequest("net", [str(photos)]), out, Recorder(events.append))
    assert (results["images"], results["failed"], results["labelled"], results["right"]) == (14, 1, 13, 12)
    assert results["accuracy"] == pytest.approx(12 / 13)
    assert results["class_accuracy"] == {"dark": 1.0, "bright": pytest.approx(6 / 7)}
    assert ["bright", "dark", 1] in results["confusions"]
    assert json.loads((out / "predictions.json").read_text()) == results
    found = read_predictions(out)
    wrong = [one for one in found if one.is_right is False]
    assert [Path(one.path).name for one in wrong] == ["odd.png"]
    assert "is not an image" in next(one.error for one in found if one.error)
    best = best_per_class(found, CLASSES, 2)
    assert [Path(one.path).name for one, _ in best["bright"]] == ["5.png", "4.png"]
    assert Path(best["dark"][0][0].path).name == "odd.png"
    last = [e for e in events if e.type == "progress"][-1]
    assert (last["done"], last["total"]) == (14, 14)


def test_stopped_work_goes_on_after_the_last_line(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    request = PredictionRequest("net", [str(photos)])
    predict_to_folder(request, whole, Recorder())
    real, seen = predictions.predict_files, list[str]()

    def stopped(files: list[ImageEntry], *rest: object) -> Iterator[object]:
        for i, one in enumerate(real(files, *rest)):  # type: ignore[arg-type]
            if i == 5:
                raise Terminated
            yield one

    monkeypatch.setattr(predictions, "predict_files", stopped)
    settings = {"network": "net", "sources": [str(photos)], "out": str(out), "model": "net", "roots": None}
    with pytest.raises(Terminated):
        predict_job(settings, None, lambda event: None)
    with (out / "predictions.csv").open("a") as file:
        file.write("half a li")
    (photos / "dark" / "later.png").write_bytes(b"added meanwhile")

    def noted(files: list[ImageEntry], *rest: object) -> Iterator[object]:
        seen.extend(e.path for e in files)
        return iter(real(files, *rest))  # type: ignore[arg-type]

    monkeypatch.setattr(predictions, "predict_files", noted)
    predict_job(settings, out, lambda event: None)
    assert len(seen) == 9
    assert (out / "predictions.csv").read_text() == (whole / "predictions.csv").read_text()


def test_another_request_needs_another_folder(photos: Path, tmp_path: Path) -> None:
    predict_to_folder(PredictionRequest("net", [str(photos)]), tmp_path / "out", Recorder())
    with pytest.raises(UserError, match="which holds others, of net"):
        predict_to_folder(PredictionRequest("other", [str(photos)]), tmp_path / "out", Recorder())


def test_files_outside_of_the_roots_are_not_opened(photos: Path, tmp_path: Path) -> None:
    outside = tmp_path / "secret.png"
    outside.write_bytes((photos / "dark" / "0.png").read_bytes())
    (photos / "dark" / "link.png").symlink_to(outside)
    (photos / "list.txt").write_text(f"{outside}\ndark/0.png\ndark/link.png\n")
    request = PredictionRequest("net", [str(photos / "list.txt")], roots=[str(photos.resolve())])
    predict_to_folder(request, tmp_path / "out", Recorder())
    assert [one.error for one in read_predictions(tmp_path / "out")] == [
        "is outside of the allowed folders",
        "",
        "is outside of the allowed folders",
    ]


def test_labels_that_are_no_class_do_not_count() -> None:
    found = [
        StoredPrediction(0, "a", "dark", "", (("dark", 0.9), ("bright", 0.1))),
        StoredPrediction(1, "b", "grey", "", (("dark", 0.6), ("bright", 0.4))),
    ]
    assert measure(found, CLASSES)["accuracy"] == 1.0
    assert measure(found, CLASSES)["unknown_labels"] == ["grey"]
    assert "accuracy" not in measure(found[1:], CLASSES)


def test_numbers_of_a_network_without_classes(photos: Path, tmp_path: Path, network: Predictor) -> None:
    object.__setattr__(network, "classes", ())
    results = predict_to_folder(PredictionRequest("net", [str(photos)]), tmp_path / "out", Recorder())
    assert (results["images"], results["failed"]) == (14, 1)
    head = (tmp_path / "out" / "predictions.csv").read_text().splitlines()[0]
    assert head == "path,label,error,number_1,number_2"
    assert sum(read_predictions(tmp_path / "out")[0].numbers) == pytest.approx(1)
