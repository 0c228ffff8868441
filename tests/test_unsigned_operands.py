"""int8 tensors between products, stored as uint8 where the CPU's dot products want it: the same integers, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import weft
from weft.compiler.cpu.backend import passes
from weft.compiler.cpu.target import compiling_for, host
from weft.graph.graph import Graph
from weft.runtime.reference import interpret

RNG = np.random.default_rng(3)
VNNI = replace(host(), dot="avx512vnni")
PRODUCTS = ("contract_int8", "conv_int8_last")


def weights(*shape: int) -> weft.Tensor:
    return weft.asarray(RNG.integers(-128, 128, shape).astype(np.int8))


FIRST, LEFT, RIGHT, SECOND = weights(8, 3, 3, 3), weights(8, 8, 1, 1), weights(12, 4, 3, 3), weights(20, 20, 1, 1)
DEPTHWISE, LAST = weights(20, 1, 3, 3), weights(20, 6)


def rounded(total: Any, scale: float) -> Any:
    return weft.round(total.astype("float32") * scale).astype("int8")


def network(x: Any) -> Any:
    """Borders that are not zero, max pooling, groups, a concatenation, a residual connection, a depthwise convolution, a matrix product."""
    y = weft.round(x * 40.0).astype("int8")
    y = weft.pad(y, ((0, 0), (0, 0), (1, 1), (1, 1)), value=-7)
    y = rounded(weft.conv(y, FIRST, dtype="int32"), 2e-3)
    y = weft.max_pool(y, 3, stride=2, padding=1)
    left = rounded(weft.conv(y, LEFT, dtype="int32"), 3e-3)
    right = rounded(weft.conv(y, RIGHT, padding=1, groups=2, dtype="int32"), 3e-3)
    y = weft.concat([left, right], axis=1)
    total = weft.conv(y, SECOND, dtype="int32").astype("float32") * 2e-3 + y.astype("float32")
    y = weft.round(total).astype("int8")
    y = rounded(weft.conv(y, DEPTHWISE, padding=1, groups=20, dtype="int32"), 5e-3)
    return weft.matmul(weft.permute_dims(y, (0, 2, 3, 1)), LAST, dtype="int32")


def after(graph: Graph, name: str) -> Graph:
    with compiling_for(VNNI):
        return passes(graph)[name]


def products(graph: Graph) -> list[tuple[str, str]]:
    """The dtypes of the operands of all products, except for the sums of weights."""
    found = [n.inputs for n in graph.nodes if n.op.name in PRODUCTS and n.inputs[0].op.name != "const"]
    return [(x.dtype.name, w.dtype.name) for x, w in found]


def test_the_left_operands_of_products_are_unsigned() -> None:
    graph = weft.make_graph(network, weft.zeros((2, 3, 9, 9)))
    assert products(after(graph, "layout")).count(("int8", "int8")) == 5
    found = products(after(graph, "unsigned operands"))
    assert sorted(found) == [("int8", "int32"), *[("uint8", "int8")] * 5]  # what the depthwise one reads stays signed


def test_the_integers_are_the_same() -> None:
    x = RNG.normal(size=(2, 3, 9, 9)).astype(np.float32)
    x[0, 0, 0, :3] = np.nan, np.inf, -np.inf
    graph = weft.make_graph(network, weft.asarray(x))
    expected, found = (interpret(g)(x)[0] for g in (graph, after(graph, "unsigned operands")))
    np.testing.assert_array_equal(found, expected)
    assert len(np.unique(expected)) > 100
    for threads in (1, 2, 3):
        with weft.knobs.set(threads=threads):
            np.testing.assert_array_equal(weft.jit(network)(x).numpy(), expected)


def test_sums_of_weights_are_computed_once() -> None:
    """Also where what reads them reduces rows of the same length."""

    def pooled(x: Any) -> Any:
        return (
            rounded(weft.conv(weft.round(x).astype("int8"), SECOND, dtype="int32"), 2e-3)
            .astype("float32")
            .mean(axis=(2, 3))
        )

    x = weft.asarray(RNG.normal(size=(1, 20, 7, 7)).astype(np.float32))
    with compiling_for(VNNI):
        _, program = weft.jit(pooled).plan(x)
    sums = [n for k in {c.kernel for c in program.calls if c.once} for n in k.outputs]
    assert any(n.op.name == "contract_int8" for n in sums)
    assert all(c.once for c in program.calls if {n.dtype.name for n in c.kernel.reads} == {"int8"})


def test_a_tensor_that_the_caller_reads_stays_signed() -> None:
    def both(x: Any) -> Any:
        y = weft.round(x).astype("int8")
        return weft.conv(y, FIRST, dtype="int32"), weft.flip(y, axis=0)

    graph = weft.make_graph(both, weft.zeros((2, 3, 5, 5)))
    assert products(after(graph, "unsigned operands")) == [("int8", "int8")]


def test_a_product_of_one_row_stays_signed() -> None:
    def one_row(x: Any) -> Any:
        return weft.matmul(weft.round(x).astype("int8"), LAST, dtype="int32")

    for rows, expected in ((1, "int8"), (2, "uint8")):
        graph = weft.make_graph(one_row, weft.zeros((rows, 20)))
        assert products(after(graph, "unsigned operands")) == [(expected, "int8")]


def test_a_tensor_that_no_product_reads_stays_signed() -> None:
    graph = weft.make_graph(lambda x: weft.round(x).astype("int8").astype("float32") * 0.5, weft.zeros((4, 4)))
    assert after(graph, "unsigned operands") == after(graph, "layout")


@pytest.mark.parametrize("dot", ["", "dotprod"])
def test_other_cpus_keep_their_integers(dot: str) -> None:
    graph = weft.make_graph(network, weft.zeros((2, 3, 9, 9)))
    with compiling_for(replace(host(), dot=dot)):
        assert "unsigned operands" not in passes(graph)
