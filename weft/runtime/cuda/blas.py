"""Matrix products by cuBLASLt, through the bindings of nvmath-python.

cuBLASLt stores matrices column-major, weft row-major, so it computes the transposed product: cᵀ = bᵀ aᵀ. Its first operand is b, its second
a, and a bias along its rows is one along the columns of c.
"""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from ...compiler.gpu.vendor.specs import ProductSpec, Unsupported, lines
from ...errors import RunError, UserError
from .driver import INSTALL

CANDIDATES = 8  # the number of algorithms that are requested
WORKSPACE = 32 << 20  # bytes, unless the caller limits them: NVIDIA's recommendation for Hopper
# The numbers of cudaDataType.
_TYPES = {"float16": 2, "bfloat16": 14, "float32": 0, "float64": 1, "int8": 3, "int32": 10, "e4m3": 28, "e5m2": 29}
_SCALES: dict[str, type[np.number[Any]]] = {"float64": np.float64, "int32": np.int32}
_COMPUTE_TYPES = {"float64": "COMPUTE_64F", "int8": "COMPUTE_32I"}  # others sum in float32
_EPILOGUES = {
    "": "DEFAULT", "bias": "BIAS", "relu": "RELU", "bias_relu": "RELU_BIAS", "gelu_tanh": "GELU", "bias_gelu_tanh": "GELU_BIAS",
    "gelu_tanh_sum": "GELU_AUX", "bias_gelu_tanh_sum": "GELU_AUX_BIAS", "dgelu_tanh": "DGELU",
}  # fmt: skip
_POINTERS = {"bias": "BIAS_POINTER", "sum": "EPILOGUE_AUX_POINTER"}  # of memory that epilogues read and write
_POINTERS |= {"scale_a": "A_SCALE_POINTER", "scale_b": "B_SCALE_POINTER"}
_SLACK = 16  # additional bytes of workspace for products with an epilogue, which a workaround in nvmath-python requires
_PLACEHOLDER_ADDRESS = 1 << 20  # of such an argument while algorithms are searched; nothing reads it


def library() -> Any:
    """The bindings of cuBLASLt, or one sentence about what is missing."""
    try:
        return importlib.import_module("nvmath.bindings.cublasLt")
    except ImportError as error:
        raise UserError("cuda", f"the package nvmath-python is missing ({error}). {INSTALL}") from None


class BlasHandle:
    """cuBLASLt, opened on the GPU that this thread works on."""

    def __init__(self) -> None:
        self.library = library()
        self.compute_types = importlib.import_module("nvmath.bindings.cublas").ComputeType
        try:
            self.address = int(self.library.create())
        except (RuntimeError, OSError, self.library.cuBLASLtError) as error:  # it is not found, or says no
            raise UserError("cuda", f"cuBLASLt does not start ({error}). {INSTALL}") from None
        self.version = str(self.library.get_version())


@cache
def handle(device: int) -> BlasHandle:
    """The handle of a GPU, which must be the one that this thread works on."""
    return BlasHandle()


