"""Results that depend only on captured tensors are right at every call and in every step of a loop.

What depends on nothing else is computed once and kept. Memory is poisoned, so a result that is only written at the first call,
or kept in memory that others use too, is seen.
"""

import numpy as np
import pytest

import weft
from weft.errors import RunError
from weft.runtime import native
from weft.testing.poison import poisoned


@pytest.fixture(autouse=True)
def _poisoned():
    with poisoned():
        yield


def floats(*shape, seed=0):
    return weft.asarray(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def functions():
    """Functions of one argument, which some ignore, and of captured tensors that are made here, on the device in force."""
    X, W, V = floats(2, 3, 8, 8), floats(4, 3, 3, 3, seed=1), floats(5, 7, seed=2)
    I = weft.asarray([2, 0, 1])
    return {
        "sort": lambda a: weft.sort(V, axis=1),
        "argsort": lambda a: weft.argsort(V, axis=0),
        "softmax": lambda a: weft.softmax(V),
        "product": lambda a: V @ V.T,
        "matrix times vector": lambda a: V @ V[0],
        "convolution": lambda a: weft.conv(X, W),
        "convolution with an epilogue": lambda a: weft.relu(weft.conv(X, W, padding=1) + 1.0),
        "sum": lambda a: V.sum(),
        "cumulative sum": lambda a: weft.cumulative_sum(V, axis=1),
        "gather": lambda a: V[I],
        "scatter": lambda a: V.at[I].add(1.0),
        "max pooling": lambda a: weft.max_pool(X, 2),
        "gradient": lambda a: weft.grad(lambda v: weft.tanh(v @ V.T).sum())(V),
        "filter gradient": lambda a: weft.grad(lambda w: (weft.conv(X, w) ** 2).sum())(W),
        "a captured tensor itself": lambda a: V,
        "a part of one": lambda a: V[1:3],
        "the same result twice": lambda a: (weft.exp(V), weft.exp(V)),
        "beside one that changes": lambda a: (weft.exp(V).sum(axis=1), weft.exp(V) * a),
        "one made of another": lambda a: (weft.softmax(V), weft.softmax(V).sum(axis=0), a + 1.0),
        "nothing but a number": lambda a: (weft.ones((3,)) * 2.0, weft.arange(4), V * 2.0),
        "scan that ignores its carry": lambda a: weft.scan(lambda s, x: (s + x, weft.softmax(V)), a, V[:, 0]),
        "scan with an invariant carry": lambda a: weft.scan(lambda s, x: (weft.exp(V).sum(), s + x), a, V[:, 0]),
        "scan in a scan": lambda a: weft.scan(
            lambda s, x: (s + x, weft.scan(lambda t, y: (t + y, V @ V.T), x, V[0])[1]), a, V[:, 0]
        ),
        "while loop with an invariant carry": lambda a: weft.while_loop(
            lambda s: s[0] < 4, lambda s: (s[0] + 1, weft.sort(V)), (weft.asarray(0), weft.zeros(V.shape))
        ),
        "cond": lambda a: weft.cond(a > 1.5, lambda: weft.softmax(V), lambda: weft.sort(V)),
        "gradient through a scan": lambda a: weft.grad(
            lambda v: weft.scan(lambda s, x: (weft.tanh(s @ V.T @ v), s.sum()), V, V[:, 0])[1].sum()
        )(V),
    }


NAMES = list(functions())


def results(value):
    return [r.numpy() for r in weft.tree.flatten(value)[0]]


def check_calls(f, count=4):
    """Every call gives what the function gives without a compiler."""
    compiled = weft.jit(f)
    for call in range(count):
        a = np.float32(call)
        want = results(f(weft.asarray(a)))
        got = results(compiled(weft.asarray(a)))
        for w, g in zip(want, got, strict=True):
            assert w.dtype == g.dtype
            np.testing.assert_allclose(g, w, rtol=2e-5, atol=2e-5, err_msg=f"call {call}")


@pytest.mark.parametrize("name", NAMES)
def test_every_call_gives_the_same(name):
    check_calls(functions()[name])


@pytest.mark.parametrize("name", ["sort", "product", "convolution", "beside one that changes"])
def test_results_belong_to_their_call(name):
    """An earlier result does not change when the function is called again, nor do two calls share memory."""
    f = weft.jit(functions()[name])
    first = results(f(weft.asarray(1.0)))
    copies = [r.copy() for r in first]
    second = results(f(weft.asarray(2.0)))
    for a, b in zip(first, copies, strict=True):
        np.testing.assert_array_equal(a, b)
    assert not any(np.shares_memory(a, b) for a in first for b in second)


def test_captured_tensors_that_change_are_read_again():
    v = floats(5, 7, seed=3)
    f = weft.jit(lambda a: (weft.sort(v), v @ v.T, a + v.sum()))
    for call in range(6):
        if call % 2:
            v.assign(v * 2.0 + 1.0)
        got, want = results(f(weft.asarray(1.0))), results((weft.sort(v), v @ v.T, 1.0 + v.sum()))
        for w, g in zip(want, got, strict=True):
            np.testing.assert_allclose(g, w, rtol=2e-5, err_msg=f"call {call}")


def test_state_that_is_assigned_a_captured_value_is_assigned_at_every_call():
    s, t, u = floats(5), weft.asarray(0.0), weft.zeros((5,))

    @weft.jit
    def f():
        t.assign(s.sum() + 1)
        u.assign(weft.sort(s))

    for _ in range(4):
        t.assign(-1.0)
        u.assign(weft.zeros((5,)))
        f()
        np.testing.assert_allclose(t.numpy(), s.numpy().sum() + 1, rtol=1e-6)
        np.testing.assert_array_equal(u.numpy(), np.sort(s.numpy()))


def test_the_norm_of_a_frozen_weight_beside_a_training_step():
    frozen, w = weft.parameter(floats(6, 6)), weft.parameter(floats(6, 2, seed=1))

    @weft.jit
    def step(x):
        loss = ((x @ frozen.detach() @ w) ** 2).mean()
        w.assign(w - 0.01 * weft.gradients(loss, [w])[0])
        return loss, (frozen.detach() ** 2).sum()

    losses = []
    for _ in range(4):
        loss, norm = step(floats(3, 6, seed=2))
        losses.append(float(loss))
        np.testing.assert_allclose(norm.numpy(), (frozen.numpy() ** 2).sum(), rtol=1e-5)
    assert losses == sorted(losses, reverse=True)


def test_an_error_in_what_is_computed_once_comes_again():
    V, where = floats(5, 7, seed=2), weft.asarray([9])
    f = weft.jit(lambda a: weft.sort(V[where]) + a)
    for _ in range(3):
        with pytest.raises(RunError, match="index 9"):
            f(weft.asarray(1.0)).numpy()
    where.assign(weft.asarray([1]))
    np.testing.assert_array_equal(f(weft.asarray(0.0)).numpy(), np.sort(V.numpy()[1:2]))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_with_threads(threads):
    V = floats(5, 7, seed=2)
    with weft.knobs.set(threads=threads):
        check_calls(lambda a: (weft.sort(V), V @ V.T + a, weft.softmax(V)))


def test_a_call_that_fails_does_not_hide_that_a_captured_tensor_has_changed(monkeypatch):
    a = floats(5, 7)
    f = weft.jit(lambda: weft.sort(a))
    f()
    a.assign(a + 1.0)
    with monkeypatch.context() as full:

        def no_memory(shape, dtype):
            raise RunError("run", "there is no memory.")

        full.setattr(native, "_empty", no_memory)
        with pytest.raises(RunError, match="no memory"):
            f()
    np.testing.assert_array_equal(f().numpy(), np.sort(a.numpy()))


@pytest.mark.parametrize("state_first", [True, False])
def test_a_captured_tensor_changes_together_with_state(state_first):
    a, total = floats(5, 7), weft.asarray(0.0)

    def step(x):
        if state_first:
            total.assign(total + x)
        found = weft.sort(a)
        if not state_first:
            total.assign(total + x)
        return found

    step = weft.jit(step)
    step(1.0)
    a.assign(-a)
    total.assign(10.0)
    np.testing.assert_array_equal(step(1.0).numpy(), np.sort(a.numpy()))
    assert total.item() == 11.0
