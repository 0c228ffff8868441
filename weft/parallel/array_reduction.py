"""All-reduces of NumPy arrays without a graph: prepared once, called often, as MPI's persistent collectives are."""

from __future__ import annotations

import numpy as np

from ..compiler.cpu.collective.layout import FAILED
from ..compiler.cpu.collective.phases import phase
from ..dtypes import as_dtype
from ..errors import UserError
from ..graph.node import OPS, Type, placeholder
from ..mesh.host_calls import prepared_call
from ..mesh.mesh import current
from ..ops.collective import all_reduce


class ArrayReduction:
    """The sum (or "max", "min") of an array over all processes along an axis of the mesh. Every call reduces the array in place.

    A call takes about as long as the exchange itself: nothing is allocated, traced or looked up. All processes call it together.

    >>> import numpy as np
    >>> from weft import parallel
    >>> mesh = parallel.Mesh(data=1)  # 4 under weft launch -n 4
    >>> counts = np.ones(3, np.float32)
    >>> add = parallel.ArrayReduction(counts, "data")
    >>> add().tolist()
    [1.0, 1.0, 1.0]
    """

    def __init__(self, array: np.ndarray, axis: str, combine: str = "sum") -> None:
        if not isinstance(array, np.ndarray) or not (array.flags.c_contiguous and array.flags.writeable):
            raise UserError(
                "parallel",
                f"a contiguous NumPy array that can be written is required, got {_described(array)}. Use np.ascontiguousarray.",
            )
        op, mesh = OPS[all_reduce.__name__], current()
        params = (axis, mesh.axes, combine, "summed")
        result = op.infer(placeholder(0, Type(array.shape, as_dtype(array.dtype))), *params)
        self.array, self._mesh = array, mesh
        self._call = None
        if mesh.size(axis) > 1:
            self._call, self._status = prepared_call(phase(op, params, result), array, array, mesh.engine, mesh.table_address)  # fmt: skip

    def __call__(self) -> np.ndarray:
        if self._call is not None:
            self._call()
            if self._status[0] == FAILED:
                raise self._mesh.failure(int(self._status[1]))
        return self.array


def _described(given: object) -> str:
    return f"one of shape {given.shape}" if isinstance(given, np.ndarray) else type(given).__name__
