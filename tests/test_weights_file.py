"""`load_weights` tells formats from their content; .npz and .caffemodel are read within the bounds of the file."""

import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from caffe_writer import WEIGHT, caffemodel, layer_key
from weft.errors import RunError, UserError
from weft.io import load_weights, save, zip_archive
from weft.io.caffe_file import load_caffe
from weft.io.tensorboard import _bytes, _varint

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
    shape = _bytes(7, _bytes(1, _varint(1 << 60) + _varint(1 << 60)))
    layer = _bytes(1, b"ip1") + _bytes(7, shape + _bytes(5, bytes(8)))
    (tmp_path / "x.caffemodel").write_bytes(layer_key(100) + _varint(len(layer)) + layer)
    with pytest.raises(RunError, match="has 2 values"):
        load_caffe(tmp_path / "x.caffemodel")
