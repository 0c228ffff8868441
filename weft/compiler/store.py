"""The store of compiled code. Its keys hold the compiler's own sources and what the backend says its code depends on."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path

from ..knobs import knobs
from .disk_cache import ObjectCache, default_folder

_COMPILER = Path(__file__).parent


def cache() -> ObjectCache:
    """The object cache in the folder given by the settings."""
    if knobs.cache == "off":
        return ObjectCache(None, 0)
    return ObjectCache(knobs.cache or default_folder(), knobs.cache_bytes)


@functools.cache
def compiler_version() -> str:
    """A digest of the compiler's sources."""
    sources = hashlib.blake2b(digest_size=16)
    for path in sorted(_COMPILER.rglob("*.py")):
        sources.update(path.read_bytes())
    return sources.hexdigest()


def kept(key: str, make: Callable[[], bytes]) -> bytes:
    """The content of a key, from the cache or made now."""
    full = f"{compiler_version()}\n{key}"
    content = cache().get(full)
    if content is None:
        content = make()
        cache().put(full, content)
    return content
