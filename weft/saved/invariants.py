"""What must be the same whenever a saved function is called: a file holds one graph, and the tensors and numbers that it was traced with.

`jit` traces again when one of these changes; a file cannot. So `save` refuses functions that depend on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import starmap, zip_longest
from typing import Any

from ..errors import UserError
from ..ops.creation import zeros
from ..tensor import Tensor
from ..tracing.arguments import ResultSource
from ..tracing.state import StateTensor
from ..tracing.traced import TracedFunction
from .dimensions import Sizes, refuse_sizes, show_sizes


def check_same_at_all_sizes(found: Sequence[TracedFunction], points: Sequence[Sizes]) -> None:
    """Check that tensors, arrays and numbers that are not part of the graph are those of the first size at every size."""
    first, start = found[0], points[0]
    for other, at in zip(found[1:], points[1:], strict=True):
        sizes = f"{show_sizes(start)} and {show_sizes(at)}"
        if not uses_same_tensors([first, other]):
            raise refuse_sizes(
                f"it uses different arrays or tensors for {sizes}. Compute what depends on a size with weft's functions, such as "
                "weft.arange(x.shape[0])"
            )
        if not _is_same_result(first, other):
            raise refuse_sizes(
                f"it returns different numbers or structures for {sizes}. Return a number as a tensor, such as weft.full((), x.shape[0])"
            )


def uses_same_tensors(found: Sequence[TracedFunction]) -> bool:
    """Whether a function uses the same tensors, and arrays of the same content, at every size."""
    return all(all(starmap(_is_same_state, zip_longest(found[0].states, other.states))) for other in found[1:])


def _is_same_state(a: StateTensor | None, b: StateTensor | None) -> bool:
    if a is None or b is None:
        return False
    left, right = a.find(), b.find()
    return left is right or (a.is_constant and b.is_constant and content_of(left) == content_of(right))


def _is_same_result(a: TracedFunction, b: TracedFunction) -> bool:
    same = a.arguments.structure == b.arguments.structure and a.arguments.changed == b.arguments.changed
    return same and list(map(_result_key, a.arguments.results)) == list(map(_result_key, b.arguments.results))


def _result_key(result: ResultSource) -> tuple[Any, ...]:
    """What tells results apart; numbers are compared by their texts, since nan is not equal to itself."""
    value = id(result.value) if isinstance(result.value, Tensor) else repr(result.value)
    return result.source, result.number, value


def content_of(tensor: Tensor) -> tuple[str, tuple[int, ...], bytes]:
    """The dtype, the shape and the bits of a tensor."""
    return str(tensor.dtype), tensor.shape, tensor.numpy().tobytes()


def check_reads_no_changing_value(found: TracedFunction, names: dict[int, str]) -> None:
    """Check that Python has read no tensor that the function itself changes: the second call would need another graph."""
    written = {id(state.find()) for state in found.states if state.written}
    for tensor, *_ in found.guards.seen:
        if id(tensor) in written:
            raise UserError(
                "save",
                f"Python reads the value of {names.get(id(tensor), 'a tensor')} (item, bool, float ...), which the function changes: a "
                "file cannot hold what it does in later calls. Use weft.where or weft.cond.",
            )


@contextmanager
def with_gradients(found: TracedFunction) -> Iterator[bool]:
    """Inside, tensors whose .grad the function sets have one, as they do at its second call; gives whether there are any."""
    missing = [tensor for tensor, number in found.grads if number is not None and tensor.grad is None]
    for tensor in missing:
        tensor.grad = zeros(tensor.shape, dtype=tensor.dtype).realize()
    try:
        yield bool(missing)
    finally:
        for tensor in missing:
            tensor.grad = None


def check_adds_to_no_gradient(found: TracedFunction) -> None:
    """Check that a function traced `with_gradients` reads none of them."""
    gradients = {id(tensor.grad) for tensor, _ in found.grads}
    if any(id(state.find()) in gradients for state in found.states):
        raise UserError(
            "save",
            "the function adds to the .grad of tensors that have none yet, so its second call differs from the first. Clear them "
            "inside of it (w.grad = None), or return gradients (weft.gradients, weft.grad).",
        )
