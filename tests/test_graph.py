"""Checks the graph itself: interning, sources, walks without recursion, rewriting, and what a legal graph is."""

import copy
import gc
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import weft
from sampling import some
from weft.control import CALL
from weft.graph import OPS, Graph, Node, Type, check, externs, item, make, node, parse, placeholder, problems, to_text
from weft.graph.node import constant
from weft.graph.rewrite import Rule, rewrite, rule, transform


@pytest.fixture(autouse=True)
def _interpreted():
    """Values are compared to the last bit here, and live nodes are counted: nothing must be compiled on the way."""
    with weft.knobs.set(device="reference"):
        yield


THREE = Type((3,), weft.float32)
X, Y = placeholder(0, THREE), placeholder(1, THREE)


def op(name: str, *inputs: Node, **params: Any) -> Node:
    return make(OPS[name], inputs, tuple(params[p] for p in OPS[name].params))


def here() -> int:
    """The line that calls."""
    return sys._getframe(1).f_lineno


def table_size() -> int:
    gc.collect()
    return len(node._interned)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail instead of hanging: some of these walks could go round in circles."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"not done after {seconds} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


# --- interning -------------------------------------------------------------------------------------------------------


def test_the_same_op_inputs_and_params_give_the_same_node() -> None:
    x, y = weft.asarray([1.0, 2.0]), weft.asarray([3.0, 4.0])
    assert (x + y).node is (x + y).node
    assert (x + y).node is not (y + x).node
    assert weft.sum(x, axis=0).node is weft.sum(x, axis=-1).node
    assert weft.zeros(3).node is weft.full(3, 0.0).node


def test_nodes_are_equal_when_they_are_one() -> None:
    a, b = op("sin", X), op("cos", X)
    assert a == op("sin", X)
    assert a != b
    assert len({a, b, op("sin", X)}) == 2


def test_two_arrays_are_two_leaves_even_when_they_hold_the_same() -> None:
    assert weft.asarray([1.0]).node is not weft.asarray([1.0]).node


CONSTANTS = [
    (1, weft.int64), (1, weft.int32), (True, weft.bool), (1.0, weft.float32), (1.0, weft.float64), (0, weft.int64),
    (False, weft.bool), (0.0, weft.float32), (-0.0, weft.float32), (float("nan"), weft.float32),
    (float("inf"), weft.float32), (-float("inf"), weft.float32), (float("nan"), weft.float64),
]  # fmt: skip


def test_constants_that_compare_equal_are_kept_apart() -> None:
    made = [constant(value, dtype) for value, dtype in CONSTANTS]
    assert len(set(made)) == len(CONSTANTS)
    assert [constant(value, dtype) for value, dtype in CONSTANTS] == made  # also nan finds itself again
    for (value, dtype), one in zip(CONSTANTS, made, strict=True):
        got = weft.tensor.wrap(one).numpy()
        assert got.tobytes() == np.asarray(value, dtype.numpy).tobytes()  # bit for bit: -0.0 stays -0.0


def refused(call: Callable[[], Any]) -> bool:
    try:
        call()
    except (weft.UserError, TypeError):
        return True
    return False


SEVEN = weft.asarray(np.arange(7.0))
# A number that is equal to a size but is no int must not stand for it: the key of the right node is equal to its own.
LOOKALIKES: list[tuple[Callable[[Any], Node], Any, int]] = [
    (lambda n: op("reshape", placeholder("a", THREE), shape=(n, 3)), True, 1),
    (lambda n: op("reshape", placeholder("b", THREE), shape=(n,)), 3.0, 3),
    (lambda n: op("iota", n=n, dtype=weft.int16), 3.0, 3),
    (lambda n: weft.top_k(SEVEN, n).values.node, 2.0, 2),
    (lambda n: weft.one_hot(weft.asarray([1, 2]), n).node, 5.0, 5),
]


@pytest.mark.parametrize(("build", "wrong", "right"), LOOKALIKES)
def test_a_lookalike_does_not_take_the_place_of_a_size(build: Any, wrong: Any, right: int) -> None:
    kept: list[Node] = []
    refused(lambda: kept.append(build(wrong)))
    assert [type(n) for n in build(right).shape] == [int] * len(build(right).shape)


