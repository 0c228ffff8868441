"""A network that computes in int8, converted from one quantized by `int8`.

    int8(model, batches)
    fast = to_int8(model)               # products of int8, summed in int32; activations between layers are int8
    weft.save("fast.weft", fast, x)

The network is traced in QDQ form (qdq.py), then its graph is rewritten (int8_rewrite.py). So it may be any module, with residual blocks, concatenations and its
own `forward`; the compiler fuses bias, activation and requantization into the kernels of products and convolutions.
"""

from __future__ import annotations

from typing import Any

from ..errors import UserError
from ..nn.module import Module
from ..ops.convert import asarray
from ..tensor import Tensor, wrap
from .folding import PRODUCTS
from .int8_rewrite import integer_form
from .parametrize import is_parametrized, parametrization_of
from .qdq import IntegerWeight, QuantizeDequantize, qdq, recorded_pairs
from .taps import BEFORE, tapped


def to_int8(model: Module) -> Int8Network:
    """Convert a network quantized by `int8` to one that computes with 8-bit integers. The given network is not changed."""
    body = qdq(model)
    if not any(_is_integer(layer) for layer in body.modules()):
        raise UserError(
            "to_int8",
            "a layer with weights of up to 8 bits on a symmetric grid, and an input on a grid for the whole tensor, is required, got none. "
            "Call int8 with its defaults.",
        )
    return Int8Network(body)


class Int8Network(Module):
    """Takes and returns floats. `float_layers` names the convolutions and linear layers that compute in float."""

    def __init__(self, body: Module) -> None:
        self.body = body

    def forward(self, x: Any) -> Tensor:
        with recorded_pairs() as pairs:
            result = self.body(asarray(x))
        if not isinstance(result, Tensor):
            raise UserError("to_int8", f"a network with one result is required, got a {type(result).__name__}.")
        return wrap(integer_form(result.node, pairs))

    @property
    def float_layers(self) -> list[str]:
        """The layers that were skipped, or whose grids cannot be represented in int8."""
        named = self.body.named_modules()
        return [path for path, layer in named.items() if isinstance(layer, PRODUCTS) and not _is_integer(layer)]


def _is_integer(layer: Module) -> bool:
    return (
        isinstance(tapped(layer, BEFORE), QuantizeDequantize)
        and is_parametrized(layer, "weight")
        and isinstance(parametrization_of(layer, "weight"), IntegerWeight)
    )
