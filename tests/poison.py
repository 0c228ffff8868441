"""Memory of compiled programs that holds garbage before every run: a value that nobody writes shows itself."""

import numpy as np
import pytest

from weft.runtime import native

GARBAGE = 0xA5  # as a float32: -2.87e-16, as an int64: very far from zero


def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill results and the arena with garbage before every run on the CPU."""
    empty, address = native._empty, native._Arena.address

    def filled(shape, dtype):
        array = empty(shape, dtype)
        array.reshape(-1).view(np.uint8)[:] = GARBAGE
        return array

    def spoiled(arena, wanted):
        found = address(arena, wanted)
        arena._memory.fill(GARBAGE)
        return found

    monkeypatch.setattr(native, "_empty", filled)
    monkeypatch.setattr(native._Arena, "address", spoiled)
