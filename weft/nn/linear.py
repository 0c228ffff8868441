"""Linear, bilinear and embedding layers."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import UserError
from ..ops.contract import einsum, matmul
from ..ops.elementwise import where
from ..ops.indexing import embedding
from ..ops.movement import expand_dims, transpose
from ..tensor import ArrayLike, Tensor, as_tensor
from . import checks
from . import init as inits
from .activations import Activation, known
from .activations import activation as find
from .module import Init, Module, parameter


class Linear(Module):
    """y = x W^T + b, over the last axis; weight: (outputs, inputs), bias: (outputs,).

    >>> Linear(3, 2)(as_tensor([[1.0, 2.0, 3.0]])).shape
    (1, 2)
    """

    def __init__(
        self,
        inputs: int | None,
        outputs: int,
        *,
        bias: bool = True,
        activation: Activation = None,
        init: Init = "he_uniform",
        bias_init: Init = "zeros",
    ) -> None:
        inputs, outputs = (
            checks.check_optional_count("Linear", "inputs", inputs),
            checks.check_count("Linear", "outputs", outputs),
        )
        self.weight = parameter((outputs, inputs), init)
        self.bias = parameter((outputs,), bias_init) if bias else None
        self.activation = known(activation)

    def sizes(self, x: ArrayLike) -> Mapping[str, tuple[int, ...]]:
        return {"weight": (self.weight.shape[0], checks.feature_size("Linear", x, -1))}

    def forward(self, x: ArrayLike) -> Tensor:
        y = matmul(checks.check_channels("Linear", x, self.weight.shape[1], axis=-1), transpose(self.weight))
        return find(self.activation)(y if self.bias is None else y + self.bias)


class Bilinear(Module):
    """y_k = sum over i, j of a_i W_kij b_j + bias_k, over the last axes of a and b; weight: (outputs, left, right)."""

    def __init__(self, left: int | None, right: int | None, outputs: int, *, bias: bool = True) -> None:
        left, right = (
            checks.check_optional_count("Bilinear", "left features", left),
            checks.check_optional_count("Bilinear", "right features", right),
        )
        self.weight = parameter((checks.check_count("Bilinear", "outputs", outputs), left, right), "fan_in_uniform")
        self.bias = parameter((outputs,), "zeros") if bias else None

    def sizes(self, a: ArrayLike, b: ArrayLike) -> Mapping[str, tuple[int, ...]]:
        return {"weight": (self.weight.shape[0], *(checks.feature_size("Bilinear", x, -1) for x in (a, b)))}

    def forward(self, a: ArrayLike, b: ArrayLike) -> Tensor:
        _, left, right = self.weight.shape
        a, b = checks.check_channels("Bilinear", a, left, axis=-1), checks.check_channels("Bilinear", b, right, axis=-1)
        y = einsum("...i,kij,...j->...k", a, self.weight, b)
        return y if self.bias is None else y + self.bias


class Embedding(Module):
    """y = W[x]: a row of a table for each index; weight: (count, features). The index `padding` gives 0 and has no gradient.

    >>> Embedding(10, 4)(as_tensor([[1, 2, 3]])).shape
    (1, 3, 4)
    """

    def __init__(self, count: int, features: int, *, padding: int | None = None, init: Init = "normal") -> None:
        rows, width = (
            checks.check_count("Embedding", "rows", count),
            checks.check_count("Embedding", "features", features),
        )
        if padding is not None and not 0 <= padding < rows:
            raise UserError("Embedding", f"a padding from 0 to {rows - 1} is required, got {padding}.")
        self.weight = parameter((rows, width), inits.normal(std=1.0) if init == "normal" else init)
        self.padding = padding

    def forward(self, x: ArrayLike) -> Tensor:
        rows = embedding(self.weight, x)
        if self.padding is None:
            return rows
        return where(expand_dims(as_tensor(x) == self.padding, -1), 0.0, rows)
