"""Paths and uploads of the studio: what leads out of the allowed folders, and what grows beyond bounds, is rejected."""

import asyncio
import stat
import tracemalloc
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

pytest.importorskip("nicegui")

from weft.errors import UserError
from weft.studio import uploads
from weft.studio.config import StudioConfig
from weft.studio.keys import secret
from weft.studio.paths import AllowedPaths


@pytest.fixture
def allowed(tmp_path: Path) -> AllowedPaths:
    (tmp_path / "inside" / "photos").mkdir(parents=True)
    (tmp_path / "inside" / "list.txt").write_text("a b\n")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text("secret")
    return AllowedPaths([tmp_path / "inside"])


def test_paths_inside_are_found(allowed: AllowedPaths, tmp_path: Path) -> None:
    assert allowed.path("photos") == tmp_path.resolve() / "inside" / "photos"
    assert allowed.path(str(tmp_path / "inside" / "list.txt")).name == "list.txt"


@pytest.mark.parametrize(
    "given", ["../outside/secret.txt", "photos/../../outside", "/etc/passwd", "missing", "link", "link/secret.txt"]
)
def test_paths_outside_are_refused(allowed: AllowedPaths, tmp_path: Path, given: str) -> None:
    (tmp_path / "inside" / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(UserError, match="allowed folder"):
        allowed.path(given)


def test_a_folder_whose_name_begins_like_a_root_is_outside(allowed: AllowedPaths, tmp_path: Path) -> None:
    (tmp_path / "inside-too").mkdir()
    with pytest.raises(UserError):
        allowed.path(str(tmp_path / "inside-too"))


def test_completion_stays_inside(allowed: AllowedPaths, tmp_path: Path) -> None:
    root = tmp_path.resolve() / "inside"
    assert allowed.complete("") == [f"{root}/"]
    assert allowed.complete(f"{root}/") == [f"{root}/list.txt", f"{root}/photos/"]
    assert allowed.complete(f"{root}/", folders_only=True) == [f"{root}/photos/"]
    assert allowed.complete(f"{tmp_path.resolve()}/outside/") == []
    assert allowed.complete(f"{root}/../outside/s") == []


def test_keys_and_accounts_are_read_by_nobody(tmp_path: Path) -> None:
    """The token of programs makes an administrator, and error messages quote what is in a list."""
    runs = tmp_path / "runs"
    token = secret(runs, "token")
    (tmp_path / "key.pem").write_text("private")
    (tmp_path / "alias").symlink_to(runs / ".studio")
    config = StudioConfig(runs, roots=(tmp_path,), tls_key=tmp_path / "key.pem", tls_cert=tmp_path / "cert.pem")
    allowed = config.allowed_paths()
    for given in ("runs/.studio/token", "runs/.studio", "alias/token", "runs/../runs/.studio/token", "key.pem"):
        with pytest.raises(UserError, match="allowed folder") as error:
            allowed.path(given)
        assert token not in error.value.message
    assert allowed.path("runs").is_dir()
    assert allowed.complete(f"{runs.resolve()}/.") == []
    assert allowed.complete("alias/") == allowed.complete("runs/.studio/") == []
    assert allowed.complete("k") == []


def _zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in files.items():
            packed.writestr(name, content)
    return path


def test_a_zip_file_is_unpacked(tmp_path: Path) -> None:
    archive = _zip(tmp_path / "a.zip", {"cat/1.png": b"1", "dog/2.png": b"22", "__MACOSX/x": b"", "dog/.DS_Store": b""})
    target = tmp_path / "made"
    target.mkdir()
    found = uploads.unpack_zip(archive, target, 1 << 20)
    assert sorted(str(p.relative_to(target)) for p in found) == ["cat/1.png", "dog/2.png"]
    assert (target / "dog" / "2.png").read_bytes() == b"22"


@pytest.mark.parametrize("name", ["../out.txt", "/etc/cron", "a/../../b", "C:/windows", "..\\up"])
def test_names_that_lead_out_are_refused(tmp_path: Path, name: str) -> None:
    target = tmp_path / "made"
    target.mkdir()
    with pytest.raises(UserError, match="leads out"):
        uploads.unpack_zip(_zip(tmp_path / "a.zip", {name: b"x"}), target, 1 << 20)
    assert not list(target.iterdir())


def test_zip_bombs_links_and_garbage_are_refused(tmp_path: Path) -> None:
    target = tmp_path / "made"
    target.mkdir()
    bomb = _zip(tmp_path / "bomb.zip", {"zeros": bytes(300 << 20)})
    with pytest.raises(UserError, match="times its size"):
        uploads.unpack_zip(bomb, target, 1 << 40)
    with pytest.raises(UserError, match="bytes are accepted"):
        uploads.unpack_zip(bomb, target, 1 << 20)
    link = zipfile.ZipInfo("link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "link.zip", "w") as packed:
        packed.writestr(link, "/etc/passwd")
    with pytest.raises(UserError, match="links are rejected"):
        uploads.unpack_zip(tmp_path / "link.zip", target, 1 << 20)
    (tmp_path / "garbage.zip").write_bytes(b"PK garbage")
    with pytest.raises(UserError, match="cannot be read"):
        uploads.unpack_zip(tmp_path / "garbage.zip", target, 1 << 20)
    assert not list(target.iterdir())


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA, zipfile.ZIP_DEFLATED])
def test_entries_that_lie_about_their_size_take_no_memory(tmp_path: Path, method: int) -> None:
    """zipfile unpacks bzip2 and LZMA without a bound: 64 MB that say they are 10 bytes."""
    size = 64 << 20
    with zipfile.ZipFile(tmp_path / "a.zip", "w", method) as packed:
        packed.writestr("a/zeros.png", bytes(size))
    content = (tmp_path / "a.zip").read_bytes().replace(size.to_bytes(4, "little"), (10).to_bytes(4, "little"))
    (tmp_path / "a.zip").write_bytes(content)
    (tmp_path / "made").mkdir()
    tracemalloc.start()
    try:
        with pytest.raises(
            UserError, match="deflate is required" if method != zipfile.ZIP_DEFLATED else "cannot be read"
        ):
            uploads.unpack_zip(tmp_path / "a.zip", tmp_path / "made", 1 << 30)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_an_upload_is_bounded_while_it_arrives(tmp_path: Path) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield bytes(1000)

    assert asyncio.run(uploads.receive(chunks(), tmp_path / "whole", 10_000)) == 10_000
    with pytest.raises(UserError, match="bytes are accepted"):
        asyncio.run(uploads.receive(chunks(), tmp_path / "cut", 9_999))
    assert not (tmp_path / "cut").exists(), "what did not arrive whole is not kept"
    with uploads.upload_folder(tmp_path / "uploads") as folder:
        (folder / "one").write_text("x")
    assert not folder.exists()
