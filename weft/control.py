"""Control flow inside the graph: `cond`, `while_loop`, `scan`, and `checkpoint`.

The user's functions are traced into closed graphs (see tensor/tracing_context.py). The derivative of a body is another graph, built once by
reverse mode (`derivative`), and recomputes what it needs from the body's inputs.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from .derivatives import differentiable_ancestors, pull
from .dtypes import bool_
from .errors import UserError
from .graph.graph import Graph, close, substitute
from .graph.node import OPS, Node, Op, Type, item, make, placeholder
from .ops.creation import arange, zeros
from .random import Generator
from .runtime import evaluate, transfer
from .runtime.reference import interpret
from .tensor import TRACING, Tensor, as_tensor, wrap
from .tracing.context import LocalChanges
from .tracing.trace import Trace, trace
from .tree import Structure, flatten, unflatten


def _merge_captures(traces: Sequence[Trace]) -> tuple[list[Node], list[Generator]]:
    captured = {node: None for t in traces for node in t.captures()}
    streams = {stream: None for t in traces for stream in t.streams}
    return list(captured), list(streams)


def _operands(streams: Sequence[Generator], tensors: Sequence[Tensor], captured: Sequence[Node]) -> list[Node]:
    """The inputs of a control-flow node: positions of random streams, the user's operands, and captured values."""
    others = [*(t.node for t in tensors), *captured]
    home = next((n.device for n in others if n.device is not None), None)
    positions = [s.offset.node for s in streams]
    # A stream that was last used on another device moves to the device of this node.
    moved = [n if home is None or n.device in (None, home) else transfer(n, home) for n in positions]
    return [*moved, *others]


def _results(node: Node, streams: Sequence[Generator]) -> list[Tensor]:
    """The results of a control-flow node; its random streams, which come first, are advanced."""
    every = [wrap(item(node, i)) for i in range(len(node.outputs))]
    for stream, position in zip(streams, every, strict=False):
        # The result must not keep the history of parameters that a body used.
        stream.offset = position.detach() if position._node.tracked else position
    return every[len(streams) :]


# --- derivatives of bodies -------------------------------------------------------------------------------------------------


_derivatives: WeakKeyDictionary[Graph, dict[tuple[bool, ...], Graph]] = WeakKeyDictionary()


def derivative(graph: Graph, needed: tuple[bool, ...]) -> Graph:
    """(inputs, cotangents of the float outputs) -> cotangents of the needed inputs. Cached per body."""
    made = _derivatives.setdefault(graph, {})
    if needed not in made:
        made[needed] = _differentiate(graph, needed)
    return made[needed]


def _differentiate(graph: Graph, needed: tuple[bool, ...]) -> Graph:
    xs = [placeholder(object(), n.type) for n in graph.inputs]
    ys = substitute(graph.outputs, dict(zip(graph.inputs, xs, strict=True)))
    roots = [y for y in ys if y.dtype.is_float]
    cotangents = [placeholder(object(), y.type) for y in roots]
    targets = list(itertools.compress(xs, needed))
    found = pull(roots, [wrap(c) for c in cotangents], targets)
    results = [zeros(t.shape, dtype=t.dtype) if g is None else g for g, t in zip(found, targets, strict=True)]
    return close([*xs, *cotangents], [r.node for r in results])


