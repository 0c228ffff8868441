"""Compiled code inside saved programs, as loading sees it: it is native code, and is used only where it is trusted.

Loading executes nothing that comes from elsewhere, so compiled code is used in two cases: this user made it, which a signature
proves (a keyed hash whose key is a file of this user), or the caller says that the file is trusted. Otherwise it is not even read, and
the program is compiled as usual. The key of each object covers the graph, the sizes, the options, the CPU and the compiler, so that
code for something else is never found.
"""

from __future__ import annotations

import json
import os
import secrets
from hashlib import blake2b, sha256
from pathlib import Path

from ..compiler.store import CodeBundle, cache_folder
from ..errors import RunError
from .archive import Archive

FOLDER = "compiled"
INDEX, SIGNATURE = f"{FOLDER}/index.json", f"{FOLDER}/signature"
_LONGEST_INDEX = 16 << 20
_KEY_FILE, _KEY_SIZE = "signing.key", 32


def entry_of(target: str, name: str) -> str:
    """The entry of an archive that holds an object."""
    return f"{FOLDER}/{target}/{name}"


def sign(text: bytes) -> bytes | None:
    """The signature of this user; None if there is no cache folder for the key."""
    key = _signing_key(create=True)
    return None if key is None else _signature(text, key)


def _signature(text: bytes, key: bytes) -> bytes:
    return blake2b(text, key=key, digest_size=32, person=b"weft compiled").hexdigest().encode()


def _signing_key(create: bool = False) -> bytes | None:
    folder = cache_folder()
    if folder is None:
        return None
    path = folder / _KEY_FILE
    try:
        if create and not path.exists():
            _create_key(path)
        key = path.read_bytes()
    except OSError:
        return None  # a folder that cannot be used: nothing is signed, as nothing is cached
    return key if len(key) == _KEY_SIZE else None


def _create_key(path: Path) -> None:
    """Write a new key, readable by this user only. If two processes do it at once, the first one counts."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(f"{_KEY_FILE}.{secrets.token_hex(8)}")
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secrets.token_bytes(_KEY_SIZE))
    try:
        os.link(part, path)
    except FileExistsError:
        pass
    finally:
        part.unlink()


def trusted_code(archive: Archive, trust: bool | None) -> dict[str, CodeBundle]:
    """The compiled code of an archive by target, if it may be used. `trust` None: if this user made it."""
    if trust is False or INDEX not in archive.entries or (trust is None and not _is_ours(archive)):
        return {}
    return {target: _bundle(archive, target, objects) for target, objects in _index(archive).items()}


def _is_ours(archive: Archive) -> bool:
    key = _signing_key()
    if key is None or SIGNATURE not in archive.entries:
        return False
    text = archive.text(INDEX, _LONGEST_INDEX).encode()
    return secrets.compare_digest(archive.read(SIGNATURE).tobytes(), _signature(text, key))


def _index(archive: Archive) -> dict[str, dict[str, str]]:
    """The checksums of objects by target and name."""
    try:
        found = json.loads(archive.text(INDEX, _LONGEST_INDEX))["targets"]
        return {str(t): {str(n): str(checksum) for n, checksum in objects.items()} for t, objects in found.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, RunError):
            raise
        raise archive.damaged(f"{INDEX} is wrong ({type(error).__name__}: {error})") from None


def _bundle(archive: Archive, target: str, objects: dict[str, str]) -> CodeBundle:
    contents = {}
    for name, checksum in objects.items():
        content = archive.read(entry_of(target, name), INDEX).tobytes()
        if sha256(content).hexdigest() != checksum:
            raise archive.damaged(f"{entry_of(target, name)} is not the code that {INDEX} names")
        contents[name] = content
    return CodeBundle(contents)
