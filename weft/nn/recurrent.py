"""Recurrent layers: RNN, LSTM and GRU, with several layers and both directions; Bidirectional, TimeDistributed.

Parameters are named by direction, layer and parameter of the cell: forward_layers.0.weight_in, backward_layers.1.bias_hidden.
"""

from __future__ import annotations

from typing import Any

from ..control import scan
from ..errors import UserError
from ..ops.creation import arange
from ..ops.elementwise import where
from ..ops.indexing import take_along_axis
from ..ops.movement import concat, expand_dims, flip, reshape, stack, transpose
from ..random import dropout as drop
from ..tensor import ArrayLike, Tensor, as_tensor
from .activations import Activation
from .cells import GRU_KIND, LSTM_KIND, RNN_KIND, CellType, State, Weights, as_given, parts_of
from .checks import check_count, check_rate
from .module import Module


class Recurrent(Module):
    """Base class of RNN, LSTM and GRU: stacked layers that apply a cell along (batch, time, features)."""

    def __init__(
        self,
        kind: CellType,
        inputs: int | None,
        hidden: int,
        layers: int,
        bidirectional: bool,
        dropout: float,
        bias: bool,
        batch_first: bool,
        activation: Activation = "tanh",
    ) -> None:
        self._kind = kind
        self.layers = check_count(kind.name, "layers", layers)
        self.bidirectional, self.batch_first = bool(bidirectional), bool(batch_first)
        self.dropout = check_rate(kind.name, dropout)
        hidden = check_count(kind.name, "hidden features", hidden)
        widths = [inputs] + [hidden * (1 + self.bidirectional)] * (self.layers - 1)
        self.forward_layers = [RecurrentDirection(kind, n, hidden, bias, activation, reverse=False) for n in widths]
        self.backward_layers = [
            RecurrentDirection(kind, n, hidden, bias, activation, reverse=True) for n in widths if self.bidirectional
        ]

    def forward(self, x: ArrayLike, state: Any = None, lengths: Any = None) -> tuple[Tensor, Any]:
        """The outputs of the last layer at all time steps, and the last state of every layer.

        The outputs are (batch, time, hidden), or 2 hidden for both directions. A state is (layers, batch, hidden), or
        (2 layers, batch, hidden), a layer's backward direction after its forward one; LSTM has two, (h, c). With lengths, the
        state of a sequence is unchanged after its end, and its outputs there are zeros.
        """
        x = as_tensor(x)
        if x.ndim != 3:
            raise UserError(self._kind.name, f"an input of 3 axes {self._axes()} is required, got {x.shape}.")
        x = transpose(x, 0, 1) if self.batch_first else x
        active = None if lengths is None else _active_mask(self._kind.name, lengths, *x.shape[:2])
        outputs, ends = self._through_layers(x, self._initial_states(state, x.shape[1]), active)
        last = tuple(stack(parts) for parts in zip(*ends, strict=True))
        return transpose(outputs, 0, 1) if self.batch_first else outputs, as_given(last)

    def _axes(self) -> str:
        return "(batch, time, features)" if self.batch_first else "(time, batch, features)"

    def _initial_states(self, state: Any, batch: int) -> list[Any]:
        """The initial state of each layer and direction."""
        walks = self.layers * (1 + self.bidirectional)
        if state is None:
            return [None] * walks
        parts = parts_of(self._kind, state, (walks, batch, self.forward_layers[0].hidden))
        return [tuple(part[i] for part in parts) for i in range(walks)]

    def _through_layers(self, x: Tensor, begins: list[Any], active: Tensor | None) -> tuple[Tensor, list[State]]:
        rest, ends = iter(begins), []
        for i, forwards in enumerate(self.forward_layers):
            x = drop(x, self.dropout, training=self.training) if i else x
            walks = [forwards, self.backward_layers[i]] if self.bidirectional else [forwards]
            found = [walk(x, next(rest), active) for walk in walks]
            x = concat([outputs for outputs, _ in found], axis=-1) if self.bidirectional else found[0][0]
            ends += [end for _, end in found]
        return x, ends


class RecurrentDirection(Weights):
    """One layer in one direction, along (time, batch, features)."""

    def __init__(
        self, kind: CellType, inputs: int | None, hidden: int, bias: bool, activation: Activation, *, reverse: bool
    ) -> None:
        super().__init__(kind, inputs, hidden, bias, activation)
        self.reverse = reverse

    def forward(self, x: Tensor, state: State | None, active: Tensor | None) -> tuple[Tensor, State]:
        """The outputs at all time steps and the last state. In reverse, the state is unchanged until its sequence begins."""

        def step(state: State, now: Any) -> tuple[State, Tensor]:
            given, goes_on = now
            new = self.step(given, state)
            if goes_on is None:
                return new, new[0]
            kept = tuple(where(goes_on, after, before) for after, before in zip(new, state, strict=True))
            return kept, where(goes_on, new[0], 0.0)

        product = self.product(x)  # for all time steps at once
        start = self.begin(state, x.shape[1], product.dtype)
        last, outputs = scan(step, start, (product, active), reverse=self.reverse)
        return outputs, last


def _active_mask(name: str, lengths: ArrayLike, time: int, batch: int) -> Tensor:
    """A mask (time, batch, 1) of the time steps before the end of each sequence."""
    return expand_dims(expand_dims(arange(time), axis=1) < _checked_lengths(name, lengths, batch), axis=2)


