"""Reads tensors from files of PyTorch (.pth, .pt, .bin) without executing anything that is in them.

A file is a zip archive (since PyTorch 1.6): `data.pkl` describes the tensors, `data/KEY` holds the bytes of each storage. The legacy
format is a sequence of pickles followed by the storages. Tensors are views of storages: several can share one, with any strides.
The bytes are memory-mapped, after their checksums were verified.
"""

from __future__ import annotations

import math
import mmap
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from ..errors import RunError
from ..records import dataclass
from .pickle_reader import AllowedCall, PickleError, PickleReader, Refused
from .zip_archive import HEADER, START, ZIP_ERRORS, checked_entries, stored_start

LEGACY_MAGIC, LEGACY_PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
MAX_DEPTH, MAX_NAMES, MAX_NAME = 32, 200_000, 1000  # of nested dicts, of the values in them, of a name's length
EXPANDED = 1 << 20  # elements of a tensor that may repeat those of its storage (strides of 0)
MAX_RANK = 32
STATE_DICTS = ("state_dict", "model_state_dict", "model", "net", "weights", "params", "state_dict_ema", "model_ema")

_DTYPES: dict[str, Any] = {
    "float32": np.float32, "float64": np.float64, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16,
    "uint8": np.uint8, "int8": np.int8, "int16": np.int16, "int32": np.int32, "int64": np.int64, "bool": np.bool_,
    "uint16": np.uint16, "uint32": np.uint32, "uint64": np.uint64, "complex64": np.complex64, "complex128": np.complex128,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn, "float8_e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip
_STORAGES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Byte": "uint8", "Char": "int8",
    "Short": "int16", "Int": "int32", "Long": "int64", "Bool": "bool", "ComplexFloat": "complex64", "ComplexDouble": "complex128",
}  # fmt: skip


def load_torch(path: str | os.PathLike[str], *, check: bool = True) -> dict[str, np.ndarray]:
    """The tensors of a file by name. Of a checkpoint with a state dict inside, those of the state dict.

    Without `check` the checksums of a zip archive are not verified: for files that were written without them.
    """
    try:
        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            start = file.read(512)
            content = _read_zip(file, mapped, check) if start[:4] == START else _read_legacy(mapped, start)
        return _by_name(content)
    except Refused as error:
        raise RunError(
            "load_weights",
            f"{path} is not a file of weights alone: {error}. Nothing in it was executed. Save the tensors alone, in the program that made "
            "it: torch.save(model.state_dict(), ...).",
        ) from None
    except PickleError as error:
        raise RunError("load_weights", f"{path} is damaged or cut off: {error}.") from None
    except (OSError, ValueError) as error:  # of mmap: an empty file is a ValueError
        reason = error.strerror if isinstance(error, OSError) else None
        raise RunError("load_weights", f"{path} cannot be read: {reason or error}.") from error


# --- values of the pickle ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StorageType:
    """The class of a storage: its dtype, or None for bytes without one."""

    dtype: np.dtype | None


@dataclass
class Storage:
    """The bytes that tensors are views of; in the legacy format they follow after the tensors."""

    dtype: np.dtype | None
    numel: int
    data: memoryview | None = None
    swapped: bool = False  # whether the bytes are big-endian


@dataclass(frozen=True)
class StorageView:
    """A part of a storage, in files of very old versions."""

    storage: Storage
    offset: int
    numel: int


