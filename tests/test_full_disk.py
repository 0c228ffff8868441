"""A disk that fills up at any write, and folders that cannot be written: one sentence, nothing lost, and it goes on afterwards."""

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import weft
from failing_disk import FailingDisk
from weft import data, nn, train
from weft.errors import RunError
from weft.io import load
from weft.report import plots, report
from weft.testing import counted
from weft.train.folder import RunFolder
from weft.train.results import evaluated, write_results

X, Y = np.random.default_rng(0).normal(size=(12, 3)).astype("float32"), np.arange(12) % 2


def fitted(folder: Path, epochs: int) -> None:
    """Train, or go on, with a checkpoint after every step; then write all that belongs to the end of a run."""
    weft.seed(0)
    model = nn.Linear(3, 2)
    examples = data.Arrays(X, Y)
    train.fit(
        model, examples, examples, batch=6, epochs=epochs, folder=folder, keep=2, save_seconds=0,
        resume=(folder / "state" / "last.safetensors").exists(),
    )  # fmt: skip
    write_results(folder, evaluated(model, data.Loader(examples, 12, shuffle=False)))


def values(folder: Path) -> dict[str, bytes]:
    return {name: t.numpy().tobytes() for name, t in load(folder / "weights" / "last.safetensors").items()}


def failures(work: Callable[[], Any], folder: Path, after: Callable[[int], None], step: int = 1) -> int:
    """Do some work with a disk that is full from its n-th write on, for every n; how many writes there are in all."""
    n = 0
    while True:
        with pytest.MonkeyPatch.context() as patch:
            disk = FailingDisk(patch, folder, n)
            said = message_of(work)
        if not disk.failed:
            return n
        assert "No space left on device" in said, f"write {n}"
        assert "\n" not in said, f"write {n}"
        after(n)
        counted()
        n += step


def message_of(work: Callable[[], Any]) -> str:
    try:
        work()
    except RunError as error:
        return error.message
    return "nothing"


@pytest.fixture
def _quick_device() -> Any:
    with weft.knobs.set(device="reference"):
        yield


@pytest.mark.usefixtures("_quick_device")
def test_a_run_survives_a_full_disk_at_any_write(tmp_path: Path) -> None:
    fitted(tmp_path / "straight", 2)
    right = values(tmp_path / "straight")
    place = iter(range(10_000))
    current = [tmp_path / "run-0"]

    def work() -> None:
        current[0] = tmp_path / f"run-{next(place)}"
        fitted(current[0], 2)

    def after(n: int) -> None:
        """With space again it goes on, and ends as if nothing had been."""
        fitted(current[0], 2)
        assert values(current[0]) == right, f"write {n}"
        assert not list(current[0].rglob(".*")), f"write {n} left something hidden"
        for name in ("events.jsonl", "log.txt", "metrics.csv", "report.html"):
            assert (current[0] / name).read_bytes(), f"write {n}"

    assert failures(work, tmp_path, after, step=23) > 60, "hardly anything was written"


@pytest.mark.usefixtures("_quick_device")
def test_a_resumed_run_keeps_what_it_had(tmp_path: Path) -> None:
    """All that was there before the disk was full can be read after it, and the checkpoint is the old one or a newer one."""
    run = tmp_path / "run"
    fitted(run, 1)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}

    def after(n: int) -> None:
        load(run / "state" / "last.safetensors")
        for path, content in before.items():
            if path.name in ("events.jsonl", "log.txt"):
                assert path.read_bytes().startswith(content), f"write {n}"
                assert path.read_bytes().endswith(b"\n"), f"write {n}"
            assert path.stat().st_size, f"write {n}"
        for path in list(run.rglob("*")):
            if path.is_file():
                path.unlink()
        for path, content in before.items():
            path.write_bytes(content)

    assert failures(lambda: fitted(run, 2), tmp_path, after, step=13) > 40


@pytest.mark.parametrize("store", ["arrays", "lmdb"])
def test_a_dataset_survives_a_full_disk_at_any_write(tmp_path: Path, store: str) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(3):
            Image.fromarray(np.full((4, 4, 3), 40 * number, np.uint8)).save(
                tmp_path / "photos" / name / f"{number}.png"
            )
    place = tmp_path / "disk"
    place.mkdir()

    def work() -> data.Splits:
        return data.create(tmp_path / "photos", place / "made", store=store, workers=0, replace=True, minimum=minimum)

    minimum = 2
    right = work().train.inputs(slice(None))
    minimum = 1  # other settings: it is made anew and replaces the old one
    shutil.copytree(place, tmp_path / "before")

    def after(n: int) -> None:
        """The old one or the new one is there, whole; and with space again it is made."""
        np.testing.assert_array_equal(data.open_dataset(place / "made").train.inputs(slice(None)), right)
        np.testing.assert_array_equal(work().train.inputs(slice(None)), right)
        assert [path.name for path in place.iterdir()] == ["made"], f"write {n} left something"
        shutil.rmtree(place)
        shutil.copytree(tmp_path / "before", place)

    assert failures(work, place, after, step=4) > 15
    assert [path.name for path in place.iterdir()] == ["made"]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_read_only_folders(tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "photos" / "x").mkdir(parents=True)
    for name in ("a", "b"):
        Image.new("RGB", (4, 4)).save(tmp_path / "photos" / "x" / f"{name}.png")
    FailingDisk(monkeypatch, tmp_path, 0, number)
    for call in (
        lambda: RunFolder(tmp_path / "new"),
        lambda: RunFolder.fresh(tmp_path, "new"),
        lambda: train.fit(nn.Linear(3, 2), data.Arrays(X, Y), folder=tmp_path / "new"),
        lambda: report(tmp_path / "run"),
        lambda: plots(tmp_path / "run"),
        lambda: data.create(tmp_path / "photos", tmp_path / "made", workers=0, validation=0),
        lambda: data.create(tmp_path / "photos", tmp_path / "deeper" / "made", workers=0, validation=0),
    ):
        with pytest.raises(RunError, match=r"(Permission denied|Read-only file system)"):
            call()
        counted()
