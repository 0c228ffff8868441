"""Files of PyTorch: every tensor comes back with its bits, nothing is executed, and damage is an error of weft."""

import pickle
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from weft.errors import RunError
from weft.io import pickle_reader
from weft.io.torch_file import load_torch
from weft.testing import counted

FILES = Path(__file__).parent / "torch_files"
BASE = np.arange(24, dtype=np.float32).reshape(4, 6)
EXPECTED: dict[str, np.ndarray] = {
    "plain": BASE, "transposed": BASE.T, "slice": BASE[1:3, ::2], "shared": BASE, "expanded": np.full((3, 4), 2, np.float32),
    "scalar": np.array(3), "empty": np.zeros((0, 3), np.float32),
    **{f"dtype.{n}": np.array([0, 1, 2, 100]).astype(n) for n in ("float64", "float16")},
    "dtype.bfloat16": np.array([0, 1, 2, 100]).astype(ml_dtypes.bfloat16),
    **{f"dtype.{n}": np.array([0, 1, 2, 100]).astype(n) for n in ("uint8", "int8", "int16", "int32", "int64")},
    "dtype.bool": np.array([True, False, True]), "parameter": np.array([1.5, -2.5], np.float32),
}  # fmt: skip


@pytest.mark.parametrize("name", ["zip", "protocol4", "legacy"])
def test_all_tensors_come_back(name: str) -> None:
    found = load_torch(FILES / f"{name}.pth")
    assert list(found) == list(EXPECTED)
    for key, array in EXPECTED.items():
        assert (found[key].shape, found[key].dtype) == (array.shape, array.dtype)
        assert np.array_equal(found[key], array)
        counted()


def test_storages_are_shared_and_mapped_not_copied() -> None:
    found = load_torch(FILES / "zip.pth")
    assert np.shares_memory(found["transposed"], found["shared"])
    assert not np.shares_memory(found["plain"], found["shared"])
    assert not found["plain"].flags.owndata
    assert not found["plain"].flags.writeable


def test_the_state_dict_of_a_checkpoint_is_found() -> None:
    found = load_torch(FILES / "checkpoint.pth")
    assert list(found)[:3] == ["0.weight", "0.bias", "1.weight"]
    assert "1.num_batches_tracked" in found
    assert not any("momentum" in name for name in found)


def test_storages_without_a_dtype() -> None:
    found = load_torch(FILES / "untyped.pth")
    assert found["uint16"].tolist() == [1, 65535]
    assert found["float8"].dtype == ml_dtypes.float8_e4m3fn
    assert found["float8"].astype(np.float32).tolist() == [1.0, 2.0]


def test_a_whole_module_is_refused_by_name() -> None:
    with pytest.raises(
        RunError, match=r"module\.pth .* asks for 'torch\.nn\.modules\.container\.Sequential'.*state_dict"
    ):
        load_torch(FILES / "module.pth")


def test_files_without_checksums_need_a_word() -> None:
    with pytest.raises(RunError, match=r"no_checksums\.pth .* checksum .* check=False"):
        load_torch(FILES / "no_checksums.pth")
    assert np.array_equal(load_torch(FILES / "no_checksums.pth", check=False)["w"], BASE)


def test_every_changed_byte_of_a_storage_is_noticed(tmp_path: Path) -> None:
    whole = (FILES / "zip.pth").read_bytes()
    place = whole.index(BASE.tobytes())
    for at in range(place, place + BASE.nbytes, 7):
        (tmp_path / "x.pth").write_bytes(whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1 :])
        with pytest.raises(RunError, match=r"x\.pth is damaged or cut off: the checksum"):
            load_torch(tmp_path / "x.pth")


def test_legacy_tar_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.pth").write_bytes(bytes(257) + b"ustar" + bytes(500))
    with pytest.raises(RunError, match="tar archive"):
        load_torch(tmp_path / "x.pth")


# --- hostile files ----------------------------------------------------------------------------------------------------------


class Global:
    """What pickles as a global of PyTorch, which is not installed here."""

    def __init__(self, path: str) -> None:
        self.path = path


class Stored:
    """A persistent id."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts


def _op(value: Any) -> bytes:
    """A pickle of protocol 2 without its start and stop, written by hand: it can say what Python's own would not."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, Global):
        module, _, name = value.path.rpartition(".")
        return b"c" + module.encode() + b"\n" + name.encode() + b"\n"
    if isinstance(value, Stored):
        return _op(value.parts) + b"Q"
    if isinstance(value, tuple):
        return b"(" + b"".join(map(_op, value)) + b"t"
    if isinstance(value, dict):
        return b"}(" + b"".join(_op(k) + _op(v) for k, v in value.items()) + b"u"
    return pickle.dumps(value, 2)[2:-1]


def _tensor(
    shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0, key: str = "0", numel: int = 24
) -> bytes:
    storage = Stored("storage", Global("torch.FloatStorage"), key, "cpu", numel)
    return _op(Global("torch._utils._rebuild_tensor_v2")) + _op((storage, offset, shape, strides, False, None)) + b"R"


