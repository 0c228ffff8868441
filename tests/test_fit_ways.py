"""Checks the ways to train: other tasks, transfer, quick looks, rates and batches that are found, memory that is foreseen."""

import json
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft import data, metrics, nn, train, zoo
from weft.data import Arrays, Loader, Splits
from weft.errors import RunError, UserError
from weft.io import load
from weft.knobs import memory_size
from weft.nn.losses import hinge
from weft.report.best_epoch import SELECTION_METRICS, best_row
from weft.train import making, memory
from weft.train.task import best_epochs, is_better


def digits() -> Splits:
    return data.held_out(data.open_dataset("digits"), 0.2)


def network(classes: int = 10) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 8, 3, activation="relu"), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, classes))


def fitted(model: nn.Module, splits: Any = None, **settings: Any) -> train.Result:
    known: dict[str, Any] = {"epochs": 2, "rate": 1e-2, "prepare": data.ToFloat()}
    return train.fit(model, digits() if splits is None else splits, **{**known, **settings})


# --- data and tasks -----------------------------------------------------------------------------------------------------------


def test_splits_datasets_and_loaders_are_the_same_to_it() -> None:
    splits = digits()
    loader = Loader(splits.train, 32, seed=4, drop_last=True)
    checks = Loader(splits.validation, 256, shuffle=False)  # type: ignore[arg-type]
    ways: list[tuple[Any, ...]] = [(splits,), (splits.train, splits.validation), (loader, checks)]
    histories = []
    for way in ways:
        weft.seed(0)
        model = network()
        result = train.fit(model, *way, epochs=1, batch=32, rate=1e-2, prepare=data.ToFloat(), seed=4)
        histories.append({k: v for k, v in result.history[0].items() if "second" not in k})
    assert histories[0] == histories[1] == histories[2]


def line(count: int = 400) -> Splits:
    x = np.random.default_rng(1).normal(size=(count, 3)).astype(np.float32)
    y = (x @ np.array([[1.0], [-2.0], [0.5]], np.float32) + 0.25).astype(np.float32)
    return Splits(Arrays(x[:300], y[:300]), Arrays(x[300:], y[300:]))


def test_linear_regression() -> None:
    model = zoo.linear_regression(3)
    result = train.fit(model, line(), epochs=40, rate=0.05, batch=50)
    assert set(result.best) >= {"validation_loss", "validation_mae"}
    assert result.best["validation_loss"] < 1e-4
    np.testing.assert_allclose(model.weight.numpy(), [[1.0, -2.0, 0.5]], atol=0.01)


def test_logistic_regression() -> None:
    model = zoo.logistic_regression(3)
    splits = line()
    two = [Arrays(np.asarray(s.inputs(np.arange(len(s)))), (s.labels[:, 0] > 0).astype(int)) for s in splits[:2] if s]
    result = train.fit(model, Splits(*two), epochs=20, rate=0.1, batch=50)
    assert result.best["validation_accuracy"] > 0.97


def test_a_perceptron_learns_from_its_mistakes_only() -> None:
    """Where a plane divides the examples with some room, it comes to an end (Novikoff 1962): no mistakes, nothing moves."""
    x = np.random.default_rng(1).normal(size=(300, 3)).astype(np.float32)
    y = x @ np.array([[1.0], [-2.0], [0.5]], np.float32)
    clear = np.abs(y[:, 0]) > 0.4
    result = train.fit(
        zoo.perceptron(3), Arrays(x[clear], np.sign(y[clear])), epochs=15, rate=1.0, batch=1, optimizer="sgd",
        loss=lambda y, t: hinge(y, t, margin=0.0),
        metrics={"accuracy": lambda: metrics.MeanOf(lambda y, t: ((y > 0) == (t > 0)).astype("float32").mean())},
    )  # fmt: skip
    assert result.history[0]["train_loss"] > 0.0
    assert result.history[-1]["train_loss"] == 0.0
    assert result.history[-1]["train_accuracy"] == 1.0


