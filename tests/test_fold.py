"""Checks the pass fold: scales and shifts of channels after a convolution go into its filter, but only where that changes nothing."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from test_simplify import assert_same_values, graph, names
from weft import nn, zoo
from weft.compiler.passes.fold import fold
from weft.compiler.passes.simplify import simplify
from weft.graph import Graph, Node, Type, make
from weft.runtime.reference import interpret
from weft.testing import close, counted, generator

F = Callable[..., Any]
IMAGE, FILTER, CHANNELS = (Type(s, weft.float32) for s in ((4, 3, 5, 6), (4, 3, 3, 3), (4,)))
OUTPUT = (4, 4, 3, 4)  # as many samples as filters: they must not be mistaken for each other


def wide(v: Any) -> Any:
    """One number a channel, beside an image."""
    return v.reshape(4, 1, 1)


def scaled(w: Any, s: Any) -> Any:
    """A filter times one number for each of its filters."""
    return w * s.reshape(4, 1, 1, 1)


def folded(f: F, *types: Type) -> tuple[Graph, Graph]:
    before = simplify(graph(f, *types))
    return before, simplify(fold(before))


# --- before and after ---------------------------------------------------------------------------------------------------------------

FOLDED: dict[str, tuple[F, F, int]] = {
    "a scale": (lambda x, w, a: weft.conv(x, w) * wide(a), lambda x, w, a: weft.conv(x, scaled(w, a)), 1),
    "a scale from the left": (lambda x, w, a: wide(a) * weft.conv(x, w), lambda x, w, a: weft.conv(x, scaled(w, a)), 1),
    "a divisor": (lambda x, w, a: weft.conv(x, w) / wide(a), lambda x, w, a: weft.conv(x, scaled(w, 1.0 / a)), 1),
    "two scales": (lambda x, w, a, b: weft.conv(x, w) * wide(a) * wide(b), lambda x, w, a, b: weft.conv(x, scaled(w, a * b)), 2),
    "a scale of rank 4": (lambda x, w, a: weft.conv(x, w) * a.reshape(1, 4, 1, 1), lambda x, w, a: weft.conv(x, scaled(w, a)), 1),
    "a scale, then a shift": (lambda x, w, a, b: weft.conv(x, w) * wide(a) + wide(b), lambda x, w, a, b: weft.conv(x, scaled(w, a)) + wide(b), 2),
    "a scale, then less": (lambda x, w, a, b: weft.conv(x, w) * wide(a) - wide(b), lambda x, w, a, b: weft.conv(x, scaled(w, a)) + wide(-b), 2),
    "a shift, then a scale": (
        lambda x, w, a, b: (wide(b) + weft.conv(x, w)) * wide(a), lambda x, w, a, b: weft.conv(x, scaled(w, a)) + wide(b * a), 2
    ),
    "a shift, then a divisor": (
        lambda x, w, a, b: (weft.conv(x, w) + wide(b)) / wide(a),
        lambda x, w, a, b: weft.conv(x, scaled(w, 1.0 / a)) + wide(b * (1.0 / a)), 2,
    ),
    "shifts before and after": (
        lambda x, w, a, b, c: ((weft.conv(x, w) - wide(b)) * wide(a)) + wide(c),
        lambda x, w, a, b, c: weft.conv(x, scaled(w, a)) + wide(-b * a + c), 3,
    ),
    "until something else follows": (
        lambda x, w, a, b: weft.tanh(weft.conv(x, w) * wide(a)) * wide(b),
        lambda x, w, a, b: weft.tanh(weft.conv(x, scaled(w, a))) * wide(b), 2,
    ),
    "until two use it": (
        lambda x, w, a, b: (lambda y: (weft.sin(y), y + wide(b)))(weft.conv(x, w) * wide(a)),
        lambda x, w, a, b: (lambda y: (weft.sin(y), y + wide(b)))(weft.conv(x, scaled(w, a))), 2,
    ),
    "until somebody wants to see it": (
        lambda x, w, a, b: (lambda y: (y, y + wide(b)))(weft.conv(x, w) * wide(a)),
        lambda x, w, a, b: (lambda y: (y, y + wide(b)))(weft.conv(x, scaled(w, a))), 2,
    ),
    "a scale that is computed from the image": (
        lambda x, w: weft.conv(x, w) * wide(x.sum(axis=(1, 2, 3))), lambda x, w: weft.conv(x, scaled(w, x.sum(axis=(1, 2, 3)))), 0
    ),
    "one convolution after the other": (
        lambda x, w, v, a, b: weft.conv(weft.relu(weft.conv(x, w) * wide(a)), v) * wide(b),
        lambda x, w, v, a, b: weft.conv(weft.relu(weft.conv(x, scaled(w, a))), scaled(v, b)), -1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLDED)
def test_folded(name: str) -> None:
    f, after, count = FOLDED[name]
    types = (IMAGE, FILTER, *(CHANNELS,) * count)
    if count < 0:
        types = (IMAGE, FILTER, Type((4, 4, 2, 2), weft.float32), CHANNELS, CHANNELS)
    before, found = folded(f, *types)
    expected = simplify(graph(after, *types))
    assert found == expected, f"{found.text()}\nexpected\n{expected.text()}"
    assert_same_values(before, found, tolerance=2e-5)


KEPT: dict[str, tuple[F, tuple[Type, ...]]] = {
    "nothing follows": (lambda x, w: weft.conv(x, w), ()),
    "a bias alone: there is nothing to put into the filter": (lambda x, w, a: weft.conv(x, w) + wide(a), (CHANNELS,)),
    "two users": (lambda x, w, a: weft.conv(x, w) * wide(a) + weft.conv(x, w), (CHANNELS,)),
    "twice by one user": (lambda x, w, a: weft.conv(x, w) * weft.conv(x, w) * wide(a), (CHANNELS,)),
    "the convolution is a result": (lambda x, w, a: (weft.conv(x, w), weft.conv(x, w) * wide(a)), (CHANNELS,)),
    "a shift is a result before the scale": (
        lambda x, w, a, b: (lambda y: (y, y * wide(a)))(weft.conv(x, w) + wide(b)),
        (CHANNELS, CHANNELS),
    ),
    "a scale computed from the result": (lambda x, w: (lambda y: y * wide(y.max(axis=(0, 2, 3))))(weft.conv(x, w)), ()),
    "one number a sample": (lambda x, w, a: weft.conv(x, w) * a.reshape(4, 1, 1, 1), (CHANNELS,)),
    "one number a column": (lambda x, w, a: weft.conv(x, w) * a, (CHANNELS,)),
    "one number a pixel": (lambda x, w, a: weft.conv(x, w) * a, (Type((3, 4), weft.float32),)),
    "one number a channel and sample": (
        lambda x, w, a: weft.conv(x, w) * a[:, :, None, None],
        (Type((4, 4), weft.float32),),
    ),
    "a whole image": (lambda x, w, a: weft.conv(x, w) * a, (Type(OUTPUT, weft.float32),)),
    "divided by it": (lambda x, w, a: wide(a) / weft.conv(x, w), (CHANNELS,)),
    "taken from a number": (lambda x, w, a, b: (wide(a) - weft.conv(x, w)) * wide(b), (CHANNELS, CHANNELS)),
    "an activation between": (lambda x, w, a: weft.tanh(weft.conv(x, w)) * wide(a), (CHANNELS,)),
    "a power": (lambda x, w, a: weft.conv(x, w) ** wide(a), (CHANNELS,)),
    "no convolution": (lambda x, w, a: weft.avg_pool(x, 2) * a[:3].reshape(3, 1, 1), (CHANNELS,)),
}


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    f, more = KEPT[name]
    before = simplify(graph(f, IMAGE, FILTER, *more))
    assert fold(before) == before


def test_whole_numbers_are_left_alone() -> None:
    kinds = (Type(t.shape, weft.int32) for t in (IMAGE, FILTER, CHANNELS))
    before = simplify(graph(lambda x, w, a: weft.conv(x, w) * wide(a), *kinds))
    assert fold(before) == before


def test_batch_norm_in_training_is_left_alone() -> None:
    """Mean and variance are those of the convolution's own result."""

    def f(x: Any, w: Any, a: Any, b: Any) -> Any:
        return weft.batch_norm(weft.conv(x, w), a, b).value

    before = simplify(graph(f, IMAGE, FILTER, CHANNELS, CHANNELS))
    assert fold(before) == before
    step = simplify(graph(weft.grad(lambda *p: f(*p).sum(), argnums=(1, 2, 3)), IMAGE, FILTER, CHANNELS, CHANNELS))
    assert fold(step) == step


