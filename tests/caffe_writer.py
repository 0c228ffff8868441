"""Writes .caffemodel files for tests, in the forms that Caffe has written."""

import struct

import numpy as np

from weft.io.protobuf import bytes_field, int_field, varint

WEIGHT = np.arange(6, dtype=np.float32).reshape(2, 3)


def blob(values: np.ndarray, old: bool = False, packed: bool = True) -> bytes:
    """A BlobProto, with the old four sizes or the new shape."""
    four = [1] * (4 - values.ndim) + list(values.shape)
    sizes = b"".join(int_field(n + 1, size) for n, size in enumerate(four))
    shape = sizes if old else bytes_field(7, bytes_field(1, b"".join(map(varint, values.shape))))
    single = b"".join(bytes([5 << 3 | 5]) + struct.pack("<f", v) for v in values.ravel())
    return shape + (bytes_field(5, values.astype("<f4").tobytes()) if packed else single)


def caffemodel(old: bool = False, packed: bool = True) -> bytes:
    name, blobs = (4, 6) if old else (1, 7)
    parts = [blob(WEIGHT, old, packed), blob(np.array([1.0, 2.0]), old, packed)]
    layer = bytes_field(name, b"ip1") + b"".join(bytes_field(blobs, part) for part in parts)
    data = bytes_field(name, b"data")
    number = layer_key(2 if old else 100)
    return bytes_field(1, b"LeNet") + b"".join(number + varint(len(each)) + each for each in (data, layer))


def caffemodel_of(layers: dict[str, list[np.ndarray]]) -> bytes:
    """A file with these layers and their blobs."""
    parts = [
        bytes_field(1, name.encode()) + b"".join(bytes_field(7, blob(b)) for b in blobs)
        for name, blobs in layers.items()
    ]
    return b"".join(layer_key(100) + varint(len(part)) + part for part in parts)


def layer_key(field: int) -> bytes:
    return varint(field << 3 | 2)
