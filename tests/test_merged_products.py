"""Products that share an operand are merged: queries, keys and values, and their gradients. Values stay the same."""

from typing import Any

import numpy as np
import pytest

import weft
from test_simplify import assert_same_values
from weft import nn, optim
from weft.compiler.passes.merged_products import merged_products
from weft.compiler.passes.simplify import simplify
from weft.graph import Graph, Type


def products(graph: Graph) -> list[tuple[int, ...]]:
    """The shapes of the products of a graph."""
    return sorted(n.shape for n in graph.nodes if n.op.name == "contract")


def step_of(model: nn.Module, *shapes: tuple[int, ...], **how: Any) -> tuple[Graph, list[np.ndarray]]:
    """A training step, and values for its inputs."""
    optimizer = optim.sgd(model, 0.1)

    def step(*inputs: Any) -> Any:
        loss = (model(*inputs, **how) ** 2).sum()
        optimizer.minimize(loss)
        return loss

    graph = simplify(weft.jit(step).artifact(*(weft.zeros(s) for s in shapes)).graph)
    rng = np.random.default_rng(0)
    return graph, [(rng.normal(size=i.shape) * 0.2).astype(i.dtype.numpy) for i in graph.inputs]


@pytest.mark.parametrize("key_heads", [4, 2])
@pytest.mark.parametrize("bias", [True, False])
def test_self_attention(key_heads: int, bias: bool) -> None:
    """One product for queries, keys and values, one for the gradients of their weights; the input's gradient is not asked for."""
    graph, values = step_of(nn.MultiHeadAttention(16, 4, key_heads=key_heads, bias=bias), (2, 5, 16), causal=True)
    merged = merged_products(graph)
    width = 16 + 2 * 4 * key_heads
    assert products(merged) == sorted([(2, 5, width), (2, 5, 16), (2, 5, 16), (width, 16), (16, 16)])
    assert_same_values(graph, merged, values)


def test_the_gradient_of_the_input_is_one_product() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.MultiHeadAttention(16, 4))
    graph, values = step_of(model, (2, 5, 16))
    merged = merged_products(graph)
    [sum_of_three] = [
        n for n in merged.nodes if n.op.name == "contract" and n.inputs[0].shape == (2, 5, 48) and n.shape == (2, 5, 16)
    ]
    assert sum_of_three.inputs[1].shape in ((16, 48), (48, 16))
    joined = [n for n in merged.nodes if n.op.name == "concat" and len(n.shape) > 1]
    assert len(joined) == 2, "weights are joined once, and gradients once"
    assert_same_values(graph, merged, values, 1e-6)


def test_keys_and_values_of_another_sequence() -> None:
    graph, values = step_of(nn.MultiHeadAttention(8, 2), (2, 3, 8), (2, 7, 8))
    merged = merged_products(graph)
    assert (2, 7, 16) in products(merged)
    assert (2, 3, 8) in products(merged)
    assert_same_values(graph, merged, values)


def test_a_gated_layer() -> None:
    """Two weights for one input; what follows them is not the results of one op, so gradients stay apart."""
    first, second = nn.Linear(6, 5), nn.Linear(6, 4, bias=False)

    class Gated(nn.Module):
        def __init__(self) -> None:
            self.first, self.second = first, second

        def forward(self, x: Any) -> Any:
            return weft.sigmoid(self.first(x))[:, :4] * self.second(x)

    graph, values = step_of(Gated(), (3, 6))
    merged = merged_products(graph)
    assert (3, 9) in products(merged)
    assert_same_values(graph, merged, values)


def test_products_that_wait_for_each_other_stay_apart() -> None:
    def f(x: Any, w: Any, v: Any) -> Any:
        return x @ w + x @ (v * (x @ w).sum())

    types = [Type(s, weft.float32) for s in ((3, 4), (4, 5), (4, 5))]
    graph = simplify(weft.make_graph(f, *types))
    assert merged_products(graph) == graph


def test_other_sums_stay_as_they_are() -> None:
    graph = simplify(weft.make_graph(lambda x, y, w, v: x @ w + y @ v, *(Type((4, 4), weft.float32) for _ in range(4))))
    assert merged_products(graph) == graph
