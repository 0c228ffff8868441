"""`If`, `Loop` and `Scan`: plain Python where conditions and counts are known, control flow of the graph where they are not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...control import cond, scan, while_loop
from ...errors import UserError
from ...ops.creation import iota
from ...ops.movement import flip, moveaxis, reshape, stack
from ...tensor import Tensor
from ..registry import OnnxCall, op
from ..values import Value, frozen, is_known, known, tensor

Ints = tuple[int, ...]


def _is_traced(value: Value) -> bool:
    return isinstance(value, Tensor) and value.node.abstract


def _tensors(values: Sequence[Value]) -> list[Tensor]:
    return [tensor(v) for v in values]


@op("If", raw=True)
def branch(condition: Value, *, then_branch: Any, else_branch: Any, call: OnnxCall) -> tuple[Value, ...]:
    if _is_traced(condition):
        then, other = (_branch(call, graph) for graph in (then_branch, else_branch))
        try:
            return tuple(cond(reshape(condition, ()), then, other))
        except UserError as error:
            raise UserError(
                "onnx",
                "the condition of an If is an argument of a compiled function, so both of its branches must fit the other arguments. "
                f"Give the argument that decides as a constant: weft.jit(lambda x: model(x, mode)). {error.message}",
            ) from error
    chosen = then_branch if known(condition).reshape(()) else else_branch
    return tuple(call.run(chosen, []))


def _branch(call: OnnxCall, graph: Any) -> Callable[[], list[Tensor]]:
    return lambda: _tensors(call.run(graph, []))


# --- Loop ------------------------------------------------------------------------------------------------------------------


LONGEST_UNROLLED = 32  # iterations of a loop with a known count; a longer one is a scan if its body allows it


@op("Loop", raw=True)
def loop(trips: Value = None, condition: Value = None, *state: Value, body: Any, call: OnnxCall) -> tuple[Value, ...]:
    """Run the body until the count or the condition ends it. Results of each iteration are stacked."""
    if _is_traced(trips) or _is_traced(condition):
        return _while(trips, condition, state, body, call)
    limit = None if trips is None else int(known(trips).reshape(()))
    go_on = condition is None or bool(known(condition).reshape(()))
    if go_on and limit is not None and limit > LONGEST_UNROLLED and any(map(_is_traced, state)):
        found_by_scan = _loop_as_scan(limit, state, body, call)
        if found_by_scan is not None:
            return found_by_scan
    carried, kept = list(state), []
    count = 0
    while go_on and (limit is None or count < limit):
        found = call.run(body, [np.array(count, np.int64), np.array(True), *carried])
        if _is_traced(found[0]):
            return _while(trips, condition, state, body, call)
        go_on = bool(known(found[0]).reshape(()))
        carried = found[1 : 1 + len(state)]
        kept.append(found[1 + len(state) :])
        count += 1
    outputs = len(body.outputs) - 1 - len(state)
    if outputs and not kept:
        like = call.run(body, [np.array(0, np.int64), np.array(True), *state])[1 + len(state) :]
        return (*carried, *(_nothing(v) for v in like))
    return (*carried, *(stacked([values[i] for values in kept]) for i in range(outputs)))


def _loop_as_scan(limit: int, state: Sequence[Value], body: Any, call: OnnxCall) -> tuple[Value, ...] | None:
    """A loop of a known number of iterations; None if its body must be unrolled.

    That is so if a condition may end it, if values change their shapes, or if shapes depend on the number of the iteration or on integers
    that are carried.
    """
    if any(is_known(v) and np.asarray(v).dtype.kind in "iub" for v in state):
        return None

    def step(carry: list[Tensor], number: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        go_on, *found = call.run(body, [number, np.array(True), *carry])
        if not is_known(go_on) or not go_on.reshape(()):
            raise UserError("onnx", "a condition may end the loop.")
        values = _tensors(found)
        return values[: len(carry)], values[len(carry) :]

    try:
        last, outputs = scan(step, _tensors(state), iota(limit))
    except UserError:
        return None
    return (*last, *outputs)


def _nothing(like: Value) -> np.ndarray:
    dtype = like.dtype.numpy if isinstance(like, Tensor) else like.dtype
    return frozen(np.zeros((0, *like.shape), dtype))


def stacked(values: Sequence[Value]) -> Value:
    if all(map(is_known, values)):
        return frozen(np.stack(values))
    return stack(_tensors(values))


def _while(trips: Value, condition: Value, state: Sequence[Value], body: Any, call: OnnxCall) -> tuple[Value, ...]:
    """A loop whose end depends on values: the results of its iterations have no known number."""
    if len(body.outputs) > 1 + len(state):
        raise UserError(
            "onnx",
            "a Loop that stacks results must end after a number of iterations that is known while a function is traced. "
            "Call the network without weft.jit.",
        )

    def test(carry: tuple[Any, ...]) -> Tensor:
        number, go_on, _ = carry
        test_passes: Tensor = go_on if trips is None else go_on & (number < reshape(tensor(trips), ()))
        return test_passes

    def step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        number, go_on, values = carry
        found = _tensors(call.run(body, [number, go_on, *values]))
        return number + 1, reshape(found[0], ()), found[1:]

    first = tensor(np.array(True)) if condition is None else reshape(tensor(condition), ())
    start = (tensor(np.array(0, np.int64)), first, _tensors(state))
    return tuple(while_loop(test, step, start)[2])


# --- Scan ------------------------------------------------------------------------------------------------------------------


@op("Scan", since=9, raw=True)
def scanned(
    *values: Value,
    body: Any,
    num_scan_inputs: int,
    scan_input_axes: Ints | None = None,
    scan_input_directions: Ints | None = None,
    scan_output_axes: Ints | None = None,
    scan_output_directions: Ints | None = None,
    call: OnnxCall,
) -> tuple[Value, ...]:
    states = len(values) - num_scan_inputs
    start, given = list(values[:states]), values[states:]
    axes, back = scan_input_axes or (0,) * num_scan_inputs, scan_input_directions or (0,) * num_scan_inputs
    sequences = [_prepared(tensor(x), axis, bool(reverse)) for x, axis, reverse in zip(given, axes, back, strict=True)]
    if any(_is_traced(v) for v in values):
        last, outputs = _scan_in_graph(start, sequences, body, call)
    else:
        last, outputs = _scan_in_python(start, sequences, body, call)
    places = scan_output_axes or (0,) * len(outputs)
    reverses = scan_output_directions or (0,) * len(outputs)
    finished = [
        moveaxis(flip(y, axis=0) if r else y, 0, axis) for y, axis, r in zip(outputs, places, reverses, strict=True)
    ]
    return (*last, *finished)


def _prepared(x: Tensor, axis: int, reverse: bool) -> Tensor:
    front = moveaxis(x, axis, 0)
    return flip(front, axis=0) if reverse else front


def _scan_in_graph(
    start: list[Value], sequences: list[Tensor], body: Any, call: OnnxCall
) -> tuple[list[Any], list[Any]]:
    def step(carry: list[Tensor], xs: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        found = _tensors(call.run(body, [*carry, *xs]))
        return found[: len(carry)], found[len(carry) :]

    last, outputs = scan(step, _tensors(start), sequences)
    return last, outputs


def _scan_in_python(
    start: list[Value], sequences: list[Tensor], body: Any, call: OnnxCall
) -> tuple[list[Any], list[Any]]:
    carry, kept = start, []
    for i in range(sequences[0].shape[0]):
        found = call.run(body, [*carry, *(x[i] for x in sequences)])
        carry = found[: len(start)]
        kept.append(found[len(start) :])
    outputs = len(body.outputs) - len(start)
    if not kept:
        raise UserError("onnx", "a Scan over at least one element is required, got an empty sequence.")
    return carry, [stack(_tensors([values[i] for values in kept])) for i in range(outputs)]


@op("Scan", since=8, raw=True)
def scanned_by_batch(
    lengths: Value = None,
    *values: Value,
    body: Any,
    num_scan_inputs: int,
    directions: Ints | None = None,
    call: OnnxCall,
) -> tuple[Value, ...]:
    """Opset 8: all values have a batch axis in front."""
    if lengths is not None:
        raise UserError("onnx", "Scan of opset 8 with sequence_lens is not supported.")
    given = _tensors(values)
    results = [
        scanned(
            *(v[b] for v in given),
            body=body,
            num_scan_inputs=num_scan_inputs,
            scan_input_directions=directions,
            call=call,
        )
        for b in range(given[0].shape[0])
    ]
    return tuple(stack(_tensors(parts)) for parts in zip(*results, strict=True))
