"""Checks the page of a run: what it says, that it needs nothing from outside, that damage is reported and text stays text."""

import csv
import json
import math
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from weft.errors import RunError
from weft.report import plots, report
from weft.testing import counted

SCRIPT = "<script>alert(1)</script>"
COLUMNS = [
    "epoch",
    "step",
    "time",
    "train_loss",
    "train_accuracy",
    "validation_loss",
    "validation_accuracy",
    "rate",
    "examples_per_second",
]
ROWS = [[e, 100 * e, 5.0 * e, 2 / e, 1 - 0.3 / e, 2.1 / e, 0.9 if e == 3 else 0.8, 0.1 / e, 1000] for e in range(1, 6)]


def write_table(path: Path, rows: list[list[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A whole run, with a class whose name is an attack."""
    folder = tmp_path / "lenet1"
    folder.mkdir()
    classes = ["cat", "dog", SCRIPT]
    (folder / "args.yaml").write_text("model: lenet  # the small one\ndata: 'pets'\nepochs: 5\n")
    (folder / "env.json").write_text(json.dumps({"python": "3.11", "machine": {"cores": 2, "cpu": SCRIPT}}))
    (folder / "summary.json").write_text(json.dumps({"parameters": 61706, "seconds": 84.2, "status": "done"}))
    (folder / "model.txt").write_text("Linear 10 -> 3")
    write_table(folder / "metrics.csv", [COLUMNS, *ROWS])
    write_table(
        folder / "confusion.csv", [["true\\predicted", *classes], ["cat", 8, 2, 0], ["dog", 1, 9, 0], [SCRIPT, 0, 5, 5]]
    )
    images = np.arange(4 * 8 * 8, dtype="uint8").reshape(4, 8, 8)
    np.savez(
        folder / "samples.npz",
        images=images,
        true=[0, 1, 2, 2],
        predicted=[0, 1, 2, 1],
        probability=[0.9, 0.8, 0.7, 0.6],
    )
    np.savez(folder / "mistakes.npz", images=images[:1], true=["<b>"], predicted=[SCRIPT], probability=[0.99])
    return folder


class Reader(HTMLParser):
    """Collects the texts, tags and links of a page, and checks that tags are closed."""

    EMPTY = ("meta", "br", "img")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open and data.strip():
            self.texts.append(data.strip())

    @property
    def text(self) -> str:
        return "\n".join(self.texts)


def read(folder: Path) -> Reader:
    path = report(folder)
    assert path == folder / "report.html"
    page = Reader(path.read_text("utf-8"))
    assert not page.tags & {"script", "iframe", "object", "link", "img", "b-"}
    for name, value in page.attributes:
        assert not name.startswith("on")
        assert name not in ("src", "href") or (value or "").startswith("data:image/png;base64,")
    return page


def test_the_page_shows_the_run(run: Path) -> None:
    page = read(run)
    expected = [
        "lenet on pets",
        "best validation accuracy 90.00 % at epoch 3, in 1 min 24 s",
        "61,706", "80.00 %", "Loss", "Accuracy", "Learning rate", "Speed", "Confusion matrix", "Recall by class",
        "Sample predictions", "Worst mistakes", "Linear 10 -> 3", "machine.cores", SCRIPT, "Most frequent mistakes",
    ]  # fmt: skip
    for words in expected:
        assert words in page.text, words
        counted()
    assert '"note"' not in (run / "report.html").read_text("utf-8")
    headings = re.findall("<h2>(.*?)</h2>", (run / "report.html").read_text("utf-8"))
    assert headings == ["Curves", "Classes", "Images", "Model", "Settings", "Summary", "Environment"]


def test_the_page_needs_nothing_from_outside(run: Path) -> None:
    read(run)
    text = (run / "report.html").read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|url\(|@import|<script", text)
    assert "default-src 'none'" in text
    assert "prefers-color-scheme:dark" in text


FILES = [
    "args.yaml",
    "env.json",
    "metrics.csv",
    "summary.json",
    "confusion.csv",
    "samples.npz",
    "mistakes.npz",
    "model.txt",
]
NEEDED = FILES[:4]


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_said_and_the_rest_is_shown(run: Path, name: str) -> None:
    (run / name).unlink()
    page = read(run)
    assert (f"{name} is missing." in page.text) == (name in NEEDED)
    assert (f"Files not in this run: {name}." in page.text) == (name not in NEEDED)
    assert len(re.findall("<h2>", (run / "report.html").read_text("utf-8"))) >= 6


def test_an_empty_folder_has_a_page(tmp_path: Path) -> None:
    page = read(tmp_path)
    assert "no results yet" in page.text
    assert all(f"{name} is missing." in page.text for name in NEEDED)


DAMAGE = {
    "empty": b"", "zeros": bytes(100), "noise": np.random.default_rng(1).bytes(3000), "text": b"once upon a time",
    "list": b"[1, 2, 3]", "deep": b"[" * 100_000, "script": SCRIPT.encode(), "commas": b",,,\n,,\n",
    "half a table": b'{"a": 1, "b"', "numbers": b'{"seconds": "x", "parameters": 1e999, "model": [1]}', "latin": "gr\xf6\xdfe,1\n2,3".encode("latin-1"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_damaged_files_never_break_the_page(run: Path, name: str) -> None:
    for content in DAMAGE.values():
        (run / name).write_bytes(content)
        read(run)
        counted()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("env.json", b"[1]", "env.json cannot be read: it must hold a JSON object, got list."),
        ("metrics.csv", b"", "metrics.csv cannot be read: it is empty."),
        ("confusion.csv", b"a,b\n1,2\n3,4\n", "confusion.csv cannot be read: it must have as many columns as rows."),
        ("confusion.csv", b"1,-2\n3,4\n", "confusion.csv cannot be read: the matrix must hold counts"),
        ("samples.npz", b"PK", "samples.npz cannot be read: File is not a zip file."),
        (
            "metrics.csv",
            b"epoch,train_loss\n1,0.5\n2,0.4\n3\n",
            "metrics.csv has 1 truncated line, skipped.",
        ),
        ("metrics.csv", b"epoch,train_loss\n1,0.5\n2,nan\n3,inf\n", "train_loss is not a number at epoch 2."),
    ],
)
def test_what_is_said_about_damage(run: Path, name: str, content: bytes, said: str) -> None:
    (run / name).write_bytes(content)
    assert said in read(run).text


def test_pickles_are_not_opened(run: Path) -> None:
    np.savez(run / "samples.npz", images=np.array([{"a": 1}], object), allow_pickle=True)
    assert "samples.npz cannot be read: Object arrays cannot be loaded" in read(run).text


def test_a_packed_bomb_is_not_unpacked(run: Path) -> None:
    np.savez_compressed(run / "samples.npz", images=np.zeros((300, 1024, 1024), "uint8"))
    assert (run / "samples.npz").stat().st_size < 2**20
    assert "samples.npz cannot be read: it unpacks to more than 256 MiB." in read(run).text


def test_metrics_of_steps(run: Path) -> None:
    """Lines for steps, with validation in some of them only: an empty cell is no gap."""
    rows: list[list[Any]] = [["epoch", "step", "train_loss", "validation_loss"]]
    rows += [[1 + s // 50, s, 1 / (s + 1), "" if s % 10 else 2.0] for s in range(100)]
    write_table(run / "metrics.csv", rows)
    page = read(run)
    assert "best validation loss 2 at step 0" in page.text
    loss = ElementTree.fromstring((next(p for p in plots(run) if p.name == "loss.svg")).read_bytes())
    lengths = [e.attrib["d"].count("L") + 1 for e in loss.iter("{http://www.w3.org/2000/svg}path")]
    assert lengths == [100, 10]


@pytest.mark.parametrize(
    ("times", "said"),
    [
        (["5", "65"], "in 1 min 5 s"),
        (["1700000000", "1700007200"], "in 2 h 0 min"),
        (["x", ""], "best train loss 1 at epoch 1"),
    ],
)
def test_time_of_the_run(run: Path, times: list[str], said: str) -> None:
    (run / "summary.json").write_text("{}")
    write_table(run / "metrics.csv", [["epoch", "time", "train_loss"], [1, times[0], 1.0], [2, times[1], 1.0]])
    lead = re.search('<p class="lead">(.*?)</p>', report(run).read_text("utf-8"))
    assert lead is not None
    assert lead[1].endswith(said)


def test_steps_and_seconds_are_places_too(run: Path) -> None:
    (run / "summary.json").write_text("{}")
    write_table(
        run / "metrics.csv",
        [["epoch", "steps", "train_loss", "seconds"], [1.0, 100.0, 0.5, 7.25], [2.0, 200.0, 0.25, 75.0]],
    )
    assert "best train loss 0.25 at epoch 2, in 1 min 15 s" in read(run).text
    assert [path.name for path in plots(run)][:2] == ["loss.svg", "confusion.svg"]


def test_counts_alone_are_a_confusion_matrix_too(run: Path) -> None:
    write_table(run / "confusion.csv", [[5, 1], [2, 6]])
    assert "0 predicted as 1: 1 (16.7%)" in read(run).text


def test_plots_are_files(run: Path) -> None:
    found = plots(run)
    names = ["loss", "accuracy", "rate", "examples_per_second", "confusion", "classes", "samples", "mistakes"]
    assert [path.name for path in found] == [f"{name}.svg" for name in names]
    for path in found:
        assert path.parent == run / "plots"
        ElementTree.fromstring(path.read_bytes())
        counted()


def test_names_of_columns_do_not_become_paths(run: Path) -> None:
    write_table(run / "metrics.csv", [["epoch", "../../evil", "train_loss"], [1, 2, 3]])
    assert [path.name for path in plots(run)][:2] == ["loss.svg", "______evil.svg"]
    write_table(run / "metrics.csv", [["a b", "a_b", "a/b"], [1, 2, 3]])
    assert [path.name for path in plots(run)][:3] == ["a_b.svg", "a_b_1.svg", "a_b_2.svg"]


def test_very_many_columns(run: Path) -> None:
    write_table(run / "metrics.csv", [["step", *(f"layer {i}" for i in range(500))], [1] * 501, [2] * 501])
    page = read(run)
    assert "476 more are in metrics.csv." in page.text
    assert "Layer 23" in page.text
    assert "Layer 24" not in page.text


def test_pictures_without_truth_are_neither_right_nor_wrong(run: Path) -> None:
    np.savez(run / "samples.npz", images=np.zeros((2, 4, 4), "uint8"), predicted=["cat", "dog"])
    (run / "mistakes.npz").unlink()
    page = read(run)
    assert "✗" not in page.text
    assert "✓" not in page.text
    np.savez(
        run / "samples.npz", images=np.zeros((2, 4, 4), "uint8"), true=[0, 1], predicted=[0, 0], probability=[0.5, 0.75]
    )
    page = read(run)
    assert {"✓ cat", "50%", "✗ cat", "75%, true: dog"} <= set(page.texts)


def test_a_report_is_whole_or_not_there(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = report(run).read_bytes()

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(RunError, match=r"\[report\] .*report.html cannot be written: No space left on device."):
        report(run)
    assert (run / "report.html").read_bytes() == before
    assert not list(run.glob(".report*"))


def test_a_folder_is_needed(tmp_path: Path) -> None:
    with pytest.raises(
        RunError,
        match=r"\[report\] .*nothing is not a folder. Pass the folder of a run, for example runs/train/lenet1.",
    ):
        report(tmp_path / "nothing")


def test_a_thousand_classes_and_many_lines_make_a_page_of_modest_size(run: Path) -> None:
    rng = np.random.default_rng(0)
    np.savetxt(run / "confusion.csv", np.eye(1000) * 50 + (rng.random((1000, 1000)) < 0.005), "%d", ",")
    write_table(run / "metrics.csv", [["step", "train_loss"], *([s, math.exp(-s / 1e4)] for s in range(50_000))])
    assert "The 20 classes with the lowest recall" in read(run).text
    assert (run / "report.html").stat().st_size < 2_000_000