def test_a_scale_that_takes_long_to_compute() -> None:
    """A scale cannot be computed from a convolution that nothing else reads, so it need not be looked at."""

    def f(x: Any, w: Any, a: Any) -> Any:
        for _ in range(200):
            a = weft.sin(a)
        return weft.conv(x, w) * wide(a)

    before, after = folded(f, IMAGE, FILTER, CHANNELS)
    assert after != before
    assert_same_values(before, after, tolerance=2e-5)


# How the axes of a filter (filters, channels, rows, columns) follow each other in memory.
ORDERS = [(0, 2, 3, 1), (2, 3, 1, 0), (3, 0, 2, 1), (1, 2, 0, 3)]


@pytest.mark.parametrize("order", ORDERS)
def test_a_filter_is_multiplied_as_it_lies_in_memory(order: tuple[int, ...]) -> None:
    """Below the permute that shows it in the usual order: so the product need not be transposed again."""
    shape = (4, 4, 2, 4)  # axes of one size: which of them the filters are is to be told by more than that
    lying = Type(tuple(shape[a] for a in order), weft.float32)
    usual = tuple(np.argsort(order).tolist())

    def f(x: Any, w: Any, a: Any, b: Any) -> Any:
        return weft.conv(x, weft.permute_dims(w, usual)) * wide(a) + wide(b)

    def wanted(x: Any, w: Any, a: Any, b: Any) -> Any:
        column = [1, 1, 1, 1]
        column[order.index(0)] = 4
        return weft.conv(x, weft.permute_dims(w * a.reshape(*column), usual)) + wide(b)

    types = (Type((3, 4, 5, 7), weft.float32), lying, CHANNELS, CHANNELS)
    before, found = folded(f, *types)
    expected = simplify(graph(wanted, *types))
    assert found == expected, f"{found.text()}\nexpected\n{expected.text()}"
    [conv] = [n for n in found.nodes if n.op.name == "conv"]
    assert conv.inputs[1].op.name == "permute"
    assert conv.inputs[1].inputs[0].op.name == "mul"
    assert_same_values(before, found, tolerance=2e-5)


