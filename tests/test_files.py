"""Files that are replaced or added to: whole or not at all, and what killed writers leave behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from weft.errors import RunError
from weft.io.files import append_line, remove_stale, replace_file

KILLED = """
import os, sys, signal
from pathlib import Path
from weft.io.files import replace_file
def parts():
    yield b"half"
    os.kill(os.getpid(), signal.SIGKILL)
replace_file(Path(sys.argv[1]), parts())
"""


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("old")
    assert subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "x")], check=False).returncode == -9
    assert len(os.listdir(tmp_path)) == 2, "this tests nothing"
    remove_stale(tmp_path)
    assert os.listdir(tmp_path) == ["x"]
    assert (tmp_path / "x").read_text() == "old"


def test_what_a_living_writer_writes_is_not_removed(tmp_path: Path) -> None:
    def parts():
        yield b"first, "
        assert remove_stale(tmp_path) == []
        yield b"second"

    replace_file(tmp_path / "x", parts())
    assert (tmp_path / "x").read_text() == "first, second"
    assert os.listdir(tmp_path) == ["x"]


def test_other_hidden_files_stay(tmp_path: Path) -> None:
    names = {".gitignore", ".notes.txt", ".x.12", "x.1.2"}
    for name in names:
        (tmp_path / name).touch()
    remove_stale(tmp_path, tmp_path / "nowhere")
    assert set(os.listdir(tmp_path)) == names


def test_a_line_that_does_not_fit_leaves_nothing(tmp_path: Path) -> None:
    """In a process whose files may not grow beyond 100 bytes: as a full disk, writes first a part and then fail."""
    program = (
        "import resource, sys; from pathlib import Path; from weft.io.files import append_line\n"
        "from weft.errors import RunError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "append_line(Path(sys.argv[1]), 'a' * 60)\n"
        "try: append_line(Path(sys.argv[1]), 'b' * 60)\n"
        "except RunError as error: print(error.message)\n"
        "append_line(Path(sys.argv[1]), 'c' * 30)"
    )
    said = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "x")], capture_output=True, text=True, check=True
    )
    assert said.stdout == f"{tmp_path / 'x'} cannot be written: File too large.\n"
    assert (tmp_path / "x").read_text() == "a" * 60 + "\n" + "c" * 30 + "\n"


def test_folders_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"\[save\] .*file/x cannot be written: Not a directory"):
        replace_file(tmp_path / "file" / "x", [b""])
    with pytest.raises(RunError, match=r"\[log\] .*file/x cannot be written: Not a directory"):
        append_line(tmp_path / "file" / "x", "line", "log")