def test_threads_get_the_same_nodes() -> None:
    made: list[list[Node]] = [[] for _ in range(4)]

    def work(into: list[Node]) -> None:
        for i in range(2000):
            into.append(op("sin", constant(1000.0 + i, weft.float64)))

    threads = [threading.Thread(target=work, args=(into,)) for into in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(a is b for into in made[1:] for a, b in zip(made[0], into, strict=True))


def test_a_node_that_another_thread_made_first_counts_its_users_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x, first = placeholder(object(), THREE), list[Node]()

    def infer(x: Node) -> Type:
        if not first:  # as if another thread were faster, between the look into the table and the entry
            first.append(X)
            first[0] = op("neg", x)
        return x.type

    monkeypatch.setattr(OPS["neg"], "infer", infer)
    assert op("neg", x) is first[0]
    gc.collect()  # the one that came second is gone
    assert x.users == 1


def differentiate(i: int) -> Any:
    return weft.grad(lambda x: (weft.exp(x) * float(i)).sum())(weft.asarray([1.0, 2.0])).numpy()


def train(i: int) -> Any:
    w = weft.parameter([float(i)])
    (w * w).sum().backward()
    w -= 0.1 * w.grad
    return w


def trace(i: int) -> Any:
    return weft.cond(weft.asarray(True), lambda x: x * float(i), lambda x: x, weft.asarray(1.0)).numpy()


def read_text(i: int) -> Any:
    graph = weft.make_graph(lambda x: weft.sin(x) * float(i), weft.zeros(3))
    return parse(graph.text())


@pytest.mark.parametrize(
    "work",
    [lambda i: weft.asarray([i]) + i, lambda i: weft.full((2, 2), i).numpy(), differentiate, train, trace, read_text],
    ids=["never looked at", "looked at", "differentiate", "train", "trace", "read_text"],
)
def test_dead_nodes_leave_the_table(work: Callable[[int], Any]) -> None:
    for i in range(3):  # the first time may fill caches
        work(i)
    before = table_size()
    for i in range(30):
        work(1000 + i)
    assert table_size() <= before + 5


# --- no recursion ----------------------------------------------------------------------------------------------------


def test_a_long_chain_of_nodes() -> None:
    assert sys.getrecursionlimit() <= 3000
    length = 2 * some(50_000, 0.2)  # an even number, far beyond the limit
    before = table_size()
    w = weft.parameter(0.5)
    with weft.knobs.set(pending_nodes=10**9):  # nothing of it is computed before the end
        y = w
        for _ in range(length):
            y = -y
        [slope] = weft.gradients(y, [w])
        graph = y.graph()
        assert parse(to_text(graph), externs(graph)) == graph
        assert problems(graph) == []
        assert len(rewrite(graph, [double_neg]).nodes) == 1
        assert (y.item(), slope.item()) == (0.5, 1.0)
    del y, slope, graph, w
    assert table_size() <= before + 1


def test_a_chain_of_changes_in_place() -> None:
    before = table_size()
    w = weft.parameter(0.0)
    with weft.knobs.set(pending_nodes=10**9):
        for _ in range(5_000):
            w += 1.0  # each a new leaf that waits for the one before
        dropped = copy.copy(w)
        del dropped
        assert w.item() == 5_000.0
    del w
    assert table_size() <= before + 2


# --- sources ---------------------------------------------------------------------------------------------------------


@pytest.mark.whole_errors
def test_a_node_knows_the_line_that_wrote_it() -> None:
    x = weft.asarray([1.0])
    y, line = weft.sin(x), here()
    assert str(y.node.source) == f"test_graph.py:{line}: y, line = weft.sin(x), here()"
    z, line = y.softmax(), here()
    assert {n.source.line for n in z.graph().nodes if n.op.name in ("exp", "sum", "div")} == {line}


def test_derivatives_are_put_down_to_the_line_they_belong_to() -> None:
    w = weft.parameter([1.0, 2.0])
    a, line_a = weft.sin(w), here()
    b, line_b = weft.exp(a), here()
    c, line_c = (b * b).sum(), here()
    [slope], line_d = weft.gradients(c, [w]), here()
    forward = set(c.graph().nodes)
    made = {n: n.source.line for n in slope.graph().nodes if n not in forward and n.inputs}
    assert {line for n, line in made.items() if n.op.name == "cos"} == {line_a}
    assert {line_a, line_b, line_c} <= set(made.values()) <= {line_a, line_b, line_c, line_d}


def test_the_body_of_a_loop_knows_its_lines() -> None:
    def step(s: weft.Tensor, x: weft.Tensor) -> Any:
        s = s + weft.cos(x)
        lines.append(here() - 1)
        return s, None

    lines: list[int] = []
    total, _ = weft.scan(step, weft.asarray(0.0), weft.zeros(3))
    body = total.node.inputs[0].param("body")
    assert {n.source.line for n in body.nodes if n.op.name == "cos"} == {lines[0]}


# --- rewriting -------------------------------------------------------------------------------------------------------


@rule("neg")
def double_neg(node: Node) -> Node | None:
    return node.inputs[0].inputs[0] if node.inputs[0].op.name == "neg" else None


@rule("sub")
def same_sub(node: Node) -> Node | None:
    return constant(0.0, node.dtype, node.shape) if node.inputs[0] is node.inputs[1] else None


EXP_TO_SIN = rule("exp")(lambda node: op("sin", *node.inputs))
SIN_TO_COS = rule("sin")(lambda node: op("cos", *node.inputs))
DECLINES = rule("exp")(lambda node: None)
BY_A_FACT = rule(where=lambda op: op.cost >= 10)(lambda node: op("neg", *node.inputs))


def negs(count: int) -> Node:
    return op("neg", negs(count - 1)) if count else X


def rewritten(root: Node, *rules: Rule, fuel: int | None = None) -> Node:
    return rewrite(Graph((X, Y), (root,)), rules, fuel).outputs[0]


ZERO = constant(0.0, weft.float32, (3,))
REWRITES: dict[str, tuple[Node, list[Rule], Node]] = {
    "until nothing fits, even": (negs(8), [double_neg], X),
    "until nothing fits, odd": (negs(7), [double_neg], negs(1)),
    "a replacement is rewritten": (op("exp", X), [EXP_TO_SIN, SIN_TO_COS], op("cos", X)),
    "what is below a replacement is not": (op("exp", X), [rule("exp")(lambda node: op("sin", node))], op("sin", op("exp", X))),
    "inputs first": (op("exp", negs(2)), [EXP_TO_SIN, double_neg], op("sin", X)),
    "of new inputs": (op("sub", negs(2), X), [double_neg, same_sub], ZERO),
    "a condition that fails": (op("sub", Y, X), [same_sub], op("sub", Y, X)),
    "declined": (op("exp", X), [DECLINES, EXP_TO_SIN], op("sin", X)),
    "one rule after another": (op("exp", X), [EXP_TO_SIN, BY_A_FACT], op("neg", X)),
    "ops by a fact": (op("add", op("exp", X), op("sqrt", X)), [BY_A_FACT], op("add", negs(1), op("sqrt", X))),
    "no rules": (op("exp", X), [], op("exp", X)),
}  # fmt: skip


@pytest.mark.parametrize("name", REWRITES)
def test_rewriting(name: str) -> None:
    before, rules, after = REWRITES[name]
    assert rewritten(before, *rules) is after


def test_shared_nodes_are_rewritten_once() -> None:
    count = []
    counted = rule("exp")(lambda node: count.append(1) or op("sin", *node.inputs))
    root, expected = op("exp", X), op("sin", X)
    for _ in range(60):  # 2**60 paths lead down
        root, expected = op("mul", root, root), op("mul", expected, expected)
    assert rewritten(root, counted) is expected
    assert len(count) == 1


@pytest.mark.parametrize("fuel", [0, 1, 4, 5, 6])
def test_fuel_counts_replacements(fuel: int) -> None:
    root = expected = X
    for i in range(5):
        root, expected = op("exp", op("neg", root)), op("sin" if i < fuel else "exp", op("neg", expected))
    assert rewritten(root, EXP_TO_SIN, fuel=fuel) is expected


NEVER_SETTLE: dict[str, tuple[Node, Rule]] = {
    "grows": (op("exp", X), rule("exp")(lambda node: op("exp", op("sin", *node.inputs)))),
    "there and back": (op("mul", X, Y), rule("mul")(lambda node: op("mul", *node.inputs[::-1]))),
}  # fmt: skip


@pytest.mark.parametrize("name", NEVER_SETTLE)
def test_rules_that_never_settle_are_found(name: str) -> None:
    root, endless = NEVER_SETTLE[name]
    with within(2.0), pytest.raises(weft.InternalError, match="never settle"):
        rewritten(root, endless)


def test_a_rule_must_keep_the_type() -> None:
    @rule("exp")
    def shrink(node: Node) -> Node | None:
        return op("sum", *node.inputs, axes=(0,))

    with pytest.raises(weft.InternalError, match=r"shrink turned <exp float32\[3\]> into <sum float32\[\]>"):
        rewritten(op("exp", X), shrink)


def test_a_transform_visits_each_node_once_after_its_inputs() -> None:
    root = op("mul", op("exp", X), op("neg", op("exp", X)))
    seen: list[Node] = []

    def visit(node: Node, inputs: tuple[Node, ...]) -> Node:
        assert all(i in seen or i is X for i in node.inputs)
        seen.append(node)
        return op("sin", *inputs) if node.op.name == "exp" else op(node.op.name, *inputs)

    new = transform(Graph((X,), (root,)), visit).outputs[0]
    assert new is op("mul", op("sin", X), op("neg", op("sin", X)))
    assert len(seen) == 3


def test_parameters_are_read_and_replaced_by_name() -> None:
    node = make(OPS["slice"], (X,), ((0,), (2,), (1,)))
    assert node.param("stops") == (2,)
    assert node.get_params("steps", "starts") == ((1,), (0,))
    assert node.replace_params(stops=(3,)) == ((0,), (3,), (1,))
    with pytest.raises(KeyError, match="ends"):
        node.replace_params(ends=(3,))


# --- what is legal ---------------------------------------------------------------------------------------------------


def forge(like: Node, **changes: Any) -> Node:
    """A node that `make` would not make."""
    new = Node.__new__(Node)
    for name in [name for name in Node.__slots__ if name != "__weakref__" and hasattr(like, name)]:
        setattr(new, name, changes.get(name, getattr(like, name)))
    return new


PAIR = make(CALL, (X,), (Graph((X,), (op("sin", X), op("cos", X))),))
STRAY = Graph((X,), (op("sin", Y),))  # not closed: placeholder 1 comes from nowhere
ILLEGAL: dict[str, tuple[Graph, str]] = {
    "a stray placeholder": (STRAY, "<placeholder float32[3]> is used but is not an input of the graph."),
    "inputs in the wrong order": (Graph((Y, X), (X,)), "input 0 must be placeholder 0, got <placeholder float32[3]>."),
    "an input that is none": (Graph((op("sin", X),), (X,)), "input 0 must be placeholder 0, got <sin float32[3]>."),
    "a result that does not exist": (Graph((X,), (forge(item(PAIR, 0), params=(5,)),)), "result 5 of call does not exist"),
    "several results used at once": (Graph((X,), (forge(op("sin", X), inputs=(PAIR,)),)), "uses a node with several results directly"),
    "several results as an output": (Graph((X,), (PAIR,)), "output 0 is <call float32[3], float32[3]>, which has several results."),
    "too few inputs": (Graph((X,), (forge(op("mul", X, X), inputs=(X,)),)), "<mul float32[3]> has 1 inputs; mul takes 2."),
    "too few parameters": (Graph((X,), (forge(op("flip", X, axes=(0,)), params=()),)), "<flip float32[3]> has 0 parameters; flip takes 1."),
    "a wrong parameter": (Graph((X,), (forge(op("flip", X, axes=(0,)), params=((4,),)),)), "axis 4 does not exist"),
    "a wrong type": (Graph((X,), (forge(op("sin", X), type=Type((7,), weft.float32)),)), "<sin float32[7]> should be float32[3]."),
    "an op of nobody": (Graph((X,), (forge(op("sin", X), op=copy.copy(OPS["sin"])),)), "has an op that is not declared."),
    "inside a body": (Graph((X,), (item(forge(PAIR, params=(STRAY,)), 0),)), "is used but is not an input of the graph."),
}  # fmt: skip


@pytest.mark.parametrize("name", ILLEGAL)
def test_illegal_graphs_are_reported(name: str) -> None:
    graph, text = ILLEGAL[name]
    assert any(text in found for found in problems(graph)), problems(graph)
    with pytest.raises(weft.UserError, match=r"\[check\] the graph is not legal: "):
        check(graph)


def branch(x: weft.Tensor) -> weft.Tensor:
    return weft.cond(x.sum() > 0.0, lambda x: weft.sin(x), lambda x: x * 2.0, x)


FUNCTIONS: dict[str, Callable[[weft.Tensor], Any]] = {
    "plain": lambda x: weft.softmax(x) + x[::-1],
    "constants": lambda x: x + np.nan - weft.zeros(3),
    "two results": lambda x: (x, weft.top_k(x, 2)),
    "cond": branch,
    "derivative of cond": lambda x: weft.grad(lambda x: branch(x).sum())(x),
    "scan": lambda x: weft.scan(lambda s, v: (s + v, s * v), weft.asarray(0.0), x),
    "while": lambda x: weft.while_loop(lambda x: x.sum() < 9.0, lambda x: x + 1.0, x),
    "checkpoint": lambda x: weft.checkpoint(lambda x: weft.exp(x) * 2.0)(x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_two_traces_of_one_function_are_equal_and_legal(name: str) -> None:
    first = weft.make_graph(FUNCTIONS[name], weft.zeros(3))
    second = weft.make_graph(FUNCTIONS[name], weft.ones(3))
    assert check(first) is first
    assert first == second
    assert hash(first) == hash(second)
    assert all(a is b for a, b in zip(first.outputs, second.outputs, strict=True))


def test_graphs_of_different_functions_differ() -> None:
    graphs = [weft.make_graph(f, weft.zeros(3)) for f in FUNCTIONS.values()]
    assert len(set(graphs)) == len(graphs)
    assert weft.make_graph(FUNCTIONS["plain"], weft.zeros(3)) != weft.make_graph(FUNCTIONS["plain"], weft.zeros(4))
