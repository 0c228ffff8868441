"""The store of compiled code. Its keys contain the sources of the code generator and what the backend declares its code to depend on.

Code comes from the cache on disk, or from a `CodeBundle`: compiled code that came with a saved program and is used while that program
lives. `recording` collects the code that programs use, which makes such a bundle.
"""

from __future__ import annotations

import functools
import hashlib
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from ..knobs import knobs
from .disk_cache import ObjectCache, default_folder, digest
from .thresholds import thresholds

_WEFT = Path(__file__).resolve().parents[1]
_SOURCES = ("compiler", "graph", "ops")  # ops: their decompositions, and what constants are folded with
_bundles: weakref.WeakSet[CodeBundle] = weakref.WeakSet()
_record: ContextVar[dict[str, bytes] | None] = ContextVar("record of compiled code", default=None)


class CodeBundle:
    """Compiled code by the digest of its key. `kept` finds it as long as this object exists."""

    def __init__(self, contents: Mapping[str, bytes]) -> None:
        self.contents = dict(contents)
        _bundles.add(self)


def cache() -> ObjectCache:
    """The object cache in the folder given by the settings."""
    folder = cache_folder()
    return ObjectCache(folder, 0 if folder is None else knobs.cache_bytes)


def cache_folder() -> Path | None:
    """The folder given by the settings; None if nothing is cached."""
    if knobs.cache == "off":
        return None
    return Path(knobs.cache) if knobs.cache else default_folder()


def compiler_version() -> str:
    """The identity of the compiler: a digest of its sources, and the thresholds that a test has changed."""
    return f"{_sources_digest()} {thresholds.changed()}"


@functools.cache
def _sources_digest() -> str:
    sources = hashlib.blake2b(digest_size=16)
    for package in _SOURCES:
        for path in sorted((_WEFT / package).rglob("*.py")):
            sources.update(path.read_bytes())
    return sources.hexdigest()


def kept(key: str, make: Callable[[], bytes]) -> bytes:
    """The content of a key, from a bundle, from the cache, or compiled now."""
    full = f"{compiler_version()}\n{key}"
    record = _record.get()
    if record is None and _bundles:
        name = digest(full)
        for bundle in list(_bundles):
            if name in bundle.contents:
                return bundle.contents[name]
    content = cache().get(full)
    if content is None:
        # Processes that train together need the same programs at the same time.
        with cache().making(full) as was_awaited:
            content = cache().get(full) if was_awaited else None
            if content is None:
                content = make()
                cache().put(full, content)
    if record is not None:
        record[digest(full)] = content
    return content


@contextmanager
def recording() -> Iterator[dict[str, bytes]]:
    """Collects the code that is used inside the `with` block, by the digest of its key. Code of bundles is not used meanwhile: everything
    recorded is compiled on this machine.
    """
    record: dict[str, bytes] = {}
    before = _record.set(record)
    try:
        yield record
    finally:
        _record.reset(before)


def is_recording() -> bool:
    """Whether code is being recorded: then programs that are loaded already must be requested again."""
    return _record.get() is not None