def test_text_and_networks_that_give_their_state_too(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abcd" * 800)
    splits = data.text(tmp_path / "a.txt", length=16).split(0.1)
    result = train.fit(zoo.char_lstm(4, 32, layers=1), splits, epochs=3, rate=2e-2, batch=16)
    assert result.best["validation_token_accuracy"] > 0.9
    assert result.best["validation_loss"] < 0.5


# --- from other weights -----------------------------------------------------------------------------------------------------------


def test_transfer_takes_what_fits(tmp_path: Path) -> None:
    weft.seed(1)
    first = network()
    fitted(first, folder=tmp_path / "first")
    second = network(classes=4)
    before = second.layers[3].weight.numpy().copy()
    names = train.transfer(second, tmp_path / "first")
    assert names == ["layers.0.weight", "layers.0.bias"]
    np.testing.assert_array_equal(second.layers[0].weight.numpy(), first.layers[0].weight.numpy())
    np.testing.assert_array_equal(second.layers[3].weight.numpy(), before)
    assert train.transfer(network(), tmp_path / "first" / "weights" / "best.safetensors") == list(first.named_tensors())
    with pytest.raises(UserError, match=r"no tensor of layers.0.weight, .* fits this network, which has embedding"):
        train.transfer(zoo.char_lstm(4, 8), tmp_path / "first")
    with pytest.raises(UserError, match="is no folder of a run with weights"):
        train.transfer(network(), tmp_path)


def test_a_frozen_body_waits_and_then_learns_slowly(tmp_path: Path) -> None:
    weft.seed(1)
    model = network()
    start = model.layers[0].weight.numpy().copy()
    seen: list[np.ndarray] = []
    names = ["layers.0.weight", "layers.0.bias"]
    result = fitted(
        model, epochs=3, freeze=2, body=names, body_rate=0.01, optimizer="sgd", rate=0.05,
        on_epoch=lambda row: seen.append(model.layers[0].weight.numpy().copy()),
    )  # fmt: skip
    np.testing.assert_array_equal(seen[0], start)
    np.testing.assert_array_equal(seen[1], start)
    assert 0 < np.abs(seen[2] - start).max() < 0.01
    assert result.history[0]["rate"] == pytest.approx(0.05)  # of what is fresh
    assert all(p.requires_grad for p in model.parameters())  # nothing stays frozen behind one's back


def test_a_frozen_batch_norm_keeps_its_parameters_and_statistics() -> None:
    """`body` names parameters alone: running statistics belong to the frozen part all the same, and are used as they are."""
    weft.seed(1)
    norm = nn.BatchNorm2d(8)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, bias=False), norm, nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
    before = {name: t.numpy().copy() for name, t in norm.named_tensors().items()}
    seen: list[dict[str, np.ndarray]] = []
    names = ["layers.0.weight", "layers.1.scale", "layers.1.shift"]
    fitted(
        model, epochs=2, freeze=1, body=names,
        on_epoch=lambda row: seen.append({name: t.numpy().copy() for name, t in norm.named_tensors().items()}),
    )  # fmt: skip
    assert all(np.array_equal(seen[0][name], value) for name, value in before.items())
    assert not any(np.array_equal(seen[1][name], value) for name, value in before.items())


def test_the_first_pretrained_layers_stay_frozen() -> None:
    """After the frozen epochs the later ones learn, with the running statistics of all pretrained batch norms as they were."""
    weft.seed(1)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Flatten(),
        nn.Linear(64, 10),
    )  # fmt: skip
    body = [name for name in model.named_parameters() if not name.startswith("layers.6")]
    before = {name: t.numpy().copy() for name, t in model.named_tensors().items()}
    changed: list[set[str]] = []

    def compare(row: dict[str, float]) -> None:
        changed.append({n for n, t in model.named_tensors().items() if not np.array_equal(t.numpy(), before[n])})

    fitted(model, epochs=2, freeze=1, freeze_layers=2, body=body, optimizer="sgd", rate=0.05, on_epoch=compare)
    assert changed[0] == {"layers.6.weight", "layers.6.bias"}
    assert changed[1] == {*changed[0], "layers.3.weight", "layers.4.scale", "layers.4.shift"}
    assert all(p.requires_grad for p in model.parameters())


