"""A softmax between two products whose lines are padded: it is computed for whole lines, by one kernel, and has the values of the graph as written."""

from typing import Any

import numpy as np
import pytest

import weft
from test_simplify import assert_same_values
from weft.compiler.gpu.program import gpu_passes, gpu_program
from weft.compiler.passes.layout import layout
from weft.compiler.passes.padded_lines import padded_lines
from weft.compiler.passes.simplify import simplify
from weft.compiler.thresholds import thresholds
from weft.graph import Graph, Type
from weft.options import CompileOptions

ROWS, FEATURES, TOKENS = 6, 16, 21
MIXED = CompileOptions("cuda", precision="bfloat16")
TYPES = [
    Type((2, ROWS // 2, FEATURES), weft.float32), Type((TOKENS, FEATURES), weft.float32), Type((2, ROWS // 2), weft.int64),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _small_products_are_padded() -> Any:
    with thresholds.set(gpu_padded_product=8, handed_on_elements=4):
        yield


def loss(x: Any, weight: Any, labels: Any) -> Any:
    logits = (x @ weight.mT).reshape((-1, TOKENS))
    return weft.cross_entropy(logits, labels.reshape((-1,)))


def step() -> Graph:
    return weft.make_graph(weft.value_and_grad(loss, argnums=(0, 1)), *TYPES)


def arrays() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    x, weight = (rng.normal(size=t.shape).astype(np.float32) for t in TYPES[:2])
    return [x, weight, rng.integers(0, TOKENS, TYPES[2].shape)]


def test_a_loss_and_its_gradients_keep_their_values() -> None:
    after = gpu_passes(step(), MIXED)
    assert_same_values(after["precision"], after["refine"], arrays())


def test_all_of_a_softmax_is_one_kernel() -> None:
    """It reads lines of logits and writes lines of their gradients; nothing is copied in between."""
    program = gpu_program(step(), {}, MIXED)
    made = [(k.name, o.shape) for k in program.kernels for o in k.outputs if o.shape[-1:] in ((TOKENS,), (24,))]
    assert [shape for _, shape in made] == [(2, ROWS // 2, 24), (ROWS, 24)], made
    softmax = next(k for k in program.kernels if k.anchor is None and (ROWS, 24) in {o.shape for o in k.outputs})
    assert softmax.nest is not None
    assert {r.node.op.name for p in softmax.nest.phases for r in p.reductions} == {"max", "sum"}


@pytest.mark.parametrize("reduce", [weft.sum, weft.max, weft.min])
def test_reductions_skip_the_end_of_lines(reduce: Any) -> None:
    """Also of values that are not zero there."""
    types = [Type((4, 16), weft.bfloat16), Type((21, 16), weft.bfloat16)]
    before = weft.make_graph(lambda x, w: reduce(weft.exp((x @ w.mT).astype("float32")) + 1.0, axis=1), *types)
    laid_out = layout(simplify(before), pad_to_words=True)
    after = padded_lines(laid_out)
    [reduction] = [n for n in after.nodes if n.op.name == reduce.__name__]
    assert reduction.inputs[0].shape == (4, 24)
    rng = np.random.default_rng(0)
    values = [rng.integers(-1, 2, t.shape).astype(t.dtype.numpy) for t in types]
    assert_same_values(before, after, values)


def test_other_slices_and_axes_stay_as_they_are() -> None:
    for f in (
        lambda x: weft.sum(x[:, :3], axis=1),  # most of the line is cut
        lambda x: weft.sum(x[:, 1:], axis=1),
        lambda x: weft.sum(x[:, :20], axis=0),
        lambda x: weft.sum(x[:, :20] * weft.cumulative_sum(x[:, :20], axis=1), axis=1),
        lambda x: weft.pad(x, ((0, 0), (1, 0))),
    ):
        graph = simplify(weft.make_graph(f, Type((4, 24), weft.float32)))
        assert padded_lines(graph) == graph


def test_a_remainder_is_not_computed_beyond_a_line() -> None:
    """There is a zero after the divisors, and dividing by it would be an error of a program that has none."""

    def f(x: Any, w: Any, n: Any, divisors: Any) -> Any:
        return weft.softmax((x @ w.mT) * (n % divisors).astype("float32"), axis=1)

    types = [
        Type((4, 16), weft.float16),
        Type((TOKENS, 16), weft.float16),
        Type((4, 1), weft.int32),
        Type((TOKENS,), weft.int32),
    ]
    graph = gpu_passes(weft.make_graph(f, *types), MIXED)["refine"]
    assert {n.shape[-1] for n in graph.nodes if n.op.can_fail} == {TOKENS}


def test_a_padding_of_a_value_that_comes_from_no_product_stays() -> None:
    for f, shape in (
        (lambda b: weft.pad(b, ((0, 3),)) * 2, (13,)),
        (lambda b: weft.pad(b, ((0, 0), (0, 3))) * 2, (1, 13)),
        (lambda b: weft.pad(weft.broadcast_to(b, (5, 13)), ((0, 0), (0, 3))) * 2, (13,)),
    ):
        graph = simplify(weft.make_graph(f, Type(shape, weft.float32)))
        assert padded_lines(graph) == graph


def test_class_numbers_are_counted_on() -> None:
    """The whole line of 0, 1, 2, ... is a longer one, not a padded one."""
    graph = gpu_passes(step(), MIXED)["refine"]
    assert not [n for n in graph.nodes if n.op.name == "pad" and not n.dtype.is_float]


def test_chains_that_use_a_value_twice_take_linear_time() -> None:
    def f(x: Any, w: Any, b: Any) -> Any:
        for _ in range(40):
            b = b * weft.tanh(b)
        return weft.softmax(x @ w.mT + b, axis=1)

    graph = layout(simplify(weft.make_graph(f, *TYPES[:2], Type((TOKENS,), weft.float32))), pad_to_words=True)
    assert len(padded_lines(graph).nodes) < 2 * len(graph.nodes)


# --- what makes it possible ---------------------------------------------------------------------------------------------------------


def test_the_sum_of_a_row_with_one_element_is_that_element() -> None:
    """The gradient of a loss by class numbers sums one-hot rows."""
    graph = simplify(step())
    assert not [
        n for n in graph.nodes if n.op.name == "sum" and n.inputs[0].op.name in ("where", "neg") and n.shape == (ROWS,)
    ]
    assert_same_values(step(), graph, arrays())
    weighted = weft.make_graph(
        weft.grad(lambda x, s, i: (weft.log_softmax(x, axis=1)[weft.arange(4), i] * s).sum()),
        Type((4, 5), weft.float32), Type((4,), weft.float32), Type((4,), weft.int64),
    )  # fmt: skip
    rng = np.random.default_rng(1)
    given = [rng.normal(size=(4, 5)).astype(np.float32), rng.normal(size=4).astype(np.float32), np.array([0, 4, -1, 2])]
    assert_same_values(weighted, simplify(weighted), given)


def test_rows_are_added_to_a_sum_without_zeros_in_between() -> None:
    def f(x: Any, values: Any, index: Any) -> Any:
        return x * 2.0 + weft.zeros((7, 3)).at[index].add(values)

    graph = weft.make_graph(f, Type((7, 3), weft.float32), Type((4, 3), weft.float32), Type((4,), weft.int64))
    after = simplify(graph)
    [scatter] = [n for n in after.nodes if n.op.name == "scatter"]
    assert scatter.inputs[0].op.name == "mul"
    assert after.outputs[0] is scatter
    rng = np.random.default_rng(2)
    given = [
        rng.normal(size=(7, 3)).astype(np.float32),
        rng.normal(size=(4, 3)).astype(np.float32),
        np.array([1, 1, -1, 5]),
    ]
    assert_same_values(graph, after, given)
