"""Calls of NVIDIA's libraries for matrix products, convolutions and attention, as plain data that can be stored and compared. `supported`
says which may have a kernel. The libraries are called in runtime/cuda/blas.py and runtime/cuda/dnn.py; what they refuse with `Unsupported`
is computed by a Triton kernel.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from math import prod
from typing import Any

from ....records import dataclass
from ..compile import ALIGNED

BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int8": 1, "int32": 4, "e4m3": 1, "e5m2": 1}
FLOAT8 = ("e4m3", "e5m2")  # 8-bit floats, in memory as codes of type uint8
HALVES = ("float16", "bfloat16")
NARROW = ("int8", *FLOAT8)
_CONVERTED = ("float16", "bfloat16", "float32", "float64")  # types whose products may have a result of another type
PRODUCT_EPILOGUES = (
    "", "bias", "relu", "bias_relu", "gelu_tanh", "bias_gelu_tanh", "gelu_tanh_sum", "bias_gelu_tanh_sum", "dgelu_tanh",
)  # fmt: skip
COMPRESSED_EPILOGUES = ("", "bias", "relu", "bias_relu")  # of products with a compressed operand
SCALES = ("scale_a", "scale_b")  # float32 numbers that a product of 8-bit floats is multiplied by
CONV_EPILOGUES = ("bias", "residual", "relu")  # any of them, in this order
_CONV_ARGUMENTS = {
    "forward": ("x", "w", "y"),
    "data_gradient": ("dy", "w", "dx"),
    "filter_gradient": ("x", "dy", "dw"),
}
_WIDE = 8  # channels of 16 bits in a wide load: kernels that cuDNN compiles on demand move no fewer
_IN_A_ROW = 8  # the rows of a gelu's argument that cuBLASLt stores must have a multiple of this many elements
_COUNTABLE = 2**31 - 1  # the libraries' kernels count in 32 bits


class Unsupported(Exception):
    """A library has no kernel for it."""


@dataclass(frozen=True)
class ProductSpec:
    """c = epilogue(a @ b + residual), a batch of m×k by k×n matrices. Strides count elements; c is contiguous.

    The residual is like c, and may be c itself: a sum of products. The bias has n elements of c's type. The GELU is the tanh approximation,
    the only one in cuBLASLt. Its argument, the sum, is like c: its derivative, dgelu_tanh, reads it, and gelu_tanh_sum also writes it.
    """

    batch: int
    m: int
    n: int
    k: int
    a_strides: tuple[int, int, int]  # from matrix to matrix, row to row, column to column; 0 repeats a matrix
    b_strides: tuple[int, int, int]
    a_dtype: str = "float32"
    b_dtype: str = "float32"
    c_dtype: str = "float32"
    epilogue: str = ""
    residual: bool = False
    tf32: bool = False  # multiply float32 in the reduced precision of tensor cores
    factor: float = 1.0  # of the product of 8-bit floats, and as many numbers in memory
    scales: int = 0
    compressed: int = 0  # bytes of b where it has 2:4 sparsity along k and cuSPARSELt has compressed it; 0: b is dense
    alignment: int = ALIGNED  # the alignment of all addresses, in bytes
    workspace: int | None = None  # the workspace limit in bytes; None: no limit

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments whose addresses `run` gets, in this order."""
        return (
            "a",
            "b",
            *SCALES[: self.scales],
            *(["bias"] if self.has_bias else []),
            *(["residual"] if self.residual else []),
            *(["sum"] if self.has_sum else []),
            "c",
        )

    @property
    def has_bias(self) -> bool:
        return self.epilogue.startswith("bias")

    @property
    def has_sum(self) -> bool:
        return self.epilogue.endswith("sum") or self.epilogue.startswith("dgelu")


@dataclass(frozen=True)
class CompressionSpec:
    """A matrix with 2:4 sparsity, (rows, columns) without gaps, in the form that cuSPARSELt multiplies: opaque, and of one kind of GPU."""

    rows: int
    columns: int
    dtype: str
    compressed: int  # bytes of the result
    workspace: int | None = None  # the workspace limit in bytes; None: no limit

    arguments = ("dense", "compressed")
    tf32 = False