def test_a_stopped_transfer_goes_on_exactly(tmp_path: Path) -> None:
    def run(folder: Path, epochs: int, resume: bool = False) -> dict[str, bytes]:
        weft.seed(1)
        names = ["layers.0.weight", "layers.0.bias"]
        fitted(network(), epochs=epochs, freeze=2, body=names, folder=folder, resume=resume)
        return {n: t.numpy().tobytes() for n, t in load(folder / "weights" / "last.safetensors").items()}

    whole = run(tmp_path / "whole", 4)
    run(tmp_path / "parts", 1)
    run(tmp_path / "parts", 3, resume=True)
    assert run(tmp_path / "parts", 4, resume=True) == whole


# --- quick looks ----------------------------------------------------------------------------------------------------------------------


def test_fast_dev_run_keeps_nothing(tmp_path: Path) -> None:
    result = fitted(network(), fast_dev_run=2, epochs=50, batch=16, folder=tmp_path / "run")
    assert [row["steps"] for row in result.history] == [2.0]
    assert "validation_loss" in result.best
    assert result.folder is None
    assert not (tmp_path / "run").exists()


def test_overfit_learns_one_batch_by_heart() -> None:
    result = fitted(network(), overfit=1, epochs=60, batch=16)
    assert result.history[-1]["steps"] == 60.0
    assert result.history[-1]["train_accuracy"] == 1.0
    assert "validation_loss" not in result.best


# --- rates and batches ------------------------------------------------------------------------------------------------------------------


def test_a_rate_is_found_and_nothing_is_changed() -> None:
    weft.seed(3)
    model, splits = network(), digits()
    loader = Loader(splits.train, 32, seed=1)
    before = {n: t.numpy().copy() for n, t in model.named_tensors().items()}
    found = train.find_rate(model, loader, prepare=data.ToFloat(), steps=60, high=10.0)
    assert found.rates == sorted(found.rates)
    assert len(found.rates) == len(found.losses) <= 60
    assert 1e-4 < found.best < 0.5
    for name, t in model.named_tensors().items():
        np.testing.assert_array_equal(t.numpy(), before[name])
    assert loader.state() == {"epoch": 0, "position": 0}
    result = fitted(model, splits, rate=found.best, epochs=3)
    assert result.best["validation_accuracy"] > 0.85


@pytest.mark.parametrize(("low", "high", "steps"), [(0.0, 1.0, 100), (1.0, 0.1, 100), (1e-3, 1.0, 3)])
def test_senseless_rates(low: float, high: float, steps: int) -> None:
    with pytest.raises(UserError, match="0 < low < high and 10 steps or more are required"):
        train.find_rate(network(), digits(), prepare=data.ToFloat(), low=low, high=high, steps=steps)


def test_a_batch_suits_the_data_and_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    splits = digits()
    plan = making.TrainingPlan(prepare=data.ToFloat())
    assert train.find_batch(network(), splits, plan) == 32  # 1,150 examples, 20 steps an epoch or more
    needs = {}

    def free() -> int:
        return needs["free"]

    monkeypatch.setattr(memory, "free_bytes", free)
    _, steps = making.make(network(), Loader(splits.train, 1), plan)
    steps.set_mode(training=True)
    needs["free"] = 2 * memory.total(memory.need(steps.train, splits.train, 8)) + 1
    assert train.find_batch(network(), splits, plan) == 8
    result = fitted(network(), splits, batch="auto", epochs=1)
    assert result.history[0]["steps"] == len(splits.train) // 8


@pytest.mark.parametrize("batch", [0, -3, "many", 2.5, True])
def test_senseless_batches(batch: Any) -> None:
    with pytest.raises(UserError, match='batch is a whole number from 1, or "auto", got'):
        fitted(network(), batch=batch)


