"""weft.train on the device: it learns, and stopped at any moment it goes on with the same bits."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from gpu_tools import DEVICE

import test_fit as cases
import weft
from weft.io import load


@pytest.fixture(autouse=True)
def _children_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_DEVICE", DEVICE)


@pytest.mark.parametrize("precision", [None, "bfloat16", "float16"])
def test_it_learns(precision: str | None) -> None:
    result = cases.fitted(epochs=5, optimizer="sgd", rate=0.1, momentum=0.9, precision=precision)
    assert result.best["validation_accuracy"] > 0.7


def test_as_on_the_cpu() -> None:
    """Three epochs with augmentation, batch norm and dropout: rounding alone tells the devices apart."""
    here = cases.fitted().history
    with weft.knobs.set(device="cpu"):
        there = cases.fitted().history
    for a, b in zip(here, there, strict=True):
        assert a["train_loss"] == pytest.approx(b["train_loss"], rel=0.02)
        assert a["validation_accuracy"] == pytest.approx(b["validation_accuracy"], abs=0.03)


def test_going_on_after_an_epoch_gives_the_same_bits(tmp_path: Path) -> None:
    cases.test_going_on_after_an_epoch_gives_the_same_bits(tmp_path)


def test_a_stop_after_the_last_batch_of_an_epoch(tmp_path: Path) -> None:
    cases.test_a_stop_after_the_last_batch_of_an_epoch(tmp_path)


def test_killed_and_interrupted_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    assert cases.start(tmp_path / "whole").wait() == 0
    pick, stops = random.Random(1), 0
    for how in (signal.SIGKILL, signal.SIGINT):
        process = cases.start(tmp_path / "stopped")
        cases.wait_for_checkpoints(process, tmp_path / "stopped" / "state" / "last.safetensors", pick.randint(2, 8))
        time.sleep(pick.uniform(0.0, 0.02))
        stops += process.poll() is None
        process.send_signal(how)
        process.wait()
    assert cases.start(tmp_path / "stopped").wait() == 0
    assert stops == 2
    assert cases.weights(tmp_path / "stopped") == cases.weights(tmp_path / "whole")


def test_weights_go_from_device_to_device(tmp_path: Path) -> None:
    """What was trained here is read on the CPU, and gives the same answers there."""
    model = cases.network()
    cases.fitted(model=model, epochs=1, folder=tmp_path)
    x = np.random.default_rng(0).normal(size=(9, 1, 8, 8)).astype(np.float32)
    here = model.eval()(weft.asarray(x)).numpy()
    with weft.knobs.set(device="cpu"):
        other = cases.network()
        other(weft.asarray(x))
        saved = load(tmp_path / "weights" / "last.safetensors")
        for name, tensor in other.named_tensors().items():
            tensor.assign(saved[name])
        np.testing.assert_allclose(other.eval()(weft.asarray(x)).numpy(), here, rtol=1e-4, atol=1e-5)


def test_the_command(tmp_path: Path) -> None:
    settings = ["model=lenet", "epochs=2", "seed=1", f"device={DEVICE}", f"runs={tmp_path}"]
    command = [sys.executable, "-m", "weft", "train", "digits", *settings]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [weights] = tmp_path.glob("*/*/weights/best.safetensors")
    assert weights.stat().st_size > 1000
