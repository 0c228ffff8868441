"""Files of weights to damage, of every format that `load_weights` reads. They need neither the compiler nor the packages for images."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from caffe_writer import caffemodel
from weft.io import load_weights
from weft.io.prototxt import read_prototxt

FOLDER = Path(__file__).parent
VALUES = {"w": np.linspace(0, 1, 40).reshape(4, 10), "n": np.arange(5)}


class Case(NamedTuple):
    """`exact`: the files have checksums, so that what is read is either right or refused. `refusals`: errors besides weft's."""

    files: tuple[str, ...]
    make: Callable[[Path], None]
    read: Callable[[Path], Any]
    exact: bool
    refusals: tuple[type[Exception], ...] = ()


def _copied(*paths: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        for path in paths:
            shutil.copy(FOLDER / path, folder)

    return make


def _make_npz(folder: Path) -> None:
    np.savez(folder / "plain.npz", **VALUES)
    np.savez_compressed(folder / "packed.npz", **VALUES)


def _make_caffe(folder: Path) -> None:
    (folder / "lenet.caffemodel").write_bytes(caffemodel())


def _make_prototxt(folder: Path) -> None:
    layers = [
        f'layer {{ name: "c{n}" type: "Convolution" convolution_param {{ num_output: {n} pad: [1, 2] }} }}'
        for n in range(5)
    ]
    (folder / "net.prototxt").write_text('name: "net" # of Caffe\n' + "\n".join(layers))


def _read(*names: str) -> Callable[[Path], Any]:
    """All values: a view beyond the end of the file would be found by reading it."""

    def read(folder: Path) -> Any:
        return [[(n, a.shape, a.tobytes()) for n, a in load_weights(folder / name).items()] for name in names]

    return read


def _case(exact: bool, make: Callable[[Path], None], *names: str) -> Case:
    return Case(names, make, _read(*names), exact)


WEIGHTS: dict[str, Case] = {
    "torch": _case(True, _copied("torch_files/zip.pth", "torch_files/checkpoint.pth"), "zip.pth", "checkpoint.pth"),
    "old torch": _case(False, _copied("torch_files/legacy.pth"), "legacy.pth"),
    "npz weights": _case(True, _make_npz, "plain.npz", "packed.npz"),
    "caffe": _case(False, _make_caffe, "lenet.caffemodel"),
    "prototxt": Case(
        ("net.prototxt",), _make_prototxt, lambda folder: repr(read_prototxt(folder / "net.prototxt")), False
    ),
    "hdf5": _case(False, _copied("keras_files/whole.h5", "keras_files/only.weights.h5"), "whole.h5", "only.weights.h5"),
    "keras": _case(True, _copied("keras_files/whole.keras"), "whole.keras"),
}
