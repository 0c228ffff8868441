"""Checks the object code on disk: it never believes a damaged file, never fails, never grows without bound."""

import errno
import json
import multiprocessing
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from weft.compiler import disk_cache as cache
from weft.compiler import store
from weft.compiler.disk_cache import ObjectCache, default_folder
from weft.knobs import knobs

KEY, CONTENT = "aarch64 neoverse-n1 matmul", bytes(range(64))
HEAD = cache._HEAD.size
LIMIT = 1 << 20


@pytest.fixture
def kept(tmp_path: Path) -> ObjectCache:
    """A cache with one content."""
    made = ObjectCache(tmp_path, LIMIT)
    made.put(KEY, CONTENT)
    return made


def the_file(kept: ObjectCache) -> Path:
    assert kept.folder is not None
    (path,) = kept.folder.iterdir()
    return path


# --- what it is for --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["", "k", "with\nlines\0", "ключ", "x" * 100_000])
@pytest.mark.parametrize("content", [b"", b"x", CONTENT, json.dumps({"a": [1, 2]}).encode()])
def test_what_is_put_is_got(tmp_path: Path, key: str, content: bytes) -> None:
    ObjectCache(tmp_path / "new" / "folder", LIMIT).put(key, content)
    again = ObjectCache(str(tmp_path / "new" / "folder"), LIMIT)
    assert again.get(key) == content
    assert again.get(key + "!") is None


def test_the_last_put_counts(kept: ObjectCache) -> None:
    kept.put(KEY, b"new")
    assert kept.get(KEY) == b"new"
    assert the_file(kept).name == cache._file_name(KEY)


def test_no_folder_keeps_nothing() -> None:
    nowhere = ObjectCache(None, LIMIT)
    nowhere.put(KEY, CONTENT)
    assert nowhere.get(KEY) is None


def test_the_default_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_folder() == tmp_path / ".cache" / "weft"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/not/allowed")
    assert default_folder() == tmp_path / ".cache" / "weft"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert default_folder() == tmp_path / "x" / "weft"


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert default_folder() is None


# --- damage ----------------------------------------------------------------------------------------------------------


def test_every_damaged_byte_is_noticed(kept: ObjectCache) -> None:
    path = the_file(kept)
    sound = path.read_bytes()
    assert len(sound) == HEAD + len(KEY) + len(CONTENT)
    for place in range(len(sound)):
        for flip in (0x01, 0x80, 0xFF):
            path.write_bytes(sound[:place] + bytes([sound[place] ^ flip]) + sound[place + 1 :])
            assert kept.get(KEY) is None, f"byte {place} ^ {flip}"
    path.write_bytes(sound)
    assert kept.get(KEY) == CONTENT


def test_every_wrong_length_is_noticed(kept: ObjectCache) -> None:
    path = the_file(kept)
    sound = path.read_bytes()
    for length in range(len(sound)):
        path.write_bytes(sound[:length])
        assert kept.get(KEY) is None, f"{length} bytes"
    for extra in (b"\0", b"x", sound):
        path.write_bytes(sound + extra)
        assert kept.get(KEY) is None
        path.write_bytes(extra + sound)
        assert kept.get(KEY) is None


def test_a_file_of_another_make_is_ignored_and_replaced(kept: ObjectCache) -> None:
    path = the_file(kept)
    for foreign in (b"", b"\x7fELF and so on", b"\0" * 10_000, random.Random(0).randbytes(500)):
        path.write_bytes(foreign)
        assert kept.get(KEY) is None
    kept.put(KEY, CONTENT)
    assert kept.get(KEY) == CONTENT