def _write(path: Path, content: Any, compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("x/data.pkl", b"\x80\x02" + _op(content) + b".")
        archive.writestr("x/data/0", BASE.tobytes())
    return path


def test_the_writer_of_these_tests(tmp_path: Path) -> None:
    found = load_torch(_write(tmp_path / "x.pt", {"w": _tensor((4, 6), (6, 1)), "last": _tensor((1,), (1,), 23)}))
    assert np.array_equal(found["w"], BASE)
    assert found["last"].tolist() == [23.0]


HOSTILE: dict[str, Any] = {
    "os.system": (_op(Global("os.system")) + _op(("echo",)) + b"R", "asks for 'os.system'"),
    "eval": (_op(Global("builtins.eval")) + _op(("1",)) + b"R", "asks for 'builtins.eval'"),
    "torch.load": (_op(Global("torch.load")), "asks for 'torch.load'"),
    "one element too many": ({"w": _tensor((25,), (1,))}, "does not fit"),
    "an offset beyond the end": ({"w": _tensor((1,), (1,), 24)}, "does not fit"),
    "a stride beyond the end": ({"w": _tensor((2, 2), (23, 1))}, "does not fit"),
    "a negative stride": ({"w": _tensor((2,), (-1,), 5)}, "not negative"),
    "a negative size": ({"w": _tensor((-2, -3), (1, 1))}, "not negative"),
    "a huge expanded tensor": ({"w": _tensor((1 << 40,), (0,))}, "does not fit"),
    "an overflowing product": ({"w": _tensor((1 << 32, 1 << 32), (0, 0))}, "does not fit"),
    "a missing stride": ({"w": _tensor((2, 2), (1,))}, "2 sizes and 1 strides"),
    "a hundred axes": ({"w": _tensor((1,) * 100, (1,) * 100)}, "100 sizes"),
    "a storage that is not there": ({"w": _tensor((1,), (1,), key="7")}, "no entry 'x/data/7'"),
    "a storage that is longer": ({"w": _tensor((1,), (1,), numel=25)}, "96 bytes for 25 elements"),
    "a key that leaves the archive": ({"w": _tensor((1,), (1,), key="../../etc/passwd")}, "no entry"),
    "a long number": (b"\x8a\xff" + b"\x7f" * 255, "integer of 255 bytes"),
    "a longer number": (b"\x8b" + struct.pack("<i", 1 << 30), "integer of"),
    "a negative length": (b"T" + struct.pack("<i", -5), "negative length"),
    "a text beyond the end": (b"X" + struct.pack("<I", 1 << 31), "cut off"),
    "an empty stack": (b"0", "empty stack"),
    "an empty group": (b"(R", "empty stack"),
    "no group": (b"u", "not begun"),
    "an empty memo": (b"h\x05", "memo"),
    "a key of tuples": (b"}" + b")" + b"\x85" * 50_000 + b"Ns", "keys of type tuple"),
    "an instance": (_op(Global("collections.OrderedDict")) + b")\x81", "opcode b'.x81'"),
    "a call of a dtype": (_op(Global("torch.float32")) + b")R", "cannot be called"),
    "a call of a dict": (b"})R", "cannot be called"),
    "too few arguments": (_op(Global("torch._utils._rebuild_tensor_v2")) + b")R", "argument"),
    "a call that calls itself": (_op(Global("torch._tensor._rebuild_from_type_v2")) + b"q\x00" + b"(h\x00N" * 5000 + b")" + b"t" * 5000 + b"R", "cannot make one"),
    "deep nesting": ({"w": b"]" * 100 + b"a" * 99}, "deep"),
    "only numbers": ({"epoch": 3}, "no tensors"),
    "a list that holds itself": (b"]q\x00h\x00a", "deep"),
    "exponential sharing": (b"]q\x00" + b"(" + b"h\x00" * 10 + b"t" + b"".join(b"q\x01(" + b"h\x01" * 10 + b"t" for _ in range(20)), "values"),
}  # fmt: skip


@pytest.mark.parametrize("case", list(HOSTILE))
def test_hostile_pickles_are_refused(case: str, tmp_path: Path) -> None:
    content, message = HOSTILE[case]
    with pytest.raises(RunError, match=rf"x\.pt .*{message}"):
        load_torch(_write(tmp_path / "x.pt", content))


def test_big_endian_files(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
        archive.writestr("x/data.pkl", b"\x80\x02" + _op({"w": _tensor((6, 4), (1, 6))}) + b".")
        archive.writestr("x/data/0", BASE.astype(">f4").tobytes())
        archive.writestr("x/byteorder", b"big")
    assert np.array_equal(load_torch(tmp_path / "x.pt")["w"], BASE.T)


def test_compressed_entries_are_refused(tmp_path: Path) -> None:
    path = _write(tmp_path / "x.pt", {"w": _tensor((4, 6), (6, 1))}, zipfile.ZIP_DEFLATED)
    with pytest.raises(RunError, match="is compressed or encrypted"):
        load_torch(path)


def test_opcodes_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickle_reader, "MAX_OPCODES", 1000)
    with pytest.raises(RunError, match="more than 1000 pickle opcodes"):
        load_torch(_write(tmp_path / "x.pt", b"N0" * 1000 + b"N"))


class _Marker:
    """Leaves a file behind if it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.path), "w")


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_is_executed(protocol: int, tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    content = pickle.dumps(OrderedDict(w=_Marker(marker)), protocol)
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
        archive.writestr("x/data.pkl", content)
    with pytest.raises(RunError, match=r"_?io.open|opcode"):
        load_torch(tmp_path / "x.pt")
    assert not marker.exists()
