"""Control flow inside compiled programs: cond, while_loop, scan, checkpoint and fori_loop, forward and backward, as the reference device does it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft.knobs import knobs
from weft.testing import counted

F = Callable[..., Any]


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype("float32")


def leaves(value: Any) -> list[np.ndarray]:
    return [leaf.numpy().copy() for leaf in weft.tree.flatten(value)[0]]


def check(f: F, *arrays: Any, tolerance: float = 1e-5, threads: tuple[int, ...] = (2,)) -> None:
    """The compiled function, called twice, gives what the plain one gives on the reference device; any team gives the same bits."""
    with knobs.set(device="reference"):
        expected = leaves(f(*(weft.asarray(a) for a in arrays)))
    found = []
    for count in threads:
        with knobs.set(threads=count):
            fast = weft.jit(f)
            found += [leaves(fast(*arrays)), leaves(fast(*arrays))]
    for got in found:
        for a, b, first in zip(got, expected, found[0], strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            assert a.tobytes() == first.tobytes()
            if a.dtype.kind == "f":
                size = max(1.0, float(np.abs(b).max(initial=0.0)))  # small ones are sums of terms of this size
                np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * size)
            else:
                np.testing.assert_array_equal(a, b)
            counted()


def with_slopes(f: F, argnums: Any = 0) -> F:
    """f and the gradients of the sum of all its float results."""

    def total(*args: Any) -> Any:
        found = weft.tree.flatten(f(*args))[0]
        return sum((weft.cos(r) * r).sum() for r in found if r.dtype.is_float)

    return lambda *args: (f(*args), weft.grad(total, argnums=argnums)(*args))


# --- cond ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [2.0, -2.0])
def test_cond(value: float) -> None:
    def f(x: Any, s: Any) -> Any:
        return weft.cond(s > 0.0, lambda x: (weft.sin(x), x.sum()), lambda x: (x * 2.0, x.max()), x)

    check(with_slopes(f), floats(3, 40), np.float32(value))


@pytest.mark.parametrize("value", [2.0, -2.0])
def test_cond_that_passes_its_inputs_and_constants_through(value: float) -> None:
    def f(x: Any, y: Any, s: Any) -> Any:
        return weft.cond(s > 0.0, lambda a, b: (a, b, weft.zeros(4), b), lambda a, b: (b, a, a, weft.ones(4)), x, y)

    check(with_slopes(f, (0, 1)), floats(4), floats(4, seed=1), np.float32(value))


def test_cond_computes_only_what_is_chosen() -> None:
    """The branch that is not taken would fail."""
    f = weft.jit(lambda x, i: weft.cond(i[0] < 3, lambda: x[i], lambda: x[i % 3]))
    x = weft.asarray([1.0, 2.0, 3.0])
    assert f(x, weft.asarray([1, 2])).tolist() == [2.0, 3.0]
    assert f(x, weft.asarray([7, 8])).tolist() == [2.0, 3.0]
    with pytest.raises(weft.RunError, match="index 8 is out of range"):
        f(x, weft.asarray([1, 8]))
    assert f(x, weft.asarray([1, 2])).tolist() == [2.0, 3.0]


@pytest.mark.parametrize(("s", "t"), [(1.0, 1.0), (1.0, -1.0), (-1.0, 1.0)])
def test_cond_inside_cond(s: float, t: float) -> None:
    def f(x: Any, s: Any, t: Any) -> Any:
        inner = lambda x: weft.cond(t > 0.0, lambda x: x @ x.mT, lambda x: (x * x) @ x.mT, x)  # noqa: E731
        return weft.cond(s > 0.0, inner, lambda x: (x + 1.0) @ x.mT, x)

    check(with_slopes(f), floats(6, 9), np.float32(s), np.float32(t), tolerance=1e-4)


# --- while_loop ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0, 1, 2, 7])
def test_while_loop(limit: int) -> None:
    def f(x: Any, n: Any) -> Any:
        return weft.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, weft.tanh(s[1] * 1.5) + x), (0, x))

    check(f, floats(5, 33), np.int64(limit))


@pytest.mark.parametrize("limit", [0, 1, 4])
def test_while_loop_that_swaps(limit: int) -> None:
    """Carried values change places, one stays as it is, and one is set to an input."""

    def f(a: Any, b: Any, n: Any) -> Any:
        return weft.while_loop(
            lambda s: s["i"] < n,
            lambda s: {"i": s["i"] + 1, "a": s["b"], "b": s["a"], "still": s["still"], "set": b},
            {"i": 0, "a": a, "b": b, "still": a * 3.0, "set": a},
        )

    check(f, floats(4), floats(4, seed=1), np.int64(limit))


def test_while_loop_until_it_converges() -> None:
    def f(x: Any) -> Any:
        def better(s: Any) -> Any:
            return (0.5 * (s[0] + x / s[0]), s[0])

        return weft.while_loop(lambda s: (weft.abs(s[0] - s[1]) > 1e-6).any(), better, (x, x + 1.0))[0]

    check(f, np.abs(floats(50)) + 0.5)


def test_a_loop_in_a_loop() -> None:
    def f(x: Any) -> Any:
        def outer(s: Any) -> Any:
            i, v = s
            inner = weft.while_loop(lambda t: t[0] < i, lambda t: (t[0] + 1, t[1] * 0.5 + x), (0, v))
            return i + 1, weft.sin(inner[1])

        return weft.while_loop(lambda s: s[0] < 5, outer, (0, x))

    check(f, floats(3, 7))


# --- scan ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 1, 4])
@pytest.mark.parametrize("reverse", [False, True])
def test_scan(length: int, reverse: bool) -> None:
    def f(h: Any, xs: Any, w: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            h = weft.tanh(h @ w + x)
            return h, (h.sum(axis=1), x[:, 0])

        return weft.scan(step, h, xs, reverse=reverse)

    check(
        with_slopes(f, (0, 1, 2)),
        floats(4, 5),
        floats(length, 4, 5),
        floats(5, 5, seed=1),
        tolerance=5e-5,
        threads=(1, 2),
    )


@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_scan_that_swaps(length: int) -> None:
    def f(a: Any, b: Any, c: Any) -> Any:
        def step(s: Any, _: Any) -> Any:
            a, b, c = s
            return (b, a, c), (a, b * c)

        return weft.scan(step, (a, b, c), length=length)

    check(with_slopes(f, (0, 1, 2)), floats(3), floats(3, seed=1), floats(3, seed=2))


def test_scan_that_rotates_and_repeats() -> None:
    """One value is carried in two places, one comes from a sequence, one from outside."""

    def f(a: Any, xs: Any, k: Any) -> Any:
        def step(s: Any, x: Any) -> Any:
            p, q, r, _ = s
            return (q, r + x, q, k), (p, p, x, k * 1.0)

        return weft.scan(step, (a, a, a * 2.0, a), xs)

    check(with_slopes(f, (0, 1, 2)), floats(3), floats(4, 3), floats(3, seed=1))


def test_scan_of_nothing_but_outputs() -> None:
    check(lambda xs: weft.scan(lambda s, x: (None, (x * 2.0).sum()), None, xs)[1], floats(5, 3))


def test_scan_without_outputs_that_are_read() -> None:
    check(lambda x: weft.scan(lambda s, i: (s * 0.5 + i.astype("float32"), s.sum()), x, weft.arange(6))[0], floats(9))


def test_results_of_a_scan_used_by_kernels_around_it() -> None:
    def f(x: Any, w: Any) -> Any:
        start = weft.relu(x @ w)
        last, all_ = weft.scan(lambda s, i: (weft.sin(s) + s.mean(), s * s), start, length=4)
        return weft.softmax(last + start), all_.sum(axis=0) - last, all_[::-1, :, ::2]

    check(with_slopes(f, (0, 1)), floats(6, 8), floats(8, 10), tolerance=1e-4)


def test_a_sequence_that_is_a_view() -> None:
    """What is scanned over is transposed, reversed, or a part."""

    def f(x: Any) -> Any:
        first = weft.scan(lambda s, r: (s + r, s), x[:, 0] * 0.0, x.mT)
        second = weft.scan(lambda s, r: (s * 0.9 + r, None), x[0, ::2], x[::-1, ::2])
        return first, second[0]

    check(with_slopes(f), floats(5, 8))


def test_scan_inside_scan() -> None:
    def f(x: Any, w: Any) -> Any:
        def row(s: Any, r: Any) -> Any:
            inner, ys = weft.scan(lambda t, v: (weft.tanh(t * w + v), t), s.sum(), r)
            return s + inner, ys.sum()

        return weft.scan(row, x[0], x)

    check(with_slopes(f, (0, 1)), floats(4, 3), np.float32(0.7), tolerance=1e-4)


def test_cond_inside_scan_inside_cond() -> None:
    def f(x: Any, s: Any) -> Any:
        def step(c: Any, r: Any) -> Any:
            c = weft.cond(r.sum() > 0.0, lambda c: c + r, lambda c: c * weft.sin(r), c)
            return c, c.max()

        return weft.cond(s > 0.0, lambda: weft.scan(step, x[0], x), lambda: weft.scan(step, x[1], x, reverse=True))

    for s in (1.0, -1.0):
        check(with_slopes(f), floats(6, 4), np.float32(s), tolerance=1e-4)


def test_while_loop_inside_scan() -> None:
    def f(x: Any) -> Any:
        def step(c: Any, i: Any) -> Any:
            n, c = weft.while_loop(lambda s: s[0] < i, lambda s: (s[0] + 1, s[1] * 1.1), (weft.asarray(0), c))
            return c, (n, c.sum())

        return weft.scan(step, x, weft.arange(4))

    check(f, floats(7))


def test_an_lstm() -> None:
    hidden = 6

    def f(xs: Any, w: Any, u: Any, b: Any) -> Any:
        def cell(state: Any, x: Any) -> Any:
            h, c = state
            gates = x @ w + h @ u + b
            i, o, g = (weft.sigmoid(gates[:, k * hidden : (k + 1) * hidden]) for k in range(3))
            c = (1.0 - g) * c + i * weft.tanh(gates[:, 3 * hidden :])
            h = o * weft.tanh(c)
            return (h, c), h

        zero = weft.zeros((xs.shape[1], hidden))
        (h, c), hs = weft.scan(cell, (zero, zero), xs)
        return hs.mean() + (h * c).sum()

    shapes = ((7, 3, 5), (5, 24), (6, 24), (24,))
    check(weft.value_and_grad(f, argnums=range(4)), *(floats(*s) * 0.5 for s in shapes), tolerance=5e-5)


def test_scan_of_integers_and_bools() -> None:
    def f(xs: Any) -> Any:
        def step(s: Any, x: Any) -> Any:
            n, seen = s
            return (n * 3 + x, seen | (x > 50)), (n % 7, ~seen)

        return weft.scan(step, (weft.zeros(4, dtype="int32"), weft.zeros(4, dtype="bool")), xs)

    check(f, np.random.default_rng(0).integers(0, 100, (6, 4)).astype("int32"))


def test_second_derivatives_of_a_scan() -> None:
    def f(x: Any, w: Any) -> Any:
        slope = weft.grad(lambda x: weft.scan(lambda s, r: (weft.tanh(s * w + r), s), x[0], x)[0].sum())
        return weft.grad(lambda x: (slope(x) ** 2).sum())(x)

    check(f, floats(3, 4), floats(4, seed=1), tolerance=1e-4)


def test_a_large_body_shared_by_threads() -> None:
    def f(x: Any, w: Any) -> Any:
        return weft.scan(lambda s, i: (weft.layer_norm(s @ w + s), s.mean(axis=0)), x, length=3)

    check(with_slopes(f, (0, 1)), floats(130, 65), floats(65, 65) * 0.1, tolerance=2e-4, threads=(1, 2, 4))


# --- fori_loop and checkpoint ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_fori_loop(steps: int) -> None:
    def f(x: Any) -> Any:
        return weft.fori_loop(0, steps, lambda i, v: weft.sin(v) + i.astype("float32") * 0.1, x)

    check(with_slopes(f), floats(3, 5))


def test_fori_loop_writes_into_a_tensor() -> None:
    check(lambda x: weft.fori_loop(0, 5, lambda i, v: v.at[i].set(x[4 - i] * 2.0), weft.zeros(5)), floats(5))


def test_checkpoint() -> None:
    def layer(x: Any, w: Any) -> Any:
        return weft.tanh(x @ w), x.sum()

    def f(x: Any, w: Any) -> Any:
        total = 0.0
        for _ in range(3):
            x, s = weft.checkpoint(layer)(x, w)
            total = total + s
        return x, total

    check(with_slopes(f, (0, 1)), floats(5, 8), floats(8, 8, seed=1) * 0.5, tolerance=5e-5)


def test_checkpoint_inside_scan_and_around_it() -> None:
    def f(x: Any, w: Any) -> Any:
        step = weft.checkpoint(lambda s, r: (weft.tanh(s @ w) + r, s.sum()))
        return weft.checkpoint(lambda x: weft.scan(step, x[0], x))(x)

    check(with_slopes(f, (0, 1)), floats(4, 6), floats(6, 6, seed=1) * 0.5, tolerance=1e-4)


def test_checkpoint_that_returns_its_inputs() -> None:
    check(with_slopes(weft.checkpoint(lambda x, y: (y, x, x * y, weft.ones(3))), (0, 1)), floats(3), floats(3, seed=1))


# --- state, random numbers, errors ------------------------------------------------------------------------------------------------


def test_random_numbers_inside_loops() -> None:
    def f(x: Any) -> Any:
        def step(s: Any, i: Any) -> Any:
            return s + weft.random.uniform((3,)), weft.dropout(s, 0.5)

        first = weft.scan(step, x, weft.arange(4))
        chosen = weft.cond(x.sum() > 0.0, lambda: weft.random.normal((2,)), lambda: weft.random.uniform((2,)))
        looped = weft.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] + weft.random.normal(())), (0, 0.0))
        kept = weft.checkpoint(lambda x: x * weft.random.uniform((3,)))(x)
        return first, chosen, looped, kept, weft.random.uniform((2,))

    fast, x = weft.jit(f), weft.asarray([0.1, 0.2, 0.3])
    weft.seed(5)
    with knobs.set(device="reference"):
        expected = [leaves(f(x)) for _ in range(3)]
    weft.seed(5)
    for one in expected:
        for a, b in zip(leaves(fast(x)), one, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_the_derivative_of_a_checkpoint_draws_the_same_numbers_again() -> None:
    def f(x: Any) -> Any:
        return weft.checkpoint(lambda x: weft.dropout(x, 0.5) * x)(x).sum()

    weft.seed(1)
    value, slope = weft.jit(weft.value_and_grad(f))(weft.ones(64))
    assert slope.sum().item() == 2 * value.item()
    assert 0 < value.item() < 128


def test_state_around_a_loop() -> None:
    w = weft.asarray(floats(4))
    begin = w.numpy().copy()

    @weft.jit
    def step(x: Any) -> Any:
        w.assign(weft.fori_loop(0, 3, lambda i, v: v * 0.5 + x, w))
        return weft.scan(lambda s, i: (s + w, s), x, length=2)[0]

    x = floats(4, seed=1)
    expected = begin
    for _ in range(2):
        got = step(x)
        for _ in range(3):
            expected = expected * np.float32(0.5) + x
        np.testing.assert_allclose(w.numpy(), expected, rtol=1e-6)
        np.testing.assert_allclose(got.numpy(), x + 2 * expected, rtol=1e-5)


@pytest.mark.whole_errors
def test_an_error_inside_a_loop_names_its_line() -> None:
    def f(x: Any, i: Any) -> Any:
        return weft.scan(lambda s, k: (s + x[k], None), 0.0, i)[0]  # THE LINE

    fast, x = weft.jit(f), weft.asarray([1.0, 2.0, 4.0])
    with pytest.raises(weft.RunError, match="index 3 is out of range for axis 0 of size 3") as caught:
        fast(x, weft.asarray([0, 3, 1]))
    assert "THE LINE" in str(caught.value)
    assert fast(x, weft.asarray([0, 2, 1])).item() == 7.0
