"""Derivatives are known by their numbers: how autodiff and the passes have written one down is nobody's business.

A cone of elementwise ops is computed in float64 for some thousand pairs of numbers, those around its own constants among them, and compared
with the formula.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import pi, sqrt

import numpy as np

from ...graph.node import CONST, Node
from ..loops import Step

SLOPE, CUBIC = sqrt(2 / pi), 0.044715  # of a gelu by tanh
CLOSE = 1e-6  # constants are rounded to float32
NEAR = np.array([-1.0, -1e-3, 0.0, 1e-3, 1.0])  # a constant may be a border: both of its sides, and it itself
FAR = np.array([-1e3, 1e3])

Formula = Callable[[np.ndarray, np.ndarray], np.ndarray]  # of a gradient, and of what the activation was taken of


def gelu_slope(gradient: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The gradient that goes into a gelu by tanh, of the one that comes out of it."""
    gate = np.tanh(SLOPE * (x + CUBIC * x**3))
    rise = SLOPE * (1 + 3 * CUBIC * x**2) * (1 - gate**2)
    found: np.ndarray = gradient * (1 + gate + x * rise) / 2
    return found


def computes(steps: Sequence[Step], formula: Formula, gradient: Node, x: Node) -> bool:
    """Whether the last of these steps is a formula of the elements that are loaded from two tensors."""
    constants = {float(s.node.params[0]) for s in steps if s.node.op is CONST}
    borders = np.add.outer([c for c in constants if np.isfinite(c)], NEAR).reshape(-1)
    points = [np.concatenate([some, borders, FAR]) for some in (np.linspace(-2, 2, 5), np.linspace(-12, 12, 97))]
    given = dict(zip((gradient, x), np.meshgrid(*points), strict=True))
    found = _computed(steps, given)
    return found is not None and bool(np.allclose(found, formula(given[gradient], given[x]), rtol=CLOSE, atol=CLOSE))


def _computed(steps: Sequence[Step], given: dict[Node, np.ndarray]) -> np.ndarray | None:
    """The value of the last step, in float64 and without roundings; None if it needs more than is given."""
    values: list[np.ndarray] = []
    with np.errstate(all="ignore"):
        for step in steps:
            node, args = step.node, [values[n] for n in step.args]
            if step.kind == "load" and node in given:
                values.append(given[node])
            elif step.kind == "const":
                values.append(np.asarray(node.params[0]))
            elif step.kind == "same" or (node.op.name == "cast" and node.dtype.is_float and args[0].dtype.kind == "f"):
                values.append(args[0])
            elif step.kind == "op" and node.op.name != "cast":
                values.append(np.asarray(node.op.reference(*args, *node.params)))
            else:
                return None
    return values[-1]


__all__ = ["CUBIC", "SLOPE", "computes", "gelu_slope"]
