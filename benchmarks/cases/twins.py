"""torch twins of weft's networks: every module becomes the module of torch that its users would write, with the same weights.

A twin is made of `torch.nn` modules, not of the operations of a traced graph, so that torch's own fused kernels (attention, recurrent layers, batch
norm) and `torch.compile` see what they see in life. `Twin.pairs` says which tensors of weft a parameter of torch was made of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch.nn import functional as F

import weft
from weft import nn

from . import twin_blocks as blocks

Pair = tuple[tuple[weft.Tensor, ...], torch.Tensor]  # tensors of weft, and the one of torch that is their concatenation
Make = Callable[["Twins", Any], torch.nn.Module]
M = TypeVar("M", bound=Make)

_MAKERS: dict[type, Make] = {}
_SIMPLE: dict[type, Callable[[], torch.nn.Module]] = {
    nn.ReLU: torch.nn.ReLU,
    nn.ReLU6: torch.nn.ReLU6,
    nn.SiLU: torch.nn.SiLU,
    nn.Sigmoid: torch.nn.Sigmoid,
    nn.Tanh: torch.nn.Tanh,
    nn.HardSwish: torch.nn.Hardswish,
    nn.Mish: torch.nn.Mish,
    nn.Identity: torch.nn.Identity,
    nn.GlobalAvgPool: blocks.GlobalAvgPool,
    nn.GlobalMaxPool: blocks.GlobalMaxPool,
}
_NAMED: dict[str, Callable[[], torch.nn.Module]] = {
    "relu": torch.nn.ReLU,
    "relu6": torch.nn.ReLU6,
    "gelu": torch.nn.GELU,
    "silu": torch.nn.SiLU,
    "sigmoid": torch.nn.Sigmoid,
    "tanh": torch.nn.Tanh,
}


@dataclass
class Twin:
    """A network of torch that computes what the one of weft computes."""

    net: torch.nn.Module
    pairs: list[Pair]

    def changes(self, start: Sequence[np.ndarray]) -> np.ndarray:
        """How far all parameters are from where they began, as one vector in the order of the pairs."""
        now = [b.detach().cpu().numpy() for _, b in self.pairs]
        return np.concatenate([(n - s).reshape(-1) for n, s in zip(now, start, strict=True)])


def twin(model: nn.Module) -> Twin:
    """The twin of a network whose parameters are all known."""
    making = Twins()
    net = making.of(model)
    own = {id(p) for p in net.parameters() if p.requires_grad}
    missing = own - {id(t) for _, t in making.pairs}
    assert not missing, f"{len(missing)} parameters of the twin have no counterpart"
    trained = {id(t) for t in model.parameters()} - {id(t) for ours, _ in making.pairs for t in ours}
    assert not trained, f"{len(trained)} parameters of the network have no counterpart"
    return Twin(net, making.pairs)


def values(pairs: Sequence[Pair]) -> list[np.ndarray]:
    """The values of weft's side, joined as torch has them."""
    return [_joined(ours) for ours, _ in pairs]


def _joined(ours: Sequence[weft.Tensor]) -> np.ndarray:
    return np.concatenate([t.numpy() for t in ours]) if len(ours) > 1 else np.array(ours[0].numpy())


def makes(*kinds: type) -> Callable[[M], M]:
    """The decorated function makes the twins of these modules."""

    def register(make: M) -> M:
        for kind in kinds:
            _MAKERS[kind] = make
        return make

    return register


class Twins:
    """Makes the twins of modules, and notes whose weights are whose."""

    def __init__(self) -> None:
        self.pairs: list[Pair] = []

    def of(self, module: nn.Module) -> torch.nn.Module:
        simple = _SIMPLE.get(type(module))
        if simple is not None:
            return simple()
        for kind in type(module).__mro__:
            if kind in _MAKERS:
                return _MAKERS[kind](self, module)
        raise NotImplementedError(f"there is no twin of {type(module).__name__}")

    def all(self, modules: Sequence[nn.Module]) -> list[torch.nn.Module]:
        return [self.of(m) for m in modules]

    def copy(self, theirs: torch.Tensor | None, *ours: weft.Tensor | None) -> None:
        """Give a tensor of torch the values of weft's, which stand one after the other in it."""
        known = tuple(t for t in ours if t is not None)
        assert bool(known) == (theirs is not None), "one of the two has no such parameter"
        if theirs is not None:
            value = torch.from_numpy(np.array(_joined(known)))
            assert value.shape == theirs.shape, f"{tuple(value.shape)} is not {tuple(theirs.shape)}"
            with torch.no_grad():
                theirs.copy_(value)
            if theirs.requires_grad:
                self.pairs.append((known, theirs))

    def after(self, body: torch.nn.Module, activation: Any) -> torch.nn.Module:
        """A module and the activation of its layer."""
        if activation is None:
            return body
        return torch.nn.Sequential(body, self.activation(activation))

    def activation(self, which: Any) -> torch.nn.Module:
        if which is None:
            return torch.nn.Identity()
        return _NAMED[which]() if isinstance(which, str) else self.of(which)


