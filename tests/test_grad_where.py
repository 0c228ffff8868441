"""What `where` does not choose has no influence on derivatives, also where the branch not taken is infinite or nan."""

import math

import numpy as np
import pytest

import weft
from weft.testing import check_grads, generator

INF = math.inf

# function, point, derivative there
TRAPS = {
    "root of zero": (lambda x: weft.where(x > 0.0, weft.sqrt(x), 0.0), 0.0, 0.0),
    "root of a negative number": (lambda x: weft.where(x > 0.0, weft.sqrt(x), x), -4.0, 1.0),
    "logarithm of zero": (lambda x: weft.where(x > 0.0, weft.log(x), 3.0 * x), 0.0, 3.0),
    "division by zero": (lambda x: weft.where(x == 0.0, x, 1.0 / x), 0.0, 1.0),
    "0 / 0": (lambda x: weft.where(x == 0.0, 1.0, weft.sin(x) / x), 0.0, 0.0),
    "exponential that overflows": (lambda x: weft.where(x < 50.0, weft.exp(x), x), 1000.0, 1.0),
    "product with infinity": (lambda x: weft.where(x > 0.0, x, x * weft.asarray(INF)), 2.0, 1.0),
    "nested": (lambda x: weft.where(x > 0.0, weft.where(x > 1.0, weft.log(x - 1.0), x), weft.sqrt(x)), 0.5, 1.0),
    "a chain below": (lambda x: weft.where(x > 0.0, weft.exp(weft.sqrt(weft.log(x))), -x), 0.0, -1.0),
    "shared by both branches": (lambda x: weft.where(x > 0.0, weft.sqrt(x), 2.0 * weft.sqrt(-x)), 4.0, 0.25),
}


@pytest.mark.parametrize("name", TRAPS)
def test_the_other_branch_has_no_influence(name):
    f, point, expected = TRAPS[name]
    x = weft.asarray(point, dtype=weft.float64)
    assert weft.grad(f)(x).item() == pytest.approx(expected)
    assert weft.jvp(f, (x,), (weft.asarray(1.0, dtype=weft.float64),))[1].item() == pytest.approx(expected)


def test_the_chosen_branch_is_differentiated_to_any_order():
    """The mask must not stop derivatives of derivatives, which pass through places where a cotangent is 0."""

    def f(x):
        return weft.where(x > 0.0, weft.log(x) * weft.sqrt(x), weft.exp(x) * x)

    check_grads(f, [np.array([-1.3, 0.7, 2.1, -0.4])], rng=generator("where"), order=3)


def test_a_value_used_inside_and_outside_keeps_its_whole_derivative():
    def f(x):
        root = weft.sqrt(x)
        return (weft.where(x > 1.0, root, 0.0) + root).sum()

    assert weft.grad(f)(weft.asarray([0.25, 4.0])).tolist() == [1.0, 0.5]


def test_relu_makes_no_needless_masks():
    """The mask is only spent on ops that multiply: below a relu stands usually an addition."""

    def f(w, b, x):
        return weft.relu(x @ w + b).sum()

    graph = weft.make_graph(weft.grad(f), weft.zeros((3, 2)), weft.zeros(2), weft.zeros((4, 3)))
    assert [n.op.name for n in graph.nodes].count("where") == 1


def test_no_mask_below_a_relu():
    """It keeps nobody from computing what it chooses from."""
    graph = weft.make_graph(weft.grad(lambda x, s: weft.relu(x * s).sum()), weft.zeros(5), weft.zeros(5))
    [derivative] = graph.outputs
    assert derivative.op.name == "mul"  # by s, and nothing after that
    rng = generator("relu")
    check_grads(lambda x, s: weft.relu(x * s), [rng.normal(size=9) * 1.3, rng.normal(size=9)], rng=rng)


NO_RELUS = {
    "at one": lambda x: weft.where(x <= 1.0, 0.0, x),
    "to one": lambda x: weft.where(x <= 0.0, 1.0, x),
    "turned round": lambda x: weft.where(x <= 0.0, x, 0.0),
    "of something else": lambda x: weft.where(x <= 0.0, 0.0, x * x),
    "by something else": lambda x: weft.where(x + 1.0 <= 0.0, 0.0, x),
    "where it is zero": lambda x: weft.where(x == 0.0, 0.0, x),
}


