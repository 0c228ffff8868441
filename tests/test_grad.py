"""Checks derivatives: every way to ask for one, every order, the known traps, and the way through control flow.

Expected values are closed forms, differences in float64, or the same function written as a plain Python loop.
"""

import math

import numpy as np
import pytest

import weft
from weft.graph.node import toposort
from weft.testing import check_grads, counted, generator
from weft.tree import flatten, map_tree


@pytest.fixture(autouse=True)
def _interpreted():
    """Values are compared to the last bit here, and live nodes are counted: nothing must be compiled on the way."""
    with weft.knobs.set(device="reference"):
        yield


INF = math.inf
VECTOR = np.array([0.3, -0.7, 1.1])
OTHER = np.array([1.5, 0.4, -0.6])


def near(actual, expected, tolerance=1e-10):
    counted()
    actual, expected = np.asarray(weft.asarray(actual).numpy()), np.asarray(expected)
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


def double(value):
    return weft.asarray(np.float64(value))


def repeated(f, order):
    for _ in range(order):
        f = weft.grad(f)
    return f


# --- every way to ask ---------------------------------------------------------------------------------------------------

FUNCTIONS = {
    "a value used twice": lambda x, y: (x * x * y + x + x).sum(),
    "broadcasting in both": lambda x, y: (weft.reshape(x, (3, 1)) * y / (weft.reshape(y, (3, 1)) + 4.0)).sum(),
    "matrix products": lambda x, y: weft.tanh(weft.outer(x, y) @ x).sum(),
    "softmax": lambda x, y: (weft.softmax(x * y) * weft.log_softmax(y)).sum(),
    "norms": lambda x, y: weft.norm(x - y) * weft.std(x) + weft.norm(y, ord=3),
    "indexing": lambda x, y: (x[[0, 0, 2]] * y[::-1]).sum() + x.at[1].set(x[1] * y[0]).prod(),
    "the first unused": lambda x, y: (y * y).sum(),
    "control flow": lambda x, y: weft.scan(lambda s, v: (weft.cos(s * v), None), y, x)[0].sum(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_all_ways_agree(name):
    f, points = FUNCTIONS[name], (weft.asarray(VECTOR), weft.asarray(OTHER))
    value, wanted = weft.value_and_grad(f, argnums=(0, 1))(*points)
    parameters = [weft.parameter(p) for p in points]
    y = f(*parameters)
    y.backward()
    same, back = weft.vjp(f, *points)
    for way in (weft.grad(f, (0, 1))(*points), back(double(1.0)), weft.gradients(y, parameters)):
        assert [g.tolist() for g in way] == [g.tolist() for g in wanted]
    for p, g in zip(parameters, wanted, strict=True):
        assert (p.grad.tolist() if p.grad is not None else [0.0] * 3) == g.tolist()
    assert value.item() == same.item() == y.item() == f(*points).item()
    check_grads(f, [VECTOR, OTHER], rng=generator(name))  # jvp and vjp against differences, to second order


def test_arguments_and_results():
    f = lambda a, b, *, k=1.0: (a * b * k, {"sum": a + b})  # noqa: E731
    two, three = double(2.0), double(3.0)
    (value, aux), derivative = weft.value_and_grad(f, argnums=1, has_aux=True)(two, three, k=10.0)
    assert (value.item(), aux["sum"].item(), derivative.item()) == (60.0, 5.0, 20.0)
    derivative, aux = weft.grad(f, argnums=(-1, 0), has_aux=True)(two, three)
    assert ([d.item() for d in derivative], aux["sum"].item()) == ([2.0, 3.0], 5.0)
    tree = {"a": [two, (three, None)], "b": VECTOR, "c": 0.5}
    found = weft.grad(lambda t: t["a"][0] * t["a"][1][0] ** 2 + (t["b"] * t["b"]).sum() * t["c"])(tree)
    near(found["a"][0], 9.0)
    near(found["a"][1][0], 12.0)
    assert found["a"][1][1] is None
    near(found["b"], VECTOR)
    near(found["c"], (VECTOR**2).sum(), 1e-6)


def test_backward_adds_up():
    w, v = weft.parameter(VECTOR), weft.parameter(OTHER)
    (w * v).sum().backward()
    (w * w).backward(weft.asarray(OTHER))
    near(w.grad, OTHER + 2 * VECTOR * OTHER)
    near(v.grad, VECTOR)
    assert not w.grad.requires_grad
    [inner] = weft.gradients((w * w).sum() * 3.0, [w])
    near(weft.gradients((inner * inner).sum(), [w])[0], 72 * VECTOR)
    middle = w * 2.0
    near(weft.gradients((middle * middle).sum(), [middle, w])[0], 4 * VECTOR)


def test_history_is_kept_until_the_outermost_derivative_is_taken():
    """Inside, a value depends on both arguments; it is looked at when only the outer derivative is still to come."""

    def outer(x):
        product, _ = weft.vjp(lambda y: x * y, double(2.0))
        assert product.item() == 6.0
        return product * 5.0

    assert weft.grad(outer)(double(3.0)).item() == 10.0


# --- higher orders ------------------------------------------------------------------------------------------------------


def tanh_derivatives(x):
    t = np.tanh(x)
    s = 1 - t * t
    return [t, s, -2 * t * s, s * (6 * t * t - 2), s * (16 * t - 24 * t**3)]


HIGH = {
    "tanh": (weft.tanh, tanh_derivatives, (-1.3, 0.0, 0.7)),
    "exp": (weft.exp, lambda x: [np.exp(x)] * 5, (-1.3, 0.0, 0.7)),
    "x**5": (lambda x: x**5, lambda x: [x**5, 5 * x**4, 20 * x**3, 60 * x**2, 120 * x], (-1.3, 0.0, 2.0)),
    "1/x": (lambda x: 1 / x, lambda x: [1 / x, -1 / x**2, 2 / x**3, -6 / x**4, 24 / x**5], (-1.3, 0.5)),
}


@pytest.mark.parametrize("name", HIGH)
def test_derivatives_to_order_four(name):
    f, formula, points = HIGH[name]
    for point in points:
        near(weft.stack([repeated(f, order)(double(point)) for order in range(5)]), formula(point))


def test_hessian_times_vector():
    """f = sum((A x)**3) has the Hessian 6 A^T diag(A x) A."""
    rng = generator("hessian")
    a, x, v = rng.normal(size=(4, 3)), weft.asarray(VECTOR), weft.asarray(OTHER)
    f = lambda x: ((weft.asarray(a) @ x) ** 3).sum()  # noqa: E731
    expected = 6 * a.T @ np.diag(a @ VECTOR) @ a @ OTHER
    near(weft.jvp(weft.grad(f), (x,), (v,))[1], expected)
    near(weft.grad(lambda x: (weft.grad(f)(x) * v).sum())(x), expected)
    near(weft.grad(lambda x: weft.jvp(f, (x,), (v,))[1])(x), expected)
    near(weft.vjp(weft.grad(f), x)[1](v)[0], expected)


def test_mixed_partials_are_symmetric():
    f = lambda x, y: (weft.sin(x * y) + x**3 * weft.exp(y) / (x + 2.0) ** y).sum()  # noqa: E731
    x, y = weft.asarray(VECTOR), weft.asarray(OTHER)
    xy = weft.grad(lambda y: weft.grad(f, 0)(x, y).sum())(y)
    near(weft.grad(lambda x: weft.grad(f, 1)(x, y).sum())(x), xy.numpy())


def test_perturbations_are_not_confused():
    one, two = double(1.0), double(2.0)
    assert weft.grad(lambda x: x * weft.grad(lambda y: x + y)(two))(one).item() == 1.0
    assert weft.grad(lambda x: x * weft.grad(lambda y: x * y)(x))(two).item() == 4.0
    assert weft.jvp(lambda x: x * weft.jvp(lambda y: x * y, (one,), (one,))[1], (two,), (one,))[1].item() == 4.0
    w = weft.parameter(3.0)
    assert weft.gradients(weft.grad(lambda x: x * x * w)(two), [w])[0].item() == 4.0


# --- traps --------------------------------------------------------------------------------------------------------------


def safe_root(x):
    positive = x > 0.0
    return weft.where(positive, weft.sqrt(weft.where(positive, x, 1.0)), 0.0).sum()


def changed_in_place(x):
    x *= 2.0
    x[0] = x[1] * 3.0
    return (x * x).sum()  # (6 x1)**2 + (2 x1)**2


def local_changed_in_place(x):
    y = weft.zeros(2, dtype="float64")
    y[1] = x[0]
    y += x
    y[:1] *= x[1:]
    return (y * y).sum()  # (x0 x1)**2 + (x0 + x1)**2


def looked_at(x):
    y = x * x
    return (y * x if y.sum().item() > 1.0 else y).sum()  # x**3 at the point given


TRAPS = {  # name: (function, point, derivative)
    "relu at 0": (lambda x: weft.relu(x).sum(), [0.0, 1.0], [0.0, 1.0]),
    "abs at 0": (lambda x: abs(x).sum(), [0.0, -1.0], [0.0, -1.0]),
    "sqrt at 0": (lambda x: weft.sqrt(x).sum(), [0.0, 4.0], [INF, 0.25]),
    "max shares among equals": (weft.max, [1.0, 3.0, 3.0], [0.0, 0.5, 0.5]),
    "min over an axis": (lambda x: weft.min(x, axis=1).sum(), [[2.0, 2.0], [1.0, 5.0]], [[0.5, 0.5], [1.0, 0.0]]),
    "maximum shares": (lambda x: weft.maximum(x, weft.stop_gradient(x)).sum(), [1.0, 2.0], [0.5, 0.5]),
    "minimum of both": (lambda x: weft.minimum(x, x[::-1]).sum(), [1.0, 2.0, 2.0], [2.0, 1.0, 0.0]),
    "where beside nan": (lambda x: weft.where(x > 0.0, x * x, math.nan).sum(), [1.0, 2.0], [2.0, 4.0]),
    "where beside inf": (lambda x: weft.where(x > 0.0, x * x, INF)[0], [3.0, -2.0], [6.0, 0.0]),
    "safe root": (safe_root, [-1.0, 0.0, 4.0], [0.0, 0.0, 0.25]),
    "norm at 0": (weft.norm, [0.0, 0.0], [0.0, 0.0]),
    "norm of order 3 at 0": (lambda x: weft.norm(x, ord=3), [0.0, 0.0], [0.0, 0.0]),
    "hypot at 0": (lambda x: weft.hypot(x, x).sum(), [0.0], [0.0]),
    "std of equals": (weft.std, [2.0, 2.0, 2.0], [0.0, 0.0, 0.0]),
    "0 to the 0": (lambda x: x[0] ** x[1], [0.0, 0.0], [0.0, 0.0]),
    "0 to the 1": (lambda x: x[0] ** x[1], [0.0, 1.0], [1.0, 0.0]),
    "0 to the 3": (lambda x: (x**3).sum(), [0.0, -2.0], [0.0, 12.0]),
    "0 to the constant 0": (lambda x: (x**0).sum(), [0.0, 2.0], [0.0, 0.0]),
    "square of a negative": (lambda x: (x**2.0).sum(), [-3.0], [-6.0]),
    "product with a zero": (weft.prod, [2.0, 0.0, 3.0], [0.0, 6.0, 0.0]),
    "product with two zeros": (weft.prod, [0.0, 0.0, 3.0], [0.0, 0.0, 0.0]),
    "products with zeros": (lambda x: weft.cumulative_prod(x).sum(), [2.0, 0.0, 3.0], [1.0, 8.0, 0.0]),
    "an unused argument": (lambda x: double(1.0), [1.0, 2.0], [0.0, 0.0]),
    "stop_gradient": (lambda x: (x * weft.stop_gradient(x)).sum(), [3.0], [3.0]),
    "detach": (lambda x: (x * (x * x).detach()).sum(), [3.0], [9.0]),
    "in place, a local": (local_changed_in_place, [2.0, 3.0], [46.0, 34.0]),
    "in place, the argument": (changed_in_place, [2.0, 3.0], [0.0, 240.0]),
    "looking inside": (looked_at, [3.0, 1.0], [27.0, 3.0]),
}


@pytest.mark.parametrize("name", TRAPS)
def test_trap(name):
    f, point, expected = TRAPS[name]
    near(weft.grad(f)(np.array(point)), expected)


SECOND = {  # name: (function, point, Hessian)
    "product with two zeros": (weft.prod, [0.0, 0.0, 3.0], [[0.0, 3.0, 0.0], [3.0, 0.0, 0.0], [0.0, 0.0, 0.0]]),
    "products with zeros": (
        lambda x: weft.cumulative_prod(x).sum(),
        [0.0, 0.0, 3.0],
        [[0, 4, 0], [4, 0, 0], [0, 0, 0]],
    ),
    "power at 0": (lambda x: (x**3).sum() + x.sum() ** 2, [0.0, 1.0], [[2.0, 2.0], [2.0, 8.0]]),
    "norm at 0": (weft.norm, [0.0, 0.0], [[0.0, 0.0], [0.0, 0.0]]),
    "looking inside": (looked_at, [3.0, 1.0], [[18.0, 0.0], [0.0, 6.0]]),
    "safe root": (safe_root, [-1.0, 0.0, 4.0], [[0, 0, 0], [0, 0, 0], [0, 0, -1 / 32]]),
}


@pytest.mark.parametrize("name", SECOND)
def test_second_order_trap(name):
    f, point, expected = SECOND[name]
    rows = [weft.grad(lambda x, i=i: weft.grad(f)(x)[i])(np.array(point)) for i in range(len(point))]
    near(weft.stack(rows), expected)


def test_vjp_and_jvp_of_a_function_that_changes_its_argument():
    near(weft.vjp(changed_in_place, np.array([2.0, 3.0]))[1](double(1.0))[0], [0.0, 240.0])
    near(weft.jvp(changed_in_place, (np.array([2.0, 3.0]),), (np.array([5.0, 1.0]),))[1], 240.0)


def changed_parameter():
    w = weft.parameter(2.0)
    y = w * w
    w -= 1.0
    y.backward()


ERRORS = {
    "[grad] argument 0 holds int64 values, which have no derivative": lambda: weft.grad(lambda x: x * 1.0)(3),
    "[grad] a scalar float is required, got float32[2]": lambda: weft.grad(lambda x: x)(weft.zeros(2)),
    "[grad] a scalar float is required, got int64[]": lambda: weft.grad(lambda x: weft.asarray(1))(1.0),
    "[grad] a function with one scalar result is required, got list": lambda: weft.grad(lambda x: [x])(1.0),
    "[grad] argument 2 was asked for, but 1 were given": lambda: weft.grad(lambda x: x, 2)(1.0),
    "[vjp] a cotangent of shape (2,) is required, got ()": lambda: weft.vjp(lambda x: x, weft.zeros(2))[1](1.0),
    "[vjp] a cotangent of the structure tuple(*, *)": lambda: weft.vjp(lambda x: (x, x), 1.0)[1](1.0),
    "[jvp] a tangent for every primal is required": lambda: weft.jvp(lambda x: x, (1.0,), ()),
    "[gradients] derivatives can only be taken by parameters": lambda: weft.gradients(1.0, [weft.zeros(())]),
    "[backward] the value was not computed from any parameter": lambda: weft.zeros(()).backward(),
    "[backward] a scalar float is required": lambda: weft.parameter([1.0, 2.0]).backward(),
    "[backward] a parameter of shape () was changed in place": changed_parameter,
    "[parameter] a floating dtype is required, got int64": lambda: weft.parameter([1, 2]),
    "[custom_vjp] a cotangent for each of 2 inputs is required, got 1": lambda: weft.grad(
        weft.custom_vjp(lambda a, b: a * b, lambda g, y, a, b: (g,))
    )(1.0, 2.0),
    "[while_loop] while_loop cannot be differentiated": lambda: weft.grad(
        lambda x: weft.while_loop(lambda v: v < 9.0, lambda v: v * 2.0, x)
    )(1.0),
    "[cond] both branches must return values of the same types": lambda: weft.cond(True, lambda: 1.0, lambda: 1),
    "[cond] the condition must be a bool": lambda: weft.cond(1, lambda: 1.0, lambda: 2.0),
    "[scan] the function must return a pair": lambda: weft.scan(lambda s, x: s, 0.0, weft.zeros(3)),
    "[scan] the carried value must keep its type": lambda: weft.scan(lambda s, x: (x, s), 0, weft.zeros(3)),
    "[scan] sequences of one length are required": lambda: weft.scan(lambda s, x: (s, s), 0.0, None),
    "[evaluate] this tensor stands for a value that is not known": lambda: weft.scan(
        lambda s, x: (s * s.item(), None), 0.0, weft.zeros(3)
    ),
}


@pytest.mark.parametrize("text", ERRORS)
def test_texts_of_errors(text):
    with pytest.raises(weft.UserError) as caught:
        ERRORS[text]()
    assert text in str(caught.value).splitlines()[-1]  # the line before quotes this file, text and all


# --- the user's own rules, and checkpoints ------------------------------------------------------------------------------


def test_custom_vjp():
    square = weft.custom_vjp(lambda x: x * x, lambda g, y, x: g * x * 3.0)  # wrong on purpose: the rule counts
    assert [repeated(square, n)(double(2.0)).item() for n in range(4)] == [4.0, 6.0, 3.0, 0.0]
    both = weft.custom_vjp(lambda a, b: {"p": a * b, "s": a + b}, lambda g, y, a, b: (g["p"] * b + g["s"], g["p"] * a))
    used = weft.grad(lambda a, b: both(a, b)["p"] * both(a, b)["s"], (0, 1))
    near(weft.stack(used(double(2.0), double(3.0))), [3 * 5 + 6, 2 * 5])
    near(weft.grad(lambda a: both(a, 3.0)["s"])(double(2.0)), 1.0)
    none = weft.custom_vjp(lambda a, b: a * b, lambda g, y, a, b: (None, g))
    near(weft.stack(weft.grad(none, (0, 1))(double(2.0), double(3.0))), [0.0, 1.0])
    near(weft.grad(weft.checkpoint(lambda x: weft.fori_loop(0, 2, lambda i, v: square(v), x)))(double(2.0)), 6.0 * 12.0)


def inner(x):
    return weft.sin(weft.exp(x) * x)


def test_checkpoint_changes_no_value():
    nested = weft.checkpoint(lambda x: weft.checkpoint(inner)(x) * weft.cos(x))
    plain = lambda x: inner(x) * weft.cos(x)  # noqa: E731
    for order in range(4):
        near(repeated(nested, order)(double(0.6)), repeated(plain, order)(double(0.6)).item())
    w = weft.parameter(VECTOR)
    near(weft.gradients(weft.checkpoint(lambda x: (x * w).sum())(double(2.0)), [w])[0], [2.0, 2.0, 2.0])


def test_checkpoint_keeps_no_inner_value():
    w = weft.parameter(VECTOR)
    plain = weft.gradients(inner(w).sum(), [w])[0].graph().outputs[0]
    assert "exp" in [node.op.name for node in toposort([plain])]
    [derivative] = weft.gradients(weft.checkpoint(inner)(w).sum(), [w])
    names = {node.op.name for node in toposort([derivative.node])}
    assert names <= {"variable", "const", "call", "item", "expand", "reshape"}
    backward = derivative.node.inputs[0]  # it takes what went in and the cotangent, and nothing that is between
    assert backward.op.name == "call"
    assert [i.op.name for i in backward.inputs] == ["variable", "const"]


def test_checkpoint_draws_the_same_mask_again():
    weft.seed(5)
    y, back = weft.vjp(weft.checkpoint(lambda x: weft.dropout(x, 0.5) * x), np.full(100, 3.0))
    kept = y.numpy() != 0
    assert 20 < kept.sum() < 80
    near(back(weft.ones(100))[0], kept * 12.0)
    later = weft.random.bits(4).tolist()
    weft.seed(5)
    weft.dropout(weft.zeros(100), 0.5)
    assert weft.random.bits(4).tolist() == later  # the stream went on as if nothing was recomputed


# --- control flow -------------------------------------------------------------------------------------------------------


def by_loop(f, carry, xs, length, reverse):
    ys = [None] * length
    for t in reversed(range(length)) if reverse else range(length):
        carry, ys[t] = f(carry, map_tree(lambda x, t=t: x[t], xs))
    return carry, map_tree(lambda *parts: weft.stack(parts), *ys) if ys else None


def squares(tree):
    """One number in which every float of a nested value has its part."""
    leaves = [leaf for leaf in flatten(tree)[0] if leaf.dtype.is_float]
    return sum(((i + 1.0) * (leaf * leaf).sum() for i, leaf in enumerate(leaves)), start=double(0.0))


def tree_body(w):
    def body(carry, x):
        h, n = carry["h"], carry["n"]
        return {"h": weft.tanh(h * w + x[0] * n.astype("float64")), "n": n + 1}, (h * x[0], [x[1].sum()])

    return body


def of_h(step, output=lambda h, x: h):
    """A body that changes the float carried and leaves the int carried alone."""
    return lambda carry, x: (carry | {"h": step(carry["h"], x)}, output(carry["h"], x))


SCANS = {  # name: w -> the body, which uses w as something captured
    "one value": lambda w: of_h(lambda h, x: weft.tanh(h * w + x[0]), lambda h, x: h * x[1]),
    "trees and an int": tree_body,
    "no output": lambda w: of_h(lambda h, x: h * w + x[0], lambda h, x: None),
    "scan inside": lambda w: of_h(lambda h, x: weft.scan(lambda u, v: (weft.sin(u * w + v), u), h, x[1])[0] * x[0]),
    "cond inside": lambda w: of_h(lambda h, x: weft.cond(x[0] > 0.0, lambda h: h * w * h, lambda h: h + w * w, h)),
    "checkpoint inside": lambda w: of_h(lambda h, x: weft.checkpoint(lambda h: weft.sin(h * w) + x[0])(h)),
}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", SCANS)
def test_scan_is_its_loop(name, reverse):
    """Values, first and second derivatives by what is captured, by the first carried value and by the sequences."""
    rng = generator(name)
    xs, w = (rng.normal(size=4), rng.normal(size=(4, 2))), double(0.8)
    ways = (lambda *a: weft.scan(*a, reverse=reverse), lambda *a: by_loop(*a, 4, reverse))

    def loss(way, w, xs):
        return squares(way(SCANS[name](w), {"h": w * 0.5, "n": weft.asarray(1)}, xs))

    def results(way):
        value, (to_w, to_xs) = weft.value_and_grad(lambda w, xs: loss(way, w, xs), (0, 1))(w, xs)
        second = weft.grad(lambda w, xs: squares(weft.grad(lambda w, xs: loss(way, w, xs), (0, 1))(w, xs)), (0, 1))
        return flatten([value, to_w, to_xs, second(w, xs)])[0]

    for actual, expected in zip(*map(results, ways), strict=True):
        near(actual, expected.numpy())


def test_scan_of_nothing():
    carry, ys = weft.scan(lambda s, x: (s * x, s), double(3.0), np.zeros(0))
    assert (carry.item(), ys.shape) == (3.0, (0,))
    to_carry, to_xs = weft.grad(lambda c, xs: weft.scan(lambda s, x: (s * x, s), c, xs)[0], (0, 1))(
        double(3.0), np.zeros(0)
    )
    assert (to_carry.item(), to_xs.shape) == (1.0, (0,))


def test_scan_with_dropout_draws_anew_in_every_step():
    f = lambda v: weft.scan(lambda s, x: (s, weft.dropout(v, 0.5)), 0.0, weft.zeros(3))[1]  # noqa: E731
    weft.seed(3)
    masks, back = weft.vjp(f, weft.ones(64))
    rows = masks.numpy()
    assert len({row.tobytes() for row in rows}) == 3
    for t in range(3):  # the derivative of each step uses that step's mask
        near(back(weft.one_hot(t, 3).reshape(3, 1) * weft.ones(64))[0], rows[t])


def test_cond():
    f = lambda x, w: weft.cond(x > 0.0, lambda x: x * x * w, lambda x: {"a": -x}["a"], x)  # noqa: E731
    for x, value, to_x, to_w in ((3.0, 18.0, 12.0, 9.0), (-2.0, 2.0, -1.0, 0.0)):
        found = weft.value_and_grad(f, (0, 1))(double(x), double(2.0))
        near(weft.stack(flatten(found)[0]), [value, to_x, to_w])
        near(repeated(lambda x: f(x, 2.0), 2)(double(x)), 4.0 if x > 0 else 0.0)


def test_while_loop_and_fori_loop():
    collatz = lambda s: (weft.where(s[0] % 2 == 0, s[0] // 2, 3 * s[0] + 1), s[1] + 1)  # noqa: E731
    last, steps = weft.while_loop(lambda s: s[0] != 1, collatz, (weft.asarray(27), weft.asarray(0)))
    assert (last.item(), steps.item()) == (1, 111)
    limit = weft.asarray(100)  # captured by the test
    assert weft.while_loop(lambda n: n < limit, lambda n: n * 2, weft.asarray(200)).item() == 200
    stopped = lambda x: x * weft.while_loop(lambda v: v < 9.0, lambda v: v * 2.0, weft.stop_gradient(x))  # noqa: E731
    assert weft.grad(stopped)(double(3.0)).item() == 12.0
    power = lambda x: weft.fori_loop(2, 6, lambda i, v: v * x + i * 0.0, double(1.0))  # noqa: E731
    assert [repeated(power, n)(double(3.0)).item() for n in range(4)] == [81.0, 108.0, 108.0, 72.0]
    assert weft.fori_loop(5, 5, lambda i, v: v + i, weft.asarray(7)).item() == 7
