"""Checkpoints: damage is found when they are loaded, and the one before it is offered."""

import os
import shlex
from pathlib import Path

import numpy as np
import pytest

import weft
from weft import nn, optim
from weft.errors import RunError
from weft.io.safetensors import read, save
from weft.testing import counted
from weft.train.state import PREVIOUS, Training


class Batches:
    """A loader that is somewhere."""

    def __init__(self) -> None:
        self.place = {"epoch": 0, "position": 0}

    def state(self) -> dict[str, int]:
        return self.place

    def load(self, place: dict[str, int]) -> None:
        self.place = place


def training(value: float = 0.0, steps: int = 0) -> Training:
    model = nn.Linear(3, 2)
    model.weight.assign(weft.full((2, 3), value))
    return Training(model, optim.sgd(model, rate=0.1, momentum=0.9), Batches(), {}, steps=steps)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with two checkpoints, after 10 and after 20 steps."""
    (tmp_path / "a run" / "state").mkdir(parents=True)
    for value, steps in ((1.0, 10), (2.0, 20)):
        training(value, steps).save(tmp_path / "a run" / "state" / "last.safetensors")
    return tmp_path / "a run"


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_the_checkpoint_before_the_last_is_kept(run: Path) -> None:
    assert sorted(os.listdir(run / "state")) == ["last.safetensors", PREVIOUS]
    for name, value, steps in (("last.safetensors", 2.0, 20), (PREVIOUS, 1.0, 10)):
        found = training()
        found.load(run / "state" / name)
        assert (found.steps, found.model.weight.tolist()[0]) == (steps, [value] * 3)


def test_without_links_it_is_copied(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*paths: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    training(3.0, 30).save(run / "state" / "last.safetensors")
    found = training()
    found.load(run / "state" / PREVIOUS)
    assert found.steps == 20


def test_a_flipped_bit_is_found_anywhere_and_nothing_is_loaded(run: Path) -> None:
    path = run / "state" / "last.safetensors"
    content = path.read_bytes()
    for bit in range(0, 8 * len(content), 37):
        flip(path, bit)
        found = training(7.0, 5)
        with pytest.raises(RunError, match=r"\[resume\] .*state/last.safetensors (is damaged|is no checkpoint)"):
            found.load(path)
        assert (found.steps, found.model.weight.tolist()[0]) == (5, [7.0] * 3)
        path.write_bytes(content)
        counted()


def test_the_last_good_one_is_offered_with_a_command(run: Path) -> None:
    path = run / "state" / "last.safetensors"
    flip(path, 8 * path.stat().st_size - 1)
    with pytest.raises(
        RunError, match=r"The one before it is intact \(epoch 1, after step 10\)\. Continue .*"
    ) as raised:
        training().load(path)
    copy, resume = raised.value.message.partition("with: ")[2].split(" && ")
    assert shlex.split(resume) == ["weft", "resume", str(run)]
    assert os.system(copy) == 0
    found = training()
    found.load(path)
    assert found.steps == 10


def test_nothing_is_offered_where_nothing_is_whole(run: Path) -> None:
    path, previous = run / "state" / "last.safetensors", run / "state" / PREVIOUS
    flip(path, 800)
    flip(previous, 800)
    with pytest.raises(RunError, match=f"The one before it, {previous}, is damaged too"):
        training().load(path)
    previous.unlink()
    with pytest.raises(RunError, match="There is no checkpoint before it"):
        training().load(path)


def test_a_checkpoint_without_a_checksum_is_of_the_first_format(run: Path) -> None:
    path = run / "state" / "last.safetensors"
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"crc32"', b'"other"'))
    with pytest.raises(RunError, match="last.safetensors is damaged: parts of the checkpoint are missing"):
        training().load(path)
    path.write_bytes(content.replace(b'"crc32"', b'"other"').replace(b'"format":"2"', b'"format":"1"'))
    found = training()
    found.load(path)
    assert found.steps == 20


def test_what_is_no_checkpoint(run: Path) -> None:
    path = run / "state" / "last.safetensors"
    content = read(path)
    for texts in ({}, {"format": "2"}, {"format": "2", "training": "[" * 10_000}, {"format": "2", "training": "{}"}):
        save(path, content.tensors, texts)
        with pytest.raises(RunError, match=r"last.safetensors is (damaged: parts of|no checkpoint of this version)"):
            training().load(path)
    save(path, {"w": np.ones(3)}, content.metadata)
    with pytest.raises(RunError, match="last.safetensors is damaged: parts of the checkpoint are missing"):
        training().load(path)
