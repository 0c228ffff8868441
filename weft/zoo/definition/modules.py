"""Modules that only networks written as text are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ... import nn
from ...errors import UserError
from ...ops.movement import broadcast_to, concat, flatten, transpose
from ...tensor import ArrayLike, Tensor, as_tensor
from ..building_blocks import SqueezeExcite
from ..building_blocks import conv_norm as conv_norm_block
from .values import HE_NORMAL_OUT

INPUT, PREVIOUS = "input", "previous"
MERGES = {
    "concat": nn.Concat, "add": nn.Add, "multiply": nn.Multiply, "average": nn.Average, "maximum": nn.Maximum,
}  # fmt: skip


class NamedLayers(nn.Module):
    """Layers in sequence, some of which read the outputs of earlier ones: `sources[key]` are their names."""

    def __init__(
        self, layers: Mapping[str, nn.Module], sources: Mapping[str, Sequence[str]], names: Mapping[str, str]
    ) -> None:
        self.layers = dict(layers)
        self._sources, self._names = dict(sources), dict(names)

    def forward(self, x: Any) -> Any:
        known = {INPUT: x}
        for key, layer in self.layers.items():
            known[PREVIOUS] = x
            x = layer(*(known[name] for name in self._sources.get(key, (PREVIOUS,))))
            if key in self._names:
                known[self._names[key]] = x
        return x


class MergedBranches(nn.Module):
    """The outputs of several branches with the same input, merged: concatenated along an axis, added, multiplied, ..."""

    def __init__(self, branches: Sequence[nn.Module], merge: str = "concat", axis: int = 1) -> None:
        self.branches, self.merge, self.axis = list(branches), merge, axis
        self._merge = merge_layer(merge, axis)

    def forward(self, x: Any) -> Tensor:
        merged: Tensor = self._merge(*(branch(x) for branch in self.branches))
        return merged


def merge_layer(name: str, axis: int) -> nn.Module:
    return nn.Concat(axis) if name == "concat" else MERGES[name]()


class Tokens(nn.Module):
    """(batch, channels, height, width) becomes (batch, height * width, channels): a sequence of pixels or patches."""

    def forward(self, x: ArrayLike) -> Tensor:
        x = as_tensor(x)
        if x.ndim < 3:
            raise UserError("Tokens", f"an input (batch, channels, spatial...) is required, got shape {x.shape}.")
        return transpose(flatten(x, 2), 1, 2)


class ClassToken(nn.Module):
    """A learned vector before the sequence (Dosovitskiy et al. 2021); x: (batch, time, features)"""

    def __init__(self, features: int) -> None:
        self.token = nn.parameter((1, 1, features), "zeros")

    def forward(self, x: ArrayLike) -> Tensor:
        x = as_tensor(x)
        return concat([broadcast_to(self.token, (x.shape[0], 1, x.shape[2])), x], axis=1)


class AtTime(nn.Module):
    """One step of a sequence: (batch, time, features) becomes (batch, features); -1 is the last."""

    def __init__(self, index: int = -1) -> None:
        self.index = index

    def forward(self, x: ArrayLike) -> Tensor:
        x = as_tensor(x)
        if x.ndim != 3 or not -x.shape[1] <= self.index < x.shape[1]:
            raise UserError(
                "AtTime", f"a sequence (batch, time, features) with step {self.index} is required, got shape {x.shape}."
            )
        return x[:, self.index]


class RecurrentOutputs(nn.Module):
    """The outputs of an RNN, LSTM or GRU at all time steps, without its state."""

    def __init__(self, recurrent: nn.Module) -> None:
        self.recurrent = recurrent

    def forward(self, x: ArrayLike) -> Tensor:
        outputs: Tensor = self.recurrent(x)[0]
        return outputs


def lstm(inputs: int, hidden: int, *, layers: int = 1, bidirectional: bool = False, dropout: float = 0.0) -> nn.Module:
    """Long short-term memory over (batch, time, features): its outputs at all time steps."""
    return RecurrentOutputs(nn.LSTM(inputs, hidden, layers=layers, bidirectional=bidirectional, dropout=dropout))


def gru(inputs: int, hidden: int, *, layers: int = 1, bidirectional: bool = False, dropout: float = 0.0) -> nn.Module:
    """Gated recurrent unit over (batch, time, features): its outputs at all time steps."""
    return RecurrentOutputs(nn.GRU(inputs, hidden, layers=layers, bidirectional=bidirectional, dropout=dropout))


def rnn(
    inputs: int,
    hidden: int,
    *,
    layers: int = 1,
    bidirectional: bool = False,
    dropout: float = 0.0,
    activation: str = "tanh",
) -> nn.Module:
    """Elman's recurrent layer over (batch, time, features): its outputs at all time steps."""
    return RecurrentOutputs(
        nn.RNN(inputs, hidden, layers=layers, bidirectional=bidirectional, dropout=dropout, activation=activation)
    )


# The layers of activations, by the names that `nn.activation` knows.
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU, "relu6": nn.ReLU6, "leaky_relu": nn.LeakyReLU, "elu": nn.ELU, "selu": nn.SELU, "celu": nn.CELU, "gelu": nn.GELU,
    "silu": nn.SiLU, "swish": nn.SiLU, "mish": nn.Mish, "sigmoid": nn.Sigmoid, "tanh": nn.Tanh, "softplus": nn.Softplus, "softsign": nn.Softsign,
    "softmax": nn.Softmax, "log_softmax": nn.LogSoftmax, "log_sigmoid": nn.LogSigmoid, "hard_sigmoid": nn.HardSigmoid,
    "hard_swish": nn.HardSwish, "hard_tanh": nn.HardTanh, "linear": nn.Identity, "identity": nn.Identity,
}  # fmt: skip


def conv_norm(
    inputs: int, outputs: int, kernel: Any = 3, *, stride: int = 1, padding: Any = 0, groups: int = 1, eps: float = 1e-5,
    momentum: float = 0.1, activation: str | None = "relu", init: Any = HE_NORMAL_OUT,
) -> nn.Module:  # fmt: skip
    """Convolution without bias, batch norm, activation."""
    return conv_norm_block(
        inputs, outputs, kernel, stride=stride, padding=padding, groups=groups, eps=eps, momentum=momentum,
        activation=None if activation is None else ACTIVATIONS[activation], init=init,
    )  # fmt: skip


def squeeze_excite(channels: int, squeezed: int, *, activation: str = "silu", gate: str = "sigmoid") -> nn.Module:
    """Scale each channel by a gate computed from the means of all channels (Hu et al. 2018)."""
    return SqueezeExcite(channels, squeezed, activation=ACTIVATIONS[activation], gate=ACTIVATIONS[gate])
