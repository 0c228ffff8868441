"""New versions of datasets: what is in them, that the parent stays, that they appear whole or not at all, and their history."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from weft import data
from weft.cli import main
from weft.data.versions import DatasetChanges, history, new_version, versions
from weft.errors import RunError, UserError
from weft.jobs import JobQueue
from weft.jobs.queue.kinds import DATASET_VERSION, work_of
from weft.testing import generator

SPLITS = ("train", "validation", "test")


def make_images(root: Path, counts: dict[str, int]) -> Path:
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for number in range(count):
            pixels = generator(f"{name}/{number}").integers(0, 256, (6, 8, 3), np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number}.png")
    return root


@pytest.fixture(params=["arrays", "lmdb"])
def first(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Version 1 of a dataset: 8 cats, 8 dogs and 8 hens, 4 of each for training, 2 for validation and 2 for test."""
    photos = make_images(tmp_path / "photos", {"cat": 8, "dog": 8, "hen": 8})
    data.create(photos, tmp_path / "pets" / "v1", validation=0.25, test=0.25, store=request.param, workers=0)
    return tmp_path / "pets" / "v1"


def content(folder: Path) -> dict[str, dict[str, tuple[str, bytes]]]:
    """Class and pixels of every image, by split and name; each version is opened as training opens it."""
    found = {}
    for split, part in data.open_dataset(folder)._asdict().items():
        if part is not None:
            names = (folder / split / "names.txt").read_text().splitlines()
            rows = zip(names, part.labels.tolist(), part.inputs(slice(None)), strict=True)
            found[split] = {name: (part.classes[label], image.tobytes()) for name, label, image in rows}
    return found


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def name_of(folder: Path, split: str, row: int) -> str:
    return (folder / split / "names.txt").read_text().splitlines()[row]


def test_images_are_removed_relabelled_and_moved(first: Path) -> None:
    before, old = files(first), content(first)
    changes = DatasetChanges(
        remove={"train": [0, 2], "test": [1]}, relabel={"train": {1: "owl"}, "validation": {0: "cat"}},
        move={"train": {3: "test"}, "validation": {0: "train"}},
    )  # fmt: skip
    second = new_version(first, changes)
    assert second == first.with_name("v2")
    expected = {split: dict(rows) for split, rows in old.items()}
    for split, row in (("train", 0), ("train", 2), ("test", 1)):
        del expected[split][name_of(first, split, row)]
    owl, moved, back = (name_of(first, *place) for place in (("train", 1), ("train", 3), ("validation", 0)))
    expected["train"][owl] = ("owl", expected["train"][owl][1])
    expected["test"][moved] = expected["train"].pop(moved)
    expected["train"][back] = ("cat", expected["validation"].pop(back)[1])
    assert content(second) == expected
    assert data.describe(second)["classes"][-1] == "owl"
    assert files(first) == before  # the parent was only read


def test_statistics_are_those_of_the_images_that_are_left(first: Path) -> None:
    second = new_version(first, DatasetChanges(remove={"train": [1, 4]}))
    train = data.open_dataset(second).train
    values = train.inputs(slice(None)).transpose(1, 0, 2, 3).reshape(3, -1) / 255
    assert train.mean == pytest.approx(values.mean(1), rel=1e-12)
    assert train.std == pytest.approx(values.std(1), rel=1e-12)
    third = new_version(second, DatasetChanges(rename={"cat": "lynx"}))
    assert data.open_dataset(third).train.statistics == train.statistics


def test_a_class_that_is_merged_into_another_is_not_called_renamed(first: Path) -> None:
    made = new_version(first, DatasetChanges(rename={"cat": "dog"}))
    assert data.describe(made)["classes"] == ["dog", "hen"]
    assert history(made)[0].text == "merged cat into dog"
    assert DatasetChanges(rename={"cat": "dog", "dog": "cat"}).with_merges(["cat", "dog"]).summary() == (
        "renamed cat to dog, renamed dog to cat"
    )


def test_classes_are_renamed_merged_and_swapped(first: Path) -> None:
    merged = new_version(first, DatasetChanges(rename={"cat": "mammal", "dog": "mammal"}))
    assert data.describe(merged)["classes"] == ["mammal", "hen"]
    assert data.open_dataset(merged).train.counts() == {"mammal": 8, "hen": 4}
    swapped = new_version(first, DatasetChanges(rename={"cat": "dog", "dog": "cat"}))
    assert swapped.name == "v3"  # v2 exists, made from v1 as well
    assert data.open_dataset(swapped).train.counts() == {"dog": 4, "cat": 4, "hen": 4}


