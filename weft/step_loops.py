"""Many training steps as one loop of the graph: what a step changes is carried from one to the next.

`scan` takes pure functions. A training step changes parameters, moments and running statistics instead, and draws random numbers;
`scan_steps` finds the tensors that it changes and carries them, so that an epoch is one program, on a GPU one CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .control import scan_traced, sequence_types
from .errors import UserError
from .tensor import Tensor
from .tracing.context import LocalChanges
from .tracing.trace import trace
from .tree import Structure, flatten, unflatten


class _StepChanges(LocalChanges):
    """Changes of a step: of parameters too, since they are carried."""

    def changed(self, tensor: Tensor) -> None:
        self.before.setdefault(tensor, self.saw(tensor, tensor._node))


def scan_steps(step: Callable[..., Any], xs: Any = None, *, length: int | None = None) -> Any:
    """Call step(x) for each x of the sequences, in one loop of the graph. Returns the stacked results.

    Unlike the function of `scan`, a step may change tensors (parameters, optimizer state, running statistics): they are carried
    from step to step, and have their last values afterwards. Derivatives do not flow through the loop.

    >>> import weft
    >>> w = weft.parameter(1.0)
    >>> def step(x):
    ...     loss = (w - x) ** 2
    ...     w.assign(w - 0.25 * weft.gradients(loss, [w])[0])
    ...     return loss
    >>> losses = weft.jit(lambda xs: scan_steps(step, xs))(weft.asarray([3.0, 3.0, 3.0]))
    >>> losses.tolist(), w.item()
    ([4.0, 1.0, 0.25], 2.75)
    """
    leaves, structure = flatten(xs)
    sequences, types, length = sequence_types(leaves, length)
    alone = Structure(tuple, (), (structure,))
    with _StepChanges() as found:
        trace(step, types, alone, watched=True)
    state = list(found.before)
    if not state:
        raise UserError("scan_steps", "the step changes no tensor from outside. Use weft.scan.")
    starts = [tensor.detach() for tensor in state]

    def body(*values: Tensor) -> Any:
        for tensor, value in zip(state, values, strict=False):
            tensor.assign(value)
        y = step(*unflatten(alone, values[len(state) :]))
        return [tensor.detach() for tensor in state], y

    with _StepChanges():
        every = [*(start._node.type for start in starts), *types]
        traced = trace(body, every, Structure(tuple, (), (Structure(None),) * len(every)), watched=True)
    carried, ys = scan_traced(traced, starts, sequences, length)
    for tensor, value in zip(state, carried, strict=True):
        tensor.assign(value)
    return unflatten(traced.structure.children[1], ys)
