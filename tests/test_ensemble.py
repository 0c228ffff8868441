"""weft ensemble: predictions are those that NumPy makes of each member's own, the result is one program and a run like any other."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft import cli, data, nn
from weft.errors import UserError
from weft.io import load
from weft.jobs.datasets.facts import FACTS, facts
from weft.jobs.ensembles.ensemble import SETTINGS, ensemble
from weft.jobs.ensembles.members import find_members, unseen_examples
from weft.jobs.ensembles.soup import estimate_statistics, mean_weights
from weft.jobs.job import job_of
from weft.jobs.prediction.find import find_predictor
from weft.jobs.recipes import with_recipe
from weft.jobs.schema import validated
from weft.knobs import knobs
from weft.train import RunFolder
from weft.train.folder import DescribedNetwork

SIDE = 6


def images(path: Path, kind: str = "class", classes: int = 3, seed: int = 0) -> Path:
    """Small gray images with a bright column for each class."""
    random = np.random.default_rng(seed)
    true = np.arange(96) % classes
    x = random.integers(0, 160, (96, 1, SIDE, SIDE), np.uint8)
    x[np.arange(96), :, :, true] += 60
    numbers = (x.mean((1, 2, 3)) / 255).astype(np.float32)
    labels = {"class": true, "numbers": numbers, "classes": np.eye(classes, dtype=bool)[true]}[kind]
    np.savez(path, x_train=x[:72], y_train=labels[:72], x_test=x[72:], y_test=labels[72:])
    return path


def member(folder: Path, name: str, noise: int = 0, **given: Any) -> Path:
    """A run with a network that was not trained, as a finished training leaves it; `noise` tells networks with one seed apart."""
    known = {"data": str(folder / "images.npz"), "model": "mlp", "runs": str(folder / "runs"), "name": name, **given}
    settings = with_recipe("test", known)
    job = job_of("train", settings)
    model, random = job.model(), np.random.default_rng(noise)
    model.load({n: t.numpy() + random.normal(0, 0.05, t.shape).astype(np.float32) for n, t in model.named_tensors().items()})  # fmt: skip
    run = RunFolder.named(folder / "runs" / job.kind, name)
    run.write_json(FACTS, facts(job.train, job.statistics))
    run.start(settings, DescribedNetwork.of(model))
    run.weights("best", model.named_tensors())
    run.summary(test={"loss": 1.0}, ended="all epochs are done")
    return run.path


def made(folder: Path, *names: str, **given: Any) -> Path:
    return ensemble(names, validated("test", {"runs": str(folder / "runs"), **given}, SETTINGS))


@pytest.fixture(autouse=True)
def _without_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the reference device: compiling takes longer than these networks run."""
    monkeypatch.setattr(knobs, "device", "reference")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs `one`, `two` (other rate) and `wide`, whose network takes larger images."""
    folder = tmp_path_factory.mktemp("members")
    images(folder / "images.npz")
    member(folder, "one", 1)
    member(folder, "two", 2, augment="light")
    member(folder, "wide", 3, size=9, seed=1)
    return folder


def pixels() -> np.ndarray:
    return np.random.default_rng(5).integers(0, 256, (40, 1, SIDE, SIDE), np.uint8)


def predicted(name: Path) -> np.ndarray:
    return find_predictor("test", str(name)).run(weft.asarray(pixels())).numpy()


def own_predictions(place: Path, *names: str) -> np.ndarray:
    return np.stack([predicted(place / "runs" / "classify" / name) for name in names])


def test_an_average_is_the_mean_of_the_members_predictions(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = own_predictions(place, "one", "two", "wide").mean(0)
    folder = made(place, "one", "two", "wide", name="average")
    np.testing.assert_allclose(predicted(folder), expected, atol=2e-6)
    np.testing.assert_allclose(predicted(folder / "ensemble.weft"), expected, atol=2e-6)
    program = weft.load(folder / "ensemble.weft").eval()
    np.testing.assert_allclose(program(pixels()[:3]).numpy(), expected[:3], atol=2e-6)
    assert cli.main(["export", str(folder), "to=onnx", f"out={tmp_path / 'net.onnx'}"]) == 0
    np.testing.assert_allclose(predicted(tmp_path / "net.onnx"), expected, atol=2e-6)
    known = json.loads((folder / "ensemble.json").read_text())
    test = data.open_dataset(place / "images.npz").test
    assert test is not None
    shares = np.mean([find_predictor("t", one["run"]).run(weft.asarray(test.inputs(slice(None)))).numpy() for one in known["members"]], axis=0)  # fmt: skip
    right = shares.argmax(1) == test.labels
    assert known["split"] == "test"
    assert known["result"]["accuracy"] == pytest.approx(right.mean())
    assert known["result"]["loss"] == pytest.approx(-np.log(shares[np.arange(24), test.labels]).mean(), abs=1e-5)
    assert [set(one) for one in known["members"]] == [{"run", "network", "test"}] * 3, (
        "seeds differ: no common validation split"
    )
    capsys.readouterr()
    assert cli.main(["eval", str(folder), "json=true"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == pytest.approx(right.mean())
    assert cli.main(["eval", str(folder), "split=validation"]) == 0
    assert "members of this ensemble were trained on examples of the validation split" in capsys.readouterr().out
    assert cli.main(["runs", "list", str(place / "runs")]) == 0
    assert "classify/average: metrics.csv is missing" not in capsys.readouterr().out


def test_votes_are_counted_and_ties_go_to_the_larger_mean(place: Path) -> None:
    own = own_predictions(place, "one", "two")
    votes = np.eye(3)[own.argmax(-1)].sum(0)
    found = predicted(made(place, "one", "two", method="vote"))
    np.testing.assert_allclose(found, (votes + own.mean(0)) / 3, atol=2e-6)
    tied = votes.max(1) == 1
    assert tied.any(), "otherwise this shows nothing"
    chosen = np.where(votes == votes.max(1, keepdims=True), own.mean(0), 0).argmax(1)
    np.testing.assert_array_equal(found.argmax(1), chosen)


def test_weights_are_averaged(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made(place, "one", "two", method="weights")
    parts = [load(place / "runs" / "classify" / name / "weights" / "best.safetensors") for name in ("one", "two")]
    for name, tensor in load(folder / "weights" / "best.safetensors").items():
        expected = (parts[0][name].numpy().astype(float) + parts[1][name].numpy()) / 2
        np.testing.assert_allclose(tensor.numpy(), expected, atol=1e-7)
    assert not (folder / "network.weft").exists(), "it is the network of its settings"
    np.testing.assert_allclose(predicted(folder), predicted(folder / "ensemble.weft"), atol=1e-6)
    assert "validation" in json.loads((folder / "summary.json").read_text()), (
        "with one seed the validation split is common"
    )
    assert cli.main(["resume", str(folder)]) == 2
    assert "weft ensemble made" in capsys.readouterr().err


@pytest.mark.slow
def test_a_greedy_soup_is_never_worse_than_its_best_member(place: Path) -> None:
    folder = made(place, "one", "two", method="weights", soup="greedy")
    known = json.loads((folder / "ensemble.json").read_text())
    accuracy = json.loads((folder / "summary.json").read_text())["validation"]["accuracy"]
    assert accuracy >= max(one["validation"]["accuracy"] for one in known["members"])
    assert 1 <= len(known["chosen"]) <= 2


def test_statistics_of_batch_norm_are_estimated_anew() -> None:
    weft.seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.5)).eval()
    x = np.random.default_rng(0).normal(3, 2, (64, 4)).astype(np.float32)
    batches = data.Loader(data.Arrays(x, np.zeros(64)), 16, shuffle=False)
    before = {name: tensor.numpy().copy() for name, tensor in model.named_parameters().items()}
    model(x[:1])
    assert estimate_statistics(model, nn.Sequential(), batches)
    y = (x @ model[0].weight.numpy().T + model[0].bias.numpy()).reshape(4, 16, 5)
    np.testing.assert_allclose(model[1].mean.numpy(), y.mean(1).mean(0), rtol=1e-4)
    np.testing.assert_allclose(model[1].var.numpy(), y.var(1, ddof=1).mean(0), rtol=1e-4)
    assert not any(layer.training for layer in model.modules())
    assert model[1].momentum == 0.1
    for name, tensor in model.named_parameters().items():
        np.testing.assert_array_equal(tensor.numpy(), before[name])
    assert not estimate_statistics(nn.Sequential(nn.Linear(4, 5)), nn.Sequential(), batches)


@pytest.mark.parametrize("kind", ["numbers", "classes"])
@pytest.mark.slow
def test_numbers_and_several_classes_are_averaged(kind: str, tmp_path: Path) -> None:
    images(tmp_path / "images.npz", kind)
    runs = [member(tmp_path, name, noise) for name, noise in (("a", 1), ("b", 2))]
    own = np.stack([predicted(run) for run in runs])
    np.testing.assert_allclose(predicted(made(tmp_path, "a", "b")), own.mean(0), atol=2e-6)
    if kind == "classes":
        found = predicted(made(tmp_path, "a", "b", method="vote"))
        np.testing.assert_allclose(found, ((own > 0.5).sum(0) + own.mean(0)) / 3, atol=2e-6)
    else:
        with pytest.raises(UserError, match="classes are required for method=vote, got numbers"):
            made(tmp_path, "a", "b", method="vote")


def test_averages_keep_integers_and_dtypes() -> None:
    found = mean_weights([{"w": np.float16([1, 2]), "n": np.int32(3)}, {"w": np.float16([2, 2]), "n": np.int32(9)}])
    assert found["w"].dtype == np.float16
    assert found["w"].tolist() == [1.5, 2.0]
    assert found["n"] == 3


def test_only_examples_that_no_member_saw_are_measured(place: Path) -> None:
    same = unseen_examples(find_members(["one", "two"], str(place / "runs")))
    assert same["validation"].indices is not None
    assert len(same["validation"].open()) == 6, "a tenth of each class"
    assert set(unseen_examples(find_members(["one", "wide"], str(place / "runs")))) == {"test"}


@pytest.mark.parametrize(
    ("names", "given", "said"),
    [
        (["one"], {}, "two or more different runs are required, got 1"),
        (["one", "two", "one"], {}, "got one twice"),
        (["one", "wide"], {"method": "weights"}, "one network is required for method=weights"),
        (["one", "two"], {"soup": "greedy"}, "method=weights is required for soup=greedy"),
        (["one", "nothing"], {}, "no run under"),
        (["one", "other"], {}, "runs with the same labels are required: one has 0, 1 and 2, and other 0, 1, 2 and 3."),
        (["one", "begun"], {}, "runs that are finished are required"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(
    names: list[str], given: dict[str, Any], said: str, place: Path, tmp_path: Path
) -> None:
    if "other" in names and not (place / "runs" / "classify" / "other").exists():
        member(place, "other", data=str(images(place / "four.npz", classes=4)))
    if "begun" in names:
        begun = place / "runs" / "classify" / "begun"
        begun.mkdir(exist_ok=True)
        (begun / "args.yaml").write_text((place / "runs" / "classify" / "one" / "args.yaml").read_text())
    before = sorted((place / "runs" / "classify").iterdir())
    with pytest.raises(UserError) as error:
        made(place, *names, **given)
    assert said in error.value.message
    assert sorted((place / "runs" / "classify").iterdir()) == before


def test_an_ensemble_that_fails_leaves_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.jobs.ensembles.ensemble.save_program", lambda *_, **__: 1 / 0)
    monkeypatch.setattr("weft.jobs.ensembles.ensemble.member_scores", lambda members, *_: [{}] * len(members))
    with pytest.raises(ZeroDivisionError):
        made(place, "one", "two", name="lost")
    assert not (place / "runs" / "classify" / "lost").exists()


def test_an_ensemble_is_not_compressed(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = member(place, "twins")
    for name in ("ensemble.json", "network.weft"):
        (folder / name).touch()
    assert cli.main(["compress", str(folder)]) == 2
    assert "Compress its members" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.slow
def test_members_are_evaluated_side_by_side(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knobs, "device", "cpu")
    known = [json.loads((made(place, "one", "two", jobs=jobs) / "ensemble.json").read_text()) for jobs in (1, 2)]
    assert known[0]["members"] == known[1]["members"]
