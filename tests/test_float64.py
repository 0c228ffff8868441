"""float64 in, float64 all the way: no constant becomes float32 before it meets float64 values.

A float32 node in the graph of a function of float64 inputs is a constant that has lost digits, or a detour through float32.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft import nn
from weft.dtypes import float32
from weft.errors import UserError
from weft.optim.clip import clip_norm
from weft.tensor import FUNCTIONS
from weft.testing import counted

X = np.linspace(-0.9, 0.9, 6).reshape(2, 3)
WITH_SETTINGS: dict[str, Callable[..., Any]] = {
    "a list of numbers": lambda x: x * [0.1, 0.2, 0.3],
    "a nested list": lambda x: [[0.1, 0.2, 0.3]] - x,
    "prelu with lists": lambda x: weft.prelu(x, [0.1, 0.2, 0.3]),
    "cross_entropy with lists": lambda x: weft.cross_entropy(x, [0, 2], weight=[0.1, 0.2, 0.3], label_smoothing=0.1),
    "layer_norm with lists": lambda x: weft.layer_norm(x, [0.1, 0.2, 0.3], [0.4, 0.5, 0.6]),
    "batch_norm with lists": lambda x: weft.batch_norm(x, [0.1] * 3, [0.2] * 3, mean_=[0.3] * 3, var_=[0.4] * 3).value,
    "where": lambda x: weft.where(x > 0.0, 0.1, x),
    "clip with settings": lambda x: weft.clip(x, -0.1, 0.1),
    "std with settings": lambda x: weft.std(x, correction=0.3),
    "norm with settings": lambda x: weft.norm(x, ord=3),
    "rotary": lambda x: nn.rotary(weft.concat([x, x], axis=-1)),
    "maximum": lambda x: weft.maximum(x, 0.1),
    "pow": lambda x: weft.exp(x) ** 0.3,
    "clip_norm": lambda x: clip_norm([x], 0.3)[0],
}


def of_one_float(name: str) -> Callable[..., Any] | None:
    """The public function of this name, if it turns one float tensor into another."""
    try:
        result = FUNCTIONS[name](weft.asarray(X))
    except (UserError, TypeError):
        return None
    return FUNCTIONS[name] if isinstance(result, weft.Tensor) and result.dtype.is_float else None


AT_ONCE = ("asarray", "from_dlpack", "unique_values")  # these look at values, which cannot be traced
OF_ONE = {name: f for name in FUNCTIONS if name not in AT_ONCE and (f := of_one_float(name))}


def test_many_functions_are_looked_at() -> None:
    assert len(OF_ONE) > 70
    counted()


@pytest.mark.parametrize("name", [*OF_ONE, *WITH_SETTINGS])
def test_no_float32_on_the_way(name: str) -> None:
    f = {**OF_ONE, **WITH_SETTINGS}[name]
    for traced in (f, weft.grad(lambda x: f(x).sum())):
        graph = weft.make_graph(traced, weft.asarray(X))
        narrow = [node for node in graph.nodes if node.dtype is float32]
        assert not narrow, graph.text()
        counted()