def test_a_filter_that_is_permuted_twice() -> None:
    first, second = (1, 2, 0, 3), (3, 1, 0, 2)

    def f(x: Any, w: Any, a: Any) -> Any:
        return weft.conv(x, weft.permute_dims(weft.permute_dims(w, first), second)) * wide(a)

    before = graph(f, Type((3, 2, 5, 7), weft.float32), Type((3, 2, 2, 4), weft.float32), CHANNELS)
    after = fold(before)
    assert [n.op.name for n in after.nodes][-4:] == ["mul", "permute", "permute", "conv"]
    assert_same_values(before, after, tolerance=2e-5)


# --- numbers --------------------------------------------------------------------------------------------------------------------------


def statistics(model: nn.Module, rng: np.random.Generator) -> None:
    """Running statistics and parameters as of a network that was trained: each channel has its own."""
    for name, tensor in model.named_tensors().items():
        if tensor.dtype.is_float:
            low, high = (0.2, 4.0) if "var" in name or "scale" in name else (-1.0, 1.0)
            tensor.assign(weft.asarray(rng.uniform(low, high, tensor.shape), dtype=tensor.dtype))


def block(rank: int, groups: int, bias: bool) -> nn.Module:
    conv = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[rank]
    norm = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[rank]
    return nn.Sequential(
        conv(4, 6, 3, padding=1, stride=2, groups=groups, bias=bias), norm(6), nn.ReLU(),
        conv(6, 4, 2, padding=1, groups=groups, bias=not bias), norm(4),
    )  # fmt: skip


def eval_graph(model: nn.Module, x: np.ndarray) -> tuple[Graph, list[np.ndarray]]:
    """The graph of a model that is not trained, and its inputs."""
    made = weft.jit(model.__call__)._for((x,), {})
    return made.graph, [x, *(s.find().numpy() for s in made.states)]


def in_float64(graph: Graph) -> Graph:
    """The same computation with more digits."""
    done: dict[Node, Node] = {}
    for node in graph.nodes:
        params = tuple(_wide(p) for p in node.params)
        done[node] = make(node.op, tuple(done[i] for i in node.inputs), params)
    return Graph(tuple(done[i] for i in graph.inputs), tuple(done[o] for o in graph.outputs))


def _wide(param: Any) -> Any:
    if isinstance(param, Type) and param.dtype is weft.float32:
        return Type(param.shape, weft.float64)
    return weft.float64 if param is weft.float32 else param


def exactly(graph: Graph, arrays: list[np.ndarray]) -> np.ndarray:
    """Its result in float64."""
    [found] = interpret(in_float64(graph))(*(a.astype(np.float64) for a in arrays))
    assert found.dtype == np.float64
    return found


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("rank", "groups"), [(1, 1), (2, 1), (2, 2), (3, 1), (1, 2)])
def test_batch_norm_at_inference(rank: int, groups: int, bias: bool) -> None:
    rng = generator(f"{rank} {groups}")
    model = block(rank, groups, bias)
    statistics(model, rng)
    model.eval()
    x = rng.normal(size=(3, 4, *(7, 6, 5)[:rank])).astype(np.float32)
    before, arrays = eval_graph(model, x)
    after = simplify(fold(simplify(before)))
    images = [n.op.name for n in after.nodes if n.shape[:1] == (3,) and n.op.kind == "elementwise"]
    assert images == ["add", "le", "where", "add"]  # of all the scales and shifts a bias each
    wanted = exactly(before, arrays)
    close(interpret(after)(*arrays)[0], wanted, weft.float32, slack=4.0)
    close(weft.jit(model.__call__)(x).numpy(), wanted, weft.float32, slack=4.0)
    np.testing.assert_allclose(exactly(after, arrays), wanted, rtol=1e-10, atol=1e-12)
    counted()


