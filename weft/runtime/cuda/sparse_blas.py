"""Products with weights of 2:4 sparsity by cuSPARSELt, through the bindings of nvmath-python.

The weight is its first operand, so it computes yᵀ = W xᵀ: W (n, k) in rows, xᵀ as the rows of x, and yᵀ in columns, which are the rows of y.
"""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from ...compiler.gpu.vendor.specs import CompressionSpec, ProductSpec, Unsupported
from ...errors import RunError, UserError
from .driver import INSTALL

_TYPES = {"float16": 2, "bfloat16": 14}  # the numbers of cudaDataType
_ROWS, _COLUMNS = 2, 1  # of cusparseOrder_t: what is contiguous
_PLAIN, _TRANSPOSED = 0, 1  # of cusparseOperation_t
_ALIGNMENT = 16  # bytes
_FACTORS = np.array([1.0, 0.0], np.float32)  # of the product, and of what is added to it


class SparseHandle:
    """cuSPARSELt, opened on the GPU that this thread works on."""

    def __init__(self) -> None:
        try:
            self.library: Any = importlib.import_module("nvmath.bindings.cusparseLt")
        except ImportError as error:
            raise UserError("cuda", f"the package nvmath-python is missing or too old ({error}). {INSTALL}") from None
        try:
            self.address = int(self.library.init())
        except (RuntimeError, OSError, self.library.cuSPARSELtError) as error:
            raise UserError("cuda", f"cuSPARSELt does not start ({error}). {INSTALL}") from None

    def sparse_matrix(self, rows: int, columns: int, dtype: str) -> int:
        """The descriptor of a matrix with 2:4 sparsity along its rows."""
        sparsity = self.library.Sparsity.SPARSITY_50_PERCENT
        how = (self.address, rows, columns, columns, _ALIGNMENT, _TYPES[dtype], _ROWS, sparsity)
        return int(self._made(self.library.structured_descriptor_init, *how))

    def dense_matrix(self, rows: int, columns: int, dtype: str, order: int) -> int:
        """The descriptor of a dense matrix without gaps."""
        line = columns if order == _ROWS else rows
        how = (self.address, rows, columns, line, _ALIGNMENT, _TYPES[dtype], order)
        return int(self._made(self.library.dense_descriptor_init, *how))

    def compressed_bytes(self, rows: int, columns: int, dtype: str) -> tuple[int, int]:
        """The bytes of a compressed matrix, and of the workspace in which it is compressed."""
        matrix = self.sparse_matrix(rows, columns, dtype)
        try:
            size, workspace = self._made(self.library.sp_mma_compressed_size2, self.address, matrix)
        finally:
            self.library.mat_descriptor_destroy(matrix)
        return int(size), int(workspace)

    def _made(self, function: Any, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except self.library.cuSPARSELtError as error:
            raise Unsupported(f"cuSPARSELt: {error}") from None


@cache
def handle(device: int) -> SparseHandle:
    """The handle of a GPU, which must be the one that this thread works on."""
    return SparseHandle()


class WeightCompression:
    """The compression of a matrix, ready to run."""

    deterministic = True
    candidates, is_sorted = 1, True
    name = "compression"

    def __init__(self, spec: CompressionSpec, workspace_limit: int | None, handle: SparseHandle) -> None:
        self.spec = spec
        self._handle, self._library = handle, handle.library
        size, self.workspace = handle.compressed_bytes(spec.rows, spec.columns, spec.dtype)
        if size > spec.compressed or (workspace_limit is not None and self.workspace > workspace_limit):
            raise Unsupported(f"cuSPARSELt compresses to {size} bytes, not to {spec.compressed}")
        self._matrix = handle.sparse_matrix(spec.rows, spec.columns, spec.dtype)
        weakref.finalize(self, self._library.mat_descriptor_destroy, self._matrix)

    def select(self, number: int) -> None:
        """There is one algorithm."""

    select_first = select

    def compiles(self, number: int) -> bool:
        """Whether an algorithm is compiled when it is selected: it is there already."""
        return False

    def run(self, addresses: Sequence[int], workspace: int, stream: int) -> None:
        """Enqueue on a stream: the addresses of the matrix and of its compressed form, and that of a workspace."""
        dense, compressed = addresses
        try:
            self._library.sp_mma_compress2(
                self._handle.address, self._matrix, True, _PLAIN, dense, compressed, workspace, stream
            )
        except self._library.cuSPARSELtError as error:
            raise RunError("cusparselt", f"a weight could not be compressed: {error} ({self.spec}).") from None


class SparseProduct:
    """One product with a compressed weight, ready to run, with the algorithms that cuSPARSELt has for it."""

    deterministic = True  # no algorithm here divides a sum among blocks
    is_sorted = False  # the algorithms: all of them are measured

    def __init__(self, spec: ProductSpec, workspace_limit: int | None, handle: SparseHandle) -> None:
        self.spec = spec
        self._handle, self._limit = handle, workspace_limit
        self.selected, self._plan = 0, self._planned(None)
        self._preferred, self.candidates = self._plan.number, self._working_algorithms()

    def select(self, number: int) -> None:
        """Let `run` use one of the algorithms."""
        self._plan = self._planned(number)
        self.selected, self.workspace = number, self._plan.workspace
        if self._limit is not None and self.workspace > self._limit:
            raise Unsupported(f"the algorithm takes {self.workspace} bytes of workspace")

    def select_first(self) -> None:
        """The algorithm that cuSPARSELt prefers."""
        self.select(self._preferred)

    def compiles(self, number: int) -> bool:
        """Whether an algorithm is compiled when it is selected: all are there already."""
        return False

    @property
    def name(self) -> str:
        """The selected algorithm."""
        return f"algorithm {self.selected}"

    def run(self, addresses: Sequence[int], workspace: int, stream: int) -> None:
        """Enqueue on a stream: the addresses of `spec.arguments` in their order, and that of a workspace."""
        known = dict(zip(self.spec.arguments, addresses, strict=True))
        bias = known.get("bias", 0)
        try:
            if bias != self._plan.bias:
                self._plan = _SparsePlan(self.spec, self._handle, self.selected, bias)
            self._plan.run(known["b"], known["a"], known["c"], workspace, stream)
        except self._handle.library.cuSPARSELtError as error:
            raise RunError("cusparselt", f"a matrix product failed: {error} ({self.spec}).") from None

    def _working_algorithms(self) -> int:
        """Of float16 cuSPARSELt 0.8 lists more algorithms than of bfloat16, and the last of them end in an illegal instruction on Hopper."""
        if self.spec.a_dtype == "bfloat16":
            return self._plan.count
        twin = replace(self.spec, a_dtype="bfloat16", b_dtype="bfloat16", c_dtype="bfloat16")
        return min(self._plan.count, self._planned(None, twin).count)

    def _planned(self, number: int | None, spec: ProductSpec | None = None) -> _SparsePlan:
        try:
            return _SparsePlan(spec or self.spec, self._handle, number)
        except self._handle.library.cuSPARSELtError as error:
            raise Unsupported(f"cuSPARSELt: {error}") from None


class _SparsePlan:
    """A product with its algorithm (None: the one that cuSPARSELt prefers) and the address of its bias, which are parts of a plan.

    Plans share nothing: cuSPARSELt 0.8 destroys the operation of a plan together with the plan.
    """

    def __init__(self, spec: ProductSpec, handle: SparseHandle, number: int | None, bias: int = 0) -> None:
        self._address, self._library, lt = handle.address, handle.library, handle.library
        self._streams = np.zeros(1, np.int64)
        self.bias = bias
        made: list[tuple[Callable[[int], None], int]] = []  # how each object is destroyed
        weakref.finalize(self, _destroy, made)
        weight = handle.sparse_matrix(spec.n, spec.k, spec.a_dtype)
        x = handle.dense_matrix(spec.m, spec.k, spec.a_dtype, _ROWS)
        y = handle.dense_matrix(spec.n, spec.m, spec.c_dtype, _COLUMNS)
        made += [(lt.mat_descriptor_destroy, matrix) for matrix in (weight, x, y)]
        compute = lt.ComputeType.COMPUTE_32F
        operation = lt.matmul_descriptor_init(self._address, _PLAIN, _TRANSPOSED, weight, x, y, y, compute)
        made.append((lt.matmul_descriptor_destroy, operation))
        if spec.epilogue.endswith("relu"):
            self._set_operation(operation, "ACTIVATION_RELU", 1)
        if bias:
            self._set_operation(operation, "BIAS_POINTER", bias)
        algorithm = lt.matmul_alg_selection_init(self._address, operation, lt.MatmulAlg.DEFAULT)
        made.append((lt.matmul_alg_selection_destroy, algorithm))
        self.number = self._algorithm(algorithm, "CONFIG_ID", number)
        self.count = self._algorithm(algorithm, "CONFIG_MAX_ID")
        self._algorithm(algorithm, "SPLIT_K", 1)
        self._plan = lt.matmul_plan_init(self._address, operation, algorithm)
        made.append((lt.matmul_plan_destroy, self._plan))
        self.workspace = int(lt.matmul_get_workspace(self._address, self._plan))

    def run(self, weight: int, x: int, y: int, workspace: int, stream: int) -> None:
        """Enqueue on a stream."""
        self._streams[0] = stream
        self._library.matmul(
            self._address, self._plan, _FACTORS.ctypes.data, weight, x, _FACTORS[1:].ctypes.data, y, y, workspace, self._streams.ctypes.data, 1,
        )  # fmt: skip

    def _set_operation(self, operation: int, name: str, value: int) -> None:
        attribute = getattr(self._library.MatmulDescAttribute, name)
        held = np.array([value], self._library.get_matmul_desc_attribute_dtype(attribute))
        self._library.matmul_desc_set_attribute(self._address, operation, attribute, held.ctypes.data, held.nbytes)

    def _algorithm(self, algorithm: int, name: str, value: int | None = None) -> int:
        """An attribute of an algorithm, after it was set to a value."""
        attribute, held = getattr(self._library.MatmulAlgAttribute, name), np.array([value or 0], np.int32)
        access = "get" if value is None else "set"
        function = getattr(self._library, f"matmul_alg_{access}_attribute")
        function(self._address, algorithm, attribute, held.ctypes.data, held.nbytes)
        return int(held[0])


def _destroy(made: Sequence[tuple[Callable[[int], None], int]]) -> None:
    """Destroy what the library has made, the newest first."""
    for destroy, what in reversed(made):
        destroy(what)