@dataclass(frozen=True)
class TensorRecord:
    """A tensor as the pickle describes it; `array` makes it one."""

    storage: Storage
    dtype: np.dtype
    offset: int  # elements from the start of the storage
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements

    def array(self) -> np.ndarray:
        data, size = self.storage.data, self.dtype.itemsize
        if data is None:
            raise PickleError("a tensor has no storage")
        count = math.prod(self.shape)
        if count == 0:
            return np.empty(self.shape, self.dtype)
        last = self.offset + sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True))
        if (last + 1) * size > len(data) or count > max(len(data) // size, EXPANDED):
            raise PickleError(f"a tensor of shape {self.shape} does not fit its storage of {len(data)} bytes")
        strides = tuple(stride * size for stride in self.strides)
        if self.dtype == np.bool_:  # other bytes than 0 and 1 are not bools
            return np.asarray(np.ndarray(self.shape, np.uint8, data, self.offset, strides) != 0)
        found = np.ndarray(self.shape, self.dtype, data, self.offset * size, strides)
        return found.byteswap() if self.storage.swapped else found


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any) -> TensorRecord:
    """torch._utils._rebuild_tensor and _rebuild_tensor_v2: what follows are gradients and hooks."""
    start = 0
    if isinstance(storage, StorageView):
        start, storage = storage.offset, storage.storage
    if not isinstance(storage, Storage) or storage.dtype is None:
        raise PickleError("a tensor has no storage with a dtype")
    return _record(storage, storage.dtype, offset, shape, strides, start)


def _tensor_v3(storage: Any, offset: Any, shape: Any, strides: Any, grad: Any, hooks: Any, dtype: Any, *rest: Any) -> TensorRecord:  # fmt: skip
    if not isinstance(storage, Storage) or not isinstance(dtype, np.dtype):
        raise PickleError("a tensor has no storage or no dtype")
    return _record(storage, dtype, offset, shape, strides)


def _record(storage: Storage, dtype: np.dtype, offset: Any, shape: Any, strides: Any, start: int = 0) -> TensorRecord:
    numbers = (offset, *shape, *strides) if isinstance(shape, tuple) and isinstance(strides, tuple) else (None,)
    if any(type(n) is not int or not 0 <= n < 2**62 for n in numbers):
        raise PickleError("a tensor needs an offset, a shape and strides that are not negative")
    if len(shape) != len(strides) or len(shape) > MAX_RANK:
        raise PickleError(f"a tensor has {len(shape)} sizes and {len(strides)} strides")
    return TensorRecord(storage, dtype, start + offset, shape, strides)


def _parameter(value: Any, *rest: Any) -> TensorRecord:
    if not isinstance(value, TensorRecord):
        raise PickleError("a parameter has no tensor")
    return value


def _from_type(function: Any, kind: Any, args: Any, *rest: Any) -> Any:
    """torch._tensor._rebuild_from_type_v2: a tensor with attributes, which hold no weights."""
    if not isinstance(function, AllowedCall) or not isinstance(args, tuple) or function.function is _from_type:
        raise PickleError("a tensor with attributes is made by something that cannot make one")
    return function(args)


def _ordered(*args: Any) -> dict[Any, Any]:
    """OrderedDict() or OrderedDict([[key, value], ...]), as Python 2 wrote it."""
    pairs = args[0] if args else []
    if len(args) > 1 or not isinstance(pairs, list | tuple):
        raise PickleError("an OrderedDict is made of something that is no list")
    if any(not isinstance(p, list | tuple) or len(p) != 2 or not isinstance(p[0], str | int) for p in pairs):
        raise PickleError("an OrderedDict is made of something that is no list of pairs")
    return dict(pairs)


def _size(*args: Any) -> tuple[Any, ...]:
    if len(args) != 1 or not isinstance(args[0], list | tuple):
        raise PickleError("a torch.Size is made of something that is no tuple")
    return tuple(args[0])


def _opaque(name: str) -> str:
    """Values that say nothing about weights (devices, layouts): their name stands for them."""
    return name


ALLOWED: dict[str, Any] = {
    "collections.OrderedDict": AllowedCall(_ordered),
    "torch._utils._rebuild_tensor": AllowedCall(_tensor, 4),
    "torch._utils._rebuild_tensor_v2": AllowedCall(_tensor, 4),
    "torch._utils._rebuild_tensor_v3": AllowedCall(_tensor_v3, 7),
    "torch._utils._rebuild_parameter": AllowedCall(_parameter, 1),
    "torch._utils._rebuild_parameter_with_state": AllowedCall(_parameter, 1),
    "torch._tensor._rebuild_from_type_v2": AllowedCall(_from_type, 3),
    "torch.Size": AllowedCall(_size),
    "torch.device": AllowedCall(lambda *args: _opaque("torch.device")),
    "torch.serialization._get_layout": AllowedCall(lambda *args: _opaque("torch.layout")),
    **{name: _opaque(name) for name in ("torch.Tensor", "torch.nn.parameter.Parameter", "torch.nn.Parameter")},
    **{f"torch.{name}": np.dtype(dtype) for name, dtype in _DTYPES.items()},
    **{f"torch.{name}Storage": StorageType(np.dtype(_DTYPES[dtype])) for name, dtype in _STORAGES.items()},
    "torch.storage.UntypedStorage": StorageType(None),
    "torch.UntypedStorage": StorageType(None),
}