def test_files_are_added_as_the_parent_was_made(first: Path, tmp_path: Path) -> None:
    more = make_images(tmp_path / "more", {"emu": 4, "hen2": 4})
    (more / "emu" / "broken.png").write_bytes(b"...")
    changes = DatasetChanges(add=str(more), rename={"hen": "bird", "hen2": "bird"}, remove={"train": [0]})
    with pytest.raises(UserError, match="there is no class 'hen2' to rename"):
        new_version(first, changes)
    second = new_version(first, DatasetChanges(add=str(more), rename={"hen": "bird"}, remove={"train": [0]}), workers=0)
    about = data.describe(second)
    assert about["classes"] == ["cat", "dog", "bird", "emu", "hen2"]
    assert [sum(counts.values()) for counts in about["counts"].values()] == [12 - 1 + 4, 6 + 2, 6 + 2]
    new, gone = content(second), name_of(first, "train", 0)
    for split, rows in content(first).items():
        kept = {name: (label.replace("hen", "bird"), image) for name, (label, image) in rows.items() if name != gone}
        assert kept.items() <= new[split].items()
    image = next(image for rows in new.values() for name, (_, image) in rows.items() if name == "emu/1.png")
    assert image == np.asarray(Image.open(more / "emu" / "1.png")).transpose(2, 0, 1).tobytes()
    lists = (second / "failed.csv").read_text()
    assert 'emu/broken.png,"is not an image' in lists
    assert f"{gone},passed over: removed from train of v1" in lists
    assert about["failed"] == 1


def test_an_emptied_class_goes_and_an_emptied_split_too(first: Path) -> None:
    rows = {
        split: np.flatnonzero(part.labels == 2).tolist() for split, part in data.open_dataset(first)._asdict().items()
    }
    second = new_version(first, DatasetChanges(remove=rows))
    assert data.describe(second)["classes"] == ["cat", "dog"]
    count = len(data.open_dataset(second).test)
    third = new_version(second, DatasetChanges(move={"test": dict.fromkeys(range(count), "train")}))
    assert data.open_dataset(third).test is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "at least one change is required, got none"),
        ({"remove": {"train": [99]}}, "remove names image 99 of train, which has the images 0 to 11."),
        ({"remove": {"val": [0]}}, "remove names the split 'val', the dataset has train, validation, test."),
        ({"rename": {"cot": "a"}}, "there is no class 'cot' to rename. Did you mean cat?"),
        ({"rename": {"cat": " "}}, "rename needs the name of a class"),
        ({"move": {"train": {"0": "train"}}}, "image 0 of train can be moved to validation or test, got 'train'."),
        ({"remove": {"train": [1]}, "relabel": {"train": {"1": "dog"}}}, "image 1 of train is both removed and changed"),
        ({"remove": {"train": list(range(12))}}, "at least one image must remain for training"),
        ({"add": "nowhere"}, "add must be a folder of class folders or a list of files, there is no nowhere."),
        ({"delete": {}}, "there is no change 'delete'"),
        ({"remove": [1]}, "remove must be a table of splits and lists of rows, got [1]."),
        ({"remove": {"train": ["x"]}}, "remove needs numbers of images, got 'x'."),
    ],
)  # fmt: skip
def test_changes_that_do_not_fit_are_refused(changed_once: Path, changes: object, message: str) -> None:
    with pytest.raises(UserError) as refused:
        new_version(changed_once, DatasetChanges.from_json(changes))
    assert message in str(refused.value)
    assert list(versions(changed_once)) == [1]


@pytest.fixture(scope="module")
def changed_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pets")
    photos = make_images(root / "photos", {"cat": 8, "dog": 8, "hen": 8})
    data.create(photos, root / "pets" / "v1", validation=0.25, test=0.25, workers=0)
    return root / "pets" / "v1"


def test_a_class_without_training_images_is_refused(first: Path) -> None:
    rows = np.flatnonzero(data.open_dataset(first).train.labels == 2).tolist()
    with pytest.raises(UserError, match="each class needs an image in train, the changes leave none of hen"):
        new_version(first, DatasetChanges(remove={"train": rows}))


KILLED = """
import os, sys
from weft.data import version_plan
from weft.data.versions import DatasetChanges, new_version
version_plan._COPIED = 2
def stop(now):
    print(now.done, flush=True)
    if now.done >= {at}: os._exit(9)
print(new_version({folder!r}, DatasetChanges(remove={{"train": [0]}}, add={add!r}), stop, workers=0))
"""