@dataclass(frozen=True)
class ConvSpec:
    """A convolution or one of its two derivatives, all with channels last in memory.

    x is (batch, *spatial, channels), w is (filters, *kernel, channels / groups), y is (batch, *output, filters), the bias has
    an element a filter. All are of one type, but the result (and the residual, which is like it) may also be float32.
    """

    direction: str  # forward, data_gradient or filter_gradient
    batch: int
    channels: int
    filters: int
    spatial: tuple[int, ...]
    kernel: tuple[int, ...]
    output: tuple[int, ...]
    stride: tuple[int, ...]
    padding_before: tuple[int, ...]
    padding_after: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    dtype: str = "float32"
    result_dtype: str = "float32"
    epilogue: tuple[str, ...] = ()
    tf32: bool = False
    workspace: int | None = None  # the workspace limit in bytes; None: no limit

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments whose addresses `run` gets, in this order."""
        first, second, result = _CONV_ARGUMENTS[self.direction]
        return (first, second, *(part for part in self.epilogue if part != "relu"), result)

    def sizes(self, argument: str) -> tuple[int, ...]:
        """The sizes of an argument's axes in their order in memory."""
        match argument:
            case "x" | "dx":
                return (self.batch, *self.spatial, self.channels)
            case "w" | "dw":
                return (self.filters, *self.kernel, self.channels // self.groups)
            case "y" | "dy" | "residual":
                return (self.batch, *self.output, self.filters)
            case "bias":
                return (self.filters,)
        raise ValueError(argument)


@dataclass(frozen=True)
class AttentionSpec:
    """Attention of 16-bit floats, or the gradients of it. A query at position p attends to keys from p - left to p + right; -1 is unlimited.

    All operands are (batch, heads, time, features) with any strides, four for each of q, k, v and, of the gradients, o and do. Results are
    (batch, time, heads, features) without gaps; the stats, the log-sum-exp of each row, are float32 (batch, heads, queries).
    """

    direction: str  # forward or gradients
    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    features: int
    values: int
    strides: tuple[int, ...]
    left: int
    right: int
    lower_right: bool  # the last query is aligned to the last key, not the first to the first
    scale: float
    dtype: str
    stats: bool = True  # written by the forward direction
    tf32: bool = False
    workspace: int | None = None  # the workspace limit in bytes; None: no limit

    @property
    def inputs(self) -> tuple[str, ...]:
        return ("q", "k", "v", "o", "stats", "do") if self.direction == "gradients" else ("q", "k", "v")

    @property
    def results(self) -> tuple[str, ...]:
        return ("dq", "dk", "dv") if self.direction == "gradients" else ("o", "stats") if self.stats else ("o",)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments whose addresses `run` gets, in this order."""
        return (*self.inputs, *self.results)

    def places(self, argument: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Extents and strides of an argument, (batch, heads, time, features)."""
        on_keys, width = (
            argument in ("k", "v", "dk", "dv"),
            self.values if argument in ("v", "dv", "o", "do") else self.features,
        )
        heads, time = (self.key_heads, self.keys) if on_keys else (self.heads, self.queries)
        if argument == "stats":
            return (self.batch, heads, time, 1), (heads * time, time, 1, 1)
        listed = [name for name in self.inputs if name != "stats"]
        if argument in listed:
            begin = 4 * listed.index(argument)
            return (self.batch, heads, time, width), self.strides[begin : begin + 4]
        return (self.batch, heads, time, width), (time * heads * width, width, heads * width, 1)

    def nbytes(self, argument: str) -> int:
        """The bytes from the first to the last element of an argument."""
        sizes, strides = self.places(argument)
        return (1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))) * (4 if argument == "stats" else 2)


Spec = ProductSpec | ConvSpec | AttentionSpec | CompressionSpec
_KINDS: dict[str, type[Spec]] = {
    "product": ProductSpec, "convolution": ConvSpec, "attention": AttentionSpec, "compression": CompressionSpec,
}  # fmt: skip


def filter_order(rank: int) -> tuple[int, ...]:
    """The order in memory of the axes of a filter (filters, channels, *kernel): filter by filter, channels last."""
    return (0, *range(2, rank), 1)


def to_json(spec: Spec) -> str:
    """A spec as text, for keys and for files."""
    return json.dumps({"kind": next(k for k, made in _KINDS.items() if isinstance(spec, made))} | asdict(spec))


def from_json(text: str) -> Spec:
    """The spec that `to_json` has written."""
    known: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in json.loads(text).items()
    }
    return _KINDS[known.pop("kind")](**known)


