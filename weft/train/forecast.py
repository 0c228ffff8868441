"""Memory forecast: the sizes of parameters and optimizer state follow from shapes, before anything is allocated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from ..errors import RunError
from ..graph.node import Type
from ..nn.module import Module, is_made, own_tensors, without_values
from ..ops.convert import asarray
from ..records import dataclass
from ..runtime import device
from ..runtime.free_memory import SHARE, free_bytes, size_text
from ..tensor import Tensor
from ..tracing.trace import trace
from ..tree import flatten


@dataclass(frozen=True)
class Forecast:
    """Bytes that training needs besides the workspace of its steps."""

    network: int  # parameters and running statistics
    optimizer: int  # moments and other state of the optimizer
    largest: int  # tensor: it exists twice while it is initialized, and so does its gradient later
    there: int  # bytes of it that are allocated already

    @property
    def missing(self) -> int:
        return self.network + self.optimizer + self.largest - self.there

    def fits(self) -> bool:
        free = free_bytes()
        return free is None or self.missing <= SHARE * free

    def check(self, advice: Callable[[], str]) -> None:
        """Raise an error with this advice if it does not fit."""
        if self.fits():
            return
        where = "" if device().free_memory() is None else f" on {device()}"
        raise RunError(
            "fit",
            f"the tensors of the network need {size_text(self.network)}, the state of the optimizer {size_text(self.optimizer)}, "
            f"and making them {size_text(self.largest)} more; {size_text(free_bytes() or 0)} are free{where}. {advice()}",
        )


def forecast(build: Callable[[], Module], call: Callable[[Module], Any], optimizer_share: float) -> Forecast:
    """Forecast for a network that one function builds or returns; another calls it if sizes are unknown. Nothing is allocated.

    `optimizer_share` is the state of the optimizer for each byte of a parameter.
    """
    with without_values():
        model = build()
        there = sum(map(_nbytes, _known(model)))
        if not is_made(model):
            call(model)
        tensors = list(model.named_tensors().values())
    trained = sum(_nbytes(t) for t in tensors if t.requires_grad)
    sizes = [_nbytes(t) for t in tensors]
    return Forecast(sum(sizes), int(optimizer_share * trained), max(sizes, default=0), there)


def _known(model: Module) -> Iterable[Tensor]:
    """The tensors that have values: a network built by `without_values` has none."""
    return {t: None for part in model.modules() for _, t in own_tensors(part) if not t._node.abstract}


def _nbytes(tensor: Tensor) -> int:
    return prod(tensor.shape) * tensor.dtype.itemsize


def output_types(model: Module, prepare: Module, example: np.ndarray) -> list[Type]:
    """The types of a network's outputs for an example, in evaluation mode. It is traced, not computed; lazy parameters get their shapes."""
    return _traced_types([prepare, model], example)


def input_types(prepare: Module, example: np.ndarray) -> list[Type]:
    """The types of a network's inputs for an example of the data."""
    return _traced_types([prepare], example)


def _traced_types(modules: Sequence[Module], example: np.ndarray) -> list[Type]:
    modes = {part: part.training for module in modules for part in module.modules()}

    def call(x: Any) -> Any:
        for module in modules:
            x = module(x)
        return x

    try:
        for module in modules:
            module.eval()
        return trace(call, [asarray(example)._node.type], flatten((0,))[1]).types()
    finally:
        for part, mode in modes.items():
            part.training = mode
