"""Datasets made from image files: what is in them, that they appear whole or not at all, and that work goes on."""

import csv
import importlib
import json
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from weft import data
from weft.data import worker_pool
from weft.data.resize import WAYS, resize
from weft.data.split_plan import split_class
from weft.data.statistics import Statistics, histogram
from weft.errors import RunError, UserError
from weft.testing import counted, generator

create_module = importlib.import_module("weft.data.create")  # weft.data.create is the function


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Twelve cats and eight dogs, 6 x 8, each pixel known."""
    root = tmp_path / "photos"
    make_images(root, {"cat": 12, "dog": 8})
    return root


def make_images(root: Path, counts: dict[str, int], size: tuple[int, int] = (6, 8)) -> None:
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for number in range(count):
            Image.fromarray(pixels(name, number, size)).save(root / name / f"{number}.png")


def pixels(name: str, number: int, size: tuple[int, int] = (6, 8)) -> np.ndarray:
    return generator(f"{name}/{number}").integers(0, 256, (*size, 3), np.uint8)


def names_of(folder: Path, split: str) -> list[str]:
    return (folder / split / "names.txt").read_text().splitlines()


def failures(folder: Path) -> dict[str, str]:
    with open(folder / "failed.csv", newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["path", "reason"]
    return dict(rows[1:])


@pytest.mark.parametrize("store", ["arrays", "lmdb"])
def test_every_image_is_there_with_its_label(photos: Path, tmp_path: Path, store: str) -> None:
    target = tmp_path / "made"
    splits = data.create(photos, target, store=store, validation=0.25, test=0.25)
    assert [len(part) for part in splits] == [10, 5, 5]
    seen = []
    for split, part in zip(("train", "validation", "test"), splits, strict=True):
        assert part.classes == ("cat", "dog")
        assert part.shape == (3, 6, 8)
        images = part.inputs(np.arange(len(part)))
        for image, label, name in zip(images, part.labels, names_of(target, split), strict=True):
            folder, file = name.split("/")
            assert folder == part.classes[label]
            np.testing.assert_array_equal(image, pixels(folder, int(file[:-4])).transpose(2, 0, 1))
            seen.append(name)
            counted()
        assert part.counts() == dict(Counter(part.classes[i] for i in part.labels))
    assert len(set(seen)) == 20
    assert failures(target) == {}


def test_split_is_stratified_and_follows_the_seed(photos: Path, tmp_path: Path) -> None:
    made = [data.create(photos, tmp_path / f"{i}", seed=seed) for i, seed in enumerate((0, 0, 1))]
    assert [part.counts() for part in made[0][:2]] == [{"cat": 9, "dog": 6}, {"cat": 3, "dog": 2}]
    trains = [names_of(tmp_path / f"{i}", "train") for i in range(3)]
    assert trains[0] == trains[1]
    assert set(trains[0]) != set(trains[2])
    assert made[0].train.labels.tolist() != sorted(made[0].train.labels), "classes stand one after another"


@pytest.mark.parametrize(
    ("count", "shares", "expected"),
    [
        (4, {"validation": 0.25, "test": 0.0}, [3, 1, 0]),
        (2, {"validation": 0.25, "test": 0.0}, [1, 1, 0]),
        (1, {"validation": 0.25, "test": 0.25}, [1, 0, 0]),
        (10, {"validation": 0.2, "test": 0.1}, [7, 2, 1]),
        (3, {"validation": 0.6, "test": 0.39}, [1, 2, 0]),
        (0, {"validation": 0.25, "test": 0.0}, [0, 0, 0]),
    ],
)
def test_shares_are_rounded_and_leave_something_to_learn(count: int, shares: dict, expected: list[int]) -> None:
    parts = split_class(np.arange(count), shares)
    assert [len(parts[split]) for split in ("train", "validation", "test")] == expected
    assert sorted(np.concatenate(list(parts.values())).tolist()) == list(range(count))


@pytest.mark.parametrize(("store", "encoding"), [("arrays", "png"), ("lmdb", "png"), ("lmdb", "jpeg")])
def test_mean_and_std_are_those_of_what_training_sees(photos: Path, tmp_path: Path, store: str, encoding: str) -> None:
    train = data.create(photos, tmp_path / "made", store=store, encoding=encoding, size=(16, 16)).train
    seen = train.inputs(np.arange(len(train))).astype(np.float64) / 255
    np.testing.assert_allclose(train.mean, seen.mean((0, 2, 3)), rtol=1e-13)
    np.testing.assert_allclose(train.std, seen.std((0, 2, 3)), rtol=1e-12)
    about = data.describe(tmp_path / "made")
    assert about["mean"] == list(train.mean)
    assert (about["version"], about["store"], about["failed"]) == (2, store, 0)


def test_statistics_are_exact() -> None:
    images = generator("statistics").integers(0, 256, (7, 2, 5, 3), np.uint8)
    found = Statistics.of(histogram(images))
    np.testing.assert_allclose(found.mean, images.mean((0, 2, 3)) / 255, rtol=1e-15)
    np.testing.assert_allclose(found.std, images.std((0, 2, 3)) / 255, rtol=1e-14)
    assert Statistics.of(histogram(np.full((5, 1, 9, 9), 77, np.uint8))).std == (0.0,)


# Four colours in a row of 8 x 2; a white image shows what is cut and what is added.
@pytest.mark.parametrize(
    ("way", "size", "seen"),
    [
        ("squash", (4, 4), (4, 4)),
        ("crop", (4, 4), (4, 4)),
        ("fill", (4, 4), (1, 4)),
        ("half_crop_half_fill", (4, 4), (2, 4)),  # 5/4 pixels for one: 6.4 wide is cut to 4, 1.6 high is filled
        ("fill", (3, 12), (3, 12)),
        ("crop", (1, 1), (1, 1)),
        ("fill", (1, 100), (1, 4)),
    ],
)
def test_ways_to_resize(way: str, size: tuple[int, int], seen: tuple[int, int]) -> None:
    found = np.asarray(resize(Image.new("L", (8, 2), 255), size, way))
    assert found.shape == size
    rows, columns = np.nonzero(found)
    assert (np.ptp(rows) + 1, np.ptp(columns) + 1) == seen
    assert found.sum() == 255 * seen[0] * seen[1]
    middle = (rows.min() + rows.max() + 1) / 2, (columns.min() + columns.max() + 1) / 2
    assert np.abs(np.subtract(middle, np.divide(size, 2))).max() <= 0.5


def test_crop_takes_the_middle_and_squash_takes_all() -> None:
    quarters = np.repeat(np.array([[10, 90, 170, 250]], np.uint8), 2, axis=1).repeat(2, axis=0)  # 2 x 8
    image = Image.fromarray(quarters)
    assert np.asarray(resize(image, (2, 2), "crop")).tolist() == [[90, 170]] * 2
    assert np.asarray(resize(image, (2, 4), "crop")).tolist() == [[90, 90, 170, 170]] * 2
    assert np.asarray(resize(image, (2, 8), "crop")).tolist() == quarters.tolist()
    squashed = np.asarray(resize(image, (2, 4), "squash"))[0].tolist()
    assert squashed == sorted(squashed)
    assert squashed[0] < 40


def test_a_line_of_a_million_pixels_is_cropped_in_little_memory() -> None:
    found = resize(Image.new("L", (1_000_000, 1), 255), (256, 256), "crop")
    assert found.size == (256, 256)
    for way in WAYS:
        assert resize(Image.new("L", (1, 3000), 9), (5, 7), way).size == (7, 5)


def test_size_and_colour_and_way_reach_the_store(photos: Path, tmp_path: Path) -> None:
    made = data.create(photos, tmp_path / "made", size=(4, 10), resize="crop", colour="gray", validation=0)
    assert made.validation is None
    assert made.train.shape == (1, 4, 10)
    name = names_of(tmp_path / "made", "train")[3].split("/")
    image = Image.fromarray(pixels(name[0], int(name[1][:-4]))).convert("L")
    np.testing.assert_array_equal(made.train.inputs(3)[0, 0], np.asarray(resize(image, (4, 10), "crop")))


def test_splits_from_folders_of_their_own(tmp_path: Path) -> None:
    make_images(tmp_path / "a", {"cat": 4, "dog": 4})
    make_images(tmp_path / "b", {"dog": 3})
    made = data.create(tmp_path / "a", tmp_path / "made", validation=tmp_path / "b", test=0.25)
    assert made.validation.counts() == {"cat": 0, "dog": 3}
    assert (len(made.train), len(made.test)) == (6, 2)
    with pytest.raises(UserError, match="unknown classes: cat"):
        data.create(tmp_path / "b", tmp_path / "c", validation=tmp_path / "a")
    with pytest.raises(UserError, match="is in two splits, train and test"):
        data.create(tmp_path / "a", tmp_path / "c", test=tmp_path / "a", validation=0)


def test_a_folder_that_is_divided_already(tmp_path: Path) -> None:
    make_images(tmp_path / "a" / "train", {"cat": 4, "dog": 4})
    make_images(tmp_path / "a" / "val", {"cat": 1, "dog": 3})
    made = data.create(tmp_path / "a", tmp_path / "made")
    assert made.train.counts() == {"cat": 4, "dog": 4}
    assert made.validation.counts() == {"cat": 1, "dog": 3}


def test_minimum_and_maximum(tmp_path: Path) -> None:
    make_images(tmp_path / "a", {"ant": 1, "cat": 9, "dog": 4})
    (tmp_path / "a" / "empty").mkdir()
    with pytest.raises(UserError, match=r"2 files or more, got ant \(1\), empty \(0\)\..*small=\"drop\""):
        data.create(tmp_path / "a", tmp_path / "made")
    made = data.create(tmp_path / "a", tmp_path / "drop", small="drop", maximum=5, validation=0)
    assert made.train.counts() == {"cat": 5, "dog": 4}
    reasons = failures(tmp_path / "drop")
    assert reasons.pop("ant/0.png") == "passed over: its class 'ant' has fewer than 2 files"
    assert set(reasons.values()) == {"passed over: its class has more than 5 files"}
    assert len(reasons) == data.describe(tmp_path / "drop")["passed_over"] - 1 == 4
    kept = data.create(tmp_path / "a", tmp_path / "keep", small="keep")
    assert kept.train.counts() == {"ant": 1, "cat": 7, "dog": 3, "empty": 0}


def test_progress_tells_how_far_it_is(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(create_module, "_CHUNK_FILES", 6)
    (photos / "cat" / "bad.png").write_text("no image")
    said: list[data.Progress] = []
    data.create(photos, tmp_path / "made", workers=0, progress=said.append)
    assert [(p.done, p.total) for p in said][-1] == (21, 21)
    assert [p.done for p in said] == sorted({p.done for p in said})
    assert said[-1].failed == 1


def test_processes_give_the_same_bytes(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(create_module, "_CHUNK_FILES", 3)
    (photos / "dog" / "bad.png").write_text("no image")
    for workers in (0, 2):
        data.create(photos, tmp_path / f"{workers}", size=(5, 5), workers=workers)
    assert tree(tmp_path / "0") == tree(tmp_path / "2")
    assert "train/images.npy" in tree(tmp_path / "0")


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_decoder_that_crashes_costs_one_file(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = (
        "import os; from weft.data import worker\nreal = worker.convert\n"
        "def convert(paths, recipe):\n"
        "    if any(path.endswith('cat/3.png') for path in paths): os.kill(os.getpid(), 11)\n"
        "    return real(paths, recipe)\n"
        "worker.convert = convert; worker.main()"
    )

    def start() -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", worker], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"ready\n"
        return process

    monkeypatch.setattr(create_module, "_CHUNK_FILES", 6)
    monkeypatch.setattr(worker_pool, "_start_process", start)
    made = data.create(photos, tmp_path / "made", workers=1, validation=0)
    assert len(made.train) == 19
    (reason,) = failures(tmp_path / "made").values()
    assert reason.startswith("crashed the decoder")


KILLER = """
import importlib, os, signal, sys, warnings
from pathlib import Path
import weft.data as data
warnings.simplefilter("ignore")
module = importlib.import_module("weft.data.create")
module._CHUNK_FILES = 3
photos, place, store, step = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])

