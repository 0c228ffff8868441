"""Checks the pass simplify (and what it does again once the layout is known): each rule as a graph before and the graph expected after it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
import weft.primitives as P
from test_compiler_random import both_references, program
from weft import negative, optim, zoo
from weft.compiler.cpu.backend import passes
from weft.compiler.passes import simplify as module
from weft.compiler.passes.simplify import refine, simplify
from weft.graph import OPS, Graph, Type, make, rule
from weft.runtime.reference import interpret
from weft.testing import counted

F = Callable[..., Any]
THREE, MATRIX = Type((3,), weft.float32), Type((2, 3), weft.float32)
INTS, FLAGS = Type((3,), weft.int32), Type((3,), weft.bool_)


def graph(f: F, *types: Type) -> Graph:
    return weft.make_graph(f, *types)


def names(g: Graph) -> list[str]:
    return [n.op.name for n in g.nodes]


def random_inputs(g: Graph, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=i.shape).astype(i.dtype.numpy) if i.dtype.is_float else rng.integers(0, 2, i.shape).astype(i.dtype.numpy) for i in g.inputs]  # fmt: skip


def assert_same_values(
    before: Graph, after: Graph, arrays: list[np.ndarray] | None = None, tolerance: float = 0.0
) -> None:
    arrays = random_inputs(before) if arrays is None else arrays
    with np.errstate(all="ignore"):
        for a, b in zip(interpret(before)(*arrays), interpret(after)(*arrays), strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            if tolerance and a.dtype.kind == "f":
                np.testing.assert_allclose(b, a, rtol=tolerance, atol=tolerance * max(1.0, np.abs(a).max(initial=0)))
            else:
                np.testing.assert_array_equal(b, a)
            counted()


def same(x: Any) -> Any:
    return weft.tensor.wrap(x.node)


# --- one rule a line -----------------------------------------------------------------------------------------------------------

RULES: dict[str, tuple[F, F, tuple[Type, ...]]] = {
    "stop_gradient": (lambda x: weft.stop_gradient(x) * 2.0, lambda x: x * 2.0, (THREE,)),
    "a cast to the same dtype": (lambda x: P.cast(x, dtype=weft.float32), same, (THREE,)),
    "a custom derivative": (lambda x: weft.custom_vjp(weft.sin, lambda g, y, x: (g,))(x), weft.sin, (THREE,)),
    "constants": (lambda x: x * (weft.full((3,), 2.0) * 3.0 + 1.0), lambda x: x * 7.0, (THREE,)),
    "constants are rounded as their dtype is": (
        lambda x: x + (weft.full((3,), 1.0, dtype="float16") / 3.0).astype("float32"), lambda x: x + float(np.float16(1 / 3)), (THREE,)
    ),
    "constants in another shape": (lambda x: x * weft.broadcast_to(weft.full((1, 1), 2.0).reshape(1), (3,)), lambda x: x * 2.0, (THREE,)),
    "constants turned round": (lambda x: x - weft.flip(weft.full((2, 3), 4.0).mT, axis=0)[:, 0], lambda x: x - 4.0, (THREE,)),
    "a comparison of constants": (lambda x: weft.where(weft.full((3,), 1.0) < 2.0, x, 0.0), same, (THREE,)),
    "integer arithmetic wraps": (lambda x: x + (weft.full((3,), 2**31 - 1, dtype="int32") + 1), lambda x: x + -(2**31), (INTS,)),
    "x + 0 of ints": (lambda x: x + 0, same, (INTS,)),
    "0 + x of ints": (lambda x: 0 + x, same, (INTS,)),
    "x - 0": (lambda x: x - 0.0, same, (THREE,)),
    "x * 1": (lambda x: x * 1.0, same, (THREE,)),
    "1 * x": (lambda x: 1.0 * x, same, (THREE,)),
    "x / 1": (lambda x: x / 1.0, same, (THREE,)),
    "- - x": (lambda x: negative(negative(x)), same, (THREE,)),
    "- - - x": (lambda x: negative(negative(negative(x))), negative, (THREE,)),
    "where of one value": (lambda c, x: weft.where(c, x, x), lambda c, x: same(x), (FLAGS, THREE)),
    "where false": (lambda x, y: weft.where(weft.zeros(3, dtype="bool"), x, y), lambda x, y: same(y), (THREE, THREE)),
    "reshape of reshape": (lambda x: P.reshape(P.reshape(x, shape=(3, 2)), shape=(6,)), lambda x: P.reshape(x, shape=(6,)), (MATRIX,)),
    "reshape there and back": (lambda x: P.reshape(P.reshape(x, shape=(3, 2)), shape=(2, 3)), same, (MATRIX,)),
    "reshape to the same": (lambda x: P.reshape(x, shape=(2, 3)), same, (MATRIX,)),
    "permute there and back": (lambda x: x.mT.mT, same, (MATRIX,)),
    "permute of permute": (
        lambda x: P.permute(P.permute(x, axes=(1, 2, 0)), axes=(2, 1, 0)), lambda x: P.permute(x, axes=(0, 2, 1)), (Type((2, 3, 4), weft.float32),)
    ),
    "permutes around axes of size 1, there and back": (
        lambda x: P.permute(P.reshape(P.permute(x, axes=(1, 0, 2)), shape=(1, 3, 1, 2, 4)), axes=(0, 3, 1, 2, 4)),
        lambda x: P.reshape(x, shape=(1, 2, 3, 1, 4)), (Type((2, 3, 4), weft.float32),),
    ),
    "permutes around axes of size 1 that are dropped": (
        lambda x: P.permute(P.reshape(P.permute(x, axes=(2, 1, 3, 0)), shape=(3, 4, 2)), axes=(1, 0, 2)),
        lambda x: P.reshape(P.permute(x, axes=(3, 2, 0, 1)), shape=(4, 3, 2)), (Type((2, 1, 3, 4), weft.float32),),
    ),
    "permute that moves nothing": (lambda x: P.permute(x, axes=(0, 1)), same, (MATRIX,)),
    "expand of expand": (
        lambda x: P.expand(P.expand(x, shape=(1, 3)), shape=(2, 3)), lambda x: P.expand(x, shape=(2, 3)), (Type((1, 1), weft.float32),)
    ),
    "expand to the same": (lambda x: P.expand(x, shape=(2, 3)), same, (MATRIX,)),
    "slice of all": (lambda x: P.slice(x, starts=(0, 0), stops=(2, 3), steps=(1, 1)), same, (MATRIX,)),
    "pad of nothing": (lambda x: P.pad(x, widths=((0, 0, 0), (0, 0, 0)), value=0.0), same, (MATRIX,)),
    "concat of one": (lambda x: P.concat(x, axis=0), same, (MATRIX,)),
    "concat of concats": (
        lambda x, y: P.concat(P.concat(x, y, axis=0), x, P.concat(y, P.concat(y, x, axis=0), axis=0), axis=0),
        lambda x, y: P.concat(x, y, x, y, y, x, axis=0), (MATRIX, MATRIX),
    ),
    "sum over an axis of size 1": (lambda x: P.sum(x, axes=(1,)), lambda x: P.reshape(x, shape=(3,)), (Type((3, 1), weft.float32),)),
    "max over no axis": (lambda x: P.max(x, axes=()), same, (THREE,)),
    "a product over nothing": (lambda x, y: x @ y, lambda x, y: weft.zeros((2, 3)), (Type((2, 0), weft.float32), Type((0, 3), weft.float32))),
    "a product that is only wanted transposed": (
        lambda x, y: P.permute(P.contract(x, y, a="mk", b="kn", out="mn"), axes=(1, 0)) * 2.0,
        lambda x, y: P.contract(x, y, a="mk", b="kn", out="nm") * 2.0, (MATRIX, Type((3, 4), weft.float32)),
    ),
    "the mask of a relu comes from its result": (
        lambda x: (weft.relu(x), weft.where(x <= 0.0, 0.0, 2.0)), lambda x: (weft.relu(x), weft.where(weft.relu(x) <= 0.0, 0.0, 2.0)), (THREE,)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_rule(name: str) -> None:
    before, after, types = RULES[name]
    found, expected = simplify(graph(before, *types)), graph(after, *types)
    assert found == expected, f"{found.text()}\nexpected\n{expected.text()}"
    assert_same_values(graph(before, *types), found)


KEPT: dict[str, tuple[F, tuple[Type, ...]]] = {
    "concat of concats along another axis": (
        lambda x: P.concat(P.concat(x, x, axis=1), P.concat(x, x, axis=1), axis=0),
        (MATRIX,),
    ),
    "concat of more pieces than are read together": (
        lambda x: P.concat(P.concat(*[x] * 8, axis=0), x, axis=0),
        (MATRIX,),
    ),
    "0 * x, which is nan for infinity": (lambda x: x * 0.0, (THREE,)),
    "0 - x": (lambda x: 0.0 - x, (THREE,)),
    "1 / x": (lambda x: 1.0 / x, (THREE,)),
    "x - x, which is nan for infinity": (lambda x: x - x, (THREE,)),
    "a cast to another dtype and back": (lambda x: x.astype("float16").astype("float32"), (THREE,)),
    "a division by a constant zero": (
        lambda x: x + weft.full((3,), 1, dtype="int32") // weft.zeros(3, dtype="int32"),
        (INTS,),
    ),
    "a product that is wanted both ways": (
        lambda x, y: (x @ y, (x @ y).mT * 2.0),
        (MATRIX, Type((3, 4), weft.float32)),
    ),
    "permutes around a reshape that joins axes": (
        lambda x: P.permute(P.reshape(P.permute(x, axes=(1, 0)), shape=(2, 3)), axes=(1, 0)),
        (MATRIX,),
    ),
    "a slice of a part": (lambda x: x[1:], (THREE,)),
    "a flip": (lambda x: weft.flip(x), (THREE,)),
    "a sum over an axis of size 3": (lambda x: x.sum(), (THREE,)),
}


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    before = graph(KEPT[name][0], *KEPT[name][1])
    assert simplify(before) == before


def test_the_sign_of_zero() -> None:
    """-0.0 + 0.0 is 0.0, and -0.0 - -0.0 is 0.0: who divides by it sees the difference."""
    before = graph(
        lambda x: (1.0 / (x + 0.0), 1.0 / (0.0 + x), 1.0 / (x - -0.0), 1.0 / (x + -0.0), 1.0 / (x - 0.0)), THREE
    )
    assert_same_values(before, simplify(before), [np.array([0.0, -0.0, 1.0], "float32")])


def test_equal_work_is_one_node_and_dead_work_is_gone() -> None:
    before = graph(lambda x: ((x - 0.0) * 1.0 * x, x * (x * 1.0), (weft.sin(x), x)[1]), Type((3,), weft.float64))
    found = simplify(before)
    assert names(found).count("mul") == 1
    assert "sin" not in names(found)


def test_inputs_stay_even_if_unused() -> None:
    before = graph(lambda x, y: weft.where(weft.ones(3, dtype="bool"), y, x), THREE, THREE)
    found = simplify(before)
    assert found.inputs == before.inputs
    assert found.outputs == (before.inputs[1],)


# --- larger patterns -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "stride", "padding"), [(2, 2, 0), (3, 2, 1), (2, 1, 0), (3, 3, 1), (2, 3, 0)])
def test_max_pooling_backwards(size: int, stride: int, padding: int) -> None:
    def f(x: Any, g: Any) -> Any:
        return weft.grad(lambda x: (weft.max_pool(x, size, stride=stride, padding=padding) ** 2).sum())(x) * g

    image = Type((2, 3, 7, 8), weft.float32)
    before = graph(f, image, image)
    found = simplify(before)
    assert "scatter" in names(before)
    assert not {"scatter", "window_argmax"} & set(names(found))
    assert "window_spread" in names(found)
    arrays = random_inputs(before)
    arrays[0] = np.round(arrays[0])  # ties: the first of a window wins
    arrays[0][0, 0, :4] = np.nan
    assert_same_values(before, found, arrays, tolerance=1e-6)
    assert_same_values(before, refine(found), arrays, tolerance=1e-6)


def test_windows_that_see_padding_alone_ask_nobody() -> None:
    f = weft.grad(lambda x: (weft.max_pool(x, 2, stride=1, padding=3, dilation=4) ** 2).sum())
    before = graph(f, Type((1, 2, 3, 3), weft.float32))
    found = simplify(before)
    assert "scatter" not in names(found)
    assert_same_values(before, found, tolerance=1e-6)


def test_windows_that_do_not_overlap_are_compared_in_place() -> None:
    f = weft.grad(lambda x: (weft.max_pool(x, (2, 3)) ** 2).sum())
    before = graph(f, Type((2, 3, 6, 9), weft.float32))
    found = refine(simplify(before))
    assert "window_spread" not in names(found)
    assert_same_values(before, found, tolerance=1e-6)


@pytest.mark.parametrize("dtype", ["int64", "int32", "int8", "uint8"])
@pytest.mark.parametrize("classes", [4, 200])
def test_one_value_a_row_is_a_comparison(dtype: str, classes: int) -> None:
    kind = weft.asarray(0).astype(dtype).dtype

    def f(x: Any, index: Any) -> Any:
        return weft.grad(lambda x: (weft.take_along_axis(x, index, axis=1) ** 2).sum())(x)

    before = graph(f, Type((3, classes), weft.float32), Type((3, 1), kind))
    found = simplify(before)
    assert "scatter" in names(before)
    x = np.random.default_rng(0).normal(size=(3, classes)).astype("float32")
    for index in ([[1], [0], [3]], [[-1], [-4], [2]] if dtype[0] == "i" else [[2], [2], [2]]):
        assert_same_values(before, found, [x, np.array(index, kind.numpy)])


def test_one_value_a_row_out_of_range_is_still_an_error() -> None:
    """The reference raises; a comparison that is never true would hide it."""

    def f(index: Any, values: Any) -> Any:
        rows = weft.arange(3)[:, None]
        return P.scatter(weft.zeros((3, 4)), values, weft.broadcast_to(rows, (3, 1)), index, axes=(0, 1), how="add")

    fast = weft.jit(f)
    good, bad = weft.asarray([[1], [0], [-1]]), weft.asarray([[1], [0], [4]])
    assert fast(good, weft.ones((3, 1))).sum().item() == 3.0
    with weft.knobs.set(device="reference"), pytest.raises(weft.RunError, match="out of range"):
        f(bad, weft.ones((3, 1))).numpy()
    with pytest.raises(weft.RunError, match="out of range"):
        fast(bad, weft.ones((3, 1)))


@pytest.mark.parametrize("shape", [(100_000,), (64, 1024, 2), (8191,), (3, 20_000), (20_000, 3), (2, 128, 128, 4)])
@pytest.mark.parametrize("op", ["sum", "max", "min", "prod"])
def test_long_reductions_keep_their_value(op: str, shape: tuple[int, ...]) -> None:
    for axes in (tuple(range(len(shape))), (0,), (len(shape) - 1,)):
        before = graph(lambda x, axes=axes: make_reduction(op, x, axes), Type(shape, weft.float32))
        arrays = [(1 + 0.001 * np.random.default_rng(0).normal(size=shape)).astype("float32")]
        assert_same_values(before, refine(before), arrays, tolerance=1e-5)


def make_reduction(op: str, x: Any, axes: tuple[int, ...]) -> Any:
    return weft.tensor.wrap(make(OPS[op], (x.node,), (axes,)))


def test_a_long_sum_is_cut_where_the_shape_says() -> None:
    before = graph(lambda x: x.sum(), Type((1 << 16,), weft.float32))
    found = refine(before)
    assert names(found).count("sum") == 2
    short = graph(lambda x: x.sum(), Type((100,), weft.float32))
    assert refine(short) == short


def test_the_derivative_of_a_relu_does_not_keep_its_input() -> None:
    def f(x: Any, w: Any) -> Any:
        return weft.grad(lambda w: (weft.relu(x @ w) ** 2).sum())(w)

    found = simplify(graph(f, MATRIX, Type((3, 4), weft.float32)))
    [product] = [n for n in found.nodes if n.op.name == "contract" and n.shape == (2, 4)]
    users = [n for n in found.nodes if product in n.inputs]
    assert {u.op.name for u in users} <= {"le", "where"}
    assert len(users) == 2  # both are the relu itself


# --- values ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.sweep(share=0.25)
@pytest.mark.parametrize("seed", range(25))
def test_random_programs_keep_their_values_after_every_pass(seed: int) -> None:
    before, arrays, narrow, wide = both_references(seed, 12, True)
    for name, after in passes(before).items():
        assert [o.type for o in after.outputs] == [o.type for o in before.outputs]
        with np.errstate(all="ignore"):
            found = interpret(after)(*arrays)
        for got, low, high in zip(found, narrow, wide, strict=True):
            if got.dtype.kind != "f":
                np.testing.assert_array_equal(got, low)
                continue
            allowed = 1e-5 * max(1.0, np.abs(high).max(initial=0)) + 4 * np.abs(low - high).max(initial=0)
            assert np.abs(got - high).max(initial=0) <= allowed, name
            counted()


def test_it_comes_to_rest() -> None:
    """A mask taken from a relu's result can make two nodes one; after that there is nothing left to do."""
    for seed in range(25):
        twice = simplify(simplify(program(seed, 12, "float32", True)))
        assert simplify(twice) == twice