# --- memory -------------------------------------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused_with_a_proposal(monkeypatch: pytest.MonkeyPatch) -> None:
    splits = digits()
    _, steps = making.make(network(), Loader(splits.train, 1), making.TrainingPlan(prepare=data.ToFloat()))
    steps.set_mode(training=True)
    plans = {b: memory.need(steps.train, splits.train, b) for b in (16, 32, 64)}
    needs = {b: memory.total(plan) for b, plan in plans.items()}
    more = 2 * 4 * (8 * 9 + 8 + 72 * 10 + 10) + plans[16].work // memory.MARGIN  # gradients, and what plans differ in
    assert needs[16] + more + 1000 < needs[32] < needs[64]
    monkeypatch.setattr(memory, "free_bytes", lambda: int((needs[16] + more) / memory.SHARE) + 1000)
    with pytest.raises(RunError, match=r"a step with 64 examples needs .* batch=16 accumulate=4 would fit") as refused:
        fitted(network(), splits, batch=64)
    limit = re.search(r"memory=(\w+) trades", str(refused.value))
    assert limit is not None
    assert needs[16] / 2 < memory_size(limit[1]) <= needs[16] + more + 1000
    fitted(network(), splits, batch=16, accumulate=4, epochs=1)
    monkeypatch.setattr(memory, "free_bytes", lambda: 10)
    with pytest.raises(RunError, match="not even one example a step would fit"):
        fitted(network(), splits)


def test_the_forecast_is_what_the_program_takes() -> None:
    splits = digits()
    loader = Loader(splits.train, 64)
    _, steps = making.make(network(), loader, making.TrainingPlan(prepare=data.ToFloat()))
    steps.set_mode(training=True)
    planned = memory.need(steps.train, splits.train, 64)
    steps.train(*next(iter(loader)))
    assert memory.need(steps.train, splits.train, 64) == planned
    assert planned.arguments == 64 * (4 * 64 + 8)  # pixels that are floats, and labels


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="the system does not tell")
def test_the_free_memory_is_some_of_the_machine() -> None:
    free = memory.free_bytes()
    total = int(Path("/proc/meminfo").read_text().split("MemTotal:")[1].split()[0]) << 10
    assert free is not None
    assert 0 < free < total


# --- what is kept -------------------------------------------------------------------------------------------------------------------------


def test_the_weights_of_the_best_epochs_are_kept(tmp_path: Path) -> None:
    result = fitted(network(), epochs=5, keep=2, folder=tmp_path)
    best = sorted(result.history, key=lambda row: (-row["validation_accuracy"], row["epoch"]))[:2]
    names = {f"epoch-{int(row['epoch']):04}.safetensors" for row in best}
    assert {p.name for p in (tmp_path / "weights").iterdir()} == {*names, "best.safetensors", "last.safetensors"}
    first = f"epoch-{int(best[0]['epoch']):04}.safetensors"
    assert (tmp_path / "weights" / first).read_bytes() == (tmp_path / "weights" / "best.safetensors").read_bytes()


