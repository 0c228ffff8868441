"""Recurrent cells, one time step each: RNNCell, LSTMCell and GRUCell, and the parts they share with recurrent layers.

A cell type is a number of gates and a step function. The input projection x W_in^T + b_in does not depend on the state: the
layers of recurrent.py compute it for all time steps at once, and only the rest step by step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..dtypes import DType
from ..errors import UserError
from ..ops.creation import zeros
from ..ops.declare import as_float
from ..ops.elementwise import sigmoid
from ..ops.movement import split
from ..records import dataclass
from ..tensor import ArrayLike, Tensor, as_tensor
from . import init
from .activations import Activation, known
from .activations import activation as find
from .checks import check_channels, check_count, check_optional_count
from .module import Module, parameter

State = tuple[Tensor, ...]  # (h,), or (h, c) for LSTM
Bend = Callable[[Any], Any]
Step = Callable[
    [Tensor, Tensor, State, Bend], State
]  # (input's product, hidden product, state, activation) -> new state


@dataclass(frozen=True)
class CellType:
    """The properties of a type of recurrent cell."""

    name: str
    gates: int
    states: int
    step: Step
    joins_biases: bool  # whether both products are only added, so that their biases can be combined


def _rnn_step(given: Tensor, hidden: Tensor, state: State, bend: Bend) -> State:
    return (bend(given + hidden),)


def _lstm_step(given: Tensor, hidden: Tensor, state: State, bend: Bend) -> State:
    i, f, g, o = split(given + hidden, 4, axis=1)
    c = sigmoid(f) * state[1] + sigmoid(i) * bend(g)
    return sigmoid(o) * bend(c), c


def _gru_step(given: Tensor, hidden: Tensor, state: State, bend: Bend) -> State:
    (r_in, z_in, n_in), (r_hidden, z_hidden, n_hidden) = split(given, 3, axis=1), split(hidden, 3, axis=1)
    r, z = sigmoid(r_in + r_hidden), sigmoid(z_in + z_hidden)
    n = bend(n_in + r * n_hidden)
    return ((1.0 - z) * n + z * state[0],)


RNN_KIND = CellType("RNN", 1, 1, _rnn_step, True)
LSTM_KIND = CellType("LSTM", 4, 2, _lstm_step, True)
GRU_KIND = CellType("GRU", 3, 1, _gru_step, False)


class Weights(Module):
    """The parameters of a cell: weight_in, weight_hidden, bias_in and bias_hidden, with the gates stacked along axis 0."""

    def __init__(
        self, kind: CellType, inputs: int | None, hidden: int, bias: bool, activation: Activation = "tanh"
    ) -> None:
        inputs = check_optional_count(kind.name, "inputs", inputs)
        self.hidden = check_count(kind.name, "hidden features", hidden)
        self.activation = known(activation)
        self._kind, self._rows = kind, kind.gates * self.hidden
        limit = 1.0 / math.sqrt(self.hidden)
        start = init.uniform(-limit, limit)
        self.weight_in = parameter((self._rows, inputs), start)
        self.weight_hidden = parameter((self._rows, self.hidden), start)
        self.bias_in = parameter((self._rows,), start) if bias else None
        self.bias_hidden = parameter((self._rows,), start) if bias else None

    def sizes(self, x: ArrayLike, state: Any = None, active: Any = None) -> Mapping[str, Sequence[int]]:
        """The inputs are the last axis."""
        return {"weight_in": (self._rows, as_tensor(x).shape[-1])}

    def product(self, x: ArrayLike) -> Tensor:
        """The input projection x W_in^T + b_in, for one or all time steps."""
        x = check_channels(self._kind.name, as_float(as_tensor(x), self._kind.name), self.weight_in.shape[1], axis=-1)
        product: Tensor = x @ self.weight_in.T
        if self.bias_in is not None:
            product = product + (self.bias_in + self.bias_hidden if self._kind.joins_biases else self.bias_in)
        return product

    def step(self, product: Tensor, state: State) -> State:
        """The next state, from the input projection and the state."""
        hidden = state[0] @ self.weight_hidden.T
        if self.bias_hidden is not None and not self._kind.joins_biases:
            hidden = hidden + self.bias_hidden
        return self._kind.step(product, hidden, state, find(self.activation))

    def begin(self, state: Any, batch: int, dtype: DType) -> State:
        """The initial state: zeros, or the given one."""
        shape = (batch, self.hidden)
        if state is None:
            return (zeros(shape, dtype=dtype),) * self._kind.states
        return tuple(part.astype(dtype) for part in parts_of(self._kind, state, shape))


def parts_of(kind: CellType, state: Any, shape: tuple[int, ...]) -> State:
    """The tensors of a user's state: (h, c) for LSTM, otherwise h. Each must have this shape."""
    given = state if isinstance(state, tuple | list) else (state,)
    parts = tuple(as_tensor(part) for part in given)
    if len(parts) != kind.states or any(part.shape != shape for part in parts):
        wanted = " and ".join(["h", "c"][: kind.states])
        got = ", ".join(str(part.shape) for part in parts)
        raise UserError(kind.name, f"a state {wanted} of shape {shape} is required, got {got}. None starts with zeros.")
    return parts


def as_given(parts: State) -> Any:
    """A state in the user's form: h, or (h, c)."""
    return parts if len(parts) > 1 else parts[0]


class Cell(Weights):
    """Base class of the three cells: one time step."""

    def forward(self, x: ArrayLike, state: Any = None) -> Any:
        """The new state of shape (batch, hidden), from x (batch, inputs)."""
        x = as_tensor(x)
        if x.ndim != 2:
            raise UserError(type(self).__name__, f"an input (batch, features) is required, got {x.shape}.")
        product = self.product(x)
        return as_given(self.step(product, self.begin(state, x.shape[0], product.dtype)))


class RNNCell(Cell):
    """h' = tanh(x W_in^T + b_in + h W_hidden^T + b_hidden)   (Elman 1990)

    >>> import weft
    >>> RNNCell(3, 4)(weft.ones((2, 3))).shape
    (2, 4)
    """

    def __init__(self, inputs: int | None, hidden: int, *, bias: bool = True, activation: Activation = "tanh") -> None:
        super().__init__(RNN_KIND, inputs, hidden, bias, activation)


class LSTMCell(Cell):
    """Long short-term memory; the state is (h, c)   (Hochreiter and Schmidhuber 1997, Gers et al. 2000)

    i, f, g, o = the four parts of x W_in^T + b_in + h W_hidden^T + b_hidden
    c' = sigmoid(f) c + sigmoid(i) tanh(g),   h' = sigmoid(o) tanh(c')

    >>> import weft
    >>> h, c = LSTMCell(3, 4)(weft.ones((2, 3)))
    >>> h.shape, c.shape
    ((2, 4), (2, 4))
    """

    def __init__(self, inputs: int | None, hidden: int, *, bias: bool = True) -> None:
        super().__init__(LSTM_KIND, inputs, hidden, bias)


class GRUCell(Cell):
    """The gated recurrent unit   (Cho et al. 2014)

    r = sigmoid(x_r + h_r),   z = sigmoid(x_z + h_z),   n = tanh(x_n + r h_n),   h' = (1 - z) n + z h
    where x_r, x_z, x_n are the parts of x W_in^T + b_in, and h_r, h_z, h_n those of h W_hidden^T + b_hidden

    >>> import weft
    >>> GRUCell(3, 4)(weft.ones((2, 3))).shape
    (2, 4)
    """

    def __init__(self, inputs: int | None, hidden: int, *, bias: bool = True) -> None:
        super().__init__(GRU_KIND, inputs, hidden, bias)
