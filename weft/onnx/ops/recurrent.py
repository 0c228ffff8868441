"""RNN, GRU and LSTM: the products with the inputs for all steps at once, then one scan over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypedDict, Unpack

from ...control import scan
from ...errors import UserError
from ...ops import activation as a
from ...ops.contract import matmul
from ...ops.creation import iota, zeros
from ...ops.elementwise import round, sigmoid, tanh, where
from ...ops.math import clip
from ...ops.movement import expand_dims, moveaxis, reshape, split, stack, transpose
from ...tensor import Tensor
from ..registry import MICROSOFT, op
from .indexing import reverse_sequence
from .quantized import levels_of

Activation = Callable[[Tensor], Tensor]
# Functions with up to two parameters, and their defaults.
_ACTIVATIONS: dict[str, tuple[Callable[..., Tensor], tuple[float, ...]]] = {
    "relu": (lambda x: where(x > 0, x, 0), ()),
    "tanh": (lambda x: tanh(x), ()),
    "sigmoid": (lambda x: sigmoid(x), ()),
    "softsign": (lambda x: a.softsign(x), ()),
    "softplus": (lambda x: a.softplus(x), ()),
    "affine": (lambda x, alpha, beta: alpha * x + beta, (1.0, 0.0)),
    "leakyrelu": (lambda x, alpha: where(x < 0, alpha * x, x), (0.01,)),
    "thresholdedrelu": (lambda x, alpha: where(x >= alpha, x, 0), (1.0,)),
    "scaledtanh": (lambda x, alpha, beta: alpha * tanh(beta * x), (1.0, 1.0)),
    "hardsigmoid": (lambda x, alpha, beta: clip(alpha * x + beta, 0.0, 1.0), (0.2, 0.5)),
    "elu": (lambda x, alpha: a.elu(x, alpha), (1.0,)),
}


class RecurrentAttributes(TypedDict, total=False):
    """The attributes of all recurrent ops."""

    activation_alpha: tuple[float, ...]
    activation_beta: tuple[float, ...]
    activations: tuple[str, ...]
    clip: float
    direction: str
    hidden_size: int


LSTM_ACTIVATIONS = ("Sigmoid", "Tanh", "Tanh")


def _activations(names: Sequence[str], attributes: RecurrentAttributes) -> list[Activation]:
    left = [list(attributes.get("activation_alpha", ())), list(attributes.get("activation_beta", ()))]
    limit, found = attributes.get("clip"), []
    for name in names:
        if name.lower() not in _ACTIVATIONS:
            raise UserError("onnx", f"an activation of {', '.join(_ACTIVATIONS)} is required, got {name!r}.")
        function, defaults = _ACTIVATIONS[name.lower()]
        settings = [given.pop(0) if given else default for given, default in zip(left, defaults, strict=False)]
        found.append(_clipped(function, settings, limit))
    return found


def _clipped(function: Callable[..., Tensor], settings: list[float], limit: float | None) -> Activation:
    return lambda x: function(x if limit is None else clip(x, -limit, limit), *settings)


class Direction(NamedTuple):
    """The weights of one direction, and its initial state."""

    w: Tensor  # (gates * hidden, inputs)
    r: Tensor  # (gates * hidden, hidden)
    wb: Tensor
    rb: Tensor
    state: tuple[Tensor, ...]
    peephole: Tensor | None
    activations: list[Activation]
    rounded: Activation  # what the operands of products are rounded to


Step = Callable[[Direction, Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]]


def _run(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None,
    lengths: Tensor | None,
    states: Sequence[Tensor | None],
    peepholes: Tensor | None,
    usual: Sequence[str],
    layout: int,
    step: Step,
    attributes: RecurrentAttributes,
    rounded: Activation = lambda x: x,
) -> tuple[Tensor, ...]:
    """All outputs (time, directions, batch, hidden) and the last states. `usual` are the activations of one direction."""
    direction = attributes.get("direction", "forward")
    functions = _activations(attributes.get("activations") or tuple(usual) * w.shape[0], attributes)
    if direction not in ("forward", "reverse", "bidirectional"):
        raise UserError("onnx", f"the direction forward, reverse or bidirectional is required, got {direction!r}.")
    x = transpose(x, 0, 1) if layout else x
    states = [None if s is None else transpose(s, 0, 1) if layout else s for s in states]
    count, each = w.shape[0], len(functions) // w.shape[0]
    start = (count, x.shape[1], r.shape[-1])
    full = [zeros(start, dtype=x.dtype) if s is None else s for s in states]
    bias = zeros((count, 2 * w.shape[1]), dtype=x.dtype) if b is None else b
    results = []
    for i in range(count):
        wb, rb = split(bias[i], 2)
        part = Direction(
            w[i], r[i], wb, rb, tuple(s[i] for s in full), None if peepholes is None else peepholes[i],
            functions[i * each : (i + 1) * each], rounded,
        )  # fmt: skip
        results.append(_one_direction(x, part, lengths, direction == "reverse" or i == 1, step))
    y = stack([outputs for outputs, _ in results], axis=1)
    last = [stack([state[k] for _, state in results]) for k in range(len(full))]
    if layout:
        return moveaxis(y, 2, 0), *(transpose(s, 0, 1) for s in last)
    return y, *last


def _one_direction(
    x: Tensor, part: Direction, lengths: Tensor | None, backwards: bool, step: Step
) -> tuple[Tensor, tuple[Tensor, ...]]:
    if lengths is not None and backwards:
        x = reverse_sequence(x, lengths, batch_axis=1, time_axis=0)
    projected = matmul(part.rounded(x), transpose(part.w)) + part.wb
    times = iota(x.shape[0])

    def body(state: tuple[Tensor, ...], now: tuple[Tensor, Tensor]) -> tuple[tuple[Tensor, ...], Tensor]:
        gates, time = now
        new = step(part, gates, state)
        if lengths is None:
            return new, new[0]
        alive = expand_dims(time < lengths.astype("int64"), axis=1)
        return tuple(where(alive, n, s) for n, s in zip(new, state, strict=True)), where(alive, new[0], 0)

    last, outputs = scan(body, part.state, (projected, times), reverse=backwards and lengths is None)
    if lengths is not None and backwards:
        outputs = reverse_sequence(outputs, lengths, batch_axis=1, time_axis=0)
    if lengths is not None:  # a sequence without elements ends in zeros, as in ONNX Runtime
        last = tuple(where(expand_dims(lengths > 0, axis=1), state, 0) for state in last)
    return outputs, last


def _rnn_step(part: Direction, gates: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (part.activations[0](gates + matmul(state[0], transpose(part.r)) + part.rb),)


def _gru_step(linear_before_reset: bool) -> Step:
    def step(part: Direction, gates: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (h,), (f, g) = state, part.activations
        hidden = h.shape[-1]
        xz, xr, xh = split(gates, 3, axis=-1)
        inner = matmul(h, transpose(part.r[: 2 * hidden])) + part.rb[: 2 * hidden]
        hz, hr = split(inner, 2, axis=-1)
        z, reset = f(xz + hz), f(xr + hr)
        weight, bias = transpose(part.r[2 * hidden :]), part.rb[2 * hidden :]
        recurrent = reset * (matmul(h, weight) + bias) if linear_before_reset else matmul(reset * h, weight) + bias
        return ((1 - z) * g(xh + recurrent) + z * h,)

    return step


def _lstm_step(input_forget: bool) -> Step:
    def step(part: Direction, gates: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (h, c), (f, g, k) = state, part.activations
        i, o, forget, cell = split(gates + matmul(part.rounded(h), transpose(part.r)) + part.rb, 4, axis=-1)
        pi, po, pf = (None,) * 3 if part.peephole is None else split(part.peephole, 3)
        i = f(i if pi is None else i + pi * c)
        forget = 1 - i if input_forget else f(forget if pf is None else forget + pf * c)
        new = forget * c + i * g(cell)
        return f(o if po is None else o + po * new) * k(new), new

    return step


@op("RNN")
def rnn(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lengths: Tensor | None = None,
    h: Tensor | None = None,
    *,
    layout: int = 0,
    **attributes: Unpack[RecurrentAttributes],
) -> Any:
    return _run(x, w, r, b, lengths, [h], None, ("Tanh",), layout, _rnn_step, attributes)


@op("GRU")
def gru(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lengths: Tensor | None = None,
    h: Tensor | None = None,
    *,
    layout: int = 0,
    linear_before_reset: int = 0,
    **attributes: Unpack[RecurrentAttributes],
) -> Any:
    step = _gru_step(bool(linear_before_reset))
    return _run(x, w, r, b, lengths, [h], None, ("Sigmoid", "Tanh"), layout, step, attributes)


@op("LSTM")
def lstm(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lengths: Tensor | None = None,
    h: Tensor | None = None,
    c: Tensor | None = None,
    p: Tensor | None = None,
    *,
    input_forget: int = 0,
    layout: int = 0,
    **attributes: Unpack[RecurrentAttributes],
) -> Any:
    step = _lstm_step(bool(input_forget))
    return _run(x, w, r, b, lengths, [h, c], p, LSTM_ACTIVATIONS, layout, step, attributes)


@op("DynamicQuantizeLSTM", domain=MICROSOFT)
def quantized_lstm(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lengths: Tensor | None = None,
    h: Tensor | None = None,
    c: Tensor | None = None,
    p: Tensor | None = None,
    w_scale: Tensor | None = None,
    w_zero: Tensor | None = None,
    r_scale: Tensor | None = None,
    r_zero: Tensor | None = None,
    *,
    input_forget: int = 0,
    **attributes: Unpack[RecurrentAttributes],
) -> Any:
    """An LSTM with 8-bit weights (directions, inputs, gates); inputs and states are rounded to 8 bits before each product.

    Levels are those of a whole batch, as in ONNX Runtime; on several threads it may choose them for each part of a batch.
    """
    wide = [_dequantized(*parts) for parts in ((w, w_scale, w_zero), (r, r_scale, r_zero))]
    step = _lstm_step(bool(input_forget))
    return _run(x, wide[0], wide[1], b, lengths, [h, c], p, LSTM_ACTIVATIONS, 0, step, attributes, _in_8_bits)


def _dequantized(w: Tensor, scale: Tensor | None, zero: Tensor | None) -> Tensor:
    """Weights as (directions, gates, inputs); scales are of a direction, or of each of its gates."""
    if scale is None or zero is None:
        raise UserError("onnx", "DynamicQuantizeLSTM needs the scales and zero points of its weights.")
    place = (w.shape[0], 1, -1)
    centred = w.astype("int32") - reshape(zero.astype("int32"), place)
    return transpose(centred.astype("float32") * reshape(scale, place), 1, 2)


def _in_8_bits(x: Tensor) -> Tensor:
    """x rounded as DynamicQuantizeLinear does."""
    scale, zero = levels_of(x)
    return (clip(round(x / scale) + zero, 0.0, 255.0) - zero) * scale
