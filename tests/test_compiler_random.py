"""Random programs, compiled, agree with the definition: values and gradients in float32 against float64, integers exactly.

A program is grown step by step from tables of steps, and its steps depend on the seed alone: fewer steps are the beginning of
the same program, so hypothesis finds the shortest one that fails. The same seed grows the same program in float32 and in float64.
"""

import ctypes
import functools
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from guarded import guarded_array, guarded_copy
from sampling import sampled, some
from test_cpu import compiled_results
from weft.graph import Graph
from weft.options import CompileOptions
from weft.runtime.native import NativeExecutable
from weft.runtime.reference import interpret
from weft.testing import counted

T = weft.Tensor
Pick = random.Random
SHAPES = [(), (1,), (7,), (64,), (3, 5), (4, 16), (17, 3), (1, 33), (2, 3, 4), (5, 1, 9), (2, 1, 6, 4), (2, 3, 4, 5)]
MOST = 3000  # elements: programs are checked, not timed


# --- steps on floats: each takes a tensor, and all that there are, to a new one ---------------------------------------------------


def near(x: T) -> T:
    """Values of any size brought back to about 1, so that long programs do not run away."""
    return weft.tanh(x * 0.5)


def partner(pick: Pick, x: T, pool: Sequence[T]) -> T:
    """A tensor that can be broadcast against x: another one as it is, reshaped, or reduced."""
    y = pick.choice(pool)
    if y.shape == x.shape or y.shape == x.shape[len(x.shape) - len(y.shape) :]:
        return y
    if y.size == x.size:
        return y.reshape(x.shape)
    if x.ndim and y.ndim and y.shape[0] == x.shape[0]:
        return y.reshape((y.shape[0], -1)).mean(axis=1).reshape((x.shape[0],) + (1,) * (x.ndim - 1))
    return near(y.sum())


def some_axes(pick: Pick, x: T) -> tuple[int, ...]:
    return tuple(sorted(pick.sample(range(x.ndim), pick.randint(1, x.ndim)))) if x.ndim else ()


def factors(pick: Pick, size: int) -> list[int]:
    shape = []
    while size > 1 and len(shape) < 4:
        n = pick.choice([d for d in range(2, size + 1) if size % d == 0])
        shape.append(n)
        size //= n
    return [*shape, *([size] if size > 1 or not shape else [])]


def matrix(x: T) -> T:
    return x.reshape((-1, x.shape[-1])) if x.ndim > 1 else x.reshape((1, -1))


UNARY: list[Callable[[T], T]] = [
    weft.sin, weft.cos, weft.tanh, weft.sigmoid, weft.abs, weft.relu, weft.gelu, weft.silu, weft.erf, weft.softplus, weft.negative,
    lambda x: weft.exp(-weft.abs(x)), lambda x: weft.log1p(weft.abs(x)), lambda x: weft.sqrt(x * x + 1.0), lambda x: x * x * 0.5,
    lambda x: 1.0 / (x * x + 1.0), lambda x: weft.leaky_relu(x), lambda x: weft.clip(x, -0.7, 0.9), lambda x: x**3, weft.expm1,
    lambda x: x * 1.0 + 0.0, lambda x: weft.stop_gradient(x) * x, weft.atan, lambda x: weft.logaddexp(x, -x),
]  # fmt: skip
BINARY: list[Callable[[T, T], T]] = [
    weft.add, weft.subtract, weft.multiply, weft.maximum, weft.minimum, weft.hypot, weft.atan2, weft.logaddexp,
    lambda a, b: a / (weft.abs(b) + 1.0), lambda a, b: weft.pow(weft.abs(a) + 0.5, near(b)), lambda a, b: a - 2.0 * b,
]  # fmt: skip
REDUCE: list[Callable[..., T]] = [
    weft.sum, weft.mean, weft.max, weft.min, weft.var, weft.logsumexp, weft.norm,
    lambda x, axis, keepdims: weft.prod(weft.sigmoid(x) + 0.5, axis=axis, keepdims=keepdims),
    lambda x, axis, keepdims: (x * x).sum(axis=axis, keepdims=keepdims),
]  # fmt: skip