# --- fuel ----------------------------------------------------------------------------------------------------------------------------


def test_fuel_counts_replacements() -> None:
    before = graph(lambda x: negative(negative(((x - 0.0) * 1.0) / 1.0)), THREE)
    assert simplify(before, fuel=0) == before
    sizes = [len(simplify(before, fuel=n).nodes) for n in range(8)]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) > 3
    assert simplify(before, fuel=1000) == simplify(before)


def test_fuel_finds_a_bad_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rule is wrong: the least fuel that changes a value points at its first use."""

    @rule("cos")
    def wrong(node: Any) -> Any:
        return make(OPS["sin"], node.inputs)

    monkeypatch.setattr(module, "RULES", (*module.RULES, wrong))
    before = graph(lambda x: negative(negative(weft.cos(x * 1.0 - 0.0) * 1.0 / 1.0)) + (x / 1.0).sum(), THREE)
    arrays = random_inputs(before)

    def is_right(fuel: int) -> bool:
        return np.array_equal(interpret(before)(*arrays)[0], interpret(simplify(before, fuel=fuel))(*arrays)[0])

    low, high = 0, 1 << 10
    assert (is_right(low), is_right(high)) == (True, False)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_right(middle) else (low, middle)
    good, bad = (names(simplify(before, fuel=n)) for n in (low, high))
    assert ("cos" in good, "cos" in bad) == (True, False)
    assert ("sin" in good, "sin" in bad) == (False, True)
    assert sorted(good) == sorted(["cos" if n == "sin" else n for n in bad])  # and nothing else was done


def test_products_that_are_turned_below_others_leave_no_copies():
    """Both gradients of two layers are only wanted transposed, and one is computed from the other."""
    text = "abcab" * 20
    model = zoo.char_lstm(3, 8, layers=1)
    optimizer = optim.sgd(model, 0.1)

    @weft.jit
    def step(x, y):
        loss = weft.cross_entropy(model(x)[0], y)
        optimizer.minimize(loss)
        return loss

    ids = np.array([ord(c) - 97 for c in text]).reshape(4, 25)
    graph = step.lower(ids[:, :-1], ids[:, 1:])
    assert sum(node.op.name == "scan" for node in graph.nodes) == 2
    assert sum(node.op.name == "scan" for node in simplify(graph).nodes) == 2


# --- what follows easily from values that are read anyway ----------------------------------------------------------------------------

IMAGE, CHANNELS = Type((2, 3, 4, 5), weft.float32), Type((3,), weft.float32)


def wide(v: Any) -> Any:
    return v.reshape(3, 1, 1)


def and_its_mask(y: Any) -> Any:
    """A relu, and what its derivative asks."""
    return weft.relu(y), weft.where(y <= 0.0, 0.0, 2.0)


def with_mask_of_the_result(y: Any) -> Any:
    return weft.relu(y), weft.where(weft.relu(y) <= 0.0, 0.0, 2.0)


def normed(x: Any, a: Any, b: Any) -> Any:
    return (x - wide(b)) * wide(weft.sqrt(a)) + wide(a)


def deep(x: Any, a: Any) -> Any:
    """A long way from the value that is read."""
    for _ in range(20):
        x = x * wide(a) + 1.0
    return x


def sines(a: Any) -> Any:
    for _ in range(40):
        a = weft.sin(a)
    return a


SCALED: dict[str, tuple[F, tuple[Type, ...], bool]] = {
    "batch norm's result": (normed, (IMAGE, CHANNELS, CHANNELS), True),
    "one scale": (lambda x, a: x * wide(a), (IMAGE, CHANNELS), True),
    "of a convolution": (lambda x, w, a: weft.conv(x, w) * wide(a), (IMAGE, Type((3, 3, 2, 2), weft.float32), CHANNELS), True),
    "a bias alone: its derivative does not read the image": (lambda x, b: x + wide(b), (IMAGE, CHANNELS), False),
    "a constant scale": (lambda x: x * 3.0, (IMAGE,), False),
    "the image itself": (lambda x: x + 0.5, (IMAGE,), False),
    "two images": (lambda x, y: x * y, (IMAGE, IMAGE), False),
    "a residual": (lambda x, y, a: x * wide(a) + y, (IMAGE, IMAGE, CHANNELS), False),
    "too long to be computed again": (deep, (IMAGE, CHANNELS), False),
    "a scale, beside too much to look at": (lambda x, a: wide(sines(a)) + x * wide(a), (IMAGE, CHANNELS), False),
}  # fmt: skip


@pytest.mark.parametrize("name", SCALED)
def test_the_mask_of_a_relu_is_computed_again(name: str) -> None:
    """From the value below the scale, which the derivative of the scale reads: the relu's result need not be."""
    f, types, again = SCALED[name]
    before = graph(lambda *a: and_its_mask(f(*a)), *types)
    from_result = simplify(graph(lambda *a: with_mask_of_the_result(f(*a)), *types))
    assert simplify(before) == from_result
    found = simplify(before, recompute=True)
    assert found == (before if again else from_result), found.text()
    arrays = [np.abs(a) if a.shape == (3,) else a for a in random_inputs(before)]
    assert_same_values(before, found, arrays)


