"""Ops of the domain ai.onnx.ml that prepare features."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ops.elementwise import astype
from ...ops.indexing import take
from ...ops.movement import reshape
from ...tensor import Tensor
from ..registry import ML, op
from ..values import Value, known
from .strings import as_texts


@op("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor(x: Tensor, indices: Tensor) -> Tensor:
    return take(x, reshape(indices, (-1,)), axis=-1)


@op("Binarizer", domain=ML)
def binarizer(x: Tensor, *, threshold: float = 0.0) -> Tensor:
    return astype(x > threshold, x.dtype)


@op("LabelEncoder", domain=ML, since=2, raw=True)
def label_encoder(
    x: Value,
    *,
    keys_strings: tuple[str, ...] | None = None,
    keys_int64s: tuple[int, ...] | None = None,
    keys_floats: tuple[float, ...] | None = None,
    keys_tensor: np.ndarray | None = None,
    values_strings: tuple[str, ...] | None = None,
    values_int64s: tuple[int, ...] | None = None,
    values_floats: tuple[float, ...] | None = None,
    values_tensor: np.ndarray | None = None,
    default_string: str = "_Unused",
    default_int64: int = -1,
    default_float: float = -0.0,
    default_tensor: np.ndarray | None = None,
) -> np.ndarray:
    """Each key replaced by its value; an unknown one by the default."""
    keys = next(k for k in (keys_strings, keys_int64s, keys_floats, keys_tensor) if k is not None)
    kinds: list[tuple[Any, Any, Any]] = [
        (values_strings, default_string, object), (values_int64s, default_int64, np.int64),
        (values_floats, default_float, np.float32),
    ]  # fmt: skip
    if values_tensor is not None:
        default = None if default_tensor is None else default_tensor.reshape(-1)[0]
        values, fallback, dtype = values_tensor.ravel().tolist(), default, values_tensor.dtype
    else:
        values, fallback, dtype = next(kind for kind in kinds if kind[0] is not None)
    table = dict(zip(_listed(keys), values, strict=True))
    array = known(x, "the input of LabelEncoder")
    found = [_lookup(table, key, fallback) for key in array.ravel().tolist()]
    return as_texts(found, array.shape) if np.dtype(dtype) == object else np.array(found, dtype).reshape(array.shape)


def _listed(keys: Any) -> list[Any]:
    return keys.ravel().tolist() if isinstance(keys, np.ndarray) else list(keys)


def _lookup(table: dict[Any, Any], key: Any, fallback: Any) -> Any:
    if isinstance(key, bytes):
        key = key.decode("utf-8", "replace")
    if isinstance(key, float) and key != key:
        return next((v for k, v in table.items() if k != k), fallback)
    return table.get(key, fallback)
