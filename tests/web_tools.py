"""A small image classifier as a saved program, pictures for it, and an engine that runs its page's WebAssembly without a browser."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import weft
from weft import nn
from weft.web.folder import DESCRIPTION

LABELS = ["ant", "bee", "cat", "dog", "eel", "fox", "gnu"]


def save_regressor(path: Path, dtype: str = "uint8") -> Path:
    """A program that predicts two numbers from colour pictures: the sums of red and of blue."""
    data = {
        "name": "sums",
        "shape": (3, 4, 4),
        "dtype": dtype,
        "classes": None,
        "labels": ["float32", 2],
        "mean": None,
        "std": None,
    }
    weft.save(
        path, lambda x: x.astype("float32").sum((2, 3))[:, ::2], weft.TensorSpec(("batch", 3, 4, 4), dtype), task="regress",
        network="sums", preprocessing={"resize": "squash", "data": data, "context": None},
    )  # fmt: skip
    return path


def save_classifier(
    path: Path, shape: tuple[int, int, int] = (1, 12, 10), resize: str = "squash", mean: float = 0.1
) -> Path:
    """A program as `weft export` writes it: from pixels to probabilities."""
    weft.seed(2)
    layers = [
        weft.data.ToFloat(), nn.Conv2d(shape[0], 8, 3, activation="relu"), nn.BatchNorm(8), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(None, len(LABELS)), nn.Softmax(),
    ]  # fmt: skip
    net = nn.Sequential(*layers).eval()
    net(np.zeros((1, *shape), np.uint8))
    data = {
        "name": "pets", "shape": shape, "dtype": "uint8", "classes": LABELS, "labels": ["int64"],
        "mean": [mean] * shape[0], "std": [0.3] * shape[0],
    }  # fmt: skip
    weft.save(
        path, net, weft.TensorSpec(("batch", *shape), "uint8"), labels=LABELS, task="classify", network="tiny",
        preprocessing={"resize": resize, "data": data, "context": None}, metrics={"validation_accuracy": 0.75}, licence="MIT",
    )  # fmt: skip
    return path


def picture(path: Path, width: int, height: int, mode: str = "RGB", seed: int = 0) -> Path:
    """A smooth picture of odd size with some noise."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(
        rng.integers(0, 256, (5, 4, len(mode)), dtype=np.uint8).squeeze(), mode if mode != "RGBA" else None
    )
    coarse.resize((width, height), Image.Resampling.BICUBIC).save(path)
    return path


def read_page(folder: Path) -> tuple[dict[str, Any], bytes, bytes]:
    """The description, the code and the weights of a page."""
    text = (folder / DESCRIPTION).read_text()
    description = json.loads(text[text.index("= ") + 2 :].rstrip().removesuffix(";"))
    parts = []
    for name in description["parts"]:
        found = re.fullmatch(r'weightsPart\("(.*)", "(.*)"\);\n', (folder / name).read_text())
        assert found is not None
        assert found[1] == name
        parts.append(base64.b64decode(found[2], validate=True))
    return description, base64.b64decode(description["code"], validate=True), b"".join(parts)


class WasmModule:
    """A linked module in wasmtime."""

    def __init__(self, wasmtime: Any, code: bytes) -> None:
        self.store = wasmtime.Store()
        self.exports = wasmtime.Instance(self.store, wasmtime.Module(self.store.engine, code), []).exports(self.store)
        self.memory = self.exports["memory"]
        self.at = self.exports["__heap_base"].value(self.store)

    def call(self, name: str, *arguments: Any) -> Any:
        return self.exports[name](self.store, *arguments)

    def place(self, data: bytes) -> int:
        """The address of a copy, aligned as the code expects it."""
        address = -(-self.at // 64) * 64
        self.at = address + len(data)
        missing = self.at - self.memory.data_len(self.store)
        if missing > 0:
            self.memory.grow(self.store, -(-missing // 65536))
        self.memory.write(self.store, data, address)
        return address

    def floats(self, address: int, count: int) -> np.ndarray:
        return np.frombuffer(bytes(self.memory.read(self.store, address, address + 4 * count)), np.float32)
