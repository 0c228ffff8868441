"""NVIDIA's libraries: which kernels they compute, and by which of their algorithms. Each algorithm is measured once, on memory of its own;
the choice is kept on disk.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from itertools import cycle
from math import prod
from typing import Any

from ...compiler.gpu.compile import ALIGNED
from ...compiler.gpu.vendor.claims import Claim
from ...compiler.gpu.vendor.specs import (
    BYTES,
    SCALES,
    AttentionSpec,
    CompressionSpec,
    ConvSpec,
    ProductSpec,
    Spec,
    Unsupported,
    to_json,
)
from ...compiler.ir.kernel import Kernel
from ...compiler.store import cache
from ...dtypes import DType
from ...errors import RunError, UserError
from . import blas, dnn, sparse_blas
from .driver import Gpu, OutOfMemory
from .measure import GAIN, Choices, filled, seconds
from .memory import DeviceMemory

MEASURED = 5  # algorithms of a library that are measured
SPARSE_PACKAGE = "nvidia-cusparselt-cu13"
SPARSE_CAPABILITY = 80  # from which GPUs have sparse tensor cores
LEAST_COMPRESSED = 50_000_000  # terms of a product: for fewer of them nothing is gained
CACHE, MOST_COPIES = 256 << 20, 10  # bytes that no cache holds, and how many operands take turns at the most
COMPILED = 1  # of them that the library must compile first, which takes about a second each


class Libraries:
    """cuBLASLt, cuDNN and cuSPARSELt on one GPU."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self._ready: dict[Spec, Any] = {}
        self._blas, self._dnn = _open(blas.handle, gpu), _open(dnn.handle, gpu)
        versions = [
            f"{name} {h.version}" for name, h in (("cuBLASLt", self._blas), ("cuDNN", self._dnn)) if h is not None
        ]
        self.key = f"{gpu.name} {', '.join([*versions, f'cuSPARSELt {_installed(SPARSE_PACKAGE)}'])}"
        self.choices = Choices(gpu, self.ready, self.key)

    def judge(self, kernel: Kernel, wanted: Claim) -> bool:
        """Whether a library should compute a kernel: because it is faster, or because the user requested it by name and it can."""
        return self.choices.can(wanted.spec) if wanted.by_name else self.choices.faster(kernel, wanted)

    def ready(self, spec: Spec) -> Any:
        """A product or convolution ready to run, by the fastest algorithm."""
        if spec not in self._ready:
            self.gpu.enter()
            self._ready[spec] = self._chosen(spec)
        return self._ready[spec]

    def _chosen(self, spec: Spec) -> Any:
        if self._handle(spec) is None:
            raise Unsupported("the library is not installed")
        call = self._call(spec)
        key = f"way {self.key} {to_json(spec)}"
        known = cache().get(key)
        if known is None:
            try:
                best = self._fastest(call)
            except OutOfMemory:  # no memory to measure with: use the first, and keep no result
                call.select_first()
                return call
            cache().put(key, json.dumps(best).encode())
        else:
            best = int(json.loads(known))
        call.select(best)
        return call

    def _handle(self, spec: Spec) -> Any:
        """The handle of the library for a call; None if it is not available."""
        if _is_sparse(spec):
            return self._sparse
        return self._blas if isinstance(spec, ProductSpec) else self._dnn

    @cached_property
    def _sparse(self) -> sparse_blas.SparseHandle | None:
        """cuSPARSELt, which is opened when a program has a weight of 2:4 sparsity."""
        found: sparse_blas.SparseHandle | None = _open(
            sparse_blas.handle, self.gpu, "Until then such weights are multiplied as dense ones."
        )
        return found

    def compressed_bytes(self, rows: int, outputs: int, inputs: int, dtype: DType) -> int:
        """The bytes of a weight of 2:4 sparsity, (outputs, inputs), that is multiplied compressed; 0 if its dense product is faster."""
        if self.gpu.capability < SPARSE_CAPABILITY or rows * outputs * inputs < LEAST_COMPRESSED:
            return 0
        self.gpu.enter()
        if self._sparse is None:
            return 0
        name = dtype.name
        dense = ProductSpec(
            1, rows, outputs, inputs, (rows * inputs, inputs, 1), (outputs * inputs, 1, inputs), name, name, name
        )
        key = f"compressed {self.key} {to_json(dense)}"
        known = cache().get(key)
        if known is None:
            try:
                known = json.dumps(self._faster_compressed(dense)).encode()
            except OutOfMemory:  # no memory to measure with: keep no result
                return 0
            cache().put(key, known)
        return int(json.loads(known))

    def _faster_compressed(self, dense: ProductSpec) -> int:
        """The bytes of the compressed second operand of a product, or 0 if that is not faster."""
        assert self._sparse is not None
        try:
            size, _ = self._sparse.compressed_bytes(dense.n, dense.k, dense.a_dtype)
            size += -size % ALIGNED
            self.ready(CompressionSpec(dense.n, dense.k, dense.a_dtype, size))
            compressed = self._seconds_from_memory(replace(dense, compressed=size))
        except Unsupported:
            return 0
        return size if compressed < GAIN * self._seconds_from_memory(dense) else 0

    def _seconds_from_memory(self, spec: ProductSpec) -> float:
        """How long the fastest algorithm takes if its second operand is not in the cache: several take turns. A network has other weights, too."""
        asked, buffers, place = self.ready(spec), self._buffers(spec), spec.arguments.index("b")
        copies = [buffers[place]]
        while len(copies) < MOST_COPIES and len(copies) * copies[0].nbytes < CACHE:
            copies.append(DeviceMemory(self.gpu, copies[0].nbytes))
            self.gpu.copy(copies[-1].address, copies[0].address, copies[0].nbytes)
        workspace, turns = DeviceMemory(self.gpu, asked.workspace), cycle(copies)

        def enqueue() -> None:
            buffers[place] = next(turns)
            asked.run([buffer.address for buffer in buffers], workspace.address, self.gpu.stream)

        return seconds(self.gpu, enqueue)

    def _call(self, spec: Spec) -> Any:
        if isinstance(spec, CompressionSpec):
            return sparse_blas.WeightCompression(spec, spec.workspace, self._handle(spec))
        if isinstance(spec, ProductSpec):
            made = sparse_blas.SparseProduct if spec.compressed else blas.Product
            return made(spec, spec.workspace, self._handle(spec))
        if isinstance(spec, AttentionSpec):
            return dnn.Attention(spec, spec.workspace, self._dnn)
        return dnn.Convolution(spec, spec.workspace, self._dnn)

    def seconds(self, spec: Spec) -> float:
        """The time of the fastest algorithm."""
        call, buffers = self.ready(spec), self._buffers(spec)
        return self._seconds(call, [buffer.address for buffer in buffers])

    def _fastest(self, call: Any) -> int:
        """The number of the fastest algorithm among the most promising ones."""
        buffers = self._buffers(call.spec)
        addresses = [buffer.address for buffer in buffers]
        times: dict[int, float] = {}
        compiled = 0
        for number in range(call.candidates):
            if len(times) == MEASURED and call.is_sorted:
                break
            compiled += (made := call.compiles(number))
            if made and compiled > COMPILED:
                continue
            try:
                call.select(number)
                times[number] = self._seconds(call, addresses)
            except (Unsupported, RunError):
                continue
        if not times:
            raise Unsupported("no algorithm can be run")
        return min(times, key=lambda n: times[n])

    def _buffers(self, spec: Spec) -> list[DeviceMemory]:
        """Memory for each argument, to measure with."""
        buffers = [filled(self.gpu, size, isinstance(spec, CompressionSpec)) for size in _sizes(spec)]
        if isinstance(spec, ProductSpec) and spec.compressed:
            compression = CompressionSpec(spec.n, spec.k, spec.b_dtype, spec.compressed)
            call, [dense, packed] = self.ready(compression), self._buffers(compression)
            workspace = DeviceMemory(self.gpu, call.workspace)
            call.run([dense.address, packed.address], workspace.address, self.gpu.stream)
            self.gpu.wait()
            buffers[spec.arguments.index("b")] = packed
        return buffers

    def _seconds(self, call: Any, addresses: list[int]) -> float:
        workspace = DeviceMemory(self.gpu, call.workspace)
        return seconds(self.gpu, lambda: call.run(addresses, workspace.address, self.gpu.stream))