def unary(pick: Pick, x: T, pool: Sequence[T], leaves: "Leaves") -> T:
    return near(pick.choice(UNARY)(x))


def binary(pick: Pick, x: T, pool: Sequence[T], leaves: "Leaves") -> T:
    f, y = pick.choice(BINARY), partner(pick, x, pool)
    return f(x, y) if pick.random() < 0.5 else f(y, x)


def reduce(pick: Pick, x: T, pool: Sequence[T], leaves: "Leaves") -> T:
    if not x.ndim or not x.size:
        return x * 2.0
    return near(pick.choice(REDUCE)(x, axis=some_axes(pick, x), keepdims=pick.random() < 0.5))


def whiten(pick: Pick, x: T, pool: Sequence[T], leaves: "Leaves") -> T:
    """A reduction used in its own row."""
    if not x.ndim or x.shape[-1] < 2:
        return weft.cos(x)
    axis = pick.randrange(x.ndim)
    if x.shape[axis] < 2:
        axis = x.ndim - 1
    return pick.choice([
        lambda: weft.softmax(x, axis=axis) * 3.0,
        lambda: near(weft.log_softmax(x, axis=axis)),
        lambda: weft.layer_norm(x),
        lambda: weft.layer_norm(x, weft.ones(x.shape[-1], dtype=x.dtype) * 0.5, partner(pick, x, pool).sum() * weft.ones(x.shape[-1], dtype=x.dtype)),
        lambda: weft.rms_norm(x),
        lambda: x - x.max(axis=axis, keepdims=True),
        lambda: x - x.mean(axis=axis, keepdims=True) * x,
        lambda: near(x * weft.softmax(partner(pick, x, pool) + x, axis=axis).sum(axis=axis, keepdims=True) + weft.logsumexp(x, axis=axis, keepdims=True)),
    ])()  # fmt: skip


