"""Reading ONNX files: parsing, tensors and external data. A damaged file is a UserError, and allocates no more than it holds."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError
from .package import onnx_package
from .values import frozen, numpy_dtype

_STRING = 8


def read_model(path: str | os.PathLike[str]) -> Any:
    """The ModelProto in a file."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise UserError("onnx", f"a readable file is required, got {str(path)!r}: {error.strerror}.") from None
    return parse_model(content, str(path))


def parse_model(content: bytes, name: str = "the model") -> Any:
    """The ModelProto of some bytes."""
    model = onnx_package().ModelProto()
    try:
        model.ParseFromString(content)
    except Exception as error:  # protobuf's implementations raise errors of different classes
        raise UserError("onnx", f"{name!r} is not an ONNX file, or it is damaged: {error}.") from None
    if not model.HasField("graph") or not model.opset_import:
        raise UserError("onnx", f"{name!r} is not an ONNX file: it has no graph or names no opset.")
    return model


def to_array(proto: Any, folder: Path | None) -> np.ndarray:
    """The array of a TensorProto. External data must lie in the folder of the model."""
    shape = tuple(proto.dims)
    where = f"tensor {proto.name!r}" if proto.name else "a tensor"
    if any(n < 0 for n in shape) or len(shape) > 32:
        raise UserError("onnx", f"{where} has the impossible shape {shape}.")
    if proto.HasField("segment"):
        raise UserError("onnx", f"{where} is stored in segments, which is not supported.")
    dtype = numpy_dtype(proto.data_type)
    if proto.data_type == _STRING:
        return _strings(proto, shape, where)
    count = math.prod(shape)
    needed = _stored_bytes(proto.data_type, count, dtype)
    if proto.data_location == onnx_package().TensorProto.EXTERNAL:
        proto = _with_external_data(proto, folder, needed, where)
    if proto.HasField("raw_data"):
        given = len(proto.raw_data)
    else:
        given = _typed_bytes(proto, count, dtype)
    if given != needed:
        raise UserError(
            "onnx", f"{where} of {dtype} and shape {shape} needs {needed} bytes, but the file holds {given}."
        )
    return frozen(onnx_package("numpy_helper").to_array(proto))


def _strings(proto: Any, shape: tuple[int, ...], where: str) -> np.ndarray:
    if len(proto.string_data) != math.prod(shape):
        raise UserError("onnx", f"{where} of shape {shape} has {len(proto.string_data)} strings.")
    array = np.empty(len(proto.string_data), object)
    array[:] = [text.decode("utf-8", "replace") for text in proto.string_data]
    return array.reshape(shape)


_PACKED_BITS = {"int4": 4, "uint4": 4, "float4_e2m1fn": 4, "int2": 2, "uint2": 2}


def _stored_bytes(code: int, count: int, dtype: np.dtype[Any]) -> int:
    bits = _PACKED_BITS.get(dtype.name)
    return count * dtype.itemsize if bits is None else -(-count * bits // 8)


def _typed_bytes(proto: Any, count: int, dtype: np.dtype[Any]) -> int:
    """The bytes that the typed fields (float_data, ...) stand for."""
    field = onnx_package("helper").tensor_dtype_to_field(proto.data_type)
    entries = len(getattr(proto, field))
    bits = _PACKED_BITS.get(dtype.name)
    if bits is not None:
        return entries
    return entries * dtype.itemsize // (2 if dtype.kind == "c" else 1)


def _with_external_data(proto: Any, folder: Path | None, needed: int, where: str) -> Any:
    """A copy of the tensor with the bytes of its external file inside."""
    facts = {entry.key: entry.value for entry in proto.external_data}
    path = _external_path(facts.get("location", ""), folder, where)
    try:
        offset = int(facts.get("offset", "0"))
        length = int(facts.get("length", needed))
    except ValueError:
        raise UserError("onnx", f"{where} has an offset or length of external data that is no number.") from None
    if offset < 0 or length != needed:
        raise UserError("onnx", f"{where} needs {needed} bytes of external data, but names {length} at {offset}.")
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < offset + length:
                raise UserError("onnx", f"{where} needs {length} bytes at {offset} of {path.name!r}, which is shorter.")
            file.seek(offset)
            content = file.read(length)
    except OSError as error:
        raise UserError("onnx", f"the external data of {where} cannot be read: {error.strerror}.") from None
    inside = onnx_package().TensorProto(name=proto.name, data_type=proto.data_type, dims=proto.dims)
    inside.raw_data = content
    return inside


def _external_path(location: str, folder: Path | None, where: str) -> Path:
    if folder is None:
        raise UserError("onnx", f"{where} is stored in another file. Load the model from its file.")
    base = folder.resolve()
    path = (base / location).resolve()
    if not location or os.path.isabs(location) or not path.is_relative_to(base):
        raise UserError("onnx", f"the external data of {where} must lie beside the model, got {location!r}.")
    if not path.is_file():
        raise UserError(
            "onnx", f"the external data of {where} is missing: there is no file {location!r} beside the model."
        )
    return path
