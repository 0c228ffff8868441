"""Sources of data: arrays, npz, idx, CIFAR, folders, lists, text, known sets, downloads, and the one door to them."""

import gzip
import hashlib
import http.server
import io
import re
import struct
import sys
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from weft import data, knobs
from weft.data import download
from weft.data.statistics import Statistics
from weft.errors import RunError, UserError
from weft.testing import counted, generator

catalogue_module = sys.modules["weft.data.catalogue"]  # weft.data.known is the function
BYTES = generator("sources").integers(0, 256, (6, 1, 4, 5), np.uint8)
LABELS = [0, 1, 2, 0, 1, 2]


def refused(kind: type[Exception], text: str):
    """The call is rejected with this text, given word for word."""
    counted()
    return pytest.raises(kind, match=re.escape(text))


# Arrays.


def test_arrays_give_what_they_were_given() -> None:
    d = data.Arrays(BYTES, LABELS, classes=["a", "b", "c"], name="six")
    assert (len(d), d.shape, d.name, d.classes) == (6, (1, 4, 5), "six", ("a", "b", "c"))
    assert d.labels.dtype == np.int64
    for indices in ([3, 3, 0], np.array([5]), slice(1, 4), 2, []):
        rows = np.atleast_1d(np.arange(6)[np.array(indices, int) if isinstance(indices, list) else indices])
        np.testing.assert_array_equal(d.inputs(indices), BYTES[rows])
    np.testing.assert_allclose(d.mean, [BYTES.mean() / 255])
    np.testing.assert_allclose(d.std, [BYTES.std() / 255])


def test_arrays_do_not_change() -> None:
    x, d = BYTES.copy(), data.Arrays(BYTES, LABELS)
    with pytest.raises(ValueError, match="read-only"):
        d.labels[0] = 5
    with pytest.raises(ValueError, match="read-only"):
        d.x[0] = 5
    batch = d.inputs(slice(0, 6))
    batch[:] = 0
    np.testing.assert_array_equal(d.inputs(slice(0, 6)), x)
    with pytest.raises(AttributeError):
        d.classes = ("x",)


def test_labels_of_a_regression_have_no_classes() -> None:
    d = data.Arrays(np.ones((2, 3)), [0.5, -1.0])
    assert (d.classes, d.mean, d.counts()) == ((), None, {})
    assert data.Arrays(np.ones((2, 3)), [0, 7]).classes == tuple("01234567")


@pytest.mark.parametrize(
    ("x", "y", "classes", "text"),
    [
        (BYTES, [0, 1], None, "a label for each input, got inputs (6, 1, 4, 5) and labels (2,)"),
        (BYTES, [0, 1, 2, 3, 0, 1], ["a", "b", "c"], "labels must lie in 0...2, got 3 for example 3"),
        (BYTES, [0, 1, -2, 0, 0, 1], None, "labels must lie in 0...1, got -2 for example 2"),
        (BYTES, [0, 1, 0, 0, 0, 10**9], None, "label 1000000000 is too large for a class without a name"),
        (BYTES, LABELS, ["a", "b", "a"], "class names must be different"),
        (BYTES, [0.5] * 6, ["a"], "float labels are regression targets and have no classes"),
        (BYTES, ["a"] * 6, None, "labels must be class indices or floats"),
        (np.array(["a"] * 6), LABELS, None, "inputs must be numbers"),
    ],
)
def test_arrays_that_make_no_sense_are_refused(x, y, classes, text) -> None:
    with refused(UserError, text):
        data.Arrays(x, y, classes)


@pytest.mark.parametrize(
    ("indices", "text"), [([6], "0...5, got 6...6"), ([-1, 2], "0...5, got -1...2"), ([0.5], "must be integers")]
)
def test_wrong_indices_are_refused(indices, text) -> None:
    with refused(UserError, text):
        data.Arrays(BYTES, LABELS).inputs(indices)


# npz.


def test_npz_by_the_usual_names(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "a.npz", x_train=BYTES[:, 0], y_train=np.array(LABELS)[:, None], x_test=BYTES[:2, 0], y_test=[0, 0]
    )
    train, validation, test = data.open_dataset(tmp_path / "a.npz")
    np.testing.assert_array_equal(train.inputs(slice(None)), BYTES)
    assert (validation, len(test), test.classes, train.labels.tolist()) == (None, 2, ("0", "1", "2"), LABELS)
    np.savez_compressed(tmp_path / "b.npz", pictures=np.zeros((2, 9, 8, 3), np.uint8), kinds=[1, 0])
    assert data.from_npz(tmp_path / "b.npz", "pictures", "kinds").train.shape == (3, 9, 8)


# idx.


