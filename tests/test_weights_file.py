"""`load_weights` tells formats from their content; .npz and .caffemodel are read within the bounds of the file."""

import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

import weft
from caffe_writer import WEIGHT, caffemodel, layer_key
from weft.errors import RunError, UserError
from weft.io import load_npz, load_weights, save, save_npz, zip_archive
from weft.io.caffe_file import load_caffe
from weft.io.protobuf import bytes_field, varint

FILES = Path(__file__).parent / "torch_files"


def test_the_content_decides_not_the_suffix(tmp_path: Path) -> None:
    save(tmp_path / "a.pth", {"w": WEIGHT})
    np.savez(tmp_path / "b.npz", w=WEIGHT)
    (tmp_path / "b.npz").rename(tmp_path / "b.safetensors")
    (tmp_path / "c.npz").write_bytes((FILES / "zip.pth").read_bytes())
    (tmp_path / "d").write_bytes((FILES / "legacy.pth").read_bytes())
    (tmp_path / "e.pt").write_bytes(caffemodel())
    assert np.array_equal(load_weights(tmp_path / "a.pth")["w"], WEIGHT)
    assert np.array_equal(load_weights(tmp_path / "b.safetensors")["w"], WEIGHT)
    assert load_weights(tmp_path / "c.npz")["plain"].shape == load_weights(tmp_path / "d")["plain"].shape == (4, 6)
    assert list(load_weights(tmp_path / "e.pt")) == ["ip1.weight", "ip1.bias"]


def test_what_is_no_file_of_weights(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "text").write_text("hello, this is a text")
    (tmp_path / "keras.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    for name, message in (
        ("empty", "is empty"),
        ("text", "not in a format that is known"),
        ("keras.h5", "HDF5"),
        ("none", "cannot be read"),
    ):
        with pytest.raises(RunError, match=rf"{name}.* {message}"):
            load_weights(tmp_path / name)
    with pytest.raises(UserError, match="a file is required, got the folder"):
        load_weights(tmp_path)


# --- npz ----------------------------------------------------------------------------------------------------------------------


def test_npz_arrays_come_back(tmp_path: Path) -> None:
    arrays = {
        "c": WEIGHT,
        "f": np.asfortranarray(WEIGHT),
        "none": np.zeros((0, 3)),
        "scalar": np.array(2.5),
        "long": np.arange(9999),
    }
    np.savez(tmp_path / "w.npz", **arrays)
    np.savez_compressed(tmp_path / "packed.npz", **arrays)
    for name in ("w.npz", "packed.npz"):
        found = load_weights(tmp_path / name)
        assert list(found) == list(arrays)
        for key, array in arrays.items():
            assert found[key].dtype == array.dtype
            assert np.array_equal(found[key], array)


def test_tensors_are_written_as_npz(tmp_path: Path) -> None:
    dtypes = ("bool", "int8", "uint16", "int64", "float16", "bfloat16", "float32", "float64")
    tensors = {name: weft.asarray([[0, 1], [1, 0]]).astype(name) for name in dtypes}
    tensors |= {"file": weft.zeros(()), "a/b.npy": weft.zeros((0, 3)), "T": weft.asarray(WEIGHT).T}
    for compress in (False, True):
        save_npz(tmp_path / "w.npz", tensors, compress=compress)
        found, read = load_npz(tmp_path / "w.npz"), np.load(tmp_path / "w.npz")
        assert list(found) == list(tensors)
        for name, tensor in tensors.items():
            assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
            assert found[name].tolist() == tensor.tolist()
            assert read[name].tobytes() == tensor.numpy().tobytes() or name == "T"
        content = (tmp_path / "w.npz").read_bytes()
        save_npz(tmp_path / "again.npz", found, compress=compress)
        assert (tmp_path / "again.npz").read_bytes() == content
    assert load_weights(tmp_path / "w.npz")["bfloat16"].dtype == weft.bfloat16.numpy


def test_npz_that_cannot_be_written_or_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"\[save_npz\] names must be texts that are not empty, got ''"):
        save_npz(tmp_path / "w.npz", {"": WEIGHT})
    with pytest.raises(RunError, match=r"\[save_npz\] .*nowhere.* cannot be written"):
        save_npz(tmp_path / "nowhere" / "w.npz", {"w": WEIGHT})
    with pytest.raises(RunError, match=r"\[load_npz\] .* cannot be read"):
        load_npz(tmp_path / "missing.npz")
    assert list(tmp_path.iterdir()) == []


def test_npz_with_objects_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", w=np.array([{}], dtype=object))
    with pytest.raises(RunError, match=r"w\.npz .* pickled objects"):
        load_weights(tmp_path / "w.npz")


def test_npz_without_arrays_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz")
    with pytest.raises(RunError, match="holds no arrays"):
        load_weights(tmp_path / "w.npz")


def test_an_archive_that_lost_an_entry_is_refused(tmp_path: Path) -> None:
    """A flipped bit makes the second entry of the list a comment of the first."""
    np.savez(tmp_path / "w.npz", w=WEIGHT, n=np.arange(5))
    whole = (tmp_path / "w.npz").read_bytes()
    place = whole.index(b"PK\x01\x02") + 33
    (tmp_path / "w.npz").write_bytes(whole[:place] + bytes([whole[place] ^ 8]) + whole[place + 1 :])
    with pytest.raises(RunError, match="lists 1 entries and should have 2"):
        load_weights(tmp_path / "w.npz")


def test_npz_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "w.npz", w=np.zeros(1_000_000))
    assert load_weights(tmp_path / "w.npz")["w"].shape == (1_000_000,)
    monkeypatch.setattr(zip_archive, "ANY_RATIO", 1 << 20)
    with pytest.raises(RunError, match=r"w\.npz .* more than weights would"):
        load_weights(tmp_path / "w.npz")


def test_npz_with_a_header_that_promises_too_much(tmp_path: Path) -> None:
    head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }\n"
    with zipfile.ZipFile(tmp_path / "w.npz", "w") as archive:
        archive.writestr("w.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + bytes(8))
    with pytest.raises(RunError, match="another size than its header says"):
        load_weights(tmp_path / "w.npz")


# --- caffe --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_caffe_blobs_come_back(old: bool, packed: bool, tmp_path: Path) -> None:
    (tmp_path / "x.caffemodel").write_bytes(caffemodel(old, packed))
    found = load_weights(tmp_path / "x.caffemodel")
    assert list(found) == ["ip1.weight", "ip1.bias"]
    assert np.array_equal(found["ip1.weight"].reshape(2, 3), WEIGHT)
    assert found["ip1.bias"].ravel().tolist() == [1.0, 2.0]


def test_caffe_files_that_are_cut_off_or_lie(tmp_path: Path) -> None:
    whole = caffemodel()
    for end in range(1, len(whole)):
        (tmp_path / "x.caffemodel").write_bytes(whole[:end])
        with pytest.raises(RunError, match=r"x\.caffemodel is damaged"):
            load_caffe(tmp_path / "x.caffemodel")
    shape = bytes_field(7, bytes_field(1, varint(1 << 60) + varint(1 << 60)))
    layer = bytes_field(1, b"ip1") + bytes_field(7, shape + bytes_field(5, bytes(8)))
    (tmp_path / "x.caffemodel").write_bytes(layer_key(100) + varint(len(layer)) + layer)
    with pytest.raises(RunError, match="has 2 values"):
        load_caffe(tmp_path / "x.caffemodel")
