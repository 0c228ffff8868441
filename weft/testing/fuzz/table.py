"""The ops of random programs: plain rows where one line says all, small functions where parameters follow from shapes.

A row is code with {0}, {1}, ... for tensors, written so that values stay near 1 and away from poles.
`D` is the program's float dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

Shape = tuple[int, ...]


class Made(NamedTuple):
    """A statement that could be added."""

    code: str
    inputs: tuple[str, ...]


class Names(Protocol):
    """What a maker sees of the program so far."""

    rng: np.random.Generator

    def shape(self, name: str) -> Shape: ...

    def like(self, name: str) -> str:
        """A float tensor that broadcasts against this one."""

    def indices(self, count: int, below: int) -> str | None:
        """An integer tensor of shape (count,) with values in [0, below)."""

    def mask(self, name: str) -> str | None:
        """A bool tensor that broadcasts against this one."""

    def fresh(self, shape: Shape) -> str:
        """A new float input of this shape."""


Maker = Callable[[Names, str], Made | None]

# --- one tensor, each element for itself ------------------------------------------------------------------------------------------

_PLAIN = (
    "sin cos tanh sigmoid abs relu relu6 gelu silu mish erf softplus log_sigmoid softsign selu celu elu leaky_relu hard_sigmoid hard_swish "
    "hard_tanh soft_shrink hard_shrink tanh_shrink negative positive atan asinh square sign floor ceil trunc round stop_gradient real conj nan_to_num"
)
UNARY = [f"weft.{name}({{0}})" for name in _PLAIN.split()] + [
    "weft.exp(-weft.abs({0}))", "weft.exp2(weft.tanh({0}))", "weft.expm1(weft.tanh({0}))", "weft.log(weft.abs({0}) + 0.5)",
    "weft.log1p(weft.abs({0}))", "weft.log2(weft.abs({0}) + 0.5)", "weft.log10(weft.abs({0}) + 0.5)", "weft.sqrt({0} * {0} + 0.25)",
    "weft.rsqrt({0} * {0} + 0.25)", "weft.reciprocal({0} * {0} + 0.5)", "weft.tan(weft.tanh({0}))", "weft.asin(0.9 * weft.tanh({0}))",
    "weft.acos(0.9 * weft.tanh({0}))", "weft.atanh(0.9 * weft.tanh({0}))", "weft.acosh(weft.abs({0}) + 1.5)", "weft.sinh(weft.tanh({0}))",
    "weft.cosh(weft.tanh({0}))", "weft.gelu({0}, approximate=True)", "weft.clip({0}, -0.7, 0.9)", "0.5 * {0} ** 2", "weft.tanh({0}) ** 3",
    "2.0 * {0} - 1.0", "1.0 - {0}", "{0} / 3.0", "{0} * 1.0 + 0.0", "{0} - 0.0", "0.0 * {0} + 1.0", "{0} - {0}", "{0} + {0}",
    "weft.stop_gradient({0}) * {0}", "weft.where({0} > 0.1, {0}, 0.25 * {0})", "{0}.astype(H).astype(D)", "weft.leaky_relu({0}, 0.2)",
    "weft.logaddexp({0}, -{0})", "weft.zeros_like({0}) + {0}", "weft.ones_like({0}) * {0}", "weft.full_like({0}, 0.5) * {0}",
]  # fmt: skip

# --- two tensors, broadcast -----------------------------------------------------------------------------------------------------------

BINARY = [
    "weft.add({0}, {1})", "weft.subtract({0}, {1})", "weft.multiply({0}, {1})", "weft.maximum({0}, {1})", "weft.minimum({0}, {1})",
    "weft.hypot({0}, {1})", "weft.atan2({0}, weft.abs({1}) + 0.5)", "weft.logaddexp({0}, {1})", "weft.divide({0}, weft.abs({1}) + 1.0)",
    "weft.pow(weft.abs({0}) + 0.5, weft.tanh({1}))", "{0} - 2.0 * {1}", "weft.copysign({0}, {1})", "weft.where({0} < {1}, {0}, {1})",
    "weft.remainder({0}, weft.abs({1}) + 1.0)", "weft.fmod({0}, weft.abs({1}) + 1.0)", "weft.floor_divide({0}, weft.abs({1}) + 1.0)",
    "weft.clip({0}, weft.minimum({1}, 0.0), 1.0)",
]  # fmt: skip

# --- numbers that are not floats --------------------------------------------------------------------------------------------------------

COMPARE = [
    "weft.less({0}, {1})", "weft.less_equal({0}, {1})", "weft.greater({0}, {1})", "weft.greater_equal({0}, {1})", "weft.equal({0}, {0})",
    "weft.not_equal({0}, {1})", "weft.isnan({0} * {1})", "weft.isfinite({0} + {1})", "weft.isinf({0} - {1})", "weft.signbit({0} * {1})",
    "weft.isclose({0}, {1}, rtol=0.5)", "weft.logical_and({0} > 0.0, {1} > 0.0)", "weft.logical_or({0} > 0.5, {1} < 0.0)",
    "weft.logical_xor({0} > 0.0, {1} > 0.0)", "weft.logical_not({0} > {1})",
]  # fmt: skip
INTEGER = [
    "{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} // ({1} | 1)", "{0} % ({1} | 1)", "weft.bitwise_and({0}, {1})", "weft.bitwise_or({0}, {1})",
    "weft.bitwise_xor({0}, {1})", "weft.bitwise_invert({0})", "weft.bitwise_left_shift({0}, 3)", "weft.bitwise_right_shift({0}, 2)",
    "weft.maximum({0}, {1})", "weft.minimum({0}, {1})", "weft.where({0} < {1}, {0}, {1})", "{0} * 2", "3 - {0}", "weft.abs({0})", "-{0}",
    "weft.sum({0})", "weft.max({0})", "weft.min({0})", "weft.prod({0})", "weft.flip({0})", "weft.cumulative_sum(weft.flatten({0}))",
    "weft.sort(weft.flatten({0}))", "weft.argsort(weft.flatten({0}), descending=True)", "weft.flatten({0})", "weft.count_nonzero({0})",
    "weft.isin({0}, {1})", "weft.searchsorted(weft.sort(weft.flatten({0})), weft.flatten({1}))", "weft.astype({0}, 'int16')",
    "weft.astype({0}, 'uint8')", "weft.astype({0}, 'int64')", "weft.any({0} > {1})", "weft.all({0} > {1})", "weft.argmax({0})", "weft.sign({0})",
    "weft.quantize(weft.astype({0}, 'float32'), 2.0)", "weft.requantize(weft.astype({0}, 'int32'), 0.5)",
    "weft.astype(weft.dequantize(weft.astype({0}, 'int8'), 0.5), 'int32')",
    "weft.argwhere({0} > {1}, size=4)", "weft.boolean_mask(weft.flatten({0}), weft.flatten({0} > {1}), size=3)",
]  # fmt: skip
TO_INTEGER = [
    "weft.astype(weft.round(4.0 * {0}), 'int32')",
    "weft.astype(4.0 * {0}, 'int8')",
    "weft.astype({0} > 0.0, 'int64')",
]
TO_FLOAT = ["{0}.astype(D) / 8.0", "weft.tanh({0}.astype(D))"]

# --- along axes --------------------------------------------------------------------------------------------------------------------------

REDUCE = [
    "weft.sum({0}{how})", "weft.mean({0}{how})", "weft.max({0}{how})", "weft.min({0}{how})",
    "weft.var({0}{how})", "weft.std({0}{how})", "weft.logsumexp({0}{how})", "weft.norm({0}{how})",
    "weft.prod(weft.sigmoid({0}) + 0.5{how})", "weft.norm({0}{how}, ord=1)", "weft.sum({0} * {0}{how})",
    "weft.mean(weft.abs({0}){how})",
]  # fmt: skip
ALONG = [
    "weft.softmax({0}, axis={axis})", "weft.log_softmax({0}, axis={axis})", "weft.layer_norm({0}, axis={axis})",
    "weft.rms_norm({0}, axis={axis})", "weft.sort({0}, axis={axis})", "weft.sort({0}, axis={axis}, descending=True)",
    "weft.cumulative_sum({0}, axis={axis})", "weft.cumulative_prod(weft.tanh({0}), axis={axis})",
    "weft.argsort({0}, axis={axis})", "weft.argmax({0}, axis={axis})", "weft.argmin({0}, axis={axis})",
    "weft.flip({0}, axis={axis})", "weft.roll({0}, 2, axis={axis})", "weft.diff({0}, axis={axis})",
    "weft.take_along_axis({0}, weft.argsort(weft.stop_gradient({0}), axis={axis}), axis={axis})",
    "{0} - weft.max({0}, axis={axis}, keepdims=True)", "{0} - weft.mean({0}, axis={axis}, keepdims=True)",
    "weft.concat([{0}, weft.sin({0})], axis={axis})", "weft.stack([{0}, -{0}], axis={axis})",
    "weft.top_k({0}, 1, axis={axis}).values", "weft.repeat({0}, 2, axis={axis})", "weft.expand_dims({0}, {axis})",
    "weft.unstack({0}, axis={axis})[0]", "weft.split({0}, 1, {axis})[0]", "weft.moveaxis({0}, {axis}, 0)",
    "weft.transpose({0}, 0, {axis})", "weft.count_nonzero({0} > 0.0, axis={axis})", "weft.any({0} > 1.0, axis={axis})",
    "weft.all({0} > -1.0, axis={axis})", "weft.squeeze(weft.sum({0}, axis={axis}, keepdims=True), {axis})",
    "weft.flatten({0})", "weft.tril({0})", "weft.triu({0}, k=1)", "weft.matrix_transpose({0})",
    "weft.diagonal({0})", "weft.trace({0})", "weft.diag({0})", "weft.glu({0}, {axis})",
    "weft.broadcast_to({0}, (2, *{0}.shape))", "weft.tile({0}, (2,) + (1,) * ({0}.ndim - 1))",
    "{0}[::-1]", "{0}[..., ::2]", "{0}[1:]", "{0}[0]", "{0}[..., None]",
    "{0}.at[0].set(0.5)", "{0}.at[-1].add(0.5)", "weft.maxout({0}, {0}.shape[{axis}], {axis})",
    "weft.meshgrid(weft.flatten({0})[:5], weft.flatten({0})[:3])[0]", "weft.dropout({0}, 0.3)",
    "weft.random.uniform({0}.shape, dtype=W).astype(D) * {0}", "weft.random.normal({0}.shape, dtype=W).astype(D) + {0}",
    "weft.einsum('...i->...', {0})", "weft.einsum('...i,...i->i', {0}, {0})", "weft.vecdot({0}, {0}, axis={axis})",
]  # fmt: skip

# --- pairs that are multiplied and summed --------------------------------------------------------------------------------------------------

PRODUCT = [  # {0}: (m, k), {1}: (n, k)
    "0.2 * ({0} @ {1}.mT)", "weft.relu({0} @ weft.matrix_transpose({1})) * 0.3", "weft.tanh(weft.einsum('ij,kj->ki', {0}, {1}))",
    "weft.softmax({0} @ {1}.mT) @ {1}", "weft.tanh(weft.einsum('ij,kj->i', {0}, {1}))", "weft.tanh({0} @ {1}[0])", "weft.tanh({0}.mT @ {0})",
    "weft.tensordot({0}, {1}, axes=((1,), (1,))) * 0.2", "weft.outer({0}[0], {1}[0])", "weft.dot_product_attention({0}[None], {1}[None], {1}[None])",
    "weft.dot_product_attention({0}[None], {0}[None], {0}[None], causal=True)", "weft.matmul({0}, {1}.mT) * 0.2 + weft.sum({1}, axis=1)",
    "weft.mse_loss({0}, weft.mean({1}, axis=0, keepdims=True) * {0})", "weft.mae_loss({0}, 0.5 * {0})", "weft.embedding({0}, weft.argmax({1}, axis=1) % {0}.shape[0])",
    "weft.cross_entropy({0}, weft.argmin({0}, axis=1))", "weft.cross_entropy({0}, weft.argmax({0} * 0.5, axis=1), label_smoothing=0.1, reduction='sum') / 8.0",
]  # fmt: skip