# --- layers ----------------------------------------------------------------------------------------------------------------------


@makes(nn.Sequential)
def _sequential(twins: Twins, m: Any) -> torch.nn.Module:
    return torch.nn.Sequential(*twins.all(list(m)))


@makes(nn.Residual)
def _residual(twins: Twins, m: Any) -> torch.nn.Module:
    shortcut = None if m.shortcut is None else twins.of(m.shortcut)
    return blocks.Residual(twins.of(m.body), shortcut, None if m.activation is None else twins.activation(m.activation))


@makes(nn.Linear)
def _linear(twins: Twins, m: Any) -> torch.nn.Module:
    made = torch.nn.Linear(m.weight.shape[1], m.weight.shape[0], bias=m.bias is not None)
    twins.copy(made.weight, m.weight)
    twins.copy(made.bias, m.bias)
    return twins.after(made, m.activation)


@makes(nn.Conv2d)
def _conv(twins: Twins, m: Any) -> torch.nn.Module:
    outputs, width, *kernel = m.weight.shape
    padding = "same" if m.padding == "same" else _symmetric(m.padding)
    kind = blocks.SameConv2d if padding == "same" and _pair(m.stride) != (1, 1) else torch.nn.Conv2d
    made = kind(
        width * m.groups, outputs, tuple(kernel), stride=_pair(m.stride), padding=0 if kind is blocks.SameConv2d else padding,
        dilation=_pair(m.dilation), groups=m.groups, bias=m.bias is not None,
    )  # fmt: skip
    twins.copy(made.weight, m.weight)
    twins.copy(made.bias, m.bias)
    return twins.after(made, m.activation)


@makes(nn.ConvTranspose2d)
def _conv_transpose(twins: Twins, m: Any) -> torch.nn.Module:
    inputs, width, *kernel = m.weight.shape
    made = torch.nn.ConvTranspose2d(
        inputs, width * m.groups, tuple(kernel), stride=_pair(m.stride), padding=_symmetric(m.padding),
        output_padding=_pair(m.output_padding), groups=m.groups, bias=m.bias is not None, dilation=_pair(m.dilation),
    )  # fmt: skip
    twins.copy(made.weight, m.weight)
    twins.copy(made.bias, m.bias)
    return twins.after(made, m.activation)


@makes(nn.BatchNorm)
def _batch_norm(twins: Twins, m: Any) -> torch.nn.Module:
    kind = torch.nn.BatchNorm2d if isinstance(m, nn.BatchNorm2d) else torch.nn.BatchNorm1d
    made = kind(m.mean.shape[0], eps=m.eps, momentum=m.momentum)
    if m.scale is None:
        made.weight.requires_grad = False
    else:
        twins.copy(made.weight, m.scale)
    twins.copy(made.bias, m.shift)
    for theirs, ours in ((made.running_mean, m.mean), (made.running_var, m.var)):
        twins.copy(theirs, ours)
    return made


@makes(nn.LayerNorm)
def _layer_norm(twins: Twins, m: Any) -> torch.nn.Module:
    made = torch.nn.LayerNorm(m.scale.shape, eps=m.eps)
    twins.copy(made.weight, m.scale)
    twins.copy(made.bias, m.shift)
    return made


@makes(nn.GroupNorm)
def _group_norm(twins: Twins, m: Any) -> torch.nn.Module:
    made = torch.nn.GroupNorm(m.groups, m.scale.shape[0], eps=m.eps)
    twins.copy(made.weight, m.scale)
    twins.copy(made.bias, m.shift)
    return made


@makes(nn.GELU)
def _gelu(twins: Twins, m: Any) -> torch.nn.Module:
    return torch.nn.GELU(approximate="tanh" if m.approximate in (True, "tanh") else "none")


