"""Checks training: it learns, keeps what it should, stops when it should, and goes on from any moment with the same bits."""

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from sampling import some
from weft import data, nn, optim, train
from weft.data import Arrays, Loader
from weft.errors import RunError, UserError
from weft.io import load


def digits(count: int = 600) -> tuple[Loader, Loader]:
    images, labels = weft.data.digits()
    x, y = (16 * images.reshape(-1, 1, 8, 8).numpy()).astype(np.uint8), labels.numpy()
    first, second = Arrays(x[:count], y[:count]), Arrays(x[count:900], y[count:900])
    return Loader(first, 50, seed=1), Loader(second, 100, shuffle=False)


class Prepare(nn.Module):
    """uint8 to [0, 1], and in training shifts, turns and noise: random numbers inside the step."""

    def __init__(self) -> None:
        self.augment = data.Augment(data.RandomAffine(degrees=5.0, scale=(0.95, 1.05)), data.RandomCrop(8, padding=1))

    def forward(self, x: weft.Tensor) -> weft.Tensor:
        x = x.astype("float32") / 16.0
        return self.augment(x) + 0.05 * weft.random.normal(x.shape) if self.training else x


class Scale(nn.Module):
    """uint8 to [0, 1] and nothing else: quicker to compile."""

    def forward(self, x: weft.Tensor) -> weft.Tensor:
        return x.astype("float32") / 16.0


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(None, 8, 3, activation="relu"), nn.BatchNorm2d(8), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.1), nn.Linear(None, 10)
    )  # fmt: skip


def fitted(**settings: Any) -> train.Result:
    first, second = digits()
    known: dict[str, Any] = {"epochs": 3, "rate": 1e-2, "prepare": Prepare(), "seed": 3}
    weft.seed(3)
    return train.fit(settings.pop("model", None) or network(), first, second, **{**known, **settings})


def test_it_learns_and_keeps_everything(tmp_path: Path) -> None:
    seen: list[dict[str, float]] = []
    model = network()
    result = fitted(model=model, epochs=6, folder=tmp_path / "run", on_epoch=seen.append)
    assert result.ended == "all epochs are done"
    assert result.best["validation_accuracy"] > 0.8
    assert result.history == seen
    assert result.best == max(seen, key=lambda row: row["validation_accuracy"])
    with open(tmp_path / "run" / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(r["train_loss"]) for r in rows] == [r["train_loss"] for r in seen]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["best"] == result.best
    assert json.loads((tmp_path / "run" / "env.json").read_text())["threads"] >= 1
    assert "epochs: 6" in (tmp_path / "run" / "args.yaml").read_text()
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [e["type"] for e in events if e["type"] not in ("progress", "resources")] == [
        "started",
        *["epoch"] * 6,
        "ended",
    ]
    last = load(tmp_path / "run" / "weights" / "last.safetensors")
    for name, tensor in model.named_tensors().items():
        np.testing.assert_array_equal(last[name].numpy(), tensor.numpy())


def test_names_of_things_and_other_precisions() -> None:
    for precision in (None, "bfloat16", "float16"):
        result = fitted(
            model=nn.Sequential(nn.Flatten(), nn.Linear(64, 32, activation="relu"), nn.Linear(32, 10)),
            prepare=Scale(),
            optimizer="sgd",
            rate=0.1,
            momentum=0.9,
            clip_norm=1.0,
            precision=precision,
            metrics=("accuracy", "top5"),
        )
        assert result.best["validation_accuracy"] > 0.6
        assert result.best["validation_top5"] >= result.best["validation_accuracy"]


def test_it_stops_without_progress() -> None:
    still = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))  # no running statistics, which move without a rate too
    result = fitted(model=still, prepare=Scale(), epochs=50, optimizer="sgd", rate=0.0, patience=2)
    assert result.ended == "no better result in 2 epochs"
    assert len(result.history) == 3


def test_it_stops_in_time(tmp_path: Path) -> None:
    result = fitted(epochs=1000, max_seconds=0.0, folder=tmp_path)
    assert result.ended == "the time is over"
    assert (tmp_path / "state" / "last.safetensors").exists()


def test_a_loss_that_is_no_number_is_named() -> None:
    class Bad(nn.Module):
        def forward(self, x: weft.Tensor) -> weft.Tensor:
            return weft.where(x.sum() >= 0.0, x.astype("float32") / 0.0, 0.0)

    with pytest.raises(
        RunError, match=r"\[fit\] the loss was nan or infinite at step 1; such values are now in layers.0.weight"
    ):
        fitted(prepare=Bad())


