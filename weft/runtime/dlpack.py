"""DLPack, as NumPy implements it, for the dtypes and devices that NumPy does not know.

Every capsule is NumPy's or the other library's own, so NumPy keeps memory alive, calls deleters and checks versions. Only the
description of the memory is written: bfloat16 is passed through NumPy as uint16 with the same bits, and memory of an accelerator as a host
array whose elements are never read, only its address, shape and strides.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from ..dtypes import bfloat16

DLDevice = tuple[int, int]  # type and number
CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13  # DLDeviceType
HOST_TYPES = (CPU, CUDA_HOST)  # memory that the host reads
_UINT, _BFLOAT = 1, 4  # DLDataTypeCode
_READ_ONLY, _IS_COPIED = 1, 2  # flags


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
    """The head of a DLManagedTensorVersioned; that of the unversioned protocol begins with its DLTensor."""

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


# --- memory of the host -------------------------------------------------------------------------------------------------------------


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
        return _Relabelled(source, copy).array()


# --- memory of accelerators -----------------------------------------------------------------------------------------------------------


class DeviceView:
    """Memory of an accelerator as NumPy sees it: an address, a shape and strides. It is kept while a capsule refers to it."""

    def __init__(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.is_bfloat16 = dtype == bfloat16.numpy
        kind = np.dtype(np.uint16) if self.is_bfloat16 else dtype
        self.__array_interface__ = {
            "data": (address, False),
            "shape": shape,
            "strides": strides,
            "typestr": kind.str,
            "version": 3,
        }


def export_view(view: DeviceView, device: DLDevice, max_version: tuple[int, int] | None, *, is_copied: bool) -> Any:
    """A capsule with memory of a device. Memory that is not a copy is marked as read-only, which requires a consumer that supports version 1."""
    array = np.asarray(view)
    if not is_copied:
        array.flags.writeable = False
    capsule = array.__dlpack__(max_version=max_version)
    tensor = _described(capsule)
    tensor.device_type, tensor.device_id = device
    if view.is_bfloat16:
        tensor.code = _BFLOAT
    if is_copied and _is_versioned(capsule):
        _versioned(capsule).flags |= _IS_COPIED
    return capsule


def read_view(source: Any, stream: int, copy: bool | None) -> tuple[np.ndarray, bool]:
    """The memory of another library's array on an accelerator, and whether it is marked as read-only.

    The array itself must not be read: its addresses are the device's.

    Work in `stream` sees what the other library has written. The memory is released when the array is freed.
    """
    found = _Relabelled(source, copy, stream)
    return found.array(), found.is_read_only


class _Relabelled:
    """Another library's array, described as NumPy knows it: bfloat16 as uint16 and, with a stream, any device as the CPU."""

    def __init__(self, source: Any, copy: bool | None, stream: int | None = None) -> None:
        self.source, self.copy, self.stream = source, copy, stream
        self.is_bfloat16 = self.is_read_only = False
        self.capsule: Any = None

    def array(self) -> np.ndarray:
        # NumPy cannot copy memory of an accelerator, so `copy` is passed to the other library only.
        array = np.from_dlpack(self, copy=self.copy if self.stream is None else None)
        if self.stream is not None:
            self.tensor.device_type, self.tensor.device_id = self.device  # its deleter finds what it made
        return array.view(bfloat16.numpy) if self.is_bfloat16 else array

    def __dlpack__(self, **settings: Any) -> Any:
        # The capsule is kept alive by this object, in case NumPy refuses it.
        self.capsule = self.source.__dlpack__(**settings) if self.stream is None else self._requested()
        self.tensor = tensor = _described(self.capsule)
        self.device = tensor.device_type, tensor.device_id
        self.is_read_only = _is_versioned(self.capsule) and bool(_versioned(self.capsule).flags & _READ_ONLY)
        self.is_bfloat16 = (tensor.code, tensor.bits, tensor.lanes) == (_BFLOAT, 16, 1)
        if self.is_bfloat16:
            tensor.code = _UINT
        if self.stream is not None:
            tensor.device_type, tensor.device_id = CPU, 0
        return self.capsule

    def _requested(self) -> Any:
        """A capsule by the current protocol, or by the unversioned one."""
        wanted = {} if self.copy is None else {"copy": self.copy}
        try:
            return self.source.__dlpack__(stream=self.stream, max_version=(1, 0), **wanted)
        except TypeError:
            return self.source.__dlpack__(stream=self.stream)

    def __dlpack_device__(self) -> Any:
        return self.source.__dlpack_device__() if self.stream is None else (CPU, 0)


def _described(capsule: Any) -> _DLTensor:
    if _is_versioned(capsule):
        tensor: _DLTensor = _versioned(capsule).tensor
        return tensor
    return _DLTensor.from_address(_address(capsule))


def _is_versioned(capsule: Any) -> bool:
    return bool(_name(capsule) == b"dltensor_versioned")


def _versioned(capsule: Any) -> _Versioned:
    return _Versioned.from_address(_address(capsule))


def _address(capsule: Any) -> int:
    return int(_pointer(capsule, _name(capsule)))