def _checked_lengths(name: str, lengths: ArrayLike, batch: int) -> Tensor:
    lengths = as_tensor(lengths)
    if not lengths.dtype.is_integer or lengths.shape != (batch,):
        got = f"{lengths.dtype.name} {lengths.shape}"
        raise UserError(name, f"lengths must be integers of shape (batch,) = ({batch},), got {got}.")
    return lengths


class RNN(Recurrent):
    """h' = tanh(x W_in^T + b_in + h W_hidden^T + b_hidden) at each time   (Elman 1990)

    >>> import weft
    >>> outputs, state = RNN(3, 4, layers=2)(weft.ones((2, 5, 3)))
    >>> outputs.shape, state.shape
    ((2, 5, 4), (2, 2, 4))
    """

    def __init__(
        self,
        inputs: int | None,
        hidden: int,
        *,
        layers: int = 1,
        bidirectional: bool = False,
        dropout: float = 0.0,
        bias: bool = True,
        batch_first: bool = True,
        activation: Activation = "tanh",
    ) -> None:
        super().__init__(RNN_KIND, inputs, hidden, layers, bidirectional, dropout, bias, batch_first, activation)


class LSTM(Recurrent):
    """Long short-term memory; see LSTMCell for the formula. The state is (h, c).

    >>> import weft
    >>> outputs, (h, c) = LSTM(3, 4, bidirectional=True)(weft.ones((2, 5, 3)), lengths=weft.asarray([5, 2]))
    >>> outputs.shape, h.shape, c.shape
    ((2, 5, 8), (2, 2, 4), (2, 2, 4))
    """

    def __init__(
        self,
        inputs: int | None,
        hidden: int,
        *,
        layers: int = 1,
        bidirectional: bool = False,
        dropout: float = 0.0,
        bias: bool = True,
        batch_first: bool = True,
    ) -> None:
        super().__init__(LSTM_KIND, inputs, hidden, layers, bidirectional, dropout, bias, batch_first)


class GRU(Recurrent):
    """The gated recurrent unit; see GRUCell for the formula.

    >>> import weft
    >>> outputs, state = GRU(None, 4)(weft.ones((2, 5, 3)))
    >>> outputs.shape, state.shape
    ((2, 5, 4), (1, 2, 4))
    """

    def __init__(
        self,
        inputs: int | None,
        hidden: int,
        *,
        layers: int = 1,
        bidirectional: bool = False,
        dropout: float = 0.0,
        bias: bool = True,
        batch_first: bool = True,
    ) -> None:
        super().__init__(GRU_KIND, inputs, hidden, layers, bidirectional, dropout, bias, batch_first)


class Bidirectional(Module):
    """One recurrent layer forwards and another backwards in time; their outputs are concatenated along the features.

    y = concat(forward_module(x), reversed(backward_module(reversed(x)))). The state is a pair, one of each module.

    >>> import weft
    >>> outputs, (last, first) = Bidirectional(GRU(3, 4), RNN(3, 2))(weft.ones((2, 5, 3)))
    >>> outputs.shape, last.shape, first.shape
    ((2, 5, 6), (1, 2, 4), (1, 2, 2))
    """

    def __init__(self, forward_module: Module, backward_module: Module) -> None:
        for module in (forward_module, backward_module):
            if isinstance(module, Recurrent) and not module.batch_first:
                raise UserError("Bidirectional", "layers with batch_first=True are required: the time is axis 1.")
        self.forward_module, self.backward_module = forward_module, backward_module

    def forward(self, x: ArrayLike, state: Any = None, lengths: Any = None) -> tuple[Tensor, tuple[Any, Any]]:
        """The outputs (batch, time, both features) and the pair of states; each sequence is reversed within its length."""
        x = as_tensor(x)
        starts = (None, None) if state is None else state
        places = (
            None
            if lengths is None
            else _reversed_indices(_checked_lengths("Bidirectional", lengths, x.shape[0]), x.shape)
        )
        outputs, last = self.forward_module(x, starts[0], lengths)
        mirrored, first = self.backward_module(_backwards(x, places), starts[1], lengths)
        return concat([outputs, _backwards(mirrored, places)], axis=-1), (last, first)


def _reversed_indices(lengths: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Indices (batch, time, 1) that reverse each sequence within its length; the padding stays."""
    times, ends = arange(shape[1]), expand_dims(lengths, axis=1)
    return expand_dims(where(times < ends, ends - 1 - times, times), axis=2)


def _backwards(x: Tensor, places: Tensor | None) -> Tensor:
    return flip(x, axis=1) if places is None else take_along_axis(x, places, axis=1)


class TimeDistributed(Module):
    """Apply a module at each time step: y[:, t] = module(x[:, t])

    >>> import weft
    >>> from weft import nn
    >>> TimeDistributed(nn.Linear(2, 4))(weft.ones((3, 5, 2))).shape
    (3, 5, 4)
    """

    def __init__(self, module: Module) -> None:
        self.module = module

    def forward(self, x: ArrayLike) -> Any:
        """One call of the module, with the time steps folded into the batch."""
        x = as_tensor(x)
        if x.ndim < 2:
            raise UserError("TimeDistributed", f"an input (batch, time, ...) is required, got {x.shape}.")
        batch, time = x.shape[:2]
        y = self.module(reshape(x, (batch * time, *x.shape[2:])))
        return reshape(y, (batch, time, *y.shape[1:]))
