"""Every kind of file that weft reads: how one is made, and how it is read. `mutate_files.py` damages them in between."""

from __future__ import annotations

import gzip
import shutil
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import weft
from mutate_texts import TEXTS
from mutate_weights import WEIGHTS, Case
from weft import data, nn, optim
from weft.data.catalogue import CATALOGUE
from weft.data.images import Unreadable, read_image
from weft.errors import UserError
from weft.io import load, save
from weft.report.compare import comparison
from weft.report.page import page
from weft.report.run_record import read_run
from weft.train.folder import DescribedNetwork, RunFolder
from weft.train.state import Training
from weft.tree import flatten

SEED = 5


def _pixels(*shape: int) -> np.ndarray:
    return np.random.default_rng(SEED).integers(0, 256, shape, np.uint8)


def _digest(splits: data.Splits) -> Any:
    """All that a dataset holds."""
    parts = [part for part in splits if part is not None]
    return [
        (p.inputs(np.arange(len(p))).tobytes(), p.labels.tobytes(), p.shape, p.classes, p.mean, p.std) for p in parts
    ]


# --- tensors and checkpoints -----------------------------------------------------------------------------------------


def _make_tensors(folder: Path) -> None:
    values = {"w": np.linspace(0, 1, 40, dtype="float32").reshape(4, 10), "n": np.arange(5), "none": np.zeros((0, 2))}
    save(folder / "w.safetensors", values, {"about": "text"})


class _Batches:
    def state(self) -> dict[str, int]:
        return {"epoch": 1, "position": 2}

    def load(self, state: dict[str, int]) -> None:
        self.loaded = state


def _training() -> Training:
    model = nn.Linear(3, 2)
    return Training(model, optim.sgd(model, rate=0.1, momentum=0.9), _Batches(), {})


def _make_checkpoint(folder: Path) -> None:
    weft.seed(SEED)
    training = _training()
    training.history, training.steps = [{"epoch": 1, "loss": 0.5}], 7
    training.save(folder / "last.safetensors")


def _read_checkpoint(folder: Path) -> Any:
    training = _training()
    training.load(folder / "last.safetensors")
    values = {name: t.numpy().tobytes() for name, t in training.tensors().items()}
    return values, training.steps, training.history, training.loader.loaded


# --- datasets --------------------------------------------------------------------------------------------------------


