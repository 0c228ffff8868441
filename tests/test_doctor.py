"""The data doctor: planted errors are found, and little else; reports are kept, go on after an interruption, and become versions."""

import json
import subprocess
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from PIL import Image

from weft import data
from weft.cli import main
from weft.data import Arrays
from weft.data.doctor import examine as examine_module
from weft.data.doctor.balance import check_balance
from weft.data.doctor.copies import candidates, find_copies
from weft.data.doctor.examine import CHECKS, examine
from weft.data.doctor.image_facts import downscale, image_facts
from weft.data.doctor.probe import folds_of
from weft.data.doctor.report import DoctorReport, load_report
from weft.data.image_names import read_names
from weft.data.versions import new_version
from weft.errors import RunError, UserError
from weft.jobs.datasets.doctor import features_of_run
from weft.jobs.queue.kinds import DOCTOR, work_of
from weft.jobs.schema import validated
from weft.jobs.settings import SETTINGS
from weft.jobs.training import train


def digits() -> tuple[np.ndarray, np.ndarray]:
    parts = data.known("digits")
    images = np.rint(255 * parts.train.inputs(slice(0, 900))[:, 0]).astype(np.uint8)
    return images, parts.train.labels[:900]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """900 digits, 3 % of them with a wrong label; 10 copies and 5 near copies in other splits and as many in the same; 6 blanks; 5 of noise.

    What was planted is in the names of the files.
    """
    root = tmp_path_factory.mktemp("planted")
    images, labels = digits()
    rng = np.random.default_rng(3)

    def save(split: str, label: int, name: str, image: np.ndarray) -> None:
        path = root / "files" / split / str(label) / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)

    wrong = set(rng.choice(len(images), 27, replace=False).tolist())
    for i, (image, label) in enumerate(zip(images, labels.tolist(), strict=True)):
        given = (label + int(rng.integers(1, 10))) % 10 if i in wrong else label
        save("train" if i < 640 else "val" if i < 800 else "test", given, f"{i}-wrong" if i in wrong else str(i), image)
    right = [i for i in range(640) if i not in wrong]
    for number, i in enumerate(rng.choice(right, 30, replace=False).tolist()):
        near = np.clip(1.08 * images[i] + rng.normal(0, 6, (8, 8)), 0, 255).astype(np.uint8)
        leak, exact = number < 15, number % 15 < 10
        kind = ("" if exact else "near-") + ("leak" if leak else "copy")
        save("val" if leak else "train", int(labels[i]), f"{i}-{kind}", images[i] if exact else near)
    for number in range(6):
        save("train", number, f"{number}-blank", np.full((8, 8), 40 * number, np.uint8))
    for number in range(5):
        save("train", number, f"{number}-noise", rng.integers(0, 256, (8, 8), np.uint8))
    (root / "files" / "train" / "3" / "broken.png").write_bytes(b"...")
    data.create(root / "files", root / "digits" / "v1", colour="gray", workers=0)
    return root / "digits" / "v1"


@pytest.fixture(scope="module")
def report(planted: Path) -> DoctorReport:
    return examine(planted)


def planted_names(folder: Path) -> dict[tuple[str, int], str]:
    counts = data.describe(folder)["counts"]
    names = {split: read_names(folder / split, sum(numbers.values())) for split, numbers in counts.items()}
    return {(split, row): Path(name).stem for split, all_names in names.items() for row, name in enumerate(all_names)}


