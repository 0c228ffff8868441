"""`weft.vmap`: every op on many examples against the same op on each, and functions of every kind."""

import functools
import itertools
from typing import Any

import numpy as np
import pytest

import weft
from jit_tools import floats
from sampling import sampled
from test_ops import DECLARED
from weft import nn
from weft.graph import Op
from weft.tensor import emit, emit_all
from weft.testing import generator

MAPPABLE = [op for op in DECLARED if op.arity != 0 and op.name != "random_bits"]
SIZE = 3


def stacked(f: Any, *arguments: Any) -> np.ndarray:
    """The definition: one example after the other. What is no list is shared."""
    results = []
    for i in range(SIZE):
        results.append(f(*(a[i] if isinstance(a, list) else a for a in arguments)).numpy())
    return np.stack(results)


def other(x: Any, rng: np.random.Generator) -> np.ndarray:
    """An input with the same values at other places: it is still one that the op accepts."""
    x = np.asarray(x)
    return rng.permutation(x.reshape(-1)).reshape(x.shape)


def ways_of(count: int) -> list[tuple[bool, ...]]:
    """Which of so many inputs are mapped; of many inputs, all or one of them."""
    ways = [w for w in itertools.product((False, True), repeat=count) if any(w)]
    return ways if count <= 3 else [ways[-1], *(w for w in ways if sum(w) == 1)]


@pytest.mark.parametrize("compiled", [False, True], ids=["reference", "cpu"])
@pytest.mark.parametrize("op", MAPPABLE, ids=lambda op: op.name)
def test_every_op_in_every_way(op: Op, compiled: bool) -> None:
    rng = generator(op.name)

    def apply(*inputs: Any, number: int = 0) -> weft.Tensor:
        one = emit(op, tuple(map(weft.asarray, inputs)), sample.params)
        return emit_all(op, tuple(map(weft.asarray, inputs)), sample.params)[number] if one.node.outputs else one

    with weft.knobs.set(device="cpu" if compiled else "reference"):
        cases = [(sample, way) for sample in op.samples(rng) for way in ways_of(len(sample.inputs))]
        for sample, way in sampled(f"vmap {op.name} {compiled}", cases, share=0.25, of=lambda case: case[1]):
            given = [[other(x, rng) for _ in range(SIZE)] if m else x for x, m in zip(sample.inputs, way, strict=True)]
            whole = [weft.asarray(np.stack(x) if m else x) for x, m in zip(given, way, strict=True)]
            for number in range(2 if op.name == "top_k" else 1):
                one = functools.partial(apply, number=number)
                mapped = weft.vmap(one, in_axes=[0 if m else None for m in way])
                found = (weft.jit(mapped) if compiled else mapped)(*whole)
                expected = stacked(one, *given)
                assert found.dtype == weft.asarray(expected).dtype
                np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9, atol=1e-12)


# --- axes ---------------------------------------------------------------------------------------------------------------------------


