"""Random numbers, drawn from weft's stream: a `seed` in the file is ignored, because ONNX does not say what numbers it gives."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ops.elementwise import astype, log
from ...ops.movement import expand_dims
from ...ops.reduce import argmax
from ...random import normal, uniform
from ...tensor import Tensor
from ..registry import op
from ..values import Value, weft_dtype

Ints = tuple[int, ...]


def _normal(shape: Ints, dtype: Any, mean: float, scale: float) -> Tensor:
    return astype(normal(shape) * scale + mean, dtype)


def _uniform(shape: Ints, dtype: Any, low: float, high: float) -> Tensor:
    return astype(uniform(shape) * (high - low) + low, dtype)


@op("RandomNormal", foldable=False)
def random_normal(*, shape: Ints, dtype: int = 1, mean: float = 0.0, scale: float = 1.0, seed: float = 0.0) -> Tensor:
    return _normal(shape, weft_dtype(dtype), mean, scale)


@op("RandomUniform", foldable=False)
def random_uniform(*, shape: Ints, dtype: int = 1, high: float = 1.0, low: float = 0.0, seed: float = 0.0) -> Tensor:
    return _uniform(shape, weft_dtype(dtype), low, high)


def _dtype_like(x: Value, dtype: int | None) -> Any:
    return x.dtype if dtype is None else weft_dtype(dtype)


@op("RandomNormalLike", foldable=False)
def random_normal_like(
    x: Tensor, *, dtype: int | None = None, mean: float = 0.0, scale: float = 1.0, seed: float = 0.0
) -> Tensor:
    return _normal(x.shape, _dtype_like(x, dtype), mean, scale)


@op("RandomUniformLike", foldable=False)
def random_uniform_like(
    x: Tensor, *, dtype: int | None = None, high: float = 1.0, low: float = 0.0, seed: float = 0.0
) -> Tensor:
    return _uniform(x.shape, _dtype_like(x, dtype), low, high)


@op("Bernoulli", foldable=False)
def bernoulli(x: Tensor, *, dtype: int | None = None, seed: float = 0.0) -> Tensor:
    return astype(uniform(x.shape) < astype(x, "float32"), _dtype_like(x, dtype))


@op("Multinomial", foldable=False)
def multinomial(x: Tensor, *, dtype: int = 6, sample_size: int = 1, seed: float = 0.0) -> Tensor:
    """Classes drawn with unnormalized log probabilities, by the Gumbel trick."""
    drawn = uniform((x.shape[0], sample_size, x.shape[1]))
    noise = -log(-log(drawn + np.finfo(np.float32).tiny))
    return astype(argmax(expand_dims(astype(x, "float32"), axis=1) + noise, axis=-1), weft_dtype(dtype))