def make(target, kill_at):
    left = [kill_at]
    def hook(event, arguments):
        if event in ("open", "os.rename", "os.remove", "os.mkdir", "os.truncate", "os.rmdir", "os.scandir", "os.chmod"):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
    child = os.fork()
    if child == 0:
        sys.addaudithook(hook)
        data.create(photos, target, store=store, workers=0, size=(5, 4))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

for number in range(1, 100000):
    target = place / f"{number}"
    kill_at = number * step
    code = make(target, kill_at)
    killed = code == -signal.SIGKILL
    whole = target.exists()
    print(number, code, whole, flush=True)
    while make(target, kill_at) != 0:  # go on with the same mishap until it is done
        kill_at += step
    if not killed:
        break
"""


@pytest.mark.sweep(share=1.0)
@pytest.mark.parametrize(("store", "step"), [("arrays", 9), ("lmdb", 17)])
def test_killed_at_any_moment_nothing_or_all_is_there(photos: Path, tmp_path: Path, store: str, step: int) -> None:
    (photos / "dog" / "bad.png").write_text("no image")
    place = tmp_path / "made"
    place.mkdir()
    arguments = [sys.executable, "-c", KILLER, str(photos), str(place), store, str(step)]
    said = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
    lines = [line.split() for line in said.splitlines()]
    assert lines[-1][1:] == ["0", "True"]
    assert [code for _, code, _ in lines[:-1]] == ["-9"] * (len(lines) - 1)
    assert len(lines) > 5, "hardly any moment was tried"
    assert "False" in {whole for _, _, whole in lines}
    expected = data.create(photos, tmp_path / "straight", store=store, size=(5, 4), workers=0)
    for number, *_ in lines:
        check_same(place / number, tmp_path / "straight", expected)
        counted()
    assert sorted(os.listdir(place)) == sorted(number for number, *_ in lines), "something hidden was left"


def check_same(folder: Path, straight: Path, expected: data.Splits) -> None:
    left_out = (
        ("data.mdb", "index.npy", "checksums.json") if (folder / "train" / "data.mdb").exists() else ()
    )  # pages may lie in another order
    trees = [{k: v for k, v in tree(f).items() if not k.endswith(left_out)} for f in (folder, straight)]
    assert trees[0] == trees[1]
    for part, other in zip(data.open_dataset(folder)[:2], expected[:2], strict=True):
        every = np.arange(len(other))
        np.testing.assert_array_equal(part.inputs(every), other.inputs(every))


class Stop(Exception):
    """The user has had enough."""


def test_work_goes_on_where_it_stopped(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(create_module, "_CHUNK_FILES", 4)
    target = tmp_path / "made"
    said: list[int] = []

    def stop_soon(progress: data.Progress) -> None:
        said.append(progress.done)
        if len(said) == 2:
            raise Stop

    with pytest.raises(Stop):
        data.create(photos, target, workers=0, progress=stop_soon)
    assert not target.exists()
    again: list[int] = []
    data.create(photos, target, workers=0, progress=lambda p: again.append(p.done))
    assert (said, again[0]) == ([4, 8], 12)
    # Other settings begin anew, and so does a file that has changed.
    for number, change in enumerate([{"size": (3, 3)}, {"seed": 5}, {}]):
        said.clear()
        other = tmp_path / f"other{number}"
        with pytest.raises(Stop):
            data.create(photos, other, workers=0, progress=stop_soon)
        if not change:
            Image.fromarray(pixels("new", 0)).save(photos / "cat" / "0.png")
        again.clear()
        data.create(photos, other, workers=0, progress=lambda p: again.append(p.done), **change)
        assert again[0] == 4, change


def test_a_torn_journal_loses_only_its_last_line(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(create_module, "_CHUNK_FILES", 4)
    target = tmp_path / "made"

    def stop(progress: data.Progress) -> None:
        if progress.done == 12:
            raise Stop

    with pytest.raises(Stop):
        data.create(photos, target, workers=0, progress=stop)
    journal = tmp_path / ".made.partial" / "journal"
    journal.write_bytes(journal.read_bytes()[:-7])
    again: list[int] = []
    data.create(photos, target, workers=0, progress=lambda p: again.append(p.done))
    assert again[0] == 12
    data.create(photos, tmp_path / "straight", workers=0)
    assert tree(target) == tree(tmp_path / "straight")


@pytest.mark.parametrize(("store", "file"), [("arrays", "images.npy"), ("lmdb", "data.mdb")])
def test_images_that_vanished_are_noticed(photos, tmp_path, monkeypatch, store: str, file: str) -> None:
    monkeypatch.setattr(create_module, "_CHUNK_FILES", 4)

    def stop(progress: data.Progress) -> None:
        raise Stop

    with pytest.raises(Stop):
        data.create(photos, tmp_path / "made", store=store, workers=0, progress=stop)
    (tmp_path / ".made.partial" / "train" / file).unlink()
    with pytest.raises(RunError, match="train lacks images that its journal records. Delete .*partial and start again"):
        data.create(photos, tmp_path / "made", store=store, workers=0)


def test_encoded_images_are_read_by_many_threads(photos: Path, tmp_path: Path) -> None:
    train = data.create(photos, tmp_path / "made", store="lmdb", validation=0).train
    every = train.inputs(slice(None))
    with ThreadPoolExecutor(4) as threads:
        for number, image in enumerate(threads.map(train.inputs, [n % 20 for n in range(200)])):
            np.testing.assert_array_equal(image[0], every[number % 20])


def test_what_is_there_is_not_made_again_and_never_lost(photos: Path, tmp_path: Path) -> None:
    target = tmp_path / "made"
    data.create(photos, target)
    before = (target / "dataset.json").stat().st_ino
    data.create(photos, target)
    assert (target / "dataset.json").stat().st_ino == before
    with pytest.raises(UserError, match="is a dataset with other settings or files.*replace=True"):
        data.create(photos, target, seed=3)
    data.create(photos, target, seed=3, replace=True)
    assert data.describe(target)["settings"]["seed"] == 3
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="exists and is not a weft dataset"):
        data.create(photos, precious, replace=True)
    assert (precious / "thesis.txt").read_text() == "years of work"


def test_two_at_once_are_refused(photos: Path, tmp_path: Path) -> None:
    def again(progress: data.Progress) -> None:
        with pytest.raises(RunError, match="is being created by another process"):
            data.create(photos, tmp_path / "made")

    data.create(photos, tmp_path / "made", progress=again)


def test_lmdb_can_be_opened_twice_and_is_smaller(tmp_path: Path) -> None:
    (tmp_path / "a" / "flat").mkdir(parents=True)
    for number in range(40):
        Image.new("RGB", (64, 64), (number, 3, 4)).save(tmp_path / "a" / "flat" / f"{number}.png")
    first = data.create(tmp_path / "a", tmp_path / "made", store="lmdb", validation=0)
    second = data.open_dataset(tmp_path / "made")
    assert isinstance(first.train, data.Encoded)
    np.testing.assert_array_equal(first.train.inputs([7, 3, 7]), second.train.inputs([7, 3, 7]))
    assert (tmp_path / "made" / "train" / "data.mdb").stat().st_size < 40 * 64 * 64 * 3 / 2
    assert not (tmp_path / "made" / "train" / "lock.mdb").exists()


def test_lmdb_grows_as_it_must(tmp_path: Path) -> None:
    (tmp_path / "a" / "noise").mkdir(parents=True)
    for number in range(8):
        Image.fromarray(pixels("noise", number, (900, 900))).save(
            tmp_path / "a" / "noise" / f"{number}.png", compress_level=0
        )
    made = data.create(tmp_path / "a", tmp_path / "made", store="lmdb", validation=0)
    assert (tmp_path / "made" / "train" / "data.mdb").stat().st_size > 1 << 24, "this tests nothing"
    assert made.train.inputs([7]).shape == (1, 3, 900, 900)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"resize": "stretch"}, "resize must be one of squash, crop, fill, half_crop_half_fill, got 'stretch'"),
        ({"colour": "cmyk"}, "colour must be one of rgb, gray, got 'cmyk'"),
        ({"store": "hdf5"}, "store must be one of arrays, lmdb, got 'hdf5'"),
        ({"encoding": "bmp"}, "encoding must be one of png, jpeg, got 'bmp'"),
        ({"small": "ignore"}, "small must be one of refuse, drop, keep, got 'ignore'"),
        ({"size": (0, 4)}, "size must be (height, width), each from 1 to 16384, got (0, 4)"),
        ({"size": (4,)}, "size must be (height, width)"),
        ({"minimum": -1}, "minimum must be 0 or more, got -1"),
        ({"maximum": 0}, "maximum must be 1 or more, got 0"),
        ({"seed": -1}, "seed must be 0 or more, got -1"),
        ({"workers": -2}, "workers must be 0 or more, got -2"),
        ({"validation": 1.0}, "validation must be a fraction in [0, 1) or a source of its own, got 1.0"),
        ({"test": -0.1}, "test must be a fraction in [0, 1) or a source of its own, got -0.1"),
        (
            {"validation": 0.5, "test": 0.5},
            "validation and test must leave files for training, got fractions that add up to 1",
        ),
        ({"test": None}, "a source must be a folder, a list of files or an Index, got NoneType"),
    ],
)
def test_bad_settings_are_refused(photos: Path, tmp_path: Path, settings: dict, text: str) -> None:
    with pytest.raises(UserError) as caught:
        data.create(photos, tmp_path / "made", **settings)
    assert text in str(caught.value)
    assert sorted(os.listdir(tmp_path)) == ["photos"]


def test_description_is_readable_without_weft(photos: Path, tmp_path: Path) -> None:
    data.create(photos, tmp_path / "made", size=(4, 4))
    about = json.loads((tmp_path / "made" / "dataset.json").read_text())
    assert about["classes"] == ["cat", "dog"]
    assert about["counts"] == {"train": {"cat": 9, "dog": 6}, "validation": {"cat": 3, "dog": 2}}
    images = np.load(tmp_path / "made" / "train" / "images.npy")
    assert (images.shape, images.dtype) == ((15, 3, 4, 4), np.uint8)
    opened = data.open_dataset(tmp_path / "made").train
    assert isinstance(opened.x, np.memmap), "the images are read, not mapped"
    assert type(opened.inputs([0, 1])) is np.ndarray
