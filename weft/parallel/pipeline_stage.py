"""One stage of a pipeline: the part of a network between two cuts, as compiled forward and backward programs.

The stage runs the network's own `forward`. Calls of modules before the stage are not computed, the call at its beginning returns what the
previous stage has sent, and the run stops after the call at its end. Code that depends on skipped calls is dead and never compiled.
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
from ..nn.statistics_of_ranks import CollectedStatistics, collecting_statistics
from ..ops.creation import zeros
from ..ops.elementwise import stop_gradient
from ..random import default_generator
from ..records import dataclass
from ..tensor import Tensor, as_tensor, wrap
from ..tracing.jit import jit
from ..tree import flatten, unflatten
from .pipeline_cuts import CutPoint, NetworkTrace

Loss = Callable[[Any, Tensor], Tensor]
Note = Callable[[Any, Tensor, Tensor], None]


class StageGradients(NamedTuple):
    """The results of a backward pass: gradients with respect to the stage's input (None for the first stage) and its parameters."""

    input: Tensor | None
    parameters: list[Tensor]


class StageResult(NamedTuple):
    """The results of a forward pass: the stage's output, residuals for its backward pass, and statistics that are applied later."""

    y: Tensor
    residuals: list[Tensor]
    statistics: list[Tensor]


@dataclass(frozen=True)
class BatchTask:
    """The computation before and after the network for a micro-batch (x, target).

    All stages prepare the micro-batch alike, from what they have: inputs in the first, targets in the last, zeros elsewhere.
    """

    input: Type  # of a micro-batch
    target: Type | None  # None: `prepare` does not change targets
    loss: Loss  # of the network's output and the target
    prepare: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None
    prepare_input: Callable[[Tensor], Tensor] = lambda x: x  # in evaluation mode
    note: Note = lambda y, target, loss: None  # of the network's output, the target as it was given, and the loss

    def prepared(self, x: Tensor | None, target: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """The network's input and the target of the loss."""
        if self.prepare is None:
            return x, target
        assert self.target is not None
        return self.prepare(
            _nothing(self.input) if x is None else x, _nothing(self.target) if target is None else target
        )


class PipelineStage:
    """The programs of one stage. The last one ends with the loss."""

    def __init__(
        self,
        model: Module,
        network: NetworkTrace,
        begin: CutPoint | None,
        end: CutPoint | None,
        task: BatchTask,
        parameters: Sequence[Tensor],
        state: Sequence[Tensor],
        *,
        recompute: bool,
        precision: DTypeLike | None,
        collect: bool = False,
    ) -> None:
        """`collect`: forward passes return running statistics instead of applying them (see nn/statistics_of_ranks.py)."""
        self.model, self.network, self.begin, self.end, self.task = model, network, begin, end, task
        self.parameters, self.state = list(parameters), list(state)
        self.input = network.input if begin is None else begin.type
        self.collected = CollectedStatistics() if collect else None
        stored = not recompute
        self.forward = jit(self._forward_stored if stored else self._forward, precision=precision)
        self.backward = jit(self._backward_stored if stored else self._backward_recomputed, precision=precision)
        self.predict = jit(self._predict, precision=precision)
        self.recompute = recompute

    # --- programs ---------------------------------------------------------------------------------------------------------------

    def _forward(self, x: Tensor, target: Tensor | None, offset: Tensor) -> StageResult:
        """The output without residuals: the backward pass recomputes them."""
        y, statistics = self._first_result(x, target, offset)
        return StageResult(y, [], statistics)

    def _backward_recomputed(self, x: Tensor, target: Tensor | None, offset: Tensor, g: Tensor) -> StageGradients:
        return self._gradients(x, self._again(x, target, offset), g)

    def _forward_stored(self, x: Tensor, target: Tensor | None, offset: Tensor) -> StageResult:
        """The output, and the residuals of the backward pass."""
        y, statistics = self._first_result(x, target, offset)
        g = wrap(placeholder(object(), y._node.type))
        return StageResult(y, [wrap(node) for node in _residuals(self._gradients(x, y, g), g)], statistics)

    def _backward_stored(self, target: Tensor | None, residuals: Sequence[Tensor], g: Tensor) -> StageGradients:
        """The backward pass of the graph of `_forward_stored`, with stored values in place of their computation."""
        given = self.task.input if self.begin is None else self.begin.type
        x, offset = (wrap(placeholder(object(), type)) for type in (given, default_generator.offset._node.type))
        found = self._gradients(x, self._again(x, target, offset), g)
        leaves, structure = flatten(found)
        known = dict(zip(_residuals(found, g), (r.node for r in residuals), strict=True))
        made: StageGradients = unflatten(
            structure, [wrap(node) for node in substitute([leaf.node for leaf in leaves], known)]
        )
        return made

    def _first_result(self, x: Tensor, target: Tensor | None, offset: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The output, updating running statistics and metrics; also the statistics to combine with those of other processes."""
        if self.collected is None:
            return self._result(x, target, offset, self.task.note), []
        with collecting_statistics() as self.collected:
            y = self._result(x, target, offset, self.task.note)
        return y, self.collected.vector()

    def _again(self, x: Tensor, target: Tensor | None, offset: Tensor) -> Tensor:
        """Recompute the output, without updating running statistics a second time."""
        before = [stop_gradient(t) for t in self.state]
        y = self._result(x, target, offset)
        for tensor, old in zip(self.state, before, strict=True):
            tensor.assign(old)
        return y

    def _result(self, x: Tensor, target: Tensor | None, offset: Tensor, note: Note | None = None) -> Tensor:
        """The output of the stage for a micro-batch whose random numbers begin at an offset of the global stream."""
        before, default_generator.offset = default_generator.offset, offset
        try:
            given, wanted = self.task.prepared(x if self.begin is None else None, target)
            if self.begin is not None:
                given, default_generator.offset = x, offset + self.begin.call.drawn
            y = self._part(given)
        finally:
            default_generator.offset = before
        if self.end is not None:
            return y  # type: ignore[no-any-return]
        loss = _checked_loss(self.task.loss(y, as_tensor(wanted)))
        if note is not None:
            note(y, as_tensor(target), loss)
        return loss

    def _gradients(self, x: Tensor, y: Tensor, g: Tensor) -> StageGradients:
        wanted = [*([] if self.begin is None else [x]), *self.parameters]
        found = pull([y.node], [g.astype(y.dtype)], [t.node for t in wanted])
        made = [zeros(t.shape, dtype=t.dtype) if d is None else d for d, t in zip(found, wanted, strict=True)]
        return StageGradients(None, made) if self.begin is None else StageGradients(made[0], made[1:])

    def _predict(self, x: Tensor) -> Any:
        return self._part(self.task.prepare_input(x) if self.begin is None else x)

    # --- the part of the network --------------------------------------------------------------------------------------------------

    def _part(self, x: Any) -> Any:
        """The network's `forward` from the beginning of the stage to its end."""
        part = _PartialCalls(self.network, self.begin, self.end, x)
        try:
            with calls_through(part):
                return self.model(x if self.begin is None else _nothing(self.network.input))
        except _StageEnd as end:
            return end.result


class _StageEnd(Exception):
    """Leaves the network's `forward` at the end of the stage."""

    def __init__(self, result: Tensor) -> None:
        self.result = result


class _PartialCalls:
    """Classifies each call of a module: before the stage, its beginning, inside it, or its end."""

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
    """A placeholder for a value that is unknown here, and that nothing depends on."""
    return zeros(type.shape, dtype=type.dtype)


# --- residuals ----------------------------------------------------------------------------------------------------------------------


def _residuals(found: StageGradients, g: Tensor) -> list[Node]:
    """The values of the forward pass that gradients are computed from, in an order that depends on the graph's structure alone.

    Elementwise ops, data movement and random numbers are cheaper to recompute than to store. Parameters and values computed from
    them alone are available anyway.
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
    """Whether a value is recomputed, not stored. A slice is stored: the tensor that it was cut from may be much larger."""
    if node.op.kind == "move":
        return all(prod(i.shape) <= prod(node.shape) for i in node.inputs)
    return node.op.kind in ("elementwise", "random")


def _checked_loss(loss: Any) -> Tensor:
    if not isinstance(loss, Tensor) or loss.shape != () or not loss.dtype.is_float:
        raise UserError("Pipeline", f"a loss that gives one float is required, got {loss!r}.")
    return loss