def test_every_convolution_of_a_residual_network() -> None:
    """Each is computed once, with nothing but a bias behind it."""
    model = zoo.resnet((1, 1), classes=4, width=4, stem="cifar")
    x = generator("residual").normal(size=(2, 3, 8, 8)).astype(np.float32)
    model(weft.asarray(x))
    statistics(model, generator("statistics"))
    model.eval()
    before, arrays = eval_graph(model, x)
    after = simplify(fold(simplify(before)))
    assert names(after).count("conv") == names(before).count("conv") >= 5
    images = [n.op.name for n in after.nodes if len(n.shape) == 4 and n.shape[0] == 2]
    assert not {"mul", "sub", "div"} & set(images)
    wanted = exactly(before, arrays)
    close(interpret(after)(*arrays)[0], wanted, weft.float32, slack=8.0)


def test_frozen_statistics_and_a_filter_that_is_trained() -> None:
    """The derivative for the filter does not read the convolution, which is folded beside it."""

    def loss(w: Any, x: Any, a: Any, b: Any) -> Any:
        return weft.tanh((weft.conv(x, w) - wide(b)) * wide(a)).sum()

    types = (FILTER, IMAGE, CHANNELS, CHANNELS)
    before = simplify(graph(weft.value_and_grad(loss), *types))
    after = fold(before)
    assert after != before
    assert_same_values(before, after, tolerance=1e-5)


# --- parameters that change -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def model() -> nn.Module:
    made = block(2, 1, True)
    statistics(made, generator("model"))
    made.eval()
    return made


X = generator("x").normal(size=(2, 4, 6, 5)).astype(np.float32)


def defined(model: nn.Module) -> np.ndarray:
    return exactly(*eval_graph(model, X))


def test_what_is_folded_is_kept_until_parameters_change(model: nn.Module) -> None:
    infer = weft.jit(model.__call__)
    program = infer._for((X,), {}).executable.program
    for call in program.calls:
        images = [n for n in call.kernel.outputs if n.shape[:1] == X.shape[:1]]
        assert call.once or images or call.phase is not None  # what makes filters and biases is done once
    assert sum(call.once for call in program.calls) >= 2
    close(infer(X).numpy(), defined(model), weft.float32, slack=4.0)
    first = infer(X).numpy().copy()
    for name, tensor in model.named_tensors().items():
        if not tensor.dtype.is_float:
            continue
        before = infer(X).numpy().copy()
        tensor.assign(tensor * 1.5 + 0.25)
        now = infer(X).numpy()
        assert not np.array_equal(now, before), name
        close(now, defined(model), weft.float32, slack=8.0)
    assert not np.allclose(infer(X).numpy(), first)


def test_training_between_calls_is_seen(model: nn.Module) -> None:
    """It changes filters, scales and running statistics in their own memory."""
    infer = weft.jit(model.__call__)
    optimizer = weft.optim.sgd(model, 0.05)

    @weft.jit
    def step(x: Any) -> Any:
        loss = (model(x) ** 2).mean()
        optimizer.minimize(loss)
        return loss

    for _ in range(3):
        close(infer(X).numpy(), defined(model), weft.float32, slack=8.0)
        before = infer(X).numpy().copy()
        model.train()
        step(X)
        model.eval()
        assert not np.array_equal(infer(X).numpy(), before)


def test_on_a_gpu(model: nn.Module, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """One made of the host's memory. What is kept there is made anew when a parameter changes."""
    pytest.importorskip("triton")
    import fake_gpu

    wanted = defined(model)
    fake_gpu.install(monkeypatch)
    with weft.knobs.set(device="cuda", cache=str(tmp_path)):
        there = block(2, 1, True)
        there.eval()
        there.load({name: tensor.numpy() for name, tensor in model.named_tensors().items()})
        infer = weft.jit(there.__call__)
        for _ in range(3):
            close(infer(X).numpy(), wanted, weft.float32, slack=4.0)
        for name in ("layers.1.scale", "layers.4.var", "layers.3.weight"):
            there.named_tensors()[name].assign(there.named_tensors()[name] * 3.0)
        with weft.knobs.set(device="cpu"):
            model.load({name: tensor.numpy() for name, tensor in there.named_tensors().items()})
            changed = defined(model)
        assert not np.allclose(changed, wanted)
        for _ in range(2):
            close(infer(X).numpy(), changed, weft.float32, slack=4.0)
