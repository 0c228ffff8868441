"""Products with weights of 2:4 sparsity by cuSPARSELt, through the bindings of nvmath-python.

The weight is its first operand, so it computes yᵀ = W xᵀ: W (n, k) in rows, xᵀ as the rows of x, and yᵀ in columns, which are the rows of y.
"""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Callable, Sequence
from functools import cache, partial
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
    """One product with a compressed weight, ready to run, with the algorithms that cuSPARSELt has for it.

    An algorithm becomes part of a plan, and so does the address of a bias: a plan is made again when that changes.
    """

    deterministic = True  # no algorithm here divides a sum among blocks
    is_sorted = False  # the algorithms: all of them are measured

    def __init__(self, spec: ProductSpec, workspace_limit: int | None, handle: SparseHandle) -> None:
        self.spec = spec
        self._handle, self._library, self._limit = handle, handle.library, workspace_limit
        self._streams = np.zeros(1, np.int64)
        self._made: list[Callable[[], None]] = []  # how to destroy what the library has made
        self._plans: list[int] = []  # the one of the selected algorithm
        weakref.finalize(self, _release, self._library, self._plans, self._made)
        self._planned_bias, self.selected = 0, 0
        try:
            self._describe()
        except self._library.cuSPARSELtError as error:
            raise Unsupported(f"cuSPARSELt: {error}") from None
        self.candidates = self._algorithm_setting("CONFIG_MAX_ID")

    def select(self, number: int) -> None:
        """Let `run` use one of the algorithms."""
        self.selected = number
        try:
            self._set_algorithm("CONFIG_ID", number)
            self._make_plan(self._planned_bias)
        except self._library.cuSPARSELtError as error:
            raise Unsupported(f"cuSPARSELt: {error}") from None
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
        self._streams[0] = stream
        try:
            if known.get("bias", self._planned_bias) != self._planned_bias:
                self._make_plan(known["bias"])
            self._library.matmul(
                self._handle.address, self._plans[-1], _FACTORS.ctypes.data, known["b"], known["a"], _FACTORS[1:].ctypes.data,
                known["c"], known["c"], workspace, self._streams.ctypes.data, 1,
            )  # fmt: skip
        except self._library.cuSPARSELtError as error:
            raise RunError("cusparselt", f"a matrix product failed: {error} ({self.spec}).") from None

    def _describe(self) -> None:
        """The operation on its three matrices, and the algorithm that the library prefers."""
        spec, lt, handle = self.spec, self._library, self._handle
        weight = handle.sparse_matrix(spec.n, spec.k, spec.a_dtype)
        x = handle.dense_matrix(spec.m, spec.k, spec.a_dtype, _ROWS)
        y = handle.dense_matrix(spec.n, spec.m, spec.c_dtype, _COLUMNS)
        self._made += [partial(lt.mat_descriptor_destroy, matrix) for matrix in (weight, x, y)]
        compute = lt.ComputeType.COMPUTE_32F
        self._operation = lt.matmul_descriptor_init(handle.address, _PLAIN, _TRANSPOSED, weight, x, y, y, compute)
        self._made.append(partial(lt.matmul_descriptor_destroy, self._operation))
        if spec.epilogue.endswith("relu"):
            self._set_operation("ACTIVATION_RELU", 1)
        self._algorithm = lt.matmul_alg_selection_init(handle.address, self._operation, lt.MatmulAlg.DEFAULT)
        self._made.append(partial(lt.matmul_alg_selection_destroy, self._algorithm))
        self._preferred = self._algorithm_setting("CONFIG_ID")
        self._set_algorithm("SPLIT_K", 1)

    def _make_plan(self, bias: int) -> None:
        """A plan of the selected algorithm, with the bias at an address."""
        lt = self._library
        if self.spec.has_bias and bias:
            self._set_operation("BIAS_POINTER", bias)
        plan = lt.matmul_plan_init(self._handle.address, self._operation, self._algorithm)
        self._plans.append(plan)
        for old in self._plans[:-1]:
            lt.matmul_plan_destroy(old)
        self._plans[:] = [plan]
        self._planned_bias = bias
        self.workspace = int(lt.matmul_get_workspace(self._handle.address, plan))

    def _set_operation(self, name: str, value: int) -> None:
        attribute = getattr(self._library.MatmulDescAttribute, name)
        held = np.array([value], self._library.get_matmul_desc_attribute_dtype(attribute))
        self._library.matmul_desc_set_attribute(
            self._handle.address, self._operation, attribute, held.ctypes.data, held.nbytes
        )

    def _set_algorithm(self, name: str, value: int) -> None:
        attribute = getattr(self._library.MatmulAlgAttribute, name)
        held = np.array([value], np.int32)
        self._library.matmul_alg_set_attribute(
            self._handle.address, self._algorithm, attribute, held.ctypes.data, held.nbytes
        )

    def _algorithm_setting(self, name: str) -> int:
        attribute, held = getattr(self._library.MatmulAlgAttribute, name), np.zeros(1, np.int32)
        self._library.matmul_alg_get_attribute(
            self._handle.address, self._algorithm, attribute, held.ctypes.data, held.nbytes
        )
        return int(held[0])


def _release(library: Any, plans: Sequence[int], made: Sequence[Callable[[], None]]) -> None:
    """Destroy what the library has made, the newest first."""
    for plan in plans:
        library.matmul_plan_destroy(plan)
    for destroy in reversed(made):
        destroy()
