"""Automatic differentiation: reverse mode over the graph with the vjp rules of ops, and its public functions.

The rules are written in graph ops, so the result is a graph and can be differentiated again, to any order. `grad`,
`value_and_grad`, `vjp` and `jvp` take functions; `gradients` and `backward` take tensors computed from parameters. All of
them call `pull`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from .errors import InternalError, Scope, Source, UserError
from .graph.node import CONST, ITEM, OPS, TAG, VARIABLE, Node, Op, Tracker, Type, blame, item, make, tag, toposort
from .ops.creation import ones_like, zeros
from .ops.elementwise import WHERE, stop_gradient, where
from .tensor import FUNCTIONS, TRACING, Tensor, as_tensor, wrap
from .tree import flatten, unflatten

# --- the walk ------------------------------------------------------------------------------------------------------------


def pull(roots: Sequence[Node], cotangents: Sequence[Tensor], targets: Sequence[Node]) -> list[Tensor | None]:
    """The cotangents of the targets, given those of the roots; None where no path leads from a root to a target."""
    wanted = set(targets)
    tags = {target for target in targets if target.op is TAG}  # the walk stops at a tag
    order = toposort(roots, lambda node: () if node in tags else node.inputs)
    leads = differentiable_ancestors(order, wanted)
    known: dict[Node, Tensor] = {}
    several: dict[Node, dict[int, Tensor]] = {}  # for nodes with several results: one cotangent per result
    masks: dict[Node, Tensor | None] = {}
    for root, cotangent in zip(roots, cotangents, strict=True):
        _accumulate(known, root, cotangent)
    with blame() as attribute_to:
        for node in reversed(order):
            if node not in leads or (node not in known and node not in several):
                continue
            attribute_to(_backward(node.source))
            if node.op is ITEM:
                _accumulate(several.setdefault(node.inputs[0], {}), node.param("index"), known[node])
            else:
                mask = masks.pop(node, None)
                rules = _apply_rule(node, leads, known, several)
                for position, (x, rule) in enumerate(zip(node.inputs, rules, strict=True)):
                    if rule is not None and x in leads:
                        made = rule if isinstance(rule, Tensor) else rule()
                        _check(node, x, made)
                        if mask is not None or node.op is WHERE:
                            made = _masked(made, mask, node, known[node])
                            _merge_mask(masks, x, x in known, _mask_below(node, position, mask, made))
                        elif x in masks:
                            masks[x] = None
                        _accumulate(known, x, made)
            if node not in wanted:
                known.pop(node, None)
    return [known.get(target) for target in targets]


def _backward(source: Source | None) -> Source:
    """The same line and layer, in the backward pass."""
    if source is None:
        return _NOWHERE
    return source if source.scope is not None and source.scope.phase == "backward" else source.in_phase("backward")


_NOWHERE = Source(None, 0, Scope(phase="backward"))


# The branch that `where` does not select must not affect derivatives, but its derivative may be infinite, and 0 * inf is nan.
# So the reverse pass propagates a mask of the selected elements down the elementwise and movement ops below a `where`, and
# writes zeros at the others after every op that multiplies. (Testing the cotangent for 0 instead would break higher
# derivatives.) A relu is excluded: it does not guard its input, and batch norm below it would have to count the selected
# elements of every channel.


def _mask_below(node: Node, position: int, mask: Tensor | None, made: Tensor) -> Tensor | None:
    """A mask of where the cotangent of an input can be nonzero; None: everywhere, or unknown."""
    if node.op is WHERE and position > 0:
        if position == 2 and _is_relu(node):
            return mask
        condition = wrap(node.inputs[0])
        chosen = condition if position == 1 else ~condition
        return chosen if mask is None else chosen & mask
    if mask is not None and node.op.kind == "move":  # a movement op moves the mask like the cotangent
        moved: Tensor = _rules(node, mask.astype(made.dtype))[position]
        return moved > 0.0
    return mask if node.op.kind == "elementwise" else None


def _is_relu(node: Node) -> bool:
    """Whether a `where` is a relu: the value where it is positive, else zero."""
    test, zero, x = node.inputs
    zeros = [n for n in (zero, *test.inputs[1:]) if n.op is CONST and n.param("value") in (0, 0.0)]
    return test.op.name in ("le", "lt") and test.inputs[0] is x and len(zeros) == 2


def _masked(cotangent: Tensor, mask: Tensor | None, node: Node, g: Tensor) -> Tensor:
    if mask is None:
        return cotangent
    unchanged = cotangent is g or node.op is WHERE
    scaled = node.op is OPS["mul"] and any(i.op is CONST and not isinstance(i.param("value"), str) for i in node.inputs)
    return cotangent if unchanged or scaled or node.op.kind != "elementwise" else where(mask, cotangent, 0.0)


def _merge_mask(masks: dict[Node, Tensor | None], x: Node, again: bool, mask: Tensor | None) -> None:
    other = masks.get(x)
    masks[x] = mask if not again else mask | other if mask is not None and other is not None else None


def differentiable_ancestors(order: Sequence[Node], targets: set[Node]) -> set[Node]:
    """The nodes that depend differentiably on a target."""
    leads = set(targets)
    for node in order:
        if node.op.vjp is not None:
            for i in node.inputs:
                if i in leads:
                    leads.add(node)
                    break
    return leads


def _accumulate(known: dict[Any, Tensor], key: Any, cotangent: Tensor) -> None:
    known[key] = known[key] + cotangent if key in known else cotangent


def _apply_rule(node: Node, leads: set[Node], known: dict[Node, Tensor], several: dict[Node, dict[int, Tensor]]) -> Any:
    if not node.outputs:
        return _rules(node, known[node])
    parts = several.pop(node)
    results = [wrap(item(node, i)) for i in range(len(node.outputs))]
    cotangents = [
        parts[i] if i in parts else zeros(t.shape, dtype=t.dtype if t.dtype.is_float else None)
        for i, t in enumerate(node.outputs)
    ]
    if node.op.kind != "control":
        inputs = tuple([wrap(i) for i in node.inputs])
        given: Any = (inputs,) if node.op.arity is None else inputs
        return node.op.vjp(cotangents, results, *given, *node.params)  # type: ignore[misc]
    # A body is differentiated as a whole, so ops with bodies are told which inputs are needed.
    needed = tuple(i in leads and i.dtype.is_float for i in node.inputs)
    if not any(needed):
        return (None,) * len(needed)
    return node.op.vjp(cotangents, results, needed, tuple(wrap(i) for i in node.inputs), *node.params)  # type: ignore[misc]


def _rules(node: Node, g: Tensor) -> Any:
    """Apply the vjp rule of a node with one result."""
    if node.op.vjp is None or not node.inputs:
        return (None,) * len(node.inputs)
    inputs = tuple([wrap(i) for i in node.inputs])
    given: Any = (inputs,) if node.op.arity is None else inputs
    return node.op.vjp(g, wrap(node), *given, *node.params)


def _check(node: Node, x: Node, cotangent: Tensor) -> None:
    if cotangent.shape != x.shape or cotangent.dtype is not x.dtype:
        raise InternalError("grad", f"{node.op.name} gave {cotangent._node.type} as the derivative by {x.type}.")


# --- of functions --------------------------------------------------------------------------------------------------------


def vjp(f: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """f(*primals), and the function that maps a cotangent of the result to cotangents of the primals.

    >>> y, back = vjp(lambda a, b: a * b, as_tensor(2.0), as_tensor(5.0))
    >>> [g.item() for g in back(as_tensor(1.0))]
    [5.0, 2.0]
    """
    leaves, structure = flatten(primals)
    tracker = Tracker()
    targets = [tag(as_tensor(leaf).node, tracker) for leaf in leaves]
    tagged = [wrap(t) for t in targets]  # new references for f, which may update them in place
    try:
        outputs, shape_of_outputs = flatten(f(*unflatten(structure, tagged)))
        results = [as_tensor(o) for o in outputs]  # while the tracker is open: f may have evaluated them
    finally:
        tracker.open = False
    roots = [r._node for r in results]

    def pullback(cotangents: Any) -> tuple[Any, ...]:
        given, same = flatten(cotangents)
        if same != shape_of_outputs:
            raise UserError("vjp", f"a cotangent of the structure {shape_of_outputs} is required, got {same}.")
        cts = [_cotangent("vjp", as_tensor(g), r) for g, r in zip(given, results, strict=True)]
        found = pull(roots, cts, targets)
        back: tuple[Any, ...] = unflatten(structure, _zeros_for_none(found, targets))
        return back

    return unflatten(shape_of_outputs, results), pullback


def _cotangent(name: str, g: Tensor, of: Tensor) -> Tensor:
    if g.shape != of.shape:
        raise UserError(name, f"a cotangent of shape {of.shape} is required, got {g.shape}.")
    return g.astype(of.dtype) if of.dtype.is_float else g


def _zeros_for_none(found: Sequence[Tensor | None], like: Sequence[Tensor | Node]) -> list[Tensor]:
    return [
        zeros(x.shape, dtype=x.dtype if x.dtype.is_float else None) if g is None else g
        for g, x in zip(found, like, strict=True)
    ]


def value_and_grad(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, *, has_aux: bool = False
) -> Callable[..., tuple[Any, Any]]:
    """A function that returns the value of f and its derivative with respect to the arguments `argnums`.

    With `has_aux`, f returns (value, anything else) and so does the new function.

    >>> value_and_grad(lambda x: x * x)(as_tensor(3.0))
    (Tensor(9., dtype=float32), Tensor(6., dtype=float32))
    """

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        of_chosen, chosen = by_arguments("grad", f, argnums, args, kwargs)
        aux: list[Any] = []

        def of_scalar(*values: Any) -> Any:
            result = of_chosen(*values)
            if has_aux:
                result, rest = result
                aux.append(rest)
            return _scalar("grad", result)

        value, pullback = vjp(of_scalar, *chosen)
        derivatives = pullback(ones_like(value))
        answer = derivatives[0] if isinstance(argnums, int) else derivatives
        return ((value, aux[0]) if has_aux else value), answer

    return call


def by_arguments(
    name: str, f: Callable[..., Any], argnums: int | Sequence[int], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], list[Any]]:
    """f as a function of the selected arguments only, and their values."""
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    chosen = _choose(name, args, numbers)
    if len({n % len(args) for n in numbers}) != len(numbers):
        raise UserError(name, f"each argument can be asked for once, got argnums={argnums} for {len(args)}.")

    def of_chosen(*values: Any) -> Any:
        full = list(args)
        for number, value in zip(numbers, values, strict=True):
            full[number] = value
        return f(*full, **kwargs)

    return of_chosen, chosen


def _choose(name: str, args: tuple[Any, ...], numbers: tuple[int, ...]) -> list[Any]:
    chosen = []
    for number in numbers:
        if not isinstance(number, int) or not -len(args) <= number < len(args):
            raise UserError(name, f"argument {number!r} was asked for, but {len(args)} were given by position.")
        for leaf in flatten(args[number])[0]:
            if not as_tensor(leaf).dtype.is_float:
                raise UserError(
                    name,
                    f"argument {number} holds {as_tensor(leaf).dtype.name} values, which have no derivative. "
                    "Pass floats, or choose other arguments with argnums.",
                )
        chosen.append(args[number])
    return chosen


def _scalar(name: str, value: Any) -> Tensor:
    if not isinstance(value, Tensor | int | float):
        raise UserError(name, f"a function with one scalar result is required, got {type(value).__name__}.")
    scalar = as_tensor(value)
    if scalar.shape != () or not scalar.dtype.is_float:
        raise UserError(
            name, f"a scalar float is required, got {scalar._node.type}. Sum it, or use vjp with a cotangent."
        )
    return scalar


def grad(f: Callable[..., Any], argnums: int | Sequence[int] = 0, *, has_aux: bool = False) -> Callable[..., Any]:
    """The derivative of a function with a scalar result, as a function.

    >>> from weft import tanh
    >>> grad(grad(grad(tanh)))(as_tensor(0.0))
    Tensor(-2., dtype=float32)
    """
    both = value_and_grad(f, argnums, has_aux=has_aux)

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        value, derivative = both(*args, **kwargs)
        return (derivative, value[1]) if has_aux else derivative

    return call


def jvp(f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """f(*primals) and its directional derivative along the tangents (forward mode).

    It is computed by double reverse mode: the pullback is linear in its cotangent, and its transpose is the result.

    >>> jvp(lambda x: x * x, (as_tensor(3.0),), (as_tensor(1.0),))[1].item()
    6.0
    """
    primals, tangents = tuple(primals), tuple(tangents)
    value, pullback = vjp(f, *primals)
    results, structure = flatten(value)
    directions, given = flatten(tangents)
    if given != flatten(primals)[1]:
        raise UserError("jvp", f"a tangent for every primal is required, got {given}.")
    starts = [zeros(r.shape, dtype=r.dtype) for r in map(as_tensor, results)]
    back, linear = vjp(lambda *cts: flatten(pullback(unflatten(structure, cts)))[0], *starts)
    moves = [_cotangent("jvp", as_tensor(d), b) for d, b in zip(directions, back, strict=True)]
    return value, unflatten(structure, linear(moves))


# --- of tensors ----------------------------------------------------------------------------------------------------------


def gradients(y: Any, xs: Sequence[Tensor], gradient: Any = None) -> list[Tensor]:
    """The derivatives of y with respect to each of the xs, as tensors that can be differentiated again.

    The xs must be parameters, or computed from parameters: only their history is kept.

    >>> import weft
    >>> x = weft.parameter(3.0)
    >>> [first] = gradients(x**3, [x])
    >>> [second] = gradients(first, [x])
    >>> first.item(), second.item()
    (27.0, 18.0)
    """
    y = as_tensor(y)
    for x in xs:
        if not isinstance(x, Tensor) or not x.requires_grad:
            raise UserError(
                "gradients",
                "derivatives can only be taken by parameters and what is computed from them, since the history of other "
                "tensors is dropped once they are looked at. Write x = weft.parameter(...), or use weft.grad(function).",
            )
    _parameters(y, "gradients")
    _check_history(y, xs, "gradients")
    found = pull([y.node], [_seed("gradients", y, gradient)], [x.node for x in xs])
    return _zeros_for_none(found, xs)


def _seed(name: str, y: Tensor, gradient: Any) -> Tensor:
    return ones_like(_scalar(name, y)) if gradient is None else _cotangent(name, as_tensor(gradient), y)


def backward(y: Tensor, gradient: Any = None) -> None:
    """Add the derivative of y to `.grad` of every parameter it was computed from."""
    seed = _seed("backward", y, gradient)
    found = _parameters(y, "backward")
    if not found:
        raise UserError("backward", "the value was not computed from any parameter. Make one with weft.parameter(...).")
    _check_history(y, [node.param("cell").owner() for node in found], "backward")
    for node, derivative in zip(found, pull([y.node], [seed], found), strict=True):
        owner = node.param("cell").owner()
        if owner is not None and derivative is not None:
            body = TRACING.inner if TRACING.watch is None else max(TRACING.inner, TRACING.watch.body)
            if owner.born <= body and derivative._node.abstract:
                raise UserError(
                    "backward",
                    "a function that is being traced cannot leave anything in the .grad of a parameter from outside. "
                    "Return what weft.gradients(y, [x, ...]) gives.",
                )
            derivative = stop_gradient(derivative)
            owner.grad = derivative if owner.grad is None else owner.grad + derivative


def _check_history(y: Tensor, parameters: Sequence[Tensor | None], name: str) -> None:
    """Raise an error if a part of the history is missing, instead of returning an incomplete derivative."""
    order = toposort([y.node])
    asked = {id(p) for p in parameters if p is not None}
    lost = {n for n in order if any(id(p()) in asked for p in getattr(n, "detached_from", ()))}
    if lost and y.node in differentiable_ancestors(order, lost):
        raise UserError(
            name,
            "a part of the value was made by a compiled function, or before this one was compiled: no history is kept of how it used "
            "parameters. Compute it, and take the derivatives, inside of one function; or detach() it, if it counts as given.",
        )


def _parameters(y: Tensor, name: str) -> list[Node]:
    """The parameters that a value was computed from, which must be unchanged since then."""
    history = toposort([y.node], lambda node: node.inputs if node.tracker is not None else ())
    found = [node for node in history if node.op is VARIABLE]
    for node in found:
        owner = node.param("cell").owner()
        if owner is not None and owner._node is not node:
            raise UserError(
                name,
                f"a parameter of shape {node.shape} was changed in place after this value was computed from it. "
                "Ask for derivatives before changing parameters.",
            )
    return found


FUNCTIONS["backward"] = backward  # looked up by Tensor.backward
FUNCTIONS["vjp"] = vjp  # looked up by ops whose second derivatives are those of other ops


# --- the user's own rules ------------------------------------------------------------------------------------------------


class CustomVjpRule:
    """A user-defined vjp rule: (g, y, *inputs) -> a cotangent (or None) for each input."""

    def __init__(self, vjp: Callable[..., Any], structure: Any) -> None:
        self.vjp, self.structure = vjp, structure


def _custom_vjp(
    gs: list[Tensor],
    ys: list[Tensor],
    needed: tuple[bool, ...],
    inputs: tuple[Tensor, ...],
    rule: CustomVjpRule,
    count: int,
) -> Any:
    g, y = unflatten(rule.structure, gs), unflatten(rule.structure, ys)
    given = rule.vjp(g, y, *inputs[count:])
    given = given if isinstance(given, tuple | list) else (given,)
    if len(given) != len(inputs) - count:
        raise UserError(
            "custom_vjp", f"a cotangent for each of {len(inputs) - count} inputs is required, got {len(given)}."
        )
    cotangents = [
        None if c is None else _cotangent("custom_vjp", as_tensor(c), x)
        for c, x in zip(given, inputs[count:], strict=True)
    ]
    return (*[None] * count, *cotangents)


def _custom_infer(inputs: tuple[Node, ...], rule: Any, count: int) -> tuple[Type, ...]:
    if not 0 < count <= len(inputs):
        raise UserError("custom", f"between 1 and {len(inputs)} results are required, got {count}.")
    return tuple(i.type for i in inputs[:count])


CUSTOM = Op(
    "custom", "control", _custom_infer, lambda values, rule, count: values[:count], _custom_vjp, ("rule", "count"),
    kernel="alias",
)  # fmt: skip


def custom_vjp(f: Callable[..., Any], vjp: Callable[..., Any]) -> Callable[..., Any]:
    """f with a custom derivative: `vjp(g, y, *inputs)` returns a cotangent (or None) for each input.

    >>> import weft
    >>> clipped = custom_vjp(lambda x: x * 100.0, lambda g, y, x: (weft.clip(g * 100.0, -1.0, 1.0),))
    >>> grad(clipped)(as_tensor(2.0)).item()
    1.0
    """

    @functools.wraps(f)
    def call(*inputs: Any) -> Any:
        tensors = [as_tensor(x) for x in inputs]
        results, structure = flatten(f(*map(stop_gradient, tensors)))
        ys = [as_tensor(r) for r in results]
        if any(y.requires_grad for y in ys):
            raise UserError(
                "custom_vjp",
                "the function uses a parameter that is not among its arguments, and would lose its derivative. Pass it.",
            )
        node = make(CUSTOM, tuple(t.node for t in (*ys, *tensors)), (CustomVjpRule(vjp, structure), len(ys)))
        return unflatten(structure, [wrap(item(node, i)) for i in range(len(ys))])

    return call