def inline(graph: Graph, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The graph applied to tensors, node by node."""
    return [wrap(o) for o in substitute(graph.outputs, dict(zip(graph.inputs, (x.node for x in inputs), strict=True)))]


def _float_cotangents(gs: Sequence[Tensor], ys: Sequence[Tensor]) -> list[Tensor]:
    return [g for g, y in zip(gs, ys, strict=True) if y.dtype.is_float]


def _with_none(needed: Sequence[bool], found: Sequence[Tensor]) -> list[Tensor | None]:
    """Cotangents of the needed inputs, with None at the others."""
    rest = iter(found)
    return [next(rest) if n else None for n in needed]


def _emit(op: Op, inputs: Sequence[Tensor], *params: Any) -> list[Tensor]:
    node = make(op, tuple(x.node for x in inputs), params)
    return [wrap(item(node, i)) for i in range(len(node.outputs))]


def _check_inputs(name: str, graph: Graph, inputs: Sequence[Node]) -> None:
    if not isinstance(graph, Graph) or [n.type for n in graph.inputs] != [n.type for n in inputs]:
        raise UserError(name, f"the body does not take {', '.join(str(n.type) for n in inputs)}.")


# --- checkpoint ------------------------------------------------------------------------------------------------------------


def _call_infer(inputs: tuple[Node, ...], body: Graph) -> tuple[Type, ...]:
    _check_inputs("checkpoint", body, inputs)
    return tuple(o.type for o in body.outputs)


def _call_vjp(
    gs: list[Tensor], ys: list[Tensor], needed: tuple[bool, ...], inputs: tuple[Tensor, ...], body: Graph
) -> list[Tensor | None]:
    cotangents = _float_cotangents(gs, ys)
    return _with_none(needed, _emit(CALL, [*inputs, *cotangents], derivative(body, needed)))


CALL = Op(
    "call",
    "control",
    _call_infer,
    lambda values, body: interpret(body)(*values),
    _call_vjp,
    ("body",),
    kernel="control",
)


def _tracked(node: Node) -> list[bool]:
    """Which results of a checkpoint depend differentiably on a tracked input."""
    body: Graph = node.param("body")
    sources = {i for i, x in zip(body.inputs, node.inputs, strict=True) if x.tracked or _may_be_tracked(x)}
    reached = differentiable_ancestors(body.nodes, sources)
    return [o in reached for o in body.outputs]


def _may_be_tracked(x: Node) -> bool:
    """Whether a node may be tracked; unknown, hence true, for placeholders of an enclosing body."""
    return x.abstract and x.dtype.is_float and x.op is not OPS["stop_gradient"]


def checkpoint(f: Callable[..., Any]) -> Callable[..., Any]:
    """Rematerialization: the intermediate values of f are not stored for the derivative but recomputed from its inputs.

    >>> from weft import grad, sin
    >>> grad(checkpoint(lambda x: sin(sin(x))))(as_tensor(0.0)).item()
    1.0
    """

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = flatten((args, kwargs))
        is_value = [isinstance(leaf, Tensor | np.ndarray) for leaf in leaves]
        operands = [as_tensor(leaf) for leaf in itertools.compress(leaves, is_value)]

        def with_settings(*values: Tensor) -> Any:  # other values are passed unchanged
            rest = iter(values)
            args, kwargs = unflatten(structure, [next(rest) if v else x for x, v in zip(leaves, is_value, strict=True)])
            return f(*args, **kwargs), list(state.before)

        types = [o._node.type for o in operands]
        with LocalChanges() as state:  # such as the running statistics of batch norm
            traced = trace(with_settings, types, flatten(tuple(operands))[1], watched=True)
        captured, streams = _merge_captures([traced])
        node = make(CALL, tuple(_operands(streams, operands, captured)), (traced.graph(captured, streams),))
        results = _results(node, streams)
        result, values = unflatten(traced.structure, results)
        if values:
            _change(list(state.before), values, _tracked(node)[-len(values) :])
            # Otherwise pending calls would form a chain that keeps all their inputs alive.
            if TRACING.watch is None and not node.abstract:
                evaluate([t._node for t in (*results, *state.before, *(s.offset for s in streams))])
        return result

    return call


def _change(state: Sequence[Tensor], values: Sequence[Tensor], tracked: Sequence[bool]) -> None:
    for tensor, value, moves in zip(state, values, tracked, strict=True):
        tensor.assign(value if moves else value.detach())


# --- cond ------------------------------------------------------------------------------------------------------------------


def _cond_infer(inputs: tuple[Node, ...], then: Graph, other: Graph) -> tuple[Type, ...]:
    if not inputs or inputs[0].type != Type((), bool_):
        raise UserError("cond", "the condition must be a bool without dimensions.")
    _check_inputs("cond", then, inputs[1:])
    _check_inputs("cond", other, inputs[1:])
    types = tuple(o.type for o in then.outputs)
    if types != tuple(o.type for o in other.outputs):
        raise UserError("cond", "both branches must return values of the same types.")
    return types


def _cond(values: tuple[Any, ...], then: Graph, other: Graph) -> tuple[Any, ...]:
    return interpret(then if values[0] else other)(*values[1:])


def _cond_vjp(
    gs: list[Tensor],
    ys: list[Tensor],
    needed: tuple[bool, ...],
    inputs: tuple[Tensor, ...],
    then: Graph,
    other: Graph,
) -> list[Tensor | None]:
    cotangents = _float_cotangents(gs, ys)
    found = _emit(COND, [*inputs, *cotangents], derivative(then, needed[1:]), derivative(other, needed[1:]))
    return _with_none(needed, found)


COND = Op("cond", "control", _cond_infer, _cond, _cond_vjp, ("then", "other"), kernel="control")


def cond(condition: Any, then: Callable[..., Any], other: Callable[..., Any], *operands: Any) -> Any:
    """then(*operands) if the condition is true, else other(*operands); only the selected branch is computed.

    >>> from weft import grad
    >>> f = lambda x: cond(x > 0.0, lambda x: x * x, lambda x: -x, x)
    >>> f(as_tensor(3.0)).item(), grad(f)(as_tensor(3.0)).item(), grad(f)(as_tensor(-2.0)).item()
    (9.0, 6.0, -1.0)
    """
    leaves, structure = flatten(operands)
    tensors = [as_tensor(leaf) for leaf in leaves]
    condition = as_tensor(condition)
    if condition._node.type != Type((), bool_):
        raise UserError("cond", f"the condition must be a bool without dimensions, got {condition._node.type}.")
    types = [t._node.type for t in tensors]
    first, second = trace(then, types, structure), trace(other, types, structure)
    if first.structure != second.structure or first.types() != second.types():
        raise UserError(
            "cond",
            f"both branches must return values of the same types, got {_show(first)} and {_show(second)}.",
        )
    captured, streams = _merge_captures([first, second])
    inputs = (condition.node, *_operands(streams, tensors, captured))
    node = make(COND, inputs, (first.graph(captured, streams), second.graph(captured, streams)))
    return unflatten(first.structure, _results(node, streams))


def _show(traced: Trace) -> str:
    return f"({', '.join(map(str, traced.types()))})"


# --- while_loop --------------------------------------------------------------------------------------------------------------


def _while_infer(inputs: tuple[Node, ...], test: Graph, body: Graph, carried: int) -> tuple[Type, ...]:
    _check_inputs("while_loop", test, inputs)
    _check_inputs("while_loop", body, inputs)
    if [o.type for o in test.outputs] != [Type((), bool_)]:
        raise UserError("while_loop", "the test must return one bool without dimensions.")
    types = tuple(i.type for i in inputs[:carried])
    if tuple(o.type for o in body.outputs) != types:
        raise UserError("while_loop", "the body must return values of the types of its inputs.")
    return types


def _while(values: tuple[Any, ...], test: Graph, body: Graph, carried: int) -> tuple[Any, ...]:
    go_on, step = interpret(test), interpret(body)
    while go_on(*values)[0]:
        values = (*step(*values), *values[carried:])
    return values[:carried]


def _while_vjp(*_: Any) -> Any:
    raise UserError(
        "while_loop",
        "while_loop cannot be differentiated, because the number of steps is not known in advance. "
        "Use weft.scan with a fixed length, or stop_gradient.",
    )


WHILE = Op("while_loop", "control", _while_infer, _while, _while_vjp, ("test", "body", "carried"), kernel="control")


def while_loop(test: Callable[..., Any], body: Callable[..., Any], init: Any) -> Any:
    """Replace the value by body(value) while test(value) is true.

    >>> while_loop(lambda n: n < 100, lambda n: n * 2, as_tensor(3)).item()
    192
    """
    leaves, structure = flatten((init,))
    carry = [as_tensor(leaf) for leaf in leaves]
    types = [c._node.type for c in carry]
    tested, stepped = trace(test, types, structure), trace(body, types, structure)
    if tested.types() != [Type((), bool_)] or tested.streams:
        raise UserError("while_loop", "the test must return one bool without dimensions, and draw no random numbers.")
    _check_carry("while_loop", types, structure.children[0], stepped.types(), stepped.structure)
    captured, streams = _merge_captures([tested, stepped])
    graphs = tested.graph(captured, streams, moves_streams=False), stepped.graph(captured, streams)
    node = make(WHILE, tuple(_operands(streams, carry, captured)), (*graphs, len(streams) + len(carry)))
    return unflatten(structure.children[0], _results(node, streams))


def _check_carry(name: str, types: list[Type], structure: Structure, after: list[Type], result: Structure) -> None:
    if result != structure or after[: len(types)] != types:
        given, got = (
            f"{s} of ({', '.join(map(str, t))})" for s, t in ((structure, types), (result, after[: result.leaves]))
        )
        raise UserError(name, f"the carried value must keep its type: it went in as {given} and came out as {got}.")


# --- scan --------------------------------------------------------------------------------------------------------------------
# Inputs: carried values, sequences, constants. Results: the last carried values, the stacked outputs and, with `history`,
# the carried values before every step, which the derivative reads in reverse.


def _scan_infer(
    inputs: tuple[Node, ...], body: Graph, carried: int, sequences: int, length: int, reverse: bool, history: bool
) -> tuple[Type, ...]:
    carry, xs, constants = _scan_parts(inputs, carried, sequences)
    if length < 0 or any(not x.shape or x.shape[0] != length for x in xs):
        raise UserError("scan", f"sequences of length {length} are required, got {', '.join(str(x.type) for x in xs)}.")
    each = [Type(x.shape[1:], x.dtype) for x in xs]
    if [n.type for n in body.inputs] != [*(c.type for c in carry), *each, *(c.type for c in constants)]:
        raise UserError("scan", "the body does not take these carried values, sequences and constants.")
    types = [o.type for o in body.outputs]
    if types[:carried] != [c.type for c in carry]:
        raise UserError("scan", "the body must return carried values of the types of its inputs.")
    stacked = [Type((length, *t.shape), t.dtype) for t in types[carried:]]
    before = [Type((length, *t.shape), t.dtype) for t in types[:carried]] if history else []
    return (*types[:carried], *stacked, *before)


def _scan_parts(values: Sequence[Any], carried: int, sequences: int) -> tuple[Any, Any, Any]:
    return values[:carried], values[carried : carried + sequences], values[carried + sequences :]


def _scan(
    values: tuple[Any, ...], body: Graph, carried: int, sequences: int, length: int, reverse: bool, history: bool
) -> tuple[Any, ...]:
    carry, xs, constants = _scan_parts(values, carried, sequences)
    step = interpret(body)
    kept = body.outputs[carried:] + (body.outputs[:carried] if history else ())
    stacks = [np.empty((length, *o.shape), o.dtype.numpy) for o in kept]
    for t in reversed(range(length)) if reverse else range(length):
        result = step(*carry, *(x[t] for x in xs), *constants)
        for stack, value in zip(stacks, (*result[carried:], *carry), strict=False):
            stack[t] = value
        carry = result[:carried]
    return (*carry, *stacks)


def _scan_vjp(
    gs: list[Tensor],
    ys: list[Tensor],
    needed: tuple[bool, ...],
    inputs: tuple[Tensor, ...],
    body: Graph,
    carried: int,
    sequences: int,
    length: int,
    reverse: bool,
    history: bool,
) -> list[Tensor | None]:
    carry, xs, constants = _scan_parts(inputs, carried, sequences)
    outputs = len(body.outputs)
    if not history:
        ys = _emit(SCAN, inputs, body, carried, sequences, length, reverse, True)
        gs = [*gs, *(zeros(y.shape, dtype=y.dtype) for y in ys[outputs:])]
    wide = _needed_in_loop(body, needed, carried)
    back = derivative(body, wide)
    moving, n, m = wide[:carried], sum(wide[:carried]), sum(wide[carried : carried + sequences])

    def step(state: tuple[list[Tensor], list[Tensor]], now: tuple[list[Tensor], ...]) -> Any:
        (cts, totals), (was, x, ct_outputs, ct_was) = state, now
        full = _with_none(moving, cts)
        ct_carry = [
            zeros(c.shape, dtype=c.dtype) if ct is None else ct
            for c, ct in zip(carry, full, strict=True) if c.dtype.is_float
        ]  # fmt: skip
        found = inline(back, [*was, *x, *constants, *ct_carry, *ct_outputs])
        cts = [a + b for a, b in zip(found[:n], ct_was, strict=True)]
        totals = [a + b for a, b in zip(totals, found[n + m :], strict=True)]
        return (cts, totals), found[n : n + m]

    constants_needed = itertools.compress(constants, wide[carried + sequences :])
    start = (list(itertools.compress(gs, moving)), [zeros(c.shape, dtype=c.dtype) for c in constants_needed])
    # The carried values before every step are results too, with their own cotangents.
    ct_before = list(itertools.compress(gs[outputs:], moving))
    ct_ys = _float_cotangents(gs[carried:outputs], ys[carried:outputs])
    backwards = (ys[outputs:], list(xs), ct_ys, ct_before)
    (cts, totals), ct_xs = scan(step, start, backwards, length=length, reverse=not reverse)
    every = _with_none(wide, [*cts, *ct_xs, *totals])
    return [ct if n else None for ct, n in zip(every, needed, strict=True)]


def _needed_in_loop(body: Graph, needed: tuple[bool, ...], carried: int) -> tuple[bool, ...]:
    """The needed inputs, and every carried value that depends on one of them after any number of steps."""
    wide = list(needed)
    while True:
        targets = set(itertools.compress(body.inputs, wide))
        reached = differentiable_ancestors(body.nodes, targets)
        grown = [
            w or (i < carried and body.outputs[i] in reached and body.outputs[i].dtype.is_float)
            for i, w in enumerate(wide)
        ]
        if grown == wide:
            return tuple(wide)
        wide = grown


SCAN = Op(
    "scan", "control", _scan_infer, _scan, _scan_vjp,
    ("body", "carried", "sequences", "length", "reverse", "history"), kernel="control",
)  # fmt: skip


def scan(
    f: Callable[..., Any], init: Any, xs: Any = None, *, length: int | None = None, reverse: bool = False
) -> tuple[Any, Any]:
    """Scan over sequences: (carry, y) = f(carry, x) for each x. Returns the last carry and the stacked ys.

    >>> import weft
    >>> total, partial = scan(lambda s, x: (s + x, s), as_tensor(0.0), weft.asarray([1.0, 2.0, 3.0]))
    >>> total.item(), partial.tolist()
    (6.0, [0.0, 1.0, 3.0])
    """
    carry_leaves, carry_structure = flatten(init)
    x_leaves, x_structure = flatten(xs)
    carry = [as_tensor(c) for c in carry_leaves]
    sequences, each, length = sequence_types(x_leaves, length)
    carry_types = [c._node.type for c in carry]
    traced = trace(f, [*carry_types, *each], Structure(tuple, (), (carry_structure, x_structure)))
    if traced.structure.kind is not tuple or len(traced.structure.children) != 2:
        raise UserError("scan", "the function must return a pair: (carry, output). Return None for no output.")
    after_carry, y_structure = traced.structure.children
    _check_carry("scan", carry_types, carry_structure, traced.types(), after_carry)
    last, ys = scan_traced(traced, carry, sequences, length, reverse=reverse, differentiable=True)
    return unflatten(carry_structure, last), unflatten(y_structure, ys)


def sequence_types(leaves: Sequence[Any], length: int | None) -> tuple[list[Tensor], list[Type], int]:
    """The sequences of a scan as tensors, the types of their elements, and their length."""
    sequences = [as_tensor(x) for x in leaves]
    length = _length(sequences, length)
    return sequences, [Type(x.shape[1:], x.dtype) for x in sequences], length


def scan_traced(
    traced: Trace,
    carry: Sequence[Tensor],
    sequences: Sequence[Tensor],
    length: int,
    *,
    reverse: bool = False,
    differentiable: bool = False,
) -> tuple[list[Tensor], list[Tensor]]:
    """The scan with a traced body, (carried values, elements) -> (carried values, outputs): the last carried values, the stacked outputs."""
    captured, streams = _merge_captures([traced])
    graph = traced.graph(captured, streams)
    if not differentiable:
        captured = [wrap(node).detach().node if node.tracked else node for node in captured]
    inputs = _operands(streams, [*carry, *sequences], captured)
    sizes = len(streams) + len(carry), len(sequences), length
    history = differentiable and any(i.tracked for i in inputs)
    results = _results(make(SCAN, tuple(inputs), (graph, *sizes, reverse, history)), streams)
    outputs = len(graph.outputs) - len(streams)
    return results[: len(carry)], results[len(carry) : outputs]


def _length(sequences: Sequence[Tensor], length: int | None) -> int:
    lengths = {x.shape[0] for x in sequences if x.shape} | ({length} if length is not None else set())
    if any(not x.shape for x in sequences) or len(lengths) != 1:
        raise UserError("scan", f"sequences of one length are required, got {sorted(lengths) or 'none'}.")
    return int(lengths.pop())


def fori_loop(lower: int, upper: int, body: Callable[..., Any], init: Any) -> Any:
    """value = body(i, value) for i from lower to upper. It can be differentiated.

    >>> fori_loop(0, 4, lambda i, v: v + i, as_tensor(0)).item()
    6
    """
    return scan(lambda value, i: (body(i, value), None), init, arange(lower, upper))[0]
