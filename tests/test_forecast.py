"""Checks that what a training will take is known, and refused if it is too much, before anything large is made."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft import data, nn, optim, train, zoo
from weft.cli import main
from weft.errors import RunError
from weft.jobs.job import Job
from weft.jobs.networks import SIDES, VECTORS, WRITERS, build_network
from weft.jobs.settings import SETTINGS
from weft.nn.module import Unknown, without_values
from weft.train import memory
from weft.train.forecast import forecast, output_types
from weft.train.making import TrainingPlan

SMALL = ["lenet5_classic", "resnet20", "mobilenet_v2"]


def shapes(name: str, side: int) -> dict[str, tuple[int, ...]]:
    model = build_network(name, 10, 3, (SIDES.get(name, side),) * 2)
    output_types(model, nn.Sequential(), np.zeros((1, 3, SIDES.get(name, side), SIDES.get(name, side)), np.float32))
    return {path: tensor.shape for path, tensor in model.named_tensors().items()}


@pytest.mark.parametrize("name", SMALL)
def test_without_values_networks_have_the_same_shapes(name: str) -> None:
    with without_values():
        foreseen = shapes(name, 32)
    assert foreseen == shapes(name, 32)


def test_every_network_of_the_zoo_is_foreseen_and_nothing_of_it_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(start: Any, shape: tuple[int, ...]) -> None:
        raise AssertionError(f"values of shape {shape} were made")

    monkeypatch.setattr("weft.nn.init.values", drawn)
    names = [n for n in zoo.names() if n not in WRITERS and (n not in VECTORS or n == "lenet_300_100")]
    assert len(names) > 30
    with without_values():
        counts = {name: sum(int(np.prod(shape)) for shape in shapes(name, 64).values()) for name in names}
    assert counts["vgg19"] > 139e6


def test_a_network_is_what_it_was_after_a_forecast() -> None:
    model = nn.Sequential(nn.Conv2d(None, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(None, 10))
    x = np.zeros((1, 1, 8, 8), np.float32)
    found = forecast(lambda: model, lambda m: output_types(m, nn.Sequential(), x), 2.0)
    assert isinstance(list(model.modules())[4].weight, Unknown)
    numbers = 4 * 9 + 4 + 2 * 4 + 2 * 4 + 144 * 10 + 10
    assert found.network == 4 * numbers
    assert found.optimizer == 2 * 4 * (numbers - 8)  # running statistics have no moments
    assert (found.largest, found.there) == (4 * 1440, 4 * (4 + 16 + 10))  # what has all its sizes is there
    assert all(part.training for part in model.modules())


@pytest.mark.parametrize(
    ("optimizer", "settings", "share"),
    [("adam", {}, 2.0), ("sgd", {"momentum": 0.0}, 0.0), ("sgd", {"momentum": 0.9}, 1.0), ("adam", {"accumulate": 2}, 3.0)],
)  # fmt: skip
def test_the_state_of_an_optimizer(optimizer: str, settings: dict[str, Any], share: float) -> None:
    assert TrainingPlan(optimizer, settings=settings).optimizer_share() == share
    made = optim.find(optimizer)(weft.parameter(weft.zeros((10, 10))), rate=0.1, **settings)
    assert sum(t.size for t in made.named_state().values() if t.ndim) == 100 * share


def test_fit_refuses_what_cannot_fit_before_it_is_made() -> None:
    """A layer whose weight would take 400 GB."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(None, 10**6))
    arrays = data.Arrays(np.zeros((20, 10**5), np.float32), np.arange(20) % 10)
    with pytest.raises(RunError, match=r"the tensors of the network need .* GiB, the state of the optimizer .* free"):
        train.fit(model, arrays, epochs=1)
    assert isinstance(list(model.modules())[2].weight, Unknown)


@pytest.mark.parametrize("model", ["lenet", "small_cnn", "mlp"])
def test_large_images_are_refused_at_once(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(memory, "free_bytes", lambda: 2**30)
    monkeypatch.setattr("weft.train.forecast.free_bytes", lambda: 2**30)
    start = time.process_time()
    assert main(["train", "digits", f"model={model}", "size=4000"]) == 1
    assert time.process_time() - start < 20  # drawing the weights took minutes, and the machine's memory
    said = capsys.readouterr().err
    assert "the tensors of the network need" in said
    assert list(tmp_path.iterdir()) == []
    size = int(said.rpartition("size=")[2].partition(" ")[0])
    settings = {name: setting.default for name, setting in SETTINGS.items()}
    Job({**settings, "data": "digits", "model": model, "size": (size, size)}).check_memory()  # what was proposed fits


def test_a_network_too_large_at_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("weft.train.forecast.free_bytes", lambda: 2**10)
    assert main(["train", "digits", "model=mlp"]) == 1
    assert "Take a smaller network (weft models lists them)." in capsys.readouterr().err


def test_a_summary_makes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", "lenet", "size=4000", "channels=1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] > 20e9


def test_a_benchmark_is_refused_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("weft.train.forecast.free_bytes", lambda: 2**30)
    for verb in ("bench", "explain"):
        assert main([verb, "lenet", "size=4000", "batch=1"]) == 1
        assert "the tensors of the network need" in capsys.readouterr().err


def test_a_network_that_does_not_fit_is_not_left_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    monkeypatch.setattr(memory, "free_bytes", lambda: 16)
    arrays = data.Arrays(np.zeros((32, 4), np.float32), np.arange(32) % 2)
    with pytest.raises(RunError, match="a step with 32 examples needs"):
        train.fit(model, arrays, body=["layers.0.weight", "layers.0.bias"], freeze=1, rate=0.1)
    assert len(model.parameters()) == 4


def test_running_statistics_do_not_move_before_the_first_step() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2))
    before = {name: t.numpy().copy() for name, t in model.named_tensors().items()}
    x = np.random.default_rng(0).normal(5.0, 2.0, (32, 4)).astype(np.float32)
    train.fit(model, data.Arrays(x, np.arange(32) % 2), epochs=0)
    for name, tensor in model.named_tensors().items():
        np.testing.assert_array_equal(tensor.numpy(), before[name], err_msg=name)


def test_one_value_of_a_channel_is_enough_to_make_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """resnet18 halves an 8 x 8 image until one number is left: batch norm has nothing to measure on one example."""
    monkeypatch.chdir(tmp_path)
    settings = {name: setting.default for name, setting in SETTINGS.items()}
    assert Job({**settings, "data": "digits", "model": "resnet20"}).model().parameters()
    assert Job({**settings, "data": "digits", "model": "resnet18"}).model().parameters()


def test_a_batch_larger_than_the_data_is_all_of_it() -> None:
    """Whatever the settings say, a run on few examples has batches to learn from."""
    settings = {name: setting.default for name, setting in SETTINGS.items()}
    few = data.Arrays(np.zeros((12, 1, 8, 8), np.uint8), np.arange(12) % 3, ["a", "b", "c"])
    learn, check = Job({**settings, "batch": 1000}, data.Splits(few, few)).loaders()
    assert [len(y) for _, y in learn] == [12]
    assert check is not None
    assert [len(y) for _, y in check] == [12]
