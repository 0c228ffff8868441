"""Mixed precision: what the pass does to graphs, how close training stays to float32, and that the loss scale skips bad steps."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft.compiler.cpu.backend import compiled
from weft.compiler.gpu.program import gpu_program
from weft.compiler.passes.precision import handed_on, precision, widened_copies
from weft.compiler.passes.simplify import simplify
from weft.compiler.thresholds import thresholds
from weft.dtypes import DType, bfloat16, float16, float32, float64
from weft.graph import Graph, Node, Type, check
from weft.graph.text import subgraphs
from weft.options import CompileOptions
from weft.runtime.native import NativeExecutable
from weft.runtime.reference import interpret
from weft.testing import close
from weft.tracing.jit import Jit
from weft.tracing.trace import make_graph

HALVES = pytest.mark.parametrize("half", [bfloat16, float16], ids=lambda d: d.name)


def square(n: int = 4, dtype: DType = float32) -> Type:
    return Type((n, n), dtype)


def narrowed(f: Callable[..., Any], *types: Type, half: DType = bfloat16) -> Graph:
    return check(precision(simplify(make_graph(f, *types)), half))


def expected(f: Callable[..., Any], *types: Type) -> Graph:
    return simplify(make_graph(f, *types))


def half(x: Any) -> Any:
    return x.astype(bfloat16)


def full(x: Any) -> Any:
    return x.astype(float32)


def floats(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return (scale * np.random.default_rng(seed).normal(size=shape)).astype("float32")


def found(graph: Graph, *names: str) -> list[Node]:
    return [n for n in graph.nodes if n.op.name in names]


# --- the pass: before and after ------------------------------------------------------------------------------------------------


def test_products_are_narrow_and_what_feeds_them_is_kept_narrow() -> None:
    def before(x: Any, w: Any, v: Any) -> Any:
        h = weft.tanh(x @ w)
        return weft.sin(h @ v) @ v, weft.exp(h)

    def after(x: Any, w: Any, v: Any) -> Any:
        h = half(weft.tanh(full(half(x) @ half(w))))
        y = half(weft.sin(full(h @ half(v))))
        return full(y) @ full(half(v)), weft.exp(
            full(h)
        )  # nothing depends on the last product: it gives its float32 sums

    assert narrowed(before, square(), square(), square()) == expected(after, square(), square(), square())


def test_a_product_of_a_product_has_no_cast_between() -> None:
    def before(x: Any, w: Any) -> Any:
        return (x @ w) @ w @ w

    def after(x: Any, w: Any) -> Any:
        x, w = half(x), half(w)
        return full((x @ w) @ w) @ full(w)

    assert narrowed(before, square(), square()) == expected(after, square(), square())


def test_what_comes_from_outside_stays_as_it_is() -> None:
    def before(x: Any, w: Any) -> Any:
        return x @ w.T, w - 0.5 * x, x * 2.0 + weft.ones(4)

    def after(x: Any, w: Any) -> Any:
        return full(half(x)) @ full(half(w).T), w - 0.5 * x, x * 2.0 + weft.ones(4)

    graph = narrowed(before, square(), square())
    assert graph.outputs[1:] == expected(before, square(), square()).outputs[1:]
    close_to = [
        np.asarray(o) for o in interpret(expected(after, square(), square()))(floats(4, 4), floats(4, 4, seed=1))
    ]
    assert all(map(np.array_equal, interpret(graph)(floats(4, 4), floats(4, 4, seed=1)), close_to))


def test_the_cast_goes_below_movement() -> None:
    def before(x: Any, w: Any) -> Any:
        h = weft.tanh(x)
        return h.reshape(2, 8).T @ w @ w, h + 1.0

    def after(x: Any, w: Any) -> Any:
        h, w = half(weft.tanh(x)), half(w)
        return full(h.reshape(2, 8).T @ w) @ full(w), full(h) + 1.0

    assert narrowed(before, square(), Type((2, 2), float32)) == expected(after, square(), Type((2, 2), float32))


def test_pooling_reads_what_is_kept() -> None:
    """The tensor before max pooling is the largest one; it is kept for the derivative."""

    def f(x: Any, w: Any, v: Any) -> Any:
        loss = lambda x, w, v: weft.conv(weft.max_pool(weft.tanh(weft.conv(x, w)), 2), v).sum()  # noqa: E731
        return weft.grad(loss, argnums=(0, 1, 2))(x, w, v)

    graph = narrowed(f, Type((2, 1, 9, 9), float32), Type((3, 1, 2, 2), float32), Type((2, 3, 2, 2), float32))
    windows = found(graph, "window_max", "window_tap")
    assert {n.op.name for n in windows} == {"window_max", "window_tap"}
    assert all(n.inputs[0].dtype is bfloat16 for n in windows)


def test_convolutions_and_their_gradients() -> None:
    def f(x: Any, w: Any, v: Any) -> Any:
        loss = lambda x, w, v: weft.tanh(weft.conv(weft.tanh(weft.conv(x, w)), v)).sum()  # noqa: E731
        return weft.grad(loss, argnums=(1, 2))(x, w, v)

    graph = narrowed(f, Type((2, 3, 8), float32), Type((4, 3, 3), float32), Type((5, 4, 3), float32))
    assert [n.dtype for n in found(graph, "conv", "conv_data")] == [bfloat16] * 3
    filters = found(graph, "conv_filter")
    assert [n.dtype for n in filters] == [float32] * 2
    assert all(i.op.name == "cast" and i.inputs[0].dtype is bfloat16 for n in filters for i in n.inputs)


def test_other_types_are_left_alone() -> None:
    def f(x: Any, n: Any, h: Any) -> Any:
        return x @ x, n @ n, h @ h, weft.exp(x)

    types = square(dtype=float64), square(dtype=weft.int32), square(dtype=float16)
    assert narrowed(f, *types) == expected(f, *types)


def test_a_user_s_own_rounding_stays() -> None:
    def f(x: Any) -> Any:
        return full(half(x)) * 2.0

    assert narrowed(f, square()) == make_graph(f, square())
    value = np.float32(1.001)
    assert weft.jit(f)(weft.asarray(np.full((4, 4), value))).numpy()[0, 0] == 2.0


def test_bodies_are_entered() -> None:
    def f(x: Any, w: Any) -> Any:
        def step(h: Any, _: Any) -> Any:
            return weft.tanh(weft.tanh(h @ w) @ w), None

        return weft.scan(step, x, length=3)[0] + weft.cond(x.sum() > 0.0, lambda: x @ w @ w, lambda: x)

    graph = narrowed(f, square(), square())
    bodies = [b for b in subgraphs(graph) if found(b, "contract")]
    assert len(bodies) == 2
    for body in bodies:
        first, last = found(body, "contract")
        assert (first.dtype, last.dtype) == (bfloat16, float32)
        assert all(i.op.name == "cast" for i in last.inputs)


@HALVES
def test_a_second_time_changes_nothing(half: DType) -> None:
    net, parameters = mlp(64, 32, 10)
    graph = precision(simplify(derivatives(net, parameters, *(t.numpy() for t in batch(8)))), half)
    assert precision(graph, half) == graph
    assert precision(simplify(graph), half) == simplify(graph)


def test_only_16_bits_are_narrow() -> None:
    with pytest.raises(weft.UserError, match=r"\[precision\] float16 or bfloat16 is required, got float64"):
        precision(make_graph(weft.exp, square()), float64)
    with pytest.raises(weft.UserError, match=r"\[jit\] the precision must be float16, bfloat16 or float32, got int8"):
        weft.jit(weft.exp, precision="int8")
    x = weft.asarray(floats(4, 4))
    assert np.array_equal(
        weft.jit(lambda x: x @ x, precision="float32")(x).numpy(), weft.jit(lambda x: x @ x)(x).numpy()
    )


def test_each_convolution_has_a_copy_of_its_own() -> None:
    """In 16 bits what forward and backward both read is kept; in float32 it lives for one kernel."""

    def f(x: Any, w: Any) -> Any:
        h = half(weft.tanh(x))
        return weft.conv(h, half(w)), weft.conv(h, half(w), stride=2)

    types = Type((1, 2, 6), float32), Type((3, 2, 2), float32)
    graph = weft.compiler.cpu.backend.passes(make_graph(f, *types))["layout"]
    first, second = found(check(widened_copies(graph)), "conv_last")
    assert set(first.inputs).isdisjoint(second.inputs)
    assert set(first.inputs) & set(found(graph, "conv_last")[0].inputs) == set()
    arrays = floats(1, 2, 6), floats(3, 2, 2, seed=1)
    assert all(map(np.array_equal, interpret(graph)(*arrays), interpret(widened_copies(graph))(*arrays)))


# --- training ------------------------------------------------------------------------------------------------------------------

Net = Callable[..., Any]  # (x, *parameters) -> scores
Start = tuple[Net, list[np.ndarray]]


def mlp(*widths: int) -> Start:
    pairs = list(itertools.pairwise(widths))
    weights = [floats(a, b, seed=a + b, scale=(2 / a) ** 0.5) for a, b in pairs]

    def net(x: Any, *parameters: Any) -> Any:
        *inner, last = zip(parameters[: len(pairs)], parameters[len(pairs) :], strict=True)
        for w, b in inner:
            x = weft.relu(x @ w + b)
        return x @ last[0] + last[1]

    return net, [*weights, *(np.zeros(b, "float32") for _, b in pairs)]


def cnn() -> Start:
    def net(x: Any, w: Any, v: Any, u: Any) -> Any:
        x = weft.max_pool(weft.relu(weft.conv(x.reshape(-1, 1, 8, 8), w, padding=1)), 2)
        x = weft.relu(weft.conv(x, v, padding=1))
        return weft.max_pool(x - x.mean(axis=(0, 2, 3), keepdims=True), 2).flatten(1) @ u

    shapes = (6, 1, 3, 3), (8, 6, 3, 3), (32, 10)
    return net, [floats(*shape, seed=7, scale=scale) for shape, scale in zip(shapes, (0.5, 0.2, 0.2), strict=True)]


def rnn() -> Start:
    def net(x: Any, w: Any, u: Any, v: Any) -> Any:
        steps = x.reshape(-1, 8, 8).permute(1, 0, 2)
        start = weft.zeros((x.shape[0], 24))
        return weft.scan(lambda h, row: (weft.tanh(row @ w + h @ u), None), start, steps)[0] @ v

    return net, [floats(a, b, seed=a, scale=a**-0.5) for a, b in ((8, 24), (24, 24), (24, 10))]


NETS = pytest.mark.parametrize("make", [lambda: mlp(64, 48, 32, 10), cnn, rnn], ids=["mlp", "cnn", "rnn"])


def batch(n: int = 64) -> tuple[weft.Tensor, weft.Tensor]:
    labels = np.random.default_rng(0).integers(0, 10, n)
    return weft.asarray(floats(10, 64)[labels] + floats(n, 64, seed=1)), weft.asarray(labels)


def trainer(start: Start, dtype: DType | None, scale: weft.LossScale | None) -> tuple[Jit, list[weft.Tensor]]:
    """A training step with momentum, and its state."""
    net, values = start
    parameters, moments = [weft.parameter(v) for v in values], [weft.zeros(v.shape) for v in values]

    @weft.jit(precision=dtype)
    def step(x: Any, y: Any) -> Any:
        loss = weft.cross_entropy(net(x, *parameters), y)
        gradients, finite = (
            (weft.gradients(loss, parameters), None) if scale is None else scale.gradients(loss, parameters)
        )
        for p, m, g in zip(parameters, moments, gradients, strict=True):
            for tensor, new in ((m, 0.8 * m + g), (p, p - 0.05 * (0.8 * m + g))):
                if scale is None:
                    tensor.assign(new)
                else:
                    scale.step(finite, tensor, new)
        return loss

    return step, [*parameters, *moments]


@pytest.mark.sweep(share=1.0)
@NETS
def test_training_comes_close_to_float32(make: Callable[[], Start]) -> None:
    curves = {}
    for dtype in (None, bfloat16, float16):
        step, _ = trainer(make(), dtype, weft.LossScale() if dtype is float16 else None)
        curves[dtype] = np.array([step(*batch()).item() for _ in range(12)])
    assert curves[None][-1] < 0.6 * curves[None][0]
    for dtype, tolerance in ((bfloat16, 0.03), (float16, 0.01)):
        np.testing.assert_allclose(curves[dtype], curves[None], rtol=tolerance, atol=tolerance)
        assert not np.array_equal(curves[dtype], curves[None])


def derivatives(net: Net, parameters: list[np.ndarray], x: np.ndarray, y: np.ndarray) -> Graph:
    """(x, y, *parameters) -> the loss and its gradients, as a graph."""

    def f(x: Any, y: Any, *parameters: Any) -> Any:
        loss = lambda *p: weft.cross_entropy(net(x, *p), y)  # noqa: E731
        return weft.value_and_grad(loss, argnums=range(len(parameters)))(*parameters)

    return make_graph(f, *(Type(a.shape, weft.asarray(a).dtype) for a in (x, y, *parameters)))


@NETS
def test_the_compiled_step_agrees_with_the_definition(make: Callable[[], Start]) -> None:
    net, parameters = make()
    arrays = [*(t.numpy() for t in batch(8)), *parameters]
    graph = derivatives(net, parameters, *arrays[:2])
    results = [np.empty(o.shape, o.dtype.numpy) for o in graph.outputs]
    for narrow in (bfloat16, float16):
        NativeExecutable(graph, {}, CompileOptions.current("cpu", threads=2, precision=narrow and narrow.name)).run(
            [a.ctypes.data for a in (*arrays, *results)]
        )
        for actual, wanted in zip(results, interpret(precision(simplify(graph), narrow))(*arrays), strict=True):
            close(actual, wanted, narrow)


def test_programs_of_two_precisions_are_two_programs() -> None:
    """Also on disk, where the second one would be found if its key did not hold the precision."""
    x, w = weft.asarray(floats(5, 7)), weft.asarray(floats(7, 3, seed=1))
    results = [weft.jit(lambda x, w: x @ w, precision=p)(x, w).numpy() for p in (None, "bfloat16", "float16")]
    assert not np.array_equal(results[0], results[1])
    assert not np.array_equal(results[1], results[2])
    close(results[1], results[0], bfloat16)
    close(results[2], results[0], float16)


# --- memory --------------------------------------------------------------------------------------------------------------------


def deep_cnn() -> Start:
    def net(x: Any, *filters: Any) -> Any:
        x = x.reshape(-1, 8, 16, 16)
        for w in filters:
            x = weft.conv(x, w, padding=1)
            x = weft.relu((x - x.mean(axis=(0, 2, 3), keepdims=True)) / (x.std(axis=(0, 2, 3), keepdims=True) + 0.1))
        return x.mean(axis=(2, 3))

    return net, [floats(8, 8, 3, 3, seed=i, scale=0.2) for i in range(10)]


@pytest.mark.parametrize(
    ("make", "shape"), [(lambda: mlp(*[32] * 12), (1024, 32)), (deep_cnn, (8, 2048))], ids=["products", "convolutions"]
)
def test_the_arena_of_a_deep_network_is_smaller(make: Callable[[], Start], shape: tuple[int, int]) -> None:
    net, parameters = make()
    graph = derivatives(net, parameters, floats(*shape), np.arange(shape[0]) % 8)
    wide, narrow = (compiled(graph, {}, CompileOptions("cpu", d, threads=2)).memory.arena for d in (None, "bfloat16"))
    assert narrow < 0.75 * wide  # what a kernel needs while it runs stays as it is


# --- the loss scale ------------------------------------------------------------------------------------------------------------


def test_small_gradients_survive_in_float16() -> None:
    def gradient(scale: weft.LossScale) -> Any:
        w, v = weft.parameter(floats(4, 4)), weft.parameter(floats(4, 4, seed=1))
        x = weft.asarray(floats(4, 4, seed=2))
        step = weft.jit(lambda x: scale.gradients((x @ w @ v).sum() * 1e-8, [w])[0][0], precision="float16")
        return step(x).numpy(), weft.gradients((x @ w @ v).sum() * 1e-8, [w])[0].numpy()

    lost, _ = gradient(weft.LossScale(start=1.0))
    assert not lost.any()
    kept, exact = gradient(weft.LossScale())
    np.testing.assert_allclose(kept, exact, rtol=1e-2, atol=1e-2 * np.abs(exact).max())


@HALVES
def test_an_overflow_skips_the_step_and_halves_the_scale(half: DType) -> None:
    scale = weft.LossScale()
    step, state = trainer(mlp(64, 32, 10), half, scale)
    x, y = batch()
    step(x, y)
    before = [t.numpy().tobytes() for t in state]
    step(x * 1e38, y)
    assert [t.numpy().tobytes() for t in state] == before
    assert (scale.scale.item(), scale.good_steps.item()) == (2.0**14, 0)
    step(x, y)
    assert all(t.numpy().tobytes() != b for t, b in zip(state, before, strict=True))
    assert (scale.scale.item(), scale.good_steps.item()) == (2.0**14, 1)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("compile", [True, False], ids=["jit", "plain"])
def test_one_bad_gradient_of_many_is_enough(bad: float, compile: bool) -> None:
    a, b, scale = weft.parameter(floats(3)), weft.parameter(floats(5)), weft.LossScale(start=8.0)

    def step(x: Any) -> Any:
        gradients, finite = scale.gradients((a.sum() + (b * x).sum()), [a, b])
        for p, g in zip([a, b], gradients, strict=True):
            scale.step(finite, p, p - g)
        return finite

    run = weft.jit(step) if compile else step
    x = floats(5)
    assert run(weft.asarray(x)).item() is True
    before = a.numpy().tobytes(), b.numpy().tobytes()
    x[3] = bad
    assert run(weft.asarray(x)).item() is False
    assert (a.numpy().tobytes(), b.numpy().tobytes()) == before
    assert scale.scale.item() == 4.0


def test_the_scale_grows_after_good_steps_in_a_row() -> None:
    w, scale = weft.parameter([1.0]), weft.LossScale(start=4.0, grow_after=3)

    @weft.jit(precision="float16")
    def step(x: Any) -> Any:
        [g], finite = scale.gradients((w * x).sum(), [w])
        scale.step(finite, w, w - g)

    good, bad = weft.asarray([1.0]), weft.asarray([float("inf")])
    seen = []
    for x in (good, good, bad, good, good, good, good, good, good):
        step(x)
        seen.append((scale.scale.item(), scale.good_steps.item()))
    assert seen == [(4, 1), (4, 2), (2, 0), (2, 1), (2, 2), (4, 0), (4, 1), (4, 2), (8, 0)]
    assert w.item() == 1.0 - 8.0


def test_the_scale_stays_within_bounds() -> None:
    def after(x: float, start: float) -> float:
        w, scale = weft.parameter([1.0]), weft.LossScale(start=start, grow_after=1)
        for _ in range(3):
            scale.gradients((w * x).sum(), [w])
        return scale.scale.item()

    assert after(float("nan"), 2.0) == 1.0
    assert after(1.0, 2.0**23) == 2.0**24


def test_the_gradients_are_those_of_the_loss() -> None:
    """Scaled by a power of two and back they are the same to the bit."""
    net, values = mlp(64, 10)
    parameters = [weft.parameter(v) for v in values]
    x, y = batch()
    plain = weft.jit(lambda x, y: weft.gradients(weft.cross_entropy(net(x, *parameters), y), parameters))(x, y)
    scale = weft.LossScale()
    scaled = weft.jit(lambda x, y: scale.gradients(weft.cross_entropy(net(x, *parameters), y), parameters)[0])(x, y)
    assert all(np.array_equal(a.numpy(), b.numpy()) for a, b in zip(plain, scaled, strict=True))


def test_wrong_settings() -> None:
    for start in (0.5, float("inf"), float("nan"), 2.0**25):
        with pytest.raises(weft.UserError, match=r"\[LossScale\] a start from 1 to 1.67772e\+07 is required, got "):
            weft.LossScale(start=start)
    with pytest.raises(weft.UserError, match=r"\[LossScale\] the scale can grow after 1 good step or more"):
        weft.LossScale(grow_after=0)


@pytest.mark.parametrize("moved", [lambda y: y, lambda y: y.T.reshape(2, 8)[:, :5], lambda y: y[1:]])
def test_a_last_product_that_the_graph_narrows_returns_16_bits(moved: Callable[[Any], Any]) -> None:
    """The logits of a model that gives them in 16 bits: no copy in float32 is written for them."""
    now = narrowed(lambda x, w: half(moved(x @ w)), square(), square())
    [product] = found(now, "contract")
    assert product.dtype is bfloat16
    for other in (
        lambda x, w: (half(x @ w), x @ w),
        lambda x, w: half(weft.exp(x @ w)),
        lambda x, w: (x @ w).astype(float16),
    ):
        [product] = found(narrowed(other, square(), square()), "contract")
        assert product.dtype is float32


# --- what kernels hand on ------------------------------------------------------------------------------------------------------

SIZE = 128  # its square is just large enough


def handed(f: Callable[..., Any], names: str, *types: Type) -> tuple[Graph, Graph]:
    """The graph, and what it is when ops of these names are written to memory."""
    graph = simplify(make_graph(f, *types))
    return graph, check(handed_on(graph, found(graph, *names.split()), bfloat16))


def test_what_is_handed_on_to_a_product_is_narrow() -> None:
    def before(x: Any, w: Any) -> Any:
        h = weft.sin(x)
        return (weft.cos(h) * h) @ w

    def after(x: Any, w: Any) -> Any:
        h = full(half(weft.sin(x)))
        return (weft.cos(h) * h) @ w

    types = square(SIZE), square(SIZE)
    _, now = handed(before, "sin", *types)
    assert now == expected(after, *types)
    everything, now = handed(before, "placeholder sin cos mul contract", *types)
    assert len(found(now, "cast")) == 6  # both of each of the three
    assert now != everything


def test_one_narrow_value_is_made_of_another() -> None:
    def before(x: Any, w: Any) -> Any:
        return weft.tanh(weft.sin(x).T) @ w

    def after(x: Any, w: Any) -> Any:
        return full(half(weft.tanh(full(half(weft.sin(x))).T))) @ w

    types = square(SIZE), square(SIZE)
    assert handed(before, "sin tanh", *types)[1] == expected(after, *types)


HANDED_WIDE: dict[str, tuple[Callable[..., Any], str, int, DType]] = {
    "what is small": (lambda x, w: weft.sin(x) @ w, "sin", SIZE - 1, float32),
    "a result of the program": (lambda x, w: (weft.sin(x), weft.sin(x) @ w), "sin", SIZE, float32),
    "what is no float32": (lambda x, w: weft.sin(x) @ w, "sin", SIZE, float64),
    "a product itself": (lambda x, w: (x @ w) @ w, "contract", SIZE, float32),
    "sums": (lambda x, w: (weft.broadcast_to(x, (2, SIZE, SIZE)).sum(axis=0)) @ w, "sum", SIZE, float32),
    "what is given": (lambda x, w: x @ w, "placeholder", SIZE, float32),
    "what is made of the last product": (lambda x, w: weft.exp(weft.tanh(x @ w)), "tanh", SIZE, float32),
    "the update of a weight": (lambda x, w: (w - 0.1 * (weft.sin(x) @ w)).T * 2.0, "sub permute mul", SIZE, float32),
    "a mixture of the last product and another value": (
        lambda x, w: (weft.exp((x @ w) * weft.sin(x))).sum(axis=0),
        "mul exp",
        SIZE,
        float32,
    ),
    "what was narrow before": (lambda x, w: weft.sin(full(half(x))) @ w, "cast", SIZE, float32),
}


@pytest.mark.parametrize("name", HANDED_WIDE)
def test_these_stay_wide(name: str) -> None:
    f, written, size, dtype = HANDED_WIDE[name]
    graph = simplify(make_graph(f, square(size, dtype), square(size, dtype)))
    chosen = found(graph, *written.split())
    assert chosen
    assert handed_on(graph, chosen, bfloat16) is graph


def test_it_is_done_once() -> None:
    graph, now = handed(lambda x, w: weft.tanh(weft.sin(x)) @ w, "sin tanh", square(SIZE), square(SIZE))
    assert now != graph
    assert handed_on(now, found(now, "cast"), bfloat16) is now


def residual(x: Any, w: Any, v: Any) -> Any:
    """A residual block with a normalisation that is differentiated, and pooling with windows that overlap."""
    y = weft.conv(x, w, padding=1)
    y = weft.relu((y - y.mean(axis=(0, 2, 3), keepdims=True)) / (y.std(axis=(0, 2, 3), keepdims=True) + 0.1)) + x
    return (weft.avg_pool(weft.conv(y, v) * 0.5, 3, stride=1) ** 2).sum() + (weft.avg_pool(y, 3, stride=2) ** 2).mean()


def test_numbers_of_a_step_that_hands_on_narrow_values() -> None:
    """They are not much further from those in float64 than with products alone in 16 bits; gradients of weights are float32."""
    pytest.importorskip("triton")
    from triton_runner import run_program

    arrays = [floats(2, 4, 5, 5), floats(4, 4, 3, 3, seed=1, scale=0.3), floats(4, 4, 2, 2, seed=2, scale=0.3)]
    f = weft.grad(residual, argnums=(0, 1, 2))
    graph = make_graph(f, *(Type(a.shape, float32) for a in arrays))
    with weft.knobs.set(device="reference"):
        exact = [g.numpy() for g in f(*(weft.asarray(a.astype(np.float64)) for a in arrays))]
    errors, narrow = [], []
    for large in (1 << 30, 64):
        with thresholds.set(handed_on_elements=large):
            program = gpu_program(graph, {}, CompileOptions("cuda", "bfloat16"))
        results = run_program(program, arrays)
        assert [r.dtype for r in results] == [np.float32] * 3
        errors.append([np.abs(r - e).max() / np.abs(e).max() for r, e in zip(results, exact, strict=True)])
        narrow.append(sum(n.dtype is bfloat16 for k in program.kernels for n in k.outputs))
    assert narrow[1] > narrow[0]
    assert max(map(max, errors)) < 0.05
    assert 0 < max(errors[1]) < 4 * max(errors[0]) + 0.01
