"""The derivative of a gelu is known by its numbers: how autodiff and the passes have written it down is nobody's business.

For that it must be piecewise: arithmetic and tanh, of pieces that begin and end where what the gelu was taken of meets a constant. So a few
points of each piece, compared with the formula in float64, tell whether it is the same function.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, pi, sqrt

import numpy as np

from ...graph.node import CONST, Node
from ..loops import Step

SLOPE, CUBIC = sqrt(2 / pi), 0.044715  # of a gelu by tanh
CLOSE = 1e-6  # constants are rounded to float32
ARITHMETIC = ("add", "sub", "mul", "neg", "tanh")
COMPARISONS = ("lt", "le")
PLAIN, TEST, VALUE = "plain", "test", "value"
GRADIENTS = np.array([-3.0, -1e-6, 0.0, 0.5, 1.0, 1e6])
USUAL = np.linspace(-12, 12, 97)


def gelu_slope(gradient: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The gradient that goes into a gelu by tanh, of the one that comes out of it."""
    gate = np.tanh(SLOPE * (x + CUBIC * x**3))
    rise = SLOPE * (1 + 3 * CUBIC * x**2) * (1 - gate**2)
    found: np.ndarray = gradient * (1 + gate + x * rise) / 2
    return found


def is_gelu_slope(steps: Sequence[Step], gradient: Node, x: Node, rounds: bool) -> bool:
    """Whether the last of these steps is that, of the elements that are loaded from two tensors. `rounds`: to 16 bits, on the way."""
    if not _is_piecewise(steps, x, rounds):
        return False
    borders = {float(s.node.params[0]) for s in steps if s.node.op is CONST}
    given = dict(zip((gradient, x), np.meshgrid(GRADIENTS, _points(borders)), strict=True))
    with np.errstate(all="ignore"):
        found, expected = _computed(steps, given), gelu_slope(given[gradient], given[x])
    near = np.abs(found - expected) <= CLOSE * np.abs(given[gradient])
    return bool(np.all(near | (np.isnan(found) & np.isnan(expected))))


def _is_piecewise(steps: Sequence[Step], x: Node, rounds: bool) -> bool:
    """See the head of this file."""
    kinds: list[str] = []
    for step in steps:
        kinds.append(_kind(step, [kinds[n] for n in step.args], x, rounds))
        if not kinds[-1]:
            return False
    return True


def _kind(step: Step, args: list[str], x: Node, rounds: bool) -> str:
    """What a step gives: something plain, which is x, a clip of it or a constant; a test of such; another value. "" if nothing of that."""
    name = step.node.op.name
    if step.kind == "load":
        return PLAIN if step.node is x else VALUE
    if step.kind == "const":
        return PLAIN if isfinite(float(step.node.params[0])) else ""
    if step.kind == "same" or (name == "cast" and _keeps(step.node, rounds)):
        return args[0]
    if name in COMPARISONS:
        return TEST if args == [PLAIN, PLAIN] else ""
    if name == "where":
        test, *branches = args
        return "" if test != TEST or TEST in branches else PLAIN if branches == [PLAIN, PLAIN] else VALUE
    return VALUE if name in ARITHMETIC else ""


def _keeps(cast: Node, rounds: bool) -> bool:
    """Whether a cast changes nothing that counts."""
    kinds = (cast.dtype, cast.inputs[0].dtype)
    return all(k.is_float for k in kinds) and (rounds or cast.dtype.itemsize >= cast.inputs[0].dtype.itemsize)


def _points(borders: set[float]) -> np.ndarray:
    """The borders, some points between each two of them and beyond the last, and nan."""
    found = np.unique([*USUAL, *borders, *(b + side for b in borders for side in (-1.0, 1.0))])
    between = [found[:-1] + (found[1:] - found[:-1]) * part for part in (0.01, 0.5, 0.99)]
    return np.concatenate([found, *between, [-1e3, 1e3, np.nan]])


def _computed(steps: Sequence[Step], given: dict[Node, np.ndarray]) -> np.ndarray:
    """The value of the last step, in float64 and without roundings."""
    values: list[np.ndarray] = []
    for step in steps:
        node, args = step.node, [values[n] for n in step.args]
        if step.kind == "load":
            values.append(given[node])
        elif step.kind == "const":
            values.append(np.asarray(float(node.params[0])))
        elif step.kind == "same" or node.op.name == "cast":
            values.append(args[0])
        else:
            values.append(np.asarray(node.op.reference(*args, *node.params)))
    return values[-1]


__all__ = ["CUBIC", "SLOPE", "is_gelu_slope"]
