"""Activation functions, softmax and dropout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...dtypes import bool_
from ...ops import activation as a
from ...ops.creation import one_hot, ones
from ...ops.elementwise import astype, expm1, maximum, sigmoid, where
from ...ops.math import clip
from ...ops.movement import moveaxis, reshape
from ...ops.reduce import argmax
from ...ops.statistics import log_softmax, softmax
from ...random import dropout
from ...tensor import Tensor
from ..registry import OnnxCall, op
from ..values import known


@op("Relu")
def relu(x: Tensor) -> Tensor:
    return a.relu(x) if x.dtype.is_float else maximum(x, 0)


@op("LeakyRelu")
def leaky_relu(x: Tensor, *, alpha: float = 0.01) -> Tensor:
    return where(x < 0, x * alpha, x)


@op("ThresholdedRelu")
def thresholded_relu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return where(x > alpha, x, 0)


@op("PRelu")
def prelu(x: Tensor, slope: Tensor) -> Tensor:
    return where(x < 0, x * slope, x)


@op("Elu")
def elu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return a.elu(x, alpha)


@op("Celu")
def celu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return a.celu(x, alpha)


@op("Selu")
def selu(x: Tensor, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875) -> Tensor:
    return gamma * where(x > 0, x, alpha * expm1(where(x > 0, 0, x)))


@op("HardSigmoid")
def hard_sigmoid(x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    return clip(alpha * x + beta, 0.0, 1.0)


@op("HardSwish")
def hard_swish(x: Tensor) -> Tensor:
    return x * clip(x / 6.0 + 0.5, 0.0, 1.0)


@op("Softplus")
def softplus(x: Tensor) -> Tensor:
    return a.softplus(x)


@op("Softsign")
def softsign(x: Tensor) -> Tensor:
    return a.softsign(x)


@op("Mish")
def mish(x: Tensor) -> Tensor:
    return a.mish(x)


@op("Gelu")
def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    return a.gelu(x, approximate)


@op("Swish")
def swish(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return x * sigmoid(alpha * x)


@op("Shrink")
def shrink(x: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    if x.dtype.is_float:
        return where(x < -lambd, x + bias, where(x > lambd, x - bias, 0))
    wide = astype(x, "float64")
    return astype(shrink(wide, bias=bias, lambd=lambd), x.dtype)


def _as_matrix(function: Callable[..., Any]) -> Callable[..., Any]:
    """Before opset 13 the dimensions from `axis` on are taken together."""

    def call(x: Tensor, *, axis: int = 1) -> Tensor:
        split = axis % x.ndim if x.ndim else 0
        rows = int(np.prod(x.shape[:split], dtype=np.int64))
        columns = int(np.prod(x.shape[split:], dtype=np.int64))
        return reshape(function(reshape(x, (rows, columns)), -1), x.shape)

    return call


def _along_axis(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(x: Tensor, *, axis: int = -1) -> Any:
        return function(x, axis)

    return call


def hardmax(x: Tensor, axis: int) -> Tensor:
    """1 at the first maximum along the axis, 0 elsewhere."""
    return moveaxis(one_hot(argmax(x, axis=axis), x.shape[axis], dtype=x.dtype), -1, axis)


for _name, _function in {"Softmax": softmax, "LogSoftmax": log_softmax, "Hardmax": hardmax}.items():
    op(_name)(_as_matrix(_function))
    op(_name, since=13)(_along_axis(_function))


def _kept(x: Tensor, call: OnnxCall) -> Any:
    return (x, ones(x.shape, dtype=bool_)) if call.outputs > 1 else x


@op("Dropout")
def dropout_of_inference(x: Tensor, *, ratio: float = 0.5, call: OnnxCall) -> Any:
    return _kept(x, call)


@op("Dropout", since=12, host=("training_mode",), foldable=False)
def dropout_by_mode(
    x: Tensor, ratio: Tensor | None = None, training_mode: np.ndarray | None = None, *, seed: int = 0, call: OnnxCall
) -> Any:
    """Without `training_mode` the input itself."""
    rate = 0.5 if ratio is None else float(known(ratio, "the ratio of Dropout"))
    if training_mode is None or not bool(training_mode) or rate == 0.0:
        return _kept(x, call)
    scale = dropout(ones(x.shape, dtype=x.dtype), rate)
    return x * scale, scale != 0


@op("SwiGLU")
def swiglu(x: Tensor, gate: Tensor, *, alpha: float = 1.0) -> Tensor:
    return swish(x, alpha=alpha) * gate
