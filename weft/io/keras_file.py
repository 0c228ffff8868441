"""Reads the weights in files of Keras: .h5 (Keras 1 to 3), .weights.h5 and .keras. Layers are never built: only arrays and names are read.

Tensors are named LAYER.VARIABLE: block1_conv1.kernel, bn.moving_mean. There are two layouts:

- .h5: a group for each layer, which holds its variables by name: conv1/conv1/kernel:0. A whole model has them under model_weights.
- .weights.h5 and .keras: layers/KEY/vars/NUMBER. The key is the layer's class with a number; its name is an attribute, or in config.json.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from ..errors import RunError
from .file_kind import KERAS_CONFIG as CONFIG
from .file_kind import KERAS_WEIGHTS as WEIGHTS
from .hdf5_file import DamagedHdf5, Hdf5Content, read_hdf5
from .zip_archive import ZIP_ERRORS, check_packing, checked_entries

LAYERS = (
    "layers",
    "_layer_checkpoint_dependencies",
)  # the group of all layers; the second is that of Keras 2.12 to 2.15
MAX_CONFIG = 1 << 26  # bytes
# The variables of a class of layers, in the order of their numbers.
_CONV, _NORM = ("kernel", "bias"), ("gamma", "beta", "moving_mean", "moving_variance")
VARIABLES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "depthwise_conv2d", "conv2d_transpose", "dense"), _CONV),
    "separable_conv2d": ("depthwise_kernel", "pointwise_kernel", "bias"),
    "batch_normalization": _NORM,
    "layer_normalization": ("gamma", "beta"),
    "embedding": ("embeddings",),
}


def load_keras(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The weights of an .h5 or .weights.h5 file: LAYER.VARIABLE. Arrays are views of the memory-mapped file."""
    try:
        with open(path, "rb") as file:
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        return _named(read_hdf5(content), {})
    except DamagedHdf5 as error:
        raise RunError("load_weights", f"{path} is damaged, or not an HDF5 file of Keras: {error}.") from None
    except (OSError, ValueError) as error:
        raise RunError("load_weights", f"{path} cannot be read: {error}.") from error


def load_keras_zip(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The weights of a .keras file: LAYER.VARIABLE."""
    try:
        with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
            entries = {info.filename: info for info in checked_entries(file, archive)}
            if WEIGHTS not in entries:
                raise DamagedHdf5(f"it has no {WEIGHTS}")
            for name in entries.keys() & {WEIGHTS, CONFIG}:
                check_packing(entries[name])
            names = _layer_names(archive, entries[CONFIG]) if CONFIG in entries else {}
            return _named(read_hdf5(memoryview(archive.read(entries[WEIGHTS]))), names)
    except (DamagedHdf5, zlib.error, *ZIP_ERRORS) as error:
        raise RunError("load_weights", f"{path} is damaged, or not a file of Keras: {error}.") from None


def _named(content: Hdf5Content, names: Mapping[str, str]) -> dict[str, np.ndarray]:
    paths = {tuple(path.split("/")): array for path, array in content.datasets.items()}
    numbered = {path: array for path, array in paths.items() if path[0] in LAYERS}
    found = _by_number(numbered, content, names) if numbered else _by_name(content)
    if not found:
        raise DamagedHdf5("it holds no weights")
    return found


# --- one group for each layer, variables by name ------------------------------------------------------------------------------


def _by_name(content: Hdf5Content) -> dict[str, np.ndarray]:
    root = "model_weights" if "model_weights" in content.attributes else ""
    inside = len(root) + 1 if root else 0
    arrays = {path[inside:]: array for path, array in content.datasets.items() if path.startswith(root)}
    layers: dict[str, dict[str, np.ndarray]] = {}
    known = _listed(content.attributes[root], "layer_names")
    for path, array in arrays.items():
        layer = _layer_of(path, known)
        layers.setdefault(layer, {})[path[len(layer) + 1 :]] = array
    found: dict[str, np.ndarray] = {}
    for layer, variables in layers.items():
        parts = {path: path.split("/") for path in variables}
        last = [part[-1] for part in parts.values()]
        nested = len(set(last)) < len(last)  # a model within the model: its layers are the groups inside
        for path, array in variables.items():
            if not path or (nested and len(parts[path]) < 2):
                raise DamagedHdf5(f"the array {f'{layer}/{path}'[:100]!r} belongs to no layer")
            _add(found, parts[path][-2] if nested else layer, re.sub(r":\d+$", "", parts[path][-1]), array)
    return found


def _listed(attributes: Mapping[str, Sequence[str]], name: str) -> set[str]:
    """A list of names; one that is long is stored in parts: layer_names0, layer_names1, ..."""
    return {each for key, texts in attributes.items() if re.fullmatch(rf"{name}\d*", key) for each in texts}


def _layer_of(path: str, known: set[str]) -> str:
    """The layer of an array: the listed name that its path begins with (names may have slashes), else the first group."""
    places = [place for place, letter in enumerate(path) if letter == "/"]
    return next((path[:place] for place in places if path[:place] in known), path.partition("/")[0])


def _add(found: dict[str, np.ndarray], layer: str, variable: str, array: np.ndarray) -> None:
    name = f"{layer}.{variable}"
    if name in found:
        raise DamagedHdf5(f"the name {name[:100]!r} is there twice")
    found[name] = array


# --- layers/KEY/vars/NUMBER ---------------------------------------------------------------------------------------------------


def _by_number(
    paths: Mapping[tuple[str, ...], np.ndarray], content: Hdf5Content, names: Mapping[str, str]
) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    counts = Counter(path[:-1] for path in paths)
    for path, array in paths.items():
        if len(path) < 4 or path[-2] != "vars":
            raise DamagedHdf5(f"the array {'/'.join(path)[:100]!r} belongs to no layer")
        key = path[-3]
        told = "".join(content.attributes["/".join(path[:-1])].get("name", []))
        told = told or (names.get(key, "") if len(path) == 4 else "")
        variables = VARIABLES.get(re.sub(r"_\d+$", "", key), ())
        _add(found, told or key, _variable(path[-1], variables, counts[path[:-1]]), array)
    return found


def _variable(number: str, variables: Sequence[str], count: int) -> str:
    """The name of a variable; a batch norm without one of its parts keeps the numbers, which do not tell which part it lacks."""
    known = number.isdecimal() and int(number) < len(variables) and (count == len(variables) or variables[0] != "gamma")
    return variables[int(number)] if known else number


def _layer_names(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> dict[str, str]:
    """The names of layers by key, from the configuration: files before Keras 3.4 have them nowhere else."""
    if info.file_size > MAX_CONFIG:
        raise DamagedHdf5(f"{CONFIG} has {info.file_size} bytes")
    try:
        config = json.loads(archive.read(info))["config"]
        layers = [
            (_snake_case(str(each["class_name"])), str(each["config"]["name"])) for each in config.get("layers", [])
        ]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DamagedHdf5(f"{CONFIG} is wrong ({type(error).__name__})") from None
    counts: Counter[str] = Counter()
    found = {}
    for kind, name in layers:
        found[f"{kind}_{counts[kind]}" if counts[kind] else kind] = name
        counts[kind] += 1
    return found


def _snake_case(name: str) -> str:
    """The key of a class: BatchNormalization -> batch_normalization, Conv2D -> conv2d."""
    name = re.sub(r"\W+", "", name)
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()
