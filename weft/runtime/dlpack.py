"""DLPack for bfloat16, which NumPy cannot exchange: it travels as the uint16 of the same bits, with its type code changed.

The capsule is NumPy's or the other library's own; only the byte that names the element type is written.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from ..dtypes import bfloat16

_UINT, _BFLOAT = 1, 4  # DLDataTypeCode


class _DLTensor(ctypes.Structure):
    """The head of a DLTensor, as dlpack.h has it."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
    )


class _Versioned(ctypes.Structure):
    """The head of a DLManagedTensorVersioned; one of the old protocol begins with its DLTensor."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    )


_name = ctypes.pythonapi.PyCapsule_GetName
_name.restype, _name.argtypes = ctypes.c_char_p, (ctypes.py_object,)
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


def export(array: np.ndarray, **settings: Any) -> Any:
    """A capsule with the memory of an array."""
    if array.dtype != bfloat16.numpy:
        return array.__dlpack__(**settings)
    capsule = array.view(np.uint16).__dlpack__(**settings)
    _described(capsule).code = _BFLOAT
    return capsule


def read(source: Any, copy: bool | None = None) -> np.ndarray:
    """The memory of another library's array, which must be the CPU's."""
    try:
        return np.from_dlpack(source, copy=copy)
    except (RuntimeError, BufferError):  # a dtype that NumPy does not know; which error it is depends on the version
        bits = _AsUint16(source)
        array = np.from_dlpack(bits, copy=copy)
        return array.view(bfloat16.numpy) if bits.found else array


class _AsUint16:
    """Another library's array with its bfloat16 called uint16."""

    def __init__(self, source: Any) -> None:
        self.source, self.found = source, False

    def __dlpack__(self, **settings: Any) -> Any:
        capsule = self.source.__dlpack__(**settings)
        described = _described(capsule)
        self.found = (described.code, described.bits, described.lanes) == (_BFLOAT, 16, 1)
        if self.found:
            described.code = _UINT
        return capsule

    def __dlpack_device__(self) -> Any:
        return self.source.__dlpack_device__()


def _described(capsule: Any) -> _DLTensor:
    name = _name(capsule)
    address = _pointer(capsule, name)
    if name == b"dltensor_versioned":
        tensor: _DLTensor = _Versioned.from_address(address).tensor
        return tensor
    return _DLTensor.from_address(address)
