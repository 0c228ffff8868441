"""Memory that notices: arrays that lie against pages which may not be touched, for all tests of native code."""

import ctypes
import mmap

import numpy as np

PAGE = mmap.PAGESIZE
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def guarded_array(count: int, dtype: object, *, at_end: bool = True) -> np.ndarray:
    """Room for so many elements between two forbidden pages: against the one behind it, or the one before it."""
    size = count * np.dtype(dtype).itemsize  # type: ignore[call-overload]
    pages = max(1, -(-size // PAGE))
    memory = mmap.mmap(-1, (pages + 2) * PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for page in (start, start + (pages + 1) * PAGE):
        assert _LIBC.mprotect(page, PAGE, 0) == 0
    offset = PAGE + (pages * PAGE - size if at_end else 0)
    return np.frombuffer(memory, dtype, count, offset)  # type: ignore[call-overload,no-any-return]


def guarded_copy(values: np.ndarray, *, at_end: bool = True) -> np.ndarray:
    """A copy of an array in such memory."""
    copy = guarded_array(values.size, values.dtype, at_end=at_end).reshape(values.shape)
    copy[...] = values
    return copy


class Guarded:
    """A copy of an array that ends where a page begins that may not be touched, and its address."""

    def __init__(self, values: np.ndarray) -> None:
        self.memory = guarded_copy(values)
        self.address = self.memory.ctypes.data