def _photos(folder: Path) -> Path:
    for name in ("cat", "dog"):
        (folder / "photos" / name).mkdir(parents=True)
        for number in range(6):
            Image.fromarray(_pixels(20, 20, 3) // (number + 1)).save(folder / "photos" / name / f"{number}.png")
    return folder / "photos"


def _make_dataset(store: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        data.create(_photos(folder), folder / "made", store=store, workers=0)

    return make


class _Stopped(Exception):
    pass


def _make_journal(folder: Path) -> None:
    """A creation that was stopped when all files were converted."""

    def stop(progress: data.Progress) -> None:
        if progress.done == progress.total:
            raise _Stopped

    try:
        data.create(_photos(folder), folder / "made", workers=0, progress=stop)
    except _Stopped:
        shutil.copytree(folder / ".made.partial", folder / "partial")


def _read_journal(folder: Path) -> Any:
    """Go on from the damaged journal, beside the images as they were."""
    for path in (folder / "made", folder / ".made.partial"):
        shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(folder / "partial", folder / ".made.partial")
    return _digest(data.create(folder / "photos", folder / "made", workers=0))


# --- files of others -------------------------------------------------------------------------------------------------


def _make_npz(folder: Path) -> None:
    np.savez(folder / "plain.npz", x=_pixels(6, 4, 4), y=np.arange(6) % 3)
    np.savez_compressed(folder / "packed.npz", x_train=_pixels(6, 4, 4), y_train=np.arange(6) % 3, x_test=_pixels(2, 4, 4), y_test=[0, 1])  # fmt: skip


def _make_idx(folder: Path) -> None:
    for prefix, count in (("train", 6), ("t10k", 3)):
        images = struct.pack(">BBBBIII", 0, 0, 8, 3, count, 4, 4) + _pixels(count, 4, 4).tobytes()
        labels = struct.pack(">BBBBI", 0, 0, 8, 1, count) + bytes(range(count))
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(images)
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(labels)


def _make_idx_gz(folder: Path) -> None:
    _make_idx(folder)
    for path in list(folder.iterdir()):
        (folder / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()


def _make_cifar(folder: Path) -> None:
    records = np.concatenate([np.arange(4, dtype=np.uint8)[:, None], _pixels(4, 3072)], axis=1)
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        (folder / name).write_bytes(records.tobytes())
    (folder / "batches.meta.txt").write_text("\n".join(f"class {i}" for i in range(10)))


def _make_archive(folder: Path) -> None:
    (folder / "inside").mkdir()
    _make_cifar(folder / "inside")
    (archive,) = CATALOGUE["cifar10"].files
    with tarfile.open(folder / archive, "w:gz") as content:
        content.add(folder / "inside", "cifar-10-batches-bin")


def _read_archive(folder: Path) -> Any:
    shutil.rmtree(folder / "cifar-10-batches-bin", ignore_errors=True)
    return _digest(data.known("cifar10", from_=folder))


IMAGES = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")


def _make_images(folder: Path) -> None:
    for kind in IMAGES:
        Image.fromarray(_pixels(16, 16, 3)).save(folder / f"image.{kind.lower()}", kind)


def _read_images(folder: Path) -> Any:
    return [np.asarray(read_image(str(folder / f"image.{kind.lower()}"), "rgb")).shape for kind in IMAGES]


def _make_lists(folder: Path) -> None:
    rows = [(f"{number}.png", ("cat", "dog")[number % 2]) for number in range(4)]
    for name, _ in rows:
        Image.fromarray(_pixels(4, 4)).save(folder / name)
    (folder / "list.csv").write_text("path,label\n" + "".join(f"{a},{b}\n" for a, b in rows))
    (folder / "list.txt").write_text("".join(f"{a} {b}\n" for a, b in rows))


def _make_text(folder: Path) -> None:
    (folder / "words.txt").write_text("the quick brown fox jumps over the lazy dog, ümläut\n" * 40)


# --- saved programs and ONNX models -----------------------------------------------------------------------------------


def _net() -> nn.Module:
    weft.random.seed(SEED)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm(3), nn.ReLU(), nn.Dropout(0.5)).eval()


def _make_program(folder: Path) -> None:
    weft.save(folder / "net.weft", _net(), weft.ones((2, 4)), labels=["a", "b", "c"])
    with zipfile.ZipFile(folder / "net.weft") as archive:
        archive.extractall(folder)
    weft.onnx.save(folder / "net.onnx", _net(), weft.ones((2, 4)))


def _make_packed(folder: Path) -> None:
    weft.compress.pack(_net(), folder / "small.weft", weft.ones((2, 4)), train=True)
    sparse = np.where(_pixels(30, 20) < 40, _pixels(30, 20) % 7, 0).astype(np.float32)
    for coder in ("rans", "huffman"):
        weft.compress.save_packed(folder / f"{coder}.packed", {"w": sparse, "b": np.linspace(0, 1, 9)}, coder)


def _read_packed(name: str) -> Callable[[Path], Any]:
    return lambda folder: {n: v.tobytes() for n, v in weft.compress.load_packed(folder / name).items()}


def _read_network(name: str) -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        network = weft.load(folder / name).eval()
        return network(weft.ones((3, 4))).tolist()

    return read


def _read_onnx(folder: Path) -> Any:
    """A damaged model without checksums may be a network of other inputs and outputs."""
    network = weft.load(folder / "net.onnx").eval()
    try:
        return [tensor.tolist() for tensor in flatten(network(weft.ones((3, 4))))[0]]
    except UserError as error:
        return error.message


def _read_entries(folder: Path) -> Any:
    """The entries packed again, so that their checksums are right."""
    with zipfile.ZipFile(folder / "packed.weft", "w") as archive:
        for name in ENTRIES:
            archive.write(folder / name, name)
    return _read_network("packed.weft")(folder)


ENTRIES = ("manifest.json", "eval.py", "train.py", "weights.safetensors")

# --- the folder of a run ---------------------------------------------------------------------------------------------


def _make_run(folder: Path) -> None:
    run = RunFolder(folder / "run")
    run.start({"rate": 0.1, "data": "digits"}, DescribedNetwork.of(nn.Linear(2, 2)))
    run.rows([{"epoch": n, "steps": 5 * n, "train_loss": 1 / n, "validation_loss": 1.5 / n} for n in (1, 2, 3)])
    run.log("a line")
    run.close("all epochs are done", 3)
    (folder / "run" / "confusion.csv").write_text("true\\predicted,cat,dog\ncat,3,1\ndog,0,4\n")
    np.savez_compressed(folder / "run" / "samples.npz", images=_pixels(3, 3, 8, 8), true=[0, 1, 1], predicted=[0, 1, 0],
                        probability=[0.9, 0.8, 0.7], classes=np.array(["cat", "dog"]))  # fmt: skip
    (folder / "run" / "text.txt").write_text("what the network wrote")


def _read_run(folder: Path) -> Any:
    """Whatever is damaged, there is a page, and a comparison."""
    run = read_run(folder / "run")
    assert page(run).startswith("<!doctype html>")
    comparison({"a": run, "b": run}, folder / "compared.html")


RUN = ("args.yaml", "env.json", "metrics.csv", "summary.json", "events.jsonl", "log.txt", "confusion.csv", "samples.npz", "text.txt")  # fmt: skip
MADE = ("made/dataset.json", "made/checksums.json", "made/train/labels.npy", "made/train/index.npy")

CASES: dict[str, Case] = {
    "tensors": Case(("w.safetensors",), _make_tensors, lambda f: {n: t.tolist() for n, t in load(f / "w.safetensors").items()}, True),
    "checkpoint": Case(("last.safetensors",), _make_checkpoint, _read_checkpoint, True),
    "arrays": Case((*MADE, "made/train/images.npy"), _make_dataset("arrays"), lambda f: _digest(data.open_dataset(f / "made")), True),
    "lmdb": Case((*MADE, "made/train/data.mdb", "made/train/data.mdb"), _make_dataset("lmdb"), lambda f: _digest(data.open_dataset(f / "made")), True),
    "journal": Case(("partial/journal",), _make_journal, _read_journal, True),
    "npz": Case(("plain.npz",), _make_npz, lambda f: _digest(data.from_npz(f / "plain.npz")), True),
    "packed npz": Case(("packed.npz",), _make_npz, lambda f: _digest(data.from_npz(f / "packed.npz")), True),
    "idx": Case(("train-images-idx3-ubyte", "train-labels-idx1-ubyte"), _make_idx, lambda f: _digest(data.open_dataset(f)), False),
    "packed idx": Case(("train-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"), _make_idx_gz, lambda f: _digest(data.open_dataset(f)), True),
    "cifar": Case(("data_batch_1.bin", "batches.meta.txt"), _make_cifar, lambda f: _digest(data.open_dataset(f)), False),
    "archive": Case(tuple(CATALOGUE["cifar10"].files), _make_archive, _read_archive, True),
    "images": Case(tuple(f"image.{kind.lower()}" for kind in IMAGES), _make_images, _read_images, False, (Unreadable,)),
    "csv list": Case(("list.csv",), _make_lists, lambda f: data.from_list(f / "list.csv").labels, False),
    "text list": Case(("list.txt",), _make_lists, lambda f: data.from_list(f / "list.txt").labels, False),
    "text": Case(("words.txt",), _make_text, lambda f: _digest(data.open_dataset(f / "words.txt")), False),
    **WEIGHTS,
    **TEXTS,
    "program": Case(("net.weft",), _make_program, _read_network("net.weft"), True),
    "program entries": Case(ENTRIES, _make_program, _read_entries, False),
    "packed program": Case(("small.weft",), _make_packed, _read_network("small.weft"), True),
    "rans": Case(("rans.packed",), _make_packed, _read_packed("rans.packed"), True),
    "huffman": Case(("huffman.packed",), _make_packed, _read_packed("huffman.packed"), True),
    "onnx": Case(("net.onnx",), _make_program, _read_onnx, False),
    "run": Case(tuple(f"run/{name}" for name in RUN), _make_run, _read_run, False),
}  # fmt: skip