def test_only_the_relus_that_are_scaled_are() -> None:
    def f(x: Any, a: Any) -> Any:
        return (*and_its_mask(x * wide(a)), *and_its_mask(x + wide(a)))

    def after(x: Any, a: Any) -> Any:
        return (*and_its_mask(x * wide(a)), *with_mask_of_the_result(x + wide(a)))

    assert simplify(graph(f, IMAGE, CHANNELS), recompute=True) == graph(after, IMAGE, CHANNELS)


# --- long sums in two ------------------------------------------------------------------------------------------------------------------

LONG = Type((4, 128, 64), weft.float32)


@pytest.mark.parametrize("reduce", ["sum", "max", "min", "prod"])
def test_long_reductions_are_cut_for_threads_only(reduce: str) -> None:
    before = graph(lambda x: getattr(P, reduce)(x, axes=(1, 2)), LONG)
    cut, whole = refine(before), refine(before, split_sums=False)
    assert whole == before
    assert names(cut).count(reduce) == 2
    assert_same_values(
        before, cut, [random_inputs(before)[0] * 0.01 + 1.0] if reduce == "prod" else None, tolerance=1e-3
    )


def test_short_reductions_are_never_cut() -> None:
    for shape, axes in (((4, 63, 64), (1, 2)), ((2000, 64), (1,)), ((5000,), ())):
        before = graph(lambda x, axes=axes: P.sum(weft.sin(x), axes=axes), Type(shape, weft.float32))
        assert refine(before) == simplify(before)


def test_windows_are_separate_whoever_adds_up() -> None:
    """`split_sums` is about long sums alone: the other late rules stay."""
    pooled = simplify(graph(weft.grad(lambda x: (weft.max_pool(x, 2) ** 2).sum()), Type((2, 3, 4, 6), weft.float32)))
    assert "window_spread" in names(pooled)
    for split_sums in (True, False):
        assert "window_spread" not in names(refine(pooled, split_sums=split_sums))