@pytest.mark.parametrize(
    ("check", "endings", "precision", "recall"),
    [
        ("leaks", ("leak",), 0.95, 1.0),
        ("duplicates", ("-copy",), 1.0, 1.0),
        ("near-duplicates", ("near-copy",), 0.8, 1.0),
        ("quality", ("blank",), 1.0, 1.0),
        ("outliers", ("noise",), 0.8, 1.0),
        ("labels", ("wrong",), 0.8, 0.65),  # 20 or 21 of 27, by the last bits of the probe
    ],
)
def test_what_was_planted_is_found(
    planted: Path, report: DoctorReport, check: str, endings: tuple[str, ...], precision: float, recall: float
) -> None:
    names = planted_names(planted)
    wanted = {place for place, name in names.items() if name.endswith(endings)}
    if check == "duplicates":
        wanted = {place for place in wanted if "near" not in names[place]}
    result = report.result(check)
    assert result is not None
    assert len(wanted) >= 5
    of_images = [finding for finding in result.findings if finding.images]
    right = [finding for finding in of_images if wanted.intersection(finding.images)]
    found = wanted.intersection(place for finding in right for place in finding.images)
    assert len(right) >= precision * len(of_images)
    assert len(found) >= recall * len(wanted)


def test_wrong_labels_are_given_the_right_ones(planted: Path, report: DoctorReport) -> None:
    names, (_, labels) = planted_names(planted), digits()
    found = [f for f in report.results[-1].findings if names[f.images[0]].endswith("wrong")]
    right = [f for f in found if f.facts["suggested"] == str(labels[int(names[f.images[0]].split("-")[0])])]
    assert len(right) >= 0.9 * len(found) > 0
    assert all(f.score is not None and f.score > 0.5 for f in found)


def test_broken_files_and_balance_are_told(report: DoctorReport) -> None:
    assert report.complete
    assert report.result("balance").severity == "ok"
    quality = report.result("quality")
    assert quality.text == "6 poor, 1 could not be read"
    assert quality.findings[-1].text.startswith("3/broken.png is not an image")


def test_suggestions_become_a_version_without_the_problems(planted: Path, report: DoctorReport, tmp_path: Path) -> None:
    subprocess.run(["cp", "-r", str(planted.parent), str(tmp_path / "digits")], check=True)
    made = new_version(tmp_path / "digits" / "v1", report.changes(["leaks", "duplicates", "quality"]))
    names = planted_names(made).values()
    assert not any(name.endswith(("leak", "blank")) for name in names)
    assert sum("near-copy" in name for name in names) == 5  # not asked for
    assert not (made / "doctor.json").exists()
    copies = find_copies(image_facts({k: p for k, p in data.open_dataset(made)._asdict().items() if p}), 8)
    assert copies.groups == []