@makes(nn.Dropout, nn.DropPath)
def _dropout(twins: Twins, m: Any) -> torch.nn.Module:
    assert m.rate == 0.0, "dropout would make the results of both incomparable"
    return torch.nn.Identity()


@makes(nn.Flatten)
def _flatten(twins: Twins, m: Any) -> torch.nn.Module:
    return torch.nn.Flatten(m.start)


@makes(nn.MaxPool2d)
def _max_pool(twins: Twins, m: Any) -> torch.nn.Module:
    size = _pair(m.size)
    stride = size if m.stride is None else _pair(m.stride)
    return torch.nn.MaxPool2d(size, stride, _symmetric(m.padding), _pair(m.dilation), ceil_mode=m.ceil_mode)


@makes(nn.AvgPool2d)
def _avg_pool(twins: Twins, m: Any) -> torch.nn.Module:
    size = _pair(m.size)
    stride = size if m.stride is None else _pair(m.stride)
    padding, counted = _symmetric(m.padding), m.count_include_pad
    return torch.nn.AvgPool2d(size, stride, padding, ceil_mode=m.ceil_mode, count_include_pad=counted)


@makes(nn.AdaptiveAvgPool2d)
def _adaptive(twins: Twins, m: Any) -> torch.nn.Module:
    return torch.nn.AdaptiveAvgPool2d(_pair(m.size))


@makes(nn.Embedding)
def _embedding(twins: Twins, m: Any) -> torch.nn.Module:
    made = torch.nn.Embedding(*m.weight.shape)
    twins.copy(made.weight, m.weight)
    return made


@makes(nn.LSTM, nn.GRU)
def _recurrent(twins: Twins, m: Any) -> torch.nn.Module:
    first = m.forward_layers[0]
    kind = torch.nn.LSTM if isinstance(m, nn.LSTM) else torch.nn.GRU
    made = kind(
        first.weight_in.shape[1], first.hidden, m.layers, batch_first=m.batch_first, bidirectional=m.bidirectional
    )
    for suffix, layers in (("", m.forward_layers), ("_reverse", m.backward_layers)):
        for i, layer in enumerate(layers):
            for theirs, ours in (("weight_ih", "weight_in"), ("weight_hh", "weight_hidden"), ("bias_ih", "bias_in"), ("bias_hh", "bias_hidden")):  # fmt: skip
                twins.copy(getattr(made, f"{theirs}_l{i}{suffix}"), getattr(layer, ours))
    return made


@makes(nn.FeedForward)
def _feed_forward(twins: Twins, m: Any) -> torch.nn.Module:
    return torch.nn.Sequential(twins.of(m.first), twins.of(m.second))


@makes(nn.MultiHeadAttention)
def _attention(twins: Twins, m: Any, causal: bool = False) -> torch.nn.Module:
    """With one product for queries, keys and values, as fast implementations have it."""
    plain = m.key_heads == m.heads and not (m.rotary or m.alibi or m.dropout)
    assert plain, "only plain attention has a twin"
    made = blocks.Attention(m.features, m.heads, causal)
    parts = (m.query, m.key, m.value)
    twins.copy(made.joined.weight, *(p.weight for p in parts))
    twins.copy(made.joined.bias, *(p.bias for p in parts))
    twins.copy(made.output.weight, m.output.weight)
    twins.copy(made.output.bias, m.output.bias)
    return made


@makes(nn.TransformerEncoderLayer, nn.TransformerBlock)
def _transformer(twins: Twins, m: Any) -> torch.nn.Module:
    assert m.norm_first, "only layers with the norm first have a twin"
    attention = _attention(twins, m.attention, causal=isinstance(m, nn.TransformerBlock))
    return blocks.TransformerLayer(
        twins.of(m.attention_norm), attention, twins.of(m.feed_forward_norm), twins.of(m.feed_forward)
    )


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _symmetric(padding: Any) -> tuple[int, int]:
    if padding == "valid":
        return (0, 0)
    sides = (padding, padding) if isinstance(padding, int) else padding
    pairs = [(p, p) if isinstance(p, int) else tuple(p) for p in sides]
    assert all(a == b for a, b in pairs), f"a border that differs between sides has no twin: {padding}"
    return pairs[0][0], pairs[1][0]


def cross_entropy(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The loss of (batch, classes), (batch, classes, height, width), and, as in texts, (batch, time, classes)."""
    if logits.ndim == 3:
        return F.cross_entropy(logits.flatten(0, 1), target.flatten())
    return F.cross_entropy(logits, target)