def supported(spec: Spec) -> bool:
    """Whether a library may have a kernel for it, as far as is known without calling it."""
    if isinstance(spec, AttentionSpec | CompressionSpec):
        return True  # asked for only where the library may have a kernel
    return _product_supported(spec) if isinstance(spec, ProductSpec) else _convolution_supported(spec)


def lines(rows: int, columns: int, row_stride: int, column_stride: int) -> tuple[bool, int] | None:
    """The layout of a matrix: whether its columns are the contiguous lines, and their distance; None if neither rows nor columns are.

    >>> lines(2, 3, 3, 1), lines(2, 3, 1, 2), lines(2, 3, 6, 2)
    ((False, 3), (True, 2), None)
    """
    if (column_stride == 1 or columns == 1) and (rows == 1 or row_stride >= columns):
        return False, row_stride if rows > 1 else columns
    if (row_stride == 1 or rows == 1) and (columns == 1 or column_stride >= rows):
        return True, column_stride if columns > 1 else rows
    return None


def _product_supported(spec: ProductSpec) -> bool:
    if not all(0 < size <= _COUNTABLE for size in (spec.batch, spec.m, spec.n, spec.k)):
        return False
    if spec.compressed:
        return spec.epilogue in COMPRESSED_EPILOGUES and not spec.residual and spec.a_strides[1:] == (spec.k, 1)
    if lines(spec.m, spec.k, *spec.a_strides[1:]) is None or lines(spec.k, spec.n, *spec.b_strides[1:]) is None:
        return False
    if spec.epilogue not in PRODUCT_EPILOGUES or (spec.epilogue and spec.a_dtype == "float64"):
        return False
    if spec.has_sum and (spec.batch > 1 or spec.n % _IN_A_ROW or spec.residual):
        return False
    if spec.a_dtype in NARROW:
        return _narrow_supported(spec)
    return spec.a_dtype == spec.b_dtype and _result_fits(spec.a_dtype, spec.c_dtype)


def _narrow_supported(spec: ProductSpec) -> bool:
    """Products of 8 bits: both operands have k contiguous, in whole words, and there is no epilogue."""
    if spec.epilogue or spec.residual or spec.a_strides[2] != 1 or spec.b_strides[1] != 1:
        return False
    if spec.a_dtype == "int8":
        return spec.b_dtype == "int8" and spec.c_dtype == "int32" and not (spec.k % 4 or spec.n % 4)
    both_e5m2 = spec.a_dtype == spec.b_dtype == "e5m2"  # which cuBLASLt does not multiply
    whole = not (spec.k % 16 or spec.n % 16 or spec.m % 16)
    return spec.b_dtype in FLOAT8 and not both_e5m2 and whole and spec.c_dtype in (*HALVES, "float32")


def _result_fits(dtype: str, result: str) -> bool:
    return dtype in _CONVERTED and (result == dtype or (dtype in HALVES and result == "float32"))


def _convolution_supported(spec: ConvSpec) -> bool:
    if spec.direction not in _CONV_ARGUMENTS or not _sizes_fit(spec) or not _epilogue_fits(spec):
        return False
    if spec.dtype == "float64" or not _result_fits(spec.dtype, spec.result_dtype):
        return False
    if spec.result_dtype != spec.dtype and any(n // spec.groups % _WIDE for n in (spec.channels, spec.filters)):
        return False
    return all(0 < prod(spec.sizes(argument)) <= _COUNTABLE for argument in spec.arguments)


def _sizes_fit(spec: ConvSpec) -> bool:
    """The windows are those of the padded input, and there are one to three dimensions of them."""
    padding = zip(spec.padding_before, spec.padding_after, strict=True)
    facts = zip(spec.spatial, spec.kernel, spec.stride, padding, spec.dilation, strict=True)
    output = tuple((n + sum(p) - (k - 1) * d - 1) // s + 1 for n, k, s, p, d in facts)
    divided = spec.channels % spec.groups == spec.filters % spec.groups == 0
    no_cut = min(*spec.padding_before, *spec.padding_after) >= 0
    return 1 <= len(output) <= 3 and output == spec.output and divided and no_cut


def _epilogue_fits(spec: ConvSpec) -> bool:
    return _in_order(spec.epilogue) and (spec.direction == "forward" or not spec.epilogue)


def _in_order(epilogue: Sequence[str]) -> bool:
    return tuple(part for part in CONV_EPILOGUES if part in epilogue) == tuple(epilogue)