def test_the_report_is_kept_and_goes_on_after_the_last_check(
    planted: Path, report: DoctorReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "digits"
    subprocess.run(["cp", "-r", str(planted), str(folder)], check=True)
    assert load_report(folder, report.digest).as_json() == report.as_json() == examine(folder).as_json()
    kept = json.loads((folder / "doctor.json").read_text())
    kept |= {"results": kept["results"][:4], "complete": False}
    (folder / "doctor.json").write_text(json.dumps(kept))
    made = []

    def check(name):
        return lambda examination: made.append(name) or report.result(name)

    monkeypatch.setattr(examine_module, "CHECKS", {name: check(name) for name in CHECKS})
    assert examine(folder).complete
    assert made == list(CHECKS)[4:]
    examine(folder, again=True)
    assert made == [*list(CHECKS)[4:], *CHECKS]
    assert load_report(folder, "another") is None  # of other images
    (folder / "doctor.json").write_text("{")
    with pytest.raises(RunError, match=r"doctor.json is damaged: .* Delete it and check again"):
        examine(folder)


def test_near_copies_of_photographs_are_found() -> None:
    rng = np.random.default_rng(0)
    coarse = rng.random((60, 3, 6, 6), np.float32)
    photos = np.stack([_photo(one) for one in coarse])
    shown = Image.fromarray(photos[7].transpose(1, 2, 0))
    cropped = shown.crop((2, 2, 62, 63)).resize((64, 64)).point(lambda v: min(255, int(1.06 * v)))
    copies = [np.asarray(cropped).transpose(2, 0, 1), photos[9][:, :, ::-1], photos[11]]
    parts = {"train": Arrays(photos, np.zeros(60, int)), "test": Arrays(np.stack(copies), np.zeros(3, int))}
    found = find_copies(image_facts(parts), 64)
    assert found.groups == [[11, 62]]
    assert {(pair.first, pair.second, pair.mirrored) for pair in found.pairs} == {(7, 60, False), (9, 61, True)}


def _photo(coarse: np.ndarray) -> np.ndarray:
    made = Image.fromarray((255 * coarse.transpose(1, 2, 0)).astype(np.uint8)).resize(
        (64, 64), Image.Resampling.BICUBIC
    )
    return np.asarray(made).transpose(2, 0, 1)


def test_candidates_hold_all_pairs_with_up_to_seven_different_bits() -> None:
    rng = np.random.default_rng(0)
    hashes = rng.integers(0, 1 << 63, 300, np.uint64)
    for i in range(100):
        flips = sum(1 << int(bit) for bit in rng.choice(64, 7, replace=False))
        hashes[200 + i] = hashes[i] ^ np.uint64(flips)
    found = {pair for a, b in candidates(hashes, hashes) for pair in zip(a.tolist(), b.tolist(), strict=True)}
    assert {(i, 200 + i) for i in range(100)} <= found
    assert len(found) < 300 * 299 / 2 / 20  # far from all pairs


def test_downscaling_is_the_mean_of_areas() -> None:
    image = np.arange(24, dtype=np.float32).reshape(1, 4, 6)
    np.testing.assert_allclose(downscale(image, (2, 3))[0], image[0].reshape(2, 2, 3, 2).mean((1, 3)))
    np.testing.assert_allclose(downscale(image, (8, 12))[0], image[0].repeat(2, 0).repeat(2, 1))


def test_copies_are_in_one_fold_and_classes_in_all() -> None:
    labels = np.repeat([0, 1], 50)
    groups = np.arange(100)
    groups[60] = groups[10]
    folds = folds_of(labels, groups, 5)
    assert folds[60] == folds[10]
    assert all((folds[labels == k] == fold).sum() >= 9 for k in (0, 1) for fold in range(5))


def test_balance() -> None:
    assert check_balance({"train": {"a": 100, "b": 40}}).severity == "ok"
    result = check_balance({"train": {"a": 100, "b": 30, "c": 4}})
    assert result.text == "c has only 4 images in train, and 1 more"
    assert [f.text for f in result.findings] == ["c has only 4 images in train", "b has 3.3 times fewer images than a"]


def test_the_job_and_its_progress(planted: Path, report: DoctorReport, tmp_path: Path) -> None:
    folder = tmp_path / "digits"
    subprocess.run(["cp", "-r", str(planted), str(folder)], check=True)
    kept = json.loads((folder / "doctor.json").read_text())
    kept["results"] = [result for result in kept["results"] if result["check"] != "outliers"]
    (folder / "doctor.json").write_text(json.dumps(kept))
    seen = []
    work_of(DOCTOR)({"folder": str(folder)}, None, seen.append)
    assert {event["what"] for event in seen if event.type == "progress"} == {"Reading images", "Looking for outliers"}
    assert "Leak between splits: 15 images of validation are also in another split" in [
        event["text"] for event in seen if event.type == "log"
    ]
    assert {r.check for r in load_report(folder, report.digest).results} == set(CHECKS)


def test_the_command_line(
    planted: Path,
    report: DoctorReport,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    subprocess.run(["cp", "-r", str(planted), str(tmp_path / "digits")], check=True)
    monkeypatch.chdir(tmp_path)
    assert main(["dataset", "doctor", "digits"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("digits: 4 warnings\n")
    assert "15 images of validation are also in another split" in said
    assert "fix=leaks,duplicates,near-duplicates,quality,outliers,labels" in said
    assert main(["dataset", "doctor", "digits", "fix=leaks,quality", "show=0"]) == 0
    assert "digits-v2: removed 21 images" in capsys.readouterr().out
    assert main(["dataset", "doctor", "digits", "fix=balance", "show=0"]) == 0
    assert "balance suggests no change; no version was written" in capsys.readouterr().out
    assert main(["dataset", "doctor", "digits", "json=yes"]) == 0
    assert json.loads(capsys.readouterr().out)["complete"] is True
    assert main(["dataset", "doctor", "digits", "fix=leak"]) == 2
    assert "there is no check 'leak'. Did you mean leaks?" in capsys.readouterr().err
    assert main(["dataset", "doctor"]) == 2
    assert "the folder of a dataset is required" in capsys.readouterr().err


def test_features_of_a_run_are_what_its_network_computes_before_the_last_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = validated("test", {"data": "digits", "model": "mlp", "epochs": 1, "name": "few"}, SETTINGS)
    train(told)
    features = features_of_run("runs/classify/few")
    images = digits()[0][:70, None]
    found = features(images)
    assert found.shape == (70, 100)  # the last hidden layer of the mlp
    assert (found >= 0).all()
    np.testing.assert_allclose(features(images[5:7]), found[5:7], rtol=1e-5)
    assert features(images.repeat(2, 2).repeat(2, 3)).shape == (70, 100)  # of other sizes too
    with pytest.raises(UserError, match="a network for images with 3 channels is required, got one for 1"):
        features(images.repeat(3, 1))


@pytest.mark.parametrize(
    ("size", "count", "classes", "quality"), [((8, 8), 1, 1, "None found"), ((1, 1), 3, 2, "6 poor"), ((2, 64), 4, 2, "None found")]
)  # fmt: skip
@pytest.mark.parametrize("store", ["arrays", "lmdb"])
def test_small_and_odd_datasets_are_examined_too(
    tmp_path: Path, store: str, size: tuple[int, int], count: int, classes: int, quality: str
) -> None:
    rng = np.random.default_rng(0)
    for label in range(classes):
        (tmp_path / "files" / str(label)).mkdir(parents=True)
        for number in range(count):
            Image.fromarray(rng.integers(0, 256, (*size, 3), np.uint8)).save(
                tmp_path / "files" / str(label) / f"{number}.png"
            )
    data.create(tmp_path / "files", tmp_path / "made", validation=0.0, minimum=1, store=store, workers=0)
    report = examine(tmp_path / "made")
    assert report.complete
    assert report.result("quality").text == quality
    assert report.result("outliers").text == "Needs 20 images or more"
    assert report.result("labels").text == "Needs two classes with 10 images or more"


@pytest.mark.parametrize("labels", ["classes", "numbers"])
def test_images_with_several_classes_or_numbers(tmp_path: Path, labels: Literal["classes", "numbers"]) -> None:
    """What does not need one class for each image is looked for."""
    draw = np.random.default_rng(0)
    lines = ["file,label"]
    for number in range(24):
        pixels = draw.integers(0, 256, (8, 8), np.uint8) if number else np.zeros((8, 8), np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
        lines.append(f"{number}.png,{number / 10 if labels == 'numbers' else 'a;b' if number % 2 else 'b'}")
    (tmp_path / "list.csv").write_text("\n".join([*lines, lines[5]]))
    data.create(tmp_path / "list.csv", tmp_path / "many" / "v1", labels=labels, colour="gray", workers=0)
    report = examine(tmp_path / "many" / "v1")
    found = {result.check: result for result in report.results}
    assert len(found) == len(CHECKS)
    assert len(found["quality"].findings) == 1
    assert found["labels"].text == "Needs one class for each image"


def test_images_that_are_all_blank(tmp_path: Path) -> None:
    """They are poor images, not copies of each other."""
    for label in ("a", "b"):
        for number in range(4):
            path = tmp_path / "files" / label / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (32, 32), (20 * number, 90, 90)).save(path)  # large enough to look for mirrored copies
    data.create(tmp_path / "files", tmp_path / "blank" / "v1", workers=0)
    report = examine(tmp_path / "blank" / "v1")
    found = {result.check: len(result.findings) for result in report.results}
    assert {found[name] for name in ("leaks", "duplicates", "near-duplicates")} == {0}
    assert found["quality"] == 8
