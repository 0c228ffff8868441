"""One stage of a pipeline: the part of a network between two cuts, as compiled forward and backward programs.

The stage runs the network's own `forward`. Calls of modules before the stage are not computed, the call at its beginning gives what the
previous stage has sent, and the run ends with the call at its end. What is computed from skipped calls leads nowhere and is never compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

from ..derivatives import pull
from ..dtypes import DTypeLike
from ..errors import UserError
from ..graph.graph import substitute
from ..graph.node import Node, Type, placeholder, toposort
from ..nn.module import Module, calls_through
from ..ops.creation import zeros
from ..ops.elementwise import stop_gradient
from ..random import default_generator
from ..tensor import Tensor, as_tensor, wrap
from ..tracing.jit import jit
from ..tree import flatten, unflatten
from .pipeline_cuts import CutPoint, NetworkTrace

Loss = Callable[[Any, Tensor], Tensor]


class StageGradients(NamedTuple):
    """What a backward pass gives: the derivative by the stage's input (None for the first stage) and by its parameters."""

    input: Tensor | None
    parameters: list[Tensor]


class PipelineStage:
    """The programs of one stage. The last one ends with the loss."""

    def __init__(
        self,
        model: Module,
        network: NetworkTrace,
        begin: CutPoint | None,
        end: CutPoint | None,
        loss: Loss,
        parameters: Sequence[Tensor],
        state: Sequence[Tensor],
        *,
        recompute: bool,
        precision: DTypeLike | None,
    ) -> None:
        self.model, self.network, self.begin, self.end, self.loss = model, network, begin, end, loss
        self.parameters, self.state = list(parameters), list(state)
        self.drawn_before = 0 if begin is None else begin.call.drawn
        self.input = network.input if begin is None else begin.type
        stored = not recompute
        self.forward = jit(self._forward_stored if stored else self._forward, precision=precision)
        self.backward = jit(self._backward_stored if stored else self._backward_recomputed, precision=precision)
        self.predict = jit(self._part, precision=precision)
        self.recompute = recompute

    # --- programs ---------------------------------------------------------------------------------------------------------------

    def _forward(self, x: Tensor, target: Tensor | None, offset: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The result, and nothing of what lies between: the backward pass computes it again."""
        return self._result(x, target, offset), []

    def _backward_recomputed(self, x: Tensor, target: Tensor | None, offset: Tensor, g: Tensor) -> StageGradients:
        return self._gradients(x, self._again(x, target, offset), g)

    def _forward_stored(self, x: Tensor, target: Tensor | None, offset: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The result, and the values that the backward pass needs."""
        y = self._result(x, target, offset)
        g = wrap(placeholder(object(), y._node.type))
        return y, [wrap(node) for node in _residuals(self._gradients(x, y, g), g)]

    def _backward_stored(self, target: Tensor | None, residuals: Sequence[Tensor], g: Tensor) -> StageGradients:
        """The same graph as in `_forward_stored`, with the stored values in place of what they were computed from."""
        x, offset = (wrap(placeholder(object(), type)) for type in (self.input, default_generator.offset._node.type))
        found = self._gradients(x, self._again(x, target, offset), g)
        leaves, structure = flatten(found)
        known = dict(zip(_residuals(found, g), (r.node for r in residuals), strict=True))
        made: StageGradients = unflatten(
            structure, [wrap(node) for node in substitute([leaf.node for leaf in leaves], known)]
        )
        return made

    def _again(self, x: Tensor, target: Tensor | None, offset: Tensor) -> Tensor:
        """The result a second time: running statistics were updated by the first."""
        before = [stop_gradient(t) for t in self.state]
        y = self._result(x, target, offset)
        for tensor, old in zip(self.state, before, strict=True):
            tensor.assign(old)
        return y

    def _result(self, x: Tensor, target: Tensor | None, offset: Tensor) -> Tensor:
        before, default_generator.offset = default_generator.offset, offset
        try:
            y = self._part(x)
        finally:
            default_generator.offset = before
        return y if self.end is not None else _checked_loss(self.loss(y, as_tensor(target)))

    def _gradients(self, x: Tensor, y: Tensor, g: Tensor) -> StageGradients:
        wanted = [*([] if self.begin is None else [x]), *self.parameters]
        found = pull([y.node], [g.astype(y.dtype)], [t.node for t in wanted])
        made = [zeros(t.shape, dtype=t.dtype) if d is None else d for d, t in zip(found, wanted, strict=True)]
        return StageGradients(None, made) if self.begin is None else StageGradients(made[0], made[1:])

    # --- the part of the network --------------------------------------------------------------------------------------------------

    def _part(self, x: Tensor) -> Any:
        """The network's `forward` from the beginning of the stage to its end."""
        part = _PartialCalls(self.network, self.begin, self.end, x)
        try:
            with calls_through(part):
                return self.model(x if self.begin is None else _nothing(self.network.input))
        except _StageEnd as end:
            return end.result


class _StageEnd(Exception):
    """Leaves the network's forward: nothing after the end of the stage is of interest."""

    def __init__(self, result: Tensor) -> None:
        self.result = result


class _PartialCalls:
    """Decides about each call of a module: before the stage, its beginning, inside of it, or its end."""

    def __init__(self, network: NetworkTrace, begin: CutPoint | None, end: CutPoint | None, x: Tensor) -> None:
        self.calls, self.x, self.number = network.calls, x, 0
        self.begin = -1 if begin is None else begin.call.number
        self.end = None if end is None else end.call.number

    def __call__(self, module: Module, compute: Callable[[], Any]) -> Any:
        if self.number >= len(self.calls) or self.calls[self.number].module is not module:
            raise UserError(
                "Pipeline",
                f"the network must call the same layers in the same order each time, got another call of {type(module).__name__}.",
            )
        call = self.calls[self.number]
        self.number += 1
        if call.last < self.begin or call.number == self.begin:
            self.number = call.last + 1
            return self.x if call.number == self.begin else _nothing_like(call.result)
        result = compute()
        if call.number == self.end:
            raise _StageEnd(result)
        return result


def _nothing_like(result: Any) -> Any:
    leaves, structure = flatten(result)
    return unflatten(structure, [_nothing(v._node.type) if isinstance(v, Tensor) else v for v in leaves])


def _nothing(type: Type) -> Tensor:
    """In place of a value that is not known here, and that nothing depends on."""
    return zeros(type.shape, dtype=type.dtype)


# --- what backward passes need -------------------------------------------------------------------------------------------------------


def _residuals(found: StageGradients, g: Tensor) -> list[Node]:
    """The values of the forward pass that derivatives are computed from, in an order that depends on the graph's structure alone.

    Elementwise work, movement of data and random numbers are cheaper to repeat than to store. Parameters and what follows from them alone
    are there anyway.
    """
    leaves = [leaf.node for leaf in flatten(found)[0]]
    order = toposort(leaves)
    later = {g.node}
    for node in order:
        if any(i in later for i in node.inputs):
            later.add(node)
    borders = [i for n in order if n in later for i in n.inputs if i not in later]
    borders += [leaf for leaf in leaves if leaf not in later]
    before = toposort(borders, lambda n: n.inputs if _is_cheap(n) else ())
    return [n for n in before if n.abstract and not _is_cheap(n)]


def _is_cheap(node: Node) -> bool:
    """Whether a value is repeated, not stored. A slice is stored: what it was cut from may be much larger."""
    if node.op.kind == "move":
        return all(prod(i.shape) <= prod(node.shape) for i in node.inputs)
    return node.op.kind in ("elementwise", "random")


def _checked_loss(loss: Any) -> Tensor:
    if not isinstance(loss, Tensor) or loss.shape != () or not loss.dtype.is_float:
        raise UserError("Pipeline", f"a loss that gives one float is required, got {loss!r}.")
    return loss