def test_a_killed_version_leaves_nothing_and_goes_on(changed_once: Path, tmp_path: Path) -> None:
    first = tmp_path / "pets" / "v1"
    first.parent.mkdir()
    subprocess.run(["cp", "-r", str(changed_once), str(first)], check=True)
    more = make_images(tmp_path / "more", {"cat": 3})

    def run(at: int) -> subprocess.CompletedProcess[str]:
        code = KILLED.format(at=at, folder=str(first), add=str(more))
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert run(5).returncode == 9
    assert list(versions(first)) == [1]
    resumed = run(1000)
    assert resumed.returncode == 0, resumed.stderr
    done = resumed.stdout.splitlines()
    assert int(done[0]) > 5  # what was copied is not copied again
    whole = tmp_path / "again" / "pets"
    whole.mkdir(parents=True)
    subprocess.run(["cp", "-r", str(first), str(whole / "v1")], check=True)
    assert content(new_version(whole / "v1", DatasetChanges({"train": [0]}, add=str(more)), workers=0)) == content(
        first.with_name("v2")
    )
    assert run(1000).stdout.splitlines()[-1] == str(first.with_name("v2"))  # made already: not made again
    assert list(versions(first)) == [1, 2]


def test_damage_to_the_parent_is_not_copied(first: Path) -> None:
    store = next(p for p in (first / "train").iterdir() if p.name in ("images.npy", "data.mdb"))
    start, length, _ = np.load(first / "train" / "index.npy")[1].tolist()
    damaged = bytearray(store.read_bytes())
    damaged[start + length // 2] ^= 1
    store.write_bytes(damaged)
    with pytest.raises(RunError, match="the checksum of image 1 is wrong"):
        new_version(first, DatasetChanges(remove={"train": [0]}))
    assert list(versions(first)) == [1]


def test_history_tells_what_changed_back_to_the_first(first: Path) -> None:
    second = new_version(first, DatasetChanges(rename={"cat": "mammal", "dog": "mammal"}))
    third = new_version(second, DatasetChanges(remove={"train": [0], "test": [0]}))
    other = new_version(first, DatasetChanges(relabel={"train": {0: "owl"}}))
    assert [(one.number, one.parent, one.text, one.classes) for one in history(third)] == [
        (3, 2, "removed 2 images", 2), (2, 1, "merged cat and dog to mammal", 2), (1, None, "created", 3),
    ]  # fmt: skip
    assert [one.number for one in history(other)] == [4, 1]
    assert history(third)[0].counts == {"train": 11, "validation": 6, "test": 5}
    subprocess.run(["rm", "-r", str(first)], check=True)
    assert [one.number for one in history(third)] == [3, 2]


def test_a_folder_of_its_own_gets_a_number(tmp_path: Path) -> None:
    photos = make_images(tmp_path / "photos", {"cat": 4, "dog": 4})
    data.create(photos, tmp_path / "photos-dataset", workers=0)
    second = new_version(tmp_path / "photos-dataset", DatasetChanges(rename={"cat": "lynx"}))
    assert second.name == "photos-dataset-v2"
    third = new_version(second, DatasetChanges(rename={"lynx": "cat"}))
    assert third.name == "photos-dataset-v3"
    assert [one.number for one in history(third)] == [3, 2, 1]


def test_the_job_writes_a_version(changed_once: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pets" / "v1"
    folder.parent.mkdir()
    subprocess.run(["cp", "-r", str(changed_once), str(folder)], check=True)
    job = JobQueue(tmp_path / "runs").add(
        {"folder": str(folder), "changes": {"rename": {"cat": "lynx"}}}, DATASET_VERSION
    )
    seen = []
    work_of(job.kind)(job.settings, None, seen.append)
    assert [event.type for event in seen] == ["progress"] * 3 + ["dataset", "log"]
    assert seen[-2]["folder"] == str(folder.with_name("v2"))
    assert data.describe(folder.with_name("v2"))["classes"] == ["lynx", "dog", "hen"]


def test_the_command_line(
    changed_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    subprocess.run(["cp", "-r", str(changed_once), str(tmp_path / "pets")], check=True)
    monkeypatch.chdir(tmp_path)
    words = ["remove=train:3,5,test:0", "relabel=train:0:owl", "move=validation:0:train", "rename=cat:lynx"]
    assert main(["dataset", "change", "pets", *words]) == 0
    said = capsys.readouterr().out
    text = "removed 3 images, relabelled 1 image, moved 1 image, renamed cat to lynx"
    assert said.startswith(f"pets-v2: {text}\n11 train, 5 validation, 5 test, 4 classes")
    Path("changes.json").write_text(json.dumps({"rename": {"lynx": "cat"}}))
    assert main(["dataset", "change", "pets-v2", "changes=changes.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["number"] == 3
    assert main(["dataset", "history", "pets-v3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["v3", "v2", "v1"]
    assert text in lines[3]
    for words, message in (
        (["remove=3"], "it must be splits and numbers of images"),
        (["relabel=train:cat"], "it must be split:image:new"),
        (["rename=cat"], "it must be old:new"),
        (["changes=changes.json", "remove=train:1"], "changes=FILE holds all changes, got remove besides"),
        (["changes=none.json"], "none.json cannot be read: No such file"),
    ):
        assert main(["dataset", "change", "pets", *words]) == 2
        assert message in capsys.readouterr().err