def test_axes_of_arguments_and_results() -> None:
    x, y = floats(4, 3, 5), floats(5, 2, seed=1)
    f = weft.vmap(lambda x, y: (x @ y, {"a": y}), in_axes=(1, None), out_axes=(-1, {"a": None}))
    product, rest = f(x, weft.asarray(y))
    np.testing.assert_allclose(product.numpy(), (x @ y).transpose(0, 2, 1), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(rest["a"].numpy(), y)
    a, b = floats(5, 4), floats(4, 5, seed=2)
    found = weft.vmap(lambda d, k: d["a"] * d["b"][0] + k, in_axes=({"a": 0, "b": (1,)}, None))(
        {"a": a, "b": (b,)}, 2.0
    )
    np.testing.assert_allclose(found.numpy(), a * b.T + 2.0, rtol=1e-6)


def test_arguments_by_name_are_mapped_and_plain_values_shared() -> None:
    f = weft.vmap(lambda x, power, *, add, how: (x**power + add) if how == "up" else x)
    found = f(weft.asarray([1.0, 2.0, 3.0]), 2, add=weft.asarray([10.0, 20.0, 30.0]), how="up")
    assert found.tolist() == [11.0, 24.0, 39.0]


def test_what_is_the_same_for_all_is_computed_once_and_spread() -> None:
    w = weft.asarray(floats(6, 6))
    f = weft.vmap(lambda x: (x * 2.0, w @ w), out_axes=(0, None))
    doubled, product = f(weft.ones((3, 2)))
    assert (doubled.shape, product.shape) == ((3, 2), (6, 6))
    assert weft.vmap(lambda x: w)(weft.ones(3)).shape == (3, 6, 6)


def test_no_examples() -> None:
    assert weft.vmap(lambda x: x @ x)(weft.ones((0, 4))).shape == (0,)
    image, filters = weft.ones((1, 2, 5, 5)), weft.zeros((0, 4, 2, 3, 3))
    assert weft.vmap(lambda w: weft.conv(image, w))(filters).shape == (0, 1, 4, 3, 3)
    by_w = weft.vmap(weft.grad(lambda w: weft.conv(image, w).sum()))(filters)
    assert by_w.shape == (0, 4, 2, 3, 3)
    assert weft.vmap(lambda x: weft.cond(x > 0, lambda x: x, lambda x: -x, x))(weft.ones(0)).shape == (0,)


ERRORS = {
    "sizes": (lambda: weft.vmap(lambda a, b: a + b)(weft.ones(2), weft.ones(3)), "of sizes 2 and 3"),
    "none": (lambda: weft.vmap(lambda a: a)(3.0), "is required, got axes for none"),
    "no axis": (lambda: weft.vmap(lambda a: a)(weft.asarray(3.0)), "without axes cannot be mapped"),
    "too far": (lambda: weft.vmap(lambda a: a, in_axes=1)(weft.ones(3)), "axis 1 does not exist"),
    "another structure": (
        lambda: weft.vmap(lambda a, b: a, in_axes=(0,))(1, 2),
        r"in_axes must be an int, None, or nested as",
    ),
    "a text": (lambda: weft.vmap(lambda a: a, in_axes="0")(weft.ones(3)), "in_axes must be an int"),
    "not one for all": (
        lambda: weft.vmap(lambda a: a, out_axes=None)(weft.ones(3)),
        "its axis in out_axes cannot be None",
    ),
}


@pytest.mark.parametrize("call", ERRORS.values(), ids=ERRORS)
def test_errors(call: Any) -> None:
    make, text = call
    with pytest.raises(weft.UserError, match=text):
        make()


def test_a_value_of_one_example_cannot_be_looked_at() -> None:
    with pytest.raises(weft.UserError, match="is not known while a function is being traced"):
        weft.vmap(lambda x: x if x > 0 else -x)(weft.ones(3))


def test_tensors_from_outside_cannot_be_changed() -> None:
    total = weft.asarray(0.0)
    for call in (weft.vmap(lambda x: total.assign(total + x)), weft.jit(weft.vmap(lambda x: total.assign(total + x)))):
        with pytest.raises(weft.UserError, match="a tensor from outside cannot be changed"):
            call(weft.ones(3))
    assert total.item() == 0.0


def test_an_op_without_a_rule() -> None:
    with pytest.raises(weft.UserError, match="the op 'random_bits' has no rule for many examples at once"):
        weft.vmap(lambda seed: weft.random.Generator(seed).uniform((2,)))(weft.asarray(np.arange(3, dtype=np.uint64)))


# --- with the other transforms --------------------------------------------------------------------------------------------------------


def loss(w: weft.Tensor, x: weft.Tensor, y: weft.Tensor) -> weft.Tensor:
    return ((weft.tanh(x @ w) - y) ** 2).sum()


def test_a_gradient_for_each_example_and_through_the_map() -> None:
    w, x, y = (weft.asarray(floats(*s, seed=i)) for i, s in enumerate([(4, 2), (3, 4), (3, 2)]))
    each = weft.vmap(weft.grad(loss), in_axes=(None, 0, 0))(w, x, y)
    np.testing.assert_allclose(each.numpy(), stacked(weft.grad(loss), w, list(x), list(y)), rtol=1e-5, atol=1e-6)
    through = weft.grad(lambda w: weft.vmap(loss, in_axes=(None, 0, 0))(w, x, y).sum())(w)
    np.testing.assert_allclose(through.numpy(), each.numpy().sum(0), rtol=1e-4, atol=1e-5)
    fast = weft.jit(weft.vmap(weft.grad(loss), in_axes=(None, 0, 0)))(w, x, y)
    np.testing.assert_allclose(fast.numpy(), each.numpy(), rtol=1e-4, atol=1e-5)


def test_maps_inside_maps() -> None:
    a, b = floats(3, 4), floats(5, 4, seed=1)
    products = weft.vmap(weft.vmap(lambda x, y: (x * y).sum(), in_axes=(None, 0)), in_axes=(0, None))(a, b)
    np.testing.assert_allclose(products.numpy(), a @ b.T, rtol=1e-5, atol=1e-6)


def test_a_gradient_for_each_example_of_a_network() -> None:
    weft.seed(3)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4 * 3 * 3, 5), nn.LayerNorm(5),
    ).eval()  # fmt: skip
    x, y = weft.asarray(floats(SIZE, 1, 6, 6)), weft.asarray([0, 3, 4])
    parameters = model.parameters()

    def one(x: weft.Tensor, y: weft.Tensor) -> list[weft.Tensor]:
        return weft.gradients(nn.cross_entropy(model(x[None]), y[None]), parameters)

    found = weft.jit(weft.vmap(one))(x, y)
    for n in range(len(parameters)):
        expected = stacked(lambda x, y, n=n: one(x, y)[n], list(x), list(y))
        np.testing.assert_allclose(found[n].numpy(), expected, rtol=1e-4, atol=1e-5)