def _open(handle: Any, gpu: Gpu, until: str = "Until then weft's own kernels do all the work.") -> Any:
    """A library's handle; None, and a warning, if it is not available."""
    try:
        return handle(gpu.number)
    except UserError as error:
        warnings.warn(f"{error.message} {until}", stacklevel=4)
        return None


def _installed(package: str) -> str:
    """The version of a package, "" if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _is_sparse(spec: Spec) -> bool:
    return isinstance(spec, CompressionSpec) or (isinstance(spec, ProductSpec) and spec.compressed > 0)


def _sizes(spec: Spec) -> list[int]:
    """The bytes of each argument."""
    if isinstance(spec, AttentionSpec):
        return [spec.nbytes(name) for name in spec.arguments]
    if isinstance(spec, ConvSpec):
        types = [spec.dtype] * (len(spec.arguments) - 1) + [spec.result_dtype]
        return [prod(spec.sizes(name)) * BYTES[t] for name, t in zip(spec.arguments, types, strict=True)]
    if isinstance(spec, CompressionSpec):
        return [spec.rows * spec.columns * BYTES[spec.dtype], spec.compressed]
    result = spec.batch * spec.m * spec.n * BYTES[spec.c_dtype]
    known = {
        "a": _extent(spec.batch, spec.m, spec.k, spec.a_strides) * BYTES[spec.a_dtype],
        "b": spec.compressed or _extent(spec.batch, spec.k, spec.n, spec.b_strides) * BYTES[spec.b_dtype],
        "bias": spec.n * BYTES[spec.c_dtype],
        **dict.fromkeys(("residual", "sum"), result),
        **dict.fromkeys(SCALES, BYTES["float32"]),
        "c": result,
    }
    return [known[name] for name in spec.arguments]


def _extent(batch: int, rows: int, columns: int, strides: tuple[int, int, int]) -> int:
    """Elements from the first to the last of a batch of matrices."""
    return 1 + sum((n - 1) * s for n, s in zip((batch, rows, columns), strides, strict=True))
