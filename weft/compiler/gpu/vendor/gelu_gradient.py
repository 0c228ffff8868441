"""Recognizes the derivative of a gelu by evaluating it: autodiff and the passes may write it in many ways.

The expression must be linear in the gradient and piecewise: arithmetic and tanh, with pieces whose ends are where the argument of the gelu
equals a constant. A few points of each piece are then compared with the formula in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, pi, sqrt

import numpy as np

from ....graph.node import CONST, Node
from ...ir.loops import Step

SLOPE, CUBIC = sqrt(2 / pi), 0.044715  # of a gelu by tanh
CLOSE = 1e-6  # constants are rounded to float32
COMPARISONS = ("lt", "le")
# The kinds of steps: zero; x, a clip of it or another constant; functions of these; a comparison of plain ones; a multiple of the gradient.
ZERO, PLAIN, FREE, TEST, LINEAR = "zero", "plain", "free", "test", "linear"
USUAL = np.linspace(-12, 12, 97)


def gelu_slope(x: np.ndarray) -> np.ndarray:
    """The derivative of a gelu by tanh."""
    gate = np.tanh(SLOPE * (x + CUBIC * x**3))
    rise = SLOPE * (1 + 3 * CUBIC * x**2) * (1 - gate**2)
    found: np.ndarray = (1 + gate + x * rise) / 2
    return found


def is_gelu_slope(steps: Sequence[Step], gradient: Node, x: Node, rounds: bool) -> bool:
    """Whether the last of these steps is that derivative of an element of `x`, times one of `gradient`. `rounds`: intermediate values are
    rounded to 16 bits."""
    if _kinds(steps, gradient, x, rounds)[-1:] != [LINEAR]:
        return False
    points = _points({float(s.node.param("value")) for s in steps if s.node.op is CONST})
    with np.errstate(all="ignore"):
        found = _computed(steps, {gradient: np.ones_like(points), x: points})
        return bool(np.allclose(found, gelu_slope(points), rtol=0, atol=CLOSE, equal_nan=True))


def _kinds(steps: Sequence[Step], gradient: Node, x: Node, rounds: bool) -> list[str]:
    """The kind of each step; empty if one of them is unknown."""
    kinds: list[str] = []
    for step in steps:
        args = [kinds[n] for n in step.args]
        if step.kind == "load":
            kinds.append({gradient: LINEAR, x: PLAIN}[step.node])
        elif step.kind == "const":
            value = float(step.node.param("value"))
            kinds.append(ZERO if value == 0 else PLAIN if isfinite(value) else "")
        elif step.kind == "same" or (step.node.op.name == "cast" and _keeps(step.node, rounds)):
            kinds += args
        else:
            kinds.append(_kind(step.node.op.name, args))
        if not kinds[-1]:
            return []
    return kinds


def _kind(name: str, args: list[str]) -> str:
    """The kind of an op's result, given those of its arguments."""
    if name in COMPARISONS:
        return TEST if _all(args, PLAIN) else ""
    if name == "where":
        test, *args = args
        return "" if test != TEST else PLAIN if _all(args, PLAIN) else _sum(args)
    if name in ("add", "sub", "neg"):
        return _sum(args)
    if name == "mul":
        return "" if TEST in args or args.count(LINEAR) > 1 else LINEAR if LINEAR in args else FREE
    return FREE if name == "tanh" and not {TEST, LINEAR} & set(args) else ""


def _sum(args: list[str]) -> str:
    """A sum of multiples of the gradient is one, a sum of values that do not depend on it is such a value; a sum of both is neither."""
    return "" if TEST in args else LINEAR if _all(args, LINEAR) else "" if LINEAR in args else FREE


def _all(args: list[str], kind: str) -> bool:
    return set(args) <= {kind, ZERO}


def _keeps(cast: Node, rounds: bool) -> bool:
    """Whether a cast does not matter."""
    kinds = (cast.dtype, cast.inputs[0].dtype)
    return all(k.is_float for k in kinds) and (rounds or cast.dtype.itemsize >= cast.inputs[0].dtype.itemsize)


def _points(borders: set[float]) -> np.ndarray:
    """The borders, some points between each two of them and beyond the last, and nan."""
    found = np.unique([*USUAL, *borders, *(b + side for b in borders for side in (-1.0, 1.0))])
    between = [found[:-1] + (found[1:] - found[:-1]) * part for part in (0.01, 0.5, 0.99)]
    return np.concatenate([found, *between, [-1e6, -1e3, 1e3, 1e6, np.nan]])


def _computed(steps: Sequence[Step], given: dict[Node, np.ndarray]) -> np.ndarray:
    """The value of the last step, in float64 and without roundings."""
    values: list[np.ndarray] = []
    for step in steps:
        node, args = step.node, [values[n] for n in step.args]
        if step.kind == "load":
            values.append(given[node])
        elif step.kind == "const":
            values.append(np.asarray(float(node.param("value"))))
        elif step.kind == "same" or node.op.name == "cast":
            values.append(args[0])
        else:
            values.append(np.asarray(node.op.reference(*args, *node.params)))
    return values[-1]


__all__ = ["CUBIC", "SLOPE", "is_gelu_slope"]