def test_parameters_that_the_function_makes() -> None:
    def one(x: weft.Tensor) -> weft.Tensor:
        p = weft.parameter(x * 2.0)
        [slope] = weft.gradients((p**3).sum(), [p])
        return slope + p

    x = weft.asarray(floats(3, 2))
    expected = 12 * x.numpy() ** 2 + 2 * x.numpy()
    for f in (weft.vmap(one), weft.jit(weft.vmap(one))):
        np.testing.assert_allclose(f(x).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_shared_arrays_are_tensors_inside() -> None:
    found = weft.vmap(lambda w, i: w[i], in_axes=(None, 0))(np.arange(5.0), weft.asarray([1, 2]))
    assert found.tolist() == [1.0, 2.0]


def test_a_rule_with_too_few_cotangents() -> None:
    f = weft.custom_vjp(lambda a, b: a * b, lambda g, y, a, b: (g,))
    with pytest.raises(weft.UserError, match=r"\[custom_vjp\] a cotangent for each of 2 inputs is required, got 1"):
        weft.grad(lambda x, w: weft.vmap(f, in_axes=(0, None))(x, w).sum())(weft.ones(3), weft.asarray(2.0))


def test_a_network_for_each_example() -> None:
    """An ensemble: the filters differ, so a convolution has groups for each."""
    w, x = floats(SIZE, 4, 2, 3, 3), floats(2, 2, 7, 7, seed=1)

    def f(w: Any, x: Any) -> weft.Tensor:
        return weft.conv(x, w, stride=2, padding=1)

    expected = stacked(f, list(w), x)
    np.testing.assert_allclose(weft.jit(weft.vmap(f, in_axes=(0, None)))(w, x).numpy(), expected, rtol=1e-4, atol=1e-5)
    back = weft.grad(lambda w, x: (f(w, x) ** 2).sum(), argnums=(0, 1))
    found = weft.jit(weft.vmap(back, in_axes=(0, None)))(w, x)
    for n in range(2):
        expected = stacked(lambda w, x, n=n: back(w, x)[n], list(map(weft.asarray, w)), weft.asarray(x))
        np.testing.assert_allclose(found[n].numpy(), expected, rtol=1e-3, atol=1e-4)


# --- control flow ------------------------------------------------------------------------------------------------------------------------


def run_scan(x: Any, w: Any) -> Any:
    def step(carry: Any, now: Any) -> Any:
        total, count = carry
        return (weft.tanh(total * w + now), count + 1), total

    (last, count), every = weft.scan(step, (weft.zeros(()), weft.asarray(0)), x)
    return last + every.sum() + count


CONTROL = {
    "scan over mapped steps": (run_scan, (0, None)),
    "scan with a mapped constant": (run_scan, (None, 0)),
    "scan with both": (run_scan, (0, 0)),
    "backwards": (lambda x, w: weft.scan(lambda c, v: (c * w + v, c), weft.zeros(()), x, reverse=True)[1][0], (0, 0)),
    "a condition for all": (lambda x, w: weft.cond(w > 100.0, lambda x: x, lambda x: x * w, x).sum(), (0, None)),
    "a condition for each": (lambda x, w: weft.cond(x.sum() > 0, lambda x: x * 2.0, lambda x: x - w, x).sum(), (0, None)),
    "a branch that gives what is shared": (lambda x, w: weft.cond(x[0] > 0, lambda x: x, lambda x: weft.ones(4), x).sum(), (0, None)),
    "a loop": (
        lambda x, w: weft.while_loop(lambda s: (s[0] ** 2).sum() < 50.0, lambda s: [s[0] * 1.7 + w, s[1] + 1], [x, weft.asarray(0)])[1],
        (0, None),
    ),
    "checkpoint": (lambda x, w: weft.checkpoint(lambda x: weft.sin(x) * w)(x).sum(), (0, None)),
    "an own derivative": (lambda x, w: weft.custom_vjp(lambda a, b: a * b, lambda g, y, a, b: (g * b * 3.0, (g * a).sum()))(x, w).sum(), (0, None)),
}  # fmt: skip


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "jit"])
@pytest.mark.parametrize("name", CONTROL)
def test_control_flow(name: str, compiled: bool) -> None:
    f, axes = CONTROL[name]
    x, w = floats(SIZE, 4), np.abs(floats(SIZE, seed=1)) + 0.5
    x, w = (v if a == 0 else v[0] for v, a in zip((x, w), axes, strict=True))
    mapped = weft.vmap(f, in_axes=axes)
    given = [list(map(weft.asarray, v)) if a == 0 else weft.asarray(v) for v, a in zip((x, w), axes, strict=True)]
    found = (weft.jit(mapped) if compiled else mapped)(weft.asarray(x), weft.asarray(w))
    np.testing.assert_allclose(found.numpy(), stacked(f, *given), rtol=1e-5, atol=1e-5)
    if name == "a loop":
        return  # has no derivative
    back = weft.grad(f, argnums=(0, 1))
    both = weft.vmap(back, in_axes=axes)
    slopes = (weft.jit(both) if compiled else both)(weft.asarray(x), weft.asarray(w))
    through = weft.grad(lambda x, w: mapped(x, w).sum(), argnums=(0, 1))(weft.asarray(x), weft.asarray(w))
    for n, axis in enumerate(axes):
        expected = stacked(lambda *a, n=n: back(*a)[n], *given)
        np.testing.assert_allclose(slopes[n].numpy(), expected, rtol=1e-4, atol=1e-4)
        summed = expected if axis == 0 else expected.sum(0)
        np.testing.assert_allclose(through[n].numpy(), summed, rtol=1e-4, atol=1e-4)