def test_the_summary_and_the_log(tmp_path: Path) -> None:
    result = fitted(network(), folder=tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["parameters"] == 8 * 9 + 8 + 72 * 10 + 10
    assert summary["ended"] == "all epochs are done"
    assert (summary["best"], summary["last"], summary["epochs"]) == (result.best, result.history[-1], 2)
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert len(lines) == 2
    assert f"accuracy {100 * result.history[1]['validation_accuracy']:.2f} %" in lines[1]


def test_somebody_looks_on() -> None:
    seen: list[train.Now] = []
    fitted(network(), batch=64, on_step=seen.append)
    assert [(n.epoch, n.step, n.steps) for n in seen] == [(e, s, 17) for e in (1, 2) for s in range(1, 18)]
    assert all(n.epochs == 2 and n.examples_per_second > 0 for n in seen)
    assert set(seen[0].meters) == {"loss", "accuracy"}
    assert 0.0 < float(seen[-1].loss.item()) < 2.0


def test_a_second_interrupt_does_not_wait() -> None:
    def impatient(now: train.Now) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("it went on")

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        fitted(network(), on_step=impatient)
    assert signal.getsignal(signal.SIGINT) is before


# --- mistakes -----------------------------------------------------------------------------------------------------------------------------


def test_two_arrays_are_data() -> None:
    x, y = np.eye(4, dtype=np.float32), np.arange(4)
    result = train.fit(nn.Linear(4, 4), (np.tile(x, (8, 1)), np.tile(y, 8)), (x, y), epochs=30, rate=0.1, batch=8)
    assert result.best["validation_accuracy"] == 1.0


def test_one_number_for_each_example_stands_in_a_row_or_in_a_column() -> None:
    histories = []
    for shape in ((-1,), (-1, 1)):
        first, second = (
            Arrays(np.asarray(s.inputs(np.arange(len(s)))), s.labels.reshape(shape)) for s in line()[:2] if s
        )
        result = train.fit(zoo.linear_regression(3), Splits(first, second), epochs=2, rate=0.05)
        histories.append([(row["train_loss"], row["validation_mae"]) for row in result.history])
    assert histories[0] == histories[1]


def test_of_equal_epochs_the_one_with_the_lower_loss_is_better() -> None:
    rows = [{"epoch": e, "train_loss": 1.0, "validation_accuracy": a, "validation_loss": v} for e, a, v in ((1, 0.9, 0.3), (2, 0.9, 0.2), (3, 0.8, 0.1))]  # fmt: skip
    assert is_better(rows[1], rows[0])
    assert not is_better(rows[0], rows[1])
    assert not is_better(rows[2], rows[1])
    assert best_epochs(rows, 2) == [2, 1]


def test_pages_and_training_agree_on_the_best_epoch() -> None:
    rng = np.random.default_rng(8)
    for _ in range(50):
        names = [n for n in SELECTION_METRICS if "test" not in n and (rng.random() < 0.5 or n == "train_loss")]
        table = {"epoch": list(range(1, 7)), **{n: (rng.integers(0, 3, 6) / 2).tolist() for n in names}}
        history = [{n: values[i] for n, values in table.items()} for i in range(6)]
        judge = next(n for n in SELECTION_METRICS if n in table)
        line = best_row(table, judge)
        assert line is not None
        assert best_epochs(history, 1) == [line + 1]
        best: dict[str, float] = {}
        for row in history:
            best = row if is_better(row, best) else best
        assert best["epoch"] == line + 1


def test_a_run_is_not_written_over(tmp_path: Path) -> None:
    fitted(network(), folder=tmp_path, epochs=1)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(UserError, match="holds a run already. Continue it with resume=True, or use another folder"):
        fitted(network(), folder=tmp_path, epochs=1)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_a_run_that_is_resumed_before_it_began(tmp_path: Path) -> None:
    fitted(network(), folder=tmp_path, epochs=1, resume=True)
    assert (tmp_path / "args.yaml").exists()
    fitted(network(), folder=tmp_path, epochs=2, resume=True)
    assert "epochs: 2" in (tmp_path / "args.yaml").read_text()


def test_an_interrupted_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        fitted(network(), folder=tmp_path, on_step=lambda now: signal.raise_signal(signal.SIGINT))
    assert json.loads((tmp_path / "summary.json").read_text())["ended"] == "it was interrupted"
    last = json.loads((tmp_path / "events.jsonl").read_text().splitlines()[-1])
    assert (last["type"], last["why"]) == ("ended", "it was interrupted")


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "epochs": ({"epochs": -1}, "epochs is a whole number from 0, got -1"),
    "keep": ({"keep": 1.5}, "keep is a whole number from 0, got 1.5"),
    "too few outputs": ({"model": network(3)}, "the network gives 3 numbers, and the data has 10 classes"),
    "no data": ({"splits": [1, 2, 3]}, r"data is a Loader, a Dataset, Splits or two arrays \(x, y\), got list"),
    "a metric that is none": ({"metrics": "f17"}, "there is no metric 'f17' to train with"),
    "a body without a rate": ({"body": ["layers.0.weight"], "rate": None}, "a learning rate to scale"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str) -> None:
    settings, message = MISTAKES[name]
    with pytest.raises(UserError, match=message):
        fitted(settings.pop("model", None) or network(), settings.pop("splits", None), **settings)