def write_idx(path: Path, values: np.ndarray, code: int = 8, packed: bool = False) -> Path:
    content = bytes([0, 0, code, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    content += values.astype(values.dtype.newbyteorder(">")).tobytes()
    path.write_bytes(gzip.compress(content, mtime=0) if packed else content)
    return path


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("code", "dtype"), [(8, "u1"), (9, "i1"), (0x0B, "i2"), (0x0C, "i4"), (0x0D, "f4"), (0x0E, "f8")]
)
def test_idx_of_every_type(tmp_path: Path, code: int, dtype: str, packed: bool) -> None:
    values = generator("idx").integers(-100, 100, (3, 2, 4)).astype(dtype)
    found = data.read_idx(write_idx(tmp_path / "a", values, code, packed))
    assert found.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(found, values)
    counted()


def write_mnist(folder: Path, packed: bool) -> None:
    for prefix, count in (("train", 6), ("t10k", 2)):
        end = ".gz" if packed else ""
        write_idx(folder / f"{prefix}-images-idx3-ubyte{end}", BYTES[:count, 0], packed=packed)
        write_idx(folder / f"{prefix}-labels-idx1-ubyte{end}", np.array(LABELS[:count], np.uint8), packed=packed)


@pytest.mark.parametrize("packed", [False, True])
def test_mnist_from_a_folder(tmp_path: Path, packed: bool) -> None:
    write_mnist(tmp_path, packed)
    train, validation, test = data.known("mnist", from_=tmp_path)
    np.testing.assert_array_equal(train.inputs(slice(None)), BYTES)
    assert (train.classes, train.mean, len(test), validation) == (tuple("0123456789"), (0.1307,), 2, None)
    assert data.known("fashion-mnist", from_=tmp_path).train.classes[9] == "ankle boot"
    next(tmp_path.glob("t10k-labels*")).unlink()
    with refused(UserError, "lacks t10k-labels-idx1-ubyte.gz (or t10k-labels-idx1-ubyte) of mnist"):
        data.known("mnist", from_=tmp_path)


# CIFAR.


def cifar_records(count: int, label_bytes: int, classes: int) -> tuple[bytes, np.ndarray, np.ndarray]:
    images = generator(f"cifar{count}").integers(0, 256, (count, 3, 32, 32), np.uint8)
    labels = (np.arange(count) * 7 % classes).astype(np.uint8)
    coarse = np.zeros((count, label_bytes - 1), np.uint8)
    return np.hstack([coarse, labels[:, None], images.reshape(count, -1)]).tobytes(), images, labels


def write_cifar10(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    parts = [cifar_records(2 + i, 1, 10) for i in range(6)]
    for number, part in enumerate(parts[:5], 1):
        (folder / f"data_batch_{number}.bin").write_bytes(part[0])
    (folder / "test_batch.bin").write_bytes(parts[5][0])
    (folder / "batches.meta.txt").write_text("\n".join("abcdefghij") + "\n\n")
    return np.concatenate([p[1] for p in parts[:5]]), np.concatenate([p[2] for p in parts[:5]])


def test_cifar10_from_its_files(tmp_path: Path) -> None:
    images, labels = write_cifar10(tmp_path)
    for train, _, test in (data.known("cifar10", from_=tmp_path), data.open_dataset(tmp_path)):
        np.testing.assert_array_equal(train.inputs(slice(None)), images)
        assert (train.labels.tolist(), train.classes, len(test)) == (labels.tolist(), tuple("abcdefghij"), 7)


def test_cifar100_takes_the_fine_labels(tmp_path: Path) -> None:
    for name, count in (("train.bin", 20), ("test.bin", 3)):
        (tmp_path / name).write_bytes(cifar_records(count, 2, 100)[0])
    train, _, test = data.known("cifar100", from_=tmp_path)
    assert train.labels.tolist() == (np.arange(20) * 7 % 100).tolist()
    assert (len(train.classes), len(test)) == (100, 3)


def pack(archive: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(archive, "w:gz") as tar:
        for name, content in members.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content))


def test_cifar_is_unpacked_once_and_only_where_it_belongs(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    images, _ = write_cifar10(tmp_path / "files")
    members = {f"cifar-10-batches-bin/{p.name}": p.read_bytes() for p in sorted((tmp_path / "files").iterdir())}
    (tmp_path / "in").mkdir()
    pack(
        tmp_path / "in" / "cifar-10-binary.tar.gz",
        {"../../escaped.bin": b"x", "/tmp/data_batch_9.bin": b"x", **members},
    )
    for _ in range(2):
        np.testing.assert_array_equal(data.known("cifar10", from_=tmp_path / "in").train.inputs(slice(None)), images)
        (tmp_path / "in" / "cifar-10-binary.tar.gz").write_bytes(b"not looked at again")
    assert len(list((tmp_path / "in").rglob("*.bin"))) == 6
    assert not list(tmp_path.glob("escaped*"))


# Folders and lists.


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")


def test_folders_are_classes_however_deep_the_files_lie(tmp_path: Path) -> None:
    touch(tmp_path, "dog/1.jpg", "cat/a/b/2", "cat/1.png", "README", ".hidden/x.png", "cat/.DS_Store")
    found = data.from_folders(tmp_path)
    assert (found.classes, found.names, found.labels.tolist()) == (
        ("cat", "dog"),
        ("cat/1.png", "cat/a/b/2", "dog/1.jpg"),
        [0, 0, 1],
    )
    assert dict(found.passed_over) == {
        "README": "is not in a class folder",
        ".hidden": "is hidden: its name begins with a dot",
        "cat/.DS_Store": "is hidden: its name begins with a dot",
    }
    assert data.from_folders(tmp_path, classes=["dog", "cat", "cow"]).counts() == {"dog": 1, "cat": 2, "cow": 0}
    with refused(UserError, "folders of unknown classes: dog"):
        data.from_folders(tmp_path, classes=["cat"])


@pytest.mark.parametrize(
    ("name", "text", "labels", "classes"),
    [
        ("a.csv", "path,label\nx.png,dog\n\ny.png,cat\n", [1, 0], ("cat", "dog")),
        ("a.csv", '\ufeffx.png,1\n"y, z.png",0\n', [1, 0], ("0", "1")),
        ("a.csv", '"two\nlines.png",dog\r\ny.png,cat\r\n', [1, 0], ("cat", "dog")),
        ("a.txt", "x.png dog\ny y.png\tcat\n\n", [1, 0], ("cat", "dog")),
        ("a.txt", "x.png 2\ny.png 00\n", [2, 0], ("0", "1", "2")),
    ],
)
def test_lists(tmp_path: Path, name: str, text: str, labels: list[int], classes: tuple[str, ...]) -> None:
    (tmp_path / name).write_text(text, newline="")
    found = data.from_list(tmp_path / name)
    assert (found.labels.tolist(), found.classes) == (labels, classes)
    assert all(Path(path) == tmp_path / name for path, name in zip(found.paths, found.names, strict=True))
    counted()


def test_lists_with_classes_and_a_root(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x.png 1\ny.png cat\n")
    found = data.from_list(tmp_path / "a.txt", root=tmp_path / "images", classes=["cat", "dog"])
    assert found.labels.tolist() == [1, 0]
    assert found.paths[0] == str(tmp_path / "images" / "x.png")


# Text.


def test_text_is_windows_and_what_follows(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("hello wörld", encoding="utf-8")
    d = data.text(tmp_path / "t.txt", length=3)
    assert (d.vocabulary, len(d), d.shape, d.classes, d.mean) == (" dehlorwö", 3, (3,), (), None)
    assert d.decode(d.inputs([0, 1, 2])) == "hello wör"
    assert d.decode(d.labels) == "ello wörl"
    assert d.decode(d.encode("wörld")) == "wörld"
    train, validation, test = d.split(validation=0.4)
    assert (d.decode(train.ids), d.decode(validation.ids), test) == ("hello w", "örld", None)
    assert data.text(tmp_path / "t.txt", 3, vocabulary="ölrwo hedx").encode("öx").tolist() == [0, 9]
    with refused(UserError, "characters must be in the vocabulary, got 'Z'"):
        d.encode("Z")
    with refused(UserError, "t.txt: [' ', 'd'"):
        data.text(tmp_path / "t.txt", 3, vocabulary="helo")
    with refused(UserError, "windows of 64 tokens require a text of 65 or more, got 11"):
        data.text(tmp_path / "t.txt")
    (tmp_path / "t.txt").write_bytes(b"caf\xe9 au lait")
    with refused(RunError, "is not UTF-8: byte 3 is 0xe9"):
        data.text(tmp_path / "t.txt")


# Downloads, from a server of our own.


class Server(http.server.BaseHTTPRequestHandler):
    """Serves files; `plan` says for each request in turn what goes wrong."""

    files: dict[str, bytes]
    plan: list[str]
    asked: list[str | None]

    def do_GET(self) -> None:
        self.asked.append(self.headers.get("Range"))
        mishap = self.plan.pop(0) if self.plan else ""
        content = self.files[self.path]
        start = int((self.headers.get("Range") or "bytes=0-")[6:-1])
        if mishap == "503" or start > len(content):
            self.send_error(503 if mishap == "503" else 416)
            return
        start = 0 if mishap == "no ranges" else start
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        body = content[start:]
        self.wfile.write(body[: len(body) // 2] if mishap == "break" else body)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    Server.files, Server.plan, Server.asked = {"/file": bytes(range(200)) * 50}, [], []
    monkeypatch.setattr(download, "pause", lambda seconds: None)
    with http.server.HTTPServer(("127.0.0.1", 0), Server) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()
        thread.join()


RIGHT = hashlib.sha256(bytes(range(200)) * 50).hexdigest()


@pytest.mark.parametrize(
    ("plan", "asked"),
    [
        ([], [None]),
        (["503", "503"], [None] * 3),
        (["break"], [None, "bytes=5000-"]),
        (["break", "break", "503"], [None, "bytes=5000-", "bytes=7500-", "bytes=7500-"]),
        (["break", "no ranges"], [None, "bytes=5000-"]),
    ],
)
def test_download_tries_again_and_goes_on(server: str, tmp_path: Path, plan: list[str], asked: list) -> None:
    Server.plan = list(plan)
    path = download.fetch([f"{server}/file"], tmp_path / "a" / "file", RIGHT)
    assert path.read_bytes() == Server.files["/file"]
    assert Server.asked == asked
    download.fetch([f"{server}/file"], path, RIGHT)
    assert len(Server.asked) == len(asked), "it was there already"
    assert [p.name for p in path.parent.iterdir()] == ["file"]
    counted()


@pytest.mark.parametrize("before", [b"wrong" * 10, b"x" * 20_000], ids=["other bytes", "too long"])
def test_download_drops_a_beginning_that_is_wrong(server: str, tmp_path: Path, before: bytes) -> None:
    (tmp_path / "file.part").write_bytes(before)
    assert download.fetch([f"{server}/file"], tmp_path / "file", RIGHT).read_bytes() == Server.files["/file"]
    assert Server.asked == [f"bytes={len(before)}-", None]


def test_download_gives_up_with_the_reason(server: str, tmp_path: Path) -> None:
    with refused(RunError, "the checksum is " + RIGHT[:16]):
        download.fetch([f"{server}/file"], tmp_path / "file", "0" * 64)
    Server.plan = ["503"] * 10
    with refused(RunError, "could not be downloaded in 4 attempts"):
        download.fetch([f"{server}/file"], tmp_path / "file", RIGHT)
    with refused(RunError, "pass the folder that has the files as from_"):
        download.fetch(["http://127.0.0.1:1/file"], tmp_path / "file", RIGHT)
    assert list(tmp_path.iterdir()) == []


def test_known_set_is_downloaded_once(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path, packed=True)
    Server.files = {f"/{p.name}": p.read_bytes() for p in tmp_path.iterdir()}
    sums = {name[1:]: hashlib.sha256(content).hexdigest() for name, content in Server.files.items()}
    mnist = replace(catalogue_module.CATALOGUE["mnist"], addresses=("http://127.0.0.1:1/", f"{server}/"), files=sums)
    monkeypatch.setitem(catalogue_module.CATALOGUE, "mnist", mnist)
    seen: list[tuple[int, int | None]] = []
    with knobs.set(data=str(tmp_path / "store")):
        for _ in range(2):
            assert len(data.known("mnist", report=lambda here, total: seen.append((here, total))).train) == 6
        assert len(data.open_dataset("mnist").test) == 2
    assert len(Server.asked) == 4
    assert all(here == total for here, total in seen)
    assert len(list((tmp_path / "store" / "mnist").iterdir())) == 4


def test_digits_are_built_in() -> None:
    train, validation, test = data.known("digits")
    assert validation is None
    images, labels = data.digits()
    assert len(train) + len(test) == len(labels)
    assert min(test.counts().values()) >= 34
    every = np.concatenate([train.inputs(slice(None)), test.inputs(slice(None))]).reshape(1797, -1)
    assert sorted(every.tolist()) == sorted(images.numpy().reshape(1797, -1).tolist())
    np.testing.assert_allclose(train.std, train.inputs(slice(None)).std(), rtol=1e-5)


def test_names_that_are_not_known() -> None:
    with refused(UserError, "got 'imagenet'"):
        data.known("imagenet")
    with refused(UserError, "is not a folder with the files of mnist"):
        data.known("mnist", from_="nowhere")


def test_statistics_of_known_sets_name_every_channel() -> None:
    for name, about in catalogue_module.CATALOGUE.items():
        assert len(about.statistics.mean) == len(about.statistics.std) == (3 if name.startswith("cifar") else 1)
        assert isinstance(about.statistics, Statistics)
        assert all(len(sum_) == 64 for sum_ in about.files.values())
