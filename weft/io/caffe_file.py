"""Reads the weights of Caffe's networks (.caffemodel): the blobs of each layer, from the protobuf wire format.

A message is a sequence of fields: a varint of number and wire type, then a varint (0), eight bytes (1), counted bytes (2) or four bytes (5).
Of `NetParameter` the layers are read (field 100, or 2 in files of the old version), of a layer its name and blobs, of a blob its shape and values.
Every other field is skipped.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterator

import numpy as np

from ..errors import RunError

MAX_LAYERS, MAX_BLOBS, MAX_RANK = 10_000, 100, 32
_LAYER, _OLD_LAYER = 100, 2  # of NetParameter
_FIELDS = {_LAYER: (1, 7), _OLD_LAYER: (4, 6)}  # of a layer: its name and its blobs
_ROLES = ("weight", "bias")  # of the blobs of a layer with weights; any others are numbered


class _DamagedWeights(Exception):
    pass


def load_caffe(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The blobs of all layers: LAYER.weight, LAYER.bias, and LAYER.2 and so on for those of layers that have more."""
    try:
        found = dict(_named_blobs(_content(path)))
        if not found:
            raise _DamagedWeights("it has no layers with blobs")
    except _DamagedWeights as error:
        raise RunError(
            "load_weights",
            f"{path} is damaged, or not in a format that is known (safetensors, PyTorch, .npz, Keras, .caffemodel): {error}.",
        ) from None
    except (OSError, ValueError) as error:
        raise RunError("load_weights", f"{path} cannot be read: {error}.") from error
    return found


def load_caffe_mean(path: str | os.PathLike[str]) -> np.ndarray:
    """The mean image of a .binaryproto, as Caffe and DIGITS write it: (channels, height, width), blue first.

    >>> import tempfile
    >>> from weft.io.protobuf import bytes_field, int_field
    >>> sizes = b"".join(int_field(field, size) for field, size in enumerate((1, 3, 1, 2), 1))
    >>> with tempfile.NamedTemporaryFile(suffix=".binaryproto") as file:
    ...     _ = file.write(sizes + bytes_field(5, np.arange(6, dtype=np.float32).tobytes())), file.flush()
    ...     load_caffe_mean(file.name).tolist()
    [[[0.0, 1.0]], [[2.0, 3.0]], [[4.0, 5.0]]]
    """
    try:
        found = np.array(_blob(_content(path)), np.float32)
    except _DamagedWeights as error:
        raise RunError("load_caffe_mean", f"{path} is damaged, or no .binaryproto of a mean image: {error}.") from None
    except (OSError, ValueError) as error:
        raise RunError("load_caffe_mean", f"{path} cannot be read: {error}.") from error
    image = found[0] if found.ndim == 4 and len(found) == 1 else found
    if image.ndim != 3 or not image.size:
        raise RunError(
            "load_caffe_mean", f"{path} must hold one image of channels, rows and columns, got {found.shape}."
        )
    return image


def _content(path: str | os.PathLike[str]) -> memoryview:
    with open(path, "rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _named_blobs(content: memoryview) -> Iterator[tuple[str, np.ndarray]]:
    layers = 0
    for field, wire, value in _fields(content):
        if field not in _FIELDS or wire != 2:
            continue
        layers += 1
        if layers > MAX_LAYERS:
            raise _DamagedWeights(f"it has more than {MAX_LAYERS} layers")
        name, blobs = _layer(value, *_FIELDS[field])
        for place, blob in enumerate(blobs):
            yield f"{name}.{_ROLES[place] if place < len(_ROLES) else place}", blob


def _layer(content: memoryview, name_field: int, blob_field: int) -> tuple[str, list[np.ndarray]]:
    name, blobs = "", []
    for field, wire, value in _fields(content):
        if field == name_field and wire == 2:
            name = str(value[:1000], "utf-8", "replace")
        elif field == blob_field and wire == 2:
            blobs.append(_blob(value))
            if len(blobs) > MAX_BLOBS:
                raise _DamagedWeights(f"a layer has more than {MAX_BLOBS} blobs")
    return name, blobs


def _blob(content: memoryview) -> np.ndarray:
    """BlobProto: values (5 float, 8 double, packed), and a shape (7), or the four old fields num, channels, height, width (1 to 4)."""
    old, shape = [1, 1, 1, 1], None
    parts: list[np.ndarray] = []
    for field, wire, value in _fields(content):
        if field in (5, 8) and wire == 2:
            item = 4 if field == 5 else 8
            if len(value) % item:
                raise _DamagedWeights("a blob has a part of a number")
            parts.append(np.frombuffer(value, f"<f{item}"))
        elif field == 5 and wire == 5:  # not packed: one number a field
            parts.append(np.frombuffer(value, "<f4"))
        elif field == 7 and wire == 2:
            shape = _shape(value)
        elif field in (1, 2, 3, 4) and wire == 0:
            old[field - 1] = int.from_bytes(value, "little")
    values = parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else np.empty(0, np.float32)
    shape = tuple(old) if shape is None else shape
    if math.prod(shape) != values.size:
        raise _DamagedWeights(f"a blob of shape {shape} has {values.size} values")
    return values.reshape(shape)


def _shape(content: memoryview) -> tuple[int, ...]:
    sizes: list[int] = []
    for field, wire, value in _fields(content):
        if field != 1:
            continue
        if wire == 0:
            sizes.append(int.from_bytes(value, "little"))
        elif wire == 2:
            place = 0
            while place < len(value) and len(sizes) <= MAX_RANK:
                size, place = _varint(value, place)
                sizes.append(size)
    if len(sizes) > MAX_RANK:
        raise _DamagedWeights(f"a blob has more than {MAX_RANK} axes")
    return tuple(sizes)


def _fields(content: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """Number, wire type and bytes of each field; a varint is given as eight bytes."""
    place = 0
    while place < len(content):
        key, place = _varint(content, place)
        wire = key & 7
        if wire == 0:
            number, place = _varint(content, place)
            yield key >> 3, wire, memoryview(number.to_bytes(8, "little"))
            continue
        if wire == 2:
            size, place = _varint(content, place)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise _DamagedWeights(f"wire type {wire} is not known")
        if size > len(content) - place:
            raise _DamagedWeights("it is cut off")
        yield key >> 3, wire, content[place : place + size]
        place += size


def _varint(content: memoryview, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(content):
            raise _DamagedWeights("it is cut off")
        byte = content[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & (2**64 - 1), place
    raise _DamagedWeights("a number has more than ten bytes")
