"""A run whose images may have several classes, in the studio: scores of each class, layers, explanations and the embedding."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("nicegui")

from studio_tools import LocalStudio, served_studio
from weft.cli import main
from weft.data import create
from weft.jobs.embedding import make_embedding
from weft.jobs.evaluations import evaluate_run
from weft.jobs.schema import validated
from weft.jobs.settings import SETTINGS
from weft.jobs.training import train
from weft.report.run_record import read_run

BASE = "/api/v1/networks/classify/both"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network that was trained to tell red and bright images, some of which are both."""
    root = tmp_path_factory.mktemp("labels")
    (root / "images").mkdir()
    lines, draw = ["file,labels"], np.random.default_rng(0)
    for number in range(48):
        labels = [("red",), ("bright",), ("red", "bright")][number % 3]
        pixels = draw.integers(0, 40, (8, 8, 3)) + ("bright" in labels) * 120
        pixels[..., 0] += ("red" in labels) * 80
        Image.fromarray(pixels.astype(np.uint8)).save(root / "images" / f"{number}.png")
        lines.append(f"images/{number}.png,{';'.join(labels)}")
    (root / "list.csv").write_text("\n".join(lines))
    create(root / "list.csv", root / "datasets" / "both" / "v1", labels="classes", size=(8, 8), workers=0)
    given = {"data": str(root / "datasets" / "both" / "v1"), "model": "small_cnn", "epochs": 1, "batch": 16, "name": "both", "runs": str(root / "runs")}  # fmt: skip
    train(validated("test", given, SETTINGS))
    return root / "runs" / "classify" / "both"


@pytest.fixture(scope="module")
def local(run: Path) -> Iterator[LocalStudio]:
    with served_studio(run.parent.parent) as started:
        yield started


def test_each_class_has_scores(run: Path, local: LocalStudio) -> None:
    scores = {one.name: one for one in read_run(run).label_scores}
    assert set(scores) == {"red", "bright"}
    assert all(0 <= one.f1 <= 1 and one.examples > 0 for one in scores.values())
    page = local.web.get("/runs/classify/both?tab=evaluation").text
    assert "Mean of classes" in page
    assert "appear when the run has ended" not in page
    assert "appear after the first epoch" not in local.web.get("/runs/classify/both?tab=predictions").text


def test_any_split_is_evaluated(run: Path, local: LocalStudio, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(run), "split=validation"]) == 0
    said = capsys.readouterr().out
    assert "mean F1" in said
    assert re.search(r"class +examples +precision +recall +F1\n", said)
    found = evaluate_run(run, "train", "last", save=True).found.report("train")
    assert found is not None
    assert (found["task"], found["examples"], [one["name"] for one in found["classes"]]) == (
        "labels",
        36,
        ["bright", "red"],
    )
    kept = local.web.get(
        "/api/v1/runs/classify/both/evaluation", params={"split": "train", "checkpoint": "last"}
    ).json()
    assert kept["mean_f1"] == pytest.approx(found["mean_f1"])
    page = local.web.get("/runs/classify/both?tab=evaluation&split=train&checkpoint=last").text
    assert "Mean of classes" in page
    assert local.web.get("/runs/classify/both?tab=evaluation&split=validation&checkpoint=last").status_code == 200


def test_explanations_have_the_probabilities_of_the_prediction(local: LocalStudio, run: Path) -> None:
    content = (run.parent.parent.parent / "images" / "2.png").read_bytes()
    answer = local.web.post(f"{BASE}/classify", files={"image": content}, headers={"X-Weft-Studio": "1"}).json()
    predicted = {one["name"]: one["probability"] for one in answer["results"][0]["classes"]}
    explained = local.web.post(f"{BASE}/explain", files={"image": content}, headers={"X-Weft-Studio": "1"}).json()
    assert {one["name"]: one["probability"] for one in explained["classes"]} == pytest.approx(predicted, abs=1e-4)


def test_the_classes_of_an_image_are_known(local: LocalStudio, run: Path) -> None:
    network = local.studio.explained.get(local.studio.networks, run)
    split, examples = network.held_out
    labels = [network.true_classes(f"{split}-{i}") for i in range(len(examples))]
    assert {len(one) for one in labels} == {1, 2}
    assert labels[0] == np.flatnonzero(examples.labels[0]).tolist()


def test_the_map_colours_an_image_by_one_of_its_classes(run: Path) -> None:
    made = make_embedding(run, examples=12)
    assert made.labels.shape == made.predicted.shape == (12,)
    assert made.train_labels.ndim == 1
    assert ((made.probability > 0) & (made.probability < 1)).all()