class Product:
    """One matrix product, ready to run, with the algorithms that cuBLASLt offers for it, the most promising first. The first run of an
    algorithm loads its code, so it should not be recorded in a graph.
    """

    # NVIDIA guarantees the same bits for the same algorithm on the same GPU, if each stream has its own workspace.
    deterministic = True
    is_sorted = True  # the candidates: the most promising ones come first

    def __init__(self, spec: ProductSpec, workspace_limit: int | None, handle: BlasHandle) -> None:
        self.spec = spec
        self._handle, self._library = handle, handle.library
        scale: type[np.number[Any]] = _SCALES.get(spec.c_dtype, np.float32)
        self._factors = np.array([spec.factor, spec.residual], scale)  # of the product, and of the residual
        self._slack = _SLACK if spec.epilogue else 0
        self._describe(scale)
        self._algorithms = self._supported_algorithms(WORKSPACE if workspace_limit is None else workspace_limit)
        self.candidates = len(self._algorithms)

    def select(self, number: int) -> None:
        """Choose the algorithm that `run` uses."""
        self.selected = number
        self.workspace = int(self._algorithms[number]["workspace_size"])
        if self.workspace:
            self.workspace += self._slack

    def select_first(self) -> None:
        """Choose the most promising algorithm."""
        self.select(0)

    def compiles(self, number: int) -> bool:
        """Whether an algorithm is compiled when it is selected: all of them are precompiled."""
        return False

    @property
    def name(self) -> str:
        """The selected algorithm: its number, its tile, and the number of parts of k."""
        kinds = self._library.MatmulAlgoConfigAttribute
        return f"algorithm {self._setting(kinds.ID)}, tile {self._setting(kinds.TILE_ID)}, split {self._setting(kinds.SPLITK_NUM)}"

    def run(self, addresses: Sequence[int], workspace: int, stream: int) -> None:
        """Enqueue on a stream: the addresses of `spec.arguments` in their order, and that of a workspace."""
        a, b, *_, c = addresses
        known = dict(zip(self.spec.arguments, addresses, strict=True))
        try:
            self._set_addresses(known)
            self._library.matmul(
                self._handle.address, self._operation, self._factors.ctypes.data,
                b, self._b, a, self._a, self._factors[1:].ctypes.data, known.get("residual", c), self._c, c, self._c,
                self._algorithm(), workspace, self.workspace, stream,
            )  # fmt: skip
        except self._library.cuBLASLtError as error:
            raise RunError("cublas", f"a matrix product failed: {error} ({self.spec}).") from None

    def _describe(self, scale: type[np.number[Any]]) -> None:
        """Describe the operation and the layouts of the three matrices."""
        spec, lt = self.spec, self._library
        kind = _COMPUTE_TYPES.get(spec.a_dtype, "COMPUTE_32F")
        if spec.a_dtype == "float32" and spec.tf32:
            kind = "COMPUTE_32F_FAST_TF32"
        number = _TYPES[np.dtype(scale).name]
        self._operation = lt.matmul_desc_create(int(getattr(self._handle.compute_types, kind)), number)
        self._a, a_turned = self._layout(spec.a_dtype, spec.m, spec.k, spec.a_strides)
        self._b, b_turned = self._layout(spec.b_dtype, spec.k, spec.n, spec.b_strides)
        self._c, _ = self._layout(spec.c_dtype, spec.m, spec.n, (spec.m * spec.n, spec.n, 1))
        weakref.finalize(self, _destroy, lt, self._operation, (self._a, self._b, self._c))
        attributes = lt.MatmulDescAttribute
        self._set_operation(attributes.TRANSA, b_turned)
        self._set_operation(attributes.TRANSB, a_turned)
        self._set_operation(attributes.EPILOGUE, getattr(lt.Epilogue, _EPILOGUES[spec.epilogue]))
        self._set_addresses(dict.fromkeys(spec.arguments, _PLACEHOLDER_ADDRESS))
        if spec.has_sum:
            self._set_operation(attributes.EPILOGUE_AUX_LD, spec.n)

    def _layout(self, dtype: str, rows: int, columns: int, strides: Sequence[int]) -> tuple[int, bool]:
        """The layout of a matrix for cuBLASLt, whose columns are weft's rows, and whether it is transposed."""
        lt, line = self._library, lines(rows, columns, *strides[1:])
        if line is None:
            raise Unsupported(f"cuBLASLt: neither rows nor columns are contiguous, strides are {strides}")
        turned, distance = line
        seen = (rows, columns) if turned else (columns, rows)
        layout = lt.matrix_layout_create(_TYPES[dtype], *seen, distance)
        attributes, kind = lt.MatrixLayoutAttribute, lt.get_matrix_layout_attribute_dtype
        if self.spec.batch > 1:
            for name, value in (("BATCH_COUNT", self.spec.batch), ("STRIDED_BATCH_OFFSET", strides[0])):
                attribute = getattr(attributes, name)
                _set(lt.matrix_layout_set_attribute, layout, attribute, value, kind(attribute))
        return int(layout), turned

    def _set_operation(self, attribute: Any, value: int) -> None:
        lt = self._library
        _set(
            lt.matmul_desc_set_attribute,
            self._operation,
            attribute,
            value,
            lt.get_matmul_desc_attribute_dtype(attribute),
        )

    def _set_addresses(self, addresses: dict[str, int]) -> None:
        """Set the addresses of the epilogue's arguments."""
        for name, attribute in _POINTERS.items():
            if name in addresses:
                self._set_operation(getattr(self._library.MatmulDescAttribute, attribute), addresses[name])

    def _supported_algorithms(self, limit: int) -> np.ndarray:
        """The algorithms whose workspace is within the limit."""
        lt = self._library
        results, count = np.zeros(CANDIDATES, lt.matmul_heuristic_result_dtype), np.zeros(1, np.int32)
        preference = self._preference(max(limit - self._slack, 0))
        try:
            lt.matmul_algo_get_heuristic(
                self._handle.address, self._operation, self._b, self._a, self._c, self._c, preference,
                CANDIDATES, results.ctypes.data, count.ctypes.data,
            )  # fmt: skip
        except lt.cuBLASLtError as error:
            raise Unsupported(f"cuBLASLt: {error}") from None
        finally:
            lt.matmul_preference_destroy(preference)
        found = np.ascontiguousarray(results[: count[0]][results[: count[0]]["state"] == 0])
        if not len(found):
            raise Unsupported("cuBLASLt has no algorithm for it")
        return found

    def _preference(self, limit: int) -> int:
        """The workspace limit, the alignment of addresses, and that partial sums are added in full precision."""
        lt = self._library
        preference, attributes = lt.matmul_preference_create(), lt.MatmulPreferenceAttribute
        values = {"MAX_WORKSPACE_BYTES": limit, "REDUCTION_SCHEME_MASK": lt.ReductionScheme.COMPUTE_TYPE}
        values |= {f"MIN_ALIGNMENT_{which}_BYTES": self.spec.alignment for which in "ABCD"}
        for name, value in values.items():
            attribute = getattr(attributes, name)
            kind = lt.get_matmul_preference_attribute_dtype(attribute)
            _set(lt.matmul_preference_set_attribute, preference, attribute, value, kind)
        return int(preference)

    def _algorithm(self) -> int:
        """The address of the selected algorithm, which is the first field of its record."""
        return int(self._algorithms.ctypes.data) + self.selected * self._algorithms.itemsize

    def _setting(self, attribute: Any) -> int:
        value, written = np.zeros(1, np.int64), np.zeros(1, np.uint64)
        self._library.matmul_algo_config_get_attribute(
            self._algorithm(), attribute, value.ctypes.data, 4, written.ctypes.data
        )
        return int(value[0])


def _set(setter: Any, record: int, attribute: Any, value: int, kind: Any) -> None:
    held = np.array([value], kind)
    setter(record, attribute, held.ctypes.data, held.nbytes)


def _destroy(lt: Any, operation: int, layouts: Sequence[int]) -> None:
    lt.matmul_desc_destroy(operation)
    for layout in layouts:
        lt.matrix_layout_destroy(layout)