def gcd(a: Any, b: Any) -> Any:
    def step(s: Any) -> Any:
        return [s[1], weft.while_loop(lambda r: r >= s[1], lambda r: r - s[1], s[0])]  # without end if s[1] is 0

    return weft.while_loop(lambda s: s[1] > 0, step, [a, b])[0]


TABLE = weft.asarray([1.0, 2.0, 3.0, 4.0, 5.0])
KEPT_FROM: dict[str, tuple[Any, list[Any]]] = {
    "an index that does not exist": (lambda i: weft.cond(i < 5, lambda i: TABLE[i], lambda i: weft.asarray(0.0), i), [[1, 7, 4]]),
    "a division by 0": (lambda n: weft.cond(n != 0, lambda n: 10 // n, lambda n: n, n), [[0, 3, 5]]),
    "an index behind the end of a loop": (
        lambda k: weft.while_loop(lambda s: s[0] < 5, lambda s: [s[0] + k, s[1] + TABLE[s[0]]], [weft.asarray(0), weft.asarray(0.0)])[1],
        [[1, 2, 5]],
    ),
    "a loop without end": (
        lambda x: weft.cond(x > 0, lambda x: weft.while_loop(lambda y: y < 100, lambda y: y * 2, x), lambda x: x, x), [[1.0, -1.0, 3.0]],
    ),
    "a loop without end in a loop": (gcd, [[12, 7, 100], [18, 3, 75]]),
    "a branch that nobody takes": (lambda i: weft.cond(i < 5, lambda i: TABLE[i], lambda i: TABLE[i - 5], i), [[1, 0, 4]]),
}  # fmt: skip


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "jit"])
@pytest.mark.parametrize("name", KEPT_FROM)
def test_examples_are_kept_from_what_they_do_not_choose(name: str, compiled: bool) -> None:
    f, values = KEPT_FROM[name]
    mapped = weft.jit(weft.vmap(f)) if compiled else weft.vmap(f)
    found = mapped(*map(weft.asarray, values))
    np.testing.assert_allclose(found.numpy(), stacked(f, *(list(map(weft.asarray, v)) for v in values)))