ERRORS: dict[str, tuple[dict[str, Any], str]] = {
    "metric": ({"metrics": ("f17",)}, "there is no metric 'f17' to train with. Known: accuracy"),
    "optimizer": ({"optimizer": "adamm"}, "there is no optimizer 'adamm'"),
    "loss": ({"loss": "none"}, "there is no loss 'none'"),
    "setting": ({"optimizer": "sgd", "momentun": 0.9}, "there is no setting 'momentun'. Did you mean momentum?"),
    "a setting of ours": ({"epoch": 3}, "there is no setting 'epoch'. Did you mean epochs?"),
    "as others call it": ({"batch_size": 8}, "there is no setting 'batch_size'. Did you mean batch?"),
    "as others call the optimizer's": (
        {"learning_rate": 1e-3},
        "there is no setting 'learning_rate'. Did you mean rate?",
    ),
    "a setting of another": (
        {"momentum": 0.9},
        "there is no setting 'momentum'. Known: accumulate, alternate_flips, amsgrad, average, axis, b1, ",
    ),
    "resume without a folder": ({"resume": True}, "resume=True needs the folder of the run"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    settings, message = ERRORS[name]
    with pytest.raises(UserError, match=message):
        fitted(**settings)


# --- going on ---------------------------------------------------------------------------------------------------------------------


def weights(folder: Path) -> dict[str, bytes]:
    return {name: t.numpy().tobytes() for name, t in load(folder / "weights" / "last.safetensors").items()}


def test_going_on_after_an_epoch_gives_the_same_bits(tmp_path: Path) -> None:
    whole = fitted(epochs=4, folder=tmp_path / "whole")
    fitted(epochs=2, folder=tmp_path / "parts")
    parts = fitted(epochs=4, folder=tmp_path / "parts", resume=True)
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")
    assert [untimed(row) for row in parts.history] == [untimed(row) for row in whole.history]


def untimed(row: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in row.items() if k not in ("seconds", "examples_per_second")}


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    fitted(epochs=1, folder=tmp_path)
    with pytest.raises(RunError, match="belongs to another network or other settings"):
        fitted(epochs=2, folder=tmp_path, resume=True, model=nn.Sequential(nn.Flatten(), nn.Linear(None, 10)))
    with pytest.raises(RunError, match="belongs to another network or other settings"):
        fitted(epochs=2, folder=tmp_path, resume=True, optimizer="sgd")


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted(epochs=1, folder=tmp_path)
    before = (tmp_path / "state" / "last.safetensors").read_bytes()

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(RunError, match="No space left on device"):
            fitted(epochs=2, folder=tmp_path, resume=True)
    assert (tmp_path / "state" / "last.safetensors").read_bytes() == before
    fitted(epochs=2, folder=tmp_path, resume=True)
    fitted(epochs=2, folder=tmp_path / "whole")
    assert weights(tmp_path) == weights(tmp_path / "whole")


def child_train(folder: str) -> None:
    """Everything that has a state: an order, augmentation, dropout, statistics, momentum, a schedule, accumulation, averages, a loss scale."""
    schedule = optim.schedules.warmup(optim.schedules.cosine(1e-2, 48), 5)
    fitted(
        epochs=4, folder=folder, resume=True, save_seconds=0.0, precision="float16", rate=schedule, accumulate=2, average=0.9, weight_decay=1e-3
    )  # fmt: skip


def start(folder: Path) -> subprocess.Popen[bytes]:
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_fit; test_fit.child_train({str(folder)!r})"
    # A process that was started in the background may have been told to ignore interrupts, and would pass that on.
    listen = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    return subprocess.Popen([sys.executable, "-c", listen + code], stderr=subprocess.DEVNULL)


def wait_for_checkpoints(process: subprocess.Popen[bytes], path: Path, count: int) -> None:
    """Until so many new checkpoints were written, or the process has ended."""
    last, seen = None, 0
    while seen < count and process.poll() is None:
        now = path.stat().st_mtime_ns if path.exists() else None
        seen += now is not None and now != last
        last = now
        time.sleep(0.0005)


@pytest.mark.sweep(share=1.0)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["kill -9", "Ctrl-C"])
def test_stopped_at_any_moment_it_ends_with_the_same_bits(how: signal.Signals, tmp_path: Path) -> None:
    assert start(tmp_path / "whole").wait() == 0
    pick, stops, trials = random.Random(int(how)), 0, some(6, 0.5)
    for _ in range(trials):
        process = start(tmp_path / "stopped")
        wait_for_checkpoints(process, tmp_path / "stopped" / "state" / "last.safetensors", pick.randint(1, 12))
        time.sleep(pick.uniform(0.0, 0.02))  # in the middle of a step, or of writing
        if process.poll() is None:
            process.send_signal(how)
            stops += 1
        process.wait()
    assert start(tmp_path / "stopped").wait() == 0
    assert stops >= trials / 2
    assert weights(tmp_path / "stopped") == weights(tmp_path / "whole")
    rows = [(tmp_path / n / "metrics.csv").read_text().splitlines() for n in ("stopped", "whole")]
    assert [untimed(r) for r in csv.DictReader(rows[0])] == [untimed(r) for r in csv.DictReader(rows[1])]


def test_a_stop_after_the_last_batch_of_an_epoch(tmp_path: Path) -> None:
    """The data stands at the next epoch then, but this one has not been measured yet."""
    whole = fitted(epochs=3, folder=tmp_path / "whole")
    at = {12, 24}  # steps: 600 examples in batches of 50

    def stop(now: train.Now) -> None:
        if now.step == now.steps and 12 * now.epoch in at:
            at.remove(12 * now.epoch)
            os.kill(os.getpid(), signal.SIGINT)

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            fitted(epochs=3, folder=tmp_path / "stopped", resume=True, on_step=stop)
    parts = fitted(epochs=3, folder=tmp_path / "stopped", resume=True)
    assert weights(tmp_path / "stopped") == weights(tmp_path / "whole")
    assert [untimed(row) for row in parts.history] == [untimed(row) for row in whole.history]