# --- the two formats --------------------------------------------------------------------------------------------------------


def _read_zip(file: BinaryIO, mapped: mmap.mmap, check: bool) -> Any:
    """The value of data.pkl, whose storages are entries of the archive."""
    entries = _entries(file, mapped)
    pickles = [name for name in entries if name == "data.pkl" or name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise PickleError(f"the archive has {len(pickles)} entries data.pkl, not one")
    root = pickles[0].removesuffix("data.pkl")
    parts = _Parts(entries, check)
    swapped = f"{root}byteorder" in entries and bytes(parts.content(f"{root}byteorder")) == b"big"
    storages: dict[str, Storage] = {}

    def storage(given: Any) -> Storage:
        dtype, key, numel, _ = _persistent(given)
        if key not in storages:
            data = parts.content(f"{root}data/{key}")
            if dtype is not None and numel * dtype.itemsize > len(data):
                raise PickleError(f"storage {key[:50]!a} has {len(data)} bytes for {numel} elements of {dtype}")
            storages[key] = Storage(dtype, numel, data, swapped)
        if storages[key].dtype != dtype:  # another view of the same bytes
            return Storage(dtype, numel, storages[key].data, swapped)
        return storages[key]

    return PickleReader(parts.content(pickles[0]), ALLOWED, storage).read()


def _entries(file: BinaryIO, mapped: mmap.mmap) -> dict[str, tuple[zipfile.ZipInfo, memoryview]]:
    """The bytes of every entry of an archive: stored, not compressed, so that nothing is larger than the file."""
    try:
        with zipfile.ZipFile(file) as archive:
            infos = checked_entries(file, archive)
        return {info.filename: (info, _stored(info, mapped)) for info in infos}
    except ZIP_ERRORS as error:
        raise PickleError(f"it is not a zip archive that can be read ({error})") from None


def _stored(info: zipfile.ZipInfo, mapped: mmap.mmap) -> memoryview:
    header = mapped[info.header_offset : info.header_offset + HEADER] if info.header_offset >= 0 else b""
    start = stored_start(info, header, len(mapped))
    return memoryview(mapped)[start : start + info.file_size]


class _Parts:
    """The entries that are used, each checked once."""

    def __init__(self, entries: Mapping[str, tuple[zipfile.ZipInfo, memoryview]], check: bool) -> None:
        self.entries, self.check = entries, check
        self.checked: set[str] = set()

    def content(self, name: str) -> memoryview:
        if name not in self.entries:
            raise PickleError(f"the archive has no entry {name[:100]!a}")
        info, data = self.entries[name]
        if self.check and name not in self.checked:
            self.checked.add(name)
            if zlib.crc32(data) != info.CRC:
                raise PickleError(
                    f"the checksum of {name[:100]!a} is wrong. If it was written without checksums, pass check=False"
                )
        return data


def _read_legacy(mapped: mmap.mmap, start: bytes) -> Any:
    """The value of a file of PyTorch before 1.6: five pickles, then the storages in the order of the last pickle."""
    if start[257:262] == b"ustar":
        raise PickleError(
            "it is a tar archive, the format of PyTorch before 0.1.10. Load and save it again with a newer one"
        )
    storages: dict[str, Storage] = {}

    def storage(given: Any) -> Storage | StorageView:
        dtype, key, numel, view = _persistent(given)
        found = storages.setdefault(key, Storage(dtype, numel))
        if (found.dtype, found.numel) != (dtype, numel):
            raise PickleError(f"storage {key[:50]!a} is described in two ways")
        return found if view is None else StorageView(found, *view)

    reader = PickleReader(memoryview(mapped), ALLOWED, storage)
    if reader.read() != LEGACY_MAGIC:
        raise PickleError("it is no file of PyTorch")
    if reader.read() != LEGACY_PROTOCOL:
        raise PickleError(f"the legacy format has another version than {LEGACY_PROTOCOL}")
    system = reader.read()
    little = system.get("little_endian", True) if isinstance(system, dict) else True
    content, keys = reader.read(), reader.read()
    if not isinstance(keys, list) or any(key not in storages for key in keys if isinstance(key, str)):
        raise PickleError("the list of storages names other ones than the tensors")
    _fill(storages, keys, memoryview(mapped)[reader.position :], swapped=little is not True)
    return content


def _fill(storages: Mapping[str, Storage], keys: list[Any], rest: memoryview, swapped: bool) -> None:
    """Give each storage its bytes: eight for the number of elements, then the elements."""
    for key in keys:
        storage = storages.get(key) if isinstance(key, str) else None
        if storage is None or storage.dtype is None:
            raise PickleError("the list of storages has an entry that is none")
        size = storage.numel * storage.dtype.itemsize
        if int.from_bytes(rest[:8], "little") != storage.numel or 8 + size > len(rest):
            raise PickleError("a storage has another length than its tensors say")
        storage.data, storage.swapped = rest[8 : 8 + size], swapped
        rest = rest[8 + size :]


def _persistent(given: Any) -> tuple[np.dtype | None, str, int, tuple[int, int] | None]:
    """("storage", class, key, device, number of elements) and, in old files, (key, offset, elements) of a view."""
    if not isinstance(given, tuple) or len(given) not in (5, 6) or given[0] != "storage":
        raise PickleError("a persistent id is no storage")
    kind, key, numel = given[1], given[2], given[4]
    if (
        not isinstance(kind, StorageType)
        or not isinstance(key, str)
        or type(numel) is not int
        or not 0 <= numel < 2**62
    ):
        raise PickleError("a persistent id is no storage")
    view = given[5] if len(given) == 6 else None
    if view is None:
        return kind.dtype, key, numel, None
    if (
        not isinstance(view, tuple)
        or len(view) != 3
        or any(type(n) is not int or not 0 <= n <= numel for n in view[1:])
    ):
        raise PickleError("a view of a storage is damaged")
    return kind.dtype, key, numel, (view[1], view[2])


# --- names ------------------------------------------------------------------------------------------------------------------


def _by_name(content: Any) -> dict[str, np.ndarray]:
    """The tensors of a state dict by name; nested dicts are joined with dots."""
    if isinstance(content, TensorRecord):
        return {"": content.array()}
    inner = _state_dict(content)
    found = {name: record.array() for name, record in _walk(inner)}
    if not found:
        raise PickleError("it holds no tensors")
    return found


def _state_dict(content: Any) -> Any:
    """The state dict of a checkpoint, which also holds an epoch, an optimizer and the like."""
    if isinstance(content, dict) and not any(isinstance(v, TensorRecord) for v in content.values()):
        for key in STATE_DICTS:
            inner = content.get(key)
            if isinstance(inner, dict) and any(isinstance(v, TensorRecord) for v in inner.values()):
                return inner
    return content


def _walk(content: Any) -> Iterator[tuple[str, TensorRecord]]:
    """All tensors in nested dicts, lists and tuples. A pickle can share and nest at will, so visits are counted."""
    visits = 0
    waiting: list[tuple[str, int, Any]] = [("", 0, content)]
    while waiting:
        name, depth, value = waiting.pop()
        visits += 1
        inner = _items(value)
        if visits + len(waiting) + len(inner) > MAX_NAMES or depth > MAX_DEPTH or len(name) > MAX_NAME:
            raise PickleError(
                f"it has more than {MAX_NAMES} values, names of more than {MAX_NAME} characters, or is nested more than {MAX_DEPTH} deep"
            )
        if isinstance(value, TensorRecord):
            yield name, value
        waiting += reversed([(f"{name}.{key}" if name else str(key), depth + 1, v) for key, v in inner])


def _items(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, dict):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, list | tuple) else []