def test_a_file_of_another_version_is_ignored(kept: ObjectCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_VERSION", 2)
    assert kept.get(KEY) is None


def test_a_file_of_another_key_is_ignored(kept: ObjectCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_file_name", lambda key, name=the_file(kept).name: name)  # as if all hashes were equal
    assert kept.get(KEY) == CONTENT
    for other in ("", KEY[:-1], KEY + "x", KEY[::-1]):
        assert kept.get(other) is None
    kept.put("other", b"other's")
    assert (kept.get("other"), kept.get(KEY)) == (b"other's", None)


def test_where_the_key_ends_is_part_of_the_check(kept: ObjectCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_file_name", lambda key, name=the_file(kept).name: name)
    kept.put("key and", b" content")
    assert kept.get("key") is None
    assert kept.get("key and content") is None


# --- refusals of the system ------------------------------------------------------------------------------------------


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        blocked = ObjectCache(folder, LIMIT)
        blocked.put(KEY, CONTENT)
        assert blocked.get(KEY) is None
    assert (tmp_path / "file").read_text() == "not a folder"


def test_a_folder_in_the_place_of_a_file(tmp_path: Path) -> None:
    blocked = ObjectCache(tmp_path, LIMIT)
    (tmp_path / cache._file_name(KEY)).mkdir()
    blocked.put(KEY, CONTENT)
    assert blocked.get(KEY) is None
    assert len(list(tmp_path.iterdir())) == 1, "nothing half written stays"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder(kept: ObjectCache) -> None:
    assert kept.folder is not None
    kept.folder.chmod(0o500)
    try:
        kept.put("other", CONTENT)
        assert (kept.get("other"), kept.get(KEY)) == (None, CONTENT)
    finally:
        kept.folder.chmod(0o700)


def refuse(code: int) -> Any:
    def refusal(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return refusal


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("call", ["mkdir", "replace", "scandir", "utime", "unlink"])
def test_calls_that_the_system_refuses(
    kept: ObjectCache, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    monkeypatch.setattr(os, call, refuse(code))
    kept.put(KEY, CONTENT)
    kept.put("other", CONTENT)
    assert kept.get(KEY) == CONTENT
    assert kept.get("other") in (None, CONTENT)


def test_a_full_disk_leaves_the_old_content(kept: ObjectCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_half(path: Path, packed: bytes) -> int:
        with path.open("wb") as file:
            file.write(packed[: len(packed) // 2])
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(Path, "write_bytes", write_half)
    kept.put(KEY, b"new" * 1000)
    assert kept.get(KEY) == CONTENT
    assert the_file(kept).suffix == ".weft", "nothing half written stays"


# --- the bound -------------------------------------------------------------------------------------------------------


def total(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def test_the_folder_stays_below_its_limit(tmp_path: Path) -> None:
    bounded = ObjectCache(tmp_path, 20_000)
    for number in range(200):
        bounded.put(str(number), bytes(number * 5))
        assert total(tmp_path) <= 20_000
        assert bounded.get(str(number)) is not None, "the newest stays"
    assert total(tmp_path) > 10_000


def test_a_large_folder_is_not_measured_for_every_small_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring takes time for every file, so that n files would take n squared."""
    measured = []
    plain = cache._files
    monkeypatch.setattr(cache, "_files", lambda folder: measured.append(1) or plain(folder))
    for number in range(640):
        ObjectCache(tmp_path, 640_000).put(str(number), bytes(900))
        assert total(tmp_path) <= 640_000
    assert 30 <= len(measured) <= 66
    assert total(tmp_path) > 400_000


def test_what_was_not_used_for_longest_goes(tmp_path: Path) -> None:
    bounded = ObjectCache(tmp_path, 10_000)
    for number in range(9):
        bounded.put(str(number), bytes(1000))
        os.utime(tmp_path / cache._file_name(str(number)), (1000 + number, 1000 + number))
    assert bounded.get("0") is not None  # used just now
    bounded.put("9", bytes(1000))
    left = {n for n in range(10) if (tmp_path / cache._file_name(str(n))).exists()}
    assert left == {0, 4, 5, 6, 7, 8, 9}, "down to four fifths of the limit"


def test_what_is_too_large_is_not_kept(kept: ObjectCache) -> None:
    kept.put("large", bytes(LIMIT))
    assert (kept.get("large"), kept.get(KEY)) == (None, CONTENT)


def test_files_of_others_stay_and_leftovers_go(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(bytes(50_000))
    leftover = tmp_path / (cache._file_name(KEY).removesuffix("weft") + "0123456789abcdef.part")
    leftover.write_bytes(bytes(9_000))
    os.utime(leftover, (1, 1))
    bounded = ObjectCache(tmp_path, 10_000)
    for number in range(3):
        bounded.put(str(number), bytes(1000))
    assert (tmp_path / "notes.txt").exists()
    assert not leftover.exists()
    assert all(bounded.get(str(number)) == bytes(1000) for number in range(3))


def test_files_that_vanish_while_room_is_made(kept: ObjectCache, monkeypatch: pytest.MonkeyPatch) -> None:
    real = cache._files
    monkeypatch.setattr(cache, "_files", lambda folder: [(0, 2 * LIMIT, folder / "gone"), *real(folder)])
    kept.put("other", CONTENT)
    assert (kept.get("other"), kept.get(KEY)) == (CONTENT, CONTENT)


# --- several processes -----------------------------------------------------------------------------------------------


def content_of(key: str) -> bytes:
    return random.Random(key).randbytes(500 + 20 * int(key))


def hammer(folder: str, seed: int, wrong: Any) -> None:
    """Put and get a few keys again and again, under a limit that makes files go all the time."""
    shared, chance = ObjectCache(folder, 12_000), random.Random(seed)
    for _ in range(1000):
        key = str(chance.randrange(30))
        found = shared.get(key)
        if found is None:
            shared.put(key, content_of(key))
        elif found != content_of(key):
            wrong.value += 1


def test_processes_share_a_folder(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    wrong = spawn.Value("i", 0)
    processes = [spawn.Process(target=hammer, args=(str(tmp_path), seed, wrong)) for seed in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert wrong.value == 0
    assert not list(tmp_path.glob("*.part"))
    last = ObjectCache(tmp_path, 12_000)
    last.put("0", content_of("0"))
    assert total(tmp_path) <= 12_000


def test_one_of_several_makes_an_entry_and_the_others_wait_for_it(tmp_path: Path) -> None:
    """Processes that train together need the same programs at the same moment; flock holds between threads as between processes."""
    made = []
    together = threading.Barrier(4)

    def make() -> bytes:
        made.append(1)
        time.sleep(0.1)
        return b"code"

    def ask() -> bytes:
        together.wait()
        with knobs.set(cache=str(tmp_path)):
            return store.kept("a program", make)

    with ThreadPoolExecutor(4) as pool:
        found = [one.result() for one in [pool.submit(ask) for _ in range(4)]]
    assert found == [b"code"] * 4
    assert len(made) == 1
    assert not list(tmp_path.glob("*.making"))


def test_a_folder_that_cannot_be_written_to_locks_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with knobs.set(cache=str(tmp_path / "file")):
        assert store.kept("a program", lambda: b"code") == b"code"