@pytest.mark.parametrize("name", NO_RELUS)
def test_what_only_looks_like_a_relu(name):
    f = NO_RELUS[name]
    graph = weft.make_graph(weft.grad(lambda x, s: f(x * s).sum()), weft.zeros(5), weft.zeros(5))
    assert [n.op.name for n in graph.nodes].count("where") >= 2  # the rule's own, and a mask
    rng = generator(name)
    check_grads(lambda x, s: f(x * s), [rng.normal(size=9) * 1.3, rng.normal(size=9)], rng=rng)


def test_no_mask_goes_through_batch_norm():
    """It would be counted in every channel."""

    def f(x, scale):
        return weft.relu(weft.batch_norm(x, scale, scale).value).sum()

    graph = weft.make_graph(weft.grad(f, argnums=(0, 1)), weft.zeros((2, 3, 4, 5)), weft.zeros(3))
    assert [n.op.name for n in graph.nodes].count("where") == 1
    assert not any(n.op.name == "sum" and n.inputs[0].op.name == "cast" for n in graph.nodes)


GUARDS = {
    "log": (lambda x: weft.where(x > 0.0, weft.log(x), 0.0), 0.0, 0.0),
    "log inside limits": (lambda x: weft.where((x > 0.0) & (x < 9.0), weft.log(x), x), 0.0, 1.0),
    "log, turned round": (lambda x: weft.where(~(x > 0.0), x, weft.log(x)), 0.0, 1.0),
    "of the value and of another": (
        lambda x: (lambda y: weft.where((y > -1.0) & (x > 0.0), y, 0.0))(weft.sqrt(x)),
        0.0,
        0.0,
    ),
    "of what the value is computed from": (
        lambda x: (lambda y: weft.where(y > 0.0, 1.0 / y, 0.0))(weft.abs(x)),
        0.0,
        0.0,
    ),
    "of numbers alone": (lambda x: weft.where(weft.ones(()) < 0.0, weft.log(x), x), 0.0, 1.0),
    "of numbers alone, and of the value": (
        lambda x: (lambda y: weft.where((weft.ones(()) < 0.0) & (y < 5.0), y, x))(weft.log(x)),
        0.0,
        1.0,
    ),
    "a relu above a guard": (lambda x: weft.relu(weft.where(x > 0.0, weft.log(x), -1.0)), 0.0, 0.0),
    "a guard above a relu": (lambda x: weft.where(x > 0.0, weft.relu(weft.sqrt(x)), 0.0), 0.0, 0.0),
    "a guard above a clip": (lambda x: weft.where(x > 0.0, weft.clip(weft.log(x), -9.0, 9.0), 0.0), 0.0, 0.0),
    "a clip of what may be infinite": (lambda x: weft.clip(weft.log(x), -100.0, 100.0), 0.0, 0.0),
    "equality": (lambda x: (lambda y: weft.where(y == INF, 0.0, y))(1.0 / x), 0.0, 0.0),
}


@pytest.mark.parametrize("name", GUARDS)
def test_guards_still_hold(name):
    f, point, expected = GUARDS[name]
    x = weft.asarray(point, dtype=weft.float64)
    assert weft.grad(f)(x).item() == expected
    assert weft.grad(lambda x: weft.grad(f)(x) * 1.0)(x).item() == 0.0


def test_equal_arguments_are_still_two():
    """Constants are interned: without a name of their own, two equal arguments would share one derivative."""
    zero = weft.asarray(0.0)
    assert [g.item() for g in weft.grad(lambda a, b: 2.0 * a + 5.0 * b, (0, 1))(zero, zero)] == [2.0, 5.0]
    a, b = weft.parameter(1.0), weft.parameter(1.0)
    (a + 3.0 * b).backward()
    assert (a.grad.item(), b.grad.item()) == (1.0, 3.0)
