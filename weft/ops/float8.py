"""8-bit floats: codes of type uint8 with a scale for the whole tensor, for products on GPUs that multiply them.

    e4m3    1 sign, 4 exponent and 3 mantissa bits, up to 448, no infinities: weights and activations
    e5m2    1 sign, 5 exponent and 2 mantissa bits, up to 57344: numbers of a wider range, such as gradients

like float8_e4m3fn and float8_e5m2 of ml_dtypes. Rounding is to nearest, ties to even; values out of range become the largest number. A product
of two such tensors is written with `from_float8`: on GPUs from compute capability 8.9 the tensor cores multiply the codes themselves, with
sums in float32. On other devices they are decoded first, which is slow.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import ml_dtypes
import numpy as np

from ..dtypes import float16, float32, uint8
from ..errors import UserError
from ..graph.node import Node, Op, Type
from ..tensor import ArrayLike, Tensor, as_tensor, emit, function
from .contract import matmul
from .creation import full
from .declare import Sample, Wrong, as_float, on_nodes
from .elementwise import astype, copysign, maximum, minimum, round, view, where
from .movement import permute_dims

Format = Literal["e4m3", "e5m2"]
DTYPES: dict[str, Any] = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}
MANTISSA = {"e4m3": 3, "e5m2": 2}
LEAST_EXPONENT = {"e4m3": -6, "e5m2": -14}  # of normal numbers
HALF_BITS = 10  # of float16's mantissa: float16 has all values of both formats
TO_HALF = {"e4m3": 256.0, "e5m2": 1.0}  # the exponent of float16 has another bias: 2^(15 - 7)
NAN = {"e4m3": 0x7F, "e5m2": 0x7E}


@function
def to_float8(x: ArrayLike, scale: ArrayLike = 1.0, *, format: Format = "e4m3") -> Tensor:
    """The codes of x / scale as 8-bit floats. Its derivative is not defined: train in float, and convert afterwards.

    >>> to_float8([1.0, -0.3, 1000.0]).tolist(), from_float8(to_float8([1.0, -0.3, 1000.0])).tolist()
    ([56, 170, 126], [1.0, -0.3125, 448.0])
    """
    _check("to_float8", format)
    x = astype(as_float(as_tensor(x), "to_float8"), float32) / astype(as_tensor(scale, float32), float32)
    most, mantissa = LARGEST[format], MANTISSA[format]
    size = minimum(abs(x), most)
    exponent = maximum(astype(view(size, "int32") >> 23, "int32") - 127, LEAST_EXPONENT[format])
    step = view(
        (exponent - mantissa + 127) << 23, "float32"
    )  # 2^(exponent - mantissa): the distance between adjacent numbers
    nearest = round(size / step) * step
    half = astype(copysign(nearest / TO_HALF[format], x), float16)
    bits = view(half, "uint16") >> (HALF_BITS - mantissa)
    sign = astype(bits >> (15 - HALF_BITS + mantissa - 7), "uint8") & 0x80
    codes = sign | (astype(bits, "uint8") & 0x7F)
    return where(x == x, codes, full((), NAN[format], dtype=uint8))


@function
def from_float8(codes: ArrayLike, scale: ArrayLike | None = None, *, format: Format = "e4m3") -> Tensor:
    """The float32 values of codes of 8-bit floats, times a scale.

    >>> from_float8(to_float8([6.0, 0.1], 2.0), 2.0).tolist()
    [6.0, 0.1015625]
    """
    values = emit(_FROM_FLOAT8, (as_tensor(codes),), (format,))
    return values if scale is None else values * astype(as_tensor(scale, float32), float32)


@function
def float8_matmul(
    a: ArrayLike,
    b: ArrayLike,
    scale_a: ArrayLike = 1.0,
    scale_b: ArrayLike = 1.0,
    *,
    formats: tuple[Format, Format] = ("e4m3", "e4m3"),
) -> Tensor:
    """(a scale_a) (b scale_b)^T of codes (..., m, k) and (n, k), the layout of a linear layer's weight; sums and result are float32.

    >>> float8_matmul(to_float8([[1.0, 2.0]]), to_float8([[0.5, 0.25]]), 10.0).tolist()
    [[10.0]]
    """
    a, b = as_tensor(a), as_tensor(b)
    if b.ndim != 2:
        raise UserError("float8_matmul", f"a second operand of shape (n, k) is required, got {b.shape}.")
    product = matmul(from_float8(a, format=formats[0]), permute_dims(from_float8(b, format=formats[1]), (1, 0)))
    return product * (as_tensor(scale_a, float32) * as_tensor(scale_b, float32))


def _check(where_: str, format: str) -> None:
    if format not in DTYPES:
        raise UserError(where_, f"the format e4m3 or e5m2 is required, got {format!r}.")


def _infer(codes: Node, format: str) -> Type:
    _check("from_float8", format)
    if codes.dtype is not uint8:
        raise UserError("from_float8", f"codes of dtype uint8 are required, got {codes.dtype.name}.")
    return Type(codes.shape, float32)


def _reference(codes: np.ndarray, format: str) -> np.ndarray:
    values: np.ndarray = codes.view(DTYPES[format]).astype(np.float32)
    return values


def _decoded(codes: Tensor, format: str) -> Tensor:
    """Decode through float16, which has the same fields at other positions."""
    wide = astype(codes, "uint16")
    moved = HALF_BITS - MANTISSA[format]
    half = view(((wide & 0x80) << 8) | ((wide & 0x7F) << moved), "float16")
    values = astype(half, float32) * TO_HALF[format]
    return where((codes & 0x7F) == NAN[format], float("nan"), values) if format == "e4m3" else values


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for format in DTYPES:
        yield Sample([np.arange(256, dtype=np.uint8).reshape(16, 16)], (format,))
        yield Sample([rng.integers(0, 256, (3, 0), np.uint8)], (format,))


_UNKNOWN: Any = "e3m4"
_FROM_FLOAT8 = Op(
    "from_float8", "elementwise", _infer, _reference, None, ("format",), 1, samples=_samples,
    errors=(
        Wrong(lambda: from_float8([1.0]), "[from_float8] codes of dtype uint8 are required, got float32"),
        Wrong(lambda: from_float8(full((), 0, dtype=uint8), format=_UNKNOWN), "[from_float8] the format e4m3 or e5m2 is required, got 'e3m4'"),
    ),
    decompose=on_nodes(lambda codes, format: _decoded(codes, format)), cost=4, precision="exact",
)  # fmt: skip
_FROM_FLOAT8.external = False  # what it decomposes into is part of weft, so compiled code is kept on disk