BRANCHES = {
    "log": lambda x: weft.log(x).sum(),
    "sqrt": lambda x: weft.sqrt(x).sum(),
    "reciprocal": lambda x: (1.0 / x) @ x,
    "scan": lambda x: weft.scan(lambda c, v: (c + weft.log(v), None), weft.asarray(0.0), x)[0],
}


@pytest.mark.parametrize("name", BRANCHES)
def test_a_branch_not_taken_has_no_influence_on_derivatives(name: str) -> None:
    w = weft.asarray(2.0)

    def f(x: weft.Tensor, w: weft.Tensor) -> weft.Tensor:
        return weft.cond(x.sum() > 0, lambda x: BRANCHES[name](x) * w, lambda x: x.sum() * 2.0, x)

    x = weft.asarray([[-1.0, -2.0], [0.0, 0.0], [4.0, 1.0]])
    by_x, by_w = weft.grad(lambda x, w: weft.vmap(f, in_axes=(0, None))(x, w).sum(), argnums=(0, 1))(x, w)
    back = weft.grad(f, argnums=(0, 1))
    np.testing.assert_allclose(by_x.numpy(), stacked(lambda x: back(x, w)[0], list(x)), rtol=1e-6)
    np.testing.assert_allclose(by_w.numpy(), stacked(lambda x: back(x, w)[1], list(x)).sum(), rtol=1e-6)
    again = weft.hessian(lambda x: weft.vmap(f, in_axes=(0, None))(x, w).sum())(x)
    assert np.isfinite(again.numpy()).all()


# --- random numbers ------------------------------------------------------------------------------------------------------------------------


def test_each_example_draws_numbers_of_its_own() -> None:
    weft.seed(5)
    noise = weft.vmap(lambda x: (x + weft.random.uniform((7,)), weft.random.uniform((5,))))
    first, second = noise(weft.zeros((100, 1)))
    third, _ = noise(weft.zeros((100, 1)))
    drawn = np.concatenate([first.numpy().ravel(), second.numpy().ravel(), third.numpy().ravel()])
    assert len(np.unique(drawn)) > len(drawn) - 3  # two of 24 bits may meet by chance
    assert abs(drawn.mean() - 0.5) < 0.03
    weft.seed(5)
    again, _ = noise(weft.zeros((100, 1)))
    np.testing.assert_array_equal(again.numpy(), first.numpy())
    weft.seed(5)
    compiled, _ = weft.jit(noise)(weft.zeros((100, 1)))
    np.testing.assert_array_equal(compiled.numpy(), first.numpy())


