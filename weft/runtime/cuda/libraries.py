"""NVIDIA's libraries as one: what they are asked for, which of their ways is the fastest here, and whether they are asked at all.

Each way is measured once, on memory of its own; the choice is kept on disk.
"""

from __future__ import annotations

import json
import warnings
from math import prod
from typing import Any

from ...compiler.gpu.vendor.claims import Claim
from ...compiler.gpu.vendor.specs import BYTES, SCALES, AttentionSpec, ConvSpec, ProductSpec, Spec, Unsupported, to_json
from ...compiler.ir.kernel import Kernel
from ...compiler.store import cache
from ...errors import RunError, UserError
from . import blas, dnn
from .driver import Gpu, OutOfMemory
from .measure import Choices, filled, seconds
from .memory import DeviceMemory

MEASURED = 5  # algorithms of a library that are measured
COMPILED = 1  # of them that the library compiles first, which takes a second each


class Libraries:
    """cuBLASLt and cuDNN on one GPU."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self._ready: dict[Spec, Any] = {}
        self._blas, self._dnn = _opened(blas.handle, gpu), _opened(dnn.handle, gpu)
        versions = [
            f"{name} {h.version}" for name, h in (("cuBLASLt", self._blas), ("cuDNN", self._dnn)) if h is not None
        ]
        self.key = f"{gpu.name} {', '.join(versions)}"
        self.choices = Choices(gpu, self.ready, self.key)

    def judge(self, kernel: Kernel, wanted: Claim) -> bool:
        """Whether a library should do the work of a kernel: it is faster, or the user asked for it by name and it can."""
        return self.choices.can(wanted.spec) if wanted.by_name else self.choices.faster(kernel, wanted)

    def ready(self, spec: Spec) -> Any:
        """A product or convolution ready to run, by the fastest way."""
        if spec not in self._ready:
            self.gpu.enter()
            self._ready[spec] = self._chosen(spec)
        return self._ready[spec]

    def _chosen(self, spec: Spec) -> Any:
        if (self._blas if isinstance(spec, ProductSpec) else self._dnn) is None:
            raise Unsupported("the library is not installed")
        asked = self._asked(spec)
        key = f"way {self.key} {to_json(spec)}"
        known = cache().get(key)
        if known is None:
            try:
                best = self._fastest(asked)
            except OutOfMemory:  # no memory to measure with: use the first, and keep no result
                asked.select_first()
                return asked
            cache().put(key, json.dumps(best).encode())
        else:
            best = int(json.loads(known))
        asked.select(best)
        return asked

    def _asked(self, spec: Spec) -> Any:
        if isinstance(spec, ProductSpec):
            return blas.Product(spec, spec.workspace, self._blas)
        if isinstance(spec, AttentionSpec):
            return dnn.Attention(spec, spec.workspace, self._dnn)
        return dnn.Convolution(spec, spec.workspace, self._dnn)

    def seconds(self, spec: Spec) -> float:
        """How long the fastest way takes."""
        asked, buffers = self.ready(spec), [filled(self.gpu, size) for size in _sizes(spec)]
        return self._seconds(asked, [buffer.address for buffer in buffers])

    def _fastest(self, asked: Any) -> int:
        """The number of the way that takes the least time, of the most promising ones."""
        buffers = [filled(self.gpu, size) for size in _sizes(asked.spec)]
        addresses = [buffer.address for buffer in buffers]
        times: dict[int, float] = {}
        compiled = 0
        for number in range(asked.candidates):
            if len(times) == MEASURED:
                break
            compiled += (made := asked.compiles(number))
            if made and compiled > COMPILED:
                continue
            try:
                asked.select(number)
                times[number] = self._seconds(asked, addresses)
            except (Unsupported, RunError):
                continue
        if not times:
            raise Unsupported("no way can be run")
        return min(times, key=lambda n: times[n])

    def _seconds(self, asked: Any, addresses: list[int]) -> float:
        workspace = DeviceMemory(self.gpu, asked.workspace)
        return seconds(self.gpu, lambda: asked.run(addresses, workspace.address, self.gpu.stream))


def _opened(handle: Any, gpu: Gpu) -> Any:
    """A library's handle; None, and a word about it, if it cannot be had."""
    try:
        return handle(gpu.number)
    except UserError as error:
        warnings.warn(f"{error.message} Until then weft's own kernels do all the work.", stacklevel=4)
        return None


def _sizes(spec: Spec) -> list[int]:
    """The bytes of each argument."""
    if isinstance(spec, AttentionSpec):
        return [spec.nbytes(name) for name in spec.arguments]
    if isinstance(spec, ConvSpec):
        types = [spec.dtype] * (len(spec.arguments) - 1) + [spec.result_dtype]
        return [prod(spec.sizes(name)) * BYTES[t] for name, t in zip(spec.arguments, types, strict=True)]
    result = spec.batch * spec.m * spec.n * BYTES[spec.c_dtype]
    known = {
        "a": _extent(spec.batch, spec.m, spec.k, spec.a_strides) * BYTES[spec.a_dtype],
        "b": _extent(spec.batch, spec.k, spec.n, spec.b_strides) * BYTES[spec.b_dtype],
        "bias": spec.n * BYTES[spec.c_dtype],
        **dict.fromkeys(("residual", "sum"), result),
        **dict.fromkeys(SCALES, BYTES["float32"]),
        "c": result,
    }
    return [known[name] for name in spec.arguments]


def _extent(batch: int, rows: int, columns: int, strides: tuple[int, int, int]) -> int:
    """Elements from the first to the last of a batch of matrices."""
    return 1 + sum((n - 1) * s for n, s in zip((batch, rows, columns), strides, strict=True))
