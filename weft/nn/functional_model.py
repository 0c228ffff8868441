"""The functional API: a network is written as calls of modules on symbolic inputs, with branches and several inputs.

x = nn.Input()
h = nn.Linear(None, 64, activation="relu")(x)
y = nn.Add()(nn.Linear(64, 64)(h), h)
model = nn.Model(x, nn.Linear(64, 10)(y))
"""

from __future__ import annotations

from typing import Any

from ..errors import UserError
from ..tree import flatten, unflatten
from .module import Module, Symbol


def Input() -> Any:
    """A symbolic input of a network: calls of modules with it are recorded, not computed."""
    return Symbol(None)


class Model(Module):
    """The network from inputs to outputs, each one or several symbolic values of `Input` and calls with it.

    >>> import weft
    >>> from weft import nn
    >>> a, b = nn.Input(), nn.Input()
    >>> both = nn.Concat()(nn.Linear(2, 3)(a), nn.Linear(4, 3)(b))
    >>> nn.Model([a, b], nn.Linear(6, 1)(both))(weft.ones((5, 2)), weft.ones((5, 4))).shape
    (5, 1)
    """

    def __init__(self, inputs: Any, outputs: Any) -> None:
        given = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        results, structure = flatten(outputs)
        if not all(isinstance(i, Symbol) and i.module is None for i in given):
            raise UserError("Model", "inputs made by Input() are required.")
        if not all(isinstance(o, Symbol) for o in results):
            raise UserError("Model", "outputs are what modules gave for an Input().")
        self._inputs, self._results, self._structure = given, results, structure
        self._calls = _in_order(results)
        unknown = [c for c in self._calls if c.module is None and c not in given]
        if unknown:
            raise UserError("Model", "an Input() that the outputs need is not among the inputs.")
        modules = [c.module for c in self._calls if c.module is not None]
        self.layers = list(dict.fromkeys(modules))  # a module that is called twice is listed once

    def forward(self, *xs: Any) -> Any:
        if len(xs) != len(self._inputs):
            raise UserError("Model", f"{len(self._inputs)} inputs are required, got {len(xs)}.")
        known = dict(zip(self._inputs, xs, strict=True))
        for call in self._calls:
            if call.module is not None:
                known[call] = call.module(
                    *(known.get(a, a) if isinstance(a, Symbol) else a for a in call.args), **call.kwargs
                )
        return unflatten(self._structure, [known[o] for o in self._results])


def _in_order(results: list[Any]) -> list[Symbol]:
    """All calls that the results depend on, in topological order."""
    done: dict[Symbol, None] = {}
    stack = [(symbol, False) for symbol in reversed(results)]
    while stack:
        symbol, ready = stack.pop()
        if symbol in done:
            continue
        if ready:
            done[symbol] = None
            continue
        stack.append((symbol, True))
        stack += [(a, False) for a in reversed(symbol.args) if isinstance(a, Symbol)]
    return list(done)
