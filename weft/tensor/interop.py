"""Reading a tensor's value: as NumPy arrays and Python numbers, through DLPack and the buffer protocol."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Self

import numpy as np

from ..errors import UserError
from ..graph.node import is_donated
from ..runtime import STATE_LOCK, Buffer, evaluate
from .base import TensorBase
from .registry import FUNCTIONS
from .tracing_context import TRACING


class TensorInterop(TensorBase):
    """The methods that compute a tensor's value and hand it to Python, NumPy and other libraries."""

    __slots__ = ()

    def realize(self) -> Self:
        """Compute the value now and return the tensor itself."""
        evaluate([self._settled_node()])  # does nothing if the value is known on the device
        with STATE_LOCK:  # another thread may give it a new value
            self._name(self.node)  # frees the graph behind the value
        return self

    def numpy(self) -> np.ndarray:
        """The value as a read-only NumPy array that shares memory where possible."""
        value = self._read()
        view = value.device.get(value).view()
        view.flags.writeable = False
        return view

    def _read(self) -> Buffer:
        """The value, for code that reads it outside of the graph."""
        watch = TRACING.watch
        if watch is not None:
            watch.looked(self)
        value = None
        while not isinstance(value, Buffer):  # another thread may give it a new one, not yet computed
            value = self.realize()._settled_node().value
        return value

    def item(self) -> bool | int | float:
        """The value of a tensor with one element, as a Python number."""
        if self.size != 1:
            raise UserError("item", f"a tensor with one element is required, got shape {self.shape}. Use numpy().")
        value: bool | int | float = self.numpy().reshape(()).item()
        return value

    def tolist(self) -> Any:
        """The value as nested lists of Python numbers."""
        return self.numpy().tolist()

    def __repr__(self) -> str:
        if self._node.abstract:
            state = "donated" if is_donated(self._node) else "being traced"
            return f"Tensor(<{self._node.type}, {state}>)"
        text = np.array2string(self.numpy(), separator=", ", prefix="Tensor(")
        mark = ", requires_grad=True" if self._owns_parameter else ""
        size = f", shape={self.shape}" if not self.size else ""
        return f"Tensor({text}{size}, dtype={self.dtype.name}{mark})"

    def __bool__(self) -> bool:
        return bool(self._scalar("bool"))

    def __int__(self) -> int:
        return int(self._scalar("int"))

    def __float__(self) -> float:
        return float(self._scalar("float"))

    def __complex__(self) -> complex:
        return complex(self._scalar("complex"))

    def __index__(self) -> int:
        if not self.dtype.is_integer:
            raise TypeError(f"only integer tensors can be used as an index, got {self.dtype.name}")
        return int(self._scalar("index"))

    def _scalar(self, what: str) -> bool | int | float:
        if self.shape != ():
            raise UserError(
                what, f"a tensor without dimensions is required, got shape {self.shape}. Use item(), any() or all()."
            )
        return self.item()

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else repr(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError(f"a copy is needed to turn {self.dtype.name} into {dtype}")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **settings: Any) -> Any:
        return FUNCTIONS["array_ufunc"](ufunc, method, inputs, settings)

    def __array_function__(self, function: Any, types: Any, args: Any, settings: Any) -> Any:
        return FUNCTIONS["array_function"](function, args, settings)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Any, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A copy of the value, or with copy=False the tensor's own memory, marked as read-only.

        The default is a copy, because consumers may ignore the read-only flag, as PyTorch does, or use a version of the protocol
        without it, and the value of a tensor must never change. To share memory with NumPy use `numpy()`.
        """
        value = self._read()
        try:
            return value.device.to_dlpack(value, stream, max_version, dl_device, copy)
        except BufferError as error:
            raise BufferError(f"[dlpack] a tensor of dtype {self.dtype.name} cannot be shared: {error}.") from None

    def __dlpack_device__(self) -> tuple[Any, int]:
        return self.device.dlpack_device

    def __buffer__(self, flags: int, /) -> memoryview:
        return self.numpy().data

    def __array_namespace__(self, *, api_version: str | None = None) -> ModuleType:
        namespace: ModuleType = FUNCTIONS["array_namespace"](api_version)
        return namespace
