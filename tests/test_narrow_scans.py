"""Scans in mixed precision: conversions move into and out of their bodies, and every bit stays what it was."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft import control
from weft.compiler.passes.narrow_scans import narrow_scans
from weft.compiler.passes.simplify import simplify
from weft.dtypes import DType, bfloat16, float16, float32
from weft.graph import Graph, Node, Type, check
from weft.graph.graph import substitute
from weft.graph.node import ITEM, OPS, make
from weft.runtime.reference import interpret
from weft.tracing.trace import make_graph

STEPS, ROWS, WIDTH = 5, 3, 4
SEQUENCE, STATE, WEIGHT = (Type(shape, float32) for shape in ((STEPS, ROWS, WIDTH), (ROWS, WIDTH), (WIDTH, WIDTH)))


def narrow(x: Any, dtype: DType = bfloat16) -> Any:
    return x.astype(dtype)


def wide(x: Any) -> Any:
    return x.astype(float32)


def recurrent(x: Any, h: Any, w: Any, reverse: bool = False) -> Any:
    """The last state, and the states after every step; products round their operands."""

    def step(h: Any, x: Any) -> Any:
        h = weft.tanh(x + wide(narrow(h)) @ wide(narrow(w)))
        return h, h

    return control.scan(step, h, x, reverse=reverse)


def scan_of(graph: Graph) -> Node:
    [scan] = [n for n in graph.nodes if n.op.name == "scan"]
    return scan


def changed(f: Callable[..., Any], *types: Type) -> tuple[Graph, Graph]:
    """The graph before and after the pass, which changes no bit of what it computes."""
    before = simplify(make_graph(f, *types))
    after = check(narrow_scans(before))
    rng = np.random.default_rng(0)
    values = [rng.normal(size=t.shape).astype(t.dtype.numpy) for t in types]
    for old, new in zip(interpret(before)(*values), interpret(after)(*values), strict=True):
        assert old.dtype == new.dtype
        assert old.tobytes() == new.tobytes()
    return before, after


@pytest.mark.parametrize("dtype", [bfloat16, float16], ids=lambda d: d.name)
@pytest.mark.parametrize("reverse", [False, True])
def test_sequences_results_and_weights_are_narrow(dtype: DType, reverse: bool) -> None:
    def f(x: Any, h: Any, w: Any) -> Any:
        last, every = recurrent(wide(narrow(weft.sin(x), dtype)), h, w, reverse)
        return last, narrow(every, dtype)

    _, after = changed(f, SEQUENCE, STATE, WEIGHT)
    scan = scan_of(after)
    assert [i.dtype for i in scan.inputs] == [float32, dtype, bfloat16]
    assert [t.dtype for t in scan.outputs] == [float32, dtype]
    assert not [n for n in after.nodes if n.op.name == "cast" and scan in n.inputs[0].inputs]


def test_what_others_read_wide_stays_wide() -> None:
    def f(x: Any, h: Any, w: Any) -> Any:
        last, every = recurrent(x, h, w)
        return narrow(last), narrow(every), every * 2.0

    before, after = changed(f, SEQUENCE, STATE, WEIGHT)
    assert [t.dtype for t in scan_of(after).outputs] == [float32, float32]
    assert [i.dtype for i in scan_of(after).inputs] == [float32, float32, bfloat16]
    again = narrow_scans(after)
    assert again is after  # nothing is left to do
    assert after is not before


@pytest.mark.parametrize("result", [lambda every: every, lambda every: (narrow(every), narrow(every, float16))])
def test_results_of_the_program_and_of_two_types_stay_wide(result: Callable[[Any], Any]) -> None:
    _, after = changed(lambda x, h, w: result(recurrent(x, h, w)[1]), SEQUENCE, STATE, WEIGHT)
    assert [t.dtype for t in scan_of(after).outputs] == [float32, float32]


def test_weights_that_a_step_reads_wide_too_stay_wide() -> None:
    def f(x: Any, h: Any, w: Any) -> Any:
        return control.scan(lambda h, x: (weft.tanh(x + wide(narrow(h)) @ wide(narrow(w)) + w[0]), None), h, x)[0]

    before, after = changed(f, SEQUENCE, STATE, WEIGHT)
    assert after is before


def test_a_graph_without_scans_is_the_same() -> None:
    graph = simplify(make_graph(lambda x: wide(narrow(x)), STATE))
    assert narrow_scans(graph) is graph


@pytest.mark.parametrize("stacked", [False, True])
def test_states_before_every_step_are_handed_out_narrow(stacked: bool) -> None:
    """The derivative reads them: for its products in 16 bits, and for nothing else here."""

    def f(x: Any, h: Any, w: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            h = x + wide(narrow(h)) @ w
            return h, (h if stacked else None)

        return control.scan(step, h, x)

    body_types = SEQUENCE, STATE, WEIGHT
    before = simplify(make_graph(lambda x, h, w: weft.grad(lambda w: loss(f(x, h, w)))(w), *body_types))
    forward = next(n for n in before.nodes if n.op.name == "scan" and n.param("history"))
    count = len(forward.param("body").outputs)

    def read_narrow(graph: Graph) -> Graph:
        """As mixed precision does: what is read of the states before every step is rounded."""

        states = [n for n in graph.nodes if n.op is ITEM and n.inputs[0] is forward and n.param("index") >= count]
        assert states
        cast = {n: make(OPS["cast"], (make(OPS["cast"], (n,), (bfloat16,)),), (float32,)) for n in states}
        return Graph(graph.inputs, substitute(graph.outputs, cast))

    rounded = read_narrow(before)
    after = check(narrow_scans(rounded))
    rng = np.random.default_rng(0)
    values = [rng.normal(size=t.shape).astype(np.float32) for t in body_types]
    for old, new in zip(interpret(rounded)(*values), interpret(after)(*values), strict=True):
        assert old.tobytes() == new.tobytes()
    first = next(n for n in after.nodes if n.op.name == "scan" and len(n.outputs) > 1)
    assert not first.param("history")
    assert first.outputs[-1].dtype is bfloat16


def loss(results: Any) -> Any:
    last, every = results
    return (last * last).sum() if every is None else (last * last).sum() + (every * every).sum()


def test_many_scans_are_changed_in_one_walk() -> None:
    """Each reads what the one before it has computed."""

    def f(x: Any, h: Any) -> Any:
        for _ in range(400):
            x = control.scan(lambda h, x: (h + x, h + x), h, wide(narrow(x)))[1]
        return x

    before, after = changed(f, SEQUENCE, STATE)
    scans = [n for n in after.nodes if n.op.name == "scan"]
    assert len(scans) == len([n for n in before.nodes if n.op.name == "scan"]) == 400
    assert {i.dtype for n in scans for i in n.inputs[1:]} == {bfloat16}