def test_streams_are_told_apart_by_their_positions() -> None:
    """Not by their keys: those of two streams may be equal, and a key may be computed while the function is traced."""
    late = weft.random.Generator(1).fork()

    def looks(x: weft.Tensor) -> weft.Tensor:
        drawn = late.uniform((2,))
        late.key.item()
        return drawn + x

    assert len(np.unique(weft.vmap(looks)(weft.zeros(4)).numpy())) == 8
    first, second = weft.random.Generator(7), weft.random.Generator(7)
    expected = weft.random.Generator(7).uniform((600,)).numpy()
    first.uniform((40,)).numpy()  # ten blocks on
    a, b = weft.vmap(lambda x: (first.uniform((4,)), second.uniform((4,))))(weft.zeros(3))
    np.testing.assert_array_equal(a.numpy().ravel(), expected[40:52])
    np.testing.assert_array_equal(b.numpy().ravel(), expected[:12])
    np.testing.assert_array_equal(first.uniform((4,)).numpy(), expected[52:56])
    own = weft.vmap(lambda x: weft.random.Generator(5).uniform((2,)) + 0.0 * weft.random.uniform((2,)) + x)(
        weft.zeros((3, 1))
    )
    assert len(np.unique(own.numpy(), axis=0)) == 1  # a stream that each example begins anew


def test_draws_in_loops_are_refused() -> None:
    noisy = weft.checkpoint(lambda x: x * weft.random.uniform(()))
    for f in (noisy, lambda x: x + noisy(weft.ones(()))):
        with pytest.raises(weft.UserError, match="draws random numbers inside scan, cond, while_loop or checkpoint"):
            weft.vmap(f)(weft.ones(3))


# --- matrices of derivatives ------------------------------------------------------------------------------------------------------------------


def test_jacobians() -> None:
    x, m = weft.asarray(floats(3)), weft.asarray(floats(2, 3, seed=1))
    np.testing.assert_allclose(weft.jacobian(lambda x: m @ x)(x).numpy(), m.numpy(), rtol=1e-6)
    by_x, by_m = weft.jacobian(lambda x, m: weft.tanh(m @ x), argnums=(0, 1))(x, m)
    slope = 1 - np.tanh(m.numpy() @ x.numpy()) ** 2
    np.testing.assert_allclose(by_x.numpy(), slope[:, None] * m.numpy(), rtol=1e-5)
    np.testing.assert_allclose(
        by_m.numpy(), np.eye(2)[:, :, None] * (slope[:, None] * x.numpy())[:, None], rtol=1e-5, atol=1e-7
    )
    both = weft.jit(weft.jacobian(lambda x: {"sum": x.sum(), "square": x * x}))(x)
    assert both["sum"].tolist() == [1.0, 1.0, 1.0]
    np.testing.assert_allclose(both["square"].numpy(), np.diag(2 * x.numpy()), rtol=1e-6)
    parts = weft.jacobian(lambda d: d["a"] * d["b"])({"a": x, "b": x + 1.0})
    np.testing.assert_allclose(parts["b"].numpy(), np.diag(x.numpy()), rtol=1e-6)


ARGUMENTS: dict[str, tuple[Any, str]] = {
    "too far": (lambda x: weft.jacobian(lambda a: a, argnums=3)(x), r"\[jacobian\] argument 3 was asked for, but 1 were given"),
    "by name": (lambda x: weft.jacobian(lambda a: a)(a=x), r"\[jacobian\] argument 0 was asked for, but 0 were given by position"),
    "a name": (lambda x: weft.jacobian(lambda a: a, argnums="a")(x), r"\[jacobian\] argument 'a' was asked for"),
    "twice": (lambda x: weft.jacobian(lambda a: a, argnums=(0, -1))(x), r"\[jacobian\] each argument can be asked for once"),
    "whole numbers": (lambda x: weft.jacobian(lambda a: a)(weft.asarray([1])), r"\[jacobian\] argument 0 holds int64 values"),
}  # fmt: skip


@pytest.mark.parametrize("call", ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments_of_jacobians(call: Any) -> None:
    make, text = call
    with pytest.raises(weft.UserError, match=text):
        make(weft.ones(2))


def test_hessians() -> None:
    x = weft.asarray(floats(4))
    a = floats(4, 4, seed=1)
    found = weft.jit(weft.hessian(lambda x: x @ weft.asarray(a) @ x + (x**3).sum()))(x)
    np.testing.assert_allclose(found.numpy(), a + a.T + np.diag(6 * x.numpy()), rtol=1e-5, atol=1e-6)
    mixed = weft.hessian(lambda x, y: (x * y).sum() ** 2, argnums=(0, 1))(x, x)
    np.testing.assert_allclose(mixed[0][1].numpy(), mixed[1][0].numpy().T, rtol=1e-5, atol=1e-6)
