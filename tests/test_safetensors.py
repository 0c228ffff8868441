"""Checks tensors in files: what is written comes back, the format is the published one, damage is noticed, nothing is lost."""

import json
import os
import zlib
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

import weft
from sampling import sampled
from weft.errors import RunError, UserError
from weft.io import load, save
from weft.io.safetensors import metadata, read
from weft.testing import counted

RNG = np.random.default_rng(0)
ARRAYS = {
    "a.weight": RNG.normal(size=(3, 4)).astype("float32"), "half": RNG.normal(size=5).astype("float16"),
    "brain": RNG.normal(size=(2, 2)).astype(ml_dtypes.bfloat16), "double": RNG.normal(size=()), "none": np.zeros((0, 3), "float32"),
    "flags": RNG.random(7) < 0.5, **{n: RNG.integers(0, 100, 3).astype(n) for n in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")},
}  # fmt: skip


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    save(file, {name: weft.asarray(a) for name, a in ARRAYS.items()}, {"made by": "weft"})
    found = load(file)
    assert list(found) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert found[name].shape == array.shape
        assert found[name].dtype.numpy == array.dtype
        assert found[name].numpy().tobytes() == array.tobytes()
        counted()
    assert metadata(file) == {"made by": "weft"}


def test_the_bytes_are_those_of_the_format(tmp_path: Path) -> None:
    """Written out by hand from the published description."""
    values = np.array([1.0, 2.0], "<f4")
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (tmp_path / "hand").write_bytes(len(header).to_bytes(8, "little") + header + values.tobytes())
    assert load(tmp_path / "hand")["w"].tolist() == [1.0, 2.0]
    save(tmp_path / "ours", {"w": values})
    content = (tmp_path / "ours").read_bytes()
    size = int.from_bytes(content[:8], "little")
    assert size % 8 == 0
    written = json.loads(content[8 : 8 + size])
    zeroed = content.replace(written["__metadata__"]["crc32"].encode(), b"00000000")
    assert written.pop("__metadata__") == {"crc32": f"{zlib.crc32(zeroed):08x}"}
    assert written == json.loads(header)
    assert content[8 + size :] == values.tobytes()


def written(tmp_path: Path) -> bytes:
    save(tmp_path / "x", {"w": np.arange(6.0, dtype="float32"), "v": np.ones(2)})
    return (tmp_path / "x").read_bytes()


def test_a_file_that_is_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    content = written(tmp_path)
    for size in range(len(content)):
        (tmp_path / "cut").write_bytes(content[:size])
        with pytest.raises(RunError, match=r"cut"):
            load(tmp_path / "cut")
        counted()


HEADERS = {
    "not JSON": b"{{{", "a list": b"[1]", "no dtype": b'{"w":{"shape":[1],"data_offsets":[0,4]}}',
    "a strange dtype": b'{"w":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}',
    "a shape that does not fit": b'{"w":{"dtype":"F32","shape":[3],"data_offsets":[0,4]}}',
    "a negative size": b'{"w":{"dtype":"F32","shape":[-1],"data_offsets":[0,-4]}}',
    "a hole": b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
    "values beyond the end": b'{"w":{"dtype":"F32","shape":[100],"data_offsets":[0,400]}}',
    "values that overlap": b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"v":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
    "values that nobody owns": b'{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
}  # fmt: skip


@pytest.mark.parametrize("name", HEADERS)
def test_damage_is_noticed(name: str, tmp_path: Path) -> None:
    header = HEADERS[name]
    (tmp_path / "bad").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(RunError, match=r"\[load\] .*bad is damaged, cut off, or not a safetensors file"):
        load(tmp_path / "bad")


def test_a_header_longer_than_the_file(tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes((1 << 62).to_bytes(8, "little") + b"{}")
    with pytest.raises(RunError, match="cut off, or not a safetensors file"):
        load(tmp_path / "bad")


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    """Wherever it is: an error that names the file, or, in the name of the checksum itself, values that are right all the same."""
    content = written(tmp_path)
    right = {name: t.numpy().tobytes() for name, t in load(tmp_path / "x").items()}
    for bit in sampled("flipped bits", range(8 * len(content)), share=1.0):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        (tmp_path / "flipped").write_bytes(damaged)
        text, found = "", {}
        try:
            found = {name: t.numpy().tobytes() for name, t in load(tmp_path / "flipped").items()}
        except RunError as error:
            text = str(error)
        assert f"{tmp_path / 'flipped'} is damaged" in text or found == right, f"bit {bit}"
        counted()


def test_other_programs_read_our_files_and_we_theirs(tmp_path: Path) -> None:
    save(tmp_path / "ours", ARRAYS, {"made by": "weft"})
    found = safetensors.numpy.load_file(tmp_path / "ours")
    assert {n: a.tobytes() for n, a in found.items()} == {n: a.tobytes() for n, a in ARRAYS.items()}
    safetensors.numpy.save_file(found, tmp_path / "theirs", {"a": "b"})
    assert {n: t.numpy().tobytes() for n, t in load(tmp_path / "theirs").items()} == {
        n: a.tobytes() for n, a in ARRAYS.items()
    }
    assert metadata(tmp_path / "theirs") == {"a": "b"}
    assert not read(tmp_path / "theirs").checked


def test_equal_content_gives_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save(tmp_path / name, ARRAYS, {str(i): "text" for i in range(20)})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_header_nested_too_deeply(tmp_path: Path) -> None:
    header = b'{"a":' + b"[" * 200_000
    (tmp_path / "deep").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(RunError, match=r"deep is damaged, cut off, or not a safetensors file"):
        load(tmp_path / "deep")


def test_names_that_belong_to_the_format(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="are reserved"):
        save(tmp_path / "x", {}, {"crc32": "mine"})
    with pytest.raises(UserError, match="are reserved"):
        save(tmp_path / "x", {"__metadata__": np.ones(1)})


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot be read"):
        load(tmp_path / "nothing")
    with pytest.raises((RunError, OSError)):
        save(tmp_path / "no" / "folder", {"w": np.ones(1)})


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = written(tmp_path)

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="cannot be written: No space left on device"):
        save(tmp_path / "x", {"w": np.zeros(100)})
    assert (tmp_path / "x").read_bytes() == content
    assert os.listdir(tmp_path) == ["x"]


def test_metadata_is_text(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"metadata must map strings to strings, got 'n': 3"):
        save(tmp_path / "x", {}, {"n": 3})  # type: ignore[dict-item]