def move(pick: Pick, x: T, pool: Sequence[T], leaves: "Leaves") -> T:
    if not x.ndim:
        return weft.broadcast_to(x, pick.choice([(3,), (2, 5)])) * 1.5
    axis = pick.randrange(x.ndim)
    n = x.shape[axis]
    return pick.choice([
        lambda: x.reshape(factors(pick, x.size)),
        lambda: x.reshape((1, *x.shape)) if x.ndim < 4 else x,
        lambda: weft.permute_dims(x, tuple(pick.sample(range(x.ndim), x.ndim))),
        lambda: weft.permute_dims(x, tuple(pick.sample(range(x.ndim), x.ndim))).reshape(factors(pick, x.size)),
        lambda: weft.flip(x, axis=axis),
        lambda: weft.roll(x, pick.randint(-3, 3), axis=axis),
        lambda: weft.pad(x, tuple((pick.randint(0, 2), pick.randint(0, 2)) for _ in x.shape), value=pick.choice([0.0, 1.0, -0.5])),
        lambda: x[(slice(None),) * axis + (slice(None, None, pick.choice([-1, 2, -2])),)],
        lambda: x[(slice(None),) * axis + (slice(n // 3, None, pick.choice([1, 3])),)],
        lambda: x[(slice(None),) * axis + (n // 2,)],
        lambda: weft.concat([x, weft.flip(x, axis=axis) * 2.0], axis=axis),
        lambda: weft.concat([weft.sin(x), x[(slice(None),) * axis + (slice(0, 1),)], x], axis=axis),
        lambda: weft.stack([x, -x], axis=pick.randint(0, x.ndim)) if x.ndim < 4 else x,
        lambda: weft.broadcast_to(x, (2, *x.shape)) if x.ndim < 4 else x,
        lambda: weft.tile(x, (2,) + (1,) * (x.ndim - 1)),
    ])()  # fmt: skip


def product(pick: Pick, x: T, pool: Sequence[T], leaves: "Leaves") -> T:
    a, b = matrix(x), matrix(pick.choice(pool))
    k = a.shape[1]
    b = b if b.shape[1] == k else b.reshape((k, -1)).mT if b.size % k == 0 else weft.sin(a) + b.sum()
    scale = 1.0 / k
    bias = pick.choice([0.5, weft.sin(b[:, 0])])
    return pick.choice([
        lambda: (a * scale) @ b.mT,
        lambda: weft.relu(a @ (b.mT * scale) + bias),
        lambda: near(weft.einsum("ij,kj->ki", a, b * scale)),
        lambda: near(a.mT @ a),
        lambda: (a @ b.mT * scale).sum(axis=1) if a.shape[0] * b.shape[0] < MOST else a,
        lambda: weft.softmax(a @ b.mT * scale) @ b,
        lambda: near(weft.einsum("ij,kj->i", a, b)),
        lambda: near(a @ b[0]),
        lambda: near(x @ weft.permute_dims(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))) if x.ndim > 2 else a,
    ])()  # fmt: skip


def pick_rows(pick: Pick, x: T, pool: Sequence[T], leaves: "Leaves") -> T:
    if not x.ndim:
        return x + 1.0
    axis = pick.randrange(x.ndim)
    index = leaves.index % x.shape[axis]
    values = partner(pick, x, pool)
    return pick.choice([
        lambda: weft.take(x, index, axis=axis),
        lambda: x[leaves.index % x.shape[0]],
        lambda: x[(slice(None),) * axis + (index[:2] - x.shape[axis],)],
        lambda: x.at[index % x.shape[0]].add(near(values.sum())),
        lambda: x.at[leaves.index[0] % x.shape[0]].set(near(values.mean())),
        lambda: weft.take_along_axis(x, weft.argsort(weft.stop_gradient(x), axis=axis), axis=axis),
        lambda: weft.sort(x, axis=axis),
        lambda: near(weft.cumulative_sum(x, axis=axis)),
        lambda: weft.where(leaves.flags[: x.shape[-1]] if x.shape[-1] <= 64 else x > 9.0, x, 0.25) if x.shape[-1] <= 64 else x * 0.5,
    ])()  # fmt: skip


def window(pick: Pick, x: T, pool: Sequence[T], leaves: "Leaves") -> T:
    if x.ndim < 3 or x.shape[-1] < 3 or x.ndim > 4:
        return weft.sin(x) * 2.0
    plain = x.ndim == 4 and x.shape[2] < 3
    y = x.reshape((x.shape[0], -1, x.shape[-1])) if plain else x
    return pick.choice([
        lambda: weft.max_pool(y, 2),
        lambda: weft.max_pool(y, 3, stride=1, padding=1),
        lambda: weft.avg_pool(y, 2, stride=1),
        lambda: near(weft.conv(y, weft.ones((3, y.shape[1], *(2,) * (y.ndim - 2)), dtype=y.dtype) * 0.3, padding=1)),
        lambda: near(weft.conv(y, weft.cos(y[:1, :, :2] if y.ndim == 3 else y[:1, :, :2, :2]))),
    ])()  # fmt: skip


STEPS = [unary, unary, binary, binary, binary, reduce, reduce, whiten, move, move, product, pick_rows, window]


class Leaves:
    """What a program is given: two float tensors, indices and flags."""

    def __init__(self, floats: Sequence[T], index: T, flags: T) -> None:
        self.floats, self.index, self.flags = floats, index, flags


def grow(seed: int, steps: int, leaves: Leaves) -> list[T]:
    """The results of a random program: among them values that others are computed from, inputs, constants, and one value twice."""
    pick, pool = Pick(seed), [*leaves.floats]
    outputs: list[T] = []
    for _ in range(steps):
        x = pick.choice(pool[-4:] if pick.random() < 0.7 else pool)
        made = pick.choice(STEPS)(pick, x, pool, leaves)
        again = pick.random()
        if 0 < made.size <= MOST and made.ndim <= 4:
            pool.append(made)
            if again < 0.25:
                outputs.append(made)
    extra = {0: [leaves.floats[0]], 1: [weft.full((2, 3), 1.5)], 2: [pool[-1]], 3: [pool[-1] * 1.0]}[seed % 4]
    return [*outputs, pool[-1], *extra]


def leaf_arrays(seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = [SHAPES[i] for i in rng.integers(0, len(SHAPES), 2)]
    floats = [rng.normal(size=s).astype("float32") for s in shapes]
    return [*floats, rng.integers(0, 1000, 5), rng.random(64) < 0.5]


def program(seed: int, steps: int, dtype: Any, gradients: bool) -> Graph:
    """The random program as a graph in one of the float dtypes, with its gradients by both float inputs."""
    arrays = leaf_arrays(seed)
    examples = [weft.asarray(a.astype(dtype) if a.dtype.kind == "f" else a) for a in arrays]

    def run(a: T, b: T, index: T, flags: T) -> list[T]:
        def results(a: T, b: T) -> list[T]:
            return grow(seed, steps, Leaves([a, b], index, flags))

        found = results(a, b)
        if not gradients:
            return found

        def loss(a: T, b: T) -> T:
            return sum((weft.cos(r) * r).mean() for r in results(a, b))

        return [*found, *weft.grad(loss, argnums=(0, 1))(a, b)]

    return weft.make_graph(run, *examples)


def assert_agrees(
    found: Sequence[np.ndarray], narrow: Sequence[Any], wide: Sequence[Any], rounding: float = 1e-5
) -> None:
    """Compiled code is as near to float64 as the same dtype evaluated one op after the other: a few times its error, a few roundings."""
    for number, (got, low, high) in enumerate(zip(found, narrow, wide, strict=True)):
        low, high = np.asarray(low), np.asarray(high)
        assert got.shape == low.shape
        counted()
        if got.dtype.kind in "biu":
            np.testing.assert_array_equal(got, low)
            continue
        got, low, high = (a.astype("float64") for a in (got, low, high))
        assert np.isfinite(high).all(), "the generator should not leave the finite numbers"
        scale = max(1.0, float(np.abs(high).max(initial=0)))
        allowed = rounding * scale + 8 * float(np.abs(low - high).max(initial=0))
        worst = float(np.abs(got - high).max(initial=0))
        assert worst <= allowed, f"result {number}: {worst} away, {allowed} allowed"


def both_references(
    seed: int, steps: int, gradients: bool, dtype: str = "float32"
) -> tuple[Graph, list[np.ndarray], Any, Any]:
    """The random program in a float dtype, its inputs, and what it gives by definition: in this dtype and in float64."""
    kind = weft.asarray(0).astype(dtype).dtype.numpy
    arrays = [a.astype(kind) if a.dtype.kind == "f" else a for a in leaf_arrays(seed)]
    wide = [a if a.dtype.kind in "bi" else a.astype("float64") for a in arrays]
    graph, double = program(seed, steps, kind, gradients), program(seed, steps, "float64", gradients)
    with np.errstate(all="ignore"):
        return graph, arrays, interpret(graph)(*arrays), interpret(double)(*wide)


# Other floats, and how far a result may be off.
in_other_floats = pytest.mark.parametrize(
    ("dtype", "rounding"), [("float16", 2e-2), ("bfloat16", 1e-1), ("float64", 1e-11)]
)


# --- the tests ----------------------------------------------------------------------------------------------------------------


@settings(max_examples=some(16))
@given(st.integers(0, 2**24), st.integers(1, 14))
def test_random_programs_and_their_gradients(seed: int, steps: int) -> None:
    graph, arrays, narrow, wide = both_references(seed, steps, True)
    assert_agrees(compiled_results(graph, arrays), narrow, wide)


@in_other_floats
def test_random_programs_in_other_floats(dtype: str, rounding: float) -> None:
    for seed in (1, 2, 3):
        graph, arrays, narrow, wide = both_references(seed, 6, True, dtype)
        assert_agrees(compiled_results(graph, arrays), narrow, wide, rounding)


@settings(max_examples=some(10))
@given(st.integers(0, 2**24), st.integers(1, 10))
def test_random_programs_that_update_their_inputs(seed: int, steps: int) -> None:
    """Both float inputs are replaced in place: by their gradients, or by values of the same type that the program has anyway."""
    graph, arrays, narrow, wide = both_references(seed, steps, True)
    last = len(graph.outputs)
    updates = {last - 2: 0, last - 1: 1}
    for number in range(last - 2):  # perhaps an old value changes places
        for place in (0, 1):
            if graph.outputs[number].type == graph.inputs[place].type and (seed + number) % 3 == 0:
                updates = {n: i for n, i in updates.items() if i != place} | {number: place}
    state = [a.copy() for a in arrays]
    results = [np.full(o.shape, 0, o.dtype.numpy) for o in graph.outputs]
    for r in results:
        r.reshape(-1).view(np.uint8)[:] = 0xA5
    addresses = [0 if n in updates else r.ctypes.data for n, r in enumerate(results)]
    NativeExecutable(graph, updates, CompileOptions.current("cpu", threads=2)).run(
        [*(a.ctypes.data for a in state), *addresses]
    )
    found = [state[updates[n]] if n in updates else r for n, r in enumerate(results)]
    assert_agrees(found, narrow, wide)
    for place, (now, before) in enumerate(zip(state, arrays, strict=True)):
        if place not in updates.values():
            np.testing.assert_array_equal(now, before)


def bundle(seeds: Sequence[int], steps: int) -> tuple[Graph, list[np.ndarray]]:
    """Several random programs in one."""
    parts = [program(s, steps, "float32", True) for s in seeds]
    arrays = [leaf_arrays(s) for s in seeds]

    def run(*inputs: Any) -> list[T]:
        outputs = []
        for i, part in enumerate(parts):
            outputs += weft.control.inline(part, inputs[4 * i : 4 * i + 4])
        return outputs

    flat = [a for group in arrays for a in group]
    return weft.make_graph(run, *map(weft.asarray, flat)), flat


@settings(max_examples=some(2))
@given(st.integers(0, 2**20))
def test_the_same_bits_for_any_number_of_threads(seed: int) -> None:
    graph, arrays = bundle(range(seed, seed + 3), 7)
    one, *others = (
        compiled_results(graph, arrays, threads, fill) for threads, fill in ((1, 0xFF), (2, 0x00), (4, 0x7F))
    )
    for other in others:
        for a, b in zip(one, other, strict=True):
            assert a.tobytes() == b.tobytes()
            counted()


def test_large_tensors_give_the_same_bits_for_any_number_of_threads() -> None:
    """Large enough that every thread has a share of every loop, and of no round size."""
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(257, 1031)).astype("float32"), rng.normal(size=(1031, 67)).astype("float32")

    def run(x: T, w: T) -> list[T]:
        y = weft.relu(x @ w)
        return [
            x.mean(), x.sum(axis=0), x.sum(axis=1), x.max(axis=0), (x * x).mean(), weft.softmax(x), weft.layer_norm(x),
            y, y.mean(), weft.cumulative_sum(x, axis=0), weft.softmax(y, axis=0), weft.grad(lambda w: (weft.tanh(x @ w) ** 2).mean())(w),
            x.mT + 1.0, x.argmax(), x.reshape(1031, 257).sum(axis=1),
        ]  # fmt: skip

    graph = weft.make_graph(run, weft.asarray(x), weft.asarray(w))
    one, *others = (
        compiled_results(graph, [x, w], threads) for threads in sampled("large tensors", (1, 2, 3, 4), share=4.0)
    )
    for other in others:
        for number, (a, b) in enumerate(zip(one, other, strict=True)):
            assert a.tobytes() == b.tobytes(), number
    with np.errstate(all="ignore"):
        narrow = interpret(graph)(x, w)
        double = weft.make_graph(run, weft.asarray(x.astype("f8")), weft.asarray(w.astype("f8")))
        wide = interpret(double)(x.astype("f8"), w.astype("f8"))
    assert_agrees(one, narrow, wide)


# --- integers and bools: exactly ----------------------------------------------------------------------------------------------------

INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


def grow_integers(seed: int, steps: int, a: T, b: T) -> list[T]:
    pick, pool = Pick(seed), [a, b]
    for _ in range(steps):
        x = pick.choice(pool)
        made = integer_step(pick, x, partner_integer(pick, x, pool))
        made = made.astype("uint8") if made.dtype is weft.bool_ else made
        if 0 < made.size < MOST:
            pool.append(made)
    return [*pool[2:], a]


def integer_step(pick: Pick, x: T, y: T) -> T:
    return pick.choice([
        lambda: x + y, lambda: x - y, lambda: x * y, lambda: x // (y | 1), lambda: x % (y | 1), lambda: x & y, lambda: x ^ y, lambda: ~x,
        lambda: x << 3, lambda: x >> 2, lambda: weft.maximum(x, y), lambda: weft.minimum(x, y), lambda: weft.where(x < y, x, y),
        lambda: x.astype(pick.choice(INTEGERS)), lambda: x.astype("float32").astype("int16"), lambda: (x > y).astype("int32"),
        lambda: x.sum(axis=some_axes(pick, x)), lambda: x.max(axis=some_axes(pick, x), keepdims=True),
        lambda: x.prod(axis=some_axes(pick, x)), lambda: weft.flip(x), lambda: x.reshape((-1,)),
        lambda: x.argmax(axis=pick.randrange(x.ndim)) if x.ndim else x, lambda: weft.sort(x) if x.ndim else x,
        lambda: weft.cumulative_sum(x, axis=0) if x.ndim == 1 else x, lambda: matrix(x) @ matrix(x).mT if x.ndim else x,
        lambda: weft.concat([x, x[:1]]) if x.ndim else x, lambda: x[::-2] if x.ndim else x, lambda: (x == y).any(), lambda: (x != y).all(),
        lambda: weft.argsort(x, descending=True) if x.ndim else x, lambda: weft.permute_dims(x, tuple(range(x.ndim))[::-1]),
    ])()  # fmt: skip


def partner_integer(pick: Pick, x: T, pool: Sequence[T]) -> T:
    y = pick.choice(pool)
    y = y if y.shape == x.shape else y.reshape(x.shape) if y.size == x.size else y.sum()
    return y.astype(x.dtype)


@settings(max_examples=some(12))
@given(st.integers(0, 2**24), st.integers(1, 12))
def test_random_integer_programs_are_exact(seed: int, steps: int) -> None:
    rng = np.random.default_rng(seed)
    shapes = [SHAPES[i] for i in rng.integers(0, len(SHAPES), 2)]
    arrays = [
        rng.integers(-100 if d[0] == "i" else 0, 100, s).astype(d)
        for s, d in zip(shapes, rng.choice(INTEGERS, 2), strict=True)
    ]
    graph = weft.make_graph(lambda a, b: grow_integers(seed, steps, a, b), *map(weft.asarray, arrays))
    with np.errstate(all="ignore"):
        expected = interpret(graph)(*arrays)
    for got, value in zip(compiled_results(graph, arrays), expected, strict=True):
        np.testing.assert_array_equal(got, value)
        counted()


# --- nothing outside of the buffers is touched ---------------------------------------------------------------------------------------


def run_guarded(graph: Graph, arrays: Sequence[np.ndarray], at_end: bool) -> None:
    """Run with every input and every result at the edge of what may be touched; compare with a plain run."""
    expected = compiled_results(graph, arrays)
    inputs = [guarded_copy(a, at_end=at_end) for a in arrays]
    results = [guarded_copy(np.zeros(e.shape, e.dtype), at_end=at_end) for e in expected]
    for r in results:
        r.reshape(-1).view(np.uint8)[:] = 0xA5
    NativeExecutable(graph, {}, CompileOptions.current("cpu", threads=2)).run(
        [a.ctypes.data for a in (*inputs, *results)]
    )
    for a, b in zip(results, expected, strict=True):
        assert a.tobytes() == b.tobytes()
    for a, b in zip(inputs, arrays, strict=True):
        assert a.tobytes() == b.tobytes(), "an input was written to"


def dense_with_gradients(x: T, w: T, b: T) -> list[T]:
    def loss(x: T, w: T, b: T) -> T:
        return (weft.relu(x @ w + b) ** 2).sum()

    return [weft.relu(x @ w + b), *weft.grad(loss, argnums=(0, 1, 2))(x, w, b)]


def conv_with_gradients(how: dict[str, Any], x: T, w: T) -> list[T]:
    def loss(x: T, w: T) -> T:
        return (weft.conv(x, w, **how) ** 2).sum()

    return [weft.conv(x, w, **how), *weft.grad(loss, argnums=(0, 1))(x, w)]


def networks() -> list[tuple[Graph, list[np.ndarray]]]:
    """Products and convolutions of odd sizes, with their gradients: the templates pack, tile and prefetch."""
    rng = np.random.default_rng(1)
    found = []
    for m, k, n in ((1, 1, 1), (1, 37, 5), (5, 3, 1), (13, 29, 31), (65, 130, 33), (4, 257, 6)):
        arrays = [rng.normal(size=s).astype("float32") for s in ((m, k), (k, n), (n,))]
        found.append((weft.make_graph(dense_with_gradients, *map(weft.asarray, arrays)), arrays))
    for xs, ws, how in (
        ((1, 3, 9, 9), (5, 3, 3, 3), {"padding": 1}),
        ((2, 4, 7, 11), (6, 4, 5, 3), {"stride": 2, "padding": 2}),
        ((2, 6, 8, 8), (6, 1, 3, 3), {"groups": 6, "padding": 1}),
        ((1, 5, 13), (7, 5, 4), {"dilation": 2}),
        ((1, 16, 12, 12), (16, 16, 3, 3), {"padding": 1}),
        ((3, 1, 5, 5), (2, 1, 1, 1), {}),
    ):
        arrays = [rng.normal(size=s).astype("float32") for s in (xs, ws)]
        found.append((weft.make_graph(functools.partial(conv_with_gradients, how), *map(weft.asarray, arrays)), arrays))
    return found


def check_guarded(what: str) -> None:
    if what == "touch":
        ctypes.c_uint8.from_address(guarded_array(4, np.uint8).ctypes.data + 4).value = 1
    cases = (
        sampled("guarded", networks(), share=0.5)
        if what == "networks"
        else [bundle(range(s, s + 5), 9) for s in sampled("guarded random", (100, 200), share=1.0)]
    )
    for graph, arrays in cases:
        for at_end in (True, False):
            run_guarded(graph, arrays, at_end)


def in_a_process(what: str) -> subprocess.CompletedProcess[str]:
    """A touch of a guarded page ends the process, so it is another one."""
    code = f"import test_compiler_random as t; t.check_guarded({what!r}); print('all is well')"
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code],
        cwd=Path(__file__).parent, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip


def test_random_programs_touch_nothing_outside_of_their_buffers() -> None:
    done = in_a_process("random")
    assert done.returncode == 0, done.stderr
    assert "all is well" in done.stdout


def test_products_and_convolutions_touch_nothing_outside_of_their_buffers() -> None:
    done = in_a_process("networks")
    assert done.returncode == 0, done.stderr
    assert "all is well" in done.stdout


def test_the_guard_pages_guard() -> None:
    assert in_a_process("touch").returncode < 0


def test_programs_are_as_rich_as_they_should_be() -> None:
    """The random programs reach most ops of the compiler."""
    used: set[str] = set()
    for seed in range(60):
        used |= {n.op.name for n in program(seed, 10, "float32", True).nodes}
    wanted = {
        "sum", "max", "min", "prod", "reshape", "permute", "expand", "pad", "slice", "flip", "concat", "gather", "scatter", "contract", "conv",
        "conv_data", "conv_filter", "window_sum", "window_max", "argsort", "cumsum", "where", "exp", "tanh", "erf",
    }  # fmt: skip
    assert wanted - used == set()
