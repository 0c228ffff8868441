"""Files of Keras: every variable comes back by layer and name, from both layouts, and what Keras does not write is rejected."""

import json
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from weft.errors import RunError
from weft.io import hdf5_file, load_weights
from weft.io.file_kind import HDF5
from weft.io.keras_file import load_keras

FILES = Path(__file__).parent / "keras_files"
SHAPES = {
    "first.kernel": (3, 3, 2, 3), "first.bias": (3,), "norm.gamma": (3,), "norm.beta": (3,), "norm.moving_mean": (3,),
    "norm.moving_variance": (3,), "depthwise.kernel": (2, 2, 3, 1), "depthwise.bias": (3,), "predictions.kernel": (12, 4),
    "predictions.bias": (4,),
}  # fmt: skip
# Their values count on from 100 times their number.
EXPECTED = {
    name: np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + 100 * number
    for number, (name, shape) in enumerate(SHAPES.items())
}


def check_all(found: dict[str, np.ndarray]) -> None:
    assert set(found) == set(EXPECTED)
    for name, values in EXPECTED.items():
        assert found[name].dtype == np.float32
        assert np.array_equal(found[name], values), name


@pytest.mark.parametrize("name", ["whole.h5", "only.weights.h5", "whole.keras"])
def test_all_variables_come_back(name: str) -> None:
    check_all(load_weights(FILES / name))


def _repacked(target: Path, change: bytes = b"", by: bytes = b"", config: object = None) -> Path:
    """whole.keras with another text in its weights, or another configuration."""
    with zipfile.ZipFile(FILES / "whole.keras") as archive, zipfile.ZipFile(target, "w") as made:
        for name in archive.namelist():
            content = archive.read(name)
            if name == "config.json" and config is not None:
                content = json.dumps(config).encode()
            made.writestr(name, content.replace(change, by) if change else content)
    return target


def test_names_come_from_the_configuration_where_the_weights_have_none(tmp_path: Path) -> None:
    """Keras before 3.4 wrote no attributes with names; here they are called otherwise."""
    path = _repacked(tmp_path / "old.keras", b"name\0\0\0\0", b"nome\0\0\0\0")
    assert b"nome\0" in zipfile.ZipFile(path).read("model.weights.h5")
    check_all(load_weights(path))


def test_damaged_archives_and_configurations(tmp_path: Path) -> None:
    for config in ([], {"config": {"layers": [1]}}, {"config": 3}):
        with pytest.raises(RunError, match=r"x\.keras is damaged, or not a file of Keras: config.json is wrong"):
            load_weights(_repacked(tmp_path / "x.keras", config=config))
    with zipfile.ZipFile(tmp_path / "x.keras", "w") as archive:
        archive.writestr("config.json", "{}")
    with pytest.raises(RunError, match=r"it has no model\.weights\.h5"):
        load_weights(tmp_path / "x.keras")


def _damaged(tmp_path: Path, change: bytes, by: bytes) -> Path:
    content = (FILES / "whole.h5").read_bytes()
    assert change in content
    (tmp_path / "x.h5").write_bytes(content.replace(change, by, 1))
    return tmp_path / "x.h5"


def test_what_keras_does_not_write_is_refused(tmp_path: Path) -> None:
    start = HDF5
    for change, by, message in (
        (start + b"\0", start + b"\x02", "its superblock has version 2"),
        (start + bytes(5) + b"\x08", start + bytes(5) + b"\x04", "addresses of 8 bytes"),
        (b"TREE\0", b"TREE\1", "not of a group"),
        (b"SNOD", b"SNAD", "a symbol table is not where"),
        (b"HEAP", b"HEEP", "the names of a group are not where"),
        (b"GCOL", b"GCUL", "a text is not where"),
        (struct.pack("<HHBBBBI", 0, 32, 23, 8, 0, 23, 127), struct.pack("<HHBBBBI", 0, 32, 23, 7, 0, 23, 127), "arrays of integers and of floats"),
    ):  # fmt: skip
        with pytest.raises(RunError, match=rf"x\.h5 is damaged, or not an HDF5 file of Keras: .*{message}"):
            load_keras(_damaged(tmp_path, change, by))


def test_files_that_are_cut_off(tmp_path: Path) -> None:
    content = (FILES / "whole.h5").read_bytes()
    for end in (9, 100, 1000, 5000, len(content) - 1):
        (tmp_path / "x.h5").write_bytes(content[:end])
        with pytest.raises(RunError, match=r"x\.h5 is damaged"):
            load_keras(tmp_path / "x.h5")


def test_groups_that_contain_themselves_end(tmp_path: Path) -> None:
    """The header of a member is that of the root."""
    content = (FILES / "whole.h5").read_bytes()
    (root,) = struct.unpack_from("<Q", content, 64)
    place = content.index(b"SNOD") + 8 + 8
    (tmp_path / "x.h5").write_bytes(content[:place] + struct.pack("<Q", root) + content[place + 8 :])
    with pytest.raises(RunError, match="is in the file twice, or too deep"):
        load_keras(tmp_path / "x.h5")


def test_visits_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdf5_file, "MAX_STEPS", 20)
    with pytest.raises(RunError, match="its parts contain each other"):
        load_keras(FILES / "whole.h5")
